"""Retraining from scratch: the oracle every other method is measured against.

The walk starts from a new model and never meets the records to be forgotten, so its result is a
sample of A(D minus D_f): exact by construction, at the price of a whole training run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unwalk.core.program import Program, Visit
from unwalk.methods.local_work import Descent


@dataclass(frozen=True)
class Retrain:
    """Network-SGD on the retained records, from the initial model."""

    descent: Descent
    name: str = field(default="retrain", init=False)

    @property
    def travels(self) -> tuple[str, ...]:
        return self.descent.travels

    def visit(self, visit: Visit) -> Program:
        return self.descent.program(visit, "retained")
