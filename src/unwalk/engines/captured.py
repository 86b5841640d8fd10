"""Gradient steps on a CUDA device: one captured graph a kind of step, replayed for every step.

Launching the hundred small kernels of a step one by one costs more than running them, so a whole
step (forward, backward, clip, optimizer) is captured once and replayed.  A *shadow* of the model
computes: its weights lie in the wanted precision and memory layout, as views of a few flat
vectors, so that the optimizer is one pass over memory.  Parameters and moments are copied in at
the start of a visit and back at its end; everything between visits (noise, projections, wipes)
acts on the workspace exactly as it does on a CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from unwalk.core.plan import Loss
from unwalk.core.program import StepRule, Steps
from unwalk.core.workspace import Workspace

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WARM_UP = 3


@dataclass(eq=False)
class _Block:
    """Parameters of one precision, flat: float32 masters, the shadow's values, gradients, moments.

    In float32 the shadow's values are the masters themselves.
    """

    names: list[str]
    masters: torch.Tensor
    values: torch.Tensor
    gradients: torch.Tensor
    weights: list[nn.Parameter]
    moments: dict[str, torch.Tensor] = field(default_factory=dict)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """One view a parameter, laid out as the shadow's weights are."""
        pieces = flat.split([w.numel() for w in self.weights])
        return [_view(piece, w.shape) for piece, w in zip(pieces, self.weights, strict=True)]


def _view(piece: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Kernels lie channels-last, everything else in its own order."""
    if len(shape) != 4:
        return piece.view(shape)
    out, channels, rows, columns = shape
    return piece.view(out, rows, columns, channels).permute(0, 3, 1, 2)


class CapturedSteps:
    """Runs ``Steps`` operations on a CUDA device by replaying graphs."""

    def __init__(
        self, work: Workspace, loss: Loss | None, *, precision: str, compiled: bool
    ) -> None:
        self.work = work
        self.loss = loss
        self.compiled = compiled
        self.dtype = PRECISIONS[precision]
        self.shadow = _shadow(work.model)
        self.blocks = _blocks(self.shadow, self.dtype)
        self.forward: Callable[[torch.Tensor], torch.Tensor] = (
            torch.compile(self.shadow) if compiled else self.shadow
        )
        self.knobs = torch.zeros(5, device=work.device)
        self.counter = torch.zeros((), device=work.device)
        self.graphs: dict[tuple[object, ...], _Graph] = {}

    @staticmethod
    def can_run(op: Steps) -> bool:
        """Weighted rows, per-example clipping and noise on gradients are left to the reference."""
        return op.weights is None and op.clip_per_example is None and not op.noise

    def run(
        self,
        op: Steps,
        x: torch.Tensor,
        y: torch.Tensor,
        moments: dict[str, torch.Tensor],
        counter: int,
    ) -> None:
        """Take all steps of ``op`` on ``x`` (steps, minibatches, size, ...)."""
        self._load(op.rule, moments)
        sign = -float(op.direction)
        knobs = (
            op.step_size,
            sign * op.scale,
            op.clip or 0.0,
            op.rule.momentum,
            op.rule.weight_decay,
        )
        self.knobs.copy_(torch.tensor(knobs))
        self.counter.fill_(float(counter))
        key = (tuple(x.shape[1:]), op.rule.optimizer, op.rule.betas, op.clip is None)
        graph = self.graphs.get(key)
        if graph is None:
            graph = self.graphs[key] = self._capture(op, x, y)
            self._load(op.rule, moments)
            self.counter.fill_(float(counter))
        for step in range(x.shape[0]):
            graph.replay(x[step], y[step])
        self._store(op.rule, moments)

    def _load(self, rule: StepRule, moments: dict[str, torch.Tensor]) -> None:
        """Copy parameters and moments from the workspace into the blocks."""
        views = self.work.layout.views(self.work.parameters)
        for block in self.blocks:
            torch._foreach_copy_(block.views(block.masters), [views[n] for n in block.names])
            if block.values is not block.masters:
                block.values.copy_(block.masters)
            for slot in rule.slots:
                held = block.moments.setdefault(slot, torch.zeros_like(block.masters))
                flat = self.work.layout.views(moments[slot])
                torch._foreach_copy_(block.views(held), [flat[n] for n in block.names])

    def _store(self, rule: StepRule, moments: dict[str, torch.Tensor]) -> None:
        """Copy them back."""
        views = self.work.layout.views(self.work.parameters)
        for block in self.blocks:
            torch._foreach_copy_([views[n] for n in block.names], block.views(block.masters))
            for slot in rule.slots:
                flat = self.work.layout.views(moments[slot])
                torch._foreach_copy_(
                    [flat[n] for n in block.names], block.views(block.moments[slot])
                )

    def _capture(self, op: Steps, x: torch.Tensor, y: torch.Tensor) -> _Graph:
        update = _update(op.rule)
        if self.compiled:
            update = torch.compile(update)

        def step(batch: torch.Tensor, labels: torch.Tensor) -> None:
            self._gradient(batch, labels)
            with torch.no_grad():
                self.counter.add_(1.0)
                scale = self.knobs[1]
                if op.clip is not None:
                    squares = [block.gradients.float().square().sum() for block in self.blocks]
                    norm = torch.stack(squares).sum().sqrt() * scale.abs()
                    scale = scale * (self.knobs[2] / (norm + 1e-12)).clamp(max=1.0)
                for block in self.blocks:
                    update(block, scale, self.knobs, self.counter)

        return _Graph(step, x[0], y[0], list(self.work.buffers.values()))

    def _gradient(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Mean gradient over minibatches into the blocks."""
        weights = [w for block in self.blocks for w in block.weights]
        targets = [g for block in self.blocks for g in block.views(block.gradients)]
        minibatches = x.shape[0]
        for part in range(minibatches):
            inputs = x[part].to(self.dtype)
            if inputs.dim() == 4:
                inputs = inputs.to(memory_format=torch.channels_last)
            output = self.forward(inputs).float()
            if self.loss is None:
                loss = functional.cross_entropy(output, y[part])
            else:
                loss = self.loss(output, y[part]).mean()
            gradients = torch.autograd.grad(loss / minibatches, weights)
            with torch.no_grad():
                if part == 0:
                    torch._foreach_copy_(targets, gradients)
                else:
                    torch._foreach_add_(targets, gradients)


Update = Callable[[_Block, torch.Tensor, torch.Tensor, torch.Tensor], None]


def _update(rule: StepRule) -> Update:
    """One optimizer step on a block; ``knobs`` holds step size, -, -, momentum, weight decay."""

    def change(block: _Block, scale: torch.Tensor, knobs: torch.Tensor) -> torch.Tensor:
        return block.gradients.float() * scale + knobs[4] * block.masters

    def write(block: _Block, step: torch.Tensor) -> None:
        block.masters.sub_(step)
        if block.values is not block.masters:
            block.values.copy_(block.masters)

    def sgd(block: _Block, scale: torch.Tensor, knobs: torch.Tensor, counter: torch.Tensor) -> None:
        write(block, knobs[0] * change(block, scale, knobs))

    def momentum(
        block: _Block, scale: torch.Tensor, knobs: torch.Tensor, counter: torch.Tensor
    ) -> None:
        velocity = block.moments["momentum"]
        velocity.copy_(knobs[3] * velocity + change(block, scale, knobs))
        write(block, knobs[0] * velocity)

    def adam(
        block: _Block, scale: torch.Tensor, knobs: torch.Tensor, counter: torch.Tensor
    ) -> None:
        first, second = rule.betas
        gradient = change(block, scale, knobs)
        mean, square = block.moments["mean"], block.moments["square"]
        mean.copy_(torch.lerp(mean, gradient, 1.0 - first))
        square.copy_(second * square + (1.0 - second) * gradient.square())
        root = (square / (1.0 - second**counter)).sqrt() + rule.damping
        write(block, knobs[0] / (1.0 - first**counter) * mean / root)

    return {"sgd": sgd, "momentum": momentum, "adam": adam}[rule.optimizer]


class _Graph:
    """One captured step with its static inputs; capturing leaves buffers as they were."""

    def __init__(
        self,
        step: Callable[[torch.Tensor, torch.Tensor], None],
        x: torch.Tensor,
        y: torch.Tensor,
        buffers: list[torch.Tensor],
    ) -> None:
        self.x, self.y = x.clone(), y.clone()
        kept = [b.clone() for b in buffers]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step(self.x, self.y)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            step(self.x, self.y)
        for buffer, before in zip(buffers, kept, strict=True):
            buffer.copy_(before)

    def replay(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()


def _shadow(model: nn.Module) -> nn.Module:
    """A copy of the model that shares its buffers."""
    shadow = copy.deepcopy(model)
    owners = dict(model.named_modules())
    for name, module in shadow.named_modules():
        for key in module._buffers:
            module._buffers[key] = owners[name]._buffers[key]
    return shadow.train()


def _blocks(shadow: nn.Module, dtype: torch.dtype) -> list[_Block]:
    """Lay the shadow's parameters out flat, in ``dtype``; batch normalisation's stay float32."""
    lowered = {
        f"{name}.{key}" if name else key
        for name, module in shadow.named_modules()
        if not isinstance(module, nn.modules.batchnorm._BatchNorm)
        for key, _ in module.named_parameters(recurse=False)
    }
    named = [(n, p) for n, p in shadow.named_parameters() if p.requires_grad]
    blocks = []
    for low in (True, False):
        members = [(n, p) for n, p in named if (n in lowered) == low]
        if not members:
            continue
        total = sum(p.numel() for _, p in members)
        masters = torch.empty(total, device=members[0][1].device)
        kind = dtype if low else torch.float32
        values = masters if kind == torch.float32 else torch.empty_like(masters, dtype=kind)
        block = _Block(
            names=[n for n, _ in members],
            masters=masters,
            values=values,
            gradients=torch.empty_like(values),
            weights=[p for _, p in members],
        )
        for parameter, view in zip(block.weights, block.views(values), strict=True):
            parameter.grad = None
            parameter.data = view
        blocks.append(block)
    return blocks
