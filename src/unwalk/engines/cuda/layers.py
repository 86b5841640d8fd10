"""The layers of fused networks: kernels with their gradients.

In order: convolutions (:class:`Convolution`), a linear layer that gives each record's gradient
(:class:`Linear`), batch normalisation (:class:`Normalisation`) and group normalisation
(:class:`GroupNormalisation`); :class:`PlainNorm` is what both are measured against.
"""

# Imports in functions: kernels need Triton, which is not there without a CUDA device.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from unwalk.engines.cuda.batch_norm_state import BatchNormState
from unwalk.engines.cuda.convolution import How, convolve, input_gradient, weight_gradient
from unwalk.engines.cuda.record_gradients import RecordGradients, put_convolution, put_linear


class Convolution(nn.Module):
    """A convolution whose weight gradient lands in ``place``.

    With ``per_record``, what each record adds to it goes there instead.
    """

    def __init__(
        self,
        conv: nn.Conv2d,
        place: torch.Tensor,
        *,
        biased: bool,
        per_record: RecordGradients | None = None,
    ) -> None:
        super().__init__()
        self.conv, self.biased, self.per_record = conv, biased, per_record
        self.place = (place,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv = self.conv
        if self.per_record is not None:
            self.per_record.check(x, 4)
        how = cast(How, (conv.stride, conv.padding, conv.dilation, conv.groups))
        bias = conv.bias if self.biased else None
        if not self.training:
            return convolve(x, conv.weight, bias, how)
        where = (self.place[0], self.per_record)
        y: torch.Tensor = apply(_Convolve, x, conv.weight, bias, how, *where)
        return y


def apply(function: type[torch.autograd.Function], *given: Any) -> Any:
    """The function's result, of any type."""
    return function.apply(*given)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        how: How,
        place: torch.Tensor,
        per_record: RecordGradients | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.place, ctx.per_record, ctx.mine = how, place, per_record, (weight, bias)
        return convolve(x, weight, bias, how)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        for_own: tuple[torch.Tensor | None, ...] = (None, None)
        if ctx.per_record is not None:
            put_convolution(ctx.per_record, x, gradient, ctx.mine, ctx.how)
        else:
            weight_gradient(gradient, x, weight, ctx.how, ctx.place)
            for_own = ctx.place, None if ctx.mine[1] is None else gradient.sum((0, 2, 3))
        for_x = None
        if ctx.needs_input_grad[0]:
            for_x = input_gradient(gradient, x, weight, ctx.how)
        return for_x, *for_own, None, None, None


class Linear(nn.Module):
    """A linear layer that gives ``per_record`` what each record adds to its gradients."""

    def __init__(self, linear: nn.Linear, per_record: RecordGradients) -> None:
        super().__init__()
        self.linear, self.per_record = linear, per_record

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.per_record.check(x, 2)
        linear = self.linear
        y: torch.Tensor = apply(_Linear, x, linear.weight, linear.bias, self.per_record)
        return y


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        per_record: RecordGradients,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.mine, ctx.per_record = (weight, bias), per_record
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        put_linear(ctx.per_record, x, gradient, ctx.mine)
        for_x = gradient @ weight if ctx.needs_input_grad[0] else None
        return for_x, None, None, None


class Normalisation(nn.Module):
    """Batch normalisation, then a sum with ``other``, a ReLU, a pool.

    ``twice``: the result is given out twice, for two users, whose gradients need then not be
    added up before they come back.
    """

    def __init__(
        self,
        layer: BatchNormState,
        shifted: nn.Conv2d | None,
        *,
        relu: bool,
        pooled: bool,
        twice: bool,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.shifted = shifted
        self.relu, self.pooled, self.twice = relu, pooled, twice

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> Any:
        layer = self.layer
        shift = None if self.shifted is None else self.shifted.bias
        x = x.contiguous(memory_format=torch.channels_last)
        if not self.training:
            return self._answer(x, other)
        if self.pooled and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0:
            return apply(_Normalise, x, layer.weight, layer.bias, shift, None, self, True)
        if other is not None:
            other = other.contiguous(memory_format=torch.channels_last)
        y = apply(_Normalise, x, layer.weight, layer.bias, shift, other, self)
        return functional.max_pool2d(y, 2) if self.pooled else y

    def _answer(self, x: torch.Tensor, other: torch.Tensor | None) -> Any:
        """In evaluation mode: by the moments that are there."""
        from unwalk.engines.cuda.kernels import batch_norm

        if self.pooled and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0:
            return batch_norm.normalise_pooled(x, self.layer, None, given=True)
        if other is not None:
            other = other.contiguous(memory_format=torch.channels_last)
        y = batch_norm.normalise(x, self.layer, None, other, self.relu, given=True)
        y = functional.max_pool2d(y, 2) if self.pooled else y
        return (y, y) if self.twice else y


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        shift: torch.Tensor | None,
        other: torch.Tensor | None,
        norm: Normalisation,
        pooled: bool = False,
    ) -> Any:
        from unwalk.engines.cuda.kernels import batch_norm

        ctx.summed, ctx.shift, ctx.norm, ctx.pooled = other is not None, shift, norm, pooled
        if pooled:
            ctx.save_for_backward(x, None)
            return batch_norm.normalise_pooled(x, norm.layer, shift)
        y = batch_norm.normalise(x, norm.layer, shift, other, norm.relu)
        ctx.save_for_backward(x, y if norm.relu and other is not None else None)
        return (y, y.view_as(y)) if norm.twice else y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        from unwalk.engines.cuda.kernels import batch_norm

        x, kept = ctx.saved_tensors
        first, *more = (g.contiguous(memory_format=torch.channels_last) for g in gradients)
        second = more[0] if more else None
        norm, layer = ctx.norm, ctx.norm.layer
        for_shift = None if ctx.shift is None else torch.zeros_like(ctx.shift)
        if ctx.pooled:
            for_x, for_other = batch_norm.backward_pooled(first, x, layer), None
        else:
            for_x, for_other = batch_norm.backward(
                first, second, x, layer, kept, relu=norm.relu, summed=ctx.summed
            )
        return for_x, layer.for_weight, layer.for_bias, for_shift, for_other, None, None


@dataclass(frozen=True, eq=False)
class GroupNormState:
    """One normalisation: its parameters, where their gradients land, and its constants.

    With ``per_record``, each record's gradients go there instead.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    for_weight: torch.Tensor
    for_bias: torch.Tensor
    groups: int
    eps: float
    per_record: RecordGradients | None

    def take(self, sums: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The gradients of weight and bias out of those by record (records, 2, channels)."""
        from unwalk.engines.cuda.kernels import group_norm

        if self.per_record is not None:
            self.per_record.put(sums, self.bias, self.weight)
            return None, None
        group_norm.collect(sums, self.for_weight, self.for_bias)
        return self.for_weight, self.for_bias


class GroupNormalisation(nn.Module):
    """Group normalisation, then a sum with ``other``, a ReLU, a pool.

    ``twice``: as for :class:`Normalisation`.
    """

    def __init__(self, layer: GroupNormState, *, relu: bool, pooled: bool, twice: bool) -> None:
        super().__init__()
        self.layer = layer
        self.relu, self.pooled, self.twice = relu, pooled, twice

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> Any:
        layer, shape = self.layer, x.shape
        if layer.per_record is not None:
            layer.per_record.check(x, x.dim())
        x = _picture(x)
        if other is not None and other.shape != shape:  # the sum is of another shape
            y = apply(_NormaliseGroups, x, layer.weight, layer.bias, None, layer, False, False)
            y = torch.relu(y.reshape(shape) + other)
            return (y, y) if self.twice else y
        if self.pooled and len(shape) == 4 and shape[2] % 2 == 0 and shape[3] % 2 == 0:
            return apply(
                _NormaliseGroups, x, layer.weight, layer.bias, None, layer, True, False, True
            )
        other = None if other is None else _picture(other)
        given = (x, layer.weight, layer.bias, other, layer, self.relu, self.twice)
        y = apply(_NormaliseGroups, *given)
        if len(shape) != 4:
            y = tuple(one.reshape(shape) for one in y) if self.twice else y.reshape(shape)
        return functional.max_pool2d(y, 2) if self.pooled else y


class PlainNorm(nn.Module):
    """A normalisation and what follows it in plain torch, where its kernels are switched off."""

    def __init__(self, norm: nn.Module, *, relu: bool, pooled: bool, twice: bool) -> None:
        super().__init__()
        self.norm, self.relu, self.pooled, self.twice = norm, relu, pooled, twice

    def body(self, x: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
        """All of it; a benchmark compiles this."""
        y: torch.Tensor = self.norm(x)
        y = y if other is None else y + other
        y = torch.relu(y) if self.relu else y
        return functional.max_pool2d(y, 2) if self.pooled else y

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> Any:
        y = self.body(x, other)
        return (y, y) if self.twice else y


def _picture(x: torch.Tensor) -> torch.Tensor:
    """As pictures (records, channels, height, width) that lie channels-last."""
    if x.dim() != 4:
        x = x.reshape(*x.shape[:2], -1, 1)
    return x.contiguous(memory_format=torch.channels_last)


class _NormaliseGroups(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        other: torch.Tensor | None,
        layer: GroupNormState,
        relu: bool,
        twice: bool,
        pooled: bool = False,
    ) -> Any:
        from unwalk.engines.cuda.kernels import group_norm

        ctx.relu, ctx.summed, ctx.layer, ctx.pooled = relu, other is not None, layer, pooled
        groups, eps = layer.groups, layer.eps
        if pooled:
            y, stats = group_norm.normalise_pooled(x, weight, bias, groups, eps)
        else:
            y, stats = group_norm.normalise(x, weight, bias, other, groups, eps, relu=relu)
        ctx.save_for_backward(x, y if relu and other is not None else None, stats)
        return (y, y.view_as(y)) if twice else y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        from unwalk.engines.cuda.kernels import group_norm

        x, kept, stats = ctx.saved_tensors
        first, *more = (g.contiguous(memory_format=torch.channels_last) for g in gradients)
        second = more[0] if more else None
        layer, for_other = ctx.layer, None
        if ctx.pooled:
            for_x, sums = group_norm.backward_pooled(first, x, stats, layer.weight, layer.bias)
        else:
            for_x, for_other, sums = group_norm.backward(
                first, second, x, kept, stats, layer.weight, layer.bias,
                relu=ctx.relu, summed=ctx.summed,
            )  # fmt: skip
        return for_x, *layer.take(sums), for_other, None, None, None, None
