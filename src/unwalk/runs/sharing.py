"""Walks that several configurations have in common, carried out once.

Whether a setting matters to a walk is not declared anywhere: two walks are the same if their plans
are.  A sweep over the routing probability therefore trains once and retrains once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Sequence
from dataclasses import replace

from unwalk.core.plan import Engine, Plan
from unwalk.runs.assemble import Assembled, assemble
from unwalk.runs.run import Begun, Walked, carry
from unwalk.settings.config import Config, flatten
from unwalk.tasks.task import ShardedTask

DATA = ("task", "peers", "seed", "data.", "forget.", "trigger.", "model.")
"""Settings that a task is built from."""
IN_PHASES = ("method", "compare", "train.", "unlearn.", "certificate.")
"""Settings that reach a walk through the phases of its plan alone, as do those of the methods."""
MOST = 64
"""How many walks are remembered: the latest ones that were asked for."""


class Memory:
    """The task that was built last, and walks that were carried out."""

    def __init__(self) -> None:
        self.built: tuple[str, Assembled] | None = None
        self.walks: dict[Hashable, Walked] = {}

    def assemble(self, config: Config, task: ShardedTask | None) -> Assembled:
        """:func:`unwalk.runs.assemble.assemble`, with task and graph built anew if they differ."""
        chosen = {k: v for k, v in flatten(config).items() if k.startswith((*DATA, "graph."))}
        key = json.dumps(chosen)
        if self.built is None or self.built[0] != key:
            self.built = key, assemble(config, task)
            return self.built[1]
        known = self.built[1]
        return replace(assemble(config, known.task), graph=known.graph)

    def carry(self, begun: Sequence[Begun], engine: Engine | str) -> list[Walked]:
        """:func:`unwalk.runs.run.carry`, of those walks that are new."""
        names = [_identity(one) for one in begun]
        carried = {name: self.walks.pop(name) for name in names if name in self.walks}
        new = {n: one for n, one in zip(names, begun, strict=True) if n not in carried}
        carried |= zip(new, carry(list(new.values()), engine), strict=True)
        self.walks = dict([*self.walks.items(), *carried.items()][-MOST:])
        return [_as_its_own(carried[name], one) for name, one in zip(names, begun, strict=True)]


def _identity(begun: Begun) -> Hashable:
    """Equal for walks that end with the same bits; the walk itself where that is not known."""
    watch, plan = begun.watch, begun.watch.plan
    phases = tuple(tuple(vars(phase).values()) for phase in plan.phases)
    where = (plan.task, plan.graph, plan.unlearner, plan.performance, plan.keeps)
    measured = (watch.every, watch.marks, watch.earlier)
    name = (phases, where, plan.seeds, plan.noise, measured)
    try:
        hash(name)
    except TypeError:  # noise from a secret, or a user's own method
        return begun
    return name


def _as_its_own(walked: Walked, begun: Begun) -> Walked:
    """The walk under the header of a plan of the same walk, which has public facts of its own."""
    watch = begun.watch
    if walked.outcome.plan is watch.plan:
        return walked
    progress = walked.outcome.progress.fork(watch.plan.header())
    outcome = replace(walked.outcome, plan=watch.plan, progress=progress)
    return replace(walked, name=watch.name, outcome=outcome)


def walk_name(config: Config, plan: Plan) -> str:
    """A name that no two walks of a seed share, unless they are the same."""
    through_phases = (*IN_PHASES, *(f"{section.key}." for section in config.own))
    others = {k: v for k, v in flatten(config).items() if not k.startswith(through_phases)}
    phases = [tuple(vars(phase).values()) for phase in plan.phases]
    told = json.dumps(others) + plan.keeps + repr(phases)
    return hashlib.sha256(told.encode()).hexdigest()[:16]
