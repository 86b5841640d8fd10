"""Auditing in one run: what was not forgotten is guessed, what never was is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.runs.small import small
from unwalk.audits.one_run import _played, one_run
from unwalk.core.errors import InvalidInput
from unwalk.runs.assemble import assemble
from unwalk.runs.run import Runner

SETTINGS: dict[str, Any] = {
    "task": "digits",
    "model.name": "mlp",
    "peers": 2,
    "forget.kind": "records",
    "forget.size": 120,
    "train.hops": 12,
    "train.epochs": 20,
    "unlearn.hops": 1,
    "compare": [],
    "evaluate.every": 1000,
}


@pytest.mark.soak
def test_a_model_that_did_not_forget_betrays_its_canaries():
    kept = one_run(small(SETTINGS, method="finetune"))
    assert kept.canaries == 120
    assert kept.correct > 0.8 * kept.guesses
    assert kept.epsilon > 1.0
    assert 0.49 * kept.epsilon < kept.claim < kept.epsilon / 2.0
    assert kept.gaussian > kept.epsilon


def test_a_model_that_never_met_them_does_not():
    assert one_run(small(SETTINGS, method="restart", train__epochs=1)).epsilon == 0.0


def test_losses_are_of_the_model_that_was_trained_with_what_was_not_trained_in_it(monkeypatch):
    ended, whole = [], Runner.walk

    def walked(*words):
        ended.append(whole(*words))
        return ended[-1]

    monkeypatch.setattr(Runner, "walk", walked)
    blobs: dict[str, Any] = {
        "task": "blobs",
        "data.features": 6,
        "data.classes": 3,
        "train.epochs": 1,
    }
    own = {**blobs, "model.name": "tests.tasks.own_frozen:head", "forget.size": 9}
    base = assemble(small({**SETTINGS, **own, "method": "finetune"}))
    losses, _ = _played(base, "choose")
    shard = base.task.shard(base.config.forget.peer)
    rows = torch.from_numpy(shard.records.forgotten)
    with torch.no_grad():
        output = ended[-1].model(shard.x[rows])
    wanted = torch.nn.functional.cross_entropy(output.double(), shard.y[rows], reduction="none")
    assert losses == pytest.approx(wanted.numpy(), rel=1e-9)


def test_one_canary_is_too_few():
    with pytest.raises(InvalidInput, match="better hundreds"):
        one_run(small({**SETTINGS, "forget.size": 1}))
