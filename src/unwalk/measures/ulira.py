"""U-LiRA: an attacker for each record, who knows how unlearned and retrained models answer it.

Hayes et al., *Inexact Unlearning Needs More Careful Evaluations to Avoid a False Sense of Privacy*
(arXiv 2403.01218v3): for each record a Gaussian is fitted to its margin over models that learned
and unlearned it, another over models that never saw it; the score of a model is the ratio of the
two densities at its margin.

Models that are judged are not among those that the Gaussians are fitted to: even members are judged
by odd ones and the other way round.  To leave out one model at a time would be wrong: it pushes
the AUC of equal distributions below one half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput
from unwalk.measures.attacks import auc, true_positives_at
from unwalk.measures.intervals import REPLICATES, Interval, Matrix

ENOUGH = 64
"""From this many models on, each record has a variance of its own; below, all share one."""
LEAST = 4
"""Two models of each kind to fit a variance to, twice."""
SMALLEST = 1e-6


@dataclass(frozen=True)
class Found:
    """How well the attack tells unlearned from retrained models."""

    auc: Interval
    at_1_percent: Interval
    at_01_percent: Interval


def log_ratio(margins: Matrix, unlearned: Matrix, retrained: Matrix) -> Matrix:
    """The logarithm of the ratio of the two densities at ``margins`` (models by records).

    >>> seen, unseen = np.array([[3.0], [5.0]]), np.array([[-1.0], [1.0]])
    >>> log_ratio(np.array([[2.0]]), seen, unseen).tolist()
    [[0.0]]
    """
    return _log_density(margins, unlearned) - _log_density(margins, retrained)


def _log_density(margins: Matrix, models: Matrix) -> Matrix:
    spread = models.var(0, ddof=1)
    if len(models) < ENOUGH:
        spread = np.full_like(spread, spread.mean())
    spread = np.maximum(spread, SMALLEST)
    density: Matrix = -0.5 * ((margins - models.mean(0)) ** 2 / spread + np.log(spread))
    return density


def judged(unlearned: Matrix, retrained: Matrix) -> list[tuple[Matrix, Matrix]]:
    """Scores of unlearned and of retrained models, each half judged by the other."""
    ours, theirs = (unlearned[::2], unlearned[1::2]), (retrained[::2], retrained[1::2])
    return [_scores(ours[n], theirs[n], ours[1 - n], theirs[1 - n]) for n in (0, 1)]


def _scores(ours: Matrix, theirs: Matrix, *fitted: Matrix) -> tuple[Matrix, Matrix]:
    return log_ratio(ours, *fitted), log_ratio(theirs, *fitted)


def ulira(unlearned: npt.ArrayLike, retrained: npt.ArrayLike, seed: int = 0) -> Found:
    """Attack margins of unlearned and of retrained models (models by records).

    Intervals come from resampling models, those that are judged and those that judge: records of
    one model vary together, so that models are the units.
    """
    ours, theirs = np.asarray(unlearned, np.float64), np.asarray(retrained, np.float64)
    if min(len(ours), len(theirs)) < LEAST:
        raise InvalidInput(
            f"U-LiRA has {min(len(ours), len(theirs))} models of a kind; allowed: {LEAST} or more, "
            f"and {ENOUGH} for numbers that can be published."
        )
    rng = np.random.default_rng(seed)

    def drawn(group: Matrix) -> Matrix:
        """Each half resampled by itself, so that no model is judged by itself."""
        again = np.empty_like(group)
        for half in (0, 1):
            models = group[half::2]
            again[half::2] = models[rng.integers(len(models), size=len(models))]
        return again

    values = _statistics(judged(ours, theirs))
    again = [_statistics(judged(drawn(ours), drawn(theirs))) for _ in range(REPLICATES)]
    low, high = np.percentile(again, [2.5, 97.5], axis=0)
    intervals = [Interval(v, float(a), float(b)) for v, a, b in zip(values, low, high, strict=True)]
    return Found(*intervals)


def _statistics(scores: list[tuple[Matrix, Matrix]]) -> list[float]:
    """The means over both folds."""
    each = [
        (auc(a, b), true_positives_at(a, b, 0.01), true_positives_at(a, b, 0.001))
        for a, b in scores
    ]
    return [float(value) for value in np.mean(each, axis=0)]
