"""Speed of single walks on a CUDA device; ``benchmarks/fleet.py`` has those of fleets.

    python benchmarks/gpu.py walks [mnist] [cifar10]    seconds for 100 training hops
    python benchmarks/gpu.py steps                      milliseconds of a ResNet-18's steps
    python benchmarks/gpu.py convolutions               our convolutions beside cuDNN's

Walks need the official data (``unwalk data status``); the others draw theirs.  The first repeat of
a walk captures and compiles; the second is the number.  Exits with 1 when a number misses its
limit; without a device it says so and measures nothing.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from unwalk.core.program import StepRule, Steps
from unwalk.core.workspace import Workspace, build_model
from unwalk.engines.captured import CapturedSteps
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.run import Runner
from unwalk.settings.fields import Value
from unwalk.tasks.models import MODELS

WALK_LIMITS = {"mnist": 1.5, "cifar10": 10.0}
STEPS = 64
LAYERS = {  # channels in and out, places across, size, stride
    "64, 32 x 32": (64, 64, 32, 3, 1),
    "128, 16 x 16": (128, 128, 16, 3, 1),
    "256, 8 x 8": (256, 256, 8, 3, 1),
    "512, 4 x 4": (512, 512, 4, 3, 1),
    "64 to 128, stride 2": (64, 128, 32, 3, 2),
    "64 to 128, 1 x 1, stride 2": (64, 128, 32, 1, 2),
}
Row = tuple[str, float, float]


def walk(task: str, every: int = 1000, repeats: int = 2) -> tuple[float, float]:
    """Seconds for 100 training hops, and with the measuring every so many hops and at the end."""
    changes: dict[str, Value] = {
        "task": task,
        "preset": "paper-matched",
        "device": "cuda",
        "performance.precision": "bfloat16",
        "performance.compiled": True,
        "evaluate.every": every,
    }
    made = assemble(resolve(changes))
    hops = whole = 0.0
    for _ in range(repeats):
        runner, start = Runner(made), time.perf_counter()
        hops = sum(runner.walk("train", made.training(), None).seconds)
        whole = time.perf_counter() - start
    return hops, whole


def walks(tasks: list[str]) -> list[Row]:
    rows: list[Row] = []
    for task in tasks or list(WALK_LIMITS):
        rows.append((f"100 hops {task}, s", walk(task)[0], WALK_LIMITS[task]))
        rows.append((f"100 hops {task}, measured 20 times, s", walk(task, 5, 1)[1], math.inf))
    return rows


def step(model: str, bound: float | None) -> float:
    """Milliseconds of a captured step of batch 64, clipped by record and noised if bounded."""
    device = torch.device("cuda")
    work = Workspace(build_model(lambda: MODELS[model].build((3, 32, 32), 10), 0), device)
    work.model.train()
    captured = CapturedSteps(work, None, precision="bfloat16", compiled=True)
    x = torch.randn(STEPS, 1, 64, 3, 32, 32, device=device)
    y = torch.randint(10, (STEPS, 1, 64), device=device)
    rows = np.zeros((STEPS, 1, 64), dtype=np.int64)
    noise = 0.0 if bound is None else 1e-3
    rule = StepRule("momentum")
    op = Steps(rows, "all", rule, 1e-4, clip_per_example=bound, noise=noise)
    moments = {"momentum": torch.zeros_like(work.parameters)}
    best = math.inf
    for _ in range(5):  # the first of them captures
        start = time.perf_counter()
        captured.run(op, x, y, moments, 0, lambda: torch.randn_like(work.parameters))
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best / STEPS * 1e3


def steps(_: list[str]) -> list[Row]:
    return [
        ("ResNet-18, ms a step", step("resnet18-plain", None), math.inf),
        ("ResNet-18 with GroupNorm, ms a step", step("resnet18-gn", None), math.inf),
        ("ResNet-18 with GroupNorm, ms a private step", step("resnet18-gn", 1.0), math.inf),
    ]


def graphed(work: Callable[[], object], repeats: int = 20) -> float:
    """Microseconds of a piece of work that is captured so many times over."""
    work()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            work()
    best = math.inf
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best / repeats * 1e6


def beside_cudnn(
    name: str, inner: int, outer: int, across: int, size: int, stride: int
) -> list[Row]:
    """One layer at batch 64: microseconds, and over cuDNN's, which may try all its algorithms."""
    from unwalk.engines import conv_kernels, conv_weight_kernels

    x, weight = (
        torch.randn(shape, device="cuda")
        .to(torch.bfloat16)
        .contiguous(memory_format=torch.channels_last)
        for shape in ((64, inner, across, across), (outer, inner, size, size))
    )
    if not conv_kernels.fits(x, weight, stride):
        raise SystemExit("our convolutions do not run here; nothing measured")
    gradient, place = conv_kernels.convolve(x, weight, stride), torch.empty_like(weight)

    def back(*wanted: bool) -> object:
        how = (stride, stride), (size // 2, size // 2), (1, 1)
        given = gradient, x, weight, None, *how, False, (0, 0), 1, wanted
        return torch.ops.aten.convolution_backward(*given)

    ours: dict[str, Callable[[], object]] = {
        "forward": partial(conv_kernels.convolve, x, weight, stride),
        "to the input": partial(conv_kernels.input_gradient, gradient, weight, stride),
        "to the weight": partial(conv_weight_kernels.weight_gradient, gradient, x, place, stride),
    }
    theirs: dict[str, Callable[[], object]] = {
        "forward": partial(torch.conv2d, x, weight, None, stride, size // 2),
        "to the input": partial(back, True, False, False),
        "to the weight": partial(back, False, True, False),
    }
    rows: list[Row] = []
    for kind, mine in ours.items():
        took = graphed(mine)
        rows.append((f"{name}, {kind}, us", took, math.inf))
        rows.append((f"{name}, {kind}, over cuDNN's", took / graphed(theirs[kind]), 1.0))
    return rows


def convolutions(_: list[str]) -> list[Row]:
    torch.backends.cudnn.benchmark = True
    return [row for name, layer in LAYERS.items() for row in beside_cudnn(name, *layer)]


def main(arguments: list[str]) -> int:
    if not torch.cuda.is_available():
        print("this machine shows no CUDA device; nothing measured")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    measures = {"walks": walks, "steps": steps, "convolutions": convolutions}
    if not arguments or arguments[0] not in measures:
        print(f"say what to measure: {', '.join(measures)}")
        return 2
    rows = measures[arguments[0]](arguments[1:])
    print(torch.cuda.get_device_name(), torch.__version__)
    for name, took, limit in rows:
        verdict = "" if limit == math.inf else f"  {limit:g}  {'ok' if took <= limit else 'missed'}"
        print(f"{name:50s} {took:9.3f}{verdict}")
    print(json.dumps({name: took for name, took, _ in rows}))
    return int(any(took > limit for _, took, limit in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
