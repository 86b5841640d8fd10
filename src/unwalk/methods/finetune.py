"""Fine-tuning: continue to train the old model, without the records to be forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.methods.network_sgd import Retaining, unlearn_descent, unlearn_phase
from unwalk.methods.record import Decided, MethodRecord
from unwalk.settings.config import Config


@dataclass(frozen=True)
class Finetune(Retaining):
    """Every peer descends on its retained records; no noise is added, nothing is proved."""

    name: str = field(default="finetune", init=False)


def _phase(config: Config, decided: Decided) -> Phase:
    return unlearn_phase(config, Finetune(unlearn_descent(config)), walks.Uniform())


RECORD = MethodRecord(
    name="finetune",
    label="fine-tuning",
    description="go on training without the forgotten records",
    phase=_phase,
)
