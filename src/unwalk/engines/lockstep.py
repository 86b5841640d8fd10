"""Optimizer steps of many walks together: padded to the longest visit, masked where one is over.

Walks with the same kind of optimizer form a *team*: matrices with one row a walk, on which a step
works in place.  A team of all walks works on the fleet's own matrices, any other on copies.  On a
CUDA device a step that comes a second time is captured as a graph and replayed; teams are then
rounded up to a few sizes, with rows that take no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core import events as ev
from unwalk.core.errors import InvalidInput
from unwalk.core.program import StepRule, Steps
from unwalk.engines.batched import BatchedGradient, Buffers
from unwalk.engines.depot import Depot
from unwalk.engines.execute import Bench, to_device
from unwalk.engines.team import Batch, Kind, Step, StepGraph, Team, knobs_of

Party = dict[int, tuple[Steps, Bench]]
"""Row of the fleet: its operation and what it works with."""

SIZES = 8
"""Captured teams have one of so many sizes."""


@dataclass(eq=False)
class Order:
    """Walks whose steps differ in nothing but the rows they take: one of them, and what is told."""

    op: Steps
    event: ev.GradientSteps
    party: Party = field(default_factory=dict)


def settings(op: Steps, origin: str) -> tuple[object, ...]:
    """Equal for operations of one :class:`Order`, for as long as both are there."""
    return (
        *(op.batches.shape, op.weights is None, op.data, op.direction, op.step_size, op.scale),
        *(op.noise, id(op.rule), id(op.clip), id(op.clip_per_example), origin),
    )


class LockStep:
    """Takes the steps of many walks at once; row r of every matrix belongs to walk r."""

    def __init__(
        self, parameters: torch.Tensor, buffers: Buffers, gradient: BatchedGradient
    ) -> None:
        self.parameters = parameters
        self.buffers = buffers
        self.gradient = gradient
        self.depot = Depot(parameters.device)
        self.moments: dict[str, torch.Tensor] = {}
        self.shown: dict[str, tuple[torch.Tensor, ...]] = {}
        self.steps: dict[tuple[object, ...], Step] = {}
        self.pool = torch.cuda.graph_pool_handle() if parameters.is_cuda else None

    def run(self, orders: Iterable[Order]) -> None:
        """Group orders by optimizer and take every group's steps."""
        groups: dict[tuple[object, ...], list[Order]] = {}
        for order in orders:
            op, rule = order.op, order.op.rule
            key: tuple[object, ...]
            key = (rule.optimizer, rule.state, rule.betas, rule.damping, op.clip_per_example)
            if self.gradient.mixes_rows:
                _check_batch_norm(op)
                key = (*key, op.batches.shape[1:])
            groups.setdefault(key, []).append(order)
        for group in groups.values():
            self._group(group)

    def _group(self, orders: list[Order]) -> None:
        party = orders[0].party
        for order in orders[1:]:
            party = party | order.party
        party = party if len(orders) == 1 else dict(sorted(party.items()))
        kind = Kind(
            next(iter(party.values()))[0].rule,
            bound=orders[0].op.clip_per_example,
            clipped=any(order.op.clip is not None for order in orders),
            noisy=any(order.op.noise for order in orders),
        )
        if kind.rule.state == "carried":
            for slot in kind.rule.slots:
                self._carry(slot, party)
        feed = _Feed(orders, party, self.depot, self.parameters)
        step = self._step(kind, len(party), feed)
        team = step.team
        rows = None
        if team.parameters is not self.parameters:
            rows = to_device(torch.tensor(list(party)), self.parameters.device)
        self._load(team, kind.rule, rows, party)
        team.knobs[: len(party)] = feed.knobs
        for number in range(feed.steps):
            feed.fill(step.batch, number, self._noise(party, number) if kind.noisy else None)
            step.replay()
        self._store(team, kind.rule, rows, party)

    def _step(self, kind: Kind, count: int, feed: _Feed) -> Step:
        """What takes a step of so many walks; it is kept, and on a device captured, for later."""
        everyone = count == len(self.parameters)
        size = count
        if self.pool is not None:
            some = -(-len(self.parameters) // SIZES)
            size = min(len(self.parameters), -(-count // some) * some)
        key = (kind, size, everyone, feed.width, feed.taken.shape)
        held = self.steps.get(key)
        if held is None:
            team = self._team(kind.rule, size, everyone)
            batch = feed.room(size, self.parameters.shape[1] if kind.noisy else 0)
            held = Step(self.gradient, team, kind, batch)
            if self.pool is not None or everyone:
                self.steps[key] = held
        elif self.pool is not None and not isinstance(held, StepGraph):
            held.batch.active.zero_()
            held = self.steps[key] = StepGraph(
                self.gradient, held.team, kind, held.batch, self.pool
            )
        return held

    def _team(self, rule: StepRule, size: int, everyone: bool) -> Team:
        first = self.parameters[:1]
        carried = everyone and rule.state == "carried"
        parameters, buffers = self.parameters, self.buffers
        if not everyone:
            parameters = first.repeat(size, 1)
            buffers = {k: v[:1].repeat(size, *[1] * (v.dim() - 1)) for k, v in buffers.items()}
        return Team(
            parameters=parameters,
            buffers=buffers,
            moments={
                slot: self.moments[slot] if carried else torch.zeros_like(parameters)
                for slot in rule.slots
            },
            counters=first.new_zeros(size, 1),
            knobs=first.new_zeros(size, 6),
        )

    def _load(self, team: Team, rule: StepRule, rows: torch.Tensor | None, party: Party) -> None:
        """Put the party's rows into its team; no ``rows`` where they are the fleet's own."""
        count = len(party)
        if rows is not None:
            team.parameters[:count] = self.parameters[rows]
            for name, many in team.buffers.items():
                many[:count] = self.buffers[name][rows]
        seen: list[int] = []
        if rule.state == "carried":
            seen = [bench.work.optimizer_steps for _, bench in party.values()]
            if rows is not None:
                for slot in rule.slots:
                    team.moments[slot][:count] = self.moments[slot][rows]
        elif rule.state == "local":
            seen = [bench.local.optimizer_steps for _, bench in party.values()]
            zero = torch.zeros_like(self.parameters[0])
            for slot in rule.slots:
                held = [bench.local.moments.get(slot, zero) for _, bench in party.values()]
                team.moments[slot][:count] = torch.stack(held)
        else:
            for slot in rule.slots:
                team.moments[slot].zero_()
        if rule.optimizer == "adam":
            counters = torch.tensor(seen or [0] * count, dtype=team.counters.dtype)
            team.counters[:count, 0] = to_device(counters, self.parameters.device)

    def _carry(self, slot: str, party: Party) -> None:
        """Moments that travel stand in one matrix; every walk's state shows its own row."""
        if slot not in self.moments:
            self.moments[slot] = torch.zeros_like(self.parameters)
            self.shown[slot] = self.moments[slot].unbind()
        shown, blank = self.shown[slot], []
        for row, (_, bench) in party.items():
            held, mine = bench.work.moments.get(slot), shown[row]
            if held is mine:
                continue
            if held is None:
                blank.append(row)
            else:
                mine.copy_(held)
            bench.work.moments[slot] = mine
        if blank:
            where = to_device(torch.tensor(blank), self.parameters.device)
            self.moments[slot].index_fill_(0, where, 0.0)

    def _store(self, team: Team, rule: StepRule, rows: torch.Tensor | None, party: Party) -> None:
        """Put the team's rows back, and give every walk or peer its moments."""
        count = len(party)
        if rows is not None:
            self.parameters[rows] = team.parameters[:count]
            for name, many in team.buffers.items():
                self.buffers[name][rows] = many[:count]
            if rule.state == "carried":
                for slot in rule.slots:
                    self.moments[slot][rows] = team.moments[slot][:count]
        if rule.state == "carried":
            for op, bench in party.values():
                before = bench.work.optimizer_steps if rule.slots else 0
                bench.work.optimizer_steps = before + op.batches.shape[0]
        elif rule.state == "local":
            for slot in rule.slots:
                mine = [torch.empty_like(self.parameters[0]) for _ in party]
                torch._foreach_copy_(mine, list(team.moments[slot][:count].unbind()))
                for (_, bench), moment in zip(party.values(), mine, strict=True):
                    bench.local.moments[slot] = moment
            for op, bench in party.values():
                before = bench.local.optimizer_steps if rule.slots else 0
                bench.local.optimizer_steps = before + op.batches.shape[0]

    def _noise(self, party: Party, step: int) -> torch.Tensor:
        """Each walk's own noise, in its own order; zero for walks whose visit is over."""
        drawn = self.parameters.new_zeros(len(party), self.parameters.shape[1])
        for place, (op, bench) in enumerate(party.values()):
            if op.noise and step < op.batches.shape[0]:
                torch.mul(bench.normals(), op.noise, out=drawn[place])
        return drawn


class _Feed:
    """The batches of a party, step by step."""

    def __init__(
        self, orders: Sequence[Order], party: Party, depot: Depot, like: torch.Tensor
    ) -> None:
        shapes = [order.op.batches.shape for order in orders]
        self.steps = max(shape[0] for shape in shapes)
        self.width = max(shape[1] * shape[2] for shape in shapes)
        rows = np.zeros((self.steps, len(party), self.width), np.int64)
        weights = np.zeros(rows.shape, np.float64)
        active = np.zeros((self.steps, len(party), 1), bool)
        knobs = np.zeros((len(party), 6), np.float64)
        place_of = {row: place for place, row in enumerate(party)}
        for order, (count, parts, size) in zip(orders, shapes, strict=True):
            size *= parts
            ops = [op for op, _ in order.party.values()]
            places = [place_of[row] for row in order.party]
            mine = _by_step([op.batches for op in ops], count, size)
            if order.op.weights is None:
                weights[:count, places, :size] = 1.0 / size
            else:
                shares = _by_step([op.weights for op in ops if op.weights is not None], count, size)
                weights[:count, places, :size] = np.where(mine < 0, 0.0, shares)
                mine = np.maximum(mine, 0)
            rows[:count, places, :size] = mine
            active[:count, places] = True
            knobs[places] = knobs_of(order.op)
        self.weights = to_device(torch.from_numpy(weights).to(like.dtype), like.device)
        self.active = to_device(torch.from_numpy(active), like.device)
        self.knobs = to_device(torch.from_numpy(knobs).to(like.dtype), like.device)
        self.taken = depot.take(rows, [bench for _, bench in party.values()])

    def room(self, size: int, noise: int) -> Batch:
        """A batch for ``size`` walks, to be filled; walks that never come are not active."""
        x, y = self.taken.room(size, self.width)
        return Batch(
            x=x,
            y=y,
            weights=self.weights.new_zeros(size, self.width),
            active=self.active.new_zeros(size, 1),
            noise=self.weights.new_zeros(size, noise) if noise else None,
        )

    def fill(self, batch: Batch, step: int, noise: torch.Tensor | None) -> None:
        """Copy one step's batch in."""
        count = self.active.shape[1]
        self.taken.fill(batch.x[:count], batch.y[:count], step)
        batch.weights[:count] = self.weights[step]
        batch.active[:count] = self.active[step]
        batch.active[count:] = False
        if noise is not None and batch.noise is not None:
            batch.noise[:count] = noise


def _by_step(tables: list[npt.NDArray[Any]], count: int, size: int) -> npt.NDArray[Any]:
    """Tables of equal shape as one of (steps, walks, rows)."""
    return np.concatenate(tables).reshape(len(tables), count, size).swapaxes(0, 1)


def _check_batch_norm(op: Steps) -> None:
    if op.weights is not None or op.batches.shape[1] > 1:
        raise InvalidInput(
            "batch normalisation mixes the rows of a batch, so in a fleet every visit needs "
            "plain minibatches; use a GroupNorm model or the in-process engine."
        )
