"""Programs: what one visit does to the token, as a short list of operations.

A method does not touch tensors.  It reads a :class:`Visit` and returns a *program*: a tuple of the
operations below, in which every batch is a list of row numbers.  Executors run
programs: one walk at a time (:mod:`unwalk.engines.execute`), or many walks in one batch.  The
same method object therefore runs on every engine, and what a visit did can be read, logged and
replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from unwalk.core.events import OPTIMIZERS, WIPES, GradientSteps
from unwalk.core.seeds import Draws
from unwalk.core.validation import check_choice

Rows = npt.NDArray[np.int64]

OPTIMIZER_STATES = ("carried", "local", "fresh")
SCHEDULES = ("constant", "sqrt", "inverse")
"""Step sizes over the hops (:class:`unwalk.methods.network_sgd.Schedule`)."""


@dataclass(frozen=True)
class StepRule:
    r"""How a gradient becomes a step.

    ``sgd``: :math:`\theta \leftarrow \theta - \eta g`; ``momentum``: heavy ball with factor
    ``momentum``; ``adam``: Kingma and Ba's rule with ``betas`` and ``damping``.  ``weight_decay``
    adds :math:`\lambda\theta` to the gradient.  ``state`` says where moments live: they travel in
    the token (``carried``), stay at each peer (``local``) or start empty at each visit (``fresh``).
    """

    optimizer: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    damping: float = 1e-8
    weight_decay: float = 0.0
    state: str = "carried"

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the moment vectors this rule keeps."""
        return OPTIMIZERS[self.optimizer]


@dataclass(frozen=True, eq=False)
class Steps:
    r"""Optimizer steps.  ``batches`` has shape (steps, minibatches, size) and holds row numbers.

    A step's gradient is the mean over its minibatches of their mean gradients, or, with
    ``weights`` (same shape), the weighted sum :math:`\sum_i w_i \nabla\ell_i`.  A minibatch
    shorter than ``size`` is padded with -1 and then needs weights.  The gradient is multiplied
    by ``scale``, clipped to norm ``clip``, given Gaussian noise of std ``noise`` per coordinate,
    and followed downhill (``direction`` -1) or uphill (+1).  ``clip_per_example`` clips each
    example's gradient before averaging.  With ``rounded`` the noisy gradient is correctly rounded
    to a public grid (:mod:`unwalk.core.rounding`); where examples are clipped too, each is computed
    at its place in the batch, and their sum is exact
    (:func:`unwalk.engines.per_example.exact_sum`).  ``counted`` replaces the number of gradients
    in the log where the true number is secret.  ``batching`` says how records came into
    batches (:data:`unwalk.core.events.BATCHING`), for the log.
    """

    batches: Rows
    data: str
    rule: StepRule
    step_size: float
    direction: int = -1
    scale: float = 1.0
    clip: float | None = None
    clip_per_example: float | None = None
    noise: float = 0.0
    weights: npt.NDArray[np.float64] | None = None
    counted: int | None = None
    rounded: bool = False
    batching: str = "other"

    @property
    def touched(self) -> bool:
        """Whether records to be forgotten, if this peer has any, may take part."""
        return self.data != "retained"

    @cached_property
    def gradients(self) -> int:
        """Number of per-example gradient evaluations."""
        if self.counted is not None:
            return self.counted
        return int((self.batches >= 0).sum()) if self.weights is not None else self.batches.size

    def event(self, origin: str, grid: float | None = None) -> GradientSteps:
        """The event for these steps, with noise of this origin, rounded to ``grid``."""
        steps, minibatches, batch = self.batches.shape
        return GradientSteps(
            steps=steps,
            minibatches=minibatches,
            batch=batch,
            data=self.data,
            touched=self.touched,
            direction=self.direction,
            scale=self.scale,
            clip=self.clip,
            clip_per_example=self.clip_per_example,
            noise=self.noise,
            origin=origin if self.noise else None,
            optimizer=self.rule.optimizer,
            step_size=self.step_size,
            momentum=self.rule.momentum if self.rule.optimizer == "momentum" else 0.0,
            weight_decay=self.rule.weight_decay,
            state=self.rule.state if self.rule.slots else "none",
            grid=grid,
            batching=self.batching,
        )


@dataclass(frozen=True, eq=False)
class Drawing:
    """A visit whose batches are still to be drawn, so that an engine can draw many at once.

    ``steps`` have batches of the right shape; None: the visit takes none.  Their entries in order
    are the first ``used`` of each of ``passes`` permutations of ``rows``, one draw each; or,
    without passes, rows drawn one by one with replacement, in one draw.  Noise on the parameters
    and projections may follow them: ``after``.
    """

    steps: Steps | None
    rows: Rows
    passes: int
    used: int
    after: Program = ()

    @property
    def program(self) -> Program:
        """The visit, before anything is drawn for it."""
        return self.after if self.steps is None else (self.steps, *self.after)


@dataclass(frozen=True)
class AddNoise:
    """Gaussian noise of std ``std`` on the parameters; see :class:`events.GaussianNoise`.

    With ``rounded`` the sum is correctly rounded to a public grid, which every guarantee needs
    (:mod:`unwalk.core.rounding`); without it the noise is added in floating point.
    """

    std: float
    sensitivity: float | None = None
    rounded: bool = True


@dataclass(frozen=True)
class Ball:
    """A Euclidean ball around a named anchor: ``origin``, ``initial``, ``start`` or ``arrival``.

    ``initial`` is the public initial model, ``start`` the model with which the phase began,
    ``arrival`` the model as it arrived at this visit.
    """

    centre: str
    radius: float


@dataclass(frozen=True)
class Project:
    """Euclidean projection of the parameters on the intersection of one or two balls."""

    balls: tuple[Ball, ...]

    @property
    def round_arrival(self) -> bool:
        """Whether the model as it arrived at this visit is one of the centres."""
        return any(ball.centre == "arrival" for ball in self.balls)


@dataclass(frozen=True)
class Forget:
    """Erase state: ``optimizer`` (moments in the token and the step count), ``buffers`` (back to
    their initial values) or ``local``."""

    what: str

    def __post_init__(self) -> None:
        check_choice("what", self.what, WIPES)


@dataclass(frozen=True)
class ReplaceSums:
    r"""Replace this peer's former sums of :math:`x x^T` and :math:`x y^T` by those over ``data``,
    and the parameters by the ridge solution (a linear head, no bias).

    Sums travel in fixed point with ``bits`` binary places, so that adding and taking away is exact
    in any order.  Each entry has ``width`` bits in all.  ``strength`` is the ridge parameter.
    """

    data: str
    strength: float
    bits: int = 40
    width: int = 62

    @property
    def touched(self) -> bool:
        """Whether records to be forgotten, if this peer has any, may take part."""
        return self.data != "retained"


@dataclass(frozen=True, eq=False)
class Edit:
    """A change for which no accountant has a bound; ``what`` names it in the log.

    Vectors that go with the model are named: ``importance`` and ``mask`` travel in the token,
    ``log`` stays at the peer.  ``data`` says which records decide on the change, ``gradients`` how
    many per-example gradients it takes.  ``modelled``: it needs the model, not only its numbers.
    """

    what: ClassVar[str]
    modelled: ClassVar[bool] = True

    @property
    def data(self) -> str:
        return "mixed"

    @property
    def touched(self) -> bool:
        """Whether records to be forgotten, or what they left behind, may take part."""
        return self.data != "retained"

    @property
    def gradients(self) -> int:
        return 0


@dataclass(frozen=True, eq=False)
class Distil(Edit):
    r"""Steps of cross-entropy to soft targets instead of labels.

    ``teacher``: :math:`t = \alpha\,p_{\rm teacher} + \gamma\,e_y`, with the model of the
    phase's start as teacher and weights ``pull`` :math:`= \alpha` and ``labels``
    :math:`= \gamma`; its gradient is that of :math:`\alpha\,{\rm KL}(p_{\rm teacher}\|p) +
    \gamma\,\ell`.  ``others``: all classes but the record's own alike, the mean over random
    wrong labels.
    """

    what: ClassVar[str] = "distilled-steps"
    steps: Steps
    target: str = "teacher"
    pull: float = 1.0
    labels: float = 0.0

    def __post_init__(self) -> None:
        check_choice("target", self.target, ("teacher", "others"))
        assert self.steps.weights is None, "soft targets take plain minibatches"

    @property
    def key(self) -> tuple[str, float, float]:
        """What the targets depend on, besides model and labels."""
        return self.target, self.pull, self.labels

    @property
    def gradients(self) -> int:
        return self.steps.gradients


@dataclass(frozen=True, eq=False)
class Importance(Edit):
    r"""Add ``share`` times the importance of parameters for ``batches`` (minibatches, size) to the
    ``importance`` that travels.

    Importance is the mean square of the minibatches' mean gradients, model in evaluation mode: with
    one record each, the diagonal of the empirical Fisher information.  Rows are padded with -1.
    """

    what: ClassVar[str] = "importance"
    batches: Rows
    share: float
    of: str = "all"

    @property
    def data(self) -> str:
        return self.of

    @property
    def gradients(self) -> int:
        return int((self.batches >= 0).sum())


@dataclass(frozen=True, eq=False)
class Dampen(Edit):
    r"""Shrink what matters to the forgotten records ``batches`` more than to everybody.

    With :math:`F` the importance of these and :math:`I` the one that travels,
    :math:`\theta_i \leftarrow \min(\beta I_i/F_i, 1)\,\theta_i` where
    :math:`F_i > \alpha I_i`.  The importance travels no further.
    """

    what: ClassVar[str] = "dampening"
    batches: Rows
    alpha: float
    beta: float

    @property
    def gradients(self) -> int:
        return int((self.batches >= 0).sum())


@dataclass(frozen=True, eq=False)
class NewtonStep(Edit):
    r"""One second-order step, :math:`\theta \leftarrow \theta + w (C + \lambda I)^{-1}
    \nabla\ell_f`, with the mean gradient of ``forgotten`` and the curvature C of ``retained``.

    ``curvature`` is ``fisher``, the diagonal of :class:`Importance`, or ``hessian``, whole.
    ``damping`` is :math:`\lambda`, ``share`` w.
    """

    what: ClassVar[str] = "newton-step"
    forgotten: Rows
    retained: Rows
    curvature: str
    damping: float
    share: float

    @property
    def gradients(self) -> int:
        return int((self.forgotten >= 0).sum() + (self.retained >= 0).sum())


@dataclass(frozen=True, eq=False)
class Mask(Edit):
    """Let a ``mask`` travel: 1 for the ``share`` of parameters with the largest gradient on
    ``batches`` (minibatches, size), 0 for the others."""

    what: ClassVar[str] = "mask"
    batches: Rows
    share: float

    @property
    def data(self) -> str:
        return "forgotten"

    @property
    def gradients(self) -> int:
        return int((self.batches >= 0).sum())


@dataclass(frozen=True, eq=False)
class Hold(Edit):
    """Put parameters outside the mask that travels back to what they were as the phase began."""

    what: ClassVar[str] = "hold"
    modelled: ClassVar[bool] = False


@dataclass(frozen=True, eq=False)
class Log(Edit):
    """Add this visit's change of the model to the peer's own ``log``."""

    what: ClassVar[str] = "log"
    modelled: ClassVar[bool] = False

    @property
    def data(self) -> str:
        return "all"


@dataclass(frozen=True, eq=False)
class Subtract(Edit):
    """Take ``share`` of the peer's ``log`` out of the model, and erase the log."""

    what: ClassVar[str] = "subtraction"
    modelled: ClassVar[bool] = False
    share: float


def round_arrival(op: Op) -> bool:
    """Whether an operation looks at the model as it arrived at this visit."""
    return isinstance(op, Log) or (isinstance(op, Project) and op.round_arrival)


Op = Steps | AddNoise | Project | Forget | ReplaceSums | Edit
Program = tuple[Op, ...]


@dataclass(frozen=True, eq=False)
class Records:
    """Which rows a peer holds: how many, and which of them are to be forgotten.

    A row keeps its number as long as it exists.  Unused numbers below ``size`` are ``absent``: no
    method ever sees them.

    >>> records = Records(5, forgotten=np.array([3]), absent=np.array([1]))
    >>> records.all.tolist(), records.retained.tolist()
    ([0, 2, 3, 4], [0, 2, 4])
    """

    size: int
    forgotten: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    absent: Rows = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def all(self) -> Rows:
        return self._but(self.absent)

    @cached_property
    def retained(self) -> Rows:
        return self._but(self.absent, self.forgotten)

    def _but(self, *others: Rows) -> Rows:
        keep = np.ones(self.size, bool)
        for rows in others:
            keep[rows] = False
        return np.flatnonzero(keep)

    def rows(self, data: str) -> Rows:
        """Rows of ``all``, ``retained`` or ``forgotten`` data."""
        if data == "all":
            return self.all
        return {"retained": self.retained, "forgotten": self.forgotten}[data]


@dataclass(frozen=True, eq=False)
class Visit:
    """Everything that a method may use: no tensors, no clock, no global randomness."""

    hop: int
    phase_hop: int
    peer: int
    at_unlearner: bool
    records: Records
    rng: Draws
    earlier_in_phase: int = 0
