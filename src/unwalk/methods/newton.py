r"""One second-order step at u (Guo, Goldstein, Hannun and van der Maaten 2020, arXiv:1911.03030).

The token goes to the forgetting peer u, which holds m forgotten among n records.  Where the model
minimises the loss of all of them, the gradient of the retained ones is
:math:`-\frac{m}{n-m}\nabla\ell_f`, so that Newton's step towards their minimiser is

.. math:: \theta \leftarrow \theta + \frac{m}{n-m}\,(C + \lambda I)^{-1}\,\nabla\ell_f,

with C the Hessian of the retained records' loss, or the diagonal of their Fisher information.  One
hop, no walk after it.  Guo et al. certify this for linear models whose training perturbed the loss
and reached its minimum; a walk that trains does neither, and the model is that of all peers, so
nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import NewtonStep, Program, Visit
from unwalk.methods.network_sgd import chunks
from unwalk.methods.record import Decided, MethodRecord
from unwalk.settings.config import Config, setting

CURVATURES = ("fisher", "hessian")


@dataclass(frozen=True)
class NewtonSettings:
    """One second-order step at the forgetting peer."""

    key: ClassVar[str] = "newton"
    curvature: str = setting(
        "fisher", "fisher: its diagonal; hessian: whole, small models only", choices=CURVATURES
    )
    damping: float = setting(0.3, "added to the curvature", above=0.0)
    batch: int | None = setting(
        None, "fisher: records per squared gradient; empty: train.batch", low=1
    )


@dataclass(frozen=True)
class Newton:
    """The step at u; nothing anywhere else, or where u retains no record."""

    curvature: str
    damping: float
    batch: int = 1
    name: str = field(default="newton", init=False)
    travels: tuple[str, ...] = field(default=(), init=False)

    def visit(self, visit: Visit) -> Program:
        forgotten, retained = visit.records.forgotten, visit.records.retained
        if not (visit.at_unlearner and forgotten.size and retained.size):
            return ()
        step = NewtonStep(
            chunks(forgotten, self.batch),
            chunks(retained, self.batch),
            self.curvature,
            self.damping,
            share=forgotten.size / retained.size,
        )
        return (step,)


def _phase(config: Config, decided: Decided) -> Phase:
    own = config.of(NewtonSettings)
    return Phase(
        name="unlearn",
        method=Newton(own.curvature, own.damping, own.batch or config.train.batch),
        route=walks.Fixed((config.forget.peer,)),
        hops=1,
        reset_optimizer=True,
        carries_forgotten=True,
    )


RECORD = MethodRecord(
    name="newton",
    label="Newton step",
    description="one second-order step at the forgetting peer, and no walk after",
    phase=_phase,
    settings=NewtonSettings,
)
