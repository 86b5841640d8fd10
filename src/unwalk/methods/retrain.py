"""Retraining from scratch: the reference that every other method is compared with.

The walk starts from a new model and never meets the records to be forgotten, so its result is a
sample of A(D minus D_f): exact by construction, at the price of a whole training run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.methods.network_sgd import Retaining, train_descent
from unwalk.methods.record import (
    ANY_WITHOUT_U,
    SEES_THE_MODEL,
    Decided,
    Guarantee,
    MethodRecord,
    ThreatModel,
)
from unwalk.privacy.exact import fresh_claim
from unwalk.settings.config import Config

FRESH = Guarantee(
    "exact",
    fresh_claim,
    ThreatModel(SEES_THE_MODEL, ANY_WITHOUT_U, adaptive_requests=True),
    "training from the initial model on all records but the forgotten ones",
)


@dataclass(frozen=True)
class Retrain(Retaining):
    """Network-SGD on the retained records, from the initial model."""

    name: str = field(default="retrain", init=False)


def _phase(config: Config, decided: Decided) -> Phase:
    return Phase(
        name="retrain",
        method=Retrain(train_descent(config)),
        route=walks.Uniform(),
        hops=config.train.hops + config.unlearn.hops,
        keep=config.train.keep,
    )


RECORD = MethodRecord(
    name="retrain",
    label="retraining",
    description="a new model that never meets the forgotten records: the oracle",
    phase=_phase,
    from_scratch=True,
    guarantee=FRESH,
)
