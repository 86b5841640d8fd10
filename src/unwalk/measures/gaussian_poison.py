"""The Gaussian-poison score: does a model lean to the noise that its forgotten inputs had?

Pawelczyk et al., *Machine Unlearning Fails to Remove Data Poisoning Attacks* (ICLR 2025, arXiv
2406.17216v2, Algorithms 1 and 2).  Noise xi ~ N(0, s^2 I) is added to each input before training.
Afterwards g is the gradient of the loss at the *clean* input.  A model that never saw xi does not
depend on it, so <xi, g> / (s |g|) is a standard normal number, exactly and for every g; a model
that learned from input + xi has a smaller loss in the direction of xi, so that it is negative.  Our
statistic is its negative: large values mean that the noise is remembered.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from unwalk.core.errors import InvalidInput
from unwalk.measures.intervals import Interval, share_interval
from unwalk.measures.margins import Floats

RATE = 0.01


def statistics(noise: npt.ArrayLike, gradients: npt.ArrayLike, std: float) -> Floats:
    """- <noise, gradient> / (std |gradient|) for each record; 0 where the gradient vanishes.

    >>> statistics([[3.0, 4.0], [1.0, 1.0]], [[-2.0, 0.0], [0.0, 0.0]], 1.5).tolist()
    [2.0, 0.0]
    """
    if std <= 0.0:
        raise InvalidInput(f"the noise has standard deviation {std}; allowed: more than 0.")
    xi, g = (np.asarray(a, np.float64).reshape(len(a), -1) for a in (noise, gradients))  # type: ignore[arg-type]
    length = np.sqrt((g * g).sum(1))
    along = (xi * g).sum(1)
    scores: Floats = np.where(length > 0, -along / (std * np.where(length > 0, length, 1.0)), 0.0)
    return scores


def caught(values: npt.ArrayLike, rate: float = RATE) -> Interval:
    """The share of records above the threshold that fresh noise exceeds at ``rate``.

    The law of fresh noise is known, so the threshold is its quantile and not a sample's.

    >>> caught([3.0, 0.0, 0.0, 0.0]).value
    0.25
    """
    given = np.asarray(values, np.float64)
    return share_interval(int((given > norm.ppf(1 - rate)).sum()), given.size)
