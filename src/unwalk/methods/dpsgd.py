r"""DP-SGD by token walk (Abadi et al. 2016, arXiv:1607.00133v2; the paper's section 6, App. D).

The walk is Network-SGD's.  Every step at a peer is an optimizer step along

.. math:: \tilde g = \frac1B\Big(\sum_{i=1}^B \min\big(1, C/\|g_i\|\big)\, g_i
          + \mathcal N(0, z^2 C^2 I)\Big),

each record's gradient clipped to C before they are summed.  That is undefined under BatchNorm,
where records of a batch share statistics: models with GroupNorm are used instead.

Two readings, as of DDP: *continued* from the trained model on the retained records, or *from the
start* on all records with nothing to do for a deletion.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unwalk.core.errors import InvalidInput
from unwalk.core.program import Program, Steps, Visit
from unwalk.core.validation import check_choice, check_number
from unwalk.methods.local_work import Descent, LocalWork


@dataclass(frozen=True)
class DPSGD:
    """Per-example clipping and noise of std ``multiplier`` C on every step's sum.

    ``descent`` brings C as ``clip_per_example``; ``data`` is ``retained`` (continued) or ``all``
    (from the start).
    """

    descent: Descent
    multiplier: float
    data: str = "retained"
    name: str = field(default="dpsgd", init=False)

    def __post_init__(self) -> None:
        check_choice("data", self.data, ("retained", "all"))
        check_number("multiplier", self.multiplier, low=0.0)
        if self.descent.clip_per_example is None:
            raise InvalidInput("clip_per_example is None; allowed for dpsgd: a number above 0.")

    @property
    def travels(self) -> tuple[str, ...]:
        return self.descent.travels

    def visit(self, visit: Visit) -> Program:
        program = self.descent.program(visit, self.data)
        return tuple(self._noised(op) if isinstance(op, Steps) else op for op in program)

    def _noised(self, op: Steps) -> Steps:
        """The noise on the sum, divided by the records of one step (all steps have as many)."""
        records = int((op.batches[0] >= 0).sum())
        return replace(op, noise=self.multiplier * (op.clip_per_example or 0.0) / records)


def sampling(work: LocalWork, records: int) -> tuple[float, int]:
    """Share of a peer's records in a step (q = B/n), and steps in a visit.

    >>> sampling(LocalWork("epochs", batch=64), 6000)
    (0.010666666666666666, 93)
    >>> sampling(LocalWork("averaged", batch=64, minibatches=4), 6000)
    (0.042666666666666665, 1)
    """
    size = min(work.batch, records)
    if size == 0 or work.kind == "full":
        return float(records > 0), int(records > 0)
    if work.kind == "averaged":
        return min(1.0, work.minibatches * size / records), 1
    return size / records, work.epochs * (records // size)
