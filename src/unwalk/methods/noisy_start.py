"""Noise from the start: every peer adds noise at its own training visits.

A later deletion of up to the planned number of records of one peer costs nothing: the model at the
request is already hard to tell from one that was never trained on them, and so is everything that
peers saw during training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from unwalk import walks
from unwalk.core.errors import Refused
from unwalk.core.plan import Phase
from unwalk.core.program import Program, Visit
from unwalk.core.transcript import Transcript
from unwalk.methods.ledgered import (
    FINEST,
    LEAST_STD,
    ROUNDING,
    check_noise,
    noise_within,
    probe,
    reach_of,
    slot_steps,
    usual_visits,
)
from unwalk.methods.network_sgd import Descending, train_descent
from unwalk.methods.record import FROM_THE_START, Decided, Guarantee, MethodRecord, Request
from unwalk.privacy.accountants import of_walk
from unwalk.privacy.gaussian import gaussian_mu
from unwalk.privacy.ledger import Ledger
from unwalk.privacy.stability import Facts, noisy_start_claim
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class NoisyStartSettings:
    """Noise at every training visit."""

    key: ClassVar[str] = "noisy_start"
    visits: int | None = setting(
        None, "visits to a peer that the noise is made for; empty: usual", low=1
    )
    std: float | None = setting(
        None, "noise on the parameters per visit; empty: calibrated", low=0.0
    )


@dataclass(frozen=True)
class NoisyStart(Descending):
    """Descent on all records, then noise of std ``std`` on the parameters, at every visit.

    After the noise the model is projected on a public ball of radius ``reach`` around the origin,
    which it almost never leaves.  That bounds the rounding of the next visit's steps.
    """

    std: float
    reach: float | None = None
    name: str = field(default="noisy-start", init=False)

    def __post_init__(self) -> None:
        check_noise(self.std, self.reach)

    def visit(self, visit: Visit) -> Program:
        return (*self.descent.program(visit, "all"), *noise_within(self.std, self.reach))


def _phase(config: Config, decided: Decided) -> Phase:
    method = NoisyStart(train_descent(config), decided.std, decided.reach)
    return Phase("unlearn", method, walks.Uniform(), 0)


def _training(config: Config, decided: Decided) -> tuple[Phase, ...]:
    method = NoisyStart(train_descent(config), decided.std, decided.reach)
    return (Phase("train", method, walks.Uniform(), config.train.hops),)


def _decide(request: Request) -> Decided:
    """The noise per visit, for the distance that one visit can add between the worlds.

    That distance includes rounding, which depends on the ball that bounds the model, which depends
    weakly on the noise: a few iterations settle both.
    """
    config = request.config
    given, descent = config.of(NoisyStartSettings), train_descent(config)
    if given.std is None:
        probe(request)
    try:
        facts = Facts.of(Transcript(dict(request.header)))
    except Refused:
        if given.std is None:
            raise
        return Decided(std=given.std)
    visits = given.visits or usual_visits(config.train.hops, request.task.peers)
    works = {
        replace(
            slot_steps(facts, descent, descent.work.epochs, hop),
            forgotten=max(facts.forgotten, 1),
        )
        for hop in range(1, config.train.hops + 1)
    }
    push = max(work.push(facts.loss) for work in works) * facts.slots * descent.work.epochs
    walked = facts.head.initial_norm + config.train.hops * push
    mu = gaussian_mu(config.unlearn.epsilon, config.unlearn.delta) / math.sqrt(visits)
    std = given.std or 0.0
    reach = reach_of(walked, facts.head, std, config.train.hops)
    for _ in range(3 if given.std is None else 0):
        start = Ledger(0.0, 2.0 * reach)
        apart = max(start.steps(work, facts.head).distance for work in works)
        std = max(apart / mu * ROUNDING, walked * FINEST, LEAST_STD)
        reach = reach_of(walked, facts.head, std, config.train.hops)
    return Decided(std=std, reach=reach)


RECORD = MethodRecord(
    name="noisy-start",
    label="noise from the start",
    description="noise at every training visit, so that forgetting costs nothing",
    phase=_phase,
    training=_training,
    settings=NoisyStartSettings,
    decide=_decide,
    guarantee=Guarantee(
        "certified",
        of_walk(noisy_start_claim),
        FROM_THE_START,
        "the same noisy training without the forgotten records",
    ),
)
