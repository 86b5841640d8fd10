"""Gradients of many models of one architecture at once; row k of a matrix is model k.

``torch.func`` maps the gradient of one model over the rows.  Convolutions are rewritten as a gather
of patches and a batched matrix product, because a convolution with one kernel per model falls back
to slow grouped convolutions; batch normalisation is written out, so that each model's running
statistics come back as values.
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
from unwalk.core.outside import Surroundings, renewed
from unwalk.core.plan import Loss
from unwalk.core.token import Layout
from unwalk.engines.cuda import Executor, executor_for
from unwalk.engines.execute import BareLinear
from unwalk.engines.fleet_stack import LinearStack

Buffers = dict[str, torch.Tensor]
Pair = tuple[int, int]
Normalise = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]
]
"""From pictures, weight and bias to the output, and each channel's mean and variance."""


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
    """Batch normalisation in training mode that leaves its new running statistics in ``fresh``.

    ``normalise`` is a device's own implementation, which may include a ReLU and a pool.
    """

    def __init__(
        self,
        norm: nn.BatchNorm1d | nn.BatchNorm2d,
        normalise: Normalise | None = None,
    ) -> None:
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
        self.normalise = normalise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.normalise is None:
            out, mean, variance = self._plain(x)
        else:
            out, mean, variance = self.normalise(x, self.weight, self.bias)
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
        return out

    def _plain(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        over = [0, *range(2, x.dim())]
        shape = (1, -1, *[1] * (x.dim() - 2))
        wide = x.to(self.weight.dtype)
        mean = wide.mean(over)
        centred = wide - mean.view(shape)
        variance = centred.square().mean(over)
        scaled = centred * (variance + self.eps).rsqrt().view(shape)
        out = scaled * self.weight.view(shape) + self.bias.view(shape)
        return out.to(x.dtype), mean, variance


def plain_convolution(conv: nn.Conv2d) -> bool:
    """Whether a convolution can be rewritten."""
    return conv.groups == 1 and conv.dilation == (1, 1) and not isinstance(conv.padding, str)


def rewritten(module: nn.Module, executor: Executor | None = None) -> nn.Module:
    """The same network, made of modules that map well over many models.

    The ``executor`` of a device may have layers of its own, which include what follows them in a
    Sequential.
    """
    children = list(module.named_children())
    in_order = executor is not None and type(module) is nn.Sequential
    for place, (name, child) in enumerate(children):
        relu, pool = _followers(children[place + 1 :]) if in_order else (False, None)
        if isinstance(child, nn.Conv2d):
            if not plain_convolution(child):
                raise InvalidInput(
                    f"layer {name!r} is a grouped, dilated or auto-padded convolution, which the "
                    "fleet engine does not batch; use the in-process engine."
                )
            conv = None if executor is None else executor.fleet_convolution(child, relu, pool)
            setattr(module, name, PatchConv2d(child) if conv is None else conv)
            taken_along = conv is not None
        elif isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            normalise = None
            if executor is not None and isinstance(child, nn.BatchNorm2d):
                normalise = executor.fleet_norm(child, relu, pool)
            setattr(module, name, StatedBatchNorm(child, normalise))
            taken_along = normalise is not None
        else:
            rewritten(child, executor)
            taken_along = False
        if not taken_along:
            continue
        for taken, _ in children[place + 1 : place + 1 + relu + (pool is not None)]:
            setattr(module, taken, nn.Identity())
    return module


def _followers(after: list[tuple[str, nn.Module]]) -> tuple[bool, nn.MaxPool2d | None]:
    """Whether a ReLU comes next, and the 2x2 pool after it, if there is one."""
    kinds = [child for _, child in after]
    if not kinds or type(kinds[0]) is not nn.ReLU:
        return False, None
    pool = kinds[1] if len(kinds) > 1 else None
    if type(pool) is nn.MaxPool2d and _halves(pool):
        return True, pool
    return True, None


def _halves(pool: nn.MaxPool2d) -> bool:
    """Whether a pool takes the largest of every 2x2 window and nothing else."""
    return (
        pool.kernel_size in (2, (2, 2))
        and pool.stride in (2, (2, 2))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not pool.return_indices
    )


def _cross_entropy(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Torch's, to the bit, of each record; mapped over models, that is a dozen more operations."""
    if output.dim() != 2 or y.is_floating_point():
        return functional.cross_entropy(output, y, reduction="none")
    return -functional.log_softmax(output, 1).gather(1, y[:, None])[:, 0]


class BatchedGradient:
    """Weighted gradients of K models, each on its own batch.

    Those of a bare linear ``head`` (:mod:`unwalk.engines.execute`) and of a stack of linear layers
    (:mod:`unwalk.engines.fleet_stack`) are written out.
    In ``bfloat16`` the models compute with lowered parameters and inputs; batch normalisation,
    losses and the gradients themselves stay as they were.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        loss: Loss | None,
        precision: str = "float32",
        head: BareLinear | None = None,
    ) -> None:
        self.head = head
        executor = executor_for(next(model.parameters()).device)
        self.module = rewritten(copy.deepcopy(model), executor).train()
        # Examples are mapped over as well as models, which a device's own layers do not do.
        self.single = rewritten(copy.deepcopy(model)).train() if executor else self.module
        modules = [self.module] if self.single is self.module else [self.module, self.single]
        self.around = [Surroundings(module) for module in modules]
        self.layout, self.called = layout, False
        self.given_loss, self.loss = loss, renewed(loss)
        self.stated = {
            name: m for name, m in self.module.named_modules() if isinstance(m, StatedBatchNorm)
        }
        lowered = precision == "bfloat16" and next(model.parameters()).is_cuda
        self.dtype = torch.bfloat16 if lowered else None
        written_out = loss is None and not lowered
        self.stack = LinearStack.of(model) if written_out else None
        one = grad_and_value(self._loss, has_aux=True)
        self._many: Callable[..., tuple[torch.Tensor, tuple[torch.Tensor, Buffers]]] = vmap(
            one, in_dims=(0, 0, 0, 0, 0), randomness="different"
        )

    def put_back(self) -> None:
        """Undo what modules and a loss of the user's own keep outside the tokens."""
        self.loss = renewed(self.given_loss)
        for around in self.around if self.called else ():
            around.put_back()
        self.called = False

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
        hard = self.loss is not None or not y.is_floating_point()
        if self.head is not None and self.dtype is None and bound is None and hard:
            return self.head.gradient(parameters, x, y, weights), buffers
        if self.stack is not None:
            return self.stack.gradient(parameters, x, y, weights, bound), buffers
        if bound is not None:
            single = self._each(parameters, buffers, x[:, :, None], y[:, :, None])
            norms = single.norm(dim=2)
            shares = weights * (bound / (norms + 1e-12)).clamp(max=1.0)
            return torch.einsum("kb,kbd->kd", shares, single), buffers
        gradients, (_, fresh) = self._many(parameters, buffers, x, y, weights)
        return gradients, {**buffers, **fresh}

    @torch.no_grad()
    def chances(self, parameters: torch.Tensor, buffers: Buffers, x: torch.Tensor) -> torch.Tensor:
        """What K models in evaluation mode make of their own records: (K, records, classes)."""
        self.single.eval()

        def one(flat: torch.Tensor, held: Buffers, records: torch.Tensor) -> torch.Tensor:
            said: torch.Tensor = functional_call(
                self.single, {**self.layout.views(flat), **held}, (records,)
            )
            return said.softmax(1)

        self.called = True
        try:
            together: torch.Tensor = vmap(one)(parameters, buffers, x)
        finally:
            self.single.train()
        return together

    def _each(
        self, parameters: torch.Tensor, buffers: Buffers, x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Every example's own gradient, (K, rows, d)."""

        def one(
            flat: torch.Tensor, held: Buffers, a: torch.Tensor, b: torch.Tensor
        ) -> torch.Tensor:
            return self._losses(self.single, flat, held, a, b).sum()

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
        losses = self._losses(self.module, flat, buffers, x, y)
        fresh = {
            f"{name}.{key}" if name else key: value
            for name, module in self.stated.items()
            for key, value in module.fresh.items()
        }
        return (losses * weights).sum(), fresh

    def _losses(
        self,
        module: nn.Module,
        flat: torch.Tensor,
        buffers: Buffers,
        x: torch.Tensor,
        y: torch.Tensor,
    ) -> torch.Tensor:
        self.called = True
        named = self.layout.views(flat)
        if self.dtype is not None:
            low = self.layout.views(flat.to(self.dtype))
            named = {
                k: v if k.rpartition(".")[0] in self.stated else low[k] for k, v in named.items()
            }
            x = x.to(self.dtype)
        output = functional_call(module, {**named, **buffers}, (x,)).to(flat.dtype)
        if self.loss is None:
            return _cross_entropy(output, y)
        return self.loss(output, y)
