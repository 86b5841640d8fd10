"""Gradients of many models of one architecture at once: row k of a matrix is model k.

``torch.func`` maps the gradient of one model over the rows.  Convolutions are rewritten as a
gather of patches and a batched matrix product, because a convolution with one kernel a model
falls back to slow grouped convolutions; batch normalisation is written out, so that each model's
running statistics come back as values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn import functional

from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Loss
from unwalk.core.token import Layout

Buffers = dict[str, torch.Tensor]
Pair = tuple[int, int]


def _apply(function: type[torch.autograd.Function], *given: Any) -> torch.Tensor:
    result: torch.Tensor = function.apply(*given)
    return result


class _Patches(torch.autograd.Function):
    """Patches of pictures (..., batch, channels, height, width) as columns of a table.

    The table has shape (..., channels * kernel area, batch * places), so that weights times table
    is the convolution.  Mapping it over models only adds a leading dimension.
    """

    @staticmethod
    def forward(x: torch.Tensor, kernel: Pair, stride: Pair) -> torch.Tensor:
        patches = x.unfold(-2, kernel[0], stride[0]).unfold(-2, kernel[1], stride[1])
        lead = patches.dim() - 6
        batch, channels, height, width = (lead + place for place in range(4))
        order = (*range(lead), channels, lead + 4, lead + 5, batch, height, width)
        return patches.permute(order).reshape(
            *x.shape[:lead], x.shape[channels] * kernel[0] * kernel[1], -1
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, ctx.kernel, ctx.stride = inputs
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _apply(_Fold, gradients[0], ctx.shape, ctx.kernel, ctx.stride), None, None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], x: torch.Tensor, kernel: Pair, stride: Pair
    ) -> tuple[torch.Tensor, int]:
        return _apply(_Patches, x.movedim(dims[0] or 0, 0), kernel, stride), 0


class _Fold(torch.autograd.Function):
    """The transpose of :class:`_Patches`: every entry is added back where it was taken from."""

    @staticmethod
    def forward(
        table: torch.Tensor, shape: tuple[int, ...], kernel: Pair, stride: Pair
    ) -> torch.Tensor:
        *lead, batch, channels, height, width = shape
        rows = (height - kernel[0]) // stride[0] + 1
        columns = (width - kernel[1]) // stride[1] + 1
        spread = table.reshape(*lead, channels, *kernel, batch, rows, columns)
        out = table.new_zeros(*lead, batch, channels, height, width)
        first = len(lead)
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                piece = spread.select(first + 1, i).select(first + 1, j)
                place = out[..., i : i + stride[0] * rows : stride[0], :]
                place[..., j : j + stride[1] * columns : stride[1]].add_(
                    piece.transpose(first, first + 1)
                )
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, _, ctx.kernel, ctx.stride = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _apply(_Patches, gradients[0], ctx.kernel, ctx.stride), None, None, None

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[int | None, ...],
        table: torch.Tensor,
        shape: tuple[int, ...],
        kernel: Pair,
        stride: Pair,
    ) -> tuple[torch.Tensor, int]:
        larger = (info.batch_size, *shape)
        return _apply(_Fold, table.movedim(dims[0] or 0, 0), larger, kernel, stride), 0


class PatchConv2d(nn.Module):
    """A convolution as weights times patches; takes over the parameters of a ``Conv2d``."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.kernel: Pair = (conv.kernel_size[0], conv.kernel_size[1])
        self.stride: Pair = (conv.stride[0], conv.stride[1])
        self.padding: Pair = (int(conv.padding[0]), int(conv.padding[1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high, wide = self.padding
        if high or wide:
            x = functional.pad(x, (wide, wide, high, high))
        batch, _, height, width = x.shape
        rows = (height - self.kernel[0]) // self.stride[0] + 1
        columns = (width - self.kernel[1]) // self.stride[1] + 1
        table = _apply(_Patches, x, self.kernel, self.stride)
        out = self.weight.reshape(self.weight.shape[0], -1) @ table
        if self.bias is not None:
            out = out + self.bias[:, None]
        return out.reshape(-1, batch, rows, columns).transpose(0, 1)


class StatedBatchNorm(nn.Module):
    """Batch normalisation in training mode that leaves its new running statistics in ``fresh``."""

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self.momentum, self.eps = norm.momentum, norm.eps
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)
        self.register_buffer("num_batches_tracked", norm.num_batches_tracked)
        self.running_mean: torch.Tensor
        self.running_var: torch.Tensor
        self.num_batches_tracked: torch.Tensor
        self.fresh: Buffers = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        over = [0, *range(2, x.dim())]
        shape = (1, -1, *[1] * (x.dim() - 2))
        mean = x.mean(over)
        centred = x - mean.view(shape)
        variance = centred.square().mean(over)
        count = x.numel() // x.shape[1]
        rate = self.momentum or 0.0
        with torch.no_grad():
            self.fresh = {
                "running_mean": torch.lerp(self.running_mean, mean.detach(), rate),
                "running_var": torch.lerp(
                    self.running_var, variance.detach() * (count / (count - 1)), rate
                ),
                "num_batches_tracked": self.num_batches_tracked + 1,
            }
        scaled = centred * (variance + self.eps).rsqrt().view(shape)
        return scaled * self.weight.view(shape) + self.bias.view(shape)


def _rewritten(module: nn.Module) -> nn.Module:
    """The same network out of modules that map well over many models."""
    for name, child in module.named_children():
        if isinstance(child, nn.Conv2d):
            if child.groups != 1 or child.dilation != (1, 1) or isinstance(child.padding, str):
                raise InvalidInput(
                    f"layer {name!r} is a grouped, dilated or auto-padded convolution, which the "
                    "fleet engine does not batch; use the in-process engine."
                )
            setattr(module, name, PatchConv2d(child))
        elif isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            setattr(module, name, StatedBatchNorm(child))
        else:
            _rewritten(child)
    return module


class BatchedGradient:
    """Weighted gradients of K models, each on its own batch."""

    def __init__(self, model: nn.Module, layout: Layout, loss: Loss | None) -> None:
        self.module = _rewritten(copy.deepcopy(model)).train()
        self.layout = layout
        self.loss = loss
        self.stated = {
            name: m for name, m in self.module.named_modules() if isinstance(m, StatedBatchNorm)
        }
        one = grad_and_value(self._loss, has_aux=True)
        self._many: Callable[..., tuple[torch.Tensor, tuple[torch.Tensor, Buffers]]] = vmap(
            one, in_dims=(0, 0, 0, 0, 0), randomness="different"
        )

    @property
    def mixes_rows(self) -> bool:
        """Whether one row of a batch influences another (batch normalisation)."""
        return bool(self.stated)

    def __call__(
        self,
        parameters: torch.Tensor,
        buffers: Buffers,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
        bound: float | None = None,
    ) -> tuple[torch.Tensor, Buffers]:
        """Gradients (K, d) of the weighted losses, and the buffers after the batch.

        With ``bound`` every example's gradient is clipped to that norm before it is weighted.
        """
        if bound is not None:
            single = self._each(parameters, buffers, x[:, :, None], y[:, :, None])
            norms = single.norm(dim=2)
            shares = weights * (bound / (norms + 1e-12)).clamp(max=1.0)
            return torch.einsum("kb,kbd->kd", shares, single), buffers
        gradients, (_, fresh) = self._many(parameters, buffers, x, y, weights)
        return gradients, {**buffers, **fresh}

    def _each(
        self, parameters: torch.Tensor, buffers: Buffers, x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Every example's own gradient, (K, rows, d)."""

        def one(
            flat: torch.Tensor, held: Buffers, a: torch.Tensor, b: torch.Tensor
        ) -> torch.Tensor:
            return self._loss(flat, held, a, b, torch.ones_like(a.flatten(1)[:, 0]))[0]

        inner = vmap(grad(one), in_dims=(None, None, 0, 0), randomness="different")
        outer = vmap(inner, in_dims=(0, 0, 0, 0), randomness="different")
        result: torch.Tensor = outer(parameters, buffers, x, y)
        return result

    def _loss(
        self,
        flat: torch.Tensor,
        buffers: Buffers,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
    ) -> tuple[torch.Tensor, Buffers]:
        named = {**self.layout.views(flat), **buffers}
        output = functional_call(self.module, named, (x,))
        if self.loss is None:
            losses = functional.cross_entropy(output, y, reduction="none")
        else:
            losses = self.loss(output, y)
        fresh = {
            f"{name}.{key}" if name else key: value
            for name, module in self.stated.items()
            for key, value in module.fresh.items()
        }
        return (losses * weights).sum(), fresh
