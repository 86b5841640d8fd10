"""Group normalisation of fused networks: the kernels of `group_kernels` with their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from unwalk.engines.fused_layers import Beside, apply
from unwalk.engines.shares import Shares


@dataclass(frozen=True, eq=False)
class GroupLayer:
    """One normalisation: its parameters, where their gradients land, and its constants.

    With ``shares``, each record's gradients go there instead.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    for_weight: torch.Tensor
    for_bias: torch.Tensor
    groups: int
    eps: float
    side: torch.cuda.Stream | None
    shares: Shares | None

    def take(self, sums: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The gradients of weight and bias out of those by record (records, 2, channels)."""
        from unwalk.engines import group_kernels

        if self.shares is not None:
            self.shares.put(sums, self.bias, self.weight)
            return None, None
        with Beside(self.side, sums):
            group_kernels.collect(sums, self.for_weight, self.for_bias)
        return self.for_weight, self.for_bias


class GroupNormalisation(nn.Module):
    """Group normalisation, then a sum with ``other``, a ReLU, a pool.

    ``twice``: as for :class:`unwalk.engines.fused_layers.Normalisation`.
    """

    def __init__(self, layer: GroupLayer, *, relu: bool, pooled: bool, twice: bool) -> None:
        super().__init__()
        self.layer = layer
        self.relu, self.pooled, self.twice = relu, pooled, twice

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> Any:
        layer, shape = self.layer, x.shape
        if layer.shares is not None:
            layer.shares.check(x, x.dim())
        x = _picture(x)
        if other is not None and other.shape != shape:  # the sum is of another shape
            y = apply(_Normalise, x, layer.weight, layer.bias, None, layer, False, False)
            y = torch.relu(y.reshape(shape) + other)
            return (y, y) if self.twice else y
        if self.pooled and len(shape) == 4 and shape[2] % 2 == 0 and shape[3] % 2 == 0:
            return apply(_NormalisePooled, x, layer.weight, layer.bias, layer)
        other = None if other is None else _picture(other)
        given = (x, layer.weight, layer.bias, other, layer, self.relu, self.twice)
        y = apply(_Normalise, *given)
        if len(shape) != 4:
            y = tuple(one.reshape(shape) for one in y) if self.twice else y.reshape(shape)
        return functional.max_pool2d(y, 2) if self.pooled else y


def _picture(x: torch.Tensor) -> torch.Tensor:
    """As pictures (records, channels, height, width) that lie channels-last."""
    if x.dim() != 4:
        x = x.reshape(*x.shape[:2], -1, 1)
    return x.contiguous(memory_format=torch.channels_last)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        other: torch.Tensor | None,
        layer: GroupLayer,
        relu: bool,
        twice: bool,
    ) -> Any:
        from unwalk.engines import group_kernels

        y, stats = group_kernels.normalise(
            x, weight, bias, other, layer.groups, layer.eps, relu=relu
        )
        ctx.save_for_backward(x, y if relu and other is not None else None, stats)
        ctx.relu, ctx.summed, ctx.layer = relu, other is not None, layer
        return (y, y.view_as(y)) if twice else y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        from unwalk.engines import group_kernels

        x, kept, stats = ctx.saved_tensors
        first, *more = (g.contiguous(memory_format=torch.channels_last) for g in gradients)
        second = more[0] if more else None
        layer = ctx.layer
        for_x, for_other, sums = group_kernels.backward(
            first, second, x, kept, stats, layer.weight, layer.bias,
            relu=ctx.relu, summed=ctx.summed,
        )  # fmt: skip
        return for_x, *layer.take(sums), for_other, None, None, None


class _NormalisePooled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, layer: GroupLayer
    ) -> torch.Tensor:
        from unwalk.engines import group_kernels

        y, stats = group_kernels.normalise_pooled(x, weight, bias, layer.groups, layer.eps)
        ctx.save_for_backward(x, stats)
        ctx.layer = layer
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        from unwalk.engines import group_kernels

        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        x, stats = ctx.saved_tensors
        layer = ctx.layer
        for_x, sums = group_kernels.backward_pooled(gradient, x, stats, layer.weight, layer.bias)
        return for_x, *layer.take(sums), None
