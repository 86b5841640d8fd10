"""Rewrites a network into fewer kernels, for captured steps on a CUDA device.

In a step of a small batch most time goes into kernels that only move memory.  Here a normalisation
and what follows it (the sum round a residual block, a ReLU, a pool) are one operation: of two
kernels forward and two backward for batch normalisation, of one each for group normalisation.

:func:`fuse` rewrites a model that :mod:`torch.fx` can trace; the kernels are written in Triton
(:mod:`unwalk.engines.cuda.kernels`).  :class:`FusedEvaluation` is the same network in evaluation
mode, with the running statistics in the place of a batch's own: measuring goes through many more
pictures than a step, in layers that mostly move memory.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping

import torch
from torch import fx, nn
from torch.nn import functional

from unwalk.engines.cuda.batch_norm_state import BatchNormState
from unwalk.engines.cuda.flat_copy import Block, flat_blocks, flat_copy_of, gradient_places
from unwalk.engines.cuda.groups import available, uses
from unwalk.engines.cuda.layers import (
    Convolution,
    GroupNormalisation,
    GroupNormState,
    Linear,
    Normalisation,
    PlainNorm,
)
from unwalk.engines.cuda.record_gradients import RecordGradients

Places = Mapping[torch.Tensor, torch.Tensor]
"""Where the gradient of a trainable parameter belongs."""


class Fused:
    """A rewritten network in training mode, and the running statistics of its normalisations.

    Modules, and so parameters, are the given model's own.  Its buffers are copied in by
    :meth:`load` and back by :meth:`store`.  Gradients of all that was rewritten land in ``places``,
    or with ``per_record`` what each record adds to them lands there.
    """

    def __init__(
        self, model: nn.Module, places: Places, per_record: RecordGradients | None = None
    ) -> None:
        counted = uses("batch normalisation")
        self.norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d) and counted]
        self.network = traced = fx.symbolic_trace(model)
        channels = [norm.num_features for norm in self.norms]
        device = next(iter(places)).device
        self.running = torch.zeros(2, sum(channels), device=device)
        self.news = torch.zeros_like(self.running)
        self.moments = torch.zeros_like(self.running)
        self.sums = torch.zeros(4, sum(channels), dtype=torch.int64, device=device)
        rates = [torch.full((n.num_features,), n.momentum or 0.0) for n in self.norms]
        self.rates = torch.cat([torch.zeros(0), *rates]).to(device)
        self.held = [v for flat in self.running for v in flat.split(channels)]
        starts = [sum(channels[:number]) for number in range(len(channels))]
        self.slices = [slice(a, a + n) for a, n in zip(starts, channels, strict=True)]
        self.placed: set[torch.Tensor] = set()
        _check_uses(traced)
        self._rewrite(traced, places, per_record)
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
        if self.held:
            torch._foreach_copy_(self.held, self._buffers)

    def store(self) -> None:
        """Give them back."""
        if self.held:
            torch._foreach_copy_(self._buffers, self.held)

    def hold_still(self) -> None:
        """Take the running statistics for moments, as evaluation mode does."""
        self.load()
        for module in self.network.modules():
            if isinstance(module, Normalisation):
                layer = module.layer
                mean, variance = layer.running
                if module.shifted is not None and module.shifted.bias is not None:
                    mean = mean - module.shifted.bias
                layer.moments[0] = mean
                layer.moments[1] = (variance + layer.eps).rsqrt()

    @property
    def state(self) -> list[torch.Tensor]:
        """What a step changes."""
        return [self.running]

    def _rewrite(
        self, traced: fx.GraphModule, places: Places, per_record: RecordGradients | None
    ) -> None:
        for node in list(traced.graph.nodes):
            if isinstance(_module(traced, node), nn.Identity):
                node.replace_all_uses_with(node.args[0])
                traced.graph.erase_node(node)
        shifted = set()
        for node in list(traced.graph.nodes):
            norm = _module(traced, node)
            if isinstance(norm, nn.BatchNorm2d) and not uses("batch normalisation"):
                _fuse_norm(traced, node, norm)
            elif isinstance(norm, nn.BatchNorm2d):
                at = self.slices[self.norms.index(norm)]
                layer = BatchNormState(
                    weight=norm.weight,
                    bias=norm.bias,
                    for_weight=places[norm.weight],
                    for_bias=places[norm.bias],
                    sums=self.sums[:, at],
                    running=self.running[:, at],
                    news=self.news[:, at],
                    moments=self.moments[:, at],
                    eps=norm.eps,
                )
                self.placed |= {norm.weight, norm.bias}
                shifted.add(_fuse_norm(traced, node, layer))
            elif isinstance(norm, nn.GroupNorm) and not uses("group normalisation"):
                _fuse_norm(traced, node, norm)
            elif isinstance(norm, nn.GroupNorm) and _trained(norm, places):
                grouped = GroupNormState(
                    weight=norm.weight,
                    bias=norm.bias,
                    for_weight=places[norm.weight],
                    for_bias=places[norm.bias],
                    groups=norm.num_groups,
                    eps=norm.eps,
                    per_record=per_record,
                )
                self.placed |= {norm.weight, norm.bias}
                _fuse_norm(traced, node, grouped)
        for node in list(traced.graph.nodes):
            module = _module(traced, node)
            if isinstance(module, nn.Conv2d) and _plain(module) and module.weight in places:
                biased = module.bias is not None and module not in shifted
                fused = Convolution(
                    module, places[module.weight], biased=biased, per_record=per_record
                )
                self.placed.add(module.weight)
                traced.add_submodule(str(node.target), fused)
            elif isinstance(module, nn.Linear) and per_record and _trained(module, places):
                traced.add_submodule(str(node.target), Linear(module, per_record))


def fuse(model: nn.Module, places: Places) -> Fused | None:
    """The rewritten network, or None where it cannot be traced or has nothing to fuse."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    grouped = [m for m in model.modules() if isinstance(m, nn.GroupNorm) and _trained(m, places)]
    if not (norms or grouped) or not available():
        return None
    if not all(_usual(norm) and _trained(norm, places) for norm in norms):
        return None
    if sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()) > len(norms):
        return None
    try:
        return Fused(model, places)
    except (fx.proxy.TraceError, TypeError, ValueError, RuntimeError):
        return None


def fuse_by_record(model: nn.Module, places: Places, per_record: RecordGradients) -> Fused | None:
    """The network that fills ``per_record``, or None where some layer cannot.

    Trainable may be convolutions in one group, linear layers and group normalisations, each with
    all of its parameters.
    """
    mixes = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    if not available() or not places or mixes or not uses("group normalisation"):
        return None
    known: set[torch.Tensor] = set()
    for module in model.modules():
        if type(module) in (nn.Conv2d, nn.Linear, nn.GroupNorm) and _trained(module, places):
            if isinstance(module, nn.Conv2d) and not (_plain(module) and module.groups == 1):
                return None
            known |= set(module.parameters())
    if known != set(places):
        return None
    try:
        return Fused(model, places, per_record)
    except (fx.proxy.TraceError, TypeError, ValueError, RuntimeError):
        return None


def _check_uses(traced: fx.GraphModule) -> None:
    """Places take one gradient: a parameter that is used twice cannot have one."""
    used: Counter[torch.Tensor] = Counter()
    for node in traced.graph.nodes:
        module = _module(traced, node)
        used.update([] if module is None else module.parameters())
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            used.update([getattr(traced.get_submodule(owner), name)])
    if any(count > 1 for count in used.values()):
        raise ValueError("a parameter is used twice.")


def _trained(layer: nn.Module, places: Places) -> bool:
    """Whether its weight, and its bias where it has one, are parameters that are trained."""
    if layer.weight is None or (layer.bias is None and isinstance(layer, nn.GroupNorm)):
        return False
    return layer.weight in places and (layer.bias is None or layer.bias in places)


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


def _fuse_norm(
    traced: fx.GraphModule,
    node: fx.Node,
    layer: BatchNormState | GroupNormState | nn.BatchNorm2d | nn.GroupNorm,
) -> nn.Conv2d | None:
    """Put one call in the place of a normalisation and of what follows it.

    Given the normalisation itself, that call is plain torch.  Returns the convolution
    in front whose bias may be left out: it only shifts the mean that batch normalisation takes away
    again.
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
        plain = len(others) == 1 and not follower.kwargs
        if plain and isinstance(others[0], fx.Node) and behind is not None:
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
    relu = len(gone) > 1
    fused: nn.Module
    if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
        shifted = None
        fused = PlainNorm(layer, relu=relu, pooled=pooled, twice=twice)
    elif isinstance(layer, GroupNormState):
        shifted = None
        fused = GroupNormalisation(layer, relu=relu, pooled=pooled, twice=twice)
    else:
        fused = Normalisation(layer, shifted, relu=relu, pooled=pooled, twice=twice)
    traced.add_module(name, fused)
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


class FusedEvaluation:
    """Answers as the model does; :meth:`load` takes over what the model has learnt since."""

    def __init__(self, model: nn.Module, blocks: list[Block], network: Fused) -> None:
        self.model, self.blocks, self.network = model, blocks, network
        network.network.eval()

    @staticmethod
    def of(model: nn.Module, dtype: torch.dtype) -> FusedEvaluation | None:
        """None where the model cannot be rewritten."""
        copied = flat_copy_of(model)
        blocks = flat_blocks(copied, dtype)
        network = fuse(copied, gradient_places(blocks))
        return None if network is None else FusedEvaluation(model, blocks, network)

    @torch.no_grad()
    def load(self) -> None:
        """Take parameters and running statistics over."""
        parameters = dict(self.model.named_parameters())
        for block in self.blocks:
            block.load(parameters)
        self.network.hold_still()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.network.network(x)
        return y
