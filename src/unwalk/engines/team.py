"""One optimizer step of a team of walks, in place; on a CUDA device, captured as a graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from unwalk.core.program import OPTIMIZERS, StepRule, Steps
from unwalk.engines.batched import BatchedGradient, Buffers
from unwalk.engines.fused import available

WARM_UP = 2
BLOCK = 2048


@dataclass(frozen=True)
class Kind:
    """What a captured step depends on, besides shapes."""

    rule: StepRule
    bound: float | None
    clipped: bool
    noisy: bool


@dataclass(eq=False)
class Team:
    """Matrices of the walks that step together: one row a walk."""

    parameters: torch.Tensor
    buffers: Buffers
    moments: dict[str, torch.Tensor]
    counters: torch.Tensor
    knobs: torch.Tensor


@dataclass(eq=False)
class Batch:
    """What a step reads: one batch a walk, its weights, and whether the walk takes part."""

    x: torch.Tensor
    y: torch.Tensor
    weights: torch.Tensor
    active: torch.Tensor
    noise: torch.Tensor | None


def knobs_of(op: Steps) -> tuple[float, ...]:
    """Step size, scale, clip, sign, momentum and weight decay: a walk's row of the knobs."""
    return (
        op.step_size,
        op.scale,
        math.inf if op.clip is None else op.clip,
        -float(op.direction),
        op.rule.momentum,
        op.rule.weight_decay,
    )


def take_step(gradient: BatchedGradient, team: Team, kind: Kind, batch: Batch) -> None:
    """One step of every walk that is active."""
    slopes, fresh = gradient(
        team.parameters, team.buffers, batch.x, batch.y, batch.weights, kind.bound
    )
    if kind.rule.slots:
        team.counters.add_(batch.active)
    if available() and slopes.is_cuda and slopes.dtype == torch.float32 and batch.noise is None:
        _fused(team, kind, slopes, batch.active)
    else:
        _plain(team, kind, slopes, batch)
    for name, old in team.buffers.items():
        if fresh[name] is not old:
            old.copy_(_where(batch.active, fresh[name], old))


def _fused(team: Team, kind: Kind, slopes: torch.Tensor, active: torch.Tensor) -> None:
    """The update as one pass over memory."""
    from unwalk.engines import kernels

    rule, parameters = kind.rule, team.parameters
    slots: list[Any] = [team.moments[slot] for slot in rule.slots]
    first, second = (*slots, parameters, parameters)[:2]
    size = parameters.shape[1]
    kernels.step[(math.ceil(size / BLOCK), len(parameters))](
        parameters,
        slopes,
        slopes.norm(dim=1) if kind.clipped else slopes,
        first,
        second,
        team.knobs,
        _corrections(rule, team.counters),
        active,
        size,
        OPTIMIZER=OPTIMIZERS.index(rule.optimizer),
        FIRST=rule.betas[0],
        SECOND=rule.betas[1],
        DAMPING=rule.damping,
        CLIP=kind.clipped,
        BLOCK=BLOCK,
    )


def _corrections(rule: StepRule, counters: torch.Tensor) -> torch.Tensor:
    """What Adam divides its two moments by, as columns."""
    if rule.optimizer != "adam":
        return counters
    seen = counters.clamp(min=1.0)
    return torch.cat([1.0 - beta**seen for beta in rule.betas], dim=1)


def _plain(team: Team, kind: Kind, slopes: torch.Tensor, batch: Batch) -> None:
    """The update in torch's own words."""
    rule, active, parameters = kind.rule, batch.active, team.parameters
    rate, scale, clip, sign, momentum, decay = team.knobs.split(1, dim=1)
    slopes = slopes * scale
    if kind.clipped:
        norms = slopes.norm(dim=1, keepdim=True)
        slopes = slopes * (clip / (norms + 1e-12)).clamp(max=1.0)
    if batch.noise is not None:
        slopes = slopes + batch.noise
    slopes = slopes * sign + decay * parameters
    if rule.optimizer == "sgd":
        change = slopes
    elif rule.optimizer == "momentum":
        change = _put(
            team.moments["momentum"], team.moments["momentum"] * momentum + slopes, active
        )
    else:
        first, second = rule.betas
        mean = torch.lerp(team.moments["mean"], slopes, 1.0 - first)
        square = team.moments["square"] * second + slopes.square() * (1.0 - second)
        mean, square = (
            _put(team.moments[slot], new, active)
            for slot, new in (("mean", mean), ("square", square))
        )
        by_first, by_second = _corrections(rule, team.counters).split(1, dim=1)
        change = mean / by_first / ((square / by_second).sqrt() + rule.damping)
    parameters.sub_(torch.where(active, rate * change, 0.0))


def _put(old: torch.Tensor, new: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
    return old.copy_(_where(active, new, old))


def _where(active: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    mask = active.view(-1, *[1] * (new.dim() - 1))
    return torch.where(mask, new, old)


class Step:
    """A step with the team and the batch that it works on."""

    def __init__(self, gradient: BatchedGradient, team: Team, kind: Kind, batch: Batch) -> None:
        self.gradient, self.team, self.kind, self.batch = gradient, team, kind, batch

    def replay(self) -> None:
        """Take the step on what team and batch hold now."""
        take_step(self.gradient, self.team, self.kind, self.batch)


class StepGraph(Step):
    """The same step, captured; no walk is active while that happens."""

    def __init__(
        self, gradient: BatchedGradient, team: Team, kind: Kind, batch: Batch, pool: Any
    ) -> None:
        super().__init__(gradient, team, kind, batch)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.random.fork_rng(devices=[team.parameters.device]):
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    super().replay()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                super().replay()

    def replay(self) -> None:
        self.graph.replay()
