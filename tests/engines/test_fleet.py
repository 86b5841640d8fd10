"""The fleet against the in-process engine: same walks, same events, parameters to rounding."""

import dataclasses

import pytest
import torch
from torch import nn

from tests.tiny import TinyTask, descent, linear, plan
from unwalk import walks
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Phase
from unwalk.core.program import Ball, StepRule
from unwalk.engines.fleet import Fleet
from unwalk.engines.inprocess import InProcess
from unwalk.methods.local_work import Descent, LocalWork
from unwalk.methods.network_sgd import NetworkSGD
from unwalk.methods.rrdu import RRDU, Correction


def small_cnn():
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 4, 2, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 3),
    ).double()


def batch_norm():
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 3),
    ).double()


def task(factory, forgotten=3):
    return TinyTask(
        peers=4, size=11, features=16, classes=3, factory=factory, forgotten={0: forgotten}
    )


def phases(direction="forget", optimizer="momentum", kind="epochs", noise_on="weights", clip=0.5):
    rule = StepRule(optimizer, learning_rate=0.02, weight_decay=0.01)
    correction = Correction(
        direction,
        LocalWork(kind, batch=4),
        rule,
        sigma=0.2,
        noise_on=noise_on,
        clip=clip,
        trust=(Ball("start", 3.0),),
    )
    method = RRDU(Descent(rule, LocalWork(batch=4)), correction)
    train = Phase("train", NetworkSGD(Descent(rule, LocalWork(batch=4))), walks.Uniform(), 4)
    return train, Phase("unlearn", method, walks.Restart(0, 0.4), 6)


CASES = {
    "linear": (lambda: linear(16, 3), {}),
    "cnn": (small_cnn, {}),
    "adam": (small_cnn, {"optimizer": "adam"}),
    "plain": (small_cnn, {"optimizer": "sgd"}),
    "noise on every gradient": (small_cnn, {"noise_on": "gradient"}),
    "corrected, full": (small_cnn, {"direction": "corrected", "kind": "full"}),
    "corrected, minibatches": (small_cnn, {"direction": "corrected"}),
    "retain": (small_cnn, {"direction": "retain", "clip": None}),
}


@pytest.mark.parametrize("case", CASES)
def test_ten_hops_agree_with_the_reference(case):
    factory, options = CASES[case]
    made = [plan(*phases(**options), task=task(factory), seed=seed) for seed in range(5)]
    together = list(Fleet(size=3).run(made))
    for outcome, reference in zip(together, InProcess().run(made), strict=True):
        for mine, theirs in zip(outcome.transcript.hops, reference.transcript.hops, strict=True):
            assert dataclasses.replace(mine, digest=None) == dataclasses.replace(
                theirs, digest=None
            )
        assert torch.allclose(
            outcome.token.parameters, reference.token.parameters, rtol=1e-9, atol=1e-12
        )


def test_batch_normalisation_agrees_where_batches_have_one_size():
    made = [
        plan(
            Phase("train", NetworkSGD(descent("momentum")), walks.Uniform(), 10),
            task=task(batch_norm),
            seed=seed,
        )
        for seed in range(3)
    ]
    for outcome, reference in zip(Fleet().run(made), InProcess().run(made), strict=True):
        for name, tensor in reference.token.tensors().items():
            assert torch.allclose(outcome.token.tensors()[name], tensor, rtol=1e-9), name


def test_batch_normalisation_refuses_padded_batches():
    made = [plan(*phases(), task=task(batch_norm), seed=seed) for seed in range(2)]
    with pytest.raises(InvalidInput, match="batch normalisation mixes"):
        list(Fleet().run(made))


def test_per_example_clipping_agrees_with_the_reference():
    class Clipped:
        name, travels = "clipped", ()

        def __init__(self):
            self.inner = descent("sgd")

        def visit(self, visit):
            (steps,) = self.inner.program(visit, "all")
            return (dataclasses.replace(steps, clip_per_example=0.1, noise=0.01),)

    made = [
        plan(Phase("train", Clipped(), walks.Uniform(), 8), task=task(small_cnn), seed=seed)
        for seed in range(3)
    ]
    for outcome, reference in zip(Fleet().run(made), InProcess().run(made), strict=True):
        assert torch.allclose(
            outcome.token.parameters, reference.token.parameters, rtol=1e-9, atol=1e-12
        )


def test_walks_of_different_length_and_settings_move_together():
    made = [
        plan(
            Phase("train", NetworkSGD(descent("momentum", rate)), walks.Uniform(), hops),
            task=task(small_cnn),
            seed=seed,
        )
        for seed, (rate, hops) in enumerate([(0.1, 3), (0.01, 9), (0.05, 6)])
    ]
    for outcome, reference in zip(Fleet().run(made), InProcess().run(made), strict=True):
        assert len(outcome.transcript.hops) == outcome.plan.hops
        assert torch.allclose(
            outcome.token.parameters, reference.token.parameters, rtol=1e-9, atol=1e-12
        )


def test_other_architectures_in_one_fleet_are_refused():
    made = [plan(task=task(small_cnn)), plan(task=task(batch_norm))]
    with pytest.raises(InvalidInput, match="one architecture"):
        list(Fleet().run(made))


def test_convolutions_that_cannot_be_batched_are_refused():
    def grouped():
        return nn.Sequential(
            nn.Unflatten(1, (4, 2, 2)), nn.Conv2d(4, 4, 1, groups=2), nn.Flatten(),
            nn.Linear(16, 3),
        ).double()  # fmt: skip

    with pytest.raises(InvalidInput, match="grouped"):
        list(Fleet().run([plan(task=task(grouped))]))
