"""A fleet of walks: what a step of one model takes, and what everything round it adds.

    python benchmarks/fleet.py [--device cpu|cuda] [--quick] [NAME ...]
    python benchmarks/fleet.py --ablate [--out DIR] [--minutes M] [NAME ...]

Whole walks on drawn records are timed hop by hop, and the median hop counts: route, batches,
gathering, transcript, all that is there.  On a CPU (the default where no CUDA device is) the time
inside the batched steps is taken out of the same hops: the rest is bookkeeping, and the whole over
the steps has a limit.  There only the MLP is walked unless others are named: batched convolutions
are slow, and hide all else.  Times are those that the process itself was given, so that others may
use the same cores.  On a CUDA device the step is timed by itself, as a captured graph, and beside
it the same step by ``vmap`` and ``torch.compile``, captured too; where that is quicker, the hours
that a fleet has to walk until it has made up for its start.  Lines of a transcript are hashed
when somebody reads them, which nobody does here.

``--ablate`` measures on a CUDA device what each group of kernels saves of a whole step, and writes
``DIR/fleet_ablation.json`` after each number.

Exits with 1 when a number misses its limit.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.baselines import Report, compile_much, plain_fleet_step, seconds
from unwalk import walks
from unwalk.core.data import Shard
from unwalk.core.noise import SimulatedNoise
from unwalk.core.plan import Performance, Phase, Plan, Progress
from unwalk.core.program import Records, StepRule
from unwalk.core.seeds import PublicSeeds
from unwalk.core.token import Workspace, build_model
from unwalk.engines import fleet_steps
from unwalk.engines.cuda import executor_for
from unwalk.engines.cuda.groups import without
from unwalk.engines.fleet import Fleet
from unwalk.engines.fleet_gradients import BatchedGradient
from unwalk.methods.network_sgd import Descent, LocalWork, NetworkSGD
from unwalk.tasks.models import flnet, mlp, small_cnn

BATCH = 64
WARM = 3
RULE = StepRule("momentum", learning_rate=0.01)
ABLATED = {
    "digits CNN": ("fleet convolutions", "fleet small layers", "fleet updates"),
    "FLNet": ("fleet convolutions", "fleet normalisation", "fleet updates"),
    "MLP 64-64-10": ("fleet updates",),
}
"""The groups of kernels that each model's step has."""


@dataclass(frozen=True)
class Net:
    """A model, its inputs, how many walks, the most microseconds a step, and a peer's records.

    ``walks`` is how many go together on a CUDA device and on a CPU, ``ratio`` the most that a
    whole hop on a CPU may take of its steps.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    walks: tuple[int, int]
    limit: float
    records: int
    ratio: float

    @property
    def steps(self) -> int:
        """Steps of a hop."""
        return self.records // BATCH


FLEETS = {
    "digits CNN": Net(lambda: small_cnn((1, 8, 8), 10), (1, 8, 8), (1024, 16), 3.0, 144, 1.1),
    "FLNet": Net(lambda: flnet((1, 28, 28), 10), (1, 28, 28), (64, 2), 60.0, 192, 1.1),
    "MLP 64-64-10": Net(lambda: mlp((64,), 10), (64,), (1024, 256), 0.30, 144, 1.4),
}


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


def batches(net: Net, device: str, models: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One batch per model."""
    x = torch.randn(models, BATCH, *net.shape, device=device)
    return x, torch.randint(10, (models, BATCH), device=device)


def our_step(
    net: Net, precision: str, off: Sequence[str] = (), device: str = "cuda", models: int = 0
) -> float:
    """Microseconds of one model's momentum step, captured, with groups of kernels switched off."""
    models, repeats = models or net.walks[0], 20
    with without(*off):
        work = Workspace(build_model(net.make, 0), device)
        gradient = BatchedGradient(work.model, work.layout, None, precision)
        parameters = work.parameters.repeat(models, 1)
        buffers = {k: v.expand(models, *v.shape).clone() for k, v in work.buffers.items()}
        knobs = torch.tensor([[0.01, 1.0, float("inf"), 1.0, 0.9, 0.0]], device=device)
        moments = {"momentum": torch.zeros_like(parameters)}
        counters = parameters.new_zeros(models, 1)
        team = fleet_steps.Team(parameters, buffers, moments, counters, knobs.repeat(models, 1))
        x, y = batches(net, device, models)
        batch = fleet_steps.Batch(
            x=x,
            y=y,
            weights=torch.full((models, BATCH), 1.0 / BATCH, device=device),
            active=torch.ones(models, 1, dtype=torch.bool, device=device),
            noise=None,
        )
        kind = fleet_steps.Kind(RULE, None, clipped=False, noisy=False, decays=False)
        executor = executor_for(parameters.device)
        step = fleet_steps.Step(gradient, team, kind, batch, executor)
        step.prepare()
    batch.active.fill_(True)

    def replays() -> None:
        for _ in range(repeats):
            step.replay()

    return seconds(replays, parameters.device) / repeats / models * 1e6


class Clock:
    """Watches the last walk of a fleet: the time after each of its hops, and within its steps."""

    def __init__(self, last: int, device: str) -> None:
        self.last, self.device = last, device
        self.inside = 0.0
        self.read: list[tuple[float, float]] = []

    def now(self) -> float:
        if self.device == "cpu":
            return time.thread_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def after(self, index: int, progress: Progress, look: Callable[[], Workspace]) -> None:
        if index == self.last:
            self.read.append((self.now(), self.inside))

    @contextmanager
    def watching_steps(self) -> Iterator[None]:
        """Add up what steps take, on a CPU."""
        take = fleet_steps.Step.take

        def timed(step: fleet_steps.Step) -> None:
            start = time.thread_time()
            take(step)
            self.inside += time.thread_time() - start

        with patch.object(fleet_steps.Step, "take", timed if self.device == "cpu" else take):
            yield


def walk(net: Net, device: str, models: int, hops: int, precision: str) -> tuple[float, float]:
    """Microseconds of a walk's median hop, in all and within the steps (0 on a CUDA device)."""
    task = Drawn(net)
    method = NetworkSGD(Descent(RULE, LocalWork(batch=BATCH)))
    phase = Phase("train", method, walks.Uniform(), WARM + hops)
    plans = [
        Plan(
            run="benchmark",
            task=task,
            graph=walks.complete(task.peers),
            phases=(phase,),
            seeds=PublicSeeds(seed),
            noise=SimulatedNoise(seed),
            performance=Performance(device=device, precision=precision),
        )
        for seed in range(models)
    ]
    clock = Clock(models - 1, device)
    with clock.watching_steps():
        collections.deque(Fleet().run(plans, clock), maxlen=0)
    # The first hops set up and capture; the last one checks and hashes every walk's end.
    taken = [
        (b[0] - a[0], b[1] - a[1]) for a, b in pairwise(clock.read[WARM - 1 : WARM + hops - 1])
    ]
    return median(t[0] for t in taken) / models * 1e6, median(t[1] for t in taken) / models * 1e6


Row = tuple[str, float, float]


def on_a_cpu(net: Net, name: str, quick: bool) -> Iterator[Row]:
    """The whole and its steps, per walk and hop."""
    models = net.walks[1] // (4 if quick else 1)
    whole, steps = walk(net, "cpu", max(models, 2), 4 if quick else 12, "float32")
    yield f"{name}, K = {models}, us a walk and hop", whole, math.inf
    yield "  of which round the steps", whole - steps, math.inf
    yield "  whole over steps", whole / steps, net.ratio


def on_a_device(net: Net, name: str, quick: bool) -> Iterator[Row]:
    """Steps as graphs, and steps of whole walks."""
    models = net.walks[0]
    label = f"{name}, K = {models}, us a model-step"
    ours = our_step(net, "float32")
    yield label, ours, net.limit
    theirs = start = math.nan
    if name != "FLNet":  # vmap does not take the running statistics of its normalisations
        theirs, start = plain_fleet_step(net.make, *batches(net, "cuda", models))
        yield f"{label}, vmap and torch.compile", theirs, math.inf
        yield "  that over ours", theirs / ours, math.inf
        yield "  seconds until its first step", start, math.inf
    yield f"{label}, bfloat16", our_step(net, "bfloat16"), math.inf
    whole = walk(net, "cuda", models, 4 if quick else 12, "float32")[0] / net.steps
    yield f"{label}, whole walks", whole, math.inf
    if theirs < ours:
        yield "  of which torch.compile would save", (ours - theirs) / whole, math.inf
        yield "  hours of walking until that pays", start / (ours - theirs) * whole / 3600, math.inf
    torch.cuda.empty_cache()


def compiled_step(net: Net) -> float:
    """Microseconds of one model's step by ``vmap`` and ``torch.compile``, captured."""
    return plain_fleet_step(net.make, *batches(net, "cuda", net.walks[0]))[0]


def ablate(report: Report, names: Sequence[str]) -> None:
    """Whole steps with groups of kernels replaced by torch.compile or plain torch.

    What stands beside a group is the faster of the step without it and the whole step by ``vmap``
    and ``torch.compile``.
    """
    for name in names:
        net, unit = FLEETS[name], "us a model-step"
        whole = report.measure(f"{name}, all kernels", partial(our_step, net, "float32"), unit)
        compiled = math.nan
        if name != "FLNet":
            work = partial(compiled_step, net)
            compiled = report.measure(f"{name}, vmap and torch.compile", work, unit)
            report.group(f"{name}, all of ours", whole, compiled)
        for group in ABLATED[name]:
            off = partial(our_step, net, "float32", (group,))
            replaced = report.measure(f"{name}, without {group}", off, unit)
            report.group(f"{name}, {group}", whole, min(replaced, compiled))
        torch.cuda.empty_cache()


def _ablate(asked: argparse.Namespace) -> int:
    if not torch.cuda.is_available():
        print("this machine shows no CUDA device; nothing measured")
        return 0
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    report = Report("fleet_ablation", asked.out, asked.minutes)
    ablate(report, asked.names or list(FLEETS))
    print(json.dumps(report.rows))
    return int(any(isinstance(value, str) for value in report.rows.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=here)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ablate", action="store_true", help="what each group of kernels saves")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("names", nargs="*", metavar="NAME")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    measure = on_a_cpu if asked.device == "cpu" else on_a_device
    usual = list(FLEETS) if asked.device == "cuda" else ["MLP 64-64-10"]
    if asked.device == "cuda":
        compile_much()
    if asked.ablate:
        return _ablate(asked)
    rows: list[Row] = []
    for chosen in asked.names or usual:
        for name, took, limit in measure(FLEETS[chosen], chosen, asked.quick):
            rows.append((name, took, limit))
            verdict = "ok" if took <= limit else "missed"
            after = "" if limit == math.inf else f"  {limit:g}  {verdict}"
            print(f"{name:50s} {took:9.3f}{after}", flush=True)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32
    print(json.dumps(rows))
    return int(any(took > limit for _, took, limit in rows))


if __name__ == "__main__":
    sys.exit(main())
