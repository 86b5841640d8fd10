"""Speed on a CUDA device: single walks and the batched steps of a fleet.

    python benchmarks/gpu.py walks [mnist] [cifar10]    seconds for 100 training hops
    python benchmarks/gpu.py fleet [FLNet]              microseconds for one step of one model

Walks need the official data (``unwalk data status``).  The first repeat of a walk captures and
compiles; the second is the number.  Fleet steps are timed as captured graphs, without the engine's
bookkeeping, and then in whole walks on drawn records, with it.  Exits with 1 when a number misses
its limit; without a device it says so and measures nothing.
"""

from __future__ import annotations

import collections
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from unwalk import walks
from unwalk.core.data import Shard
from unwalk.core.noise import SimulatedNoise
from unwalk.core.plan import Performance, Phase, Plan
from unwalk.core.program import Records, StepRule
from unwalk.core.seeds import PublicSeeds
from unwalk.core.workspace import Workspace, build_model
from unwalk.engines.batched import BatchedGradient
from unwalk.engines.fleet import Fleet
from unwalk.engines.team import Batch, Kind, StepGraph, Team
from unwalk.methods.local_work import Descent, LocalWork
from unwalk.methods.network_sgd import NetworkSGD
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.config import Value
from unwalk.runs.run import Runner
from unwalk.tasks.models import flnet, mlp, small_cnn

WALK_LIMITS = {"mnist": 1.5, "cifar10": 10.0}


@dataclass(frozen=True)
class Net:
    """A model, its inputs, how many at once, the most microseconds, and records of a peer."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    models: int
    limit: float
    records: int


FLEETS = {
    "digits CNN": Net(lambda: small_cnn((1, 8, 8), 10), (1, 8, 8), 1024, 3.0, 144),
    "FLNet": Net(lambda: flnet((1, 28, 28), 10), (1, 28, 28), 64, 60.0, 6000),
    "MLP 64-64-10": Net(lambda: mlp((64,), 10), (64,), 1024, 0.30, 144),
}
HOPS = 4
BATCH = 64


def seconds(work: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def walk(task: str, every: int = 1000) -> tuple[float, float]:
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
    for _ in range(2):
        runner, start = Runner(made), time.perf_counter()
        hops = sum(runner.walk("train", made.training(), None).seconds)
        whole = time.perf_counter() - start
    return hops, whole


def fleet_step(net: Net, precision: str) -> float:
    """Microseconds for one captured momentum step of one model."""
    work = Workspace(build_model(net.make, 0), "cuda")
    gradient = BatchedGradient(work.model, work.layout, None, precision)
    parameters = work.parameters.repeat(net.models, 1)
    buffers = {k: v.expand(net.models, *v.shape).clone() for k, v in work.buffers.items()}
    rule = StepRule("momentum")
    knobs = torch.tensor([[0.01, 1.0, float("inf"), 1.0, 0.9, 0.0]], device="cuda")
    moments = {"momentum": torch.zeros_like(parameters)}
    counters = parameters.new_zeros(net.models, 1)
    team = Team(parameters, buffers, moments, counters, knobs.repeat(net.models, 1))
    batch = Batch(
        x=torch.randn(net.models, BATCH, *net.shape, device="cuda"),
        y=torch.randint(10, (net.models, BATCH), device="cuda"),
        weights=torch.full((net.models, BATCH), 1.0 / BATCH, device="cuda"),
        active=torch.ones(net.models, 1, dtype=torch.bool, device="cuda"),
        noise=None,
    )
    kind = Kind(rule, None, clipped=False, noisy=False)
    graph = StepGraph(gradient, team, kind, batch, torch.cuda.graph_pool_handle())
    for _ in range(3):
        graph.replay()
    repeats = 20

    def many() -> None:
        for _ in range(repeats):
            graph.replay()

    return seconds(many) / repeats / net.models * 1e6


@dataclass(frozen=True, eq=False)
class Drawn:
    """Random pictures for peers that hold equally many."""

    net: Net
    peers: int = 4
    name: str = "drawn"
    loss: None = None
    shards: dict[int, Shard] = field(default_factory=dict)

    def model(self) -> nn.Module:
        return self.net.make()

    def records(self, peer: int) -> Records:
        return Records(self.net.records)

    def shard(self, peer: int) -> Shard:
        if peer not in self.shards:
            generator = torch.Generator().manual_seed(peer)
            x = torch.randn(self.net.records, *self.net.shape, generator=generator)
            y = torch.randint(10, (self.net.records,), generator=generator)
            self.shards[peer] = Shard(x, y, self.records(peer))
        return self.shards[peer]


def fleet_walk(net: Net, precision: str) -> float:
    """Microseconds for one step of one model in walks of a fleet: gathering and all bookkeeping.

    The difference of a longer and a shorter walk, so that setting up and capturing drop out.
    """
    task = Drawn(net)
    method = NetworkSGD(Descent(StepRule("momentum", learning_rate=0.01), LocalWork(batch=BATCH)))

    def hops(count: int) -> float:
        phase = Phase("train", method, walks.Uniform(), count)
        plans = [
            Plan(
                run="benchmark",
                task=task,
                graph=walks.complete(task.peers),
                phases=(phase,),
                seeds=PublicSeeds(seed),
                noise=SimulatedNoise(seed),
                performance=Performance(device="cuda", precision=precision),
            )
            for seed in range(net.models)
        ]

        def carry() -> None:
            collections.deque(Fleet().run(plans), maxlen=0)

        return seconds(carry)

    short, long = hops(3), hops(3 + HOPS)
    return (long - short) / HOPS / net.models / (net.records // BATCH) * 1e6


def main(arguments: list[str]) -> int:
    if not torch.cuda.is_available():
        print("this machine shows no CUDA device; nothing measured")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    what, *names = arguments or ["fleet"]
    rows = []
    if what == "walks":
        for task in names or list(WALK_LIMITS):
            rows.append((f"100 hops {task}, s", walk(task)[0], WALK_LIMITS[task]))
            rows.append((f"100 hops {task}, measured 20 times, s", walk(task, 5)[1], math.inf))
    else:
        for name, net in FLEETS.items():
            if names and name not in names:
                continue
            label = f"{name}, K = {net.models}, us a model-step"
            rows.append((label, fleet_step(net, "float32"), net.limit))
            rows.append((f"{label}, bfloat16", fleet_step(net, "bfloat16"), math.inf))
            rows.append((f"{label}, whole walks", fleet_walk(net, "float32"), math.inf))
            torch.cuda.empty_cache()
    print(torch.cuda.get_device_name(), torch.__version__)
    for name, took, limit in rows:
        print(f"{name:45s} {took:9.3f}  limit {limit:g}  {'ok' if took <= limit else 'missed'}")
    print(json.dumps({name: took for name, took, _ in rows}))
    return int(any(took > limit for _, took, limit in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
