r"""The stability ledger: bounds how far training with and without D_f can move apart.

The two worlds are coupled: records go to batch slots by a keyed hash of record id and epoch, the
gradient *sum* of a slot is divided by a nominal B, and the number of slots S, B and the cap b on a
slot's size are public constants.  Then the retained records take the same steps in both worlds;
a slot that holds :math:`m_j` forgotten records pushes them apart by at most
:math:`\eta L m_j/B`, and every step, at u and elsewhere, multiplies their distance by

.. math:: c_j = \max(|1 - \eta\lambda|, |1 - \eta\beta_j|), \qquad
          \beta_j = \beta\,|b_j|/B + \lambda.

Steps are computed in 64 bits: what is stored after one lies within :math:`\tau` of the exact step
(:meth:`LinearHead.step_error`), so that each adds :math:`2\tau` to the distance.  The ledger
therefore carries, besides the distance, a bound R on the length of the model, and rounds every
operation of its own up (:mod:`unwalk.privacy.upward`).

Neighbouring relation: the same run with and without the m forgotten records of one peer.  All
statements here are derived in ``docs/math.md``; the idea of counting stability step by step is
that of Hardt, Recht and Singer, *Train faster, generalize better*, ICML 2016 (arXiv:1509.01240v2),
Section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from unwalk.core.errors import Refused
from unwalk.core.validation import check_choice, check_count, check_number
from unwalk.privacy.gaussian import gaussian_mu
from unwalk.privacy.upward import above, over, plus, power, root, times

UNIT = 2.0**-53
"""Relative error of one operation in 64 bits."""
TINY = 2.0**-1000
"""A generous bound on what all underflows of an operation add, per unit of size."""
ROOM = 2.0**53
"""The number of grid cells to which rounded noise is clamped."""


def gamma(operations: float) -> float:
    r""":math:`\gamma_n = nu/(1 - nu)`: relative error of sums of products in any order, at most n
    rounded operations on the way of each term.

    >>> gamma(1) > 2.0**-53, gamma(0)
    (True, 0.0)
    """
    share = times(operations, UNIT)
    if share >= 0.5:
        raise Refused(
            f"{operations:g} operations of 64 bits have no bound on their rounding.", "precision"
        )
    return over(share, 1.0 - share - UNIT)


@dataclass(frozen=True)
class ConvexLoss:
    r"""A convex per-example loss: gradients at most ``lipschitz`` L, Hessian at most
    ``smoothness`` :math:`\beta`, both without the regulariser.
    """

    lipschitz: float
    smoothness: float

    def __post_init__(self) -> None:
        check_number("lipschitz", self.lipschitz, above=0.0)
        check_number("smoothness", self.smoothness, above=0.0)


@dataclass(frozen=True)
class Residual:
    r"""The slope of a loss in the outputs z of a model: its ``length`` :math:`\rho`, at most, and
    its Lipschitz constant :math:`\kappa`, ``slope``.

    As it is computed from given outputs it is off by ``unit`` :math:`\cdot\gamma_n` at most, with n
    ``operations``; two roundings of its entries more are counted with the weighted sum.
    """

    length: float
    slope: Fraction
    operations: int
    unit: float

    def on(self, norm: float) -> ConvexLoss:
        r"""The loss of a linear model on inputs of this length, at most: the gradient is
        :math:`r x^T` and the Hessian :math:`\nabla r\otimes x x^T`, so that
        :math:`L = \rho\|x\|` and :math:`\beta = \kappa\|x\|^2`."""
        check_number("norm", norm, above=0.0)
        return ConvexLoss(times(self.length, norm), above(self.slope * Fraction(norm) ** 2))


LOSSES = ("softmax", "huber", "binary")
"""Losses with constants: of one class, of a number, of several labels."""


def residual_of(loss: str, outputs: int, bound: float = 1.0) -> Residual:
    r"""The constants of a loss, for K outputs.

    * ``softmax``: :math:`r = q - e_y` with :math:`\|r\|^2 \le 2`, and a covariance
      :math:`\mathrm{diag}(q) - q q^T` of one-hot vectors has no eigenvalue above 1/2.
    * ``huber``: :math:`r = \max(-\delta, \min(z - y, \delta))`, with ``bound`` :math:`\delta`.
    * ``binary``: :math:`r_k = (\sigma(z_k) - y_k)/K` with :math:`\|r\| \le 1/\sqrt K`, and
      :math:`\sigma' \le 1/4`.

    Derivations: ``docs/math.md``.

    >>> residual_of("softmax", 10).slope, residual_of("huber", 1, 0.5).length
    (Fraction(1, 2), 0.5)
    """
    check_choice("loss", loss, LOSSES)
    if loss == "softmax":
        check_count("outputs", outputs, low=2)
        return Residual(root(2.0), Fraction(1, 2), 2 * outputs + 16, 1.0)
    check_count("outputs", outputs, low=1, high=1 if loss == "huber" else None)
    if loss == "huber":
        check_number("bound", bound, above=0.0)
        return Residual(bound, Fraction(1), 16, bound)
    length = root(above(Fraction(1, outputs)))
    return Residual(length, Fraction(1, 4 * outputs), 16, length)


def softmax_regression(norm: float = 1.0) -> ConvexLoss:
    r"""Cross-entropy of a linear model on features with :math:`\|x\| \le` ``norm``, the bias
    feature included: :math:`L = \sqrt2\,\|x\|`, :math:`\beta = \|x\|^2/2`.

    >>> softmax_regression().smoothness
    0.5
    """
    return residual_of("softmax", 2).on(norm)


@dataclass(frozen=True)
class SlotSteps:
    """Plain SGD steps on slots, all with the same settings, at one visit.

    ``epochs`` of ``slots`` steps each; ``nominal_batch`` B divides the gradient sum, ``slot_cap``
    bounds the number of records in a slot (a rule that does not look at who is forgotten).
    ``weight_decay`` is lambda.  ``forgotten`` is the number m of forgotten records among this
    peer's; 0 at every peer but u.
    """

    epochs: int
    slots: int
    step_size: float
    nominal_batch: float
    slot_cap: float
    weight_decay: float = 0.0
    forgotten: int = 0

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, low=0)
        check_count("slots", self.slots, low=1)
        check_number("step_size", self.step_size, low=0.0)
        check_number("nominal_batch", self.nominal_batch, above=0.0)
        check_number("slot_cap", self.slot_cap, low=0.0)
        check_number("weight_decay", self.weight_decay, low=0.0)
        check_count("forgotten", self.forgotten, low=0)

    def injection(self, loss: ConvexLoss) -> float:
        r"""What one epoch can push the worlds apart: :math:`\eta L m/B`.

        >>> steps = SlotSteps(1, 10, 0.1, 50, 80, forgotten=5)
        >>> round(steps.injection(softmax_regression()), 12)
        0.014142135624
        """
        share = above(Fraction(self.step_size) * self.forgotten / Fraction(self.nominal_batch))
        return times(share, loss.lipschitz)

    def push(self, loss: ConvexLoss) -> float:
        r"""How far the gradient of a full slot can move the model: :math:`\eta L b/B`.

        >>> round(SlotSteps(1, 10, 0.1, 50, 100).push(softmax_regression()), 6)
        0.282843
        """
        filled = Fraction(self.slot_cap) / Fraction(self.nominal_batch)
        return times(above(Fraction(self.step_size) * filled), loss.lipschitz)

    def decay(self) -> float:
        r"""What is left of a model's own length after a step: :math:`|1 - \eta\lambda|`.

        >>> SlotSteps(1, 10, 0.5, 50, 100, weight_decay=0.5).decay()
        0.75
        """
        return above(abs(1 - Fraction(self.step_size) * Fraction(self.weight_decay)))

    def factor(self, loss: ConvexLoss) -> float:
        r"""The worst :math:`c_j` over slots with 0 to ``slot_cap`` records; refuses above 1.

        >>> round(SlotSteps(1, 10, 0.1, 50, 100, 0.1).factor(softmax_regression()), 12)
        0.99
        """
        filled = Fraction(self.slot_cap) / Fraction(self.nominal_batch)
        largest = Fraction(loss.smoothness) * filled + Fraction(self.weight_decay)
        factor = max(self.decay(), above(abs(1 - Fraction(self.step_size) * largest)))
        if factor > 1.0:
            raise Refused(
                f"step size {self.step_size:g} exceeds 2/beta_j = {2.0 / float(largest):g} for a "
                "full slot: a step may expand, and the ledger cannot bound the distance.",
                "expanding",
            )
        return factor


@dataclass(frozen=True)
class LinearHead:
    r"""A linear layer under one of :data:`LOSSES` as it is computed, in 64 bits.

    ``inputs`` p counts the constant feature of a bias, ``outputs`` K are the classes or labels, or
    1 for a number; inputs are at most ``norm`` X long, and the public initial model
    ``initial_norm`` :math:`R_0`.  ``bound`` is Huber's :math:`\delta`.
    """

    inputs: int
    outputs: int
    norm: float = 1.0
    initial_norm: float = 0.0
    kind: str = "softmax"
    bound: float = 1.0

    def __post_init__(self) -> None:
        check_count("inputs", self.inputs, low=1)
        check_number("norm", self.norm, above=0.0)
        check_number("initial_norm", self.initial_norm, low=0.0)
        residual_of(self.kind, self.outputs, self.bound)

    @property
    def parameters(self) -> int:
        """Number of parameters, d."""
        return self.inputs * self.outputs

    @cached_property
    def residual(self) -> Residual:
        """The constants of its loss in the outputs."""
        return residual_of(self.kind, self.outputs, self.bound)

    @cached_property
    def loss(self) -> ConvexLoss:
        """The constants of its loss in the parameters."""
        return self.residual.on(self.norm)

    def begin(self) -> Ledger:
        """The ledger of the initial model, which is the same in both worlds."""
        return Ledger(0.0, self.initial_norm)

    def step_error(self, work: SlotSteps) -> tuple[float, float]:
        r"""A and B of :math:`\tau = A + B R`: how far a step, computed in 64 bits from a model of
        length at most R, can land from the exact one,

        .. math:: \tau = \eta\frac bB X\Big[\rho\,\gamma_{b+4}(1 + \gamma_n)
                  + \kappa\gamma_p X R + \upsilon\gamma_n\Big]
                  + \gamma_4\Big[(1+\eta\lambda) R + \eta L\frac bB\,(1 + \gamma_{b+n+4})\Big],

        in any order of summation, with or without fused operations, and underflow;
        :math:`\rho, \kappa, n, \upsilon` are those of :class:`Residual`.
        """
        eta, decay = work.step_size, work.weight_decay
        filled = above(Fraction(work.slot_cap) / Fraction(work.nominal_batch))
        slope = times(eta, filled, self.norm)
        residual, four = self.residual, gamma(4)
        off = gamma(residual.operations)
        summed = times(residual.length, gamma(work.slot_cap + 4), plus(1.0, off))
        longer = plus(1.0, gamma(work.slot_cap + residual.operations + 4))
        size = times(self.parameters, work.slot_cap + 1, plus(1.0, eta), plus(1.0, self.norm))
        underflow = times(TINY, size, plus(1.0, decay))
        constant = plus(
            times(slope, plus(summed, times(residual.unit, off))),
            times(four, work.push(self.loss), longer),
            underflow,
        )
        growing = plus(
            times(slope, above(residual.slope), gamma(self.inputs), self.norm),
            times(four, plus(1.0, times(eta, decay))),
        )
        return constant, growing

    def rounded_noise(self, grid: float) -> float:
        r"""How much rounding a noisy model to a grid can add to a distance: :math:`\sqrt d\,g`."""
        return times(root(float(self.parameters)), grid)


@dataclass(frozen=True)
class Ledger:
    r"""The distance :math:`\Delta` so far, and the bound R on the length of the model in either
    world; every method returns the next ledger.

    >>> head = LinearHead(64, 10)
    >>> ledger = head.begin().steps(SlotSteps(1, 10, 0.1, 50, 80, forgotten=5), head)
    >>> round(ledger.distance, 11), round(ledger.norm, 6)
    (0.01414213562, 2.262742)
    """

    distance: float = 0.0
    norm: float = 0.0

    def steps(self, work: SlotSteps, head: LinearHead) -> Ledger:
        r"""After a visit of slotted SGD: per epoch :math:`\Delta \leftarrow c^S\Delta + \eta L m/B
        + 2S\tau`, with :math:`\tau` at the largest R of that epoch.

        An epoch's push is added at the epoch's end, and contraction counts only from there on:
        where in the epoch a record stood is secret, and the result depends on m and the visit
        times alone.  What was there before the epoch contracts by :math:`c^S`.  Where the worlds
        have not parted and the data are the same nothing is added: what is computed then has the
        same law in both, whatever the machine does.
        """
        if work.epochs == 0:
            return self
        if not math.isfinite(self.norm):
            raise Refused(
                "nothing bounds the length of the model here, so that nothing bounds the rounding "
                "of a step.",
                "norm",
            )
        factor, push = power(work.factor(head.loss), work.slots), work.injection(head.loss)
        constant, growing = head.step_error(work)
        slope, once = plus(work.decay(), growing), plus(work.push(head.loss), constant)
        kept = power(slope, work.slots)
        steps = times(float(work.slots), max(1.0, kept))
        if slope < 1.0:
            steps = min(steps, above(1 / (1 - Fraction(slope))))
        added = times(once, steps)
        distance, norm = self.distance, self.norm
        for _ in range(work.epochs):
            before = (distance, norm)
            after = plus(times(kept, norm), added)
            if distance > 0.0 or work.forgotten:
                error = plus(constant, times(growing, max(norm, after)))
                rounding = times(2.0, float(work.slots), error)
                distance = plus(times(factor, distance), push, rounding)
            norm = after
            if (distance, norm) == before:
                break  # and it stays so
        if not math.isfinite(distance + norm):
            raise Refused(
                "the length of the model, and with it the rounding of its steps, is not bounded.",
                "norm",
            )
        return Ledger(distance, norm)

    def projected(self, radius: float, centre_norm: float, parameters: int) -> Ledger:
        r"""After a projection on a public ball, computed in 64 bits.

        The exact projection does not expand; the computed one stays inside the ball.
        """
        reach = plus(radius, centre_norm)
        rounding = projection_rounding(reach, parameters)
        distance = plus(self.distance, rounding) if self.distance > 0.0 else 0.0
        return Ledger(distance, min(self.norm, reach))

    def noised(self, head: LinearHead, grid: float) -> Ledger:
        """After noise, which is the same in both worlds, and rounding to a grid.

        A difference may grow by one cell per coordinate.  Only a projection bounds the model's
        length after that.
        """
        if times(head.rounded_noise(grid), ROOM) > 2.0**500:
            raise Refused(f"noise on a grid of {grid:g} can overflow.", "norm")
        distance = plus(self.distance, head.rounded_noise(grid)) if self.distance > 0.0 else 0.0
        return Ledger(distance, math.inf)

    def noise(self, epsilon: float, delta: float) -> float:
        r"""The seal's noise :math:`s = \Delta / r(\varepsilon, \delta)`, rounded up.

        >>> round(Ledger(1.0).noise(1.0, 1e-5), 5)
        3.73063
        """
        return self.distance / gaussian_mu(epsilon, delta) * (1.0 + 1e-13)

    def mu(self, std: float) -> float:
        r""":math:`\mu = \Delta/s` of a seal with noise of this std, rounded up.

        >>> round(Ledger(1.0).mu(4.0), 12)
        0.25
        """
        check_number("std", std, above=0.0)
        return over(self.distance, std)


def projection_rounding(reach: float, parameters: int) -> float:
    r"""What a projection on a ball, computed in 64 bits, can add to a distance:
    :math:`2\gamma_{2d+32}(r + \|c\|)`, where ``reach`` is :math:`r + \|c\|`."""
    return times(2.0, gamma(2 * parameters + 32), reach)


def ledger_distance(visits: Iterable[SlotSteps], head: LinearHead) -> float:
    r"""The distance after all of these visits, in the order of the walk, from the initial model.

    Statement: with the coupling of the module and plain SGD in 64 bits,
    :math:`\Delta \leftarrow c^S\Delta + \eta L m/B + 2S\tau` per epoch.  Assumptions: a linear
    layer under one of :data:`LOSSES`, :math:`\eta \le 2/\beta_j` (refused otherwise), averaging
    and shared convex projections allowed; no momentum, no Adam, no BatchNorm, no multiclass
    clipping.

    >>> u = SlotSteps(1, 1, 1.0, 50, 50, weight_decay=0.1, forgotten=1)
    >>> other = SlotSteps(1, 1, 1.0, 50, 50, weight_decay=0.1)
    >>> round(ledger_distance([u, other, u], LinearHead(64, 10)), 6)  # 0.02 sqrt 2 (0.9^2 + 1)
    0.051195
    """
    ledger = head.begin()
    for visit in visits:
        ledger = ledger.steps(visit, head)
    return ledger.distance
