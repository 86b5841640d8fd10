"""Network-SGD (the paper's Algorithm 1): training by random walk, and the local work of a visit.

Local work is which rows a visit uses, in which batches, with which step size.  Every method's
visits are made of it; the functions at the end make those that settings describe, for training
and for the walk that forgets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from unwalk import walks
from unwalk.core.errors import InvalidInput
from unwalk.core.events import WORK
from unwalk.core.plan import Method, Phase, Route
from unwalk.core.program import (
    SCHEDULES,
    Ball,
    Drawing,
    Op,
    Program,
    Project,
    Rows,
    StepRule,
    Steps,
    Visit,
)
from unwalk.core.seeds import Draws
from unwalk.core.validation import check_choice, check_count, check_number
from unwalk.settings.config import Config


@dataclass(frozen=True)
class LocalWork:
    """How a visit goes over its rows.

    * ``epochs``: shuffled passes in batches of ``batch``, one step per batch; the rows left over
      after the last full batch sit out (a peer with fewer rows than one batch takes them all).
    * ``averaged``: one step on the mean gradient of ``minibatches`` batches, each drawn without
      replacement and independently of the others (the paper's s).
    * ``full``: one step on the gradient over all rows.
    * ``iid``: ``minibatches`` steps, each on ``batch`` rows drawn one by one with replacement: how
      many steps there are does not depend on how many rows there are.
    * ``slots``: ``epochs`` passes of ``slots`` steps.  A keyed permutation of the row numbers 0 to
      ``capacity`` - 1 sends each row to a slot, whichever other rows there are, and a slot's
      gradient sum is divided by the nominal batch B, the most that a slot can hold.  If some rows
      are removed, all others stay in their slots; the stability ledger relies on that.  With
      ``placed`` they also stay at their places in the slot.
    """

    kind: str = "epochs"
    batch: int = 64
    epochs: int = 1
    minibatches: int = 4
    slots: int = 1
    capacity: int = 1
    placed: bool = False

    def __post_init__(self) -> None:
        check_choice("work", self.kind, WORK)
        for name in ("batch", "epochs", "minibatches", "slots", "capacity"):
            check_count(name, getattr(self, name), low=1)

    @property
    def nominal_batch(self) -> int:
        """B of ``slots``: the most rows that a slot can hold.

        >>> LocalWork("slots", slots=4, capacity=10).nominal_batch
        3
        """
        return -(-self.capacity // self.slots)

    def batches(self, rows: Rows, rng: Draws) -> tuple[Rows, npt.NDArray[np.float64] | None]:
        """Row numbers of shape (steps, minibatches, size) and, for ``full``, their weights.

        >>> work = LocalWork("epochs", batch=2)
        >>> work.batches(np.arange(5), np.random.default_rng(0))[0].shape
        (2, 1, 2)
        """
        size = min(self.batch, rows.size)
        if self.kind == "epochs":
            steps = rows.size // size
            passes = [rng.permutation(rows)[: steps * size] for _ in range(self.epochs)]
            drawn = passes[0] if self.epochs == 1 else np.concatenate(passes)
            return drawn.reshape(self.epochs * steps, 1, size), None
        if self.kind == "averaged":
            draws = [rng.choice(rows, size, replace=False) for _ in range(self.minibatches)]
            return np.stack(draws)[None], None
        if self.kind == "iid":
            drawn = rng.choice(rows, (self.minibatches, 1, self.batch))
            return drawn, None
        if self.kind == "slots":
            return self._slotted(rows, rng)
        parts = math.ceil(rows.size / size)
        padded = np.full(parts * size, -1, np.int64)
        padded[: rows.size] = rows
        batches = padded.reshape(1, parts, size)
        return batches, (batches >= 0) / rows.size

    def drawing(self, rows: Rows) -> tuple[Rows, int, int] | None:
        """What :meth:`batches` will draw: batches of that shape, and ``passes`` and ``used`` of
        :class:`unwalk.core.program.Drawing`; None where it is not as simple as that.

        >>> work = LocalWork("averaged", batch=2, minibatches=3)
        >>> batches, passes, used = work.drawing(np.arange(5))
        >>> batches.shape, passes, used
        ((1, 3, 2), 3, 2)
        """
        size = min(self.batch, rows.size)
        if self.kind == "epochs":
            steps = rows.size // size
            shape, passes, used = (self.epochs * steps, 1, size), self.epochs, steps * size
        elif self.kind == "averaged":
            shape, passes, used = (1, self.minibatches, size), self.minibatches, size
        elif self.kind == "iid":
            shape, passes, used = (self.minibatches, 1, self.batch), 0, 0
        else:
            return None
        return np.zeros(shape, np.int64), passes, used

    def _slotted(self, rows: Rows, rng: Draws) -> tuple[Rows, npt.NDArray[np.float64]]:
        """Each row in its slot; the generator draws the same whatever ``rows`` are."""
        if rows.size and int(rows.max()) >= self.capacity:
            raise InvalidInput(
                f"capacity is {self.capacity}, but a peer holds row {int(rows.max())}; "
                "allowed: a train.capacity of at least the most records that a peer may hold."
            )
        batches = np.full((self.epochs * self.slots, 1, self.nominal_batch), -1, np.int64)
        for epoch in range(self.epochs):
            drawn = rng.permutation(self.capacity)[rows]
            slot_of = drawn % self.slots
            if self.placed:
                batches[epoch * self.slots + slot_of, 0, drawn // self.slots] = rows
                continue
            for slot in range(self.slots):
                members = rows[slot_of == slot]
                batches[epoch * self.slots + slot, 0, : members.size] = members
        return batches, (batches >= 0) / self.nominal_batch

    def uses(self, everything: Rows, retained: Rows, rng: Draws) -> bool:
        """Whether batches that ``rng`` gives over ``everything`` hold a row not ``retained``."""
        if retained.size == everything.size:
            return False
        batches, _ = self.batches(everything, rng)
        return not bool(np.isin(batches[batches >= 0], retained).all())

    def without(
        self,
        everything: Rows,
        retained: Rows,
        rng: Draws,
        fresh: Draws,
    ) -> tuple[Rows, npt.NDArray[np.float64] | None]:
        """The batches that ``rng`` gave over ``everything``, as they become once only ``retained``
        rows may be used.

        Batches before the first one with a forgotten row are kept; everything else is drawn from
        ``fresh``: new batches (``iid``, ``averaged``), the order of the records that a shuffled
        pass has not used yet, or a whole visit of slots.  The result is distributed as batches over
        ``retained`` alone: ``docs/methods.md`` gives the reasons.  The randomness of a dirty
        batch is not used again: the difference of the two models would show the forgotten
        gradients.
        """
        if self.kind in ("full", "slots"):
            return self.batches(retained, fresh)
        if self.kind == "epochs":
            return self._reordered(everything, retained, rng, fresh), None
        drawn, _ = self.batches(everything, rng)
        dirty = ~np.isin(drawn, retained).all(-1).reshape(-1)
        if not dirty.any():
            return drawn, None
        anew, _ = self.batches(retained, fresh)
        if anew.shape != drawn.shape:
            raise InvalidInput(
                f"{retained.size} rows are left, fewer than a batch of {self.batch}; allowed for "
                "first use: at least as many as a batch holds."
            )
        flat, other = (b.reshape(-1, b.shape[-1]).copy() for b in (drawn, anew))
        first = int(np.flatnonzero(dirty)[0])
        flat[first:] = other[first:]
        return flat.reshape(drawn.shape), None

    def _reordered(
        self,
        everything: Rows,
        retained: Rows,
        rng: Draws,
        fresh: Draws,
    ) -> Rows:
        """Shuffled passes, kept up to the first batch with a forgotten row."""
        used = everything.size - everything.size % min(self.batch, everything.size)
        size = min(self.batch, retained.size)
        steps = retained.size // size
        kept, clean = [], True
        for _ in range(self.epochs):
            old, new = rng.permutation(everything), fresh.permutation(retained)
            order = new
            if clean:
                here = np.isin(old, retained)
                clean = bool(here[:used].all())
                before = old[: int(np.argmin(here))] if not clean else old[here]
                before = before[: before.size // size * size]
                order = np.concatenate([before, new[~np.isin(new, before)]])
            kept.append(order[: steps * size])
        return np.concatenate(kept).reshape(self.epochs * steps, 1, size)


@dataclass(frozen=True)
class Schedule:
    r"""Step size at hop t: ``constant``, or one of the paper's decreasing schedules.

    ``sqrt``: :math:`\eta_t = \min(1/L, R/(G\sqrt t))` (Corollary C.3); ``inverse``:
    :math:`\eta_t = \min(1/L, 1/(\mu t))` for strongly convex losses.  ``smoothness`` is L,
    ``diameter`` R, ``gradient_bound`` G, ``convexity`` :math:`\mu`.

    >>> Schedule("sqrt", smoothness=2.0, diameter=1.0, gradient_bound=1.0).at(16, 0.1)
    0.25
    >>> Schedule().at(16, 0.1)
    0.1
    """

    kind: str = "constant"
    smoothness: float = 1.0
    diameter: float = 1.0
    gradient_bound: float = 1.0
    convexity: float = 1.0

    def __post_init__(self) -> None:
        check_choice("schedule", self.kind, SCHEDULES)
        for name in ("smoothness", "diameter", "gradient_bound", "convexity"):
            check_number(name, getattr(self, name), above=0.0)

    def at(self, hop: int, base: float) -> float:
        """The step size at the 1-based hop of a phase."""
        if self.kind == "constant":
            return base
        if self.kind == "sqrt":
            decayed = self.diameter / (self.gradient_bound * math.sqrt(hop))
        else:
            decayed = 1.0 / (self.convexity * hop)
        return min(1.0 / self.smoothness, decayed)


def slice_of(rows: Rows, slices: int) -> Rows:
    """The slice of each row, from 0.

    >>> slice_of(np.arange(8), 2).tolist()
    [0, 1, 1, 1, 0, 0, 0, 0]
    """
    check_count("slices", slices, low=1)
    mixed = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(40)) % np.uint64(slices)).astype(np.int64)


def entered(rows: Rows, slices: int, hop: int, hops: int) -> Rows:
    """The rows that take part at the 1-based hop ``hop`` of a walk of ``hops`` hops.

    >>> [entered(np.arange(8), 2, hop, 10).size for hop in (1, 5, 6, 10, 12)]
    [5, 5, 8, 8, 8]
    """
    if slices == 1:
        return rows
    open_ = min((hop - 1) * slices // max(hops, 1), slices - 1)
    return rows[slice_of(rows, slices) <= open_]


@dataclass(frozen=True)
class Descent:
    """Projected descent on a peer's rows, noiseless by default: the visit of Network-SGD.

    ``clip`` bounds the norm of every step's gradient, ``clip_per_example`` that of every record's
    before they are averaged; ``noise`` is the std of Gaussian noise on every step's gradient.
    ``feasible`` is the paper's Theta.  With ``slices`` above 1 records take part only once their
    slice has been opened, the last one near the end of ``horizon`` hops.
    """

    rule: StepRule
    work: LocalWork
    schedule: Schedule = Schedule()
    clip: float | None = None
    feasible: Ball | None = None
    clip_per_example: float | None = None
    noise: float = 0.0
    slices: int = 1
    horizon: int = 0

    def __post_init__(self) -> None:
        check_count("slices", self.slices, low=1)
        for name in ("clip", "clip_per_example"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0.0)
        check_number("noise", self.noise, low=0.0)

    def program(self, visit: Visit, data: str) -> Program:
        """The operations of one visit; none when the peer has no such rows."""
        rows = self.taking_part(visit.records.rows(data), visit.phase_hop)
        if rows.size == 0 and self.work.kind != "slots":
            return ()
        return self.steps(visit, data, *self.work.batches(rows, visit.rng))

    def drawing(self, visit: Visit, data: str) -> Drawing | None:
        """:meth:`program` before anything is drawn, where it is alike at all hops."""
        rows = visit.records.rows(data)
        if self.schedule.kind != "constant" or self.slices > 1:
            return None
        drawn = self.work.drawing(rows) if rows.size else None
        if drawn is None:
            return None
        batches, passes, used = drawn
        steps, *after = self.steps(visit, data, batches, None)
        assert isinstance(steps, Steps)
        return Drawing(steps, rows, passes, used, tuple(after))

    def taking_part(self, rows: Rows, hop: int) -> Rows:
        """Those of ``rows`` whose slice is open at a hop of the phase."""
        return entered(rows, self.slices, hop, self.horizon)

    def steps(
        self, visit: Visit, data: str, batches: Rows, weights: npt.NDArray[np.float64] | None
    ) -> Program:
        """Steps on these batches, then the projection on the feasible ball."""
        steps = Steps(
            batches=batches,
            weights=weights,
            data=data,
            rule=self.rule,
            step_size=self.schedule.at(visit.phase_hop, self.rule.learning_rate),
            clip=self.clip,
            clip_per_example=self.clip_per_example,
            noise=self.noise,
            counted=batches.size if self.work.kind == "slots" else None,
            batching=self.work.kind,
        )
        return (steps,) if self.feasible is None else (steps, Project((self.feasible,)))

    @property
    def travels(self) -> tuple[str, ...]:
        """Moment vectors that travel in the token."""
        return self.rule.slots if self.rule.state == "carried" else ()


def in_eighths(batch: int | None, rows: Rows) -> LocalWork:
    """A pass over the rows in batches of ``batch``; None: of an eighth of them, so that a pass over
    many rows takes as many steps as one over few.

    >>> in_eighths(None, np.arange(60)).batch, in_eighths(None, np.arange(3)).batch
    (8, 1)
    """
    return LocalWork("epochs", batch=batch or max(1, -(-rows.size // 8)))


def each_step(steps: Steps, *after: Op) -> Program:
    """The same steps one by one, each followed by ``after``."""
    program: list[Op] = []
    for step in range(steps.batches.shape[0]):
        one = slice(step, step + 1)
        weights = None if steps.weights is None else steps.weights[one]
        program += [replace(steps, batches=steps.batches[one], weights=weights), *after]
    return tuple(program)


@dataclass(frozen=True)
class Descending:
    """A method whose visits run one ``descent``, whose moments may travel in the token."""

    descent: Descent

    @property
    def travels(self) -> tuple[str, ...]:
        """Moment vectors that travel in the token."""
        return self.descent.travels


@dataclass(frozen=True)
class Retaining(Descending):
    """Every peer descends on its retained records."""

    def visit(self, visit: Visit) -> Program:
        return self.descent.program(visit, "retained")

    def drawing(self, visit: Visit) -> Drawing | None:
        return self.descent.drawing(visit, "retained")


@dataclass(frozen=True)
class NetworkSGD(Descending):
    """Every peer descends on all of its records when the token arrives."""

    name: str = field(default="network-sgd", init=False)

    def visit(self, visit: Visit) -> Program:
        return self.descent.program(visit, "all")

    def drawing(self, visit: Visit) -> Drawing | None:
        return self.descent.drawing(visit, "all")


def train_descent(config: Config) -> Descent:
    """A training visit."""
    train = config.train
    return Descent(
        rule=StepRule(
            optimizer=train.optimizer,
            learning_rate=train.learning_rate,
            momentum=train.momentum,
            weight_decay=train.weight_decay,
            state=train.state,
        ),
        work=LocalWork(
            train.work,
            train.batch,
            train.epochs,
            train.minibatches,
            train.slots,
            train.capacity or 1,
        ),
        schedule=Schedule(
            train.schedule,
            train.smoothness,
            train.diameter,
            train.gradient_bound,
            train.convexity,
        ),
        clip=train.clip,
        feasible=feasible(config),
        slices=train.slices,
        horizon=train.hops,
    )


def as_unlearned(config: Config) -> Config:
    """The same settings, with those that section ``unlearn`` overrides for training too."""
    unlearn = config.unlearn
    names = ("optimizer", "learning_rate", "momentum", "weight_decay", "work")
    given = {n: getattr(unlearn, n) for n in names if getattr(unlearn, n) is not None}
    return replace(config, train=replace(config.train, **given, slices=1, keep=unlearn.keep))


def unlearn_descent(config: Config) -> Descent:
    """An unlearning visit to a peer other than u: as in training, with overrides of ``unlearn``."""
    return train_descent(as_unlearned(config))


def in_minibatches(descent: Descent) -> Descent:
    """The same visit in plain minibatches, for methods that pair or relabel them."""
    if descent.work.kind not in ("full", "slots"):
        return descent
    return replace(descent, work=replace(descent.work, kind="epochs"))


def chunks(rows: Rows, size: int) -> Rows:
    """Rows in minibatches of ``size``, in their order, the last one padded with -1.

    >>> chunks(np.arange(5), 2).tolist()
    [[0, 1], [2, 3], [4, -1]]
    """
    padded = np.full(-(-rows.size // size) * size, -1, np.int64)
    padded[: rows.size] = rows
    return padded.reshape(-1, size)


def feasible(config: Config) -> Ball | None:
    """The feasible ball Theta, if training has one."""
    radius = config.train.feasible_radius
    return None if radius is None else Ball("origin", radius)


def train_phase(config: Config, method: Method | None = None) -> Phase:
    """The training walk, over the records of all peers; of Network-SGD unless told otherwise."""
    return Phase(
        name="train",
        method=method or NetworkSGD(train_descent(config)),
        route=walks.Uniform(),
        hops=config.train.hops,
        keep=config.train.keep,
    )


def unlearn_phase(
    config: Config,
    method: Method,
    route: Route,
    *,
    start: str = "token",
    reset_optimizer: bool | None = None,
) -> Phase:
    """The unlearning walk of section ``unlearn``; starts from training's token or ``initial``.

    Whether the optimizer starts anew is a setting, unless the method needs it one way.
    """
    asked = config.unlearn.reset_optimizer
    return Phase(
        name="unlearn",
        method=method,
        route=route,
        hops=config.unlearn.hops,
        keep=config.unlearn.keep,
        reset_optimizer=asked if reset_optimizer is None else reset_optimizer,
        carries_forgotten=start == "token",
        start=start,
    )
