"""Random short programs of events, run by the product's own executor on tiny models.

A :class:`Case` is one program: phases, routes, operations and what its header says.  Cases are made
from the programs of the known methods, bent at random: every operation, any order, extreme values.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from unwalk import walks
from unwalk.core.data import Shard
from unwalk.core.plan import Move, Performance, Phase, Plan
from unwalk.core.program import (
    AddNoise,
    Ball,
    Forget,
    Program,
    Project,
    Records,
    ReplaceSums,
    StepRule,
    Steps,
    Visit,
)
from unwalk.core.seeds import PublicSeeds
from unwalk.core.transcript import Transcript
from unwalk.engines.inprocess import InProcess

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DATASETS = 16


@dataclass(frozen=True)
class Work:
    """Steps on a peer's records: batches of keyed slots, or of all records at once (``mean``)."""

    data: str
    kind: str = "slots"
    steps: int = 1
    key: int = 0
    step_size: float = 0.1
    optimizer: str = "sgd"
    state: str = "carried"
    weight_decay: float = 0.0
    direction: int = -1
    scale: float = 1.0
    clip: float | None = None
    clip_per_example: float | None = None
    noise: float = 0.0
    rounded: bool = True

    @property
    def travels(self) -> tuple[str, ...]:
        rule = StepRule(self.optimizer, state=self.state)
        return rule.slots if self.state == "carried" else ()


Template = tuple[Any, ...]


@dataclass(frozen=True)
class Part:
    """A phase: where it goes, and what it does there."""

    name: str
    route: tuple[int, ...]
    programs: tuple[Template, ...]
    start: str = "token"
    start_hop: int | None = None
    carries: bool = False
    keep: str = "last"
    reset_optimizer: bool = False

    @property
    def hops(self) -> int:
        return len(self.route)

    @property
    def works(self) -> list[Work]:
        return [op for program in self.programs for op in program if isinstance(op, Work)]


@dataclass(frozen=True)
class Case:
    """One program, its model and its public constants."""

    seed: int
    method: str
    phases: tuple[Part, ...]
    model: str = "softmax"
    inputs: int = 1
    outputs: int = 2
    dtype: str = "float64"
    peers: int = 2
    records: int = 2
    u: int = 0
    forgotten: int = 1
    norm: float = 1.0
    start: float = 0.0
    slots: int = 1
    slot_cap: int = 2
    nominal: float = 2.0
    delta: float = 1e-5
    said: Mapping[str, Any] = field(default_factory=dict)
    omitted: tuple[str, ...] = ()
    digests: bool = False

    @cached_property
    def theta0(self) -> Floats:
        rng = np.random.default_rng(self.seed)
        return self.start * rng.choice([-1.0, 0.5, 1.0], self.outputs * self.inputs)

    @property
    def size(self) -> int:
        return self.inputs * self.outputs

    def rows_of(self, peer: int, data: str, world: int) -> Ints:
        everything = np.arange(self.records)
        mine = self.forgotten if peer == self.u else 0
        if data == "forgotten":
            return everything[: mine if world else 0]
        if data == "retained" or not world:
            return everything[mine:]
        return everything

    def records_of(self, peer: int) -> Records:
        return Records(self.records, self.rows_of(peer, "forgotten", 1))

    def facts(self) -> dict[str, Any]:
        """What a truthful header says of this run."""
        last = self.phases[-1]
        before: list[Work] = [w for part in self.phases[:-1] for w in part.works]
        if self.method in ("release", "noisy-start"):
            before += last.works
        for op in last.programs[0] if last.programs else ():
            if isinstance(op, AddNoise):
                break
            before += [op] if isinstance(op, Work) else []
        slotted = all(work.kind == "slots" for work in before)
        keeps = [part.keep for part in self.phases[:-1] if part.keep != "last"]
        if self.method not in ("seal", "ball-seal") and last.keep != "last":
            keeps.append(last.keep)
        found: dict[str, Any] = {
            "method": self.method,
            "forget": self.forgotten,
            "epsilon": 1.0,
            "delta": self.delta,
            "attempt": 1,
            "normalisation": "published",
            "labels": "published",
            "iterate": keeps[0] if keeps else "last",
            "precision": self.dtype,
            "batching": "slots" if slotted else "full",
            "slots": self.slots,
            "nominal_batch": self.nominal,
            "slot_cap": self.slot_cap,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "initial_norm": float(np.linalg.norm(self.theta0)) * (1.0 + 1e-12),
        }
        loss = {"softmax": "softmax", "buffer": "of a model with layer Counting"}
        found |= {"loss": loss.get(self.model, "the task's own"), "feature_norm": self.norm}
        if self.method in ("rewind", "sisa"):
            found["rewind"] = "first-contact"
        found |= self.said
        return {name: value for name, value in found.items() if name not in self.omitted}


def weights_of(case: Case, work: Work, peer: int, world: int) -> Floats:
    """The weight of each of a peer's records in each step."""
    rows = case.rows_of(peer, "all" if work.data == "mixed" else work.data, world)
    weights = np.zeros((work.steps, case.records))
    if work.kind == "mean":
        weights[:, rows] = 1.0 / max(len(rows), 1)
        return weights
    capacity = case.slots * case.slot_cap
    for step in range(work.steps):
        epoch, slot = divmod(step, case.slots)
        order = _order(case.seed, work.key, epoch, capacity)
        weights[step, rows[order[rows] % case.slots == slot]] = 1.0 / case.nominal
    return weights


@lru_cache(maxsize=256)
def _order(seed: int, key: int, epoch: int, capacity: int) -> Ints:
    return np.random.default_rng((seed, key, epoch)).permutation(capacity)


def acts(case: Case, work: Work, peer: int, world: int) -> bool:
    """Whether the steps are taken at all: without a record only slots and noise are."""
    rows = case.rows_of(peer, "all" if work.data == "mixed" else work.data, world)
    if work.kind == "slots" or len(rows):
        return True
    return not world and work.noise > 0.0 and acts(case, work, peer, 1)


# Datasets


def datasets(case: Case) -> tuple[Floats, Ints]:
    """16 extreme ones: retained records random, aligned, zero or tiny, aligned with both labels;
    those to be forgotten duplicates, of opposite label, random or opposite; all as long as the
    header allows."""
    rng = np.random.default_rng((case.seed, 1))
    shape = (DATASETS, case.peers, case.records, case.inputs)
    random_ = rng.normal(size=shape)
    random_ /= np.linalg.norm(random_, axis=-1, keepdims=True)
    axis = np.zeros(case.inputs)
    axis[0] = 1.0
    x, y = random_.copy(), rng.integers(case.outputs if case.outputs > 1 else 2, size=shape[:-1])
    for number in range(DATASETS):
        kept, gone = divmod(number, 4)
        if kept == 1:
            x[number], y[number] = axis, 0
        elif kept == 2:
            x[number] *= 0.0 if number % 2 else 1e-8
        elif kept == 3:
            x[number], y[number] = axis, np.arange(case.records) % 2
        mine = x[number, case.u, : case.forgotten]
        mine[...] = (axis, axis, random_[number, case.u, : case.forgotten], -axis)[gone]
        y[number, case.u, : case.forgotten] = (0, 1, 1, 0)[gone]
    return x * case.norm * (1.0 - 1e-6), y


# The product's executor


class Counting(nn.Module):
    """A linear head that also keeps the sum of all inputs it saw, as a buffer."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs, bias=False, dtype=dtype)
        self.register_buffer("inputs", torch.zeros(inputs, dtype=dtype))
        self.inputs: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.inputs.add_(x.detach().sum(0))
        found: torch.Tensor = self.head(x)
        return found


def _squared(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 0.5 * (output - y[:, None]).square().sum(1)


@cache
def _linear(inputs: int, outputs: int) -> nn.Linear:
    """One layer for all walks of a shape: to initialise one takes longer than a visit."""
    return nn.Linear(inputs, outputs, bias=False)


@dataclass(frozen=True, eq=False)
class Task:
    case: Case
    x: Floats
    y: Ints
    name: str = "fuzz"

    @property
    def peers(self) -> int:
        return self.case.peers

    @property
    def loss(self) -> Any:
        return _squared if self.case.model == "quadratic" else None

    def model(self) -> nn.Module:
        case, dtype = self.case, getattr(torch, self.case.dtype)
        if case.model == "buffer":
            made: Any = Counting(case.inputs, case.outputs, dtype)
            head = made.head
        else:
            made = head = _linear(case.inputs, case.outputs)
        start = torch.from_numpy(case.theta0).to(dtype).reshape(head.weight.shape)
        head.weight = nn.Parameter(start)
        found: nn.Module = made
        return found

    def records(self, peer: int) -> Records:
        return self.case.records_of(peer)

    def shard(self, peer: int) -> Shard:
        x = torch.from_numpy(self.x[peer]).to(getattr(torch, self.case.dtype))
        return Shard(x, torch.from_numpy(self.y[peer]), self.records(peer))


@dataclass(frozen=True)
class Given:
    """A method that answers with the given programs."""

    case: Case
    part: Part
    name: str

    @property
    def travels(self) -> tuple[str, ...]:
        names = {name for work in self.part.works for name in work.travels}
        sums = any(isinstance(op, ReplaceSums) for ops in self.part.programs for op in ops)
        return (*sorted(names), *(("sums",) if sums else ()))

    def visit(self, visit: Visit) -> Program:
        found = (self._op(op, visit.peer) for op in self.part.programs[visit.phase_hop - 1])
        return tuple(op for op in found if op is not None)

    def _op(self, op: Any, peer: int) -> Any:
        if not isinstance(op, Work):
            return op
        if not acts(self.case, op, peer, 1):
            return None
        weights = weights_of(self.case, op, peer, 1)
        width = max(1, int((weights > 0).sum(1).max()))
        batches = np.full((len(weights), 1, width), -1, np.int64)
        shares = np.zeros((len(weights), 1, width))
        for step, row in enumerate(weights):
            members = np.flatnonzero(row)
            batches[step, 0, : len(members)] = members
            shares[step, 0, : len(members)] = row[members]
        rule = StepRule(op.optimizer, op.step_size, weight_decay=op.weight_decay, state=op.state)
        return Steps(
            batches,
            op.data,
            rule,
            op.step_size,
            op.direction,
            op.scale,
            op.clip,
            op.clip_per_example,
            op.noise,
            shares,
            rounded=op.rounded,
        )


@dataclass(frozen=True)
class Along:
    """The route that a part says."""

    route: tuple[int, ...]

    def next(self, graph: Any, at: int, memory: Mapping[str, int], rng: Any) -> Move:
        place = memory.get("place", 0)
        peer = self.route[place]
        return Move(peer, () if peer == at else (peer,), {"place": place + 1})


def normals(case: Case, hop: int, draw: int) -> Floats:
    """The noise of a walk that is compared number by number."""
    return _normals(case.seed, hop, draw, case.size)


@lru_cache(maxsize=256)
def _normals(seed: int, hop: int, draw: int, size: int) -> Floats:
    return np.random.default_rng((seed, hop, draw)).normal(size=size)


@dataclass(frozen=True)
class Scripted:
    """Noise that the twin knows too; it is not rounded, which only truth may leave out."""

    case: Case
    origin: str = "simulation"
    needs_digest: bool = False

    def draw(self, count: int, *, hop: int, step: int, **_: Any) -> torch.Tensor:
        return torch.from_numpy(normals(self.case, hop, step)).to(getattr(torch, self.case.dtype))

    def release(
        self, values: Any, *, std: float, grid: float, peer: int, hop: int, step: int
    ) -> tuple[Any, None]:
        return (values + std * normals(self.case, hop, step)).astype(values.dtype), None


def carried_out(case: Case, x: Floats, y: Ints) -> tuple[Transcript, Floats]:
    """The product's transcript and last model for one dataset."""
    phases = tuple(
        Phase(
            part.name,
            Given(case, part, case.method if part is case.phases[-1] else "network-sgd"),
            Along(part.route),
            part.hops,
            part.keep,
            part.reset_optimizer,
            part.carries,
            part.start,
            part.start_hop,
        )
        for part in case.phases
    )
    plan = Plan(
        "fuzz",
        Task(case, x, y),
        walks.complete(max(case.peers, 2)),
        phases,
        PublicSeeds(case.seed),
        Scripted(case),
        case.u,
        case.facts(),
        Performance(digests=case.digests),
        "all",
    )
    (outcome,) = InProcess().run([plan])
    return outcome.transcript, outcome.token.parameters.double().numpy().copy()


# Programs of the known methods


class Maker:
    """Makes cases from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed

    def one(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def maybe(self, chance: float) -> bool:
        return self.rng.random() < chance

    def spread(self, low: float, high: float) -> float:
        """A number whose logarithm is uniform."""
        return float(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def case(self) -> Case:
        made = self.valid()
        for _ in range(self.rng.choices((0, 1, 2, 3), (35, 40, 15, 10))[0]):
            made = self.bent(made)
        return made

    def valid(self) -> Case:
        names = ("seal", "release", "noisy-start", "ball-seal", "restart", "rewind", "sums", "rrdu")
        weights = (26, 14, 10, 16, 6, 10, 5, 13)
        method = self.rng.choices(names, weights)[0]
        peers, records = self.one(2, 3), self.one(2, 3)
        slots = self.one(1, 1, 2)
        cap = -(-records // slots)
        case = Case(
            seed=self.seed,
            method=method,
            phases=(),
            inputs=self.one(1, 2),
            outputs=self.one(2, 2, 3),
            peers=peers,
            records=records,
            u=self.rng.randrange(peers),
            forgotten=self.one(1, 1, 1, 2),
            norm=self.one(0.1, 0.1, 0.3, 1.0, 2.0),
            start=self.one(0.0, 1.0, 1.0, 30.0),
            slots=slots,
            slot_cap=cap,
            nominal=float(self.one(cap, cap, cap, cap / 2.0, 2 * cap)),
            delta=self.one(1e-5, 1e-5, 1e-3, 0.05),
        )
        made: Case = getattr(self, "_" + method.replace("-", "_"))(case)
        return made

    def _route(self, case: Case, low: int, high: int) -> list[int]:
        return [self.rng.randrange(case.peers) for _ in range(self.rng.randint(low, high))]

    def _onwards(self, case: Case) -> list[int]:
        """Up to two hops after the first, at u as often as not."""
        return [self.one(case.u, peer) for peer in self._route(case, 0, 2)]

    def _slotted(self, case: Case, data: str, epochs: int = 1, work: Work | None = None) -> Work:
        if work is not None:
            return replace(work, data=data, steps=case.slots * epochs, key=self.rng.randrange(9**6))
        beta = 0.5 * case.norm**2 * case.slot_cap / case.nominal
        decay = self.one(0.0, 0.0, 0.1, 1.0, 1.0)
        step = self.one(0.1, 0.5, 1.0, 1.9) / (beta + decay)
        if decay == 1.0 and beta < 0.2 and self.maybe(0.7):
            step = self.rng.uniform(0.8, 1.0)  # shrinks what was there to almost nothing
        return Work(
            data,
            "slots",
            case.slots * epochs,
            self.rng.randrange(9**6),
            min(step, 50.0),
            weight_decay=decay,
        )

    def _any(self, case: Case, data: str = "retained") -> Work:
        """Steps that nothing but post-processing may take."""
        optimizer = self.one("sgd", "sgd", "momentum", "adam")
        return Work(
            data,
            "mean",
            self.one(1, 1, 2),
            step_size=self.one(0.01, 0.5),
            optimizer=optimizer,
            state=self.one("fresh", "carried", "local"),
            weight_decay=self.one(0.0, 0.1),
            clip=self.one(None, None, 0.5),
            clip_per_example=self.one(None, None, None, 0.3),
        )

    def _training(self, case: Case, low: int = 1, high: int = 3) -> tuple[Part, Work, float]:
        """Slotted training, its kind of step, and a guess at the ledger's distance."""
        route = self._route(case, low, high)
        if self.maybe(0.7):
            route[self.rng.randrange(len(route))] = case.u
        kind = self._slotted(case, "all")
        epochs = self.one(1, 1, 2)
        programs = [(self._slotted(case, "all", epochs, kind),) for _ in route]
        push = kind.step_size * math.sqrt(2.0) * case.norm * case.forgotten / case.nominal
        apart = max(1, route.count(case.u)) * epochs * push
        return Part("train", tuple(route), tuple(programs)), kind, apart

    def _wiping(self, route: list[int], programs: list[Template]) -> tuple[Template, ...]:
        met: set[int] = set()
        found = []
        for peer, program in zip(route, programs, strict=True):
            found.append(program if peer in met else (Forget("local"), *program))
            met.add(peer)
        return tuple(found)

    def _later(self, case: Case, route: list[int], std: float) -> list[Template]:
        """Hops after a seal: anything without the records, or a visit with noise of its own."""
        found: list[Template] = []
        for peer in route:
            if peer == case.u and self.maybe(0.5):
                reach = std * self.spread(0.01, 3.0)
                work = replace(
                    self._any(case, self.one("forgotten", "mixed")),
                    optimizer="sgd",
                    weight_decay=0.0,
                    direction=1,
                    clip=1.0,
                    step_size=reach,
                    steps=1,
                )
                noise = AddNoise(std, reach * (1.0 if work.data == "forgotten" else 2.0))
                ball = Project((Ball("arrival", reach),))
                found.append((work, ball, noise) if self.maybe(0.85) else (work, noise))
            elif peer == case.u and self.maybe(0.5):
                clip, data = self.spread(0.01, 3.0), self.one("forgotten", "mixed", "all")
                found.append((replace(self._any(case, data), clip=clip, noise=1.0, state="fresh"),))
            else:
                found.append((self._any(case, "retained" if peer == case.u else "all"),))
        return found

    def _seal(self, case: Case) -> Case:
        train, kind, apart = self._training(case)
        first: list[Any] = [Forget("optimizer")]
        if self.maybe(0.5):
            first.append(self._slotted(case, "retained", self.one(1, 2, 4), kind))
        if self.maybe(0.3):
            first.append(Project((Ball(self.one("origin", "initial"), self.spread(0.1, 10.0)),)))
        std = apart * self.spread(0.5, 50.0)
        first.append(AddNoise(std))
        if self.maybe(0.5):
            first.append(self._any(case))
        if self.maybe(0.2):
            first.append(Project((Ball("origin", self.spread(0.1, 10.0)),)))
        route = self._onwards(case)
        programs = self._wiping([case.u, *route], [tuple(first), *self._later(case, route, std)])
        part = Part("forget", (case.u, *route), programs, carries=True)
        return replace(case, phases=(train, part))

    def _release(self, case: Case) -> Case:
        train, kind, apart = self._training(case)
        route = self._route(case, 1, 3)
        programs: list[Template] = []
        for peer in route:
            data = "retained" if peer == case.u else "all"
            programs.append((self._slotted(case, data, self.one(1, 1, 1, 6), kind),))
        programs[-1] = (*programs[-1], AddNoise(apart * self.spread(0.01, 30.0)))
        part = Part("forget", tuple(route), self._wiping(route, programs), carries=True)
        return replace(case, phases=(train, part))

    def _noisy_start(self, case: Case) -> Case:
        train, _, apart = self._training(case)
        std = apart * self.spread(0.3, 30.0)
        reach = Project((Ball("origin", self.spread(10.0, 1e3) * (1.0 + std)),))
        noisy = tuple((*program, AddNoise(std), reach) for program in train.programs)
        train = replace(train, programs=noisy)
        route = self._route(case, 1, 2)
        programs = [(self._slotted(case, "retained", 1, train.works[0]),) for _ in route]
        part = Part("forget", tuple(route), self._wiping(route, programs), carries=True)
        return replace(case, phases=(train, part))

    def _ball_seal(self, case: Case) -> Case:
        if self.maybe(0.6):
            case = replace(case, model="quadratic", outputs=1, inputs=self.one(1, 1, 2))
        elif self.maybe(0.2):
            case = replace(case, model="buffer")
        route = self._route(case, 1, 2)
        train = Part("train", tuple(route), tuple((self._any(case, "all"),) for _ in route))
        ball = Ball(self.one("origin", "initial"), self.spread(0.1, 10.0))
        std = ball.radius * self.spread(0.5, 30.0)
        first: list[Any] = []
        for _ in range(self.one(1, 1, 2, 3)):
            if self.maybe(0.4):
                first.append(replace(self._any(case), state="fresh"))
            first += [Project((ball,)), AddNoise(std)]
        if case.model == "buffer":
            first.insert(0, Forget("buffers"))
        if self.maybe(0.5):
            first.append(self._any(case))
        route = self._onwards(case)
        programs = self._wiping(
            [case.u, *route],
            [(Forget("optimizer"), *first), *self._later(case, route, std)],
        )
        part = Part("forget", (case.u, *route), programs, carries=True)
        return replace(case, phases=(train, part))

    def _restart(self, case: Case) -> Case:
        case = replace(case, model=self.one("softmax", "quadratic", "buffer"))
        if case.model == "quadratic":
            case = replace(case, outputs=1)
        case = replace(
            case, method=self.one("restart", "retrain"), dtype=self.one("float64", "float32")
        )
        route, again = self._route(case, 1, 2), self._route(case, 1, 3)
        train = Part("train", tuple(route), tuple((self._any(case, "all"),) for _ in route))
        programs: list[Template] = []
        for peer in again:
            work = self._any(case, "retained" if peer == case.u else "all")
            programs.append((work, Project((Ball("start", 2.0),))) if self.maybe(0.3) else (work,))
        part = Part("forget", tuple(again), self._wiping(again, programs), start="initial")
        return replace(case, phases=(train, part))

    def _rewind(self, case: Case) -> Case:
        shards = 2 if self.maybe(0.3) else 1
        case = replace(case, peers=3, model=self.one("softmax", "buffer"))
        kind: Any = self._any(case, "all")
        if case.model == "softmax" and self.maybe(0.1):
            kind = ReplaceSums("all", 1.0)
        parts: list[Part] = []
        for shard in range(shards):
            members = [peer for peer in range(case.peers) if peer % shards == shard]
            route = [self.one(*members) for _ in range(self.rng.randint(1, 4))]
            if case.u in members:
                route[self.rng.randrange(len(route))] = case.u
            parts.append(
                Part(f"train-{shard}", tuple(route), ((kind,),) * len(route), start="initial")
            )
        own = parts[case.u % shards]
        if self.maybe(0.1):
            if self.maybe(0.5):  # u is never visited, so that there is nothing to do
                parts = [self._without(part, case) for part in parts]
            parts.append(Part("forget", (), (), start="arrival", start_hop=1))
            said = {"shards": shards} if shards > 1 else {}
            name = "sisa" if shards > 1 else "rewind"
            return replace(case, method=name, phases=tuple(parts), said=said)
        hop = sum(part.hops for part in parts[: case.u % shards]) + own.route.index(case.u) + 1
        again = list(own.route[own.route.index(case.u) :])
        programs: list[Template] = [(replace(kind, data="retained"),) for _ in again]
        if getattr(kind, "state", "none") != "local":
            programs = list(self._wiping(again, programs))
        part = Part("forget", tuple(again), tuple(programs), start="arrival", start_hop=hop)
        if self.maybe(0.1):  # a ball round where the phase began, in both walks
            ball = Project((Ball("start", 0.01),))
            parts = [replace(p, programs=tuple((*ops, ball) for ops in p.programs)) for p in parts]
            part = replace(part, programs=tuple((*ops, ball) for ops in part.programs))
        if shards == 1 and own.hops > 1 and self.maybe(0.2):  # training in two phases
            cut = self.rng.randint(1, own.hops - 1)
            route, ops = parts[0].route, parts[0].programs
            second = Part("more", route[cut:], ops[cut:], start=self.one("token", "initial"))
            parts = [replace(parts[0], route=route[:cut], programs=ops[:cut]), second]
        if shards == 1:
            return replace(case, phases=(*parts, part))
        return replace(case, method="sisa", phases=(*parts, part), said={"shards": shards})

    def _without(self, part: Part, case: Case) -> Part:
        """The same walk without its visits to u."""
        kept = [k for k, peer in enumerate(part.route) if peer != case.u]
        if not kept:
            return part
        route, programs = (tuple(x[k] for k in kept) for x in (part.route, part.programs))
        return replace(part, route=route, programs=programs)

    def _sums(self, case: Case) -> Case:
        op = ReplaceSums("all", self.one(0.1, 1.0), self.one(20, 40))
        route = self._route(case, 1, 3)
        train = Part("train", tuple(route), ((op,),) * len(route))
        again = [case.u, *self._route(case, 0, 1)]
        part = Part(
            "forget", tuple(again), ((replace(op, data="retained"),),) * len(again), carries=True
        )
        return replace(case, phases=(train, part))

    def _rrdu(self, case: Case) -> Case:
        """Whatever its events allow: from a start without the records, noise at every touch."""
        if self.maybe(0.5):
            case = replace(case, model="quadratic", outputs=1, inputs=self.one(1, 2))
        route = [self.one(case.u, peer) for peer in self._route(case, 1, 4)]
        programs = self._wiping(route, self._later(case, route, self.spread(0.1, 10.0)))
        if self.maybe(0.5):
            return replace(case, phases=(Part("forget", tuple(route), programs, start="initial"),))
        train = Part("train", tuple(route), tuple((self._any(case, "all"),) for _ in route))
        part = Part("forget", tuple(route), programs, start="initial")
        return replace(case, phases=(train, part))

    # Bending

    def bent(self, case: Case) -> Case:
        bend = self.one(*_BENDS)
        made: Case = bend(self, case)
        return made

    def _change(self, case: Case, change: Callable[[Template, int], Template]) -> Case:
        """One program of one hop changed."""
        number = self.one(*range(len(case.phases)), len(case.phases) - 1)
        part = case.phases[number]
        if not part.programs:
            return case
        place = self.one(*range(part.hops))
        changed = change(part.programs[place], part.route[place])
        programs = (*part.programs[:place], changed, *part.programs[place + 1 :])
        return self._put(case, number, replace(part, programs=programs))

    def _put(self, case: Case, number: int, part: Part) -> Case:
        return replace(case, phases=(*case.phases[:number], part, *case.phases[number + 1 :]))

    def _number(self, near: float) -> float:
        """A value a program may hold in the place of ``near``: close, far, zero, negative."""
        return float(self.one(near * self.spread(0.01, 100.0), near / 1e3, near * 1e3, 0.0, -near))

    def bend_work(self, case: Case) -> Case:
        def change(program: Template, peer: int) -> Template:
            places = [k for k, op in enumerate(program) if isinstance(op, Work)]
            if not places:
                return program
            at = self.one(*places)
            old = program[at]
            name, value = self.one(
                ("optimizer", self.one("sgd", "momentum", "adam")),
                ("state", self.one("carried", "local", "fresh")),
                ("clip", self.one(None, 1.0, self.spread(1e-3, 1e3), 0.0, -1.0)),
                ("clip_per_example", self.one(None, 0.1, 1.0)),
                ("direction", -old.direction),
                ("scale", self.one(0.0, 0.5, 3.0, -1.0, 100.0)),
                ("noise", self.one(0.0, 1e-3, 1.0, 30.0)),
                ("weight_decay", self.one(0.0, 0.1, 1.0, 10.0, -0.5)),
                ("step_size", self._number(old.step_size)),
                ("data", self.one("all", "retained", "forgotten", "mixed")),
                ("data", self.one("all", "retained", "forgotten", "mixed")),
                ("steps", self.one(1, 2, 3, 8)),
                ("steps", self.one(1, 3)),
                ("kind", self.one("slots", "mean")),
                ("rounded", not old.rounded),
            )
            return (*program[:at], replace(old, **{name: value}), *program[at + 1 :])

        return self._change(case, change)

    def bend_noise(self, case: Case) -> Case:
        def change(program: Template, peer: int) -> Template:
            places = [k for k, op in enumerate(program) if isinstance(op, AddNoise)]
            if not places:
                return program
            at = self.one(*places)
            old = program[at]
            new = self.one(
                replace(old, std=self._number(old.std)),
                replace(old, std=old.std * self.spread(1e-3, 1e3)),
                replace(old, rounded=False),
                replace(old, sensitivity=self.one(None, 0.0, self._number(old.sensitivity or 1.0))),
            )
            return (*program[:at], new, *program[at + 1 :])

        return self._change(case, change)

    def bend_ball(self, case: Case) -> Case:
        def change(program: Template, peer: int) -> Template:
            places = [k for k, op in enumerate(program) if isinstance(op, Project)]
            if not places:
                return program
            at = self.one(*places)
            ball = program[at].balls[0]
            new = Ball(
                self.one(ball.centre, "origin", "initial", "start", "arrival"),
                self.one(
                    ball.radius, ball.radius * self.spread(1e-4, 1.0), self._number(ball.radius)
                ),
            )
            balls = (new,) if self.maybe(0.8) else (new, Ball("origin", 5.0))
            return (*program[:at], Project(balls), *program[at + 1 :])

        return self._change(case, change)

    def bend_order(self, case: Case) -> Case:
        def change(program: Template, peer: int) -> Template:
            if not program:
                return program
            ops = list(program)
            what = self.one("drop", "drop", "swap", "double")
            at = self.rng.randrange(len(ops))
            if what == "drop":
                del ops[at]
            elif what == "double":
                ops.insert(self.rng.randrange(len(ops) + 1), ops[at])
            else:
                other = self.rng.randrange(len(ops))
                ops[at], ops[other] = ops[other], ops[at]
            return tuple(ops)

        return self._change(case, change)

    def bend_insert(self, case: Case) -> Case:
        def change(program: Template, peer: int) -> Template:
            data = self.one("all", "retained", "forgotten", "mixed")
            centre = self.one("origin", "initial", "start", "arrival")
            op = self.one(
                self._any(case, data),
                replace(self._any(case, data), step_size=self.spread(0.01, 1e3)),
                replace(self._any(case, data), step_size=self.spread(1.0, 1e3), clip=None),
                self._slotted(case, data),
                replace(self._any(case, data), clip=1.0, noise=self.one(0.1, 1.0), state="fresh"),
                AddNoise(self.spread(1e-3, 1e3), self.one(None, 0.0, 1.0)),
                AddNoise(self.spread(1e-3, 1e3)),
                Project((Ball(centre, self.spread(1e-4, 1e1)),)),
                replace(
                    self._any(case), optimizer="sgd", step_size=self.spread(1.0, 1e3), clip=None
                ),
                Forget(self.one("local", "optimizer", "buffers")),
                ReplaceSums(self.one("all", "retained"), self.one(0.1, 1.0)),
            )
            at = self.rng.randrange(len(program) + 1)
            return (*program[:at], op, *program[at:])

        return self._change(case, change)

    def bend_phase(self, case: Case) -> Case:
        number = self.rng.randrange(len(case.phases))
        part = case.phases[number]
        change = self.one(
            {"start": self.one("token", "initial")},
            {"start": "arrival", "start_hop": self.rng.randint(1, 3)},
            {"start_hop": None if part.start_hop is None else max(1, part.start_hop - 1)},
            {"start_hop": None if part.start_hop is None else part.start_hop + 1},
            {"carries": not part.carries},
            {"keep": self.one("last", "average", "random")},
            {"reset_optimizer": not part.reset_optimizer},
        )
        return self._put(case, number, replace(part, **change))

    def bend_route(self, case: Case) -> Case:
        number = self.rng.randrange(len(case.phases))
        part = case.phases[number]
        route, programs = list(part.route), list(part.programs)
        at = self.rng.randrange(len(route)) if route else 0
        what = self.one("shorter", "longer", "elsewhere", "swap")
        if what == "longer" or not route:
            copy = programs[at] if programs else ()
            route.insert(at, route[at] if route else case.u)
            programs.insert(at, copy)
        elif what == "shorter" and (len(route) > 1 or (number and self.maybe(0.3))):
            del route[at], programs[at]
        elif what == "elsewhere" and case.method != "rewind" and not self._rewound(case, number):
            route[at] = self.rng.randrange(case.peers)
        else:
            other = self.rng.randrange(len(route))
            route[at], route[other] = route[other], route[at]
            programs[at], programs[other] = programs[other], programs[at]
        return self._put(case, number, replace(part, route=tuple(route), programs=tuple(programs)))

    def _rewound(self, case: Case, number: int) -> bool:
        shards = len(case.phases) - 1
        return case.method == "sisa" and number in (shards, case.u % max(shards, 1))

    def bend_return(self, case: Case) -> Case:
        """A walk that goes back goes back to another arrival at u, as far as training had left."""
        if case.method not in ("rewind", "sisa") or not case.phases[-1].route:
            return self.bend_work(case)
        last, parts = case.phases[-1], case.phases[:-1]
        own = parts[case.u % len(parts)] if case.method == "sisa" else parts[-1]
        before = sum(part.hops for part in parts[: parts.index(own)])
        places = [k for k, peer in enumerate(own.route) if peer == case.u]
        if not places:
            return case
        place = self.one(*places)
        again = own.route[place:]
        program = last.programs[-1]
        programs = self._wiping(list(again), [program] * len(again))
        start = before + place + 1
        part = replace(last, route=again, programs=programs, start_hop=start)
        return replace(case, phases=(*parts, part))

    def bend_sums(self, case: Case) -> Case:
        """One contribution of sums is another one than the others."""

        def change(program: Template, peer: int) -> Template:
            places = [k for k, op in enumerate(program) if isinstance(op, ReplaceSums)]
            if not places:
                return program
            at = self.one(*places)
            new = self.one({"bits": self.one(20, 30)}, {"strength": 3.0}, {"data": "all"})
            return (*program[:at], replace(program[at], **new), *program[at + 1 :])

        return self._change(case, change)

    def bend_touch(self, case: Case) -> Case:
        """Something else in a visit that uses the records with noise of its own."""

        def change(program: Template, peer: int) -> Template:
            places = [
                k
                for k, op in enumerate(program)
                if isinstance(op, Work) and op.data != "retained" and peer == case.u
            ]
            if not places:
                return program
            at = self.one(*places)
            if self.maybe(0.3):  # behind the projection, before the noise
                wide = replace(self._any(case), optimizer="sgd", clip=None, step_size=30.0)
                noisy = replace(program[at], noise=1.0, clip=1.0, weight_decay=10.0, step_size=1.0)
                return (*program[: at + 2], self.one(wide, noisy), *program[at + 2 :])
            back = replace(program[at], data="retained")
            new = self.one(
                (replace(program[at], clip=None),),
                (replace(program[at], optimizer="momentum", state=self.one("carried", "local")),),
                (replace(program[at], weight_decay=self.one(1.0, 10.0)),),
                (replace(program[at], steps=3),),
                (program[at], program[at]),
                (back, replace(program[at], steps=3)),
                (program[at], replace(program[at], noise=1.0, clip=1.0, data="mixed")),
            )
            return (*program[:at], *new, *program[at + 1 :])

        return self._change(case, change)

    def bend_seal(self, case: Case) -> Case:
        """Steps of one phase keep state from one to the next."""
        number = self.one(0, len(case.phases) - 1, len(case.phases) - 1)
        part = case.phases[number]
        kept = {"optimizer": "momentum", "state": self.one("carried", "local")}
        kept["step_size"] = self.spread(0.1, 100.0)

        def turned(op: Any) -> Any:
            return replace(op, **kept) if isinstance(op, Work) else op

        programs = tuple(
            tuple(turned(op) for op in ops if number or op != Forget("optimizer"))
            for ops in part.programs
        )
        return self._put(case, number, replace(part, programs=programs))

    def bend_case(self, case: Case) -> Case:
        facts = sorted(case.facts())
        names = ("seal", "release", "noisy-start", "ball-seal", "restart", "rewind", "sums", "rrdu")
        models = ("quadratic", "buffer") if case.outputs > 1 else ("quadratic",)
        return replace(
            case,
            **self.one(
                {"dtype": "float32"},
                {"dtype": "float32"},
                {"omitted": (*case.omitted, self.one(*facts))},
                {"digests": True},
                {"method": self.one(*names)},
                {"method": self.one(*names)},
                {"forgotten": self.rng.randint(1, case.records)},
                {"nominal": case.nominal * self.one(0.1, 0.5, 10.0)},
                {"norm": case.norm * self.one(0.01, 3.0, 100.0)},
                {"start": self.one(0.0, 1e-3, 1e3)},
                {"model": self.one(*models)},
            ),
        )

    def bend_all(self, case: Case) -> Case:
        """One setting changed in every work of the run, as a setting of the whole run does."""
        name, value = self.one(
            ("optimizer", self.one("momentum", "adam")),
            ("state", self.one("carried", "local", "fresh")),
            ("clip", self.spread(1e-2, 1.0)),
            ("clip_per_example", self.spread(1e-2, 1.0)),
            ("scale", self.one(0.3, 3.0)),
            ("direction", 1),
            ("weight_decay", self.one(0.5, 3.0, 30.0)),
            ("kind", "mean"),
            ("step_size", self.spread(1e-2, 1e2)),
            ("noise", self.spread(1e-2, 1e2)),
        )
        fresh = name == "optimizer" and self.maybe(0.6)

        def turned(op: Any) -> Any:
            if not isinstance(op, Work):
                return op
            return replace(op, **{name: value, **({"state": "fresh"} if fresh else {})})

        parts = [
            replace(part, programs=tuple(tuple(map(turned, ops)) for ops in part.programs))
            for part in case.phases
        ]
        return replace(case, phases=tuple(parts))


_BENDS: tuple[Callable[[Maker, Case], Case], ...] = (
    Maker.bend_work,
    Maker.bend_work,
    Maker.bend_noise,
    Maker.bend_ball,
    Maker.bend_order,
    Maker.bend_insert,
    Maker.bend_insert,
    Maker.bend_phase,
    Maker.bend_route,
    Maker.bend_case,
    Maker.bend_all,
    Maker.bend_return,
    Maker.bend_sums,
    Maker.bend_touch,
    Maker.bend_touch,
    Maker.bend_seal,
)
