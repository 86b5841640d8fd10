r"""The stability ledger: how far apart training with and without the forgotten records can end.

The two worlds are coupled: records go to batch slots by a keyed hash of record id and epoch, the
gradient *sum* of a slot is divided by a nominal B, and the number of slots S, B and the cap on a
slot's size are public constants.  Then the retained records take the same steps in both worlds;
a slot that holds :math:`m_j` forgotten records pushes them apart by at most
:math:`\eta L m_j/B`, and every step, at u and elsewhere, multiplies their distance by

.. math:: c_j = \max(|1 - \eta\lambda|, |1 - \eta\beta_j|), \qquad
          \beta_j = \beta\,|b_j|/B + \lambda.

Neighbouring relation: the same run with and without the m forgotten records of one peer.  All
statements here are derived in ``docs/math.md``; the idea of counting stability step by step is
that of Hardt, Recht and Singer, *Train faster, generalize better*, ICML 2016 (arXiv:1509.01240v2),
Section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from unwalk.core.errors import Refused
from unwalk.core.validation import check_count, check_number
from unwalk.privacy.gaussian import gaussian_mu
from unwalk.privacy.iteration import contraction_factor


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


def softmax_regression(norm: float = 1.0) -> ConvexLoss:
    r"""Cross-entropy of a linear model on features with :math:`\|x\| \le` ``norm``, the bias
    feature included: :math:`L = \sqrt2\,\|x\|`, :math:`\beta = \|x\|^2/2`.

    The gradient is :math:`(q - e_y) x^T` with :math:`\|q - e_y\|^2 \le 2`; the Hessian is
    :math:`(\mathrm{diag}(q) - q q^T)\otimes x x^T`, and a covariance of one-hot vectors has no
    eigenvalue above 1/2.

    >>> softmax_regression().smoothness
    0.5
    """
    check_number("norm", norm, above=0.0)
    return ConvexLoss(math.sqrt(2.0) * norm, 0.5 * norm * norm)


def logistic_regression(norm: float = 1.0) -> ConvexLoss:
    r"""Binary logistic loss on features with :math:`\|x\| \le` ``norm``: :math:`L = \|x\|`,
    :math:`\beta = \|x\|^2/4`.

    >>> logistic_regression(2.0)
    ConvexLoss(lipschitz=2.0, smoothness=1.0)
    """
    check_number("norm", norm, above=0.0)
    return ConvexLoss(norm, 0.25 * norm * norm)


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
        >>> round(steps.injection(logistic_regression()), 12)
        0.01
        """
        return self.step_size * loss.lipschitz * self.forgotten / self.nominal_batch

    def factor(self, loss: ConvexLoss) -> float:
        r"""The worst :math:`c_j` over slots with 0 to ``slot_cap`` records; refuses above 1.

        >>> steps = SlotSteps(1, 10, 0.1, 50, 100, weight_decay=0.1)
        >>> steps.factor(logistic_regression())
        0.99
        """
        largest = loss.smoothness * self.slot_cap / self.nominal_batch + self.weight_decay
        factor = contraction_factor(self.step_size, largest, self.weight_decay)
        if factor > 1.0:
            raise Refused(
                f"step size {self.step_size:g} exceeds 2/beta_j = {2.0 / largest:g} for a full "
                "slot: a step may expand, and the ledger cannot bound the distance.",
                "expanding",
            )
        return factor


@dataclass(frozen=True)
class Ledger:
    r"""The distance :math:`\Delta` so far; every method returns the next ledger.

    >>> ledger = Ledger().steps(SlotSteps(1, 10, 0.1, 50, 80, forgotten=5), logistic_regression())
    >>> round(ledger.distance, 12)
    0.01
    """

    distance: float = 0.0

    def steps(self, work: SlotSteps, loss: ConvexLoss) -> Ledger:
        r"""After a visit of slotted SGD.

        An epoch's push is added at the epoch's end, and contraction counts only from there on:
        where in the epoch a record stood is secret, and the result depends on m and the visit
        times alone.  What was there before the epoch contracts by :math:`c^S`.
        """
        distance, factor = self.distance, work.factor(loss) ** work.slots
        for _ in range(work.epochs):
            distance = distance * factor + work.injection(loss)
        return Ledger(distance)

    def clean_steps(self, count: int, factor: float) -> Ledger:
        """After ``count`` steps on data that are the same in both worlds, each with ``factor``."""
        check_count("count", count, low=0)
        if not 0.0 <= factor <= 1.0:
            raise Refused(
                f"a step multiplies distances by {factor:g}; the ledger takes factors in [0, 1].",
                "expanding",
            )
        return Ledger(self.distance * factor**count)

    def shrunk(self, factor: float) -> Ledger:
        """After scaling towards a point that is the same in both worlds, or a shared projection
        (``factor`` 1)."""
        return self.clean_steps(1, factor)

    def noise(self, epsilon: float, delta: float) -> float:
        r"""The seal's noise :math:`s = \Delta / r(\varepsilon, \delta)`, rounded up.

        >>> round(Ledger(1.0).noise(1.0, 1e-5), 5)
        3.73063
        """
        return self.distance / gaussian_mu(epsilon, delta) * (1.0 + 1e-13)

    def mu(self, std: float) -> float:
        r""":math:`\mu = \Delta/s` of a seal with noise of this std.

        >>> Ledger(1.0).mu(4.0)
        0.25
        """
        check_number("std", std, above=0.0)
        return self.distance / std


def ledger_distance(visits: Iterable[SlotSteps], loss: ConvexLoss) -> float:
    r"""The distance after all of these visits, in the order of the walk.

    Statement: with the coupling of the module and plain SGD,
    :math:`\Delta \leftarrow c^S\Delta + \eta L m/B` per epoch.  Assumptions: convex loss with the
    stated constants, :math:`\eta \le 2/\beta_j` (refused otherwise), averaging and shared convex
    projections allowed; no momentum, no Adam, no BatchNorm, no multiclass clipping.

    >>> loss = logistic_regression()
    >>> u = SlotSteps(1, 1, 1.0, 50, 50, weight_decay=0.1, forgotten=1)
    >>> other = SlotSteps(1, 1, 1.0, 50, 50, weight_decay=0.1)
    >>> round(ledger_distance([u, other, u], loss), 6)  # 0.02 (0.9^2 + 1)
    0.0362
    """
    ledger = Ledger()
    for visit in visits:
        ledger = ledger.steps(visit, loss)
    return ledger.distance
