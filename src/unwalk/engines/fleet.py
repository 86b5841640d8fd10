"""The fleet engine: many independent walks in lock-step, as one batched program.

Walk k is row k of a parameter matrix.  At every hop each walk draws its own route, batches and
noise exactly as the in-process engine would; the gradient steps of all walks are then taken
together.  Visits that differ in length are padded and masked: a walk whose visit is over waits.
Rounding differs from the in-process engine's (sums are taken in another order), nothing else.

All plans must train the same architecture.  Dropout draws one mask for the whole fleet from the
first walk's generator, so a model with dropout agrees with the in-process engine in distribution
only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from unwalk.core import events as ev
from unwalk.core.data import Shard
from unwalk.core.errors import Diverged, InvalidInput
from unwalk.core.plan import Local, Outcome, Plan, Progress, Sink
from unwalk.core.program import Program, StepRule, Steps
from unwalk.core.token import Token
from unwalk.core.workspace import Workspace, build_model
from unwalk.engines.batched import BatchedGradient, Buffers
from unwalk.engines.execute import Bench, execute, steps_event
from unwalk.engines.visits import Coming, arrive, begin, depart


class Fleet:
    """Carries up to ``size`` walks at a time."""

    name = "fleet"

    def __init__(self, size: int = 1024) -> None:
        self.size = size

    def run(
        self,
        plans: Sequence[Plan],
        sink: Sink | None = None,
        resume: Mapping[int, Progress] | None = None,
    ) -> Iterator[Outcome]:
        """Carry out the plans, ``size`` at a time; outcomes come in the order of the plans."""
        for first in range(0, len(plans), self.size):
            numbers = range(first, min(first + self.size, len(plans)))
            convoy = _Convoy([(n, plans[n], (resume or {}).get(n)) for n in numbers])
            convoy.walk(sink)
            yield from convoy.outcomes()
