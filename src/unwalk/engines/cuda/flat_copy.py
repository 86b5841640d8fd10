"""A copy of the model that computes: weights in the wanted precision and memory layout.

They are views of a few flat vectors, so that an optimizer step is one pass over memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

PIECE = 1024
"""Flat vectors are padded to a multiple of this."""


@dataclass(eq=False)
class Block:
    """Parameters of one precision, flat: float32 masters, the copy's values, gradients, moments.

    In float32 the copy's values are the masters themselves.  Vectors are padded with zeros, so that
    kernels can read them in whole pieces.
    """

    names: list[str]
    masters: torch.Tensor
    values: torch.Tensor
    gradients: torch.Tensor
    weights: list[nn.Parameter]
    moments: dict[str, torch.Tensor] = field(default_factory=dict)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """One view per parameter, laid out as the copy's weights are."""
        pieces = flat[: self.size].split([w.numel() for w in self.weights])
        return [_view(piece, w.shape) for piece, w in zip(pieces, self.weights, strict=True)]

    def load(self, named: Mapping[str, torch.Tensor]) -> None:
        """Copy parameters in, by name."""
        torch._foreach_copy_(self.views(self.masters), [named[n] for n in self.names])
        self.lower()

    def lower(self) -> None:
        """Copy the masters into the values, in the precision of the values."""
        if self.values is not self.masters:
            self.values.copy_(self.masters)

    @property
    def size(self) -> int:
        """Without the padding."""
        return sum(w.numel() for w in self.weights)


def _view(piece: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Kernels lie channels-last, everything else in its own order."""
    if len(shape) != 4:
        return piece.view(shape)
    out, channels, rows, columns = shape
    return piece.view(out, rows, columns, channels).permute(0, 3, 1, 2)


def flattened(gradient: torch.Tensor) -> torch.Tensor:
    """In the order of :func:`_view`."""
    if gradient.dim() == 4:
        gradient = gradient.permute(0, 2, 3, 1)
    return gradient.reshape(-1)


def flat_copy_of(model: nn.Module) -> nn.Module:
    """A copy of the model that shares its buffers; batches are counted elsewhere."""
    copied = copy.deepcopy(model)
    owners = dict(model.named_modules())
    for name, module in copied.named_modules():
        for key in module._buffers:
            module._buffers[key] = owners[name]._buffers[key]
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None:
            module._buffers["num_batches_tracked"] = None
    return copied.train()


def flat_blocks(model: nn.Module, dtype: torch.dtype) -> list[Block]:
    """Lay a copy's parameters out flat, in ``dtype``; batch normalisation's stay float32."""
    lowered = {
        f"{name}.{key}" if name else key
        for name, module in model.named_modules()
        if not isinstance(module, nn.modules.batchnorm._BatchNorm)
        for key, _ in module.named_parameters(recurse=False)
    }
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    blocks = []
    for low in (True, False):
        members = [(n, p) for n, p in named if (n in lowered) == low]
        if not members:
            continue
        total = -(-sum(p.numel() for _, p in members) // PIECE) * PIECE
        masters = torch.zeros(total, device=members[0][1].device)
        kind = dtype if low else torch.float32
        values = masters if kind == torch.float32 else torch.zeros_like(masters, dtype=kind)
        block = Block(
            names=[n for n, _ in members],
            masters=masters,
            values=values,
            gradients=torch.zeros_like(values),
            weights=[p for _, p in members],
        )
        for parameter, view in zip(block.weights, block.views(values), strict=True):
            parameter.grad = None
            parameter.data = view
        blocks.append(block)
    return blocks


def gradient_places(blocks: Iterable[Block]) -> dict[torch.Tensor, torch.Tensor]:
    """Where the gradient of each weight belongs."""
    return {
        weight: view
        for block in blocks
        for weight, view in zip(block.weights, block.views(block.gradients), strict=True)
    }
