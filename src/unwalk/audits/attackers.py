"""Attackers: from what an observer saw to a score that is higher where the records had been.

An attacker is fitted on some runs of both worlds, whose world it is told, and then scores runs that
it has not met.  It sees messages and never a seed: that runs are paired is unknown to it.  All
attackers are in :data:`ATTACKERS`; each yields one or more rules, one per message or per measure.

Runs are used three times, each part once: to *fit* the attackers, to *choose* each rule's threshold
and direction and the best rule, and to *count* errors, from which the bound comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from unwalk.audits.bounds import Tally, clopper_pearson
from unwalk.audits.game import Views
from unwalk.audits.views import ANSWERS, Floats, Message

FITTED = 500
"""The most runs of each world on which the distinguisher is fitted: it takes their cube."""
Score = Callable[[Views], Floats]
Fit = Callable[[Views, Views], Iterator[tuple[str, Score]]]
"""From runs with and without the records to rules, each with its name."""


def _names(views: Views) -> list[str]:
    """Every kept message, and the differences of consecutive ones."""
    slots = list(views.messages)
    return [*slots, *(f"{after} - {before}" for before, after in pairwise(slots))]


def _table(views: Views, name: str) -> Floats:
    """A kept message, or a difference of two as far as both go; a row for each run."""
    after, _, before = name.partition(" - ")
    table: Floats = views.messages[after].astype(np.float64)
    if before:
        other = views.messages[before]
        width = min(table.shape[1], other.shape[1])
        table = table[:, :width] - other[:, :width]
    return table


def projection(with_: Views, without: Views) -> Iterator[tuple[str, Score]]:
    """White box: the part of a message along the difference of the worlds' mean messages."""
    for name in _names(with_):
        apart = _table(with_, name).mean(0) - _table(without, name).mean(0)
        size = float(np.linalg.norm(apart))
        if size > 0.0:
            yield name, _along(name, apart / size)


def whitened(with_: Views, without: Views) -> Iterator[tuple[str, Score]]:
    """White box: the same after each number was divided by its spread over the runs."""
    for name in _names(with_):
        ones, others = _table(with_, name), _table(without, name)
        apart = ones.mean(0) - others.mean(0)
        spread = 0.5 * (ones.var(0) + others.var(0))
        least = 1e-6 * float(spread.mean()) + 1e-9 * float((apart**2).mean())
        if least == 0.0:
            continue
        weights = apart / (spread + least)
        size = float(np.linalg.norm(weights))
        if size > 0.0:
            yield name, _along(name, weights / size)


def joint(with_: Views, without: Views) -> Iterator[tuple[str, Score]]:
    """White box: the first message and what was added to it later, along one direction.

    Where the same noise was added twice, a weighted sum of both has none of it.  The directions are
    the differences of the worlds' mean messages or, for an attacker who knows all coins, of the
    messages without their noise.
    """
    slots = list(with_.messages)
    if len(slots) == 1:
        return
    names = [slots[0], *_names(with_)[len(slots) :]]
    for slot in slots:
        known = [views.centres.get(slot) for views in (with_, without)]
        if known[0] is not None and known[1] is not None and known[0].size == known[1].size:
            apart = known[0].astype(np.float64) - known[1]
        else:
            apart = _table(with_, slot).mean(0) - _table(without, slot).mean(0)
        if not apart.any():
            continue
        along = [_along(name, apart / np.linalg.norm(apart)) for name in names]
        ones, others = (_columns(along, views) for views in (with_, without))
        within = np.concatenate([ones - ones.mean(0), others - others.mean(0)])
        if not within.any():
            continue
        spread = np.where(within.any(0), within.std(0), 1.0)
        scaled = within / spread
        values, vectors = np.linalg.eigh(scaled.T @ scaled)
        inverse = vectors / np.maximum(values, 1e-10 * values[-1]) @ vectors.T
        weights = inverse @ ((ones.mean(0) - others.mean(0)) / spread)
        if weights.any():
            yield slot, _weighted(along, weights / spread)


def _columns(along: Sequence[Score], views: Views) -> Floats:
    return np.stack([score(views) for score in along], 1)


def _weighted(along: Sequence[Score], weights: Floats) -> Score:
    def score(views: Views) -> Floats:
        weighted: Floats = _columns(along, views) @ weights
        return weighted

    return score


def _along(name: str, direction: Floats) -> Score:
    def score(views: Views) -> Floats:
        table = _table(views, name)[:, : direction.size]
        along: Floats = table @ direction[: table.shape[1]]
        return along

    return score


def answers(with_: Views, without: Views) -> Iterator[tuple[str, Score]]:
    """Black box: loss, margin and confidence on the records to be forgotten, attack success."""
    for slot, table in with_.answers.items():
        for column, name in enumerate(ANSWERS[:-1]):
            if np.ptp(np.concatenate([table[:, column], without.answers[slot][:, column]])) > 0.0:
                yield f"{name}, {slot}", _column(slot, column)


def _column(slot: str, column: int) -> Score:
    def score(views: Views) -> Floats:
        return views.answers[slot][:, column]

    return score


def distinguisher(with_: Views, without: Views) -> Iterator[tuple[str, Score]]:
    """A logistic regression on everything at once: messages, their differences, all answers."""
    from sklearn.linear_model import LogisticRegression  # slow to import

    some = [views.rows(0, FITTED) for views in (with_, without)]
    x = np.concatenate([np.concatenate(list(_pieces(views)), 1) for views in some])
    y = np.repeat([1, 0], [len(views) for views in some])
    useful = np.ptp(x, axis=0) > 1e-150  # of less the square is zero
    if not useful.any():
        return
    within = np.sqrt(0.5 * (x[y == 1].var(0) + x[y == 0].var(0)))[useful]
    mean = x.mean(0)[useful]
    spread = np.maximum(within, 1e-3 * x.std(0)[useful]) * np.sqrt(useful.sum())
    known = (x[:, useful] - mean) / spread
    # A regression with a penalty on its weights' length weighs records, so that inner products with
    # the records are all it needs: as many columns as there are runs, instead of many thousands.
    values, vectors = np.linalg.eigh(known @ known.T)
    kept = values > 1e-10 * values[-1]
    onto = known.T @ (vectors[:, kept] / np.sqrt(values[kept]))
    fitted = LogisticRegression(max_iter=500).fit(known @ onto, y)
    weights = np.zeros(useful.size)
    weights[useful] = onto @ fitted.coef_[0] / spread
    least = float(fitted.intercept_[0] - mean @ weights[useful])

    def score(views: Views) -> Floats:
        scores, at = np.full(len(views), least), 0
        for piece in _pieces(views):
            scores += piece @ weights[at : at + piece.shape[1]]
            at += piece.shape[1]
        return scores

    yield "everything", score


def _pieces(views: Views) -> Iterator[Floats]:
    """All messages, their differences and all answers, a row for each run."""
    yield from (_table(views, name) for name in _names(views))
    yield from views.answers.values()


def number_format(with_: Views, without: Views) -> Iterator[tuple[str, Score]]:
    """Which floats can be reached: a sum of two floats leaves traces in its lowest bits.

    Where noise is added in floating point to a number larger than the sum, the sum's last bits are
    zero, and the more of them, the larger the number was.  The first statistic counts those bits.
    An attacker who knows all coins knows both numbers to which the noise may have been added; the
    second statistic counts the sums that can be reached from one and not from the other.
    """
    for slot in with_.centres:
        if slot in without.centres:
            yield f"reachable, {slot}", _reachable(slot, with_.centres[slot], without.centres[slot])
    for slot in with_.messages:
        ones, others = _zeros(_table(with_, slot)), _zeros(_table(without, slot))
        apart = ones.mean(0) - others.mean(0)
        if np.abs(apart).max() > 0.0:
            yield slot, _zeros_along(slot, apart / np.linalg.norm(apart))


def _zeros_along(slot: str, direction: Floats) -> Score:
    def score(views: Views) -> Floats:
        along: Floats = _zeros(_table(views, slot)[:, : direction.size]) @ direction
        return along

    return score


def _reachable(slot: str, with_: Message, without: Message) -> Score:
    def score(views: Views) -> Floats:
        table = views.messages[slot]
        narrow = (table.astype(np.float32) == table).all(1)  # of each run by itself
        counted: Floats = np.zeros(len(table))
        for kind, rows in ((np.float32, narrow), (np.float64, ~narrow)):
            sums = table[rows].astype(kind)
            ones, others = (_reached(sums, c.astype(kind)).sum(1) for c in (with_, without))
            counted[rows] = ones - 1.0 * others
        return counted

    return score


def _reached(sums: npt.NDArray[Any], centre: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether some float, added to ``centre``, gives each of ``sums`` after rounding.

    >>> one, tiny = np.float32(1), np.float32(2**-24)
    >>> _reached(np.array([[one + 2 * tiny, tiny]]), np.array([one, one])).tolist()
    [[True, True]]
    >>> _reached(np.array([[np.float32(2**-30)]]), np.array([one + 2 * tiny])).tolist()
    [[False]]
    """
    width = min(sums.shape[1], centre.size)
    sums, centre = sums[:, :width], centre[:width]
    near = sums - centre
    found = centre + near == sums
    for way in (-np.inf, np.inf):
        found |= centre + np.nextafter(near, near.dtype.type(way)) == sums
    reached: npt.NDArray[np.bool_] = found
    return reached


def _zeros(values: Floats) -> Floats:
    """How many of the last of 53 bits are zero; 0 for 0.

    >>> _zeros(np.array([[1.0, 0.75, 6.0, 0.0, 1 + 2**-52]])).tolist()
    [[52.0, 51.0, 51.0, 0.0, 0.0]]
    """
    whole = np.ldexp(np.frexp(values)[0], 53).astype(np.int64)
    low = whole & -whole
    zeros: Floats = np.log2(np.where(low == 0, 1, low).astype(np.float64))
    return zeros


ATTACKERS: Mapping[str, Fit] = {
    "projection": projection,
    "whitened projection": whitened,
    "joint projection": joint,
    "answers": answers,
    "distinguisher": distinguisher,
    "number format": number_format,
}


@dataclass(frozen=True, eq=False)
class Rule:
    """A score with its threshold; ``sign`` -1 means that lower scores say "with"."""

    name: str
    score: Score
    sign: int
    threshold: float
    chosen: float

    def tally(self, with_: Views, without: Views) -> Tally:
        """Its errors in some runs."""
        ones, others = (self.sign * self.score(views) for views in (with_, without))
        return Tally.of(ones, others, self.threshold)


def rules(fit: tuple[Views, Views], choose: tuple[Views, Views], delta: float) -> list[Rule]:
    """Every attacker's rules, fitted on some runs, with thresholds from others; the best first."""
    tried = [
        _rule(f"{name}: {part}", score, choose, delta)
        for name, attacker in ATTACKERS.items()
        for part, score in attacker(*fit)
    ]
    return sorted(tried, key=lambda rule: -rule.chosen)


def _rule(name: str, score: Score, choose: tuple[Views, Views], delta: float) -> Rule:
    with_, without = (score(views) for views in choose)
    best: tuple[float, int, float] = (-1.0, 1, 0.0)
    for sign in (1, -1):
        bound, threshold = _threshold(sign * with_, sign * without, delta)
        best = max(best, (bound, sign, threshold), key=lambda one: one[0])
    return Rule(name, score, best[1], best[2], best[0])


def _threshold(with_: Floats, without: Floats, delta: float) -> tuple[float, float]:
    """The best bound, and the middle of the thresholds that reach it.

    >>> _threshold(np.array([3.0, 4.0]), np.array([0.0, 1.0]), 0.0)[1]
    2.0
    """
    scores = np.unique(np.concatenate([with_, without]))
    if scores.size < 2:
        return 0.0, float(scores[0])
    middles = 0.5 * (scores[:-1] + scores[1:])
    most = 200
    if middles.size > most:
        middles = middles[np.linspace(0, middles.size - 1, most).astype(int)]
    bounds = np.array([clopper_pearson(Tally.of(with_, without, m), delta) for m in middles])
    best = np.flatnonzero(bounds == bounds.max())
    if bounds.max() == 0.0:  # nothing is shown: where both errors together are fewest
        wrong = [(without >= m).mean() + (with_ < m).mean() for m in middles]
        return -float(min(wrong)), float(middles[int(np.argmin(wrong))])
    return float(bounds.max()), float(middles[best[len(best) // 2]])


def parts(pairs: int) -> tuple[range, range, range]:
    """Which runs fit, choose and count: a quarter, a quarter and half of them.

    >>> [len(part) for part in parts(300)]
    [75, 75, 150]
    """
    half = pairs // 2
    return range(half // 2), range(half // 2, half), range(half, pairs)


def split(views: Views) -> tuple[Views, Views, Views]:
    """The runs that fit, choose and count."""
    fit, choose, count = parts(len(views))
    return tuple(views.rows(part.start, part.stop) for part in (fit, choose, count))  # type: ignore[return-value]


def _equally_wide(with_: Views, without: Views) -> tuple[Views, Views]:
    """Both, with zeros where messages of one world are shorter or never came."""
    wide = {
        k: max(with_.messages[k].shape[1], without.messages[k].shape[1]) for k in with_.messages
    }

    def padded(views: Views) -> Views:
        messages: dict[str, Message] = {
            k: np.pad(v, ((0, 0), (0, wide[k] - v.shape[1]))) for k, v in views.messages.items()
        }
        return Views(messages, views.answers, views.centres)

    return padded(with_), padded(without)


def attacked(with_: Views, without: Views, delta: float) -> list[tuple[Rule, Tally]]:
    """Every rule with its errors in the runs that count; the rule that was chosen comes first."""
    (fit1, choose1, count1), (fit0, choose0, count0) = map(split, _equally_wide(with_, without))
    made = rules((fit1, fit0), (choose1, choose0), delta)
    return [(rule, rule.tally(count1, count0)) for rule in made]
