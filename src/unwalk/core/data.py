"""One peer's records as tensors, and the batches taken from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from unwalk.core.outside import renewed
from unwalk.core.program import Records

Augment = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
Stamp = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Shard:
    """``x`` and ``y`` of one peer, on one device.

    ``augment`` changes a batch at random.  ``stamp`` puts the trigger on the rows marked in
    ``poisoned``, *after* augmentation, so that the trigger keeps its place.
    """

    x: torch.Tensor
    y: torch.Tensor
    records: Records
    augment: Augment | None = None
    stamp: Stamp | None = None
    poisoned: torch.Tensor | None = None

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Shard:
        """The shard on a device and with inputs of a type; itself if nothing has to change."""
        kind = dtype if dtype is not None and self.x.is_floating_point() else self.x.dtype
        if self.x.device == device and self.x.dtype == kind:
            return self
        poisoned = None if self.poisoned is None else self.poisoned.to(device)
        return replace(self, x=self.x.to(device, kind), y=self.y.to(device), poisoned=poisoned)

    def inside(self, norm: float) -> Shard:
        """The shard with inputs of length at most ``norm``; itself if all are."""
        x = within(self.x, norm)
        return self if x is self.x else replace(self, x=x)

    def renewed(self) -> Shard:
        """The shard with a fresh copy of its augmentation; itself if that has no state."""
        augment = renewed(self.augment)
        return self if augment is self.augment else replace(self, augment=augment)

    def take(
        self, rows: torch.Tensor, generator: torch.Generator | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of ``rows`` (one dimension), augmented and stamped."""
        x = self.x.index_select(0, rows)
        y = self.y.index_select(0, rows)
        if self.augment is not None and generator is not None:
            x = self.augment(x, generator)
        if self.stamp is not None and self.poisoned is not None:
            mark = self.poisoned.index_select(0, rows)
            x = torch.where(mark.view(-1, *[1] * (x.dim() - 1)), self.stamp(x), x)
        return x, y


def within(x: torch.Tensor, norm: float) -> torch.Tensor:
    """Inputs in 64 bits, each shortened by itself until its exact length is at most ``norm``.

    Squares are added feature by feature, so that the result for a record does not depend on the
    records beside it.  Values that are not finite become zero.  The same tensor if no input is
    longer.
    """
    flat = x.flatten(1)
    # By the power of two of the largest feature, so that no square overflows or vanishes.
    largest = flat.abs().amax(1, keepdim=True)
    scale = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent.clamp(-1000, 1000))
    scaled = flat / scale
    squares = flat.new_zeros(len(flat))
    for feature in scaled.unbind(1):
        squares = squares + feature * feature
    slack = (flat.shape[1] + 8) * 2.0**-52
    root = squares.sqrt()
    length = root * scale[:, 0]
    long = ~(length <= norm * (1.0 - slack))
    if not bool(long.any()):
        return x
    unit = torch.nan_to_num(scaled / root.unsqueeze(1), nan=0.0, posinf=0.0, neginf=0.0)
    shorter = unit * (norm * (1.0 - 4.0 * slack))
    shorter = torch.where(length.isfinite().unsqueeze(1), shorter, 0.0)
    return torch.where(long.unsqueeze(1), shorter, flat).reshape(x.shape)


SHORTER = 1.0 - 1e-6
"""Inputs are shortened to this part of a norm, so that rounding to 32 bits stays below it."""


def shortened(x: torch.Tensor, norm: float) -> torch.Tensor:
    """Inputs of length at most ``norm``, each shortened by itself; they keep their type.

    >>> [round(v, 4) for v in shortened(torch.tensor([[3.0, 4.0]]), 1.0)[0].tolist()]
    [0.6, 0.8]
    """
    return within(x.to(torch.float64), norm * SHORTER).to(x.dtype)


@dataclass(frozen=True, eq=False)
class Held:
    """A labelled set used only for measurements: test, triggered, forgotten, retained."""

    x: torch.Tensor
    y: torch.Tensor

    def to(self, device: torch.device) -> Held:
        return Held(self.x.to(device), self.y.to(device))
