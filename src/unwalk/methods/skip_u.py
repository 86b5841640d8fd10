"""Skip u: go on training without ever visiting the forgetting peer again.

None of u's records is used again, the retained ones neither.  What training left of them stays in
the model until the others' steps wash it out; no noise is added and nothing is proved.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.methods.network_sgd import Retaining, unlearn_descent, unlearn_phase
from unwalk.methods.record import Decided, MethodRecord
from unwalk.settings.config import Config


@dataclass(frozen=True)
class SkipU(Retaining):
    """Every peer but u descends on its records; the route leaves u out."""

    name: str = field(default="skip-u", init=False)


def _phase(config: Config, decided: Decided) -> Phase:
    route = walks.Restart(config.forget.peer, 0.0)
    return unlearn_phase(config, SkipU(unlearn_descent(config)), route)


RECORD = MethodRecord(
    name="skip-u",
    label="skip u",
    description="go on training without ever visiting the forgetting peer again",
    phase=_phase,
)
