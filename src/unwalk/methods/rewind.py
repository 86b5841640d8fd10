"""Rewind: go back to a moment before the forgotten records were used, and walk on from there.

*First contact.*  The forgetting peer u keeps the whole state as the token first arrived: it cannot
depend on u's records.  Walking again from there on the retained records, with fresh coins and with
every peer's local state as it was then, gives a sample of training without the forgotten records.

*First use.*  u keeps the state at each arrival and knows which records its batches drew.  The walk
goes on from the visit with the first batch that drew a forgotten record; that visit is repeated
up to this batch, and the rest is drawn anew (:meth:`unwalk.methods.local_work.LocalWork.without`).
Where no batch ever drew one there is nothing to do.

Both are exact for requests that do not depend on the model.

Engines put every peer's local state back to what it was at the arrival.  Where nothing of it can
matter (no optimizer state lives at peers) each peer erases it at its first visit as well, which the
transcript records; with local optimizer state no such event exists, and no claim is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from unwalk.core.program import Program, Records, Rows, Visit
from unwalk.core.validation import check_choice
from unwalk.methods.local_work import Descent
from unwalk.methods.restart import wiping

WAYS = ("first-contact", "first-use")


class Coins(Protocol):
    """The public generator of a training hop."""

    def __call__(self, hop: int) -> np.random.Generator: ...


@dataclass(frozen=True)
class Rewind:
    """Training's walk from hop ``start_hop`` on, without the forgotten records.

    ``coins`` are training's own; ``first-use`` needs them to repeat the visit it begins with.
    """

    descent: Descent
    start_hop: int
    way: str = "first-contact"
    coins: Coins | None = field(default=None, repr=False)
    name: str = field(default="rewind", init=False)

    def __post_init__(self) -> None:
        check_choice("way", self.way, WAYS)

    @property
    def travels(self) -> tuple[str, ...]:
        return self.descent.travels

    def visit(self, visit: Visit) -> Program:
        program, rule = self._again(visit), self.descent.rule
        kept = bool(rule.slots) and rule.state == "local"
        return program if kept else wiping(visit, program)

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
