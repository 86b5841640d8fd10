"""Restart: begin again from a model that was never trained on the forgotten records.

The start is the public initial model, or what the forgetting peer u makes of it alone on the
records it retains (``local_steps`` visits' worth of descent before the token leaves u).  Both
depend on retained records only, and so does everything after: exact, for any loss and optimizer.
State that peers kept from training depends on the forgotten records, so each peer erases its own
at its first visit of the new walk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from unwalk import walks
from unwalk.core.plan import Phase, Route
from unwalk.core.program import Drawing, Forget, Program, Visit
from unwalk.core.validation import check_count
from unwalk.methods.network_sgd import Descending, unlearn_descent, unlearn_phase
from unwalk.methods.record import Decided, MethodRecord
from unwalk.methods.retrain import FRESH
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class RestartSettings:
    """Begin again without the forgotten records."""

    key: ClassVar[str] = "restart"
    local_steps: int = setting(
        0, "visits' worth of work at the forgetting peer before the walk", low=0
    )


def wiping(visit: Visit, program: Program) -> Program:
    """``program``, preceded by a wipe of the peer's local state at its first visit of a phase."""
    return program if visit.earlier_in_phase else (Forget("local"), *program)


@dataclass(frozen=True)
class Restart(Descending):
    """Network-SGD on the retained records, from a start without the forgotten ones.

    ``local_steps`` visits' worth of work at u come first, in the first hop.
    """

    local_steps: int = 0
    name: str = field(default="restart", init=False)

    def __post_init__(self) -> None:
        check_count("local_steps", self.local_steps)

    def visit(self, visit: Visit) -> Program:
        times = 1 + self.local_steps if visit.phase_hop == 1 else 1
        work = [op for _ in range(times) for op in self.descent.program(visit, "retained")]
        return wiping(visit, tuple(work))

    def drawing(self, visit: Visit) -> Drawing | None:
        return self.descent.drawing(visit, "retained") if visit.earlier_in_phase else None


def _phase(config: Config, decided: Decided) -> Phase:
    route: Route = walks.Uniform()
    local_steps = config.of(RestartSettings).local_steps
    if local_steps:
        route = walks.FirstTo(config.forget.peer, route)
    method = Restart(unlearn_descent(config), local_steps)
    return unlearn_phase(config, method, route, start="initial", reset_optimizer=False)


RECORD = MethodRecord(
    name="restart",
    description="begin again from the initial model, without the forgotten records",
    phase=_phase,
    settings=RestartSettings,
    guarantee=FRESH,
    line="none",
)
