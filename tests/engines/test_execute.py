"""Operations against independent references: torch.optim, closed forms, Dykstra."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import TinyTask, plan
from unwalk.core.errors import Diverged
from unwalk.core.plan import Local
from unwalk.core.program import AddNoise, Ball, Forget, StepRule, Steps
from unwalk.core.token import MOST_STEPS, Workspace, build_model
from unwalk.engines.execute import Bench, execute, project

TASK = TinyTask(size=12)
REFERENCES = {
    "sgd": lambda p, r: torch.optim.SGD(p, r.learning_rate, weight_decay=r.weight_decay),
    "momentum": lambda p, r: torch.optim.SGD(
        p, r.learning_rate, momentum=r.momentum, weight_decay=r.weight_decay
    ),
    "adam": lambda p, r: torch.optim.Adam(p, r.learning_rate, weight_decay=r.weight_decay),
}


def bench(peer=0, work=None):
    work = work or Workspace(build_model(TASK.model, 0))
    return Bench(work, TASK.shard(peer), Local(), plan().noise, None, 1, peer, torch.Generator())


@pytest.mark.parametrize("optimizer", sorted(REFERENCES))
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("minibatches", [1, 3])
def test_steps_equal_torch_optim(optimizer, decay, minibatches):
    rule = StepRule(optimizer, learning_rate=0.05, weight_decay=decay)
    rng = np.random.default_rng(0)
    batches = rng.integers(12, size=(7, minibatches, 4))
    place = bench()
    execute((Steps(batches, "all", rule, 0.05),), place)

    model, shard = build_model(TASK.model, 0), TASK.shard(0)
    reference = REFERENCES[optimizer](model.parameters(), rule)
    for step in batches:
        reference.zero_grad()
        for rows in step:
            loss = torch.nn.functional.cross_entropy(model(shard.x[rows]), shard.y[rows])
            (loss / minibatches).backward()
        reference.step()
    expected = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert torch.allclose(place.work.parameters, expected, rtol=0, atol=1e-12)


def test_ascent_is_descent_on_the_negative_loss():
    rule, batches = StepRule("sgd"), np.arange(4).reshape(1, 1, 4)
    down, up = bench(), bench()
    start = down.work.parameters.clone()
    execute((Steps(batches, "all", rule, 0.1),), down)
    execute((Steps(batches, "all", rule, 0.1, direction=1),), up)
    assert torch.allclose(down.work.parameters - start, start - up.work.parameters, atol=1e-12)


def test_weighted_rows_sum_up():
    rule = StepRule("sgd")
    rows = np.array([[[0, 1, 2, -1], [5, 6, -1, -1]]])
    weights = np.array([[[0.5, -0.25, 1.0, 9.0], [2.0, 0.1, 9.0, 9.0]]])
    place = bench()
    start = place.work.parameters.clone()
    execute((Steps(rows, "mixed", rule, 1.0, weights=weights),), place)
    total = torch.zeros_like(start)
    for row, weight in zip(rows.ravel(), weights.ravel(), strict=True):
        if row >= 0:
            one = bench()
            shard = one.shard
            torch.nn.functional.cross_entropy(
                one.work.model(shard.x[[row]]), shard.y[[row]]
            ).backward()
            total += weight * one.work.gradient
    assert torch.allclose(start - place.work.parameters, total, atol=1e-12)


def test_fresh_state_starts_anew_and_forget_wipes():
    batches = np.arange(8).reshape(2, 1, 4)
    place = bench()
    execute((Steps(batches, "all", StepRule("momentum", state="fresh"), 0.1),), place)
    assert place.work.moments == {}
    execute((Steps(batches, "all", StepRule("momentum"), 0.1),), place)
    assert place.work.moments["momentum"].any()
    execute((Steps(batches, "all", StepRule("adam", state="local"), 0.1),), place)
    assert set(place.local.moments) == {"mean", "square"}
    events, _ = execute((Forget("optimizer"), Forget("local")), place)
    assert not place.work.moments
    assert not place.local.moments
    assert [e.what for e in events] == ["optimizer", "local"]


def test_a_count_of_steps_stops_at_the_most_that_a_token_can_say():
    place = bench()
    for steps, counted in ((1, MOST_STEPS), (2, MOST_STEPS)):
        batches = np.arange(4 * steps).reshape(steps, 1, 4)
        place.work.optimizer_steps = MOST_STEPS - 1
        execute((Steps(batches, "all", StepRule("adam"), 0.1),), place)
        assert place.work.optimizer_steps == counted


def test_noise_has_the_stated_spread_and_is_never_reused():
    place = bench(work=Workspace(torch.nn.Linear(200, 50, dtype=torch.float64)))
    start = place.work.parameters.clone()
    execute((AddNoise(0.3),), place)
    first = place.work.parameters - start
    execute((AddNoise(0.3),), place)
    second = place.work.parameters - start - first
    assert float(first.std()) == pytest.approx(0.3, rel=0.05)
    assert not torch.allclose(first, second)


vectors = st.lists(st.floats(-5, 5), min_size=3, max_size=3)


def dykstra(theta, balls, rounds=4000):
    x = theta.copy()
    residues = [np.zeros_like(x) for _ in balls]
    for _ in range(rounds):
        for number, (centre, radius) in enumerate(balls):
            moved = x + residues[number]
            out = moved - centre
            x = centre + out * min(1.0, radius / max(np.linalg.norm(out), 1e-300))
            residues[number] = moved - x
    return x


@settings(max_examples=25)
@given(vectors, st.floats(0.5, 3.0), st.floats(0.5, 3.0), st.floats(0.1, 0.95))
def test_projection_on_two_balls_equals_dykstra(theta, first, second, overlap):
    work = Workspace(torch.nn.Linear(3, 1, bias=False, dtype=torch.float64))
    centre = np.array([1.0, -2.0, 2.0]) / 3.0 * overlap * (first + second)
    work.anchors["start"] = torch.from_numpy(centre)
    work.parameters.copy_(torch.tensor(theta, dtype=torch.float64))
    project(work, (Ball("origin", first), Ball("start", second)))
    expected = dykstra(np.array(theta), [(np.zeros(3), first), (centre, second)])
    assert work.parameters.numpy() == pytest.approx(expected, abs=2e-3)


@given(vectors, st.floats(0.1, 4.0))
def test_projection_on_a_ball_is_idempotent_and_shortens_nothing_inside(theta, radius):
    work = Workspace(torch.nn.Linear(3, 1, bias=False, dtype=torch.float64))
    start = torch.tensor(theta, dtype=torch.float64)
    work.parameters.copy_(start)
    project(work, (Ball("origin", radius),))
    once = work.parameters.clone()
    assert float(once.norm()) <= radius * (1 + 1e-9)
    if float(start.norm()) <= radius:
        assert torch.allclose(once, start, rtol=1e-9)
    project(work, (Ball("origin", radius),))
    assert torch.allclose(work.parameters, once, rtol=1e-9)


def test_balls_that_do_not_meet_are_refused():
    work = Workspace(torch.nn.Linear(3, 1, bias=False, dtype=torch.float64))
    work.anchors["start"] = torch.full((3,), 10.0, dtype=torch.float64)
    with pytest.raises(Diverged, match="do not meet"):
        project(work, (Ball("origin", 1.0), Ball("start", 1.0)))
