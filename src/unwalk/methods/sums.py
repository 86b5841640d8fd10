r"""Sums: a ridge head on fixed features, forgotten exactly in one hop.

The token carries the totals of :math:`x x^T` and :math:`x y^T` over all peers' records, in fixed
point.  A visit puts the peer's own sums in the place of its former ones.  To forget, the
forgetting peer does so over the records it retains: the totals, and with them the model, are to
the last bit those of training without the forgotten records.

A caveat: whoever kept the token from before sees, as the difference of two totals, the moments of
the forgotten records.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unwalk.core.program import Program, ReplaceSums, Visit
from unwalk.core.validation import check_choice, check_number


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
