"""Every task with every method, on real files and at small size; FLNet against a plain script."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import unwalk
from unwalk.core.seeds import PublicSeeds
from unwalk.core.token import build_model
from unwalk.engines.inprocess import InProcess
from unwalk.runs.assemble import assemble, resolve

FILES = {
    "mnist": "mnist",
    "cifar10": "cifar10",
    "mnist-gabor": "mnist",
    "heart": "heart_disease",
    "a9a": "a9a",
}
MODELS = {"mnist": "mlp", "cifar10": "mlp"}  # a plain network: measuring takes every test picture
METHODS = ("rrdu", "finetune", "retrain", "ddp", "dpsgd")


@pytest.mark.parametrize(
    "task",
    [
        "digits",
        "blobs",
        "heart",
        "a9a",
        "mnist",
        pytest.param("cifar10", marks=pytest.mark.soak),
        pytest.param("mnist-gabor", marks=pytest.mark.soak),
    ],
)
def test_every_method_runs_on_every_task(task, official_data):
    if task in FILES:
        official_data(FILES[task])
    settings = {
        "train.hops": 2,
        "unlearn.hops": 3,
        "unlearn.p": 0.5,
        "train.work": "averaged",
        "train.batch": 16,
        "compare": list(METHODS[1:]),
        "evaluate.every": 10,
        **({"model.name": MODELS[task]} if task in MODELS else {}),
    }
    result = unwalk.run(task, method=METHODS[0], settings=settings)
    assert set(result.walks) == set(METHODS)
    for name in METHODS:
        final = result.final(name)
        assert final["clean"] is not None
        assert 0.0 <= final["clean"] <= 1.0
        assert (final["asr"] is None) == (task not in ("digits", "mnist", "cifar10"))


def plain_script(task, hops, rate, momentum):
    """Network-SGD on FLNet as a person would write it; only the random draws are ours."""
    seeds = PublicSeeds(0)
    model = build_model(task.model, seeds.integer("model")).train()
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=momentum)
    at = int(seeds.stream("train", "route", 1).integers(task.peers))
    for hop in range(1, hops + 1):
        if hop > 1:
            step = int(seeds.stream("train", "route", hop).integers(task.peers - 1))
            at = step + (step >= at)
        shard = task.shard(at)
        order = seeds.stream("train", "batches", hop).permutation(np.arange(shard.records.size))
        torch.manual_seed(seeds.integer("train", "torch", hop))
        for first in range(0, len(order) - len(order) % 64, 64):
            rows = torch.from_numpy(order[first : first + 64])
            optimizer.zero_grad()
            functional.cross_entropy(model(shard.x[rows]), shard.y[rows]).backward()
            optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("peers", [100, pytest.param(10, marks=pytest.mark.soak)])
def test_flnet_on_mnist_agrees_with_a_plain_script(peers, official_data):
    official_data("mnist")
    config = resolve(
        {
            "task": "mnist",
            "peers": peers,
            "train.hops": 5,
            "train.optimizer": "momentum",
            "train.learning_rate": 0.01,
            "forget.kind": "records",
            "forget.size": 10,
            "evaluate.every": 1000,
        }
    )
    made = assemble(config)
    (outcome,) = InProcess().run([made.training()])
    reference = plain_script(made.task, 5, 0.01, 0.9)
    distance = float((outcome.token.parameters - reference).norm() / reference.norm())
    assert distance < 1e-5
