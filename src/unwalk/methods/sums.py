r"""Sums: a ridge head on fixed features, from which records are removed exactly in one hop.

The token carries the totals of :math:`x x^T` (its triangle) and :math:`x y^T` over all peers'
records, in fixed point.  A visit replaces the peer's former sums by new ones.  To forget, the
forgetting peer does so over the records it retains: the totals, and with them the model, are bit
for bit those of training without the forgotten records.

Exactness needs no particular precision: rounded sums are whole numbers, which come and go without a
trace.  So they have as few bits as a ridge head needs (:func:`places`) and as public bounds on the
number and the length of records allow (:func:`width_of`): never a number that follows from the
records, which would tell of them.

A caveat: whoever kept an earlier token can compute the moments of the forgotten records as the
difference of two totals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import Program, ReplaceSums, Visit
from unwalk.core.validation import check_choice, check_count, check_number
from unwalk.methods.record import Decided, Guarantee, MethodRecord, Request, ThreatModel
from unwalk.privacy.exact import sums_claim
from unwalk.settings.config import Config, setting

MARGIN = 2.0
"""By so much rounding stays below the ridge parameter, whatever the records are."""
NUMBERS = 24
"""Binary places at least where numbers are predicted, which nothing bounds from above or below."""
WIDEST = 62
"""Bits of an entry where no public bound on it is known."""


@dataclass(frozen=True)
class SumsSettings:
    """The ridge head on fixed features."""

    key: ClassVar[str] = "sums"
    strength: float = setting(1.0, "ridge parameter", above=0.0)
    bits: int | None = setting(
        None, "binary places of the sums; empty: as many as the ridge parameter needs", low=1
    )


@dataclass(frozen=True)
class Sums:
    """Each visit contributes the peer's sums over ``data``; ``strength`` is the ridge parameter.

    Sums have ``bits`` binary places, and ``width`` bits in all.
    """

    strength: float
    data: str = "retained"
    bits: int = 40
    width: int = WIDEST
    name: str = field(default="sums", init=False)
    travels: tuple[str, ...] = field(default=("sums",), init=False)

    def __post_init__(self) -> None:
        check_number("strength", self.strength, above=0.0)
        check_choice("data", self.data, ("all", "retained"))
        check_count("bits", self.bits, low=1, high=WIDEST - 2)

    def visit(self, visit: Visit) -> Program:
        return (ReplaceSums(self.data, self.strength, self.bits, self.width),)


def _method(config: Config, decided: Decided, data: str) -> Sums:
    return Sums(config.of(SumsSettings).strength, data, decided.bits, decided.width)


def places(inputs: int, peers: int, strength: float) -> int:
    r"""Binary places b with which there is a ridge head, whatever the records are.

    Each peer's sums are rounded by :math:`2^{-b-1}` per entry at most, so that all of them change
    :math:`A` by a matrix of norm at most :math:`N d 2^{-b-1}`.  It has to be a
    :data:`MARGIN`-th part of the ridge parameter :math:`\lambda` at most, which bounds the smallest
    eigenvalue of :math:`A + \lambda I` from below.

    >>> places(1001, 10, 1.0)
    14
    """
    return max(1, math.ceil(math.log2(inputs * peers * MARGIN / (2.0 * strength))))


def width_of(largest: float, peers: int, bits: int) -> int:
    """Bits of an entry whose absolute value is ``largest`` at most, with ``bits`` binary places.

    Each peer's rounding adds half a unit at most; one bit is the sign.

    >>> width_of(60_000.0, 10, 14)
    31
    """
    return min(WIDEST, 1 + math.ceil(math.log2(largest * 2.0**bits + peers + 1)))


def _decide(request: Request) -> Decided:
    """The format of the sums, from public bounds alone: it must not tell of the records."""
    settings, header, peers = request.config.of(SumsSettings), request.header, request.task.peers
    norm, inputs = header.get("feature_norm"), header.get("inputs")
    if inputs is None:  # a loss of the task's own, which sums do not use
        return Decided()
    numbers = header.get("predicts") == "number"
    least = places(int(inputs), peers, settings.strength)
    bits = (max(least, NUMBERS) if numbers else least) if settings.bits is None else settings.bits
    if numbers or norm is None or request.most_records is None:
        return Decided(bits=bits)
    largest = max(float(norm), float(norm) ** 2) * request.most_records
    return Decided(bits=bits, width=width_of(largest, peers, bits))


def _phase(config: Config, decided: Decided) -> Phase:
    return Phase(
        name="unlearn",
        method=_method(config, decided, "retained"),
        route=walks.Fixed((config.forget.peer,)),
        hops=1,
        carries_forgotten=True,
    )


def _training(config: Config, decided: Decided) -> tuple[Phase, ...]:
    phase = Phase(
        name="train",
        method=_method(config, decided, "all"),
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
    head=True,
    decide=_decide,
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
