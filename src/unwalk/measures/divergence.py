"""Distance to retraining: the KL divergence of answers, and KLOM, the KL divergence of margins.

KLOM: Georgiev et al., *Attribute-to-Delete* (arXiv 2410.23232); bins, clipping and smoothing are
those of data-unlearning-bench (arXiv 2602.16400), except that the largest margin counts in the last
bin, which the benchmark's code drops.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput
from unwalk.measures.intervals import Matrix
from unwalk.measures.margins import Floats, log_probabilities

BINS = 20
FLOOR = 1e-5
CLIP = 100.0
PERCENTILE = 95.0
DEALS = 199
"""How often models are dealt anew to both sides."""


def kl_to_retraining(unlearned: npt.ArrayLike, retrained: npt.ArrayLike) -> Floats:
    """KL(retrained || unlearned) of the answers to each record, from logits.

    >>> kl_to_retraining([[0.0, 0.0]], [[np.log(3.0), 0.0]]).round(4).tolist()
    [0.1308]
    """
    ours, theirs = log_probabilities(unlearned), log_probabilities(retrained)
    kl: Floats = (np.exp(theirs) * (theirs - ours)).sum(-1)
    return np.maximum(kl, 0.0)


def klom(unlearned: npt.ArrayLike, retrained: npt.ArrayLike) -> Floats:
    """For each record KL(unlearned || retrained) of the histograms of margins over models.

    20 bins of equal width from the smallest to the largest margin of both; margins are cut at
    +-100; where unlearned models have mass, retrained ones have at least 1e-5.

    >>> klom([[0.0], [0.0]], [[0.0], [0.0]]).tolist()
    [0.0]
    >>> klom([[0.0], [1.0]], [[0.0], [0.0]]).round(4).tolist()
    [5.0633]
    """
    ours, theirs = (np.clip(np.asarray(a, np.float64), -CLIP, CLIP) for a in (unlearned, retrained))
    if not ours.size or not theirs.size or ours.shape[1:] != theirs.shape[1:]:
        raise InvalidInput(
            f"margins have the shapes {ours.shape} and {theirs.shape}; allowed: models by records, "
            "with the same records."
        )
    low = np.minimum(ours.min(0), theirs.min(0))
    high = np.maximum(ours.max(0), theirs.max(0))
    high = np.where(high > low, high, low + 1.0)
    p, q = _histogram(ours, low, high), _histogram(theirs, low, high)
    q = np.where(p > 0, np.maximum(q, FLOOR), q)
    q = q / q.sum(0)
    kl: Floats = np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0) / np.where(p > 0, q, 1.0)), 0.0)
    return np.asarray(kl.sum(0))


def klom_percentile(unlearned: npt.ArrayLike, retrained: npt.ArrayLike) -> float:
    """The 95th percentile of KLOM over records."""
    return float(np.percentile(klom(unlearned, retrained), PERCENTILE))


def klom_dealt(unlearned: Matrix, retrained: Matrix) -> list[float]:
    """KLOM's percentile where the models of both sides are dealt to them at random, in each deal:
    what it would be if both were the same kind of models."""
    rng, every = np.random.default_rng(0), np.concatenate([unlearned, retrained])
    orders = [rng.permutation(len(every)) for _ in range(DEALS)]
    side = len(unlearned)
    return [klom_percentile(every[order[:side]], every[order[side:]]) for order in orders]


def _histogram(margins: Matrix, low: Floats, high: Floats) -> Matrix:
    """Shares of the models in each bin (bins by records)."""
    bins = np.minimum((BINS * (margins - low) / (high - low)).astype(np.int64), BINS - 1)
    shares: Matrix = (bins[None] == np.arange(BINS)[:, None, None]).mean(1)
    return shares
