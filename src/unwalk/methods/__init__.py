"""Methods: one file per method, with everything about it in its ``RECORD``; no torch.

In come settings, public facts and what training recorded; out come the phases of a walk, whose
visits are programs without tensors, and the proof that reads the transcript afterwards.

:data:`METHODS` lists the records.  Listings and the sections of a TOML file follow its order, so a
new method goes to the end.  To add one: a file with a ``RECORD`` here, its place in the list below,
and its test.  Start reading at ``record.MethodRecord``, then ``restart.py``, the shortest method
with settings of its own.

Shared by several methods: ``network_sgd`` (batches, step sizes, training, and the visits that
settings describe), ``private`` (ddp, dpsgd), ``ledgered`` (seal, output_noise, release,
noisy_start).  ``contract`` checks what every method keeps to.
"""

from __future__ import annotations

from unwalk.methods import (
    ball_seal,
    ddp,
    dpsgd,
    finetune,
    langevin,
    neggrad,
    newton,
    noisy_finetune,
    noisy_start,
    output_noise,
    pga,
    release,
    residual,
    restart,
    retrain,
    rewind,
    rrdu,
    salun,
    scrub,
    seal,
    sisa,
    skip_u,
    ssd,
    sums,
    user_dp,
)
from unwalk.methods.record import MethodRecord
from unwalk.settings.config import Config

METHODS: dict[str, MethodRecord] = {
    method.RECORD.name: method.RECORD
    for method in (
        rrdu,
        finetune,
        ddp,
        dpsgd,
        retrain,
        seal,
        ball_seal,
        release,
        rewind,
        restart,
        sisa,
        sums,
        noisy_start,
        noisy_finetune,
        skip_u,
        output_noise,
        pga,
        neggrad,
        user_dp,
        langevin,
        ssd,
        salun,
        scrub,
        newton,
        residual,
    )
}


def named(text: str) -> list[str]:
    """Methods as users name several: separated by commas, or ``all`` for every one listed.

    >>> named("rrdu, retrain"), named("all") == list(METHODS)
    (['rrdu', 'retrain'], True)
    """
    names = [name.strip() for name in text.split(",")]
    return list(METHODS) if names == ["all"] else [name for name in names if name] or [""]


def defaults() -> Config:
    """The default of every setting, those of the methods included."""
    sections = [r.settings for r in METHODS.values() if r.settings is not None]
    return Config(own=tuple(section() for section in dict.fromkeys(sections)))
