"""Optimizer steps of many walks together: padded to the longest visit, masked where one is over.

Walks with the same kind of optimizer form a *team*: matrices with one row a walk, on which a step
works in place.  On a CUDA device a step that comes a second time is captured as a graph and
replayed; teams are then rounded up to a few sizes, with rows that take no part.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from unwalk.core.errors import InvalidInput
from unwalk.core.program import StepRule, Steps
from unwalk.engines.batched import BatchedGradient, Buffers
from unwalk.engines.depot import Depot
from unwalk.engines.execute import Bench, to_device
from unwalk.engines.team import Batch, Kind, StepGraph, Team, knobs_of, take_step

Party = Mapping[int, tuple[Steps, Bench]]
"""Row of the fleet: its operation and what it works with."""

SIZES = 8
"""Captured teams have one of so many sizes."""


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
        self.seen: set[tuple[object, ...]] = set()
        self.graphs: dict[tuple[object, ...], StepGraph] = {}
        self.pool = torch.cuda.graph_pool_handle() if parameters.is_cuda else None

    def run(self, party: Party) -> None:
        """Group walks by optimizer and take every group's steps."""
        groups: dict[tuple[object, ...], dict[int, tuple[Steps, Bench]]] = {}
        for row, (op, bench) in party.items():
            rule = op.rule
            key: tuple[object, ...]
            key = (rule.optimizer, rule.state, rule.betas, rule.damping, op.clip_per_example)
            if self.gradient.mixes_rows:
                key = (*key, op.batches.shape[1:])
            groups.setdefault(key, {})[row] = (op, bench)
        for group in groups.values():
            self._group(group)

    def _group(self, party: Party) -> None:
        ops = [op for op, _ in party.values()]
        kind = Kind(
            ops[0].rule,
            bound=ops[0].clip_per_example,
            clipped=any(op.clip is not None for op in ops),
            noisy=any(op.noise for op in ops),
        )
        if self.gradient.mixes_rows:
            for op in ops:
                _check_batch_norm(op)
        feed = _Feed(party, self.depot, self.parameters)
        graph = self._graph(kind, party, feed)
        team = graph.team if graph is not None else self._team(kind.rule, len(party))
        rows = to_device(torch.tensor(list(party)), self.parameters.device)
        self._load(team, kind.rule, rows, party)
        knobs = knobs_of(ops).to(team.knobs.dtype)
        team.knobs[: len(ops)] = to_device(knobs, self.parameters.device)
        for step in range(feed.steps):
            noise = self._noise(party, step) if kind.noisy else None
            if graph is not None:
                feed.fill(graph.batch, step, noise)
                graph.replay()
            else:
                take_step(self.gradient, team, kind, feed.batch(step, noise))
        self._store(team, kind.rule, rows, party)

    def _graph(self, kind: Kind, party: Party, feed: _Feed) -> StepGraph | None:
        """The captured step for a party like this, from the second one on."""
        if self.pool is None:
            return None
        some = -(-len(self.parameters) // SIZES)
        size = min(len(self.parameters), -(-len(party) // some) * some)
        key = (kind, size, feed.width, feed.shape)
        if key in self.graphs:
            return self.graphs[key]
        if key not in self.seen:
            self.seen.add(key)
            return None
        team = self._team(kind.rule, size)
        batch = feed.like(size, len(self.parameters[0]) if kind.noisy else 0)
        self.graphs[key] = StepGraph(self.gradient, team, kind, batch, self.pool)
        return self.graphs[key]

    def _team(self, rule: StepRule, size: int) -> Team:
        first = self.parameters[:1]
        return Team(
            parameters=first.repeat(size, 1),
            buffers={k: v[:1].repeat(size, *[1] * (v.dim() - 1)) for k, v in self.buffers.items()},
            moments={slot: torch.zeros_like(first).repeat(size, 1) for slot in rule.slots},
            counters=first.new_zeros(size, 1),
            knobs=first.new_zeros(size, 6),
        )

    def _load(self, team: Team, rule: StepRule, rows: torch.Tensor, party: Party) -> None:
        """Copy the party's rows into its team."""
        count = len(party)
        team.parameters[:count] = self.parameters[rows]
        for name, many in team.buffers.items():
            many[:count] = self.buffers[name][rows]
        counters = [0.0] * count
        if rule.state == "carried":
            counters = [float(bench.work.optimizer_steps) for _, bench in party.values()]
            for slot in rule.slots:
                team.moments[slot][:count] = self._carried(slot, party)[rows]
        elif rule.state == "local":
            counters = [float(bench.local.optimizer_steps) for _, bench in party.values()]
            zero = torch.zeros_like(self.parameters[0])
            for slot in rule.slots:
                held = [bench.local.moments.get(slot, zero) for _, bench in party.values()]
                team.moments[slot][:count] = torch.stack(held)
        else:
            for slot in rule.slots:
                team.moments[slot].zero_()
        seen = torch.tensor(counters, dtype=team.counters.dtype)
        team.counters[:count, 0] = to_device(seen, self.parameters.device)

    def _carried(self, slot: str, party: Party) -> torch.Tensor:
        """All walks' moments that travel; every walk's state shows its own row."""
        if slot not in self.moments:
            self.moments[slot] = torch.zeros_like(self.parameters)
        many = self.moments[slot]
        for row, (_, bench) in party.items():
            held = bench.work.moments.get(slot)
            if held is None:
                many[row] = 0.0
            elif held.data_ptr() != many[row].data_ptr():
                many[row] = held
            bench.work.moments[slot] = many[row]
        return many

    def _store(self, team: Team, rule: StepRule, rows: torch.Tensor, party: Party) -> None:
        """Copy the team's rows back, and give every walk or peer its moments."""
        count = len(party)
        self.parameters[rows] = team.parameters[:count]
        for name, many in team.buffers.items():
            self.buffers[name][rows] = many[:count]
        if rule.state == "carried":
            for slot in rule.slots:
                self.moments[slot][rows] = team.moments[slot][:count]
        for place, (op, bench) in enumerate(party.values()):
            steps = op.batches.shape[0]
            if rule.state == "carried":
                before = bench.work.optimizer_steps if rule.slots else 0
                bench.work.optimizer_steps = before + steps
            elif rule.state == "local":
                mine = {slot: team.moments[slot][place].clone() for slot in rule.slots}
                bench.local.moments.update(mine)
                before = bench.local.optimizer_steps if rule.slots else 0
                bench.local.optimizer_steps = before + steps

    def _noise(self, party: Party, step: int) -> torch.Tensor:
        """Each walk's own noise, in its own order; zero for walks whose visit is over."""
        drawn = [
            bench.normals() * op.noise
            if op.noise and step < op.batches.shape[0]
            else torch.zeros_like(bench.work.parameters)
            for op, bench in party.values()
        ]
        return torch.stack(drawn)


class _Feed:
    """The batches of a party, step by step."""

    def __init__(self, party: Party, depot: Depot, like: torch.Tensor) -> None:
        ops = [op for op, _ in party.values()]
        self.steps = max(op.batches.shape[0] for op in ops)
        self.width = max(op.batches[0].size for op in ops)
        rows = np.zeros((self.steps, len(ops), self.width), np.int64)
        weights = np.zeros(rows.shape, np.float64)
        active = np.zeros((self.steps, len(ops), 1), bool)
        for place, op in enumerate(ops):
            count, size = op.batches.shape[0], op.batches[0].size
            mine = op.batches.reshape(count, size)
            if op.weights is None:
                weights[:count, place, :size] = 1.0 / size
            else:
                weights[:count, place, :size] = op.weights.reshape(count, size)
                weights[:count, place, :size][mine < 0] = 0.0
                mine = np.maximum(mine, 0)
            rows[:count, place, :size] = mine
            active[:count, place] = True
        self.weights = to_device(torch.from_numpy(weights).to(like.dtype), like.device)
        self.active = to_device(torch.from_numpy(active), like.device)
        self.taken = depot.take(rows, [bench for _, bench in party.values()])
        self.shape = tuple(self.taken.shape)

    def batch(self, step: int, noise: torch.Tensor | None) -> Batch:
        """Everything that one step reads."""
        x, y = self.taken.step(step)
        return Batch(x, y, self.weights[step], self.active[step], noise)

    def like(self, size: int, noise: int) -> Batch:
        """A batch for ``size`` walks, to be filled; walks that never come are not active."""
        x, y = self.taken.step(0)
        return Batch(
            x=x[:1].repeat(size, *[1] * (x.dim() - 1)),
            y=y[:1].repeat(size, *[1] * (y.dim() - 1)),
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


def _check_batch_norm(op: Steps) -> None:
    if op.weights is not None or op.batches.shape[1] > 1:
        raise InvalidInput(
            "batch normalisation mixes the rows of a batch, so in a fleet every visit needs "
            "plain minibatches; use a GroupNorm model or the in-process engine."
        )
