"""A network out of fewer kernels, for captured steps on a CUDA device.

In a step of a small batch most time goes into kernels that only move memory.  Here batch
normalisation and what follows it (the sum round a residual block, a ReLU, a pool) are one
operation of two kernels forward and two backward, and weight gradients of convolutions run beside
the rest on a stream of their own, because nothing waits for them until the optimizer does.

:func:`fuse` rewrites a model that :mod:`torch.fx` can trace; the kernels are written in Triton
(:mod:`unwalk.engines.norm_kernels`).
"""

from __future__ import annotations

import importlib.util
import operator
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

WIDTH = 8
"""Tensor cores want channels in multiples of this."""
PATCH = 64
"""Numbers that a place of the first layer may see, for the layer to be a matrix product."""

Pair = tuple[int, int]


@cache
def available() -> bool:
    """Whether the kernels can be built here."""
    return importlib.util.find_spec("triton") is not None


class Fused:
    """A rewritten network in training mode, and the running statistics of its normalisations.

    Modules, and so parameters, are the given model's own.  Its buffers are copied in by
    :meth:`load` and back by :meth:`store`.  ``side`` is the stream of the weight gradients of
    convolutions; whoever reads them has to wait for it.  Gradients of all that was rewritten land
    in ``places``.
    """

    def __init__(
        self,
        model: nn.Module,
        side: torch.cuda.Stream | None,
        places: Mapping[torch.Tensor, torch.Tensor],
    ) -> None:
        self.norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        self.network = traced = fx.symbolic_trace(model)
        channels = [norm.num_features for norm in self.norms]
        device = self.norms[0].weight.device
        self.running = torch.zeros(2, sum(channels), device=device)
        self.news = torch.zeros_like(self.running)
        self.sums = torch.zeros(4, sum(channels), dtype=torch.int64, device=device)
        rates = [torch.full((n.num_features,), n.momentum or 0.0) for n in self.norms]
        self.rates = torch.cat(rates).to(device)
        self.held = [v for flat in self.running for v in flat.split(channels)]
        starts = [sum(channels[:number]) for number in range(len(channels))]
        self.slices = [slice(a, a + n) for a, n in zip(starts, channels, strict=True)]
        self.placed: set[torch.Tensor] = set()
        self._rewrite(traced, side, places)
        traced.graph.lint()
        traced.recompile()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.sums.zero_()
        y: torch.Tensor = self.network(x)
        return y

    def settle(self) -> None:
        """After the backward pass: the running statistics move on."""
        self.running.lerp_(self.news, self.rates)

    @property
    def _buffers(self) -> list[torch.Tensor]:
        means, variances = (
            [b for b in kind if b is not None]
            for kind in (
                [n.running_mean for n in self.norms],
                [n.running_var for n in self.norms],
            )
        )
        return [*means, *variances]

    def load(self) -> None:
        """Take the model's running statistics over."""
        torch._foreach_copy_(self.held, self._buffers)

    def store(self) -> None:
        """Give them back."""
        torch._foreach_copy_(self._buffers, self.held)

    @property
    def state(self) -> list[torch.Tensor]:
        """What a step changes."""
        return [self.running]

    @property
    def first(self) -> First | None:
        """The layer that the input goes into, where it wants the input in another form."""
        for module in self.network.modules():
            if isinstance(module, First):
                return module
        return None

    def _rewrite(
        self,
        traced: fx.GraphModule,
        side: torch.cuda.Stream | None,
        places: Mapping[torch.Tensor, torch.Tensor],
    ) -> None:
        for node in list(traced.graph.nodes):
            if isinstance(_module(traced, node), nn.Identity):
                node.replace_all_uses_with(node.args[0])
                traced.graph.erase_node(node)
        shifted = set()
        for node in list(traced.graph.nodes):
            norm = _module(traced, node)
            if isinstance(norm, nn.BatchNorm2d):
                at = self.slices[self.norms.index(norm)]
                layer = Layer(
                    weight=norm.weight,
                    bias=norm.bias,
                    for_weight=places[norm.weight],
                    for_bias=places[norm.bias],
                    sums=self.sums[:, at],
                    running=self.running[:, at],
                    news=self.news[:, at],
                    eps=norm.eps,
                )
                self.placed |= {norm.weight, norm.bias}
                shifted.add(_fuse_norm(traced, node, layer))
        for node in list(traced.graph.nodes):
            conv = _module(traced, node)
            if not isinstance(conv, nn.Conv2d) or not _plain(conv):
                continue
            source = node.args[0]
            outermost = source.op == "placeholder" and len(source.users) == 1
            biased = conv.bias is not None and conv not in shifted
            kind = First if outermost and First.takes(conv, biased=biased) else Convolution
            mine = kind(conv, side, places[conv.weight], biased=biased)
            self.placed.add(conv.weight)
            traced.add_submodule(str(node.target), mine)


def fuse(
    model: nn.Module,
    side: torch.cuda.Stream | None,
    places: Mapping[torch.Tensor, torch.Tensor],
) -> Fused | None:
    """The rewritten network, or None where it cannot be traced or has nothing to fuse."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    if not norms or not available() or not all(_usual(norm) for norm in norms):
        return None
    if sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()) > len(norms):
        return None
    try:
        return Fused(model, side, places)
    except (fx.proxy.TraceError, TypeError, ValueError, RuntimeError):
        return None


def _module(traced: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None


def _usual(norm: nn.BatchNorm2d) -> bool:
    return norm.affine and norm.track_running_stats and norm.momentum is not None


def _plain(conv: nn.Conv2d) -> bool:
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_function":
        return node.target in (torch.relu, functional.relu)
    return isinstance(_module(traced, node), nn.ReLU)


def _is_pool(traced: fx.GraphModule, node: fx.Node) -> bool:
    """A pool of 2 x 2 places without overlap or padding."""
    pool = _module(traced, node)
    return (
        isinstance(pool, nn.MaxPool2d)
        and pool.kernel_size in (2, (2, 2))
        and pool.stride in (2, (2, 2))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not pool.ceil_mode
        and not pool.return_indices
    )


def _only_user(node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _fuse_norm(traced: fx.GraphModule, node: fx.Node, layer: Layer) -> nn.Conv2d | None:
    """Put one call in the place of a normalisation and of what follows it.

    Returns the convolution in front whose bias may be left out: it only shifts the mean that is
    taken away again.
    """
    graph = traced.graph
    source = node.args[0]
    assert isinstance(source, fx.Node)
    before = _module(traced, source)
    shifted = None
    if isinstance(before, nn.Conv2d) and before.bias is not None and len(source.users) == 1:
        shifted = before
    gone, other = [node], None
    follower = _only_user(node)
    if follower is not None and follower.target in (operator.add, torch.add):
        others = [a for a in follower.args if a is not node]
        behind = _only_user(follower)
        if len(others) == 1 and isinstance(others[0], fx.Node) and behind is not None:
            earlier = list(graph.nodes).index(others[0]) < list(graph.nodes).index(node)
            if earlier and _is_relu(traced, behind):  # the later one of two takes the sum
                gone, other = [node, follower, behind], others[0]
    elif follower is not None and _is_relu(traced, follower):
        gone = [node, follower]
        behind = _only_user(follower)
        if behind is not None and _is_pool(traced, behind):
            gone.append(behind)
    last = gone[-1]
    pooled = _is_pool(traced, last)
    twice = len(last.users) == 2 and not pooled
    name = f"{str(node.target).replace('.', '_')}_fused"
    mine = Normalisation(layer, shifted, relu=len(gone) > 1, pooled=pooled, twice=twice)
    traced.add_module(name, mine)
    with graph.inserting_before(last):
        call = graph.call_module(name, (source,) if other is None else (source, other))
        if twice:
            for number, user in enumerate(list(last.users)):
                user.replace_input_with(last, graph.call_function(operator.getitem, (call, number)))
        else:
            last.replace_all_uses_with(call)
    for old in reversed(gone):
        graph.erase_node(old)
    return shifted


@dataclass(frozen=True, eq=False)
class Layer:
    """One normalisation: views of the network's flat vectors, and its constants.

    ``sums`` holds four rows of whole numbers: mean and mean square about the old running mean, and
    the sums over rows of the gradient and of the gradient times the normalised value.  ``running``
    and ``news`` hold mean and variance: as they were, and of this batch.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    for_weight: torch.Tensor
    for_bias: torch.Tensor
    sums: torch.Tensor
    running: torch.Tensor
    news: torch.Tensor
    eps: float


class Convolution(nn.Module):
    """A convolution whose weight gradient runs on a side stream, and lands in ``place``."""

    def __init__(
        self, conv: nn.Conv2d, side: torch.cuda.Stream | None, place: torch.Tensor, *, biased: bool
    ) -> None:
        super().__init__()
        self.conv, self.side, self.biased = conv, side, biased
        self.place = (place,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv = self.conv
        how = (conv.stride, conv.padding, conv.dilation, conv.groups)
        bias = conv.bias if self.biased else None
        y: torch.Tensor = _apply(_Convolve, x, conv.weight, bias, how, self.side, self.place[0])
        return y


def _apply(function: type[torch.autograd.Function], *given: Any) -> Any:
    return function.apply(*given)


class _Beside:
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
        how: tuple[Pair, Pair, Pair, int],
        side: torch.cuda.Stream | None,
        place: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.side, ctx.place = how, side, place
        ctx.biased = bias is not None
        return functional.conv2d(x, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        stride, padding, dilation, groups = ctx.how
        sizes = [weight.shape[0]] if ctx.biased else None

        def back(*wanted: bool) -> tuple[torch.Tensor | None, ...]:
            found: tuple[torch.Tensor | None, ...] = torch.ops.aten.convolution_backward(
                gradient, x, weight, sizes, stride, padding, dilation, False, (0, 0), groups, wanted
            )
            return found

        with _Beside(ctx.side, gradient, x):
            _, for_weight, for_bias = back(False, True, ctx.biased)
            ctx.place.copy_(for_weight)
        for_x = back(True, False, False)[0] if ctx.needs_input_grad[0] else None
        return for_x, ctx.place, for_bias, None, None, None


class First(nn.Module):
    """The convolution that reads the input, as a matrix product.

    Convolutions of few channels are slow, and what they read can be laid out long before: the
    input is a table with one row a place and, as columns, the patch that the place sees, filled up
    with zeros to ``width`` columns.
    """

    def __init__(
        self, conv: nn.Conv2d, side: torch.cuda.Stream | None, place: torch.Tensor, *, biased: bool
    ) -> None:
        super().__init__()
        self.conv, self.side = conv, side
        self.place = (place,)
        self.columns = conv.weight[0].numel()
        self.width = -(-self.columns // WIDTH) * WIDTH
        weight = conv.weight.detach()
        self.wide = (weight.new_zeros(len(weight), self.width),)

    @staticmethod
    def takes(conv: nn.Conv2d, *, biased: bool) -> bool:
        """Patches of few numbers, no bias of its own, nothing unusual."""
        plain = conv.groups == 1 and conv.dilation == (1, 1)
        return conv.weight[0].numel() <= PATCH and plain and not biased

    def table(self, room: torch.Tensor | None, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The patches of pictures (..., channels, height, width), written into ``room``."""
        from unwalk.engines import norm_kernels

        (high, wide), (step_down, step_across) = self.conv.kernel_size, self.conv.stride
        down, across = int(self.conv.padding[0]), int(self.conv.padding[1])
        if room is None:
            lines = (x.shape[-2] + 2 * down - high) // step_down + 1
            columns = (x.shape[-1] + 2 * across - wide) // step_across + 1
            shape = (*x.shape[:-3], lines, columns, self.width)
            room = torch.empty(shape, dtype=dtype, device=x.device)
        norm_kernels.patches(room, x, (high, wide), (step_down, step_across), (down, across))
        return room

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = (x, self.conv.weight, self.wide[0], self.side, self.place[0])
        y: torch.Tensor = _apply(_Product, *given)
        return y


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        wide: torch.Tensor,
        side: torch.cuda.Stream | None,
        place: torch.Tensor,
    ) -> torch.Tensor:
        columns = weight[0].numel()
        wide[:, :columns].copy_(weight.permute(0, 2, 3, 1).reshape(len(weight), -1))
        ctx.save_for_backward(x)
        ctx.side, ctx.place = side, place
        batch, rows, across, width = x.shape
        y = (x.view(-1, width) @ wide.t()).view(batch, rows, across, -1)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        out, channels, high, across = ctx.place.shape
        gradient = gradients[0].permute(0, 2, 3, 1).reshape(-1, out)
        with _Beside(ctx.side, gradient, x):
            full = gradient.t() @ x.view(-1, x.shape[3])
            mine = full[:, : channels * high * across].unflatten(1, (high, across, channels))
            ctx.place.copy_(mine.permute(0, 3, 1, 2))
        return None, ctx.place, None, None, None


class Normalisation(nn.Module):
    """Batch normalisation in training mode, then a sum with ``other``, a ReLU, a pool.

    ``twice``: the result is given out twice, for two users, whose gradients need then not be
    added up before they come back.
    """

    def __init__(
        self, layer: Layer, shifted: nn.Conv2d | None, *, relu: bool, pooled: bool, twice: bool
    ) -> None:
        super().__init__()
        self.layer = layer
        self.shifted = shifted
        self.relu, self.pooled, self.twice = relu, pooled, twice

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> Any:
        layer = self.layer
        shift = None if self.shifted is None else self.shifted.bias
        x = x.contiguous(memory_format=torch.channels_last)
        if self.pooled and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0:
            return _apply(_NormalisePooled, x, layer.weight, layer.bias, shift, layer)
        if other is not None:
            other = other.contiguous(memory_format=torch.channels_last)
        given = (x, layer.weight, layer.bias, shift, other, layer, self.relu, self.twice)
        y = _apply(_Normalise, *given)
        return functional.max_pool2d(y, 2) if self.pooled else y


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        shift: torch.Tensor | None,
        other: torch.Tensor | None,
        layer: Layer,
        relu: bool,
        twice: bool,
    ) -> Any:
        from unwalk.engines import norm_kernels

        norm_kernels.statistics(x, layer)
        y = norm_kernels.normalise(x, layer, shift, other, relu)
        ctx.save_for_backward(x, y if relu and other is not None else None)
        ctx.relu, ctx.summed, ctx.shift, ctx.layer = relu, other is not None, shift, layer
        return (y, y.view_as(y)) if twice else y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        from unwalk.engines import norm_kernels

        x, kept = ctx.saved_tensors
        first, *more = (g.contiguous(memory_format=torch.channels_last) for g in gradients)
        second = more[0] if more else None
        layer = ctx.layer
        for_x, for_other = norm_kernels.backward(
            first, second, x, layer, kept, relu=ctx.relu, summed=ctx.summed
        )
        for_shift = None if ctx.shift is None else torch.zeros_like(ctx.shift)
        return for_x, layer.for_weight, layer.for_bias, for_shift, for_other, None, None, None


class _NormalisePooled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        shift: torch.Tensor | None,
        layer: Layer,
    ) -> torch.Tensor:
        from unwalk.engines import norm_kernels

        norm_kernels.statistics(x, layer)
        ctx.save_for_backward(x)
        ctx.shift, ctx.layer = shift, layer
        return norm_kernels.normalise_pooled(x, layer, shift)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        from unwalk.engines import norm_kernels

        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        (x,) = ctx.saved_tensors
        layer = ctx.layer
        for_x = norm_kernels.backward_pooled(gradient, x, layer)
        for_shift = None if ctx.shift is None else torch.zeros_like(ctx.shift)
        return for_x, layer.for_weight, layer.for_bias, for_shift, None
