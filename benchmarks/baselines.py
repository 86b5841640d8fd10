"""What PyTorch does by itself, to be set beside our kernels; used by ``gpu.py`` and ``fleet.py``.

A step of a ResNet-18: the model in bfloat16 (normalisations in float32), channels-last, SGD with
momentum as one fused kernel on the bfloat16 parameters.  That is less work than ours, which keeps
float32 parameters beside them.  ``torch.compile`` compiles forward pass and loss, and with them the
backward pass; where it says graph, whole steps are captured, sixteen at a time as ours are.

Normalisations whose kernels are switched off are compiled as one function each
(:func:`compiling_norms`).

A step of a fleet: ``vmap`` over the gradient of one model and the update of all, compiled as one
function and captured.
"""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from unwalk.engines.cuda.layers import PlainNorm

LEAST_SAVED = 0.1
"""A group of kernels has to save so much of a whole step."""


@dataclass
class Report:
    """Numbers that are printed as they come, and written to ``out`` after each of them."""

    name: str
    out: Path | None = None
    minutes: float = math.inf
    rows: dict[str, float | str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def measure(self, what: str, work: Callable[[], float], unit: str) -> float:
        """Measure one number, unless the time is up or it fails: then the report says so."""
        spent = (time.monotonic() - self.began) / 60
        if spent > self.minutes:
            return self._left_out(what, f"{spent:.1f} minutes are over; give --minutes more")
        gc.collect()  # graphs of what was measured before: to destroy one spoils a capture
        try:
            took = work()
        except Exception as error:  # one baseline that fails must not cost the other numbers
            return self._left_out(what, f"{type(error).__name__}: {str(error)[:300]}")
        self.note(f"{what}, {unit}", took)
        return took

    def note(self, what: str, value: float, after: str = "") -> None:
        """Print and keep one number."""
        print(f"{what:66s} {value:9.3f}{after}", flush=True)
        self.rows[what] = value
        self._write()

    def _left_out(self, what: str, why: str) -> float:
        print(f"{what:66s}   not measured: {why}", flush=True)
        self.rows[what] = why
        self._write()
        return math.nan

    def _write(self) -> None:
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            about = {"torch": torch.__version__, "numbers": self.rows}
            if torch.cuda.is_available():
                about["device"] = torch.cuda.get_device_name()
            (self.out / f"{self.name}.json").write_text(json.dumps(about, indent=1) + "\n")

    def group(self, name: str, whole: float, replaced: float) -> None:
        """What a group saves of a whole step: it stays where that is a tenth or more."""
        saved = (replaced - whole) / replaced
        if not math.isnan(saved):
            verdict = "stays" if saved >= LEAST_SAVED else "goes"
            self.note(f"  {name}: saves of a whole step", saved, f"  {verdict}")


def compile_much() -> None:
    """Let ``torch.compile`` make a variant per layer, and say so where it would give up."""
    from torch._dynamo import config

    wanted = {
        "recompile_limit": 256,
        "accumulated_recompile_limit": 1024,
        "fail_on_recompile_limit_hit": True,
    }
    for name, value in wanted.items():
        if hasattr(config, name):  # names of these have changed between versions
            setattr(config, name, value)


@contextmanager
def compiling_norms() -> Iterator[None]:
    """Compile what takes the place of normalisation kernels: that is what they have to beat."""
    with patch.object(PlainNorm, "body", torch.compile(PlainNorm.body, dynamic=False)):
        yield


def seconds(work: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """The best of several times, the device's work included."""
    best = math.inf
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def captured(work: Callable[[], object], device: torch.device, warm: int = 3) -> Callable[[], None]:
    """Work as a CUDA graph, after some rounds that compile it; on a CPU, the work itself."""

    def plainly() -> None:
        work()

    if device.type != "cuda":
        return plainly
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            work()
    finally:
        gc.enable()
    replay: Callable[[], None] = graph.replay
    return replay


class PlainSteps:
    """Momentum steps as one would write them; ``mode`` is ``torch.compile``'s, None is eager."""

    def __init__(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, mode: str | None = None
    ) -> None:
        self.x = x.to(torch.bfloat16, memory_format=torch.channels_last)
        self.y = y
        self.model = model.to(x.device, torch.bfloat16).train()
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for norm in self.model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.float()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=1e-4, momentum=0.9, fused=x.is_cuda
        )
        self.loss: Callable[[], torch.Tensor] = self._loss
        if mode is not None:
            self.loss = torch.compile(self._loss, mode=mode, dynamic=False)

    def _loss(self) -> torch.Tensor:
        return functional.cross_entropy(self.model(self.x).float(), self.y)

    def step(self) -> None:
        """One step on the same batch."""
        self.optimizer.zero_grad(set_to_none=True)
        self.loss().backward()
        self.optimizer.step()

    def steps(self, count: int) -> None:
        """Several."""
        for _ in range(count):
            self.step()


def plain_step(
    make: Callable[[], nn.Module],
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    mode: str | None,
    graph: bool,
    together: int = 16,
) -> float:
    """Milliseconds of a step, as one of several."""
    torch.backends.cudnn.benchmark = True
    plain = PlainSteps(make(), x, y, mode)
    for _ in range(3):
        plain.step()

    def work() -> None:
        plain.steps(together)

    if graph:
        return seconds(captured(work, x.device, warm=1), x.device) / together * 1e3
    return seconds(work, x.device) / together * 1e3


class PlainFleet:
    """One momentum step of many models: ``vmap`` over the gradient of one, then the update."""

    def __init__(self, make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor) -> None:
        self.model, self.x, self.y = make().to(x.device).train(), x, y
        models = len(x)
        self.parameters = {
            name: p.detach().expand(models, *p.shape).clone()
            for name, p in self.model.named_parameters()
        }
        self.velocity = {name: torch.zeros_like(p) for name, p in self.parameters.items()}

    def _loss(
        self, named: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        output: torch.Tensor = functional_call(self.model, named, (x,))
        return functional.cross_entropy(output, y)

    def step(self) -> None:
        """One step on the same batches, in place."""
        gradients = vmap(grad(self._loss))(self.parameters, self.x, self.y)
        for name, gradient in gradients.items():
            velocity = self.velocity[name]
            velocity.copy_(0.9 * velocity + gradient)
            self.parameters[name].sub_(0.01 * velocity)


def plain_fleet_step(
    make: Callable[[], nn.Module],
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    mode: str | None = "default",
    together: int = 20,
) -> tuple[float, float]:
    """Microseconds of one model's step, captured, and seconds until the first one.

    ``mode`` is as of :class:`PlainSteps`.  What the compiler finds in its cache on disk makes the
    start shorter.
    """
    start = time.perf_counter()
    fleet = PlainFleet(make, x, y)
    step = fleet.step if mode is None else torch.compile(fleet.step, mode=mode, dynamic=False)
    replay = captured(step, x.device)
    began = time.perf_counter() - start

    def work() -> None:
        for _ in range(together):
            replay()

    return seconds(work, x.device) / together / len(x) * 1e6, began
