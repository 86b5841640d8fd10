"""Fine-tuning: go on training the old model, without the records to be forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field

from unwalk.core.program import Program, Visit
from unwalk.methods.local_work import Descent


@dataclass(frozen=True)
class Finetune:
    """Every peer descends on its retained records; nothing is noised, nothing is proved."""

    descent: Descent
    name: str = field(default="finetune", init=False)

    @property
    def travels(self) -> tuple[str, ...]:
        return self.descent.travels

    def visit(self, visit: Visit) -> Program:
        return self.descent.program(visit, "retained")
