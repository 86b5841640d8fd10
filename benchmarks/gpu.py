"""Speed of single walks on a CUDA device; ``benchmarks/fleet.py`` has those of fleets.

    python benchmarks/gpu.py baselines                  a step beside eager PyTorch, a CUDA graph
                                                        and torch.compile (the default)
    python benchmarks/gpu.py --ablate                   what each group of kernels saves of a step
    python benchmarks/gpu.py walks [mnist] [cifar10]    seconds for 100 training hops
    python benchmarks/gpu.py steps                      milliseconds of a ResNet-18's steps
    python benchmarks/gpu.py shared                     the same of 1, 2 and 3 processes at once
    python benchmarks/gpu.py convolutions               our convolutions beside cuDNN's

``--out DIR`` writes ``gpu_baselines.json`` or ``gpu_ablation.json`` there after each number, and
``--minutes`` ends these two measurements before the next number is begun.  Walks need the official
data (``unwalk data status``); the others draw theirs.  The first repeat of a walk captures and
compiles; the second is the number.  Exits with 1 when a number misses its limit, or one of the
first two could not be measured; without a device it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.baselines import (
    Report,
    captured,
    compile_much,
    compiling_norms,
    plain_step,
    seconds,
)
from unwalk.core.program import StepRule, Steps
from unwalk.core.token import Workspace, build_model
from unwalk.engines.cuda import CapturedSteps
from unwalk.engines.cuda.groups import without
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.run import Runner
from unwalk.settings.config import Value
from unwalk.tasks.models import MODELS

WALK_LIMITS = {"mnist": 1.5, "cifar10": 10.0}
STEPS = 64
SHARING = 4.0
"""Seconds that processes share the device."""
LAYERS = {  # channels in and out, places across, size, stride
    "64, 32 x 32": (64, 64, 32, 3, 1),
    "128, 16 x 16": (128, 128, 16, 3, 1),
    "256, 8 x 8": (256, 256, 8, 3, 1),
    "512, 4 x 4": (512, 512, 4, 3, 1),
    "64 to 128, stride 2": (64, 128, 32, 3, 2),
    "64 to 128, 1 x 1, stride 2": (64, 128, 32, 1, 2),
}
PLAIN, GROUPED, PRIVATE = (
    "ResNet-18",
    "ResNet-18 with GroupNorm",
    "ResNet-18 with GroupNorm, private",
)
MODELS_OF = {PLAIN: "resnet18-plain", GROUPED: "resnet18-gn", PRIVATE: "resnet18-gn"}
ABLATED = (  # the step that is measured, and the group of kernels that is switched off
    (PLAIN, "convolutions"),
    (PLAIN, "batch normalisation"),
    (GROUPED, "group normalisation"),
    (GROUPED, "convolutions"),
    (PRIVATE, "clipping"),
    (PRIVATE, "convolutions"),
)
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


def stepper(model: str, bound: float | None) -> Callable[[], None]:
    """So many captured steps of batch 64, clipped by record and noised if bounded."""
    device = torch.device("cuda")
    work = Workspace(build_model(lambda: MODELS[model].build((3, 32, 32), 10), 0), device)
    work.model.train()
    steps = CapturedSteps(work, None, precision="bfloat16", compiled=True)
    x = torch.randn(STEPS, 1, 64, 3, 32, 32, device=device)
    y = torch.randint(10, (STEPS, 1, 64), device=device)
    rows = np.zeros((STEPS, 1, 64), dtype=np.int64)
    noise = 0.0 if bound is None else 1e-3
    rule = StepRule("momentum")
    op = Steps(rows, "all", rule, 1e-4, clip_per_example=bound, noise=noise)
    moments = {"momentum": torch.zeros_like(work.parameters)}

    def run() -> None:
        steps.run(op, x, y, moments, 0, lambda: torch.randn_like(work.parameters))

    return run


def step(model: str, bound: float | None) -> float:
    """Milliseconds of a captured step."""
    run = stepper(model, bound)
    return seconds(run, torch.device("cuda")) / STEPS * 1e3  # the first of them captures


def our_step(kind: str, *off: str) -> float:
    """Milliseconds of one of the steps, with groups of kernels switched off."""
    with without(*off):
        return step(MODELS_OF[kind], 1.0 if kind == PRIVATE else None)


def steps(_: list[str]) -> list[Row]:
    return [(f"{kind}, ms a step", our_step(kind), math.inf) for kind in MODELS_OF]


def _sharing(model: str, bound: float | None, together: Barrier, done: Queue[int]) -> None:
    """What one of several processes does: captures, waits for the others, then counts its steps."""
    run = stepper(model, bound)
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    together.wait()
    count, end = 0, time.perf_counter() + SHARING
    while time.perf_counter() < end:
        run()
        torch.cuda.synchronize()
        count += STEPS
    done.put(count)


def shared(_: list[str]) -> list[Row]:
    """Milliseconds per step of all processes together; CUDA's multi-process service should run."""
    spawn = multiprocessing.get_context("spawn")
    rows: list[Row] = []
    for kind in (PLAIN, PRIVATE):
        for count in (1, 2, 3):
            together, done = spawn.Barrier(count), spawn.Queue()
            given = MODELS_OF[kind], 1.0 if kind == PRIVATE else None, together, done
            workers = [
                spawn.Process(target=_sharing, args=given, daemon=True) for _ in range(count)
            ]
            for worker in workers:
                worker.start()
            made = sum(done.get() for _ in workers)
            for worker in workers:
                worker.join()
            rows.append((f"{kind}, {count} at once, ms a step", SHARING / made * 1e3, math.inf))
    return rows


def baselines(report: Report) -> None:
    """A step of a ResNet-18 at batch 64 in bfloat16 by PyTorch in several ways, and by us."""
    x = torch.randn(64, 3, 32, 32, device="cuda")
    y = torch.randint(10, (64,), device="cuda")

    def make() -> torch.nn.Module:
        return MODELS["resnet18-plain"].build((3, 32, 32), 10)

    ours = report.measure(f"{PLAIN}, ours", lambda: our_step(PLAIN), "ms a step")
    ways: dict[str, tuple[str | None, bool]] = {
        "eager": (None, False),
        "eager, graph": (None, True),
        "torch.compile, graph": ("default", True),
        "max-autotune, graph": ("max-autotune-no-cudagraphs", True),
    }
    took = {}
    for way, (mode, graph) in ways.items():
        work = partial(plain_step, make, x, y, mode=mode, graph=graph)
        took[way] = report.measure(f"{PLAIN}, {way}", work, "ms a step")
        if not math.isnan(took[way] + ours):
            report.note(f"  {way} over ours", took[way] / ours)
    known = [value for value in took.values() if not math.isnan(value)]
    if known and not math.isnan(ours):
        report.note("best baseline over ours", min(known) / ours)


def ablate(report: Report) -> None:
    """Whole steps with groups of kernels replaced by cuDNN, torch.compile or plain torch."""
    whole: dict[str, float] = {}
    for kind, group in ABLATED:
        if kind not in whole:
            whole[kind] = report.measure(f"{kind}, all kernels", partial(our_step, kind), "ms")
        what = f"{kind}, without {group}"
        with compiling_norms():
            replaced = report.measure(what, partial(our_step, kind, group), "ms")
        report.group(f"{kind}, {group}", whole[kind], replaced)
        torch.cuda.empty_cache()


def graphed(work: Callable[[], object], repeats: int = 20) -> float:
    """Microseconds of a piece of work that is captured so many times over."""
    device = torch.device("cuda")

    def several() -> None:
        for _ in range(repeats):
            work()

    return seconds(captured(several, device), device) / repeats * 1e6


def beside_cudnn(
    name: str, inner: int, outer: int, across: int, size: int, stride: int
) -> list[Row]:
    """One layer at batch 64: microseconds, and over cuDNN's, which may try all its algorithms."""
    from unwalk.engines.cuda.kernels import convolution

    x, weight = (
        torch.randn(shape, device="cuda")
        .to(torch.bfloat16)
        .contiguous(memory_format=torch.channels_last)
        for shape in ((64, inner, across, across), (outer, inner, size, size))
    )
    if not convolution.fits(x, weight, stride):
        raise SystemExit("our convolutions do not run here; nothing measured")
    gradient, place = convolution.convolve(x, weight, stride), torch.empty_like(weight)

    def back(*wanted: bool) -> object:
        how = (stride, stride), (size // 2, size // 2), (1, 1)
        given = gradient, x, weight, None, *how, False, (0, 0), 1, wanted
        return torch.ops.aten.convolution_backward(*given)

    ours: dict[str, Callable[[], object]] = {
        "forward": partial(convolution.convolve, x, weight, stride),
        "to the input": partial(convolution.input_gradient, gradient, weight, stride),
        "to the weight": partial(convolution.weight_gradient, gradient, x, place, stride),
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    measures = {"walks": walks, "steps": steps, "shared": shared, "convolutions": convolutions}
    parser.add_argument("what", nargs="?", choices=("baselines", *measures), default="baselines")
    parser.add_argument("tasks", nargs="*", choices=(*WALK_LIMITS, []), metavar="TASK")
    parser.add_argument("--ablate", action="store_true", help="what each group of kernels saves")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=5.0)
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("this machine shows no CUDA device; nothing measured")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    if asked.ablate or asked.what == "baselines":
        compile_much()
        name = "gpu_ablation" if asked.ablate else "gpu_baselines"
        report = Report(name, asked.out, asked.minutes)
        (ablate if asked.ablate else baselines)(report)
        print(json.dumps(report.rows))
        return int(any(isinstance(value, str) for value in report.rows.values()))
    rows = measures[asked.what](asked.tasks)
    for name, took, limit in rows:
        verdict = "" if limit == math.inf else f"  {limit:g}  {'ok' if took <= limit else 'missed'}"
        print(f"{name:50s} {took:9.3f}{verdict}")
    print(json.dumps({name: took for name, took, _ in rows}))
    return int(any(took > limit for _, took, limit in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
