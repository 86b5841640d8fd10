r"""Langevin unlearning (Chien, Wang, Chen and Li 2024, arXiv:2401.10371; noisy SGD: 2403.17105).

From the old model the walk goes on with projected noisy steps on retained records,

.. math:: \theta \leftarrow \Pi_R\big(\theta - \eta(\nabla\ell + \lambda\theta) + \mathcal
          N(0, s^2 I)\big),

for a convex, :math:`\beta`-smooth loss with L2.  Two models in the ball of radius R are at most 2R
apart, each step brings them nearer by its contraction, and its noise hides a part of what is left:
:func:`unwalk.privacy.release.contracting_sigma` gives the noise with which nothing is left to see
in the final model.  The papers' own bounds start nearer, since their training is noisy too.

The number is nominal.  It is for real numbers and for outsiders who see the final model only, and
no accountant reads the loss's constants or the rounding off this run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import Ball, Program, Project, Records, Steps, Visit
from unwalk.methods.network_sgd import (
    Descending,
    Descent,
    LocalWork,
    Schedule,
    each_step,
    unlearn_descent,
    unlearn_phase,
)
from unwalk.methods.record import (
    UNPROVED_OUTSIDE,
    Calibrated,
    Decided,
    MethodRecord,
    Nominal,
    noise_source,
)
from unwalk.privacy import formulas
from unwalk.privacy.iteration import check_nonexpansive, contraction_factor
from unwalk.privacy.release import contracting_sigma
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class LangevinSettings:
    """Noisy steps that contract.  Epsilon, delta and hops are those of the unlearning walk."""

    key: ClassVar[str] = "langevin"
    radius: float = setting(10.0, "radius R of the ball around the origin", above=0.0)
    steps: int = setting(20, "noisy steps per visit, each on a batch drawn anew", low=1)
    smoothness: float = setting(
        0.5, "smoothness of a record's loss; 0.5: softmax on inputs of length 1", above=0.0
    )
    weight_decay: float = setting(0.01, "L2 strength, the strong convexity", above=0.0)
    sigma: float | None = setting(
        None, "noise on every gradient; empty: what the formula asks for", low=0.0
    )


@dataclass(frozen=True)
class Langevin(Descending):
    """Noisy descent on retained records, each step projected on ``ball``; the first visit projects
    before its first step."""

    ball: Ball
    name: str = field(default="langevin", init=False)

    def visit(self, visit: Visit) -> Program:
        project = Project((self.ball,))
        program: Program = (project,) if visit.phase_hop == 1 else ()
        for op in self.descent.program(visit, "retained"):
            if isinstance(op, Steps):
                program += each_step(op, project)
        return program


def _descent(config: Config, sigma: float) -> Descent:
    own, base = config.of(LangevinSettings), unlearn_descent(config)
    rule = replace(base.rule, optimizer="sgd", weight_decay=own.weight_decay)
    work = LocalWork("iid", batch=base.work.batch, minibatches=own.steps)
    return replace(
        base, rule=rule, work=work, clip=None, feasible=None, noise=sigma, schedule=Schedule()
    )


def _phase(config: Config, decided: Decided) -> Phase:
    ball = Ball("origin", config.of(LangevinSettings).radius)
    method = Langevin(_descent(config, decided.sigma), ball)
    return unlearn_phase(config, method, walks.Uniform(), reset_optimizer=True)


def _noise(config: Config, peers: int, p: float, records: Records) -> Calibrated:
    """The noise on a gradient with which the steps of the whole walk hide the ball's diameter."""
    own, target = config.of(LangevinSettings), config.unlearn
    if own.sigma is not None:
        return Calibrated(own.sigma)
    step_size = _descent(config, 0.0).rule.learning_rate
    smoothness = own.smoothness + own.weight_decay
    check_nonexpansive(step_size, smoothness)
    contraction = contraction_factor(step_size, smoothness, own.weight_decay)
    diameter, steps = 2.0 * own.radius, own.steps * target.hops
    std = contracting_sigma(target.epsilon, target.delta, diameter, contraction, steps)
    numbers = {
        "diameter": diameter,
        "contraction": contraction,
        "steps": steps,
        "step_size": step_size,
    }
    formula = (
        f"the noise is that of {steps} projected noisy steps that shrink distances to "
        f"{contraction:.6g} each, by shifted divergence from the diameter {diameter:g}, for "
        f"a loss of smoothness {own.smoothness:g} and real numbers"
    )
    return Calibrated(std / step_size, "shift", formula, numbers=numbers)


def _reason(calibrated: Calibrated, origin: str) -> str:
    return (
        f"{calibrated.formula}; it says nothing of what peers see on the way; that the loss is "
        "convex is not shown, no proof covers this run, and the noise came from "
        f"{noise_source(origin)}."
    )


RECORD = MethodRecord(
    name="langevin",
    label="Langevin",
    description="noisy projected steps on retained records; for convex losses, outsiders only",
    phase=_phase,
    settings=LangevinSettings,
    guarantee=UNPROVED_OUTSIDE,
    nominal=Nominal(_noise, formulas.NOISY_SGD, _reason),
)
