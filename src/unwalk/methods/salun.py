r"""Saliency unlearning (SalUn; Fan, Liu, Zhang, Wong, Wei and Liu 2024, arXiv:2310.12508).

At its first visit the forgetting peer u finds which parameters have the largest gradient on the
forgotten records.  This mask travels with the token, and only these parameters move from then on:
u descends to random wrong labels of its forgotten records, and everybody to the labels of retained
ones.  Instead of drawing a wrong label, each step takes their mean: all classes but the record's
own alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import Distil, Hold, Mask, Op, Program, Steps, Visit
from unwalk.methods.network_sgd import (
    Descending,
    chunks,
    each_step,
    in_minibatches,
    unlearn_descent,
    unlearn_phase,
)
from unwalk.methods.record import Decided, MethodRecord
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class SalUnSettings:
    """Saliency unlearning."""

    key: ClassVar[str] = "salun"
    share: float = setting(0.5, "share of the parameters that may move", above=0.0, high=1.0)


@dataclass(frozen=True)
class SalUn(Descending):
    """Descent under a mask: to wrong labels of forgotten records at u, to retained ones' labels
    everywhere.  Every step is followed by putting the other parameters back."""

    share: float
    name: str = field(default="salun", init=False)

    @property
    def travels(self) -> tuple[str, ...]:
        return ("mask", *self.descent.travels)

    def visit(self, visit: Visit) -> Program:
        forgotten = visit.records.forgotten
        program: list[Op] = []
        if visit.at_unlearner and forgotten.size:
            if visit.earlier_in_phase == 0:
                program.append(Mask(chunks(forgotten, self.descent.work.batch), self.share))
            program += [_relabelled(op) for op in self._masked(visit, "forgotten")]
        return (*program, *self._masked(visit, "retained"))

    def _masked(self, visit: Visit, data: str) -> Program:
        steps = [op for op in self.descent.program(visit, data) if isinstance(op, Steps)]
        return tuple(op for one in steps for op in each_step(one, Hold()))


def _relabelled(op: Op) -> Op:
    return Distil(op, "others") if isinstance(op, Steps) else op


def _phase(config: Config, decided: Decided) -> Phase:
    u = config.forget.peer
    method = SalUn(in_minibatches(unlearn_descent(config)), config.of(SalUnSettings).share)
    route = walks.FirstTo(u, walks.Restart(u, decided.p))
    return unlearn_phase(config, method, route)


RECORD = MethodRecord(
    name="salun",
    label="SalUn",
    description="wrong labels for the forgotten records; only the parameters they matter to move",
    phase=_phase,
    settings=SalUnSettings,
)
