"""What is true of a fuzzed program, and whether a claim says more than that.

Written without :mod:`unwalk.privacy`.  The two worlds are coupled: the same coins, and where noise
falls on what is seen later both get the same outcome, so that the distance between what went in,
in standard deviations, is what the noise has to hide.  Whatever then still differs is not hidden.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr
from scipy.stats import beta

from tests.certificates.fuzz import (
    DATASETS,
    Case,
    Floats,
    Ints,
    Part,
    carried_out,
    datasets,
    normals,
)
from tests.certificates.fuzz_maker import Maker
from tests.certificates.fuzz_twin import Seen, Twin
from unwalk.certificates.document import claims_of
from unwalk.core.errors import UnwalkError
from unwalk.core.program import AddNoise

SAMPLES = 300
DOUBT = 1e-9
"""The chance with which a claim may be called false by its samples although it is true."""
PROVED = ("exact", "certified")


@dataclass
class Verdict:
    """What became of one program: ``code`` of its claim's refusal, and what is false of it."""

    case: Case
    grade: str
    code: str | None = None
    false: str | None = None
    claim: dict[str, Any] = field(default_factory=dict)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """delta of a Gaussian mechanism: Balle and Wang 2018, Theorem 8."""
    if mu == 0.0:
        return 0.0
    if not math.isfinite(mu):
        return 1.0
    first = float(log_ndtr(mu / 2.0 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2.0 - epsilon / mu))
    return math.exp(first) - (math.exp(second) if second < 700.0 else 0.0)


def judged(seed: int) -> Verdict:
    """Make a program, run it, ask for its claim and compare it with the truth."""
    return verdict_on(Maker(seed).case())


def verdict_on(case: Case) -> Verdict:
    x, y = datasets(case)
    place = case.seed % DATASETS
    try:
        with np.errstate(all="ignore"):
            transcript, model = carried_out(case, x[place], y[place])
    except (UnwalkError, KeyError, RuntimeError, ValueError, OverflowError, ZeroDivisionError):
        return Verdict(case, "impossible")
    if not np.isfinite(model).all():
        return Verdict(case, "impossible")
    try:
        claims = claims_of(transcript)
    except UnwalkError as error:
        return Verdict(case, "refused", type(error).__name__)
    except Exception as error:
        return Verdict(case, "crashed", type(error).__name__, f"crash: {error!r}")
    if not claims or claims[-1]["grade"] not in PROVED:
        return Verdict(case, "refused", claims[-1]["code"] if claims else "nothing")
    claim = claims[-1]
    try:
        with np.errstate(all="ignore"):
            false = Truth(case, x, y).false(claim, model, place)
    except (IndexError, KeyError, np.linalg.LinAlgError):  # some other dataset cannot be walked
        return Verdict(case, "impossible")
    return Verdict(case, claim["grade"], None, false, claim)


class Truth:
    """The truth about one program, over all of its datasets."""

    def __init__(self, case: Case, x: Floats, y: Ints) -> None:
        self.case, self.x, self.y = case, x, y
        self.shifts: list[tuple[int, Floats]] = []
        self.first = 1 + sum(part.hops for part in case.phases[:-1])

    def false(self, claim: dict[str, Any], model: Floats, place: int) -> str | None:
        """What is false of the claim, or None."""
        exact = claim["grade"] == "exact"
        if exact and self.case.method in ("rewind", "sisa"):
            return self._not_rewound(model, place)
        wide = exact or self.case.dtype == "float64"
        both = Twin(
            self.case,
            np.concatenate([self.x, self.x]),
            np.concatenate([self.y, self.y]),
            np.arange(2 * DATASETS) < DATASETS,
            self._same if exact or self.case.method == "release" else self._forced,
            np.float64 if wide else np.float32,
        ).walk()
        apart = self._disagreement(both[-1].parameters[place], model)
        if apart:
            return apart
        if exact:
            return self._shown(both)
        return self._too_far(claim) or self._leaking(claim, both)

    def _disagreement(self, mine: Floats, model: Floats) -> str | None:
        """The twin has to do what the product did, but where Adam blows up rounding."""
        adam = any(work.optimizer == "adam" for part in self.case.phases for work in part.works)
        if adam:
            return None
        size = 1.0 + np.abs(model).max() + np.abs(self.case.theta0).max()
        tolerance = 1e-7 if self.case.dtype == "float64" else 2e-2
        if np.isfinite(mine).all() and np.abs(mine - model).max() <= tolerance * size:
            return None
        return f"twin: the product ends at {model}, the twin at {mine}"

    # Noise of coupled walks

    def _same(self, hop: int, draw: int, values: Floats, std: float) -> Floats:
        self._note(hop, values, std)
        return values + std * self._normals(hop, draw)

    def _forced(self, hop: int, draw: int, values: Floats, std: float) -> Floats:
        if hop < self.first and self.case.method != "noisy-start":
            return values + std * self._normals(hop, draw)
        self._note(hop, values, std)
        out = values[:DATASETS] + std * self._normals(hop, draw)
        return np.concatenate([out, out])

    def _normals(self, hop: int, draw: int) -> Floats:
        return normals(self.case, hop, draw)

    def _note(self, hop: int, values: Floats, std: float) -> None:
        gap = np.linalg.norm((values[:DATASETS] - values[DATASETS:]).astype(np.float64), axis=-1)
        self.shifts.append((hop, np.where(gap == 0.0, 0.0, gap / max(abs(std), 1e-300))))

    # What is seen

    def _visible(self, seen: list[Seen]) -> list[tuple[int, dict[str, Floats]]]:
        case, last, found = self.case, len(seen) - 1, list[tuple[int, dict[str, Floats]]]()
        for at, token in enumerate(seen):
            model = {"parameters": token.parameters}
            if "inputs" in token.others:
                model["inputs"] = token.others["inputs"]
            if case.digests and not sum(one.draws for one in seen[: at + 1]) and at < last:
                found.append((at, token.others | model))  # a guess can be checked
                continue
            if case.method in ("release", "sums"):
                found += [(at, model)] if at == last else []
                continue
            handed = at + 2 == self.first and self._handed_over()
            if at + 1 < self.first and case.method != "noisy-start" and not handed:
                continue
            stays = token.peer == case.u and at < last and seen[at + 1].peer == case.u
            if not stays:
                found.append((at, {**token.others, **model}))
        return found

    def _handed_over(self) -> bool:
        """Whether training's token goes to another peer than u when the last phase begins."""
        last = self.case.phases[-1]
        return last.start == "token" and last.hops > 0 and last.route[0] != self.case.u

    def _shown(self, seen: list[Seen]) -> str | None:
        """The first thing that is seen and differs between the worlds."""
        for at, token in self._visible(seen):
            for name, value in token.items():
                gap = np.abs(value[:DATASETS] - value[DATASETS:]).max()
                if not gap <= 1e-11 * (1.0 + np.abs(value).max()):
                    return f"{name} after hop {at + 1} differ by {gap:.3g} between the worlds"
        return None

    # Certified claims

    def _too_far(self, claim: dict[str, Any]) -> str | None:
        """Whether the distances at the noises are more than the claimed noise can hide."""
        shifts = self.shifts
        if self.case.method == "release":
            shifts = shifts[-1:]
        elif claim["accountant"] == "seal" and sum(hop == self.first for hop, _ in shifts) > 1:
            false = self._too_far_on_a_line(claim)
            if false:
                return false
            shifts = [(hop, shift) for hop, shift in shifts if hop > self.first]
        squared = sum((shift**2 for _, shift in shifts), np.zeros(DATASETS))
        mu = math.sqrt(float(squared.max()))
        if self.case.dtype == "float32":
            mu *= 1.0 - 1e-5  # the twin's clip is not rounded downwards
        true = gaussian_delta(claim["epsilon"], mu)
        if true > claim["delta"] * (1.0 + 1e-6):
            return (
                f"dataset {int(squared.argmax())} has mu {mu:.6g}: delta {true:.3g} at epsilon "
                f"{claim['epsilon']:.6g}, claimed {claim['delta']:g}"
            )
        return None

    def _too_far_on_a_line(self, claim: dict[str, Any]) -> str | None:
        """A ball seal of two steps in one dimension, by the mass of every cell of its grid."""
        ops = [op for op in self.case.phases[-1].programs[0] if isinstance(op, AddNoise)]
        noises = [op for op in ops if op.std > 0.0]
        if self.case.size != 1 or self.case.phases[-1].hops > 1 or len(noises) != 2:
            return None
        one, two = (op.std for op in noises)
        cells = np.arange(-136, 137)
        grid = 2.0 ** math.floor(math.log2(one / 16.0))
        worst = 0.0
        for place in (int(self.shifts[-2][1].argmax()), 13):
            starts, then = self._two(place, one, cells * grid)
            middle = 0.5 * (starts[0] + starts[1])
            low, high = then.min() - 9.0 * two, then.max() + 9.0 * two
            fine = np.linspace(low, high, 513)
            laws, lost = [], 0.0
            for start, into in zip(starts, then, strict=True):
                edge = (cells * grid + np.round(middle / grid) * grid - start) / one
                mass = ndtr(edge + 0.5 * grid / one) - ndtr(edge - 0.5 * grid / one)
                lost = max(lost, 1.0 - mass.sum())
                laws.append(np.diff(ndtr((fine[:, None] - into) / two), axis=0) @ mass)
            p, q = laws
            factor = math.exp(min(claim["epsilon"], 700.0))
            for a, b in ((p, q), (q, p)):
                worst = max(worst, float(np.maximum(a - factor * b, 0.0).sum()) - factor * lost)
        if worst > claim["delta"] * (1.0 + 1e-6):
            return f"two rounded releases have delta {worst:.3g}, claimed {claim['delta']:g}"
        return None

    def _two(self, place: int, std: float, cells: Floats) -> tuple[tuple[float, float], Floats]:
        """What goes into the first noise in both worlds, and into the second from each cell."""
        into: list[Floats] = []

        def forced(hop: int, draw: int, values: Floats, size: float) -> Floats:
            if hop < self.first:
                return values + size * self._normals(hop, draw)
            into.append(values[:, 0].copy())
            if len(into) == 1:
                centre = np.round(0.5 * (values[0, 0] + values[1, 0]) / grid) * grid
                return np.concatenate([values[:2], *[(centre + cells)[:, None]] * 2])
            return values

        grid = float(cells[1] - cells[0])
        rows = 2 + 2 * len(cells)
        world = np.arange(rows) < 2 + len(cells)
        world[1] = False
        x = np.repeat(self.x[place][None], rows, 0)
        y = np.repeat(self.y[place][None], rows, 0)
        Twin(self.case, x, y, world, forced, np.float64).walk()
        return (float(into[0][0]), float(into[0][1])), into[1][2:].reshape(2, -1)

    def _leaking(self, claim: dict[str, Any], seen: list[Seen]) -> str | None:
        """What is seen may differ by what the noises hide alone."""
        visible = self._visible(seen)
        if self.case.method == "release" and not self.case.digests:
            return None
        shown = self._shown(seen)
        if shown is None and not (claim["accountant"] == "seal" and self.case.seed % 8 == 0):
            return None
        fresh = 0
        for at, token in visible:
            gaps = [
                np.abs(value[:DATASETS] - value[DATASETS:]).max() / (1.0 + np.abs(value).max())
                for value in token.values()
            ]
            if max(gaps) > 1e-9:
                if not any(one.draws for one in seen[fresh : at + 1]):
                    return f"{shown}, and no noise was drawn in that hop"
                break
            fresh = at + 1
        order = np.zeros(DATASETS)
        for _, token in visible:
            for value in token.values():
                order += np.abs(value[:DATASETS] - value[DATASETS:]).max(-1)
        for place in np.argsort(-np.nan_to_num(order))[:2]:
            told = self._told_apart(claim, int(place))
            if told:
                return f"{told}; {shown}"
        return None

    def _told_apart(self, claim: dict[str, Any], place: int) -> str | None:
        """Samples of what is seen in both worlds, told apart more often than claimed."""
        rng = np.random.default_rng(self.case.seed)

        def free(hop: int, draw: int, values: Floats, std: float) -> Floats:
            return values + std * rng.normal(size=values.shape)

        world = np.arange(2 * SAMPLES) % 2 == 0
        x = np.repeat(self.x[place][None], 2 * SAMPLES, 0)
        y = np.repeat(self.y[place][None], 2 * SAMPLES, 0)
        seen = Twin(self.case, x, y, world, free, np.float64).walk()
        view = np.concatenate([v for _, t in self._visible(seen) for v in t.values()], axis=1)
        return told_apart(view, world, claim["epsilon"], claim["delta"])

    # Exact claims of a walk that went back

    def _along_the_new_route(self) -> tuple[Part, ...]:
        """Training as it was, but for the route, which is drawn anew from where it went back."""
        *parts, last = self.case.phases
        earlier = 0
        for number, part in enumerate(parts):
            cut = (last.start_hop or 0) - 1 - earlier
            if self._of_own(part.name) and cut >= 0 and cut + last.hops == part.hops:
                parts[number] = replace(part, route=(*part.route[:cut], *last.route))
            earlier += part.hops
        return tuple(parts)

    def _not_rewound(self, model: Floats, place: int) -> str | None:
        """The walk that went back ends as training without the records does, hop by hop."""
        case, last = self.case, self.case.phases[-1]
        ones, zeros = np.ones(DATASETS, bool), np.zeros(DATASETS, bool)
        back = (last.start_hop or self.first) - self.first

        def noise(offset: int) -> Any:
            def drawn(hop: int, draw: int, values: Floats, std: float) -> Floats:
                there = hop + offset if hop >= self.first else hop
                return values + std * normals(case, there, draw)

            return drawn

        plain = Twin(case, self.x, self.y, ones, noise(0), np.float64).walk()
        apart = self._disagreement(plain[-1].parameters[place], model)
        if apart:
            return apart
        again = Twin(case, self.x, self.y, ones, noise(back), np.float64).walk()[self.first - 1 :]
        without = replace(case, phases=self._along_the_new_route())
        wanted = Twin(without, self.x, self.y, zeros, noise(0), np.float64).walk()
        for mine, theirs in zip(plain, wanted, strict=False):
            other = case.method == "sisa" and not self._of_own(theirs.phase)
            gap = np.abs(mine.parameters - theirs.parameters).max()
            if other and gap > 1e-10 * (1.0 + np.abs(mine.parameters).max()):
                return f"a model of other peers differs by {gap:.3g} between the worlds"
        own = [token for token in wanted if self._of_own(token.phase)]
        if not last.hops:
            again = [token for token in plain if self._of_own(token.phase)][-1:]
        wanted = own[len(own) - len(again) :] if len(again) <= len(own) else own
        start = wanted[0] if wanted else None
        if last.hops and (start is None or len(again) > len(own)):
            return "the walk has more hops than training"
        for number, (mine, theirs) in enumerate(zip(again, wanted, strict=False), 1):
            pairs = [("parameters", mine.parameters, theirs.parameters)]
            pairs += [
                (n, v, theirs.others[n]) for n, v in mine.others.items() if n in theirs.others
            ]
            for name, a, b in pairs:
                gap = np.abs(a - b).max()
                if not gap <= 1e-10 * (1.0 + np.abs(b).max()):
                    return f"{name} after hop {number} are {gap:.3g} from training without D_f"
        return None

    def _of_own(self, phase: int) -> bool:
        shards = len(self.case.phases) - 1
        return self.case.method == "rewind" or phase == self.case.u % max(shards, 1)


def told_apart(
    view: Floats, world: npt.NDArray[np.bool_], epsilon: float, delta: float
) -> str | None:
    """Whether a line fitted to half of the samples tells the other half apart too well.

    Rates are bounded with confidence (Clopper and Pearson 1934).
    """
    if not np.isfinite(view).all() or epsilon > 5.0:
        return None
    half = np.arange(len(view)) < len(view) // 2
    spread = view[half].std(0)
    view = (view - view[half].mean(0)) / np.where(spread > 0.0, spread, 1.0)
    ones, zeros = view[half & world], view[half & ~world]
    gap = ones.mean(0) - zeros.mean(0)
    inner = np.cov(ones.T) + np.cov(zeros.T)
    inner = np.atleast_2d(inner) + 1e-13 * np.eye(len(gap))
    for line in (np.linalg.lstsq(inner, gap, rcond=None)[0], gap, *np.eye(len(gap))):
        score = view @ line
        cut = 0.5 * (score[half & world].mean() + score[half & ~world].mean())
        high, low = score[~half & world] > cut, score[~half & ~world] <= cut
        for right, other in ((high, low), (low, high)):
            hits, wrong, count = int(right.sum()), int((~other).sum()), len(right)
            power = float(beta.ppf(DOUBT, hits, count - hits + 1)) if hits else 0.0
            size = float(beta.ppf(1 - DOUBT, wrong + 1, count - wrong)) if wrong < count else 1.0
            if power > math.exp(epsilon) * size + delta:
                return (
                    f"samples are told apart: {hits} of {count} right with {wrong} false alarms, "
                    f"against epsilon {epsilon:.4g}"
                )
    return None
