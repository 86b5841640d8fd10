"""Network-SGD (the paper's Algorithm 1): token training by random walk."""

from __future__ import annotations

from dataclasses import dataclass, field

from unwalk.core.program import Program, Visit
from unwalk.methods.local_work import Descent


@dataclass(frozen=True)
class NetworkSGD:
    """Every peer descends on all of its records when the token arrives."""

    descent: Descent
    name: str = field(default="network-sgd", init=False)

    @property
    def travels(self) -> tuple[str, ...]:
        return self.descent.travels

    def visit(self, visit: Visit) -> Program:
        return self.descent.program(visit, "all")
