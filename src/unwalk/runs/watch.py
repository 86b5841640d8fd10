"""Watches a walk: a sink that measures, times, saves and reports; and several walks at once.

In a run with shards several models answer together.  Their walks are phases of one plan, one after
the other, each from the initial model.  :class:`Constituents` keeps the token at the end of each;
the phase that forgets replaces the token of the walk that it repeats.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from safetensors.torch import save as save_safetensors
from torch import nn

from unwalk.core.plan import Engine, Outcome, Plan, Progress
from unwalk.core.token import Layout, Token, Workspace, build_model
from unwalk.engines.choose import carriers
from unwalk.runs.metrics import Meter, Reading
from unwalk.runs.store import WalkFile


@final
class Together(nn.Module):
    """The logarithm of the mean of the members' softmax probabilities."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logs = torch.stack([member(x).log_softmax(1) for member in self.members])
        return torch.logsumexp(logs, 0) - torch.tensor(float(len(logs)), device=x.device).log()


@dataclass(eq=False)
class Constituents:
    """The tokens at the ends of a plan's walks; ``touched`` is the shard that has to forget."""

    plan: Plan
    touched: int
    ends: dict[int, Token] = field(default_factory=dict)

    def shard(self, hop: int) -> int:
        """The shard in whose model a hop of the plan works."""
        number, _ = self.plan.phase_of(hop)
        return self.touched if number == len(self.plan.phases) - 1 else number

    def after(self, hop: int, token: Token) -> None:
        """Keep a copy of the token where a walk ends."""
        number, phase_hop = self.plan.phase_of(hop)
        if phase_hop == self.plan.phases[number].hops:
            self.ends[self.shard(hop)] = token.clone()

    def together(self, hop: int, work: Workspace) -> nn.Module:
        """The models after a hop; the one in ``work`` replaces its shard's."""
        now = {**self.ends, self.shard(hop): work.token(hop=hop, at=-1, memory={})}
        return Together([self._model(now[shard], work.device) for shard in sorted(now)]).eval()

    def _model(self, token: Token, device: torch.device) -> nn.Module:
        model = build_model(self.plan.task.model, self.plan.seeds.integer("model")).to(device)
        views = Layout.of(model).views(token.parameters)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in views:
                    parameter.copy_(views[name])
            for name, buffer in model.named_buffers():
                buffer.copy_(token.buffers[name])
        return model


Tell = Callable[[str, int, int], None]
"""Progress: (walk, hops done, hops in all)."""


def silent(walk: str, done: int, hops: int) -> None:
    """Show nothing."""


@dataclass(eq=False)
class Watch:
    """A sink for one walk: measures, times, saves and reports progress.

    It measures after every ``every`` hops and after the hops in ``marks``.  The first ``earlier``
    hops belong to the walk that this one continues; progress does not count them.
    """

    name: str
    plan: Plan
    meter: Meter
    every: int
    marks: frozenset[int]
    earlier: int
    pause: float
    file: WalkFile | None
    tell: Tell
    constituents: Constituents | None = None
    readings: list[Reading] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    saved_at: float = field(default_factory=time.perf_counter)
    resumed_at: float = field(default_factory=time.perf_counter)

    def after(self, index: int, progress: Progress, look: Callable[[], Workspace]) -> None:
        self.seconds.append(round(time.perf_counter() - self.resumed_at, 6))
        hop, hops = progress.token.hop, self.plan.hops
        if self.constituents is not None:
            self.constituents.after(hop, progress.token)
        if hop % self.every == 0 or hop in self.marks:
            self.readings.append(self._read(hop, look()))
        now = time.perf_counter()
        if self.file is not None and (now - self.saved_at >= self.pause or hop == hops):
            ends = {} if self.constituents is None else self.constituents.ends
            self.file.save(progress, self.readings, self.seconds, ends)
            self.saved_at = time.perf_counter()
            if self.pause:  # saving takes at most a twentieth of the time
                self.pause = max(self.pause, 20.0 * (self.saved_at - now))
        self.tell(self.name, hop - self.earlier, hops - self.earlier)
        self.resumed_at = time.perf_counter()

    def _read(self, hop: int, work: Workspace) -> Reading:
        name = self.plan.phases[self.plan.phase_of(hop)[0]].name
        if self.constituents is None:
            with work.looked_at() as model:
                return self.meter.read(model, hop, name)
        phase = name if hop > self.plan.hops - self.plan.phases[-1].hops else "train"
        return self.meter.read(self.constituents.together(hop, work), hop, phase)


@dataclass(eq=False)
class Walked:
    """A finished walk with what was measured."""

    name: str
    outcome: Outcome
    readings: list[Reading]
    seconds: list[float]
    constituents: Constituents | None = None

    @property
    def model(self) -> torch.nn.Module:
        """The model, in evaluation mode; several that answer together where there are shards.

        It is a copy: whoever runs it may change its buffers.
        """
        if self.constituents is not None:
            return self.constituents.together(self.outcome.plan.hops, self.outcome.workspace)
        return copy.deepcopy(self.outcome.workspace.model).eval()

    def saved(self) -> bytes:
        """The token as a model's file: parameters and buffers under the model's own names."""
        if self.constituents is None:
            return save_safetensors(self.outcome.workspace.state_dict(self.outcome.token))
        return save_safetensors({k: v.to("cpu") for k, v in self.model.state_dict().items()})


@dataclass(frozen=True, eq=False)
class Begun:
    """A walk that is about to be carried, perhaps from where it was left."""

    watch: Watch
    progress: Progress | None

    def end(self, outcome: Outcome) -> Walked:
        """The finished walk with its outcome."""
        watch = self.watch
        return Walked(watch.name, outcome, watch.readings, watch.seconds, watch.constituents)


class _Watches:
    """The sink of several walks.  The time of a hop does not include the measuring of others."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.watches = watches
        self.resumed_at = time.perf_counter()

    def after(self, index: int, progress: Progress, look: Callable[[], Workspace]) -> None:
        watch = self.watches[index]
        watch.resumed_at = self.resumed_at
        watch.after(0, progress, look)
        self.resumed_at = watch.resumed_at


def carry(begun: Sequence[Begun], engine: Engine | str) -> list[Walked]:
    """Carry walks out by an engine, or by those that ``performance.engine`` names."""
    plans = [one.watch.plan for one in begun]
    chosen = carriers(plans, engine) if isinstance(engine, str) else [(engine, range(len(plans)))]
    ended: dict[int, Walked] = {}
    for carrier, numbers in chosen:
        walks = [begun[n] for n in numbers]
        before = [len(one.watch.seconds) for one in walks]
        resume = {n: one.progress for n, one in enumerate(walks) if one.progress is not None}
        sink = _Watches([one.watch for one in walks])
        outcomes = list(carrier.run([plans[n] for n in numbers], sink, resume))
        if carrier.together:
            _share_out([one.watch.seconds for one in walks], before)
        ended |= {n: begun[n].end(o) for n, o in zip(numbers, outcomes, strict=True)}
    return [ended[n] for n in range(len(begun))]


def _share_out(seconds: Sequence[list[float]], before: Sequence[int]) -> None:
    """Walks that hop together take equal shares of the time; ``before`` are earlier hops.

    >>> took = [[9.0, 3.0, 1.0], [0.0]]
    >>> _share_out(took, [1, 0])
    >>> took
    [[9.0, 1.5, 1.0], [1.5]]
    """
    most = max(len(one) - start for one, start in zip(seconds, before, strict=True))
    for hop in range(most):
        active = [
            (one, start + hop)
            for one, start in zip(seconds, before, strict=True)
            if start + hop < len(one)
        ]
        share = sum(one[at] for one, at in active) / len(active)
        for one, at in active:
            one[at] = round(share, 6)
