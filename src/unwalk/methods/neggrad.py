r"""NegGrad+ (Kurmanji, Triantafillou, Hayes and Triantafillou 2023, arXiv:2302.09880).

Descent on the retained and ascent on the forgotten records at once,

.. math:: \ell = \alpha\,\ell_{u\setminus f} - (1 - \alpha)\,\ell_f,

at the forgetting peer u, whose batches pair retained with forgotten records; everybody else
descends on retained records.  The token goes to u first and later with probability p.  Steps at u
are clipped, which the paper does not do: ascent has no bound, and the walk may diverge.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import Drawing, Program, Steps, Visit
from unwalk.methods.network_sgd import Descending, in_minibatches, unlearn_descent, unlearn_phase
from unwalk.methods.record import Decided, MethodRecord
from unwalk.methods.rrdu import paired
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class NegGradSettings:
    """NegGrad+."""

    key: ClassVar[str] = "neggrad"
    alpha: float = setting(
        0.95, "weight of the retained records' loss; 1 - alpha is the forgotten ones'",
        above=0.0, high=1.0,
    )  # fmt: skip
    clip: float | None = setting(
        5.0, "bound on the norm of every step's gradient at u; empty: none", above=0.0
    )


@dataclass(frozen=True)
class NegGrad(Descending):
    """Network-SGD on retained records; at u each batch has forgotten ones beside it, uphill."""

    alpha: float
    clip: float | None = None
    name: str = field(default="neggrad", init=False)

    def visit(self, visit: Visit) -> Program:
        program = self.descent.program(visit, "retained")
        forgotten = visit.records.forgotten
        if not visit.at_unlearner or forgotten.size == 0:
            return program
        return tuple(self._against(op, visit) if isinstance(op, Steps) else op for op in program)

    def drawing(self, visit: Visit) -> Drawing | None:
        if visit.at_unlearner and visit.records.forgotten.size:
            return None
        return self.descent.drawing(visit, "retained")

    def _against(self, op: Steps, visit: Visit) -> Steps:
        share = (1.0 - self.alpha) / self.alpha
        batches, weights = paired(op.batches, visit.records.forgotten, share, visit.rng)
        return replace(
            op,
            batches=batches,
            weights=weights,
            scale=self.alpha,
            clip=self.clip,
            data="mixed",
            batching="other",
        )


def _phase(config: Config, decided: Decided) -> Phase:
    descent, u = in_minibatches(unlearn_descent(config)), config.forget.peer
    own = config.of(NegGradSettings)
    method = NegGrad(descent, own.alpha, own.clip)
    route = walks.FirstTo(u, walks.Restart(u, decided.p))
    return unlearn_phase(config, method, route)


RECORD = MethodRecord(
    name="neggrad",
    label="NegGrad+",
    description="descent on retained and ascent on forgotten records in one step",
    phase=_phase,
    settings=NegGradSettings,
)
