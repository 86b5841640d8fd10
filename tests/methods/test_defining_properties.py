"""Each method against the property that defines it (float64)."""

import numpy as np
import pytest
import torch

from tests.tiny import TinyTask, descent, plan
from unwalk import walks
from unwalk.core.plan import Local, Phase
from unwalk.core.program import AddNoise, Ball, Project, StepRule, Visit
from unwalk.core.token import Workspace, build_model
from unwalk.engines.execute import Bench, execute
from unwalk.engines.inprocess import InProcess
from unwalk.methods.finetune import Finetune
from unwalk.methods.network_sgd import Descent, LocalWork, NetworkSGD
from unwalk.methods.retrain import Retrain
from unwalk.methods.rrdu import RRDU, Correction

PEERS, U, M, ETA = 4, 0, 3, 0.1
TASK = TinyTask(peers=PEERS, forgotten={U: M})
FULL = LocalWork("full", batch=5)
PLAIN = StepRule("sgd", learning_rate=ETA)


def visit(peer, *, hop=1, seed=0):
    return Visit(
        hop=hop,
        phase_hop=hop,
        peer=peer,
        at_unlearner=peer == U,
        records=TASK.records(peer),
        rng=np.random.default_rng(seed),
    )


def workspace():
    return Workspace(build_model(TASK.model, 0))


def update(method, peer, seed=0):
    """The change of parameters that one visit makes, from the same starting model."""
    work = workspace()
    before = work.parameters.clone()
    program = method.visit(visit(peer, seed=seed))
    bench = Bench(
        work, TASK.shard(peer), Local(), plan(task=TASK).noise, None, 1, peer, torch.Generator()
    )
    execute(program, bench)
    return work.parameters - before


def gradient(peer, rows):
    """Mean gradient over rows, by plain autograd."""
    work, shard = workspace(), TASK.shard(peer)
    rows = torch.as_tensor(rows)
    torch.nn.functional.cross_entropy(work.model(shard.x[rows]), shard.y[rows]).backward()
    return work.gradient.clone()


def rrdu(direction, work=FULL, **correction):
    return RRDU(Descent(PLAIN, FULL), Correction(direction, work, PLAIN, **correction))


def retained_gradient():
    return (sum(gradient(v, range(8)) for v in range(1, PEERS)) + gradient(U, range(M, 8))) / PEERS


def test_exact_with_p_one_over_n_has_mean_update_minus_the_retrained_gradient():
    method, p = rrdu("retain"), 1 / PEERS
    weights = {U: p} | dict.fromkeys(range(1, PEERS), (1 - p) / (PEERS - 1))
    mean = sum(w * update(method, v) for v, w in weights.items()) / ETA
    assert torch.allclose(mean, -retained_gradient(), rtol=0, atol=1e-9)


def test_lightweight_ascends_on_the_forgotten_records_scaled_by_their_share():
    expected = ETA * (M / 8) * gradient(U, range(M))
    assert torch.allclose(update(rrdu("forget"), U), expected, rtol=0, atol=1e-12)


def test_corrected_is_parallel_to_exact():
    ratio = (8 - M) / 8
    expected = ratio * update(rrdu("retain"), U)
    assert torch.allclose(update(rrdu("corrected"), U), expected, rtol=0, atol=1e-12)


def test_corrected_by_minibatches_has_the_corrected_mean():
    method = rrdu("corrected", LocalWork("averaged", batch=2, minibatches=1))
    mean = sum(update(method, U, seed) for seed in range(3000)) / 3000
    expected = ((8 - M) / 8) * update(rrdu("retain"), U)
    assert torch.allclose(mean, expected, atol=4e-3)
    steps = method.visit(visit(U))[0]
    assert steps.data == "mixed"
    assert steps.touched


def test_alignment_bias_is_the_derived_one_not_the_papers():
    """Averaged over the route, LIGHTWEIGHT is off by p times (its step plus the missing one)."""
    p = 1 / PEERS
    light, exact = update(rrdu("forget"), U) / ETA, update(rrdu("retain"), U) / ETA
    bound = max(float(gradient(U, [row]).norm()) for row in range(8))
    assert float(p * (light - exact).norm()) <= p * bound * (1 + M / 8)


@pytest.mark.parametrize("method", [Finetune, Retrain])
def test_methods_on_retained_records_never_meet_a_forgotten_one(method):
    for seed in range(20):
        (steps,) = method(descent()).visit(visit(U, seed=seed))
        assert steps.batches.min() >= M
        assert not steps.touched


def test_network_sgd_trains_on_everything_and_says_so():
    (steps,) = NetworkSGD(descent(kind="full")).visit(visit(U))
    assert sorted(steps.batches[steps.batches >= 0]) == list(range(8))
    assert steps.touched


def test_rrdu_adds_noise_and_projects_at_u_only():
    method = rrdu("forget", sigma=2.0, clip=0.5, trust=(Ball("start", 1.0),))
    kinds = [type(op) for op in method.visit(visit(U))]
    assert kinds[1:] == [AddNoise, Project]
    assert [type(op) for op in method.visit(visit(1))] == kinds[:1]


@pytest.mark.parametrize(
    ("direction", "rule", "clip", "expected"),
    [
        ("retain", PLAIN, None, 0.0),
        ("forget", PLAIN, 0.5, ETA * 0.5),
        ("forget", PLAIN, None, None),
        ("forget", StepRule("momentum", learning_rate=ETA), 0.5, None),
        ("corrected", PLAIN, 0.5, 2 * ETA * 0.5),
    ],
)
def test_sensitivity_is_stated_only_where_it_is_bounded(direction, rule, clip, expected):
    correction = Correction(direction, FULL, rule, sigma=1.0, clip=clip)
    program = RRDU(Descent(PLAIN, FULL), correction).visit(visit(U))
    noise = program[1]
    assert isinstance(noise, AddNoise)
    assert noise.sensitivity == expected
    assert noise.std == pytest.approx(ETA)


def test_noise_on_the_gradient_is_the_algorithms_step():
    quiet = update(rrdu("forget"), U)
    noisy = torch.stack(
        [update(rrdu("forget", sigma=3.0, noise_on="gradient"), U) - quiet for _ in range(1)]
    )
    like = torch.empty(8, dtype=torch.float64)
    drawn = plan(task=TASK).noise.draw(like, hop=1, step=0, digest=None)
    assert torch.allclose(noisy[0], ETA * 3.0 * drawn, atol=1e-12)


def test_clipping_bounds_the_step():
    assert float(update(rrdu("forget", clip=1e-3), U).norm()) == pytest.approx(ETA * 1e-3)


def test_a_peer_without_retained_records_is_passed_by():
    task = TinyTask(peers=3, forgotten={U: 8})
    method = Finetune(descent())
    route = walks.Fixed((U, 1, U))
    (outcome,) = InProcess().run([plan(Phase("unlearn", method, route, 3), task=task)])
    assert [h.gradients for h in outcome.transcript.hops] == [0, 8, 0]


def test_first_observation_delay_in_a_run_is_geometric():
    """After a visit to u, peer v first sees the token after Geom((1-p)/(N-1)) hops."""
    peers, p, hops = 6, 0.25, 6000
    task = TinyTask(peers=peers, size=1, forgotten={U: 1})
    phase = Phase("unlearn", rrdu("retain"), walks.Restart(U, p), hops)
    (outcome,) = InProcess().run([plan(phase, task=task)])
    receivers = [h.receiver for h in outcome.transcript.hops]
    delays = walks.first_observation_delays(receivers, U, 3)
    q = (1 - p) / (peers - 1)
    assert len(delays) > 1000
    assert np.mean(delays) == pytest.approx(1 / q, rel=0.1)
    assert np.mean(np.asarray(delays) == 1) == pytest.approx(q, abs=0.03)
