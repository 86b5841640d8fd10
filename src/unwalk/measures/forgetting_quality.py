"""Forgetting quality, the score of the NeurIPS 2023 unlearning challenge.

Triantafillou et al., *Are we making progress in unlearning?* (arXiv 2406.09073v1).  For each
forgotten record attackers tell unlearned from retrained models by thresholds on its margin; the
largest epsilon that their errors show is binned, and a record in bin n counts 2 / 2^n.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput
from unwalk.measures.margins import Floats

WIDTH = 0.5
BINS = 13
DELTA = 0.01
"""Our choice."""


def epsilon(false_positives: Floats, false_negatives: Floats, delta: float = DELTA) -> Floats:
    """The largest epsilon that attacks with these error rates show (attacks, by records if many).

    An attack without any error shows infinity.  One without errors of one kind only is left out:
    with few models its epsilon would be infinite by chance.

    >>> round(float(epsilon(np.array([0.1]), np.array([0.2]), delta=0.0)), 4)
    2.0794
    """
    fpr, fnr = np.asarray(false_positives, np.float64), np.asarray(false_negatives, np.float64)
    largest = np.zeros(fpr.shape[1:])
    for one, other in ((fpr, fnr), (fnr, fpr)):
        power = 1.0 - delta - one
        shows = (one > 0) & (other > 0) & (power > 0)
        shown = np.log(np.where(shows, power, 1.0) / np.where(shows, other, 1.0))
        largest = np.maximum(largest, shown.max(0))
    return np.where(((fpr == 0) & (fnr == 0)).any(0), np.inf, largest)


def attack_errors(unlearned: Floats, retrained: Floats) -> tuple[Floats, Floats]:
    """False positive and negative rates of all attacks with one or two thresholds on a record.

    Margins are those of models, by records if many.  A positive is a model that was unlearned.  One
    threshold says so above it, or below it; two say so between them, or outside.
    """
    cuts = np.sort(np.concatenate([unlearned, retrained]), axis=0)
    cuts = np.concatenate([np.full_like(cuts[:1], -np.inf), cuts])
    ours = (unlearned[:, None] <= cuts).mean(0)
    theirs = (retrained[:, None] <= cuts).mean(0)
    first, second = np.triu_indices(len(cuts), 1)
    caught, wrong = ours[second] - ours[first], theirs[second] - theirs[first]
    false_positives = np.concatenate([wrong, 1.0 - wrong])
    false_negatives = np.concatenate([1.0 - caught, caught])
    return _clean(false_positives), _clean(false_negatives)


def _clean(rates: Floats) -> Floats:
    """Rates without the rounding of their differences, so that zero is zero."""
    return np.where(np.abs(rates) < 1e-12, 0.0, rates)


def record_epsilons(
    unlearned: npt.ArrayLike, retrained: npt.ArrayLike, delta: float = DELTA
) -> Floats:
    """The epsilon of each record, from margins (models by records)."""
    ours, theirs = np.asarray(unlearned, np.float64), np.asarray(retrained, np.float64)
    if min(len(ours), len(theirs)) < 2:
        raise InvalidInput("forgetting quality needs two models of each kind or more.")
    return epsilon(*attack_errors(ours, theirs), delta)


def record_scores(epsilons: npt.ArrayLike) -> Floats:
    """For each record 2 / 2^n, n the number of its bin: 1 below 0.5, 1/2 below 1, ...

    >>> record_scores([0.0, 0.4, 0.5]).tolist()
    [1.0, 1.0, 0.5]
    """
    bins = np.digitize(np.asarray(epsilons, np.float64), WIDTH * np.arange(BINS))
    return np.asarray(2.0 / 2.0**bins, np.float64)


def forgetting_quality(epsilons: npt.ArrayLike) -> float:
    """The mean score of the records.

    >>> forgetting_quality([0.0, 0.4, 0.5, 6.0])
    0.62506103515625
    """
    return float(record_scores(epsilons).mean())


def challenge_score(
    quality: float, retain: tuple[float, float], test: tuple[float, float]
) -> float:
    """Quality times the ratios of retain and test accuracy, (unlearned, retrained) each.

    >>> challenge_score(0.5, (0.9, 1.0), (0.8, 0.8))
    0.45
    """
    for _, theirs in (retain, test):
        if theirs <= 0.0:
            raise InvalidInput("retraining's accuracy is 0; the challenge's score has no ratio.")
    return quality * retain[0] / retain[1] * test[0] / test[1]
