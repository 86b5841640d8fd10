r"""Selective synaptic dampening (Foster, Schoepf and Brintrup 2024, arXiv:2308.07707).

A round over all peers adds up, in the token, how much each parameter matters to everybody's
records: :math:`I`, the mean over peers of the mean squared gradient.  The last visit is to the
forgetting peer u, which computes the same for the forgotten records, :math:`F`, and dampens

.. math:: \theta_i \leftarrow \min(\beta I_i/F_i, 1)\,\theta_i \quad\text{where}\quad
          F_i > \alpha I_i.

F never leaves u.  No step is taken and nothing is proved.  Like the authors' code, which squares
the mean gradient of a minibatch, a square is by default that of a training batch; with batch 1
importance is the diagonal of the Fisher information that the paper writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import Dampen, Importance, Program, Visit
from unwalk.methods.network_sgd import chunks
from unwalk.methods.record import Decided, MethodRecord
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class SSDSettings:
    """Selective synaptic dampening."""

    key: ClassVar[str] = "ssd"
    alpha: float = setting(
        10.0, "dampen where the forgotten records matter this much more", above=0.0
    )
    beta: float = setting(1.0, "how much of a dampened parameter stays", above=0.0)
    batch: int | None = setting(
        None, "records per squared gradient; 1: the Fisher's diagonal; empty: train.batch", low=1
    )


@dataclass(frozen=True)
class SSD:
    """Importance over all records at each of ``peers`` visits; at u, the last, dampening."""

    peers: int
    alpha: float = 10.0
    beta: float = 1.0
    batch: int = 1
    name: str = field(default="ssd", init=False)
    travels: tuple[str, ...] = field(default=("importance",), init=False)

    def visit(self, visit: Visit) -> Program:
        records = visit.records
        program: Program = ()
        if records.all.size:
            program += (Importance(chunks(records.all, self.batch), 1.0 / self.peers),)
        if visit.at_unlearner and records.forgotten.size:
            program += (Dampen(chunks(records.forgotten, self.batch), self.alpha, self.beta),)
        return program


def _phase(config: Config, decided: Decided) -> Phase:
    own, u = config.of(SSDSettings), config.forget.peer
    others = [peer for peer in range(decided.peers) if peer != u]
    return Phase(
        name="unlearn",
        method=SSD(decided.peers, own.alpha, own.beta, own.batch or config.train.batch),
        route=walks.Fixed((*others, u)),
        hops=decided.peers,
        reset_optimizer=True,
        carries_forgotten=True,
    )


RECORD = MethodRecord(
    name="ssd",
    label="SSD",
    description="dampen the parameters that matter to the forgotten records more than to everybody",
    phase=_phase,
    settings=SSDSettings,
)
