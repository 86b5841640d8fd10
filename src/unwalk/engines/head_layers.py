"""The end of fused networks: the kernels of `head_kernels` with their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from unwalk.engines.fused_layers import Beside, apply

CLASSES = 128
"""The most that the kernels hold together."""
PRECISIONS = (torch.float32, torch.bfloat16)


class Head(nn.Module):
    """The mean over all places, then a linear layer.

    Gradients of weight and bias run on a side stream, and land in ``for_weight`` and ``for_bias``.
    """

    def __init__(
        self,
        linear: nn.Linear,
        side: torch.cuda.Stream | None,
        for_weight: torch.Tensor,
        for_bias: torch.Tensor | None,
    ) -> None:
        super().__init__()
        self.linear, self.side = linear, side
        self.places = (for_weight, for_bias)

    @staticmethod
    def takes(linear: nn.Linear) -> bool:
        """Few classes, in a precision that the kernels know."""
        return linear.out_features <= CLASSES and linear.weight.dtype in PRECISIONS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        linear = self.linear
        if x.dim() == 3:  # pictures without channels: the pool keeps the first dimension
            x = x.unsqueeze(1)
        if x.shape[1] != linear.in_features or x.dtype != linear.weight.dtype:
            raise ValueError(f"{linear} cannot take {tuple(x.shape)} of {x.dtype}.")
        x = x.contiguous(memory_format=torch.channels_last)
        y: torch.Tensor = apply(_Head, x, linear.weight, linear.bias, self.side, *self.places)
        return y


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        side: torch.cuda.Stream | None,
        for_weight: torch.Tensor,
        for_bias: torch.Tensor | None,
    ) -> torch.Tensor:
        from unwalk.engines import head_kernels

        logits, mean = head_kernels.forward(x, weight, bias)
        ctx.save_for_backward(mean, weight)
        ctx.side, ctx.shape, ctx.places = side, tuple(x.shape), (for_weight, for_bias)
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        from unwalk.engines import head_kernels

        mean, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        with Beside(ctx.side, gradient, mean):
            head_kernels.collect(gradient, mean, *ctx.places)
        for_x = None
        if ctx.needs_input_grad[0]:
            for_x = head_kernels.backward(gradient, weight, ctx.shape)
        return for_x, *ctx.places, None, None, None
