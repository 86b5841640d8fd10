r"""Output perturbation at u (Chaudhuri, Monteleoni and Sarwate 2011, arXiv:0912.0071).

The token goes to the forgetting peer u, which adds Gaussian noise for the distance that the
forgotten records can have moved the model, and that is the released model: one hop, nothing is
repaired.  Chaudhuri et al. bound the distance of exact minimisers by :math:`2L/(n\lambda)`; a walk
does not reach the minimiser, so here the stability ledger bounds the distance of the models that
were trained, as for a seal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from unwalk import walks
from unwalk.core.errors import Refused
from unwalk.core.plan import Phase
from unwalk.core.program import Forget, Program, Visit
from unwalk.methods.ledgered import (
    check_noise,
    ledger_after,
    noise_within,
    probe,
    reach_of,
    std_for,
)
from unwalk.methods.record import Decided, MethodRecord, Request
from unwalk.methods.restart import wiping
from unwalk.methods.seal import SEALED
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class OutputNoiseSettings:
    """Noise once at the forgetting peer, and nothing after it.  Target: unlearn.epsilon, delta."""

    key: ClassVar[str] = "output_noise"
    std: float | None = setting(
        None, "noise on the parameters; empty: what the ledger needs", low=0.0
    )


@dataclass(frozen=True)
class OutputNoise:
    """Noise of std ``std`` on the parameters, then a projection on a public ball around the origin
    of radius ``reach``, which the model almost never leaves."""

    std: float
    reach: float | None = None
    name: str = field(default="output-noise", init=False)
    travels: tuple[str, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        check_noise(self.std, self.reach)

    def visit(self, visit: Visit) -> Program:
        return wiping(visit, (Forget("optimizer"), *noise_within(self.std, self.reach)))


def _phase(config: Config, decided: Decided) -> Phase:
    return Phase(
        name="unlearn",
        method=OutputNoise(decided.std, decided.reach),
        route=walks.Fixed((config.forget.peer,)),
        hops=1,
        carries_forgotten=True,
    )


def _decide(request: Request) -> Decided:
    """The noise for the distance that the ledger bounds.

    If a noise std was given, nothing is refused here; the certificate refuses if it is too small.
    """
    given = request.config.of(OutputNoiseSettings).std
    if request.trained is None:
        if given is None:
            probe(request)
        return Decided(std=1.0 if given is None else given)
    try:
        ledger, facts = ledger_after(request, request.trained)
    except Refused:
        if given is None:
            raise
        return Decided(std=given)
    std = std_for(ledger, request.config) if given is None else given
    return Decided(std=std, reach=reach_of(ledger.norm, facts.head, std, 1))


RECORD = MethodRecord(
    name="output-noise",
    label="output perturbation",
    description="noise once at the forgetting peer, for what the ledger bounds, and no walk after",
    phase=_phase,
    settings=OutputNoiseSettings,
    decide=_decide,
    guarantee=SEALED,
    beside_restart=True,
)
