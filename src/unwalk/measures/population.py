"""Membership inference with one attacker for all records: by loss, by confidence, and RMIA.

Members are the forgotten records, others are test records.  Forgotten records may be harder or
easier than test records in themselves, so only the difference to a retrained model's AUC counts.

RMIA: Zarifzadeh, Liu and Shokri, *Low-Cost High-Power Membership Inference Attacks* (ICML 2024,
arXiv 2312.03262), offline form.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput
from unwalk.measures.intervals import Matrix
from unwalk.measures.margins import Labels, label_losses, log_probabilities

GAMMA = 1.0
OFFLINE = 0.3
"""RMIA's a: how far models that never saw a record are from the mean of those that did and did
not.  The source tunes it on each dataset; this is one value for all."""


def by_loss(logits: npt.ArrayLike, labels: Labels) -> npt.NDArray[np.float64]:
    """A record is a member if its loss is small."""
    scores: npt.NDArray[np.float64] = -label_losses(logits, labels)
    return scores


def by_confidence(logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """A record is a member if the model is sure of its answer, whichever that is.

    >>> by_confidence([[0.0, 0.0]]).round(2).tolist()
    [0.5]
    """
    scores: npt.NDArray[np.float64] = np.exp(log_probabilities(logits)).max(-1)
    return scores


def rmia(
    records: npt.ArrayLike,
    references: Matrix,
    population: npt.ArrayLike,
    population_references: Matrix,
    gamma: float = GAMMA,
    offline: float = OFFLINE,
) -> npt.NDArray[np.float64]:
    """For each record the share of population points whose likelihood ratio it exceeds.

    ``records`` and ``population`` are the model's probabilities of the labels; the references are
    those of models that saw neither (models by records).  The ratio of a record x is p(x | model)
    over p(x) = ((1 + a) mean of references + 1 - a) / 2.

    >>> rmia([0.9], np.array([[0.5]]), [0.5, 0.9], np.array([[0.5, 0.5]])).tolist()
    [0.5]
    """
    if not len(references) or not len(population_references):
        raise InvalidInput("RMIA has no reference models; allowed: one or more.")
    ours = _ratio(records, references, offline)
    theirs = _ratio(population, population_references, offline)
    beaten = np.searchsorted(np.sort(theirs * gamma), ours, side="left")
    shares: npt.NDArray[np.float64] = beaten / theirs.size
    return shares


def _ratio(
    probabilities: npt.ArrayLike, references: Matrix, offline: float
) -> npt.NDArray[np.float64]:
    usual = ((1 + offline) * np.asarray(references, np.float64).mean(0) + 1 - offline) / 2
    ratio: npt.NDArray[np.float64] = np.asarray(probabilities, np.float64) / usual
    return ratio
