"""Captured steps on a CUDA device against the reference on the same device."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.tiny import TinyTask
from unwalk.core.noise import SimulatedNoise
from unwalk.core.plan import Local
from unwalk.core.program import StepRule, Steps
from unwalk.core.token import Workspace, build_model
from unwalk.engines.cuda import CapturedSteps
from unwalk.engines.execute import Bench, execute
from unwalk.tasks.resnet import Block

pytestmark = pytest.mark.device


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    """A walk must not wait for torch.compile when it starts."""
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("a walk compiles"))


def network(norm=None):
    return nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8) if norm is None else norm,
        nn.ReLU(),
        nn.Conv2d(8, 16, 3),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 3),
    )


TASK = TinyTask(size=48, features=36, classes=3, factory=network, dtype=torch.float32)


def run(op, *, captured, precision="float32", compiled=False, visits=2, task=TASK):
    device = torch.device("cuda")
    work = Workspace(build_model(task.model, 0), device)
    shard, local, steps = task.shard(0).to(device), Local(), None
    if captured:
        steps = CapturedSteps(work, None, precision=precision, compiled=compiled)
    for hop in range(visits):
        generator = torch.Generator(device=device)
        work.model.train()
        bench = Bench(
            work, shard, local, SimulatedNoise(0), None, hop, 0, generator, executor=steps
        )
        execute((op,), bench)
    return work


def batches(steps=5, minibatches=1, size=8, seed=0):
    return np.random.default_rng(seed).integers(48, size=(steps, minibatches, size))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("state", ["carried", "local", "fresh"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip": 0.05},
        {"direction": 1, "scale": 0.2, "clip": 0.01},
        {"minibatches": 3},
    ],
    ids=["plain", "clipped", "ascent", "averaged"],
)
def test_captured_steps_equal_the_reference(optimizer, state, options):
    options = dict(options)
    rows = batches(minibatches=options.pop("minibatches", 1))
    rule = StepRule(optimizer, learning_rate=0.01, weight_decay=0.1, state=state)
    op = Steps(rows, "all", rule, 0.01, **options)
    reference, mine = run(op, captured=False), run(op, captured=True)
    scale = float((reference.parameters - reference.anchors["initial"]).norm())
    assert scale > 0
    assert float((mine.parameters - reference.parameters).norm()) < 2e-3 * scale
    for name, buffer in reference.buffers.items():
        assert torch.allclose(mine.buffers[name], buffer, rtol=1e-3, atol=1e-5), name
    for slot, moment in reference.moments.items():
        assert float((mine.moments[slot] - moment).norm()) < 2e-3 * float(moment.norm()) + 1e-7
    assert mine.optimizer_steps == reference.optimizer_steps


def tiny(factory):
    return TinyTask(size=48, features=36, classes=3, factory=factory, dtype=torch.float32)


def private_network():
    return network(nn.GroupNorm(2, 8))


def private_residual():
    def norm(channels):
        return nn.GroupNorm(4, channels)

    return nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)),
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        norm(8),
        nn.ReLU(),
        Block(8, 8, 1, norm),
        Block(8, 24, 2, norm),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


class Folded(nn.Module):
    """Its first layer sees six rows a record, so that norms need another way."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 8), nn.Linear(48, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x.reshape(-1, 6))).reshape(-1, 48))


PRIVATE = tiny(private_network)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"clip_per_example": 0.3},
        {"clip_per_example": 0.3, "noise": 0.01},
        {"clip": 0.05, "noise": 0.01},
        {"direction": 1, "noise": 0.01},
    ],
    ids=["clipped", "private", "noised", "noised ascent"],
)
def test_captured_private_steps_equal_the_reference(optimizer, compiled, options):
    rule = StepRule(optimizer, learning_rate=0.01, weight_decay=0.1, state="carried")
    op = Steps(batches(), "all", rule, 0.01, **options)
    reference = run(op, captured=False, task=PRIVATE)
    mine = run(op, captured=True, task=PRIVATE, compiled=compiled)
    scale = float((reference.parameters - reference.anchors["initial"]).norm())
    assert float((mine.parameters - reference.parameters).norm()) < 5e-3 * scale


@pytest.mark.parametrize("factory", [private_residual, Folded])
@pytest.mark.parametrize("bound", [None, 0.3], ids=["plain", "clipped by example"])
@pytest.mark.parametrize("count", [5, 20])
def test_fused_group_norms_equal_the_reference(factory, bound, count):
    rule = StepRule("momentum", learning_rate=0.01, weight_decay=0.1)
    rows = batches(steps=count, minibatches=2)
    op = Steps(rows, "all", rule, 0.01, clip_per_example=bound)
    reference = run(op, captured=False, task=tiny(factory))
    mine = run(op, captured=True, task=tiny(factory), compiled=True)
    scale = float((reference.parameters - reference.anchors["initial"]).norm())
    assert scale > 0
    assert float((mine.parameters - reference.parameters).norm()) < 5e-3 * scale


@pytest.mark.parametrize("factory", [private_network, private_residual])
def test_captured_private_steps_in_bfloat16_stay_near(factory):
    rule = StepRule("momentum", learning_rate=0.01)
    op = Steps(batches(steps=20), "all", rule, 0.01, clip_per_example=0.3, noise=0.01)
    reference = run(op, captured=False, task=tiny(factory))
    mine = run(op, captured=True, task=tiny(factory), precision="bfloat16", compiled=True)
    scale = float((reference.parameters - reference.anchors["initial"]).norm())
    assert float((mine.parameters - reference.parameters).norm()) < 0.1 * scale


def test_the_switches_of_the_process_are_left_as_they_were():
    op = Steps(batches(), "all", StepRule("momentum", learning_rate=0.01), 0.01)
    before = torch.backends.cudnn.benchmark
    run(op, captured=True, precision="bfloat16")
    assert torch.backends.cudnn.benchmark == before
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


def test_bfloat16_stays_near_and_compiling_changes_rounding_only():
    op = Steps(batches(steps=20), "all", StepRule("momentum", learning_rate=0.01), 0.01)
    reference = run(op, captured=True)
    scale = float((reference.parameters - reference.anchors["initial"]).norm())
    half = run(op, captured=True, precision="bfloat16")
    fast = run(op, captured=True, compiled=True)
    assert float((half.parameters - reference.parameters).norm()) < 0.1 * scale
    assert float((fast.parameters - reference.parameters).norm()) < 5e-3 * scale


def test_steps_that_cannot_be_captured_are_left_to_the_reference():
    rows = batches()
    rule = StepRule("sgd")
    assert CapturedSteps.can_run(Steps(rows, "all", rule, 0.1))
    assert CapturedSteps.can_run(Steps(rows, "all", rule, 0.1, clip_per_example=1.0, noise=1.0))
    assert not CapturedSteps.can_run(Steps(rows, "all", rule, 0.1, weights=rows * 0.1))
