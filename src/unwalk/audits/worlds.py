"""The two worlds of the game: with the records to be forgotten, and without them.

In the first world training uses D, and the method is asked to forget D_f.  In the second D_f never
was: its rows are absent, training uses D without D_f, and the method is asked to forget nothing.
What is public is the same in both: who is asked, when, and the number of records (m), from which
methods size their noise.  So the second world is the certifier that certificates name: the same
method, with the same public facts, on a model that was trained without the records.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, final

import numpy as np

from unwalk.core.errors import InvalidInput
from unwalk.core.noise import SimulatedNoise
from unwalk.core.plan import Method, Phase, Plan
from unwalk.core.program import Op, Program, Records, Steps, Visit
from unwalk.core.seeds import PublicSeeds
from unwalk.core.transcript import Transcript
from unwalk.methods.record import Calibrated
from unwalk.runs.assemble import Assembled
from unwalk.settings.config import Config
from unwalk.tasks import ShardedTask

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


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Bereft(Assembled):
    """The world without the records: it works on ``task``, and is public as ``other`` is."""

    other: Assembled

    def calibrated(self, method: str) -> Calibrated:
        """The noise scale of the world with the records."""
        return self.other.calibrated(method)

    def public(self, method: str) -> dict[str, Any]:
        """The facts of the world with the records: m is public, the records are not."""
        return self.other.public(method)


@dataclass(frozen=True)
class NothingToForget:
    """A method that is asked to forget nothing, where everybody knows of how many records.

    The only thing that has to be said: noise that a visit to u adds to a gradient over forgotten
    records is added to a gradient of zero.  ``records`` are u's in the world with them.
    """

    method: Method
    records: Records

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def travels(self) -> tuple[str, ...]:
        """Moment vectors that travel in the token."""
        return self.method.travels

    def visit(self, visit: Visit) -> Program:
        rng = copy.deepcopy(visit.rng)
        program = self.method.visit(visit)
        if not visit.at_unlearner:
            return program
        asked = self.method.visit(replace(visit, records=self.records, rng=rng))
        if not any(_noisy(op) for op in asked):
            return program
        return tuple(_idle(op, visit.records) if _noisy(op) else op for op in asked)


def _noisy(op: Op) -> TypeGuard[Steps]:
    """Whether noise is added to gradients over forgotten records alone."""
    return isinstance(op, Steps) and op.data == "forgotten" and op.noise > 0.0


def _idle(op: Steps, records: Records) -> Steps:
    """The same steps, noise included, with weight 0 on one of the records that there are."""
    batches = np.full_like(op.batches[..., :1], records.all[0] if records.all.size else 0)
    return replace(op, batches=batches, weights=np.zeros(batches.shape), data="retained")


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

    def assembled(self, world: int, number: int) -> Assembled:
        """Run ``number`` of a world: the same data and graph, randomness of its own."""
        config, noise = self._drawn(world, number)
        base = replace(self.base, config=config, noise=noise)
        if world == WITH:
            return base
        return Bereft(
            config=config, task=self.bereft_task, graph=base.graph, noise=noise, other=base
        )

    def _drawn(self, world: int, number: int) -> tuple[Config, SimulatedNoise]:
        config = self.base.config
        name = (number,) if self.seeds == "paired" else (number, world)
        own = PublicSeeds(config.seed).integer("audit", *name)
        seed = config.seed if self.coins == "fixed" else own
        noise = SimulatedNoise(PublicSeeds(own).integer("simulated-noise"))
        return replace(config, seed=seed), noise

    def training(self, world: int, number: int) -> Plan:
        """The walk that learns."""
        return self.assembled(world, number).training()

    def unlearning(self, world: int, number: int, method: str, trained: Transcript | None) -> Plan:
        """The whole walk of a method."""
        plan = self.assembled(world, number).unlearning(method, trained)
        if world == WITH:
            return plan
        *before, last = plan.phases
        return replace(plan, phases=(*before, self._asked_for_nothing(last)))

    def _asked_for_nothing(self, phase: Phase) -> Phase:
        records = self.base.task.records(self.base.config.forget.peer)
        return replace(phase, method=NothingToForget(phase.method, records))
