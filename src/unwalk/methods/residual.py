r"""Residual subtraction from u's own log (FedEraser, Liu et al. 2021, IWQoS; FedRecovery, Zhang et
al. 2023, IEEE TIFS).

Every peer logs how its visits changed the model while it trains.  To forget m of its n records the
forgetting peer u takes their share of the log out,

.. math:: \theta \leftarrow \theta - \frac mn \sum_{v:\,{\rm visits}\ {\rm of}\ u}
          (\theta_v^{\rm left} - \theta_v^{\rm came}),

adds noise where asked to (FedRecovery), and the walk goes on on retained records.  The two papers
keep the log at a server and forget whole clients, m = n.  FedEraser's calibrated rounds are the
walk that follows.  FedRecovery's guarantee needs constants of the loss that nobody can read off a
run and forgets that others' later updates depend on u: nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import AddNoise, Log, Program, Subtract, Visit
from unwalk.methods.network_sgd import (
    Descending,
    Retaining,
    train_descent,
    train_phase,
    unlearn_descent,
    unlearn_phase,
)
from unwalk.methods.record import Decided, MethodRecord
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class ResidualSettings:
    """Residual subtraction."""

    key: ClassVar[str] = "residual"
    std: float = setting(0.0, "noise on the parameters after the subtraction", low=0.0)


@dataclass(frozen=True)
class Logging(Descending):
    """Network-SGD in which every peer logs what its visits changed."""

    name: str = field(default="network-sgd", init=False)

    def visit(self, visit: Visit) -> Program:
        return (*self.descent.program(visit, "all"), Log())


@dataclass(frozen=True)
class Residual(Retaining):
    """Subtraction and noise of std ``std`` at u in the first hop, then descent on retained
    records."""

    std: float = 0.0
    name: str = field(default="residual", init=False)

    def visit(self, visit: Visit) -> Program:
        program = self.descent.program(visit, "retained")
        records = visit.records
        if visit.phase_hop > 1 or records.forgotten.size == 0:
            return program
        noise: Program = (AddNoise(self.std),) if self.std else ()
        return (Subtract(records.forgotten.size / records.all.size), *noise, *program)


def _phase(config: Config, decided: Decided) -> Phase:
    method = Residual(unlearn_descent(config), config.of(ResidualSettings).std)
    route = walks.FirstTo(config.forget.peer, walks.Uniform())
    return unlearn_phase(config, method, route)


def _training(config: Config, decided: Decided) -> tuple[Phase, ...]:
    return (train_phase(config, Logging(train_descent(config))),)


RECORD = MethodRecord(
    name="residual",
    label="residual subtraction",
    description="take the forgotten records' share of the forgetting peer's own updates out again",
    phase=_phase,
    training=_training,
    settings=ResidualSettings,
)
