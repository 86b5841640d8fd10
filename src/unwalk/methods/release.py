r"""Release level: walk on without the forgotten records, and add noise once, at the end.

Every step of the walk shrinks what the forgotten records left behind, so that little noise is
needed for the released model, :math:`s = \Delta_0 \prod_t (1 - \eta_t\lambda) / r`.  Only outsiders
are covered: the peers saw the model during the walk.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import AddNoise, Program, Visit
from unwalk.core.validation import check_count, check_number
from unwalk.methods.ledgered import check_slots, ledger_after, probe, slot_steps, std_for
from unwalk.methods.network_sgd import Descending, unlearn_descent
from unwalk.methods.record import OUTSIDERS, Decided, Guarantee, MethodRecord, Request
from unwalk.methods.restart import wiping
from unwalk.privacy.accountants import of_walk
from unwalk.privacy.stability import release_claim
from unwalk.settings.config import Config


@dataclass(frozen=True)
class Release(Descending):
    """Descent on retained records; noise of std ``std`` after the last of ``hops`` visits."""

    std: float
    hops: int
    name: str = field(default="release", init=False)

    def __post_init__(self) -> None:
        check_number("std", self.std, low=0.0)
        check_count("hops", self.hops, low=1)

    def visit(self, visit: Visit) -> Program:
        program = self.descent.program(visit, "retained")
        if visit.phase_hop == self.hops:
            program = (*program, AddNoise(self.std))
        return wiping(visit, program)


def _phase(config: Config, decided: Decided) -> Phase:
    hops = config.unlearn.hops
    return Phase(
        name="unlearn",
        method=Release(unlearn_descent(config), decided.std, hops),
        route=walks.Uniform(),
        hops=hops,
        carries_forgotten=True,
    )


def _decide(request: Request) -> Decided:
    """The noise for the distance that the ledger bounds after the whole walk."""
    config = request.config
    if request.trained is None:
        check_slots(config, "the walk of a release")
        probe(request)
        return Decided(std=1.0)
    ledger, facts = ledger_after(request, request.trained)
    descent = unlearn_descent(config)
    for hop in range(1, config.unlearn.hops + 1):
        ledger = ledger.steps(slot_steps(facts, descent, descent.work.epochs, hop), facts.head)
    return Decided(std=std_for(ledger, config))


RECORD = MethodRecord(
    name="release",
    label="release noise",
    description="a walk without the forgotten records, noise once at the end; outsiders only",
    phase=_phase,
    decide=_decide,
    guarantee=Guarantee(
        "certified",
        of_walk(release_claim),
        OUTSIDERS,
        "the same walk and noise, from the model trained without the forgotten records",
    ),
    beside_restart=True,
)
