r"""DP-SGD by token walk (Abadi et al. 2016, arXiv:1607.00133v2; the paper's section 6, App. D).

The walk is Network-SGD's.  Every step at a peer is an optimizer step along

.. math:: \tilde g = \frac1B\Big(\sum_{i=1}^B \min\big(1, C/\|g_i\|\big)\, g_i
          + \mathcal N(0, z^2 C^2 I)\Big),

each record's gradient clipped to C before they are summed.  That is undefined under BatchNorm,
where records of a batch share statistics: models with GroupNorm are used instead.

Two readings, as for DDP: *continued* from the trained model on the retained records, or *from the
start* on all records with nothing to do for a deletion.

From the start and with batches by keyed slots (``train.work=slots``) it is record-level DP
training, and **certified** for any model without buffers and any optimizer: every slot's sum is
exact and divided by the public B, noise is rounded, and each pass over the forgotten records costs
what :func:`unwalk.privacy.dp_training.training_mu` says.  Everything else is **nominal**.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from unwalk import walks
from unwalk.core.errors import InvalidInput
from unwalk.core.program import Drawing, Program, Records, Steps, Visit
from unwalk.core.validation import check_choice, check_number
from unwalk.methods import private
from unwalk.methods.ledgered import ROUNDING, usual_visits
from unwalk.methods.network_sgd import Descending, LocalWork
from unwalk.methods.record import FROM_THE_START, Calibrated, Decided, Guarantee, Nominal
from unwalk.privacy import formulas
from unwalk.privacy.dp_training import dp_training_claim, training_multiplier
from unwalk.privacy.subsampled import sampled_multiplier
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class DPSGDSettings:
    """DP-SGD.  Epsilon, delta and hops are those of the unlearning walk."""

    key: ClassVar[str] = "dpsgd"
    clip: float = setting(5.0, "bound C on the norm of every record's gradient", above=0.0)
    noise_multiplier: float | None = setting(
        None, "noise on the sum over C; empty: calibrated", low=0.0
    )
    reading: str = private.reading_setting()
    optimizer: str = setting(
        "same", "the token's optimizer (same) or plain SGD", choices=("plain", "same")
    )
    work: str | None = private.work_setting()
    visits: int | None = setting(
        None, "visits to a peer that noise from the start is made for; empty: usual", low=1
    )


@dataclass(frozen=True)
class DPSGD(Descending):
    """Per-example clipping and noise of std ``multiplier`` C on every step's sum.

    ``descent`` brings C as ``clip_per_example``; ``data`` is ``retained`` (continued) or ``all``
    (from the start).
    """

    multiplier: float
    data: str = "retained"
    name: str = field(default="dpsgd", init=False)

    def __post_init__(self) -> None:
        check_choice("data", self.data, ("retained", "all"))
        check_number("multiplier", self.multiplier, low=0.0)
        if self.descent.clip_per_example is None:
            raise InvalidInput("clip_per_example is None; allowed for dpsgd: a number above 0.")

    def visit(self, visit: Visit) -> Program:
        program = self.descent.program(visit, self.data)
        return tuple(self._noised(op) if isinstance(op, Steps) else op for op in program)

    def drawing(self, visit: Visit) -> Drawing | None:
        plain = self.descent.drawing(visit, self.data)
        if plain is None or plain.steps is None:
            return None
        return replace(plain, steps=self._noised(plain.steps))

    def _noised(self, op: Steps) -> Steps:
        """The noise on the sum, divided by what the sum is divided by: the records of a step, or B.

        All steps have as many records, except for those of slots.
        """
        work = self.descent.work
        slots = work.kind == "slots"
        records = work.nominal_batch if slots else int((op.batches[0] >= 0).sum())
        noise = self.multiplier * (op.clip_per_example or 0.0) / records
        return replace(op, noise=noise, rounded=work.placed)


def sampling(work: LocalWork, records: int) -> tuple[float, int]:
    """Share of a peer's records in a step (q = B/n), and steps in a visit.

    >>> sampling(LocalWork("epochs", batch=64), 6000)
    (0.010666666666666666, 93)
    >>> sampling(LocalWork("averaged", batch=64, minibatches=4), 6000)
    (0.042666666666666665, 1)
    >>> sampling(LocalWork("slots", slots=4, epochs=3, capacity=40), 30)
    (0.25, 12)
    """
    if work.kind == "slots":
        return 1.0 / work.slots, work.epochs * work.slots
    size = min(work.batch, records)
    if size == 0 or work.kind == "full":
        return float(records > 0), int(records > 0)
    if work.kind == "averaged":
        return min(1.0, work.minibatches * size / records), 1
    return size / records, work.epochs * (records // size)


def dpsgd_noise(config: Config, peers: int, p: float, records: Records) -> Calibrated:
    """DP-SGD's noise multiplier for one of ``records`` of a peer, or as given.

    Where nothing is proved it assumes that the peer is visited ceil(T/N) times, and that every
    batch holds each of its records with probability q = B/n.
    """
    dpsgd, target = config.of(DPSGDSettings), config.unlearn
    if dpsgd.noise_multiplier is not None:
        return Calibrated(dpsgd.noise_multiplier, reading=dpsgd.reading)
    work = private.local_work(config, dpsgd)
    if _proved(dpsgd, work):
        forgotten = config.forget.cap or records.forgotten.size
        passes = work.epochs * (dpsgd.visits or usual_visits(config.train.hops, peers))
        scale = training_multiplier(target.epsilon, target.delta, passes, max(int(forgotten), 1))
        return Calibrated(scale * ROUNDING, reading=dpsgd.reading)
    rows = records.rows(private.data_of(dpsgd.reading)).size or records.size
    rate, per_visit = sampling(work, int(rows))
    steps = per_visit * math.ceil(private.noisy_hops(config, dpsgd.reading) / peers)
    scale = sampled_multiplier(target.epsilon, target.delta, rate, steps)
    formula = (
        "the noise multiplier is that of the sampled Gaussian mechanism by RDP, for one record "
        f"(not {records.forgotten.size} at once), {steps} steps and Poisson sampling at rate "
        f"{rate:.4g}, which shuffled batches are not"
    )
    return Calibrated(scale, "rdp", formula, dpsgd.reading, {"rate": rate, "steps": steps})


def _proved(dpsgd: DPSGDSettings, work: LocalWork) -> bool:
    """Whether every step is made so that it can be proved what it shows."""
    return dpsgd.reading == "from-start" and work.kind == "slots"


def _method(config: Config, decided: Decided) -> DPSGD:
    dpsgd = config.of(DPSGDSettings)
    base = private.descent(config, dpsgd)
    work = replace(base.work, placed=_proved(dpsgd, base.work))
    descent = replace(base, clip_per_example=dpsgd.clip, work=work)
    return DPSGD(descent, decided.sigma, private.data_of(dpsgd.reading))


LISTING = (
    "dpsgd",
    "DP-SGD",
    "every record's gradient clipped, noise on every step; certified from the start, by slots",
)
NOMINAL = Nominal(dpsgd_noise, formulas.DPSGD, private.nominal_reason)
GUARANTEE = Guarantee(
    "certified",
    dp_training_claim,
    FROM_THE_START,
    "the same noisy training without the forgotten records",
)
RECORD = private.record(
    DPSGDSettings,
    _method,
    walks.Uniform(),
    LISTING,
    NOMINAL,
    per_example=True,
    guarantee=GUARANTEE,
)
