"""DDP against Algorithm 2: where it walks, what it adds, where it projects."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.tiny import TinyTask, linear, plan
from unwalk import walks
from unwalk.core.errors import InvalidInput
from unwalk.core.events import GradientSteps, Projection
from unwalk.core.noise import SimulatedNoise
from unwalk.core.plan import Phase
from unwalk.core.program import AddNoise, Ball, Project, Records, StepRule, Steps, Visit
from unwalk.core.token import build_model
from unwalk.engines.inprocess import InProcess
from unwalk.methods import defaults
from unwalk.methods.ddp import DDP, DDPSettings, ddp_noise, feasible_ball
from unwalk.methods.network_sgd import Descent, LocalWork
from unwalk.privacy.nominal import nominal_ddp_sigma

ETA, CLIP, SIGMA, RADIUS = 0.1, 0.7, 1.5, 0.9
TASK = TinyTask(peers=4, forgotten={0: 3})


def ddp(kind="epochs", data="retained", rule=None, **descent):
    given: dict[str, Any] = {"clip": CLIP, "noise": SIGMA, "feasible": Ball("origin", RADIUS)}
    given |= descent
    rule = rule or StepRule("sgd", learning_rate=ETA)
    return DDP(Descent(rule, LocalWork(kind, batch=4), **given), data)


def visit(peer, phase_hop=2, seed=0):
    rng = np.random.default_rng(seed)
    return Visit(9, phase_hop, peer, peer == 0, TASK.records(peer), rng)


def walk(method, hops=5, task=TASK, seed=0, route=None):
    phase = Phase("unlearn", method, route or walks.UniformPeer(), hops)
    (outcome,) = InProcess().run([plan(phase, task=task, seed=seed)])
    return outcome


def drawn(hop, step, count, seed=0):
    like = torch.empty(count, dtype=torch.float64)
    return SimulatedNoise(seed).draw(like, hop=hop, step=step, digest=None)


def project(theta, radius):
    return theta * min(1.0, radius / float(theta.norm()))


def test_a_walk_is_algorithm_2_step_by_step():
    """Rebuilt from the transcript's peers, the public batches and the known noise."""
    method, hops = ddp("epochs"), 6
    outcome = walk(method, hops)
    seeds = plan(task=TASK).seeds
    model = build_model(TASK.model, seeds.integer("model"))
    theta = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    theta = project(theta, RADIUS)
    for hop in outcome.transcript.hops:
        shard, step = TASK.shard(hop.receiver), 0
        rng = seeds.stream("unlearn", "batches", hop.phase_hop)
        rows = TASK.records(hop.receiver).retained
        for batch in method.descent.work.batches(rows, rng)[0][:, 0]:
            torch.nn.utils.vector_to_parameters(theta, model.parameters())
            loss = torch.nn.functional.cross_entropy(model(shard.x[batch]), shard.y[batch])
            pieces = torch.autograd.grad(loss, list(model.parameters()))
            gradient = project(torch.cat([p.reshape(-1) for p in pieces]), CLIP)
            noise = SIGMA * drawn(hop.hop, step, theta.numel())
            theta = project(theta - ETA * (gradient + noise), RADIUS)
            step += 1
        assert step == len(rows) // 4
    assert torch.allclose(outcome.token.parameters, theta, rtol=0, atol=1e-11)


def test_noise_is_gaussian_of_the_stated_spread_and_fresh_at_every_step():
    task = TinyTask(size=4, features=300, classes=8, factory=lambda: linear(300, 8))
    quiet, noisy = ddp(noise=0.0, feasible=None, clip=1e-9), ddp(feasible=None, clip=1e-9)
    route = walks.Fixed((1, 1, 2))
    steps = []
    for hops in (1, 2, 3):
        moved = [walk(m, hops, task, route=route).token.parameters for m in (quiet, noisy)]
        steps.append((moved[1] - moved[0]).numpy() / ETA)
    noises = np.diff(np.stack([np.zeros_like(steps[0]), *steps]), axis=0)
    for noise in noises:
        assert stats.kstest(noise / SIGMA, "norm").pvalue > 0.01
    assert np.abs(np.corrcoef(noises) - np.eye(3)).max() < 0.07


def test_every_step_ends_in_the_ball_and_large_noise_on_its_edge():
    outcome = walk(ddp(noise=50.0), 4)
    assert float(outcome.token.parameters.norm()) == pytest.approx(RADIUS, rel=1e-9)
    wide = ddp(noise=0.0, feasible=Ball("origin", 1e6))
    free = ddp(noise=0.0, feasible=None)
    assert torch.equal(walk(wide).token.parameters, walk(free).token.parameters)


@given(st.integers(0, 99), st.sampled_from(["epochs", "averaged", "full"]))
def test_a_visit_is_steps_each_followed_by_the_projection(seed, kind):
    program = ddp(kind).visit(visit(1, seed=seed))
    ball = Project((Ball("origin", RADIUS),))
    assert all(isinstance(op, Steps) and len(op.batches) == 1 for op in program[::2])
    assert all(op == ball for op in program[1::2])
    assert len(program) == (4 if kind == "epochs" else 2)
    whole = ddp(kind, feasible=None).descent.program(visit(1, seed=seed), "retained")[0]
    assert isinstance(whole, Steps)
    parts = [op.batches for op in program if isinstance(op, Steps)]
    assert np.array_equal(np.concatenate(parts), whole.batches)


def test_the_first_visit_starts_in_the_feasible_set():
    program = ddp().visit(visit(1, phase_hop=1))
    assert program[0] == Project((Ball("origin", RADIUS),))
    assert isinstance(ddp().visit(visit(1))[0], Steps)
    assert isinstance(ddp(feasible=None).visit(visit(1, phase_hop=1))[0], Steps)


def test_the_next_peer_is_uniform_over_all_the_holder_included():
    task = TinyTask(peers=5, size=1, forgotten={})
    outcome = walk(ddp("full"), 3200, task)
    hops = outcome.transcript.hops
    counts = np.bincount([h.receiver for h in hops], minlength=5)
    assert stats.chisquare(counts).pvalue > 0.01
    stays = [h for h in hops[1:] if h.sender == h.receiver]
    assert len(stays) == pytest.approx(len(hops) / 5, rel=0.1)
    assert all(h.path == () and h.nbytes == 0 for h in stays)


def test_events_say_what_was_added_and_by_whom():
    outcome = walk(ddp("averaged"), 2)
    for hop in outcome.transcript.hops:
        steps = [e for e in hop.events if isinstance(e, GradientSteps)]
        assert [(e.noise, e.clip, e.origin) for e in steps] == [(SIGMA, CLIP, "simulation")]
        assert [(e.optimizer, e.data, e.touched) for e in steps] == [("sgd", "retained", False)]
        assert Projection((("origin", RADIUS),)) in hop.events


@pytest.mark.parametrize(("data", "least"), [("retained", 3), ("all", 0)])
def test_readings_differ_in_whose_records_they_meet(data, least):
    rows = {
        row
        for seed in range(20)
        for op in ddp(data=data).visit(visit(0, seed=seed))
        if isinstance(op, Steps)
        for row in op.batches.ravel()
    }
    assert min(rows) == least


def test_the_papers_size_is_a_diameter_or_a_radius():
    assert feasible_ball(10.0, "diameter") == Ball("origin", 5.0)
    assert feasible_ball(10.0, "radius") == Ball("origin", 10.0)
    with pytest.raises(InvalidInput, match="radius_means is 'width'"):
        feasible_ball(10.0, "width")
    with pytest.raises(InvalidInput, match="radius is 0"):
        feasible_ball(0.0, "radius")


def test_moments_that_start_anew_at_each_visit_cannot_be_split():
    with pytest.raises(InvalidInput, match="state is 'fresh'"):
        ddp(rule=StepRule("adam", state="fresh"))
    assert ddp("averaged", rule=StepRule("adam", state="fresh")).travels == ()
    assert ddp(rule=StepRule("adam")).travels == ("mean", "square")


def test_projected_steps_of_the_tokens_optimizer_keep_its_moments():
    """Split into steps, Adam counts and remembers as it does unsplit."""
    rule = StepRule("adam", learning_rate=ETA)
    split = ddp(rule=rule, feasible=Ball("origin", 1e6), noise=0.0)
    whole = ddp(rule=rule, feasible=None, noise=0.0)
    ends = [walk(m, 3).token for m in (split, whole)]
    assert torch.allclose(ends[0].parameters, ends[1].parameters, rtol=0, atol=1e-12)
    assert ends[0].optimizer_steps == ends[1].optimizer_steps


def forgetting(count):
    return Records(count, np.arange(count))


def sigma(peers=10, forgotten=1000, **ddp_settings):
    config = defaults().having(DDPSettings(**ddp_settings))
    return ddp_noise(config, peers, 0.1, forgetting(forgotten))


def test_three_noise_scales_have_their_golden_values():
    """epsilon = 1, delta = 1e-5, L = 1, T = 100, N = 10, m = 1000."""
    assert sigma(sigma_rule="alg2").scale == pytest.approx(9.68961, abs=1e-5)
    assert sigma(sigma_rule="table2").scale == pytest.approx(16281.7353, abs=1e-3)
    assert sigma(sigma_rule="lemma").scale == pytest.approx(10.516425, abs=1e-5)
    assert sigma(sigma_rule="lemma", constant=4.0).scale == pytest.approx(21.032850, abs=1e-5)
    assert sigma(sigma=0.25).scale == 0.25


@given(st.floats(0.1, 5.0), st.floats(1e-8, 1e-2), st.floats(0.1, 4.0), st.integers(2, 500))
def test_noise_scales_are_the_papers_formulas(epsilon, delta, bound, peers):
    given = {"epsilon": epsilon, "delta": delta, "lipschitz": bound, "hops": 70, "peers": peers}
    first = nominal_ddp_sigma("algorithm", **given)
    assert first**2 == pytest.approx(8 * bound**2 * math.log(1.25 / delta) / epsilon**2)
    second = nominal_ddp_sigma("table", forgotten=7, **given)
    inside = 70 * math.log(1 / delta) * math.log(peers) / peers
    assert second == pytest.approx(7 * bound / epsilon * math.sqrt(inside))
    third = nominal_ddp_sigma("lemma", **given)
    slope = bound**2 * (70 / peers) * math.log(peers) / (third**2 * peers)
    orders = 1 + np.geomspace(1e-3, 1e6, 200001)
    best = (slope * orders + math.log(1 / delta) / (orders - 1)).min()
    assert best == pytest.approx(epsilon, rel=1e-6)


def test_the_reading_decides_how_many_hops_are_noised():
    config = defaults()
    config = replace(config, train=replace(config.train, hops=400))
    later = config.having(DDPSettings(sigma_rule="lemma"))
    first = config.having(DDPSettings(sigma_rule="lemma", reading="from-start"))
    scales = [ddp_noise(one, 10, 0.1, forgetting(5)).scale for one in (first, later)]
    assert scales[0] == pytest.approx(2 * scales[1])


def test_noise_on_the_weights_comes_once_a_visit_and_is_projected_once():
    method = replace(ddp("epochs"), noise_on="weights")
    program = method.visit(visit(1))
    assert [type(op) for op in program] == [Steps, AddNoise, Project]
    steps, noise, _ = program
    assert steps.batches.shape[0] == 2
    assert steps.noise == 0.0
    assert noise.std == pytest.approx(ETA * SIGMA)
    outcome = walk(method, 4)
    assert float(outcome.token.parameters.norm()) <= RADIUS * (1 + 1e-9)
