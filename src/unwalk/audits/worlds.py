"""The two worlds of the game: with the records to be forgotten, and without them.

In the first world training uses D, and the method is asked to forget D_f.  In the second D_f never
was: its rows are absent, training uses D without D_f, and the method is asked to forget nothing.
What is public is the same in both: who is asked, when, and the number of records (m), from which
methods size their noise.  So the second world is the certifier that certificates name: the same
method, with the same public facts, on a model that was trained without the records.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core.errors import InvalidInput
from unwalk.core.events import Draw
from unwalk.core.noise import SimulatedNoise
from unwalk.core.plan import Plan, drawing_of
from unwalk.core.program import AddNoise, Drawing, Op, Program, Records, Steps, Visit
from unwalk.core.seeds import PublicSeeds
from unwalk.core.transcript import Transcript
from unwalk.methods import METHODS
from unwalk.methods.contract import Wrapper
from unwalk.runs.assemble import Assembled
from unwalk.tasks.task import ShardedTask

WITH, WITHOUT = 1, 0
COINS = ("fresh", "fixed")
SEEDS = ("paired", "independent")


def without(task: ShardedTask) -> ShardedTask:
    """The task in which the records to be forgotten never were; all other rows keep their numbers.

    What they are measured on (``forgotten``) is still asked of the task with them.
    """
    shard = task.shard(task.unlearner)
    absent = np.sort(np.concatenate([shard.records.absent, shard.records.forgotten]))
    twin = replace(task)
    twin._shards[task.unlearner] = replace(shard, records=Records(len(shard.y), absent=absent))
    return twin


@dataclass(frozen=True)
class NothingToForget(Wrapper):
    """A method that is asked to forget nothing, where everybody knows of how many records.

    The only thing that has to be said: noise that a visit to u adds to a gradient over forgotten
    records is added to a gradient of zero.  ``records`` are u's in the world with them.
    """

    records: Records

    def visit(self, visit: Visit) -> Program:
        if not visit.at_unlearner:
            return self.method.visit(visit)
        rng = copy.deepcopy(visit.rng)
        program = self.method.visit(visit)
        asked = self.method.visit(replace(visit, records=self.records, rng=rng))
        if not any(_noisy(op) for op in asked):
            return program
        return tuple(
            done for op in asked for done in (_idle(op, visit.records) if _noisy(op) else (op,))
        )

    def drawing(self, visit: Visit) -> Drawing | None:
        told = drawing_of(self.method, visit)
        if not visit.at_unlearner:
            return told
        asked = drawing_of(self.method, replace(visit, records=self.records))
        if asked is None or asked.steps is None or not _noisy(asked.steps):
            return None if asked is None else told
        idle = _idle(asked.steps, visit.records)
        if not all(isinstance(op, AddNoise) for op in idle):
            return None
        return Drawing(None, visit.records.all, 0, 0, (*idle, *asked.after))


def _noisy(op: Op) -> TypeGuard[Steps]:
    """Whether noise is added to gradients over forgotten records alone."""
    return isinstance(op, Steps) and op.data == "forgotten" and op.noise > 0.0


def _idle(op: Steps, records: Records) -> Program:
    """The same noisy steps on a gradient of zero.

    Where a step is a multiple of the noise, that is added and no record is looked at, so that the
    statistics of BatchNorm stay as they are.  Other steps, moments and all, have weight 0 on one of
    the records that there are.
    """
    if op.rule.optimizer == "sgd" and not op.rule.weight_decay:
        noise: Program = (AddNoise(op.step_size * op.noise, rounded=False),)
        return noise * len(op.batches)
    batches = np.full_like(op.batches[..., :1], records.all[0] if records.all.size else 0)
    return (replace(op, batches=batches, weights=np.zeros(batches.shape), data="retained"),)


@dataclass(frozen=True)
class NoNoise:
    """Noise of zero, for what an attacker who knows all coins can compute."""

    origin: str = field(default="simulation", init=False)
    needs_digest: bool = field(default=False, init=False)

    def draw(self, like: torch.Tensor, *, hop: int, step: int, digest: str | None) -> torch.Tensor:
        return torch.zeros(like.numel(), dtype=like.dtype, device=like.device)

    def release(
        self, values: npt.NDArray[Any], *, std: float, grid: float, peer: int, hop: int, step: int
    ) -> tuple[npt.NDArray[Any], Draw | None]:
        return values, None


@dataclass(frozen=True, eq=False)
class Worlds:
    """Both worlds of one configuration, and the randomness of their runs.

    With ``coins`` ``fresh`` every run draws its own initial model, route, batches and noise.  With
    ``fixed`` all that is public is drawn once, for both worlds, and only the noise is drawn anew:
    the game against an attacker who knows every public coin.  With ``seeds`` ``paired`` the runs
    of the same number have the same seed in both worlds, with ``independent`` they do not.
    """

    base: Assembled
    bereft_task: ShardedTask
    coins: str = "fresh"
    seeds: str = "paired"
    _runs: dict[tuple[int, ...], Assembled] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def of(base: Assembled, coins: str = "fresh", seeds: str = "paired") -> Worlds:
        """The worlds of a configuration whose task has something to forget."""
        if not base.task.records(base.config.forget.peer).forgotten.size:
            raise InvalidInput(
                "nothing is to be forgotten (forget.kind is 'nothing'), so there are no two worlds "
                "to tell apart; allowed: another forget.kind."
            )
        if base.config.noise.source != "simulated":
            raise InvalidInput(
                "noise.source is 'secret', but an audit draws noise hundreds of times for the same "
                "records; allowed: noise.source = simulated."
            )
        return Worlds(base, without(base.task), coins, seeds)

    def _assembled(self, world: int, number: int) -> Assembled:
        """Run ``number`` of a world, as it is in the world with the records; made once, for
        training and for every method."""
        name = self._name(world, number)
        if name not in self._runs:
            config = self.base.config
            if self.coins == "fresh":
                config = replace(config, seed=self._seed(world, number))
            self._runs[name] = replace(self.base, config=config, noise=self._noise(world, number))
        return self._runs[name]

    def _name(self, world: int, number: int) -> tuple[int, ...]:
        """What the seed of a run depends on."""
        return (number,) if self.seeds == "paired" else (number, world)

    def _seed(self, world: int, number: int) -> int:
        return PublicSeeds(self.base.config.seed).integer("audit", *self._name(world, number))

    def _noise(self, world: int, number: int) -> SimulatedNoise:
        return SimulatedNoise(PublicSeeds(self._seed(world, number)).integer("simulated-noise"))

    def training(self, world: int, number: int) -> Plan:
        """The walk that learns."""
        plan = self._assembled(world, number).training()
        return plan if world == WITH else replace(plan, task=self.bereft_task)

    def unlearning(
        self, world: int, numbers: Sequence[int], method: str, trained: Sequence[Transcript | None]
    ) -> list[Plan]:
        """The whole walks of a method; where coins are fixed, walks from one training differ in
        their noise only."""
        plans: list[Plan] = []
        for at, (number, transcript) in enumerate(zip(numbers, trained, strict=True)):
            if at and self.coins == "fixed" and transcript is trained[0]:
                plans.append(replace(plans[0], noise=self._noise(world, number)))
            else:
                plans.append(self._unlearning(world, number, method, transcript))
        return plans

    def _unlearning(self, world: int, number: int, method: str, trained: Transcript | None) -> Plan:
        """In the world without the records a method decides from what is public in both, m
        included; one that goes back looks for the first use of records, and finds none."""
        assembled = self._assembled(world, number)
        if world == WITH:
            return assembled.unlearning(method, trained)
        if METHODS[method].way_back is not None:
            return replace(assembled, task=self.bereft_task).unlearning(method, trained)
        plan = assembled.unlearning(method, trained)
        *before, last = plan.phases
        records = self.base.task.records(self.base.config.forget.peer)
        asked = replace(last, method=NothingToForget(last.method, records))
        return replace(plan, task=self.bereft_task, phases=(*before, asked))
