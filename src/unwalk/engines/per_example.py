r"""Gradients clipped example by example: :math:`\sum_i w_i \min(1, C/\|g_i\|)\, g_i`.

Two ways, equal up to rounding:

* :func:`vmap_gradients` computes every :math:`g_i` by ``vmap(grad)``, in chunks that bound the
  memory.  It takes any model that ``vmap`` takes.
* :func:`ghost_gradients` never holds most of the :math:`g_i`.  One forward and one backward pass
  give, for every layer, its inputs :math:`a_i` and the gradients :math:`b_i` of its outputs.  Both
  norms and the weighted sum follow from these alone (Goodfellow 2015, arXiv:1510.01799, for
  linear layers; Rochette, Manoel and Tramel 2019, arXiv:1912.06015, for convolutions).  With one
  forward pass there is one dropout mask, and no second backward pass is needed.

The choice follows measurements (``benchmarks/per_example.py``): ghost gradients if every layer that
has parameters is supported (``Linear`` on (records, features), ``Conv2d`` in one group,
``GroupNorm``), ``vmap`` for all other models, and :func:`loop_gradients` for those that ``vmap``
cannot take.  An example's gradient has no meaning where examples mix in the forward pass, so a
model with BatchNorm is refused.

Where a guarantee rests on the bound, :func:`exact_sum` keeps to it as real numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.grad import conv2d_weight
from torch.nn.modules.batchnorm import _BatchNorm

from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Loss
from unwalk.core.token import Workspace

MEMORY = 256 * 2**20
"""Bytes that the gradients of one chunk of examples may take (``vmap``)."""

LISTING = 100
"""Operations that cost as much as moving one number: see :func:`_convolution`."""

Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Batch:
    r"""Examples whose gradients are clipped one by one.

    ``bound`` is C, ``loss`` the loss of each example (cross-entropy by default), ``weights`` the
    :math:`w_i` (1/records by default).
    """

    x: torch.Tensor
    y: torch.Tensor
    bound: float
    loss: Loss | None = None
    weights: torch.Tensor | None = None

    def losses(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of each example with labels ``y``."""
        if self.loss is None:
            return functional.cross_entropy(output, y, reduction="none")
        return self.loss(output, y)

    def shares(self, like: torch.Tensor) -> torch.Tensor:
        """The weight of each example, as numbers of the type of ``like``."""
        if self.weights is None:
            records = len(self.x)
            return torch.full((records,), 1.0 / records, dtype=like.dtype, device=like.device)
        return self.weights.to(like)

    def factors(self, squares: torch.Tensor) -> torch.Tensor:
        """What clips gradients of these squared lengths."""
        return (self.bound / (squares.sqrt() + 1e-12)).clamp(max=1.0)


def check_per_example(model: nn.Module) -> None:
    """Refuse a model in which the examples of a batch mix.

    >>> check_per_example(nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2)))
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            raise InvalidInput(
                f"the model's layer {name!r} is a {type(module).__name__}, which mixes the records "
                "of a batch, so one record's gradient cannot be clipped; allowed: a model with "
                "GroupNorm in its place, such as flnet-gn or resnet18-gn."
            )


def choose_way(model: nn.Module) -> str:
    """``ghost`` if it supports every layer with trainable parameters, else ``vmap``.

    >>> choose_way(nn.Conv2d(1, 4, 3)), choose_way(nn.LayerNorm(4))
    ('ghost', 'vmap')
    """
    owners = (m for m in model.modules() if _trainable(m))
    return "ghost" if all(_known(m) for m in owners) else "vmap"


def add_clipped(
    work: Workspace,
    batch: Batch,
) -> None:
    """Add the clipped, weighted gradient of a batch to ``work.gradient``."""
    gradients = clipped_gradients(work.model, batch)
    for name, view in work.layout.views(work.gradient).items():
        if name in gradients:
            view.add_(gradients[name])


def clipped_gradients(
    model: nn.Module,
    batch: Batch,
) -> Gradients:
    r""":math:`\sum_i w_i \min(1, C/\|g_i\|)\, g_i` by parameter name, in the faster way.

    A parameter that takes no part may be left out.
    """
    check_per_example(model)
    if choose_way(model) == "ghost":
        gradients = ghost_gradients(model, batch)
        if gradients is not None:
            return gradients
    try:
        return vmap_gradients(model, batch)
    except RuntimeError as error:
        if not str(error).startswith("vmap:"):  # how vmap says that it cannot take an operation
            raise
    return loop_gradients(model, batch)


def exact_sum(work: Workspace, batch: Batch) -> torch.Tensor:
    r"""The sum :math:`\sum_i w_i\min(1, C/\|g_i\|)\,g_i` over the places of a batch, in 64 bits and
    without an error of the summation.

    A place of weight 0 is empty.  It is computed nevertheless, so that what is drawn for a place
    (dropout) and computed for it does not depend on whether others are empty.

    Each :math:`w_i g_i` is shortened to :math:`w_i C` as real numbers, whatever it was: divided by
    its largest entry, then multiplied by :math:`w_i C`, less :math:`(d+16)2^{-53}` of it, over the
    length that was computed, which is off by less.  Its entries are cut off towards zero to
    multiples of :math:`q = 2^{e-53}`.  With :math:`C B\max w < 2^e` for B places all partial sums
    are multiples of q below :math:`2^{53}q`, which are numbers of the format: none is rounded.
    Gradients that are not finite, or zero, count as zero.
    """
    check_per_example(work.model)
    width = work.parameters.numel()
    weights = batch.shares(torch.empty(0, dtype=torch.float64, device=work.device))[:, None]
    longest = batch.bound * (1.0 - (width + 16) * 2.0**-53)
    exponent = math.frexp(batch.bound * len(batch.x) * float(weights.max()))[1]
    unit = math.ldexp(1.0, exponent - 53)
    total = torch.zeros(width, dtype=torch.float64, device=work.device)
    at = 0
    for part in _flat_gradients(work, batch):
        rows, weight = part.to(torch.float64), weights[at : at + len(part)]
        largest = torch.linalg.vector_norm(rows, math.inf, dim=1, keepdim=True)
        counts = largest.isfinite() & (largest > 0.0) & (weight > 0.0)
        rows = (rows / largest).masked_fill_(~counts, 0.0)
        factors = torch.minimum(largest, longest / rows.norm(dim=1, keepdim=True))
        factors = (weight * factors).masked_fill_(~counts, 0.0) / unit
        total += rows.mul_(factors).trunc_().sum(0)
        at += len(part)
    return total * unit


def _flat_gradients(work: Workspace, batch: Batch) -> Iterator[torch.Tensor]:
    """Every example's gradient, one per row, in chunks: by ``vmap``, or else one by one."""
    model, theta = work.model, work.parameters.detach()
    held = dict(model.named_buffers())

    def of_one(flat: torch.Tensor, record: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        values = {**work.layout.views(flat), **held}
        output = functional_call(model, values, (record.unsqueeze(0),))
        return batch.losses(output, label.unsqueeze(0)).squeeze(0)

    every = vmap(grad(of_one), in_dims=(None, 0, 0), randomness="different")
    chunk = max(1, MEMORY // (16 * theta.numel()))
    try:
        for x, y in zip(batch.x.split(chunk), batch.y.split(chunk), strict=True):
            yield every(theta, x, y)
        return
    except RuntimeError as error:
        if not str(error).startswith("vmap:"):
            raise
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    for x, y in zip(batch.x.split(1), batch.y.split(1), strict=True):
        value = batch.losses(model(x), y).sum()
        parts = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
        row = torch.zeros_like(theta)
        views = work.layout.views(row)
        for name, part in zip(trained, parts, strict=True):
            if part is not None:
                views[name].copy_(part)
        yield row[None]


def vmap_gradients(
    model: nn.Module,
    batch: Batch,
    *,
    memory: int = MEMORY,
) -> Gradients:
    """Every example's gradient by ``vmap(grad)``, in chunks of at most ``memory`` bytes."""
    named = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    kept = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
    kept |= dict(model.named_buffers())

    def of_one(values: Gradients, record: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        output = functional_call(model, (values, kept), (record.unsqueeze(0),))
        return batch.losses(output, label.unsqueeze(0)).squeeze(0)

    every = vmap(grad(of_one), in_dims=(None, 0, 0), randomness="different")
    a_record = sum(p.numel() * p.element_size() for p in named.values())
    chunk = max(1, memory // max(a_record, 1))
    share = batch.shares(next(iter(named.values())))
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    parts = zip(batch.x.split(chunk), batch.y.split(chunk), share.split(chunk), strict=True)
    for records, labels, part in parts:
        gradients = {n: g.flatten(1) for n, g in every(named, records, labels).items()}
        squares = sum(_wide(g).square().sum(1) for g in gradients.values())
        factors = part * batch.factors(torch.as_tensor(squares))
        for name, gradient in gradients.items():
            total[name].view(-1).add_(factors.to(gradient) @ gradient)
    return total


def loop_gradients(
    model: nn.Module,
    batch: Batch,
) -> Gradients:
    """One example after the other: the definition, for models that neither other way supports."""
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    share = batch.shares(next(iter(named.values())))
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    for record, label, part in zip(batch.x.split(1), batch.y.split(1), share, strict=True):
        value = batch.losses(model(record), label).sum()
        gradients = torch.autograd.grad(value, list(named.values()), allow_unused=True)
        by_name = {n: g for n, g in zip(named, gradients, strict=True) if g is not None}
        squares = torch.stack([g.square().sum() for g in by_name.values()]).sum()
        factor = part * batch.factors(squares)
        for name, gradient in by_name.items():
            total[name].add_(factor * gradient)
    return total


def ghost_gradients(
    model: nn.Module,
    batch: Batch,
) -> Gradients | None:
    """Clipped gradients from layer inputs and output gradients; None if these do not suffice.

    It does not suffice when a layer is used twice or shares its parameters, when a parameter is
    used outside its layer, or when a layer sees another shape than (records, ...).
    """
    calls: list[_Call] = []

    def remember(layer: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        calls.append(_Call(layer, inputs[0], inputs[0]._version, get_gradient_edge(output)))

    hooks = [m.register_forward_hook(remember) for m in model.modules() if _trainable(m)]
    try:
        losses = batch.losses(model(batch.x), batch.y)
    finally:
        for hook in hooks:
            hook.remove()
    if not _suffices(model, calls, losses, len(batch.x)):
        return None
    outputs = torch.autograd.grad(losses.sum(), [c.edge for c in calls], allow_unused=True)
    with torch.no_grad():
        parts = [
            part
            for call, b in zip(calls, outputs, strict=True)
            if b is not None
            for part in _parts(call.layer, call.inputs, b)
        ]
        squares = torch.stack([p.squares for p in parts]).sum(0)
        factors = batch.shares(losses) * batch.factors(squares)
        names = {id(p): n for n, p in model.named_parameters()}
        return {names[id(p.parameter)]: p.weighted(factors) for p in parts}


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters(recurse=False) if p.requires_grad]


def _known(layer: nn.Module) -> bool:
    """Whether a layer has exactly a supported type; a subclass may compute something else."""
    if type(layer) is nn.Conv2d:
        plain = layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str)
    return type(layer) in (nn.Linear, nn.GroupNorm)


@dataclass(frozen=True, eq=False)
class _Call:
    """One use of a layer in the forward pass.

    The edge is taken before anything can change the output in place; the input's version tells
    whether it was changed later.
    """

    layer: nn.Module
    inputs: torch.Tensor
    version: int
    edge: GradientEdge


def _suffices(model: nn.Module, calls: list[_Call], losses: torch.Tensor, records: int) -> bool:
    """Whether every use of every parameter is a call that was remembered, and is understood."""
    for call in calls:
        fits = call.inputs.shape[0] == records and call.inputs._version == call.version
        flat = type(call.layer) is not nn.Linear or call.inputs.dim() == 2
        if not (fits and flat and _known(call.layer)):
            return False
    called = Counter(id(p) for call in calls for p in _trainable(call.layer))
    used = _uses(losses)
    trainable = [id(p) for p in model.parameters() if p.requires_grad]
    return all(used[p] == called[p] <= 1 or used[p] == 0 for p in trainable)


def _uses(losses: torch.Tensor) -> Counter[int]:
    """How many operations behind ``losses`` take each parameter, by its identity."""
    used: Counter[int] = Counter()
    seen, left = set(), [losses.grad_fn]
    while left:
        node = left.pop()
        for behind, _ in () if node is None else node.next_functions:
            if behind is None:
                continue
            if behind.name() == "torch::autograd::AccumulateGrad":
                used[id(behind.variable)] += 1  # type: ignore[attr-defined]
            elif behind not in seen:
                seen.add(behind)
                left.append(behind)
    return used


@dataclass(frozen=True, eq=False)
class _Part:
    """One parameter: the squared norms of its examples' gradients, and their weighted sum."""

    parameter: torch.Tensor
    squares: torch.Tensor
    weighted: Callable[[torch.Tensor], torch.Tensor]


def _wide(gradients: torch.Tensor) -> torch.Tensor:
    """At least float32, because the norms decide what is clipped."""
    return gradients.float() if gradients.dtype.itemsize < 4 else gradients


def _listed(parameter: torch.Tensor, gradients: torch.Tensor) -> _Part:
    """A parameter whose examples' gradients are available, one per row."""
    squares = _wide(gradients).square().sum(1)
    return _Part(parameter, squares, lambda f: (f.to(gradients) @ gradients).view_as(parameter))


def _parts(layer: nn.Module, a: torch.Tensor, b: torch.Tensor) -> list[_Part]:
    """The parts of a layer with inputs ``a`` and output gradients ``b``."""
    a = a.detach()
    if isinstance(layer, nn.Linear):
        weight, bias = _linear(layer, a, b), b
    elif isinstance(layer, nn.Conv2d):
        weight, bias = _convolution(layer, a, b), b.flatten(2).sum(2)
    else:
        layer = cast(nn.GroupNorm, layer)
        centred = functional.group_norm(a, layer.num_groups, eps=layer.eps)
        scaled, bias = ((t if t.dim() == 2 else t.flatten(2).sum(2)) for t in (b * centred, b))
        weight = _listed(layer.weight, scaled)
    both = [weight] if layer.bias is None else [weight, _listed(layer.bias, bias)]
    return [part for part in both if part.parameter.requires_grad]


def _linear(layer: nn.Linear, a: torch.Tensor, b: torch.Tensor) -> _Part:
    r""":math:`g_i = b_i a_i^\top`, so :math:`\|g_i\| = \|a_i\|\|b_i\|`."""
    squares = _wide(a).square().sum(1) * _wide(b).square().sum(1)
    return _Part(layer.weight, squares, lambda f: (f.to(b).unsqueeze(1) * b).t() @ a)


def _convolution(layer: nn.Conv2d, a: torch.Tensor, b: torch.Tensor) -> _Part:
    r""":math:`g_i = B_i A_i^\top` with patches :math:`A_i` (K, L) and :math:`B_i` (O, L).

    The gradients are listed, or only their norms are found, by :math:`\|g_i\|^2 = \langle A_i^\top
    A_i, B_i^\top B_i\rangle`, and the sum by a second product.  Listing moves O times K numbers;
    norms alone cost :math:`L^2(K+O)` more operations.  They cost about the same at ``LISTING``
    operations per number.
    """
    patches, places = _patches(layer, a), b.flatten(2)
    room = layer.weight.numel()
    extra = places.shape[2] ** 2 * (patches.shape[1] + places.shape[1])
    if LISTING * room <= extra:
        return _listed(layer.weight, torch.bmm(places, patches.transpose(1, 2)).flatten(1))
    near = torch.bmm(patches.transpose(1, 2), patches)
    far = torch.bmm(places.transpose(1, 2), places)

    def weighted(factors: torch.Tensor) -> torch.Tensor:
        shape, scaled = list(layer.weight.shape), factors.to(b).view(-1, 1, 1, 1) * b
        total: torch.Tensor = conv2d_weight(
            a, shape, scaled, layer.stride, _pair(layer.padding), layer.dilation
        )
        return total

    return _Part(layer.weight, (_wide(near) * far).sum((1, 2)), weighted)


def _patches(layer: nn.Conv2d, a: torch.Tensor) -> torch.Tensor:
    """What ``functional.unfold`` gives, (records, K, L), in half the time."""
    down, across = _pair(layer.padding)
    windows = functional.pad(a, (across, across, down, down))
    for axis in (0, 1):
        gap = layer.dilation[axis]
        reach = (layer.kernel_size[axis] - 1) * gap + 1
        windows = windows.unfold(2 + axis, reach, layer.stride[axis])[..., ::gap]
    return windows.permute(0, 1, 4, 5, 2, 3).flatten(4, 5).flatten(1, 3)


def _pair(padding: str | tuple[int, ...]) -> tuple[int, int]:
    if isinstance(padding, str):
        raise InvalidInput(f"padding is {padding!r}; allowed: two numbers.")
    return padding[0], padding[1]
