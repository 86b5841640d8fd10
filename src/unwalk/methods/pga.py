r"""Projected gradient ascent (Halimi, Kadhe, Rawat and Baracaldo 2022, arXiv:2207.05521).

The token goes to the forgetting peer u first, which climbs the loss of the forgotten records,

.. math:: \theta \leftarrow \Pi_B\big(\theta + \eta\,\nabla\ell_f(\theta)\big), \qquad
          B = \{\theta: \|\theta - \theta_{\rm ref}\| \le \delta\},

and the walk then repairs the model on retained records.  In the paper's federation
:math:`\theta_{\rm ref}` is the average of the other clients' models and :math:`\delta` a third of
its mean distance to random models.  A token is one model, so the ball is centred on the model with
which unlearning began, and its radius is a setting.  The paper stops when the accuracy on the
forgotten records is low; a program never looks at a loss, so the number of passes is a setting too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import Ball, Program, Project, Visit
from unwalk.methods.network_sgd import (
    LocalWork,
    Retaining,
    each_step,
    in_eighths,
    unlearn_descent,
    unlearn_phase,
)
from unwalk.methods.record import Decided, MethodRecord
from unwalk.methods.rrdu import Correction
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class PGASettings:
    """Projected gradient ascent on the forgotten records."""

    key: ClassVar[str] = "pga"
    radius: float = setting(5.0, "radius of the ball around the old model", above=0.0)
    passes: int = setting(100, "passes over the forgotten records, uphill", low=1)
    batch: int | None = setting(None, "forgotten records per step; empty: an eighth of them", low=1)
    clip: float = setting(5.0, "bound on the norm of every step's gradient", above=0.0)


@dataclass(frozen=True)
class PGA(Retaining):
    """Ascent at u in the first hop, each step projected on ``ball``; then descent on retained
    records.  ``ascent`` brings rule and clip, ``passes`` how often it is made."""

    ascent: Correction
    ball: Ball
    passes: int = 1
    batch: int | None = None
    name: str = field(default="pga", init=False)

    def visit(self, visit: Visit) -> Program:
        if visit.phase_hop > 1:
            return self.descent.program(visit, "retained")
        program: Program = ()
        work = in_eighths(self.batch, visit.records.forgotten)
        ascent = replace(self.ascent, work=work)
        for _ in range(self.passes):
            steps = ascent.steps(visit, ascent.rule.learning_rate)
            if steps is not None:
                program += each_step(replace(steps, scale=1.0), Project((self.ball,)))
        return program


def _phase(config: Config, decided: Decided) -> Phase:
    own, descent = config.of(PGASettings), unlearn_descent(config)
    rule = replace(descent.rule, optimizer="sgd", weight_decay=0.0)
    ascent = Correction("forget", LocalWork(), rule, clip=own.clip)
    method = PGA(descent, ascent, Ball("start", own.radius), own.passes, own.batch)
    route = walks.FirstTo(config.forget.peer, walks.Uniform())
    return unlearn_phase(config, method, route)


RECORD = MethodRecord(
    name="pga",
    label="projected ascent",
    description="ascent on the forgotten records within a ball, then a walk that repairs",
    phase=_phase,
    settings=PGASettings,
)
