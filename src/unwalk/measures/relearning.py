"""Relearn time and resurfacing, from a measure of forgetting along a walk that goes on.

The measure is attack success or forget accuracy.  Arm 1 goes on with some of the forgotten records,
arm 2 with retained ones alone.  A model that kept something relearns sooner than one that was
retrained (a negative difference); one that was pushed below retraining later (a positive one).

Resurfacing: Lethe (arXiv 2601.22601) found that training on retained data alone can bring forgotten
knowledge back.
"""

from __future__ import annotations

from collections.abc import Sequence

from unwalk.core.errors import InvalidInput

CLOSE = 0.01
"""A value counts as back when it is at most one point below what it was."""


def relearn_time(series: Sequence[tuple[int, float]], level: float) -> int | None:
    """Hops until the measure is back at ``level``; None if it is not within the series.

    >>> relearn_time([(0, 0.1), (5, 0.5), (10, 0.9)], 0.5)
    5
    >>> relearn_time([(0, 0.1)], 0.5)
    """
    return next((hop for hop, value in series if value >= level - CLOSE), None)


def relearn_difference(ours: int | None, theirs: int | None, horizon: int) -> int:
    """Hops sooner (negative) or later than retraining; a time beyond the horizon counts as it.

    >>> relearn_difference(5, None, 40)
    -35
    """
    return (horizon if ours is None else ours) - (horizon if theirs is None else theirs)


def resurfaced(series: Sequence[tuple[int, float]]) -> float:
    """How far the measure rose from the walk's first value to its last.

    >>> resurfaced([(0, 0.1), (5, 0.7), (10, 0.4)])
    0.30000000000000004
    """
    if not series:
        raise InvalidInput("nothing was measured after forgetting.")
    return series[-1][1] - series[0][1]
