"""Optimizer steps of many walks at once, padded to the longest visit and masked.

Walks with the same kind of optimizer form a *team*: matrices with one row per walk, on which a step
works in place.  A team of all walks works on the fleet's own matrices, any other on copies.  On a
device with an executor, a step is prepared at its second use; teams are then padded to a few sizes
with inactive rows.  Records of all visited peers are in one table (:class:`RecordTable`), from
which the batches of a step are gathered.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core import events as ev
from unwalk.core.data import Shard
from unwalk.core.errors import InvalidInput
from unwalk.core.program import Distil, Rows, StepRule, Steps
from unwalk.core.token import State
from unwalk.engines.cuda import Executor, executor_for
from unwalk.engines.edits import softened
from unwalk.engines.execute import Bench, to_device
from unwalk.engines.fleet_gradients import BatchedGradient, Buffers

Numbers = npt.NDArray[np.int64]
Party = dict[int, tuple[Steps, Bench]]
"""Row of the fleet: its operation and what it works with."""

OPTIMIZERS = ("sgd", "momentum", "adam")
"""Optimizers whose steps :func:`update` takes; a fleet refuses all others."""

SIZES = 8
"""How many different sizes the teams have whose steps an executor prepares."""


@dataclass(eq=False)
class Order:
    """Walks whose steps differ only in their rows: one of them, and what is recorded for all."""

    op: Steps
    event: ev.Event
    soft: Distil | None = None
    """What the steps have instead of labels, if anything."""
    party: Party = field(default_factory=dict)


def settings(op: Steps, origin: str) -> tuple[object, ...]:
    """A key that is equal for operations of one :class:`Order`, while both exist."""
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
        self.records = RecordTable(parameters.device)
        self.moments: dict[str, torch.Tensor] = {}
        self.shown: dict[str, tuple[torch.Tensor, ...]] = {}
        self.steps: dict[tuple[object, ...], Step] = {}
        self.executor = executor_for(parameters.device)

    def key_of(self, op: Steps) -> tuple[object, ...]:
        """A key that is equal for steps that can be taken together."""
        rule = op.rule
        if rule.optimizer not in OPTIMIZERS:
            raise InvalidInput(
                f"optimizer is {rule.optimizer!r}, which a fleet cannot run; use the "
                f"in-process engine, or one of: {', '.join(OPTIMIZERS)}."
            )
        key = (rule.optimizer, rule.state, rule.betas, rule.damping, op.clip_per_example)
        if not self.gradient.mixes_rows:
            return key
        _check_batch_norm(op)
        return (*key, op.batches.shape[1:])

    def run(self, orders: Iterable[Order]) -> None:
        """Group orders by optimizer and take every group's steps."""
        groups: dict[tuple[object, ...], list[Order]] = {}
        for order in orders:
            soft = order.soft and order.soft.key
            groups.setdefault((*self.key_of(order.op), soft), []).append(order)
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
            decays=any(order.op.rule.weight_decay for order in orders),
        )
        if kind.rule.state == "carried":
            for slot in kind.rule.slots:
                self._carry(slot, party)
        feed = _party_feed(orders, party, self.records, self.parameters)
        if orders[0].soft is not None:
            feed = replace(
                feed, taken=self._softened(feed.taken, feed.steps, orders[0].soft, party)
            )
        step = self._step(kind, len(party), feed)
        rows = self._rows(step.team, list(party))
        self._load(step.team, kind.rule, rows, feed.knobs)
        self._load_moments(step.team, kind.rule, party)
        for number in range(feed.steps):
            feed.fill(step.batch, number, self._noise(party, number) if kind.noisy else None)
            step.replay()
        self._store(step.team, kind.rule, rows, len(party))
        self._store_moments(step.team, kind.rule, party)

    def _softened(self, taken: Taken, steps: int, soft: Distil, party: Party) -> Taken:
        """The same records with weights of all classes instead of labels."""
        x, y = (many.transpose(0, 1).flatten(1, 2) for many in taken.whole())
        at = to_device(torch.tensor(list(party)), self.parameters.device)
        starts = torch.stack([bench.work.anchors["start"] for _, bench in party.values()])
        buffers = {name: many[at] for name, many in self.buffers.items()}
        teachers = self.gradient.chances(
            starts, buffers, x if soft.target == "teacher" else x[:, :1]
        )
        targets = softened(soft, teachers, y)
        return _Drawn(*(many.unflatten(1, (steps, -1)).transpose(0, 1) for many in (x, targets)))

    def drawn(
        self,
        kind: Kind,
        feed: Feed,
        rows: Numbers,
        seen: Numbers,
        noise: Callable[[int], torch.Tensor],
    ) -> None:
        """Steps of walks whose moments, if they have any, travel and are in the fleet's matrices.

        ``rows`` are in ascending order; ``seen`` is how many steps their moments have seen, and
        ``noise`` gives that of a step.
        """
        step = self._step(kind, len(rows), feed)
        held = self._rows(step.team, rows)
        self._load(step.team, kind.rule, held, feed.knobs)
        self._count(step.team, kind.rule, seen)
        for number in range(feed.steps):
            feed.fill(step.batch, number, noise(number) if kind.noisy else None)
            step.replay()
        self._store(step.team, kind.rule, held, len(rows))

    def carries(self, row: int, state: State, slots: Sequence[str]) -> bool:
        """Whether these moments of a walk are its rows of the fleet's matrices."""
        return all(
            slot in self.shown and state.moments.get(slot) is self.shown[slot][row]
            for slot in slots
        )

    def _rows(self, team: Team, rows: Sequence[int] | Numbers) -> torch.Tensor | None:
        """The fleet's rows that a team has copies of; None where it works on them all."""
        if team.parameters is self.parameters:
            return None
        return to_device(torch.as_tensor(rows), self.parameters.device)

    def _step(self, kind: Kind, count: int, feed: Feed) -> Step:
        """The step of a team of ``count`` walks; it is cached, and prepared at its second use."""
        everyone = count == len(self.parameters)
        size = count
        if self.executor is not None:
            some = -(-len(self.parameters) // SIZES)
            size = min(len(self.parameters), -(-count // some) * some)
        key = (kind, size, everyone, feed.width, feed.taken.shape, feed.taken.y.dtype)
        held = self.steps.get(key)
        if held is None:
            team = self._team(kind.rule, size, everyone)
            batch = feed.room(size, self.parameters.shape[1] if kind.noisy else 0)
            held = Step(self.gradient, team, kind, batch, self.executor)
            if self.executor is not None or everyone:
                self.steps[key] = held
        else:
            held.prepare()
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

    def _load(
        self, team: Team, rule: StepRule, rows: torch.Tensor | None, knobs: torch.Tensor
    ) -> None:
        """Copy the walks' rows in; moments that do not travel begin empty."""
        count = len(knobs)
        team.knobs[:count] = knobs
        if rows is not None:
            team.parameters[:count] = self.parameters[rows]
            for name, many in team.buffers.items():
                many[:count] = self.buffers[name][rows]
        for slot in rule.slots:
            if rule.state != "carried":
                team.moments[slot].zero_()
            elif rows is not None:
                team.moments[slot][:count] = self.moments[slot][rows]

    def _load_moments(self, team: Team, rule: StepRule, party: Party) -> None:
        """Moments that stayed at the peers, and how many steps all have seen."""
        seen = [0] * len(party)
        if rule.state == "carried":
            seen = [bench.work.optimizer_steps for _, bench in party.values()]
        elif rule.state == "local":
            seen = [bench.local.optimizer_steps for _, bench in party.values()]
            zero = torch.zeros_like(self.parameters[0])
            for slot in rule.slots:
                held = [bench.local.moments.get(slot, zero) for _, bench in party.values()]
                team.moments[slot][: len(party)] = torch.stack(held)
        self._count(team, rule, seen)

    def _count(self, team: Team, rule: StepRule, seen: Sequence[int] | Numbers) -> None:
        if rule.optimizer == "adam":
            counters = torch.as_tensor(seen, dtype=team.counters.dtype)
            team.counters[: len(seen), 0] = to_device(counters, self.parameters.device)

    def _carry(self, slot: str, party: Party) -> None:
        """Keep travelling moments in one matrix, of which every walk's state shows its row."""
        if slot not in self.moments:
            self.moments[slot] = torch.zeros_like(self.parameters)
            self.shown[slot] = self.moments[slot].unbind()
        shown, blank = self.shown[slot], []
        for row, (_, bench) in party.items():
            held, own = bench.work.moments.get(slot), shown[row]
            if held is own:
                continue
            if held is None:
                blank.append(row)
            else:
                own.copy_(held)
            bench.work.moments[slot] = own
        if blank:
            where = to_device(torch.tensor(blank), self.parameters.device)
            self.moments[slot].index_fill_(0, where, 0.0)

    def _store(self, team: Team, rule: StepRule, rows: torch.Tensor | None, count: int) -> None:
        """Put the team's rows back."""
        if rows is None:
            return
        self.parameters[rows] = team.parameters[:count]
        for name, many in team.buffers.items():
            self.buffers[name][rows] = many[:count]
        if rule.state == "carried":
            for slot in rule.slots:
                self.moments[slot][rows] = team.moments[slot][:count]

    def _store_moments(self, team: Team, rule: StepRule, party: Party) -> None:
        """Give every peer its moments, and count the steps."""
        if rule.state == "carried":
            for op, bench in party.values():
                before = bench.work.optimizer_steps if rule.slots else 0
                bench.work.optimizer_steps = before + op.batches.shape[0]
        elif rule.state == "local":
            for slot in rule.slots:
                copies = [torch.empty_like(self.parameters[0]) for _ in party]
                torch._foreach_copy_(copies, list(team.moments[slot][: len(party)].unbind()))
                for (_, bench), moment in zip(party.values(), copies, strict=True):
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


@dataclass(frozen=True, eq=False)
class Feed:
    """The batches of some walks, step by step: (steps, walks, rows)."""

    weights: torch.Tensor
    active: torch.Tensor
    knobs: torch.Tensor
    taken: Taken

    @property
    def steps(self) -> int:
        """Steps of the longest visit."""
        return len(self.weights)

    @property
    def width(self) -> int:
        """Rows of the widest batch."""
        return self.weights.shape[2]

    def room(self, size: int, noise: int) -> Batch:
        """An empty batch for ``size`` walks; rows without a walk are not active."""
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


def _party_feed(
    orders: Sequence[Order], party: Party, records: RecordTable, like: torch.Tensor
) -> Feed:
    """The batches that a party's operations name."""
    shapes = [order.op.batches.shape for order in orders]
    steps = max(shape[0] for shape in shapes)
    width = max(shape[1] * shape[2] for shape in shapes)
    rows = np.zeros((steps, len(party), width), np.int64)
    weights = np.zeros(rows.shape, np.float64)
    active = np.zeros((steps, len(party), 1), bool)
    knobs = np.zeros((len(party), 6), np.float64)
    place_of = {row: place for place, row in enumerate(party)}
    for order, (count, parts, size) in zip(orders, shapes, strict=True):
        size *= parts
        ops = [op for op, _ in order.party.values()]
        places = [place_of[row] for row in order.party]
        group_rows = _by_step([op.batches for op in ops], count, size)
        if order.op.weights is None:
            weights[:count, places, :size] = 1.0 / size
        else:
            shares = _by_step([op.weights for op in ops if op.weights is not None], count, size)
            weights[:count, places, :size] = np.where(group_rows < 0, 0.0, shares)
            group_rows = np.maximum(group_rows, 0)
        rows[:count, places, :size] = group_rows
        active[:count, places] = True
        knobs[places] = knobs_of(order.op)
    return Feed(
        to_device(torch.from_numpy(weights).to(like.dtype), like.device),
        to_device(torch.from_numpy(active), like.device),
        to_device(torch.from_numpy(knobs).to(like.dtype), like.device),
        records.take(rows, [bench for _, bench in party.values()]),
    )


def _by_step(tables: list[npt.NDArray[Any]], count: int, size: int) -> npt.NDArray[Any]:
    """Tables of equal shape as one of (steps, walks, rows)."""
    return np.concatenate(tables).reshape(len(tables), count, size).swapaxes(0, 1)


def _check_batch_norm(op: Steps) -> None:
    if op.weights is not None or op.batches.shape[1] > 1:
        raise InvalidInput(
            "batch normalisation mixes the rows of a batch, so in a fleet every visit needs "
            "plain minibatches; use a GroupNorm model or the in-process engine."
        )


@dataclass(frozen=True)
class Kind:
    """What a captured step depends on, besides shapes."""

    rule: StepRule
    bound: float | None
    clipped: bool
    noisy: bool
    decays: bool


@dataclass(eq=False)
class Team:
    """Matrices of the walks that step together: one row per walk."""

    parameters: torch.Tensor
    buffers: Buffers
    moments: dict[str, torch.Tensor]
    counters: torch.Tensor
    knobs: torch.Tensor


@dataclass(eq=False)
class Batch:
    """What a step reads: one batch per walk, its weights, and whether the walk takes part."""

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


def update(team: Team, kind: Kind, slopes: torch.Tensor, batch: Batch) -> None:
    """One optimizer step of every active row, in few passes over memory.

    Whether a row is active goes into its knobs, which are short: to choose between old and new
    parameters and moments would be a pass for each.
    """
    rule, active, parameters = kind.rule, batch.active, team.parameters
    rate, scale, clip, sign, momentum, decay = team.knobs.split(1, dim=1)
    rate, scale, sign, decay = (k * active for k in (rate, scale * sign, sign, decay))
    slopes = torch.where(active, slopes, 0.0)  # those of a walk that waits may be infinite
    if kind.clipped:
        norms = slopes.norm(dim=1, keepdim=True) * scale.abs()
        scale = scale * (clip / (norms + 1e-12)).clamp(max=1.0)
    if batch.noise is not None:
        slopes.mul_(scale).addcmul_(batch.noise, sign)
        scale = torch.ones_like(scale)
    if rule.optimizer == "momentum":
        change = team.moments["momentum"]
        change.mul_(torch.where(active, momentum, 1.0)).addcmul_(slopes, scale)
    else:
        change = slopes.mul_(scale)
    if kind.decays:
        change.addcmul_(parameters, decay)
    if rule.optimizer == "adam":
        first, second = rule.betas
        on, seen = active.to(parameters.dtype), team.counters.clamp(min=1.0)
        mean = team.moments["mean"].lerp_(change, (1.0 - first) * on)
        square = team.moments["square"].lerp_(change.square_(), (1.0 - second) * on)
        root = (square / (1.0 - second**seen)).sqrt_().add_(rule.damping + (1.0 - on))
        change, rate = root.reciprocal_().mul_(mean), rate / (1.0 - first**seen)
    parameters.addcmul_(change, rate, value=-1.0)


def _where(active: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    mask = active.view(-1, *[1] * (new.dim() - 1))
    return torch.where(mask, new, old)


@dataclass(eq=False)
class Step:
    """A step with the team and the batch that it works on."""

    gradient: BatchedGradient
    team: Team
    kind: Kind
    batch: Batch
    executor: Executor | None = None
    prepared: Callable[[], None] | None = field(default=None, init=False)

    def take(self) -> None:
        """One step of every walk that is active."""
        team, kind, batch = self.team, self.kind, self.batch
        slopes, fresh = self.gradient(
            team.parameters, team.buffers, batch.x, batch.y, batch.weights, kind.bound
        )
        if kind.rule.slots:
            team.counters.add_(batch.active)
        if not self._updated(slopes):
            update(team, kind, slopes, batch)
        for name, old in team.buffers.items():
            if fresh[name] is not old:
                old.copy_(_where(batch.active, fresh[name], old))

    def _updated(self, slopes: torch.Tensor) -> bool:
        """Whether the device took the step in one pass."""
        team, kind = self.team, self.kind
        if self.executor is None or kind.noisy or kind.rule.optimizer == "adam":
            return False
        return self.executor.fleet_update(
            team.parameters,
            slopes,
            team.moments.get("momentum"),
            team.knobs,
            self.batch.active,
            slopes.norm(dim=1) if kind.clipped else None,
            decays=kind.decays,
        )

    def prepare(self) -> None:
        """Have the executor prepare the step, once; no walk is active while that happens."""
        if self.executor is not None and self.prepared is None:
            self.batch.active.zero_()
            self.prepared = self.executor.captured(self.take)

    def replay(self) -> None:
        """Take the step on what team and batch hold now."""
        if self.prepared is None:
            self.take()
        else:
            self.prepared()


@dataclass(frozen=True, eq=False)
class Taken(ABC):
    """Batches of a visit, (steps, walks, rows, ...), out of tables of inputs and labels."""

    x: torch.Tensor
    y: torch.Tensor
    lead: ClassVar[int] = 1
    """Dimensions of the tables before those of a record."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a record."""
        return tuple(self.x.shape[self.lead :])

    def room(self, size: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Empty tensors for inputs and labels of ``size`` walks with ``width`` rows each."""
        return (
            self.x.new_zeros(size, width, *self.shape),
            self.y.new_zeros(size, width, *self.y.shape[self.lead :]),
        )

    @abstractmethod
    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of all steps."""

    @abstractmethod
    def fill(self, x: torch.Tensor, y: torch.Tensor, step: int) -> None:
        """Write one step's inputs and labels into ``x`` and ``y``."""


@dataclass(frozen=True, eq=False)
class _Drawn(Taken):
    """Batches that were taken before the first step, in each walk's own order."""

    lead: ClassVar[int] = 3

    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x, self.y

    def fill(self, x: torch.Tensor, y: torch.Tensor, step: int) -> None:
        x.copy_(self.x[step])
        y.copy_(self.y[step])


@dataclass(frozen=True, eq=False)
class _Listed(Taken):
    """Batches that are gathered from the tables at their step."""

    rows: torch.Tensor

    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[self.rows], self.y[self.rows]

    def fill(self, x: torch.Tensor, y: torch.Tensor, step: int) -> None:
        rows = self.rows[step].view(-1)
        torch.index_select(self.x, 0, rows, out=x.view(-1, *self.x.shape[1:]))
        torch.index_select(self.y, 0, rows, out=y.view(-1, *self.y.shape[1:]))


class RecordTable:
    """Every visited shard in one table, except those with augmented records."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.shards: dict[int, tuple[int, Shard]] = {}
        self.used = 0
        self.x = torch.empty(0)
        self.y = torch.empty(0)

    def take(self, rows: Rows, benches: Sequence[Bench]) -> Taken:
        """Batches of (steps, walks, rows) row numbers of each walk's own shard."""
        if all(b.shard.augment is None and b.shard.stamp is None for b in benches):
            starts = np.array([self.start(bench.shard) for bench in benches])
            return self.listed(to_device(torch.from_numpy(rows + starts[:, None]), self.device))
        xs, ys = [], []
        listed = to_device(torch.from_numpy(rows), self.device).unbind(1)
        for index, bench in zip(listed, benches, strict=True):
            x, y = bench.shard.take(index.reshape(-1), bench.generator)
            xs.append(x.view(*index.shape, *x.shape[1:]))
            ys.append(y.view(*index.shape, *y.shape[1:]))
        return _Drawn(torch.stack(xs, 1), torch.stack(ys, 1))

    def listed(self, rows: torch.Tensor) -> Taken:
        """Batches of (steps, walks, rows) row numbers of this table."""
        return _Listed(self.x, self.y, rows)

    def start(self, shard: Shard) -> int:
        """Where a shard begins in the table; it is added when it is first asked for."""
        entry = self.shards.get(id(shard))
        if entry is None:
            entry = self.shards[id(shard)] = (self.used, shard)
            self._add(shard)
        return entry[0]

    def _add(self, shard: Shard) -> None:
        need = self.used + len(shard.y)
        if need >= len(self.y):  # a row is left over, which stands for the rows of an empty shard
            room = max(need + 1, 2 * len(self.y))
            x = shard.x.new_zeros(room, *shard.x.shape[1:])
            y = shard.y.new_zeros(room, *shard.y.shape[1:])
            if self.used:
                x[: self.used], y[: self.used] = self.x[: self.used], self.y[: self.used]
            self.x, self.y = x, y
        self.x[self.used : need], self.y[self.used : need] = shard.x, shard.y
        self.used = need
