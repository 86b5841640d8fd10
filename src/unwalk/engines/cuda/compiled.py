"""What is left to ``torch.compile``.

The loss and the update of one walk, for which kernels of our own saved too little; and what takes
the place of a group of kernels (:mod:`unwalk.engines.cuda.groups`) that is switched off: that is
what the group has to beat.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by ``torch.compile``, which is imported with the first call: that takes long."""
    return torch.compile(function, dynamic=False)


class CompiledNorm(nn.Module):
    """A normalisation, then a sum with ``other``, a ReLU, a pool; as ``layers.Normalisation``."""

    def __init__(self, norm: nn.Module, *, relu: bool, pooled: bool, twice: bool) -> None:
        super().__init__()
        self.norm, self.relu, self.pooled, self.twice = norm, relu, pooled, twice
        self.body = torch.compile(self._body, dynamic=False)

    def _body(self, x: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
        y: torch.Tensor = self.norm(x)
        y = y if other is None else y + other
        y = torch.relu(y) if self.relu else y
        return functional.max_pool2d(y, 2) if self.pooled else y

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> Any:
        y = self.body(x, other)
        return (y, y) if self.twice else y


def cross_entropy(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean loss, in float32."""
    return functional.cross_entropy(output.float(), labels)


def descend(
    masters: torch.Tensor,
    values: torch.Tensor | None,
    gradients: torch.Tensor,
    velocity: torch.Tensor | None,
    knobs: torch.Tensor,
    factor: torch.Tensor,
) -> None:
    """Plain or heavy-ball descent on flat vectors, in place.

    ``knobs`` holds step size, -, -, momentum, weight decay; the gradient is multiplied by
    ``factor``.  ``values`` is a copy of ``masters`` in another precision, if there is one.
    """
    change = gradients.float() * factor + knobs[4] * masters
    if velocity is not None:
        change = knobs[3] * velocity + change
        velocity.copy_(change)
    masters.sub_(knobs[0] * change)
    if values is not None:
        values.copy_(masters)


def fleet_descend(
    parameters: torch.Tensor,
    gradients: torch.Tensor,
    velocity: torch.Tensor | None,
    settings: torch.Tensor,
    active: torch.Tensor,
) -> None:
    """As ``kernels.fleet_step`` for ``sgd`` and ``momentum`` without a clip."""
    rate, scale, _, sign, momentum, decay = settings.split(1, dim=1)
    change = gradients * scale * sign + decay * parameters
    if velocity is not None:
        change = torch.where(active, velocity * momentum + change, velocity)
        velocity.copy_(change)
    parameters.sub_(torch.where(active, rate * change, 0.0))
