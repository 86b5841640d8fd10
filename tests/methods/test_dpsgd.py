"""DP-SGD against its definition: clip each record, sum, add noise, divide."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.tiny import TinyTask, linear, plan
from unwalk import walks
from unwalk.core.errors import InvalidInput
from unwalk.core.events import GradientSteps
from unwalk.core.noise import SimulatedNoise
from unwalk.core.plan import Phase
from unwalk.core.program import Records, StepRule, Steps, Visit
from unwalk.core.token import build_model
from unwalk.engines.inprocess import InProcess
from unwalk.methods import defaults
from unwalk.methods.dpsgd import DPSGD, DPSGDSettings, dpsgd_noise, sampling
from unwalk.methods.network_sgd import Descent, LocalWork
from unwalk.privacy.subsampled import sampled_epsilon, sampled_multiplier

ETA, CLIP, Z = 0.1, 0.4, 1.3
TASK = TinyTask(peers=4, forgotten={0: 3})


def dpsgd(kind="epochs", data="retained", multiplier=Z, clip=CLIP, **work):
    descent = Descent(
        StepRule("sgd", learning_rate=ETA),
        LocalWork(kind, **{"batch": 4} | work),
        clip_per_example=clip,
    )
    return DPSGD(descent, multiplier, data)


def visit(peer, seed=0, task=TASK):
    rng = np.random.default_rng(seed)
    return Visit(9, 2, peer, peer == 0, task.records(peer), rng)


def walk(method, hops=4, task=TASK, route=None):
    phase = Phase("unlearn", method, route or walks.Uniform(), hops)
    (outcome,) = InProcess().run([plan(phase, task=task)])
    return outcome


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-11)])
def test_a_walk_is_the_loop_over_examples(dtype, tolerance):
    task = replace(TASK, dtype=dtype, factory=lambda: linear(dtype=dtype))
    method = dpsgd("epochs")
    outcome = walk(method, task=task)
    seeds = plan(task=task).seeds
    model = build_model(task.model, seeds.integer("model"))
    parameters = list(model.parameters())
    for hop in outcome.transcript.hops:
        shard, rows = task.shard(hop.receiver), task.records(hop.receiver).retained
        rng = seeds.stream("unlearn", "batches", hop.phase_hop)
        batches = method.descent.work.batches(rows, rng)[0][:, 0]
        for step, batch in enumerate(batches):
            total = torch.zeros(8, dtype=dtype)
            for row in batch:
                loss = torch.nn.functional.cross_entropy(model(shard.x[[row]]), shard.y[[row]])
                pieces = torch.autograd.grad(loss, parameters)
                one = torch.cat([p.reshape(-1) for p in pieces])
                total += one * min(1.0, CLIP / float(one.norm()))
            normals = SimulatedNoise(0).draw(total, hop=hop.hop, step=step, digest=None)
            total = (total + Z * CLIP * normals) / len(batch)
            flat = torch.nn.utils.parameters_to_vector(parameters) - ETA * total
            torch.nn.utils.vector_to_parameters(flat, parameters)
    expected = torch.nn.utils.parameters_to_vector(parameters).detach()
    assert torch.allclose(outcome.token.parameters, expected, rtol=0, atol=tolerance)


def test_noise_is_gaussian_with_the_std_of_the_sum_over_the_batch():
    task = TinyTask(size=4, features=400, classes=8, factory=lambda: linear(400, 8))
    ends = [walk(dpsgd(multiplier=z), 1, task, walks.Fixed((1,))) for z in (0.0, Z)]
    noise = (ends[0].token.parameters - ends[1].token.parameters).numpy() / ETA
    assert stats.kstest(noise / (Z * CLIP / 4), "norm").pvalue > 0.01


@pytest.mark.parametrize(
    ("kind", "records", "steps"),
    [("epochs", 4, 2), ("averaged", 12, 1), ("full", 8, 1)],
)
def test_noise_is_divided_by_the_records_of_a_step(kind, records, steps):
    (op,) = dpsgd(kind, minibatches=3).visit(visit(1))
    assert isinstance(op, Steps)
    assert op.batches.shape[0] == steps
    assert op.noise == pytest.approx(Z * CLIP / records)
    assert op.clip_per_example == CLIP
    assert op.clip is None


def test_noise_is_divided_by_the_nominal_batch_of_slots():
    """However many records a slot holds, and if there are none."""
    method = dpsgd("slots", slots=3, capacity=40)
    nobody = TinyTask(peers=3, forgotten={0: 8})
    for one in (visit(1), visit(0, task=nobody)):
        (op,) = method.visit(one)
        assert op.noise == pytest.approx(Z * CLIP / 14)
        held = op.weights[op.batches >= 0]
        assert held == pytest.approx(np.full(held.shape, 1 / 14))
    assert len(walk(method, 6, nobody).transcript.hops) == 6


def test_events_let_an_accountant_find_the_multiplier():
    outcome = walk(dpsgd("averaged", minibatches=2), 3)
    for hop in outcome.transcript.hops:
        (event,) = [e for e in hop.events if isinstance(e, GradientSteps)]
        assert event.origin == "simulation"
        assert event.clip_per_example == CLIP
        assert event.noise * event.batch * event.minibatches / CLIP == pytest.approx(Z)


@pytest.mark.parametrize(("data", "least"), [("retained", 3), ("all", 0)])
def test_readings_differ_in_whose_records_they_meet(data, least):
    programs = [dpsgd(data=data).visit(visit(0, seed)) for seed in range(20)]
    rows = {row for (op,) in programs if isinstance(op, Steps) for row in op.batches.ravel()}
    assert min(rows) == least


def test_a_peer_without_records_is_passed_by():
    task = TinyTask(peers=3, forgotten={0: 8})
    assert dpsgd().visit(visit(0, task=task)) == ()


@given(
    st.sampled_from(["epochs", "averaged", "full"]),
    st.integers(1, 60),
    st.integers(1, 20),
    st.integers(1, 3),
)
def test_sampling_counts_what_a_visit_does(kind, records, batch, times):
    work = LocalWork(kind, batch=batch, epochs=times, minibatches=times)
    batches, _ = work.batches(np.arange(records), np.random.default_rng(0))
    rate, steps = sampling(work, records)
    assert steps == batches.shape[0]
    assert rate == pytest.approx(min(1.0, (batches[0] >= 0).sum() / records))


def test_sampling_in_slots_is_one_slot_of_a_pass():
    work = LocalWork("slots", slots=4, epochs=3, capacity=40)
    batches, _ = work.batches(np.arange(30), np.random.default_rng(0))
    assert sampling(work, 30) == (1 / 4, 12)
    assert batches.shape[0] == 12
    for one in range(3):
        rows = batches[4 * one : 4 * one + 4]
        assert sorted(rows[rows >= 0]) == list(range(30))


def test_sampling_of_nobodys_records_is_nothing():
    for kind in ("epochs", "averaged", "full"):
        assert sampling(LocalWork(kind), 0) == (0.0, 0)


def test_the_multiplier_is_calibrated_for_the_steps_of_the_records_peer():
    """T_u = 100 hops, 10 peers: 10 visits of 93 steps; q = 64/6000."""
    records = Records(6000, np.arange(1000))
    config = defaults().having(DPSGDSettings(reading="from-start"))
    found = dpsgd_noise(config, 10, 0.1, records)
    assert found.scale == sampled_multiplier(1.0, 1e-5, 64 / 6000, 930)
    assert sampled_epsilon(1e-5, found.scale, 64 / 6000, 930) == pytest.approx(1.0, abs=1e-6)
    later = dpsgd_noise(defaults(), 10, 0.1, records)
    assert later.scale == sampled_multiplier(1.0, 1e-5, 64 / 5000, 780)
    gone = dpsgd_noise(defaults(), 10, 0.1, Records(6000, np.arange(6000)))
    assert gone.scale == found.scale
    assert dpsgd_noise(config.having(DPSGDSettings(noise_multiplier=2.0)), 10, 0.1, records) == (
        replace(later, scale=2.0, accountant="none", formula="")
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dpsgd(multiplier=-1.0), "multiplier is -1.0"),
        (lambda: dpsgd(data="forgotten"), "data is 'forgotten'"),
        (lambda: dpsgd(clip=None), "clip_per_example is None"),
        (lambda: dpsgd(clip=0.0), "clip_per_example is 0.0"),
    ],
)
def test_bad_values_are_named(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()
