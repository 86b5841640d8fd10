"""Presets: each runs, and the paper's mean what the paper says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.runs.small import BLOBS, DIGITS, small_run
from unwalk.core.program import AddNoise, Program, Project, Steps, Visit
from unwalk.runs.assemble import Assembled, assemble, resolve
from unwalk.settings.config import PRESETS
from unwalk.tasks import TASKS

# The paper's MNIST setting: N = 10, p = 0.1, T_u = 100, L = 0.5, epsilon = 1, delta = 1e-5.
SIGMA = 2.574


def assembled(preset: str, **changes: object) -> Assembled:
    given = {"preset": preset, "model.name": "logistic", **changes}
    return assemble(resolve({k.replace("__", "."): v for k, v in given.items()}))  # type: ignore[misc]


def visit(made: Assembled, peer: int, hop: int = 1) -> Program:
    """What RR-DU does at a peer."""
    return (
        made.unlearning("rrdu")
        .phases[-1]
        .method.visit(
            Visit(
                hop=hop,
                phase_hop=hop,
                peer=peer,
                at_unlearner=peer == made.config.forget.peer,
                records=made.task.records(peer),
                rng=np.random.default_rng(0),
            )
        )
    )


def the_steps(program: Program) -> Steps:
    (steps,) = [op for op in program if isinstance(op, Steps)]
    return steps


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_preset_resolves_for_every_task(preset, task):
    config = resolve({"preset": preset, "task": task})
    assert (config.preset, config.task) == (preset, task)


@pytest.mark.parametrize("preset", sorted(PRESETS.keys() - {"certified"}))
@pytest.mark.parametrize("base", [BLOBS, DIGITS], ids=["blobs", "digits"])
def test_every_preset_runs(preset, base):
    result = small_run(base, preset=preset, compare=[])
    assert 0.0 <= result.final()["clean"] <= 1.0
    assert result.result["config"]["preset"] == preset


@pytest.mark.parametrize("method", ["ddp", "dpsgd"])
def test_private_baselines_keep_the_slots_of_the_certified_preset(method):
    base = {"preset": "certified", "task": "digits-flat", "peers": 4, "train.slots": 3}
    result = small_run(base, train__hops=2, unlearn__hops=3, method=method, compare=[])
    plan = result.walks[method].outcome.plan
    trained, private = (phase.method.descent.work for phase in plan.phases)
    assert private == trained
    assert (private.kind, private.slots) == ("slots", 3)


def test_paper_takes_averaged_adam_steps_elsewhere():
    steps = the_steps(visit(assembled("paper"), peer=3))
    assert (steps.rule.optimizer, steps.rule.learning_rate) == ("adam", 0.005)
    assert (steps.rule.betas, steps.rule.state) == ((0.9, 0.999), "carried")
    assert steps.batches.shape == (1, 4, 64)
    assert (steps.data, steps.direction, steps.noise, steps.step_size) == ("all", -1, 0.0, 0.005)


def test_paper_takes_one_noisy_step_at_u_and_projects_on_the_ball_round_the_start():
    made = assembled("paper")
    steps, projection = visit(made, peer=0)
    assert isinstance(steps, Steps)
    assert steps.batches.shape == (1, 1, 60)
    assert steps.rule.optimizer == "sgd"
    assert (steps.data, steps.direction, steps.step_size) == ("forgotten", 1, 0.005)
    assert steps.scale == pytest.approx(60 / made.task.records(0).size)
    assert steps.clip == 0.5
    assert steps.noise == pytest.approx(SIGMA, abs=5e-4)
    assert isinstance(projection, Project)
    assert [(b.centre, b.radius) for b in projection.balls] == [("start", 10.82)]


def test_paper_matched_takes_a_local_epoch_with_momentum_elsewhere():
    made = assembled("paper-matched")
    steps = the_steps(visit(made, peer=3))
    assert (steps.rule.optimizer, steps.rule.momentum, steps.rule.state) == (
        "momentum",
        0.9,
        "carried",
    )
    assert (steps.step_size, steps.direction, steps.noise) == (0.005, -1, 0.0)
    assert steps.batches.shape == (made.task.records(3).size // 64, 1, 64)


def test_paper_matched_ascends_once_over_the_forget_set_then_noise_once_then_projection():
    made = assembled("paper-matched", unlearn__hops=100, forget__size=130)
    steps, noise, projection = visit(made, peer=0)
    assert isinstance(steps, Steps)
    assert steps.batches.shape == (2, 1, 64)
    assert set(steps.batches.reshape(-1)) <= set(made.task.records(0).forgotten)
    assert (steps.data, steps.direction, steps.clip, steps.noise) == ("forgotten", 1, 0.5, 0.0)
    assert steps.scale == pytest.approx(130 / made.task.records(0).size)
    assert (steps.rule.optimizer, steps.rule.momentum) == ("momentum", 0.9)
    assert isinstance(noise, AddNoise)
    assert noise.std == pytest.approx(0.005 * SIGMA, abs=5e-6)
    assert noise.sensitivity is None
    assert isinstance(projection, Project)
    assert [(b.centre, b.radius) for b in projection.balls] == [("start", 10.82)]


def test_practical_adds_no_noise_and_does_not_project():
    program = visit(assembled("practical"), peer=0)
    assert [type(op) for op in program] == [Steps]
    assert the_steps(program).direction == 1


def sigma_of(made: Assembled) -> float:
    return made.calibrated("rrdu").scale


def test_sigma_is_the_papers_with_unit_constant():
    made = assembled("paper")
    assert made.p == pytest.approx(0.1)
    assert made.config.unlearn.hops == 100
    assert sigma_of(made) == pytest.approx(SIGMA, abs=5e-4)
    cifar = assembled("paper", unlearn__clip=0.2)
    assert sigma_of(cifar) == pytest.approx(1.030, abs=5e-4)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"unlearn.epsilon": 0.5}, 2.0),
        ({"unlearn.clip": 1.0}, 2.0),
        ({"unlearn.p": 0.4}, 2.0),
        ({"unlearn.hops": 400}, 2.0),
        ({"unlearn.delta": 1e-10}, math.sqrt(2.0)),
        ({"unlearn.calibration": "none"}, 0.0),
        ({"unlearn.p": 0.0}, 0.0),
    ],
)
def test_sigma_scales_as_the_corollary_says(changes, factor):
    assert sigma_of(assembled("paper", **changes)) == pytest.approx(factor * SIGMA, rel=5e-4)


def test_a_sigma_that_is_given_counts():
    assert sigma_of(assembled("paper", unlearn__sigma=0.25)) == 0.25
