"""A model in evaluation mode out of fused kernels, to be measured on a CUDA device.

Measuring goes through many more pictures than a step, in layers that mostly move memory: what
:mod:`unwalk.engines.fused` makes of a network for training serves here too, with the running
statistics in the place of a batch's own.
"""

from __future__ import annotations

import torch
from torch import nn

from unwalk.engines.fused import Fused, fuse
from unwalk.engines.shadow import Block, blocks_of, shadow_of


class Reader:
    """Answers as the model does; :meth:`load` takes over what the model has learnt since."""

    def __init__(self, model: nn.Module, blocks: list[Block], network: Fused) -> None:
        self.model, self.blocks, self.network = model, blocks, network
        network.network.eval()

    @staticmethod
    def of(model: nn.Module, dtype: torch.dtype) -> Reader | None:
        """None where the model cannot be rewritten."""
        shadow = shadow_of(model)
        blocks = blocks_of(shadow, dtype)
        places: dict[torch.Tensor, torch.Tensor] = {
            weight: view
            for block in blocks
            for weight, view in zip(block.weights, block.views(block.gradients), strict=True)
        }
        network = fuse(shadow, None, places)
        return None if network is None else Reader(model, blocks, network)

    @torch.no_grad()
    def load(self) -> None:
        """Take parameters and running statistics over."""
        mine = dict(self.model.named_parameters())
        for block in self.blocks:
            torch._foreach_copy_(block.views(block.masters), [mine[n] for n in block.names])
            if block.values is not block.masters:
                block.values.copy_(block.masters)
        self.network.hold_still()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.network.network(x)
        return y
