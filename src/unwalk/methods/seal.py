r"""Seal: noise at the forgetting peer u before anything leaves it, then walk on without D_f.

The token goes to u first.  u adds Gaussian noise that hides how far the forgotten records can have
moved the model; whatever comes later and does not touch them is post-processing.

*Ledger seal.*  The distance :math:`\Delta` between training with and without the forgotten records
is bounded by the stability ledger (:mod:`unwalk.privacy.ledger`), and :math:`s = \Delta/r`.
Before the noise u may take descent steps on its retained records, unobserved: each brings
:math:`\Delta` down by its contraction, at the price of drift, which the walk repairs.  Later
visits to u descend on retained records (EXACT) or ascend on forgotten ones (LIGHTWEIGHT), back
into a ball round the model that came, whose radius is what the steps could move in exact
arithmetic, and with noise of their own for that radius.

*Ball seal* (the reference).  k times: a step, projection on a ball round a D_f-free centre, noise.
It holds for any network, but what survives of the old model is at most :math:`r^2/8` nats:
restarting at the centre is exact and never carries materially less.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unwalk.core.program import AddNoise, Ball, Forget, Program, Project, Visit
from unwalk.core.validation import check_count, check_number
from unwalk.methods.local_work import Descent
from unwalk.methods.restart import wiping
from unwalk.methods.rrdu import Correction


@dataclass(frozen=True)
class LedgerSeal:
    """Local descent, noise of std ``std``, then ``descent`` on retained records.

    ``local_epochs`` passes over u's slots come before the noise.  After it the model is projected
    on a public ball of radius ``reach`` round the origin, which it hardly ever leaves: whoever
    accounts for a later request knows from it how long the model is.  ``later`` are LIGHTWEIGHT
    visits with noise of std ``later_std`` on the parameters.
    """

    descent: Descent
    std: float
    local_epochs: int = 0
    later: Correction | None = None
    later_std: float = 0.0
    reach: float | None = None
    name: str = field(default="seal", init=False)

    def __post_init__(self) -> None:
        check_number("std", self.std, low=0.0)
        check_number("later_std", self.later_std, low=0.0)
        check_count("local_epochs", self.local_epochs)
        if self.reach is not None:
            check_number("reach", self.reach, above=0.0)

    @property
    def travels(self) -> tuple[str, ...]:
        return self.descent.travels

    def visit(self, visit: Visit) -> Program:
        after = self.descent.program(visit, "retained")
        if visit.phase_hop == 1:
            return wiping(visit, (*self._sealing(visit), *after))
        if visit.at_unlearner and self.later is not None:
            return wiping(visit, self._lightweight(visit, self.later))
        return wiping(visit, after)

    def _sealing(self, visit: Visit) -> Program:
        before: Program = ()
        if self.local_epochs:
            work = replace(self.descent.work, epochs=self.local_epochs)
            before = replace(self.descent, work=work).program(visit, "retained")
        after: Program = () if self.reach is None else (Project((Ball("origin", self.reach),)),)
        return (Forget("optimizer"), *before, AddNoise(self.std), *after)

    def _lightweight(self, visit: Visit, correction: Correction) -> Program:
        step_size = self.descent.schedule.at(visit.phase_hop, correction.rule.learning_rate)
        steps = correction.steps(visit, step_size)
        size = correction.sensitivity(steps)
        noise = AddNoise(self.later_std, size)
        if steps is None or not size:
            return (noise,) if steps is None else (steps, noise)
        radius = size if steps.data == "forgotten" else size / 2.0
        return (steps, Project((Ball("arrival", radius),)), noise)


@dataclass(frozen=True)
class BallSeal:
    """``steps`` times: projection on ``ball`` and noise of std ``std``; then ``descent``."""

    descent: Descent
    ball: Ball
    std: float
    steps: int
    name: str = field(default="ball-seal", init=False)

    def __post_init__(self) -> None:
        check_number("std", self.std, above=0.0)
        check_count("steps", self.steps, low=1)

    @property
    def travels(self) -> tuple[str, ...]:
        return self.descent.travels

    def visit(self, visit: Visit) -> Program:
        after = self.descent.program(visit, "retained")
        if visit.phase_hop > 1:
            return wiping(visit, after)
        sealing: Program = (Project((self.ball,)), AddNoise(self.std)) * self.steps
        return wiping(visit, (Forget("optimizer"), *sealing, *after))
