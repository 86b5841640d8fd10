"""Gradients on a CUDA device: one captured graph a batch shape, replayed for every step.

Launching the hundred small kernels of a step one by one costs more than running them, so the
computation of a gradient is captured once and replayed.  A *shadow* of the model computes: its
weights are copies in the wanted precision and memory layout, refreshed from the float32
parameters at the start of every step; its buffers are the workspace's own.  Clipping, noise and
the optimizer then act on the float32 gradient exactly as they do on a CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from unwalk.core.plan import Loss
from unwalk.core.workspace import Workspace

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WARM_UP = 3


class CapturedGradients:
    """Computes mean gradients into ``work.gradient`` by replaying captured graphs."""

    def __init__(
        self, work: Workspace, loss: Loss | None, *, precision: str, compiled: bool
    ) -> None:
        self.work = work
        self.loss = loss
        self.dtype = PRECISIONS[precision]
        self.shadow = _shadow(work.model, self.dtype)
        self.forward: Callable[[torch.Tensor], torch.Tensor] = (
            torch.compile(self.shadow) if compiled else self.shadow
        )
        named = dict(self.shadow.named_parameters())
        self.weights = [named[n] for n in work.layout.names]
        self.masters = list(work.layout.views(work.parameters).values())
        self.targets = list(work.layout.views(work.gradient).values())
        self.graphs: dict[tuple[int, ...], _Replay] = {}

    def mean(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Mean gradient over minibatches ``x`` (minibatches, size, ...) into ``work.gradient``."""
        key = tuple(x.shape)
        if key not in self.graphs:
            self.graphs[key] = _Replay(self._gradient, x, y, self._state())
        self.graphs[key](x, y)

    def _gradient(self, x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.no_grad():
            torch._foreach_copy_([w.data for w in self.weights], self.masters)
        minibatches = x.shape[0]
        for part in range(minibatches):
            inputs = _laid_out(x[part], self.dtype)
            output = self.forward(inputs).float()
            if self.loss is None:
                loss = functional.cross_entropy(output, y[part])
            else:
                loss = self.loss(output, y[part]).mean()
            gradients = torch.autograd.grad(loss / minibatches, self.weights)
            with torch.no_grad():
                if part == 0:
                    torch._foreach_copy_(self.targets, gradients)
                else:
                    torch._foreach_add_(self.targets, [g.float() for g in gradients])

    def _state(self) -> list[torch.Tensor]:
        """What a warm-up changes and must be put back."""
        return list(self.work.buffers.values())


class _Replay:
    """One captured graph with its static inputs."""

    def __init__(
        self,
        compute: Callable[[torch.Tensor, torch.Tensor], None],
        x: torch.Tensor,
        y: torch.Tensor,
        state: list[torch.Tensor],
    ) -> None:
        self.x, self.y = x.clone(), y.clone()
        kept = [s.clone() for s in state]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                compute(self.x, self.y)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            compute(self.x, self.y)
        for tensor, before in zip(state, kept, strict=True):
            tensor.copy_(before)

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()


def _shadow(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of the model that computes in ``dtype``; normalisation layers stay in float32."""
    shadow = copy.deepcopy(model)
    owners = dict(model.named_modules())
    for name, module in shadow.named_modules():
        for key in module._buffers:
            module._buffers[key] = owners[name]._buffers[key]
        if isinstance(module, nn.Conv2d | nn.Linear):
            for parameter in module.parameters(recurse=False):
                layout = torch.channels_last if parameter.dim() == 4 else torch.preserve_format
                parameter.data = parameter.data.to(dtype).to(memory_format=layout)
                parameter.grad = None
        else:
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.clone()
                parameter.grad = None
    return shadow.train()


def _laid_out(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    x = x.to(dtype)
    return x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
