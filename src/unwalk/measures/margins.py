"""Probabilities, losses and margins of labelled records, from logits (records by classes)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def log_probabilities(logits: npt.ArrayLike) -> Floats:
    """The logarithm of the softmax, over the last axis."""
    values = np.asarray(logits, np.float64)
    values = values - values.max(-1, keepdims=True)
    logs: Floats = values - np.log(np.exp(values).sum(-1, keepdims=True))
    return logs


def label_losses(logits: npt.ArrayLike, labels: Labels) -> Floats:
    """The cross-entropy of each record's own label."""
    logs = log_probabilities(logits)
    losses: Floats = -logs[np.arange(len(labels)), labels]
    return losses


def margins(logits: npt.ArrayLike, labels: Labels) -> Floats:
    """log(p / (1 - p)), p the probability of each record's own label.

    It is computed as the label's logit less the logarithm of the summed exponentials of the others,
    which stays finite where p rounds to 1.

    >>> margins([[0.0, 0.0], [np.log(3.0), 0.0]], np.array([0, 0])).round(4).tolist()
    [0.0, 1.0986]
    """
    values = np.array(logits, np.float64)
    rows = np.arange(len(labels))
    own = values[rows, labels]
    values[rows, labels] = -np.inf
    most = values.max(-1)
    others = most + np.log(np.exp(values - most[:, None]).sum(-1))
    phi: Floats = own - others
    return phi
