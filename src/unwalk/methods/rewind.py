"""Rewind: go back to a token from before the forgotten records were used, and walk on from it.

*First contact.*  The forgetting peer u keeps the whole state as the token first arrived: it cannot
depend on u's records.  Walking again from there on the retained records, with fresh coins and with
every peer's local state as it was then, gives a sample of training without the forgotten records.

*First use.*  u keeps the state at each arrival and knows which records its batches drew.  The walk
continues from the visit with the first batch that drew a forgotten record; that visit is repeated
up to this batch, and the rest is drawn again (:meth:`.LocalWork.without` of ``network_sgd``).
Where no batch ever drew one there is nothing to do.

Both are exact for requests that do not depend on the model.

Engines restore every peer's local state as it was at the arrival.  If peers hold no optimizer
state, each of them also erases its local state at its first visit, which the transcript records;
with local optimizer state there is no such event, and no claim is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from unwalk import walks
from unwalk.core.errors import Refused
from unwalk.core.plan import Phase, Route
from unwalk.core.program import Drawing, Program, Records, Rows, Visit
from unwalk.core.seeds import Draws, PublicSeeds
from unwalk.core.validation import check_choice
from unwalk.methods.network_sgd import Descending, Descent, train_descent
from unwalk.methods.record import (
    ANY_WITHOUT_U,
    SEES_THE_MODEL,
    Coins,
    Decided,
    Guarantee,
    MethodRecord,
    Request,
    ThreatModel,
)
from unwalk.methods.restart import wiping
from unwalk.privacy.exact import rewind_claim
from unwalk.settings.config import Config, setting

WAYS = ("first-contact", "first-use")
GOING_BACK = Guarantee(
    "exact",
    rewind_claim,
    ThreatModel(SEES_THE_MODEL, ANY_WITHOUT_U),
    "training on all records but the forgotten ones, with fresh coins",
)


@dataclass(frozen=True)
class RewindSettings:
    """Back to before the forgotten records were used."""

    key: ClassVar[str] = "rewind"
    way: str = setting(
        "first-contact", "to the first-contact or to the first-use of a record", choices=WAYS
    )


@dataclass(frozen=True)
class Rewind(Descending):
    """Training's walk from hop ``start_hop`` on, without the forgotten records.

    ``coins`` are training's own; ``first-use`` needs them to repeat the visit it begins with.
    """

    start_hop: int
    way: str = "first-contact"
    coins: Coins | None = field(default=None, repr=False)
    name: str = field(default="rewind", init=False)

    def __post_init__(self) -> None:
        check_choice("way", self.way, WAYS)

    def visit(self, visit: Visit) -> Program:
        program, rule = self._again(visit), self.descent.rule
        kept = bool(rule.slots) and rule.state == "local"
        return program if kept else wiping(visit, program)

    def drawing(self, visit: Visit) -> Drawing | None:
        return self.descent.drawing(visit, "retained") if visit.earlier_in_phase else None

    def _again(self, visit: Visit) -> Program:
        at_hop = replace(visit, phase_hop=visit.phase_hop + self.start_hop - 1)
        if visit.phase_hop > 1 or self.way == "first-contact" or self.coins is None:
            return self.descent.program(at_hop, "retained")
        everything, retained = _open(self.descent, visit.records, self.start_hop)
        if retained.size == 0 and self.descent.work.kind != "slots":
            return ()
        batches, weights = self.descent.work.without(
            everything, retained, self.coins(self.start_hop), visit.rng
        )
        return self.descent.steps(at_hop, "retained", batches, weights)


def _open(descent: Descent, records: Records, hop: int) -> tuple[Rows, Rows]:
    """All rows and the retained ones that take part at a hop of training."""
    return descent.taking_part(records.all, hop), descent.taking_part(records.retained, hop)


def first_use(descent: Descent, records: Records, visits: list[int], coins: Coins) -> int | None:
    """The hop, among u's ``visits``, whose batches first drew a forgotten record; None if none."""
    for hop in visits:
        everything, retained = _open(descent, records, hop)
        if everything.size and descent.work.uses(everything, retained, coins(hop)):
            return hop
    return None


def going_back(decided: Decided, way: str, descent: Descent, u: int, onward: Route) -> Phase:
    """The walk from the arrival that was decided on, by u first and then ``onward``."""
    start = decided.start_hop
    return Phase(
        name="unlearn",
        method=Rewind(descent, start or 1, way, decided.coins),
        route=walks.FirstTo(u, onward),
        hops=decided.hops,
        start="arrival",
        start_hop=None if start is None else decided.earlier + start,
    )


def back_to(request: Request, way: str) -> Decided:
    """The arrival to go back to in the common training walk, and the hops that are left of it."""
    config, trained = request.config, request.trained
    if trained is None:
        return Decided(hops=config.train.hops)
    u, seeds = config.forget.peer, PublicSeeds(config.seed, config.streams)

    def coins(hop: int) -> Draws:
        return seeds.stream("train", "batches", hop)

    visits = [hop.hop for hop in trained.hops if hop.receiver == u]
    start = visits[0] if visits else None
    if way == "first-use":
        start = first_use(train_descent(config), request.records, visits, coins)
    if start is None:
        return Decided()
    return Decided(start_hop=start, hops=len(trained.hops) - start + 1, coins=coins)


def check_last_kept(config: Config, method: str) -> None:
    """Refuse training whose result is not its last model."""
    if config.train.keep != "last":
        raise Refused(f"{method} needs train.keep = last; it is {config.train.keep!r}.", "iterate")


def facts_of_way(config: Config, records: Records, way: str) -> dict[str, Any]:
    """What the proof of a walk that went back needs in the header."""
    emptied = records.retained.size == 0
    return {"slices": config.train.slices, "rewind": way, "emptied": emptied}


def _way(config: Config) -> str:
    return config.of(RewindSettings).way


def _phase(config: Config, decided: Decided) -> Phase:
    descent, u = train_descent(config), config.forget.peer
    return going_back(decided, _way(config), descent, u, walks.Uniform())


def _decide(request: Request) -> Decided:
    check_last_kept(request.config, "rewind")
    return back_to(request, _way(request.config))


def _facts(config: Config, records: Records, p: float) -> dict[str, Any]:
    return facts_of_way(config, records, _way(config))


RECORD = MethodRecord(
    name="rewind",
    description="back to before the forgotten records were used, and on from there",
    phase=_phase,
    settings=RewindSettings,
    decide=_decide,
    way_back=_way,
    guarantee=GOING_BACK,
    facts=_facts,
    line="position",
)
