"""What is claimed beside what was shown: one row per method and observer, and a verdict on each.

A claim that is proved (``certified`` or ``exact``) and that an attacker refutes is a fault of the
proof or of the program.  So that is decided strictly: every attacker is tested against every claim
on runs that it was not chosen on, and Holm's rule adjusts all these tests for each other.  The
chance that an audit calls any true claim refuted is then at most :data:`SIGNIFICANCE`.  Bounds that
assume a shape of the trade-off curve are shown and decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from unwalk.audits.attackers import attacked
from unwalk.audits.bounds import Tally, cap, clopper_pearson, gaussian_trade_off, holm, p_value
from unwalk.audits.game import Played
from unwalk.audits.worlds import WITH, WITHOUT
from unwalk.core.grades import PROVED
from unwalk.methods import METHODS
from unwalk.settings.config import Config

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
REFUTED, EXCEEDED, STANDS = "refuted", "exceeded", "not refuted"
TOO_FEW, UNCLAIMED = "too few runs", "no claim"


@dataclass(frozen=True)
class Claim:
    """The weakest claim over all runs with the records; no epsilon where nothing is claimed."""

    grade: str
    epsilon: float | None
    delta: float
    reason: str

    @staticmethod
    def over(runs: Sequence[Sequence[dict[str, Any]]], delta: float) -> Claim:
        """What every run claims: proved if all are, else nominal if all are, else nothing.

        ``delta`` is the one that errors are measured at where nothing is claimed.
        """
        for grades in (PROVED, ("nominal",)):
            of_grade = [[c for c in claims if c["grade"] in grades] for claims in runs]
            if of_grade and all(of_grade):
                worst = max((own[-1] for own in of_grade), key=lambda c: float(c["epsilon"]))
                largest = max(float(own[-1]["delta"]) for own in of_grade)
                return Claim(worst["grade"], float(worst["epsilon"]), largest, worst["reason"])
        reasons = [c["reason"] for claims in runs for c in claims if c["grade"] == "refused"]
        return Claim("refused", None, delta, reasons[0] if reasons else "nothing is claimed")


@dataclass(frozen=True)
class Tried:
    """One rule of one attacker on the runs that count; ``p`` is of the row's claim."""

    name: str
    false_alarms: int
    misses: int
    bound: float
    p: float | None


@dataclass(frozen=True)
class Row:
    """One method before one observer.

    ``attacker`` was chosen on other runs; ``audited`` is its bound with 95 % confidence, by itself.
    ``gaussian`` assumes a shape, and has none at delta 0.  ``adjusted`` is the smallest p-value of
    the row after Holm's rule over all rows and attackers.  ``family`` is the largest bound of any
    of its attackers that holds with 95 % confidence for all rows and attackers at once
    (Bonferroni), and ``family_cap`` the largest that it could be.
    """

    task: str
    preset: str
    method: str
    label: str
    observer: str
    grade: str
    epsilon: float | None
    delta: float
    reason: str
    runs: int
    attacker: str
    false_alarms: int
    misses: int
    audited: float
    gaussian: float | None
    cap: float
    adjusted: float | None
    family: float
    family_cap: float
    verdict: str
    tried: tuple[Tried, ...]

    @staticmethod
    def from_json(kept: Mapping[str, Any]) -> Row:
        """What :meth:`to_json` gave."""
        return Row(**{**kept, "tried": tuple(Tried(**one) for one in kept["tried"])})

    def to_json(self) -> dict[str, Any]:
        """The form that ``audit.json`` holds."""
        return asdict(self)


OUTSIDE = "not covered"
"""The grade of a row whose observer the claim says nothing about."""


def uncovered(method: str, observer: str, config: Config) -> str | None:
    """Why a method's claim says nothing about this observer; None if it does."""
    record = METHODS[method]
    if observer == "released":
        return None
    threat = record.guarantee.threat
    if threat.coalition.startswith("none:"):
        return f"the claim is for {threat.observers}"
    if record.way_back is not None and record.way_back(config) == "first-use":
        return (
            "where a walk goes back to is public, and depends on the records that were drawn; the "
            "world without them has no such walk, so that only released models are compared"
        )
    return None


def rows_of(played: Iterable[tuple[str, Played]], config: Config) -> list[Row]:
    """A row for every method and observer, without verdicts; methods may come one by one."""
    return [
        _row(method, observer, one, config)
        for method, one in played
        for observer in dict.fromkeys(name for name, _ in one.views)
    ]


def judged(rows: Sequence[Row]) -> list[Row]:
    """The same rows, with verdicts over all of them together."""
    tests = [(at, tried.p) for at, row in enumerate(rows) for tried in row.tried]
    known = [(at, p) for at, p in tests if p is not None]
    least: dict[int, float] = {}
    for (at, _), adjusted in zip(known, holm([p for _, p in known]), strict=True):
        least[at] = min(least.get(at, 1.0), adjusted)
    many = max(1, len(tests))
    return [_judged(row, least.get(at), many) for at, row in enumerate(rows)]


def _row(method: str, observer: str, played: Played, config: Config) -> Row:
    claim = Claim.over(played.claims, config.unlearn.delta)
    if (why := uncovered(method, observer, config)) is not None:
        claim = Claim(OUTSIDE, None, config.unlearn.delta, why)
    outcomes = attacked(played.views[observer, WITH], played.views[observer, WITHOUT], claim.delta)
    runs = len(played.views[observer, WITH]) - len(played.views[observer, WITH]) // 2
    tried = tuple(
        Tried(
            rule.name,
            tally.false_alarms,
            tally.misses,
            clopper_pearson(tally, claim.delta, CONFIDENCE),
            None if claim.epsilon is None else p_value(tally, claim.epsilon, claim.delta),
        )
        for rule, tally in outcomes
    )
    # Where no message differs between the worlds, nobody can do better than to guess.
    best = outcomes[0][1] if outcomes else Tally(0, runs, runs, runs)
    return Row(
        task=config.task,
        preset=config.preset,
        method=method,
        label=METHODS[method].title,
        observer=observer,
        grade=claim.grade,
        epsilon=claim.epsilon,
        delta=claim.delta,
        reason=claim.reason,
        runs=runs,
        attacker=outcomes[0][0].name if outcomes else "none: the worlds are equal to the bit",
        false_alarms=best.false_alarms,
        misses=best.misses,
        audited=clopper_pearson(best, claim.delta, CONFIDENCE),
        gaussian=gaussian_trade_off(best, claim.delta, CONFIDENCE) if claim.delta else None,
        cap=cap(runs, CONFIDENCE, claim.delta),
        adjusted=None,
        family=0.0,
        family_cap=0.0,
        verdict=UNCLAIMED,
        tried=tried,
    )


def _judged(row: Row, adjusted: float | None, tests: int) -> Row:
    bounds = [
        clopper_pearson(
            Tally(one.false_alarms, row.runs, one.misses, row.runs), row.delta, CONFIDENCE, tests
        )
        for one in row.tried
    ]
    largest = cap(row.runs, CONFIDENCE, row.delta, tests)
    row = replace(row, family=max(bounds, default=0.0), family_cap=largest)
    if row.epsilon is None:
        return row
    value = 1.0 if adjusted is None else adjusted
    verdict = STANDS if largest > row.epsilon else TOO_FEW
    if value <= SIGNIFICANCE:
        verdict = REFUTED if row.grade in PROVED else EXCEEDED
    return replace(row, adjusted=value, verdict=verdict)


def refuted(rows: Sequence[Row]) -> bool:
    """Whether a claim that is proved was refuted."""
    return any(row.verdict == REFUTED for row in rows)
