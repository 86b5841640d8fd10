"""The tensors that a fused batch normalisation and the convolutions around it share."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class BatchNormState:
    """One normalisation: views of the network's flat vectors, and its constants.

    ``sums`` holds four rows of whole numbers: mean and mean square about the old running mean, and
    the sums over rows of the gradient and of the gradient times the normalised value.  ``running``
    and ``news`` hold mean and variance: as they were, and of this batch; ``moments`` mean and
    1 / std.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    for_weight: torch.Tensor
    for_bias: torch.Tensor
    sums: torch.Tensor
    running: torch.Tensor
    news: torch.Tensor
    moments: torch.Tensor
    eps: float
