"""Gradient steps on a CUDA device: a captured graph a kind of step, replayed for every step.

Launching the hundred small kernels of a step one by one costs more than running them, so whole
steps (forward, backward, clip, optimizer) are captured once and replayed, several at a time.  A
*shadow* of the model computes: its weights lie in the wanted precision and memory layout, as
views of a few flat vectors, so that the optimizer is one pass over memory.  Parameters and
moments are copied in at the start of a visit and back at its end; everything between visits
(noise, projections, wipes) acts on the workspace exactly as it does on a CPU.  Nothing here waits
for the device, so a peer's next visit is prepared while it computes.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from unwalk.core.plan import Loss
from unwalk.core.program import StepRule, Steps
from unwalk.core.workspace import Workspace
from unwalk.engines import fused

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WARM_UP = 3
PIECE = 1024
"""Flat vectors are padded to a multiple of this."""
TOGETHER = 16
"""Steps in one graph, where a visit has as many: one launch and one copy of batches for all."""


@dataclass(eq=False)
class _Block:
    """Parameters of one precision, flat: float32 masters, the shadow's values, gradients, moments.

    In float32 the shadow's values are the masters themselves.  Vectors are padded with zeros, so
    that kernels can read them in whole pieces.
    """

    names: list[str]
    masters: torch.Tensor
    values: torch.Tensor
    gradients: torch.Tensor
    weights: list[nn.Parameter]
    moments: dict[str, torch.Tensor] = field(default_factory=dict)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """One view a parameter, laid out as the shadow's weights are."""
        pieces = flat[: self.size].split([w.numel() for w in self.weights])
        return [_view(piece, w.shape) for piece, w in zip(pieces, self.weights, strict=True)]

    @property
    def size(self) -> int:
        """Without the padding."""
        return sum(w.numel() for w in self.weights)


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
        _let_loose(precision)
        self.work = work
        self.loss = loss
        self.compiled = compiled
        self.dtype = PRECISIONS[precision]
        self.shadow = _shadow(work.model)
        self.blocks = _blocks(self.shadow, self.dtype)
        self.weights = [w for block in self.blocks for w in block.weights]
        self.side = torch.cuda.Stream() if compiled else None
        self.fused = self._fuse()
        self.placed = set() if self.fused is None else self.fused.placed
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.fused or self.shadow
        if compiled and self.fused is None:
            self.forward = torch.compile(self.shadow, dynamic=False)
        self.kernels = compiled and fused.available()
        self.knobs = torch.zeros(5, device=work.device)
        self.counter = torch.zeros((), device=work.device)
        self.graphs: dict[tuple[object, ...], _Graph] = {}
        self.counted = [
            b for name, b in work.buffers.items() if name.endswith("num_batches_tracked")
        ]

    def _fuse(self) -> fused.Fused | None:
        if not self.compiled:
            return None
        places: dict[torch.Tensor, torch.Tensor] = {
            weight: view
            for block in self.blocks
            for weight, view in zip(block.weights, block.views(block.gradients), strict=True)
        }
        return fused.fuse(self.shadow, self.side, places)

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
        knobs = (
            op.step_size,
            -float(op.direction) * op.scale,
            op.clip or 0.0,
            op.rule.momentum,
            op.rule.weight_decay,
        )
        self.knobs.copy_(torch.tensor(knobs).pin_memory(), non_blocking=True)
        self.counter.fill_(float(counter))
        steps, done = x.shape[0], 0
        while done < steps:
            count = TOGETHER if steps - done >= TOGETHER else 1
            key = (count, tuple(x.shape[1:]), op.rule.optimizer, op.rule.betas, op.clip is None)
            graph = self.graphs.get(key)
            if graph is None:
                kept = self._snapshot()
                graph = self.graphs[key] = self._capture(op, x[:count], y[:count])
                self._restore(kept)
            graph.replay(x[done : done + count], y[done : done + count])
            done += count
        self._store(op.rule, moments)
        if self.counted:
            torch._foreach_add_(self.counted, steps * x.shape[1])

    def _state(self) -> list[torch.Tensor]:
        """All that a step changes."""
        mine = [self.counter, *self.work.buffers.values()]
        if self.fused is not None:
            mine += self.fused.state
        for block in self.blocks:
            mine += [block.masters, block.values, *block.moments.values()]
        return mine

    def _snapshot(self) -> list[torch.Tensor]:
        return [t.clone() for t in self._state()]

    def _restore(self, kept: list[torch.Tensor]) -> None:
        for tensor, before in zip(self._state(), kept, strict=True):
            tensor.copy_(before)

    def _load(self, rule: StepRule, moments: dict[str, torch.Tensor]) -> None:
        """Copy parameters and moments from the workspace into the blocks."""
        if self.fused is not None:
            self.fused.load()
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
        if self.fused is not None:
            self.fused.store()
        views = self.work.layout.views(self.work.parameters)
        for block in self.blocks:
            torch._foreach_copy_([views[n] for n in block.names], block.views(block.masters))
            for slot in rule.slots:
                flat = self.work.layout.views(moments[slot])
                torch._foreach_copy_(
                    [flat[n] for n in block.names], block.views(block.moments[slot])
                )

    def _capture(self, op: Steps, x: torch.Tensor, y: torch.Tensor) -> _Graph:
        update = self._update(op.rule)

        def step(batch: torch.Tensor, labels: torch.Tensor) -> None:
            self._gradient(batch, labels)
            with torch.no_grad():
                if op.rule.optimizer == "adam":
                    self.counter.add_(1.0)
                scale = self.knobs[1]
                if op.clip is not None:
                    squares = [block.gradients.float().square().sum() for block in self.blocks]
                    norm = torch.stack(squares).sum().sqrt() * scale.abs()
                    scale = scale * (self.knobs[2] / (norm + 1e-12)).clamp(max=1.0)
                for block in self.blocks:
                    update(block, scale, self.knobs, self.counter)

        return _Graph(step, self._lay_out, x, y)

    def _lay_out(self, room: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
        """Inputs of several steps in the wanted precision and memory layout, in ``room``."""
        first = None if self.fused is None else self.fused.first
        if x.dim() == 6 and first is not None:
            return first.table(room, x, self.dtype)
        if room is None:
            room = torch.empty_like(x, dtype=self.dtype)
            if x.dim() == 6:
                room = room.permute(0, 1, 2, 4, 5, 3).contiguous().permute(0, 1, 2, 5, 3, 4)
        return room.copy_(x)

    def _update(self, rule: StepRule) -> Update:
        if self.kernels and rule.optimizer != "adam":
            return _by_kernel(rule)
        return torch.compile(_update(rule), dynamic=False) if self.compiled else _update(rule)

    def _gradient(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Mean gradient over minibatches into the blocks."""
        minibatches = x.shape[0]
        total: list[torch.Tensor] = []
        for part in range(minibatches):
            found = self._backward(self.forward(x[part]), y[part], minibatches)
            if self.side is not None:
                torch.cuda.current_stream().wait_stream(self.side)
            with torch.no_grad():
                if self.fused is not None:
                    self.fused.settle()
                if minibatches == 1:
                    self._gather(found)
                elif part == 0:
                    total = [g.clone() for g in found]
                else:
                    torch._foreach_add_(total, found)
        if minibatches > 1:
            with torch.no_grad():
                self._gather(total, everything=True)

    def _gather(self, found: Sequence[torch.Tensor], *, everything: bool = False) -> None:
        """Gradients into the blocks, but for those that are there already."""
        left = iter(found)
        for block in self.blocks:
            mine = [next(left) for _ in block.weights]
            if everything or not any(w in self.placed for w in block.weights):
                flat = [_flat(g).to(block.gradients.dtype) for g in mine]
                torch.cat(flat, out=block.gradients[: block.size])
                continue
            views = block.views(block.gradients)
            rest = [k for k, w in enumerate(block.weights) if w not in self.placed]
            if rest:
                torch._foreach_copy_([views[k] for k in rest], [mine[k] for k in rest])

    def _backward(
        self, output: torch.Tensor, y: torch.Tensor, minibatches: int
    ) -> tuple[torch.Tensor, ...]:
        """Gradients of the mean loss, divided by ``minibatches``."""
        if self.loss is None and self.kernels and output.dim() == 2:
            from unwalk.engines import step_kernels

            share = 1.0 / (len(output) * minibatches)
            start = step_kernels.softmax_gradient(output.detach(), y, share)
            return torch.autograd.grad(output, self.weights, start)
        if self.loss is None:
            loss = functional.cross_entropy(output.float(), y)
        else:
            loss = self.loss(output.float(), y).mean()
        return torch.autograd.grad(loss / minibatches, self.weights)


Update = Callable[[_Block, torch.Tensor, torch.Tensor, torch.Tensor], None]


def _flat(gradient: torch.Tensor) -> torch.Tensor:
    """In the order of :func:`_view`."""
    if gradient.dim() == 4:
        gradient = gradient.permute(0, 2, 3, 1)
    return gradient.reshape(-1)


def _by_kernel(rule: StepRule) -> Update:
    """``sgd`` or ``momentum`` as one kernel."""

    def update(
        block: _Block, scale: torch.Tensor, knobs: torch.Tensor, counter: torch.Tensor
    ) -> None:
        from unwalk.engines import step_kernels

        velocity = block.moments["momentum"] if rule.optimizer == "momentum" else None
        step_kernels.descend(block.masters, block.values, block.gradients, velocity, knobs, scale)

    return update


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
    """Captured steps with their static inputs, whose first dimension counts steps."""

    def __init__(
        self,
        step: Callable[[torch.Tensor, torch.Tensor], None],
        lay_out: Callable[[torch.Tensor | None, torch.Tensor], torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
    ) -> None:
        self.lay_out = lay_out
        self.x, self.y = lay_out(None, x), y.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step(self.x[0], self.y[0])
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        first = torch.cuda.Stream(priority=-1)  # what everything waits for comes first
        with (
            _no_collection(),
            torch.cuda.graph(self.graph, stream=first, capture_error_mode="thread_local"),
        ):
            for number in range(len(x)):
                step(self.x[number], self.y[number])

    def replay(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.lay_out(self.x, x)
        self.y.copy_(y)
        self.graph.replay()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Graphs of earlier walks must not be destroyed during a capture: that spoils it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _let_loose(precision: str) -> None:
    """Steps repeat one shape often, so trying every algorithm for it pays.

    Where half precision is good enough, so is TensorFloat-32 for what stays in float32.
    """
    torch.backends.cudnn.benchmark = True
    if precision != "float32":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True


def _shadow(model: nn.Module) -> nn.Module:
    """A copy of the model that shares its buffers; batches are counted elsewhere."""
    shadow = copy.deepcopy(model)
    owners = dict(model.named_modules())
    for name, module in shadow.named_modules():
        for key in module._buffers:
            module._buffers[key] = owners[name]._buffers[key]
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None:
            module._buffers["num_batches_tracked"] = None
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
        total = -(-sum(p.numel() for _, p in members) // PIECE) * PIECE
        masters = torch.zeros(total, device=members[0][1].device)
        kind = dtype if low else torch.float32
        values = masters if kind == torch.float32 else torch.zeros_like(masters, dtype=kind)
        block = _Block(
            names=[n for n, _ in members],
            masters=masters,
            values=values,
            gradients=torch.zeros_like(values),
            weights=[p for _, p in members],
        )
        for parameter, view in zip(block.weights, block.views(values), strict=True):
            parameter.grad = None
            parameter.data = view
        blocks.append(block)
    return blocks
