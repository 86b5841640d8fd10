r"""User-level differential privacy from the start: whatever a peer holds, its visits show little.

Every training visit is

.. math:: \theta \leftarrow \Pi_{B(\theta_{\rm arrival}, C)}\big({\rm work}(\theta)\big)
          + \mathcal N(0, s^2 I),

so that one visit carries at most C of a peer's records, all of them together (McMahan, Ramage,
Talwar and Zhang 2018, arXiv:1710.06963, with the walk in the server's place).  Replacing all
records of a peer moves a visit by 2C at most, and its visits compose as Gaussian mechanisms,
:math:`\mu^2 = \sum_v (2C/s_v)^2`: any model, all hops of training included.  A deletion at any
peer costs nothing: U = A(D).

Network DP (Cyffers and Bellet 2022) would need less noise against a single observer, for convex
losses; nothing of it is claimed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import AddNoise, Ball, Program, Project, Visit
from unwalk.core.validation import check_number
from unwalk.methods.ledgered import ROUNDING, usual_visits
from unwalk.methods.network_sgd import Descending, train_descent
from unwalk.methods.record import FROM_THE_START, Decided, Guarantee, MethodRecord, Request
from unwalk.privacy.accountants import training_claim
from unwalk.privacy.gaussian import gaussian_mu
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class UserDPSettings:
    """User-level privacy from the start.  Target: unlearn.epsilon, delta."""

    key: ClassVar[str] = "user_dp"
    bound: float = setting(1.0, "the most that a visit may move the model", above=0.0)
    visits: int | None = setting(
        None, "visits to a peer that the noise is made for; empty: usual", low=1
    )
    std: float | None = setting(
        None, "noise on the parameters per visit; empty: calibrated", low=0.0
    )


@dataclass(frozen=True)
class UserDP(Descending):
    """Descent on all records, back into a ball of radius ``bound`` around the model that arrived,
    then noise of std ``std``: at every visit of every peer."""

    bound: float
    std: float
    name: str = field(default="user-dp", init=False)

    def __post_init__(self) -> None:
        check_number("bound", self.bound, above=0.0)
        check_number("std", self.std, low=0.0)

    def visit(self, visit: Visit) -> Program:
        work = self.descent.program(visit, "all")
        ball = Ball("arrival", self.bound)
        return (*work, Project((ball,)), AddNoise(self.std, 2.0 * self.bound))


def _method(config: Config, decided: Decided) -> UserDP:
    base = train_descent(config)
    descent = replace(base, rule=replace(base.rule, optimizer="sgd"), feasible=None)
    return UserDP(descent, config.of(UserDPSettings).bound, decided.std)


def _phase(config: Config, decided: Decided) -> Phase:
    return Phase("unlearn", _method(config, decided), walks.Uniform(), 0)


def _training(config: Config, decided: Decided) -> tuple[Phase, ...]:
    return (Phase("train", _method(config, decided), walks.Uniform(), config.train.hops),)


def _decide(request: Request) -> Decided:
    """Noise with which the planned number of visits reaches the target."""
    config, own = request.config, request.config.of(UserDPSettings)
    if own.std is not None:
        return Decided(std=own.std)
    visits = own.visits or usual_visits(config.train.hops, request.task.peers)
    mu = gaussian_mu(config.unlearn.epsilon, config.unlearn.delta) / math.sqrt(visits)
    return Decided(std=2.0 * own.bound / mu * ROUNDING)


RECORD = MethodRecord(
    name="user-dp",
    label="user-level DP",
    description="every visit bounded and noised from the start; forgetting a whole peer is free",
    phase=_phase,
    training=_training,
    settings=UserDPSettings,
    decide=_decide,
    guarantee=Guarantee(
        "certified",
        training_claim,
        FROM_THE_START,
        "the same noisy training with other records at the forgetting peer, as many as before",
    ),
)
