"""How well a score tells two groups apart.  A larger score means: a member."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from unwalk.core.errors import InvalidInput


def auc(members: npt.ArrayLike, others: npt.ArrayLike) -> float:
    """The chance that a member's score is above another's; a tie counts half.

    >>> auc([2.0, 1.0], [1.0, 0.0])
    0.875
    """
    inside, outside = _checked(members), _checked(others)
    ranks = rankdata(np.concatenate([inside, outside]))
    above = ranks[: inside.size].sum() - inside.size * (inside.size + 1) / 2
    return float(above / (inside.size * outside.size))


def true_positives_at(members: npt.ArrayLike, others: npt.ArrayLike, rate: float) -> float:
    """The share of members above the lowest threshold that at most ``rate`` of the others exceed.

    >>> true_positives_at([5.0, 2.5, 0.0], [1.0, 2.0, 3.0, 4.0], 0.25)
    0.3333333333333333
    """
    inside, outside = _checked(members), np.sort(_checked(others))[::-1]
    allowed = math.floor(rate * outside.size)
    if allowed >= outside.size:
        return 1.0
    return float((inside > outside[allowed]).mean())


def _checked(scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    values = np.asarray(scores, np.float64).reshape(-1)
    if not values.size or not np.isfinite(values).all():
        raise InvalidInput("scores are empty or not finite; allowed: one finite score or more.")
    return values
