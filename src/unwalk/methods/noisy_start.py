"""Noise from the start: every peer adds noise at its own training visits.

A later deletion of up to the planned number of records of one peer costs nothing: the model at
the request is already hard to tell from one that never met them, and so is all that peers saw
during training.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unwalk.core.program import AddNoise, Ball, Program, Project, Visit
from unwalk.core.validation import check_number
from unwalk.methods.local_work import Descent


@dataclass(frozen=True)
class NoisyStart:
    """Descent on all records, then noise of std ``std`` on the parameters, at every visit.

    After the noise the model is projected on a public ball of radius ``reach`` round the origin,
    which it hardly ever leaves: it bounds the rounding of the next visit's steps.
    """

    descent: Descent
    std: float
    reach: float | None = None
    name: str = field(default="noisy-start", init=False)

    def __post_init__(self) -> None:
        check_number("std", self.std, low=0.0)
        if self.reach is not None:
            check_number("reach", self.reach, above=0.0)

    @property
    def travels(self) -> tuple[str, ...]:
        return self.descent.travels

    def visit(self, visit: Visit) -> Program:
        after: Program = () if self.reach is None else (Project((Ball("origin", self.reach),)),)
        return (*self.descent.program(visit, "all"), AddNoise(self.std), *after)
