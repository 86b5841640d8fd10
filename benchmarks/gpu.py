"""Speed on a CUDA device: single walks and the batched steps of a fleet.

    python benchmarks/gpu.py walks [mnist] [cifar10]    seconds for 100 training hops
    python benchmarks/gpu.py fleet                      microseconds for one step of one model

Walks need the official data (``unwalk data status``).  The first repeat of a walk captures and
compiles; the second is the number.  Fleet steps are timed as captured graphs, without the
engine's bookkeeping.  Exits with 1 when a number misses its limit; without a device
it says so and measures nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from unwalk.core.workspace import Workspace, build_model
from unwalk.engines.batched import BatchedGradient
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.config import Value
from unwalk.runs.run import Runner
from unwalk.tasks.models import flnet, mlp, small_cnn

WALK_LIMITS = {"mnist": 1.5, "cifar10": 10.0}
FLEETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, float]] = {
    "digits CNN": (lambda: small_cnn((1, 8, 8), 10), (1, 8, 8), 1024, 3.0),
    "FLNet": (lambda: flnet((1, 28, 28), 10), (1, 28, 28), 64, 60.0),
    "MLP 64-64-10": (lambda: mlp((64,), 10), (64,), 1024, 0.30),
}
BATCH = 64


def seconds(work: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def walk(task: str) -> float:
    """Seconds for 100 training hops, measured once at the end."""
    changes: dict[str, Value] = {
        "task": task,
        "preset": "paper-matched",
        "device": "cuda",
        "performance.precision": "bfloat16",
        "performance.compiled": True,
        "evaluate.every": 1000,
    }
    made = assemble(resolve(changes))
    times = []
    for _ in range(2):
        runner = Runner(made)
        times.append(sum(runner.walk("train", made.training(), None).seconds))
    return times[-1]


def fleet_step(make: Callable[[], nn.Module], shape: tuple[int, ...], models: int) -> float:
    """Microseconds for one momentum step of one model, ``models`` at once."""
    work = Workspace(build_model(make, 0), "cuda")
    gradient = BatchedGradient(work.model, work.layout, None)
    parameters = work.parameters.repeat(models, 1)
    velocity = torch.zeros_like(parameters)
    buffers = {k: v.expand(models, *v.shape).clone() for k, v in work.buffers.items()}
    x = torch.randn(models, BATCH, *shape, device="cuda")
    y = torch.randint(10, (models, BATCH), device="cuda")
    weights = torch.full((models, BATCH), 1.0 / BATCH, device="cuda")

    def step() -> None:
        change, _ = gradient(parameters, buffers, x, y, weights)
        velocity.mul_(0.9).add_(change)
        parameters.sub_(velocity, alpha=0.01)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
    repeats = 20

    def many() -> None:
        for _ in range(repeats):
            graph.replay()

    return seconds(many) / repeats / models * 1e6


def main(arguments: list[str]) -> int:
    if not torch.cuda.is_available():
        print("this machine shows no CUDA device; nothing measured")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    what, *names = arguments or ["fleet"]
    rows = []
    if what == "walks":
        for task in names or list(WALK_LIMITS):
            rows.append((f"100 hops {task}, s", walk(task), WALK_LIMITS[task]))
    else:
        for name, (make, shape, models, limit) in FLEETS.items():
            took = fleet_step(make, shape, models)
            rows.append((f"{name}, K = {models}, us a model-step", took, limit))
    print(torch.cuda.get_device_name(), torch.__version__)
    for name, took, limit in rows:
        print(f"{name:45s} {took:9.3f}  limit {limit:g}  {'ok' if took <= limit else 'missed'}")
    print(json.dumps({name: took for name, took, _ in rows}))
    return int(any(took > limit for _, took, limit in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
