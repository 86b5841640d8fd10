"""Speed of single walks on a CUDA device; ``benchmarks/fleet.py`` has those of fleets.

    python benchmarks/gpu.py baselines                  a step beside eager PyTorch, a CUDA graph
                                                        and torch.compile (the default)
    python benchmarks/gpu.py --ablate                   what each group of kernels saves of a step
    python benchmarks/gpu.py walks [mnist] [cifar10]    seconds for 100 training hops
    python benchmarks/gpu.py hops [mnist] [cifar10]     where the time of a walk goes
    python benchmarks/gpu.py steps                      milliseconds of a ResNet-18's steps
    python benchmarks/gpu.py shared                     the same of 1, 2 and 3 walks at once, in
                                                        streams of one process and in processes
    python benchmarks/gpu.py processes                  the same of 1 to 5 processes alone
    python benchmarks/gpu.py kernels                    what these steps spend their time on
    python benchmarks/gpu.py convolutions               our convolutions beside cuDNN's

``--out DIR`` writes ``gpu_baselines.json`` or ``gpu_ablation.json`` there after each number, and
``--minutes`` ends these two measurements before the next number is begun.  Walks need the official
data (``unwalk data status``); the others draw theirs.  The first repeat of a walk captures and
compiles; the second is the number.  Exits with 1 when a number misses its limit, or one of the
first two could not be measured; without a device it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from unittest.mock import patch

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
from unwalk.tasks import cifar10, official
from unwalk.tasks.models import MODELS

WALK_LIMITS = {"mnist": 1.5, "cifar10": 10.0}
STEPS = 64
MOST = 3
"""How many walks share the device, at most."""
MANY = 5
"""The same where only processes are measured."""
SHARING = 2.0
"""Seconds that they share it, for each number of walks."""
FAST: dict[str, Value] = {
    "preset": "paper-matched",
    "device": "cuda",
    "performance.precision": "bfloat16",
    "performance.compiled": True,
    "evaluate.every": 1000,
}
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
SHARED = (PLAIN, PRIVATE)
ABLATED = (  # the step that is measured, and the group of kernels that is switched off
    (PLAIN, "convolutions"),
    (PLAIN, "batch normalisation"),
    (PLAIN, "updates"),
    (GROUPED, "group normalisation"),
    (GROUPED, "convolutions"),
    (PRIVATE, "clipping"),
    (PRIVATE, "convolutions"),
)
Row = tuple[str, float, float]


def walk(task: str, every: int = 1000, repeats: int = 2) -> tuple[float, float]:
    """Seconds for 100 training hops, and with the measuring every so many hops and at the end."""
    made = assemble(resolve({**FAST, "task": task, "evaluate.every": every}))
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


def drawn(task: str, root: Path | None = None) -> dict[str, bytes]:
    """Files as large as a task's official ones, with pictures and labels drawn at random."""
    rng, files = np.random.default_rng(0), {}
    for file in official.DATASETS[task].files:
        name = Path(file.name).name
        if task == "cifar10":
            records = rng.integers(
                256, size=(cifar10.BATCH_RECORDS, cifar10.RECORD), dtype=np.uint8
            )
            records[:, 0] %= 10
            files[name] = records.tobytes()
            continue
        count = 60_000 if name.startswith("train") else 10_000
        shape = (count, 28, 28) if "images" in name else (count,)
        values = rng.integers(256 if len(shape) == 3 else 10, size=shape, dtype=np.uint8)
        head = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
        files[name] = gzip.compress(head + values.tobytes(), 0)
    return files


def hops(tasks: list[str], device: str = "cuda", count: int = 20) -> Iterator[Row]:
    """Where the time of a walk goes; on drawn pictures, which train as fast as any."""
    for task in tasks or list(WALK_LIMITS):
        start = time.perf_counter()
        with patch.object(official, "read", drawn):
            made = assemble(resolve({**FAST, "task": task, "device": device}))
        yield f"{task}, reading and dealing the records, s", time.perf_counter() - start, math.inf
        start = time.perf_counter()
        runner = Runner(made)
        yield f"{task}, the sets that are measured, s", time.perf_counter() - start, math.inf
        took, worked = [], []
        for length in (1, 1, count + 1):  # in the first of them Triton compiles
            config = replace(made.config, train=replace(made.config.train, hops=length))
            plan = replace(made, config=config).training()
            start, begun = time.perf_counter(), time.process_time()
            walked = runner.walk("train", plan, None)
            took.append(time.perf_counter() - start)
            worked.append(time.process_time() - begun)
        yield f"{task}, first walk of a hop, s", took[0], math.inf
        yield f"{task}, second walk of a hop, s", took[1], math.inf
        yield f"{task}, each further hop, ms", (took[2] - took[1]) / count * 1e3, math.inf
        each = (worked[2] - worked[1]) / count * 1e3
        yield f"{task}, each further hop, ms of a processor", each, math.inf
        runner.meter.read(walked.model, 1, "train")
        start = time.perf_counter()
        runner.meter.read(walked.model, 1, "train")
        yield f"{task}, measuring, ms", (time.perf_counter() - start) * 1e3, math.inf


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


def _laps(run: Callable[[], None]) -> float:
    """Steps per second, over the time that processes share the device."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < SHARING:
        run()
        torch.cuda.synchronize()
        count += STEPS
    return count / (time.perf_counter() - start)


def _sharing(number: int, most: int, begun: float, together: Barrier, done: Queue[float]) -> None:
    """One of several processes: captures all kinds, then takes part where it is one of so many."""
    runs = [stepper(MODELS_OF[kind], 1.0 if kind == PRIVATE else None) for kind in SHARED]
    for run in runs:
        run()
    torch.cuda.synchronize()
    done.put(time.time() - begun)
    for run in runs:
        for count in range(1, most + 1):
            together.wait()
            if number < count:
                done.put(_laps(run))


def processes(most: int = MANY) -> Iterator[Row]:
    """Milliseconds per step of all processes together."""
    spawn = multiprocessing.get_context("spawn")
    together, done = spawn.Barrier(most), spawn.Queue()
    workers = [
        spawn.Process(target=_sharing, args=(n, most, time.time(), together, done), daemon=True)
        for n in range(most)
    ]
    for worker in workers:
        worker.start()
    first = max(done.get(timeout=100) for _ in workers)
    yield "until each process has taken its first steps, s", first, math.inf
    for kind in SHARED:
        for count in range(1, most + 1):
            rate = sum(done.get(timeout=60) for _ in range(count))
            yield f"{kind}, processes: {count}, ms a step", 1e3 / rate, math.inf
    for worker in workers:
        worker.join()


def in_streams(kind: str) -> Iterator[Row]:
    """Milliseconds per step of walks that take turns to queue steps on streams of their own."""
    walks = []
    for stream in [torch.cuda.Stream() for _ in range(MOST)]:
        with torch.cuda.stream(stream):
            run = stepper(MODELS_OF[kind], 1.0 if kind == PRIVATE else None)
            run()
        walks.append((stream, run))
    for count in range(1, MOST + 1):
        turns = max(1, round(SHARING / (STEPS * count * 1e-3)))
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(turns):
            for stream, run in walks[:count]:
                with torch.cuda.stream(stream):
                    run()
        queued = time.perf_counter() - start
        torch.cuda.synchronize()
        each = 1e3 / (turns * count * STEPS)
        took = time.perf_counter() - start
        yield f"{kind}, streams: {count}, ms a step", took * each, math.inf
        yield "  until it was queued", queued * each, math.inf


def shared(_: list[str]) -> Iterator[Row]:
    """Steps of several walks at once: in a process with streams, and in processes.

    Without CUDA's multi-process service, processes take turns on the device.
    """
    for kind in SHARED:
        yield from in_streams(kind)
        gc.collect()
    yield from processes(MOST)


def kernels(_: list[str]) -> list[Row]:
    """Milliseconds that each kernel takes of a step, while no other runs beside it."""
    rows: list[Row] = []
    for kind in SHARED:
        run = stepper(MODELS_OF[kind], 1.0 if kind == PRIVATE else None)
        run()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            torch.cuda.synchronize()
        found = sorted(profile.key_averages(), key=lambda k: -k.self_device_time_total)
        for one in found:
            name = f"{kind}, {one.count / STEPS:g} x {one.key}"
            rows.append((name, one.self_device_time_total / STEPS / 1e3, math.inf))
        total = sum(one.self_device_time_total for one in found) / STEPS / 1e3
        rows.append((f"{kind}, all kernels, ms a step", total, math.inf))
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
    measures: dict[str, Callable[[list[str]], Iterable[Row]]] = {
        "walks": walks,
        "hops": hops,
        "steps": steps,
        "shared": shared,
        "processes": lambda _: processes(),
        "kernels": kernels,
        "convolutions": convolutions,
    }
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
    rows: list[Row] = []
    for name, took, limit in measures[asked.what](asked.tasks):
        verdict = "" if limit == math.inf else f"  {limit:g}  {'ok' if took <= limit else 'missed'}"
        print(f"{name:50s} {took:9.3f}{verdict}", flush=True)
        rows.append((name, took, limit))
    print(json.dumps({name: took for name, took, _ in rows}))
    return int(any(took > limit for _, took, limit in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
