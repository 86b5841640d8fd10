"""Evaluates a finished run: every measure for every method, with intervals, beside retraining.

Measures are formulas on arrays (:mod:`unwalk.measures`); :mod:`unwalk.runs.ensemble` makes the
models.  Every number stands beside the same number of retraining, and what counts is the
difference.  A difference on the side of *less* than retraining is over-unlearning: it is shown as a
gap, never as a success.
"""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unwalk.core import __version__
from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_choice, check_count, check_number
from unwalk.measures.attacks import auc, true_positives_at
from unwalk.measures.divergence import kl_to_retraining, klom_dealt, klom_percentile
from unwalk.measures.forgetting_quality import (
    challenge_score,
    forgetting_quality,
    record_epsilons,
)
from unwalk.measures.gaussian_poison import RATE
from unwalk.measures.gaussian_poison import caught as caught_by_noise
from unwalk.measures.intervals import Interval, Matrix, mean_interval, paired, resampled
from unwalk.measures.margins import label_losses, margins
from unwalk.measures.matched_cost import cost_until, level_at
from unwalk.measures.population import by_confidence, by_loss, rmia
from unwalk.measures.relearning import relearn_difference, relearn_time, resurfaced
from unwalk.measures.ulira import ENOUGH, LEAST, ulira
from unwalk.methods import METHODS
from unwalk.reports.evaluation_page import NOT_MEASURED, render_evaluation
from unwalk.reports.result import TOOK
from unwalk.runs.assemble import assemble
from unwalk.runs.ensemble import BEFORE, GOES_ON, Ensemble, gather
from unwalk.runs.run import methods_of
from unwalk.runs.store import settings_of, write_file
from unwalk.runs.sweep import Count, Failed, Say, uncounted, unsaid
from unwalk.tasks import can_be_named
from unwalk.tasks.task import ShardedTask, check_classes

ORACLE = "retrain"
MEMBERS = 16
FARTHER = 2
TELLING = 16
"""Models a side from which on KLOM tells margins that lie three standard deviations apart."""
FORMAT = 2


@dataclass(frozen=True)
class Row:
    """One number of one method, beside retraining's.

    ``side`` says on which side of retraining the gap lies, if its interval leaves out 0:
    ``remembers``, ``over-unlearned`` or, for a distance, ``differs``; otherwise ``level``.
    """

    family: str
    measure: str
    method: str
    label: str
    unit: str
    value: float | None
    low: float | None = None
    high: float | None = None
    retraining: float | None = None
    gap: float | None = None
    gap_low: float | None = None
    gap_high: float | None = None
    side: str = ""
    note: str = ""


def side_of(gap: Interval, leans: int) -> str:
    """Where a gap to retraining lies.

    ``leans`` is the sign of a gap that remembers.  Of a distance it is 2, or -2 where less is
    farther: to be no farther from retraining than retraining is from itself is level.  It is 0
    where neither side means memory.

    >>> side_of(Interval(0.2, 0.1, 0.3), 1), side_of(Interval(-0.2, -0.3, -0.1), 1)
    ('remembers', 'over-unlearned')
    >>> side_of(Interval(0.2, 0.1, 0.3), 2), side_of(Interval(-0.2, -0.3, -0.1), 2)
    ('differs', 'level')
    >>> side_of(Interval(0.2, -0.1, 0.3), 1), side_of(Interval(0.2), 1)
    ('level', '')
    """
    if gap.low is None or gap.high is None:
        return ""
    if gap.low <= 0.0 <= gap.high:
        return "level"
    if leans == 0:
        return "differs"
    toward = gap.value * leans > 0
    if abs(leans) == FARTHER:
        return "differs" if toward else "level"
    return "remembers" if toward else "over-unlearned"


class Table:
    """Rows, as they are found."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.rows: list[Row] = []
        self.only: str | None = None
        """The one method that rows are added for, if not for all."""

    def names(self, part: str = "outputs", *, before: bool = True) -> Iterator[str]:
        """The methods that have this part, the model before forgetting first."""
        for name in ((BEFORE,) if before else ()) + self.ensemble.methods:
            if self.only in (None, name) and self.ensemble.has(part, name):
                yield name

    def fill(self, family: str) -> None:
        """Add the rows of a measure.

        If that fails, it is done method by method, and a method that fails is a row with its
        reason.
        """
        part, rows_of = MEASURES[family]
        before = len(self.rows)
        try:
            rows_of(self)
            return
        except Exception as error:
            if isinstance(error, NeedsMore):
                self.failed(family, "", str(error))
                return
        del self.rows[before:]
        for name in list(self.names(part)):
            self.only, before = name, len(self.rows)
            try:
                rows_of(self)
            except Exception as error:
                del self.rows[before:]
                self.failed(family, name, Failed.by(error).reason)
        self.only = None

    def failed(self, family: str, name: str, reason: str) -> None:
        """A row that says why a method, or every one, has no numbers of a measure, or of any."""
        note = f"{family}: {reason}" if family else reason
        self.rows.append(self.blank(family, NOT_MEASURED, name, note=note))

    def pairs(
        self,
        family: str,
        measure: str,
        values: Callable[[str], npt.ArrayLike],
        *,
        leans: int,
        unit: str = "",
        part: str = "outputs",
        before: bool = True,
    ) -> None:
        """A measure with a value for each member, paired with retraining of the same seed."""
        if not self.ensemble.has(part, ORACLE):
            return
        theirs = np.asarray(values(ORACLE), np.float64)
        for name in self.names(part, before=before):
            ours = np.asarray(values(name), np.float64)
            gap = Interval(0.0) if name == ORACLE else paired(ours, theirs)
            self.add(
                family, measure, name, mean_interval(ours), float(theirs.mean()), gap, leans, unit
            )

    def add(
        self,
        family: str,
        measure: str,
        name: str,
        found: Interval,
        reference: float | None,
        gap: Interval,
        leans: int,
        unit: str = "",
        note: str = "",
    ) -> None:
        """One row; retraining has no gap to itself."""
        own = name == ORACLE
        numbers = (found.value, found.low, found.high, reference, gap.value, gap.low, gap.high)
        if not all(math.isfinite(one) for one in numbers if one is not None):
            raise InvalidInput(f"{measure} is not a finite number.")
        row = self.blank(family, measure, name, unit, note)
        self.rows.append(
            replace(
                row,
                value=found.value,
                low=found.low,
                high=found.high,
                retraining=reference,
                gap=None if own else gap.value,
                gap_low=None if own else gap.low,
                gap_high=None if own else gap.high,
                side="" if own or leans == NO_SIDE else side_of(gap, leans),
            )
        )

    def not_level_with(self, side: int) -> None:
        """With few models a side a measure saturates: then the last row does not say level."""
        last = self.rows[-1]
        if side < TELLING and last.side == "level":
            note = f"{last.note}, too few to be level: it saturates"
            self.rows[-1] = replace(last, side="", note=note)

    def blank(self, family: str, measure: str, name: str, unit: str = "", note: str = "") -> Row:
        """A row without numbers."""
        label = (
            "before forgetting"
            if name == BEFORE
            else METHODS[name].title
            if name
            else "every method"
        )
        return Row(family, measure, name, label, unit, None, note=note)

    def margins(self, name: str, which: str) -> npt.NDArray[np.float64]:
        """Margins of all members on a set (members by records)."""
        logits = self.ensemble.stacked("outputs", name, which)
        return np.stack([margins(one, self.ensemble.labels[which]) for one in logits])


class NeedsMore(InvalidInput):
    """A measure that no method can have with so few members."""


NO_SIDE = 9
"""For costs and accuracies, of which more is neither memory nor distance."""


def _accuracy(table: Table) -> None:
    """The shares that every run reports, with intervals over members."""
    for key, title in (
        ("clean", "clean accuracy"),
        ("retain", "retain accuracy"),
        ("forget", "forget accuracy"),
        ("asr", "attack success"),
    ):
        facts = table.ensemble.facts("outputs", ORACLE)
        if facts[0]["final"][key] is None:
            continue
        leans = 1 if key in ("forget", "asr") else NO_SIDE

        def values(name: str, key: str = key) -> list[float]:
            return [one["final"][key] for one in table.ensemble.facts("outputs", name)]

        table.pairs("accuracy", title, values, leans=leans, unit="share")


def _population(table: Table) -> None:
    """Membership inference by one attacker for all records: forgotten ones against test records.

    Test records are halved: others of the attack, and the population of RMIA.
    """
    ensemble = table.ensemble
    own, test = ensemble.labels["forget"], ensemble.labels["test"]

    def scored(kind: str, name: str) -> list[tuple[npt.ArrayLike, npt.ArrayLike]]:
        forget = ensemble.stacked("outputs", name, "forget")
        tested = ensemble.stacked("outputs", name, "test")
        if kind == "loss":
            return [
                (by_loss(a, own), by_loss(b[::2], test[::2]))
                for a, b in zip(forget, tested, strict=True)
            ]
        if kind == "confidence":
            return [
                (by_confidence(a), by_confidence(b[::2]))
                for a, b in zip(forget, tested, strict=True)
            ]
        return _rmia_scores(ensemble, forget, tested)

    known: dict[tuple[str, str], list[tuple[npt.ArrayLike, npt.ArrayLike]]] = {}
    kinds = ["loss", "confidence"] + (["RMIA"] if len(ensemble.seeds) > 1 else [])
    for kind in kinds:
        leans = 0 if kind == "confidence" else 1  # a wrong label is forgotten to more confidence
        for title, statistic in (
            ("AUC", auc),
            ("TPR at 1 % FPR", lambda a, b: true_positives_at(a, b, 0.01)),
            ("TPR at 0.1 % FPR", lambda a, b: true_positives_at(a, b, 0.001)),
        ):

            def values(name: str, kind: str = kind, statistic: Any = statistic) -> list[float]:
                if (kind, name) not in known:
                    known[kind, name] = scored(kind, name)
                return [statistic(a, b) for a, b in known[kind, name]]

            table.pairs("population", f"{kind} attack, {title}", values, leans=leans)


def _rmia_scores(
    ensemble: Ensemble, forget: npt.NDArray[Any], tested: npt.NDArray[Any]
) -> list[tuple[npt.ArrayLike, npt.ArrayLike]]:
    """RMIA with the retrained models of the other members as references."""
    own, test = ensemble.labels["forget"], ensemble.labels["test"]

    def probabilities(logits: npt.NDArray[Any], labels: Any) -> npt.NDArray[np.float64]:
        return np.stack([np.exp(-label_losses(one, labels)) for one in logits])

    oracle = [ensemble.stacked("outputs", ORACLE, which) for which in ("forget", "test")]
    known, population = probabilities(oracle[0], own), probabilities(oracle[1], test)
    ours, theirs = probabilities(forget, own), probabilities(tested, test)
    scores: list[tuple[npt.ArrayLike, npt.ArrayLike]] = []
    for member in range(len(ours)):
        others = [m for m in range(len(ours)) if m != member]
        drawn = theirs[member, 1::2], population[others, 1::2]
        scores.append(
            (
                rmia(ours[member], known[others], *drawn),
                rmia(theirs[member, ::2], population[others, ::2], *drawn),
            )
        )
    return scores


def _margin(table: Table) -> None:
    """The mean margin of forgotten records: on which side of retraining a method ended.

    That of test records, which no model saw, tells memory from a method that is surer of all.
    """
    table.pairs(
        "margin",
        "margin of forgotten records",
        lambda name: table.margins(name, "forget").mean(1),
        leans=1,
    )
    table.pairs(
        "margin",
        "margin of test records",
        lambda name: table.margins(name, "test").mean(1),
        leans=NO_SIDE,
    )


def _ulira(table: Table) -> None:
    """U-LiRA; chance is one half for the AUC, and the rate itself for true positives."""
    members = len(table.ensemble.seeds)
    if members < LEAST:
        raise NeedsMore(f"U-LiRA needs {LEAST} members or more; --members is {members}.")
    note = "" if members >= ENOUGH else f"{members} members; {ENOUGH} are usual"
    theirs = table.margins(ORACLE, "forget")
    for name in table.names():
        if name == ORACLE:
            continue
        attack = ulira(table.margins(name, "forget"), theirs)
        for title, one, chance in (
            ("U-LiRA AUC", attack.auc, 0.5),
            ("U-LiRA, TPR at 1 % FPR", attack.at_1_percent, 0.01),
            ("U-LiRA, TPR at 0.1 % FPR", attack.at_01_percent, 0.001),
        ):
            table.add("ulira", title, name, one, chance, one.minus(chance), FARTHER, note=note)


def _kl(table: Table) -> None:
    """KL of answers to a retrained model of another seed: for retraining itself it is not 0."""
    for which in ("forget", "test"):
        others = np.roll(table.ensemble.stacked("outputs", ORACLE, which), 1, axis=0)

        def values(name: str, which: str = which, others: Any = others) -> list[float]:
            ours = table.ensemble.stacked("outputs", name, which)
            return [float(kl_to_retraining(a, b).mean()) for a, b in zip(ours, others, strict=True)]

        title = f"KL to retraining, {which} records"
        table.pairs("kl", title, values, leans=FARTHER, unit="nats")


def _halves(
    table: Table, name: str, which: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Even members of a method, even and odd members of retraining: equally many, no seed twice."""
    ours, theirs = table.margins(name, which), table.margins(ORACLE, which)
    side = len(ours) // 2
    return ours[::2][:side], theirs[::2][:side], theirs[1::2][:side]


def _klom(table: Table) -> None:
    """KLOM at the 95th percentile, beside that of the same models dealt to both sides at random.

    Retraining's own is one half of its members to the other.  The gap is that to the median of the
    deals, and its interval leaves out 0 where one in twenty deals goes as far.
    """
    side = len(table.ensemble.seeds) // 2
    if side < 2:
        raise NeedsMore("KLOM needs 4 members or more.")
    for which in ("forget", "retain", "test"):
        for name in table.names():
            ours, same, other = _halves(table, name, which)
            distance, floor = (klom_percentile(one, other) for one in (ours, same))
            dealt = klom_dealt(ours, other)
            low, middle, high = (distance - one for one in np.percentile(dealt, [97.5, 50.0, 2.5]))
            title = f"KLOM, 95th percentile, {which} records"
            gap, note = Interval(middle, low, high), f"{side} models a side"
            table.add("klom", title, name, Interval(distance), floor, gap, FARTHER, "nats", note)
            table.not_level_with(side)


def _quality(table: Table) -> None:
    """Forgetting quality and the challenge's score; retraining's own is half against half."""
    side = len(table.ensemble.seeds) // 2
    if side < 2:
        raise NeedsMore("forgetting quality needs 4 members or more.")
    oracle = table.ensemble.facts("outputs", ORACLE)

    for name in table.names():
        ours, same, other = _halves(table, name, "forget")
        quality, floor = (Interval(_mean_score(a, other)) for a in (ours, same))
        gap = resampled(_quality_gap, [ours, same, other])
        note, title = f"{side} models a side", "forgetting quality"
        table.add("quality", title, name, quality, floor.value, gap, -FARTHER, note=note)
        table.not_level_with(side)
        facts = table.ensemble.facts("outputs", name)
        ratios = [
            tuple(float(np.mean([one["final"][key] for one in group])) for group in (facts, oracle))
            for key in ("retain", "clean")
        ]
        score = challenge_score(quality.value, ratios[0], ratios[1])  # type: ignore[arg-type]
        gap = Interval(score - floor.value)
        table.add("quality", "challenge score", name, Interval(score), floor.value, gap, -FARTHER)


def _mean_score(ours: Matrix, other: Matrix) -> float:
    return forgetting_quality(record_epsilons(ours, other))


def _quality_gap(ours: Matrix, same: Matrix, other: Matrix) -> float:
    """Models are resampled, not records: those of one model vary together."""
    return _mean_score(ours, other) - _mean_score(same, other)


def _poison(table: Table) -> None:
    """True positives at 1 % false ones: how often forgotten noise is recognised."""

    def values(name: str) -> list[float]:
        scores = table.ensemble.stacked("poison", name, "statistics")
        return [caught_by_noise(one).value for one in scores]

    title = f"Gaussian poison, TPR at {100 * RATE:.0f} % FPR"
    table.pairs("poison", title, values, leans=1, part="poison")
    table.pairs(
        "poison",
        "Gaussian poison, mean statistic",
        lambda name: table.ensemble.stacked("poison", name, "statistics").mean(1),
        leans=1,
        part="poison",
    )


ARMS = {"some": "half of the forgotten records", "none": "retained records only"}


def _relearn(table: Table) -> None:
    """Hops until the measure of forgetting is back where it was, in both arms."""
    facts = table.ensemble.facts
    for arm, title in ARMS.items():

        def times(name: str, arm: str = arm) -> list[int | None]:
            return [
                relearn_time([(h, v) for h, v in one[arm]["series"]], one[arm]["before"])
                for one in facts("relearn", name)
            ]

        horizon = facts("relearn", ORACLE)[0]["horizon"]
        theirs = times(ORACLE)
        for name in table.names("relearn", before=False):
            ours = times(name)
            late = sum(one is None for one in ours)
            note = f"{late} of {len(ours)} not within {horizon} hops" if late else ""
            capped = [horizon if one is None else one for one in ours]
            pairs = zip(ours, theirs, strict=True)
            gap = mean_interval([relearn_difference(a, b, horizon) for a, b in pairs])
            reference = float(np.mean([horizon if one is None else one for one in theirs]))
            hops = mean_interval(capped)
            measure = f"relearn time, {title}"
            table.add("relearn", measure, name, hops, reference, gap, -1, "hops", note)


def _resurface(table: Table) -> None:
    """How far forgetting comes undone while training goes on with retained records."""

    def values(name: str) -> list[float]:
        facts = table.ensemble.facts("relearn", name)
        return [resurfaced([(h, v) for h, v in one["none"]["series"]]) for one in facts]

    title = "resurfacing under continued training"
    table.pairs("resurface", title, values, leans=1, unit="share", part="relearn", before=False)


def _cost(table: Table) -> None:
    """What it had cost when accuracy and forgetting were level with retraining's end, for good."""

    def costs(name: str) -> list[dict[str, float] | None]:
        return [
            cost_until(one["hops"], level_at(one["matched"]))
            for one in table.ensemble.facts("outputs", name)
        ]

    for key, unit in (
        ("hops", "hops"),
        ("visits_to_unlearner", "visits"),
        ("bytes", "bytes"),
        ("gradients", "gradients"),
    ):
        theirs = [one[key] for one in costs(ORACLE) if one is not None]
        reference = float(np.mean(theirs)) if theirs else None
        for name in table.names(before=False):
            ours = costs(name)
            reached = [one[key] for one in ours if one is not None]
            title = f"cost at matched accuracy, {key.replace('_', ' ')}"
            note = "" if len(reached) == len(ours) else f"{len(reached)} of {len(ours)} got there"
            if not reached:
                table.rows.append(table.blank("cost", title, name, unit, note))
                continue
            cost = mean_interval(reached)
            both = len(reached) == len(ours) == len(theirs)
            gap = paired(reached, theirs) if both else Interval(cost.value - (reference or 0.0))
            table.add("cost", title, name, cost, reference, gap, NO_SIDE, unit, note)


MEASURES: dict[str, tuple[str, Callable[[Table], None]]] = {
    "accuracy": ("outputs", _accuracy),
    "margin": ("outputs", _margin),
    "population": ("outputs", _population),
    "ulira": ("outputs", _ulira),
    "kl": ("outputs", _kl),
    "klom": ("outputs", _klom),
    "quality": ("outputs", _quality),
    "poison": ("poison", _poison),
    "relearn": ("relearn", _relearn),
    "resurface": ("relearn", _resurface),
    "cost": ("outputs", _cost),
}
"""Each measure: which part of the ensemble it needs, and what adds its rows."""


def evaluate(
    run_dir: Path,
    *,
    task: ShardedTask | None = None,
    measures: Sequence[str] = (),
    members: int = MEMBERS,
    out: Path | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    minutes: float | None = None,
    command: str = "",
    count: Count = uncounted,
    say: Say = unsaid,
) -> dict[str, Any]:
    """Every measure for every method of a finished run, and the files of the result.

    They go to ``out``, by default the folder ``evaluation`` in the run's: ``evaluate.json``,
    ``evaluate.csv``, ``evaluate.html`` and the folder ``members`` with what was computed.
    After ``minutes`` no walk is begun: the table is of what is there, and the same call makes the
    rest.  A task that was brought along has to be brought again.
    """
    check_count("members", members, low=1)
    check_count("jobs", jobs, low=1)
    if minutes is not None:
        check_number("minutes", minutes, above=0.0)
    until = math.inf if minutes is None else time.time() + 60.0 * minutes
    for name in measures:
        check_choice("measures", name, MEASURES)
    chosen = [name for name in MEASURES if name in measures or not measures]
    config = settings_of(run_dir)
    if task is None and not can_be_named(config.task):
        raise InvalidInput(
            f"the run was made with the task {config.task!r}, which was brought along; call "
            "unwalk.evaluate(RUN_DIR, task=...) with the same task."
        )
    assembled = assemble(config, task)
    check_classes(assembled.task, "unwalk evaluate compares the probabilities of classes")
    if not len(assembled.task.forgotten.y):
        raise InvalidInput("the run has nothing to forget, so there is nothing to evaluate.")
    place = run_dir / "evaluation" if out is None else out
    names = list(dict.fromkeys([*methods_of(config), ORACLE]))
    parts = list(dict.fromkeys(["outputs", *(MEASURES[name][0] for name in chosen)]))
    ensemble = gather(
        assembled,
        members,
        names,
        parts,
        cache=place / "members",
        task=task,
        jobs=jobs,
        cluster=cluster,
        until=until,
        count=count,
        say=say,
    )
    table = Table(ensemble)
    _fill(table, chosen)
    order = list(dict.fromkeys((row.family, row.measure) for row in table.rows))
    rows = sorted(table.rows, key=lambda row: order.index((row.family, row.measure)))
    result = {
        "format": FORMAT,
        "unwalk": __version__,
        "command": command,
        "run": assembled.run_id,
        "task": assembled.task.name,
        "records": len(ensemble.labels["forget"]),
        "members": len(ensemble.seeds),
        "seeds": list(ensemble.seeds),
        "measures": chosen,
        "rows": [asdict(row) for row in rows],
        "warnings": _warnings(ensemble, members),
    }
    write_file(place / "evaluate.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    write_file(place / "evaluate.csv", _csv(rows))
    write_file(place / "evaluate.html", render_evaluation(result))
    return result


def _warnings(ensemble: Ensemble, members: int) -> list[str]:
    """What makes the rows say less than they seem to."""
    made = len(ensemble.seeds)
    few = [] if made == members else [f"{made} of {members} members are made; {GOES_ON}."]
    return few + _took(ensemble)


def _took(ensemble: Ensemble) -> list[str]:
    """Whether there was anything to forget."""
    before, oracle = (
        [one["final"]["asr"] for one in ensemble.facts("outputs", name)]
        for name in (BEFORE, ORACLE)
    )
    if None in before:
        return []
    learned = sum(a >= b + TOOK for a, b in zip(before, oracle, strict=True))
    if learned == len(before):
        return []
    return [
        f"the backdoor took in {learned} of {len(before)} members only; where it did not, nothing "
        "can be forgotten: train longer (train.hops) or poison more (forget.size)."
    ]


def _fill(table: Table, chosen: Sequence[str]) -> None:
    """Add the rows of all measures; at the end what has no numbers, with its reason."""
    ensemble = table.ensemble
    if not ensemble.has("outputs", ORACLE):
        why = ensemble.failed.get(("outputs", ORACLE), "retraining did not run.")
        raise InvalidInput(f"there is nothing to compare with: {why}")
    for name in chosen:
        if ensemble.has(MEASURES[name][0], ORACLE):
            table.fill(name)
    for reason in dict.fromkeys(ensemble.failed.values()):
        of = [key for key, why in ensemble.failed.items() if why == reason]
        names = dict.fromkeys(name for _, name in of)
        for name in [""] if len(names) == len(ensemble.methods) else names:
            # without outputs a method has no numbers at all
            parts = sorted({part for part, one in of if name in ("", one)})
            table.failed("" if "outputs" in parts else " and ".join(parts), name, reason)


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(Row.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()
