"""Batches of many visits, drawn at once: what a method calls a ``Drawing``, for every walk.

A :class:`Template` is what all visits of a kind to one peer have in common.  Templates are
numbered, and what a draw needs of them stands in arrays, so that a hop of many walks is a few
operations on arrays: words from the walks' public streams, their order, and the rows that this
order names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core import events as ev
from unwalk.core.data import Shard
from unwalk.core.philox import Words
from unwalk.core.program import Drawing, Program
from unwalk.core.seeds import below, drawn_words, order
from unwalk.engines.execute import to_device
from unwalk.engines.fleet_steps import Feed, Kind, LockStep, knobs_of

Numbers = npt.NDArray[np.int64]
LOW = 0xFFFFFFFF
LAST = 2**63 - 1
SIGN = -(2**63)
"""Flipped, unsigned words have the order of the signed numbers with the same bits."""


@dataclass(frozen=True, eq=False)
class Template:
    """What is written down of a visit that is the same for all walks but for its draw."""

    events: tuple[ev.Event, ...]
    gradients: int
    noise: float
    """Std of the noise on every step's gradient."""


@dataclass(frozen=True, eq=False)
class Group:
    """Visits that are made together."""

    kind: Kind | None
    """What their steps depend on; None if they take none."""
    passes: int
    """Permutations of a visit."""
    after: Program
    """Noise and projections after the steps."""


class Templates:
    """All templates of a fleet."""

    def __init__(self, lockstep: LockStep) -> None:
        self.lockstep = lockstep
        self.all: list[Template] = []
        self.made: list[Group] = []
        self.facts: Numbers = np.empty((0, 5), np.int64)
        """Rows, entries used of a pass, steps, rows of a step, and where its rows begin."""
        self.groups: Numbers = np.empty(0, np.int64)
        """The group of each template."""
        self.knobs = np.empty((0, 6), np.float64)
        self.rows: torch.Tensor | None = None
        self._keys: dict[tuple[object, ...], int] = {}

    def add(self, drawing: Drawing, events: tuple[ev.Event, ...], shard: Shard) -> int:
        """The number of a new template."""
        steps, lockstep = drawing.steps, self.lockstep
        count, parts, size = (0, 0, 0) if steps is None else steps.batches.shape
        noise = 0.0 if steps is None else steps.noise
        alike = () if steps is None else (*lockstep.key_of(steps), noise > 0.0)
        group = self._keys.setdefault((alike, drawing.passes, drawing.after), len(self._keys))
        if group == len(self.made):
            kind = None
            if steps is not None:
                kind = Kind(steps.rule, steps.clip_per_example, False, noise > 0.0, False)
            self.made.append(Group(kind, drawing.passes, drawing.after))
        made = self.made[group]
        if steps is not None and made.kind is not None:
            clipped = made.kind.clipped or steps.clip is not None
            decays = made.kind.decays or bool(steps.rule.weight_decay)
            kind = replace(made.kind, clipped=clipped, decays=decays)
            self.made[group] = replace(made, kind=kind)
        start = 0 if self.rows is None else len(self.rows)
        rows = torch.from_numpy(drawing.rows + lockstep.records.start(shard))
        rows = to_device(rows, lockstep.parameters.device)
        self.rows = rows if self.rows is None else torch.cat([self.rows, rows])
        facts = [drawing.rows.size, drawing.used, count, parts * size, start]
        self.facts = np.concatenate([self.facts, [facts]])
        self.groups = np.append(self.groups, group)
        knobs = [0.0] * 6 if steps is None else knobs_of(steps)
        self.knobs = np.concatenate([self.knobs, [knobs]])
        self.all.append(Template(events, 0 if steps is None else steps.gradients, noise))
        return len(self.all) - 1

    def of(self, numbers: Numbers) -> Group:
        """The group of these templates, which is one."""
        return self.made[int(self.groups[numbers[0]])]

    def feed(self, numbers: Numbers, keys: Words, hops: Numbers) -> Feed:
        """The batches of walks with templates of one group, drawn from their own streams."""
        like = self.lockstep.parameters
        facts, passes = self.facts[numbers], self.of(numbers).passes
        steps, width = facts[:, 2], facts[:, 3]
        longest, widest = int(steps.max()), int(width.max())
        alike = bool((facts[:, :4] == facts[0, :4]).all())
        if alike:
            weights = like.new_full((longest, len(facts), widest), 1.0 / widest)
            active = torch.ones(longest, len(facts), 1, dtype=torch.bool, device=like.device)
        else:
            on = np.arange(longest)[:, None] < steps
            inside = on[:, :, None] & (np.arange(widest) < width[:, None])
            shares = torch.from_numpy(np.where(inside, 1.0 / width[:, None], 0.0)).to(like.dtype)
            weights = to_device(shares, like.device)
            active = to_device(torch.from_numpy(on[:, :, None]), like.device)
        knobs = to_device(torch.from_numpy(self.knobs[numbers]).to(like.dtype), like.device)
        places = self._drawn(facts, passes, keys, hops)
        if alike:
            chosen = places[:, :, : facts[0, 1]] if passes else places
            chosen = chosen.reshape(len(facts), longest, widest).transpose(0, 1)
        else:
            entries = _entries(facts, longest, widest, places.shape[2] if passes else 0)
            at = to_device(torch.from_numpy(entries), like.device)
            chosen = places.flatten(1).gather(1, at.flatten(1)).view(at.shape)
            chosen = chosen.transpose(0, 1)
        assert self.rows is not None
        first = to_device(torch.from_numpy(facts[:, 4]), like.device)
        rows = self.rows.take(chosen + first[:, None])
        return Feed(weights, active, knobs, self.lockstep.records.listed(rows))

    def _drawn(self, facts: Numbers, passes: int, keys: Words, hops: Numbers) -> torch.Tensor:
        """Places among each walk's rows, in the order drawn: (walks, draws, places)."""
        sizes = facts[:, 0]
        count = int(sizes.max()) if passes else int((facts[:, 2] * facts[:, 3]).max())
        waits = passes and bool((sizes != count).any())
        executor = self.lockstep.executor
        if executor is None or not executor.draws_streams:
            words = drawn_words(keys, hops.astype(np.uint64), count, max(passes, 1))
            if not passes:
                places = torch.from_numpy(below(words, sizes.astype(np.uint64)[:, None, None]))
                return to_device(places, self.lockstep.parameters.device)
            if waits:  # places beyond a walk's rows come last
                beyond = np.arange(count) >= sizes[:, None, None]
                words = np.where(beyond, np.uint64(2**64 - 1), words)
            return to_device(torch.from_numpy(order(words)), self.lockstep.parameters.device)
        given = np.concatenate([keys.view(np.int64), hops[:, None], sizes[:, None]], axis=1)
        held = to_device(torch.from_numpy(given), self.lockstep.parameters.device)
        drawn = executor.stream_words(
            held[:, :2].contiguous(), held[:, 2].contiguous(), count, passes
        )
        many = held[:, 3, None, None]
        if not passes:
            upper = ((drawn >> 32) & LOW) * many + ((((drawn & LOW) * many) >> 32) & LOW)
            return (upper >> 32) & LOW
        drawn = drawn ^ SIGN
        if waits:
            drawn = drawn.masked_fill(torch.arange(count, device=drawn.device) >= many, LAST)
        return drawn.argsort(dim=2, stable=True)


def _entries(facts: Numbers, longest: int, widest: int, stride: int) -> Numbers:
    """Where the entries of every walk's batches stand among what was drawn for it.

    ``stride`` is the length of a pass, 0 if there is one draw alone; (walks, steps, rows).
    """
    used, steps, width = (facts[:, column, None, None] for column in (1, 2, 3))
    step, place = np.arange(longest)[:, None], np.arange(widest)
    entry = step * width + place
    if stride:
        entry = entry // used * stride + entry % used
    return np.where((step < steps) & (place < width), entry, 0)
