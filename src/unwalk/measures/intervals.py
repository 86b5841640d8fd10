"""Intervals of 95 %: of a mean over models, of a share, of any statistic by resampling models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import beta, t

from unwalk.core.errors import InvalidInput

LEVEL = 0.95
REPLICATES = 200

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its interval; one value alone has none."""

    value: float
    low: float | None = None
    high: float | None = None

    def minus(self, constant: float) -> Interval:
        """The interval of the difference to a known number."""
        ends = [None if end is None else end - constant for end in (self.low, self.high)]
        return Interval(self.value - constant, *ends)


def mean_interval(values: npt.ArrayLike) -> Interval:
    """Mean and Student's interval of independent values.

    >>> found = mean_interval([1.0, 2.0, 3.0])
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
    (2.0, -0.484, 4.484)
    """
    given = np.asarray(values, np.float64)
    if not given.size:
        raise InvalidInput("an interval needs values; there is none.")
    mean = float(given.mean())
    if given.size < 2:
        return Interval(mean)
    half = float(t.ppf(0.5 + LEVEL / 2, given.size - 1) * given.std(ddof=1) / np.sqrt(given.size))
    return Interval(mean, mean - half, mean + half)


def paired(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> Interval:
    """The mean difference of pairs, model by model with the same seed."""
    return mean_interval(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))


def share_interval(hits: int, count: int) -> Interval:
    """A share with the interval of Clopper and Pearson.

    >>> found = share_interval(0, 10)
    >>> found.value, found.low, round(found.high, 4)
    (0.0, 0.0, 0.3085)
    """
    if not 0 <= hits <= count or not count:
        raise InvalidInput(f"{hits} of {count} is no share.")
    tail = (1 - LEVEL) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, count - hits + 1))
    high = 1.0 if hits == count else float(beta.ppf(1 - tail, hits + 1, count - hits))
    return Interval(hits / count, low, high)


def resampled(statistic: Callable[..., float], groups: Sequence[Matrix], seed: int = 0) -> Interval:
    """A statistic of groups of models (rows), with its bootstrap percentile interval."""
    rng, value = np.random.default_rng(seed), statistic(*groups)
    if min(len(group) for group in groups) < 2:
        return Interval(value)
    drawn = [
        statistic(*(group[rng.integers(len(group), size=len(group))] for group in groups))
        for _ in range(REPLICATES)
    ]
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return Interval(value, float(low), float(high))
