r"""Ball seal: the reference for seals, which holds for any network.

At the forgetting peer, k times: projection on a ball around a D_f-free centre, and noise.  At most
:math:`r^2/8` nats of the old model survive: restarting at the centre is exact and keeps about as
much.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import AddNoise, Ball, Forget, Program, Project, Visit
from unwalk.core.validation import check_count, check_number
from unwalk.methods.ledgered import ROUNDING
from unwalk.methods.network_sgd import Descending, unlearn_descent, unlearn_phase
from unwalk.methods.record import (
    Decided,
    MethodRecord,
    Request,
)
from unwalk.methods.restart import wiping
from unwalk.methods.seal import SEALED, SealSettings
from unwalk.privacy.accountants import ball_seal_claim, of_phase
from unwalk.privacy.seal import seal_steps
from unwalk.settings.config import Config


@dataclass(frozen=True)
class BallSeal(Descending):
    """``steps`` times: projection on ``ball`` and noise of std ``std``; then ``descent``."""

    ball: Ball
    std: float
    steps: int
    name: str = field(default="ball-seal", init=False)

    def __post_init__(self) -> None:
        check_number("std", self.std, above=0.0)
        check_count("steps", self.steps, low=1)

    def visit(self, visit: Visit) -> Program:
        after = self.descent.program(visit, "retained")
        if visit.phase_hop > 1:
            return wiping(visit, after)
        sealing: Program = (Project((self.ball,)), AddNoise(self.std)) * self.steps
        return wiping(visit, (Forget("optimizer"), *sealing, *after))


def _phase(config: Config, decided: Decided) -> Phase:
    ball = Ball("initial", config.of(SealSettings).radius)
    method = BallSeal(unlearn_descent(config), ball, decided.std, decided.steps)
    route = walks.FirstTo(config.forget.peer, walks.Uniform())
    return unlearn_phase(config, method, route, reset_optimizer=True)


def _decide(request: Request) -> Decided:
    seal, target = request.config.of(SealSettings), request.config.unlearn
    steps = seal_steps(target.epsilon, target.delta, seal.ratio)
    return Decided(std=2.0 * seal.radius / seal.ratio * ROUNDING, steps=steps)


RECORD = MethodRecord(
    name="ball-seal",
    description=(
        "projection on a public ball and noise at the forgetting peer: the reference; a restart "
        "is exact and carries no less"
    ),
    phase=_phase,
    settings=SealSettings,
    decide=_decide,
    guarantee=replace(
        SEALED,
        proof=of_phase(ball_seal_claim),
        threat=replace(SEALED.threat, adaptive_requests=True),
    ),
)
