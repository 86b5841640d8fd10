"""Noisy fine-tuning against its definition: the clip, the noisy steps, the published noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.runs.small import small, small_run
from tests.tiny import TinyTask, descent, plan
from unwalk import walks
from unwalk.core.noise import SimulatedNoise
from unwalk.core.plan import Phase
from unwalk.core.program import Ball, StepRule
from unwalk.core.token import build_model
from unwalk.engines.inprocess import InProcess
from unwalk.methods.network_sgd import Descent, LocalWork
from unwalk.methods.noisy_finetune import NoisyFinetune
from unwalk.privacy import formulas
from unwalk.privacy.published import published_noisy_finetuning_sigma
from unwalk.runs.assemble import assemble

GAMMA, CLIP, DECAY, RADIUS, SIGMA, NOISY = 0.1, 0.05, 0.5, 0.4, 1.5, 4
FULL = LocalWork("full", batch=8)


def method(sigma: float = SIGMA, noisy: int = NOISY) -> NoisyFinetune:
    step = Descent(StepRule("sgd", learning_rate=GAMMA, weight_decay=DECAY), FULL, clip=CLIP)
    return NoisyFinetune(descent(kind="full"), step, Ball("origin", RADIUS), sigma, noisy)


def walk(made: NoisyFinetune, hops: int, task: TinyTask, seed: int = 0) -> Any:
    phase = Phase("unlearn", made, walks.Uniform(), hops)
    (outcome,) = InProcess().run([plan(phase, task=task, seed=seed)])
    return outcome


def shortened(vector: torch.Tensor, length: float) -> torch.Tensor:
    return vector * min(1.0, length / float(vector.norm()))


def test_a_walk_is_the_published_iteration_step_by_step():
    """Rebuilt from the transcript's peers and the known noise; two hops without noise follow."""
    task, noise = TinyTask(peers=4, forgotten={0: 3}), SimulatedNoise(0)
    outcome = walk(method(), NOISY + 2, task)
    model = build_model(task.model, plan(task=task).seeds.integer("model"))
    theta = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    theta = shortened(theta, RADIUS)
    clipped = 0
    for hop in outcome.transcript.hops:
        shard, rows = task.shard(hop.receiver), task.records(hop.receiver).retained
        torch.nn.utils.vector_to_parameters(theta, model.parameters())
        loss = torch.nn.functional.cross_entropy(model(shard.x[rows]), shard.y[rows])
        pieces = torch.autograd.grad(loss, list(model.parameters()))
        gradient = torch.cat([p.reshape(-1) for p in pieces])
        if hop.hop > NOISY:
            theta = theta - GAMMA * gradient
            continue
        clipped += float(gradient.norm()) > CLIP
        drawn = noise.draw(theta, hop=hop.hop, step=0, digest=None)
        theta = theta - GAMMA * (shortened(gradient, CLIP) + DECAY * theta) + SIGMA * drawn
    assert clipped == NOISY
    assert torch.allclose(outcome.token.parameters, theta, rtol=0, atol=1e-11)


@pytest.mark.parametrize("seed", range(3))
def test_worlds_without_noise_end_no_farther_apart_than_the_bound_says(seed):
    """What the noise has to hide: other records, another starting model, the same route."""
    ends = []
    for features in (1.0, -40.0):
        task = TinyTask(peers=3, forgotten={0: 2}, factory=_scaled(features))
        ends.append(walk(method(sigma=0.0), NOISY, task, seed).token.parameters)
    factor = 1.0 - GAMMA * DECAY
    reach = 2.0 * RADIUS * factor**NOISY
    reach += sum(2.0 * GAMMA * CLIP * factor**i for i in range(NOISY))
    assert float((ends[0] - ends[1]).norm()) <= reach


def _scaled(by: float) -> Any:
    def make() -> torch.nn.Module:
        model = torch.nn.Linear(3, 2, dtype=torch.float64)
        with torch.no_grad():
            model.weight.mul_(by)
        return model

    return make


def test_peers_without_records_add_the_noise_alone():
    task = TinyTask(peers=2, forgotten={0: 8})
    outcome = walk(method(), NOISY, task)
    kinds = {
        hop.receiver: [e.kind for e in hop.events if e.kind != "start"]
        for hop in outcome.transcript.hops[1:]
    }
    assert kinds[0] == ["gaussian-noise"]
    assert kinds[1] == ["gradient-steps", "gaussian-noise"]


# The published noise


@pytest.mark.parametrize(("decay", "steps"), [(0.0, 1), (0.0, 60), (2.0, 30)])
def test_the_noise_is_the_published_one(decay, steps):
    """The papers' sum, written out; its plain theorem (decay 0) asks for a little more."""
    sigma = published_noisy_finetuning_sigma(
        1.0, 1e-5, radius=3.0, clip=0.7, step_size=0.02, steps=steps, weight_decay=decay
    )
    factor = 1.0 - 0.02 * decay
    apart = 6.0 * factor**steps + 0.028 * sum(factor**i for i in range(steps))
    rho = apart**2 / (2.0 * sigma**2 * sum(factor ** (2 * i) for i in range(steps)))
    best = min(
        order * rho + math.log(1e5) / (order - 1.0)
        for order in (1.0 + k / 100 for k in range(1, 9999))
    )
    assert best == pytest.approx(1.0, abs=1e-4)
    if decay == 0.0:
        theorem = math.sqrt(9.0 * math.log(1e5) / steps) * (3.0 + 0.7 * 0.02 * steps)
        assert 0.9 * theorem < sigma < theorem


def test_a_run_has_that_noise_and_the_number_is_nominal():
    result = small_run(method="noisy-finetune", compare="none", forget__kind="records")
    claims = result.result["certificate"]["document"]["claims"]
    assert [claim["grade"] for claim in claims] == ["nominal", "refused"]
    assert "peers see the trained model" in claims[0]["reason"]
    assert "released model alone" in claims[0]["assumptions"][0]
    transcript = result.transcript
    (stated,) = transcript.header["nominal"]
    hops = [hop for hop in transcript.hops if hop.phase == "unlearn"]
    assert formulas.NOISY_FINETUNING.problem(transcript, hops, stated) == ""
    for changes, told in (
        ({"radius": 2.0}, "it gives sigma"),
        ({"steps": 9, "sigma": _sigma(stated, steps=9)}, "9 hops with noise"),
        ({"clip": 0.5, "sigma": _sigma(stated, clip=0.5)}, "has noise of std"),
    ):
        said = formulas.NOISY_FINETUNING.problem(transcript, hops, {**stated, **changes})
        assert told in said, said
    other = {**stated, "radius": 1.5, "clip": 0.5}
    other["sigma"] = _sigma(other)
    assert "clip of the model" in formulas.NOISY_FINETUNING.problem(transcript, hops, other)


def _sigma(stated: dict[str, Any], **changes: Any) -> float:
    names = ("radius", "clip", "step_size", "weight_decay", "steps")
    return published_noisy_finetuning_sigma(
        stated["epsilon"], stated["delta"], **{**{n: stated[n] for n in names}, **changes}
    )


def test_noise_that_is_given_announces_no_number():
    config = small(method="noisy-finetune", noisy_finetune__sigma=0.5)
    assembled = assemble(config)
    assert assembled.public("noisy-finetune")["nominal"] == []
    (*_, phase) = assembled.unlearning("noisy-finetune").phases
    assert isinstance(phase.method, NoisyFinetune)
    assert phase.method.sigma == 0.5
    assert phase.method.noisy == 3
    assert replace(phase.method, noisy=1).noisy == 1
