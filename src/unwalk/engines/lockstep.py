"""Optimizer steps of many walks together: padded to the longest visit, masked where one is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from unwalk.core.errors import InvalidInput
from unwalk.core.program import StepRule, Steps
from unwalk.engines.batched import BatchedGradient, Buffers
from unwalk.engines.execute import Bench

Party = Mapping[int, tuple[Steps, Bench]]
"""Row of the fleet: its operation and what it works with."""


@dataclass(frozen=True, eq=False)
class _Feed:
    """Batches of a party: (steps, walks, rows, ...), weights and who takes part in which step."""

    x: torch.Tensor
    y: torch.Tensor
    weights: torch.Tensor
    active: torch.Tensor


class LockStep:
    """Takes the steps of many walks at once; row r of every matrix belongs to walk r."""

    def __init__(
        self, parameters: torch.Tensor, buffers: Buffers, gradient: BatchedGradient
    ) -> None:
        self.parameters = parameters
        self.buffers = buffers
        self.gradient = gradient

    def run(self, party: Party) -> None:
        """Group walks by optimizer and take every group's steps."""
        groups: dict[tuple[object, ...], dict[int, tuple[Steps, Bench]]] = {}
        for row, (op, bench) in party.items():
            rule = op.rule
            key = (rule.optimizer, rule.state, rule.betas, rule.damping, op.clip_per_example)
            groups.setdefault(key, {})[row] = (op, bench)
        for group in groups.values():
            self._group(group)

    def _group(self, party: Party) -> None:
        rows = torch.tensor(list(party), device=self.parameters.device)
        whole = len(party) == len(self.parameters)
        ops = [op for op, _ in party.values()]
        rule = ops[0].rule
        moments, counters = self._moments(rule, party)
        parameters = self.parameters if whole else self.parameters[rows]
        buffers = {k: v if whole else v[rows] for k, v in self.buffers.items()}
        taken = self._feed(party)
        knobs = _Knobs.of(ops, parameters)
        for step in range(taken.active.shape[0]):
            active = taken.active[step]
            if rule.slots:
                counters = counters + active
            gradient, fresh = self.gradient(
                parameters,
                buffers,
                taken.x[step],
                taken.y[step],
                taken.weights[step],
                ops[0].clip_per_example,
            )
            gradient = knobs.shape(gradient)
            if any(op.noise for op in ops):
                gradient = gradient + self._noise(party, step)
            knobs.apply(rule, parameters, gradient, moments, counters, active)
            buffers = {k: _where(active, fresh[k], v) for k, v in buffers.items()}
        self._put_back(rows, parameters, buffers)
        self._keep(rule, party, moments, counters)

    def _noise(self, party: Party, step: int) -> torch.Tensor:
        """Each walk's own noise, in its own order; zero for walks whose visit is over."""
        drawn = [
            bench.normals() * op.noise
            if op.noise and step < op.batches.shape[0]
            else torch.zeros_like(bench.work.parameters)
            for op, bench in party.values()
        ]
        return torch.stack(drawn)

    def _put_back(self, rows: torch.Tensor, parameters: torch.Tensor, buffers: Buffers) -> None:
        if parameters is not self.parameters:
            self.parameters[rows] = parameters
        for name, value in buffers.items():
            if value is not self.buffers[name]:
                self.buffers[name][rows] = value

    def _moments(
        self, rule: StepRule, party: Party
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """A matrix a moment vector, and how many steps each row has seen."""
        zero = torch.zeros_like(self.parameters[0])
        held: list[Mapping[str, torch.Tensor]] = []
        counts: list[int] = []
        for _, bench in party.values():
            if rule.state == "carried":
                held.append(bench.work.moments)
                counts.append(bench.work.optimizer_steps)
            elif rule.state == "local":
                held.append(bench.local.moments)
                counts.append(bench.local.optimizer_steps)
            else:
                held.append({})
                counts.append(0)
        moments = {slot: torch.stack([h.get(slot, zero) for h in held]) for slot in rule.slots}
        return moments, torch.tensor(counts, device=zero.device, dtype=zero.dtype)[:, None]

    def _keep(
        self,
        rule: StepRule,
        party: Party,
        moments: dict[str, torch.Tensor],
        counters: torch.Tensor,
    ) -> None:
        """Give every walk or peer its moments back."""
        for place, (op, bench) in enumerate(party.values()):
            mine = {slot: many[place] for slot, many in moments.items()}
            if rule.state == "carried":
                bench.work.moments.update(mine)
                bench.work.optimizer_steps += op.batches.shape[0]
            elif rule.state == "local":
                bench.local.moments.update({k: v.clone() for k, v in mine.items()})
                bench.local.optimizer_steps += op.batches.shape[0]

    def _feed(self, party: Party) -> _Feed:
        steps = max(op.batches.shape[0] for op, _ in party.values())
        width = max(op.batches[0].size for op, _ in party.values())
        xs, ys, ws, active = [], [], [], []
        for op, bench in party.values():
            if self.gradient.mixes_rows:
                _check_batch_norm(op, width)
            count, size = op.batches.shape[0], op.batches[0].size
            rows = np.full((steps, width), -1, np.int64)
            rows[:count, :size] = op.batches.reshape(count, size)
            weights = np.zeros((steps, width))
            if op.weights is None:
                weights[:count, :size] = 1.0 / size
            else:
                weights[:count, :size] = op.weights.reshape(count, size)
            weights[rows < 0] = 0.0
            index = torch.from_numpy(np.maximum(rows, 0).reshape(-1)).to(self.parameters.device)
            x, y = bench.shard.take(index, bench.generator)
            xs.append(x.view(steps, width, *x.shape[1:]))
            ys.append(y.view(steps, width, *y.shape[1:]))
            ws.append(torch.from_numpy(weights).to(self.parameters))
            active.append(np.arange(steps) < count)
        mask = torch.from_numpy(np.stack(active, 1)).to(self.parameters.device)
        return _Feed(torch.stack(xs, 1), torch.stack(ys, 1), torch.stack(ws, 1), mask[..., None])


def _check_batch_norm(op: Steps, width: int) -> None:
    if op.weights is not None or op.batches.shape[1] > 1 or op.batches[0].size != width:
        raise InvalidInput(
            "batch normalisation mixes the rows of a batch, so in a fleet every visit needs "
            "plain minibatches of one size; use a GroupNorm model or the in-process engine."
        )


@dataclass(frozen=True, eq=False)
class _Knobs:
    """Every walk's own numbers, as columns."""

    step_size: torch.Tensor
    scale: torch.Tensor
    clip: torch.Tensor
    sign: torch.Tensor
    momentum: torch.Tensor
    weight_decay: torch.Tensor

    @staticmethod
    def of(ops: list[Steps], like: torch.Tensor) -> _Knobs:
        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]

        return _Knobs(
            step_size=column([op.step_size for op in ops]),
            scale=column([op.scale for op in ops]),
            clip=column([float("inf") if op.clip is None else op.clip for op in ops]),
            sign=column([-float(op.direction) for op in ops]),
            momentum=column([op.rule.momentum for op in ops]),
            weight_decay=column([op.rule.weight_decay for op in ops]),
        )

    def shape(self, gradient: torch.Tensor) -> torch.Tensor:
        """Scaled and clipped."""
        gradient = gradient * self.scale
        norms = gradient.norm(dim=1, keepdim=True)
        factors: torch.Tensor = (self.clip / (norms + 1e-12)).clamp(max=1.0)
        return gradient * factors

    def apply(
        self,
        rule: StepRule,
        parameters: torch.Tensor,
        gradient: torch.Tensor,
        moments: dict[str, torch.Tensor],
        counters: torch.Tensor,
        active: torch.Tensor,
    ) -> None:
        """One optimizer step in place, for the rows that are active."""
        gradient = gradient * self.sign + self.weight_decay * parameters
        if rule.optimizer == "sgd":
            change = gradient
        elif rule.optimizer == "momentum":
            moments["momentum"] = _where(
                active, moments["momentum"] * self.momentum + gradient, moments["momentum"]
            )
            change = moments["momentum"]
        else:
            first, second = rule.betas
            mean = torch.lerp(moments["mean"], gradient, 1.0 - first)
            square = moments["square"] * second + gradient.square() * (1.0 - second)
            moments["mean"] = _where(active, mean, moments["mean"])
            moments["square"] = _where(active, square, moments["square"])
            seen = counters.clamp(min=1.0)
            root = (square / (1.0 - second**seen)).sqrt() + rule.damping
            change = mean / (1.0 - first**seen) / root
        parameters.sub_(torch.where(active, self.step_size * change, 0.0))


def _where(active: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    mask = active.view(-1, *[1] * (new.dim() - 1))
    return torch.where(mask, new, old)
