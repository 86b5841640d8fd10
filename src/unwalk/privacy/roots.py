"""Root finding that errs on the safe side.

Every calibration in this room ends with the same question: the largest (or smallest) value of one
parameter for which a bound, monotone in it, still meets a target.  A root finder answers with a
number on either side of the truth; here the answer is then moved, by as little as rounding asks
for, until the bound itself says that it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import scipy

from unwalk.core.errors import Refused

MARGIN = 1e-12
"""How far below its target log delta must come out: more than the bounds' own rounding."""


def increasing_root(
    excess: Callable[[float], float], low: float, high: float, *, largest: float = 1e300
) -> float:
    """A value in [low, largest] at which the increasing function ``excess`` is zero.

    ``excess(low)`` must not be positive; ``high`` is doubled until ``excess(high)`` is positive.

    >>> round(increasing_root(lambda x: x * x - 2.0, 0.5, 1.0), 9)
    1.414213562
    """
    below, above = excess(low), excess(high)
    while above < 0.0 and high < largest:
        low, below = high, above
        high = min(2.0 * high, largest)
        above = excess(high)
    if above < 0.0:
        return high
    if below >= 0.0:
        return low
    return float(scipy.optimize.brentq(excess, low, high, xtol=1e-300, rtol=1e-14, maxiter=500))


def largest_safe(excess: Callable[[float], float], root: float) -> float:
    """The first value at or just below ``root`` at which ``excess`` is not positive.

    Refused when no positive value is safe.

    >>> largest_safe(lambda x: x - 1.0, 1.0 + 1e-15) <= 1.0
    True
    """
    value, step = root, 1e-15
    while excess(value) > 0.0:
        value = root * (1.0 - step)
        step *= 2.0
        if value <= 0.0:
            raise Refused(
                "the target is out of reach of this bound, whatever the noise.", "out-of-reach"
            )
    return value


def smallest_safe(excess: Callable[[float], float], root: float) -> float:
    """The first value at or just above ``root`` at which ``excess`` is not positive.

    For a function that falls in its argument.

    >>> smallest_safe(lambda x: 1.0 - x, 1.0 - 1e-15) >= 1.0
    True
    """
    value, step = root, 1e-15
    while excess(value) > 0.0 and not math.isinf(value):
        value = root * (1.0 + step) + 5e-324
        step *= 2.0
    return value
