"""What a peer computes during a visit: which rows, in which batches, with which step size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unwalk.core.program import Ball, Program, Project, Rows, StepRule, Steps, Visit
from unwalk.core.validation import check_choice, check_count, check_number

WORK = ("epochs", "averaged", "full")
SCHEDULES = ("constant", "sqrt", "inverse")


@dataclass(frozen=True)
class LocalWork:
    """How a visit walks over rows.

    * ``epochs``: shuffled passes in batches of ``batch``, one step a batch; the rows left over
      after the last full batch sit out (a peer with fewer rows than one batch takes them all).
    * ``averaged``: one step on the mean gradient of ``minibatches`` batches, each drawn without
      replacement and independently of the others (the paper's s).
    * ``full``: one step on the gradient over all rows.
    """

    kind: str = "epochs"
    batch: int = 64
    epochs: int = 1
    minibatches: int = 4

    def __post_init__(self) -> None:
        check_choice("work", self.kind, WORK)
        check_count("batch", self.batch, low=1)
        check_count("epochs", self.epochs, low=1)
        check_count("minibatches", self.minibatches, low=1)

    def batches(
        self, rows: Rows, rng: np.random.Generator
    ) -> tuple[Rows, npt.NDArray[np.float64] | None]:
        """Row numbers of shape (steps, minibatches, size) and, for ``full``, their weights.

        >>> work = LocalWork("epochs", batch=2)
        >>> work.batches(np.arange(5), np.random.default_rng(0))[0].shape
        (2, 1, 2)
        """
        size = min(self.batch, rows.size)
        if self.kind == "epochs":
            steps = rows.size // size
            passes = [rng.permutation(rows)[: steps * size] for _ in range(self.epochs)]
            return np.concatenate(passes).reshape(self.epochs * steps, 1, size), None
        if self.kind == "averaged":
            draws = [rng.choice(rows, size, replace=False) for _ in range(self.minibatches)]
            return np.stack(draws)[None], None
        parts = math.ceil(rows.size / size)
        padded = np.full(parts * size, -1, np.int64)
        padded[: rows.size] = rows
        batches = padded.reshape(1, parts, size)
        return batches, (batches >= 0) / rows.size


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


@dataclass(frozen=True)
class Descent:
    """Projected descent on a peer's rows, noiseless by default: the visit of Network-SGD.

    ``clip`` bounds the norm of every step's gradient, ``clip_per_example`` that of every record's
    before they are averaged; ``noise`` is the std of Gaussian noise on every step's gradient.
    ``feasible`` is the paper's Theta.
    """

    rule: StepRule
    work: LocalWork
    schedule: Schedule = Schedule()
    clip: float | None = None
    feasible: Ball | None = None
    clip_per_example: float | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("clip", "clip_per_example"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0.0)
        check_number("noise", self.noise, low=0.0)

    def program(self, visit: Visit, data: str) -> Program:
        """The operations of one visit; none when the peer has no such rows."""
        rows = visit.records.rows(data)
        if rows.size == 0:
            return ()
        batches, weights = self.work.batches(rows, visit.rng)
        steps = Steps(
            batches=batches,
            weights=weights,
            data=data,
            rule=self.rule,
            step_size=self.schedule.at(visit.phase_hop, self.rule.learning_rate),
            clip=self.clip,
            clip_per_example=self.clip_per_example,
            noise=self.noise,
        )
        return (steps,) if self.feasible is None else (steps, Project((self.feasible,)))

    @property
    def travels(self) -> tuple[str, ...]:
        """Moment vectors that travel in the token."""
        return self.rule.slots if self.rule.state == "carried" else ()
