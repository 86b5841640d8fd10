"""Two worlds that differ in the forgotten records alone, walked side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.runs.small import small
from unwalk.core.events import GaussianNoise
from unwalk.engines.inprocess import InProcess
from unwalk.methods.network_sgd import NetworkSGD
from unwalk.methods.retrain import Retrain
from unwalk.privacy.gaussian import gaussian_mu
from unwalk.runs.assemble import assemble
from unwalk.runs.run import Runner, run
from unwalk.tasks import Deletion, ShardedTask, build_task

FLAT: dict[str, Any] = {
    "preset": "certified",
    "task": "digits-flat",
    "peers": 4,
    "train.hops": 12,
    "unlearn.hops": 6,
    "seal.local_epochs": 5,
    "evaluate.every": 100,
    "compare": [],
    "seed": 2,  # training is at the peer three times, and small batches draw a record to forget
}
IID = {"train.work": "iid", "train.batch": 40, "train.minibatches": 3}
EXACT: dict[str, dict[str, Any]] = {
    "retrain": {"method": "retrain"},
    "restart": {"method": "restart", "restart.local_steps": 2},
    "restart, local Adam": {
        "method": "restart",
        "train.optimizer": "adam",
        "train.state": "local",
        "train.work": "epochs",
    },
    "first contact": {"method": "rewind", "train.optimizer": "adam", "train.work": "epochs"},
    "first use, slots": {"method": "rewind", "rewind.way": "first-use"},
    "first use, epochs": {"method": "rewind", "rewind.way": "first-use", "train.work": "epochs"},
    "first use, iid": {"method": "rewind", "rewind.way": "first-use", **IID},
    "first use, averaged": {
        "method": "rewind",
        "rewind.way": "first-use",
        "train.work": "averaged",
        "train.batch": 4,
    },
    "sums": {"method": "sums"},
}


def world(other: bool) -> ShardedTask:
    """Digits of which one peer has to forget nine; in the other world these say something else."""
    records = Deletion("records", size=9)
    task = build_task("digits-flat", peers=4, forget=records, dtype=torch.float64)
    if other:
        shard = task.shard(0)
        rows = torch.from_numpy(shard.records.forgotten)
        x, y = shard.x.clone(), shard.y.clone()
        x[rows] = x[rows].flip(1)
        y[rows] = (y[rows] + 1) % 10
        task._shards[0] = replace(shard, x=x, y=y)
    return task


@pytest.mark.parametrize("name", EXACT)
def test_nothing_of_the_forgotten_records_is_left_to_the_last_bit(name):
    config = small(FLAT, **EXACT[name], forget__size=9)
    done = [run(config, task=world(other)) for other in (False, True)]
    method = config.method
    assert all(one.result["claims"][-1]["grade"] == "exact" for one in done)
    mine, theirs = (one.walks[method].outcome.token for one in done)
    assert torch.equal(mine.parameters, theirs.parameters)
    assert all(torch.equal(mine.moments[k], theirs.moments[k]) for k in mine.moments)
    if method == "retrain":
        return
    trained = [Runner(assemble(config, world(other))) for other in (False, True)]
    before = [one.walk("train", one.assembled.training(), None) for one in trained]
    apart = [walked.outcome.token.parameters for walked in before]
    assert not torch.equal(*apart)


@pytest.mark.parametrize("local", [0, 5])
def test_the_sealed_model_lies_within_the_ledger_of_its_twin(local):
    """Training with and without the records, then the same seal with the same noise."""
    config = small({**FLAT, "seal.local_epochs": local}, forget__size=9)
    assembled = assemble(config)
    runner = Runner(assembled)
    trained = runner.walk("train", assembled.training(), None)
    plan = assembled.unlearning("seal", trained.outcome.transcript)
    train, seal = plan.phases
    short = replace(seal, hops=1)
    with_, without = (
        replace(plan, phases=(replace(train, method=kind), short))
        for kind in (NetworkSGD(train.method.descent), Retrain(train.method.descent))  # type: ignore[attr-defined]
    )
    ends = [next(InProcess().run([p])).token.parameters.double() for p in (with_, without)]
    whole = runner.walk("seal", plan, trained).outcome.transcript
    noise = next(e for _, e in whole.events() if isinstance(e, GaussianNoise))
    bound = noise.std * gaussian_mu(1.0, 1e-5)
    distance = float((ends[0] - ends[1]).norm())
    assert 0.02 * bound < distance <= bound
