r"""Shifted divergence: the constrained minimum behind amplification by iteration.

Two runs of a noisy iteration whose maps do not expand start or drift apart; noise hides the gap
bit by bit.  Whoever sees the last iterate only has

.. math:: D_\alpha \le \frac\alpha2 \min_a \sum_t \frac{a_t^2}{s_t^2}
          \quad\text{s.t.}\quad z_t = c_t z_{t-1} + b_t - a_t \ge 0,\ z_T = 0,

where step t maps with Lipschitz constant :math:`c_t \le 1`, moves the two runs apart by at most
:math:`b_t`, adds noise of std :math:`s_t` and hides :math:`a_t` of the gap.  Rescaled by the
products of the :math:`c_t` the constraint says that the cumulative sum of the hidden parts stays
below that of the gaps and meets it at the end: the cheapest such path is the greatest convex
minorant of the ceiling, found in linear time.  All numbers are real here: what rounding can move
two runs apart belongs into the :math:`b_t`, and is put there by whoever certifies a run.

Source of the inequality: Feldman, Mironov, Talwar and Thakurta, *Privacy Amplification by
Iteration*, FOCS 2018 (arXiv:1808.06651), Theorem 22, from its shift-reduction and contraction
lemmas; the minimum is ours, derived in ``docs/math.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_number


def convex_minorant_slopes(
    lengths: Sequence[float], rises: Sequence[float]
) -> list[tuple[float, float]]:
    """Segments (length, slope) of the greatest convex minorant of a staircase's corners.

    The corners are the partial sums of ``lengths`` and ``rises``; slopes increase.

    >>> convex_minorant_slopes([1.0, 1.0, 2.0], [3.0, 1.0, 4.0])
    [(4.0, 2.0)]
    """
    segments: list[tuple[float, float]] = []  # (length, rise), slopes strictly increasing
    for length, rise in zip(lengths, rises, strict=True):
        while segments and segments[-1][1] * length >= rise * segments[-1][0]:
            before = segments.pop()
            length, rise = length + before[0], rise + before[1]
        segments.append((length, rise))
    return [(length, rise / length) for length, rise in segments]


def hiding_cost(
    gaps: Sequence[float],
    stds: Sequence[float],
    *,
    contractions: Sequence[float] | None = None,
    start: float = 0.0,
) -> float:
    r""":math:`\min_a \sum_t a_t^2/s_t^2`, the squared signal-to-noise ratio that cannot be hidden.

    ``gaps[t]`` :math:`= b_t`, ``stds[t]`` :math:`= s_t` (0: no noise in that step),
    ``contractions[t]`` :math:`= c_t \le 1` (default 1), ``start`` the distance before the first
    step.  Infinite when a gap comes after the last noise.  Half of it is a zCDP parameter.

    >>> hiding_cost([2.0, 0.0, 0.0, 0.0], [1.0] * 4)  # one gap spread over four steps: 4 (2/4)^2
    1.0
    >>> hiding_cost([1.0, 1.0], [1.0, 1.0])
    2.0
    """
    steps = len(gaps)
    factors = [1.0] * steps if contractions is None else list(contractions)
    if len(stds) != steps or len(factors) != steps:
        raise InvalidInput(
            f"gaps, stds and contractions have lengths {steps}, {len(stds)} and {len(factors)}; "
            "allowed: one of each per step."
        )
    check_number("start", start, low=0.0)
    lengths: list[float] = []
    rises: list[float] = []
    # In units in which later contractions have already been applied, step t's noise is worth
    # std^-2 of length and the ceiling rises by the gap carried to the end.
    tail = 1.0
    carried: list[float] = [1.0] * steps
    for t in range(steps - 1, -1, -1):
        carried[t] = tail
        tail *= check_number(f"contractions[{t}]", factors[t], low=0.0, high=1.0)
    pending = start * tail
    for t in range(steps):
        pending += check_number(f"gaps[{t}]", gaps[t], low=0.0) * carried[t]
        std = check_number(f"stds[{t}]", stds[t], low=0.0) * carried[t]
        if std * std > 0.0:
            lengths.append(std * std)
            rises.append(pending)
            pending = 0.0
    if pending > 0.0:
        return math.inf
    return math.fsum(
        length * slope * slope for length, slope in convex_minorant_slopes(lengths, rises)
    )
