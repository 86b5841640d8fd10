"""The layers of fused networks: kernels with their gradients.

In order: convolutions (:class:`Convolution`, :class:`First`), a linear layer that gives each
record's gradient (:class:`Linear`), batch normalisation (:class:`Normalisation`), group
normalisation (:class:`GroupNormalisation`) and the end of the network (:class:`Head`).
"""

# Imports in functions: kernels need Triton, which is not there without a CUDA device.

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from unwalk.engines.cuda.batch_norm_state import BatchNormState
from unwalk.engines.cuda.convolution import How, convolve, input_gradient, ours, weight_gradient
from unwalk.engines.cuda.record_gradients import (
    RecordGradients,
    put_convolution,
    put_first,
    put_linear,
)

WIDTH = 8
"""Tensor cores want channels in multiples of this."""
PATCH = 64
"""Numbers that a place of the first layer may see, for the layer to be a matrix product."""
CLASSES = 128
"""The most classes that the kernels of the head hold together."""
PRECISIONS = (torch.float32, torch.bfloat16)
"""Those that the kernels of the head know."""


class Convolution(nn.Module):
    """A convolution whose weight gradient runs on a side stream, and lands in ``place``.

    With ``per_record``, what each record adds to it goes there instead.  ``after`` is told the
    weight when its gradient is under way and nothing that comes later reads it.  Our own kernels
    make the sums of the normalisations ``behind`` and ``front`` on the way, where there are such.
    """

    after: Callable[[torch.Tensor], None] | None = None
    behind: tuple[Normalisation, ...] = ()
    front: tuple[Normalisation, ...] = ()

    def __init__(
        self,
        conv: nn.Conv2d,
        side: torch.cuda.Stream | None,
        place: torch.Tensor,
        *,
        biased: bool,
        per_record: RecordGradients | None = None,
    ) -> None:
        super().__init__()
        self.conv, self.side, self.biased, self.per_record = conv, side, biased, per_record
        self.place = (place,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv = self.conv
        if self.per_record is not None:
            self.per_record.check(x, 4)
        how = cast(How, (conv.stride, conv.padding, conv.dilation, conv.groups))
        bias = conv.bias if self.biased else None
        if not self.training:
            return convolve(x, conv.weight, bias, how)
        mine = bias is None and ours(x, conv.weight, how)
        for norm in self.behind:
            norm.counted = mine
        behind = self.behind[0].layer if self.behind and mine else None
        front = self.front[0] if self.front and mine and conv.stride == (1, 1) else None
        where = (self.side, self.place[0], self.per_record, self.after, behind, front)
        y: torch.Tensor = apply(_Convolve, x, conv.weight, bias, how, *where)
        return y


def apply(function: type[torch.autograd.Function], *given: Any) -> Any:
    """The function's result, of any type."""
    return function.apply(*given)


class OnSideStream:
    """Work on the side stream, which starts when all that was asked for so far is done."""

    def __init__(self, side: torch.cuda.Stream | None, *read: torch.Tensor) -> None:
        self.side, self.read = side, read
        self.context: Any = nullcontext()

    def __enter__(self) -> None:
        if self.side is not None:
            self.side.wait_stream(torch.cuda.current_stream())
            self.context = torch.cuda.stream(self.side)
        self.context.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.side is not None:
            for tensor in self.read:
                tensor.record_stream(self.side)
        self.context.__exit__(*error)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        how: How,
        side: torch.cuda.Stream | None,
        place: torch.Tensor,
        per_record: RecordGradients | None,
        after: Callable[[torch.Tensor], None] | None,
        behind: BatchNormState | None,
        front: Normalisation | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.side, ctx.place, ctx.per_record, ctx.after = (
            how,
            side,
            place,
            per_record,
            after,
        )
        ctx.front = front
        ctx.mine = weight, bias
        return convolve(x, weight, bias, how, behind)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        mine: tuple[torch.Tensor | None, ...] = (None, None)
        with OnSideStream(ctx.side, gradient, x):
            if ctx.per_record is not None:
                put_convolution(ctx.per_record, x, gradient, ctx.mine, ctx.how)
            else:
                weight_gradient(gradient, x, weight, ctx.how, ctx.place)
                mine = ctx.place, None if ctx.mine[1] is None else gradient.sum((0, 2, 3))
        for_x, front = None, ctx.front
        if ctx.needs_input_grad[0] and front is not None:
            for_x = input_gradient(gradient, x, weight, ctx.how, front.layer, front.before)
            front.summed_up, front.before = True, None
        elif ctx.needs_input_grad[0]:
            for_x = input_gradient(gradient, x, weight, ctx.how)
        if ctx.after is not None:
            ctx.after(ctx.mine[0])
        return for_x, *mine, *[None] * 7


class First(nn.Module):
    """The convolution that reads the input, as a matrix product.

    Convolutions of few channels are slow, and what they read can be laid out long before: the
    input is a table with one row a place and, as columns, the patch that the place sees, filled up
    with zeros to ``width`` columns.
    """

    def __init__(
        self,
        conv: nn.Conv2d,
        side: torch.cuda.Stream | None,
        place: torch.Tensor,
        *,
        biased: bool,
        per_record: RecordGradients | None = None,
    ) -> None:
        super().__init__()
        self.conv, self.side, self.biased, self.per_record = conv, side, biased, per_record
        self.place = (place,)
        self.columns = conv.weight[0].numel()
        self.width = -(-self.columns // WIDTH) * WIDTH
        weight = conv.weight.detach()
        self.wide = (weight.new_zeros(len(weight), self.width),)

    @staticmethod
    def takes(conv: nn.Conv2d) -> bool:
        """Patches of few numbers, nothing unusual."""
        plain = conv.groups == 1 and conv.dilation == (1, 1)
        return conv.weight[0].numel() <= PATCH and plain

    def table(self, room: torch.Tensor | None, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The patches of pictures (..., channels, height, width), written into ``room``."""
        from unwalk.engines.cuda.kernels import step

        (high, wide), (step_down, step_across) = self.conv.kernel_size, self.conv.stride
        down, across = int(self.conv.padding[0]), int(self.conv.padding[1])
        if room is None:
            lines = (x.shape[-2] + 2 * down - high) // step_down + 1
            columns = (x.shape[-1] + 2 * across - wide) // step_across + 1
            shape = (*x.shape[:-3], lines, columns, self.width)
            room = torch.empty(shape, dtype=dtype, device=x.device)
        step.patches(room, x, (high, wide), (step_down, step_across), (down, across))
        return room

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.per_record is not None:
            self.per_record.check(x, 4)
        bias = self.conv.bias if self.biased else None
        if not self.training:  # the input is as it comes
            return functional.conv2d(x, self.conv.weight, bias, self.conv.stride, self.conv.padding)
        where = (self.side, self.place[0], self.per_record)
        y: torch.Tensor = apply(_Product, x, self.conv.weight, bias, self.wide[0], *where)
        return y


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        wide: torch.Tensor,
        side: torch.cuda.Stream | None,
        place: torch.Tensor,
        per_record: RecordGradients | None,
    ) -> torch.Tensor:
        columns = weight[0].numel()
        wide[:, :columns].copy_(weight.permute(0, 2, 3, 1).reshape(len(weight), -1))
        ctx.save_for_backward(x)
        ctx.side, ctx.place, ctx.per_record, ctx.mine = side, place, per_record, (weight, bias)
        batch, rows, across, width = x.shape
        table = x.view(-1, width)
        y = table @ wide.t() if bias is None else torch.addmm(bias, table, wide.t())
        return y.view(batch, rows, across, -1).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        out, channels, high, across = ctx.place.shape
        gradient = gradients[0].permute(0, 2, 3, 1).reshape(-1, out)
        with OnSideStream(ctx.side, gradient, x):
            if ctx.per_record is not None:
                put_first(ctx.per_record, x.flatten(1, 2), gradient, ctx.mine)
                return (None,) * 7
            full = gradient.t() @ x.view(-1, x.shape[3])
            mine = full[:, : channels * high * across].unflatten(1, (high, across, channels))
            ctx.place.copy_(mine.permute(0, 3, 1, 2))
            for_bias = None if ctx.mine[1] is None else gradient.sum(0)
        return None, ctx.place, for_bias, None, None, None, None


class Linear(nn.Module):
    """A linear layer that gives ``per_record`` what each record adds to its gradients."""

    def __init__(
        self, linear: nn.Linear, side: torch.cuda.Stream | None, per_record: RecordGradients
    ) -> None:
        super().__init__()
        self.linear, self.side, self.per_record = linear, side, per_record

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.per_record.check(x, 2)
        given = (x, self.linear.weight, self.linear.bias, self.side, self.per_record)
        y: torch.Tensor = apply(_Linear, *given)
        return y


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        side: torch.cuda.Stream | None,
        per_record: RecordGradients,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.mine, ctx.side, ctx.per_record = (weight, bias), side, per_record
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        with OnSideStream(ctx.side, gradient, x):
            put_linear(ctx.per_record, x, gradient, ctx.mine)
        for_x = gradient @ weight if ctx.needs_input_grad[0] else None
        return for_x, None, None, None, None


class Normalisation(nn.Module):
    """Batch normalisation, then a sum with ``other``, a ReLU, a pool.

    ``twice``: the result is given out twice, for two users, whose gradients need then not be
    added up before they come back.  ``counted`` and ``summed_up``: the convolutions round it have
    made its sums forward and backward; ``before`` is then what it was given.
    """

    counted = summed_up = False
    before: torch.Tensor | None = None

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
        if not self.counted:
            from unwalk.engines.cuda.kernels import batch_norm

            batch_norm.statistics(x.detach(), layer)
        if self.pooled and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0:
            return apply(_NormalisePooled, x, layer.weight, layer.bias, shift, layer)
        if other is not None:
            other = other.contiguous(memory_format=torch.channels_last)
        self.summed_up, self.before = False, x.detach() if self.plain else None
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

    @property
    def plain(self) -> bool:
        """Normalised and cut off below zero, no more, for one user."""
        return self.relu and not self.pooled and not self.twice


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
    ) -> Any:
        from unwalk.engines.cuda.kernels import batch_norm

        y = batch_norm.normalise(x, norm.layer, shift, other, norm.relu)
        ctx.save_for_backward(x, y if norm.relu and other is not None else None)
        ctx.summed, ctx.shift, ctx.norm = other is not None, shift, norm
        return (y, y.view_as(y)) if norm.twice else y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        from unwalk.engines.cuda.kernels import batch_norm

        x, kept = ctx.saved_tensors
        first, *more = (g.contiguous(memory_format=torch.channels_last) for g in gradients)
        second = more[0] if more else None
        norm, layer = ctx.norm, ctx.norm.layer
        if not norm.summed_up:
            batch_norm.sum_up(first, second, x, layer, kept, relu=norm.relu)
        for_x, for_other = batch_norm.backward(
            first, second, x, layer, kept, relu=norm.relu, summed=ctx.summed
        )
        norm.before = None
        for_shift = None if ctx.shift is None else torch.zeros_like(ctx.shift)
        return for_x, layer.for_weight, layer.for_bias, for_shift, for_other, None


class _NormalisePooled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        shift: torch.Tensor | None,
        layer: BatchNormState,
    ) -> torch.Tensor:
        from unwalk.engines.cuda.kernels import batch_norm

        ctx.save_for_backward(x)
        ctx.shift, ctx.layer = shift, layer
        return batch_norm.normalise_pooled(x, layer, shift)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        from unwalk.engines.cuda.kernels import batch_norm

        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        (x,) = ctx.saved_tensors
        layer = ctx.layer
        for_x = batch_norm.backward_pooled(gradient, x, layer)
        for_shift = None if ctx.shift is None else torch.zeros_like(ctx.shift)
        return for_x, layer.for_weight, layer.for_bias, for_shift, None


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
    side: torch.cuda.Stream | None
    per_record: RecordGradients | None

    def take(self, sums: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The gradients of weight and bias out of those by record (records, 2, channels)."""
        from unwalk.engines.cuda.kernels import group_norm

        if self.per_record is not None:
            self.per_record.put(sums, self.bias, self.weight)
            return None, None
        with OnSideStream(self.side, sums):
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
            return apply(_NormaliseGroupsPooled, x, layer.weight, layer.bias, layer)
        other = None if other is None else _picture(other)
        given = (x, layer.weight, layer.bias, other, layer, self.relu, self.twice)
        y = apply(_NormaliseGroups, *given)
        if len(shape) != 4:
            y = tuple(one.reshape(shape) for one in y) if self.twice else y.reshape(shape)
        return functional.max_pool2d(y, 2) if self.pooled else y


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
    ) -> Any:
        from unwalk.engines.cuda.kernels import group_norm

        y, stats = group_norm.normalise(x, weight, bias, other, layer.groups, layer.eps, relu=relu)
        ctx.save_for_backward(x, y if relu and other is not None else None, stats)
        ctx.relu, ctx.summed, ctx.layer = relu, other is not None, layer
        return (y, y.view_as(y)) if twice else y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        from unwalk.engines.cuda.kernels import group_norm

        x, kept, stats = ctx.saved_tensors
        first, *more = (g.contiguous(memory_format=torch.channels_last) for g in gradients)
        second = more[0] if more else None
        layer = ctx.layer
        for_x, for_other, sums = group_norm.backward(
            first, second, x, kept, stats, layer.weight, layer.bias,
            relu=ctx.relu, summed=ctx.summed,
        )  # fmt: skip
        return for_x, *layer.take(sums), for_other, None, None, None


class _NormaliseGroupsPooled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, layer: GroupNormState
    ) -> torch.Tensor:
        from unwalk.engines.cuda.kernels import group_norm

        y, stats = group_norm.normalise_pooled(x, weight, bias, layer.groups, layer.eps)
        ctx.save_for_backward(x, stats)
        ctx.layer = layer
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        from unwalk.engines.cuda.kernels import group_norm

        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        x, stats = ctx.saved_tensors
        layer = ctx.layer
        for_x, sums = group_norm.backward_pooled(gradient, x, stats, layer.weight, layer.bias)
        return for_x, *layer.take(sums), None


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
        from unwalk.engines.cuda.kernels import head

        logits, mean = head.forward(x, weight, bias)
        ctx.save_for_backward(mean, weight)
        ctx.side, ctx.shape, ctx.places = side, tuple(x.shape), (for_weight, for_bias)
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        from unwalk.engines.cuda.kernels import head

        mean, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        with OnSideStream(ctx.side, gradient, mean):
            head.collect(gradient, mean, *ctx.places)
        for_x = None
        if ctx.needs_input_grad[0]:
            for_x = head.backward(gradient, weight, ctx.shape)
        return for_x, *ctx.places, None, None, None
