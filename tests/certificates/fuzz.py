"""Random short programs of events, run by the product's own executor on tiny models.

A :class:`Case` is one program: phases, routes, operations and what its header says.  Cases are made
from the programs of the known methods, bent at random: every operation, any order, extreme values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    Program,
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
        """What a truthful header says of this run; of batches it knows training's first ones, and
        each event speaks for itself."""
        last = self.phases[-1]
        slotted = all(work.kind == "slots" for work in self.phases[0].works[:1])
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
        slotted = op.kind == "slots" and op.data != "mixed"
        width = max(self.case.slot_cap, int((weights > 0).sum(1).max()))
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
            batching="slots" if slotted else "other" if op.data == "mixed" else "full",
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

    def draw(self, like: torch.Tensor, *, hop: int, step: int, **_: Any) -> torch.Tensor:
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
