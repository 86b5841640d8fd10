r"""SCRUB-style distillation (Kurmanji, Triantafillou, Hayes and Triantafillou 2023,
arXiv:2302.09880).

The old model is the teacher.  The forgetting peer u climbs
:math:`{\rm KL}(p_{\rm teacher}\|p)` on its forgotten records at its first visits, so that the
student comes to disagree with the teacher there; everybody descends
:math:`\alpha\,{\rm KL}(p_{\rm teacher}\|p) + \gamma\,\ell` on retained records.  The teacher is the
model that was released before the request: every peer has it, and it does not travel.  The
temperature is 1, and a program never looks at a loss, so that the paper's choice among checkpoints
(SCRUB+R) is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import Distil, Program, Steps, Visit
from unwalk.methods.network_sgd import (
    Descending,
    in_eighths,
    in_minibatches,
    unlearn_descent,
    unlearn_phase,
)
from unwalk.methods.record import Decided, MethodRecord
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class ScrubSettings:
    """SCRUB-style distillation.  Ascending steps are clipped to unlearn.clip."""

    key: ClassVar[str] = "scrub"
    alpha: float = setting(0.1, "weight of the teacher's answers on retained records", low=0.0)
    gamma: float = setting(1.0, "weight of the labels of retained records", low=0.0)
    ascents: int = setting(10, "visits at which the forgetting peer climbs, from the first", low=1)
    batch: int | None = setting(
        None, "forgotten records per step uphill; empty: an eighth of them", low=1
    )


@dataclass(frozen=True)
class Scrub(Descending):
    """Away from the teacher on forgotten records, towards teacher and labels on retained ones."""

    alpha: float
    gamma: float
    ascents: int
    batch: int | None = None
    clip: float | None = None
    name: str = field(default="scrub", init=False)

    def visit(self, visit: Visit) -> Program:
        towards = tuple(
            Distil(op, pull=self.alpha, labels=self.gamma) if isinstance(op, Steps) else op
            for op in self.descent.program(visit, "retained")
        )
        if not visit.at_unlearner or visit.earlier_in_phase >= self.ascents:
            return towards
        return (*towards, *self._away(visit))

    def _away(self, visit: Visit) -> Program:
        """The climb.  It comes last: where student and teacher agree, their divergence is flat."""
        work = in_eighths(self.batch, visit.records.forgotten)
        uphill = replace(self.descent, work=work, clip=self.clip)
        steps = [op for op in uphill.program(visit, "forgotten") if isinstance(op, Steps)]
        return tuple(Distil(replace(op, direction=1)) for op in steps)


def _phase(config: Config, decided: Decided) -> Phase:
    own, u = config.of(ScrubSettings), config.forget.peer
    descent, clip = in_minibatches(unlearn_descent(config)), config.unlearn.clip
    method = Scrub(descent, own.alpha, own.gamma, own.ascents, own.batch, clip)
    route = walks.FirstTo(u, walks.Restart(u, decided.p))
    return unlearn_phase(config, method, route)


RECORD = MethodRecord(
    name="scrub",
    label="SCRUB",
    description="away from the old model on forgotten records, towards it on retained ones",
    phase=_phase,
    settings=ScrubSettings,
)
