r"""Seal: noise at the forgetting peer u before anything leaves it, then walk on without D_f.

The token goes to u first.  u adds Gaussian noise that hides how far the forgotten records can have
moved the model; whatever comes later and does not touch them is post-processing.

The distance :math:`\Delta` between training with and without the forgotten records is bounded by
the stability ledger (:mod:`unwalk.privacy.ledger`), and :math:`s = \Delta/r`.  Before the noise u
may take descent steps on its retained records, unobserved: each brings :math:`\Delta` down by its
contraction, at the price of drift, which the walk repairs.  Later visits to u descend on retained
records (EXACT) or ascend on forgotten ones (LIGHTWEIGHT), projected back into a ball around the
model that arrived.  The ball's radius is what the steps could move in exact arithmetic, and the
visit adds its own noise for that radius.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from unwalk import walks
from unwalk.core.errors import Refused
from unwalk.core.plan import Phase, Route
from unwalk.core.program import AddNoise, Ball, Forget, Program, Project, Records, Visit
from unwalk.core.validation import check_count, check_number
from unwalk.methods.ledgered import (
    ROUNDING,
    check_slots,
    ledger_after,
    probe,
    reach_of,
    slot_steps,
    std_for,
    visit_to_u,
)
from unwalk.methods.network_sgd import Descending, unlearn_descent, unlearn_phase
from unwalk.methods.record import (
    ANY_WITHOUT_U,
    SEES_IT_SEALED,
    Decided,
    Guarantee,
    MethodRecord,
    Request,
    ThreatModel,
)
from unwalk.methods.restart import wiping
from unwalk.methods.rrdu import Correction
from unwalk.privacy.accountants import of_phase
from unwalk.privacy.gaussian import gaussian_mu
from unwalk.privacy.stability import ledger_claim
from unwalk.settings.config import Config, setting

SEALED = Guarantee(
    "certified",
    of_phase(ledger_claim),
    ThreatModel(SEES_IT_SEALED, ANY_WITHOUT_U),
    "the same seal, with the same number of records, visit times and settings, on the "
    "model trained without the forgotten records",
)


@dataclass(frozen=True)
class SealSettings:
    """Noise at the forgetting peer before anything leaves it.  Target: unlearn.epsilon, delta."""

    key: ClassVar[str] = "seal"
    local_epochs: int = setting(0, "passes over what u retains before the noise, unobserved", low=0)
    std: float | None = setting(
        None, "noise on the parameters; empty: what the ledger needs", low=0.0
    )
    visits: int = setting(
        0, "LIGHTWEIGHT visits afterwards at most; 0: u descends on what it keeps", low=0
    )
    share: float = setting(
        0.5, "share of the budget for the seal, where visits come after it", above=0.0, below=1.0
    )
    radius: float = setting(
        1.0, "ball-seal: radius of the ball around the initial model", above=0.0
    )
    ratio: float = setting(2.0, "ball-seal: its diameter in units of the noise", above=0.0)


@dataclass(frozen=True)
class LedgerSeal(Descending):
    """Local descent, noise of std ``std``, then ``descent`` on retained records.

    ``local_epochs`` passes over u's slots come before the noise.  After it the model is projected
    on a public ball of radius ``reach`` around the origin, which it almost never leaves: it bounds
    the model's length for the accounting of later requests.  ``later`` are LIGHTWEIGHT visits with
    noise of std ``later_std`` on the parameters.
    """

    std: float
    local_epochs: int = 0
    later: Correction | None = None
    later_std: float = 0.0
    reach: float | None = None
    name: str = field(default="seal", init=False)

    def __post_init__(self) -> None:
        check_number("std", self.std, low=0.0)
        check_number("later_std", self.later_std, low=0.0)
        check_count("local_epochs", self.local_epochs)
        if self.reach is not None:
            check_number("reach", self.reach, above=0.0)

    def visit(self, visit: Visit) -> Program:
        after = self.descent.program(visit, "retained")
        if visit.phase_hop == 1:
            return wiping(visit, (*self._sealing(visit), *after))
        if visit.at_unlearner and self.later is not None:
            return wiping(visit, self._lightweight(visit, self.later))
        return wiping(visit, after)

    def _sealing(self, visit: Visit) -> Program:
        before: Program = ()
        if self.local_epochs:
            work = replace(self.descent.work, epochs=self.local_epochs)
            before = replace(self.descent, work=work).program(visit, "retained")
        after: Program = () if self.reach is None else (Project((Ball("origin", self.reach),)),)
        return (Forget("optimizer"), *before, AddNoise(self.std), *after)

    def _lightweight(self, visit: Visit, correction: Correction) -> Program:
        step_size = self.descent.schedule.at(visit.phase_hop, correction.rule.learning_rate)
        steps = correction.steps(visit, step_size)
        size = correction.sensitivity(steps)
        noise = AddNoise(self.later_std, size)
        if steps is None or not size:
            return (noise,) if steps is None else (steps, noise)
        radius = size if steps.data == "forgotten" else size / 2.0
        return (steps, Project((Ball("arrival", radius),)), noise)


def _later_correction(config: Config) -> Correction | None:
    """The LIGHTWEIGHT visits after a seal, if there are to be any."""
    if config.of(SealSettings).visits == 0:
        return None
    descent = unlearn_descent(config)
    rule = replace(descent.rule, optimizer="sgd", weight_decay=0.0)
    work = replace(descent.work, kind="epochs", epochs=1)
    clip = 1.0 if config.unlearn.clip is None else config.unlearn.clip
    return Correction("forget", work, rule, clip=clip)


def _phase(config: Config, decided: Decided) -> Phase:
    seal, u = config.of(SealSettings), config.forget.peer
    later = _later_correction(config)
    onward: Route = walks.Uniform()
    if later is not None:
        onward = walks.Restart(u, decided.p, seal.visits)
    method = LedgerSeal(
        unlearn_descent(config),
        decided.std,
        seal.local_epochs,
        later,
        decided.later_std,
        decided.reach,
    )
    return unlearn_phase(config, method, walks.FirstTo(u, onward), reset_optimizer=False)


def _decide(request: Request) -> Decided:
    """The noise for the distance that the ledger bounds.

    If a noise std was given, nothing is refused here; the certificate refuses if it is too small.
    """
    config, seal = request.config, request.config.of(SealSettings)
    if request.trained is None:
        if seal.std is None:
            if seal.local_epochs:
                check_slots(config, "seal.local_epochs")
            probe(request)
        return Decided(std=1.0 if seal.std is None else seal.std, later_std=_later(request)[1])
    share, later_std = _later(request)
    try:
        ledger, facts = ledger_after(request, request.trained)
        if seal.local_epochs:
            work = slot_steps(facts, unlearn_descent(config), seal.local_epochs, 1)
            ledger = ledger.steps(work, facts.head)
    except Refused:
        if seal.std is None:
            raise
        return Decided(std=seal.std, later_std=later_std)
    std = std_for(ledger, config, share) if seal.std is None else seal.std
    reach = reach_of(ledger.norm, facts.head, std, 1)
    return Decided(std=std, later_std=later_std, reach=reach)


def _later(request: Request) -> tuple[float, float]:
    """The seal's share of the budget, and the noise of each LIGHTWEIGHT visit after it."""
    config, seal = request.config, request.config.of(SealSettings)
    correction = _later_correction(config)
    if correction is None:
        return 1.0, 0.0
    steps = correction.steps(visit_to_u(request), correction.rule.learning_rate)
    moved = correction.sensitivity(steps) or 0.0
    left = (1.0 - seal.share) / seal.visits
    mu = gaussian_mu(config.unlearn.epsilon, config.unlearn.delta) * math.sqrt(left)
    return seal.share, moved / mu * ROUNDING


def _facts(config: Config, records: Records, p: float) -> dict[str, Any]:
    return {"p": p} if config.of(SealSettings).visits else {}


RECORD = MethodRecord(
    name="seal",
    label="ledger seal",
    description=(
        "noise at the forgetting peer that hides what the ledger bounds, then a walk without it"
    ),
    phase=_phase,
    settings=SealSettings,
    decide=_decide,
    guarantee=SEALED,
    facts=_facts,
    beside_restart=True,
    line="all",
)
