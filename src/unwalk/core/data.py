"""One peer's records as tensors, and the batches a step asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

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

    def to(self, device: torch.device) -> Shard:
        """The same shard on another device; itself where it is there already."""
        if self.x.device == device:
            return self
        poisoned = None if self.poisoned is None else self.poisoned.to(device)
        return replace(self, x=self.x.to(device), y=self.y.to(device), poisoned=poisoned)

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


@dataclass(frozen=True, eq=False)
class Held:
    """A labelled set that is only looked at: test, triggered, forgotten, retained."""

    x: torch.Tensor
    y: torch.Tensor

    def to(self, device: torch.device) -> Held:
        return Held(self.x.to(device), self.y.to(device))
