"""What a hop costs beside a bare PyTorch loop, and with more and more peers.

    python benchmarks/walk.py [--quick] [--json]

The first part races unwalk's engine against a loop as one would write it by hand: same model, same
batches in the same order, ``torch.optim.SGD`` with momentum, one thread, nothing evaluated.  After
each hop of the engine the loop takes the same hop, so that both meet the same disturbances of a
busy machine, and the ratio is the median over hops of their two times.  The loop is given the route
and the batches for nothing; unwalk draws them, keeps its transcript and checks for NaN in its own
time.  In the end both must have the same parameters, or the race does not count.

The second part walks on ``blobs`` with 10, 1,000 and 100,000 peers, in turns.  A first visit makes
the peer's records, a later one finds them, so the two are told apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from unwalk import walks
from unwalk.core.noise import SimulatedNoise
from unwalk.core.plan import Method, Phase, Plan, Progress, Task
from unwalk.core.program import Program, StepRule, Steps, Visit
from unwalk.core.seeds import PublicSeeds
from unwalk.core.token import Workspace, build_model
from unwalk.engines.inprocess import InProcess
from unwalk.methods.network_sgd import Descent, LocalWork, NetworkSGD
from unwalk.tasks import Deletion, ShardedTask, build_task, from_arrays

PEERS = (10, 1_000, 100_000)
ROUNDING = 1e-4  # relative distance of parameters below which two walks did the same work
GROWTH_LIMIT = 1.10  # a hop among many peers against one among ten: the same, but for noise
RULE = StepRule("momentum", learning_rate=0.02, momentum=0.9)


@dataclass(frozen=True)
class Result:
    """One line of the table: ``seconds`` a hop against ``base_seconds``, the median ratio."""

    name: str
    base: str
    seconds: float
    base_seconds: float
    ratio: float
    limit: float
    hops: int
    difference: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the ratio is within its limit."""
        return self.ratio <= self.limit


@dataclass(eq=False)
class Remembering:
    """A method that keeps its latest program, so that the loop can take the same batches."""

    method: NetworkSGD
    latest: Program = ()

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def travels(self) -> tuple[str, ...]:
        return self.method.travels

    def visit(self, visit: Visit) -> Program:
        self.latest = self.method.visit(visit)
        return self.latest


def plan(task: Task, method: Method, hops: int, seed: int = 0) -> Plan:
    """A walk that trains and does nothing else."""
    return Plan(
        run="benchmark",
        task=task,
        graph=walks.complete(task.peers),
        phases=(Phase("train", method, walks.Uniform(), hops),),
        seeds=PublicSeeds(seed),
        noise=SimulatedNoise(seed),
    )


# Part one: the race.


class Race:
    """A sink that lets the bare loop follow hop by hop, and times both."""

    def __init__(self, task: Task, hops: int) -> None:
        self.method = Remembering(NetworkSGD(Descent(RULE, LocalWork(batch=64))))
        self.plan = plan(task, self.method, hops)
        self.model = build_model(task.model, self.plan.seeds.integer("model")).train()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=RULE.learning_rate, momentum=RULE.momentum
        )
        self.ours: list[float] = []
        self.bare: list[float] = []
        self.started = 0.0

    def run(self) -> float:
        """Run it; returns the relative distance between the parameters of both."""
        self.started = perf_counter()
        (outcome,) = InProcess().run([self.plan], self)
        bare = torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])
        return float((outcome.token.parameters - bare).norm() / bare.norm())

    def after(self, index: int, progress: Progress, look: Callable[[], Workspace]) -> None:
        """The engine has done a hop: now the loop does it."""
        self.ours.append(perf_counter() - self.started)
        shard = self.plan.task.shard(progress.token.at)
        (steps,) = self.method.latest
        assert isinstance(steps, Steps)
        batches = [torch.from_numpy(rows) for (rows,) in steps.batches]
        # Dropout: put the global generator back to where the engine's visit began.
        torch.default_generator.manual_seed(torch.initial_seed())
        started = perf_counter()
        bare_hop(self.model, self.optimizer, shard.x, shard.y, batches)
        self.bare.append(perf_counter() - started)
        self.started = perf_counter()


def bare_hop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: torch.Tensor,
    y: torch.Tensor,
    batches: Sequence[torch.Tensor],
) -> None:
    """The loop that unwalk is measured against."""
    for rows in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()


def race(name: str, task: ShardedTask, limit: float, hops: int, warm: int) -> Result:
    """Race on ``task``; the first ``warm`` hops do not count."""
    for peer in range(task.peers):
        task.shard(peer)
    run = Race(task, warm + hops)
    difference = run.run()
    if not difference <= ROUNDING:
        raise SystemExit(
            f"{name}: the parameters of unwalk and of the bare loop are {difference:.1e} apart; "
            f"the same work would leave them within {ROUNDING:.0e}."
        )
    ours, bare = run.ours[warm:], run.bare[warm:]
    return Result(
        name=name,
        base="bare loop",
        seconds=median(ours),
        base_seconds=median(bare),
        ratio=median(a / b for a, b in zip(ours, bare, strict=True)),
        limit=limit,
        hops=hops,
        difference=difference,
    )


def flnet() -> nn.Module:
    """A CNN of 62,538 parameters for 28 x 28 pictures, with BatchNorm and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(1024, 10),
    )  # fmt: skip


def pictures(records: int) -> ShardedTask:
    """Ten peers with random 28 x 28 pictures: what is on them does not change what a step costs."""
    rng = np.random.default_rng(0)
    count = 10 * records
    x = rng.standard_normal((count, 1, 28, 28), np.float32)
    y = rng.integers(10, size=count)
    return from_arrays(x, y, test=(x[:10], y[:10]), peers=10, classes=10, model=flnet)


def digits() -> ShardedTask:
    """The digits among ten peers: 143 records each, so that a hop is two steps of 64."""
    return build_task("digits", peers=10, forget=Deletion("nothing"))


# Part two: more peers.


@dataclass(eq=False)
class Stopwatch:
    """A sink that times every hop and tells first visits, which make the records, from others."""

    made: set[int]
    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    started: float = field(default_factory=perf_counter)

    def after(self, index: int, progress: Progress, look: Callable[[], Workspace]) -> None:
        """Note how long this hop took; the first of a walk, which sets it up, does not count."""
        took, peer = perf_counter() - self.started, progress.token.at
        if progress.token.hop > 1:
            (self.again if peer in self.made else self.first).append(took)
        self.made.add(peer)
        self.started = perf_counter()


def walk_among(peers: int, hops: int, seed: int) -> tuple[float, float]:
    """Median seconds of a first visit and of a later one."""
    task = build_task("blobs", peers=peers, seed=seed, forget=Deletion("nothing"))
    made = {task.unlearner}
    method = NetworkSGD(Descent(RULE, LocalWork(batch=64)))
    fresh, known = (_timed(plan(task, method, hops, seed), made) for _ in range(2))
    return median(fresh.first), median(known.again)


def _timed(walk: Plan, made: set[int]) -> Stopwatch:
    watch = Stopwatch(made)
    for _ in InProcess().run([walk], watch):
        pass
    return watch


def growth(rounds: int, hops: int) -> list[Result]:
    """Hops among many peers against hops among the fewest, in many short turns."""
    for peers in PEERS:
        walk_among(peers, hops, seed=rounds)  # warms up
    times = np.array([[walk_among(n, hops, seed=r) for n in PEERS] for r in range(rounds)])
    ratios = np.median(times / times[:, :1], axis=0)
    seconds = np.median(times, axis=0)
    return [
        Result(
            name=f"blobs, {peers:,} peers, {kind} visit",
            base=f"{PEERS[0]} peers",
            seconds=float(seconds[place, column]),
            base_seconds=float(seconds[0, column]),
            ratio=float(ratios[place, column]),
            limit=GROWTH_LIMIT,
            hops=rounds * hops,
        )
        for column, kind in enumerate(("first", "later"))
        for place, peers in enumerate(PEERS)
        if place
    ]


def measure(quick: bool) -> list[Result]:
    """All of it; ``quick`` shows that it runs, in too few hops for numbers to quote."""
    torch.set_num_threads(1)
    cnn = pictures(128 if quick else 600)
    return [
        race("CNN of 62,538 parameters, 28 x 28", cnn, 1.05, hops=5 if quick else 60, warm=1),
        race("digits, small CNN", digits(), 1.15, hops=40 if quick else 600, warm=10),
        *growth(rounds=9 if quick else 150, hops=12),
    ]


def table(results: Sequence[Result]) -> str:
    """What people read."""
    width = max(len(r.name) for r in results)
    lines = [
        f"{'':{width}}  {'ms/hop':>8}  {'against':>9}  {'ms/hop':>8}  {'ratio':>5}  {'limit':>5}"
    ]
    lines += [
        f"{r.name:{width}}  {1e3 * r.seconds:8.3f}  {r.base:>9}  {1e3 * r.base_seconds:8.3f}  "
        f"{r.ratio:5.3f}  {r.limit:5.2f}  {'ok' if r.ok else 'too slow'}"
        for r in results
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few hops: only shows that it runs")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(arguments)
    results = measure(options.quick)
    if options.json:
        print(json.dumps([{**asdict(r), "ok": r.ok} for r in results], indent=2))
    else:
        print(table(results))
    return 0 if all(r.ok for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
