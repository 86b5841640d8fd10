r"""Sums: a ridge head on fixed features, from which records are removed exactly in one hop.

The token carries the totals of :math:`x x^T` and :math:`x y^T` over all peers' records, in fixed
point.  A visit replaces the peer's former sums by new ones.  To forget, the forgetting peer does so
over the records it retains: the totals, and with them the model, are bit for bit those of training
without the forgotten records.

A caveat: whoever kept an earlier token can compute the moments of the forgotten records as the
difference of two totals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import Program, ReplaceSums, Visit
from unwalk.core.validation import check_choice, check_number
from unwalk.methods.record import Decided, Guarantee, MethodRecord, ThreatModel
from unwalk.privacy.exact import sums_claim
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class SumsSettings:
    """The ridge head on fixed features."""

    key: ClassVar[str] = "sums"
    strength: float = setting(1.0, "ridge parameter", above=0.0)


@dataclass(frozen=True)
class Sums:
    """Each visit contributes the peer's sums over ``data``; ``strength`` is the ridge parameter."""

    strength: float
    data: str = "retained"
    name: str = field(default="sums", init=False)
    travels: tuple[str, ...] = field(default=("sums",), init=False)

    def __post_init__(self) -> None:
        check_number("strength", self.strength, above=0.0)
        check_choice("data", self.data, ("all", "retained"))

    def visit(self, visit: Visit) -> Program:
        return (ReplaceSums(self.data, self.strength),)


def _phase(config: Config, decided: Decided) -> Phase:
    return Phase(
        name="unlearn",
        method=Sums(config.of(SumsSettings).strength),
        route=walks.Fixed((config.forget.peer,)),
        hops=1,
        carries_forgotten=True,
    )


def _training(config: Config, decided: Decided) -> tuple[Phase, ...]:
    phase = Phase(
        name="train",
        method=Sums(config.of(SumsSettings).strength, "all"),
        route=walks.Fixed(range(decided.peers)),
        hops=decided.peers,
    )
    return (phase,)


RECORD = MethodRecord(
    name="sums",
    description="a ridge head on fixed features: the forgetting peer replaces its sums, in one hop",
    phase=_phase,
    training=_training,
    settings=SumsSettings,
    guarantee=Guarantee(
        "exact",
        sums_claim,
        ThreatModel(
            "whoever has the released model, and peers that did not keep an old token",
            "none that holds a token from before the request",
            adaptive_requests=True,
        ),
        "the ridge head of all records but the forgotten ones",
    ),
)
