"""Gradient steps on a CUDA device: one captured graph per kind of step, replayed for every step.

Launching the hundred small kernels of a step one by one costs more than running them, so whole
steps (forward, backward, clip, optimizer) are captured once and replayed, several at a time.  They
run on a copy of the model (`flat_copy`), whose weights have the wanted precision and memory layout
and are views of a few flat vectors, so that the optimizer is one pass over memory.  Parameters and
moments are copied in at the start of a visit and back at its end; everything between visits
(noise, projections, wipes) acts on the workspace exactly as it does on a CPU.  Nothing here waits
for the device, so a peer's next visit is prepared while it computes.
"""

# Imports in functions: kernels need Triton, which is not there without a CUDA device.

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch.nn import functional

from unwalk.core.plan import Loss
from unwalk.core.program import StepRule, Steps
from unwalk.core.token import Workspace
from unwalk.engines.cuda.clipped_steps import Clipped
from unwalk.engines.cuda.flat_copy import (
    Block,
    flat_blocks,
    flat_copy_of,
    flattened,
    gradient_places,
)
from unwalk.engines.cuda.fused_network import fuse
from unwalk.engines.cuda.groups import available, uses
from unwalk.engines.cuda.record_gradients import Unfit
from unwalk.engines.per_example import Batch, check_per_example, clipped_gradients

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WARM_UP = 3
TOGETHER = 16
"""Steps in one graph, where a visit has as many: one launch and one copy of batches for all."""


class CapturedSteps:
    """Runs ``Steps`` operations on a CUDA device by replaying graphs."""

    def __init__(
        self, work: Workspace, loss: Loss | None, *, precision: str, compiled: bool
    ) -> None:
        self.work = work
        self.precision = precision
        self.loss = loss
        self.compiled = compiled
        self.dtype = PRECISIONS[precision]
        self.model = flat_copy_of(work.model)
        self.blocks = flat_blocks(self.model, self.dtype)
        self.weights = [w for block in self.blocks for w in block.weights]
        self.fused = fuse(self.model, gradient_places(self.blocks)) if compiled else None
        self.placed = set() if self.fused is None else self.fused.placed
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.fused or self.model
        self.knobs = torch.zeros(6, device=work.device)
        self.counter = torch.zeros((), device=work.device)
        self.one = torch.ones((), device=work.device)
        self.graphs: dict[tuple[object, ...], _Graph] = {}
        self.counted = [
            b for name, b in work.buffers.items() if name.endswith("num_batches_tracked")
        ]

    @cached_property
    def clipped(self) -> Clipped | None:
        """What runs steps that clip each example; None for a model that it cannot take."""
        wanted = self.compiled and uses("clipping")
        return Clipped.of(self.model, gradient_places(self.blocks)) if wanted else None

    @staticmethod
    def can_run(op: Steps) -> bool:
        """Weighted rows, and optimizers without an update here, are left to the reference."""
        return op.weights is None and op.rule.optimizer in UPDATES

    def run(
        self,
        op: Steps,
        x: torch.Tensor,
        y: torch.Tensor,
        moments: dict[str, torch.Tensor],
        counter: int,
        normals: Callable[[], torch.Tensor],
    ) -> None:
        """Take all steps of ``op`` on ``x`` and ``y`` of (steps, minibatches, size, ...).

        ``normals`` draws what a step with noise adds, as long as the parameters.
        """
        with _fast_algorithms(self.precision):
            self._load(op.rule, moments)
            knobs = (
                op.step_size,
                -float(op.direction) * op.scale,
                op.clip or 0.0,
                op.rule.momentum,
                op.rule.weight_decay,
                -float(op.direction) * op.noise,
            )
            self.knobs.copy_(torch.tensor(knobs).pin_memory(), non_blocking=True)
            self.counter.fill_(float(counter))
            steps, done = x.shape[0], 0
            while done < steps:
                count = TOGETHER if steps - done >= TOGETHER else 1
                drawn = torch.stack([normals() for _ in range(count)]) if op.noise else None
                key = (count, tuple(x.shape[1:]), *_kind(op))
                graph = self.graphs.get(key)
                if graph is None:
                    kept = self._snapshot()
                    graph = self.graphs[key] = self._capture(op, x[:count], y[:count], drawn)
                    self._restore(kept)
                graph.replay(x[done : done + count], y[done : done + count], drawn)
                done += count
            self._store(op.rule, moments)
            if self.counted:
                torch._foreach_add_(self.counted, steps * x.shape[1])

    def _state(self) -> list[torch.Tensor]:
        """All that a step changes."""
        tensors = [self.counter, *self.work.buffers.values()]
        if self.fused is not None:
            tensors += self.fused.state
        for block in self.blocks:
            tensors += [block.masters, block.values, *block.moments.values()]
        return tensors

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
            block.load(views)
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

    def _capture(
        self, op: Steps, x: torch.Tensor, y: torch.Tensor, drawn: torch.Tensor | None
    ) -> _Graph:
        def step(batch: torch.Tensor, labels: torch.Tensor, normals: torch.Tensor | None) -> None:
            if op.clip_per_example is not None:
                self._clipped_gradient(batch, labels, op.clip_per_example)
            else:
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
                    if normals is None:
                        update(op.rule, block, scale, self.knobs, self.counter)
                        continue
                    noised = self._as_laid_out(block, normals).mul_(self.knobs[5])
                    noised.addcmul_(block.gradients, scale)
                    given = replace(block, gradients=noised)
                    update(op.rule, given, self.one, self.knobs, self.counter)

        batches = self._lay_out(x), y, drawn
        try:
            return _Graph(step, *batches)
        except Unfit:
            self.clipped = None
            return _Graph(step, *batches)

    def _as_laid_out(self, block: Block, flat: torch.Tensor) -> torch.Tensor:
        """A vector like the workspace's parameters, in the order of a block."""
        ordered = torch.zeros_like(block.masters)
        views = self.work.layout.views(flat)
        torch._foreach_copy_(block.views(ordered), [views[n] for n in block.names])
        return ordered

    def _lay_out(self, x: torch.Tensor) -> torch.Tensor:
        """A copy of several steps' inputs in the wanted precision, pictures channels-last."""
        room = torch.empty_like(x, dtype=self.dtype, memory_format=torch.contiguous_format)
        if x.dim() == 6:
            room = room.permute(0, 1, 2, 4, 5, 3).contiguous().permute(0, 1, 2, 5, 3, 4)
        return room.copy_(x)

    def _clipped_gradient(self, x: torch.Tensor, y: torch.Tensor, bound: float) -> None:
        """Write the mean of gradients that were clipped example by example into the blocks."""
        if self.clipped is not None:
            check_per_example(self.model)
            self.clipped.step(x.flatten(0, 1), y.flatten(0, 1), bound, self.loss)
            return

        def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            if self.loss is None:
                return functional.cross_entropy(output.float(), labels, reduction="none")
            return self.loss(output.float(), labels)

        gradients = clipped_gradients(
            self.model, Batch(x.flatten(0, 1), y.flatten(0, 1), bound=bound, loss=loss)
        )
        with torch.no_grad():
            for block in self.blocks:
                block.gradients.zero_()
                pairs = zip(block.names, block.views(block.gradients), strict=True)
                for name, view in pairs:
                    if name in gradients:
                        view.copy_(gradients[name])

    def _gradient(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Write the mean gradient over minibatches into the blocks."""
        minibatches = x.shape[0]
        total: list[torch.Tensor] = []
        for part in range(minibatches):
            gradients = self._backward(self.forward(x[part]), y[part], minibatches)
            with torch.no_grad():
                if self.fused is not None:
                    self.fused.settle()
                if minibatches == 1:
                    self._gather(gradients)
                elif part == 0:
                    total = [g.clone() for g in gradients]
                else:
                    torch._foreach_add_(total, gradients)
        if minibatches > 1:
            with torch.no_grad():
                self._gather(total, everything=True)

    def _gather(self, gradients: Sequence[torch.Tensor], *, everything: bool = False) -> None:
        """Copy gradients into the blocks, except those that are there already."""
        left = iter(gradients)
        for block in self.blocks:
            of_block = [next(left) for _ in block.weights]
            if everything or not any(w in self.placed for w in block.weights):
                flat = [flattened(g).to(block.gradients.dtype) for g in of_block]
                torch.cat(flat, out=block.gradients[: block.size])
                continue
            views = block.views(block.gradients)
            rest = [k for k, w in enumerate(block.weights) if w not in self.placed]
            if rest:
                torch._foreach_copy_([views[k] for k in rest], [of_block[k] for k in rest])

    def _backward(
        self, output: torch.Tensor, y: torch.Tensor, minibatches: int
    ) -> tuple[torch.Tensor, ...]:
        """Gradients of the mean loss, divided by ``minibatches``."""
        if self.loss is None:
            loss = functional.cross_entropy(output.float(), y)
        else:
            loss = self.loss(output.float(), y).mean()
        return torch.autograd.grad(loss / minibatches, self.weights)


def _kind(op: Steps) -> tuple[object, ...]:
    """What a captured step depends on, besides the shape of its batches and the knobs."""
    rule = op.rule
    switches = (op.clip is None, bool(op.noise), bool(rule.weight_decay))
    return rule.optimizer, rule.betas, op.clip_per_example, *switches


Update = Callable[[StepRule, Block, torch.Tensor, torch.Tensor, torch.Tensor], None]


def _sgd(
    rule: StepRule, block: Block, scale: torch.Tensor, knobs: torch.Tensor, counter: torch.Tensor
) -> None:
    if rule.weight_decay:
        block.masters.mul_(1.0 - knobs[0] * knobs[4])
    block.masters.addcmul_(block.gradients, knobs[0] * scale, value=-1.0)


def _momentum(
    rule: StepRule, block: Block, scale: torch.Tensor, knobs: torch.Tensor, counter: torch.Tensor
) -> None:
    velocity = block.moments["momentum"].mul_(knobs[3]).addcmul_(block.gradients, scale)
    if rule.weight_decay:
        velocity.addcmul_(block.masters, knobs[4])
    block.masters.addcmul_(velocity, knobs[0], value=-1.0)


def _adam(
    rule: StepRule, block: Block, scale: torch.Tensor, knobs: torch.Tensor, counter: torch.Tensor
) -> None:
    first, second = rule.betas
    gradient = block.gradients.float() * scale + knobs[4] * block.masters
    mean, square = block.moments["mean"], block.moments["square"]
    mean.copy_(torch.lerp(mean, gradient, 1.0 - first))
    square.copy_(second * square + (1.0 - second) * gradient.square())
    root = (square / (1.0 - second**counter)).sqrt() + rule.damping
    block.masters.sub_(knobs[0] / (1.0 - first**counter) * mean / root)


UPDATES: dict[str, Update] = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}
"""How each optimizer moves a block, in few passes over memory."""


def update(
    rule: StepRule, block: Block, scale: torch.Tensor, knobs: torch.Tensor, counter: torch.Tensor
) -> None:
    """One optimizer step on a block.

    ``knobs`` holds step size, -, -, momentum, weight decay; ``scale`` multiplies the gradient.
    """
    if rule.optimizer in ("sgd", "momentum") and _in_one_pass(block):
        from unwalk.engines.cuda.kernels.update import descend

        velocity = block.moments.get("momentum") if rule.slots else None
        decays = bool(rule.weight_decay)
        descend(block.masters, block.values, block.gradients, velocity, knobs, scale, decays)
        return
    UPDATES[rule.optimizer](rule, block, scale, knobs, counter)
    block.lower()


def _in_one_pass(block: Block) -> bool:
    """Whether the kernel takes the step."""
    return block.masters.is_cuda and available() and uses("updates")


class _Graph:
    """Captured steps with their static inputs, whose first dimension counts steps."""

    def __init__(
        self,
        step: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], None],
        x: torch.Tensor,
        y: torch.Tensor,
        normals: torch.Tensor | None,
    ) -> None:
        self.x, self.y = x, y.clone()
        self.normals = None if normals is None else normals.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step(*self._given(0))
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            for number in range(len(x)):
                step(*self._given(number))

    def _given(self, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        normals = None if self.normals is None else self.normals[number]
        return self.x[number], self.y[number], normals

    def replay(self, x: torch.Tensor, y: torch.Tensor, normals: torch.Tensor | None) -> None:
        self.x.copy_(x)
        self.y.copy_(y)
        if self.normals is not None and normals is not None:
            self.normals.copy_(normals)
        self.graph.replay()


def capture(step: Callable[[], None], device: torch.device, pool: Any) -> Callable[[], None]:
    """A step as a graph in ``pool``; it runs a few times first, with its random numbers unused."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.random.fork_rng(devices=[device]):
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with (
            _no_collection(),
            torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
        ):
            step()
    replay: Callable[[], None] = graph.replay
    return replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """Graphs of earlier walks must not be destroyed during a capture: that spoils it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _fast_algorithms(precision: str) -> Iterator[None]:
    """Let cuDNN try every algorithm: steps repeat one shape often, so that pays.

    Where half precision is good enough, so is TensorFloat-32 for what stays in float32.  The
    switches are put back afterwards for other work in the process.
    """
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.benchmark, convolutions.allow_tf32, products.allow_tf32
    convolutions.benchmark = True
    if precision != "float32":
        convolutions.allow_tf32 = products.allow_tf32 = True
    try:
        yield
    finally:
        convolutions.benchmark, convolutions.allow_tf32, products.allow_tf32 = before
