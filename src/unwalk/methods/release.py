r"""Release level: walk on without the forgotten records, and add noise once, at the very end.

Every step of the walk shrinks what the forgotten records left behind, so that little noise is
needed for the released model, :math:`s = \Delta_0 \prod_t (1 - \eta_t\lambda) / r`.  Outsiders
alone are covered: the peers saw the model on its way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unwalk.core.program import AddNoise, Program, Visit
from unwalk.core.validation import check_count, check_number
from unwalk.methods.local_work import Descent
from unwalk.methods.restart import wiping


@dataclass(frozen=True)
class Release:
    """Descent on retained records; noise of std ``std`` after the last of ``hops`` visits."""

    descent: Descent
    std: float
    hops: int
    name: str = field(default="release", init=False)

    def __post_init__(self) -> None:
        check_number("std", self.std, low=0.0)
        check_count("hops", self.hops, low=1)

    @property
    def travels(self) -> tuple[str, ...]:
        return self.descent.travels

    def visit(self, visit: Visit) -> Program:
        program = self.descent.program(visit, "retained")
        if visit.phase_hop == self.hops:
            program = (*program, AddNoise(self.std))
        return wiping(visit, program)
