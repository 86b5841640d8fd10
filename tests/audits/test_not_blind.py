"""The auditor is not blind: each method that is broken on purpose is caught, and none that is not.

What is broken is what the events do not show, so that the certificate still claims everything.  All
public coins are fixed: the attacker knows everything but the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from tests.runs.small import BLOBS, small
from unwalk.audits.audit import audit
from unwalk.audits.game import Game
from unwalk.core.noise import SimulatedNoise
from unwalk.core.program import Records
from unwalk.core.token import State
from unwalk.engines import execute, per_example

Break = Callable[[pytest.MonkeyPatch], None]

SEALED: dict[str, Any] = {
    "preset": "certified",
    "task": "digits-flat",
    "peers": 4,
    "seed": 2,
    "train.hops": 1,  # at u, with this seed
    "train.epochs": 1,
    "unlearn.hops": 1,
    "unlearn.learning_rate": 1e-3,
    "seal.local_epochs": 0,
    "forget.size": 20,
    "compare": [],
}
VISITED = {
    **SEALED,
    "seed": 230987,
    "unlearn.hops": 3,  # u, another peer, u, with this seed
    "unlearn.p": 0.5,
    "seal.visits": 1,
    "unlearn.clip": 0.001,
}
FINETUNED = {
    **SEALED,
    "method": "noisy-finetune",
    "train.hops": 4,
    "unlearn.hops": 2,
    "noisy_finetune.radius": 1e-3,
    "noisy_finetune.clip": 1e-3,
    "noisy_finetune.step_size": 1e-3,
}
NOISED = {**SEALED, "method": "output-noise"}
BOUNDED = {
    **SEALED,
    "method": "user-dp",
    "train.hops": 2,
    "train.learning_rate": 0.5,
    "user_dp.bound": 1e-4,
}
CLIPPED: dict[str, Any] = {
    **BLOBS,
    "seed": 2,
    "method": "dpsgd",
    "dpsgd.reading": "from-start",
    "dpsgd.clip": 1e-4,
    "dpsgd.visits": 1,
    "train.work": "slots",
    "train.hops": 3,
    "model.name": "mlp",
    "forget.kind": "records",
    "forget.size": 10,
    "compare": [],
}
EXACT: dict[str, Any] = {
    **BLOBS,
    "seed": 2,  # with seed 1 nobody visits u in training
    "method": "restart",
    "unlearn.hops": 2,
    "forget.kind": "records",
    "forget.size": 10,
    "compare": [],
}


def normed() -> nn.Module:
    """A network with BatchNorm."""
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def a_tenth_of_the_noise(patch: pytest.MonkeyPatch) -> None:
    release = SimulatedNoise.release

    def less(self, values, *, std, grid, **more):
        return release(self, values, std=0.1 * std, grid=grid / 16.0, **more)

    patch.setattr(SimulatedNoise, "release", less)


def the_same_noise_every_time(patch: pytest.MonkeyPatch) -> None:
    key = SimulatedNoise._key
    patch.setattr(SimulatedNoise, "_key", lambda self, hop, step: key(SimulatedNoise(1), hop, step))


def the_same_noise_at_every_hop(patch: pytest.MonkeyPatch) -> None:
    key = SimulatedNoise._key
    patch.setattr(SimulatedNoise, "_key", lambda self, hop, step: key(self, 0, 0))


def noise_is_added_to_floats(patch: pytest.MonkeyPatch) -> None:
    def added(self, values, *, std, hop, step, **more):
        key = np.frombuffer(self._key(hop, step)[:8], np.uint64)
        return values + std * np.random.default_rng(key).standard_normal(values.shape), None

    patch.setattr(SimulatedNoise, "release", added)


def no_clipping(patch: pytest.MonkeyPatch) -> None:
    shape = execute._shape_gradient
    patch.setattr(
        execute, "_shape_gradient", lambda op, *more: shape(replace(op, clip=None), *more)
    )
    patch.setattr(execute, "project", lambda work, balls: None)


def no_clipping_of_records(patch: pytest.MonkeyPatch) -> None:
    whole = per_example.exact_sum
    patch.setattr(
        execute,
        "exact_sum",
        lambda work, batch: whole(work, replace(batch, bound=1e4 * batch.bound)),
    )


def no_model_clipping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(execute, "project", lambda work, balls: None)


def _keeping(patch: pytest.MonkeyPatch, kept: str) -> None:
    """A new beginning that leaves the moments, or the buffers, as training left them."""
    begin = State.begin_anew

    def begin_anew(self):
        before = {k: v.clone() for k, v in getattr(self, kept).items()}
        begin(self)
        if kept == "moments":
            self.moments = before
        for name, value in before.items():
            getattr(self, kept)[name].copy_(value)

    patch.setattr(State, "begin_anew", begin_anew)


def moments_are_kept(patch: pytest.MonkeyPatch) -> None:
    _keeping(patch, "moments")


def buffers_are_kept(patch: pytest.MonkeyPatch) -> None:
    _keeping(patch, "buffers")


def peers_keep_their_state(patch: pytest.MonkeyPatch) -> None:
    forget = execute._forget
    patch.setattr(
        execute, "_forget", lambda what, bench: None if what == "local" else forget(what, bench)
    )


def one_record_is_left_in(patch: pytest.MonkeyPatch) -> None:
    def retained(self):
        return np.setdiff1d(self.all, self.forgotten[1:])

    patch.setattr(Records, "retained", property(retained))


def nothing(patch: pytest.MonkeyPatch) -> None:
    """The method as it is."""


CASES: dict[str, tuple[dict[str, Any], int, Break]] = {
    "a tenth of the noise": (SEALED, 160, a_tenth_of_the_noise),
    "the same noise every time": (SEALED, 40, the_same_noise_every_time),
    "the same noise at every hop": (VISITED, 64, the_same_noise_at_every_hop),
    "noise added to floats": (
        {**SEALED, "method": "release", "train.hops": 12, "forget.size": 1},
        64,
        noise_is_added_to_floats,
    ),
    "clipping left out": (VISITED, 64, no_clipping),
    "model clipping left out": (FINETUNED, 64, no_model_clipping),
    "a tenth of the noise on the output": (NOISED, 160, a_tenth_of_the_noise),
    "the same noise on every output": (NOISED, 40, the_same_noise_every_time),
    "visits not held in their ball": (BOUNDED, 64, no_model_clipping),
    "records not clipped": (CLIPPED, 64, no_clipping_of_records),
    "a tenth of the noise on every step": (CLIPPED, 160, a_tenth_of_the_noise),
    "moments kept": (EXACT, 24, moments_are_kept),
    "buffers kept": (
        {
            **EXACT,
            "model.name": "tests.audits.test_not_blind:normed",
            "data.features": 6,
            "data.classes": 3,
        },
        24,
        buffers_are_kept,
    ),
    "state kept by peers": (
        {**EXACT, "train.state": "local", "unlearn.hops": 4},
        24,
        peers_keep_their_state,
    ),
    "one record left in": ({**EXACT, "unlearn.hops": 6}, 24, one_record_is_left_in),
}
SLOW = (
    "a tenth of the noise",
    "a tenth of the noise on the output",
    "noise added to floats",
    "clipping left out",
    "records not clipped",
    "a tenth of the noise on every step",
)
QUICKEST = "moments kept"


def caught(settings: dict[str, Any], pairs: int) -> bool:
    """Whether the claim falls; that of noisy fine-tuning is nominal, and no fault if it does."""
    observer = "coalition:others" if "seal.visits" in settings else "released"
    game = Game(small(settings), (observer,), coins="fixed", canary="gradient")
    document = audit(game, pairs)
    (row,) = document["rows"]
    nominal = settings is FINETUNED
    assert row["grade"] in (("nominal",) if nominal else ("certified", "exact")), row["reason"]
    assert document["refuted"] == (row["verdict"] == "refuted")
    return bool(row["verdict"] == ("exceeded" if nominal else "refuted"))


def _marked(names: Collection[str]) -> list[Any]:
    return [pytest.param(n, marks=pytest.mark.soak) if n in names else n for n in CASES]


@pytest.mark.parametrize("name", _marked(SLOW))
def test_a_broken_method_is_caught(name, monkeypatch):
    settings, pairs, broken = CASES[name]
    broken(monkeypatch)
    assert caught(settings, pairs)


@pytest.mark.parametrize("name", _marked({*CASES} - {QUICKEST}))
def test_the_same_method_unbroken_is_not(name):
    settings, pairs, _ = CASES[name]
    assert not caught(settings, pairs)
