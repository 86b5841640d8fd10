"""The stability ledger against training that really happens, twice, coupled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unwalk.core.errors import InvalidInput, Refused
from unwalk.privacy.gaussian import gaussian_delta, gaussian_epsilon
from unwalk.privacy.ledger import (
    Ledger,
    LinearHead,
    SlotSteps,
    ledger_distance,
    residual_of,
    softmax_regression,
)
from unwalk.privacy.noisy_start import noisy_start_mu, noisy_start_sigma, visit_sensitivity


def softmax_gradient(theta, x, y, classes):
    logits = x @ theta
    logits -= logits.max(axis=1, keepdims=True)
    q = np.exp(logits)
    q /= q.sum(axis=1, keepdims=True)
    return x.T @ (q - np.eye(classes)[y])


def walk(x, y, keep, *, peers, slots, batch, eta, lam, epochs, seed, classes=3):
    """Token SGD on slots by a keyed draw; ``keep`` masks records; same slots in both worlds."""
    rng = np.random.default_rng(seed)
    theta = np.zeros((x.shape[1], classes))
    owner = np.arange(len(x)) % peers
    for _ in range(epochs * peers):
        peer = int(rng.integers(peers))
        slot = rng.integers(slots, size=len(x))
        for j in range(slots):
            rows = np.flatnonzero((owner == peer) & (slot == j) & keep)
            gradient = softmax_gradient(theta, x[rows], y[rows], classes) / batch
            theta = theta - eta * (gradient + lam * theta)
        yield peer, theta


@pytest.mark.parametrize("seed", range(4))
def test_real_training_never_leaves_the_ledger(seed):
    rng = np.random.default_rng(100 + seed)
    peers, slots, batch, eta, lam, m = 3, 4, 10.0, 0.8, 0.05, 4
    x = rng.standard_normal((120, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.integers(3, size=120)
    keep = np.ones(120, bool)
    keep[np.flatnonzero(np.arange(120) % peers == 0)[:m]] = False
    settings_: dict[str, Any] = {
        "peers": peers,
        "slots": slots,
        "batch": batch,
        "eta": eta,
        "lam": lam,
        "epochs": 6,
        "seed": seed,
    }
    head, largest = LinearHead(5, 3), 0.0
    ledger = head.begin()
    with_f = walk(x, y, np.ones(120, bool), **settings_)
    without = walk(x, y, keep, **settings_)
    for (peer, a), (_, b) in zip(with_f, without, strict=True):
        work = SlotSteps(1, slots, eta, batch, 40, lam, forgotten=m if peer == 0 else 0)
        ledger = ledger.steps(work, head)
        distance = float(np.linalg.norm(a - b))
        assert distance <= ledger.distance
        assert max(float(np.linalg.norm(a)), float(np.linalg.norm(b))) <= ledger.norm
        largest = max(largest, distance / max(ledger.distance, 1e-12))
    assert largest > 0.05  # the bound is not vacuous


def test_loss_constants_are_sharp():
    rng = np.random.default_rng(1)
    loss = softmax_regression()
    worst_gradient = worst_hessian = 0.0
    for _ in range(200):
        q = rng.dirichlet(np.full(4, 0.05))
        worst_gradient = max(worst_gradient, float(np.linalg.norm(q - np.eye(4)[rng.integers(4)])))
        covariance = np.diag(q) - np.outer(q, q)
        worst_hessian = max(worst_hessian, float(np.linalg.eigvalsh(covariance)[-1]))
    assert loss.lipschitz * 0.9 < worst_gradient <= loss.lipschitz
    assert loss.smoothness * 0.9 < worst_hessian <= loss.smoothness + 1e-12
    assert softmax_regression(3.0).smoothness == 9 / 2


def residual(loss, z, y):
    """The slope of a record's loss in its outputs, written down once more."""
    if loss == "huber":
        return np.clip(z - y, -0.5, 0.5)
    return (1.0 / (1.0 + np.exp(-z)) - y) / z.shape[1]


@pytest.mark.parametrize(("loss", "outputs"), [("huber", 1), ("binary", 1), ("binary", 4)])
def test_constants_of_the_other_losses_are_sharp(loss, outputs):
    """No slope is longer, nor changes faster, than the constants say; some nearly do."""
    rng = np.random.default_rng(2)
    known = residual_of(loss, outputs, 0.5)
    z = rng.standard_normal((4000, outputs)) * rng.choice([0.01, 1.0, 30.0], (4000, 1))
    y = rng.standard_normal((4000, 1)) if loss == "huber" else rng.integers(0, 2, z.shape)
    slopes = residual(loss, z, y)
    longest = float(np.linalg.norm(slopes, axis=1).max())
    assert 0.9 * known.length < longest <= known.length
    step = rng.standard_normal(z.shape) * 1e-4
    apart = np.linalg.norm(residual(loss, z + step, y) - slopes, axis=1)
    steepest = float((apart / np.linalg.norm(step, axis=1)).max())
    assert 0.9 * known.slope < steepest <= float(known.slope) * (1 + 1e-6)


def test_hubers_constants_are_of_one_output():
    """With more, the slopes of all of them are longer together."""
    with pytest.raises(InvalidInput, match=r"outputs is 2; allowed: a whole number, 1 to 1"):
        residual_of("huber", 2)


def test_golden_constants_of_the_other_losses():
    huber, binary = residual_of("huber", 1, 0.5).on(2.0), residual_of("binary", 4).on(2.0)
    assert 1.0 <= huber.lipschitz < 1.0 + 1e-14  # 0.5 times 2, rounded up
    assert huber.smoothness == 4.0
    assert 1.0 <= binary.lipschitz < 1.0 + 1e-14  # 2/sqrt 4, rounded up
    assert binary.smoothness == 0.25
    with pytest.raises(InvalidInput, match="loss is 'hinge'"):
        LinearHead(3, 2, kind="hinge")


@pytest.mark.parametrize(("loss", "outputs"), [("huber", 1), ("binary", 3)])
def test_real_training_by_the_other_losses_never_leaves_the_ledger(loss, outputs):
    rng = np.random.default_rng(5)
    batch, eta, lam, m = 10.0, 0.9, 0.05, 3
    x = rng.standard_normal((40, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.standard_normal((40, 1)) if loss == "huber" else rng.integers(0, 2, (40, outputs))
    head = LinearHead(5, outputs, kind=loss, bound=0.5)
    ledger, largest = head.begin(), 0.0
    a = b = np.zeros((5, outputs))
    for step in range(60):
        slot, forgets = rng.permutation(40)[:20], step % 3 == 0
        rows = [r for r in slot if r >= m or forgets]
        kept = [r for r in slot if r >= m]
        a = a - eta * (x[rows].T @ residual(loss, x[rows] @ a, y[rows]) / batch + lam * a)
        b = b - eta * (x[kept].T @ residual(loss, x[kept] @ b, y[kept]) / batch + lam * b)
        ledger = ledger.steps(
            SlotSteps(1, 1, eta, batch, 20, lam, forgotten=m if forgets else 0), head
        )
        distance = float(np.linalg.norm(a - b))
        assert distance <= ledger.distance
        assert max(float(np.linalg.norm(a)), float(np.linalg.norm(b))) <= ledger.norm
        largest = max(largest, distance / max(ledger.distance, 1e-12))
    assert largest > 0.02


@given(outputs=st.integers(1, 100), bound=st.floats(0.01, 10.0), norm=st.floats(0.1, 10.0))
@settings(max_examples=40)
def test_other_losses_grow_with_their_bound_and_shrink_with_their_labels(outputs, bound, norm):
    huber = LinearHead(9, 1, norm, kind="huber", bound=bound)
    wider = LinearHead(9, 1, norm, kind="huber", bound=2.0 * bound)
    work = SlotSteps(1, 4, 0.01, 16, 16, 0.01, forgotten=2)
    assert huber.begin().steps(work, huber).distance < wider.begin().steps(work, wider).distance
    some = residual_of("binary", outputs).on(norm)
    more = residual_of("binary", outputs + 1).on(norm)
    assert more.lipschitz < some.lipschitz
    assert more.smoothness < some.smoothness


def test_hand_computed_distance():
    u = SlotSteps(2, 3, 0.5, 20, 40, weight_decay=0.2, forgotten=2)
    factor = 0.9**3
    push = 0.5 * math.sqrt(2) * 2 / 20
    found = ledger_distance([u], LinearHead(8, 3))
    assert found == pytest.approx(push * factor + push, rel=1e-12)
    assert found > push * factor + push


@given(
    m=st.integers(0, 20),
    eta=st.floats(0.01, 1.0),
    lam=st.floats(0.0, 0.5),
    visits=st.integers(1, 6),
)
@settings(max_examples=50)
def test_ledger_properties(m, eta, lam, visits):
    head = LinearHead(16, 4)

    def distance(**changes):
        given_: dict[str, Any] = {
            "epochs": 1,
            "slots": 5,
            "step_size": eta,
            "nominal_batch": 32,
            "slot_cap": 64.0,
            "weight_decay": lam,
        }
        work = SlotSteps(**{**given_, "forgotten": m, **changes})
        return ledger_distance([work] * visits, head)

    base = distance()
    assert base <= visits * eta * math.sqrt(2) * m / 32 + 1e-9
    assert distance(forgotten=m + 1) >= base
    assert distance(weight_decay=0.0) >= base - 1e-12
    assert distance(epochs=2) >= base
    assert (base == 0.0) == (m == 0)


def test_expansion_is_refused():
    work = SlotSteps(1, 1, 3.0, 10, 40)
    with pytest.raises(Refused, match="exceeds 2/beta_j = 1"):
        work.factor(softmax_regression())
    assert SlotSteps(1, 1, 1.0, 10, 40).factor(softmax_regression()) == 1.0
    with pytest.raises(Refused, match="exceeds 2/beta_j"):
        SlotSteps(1, 1, math.nextafter(1.0, 2.0), 10, 40).factor(softmax_regression())
    with pytest.raises(InvalidInput, match="nominal_batch is 0"):
        SlotSteps(1, 1, 0.1, 0, 4)


def test_seal_noise_round_trip():
    ledger = Ledger(0.7, 1.0).projected(0.5, 0.0, 100)
    assert 0.7 < ledger.distance < 0.7 + 1e-12
    assert ledger.norm == 0.5
    noise = ledger.noise(1.0, 1e-6)
    assert gaussian_epsilon(1e-6, ledger.mu(noise)) == pytest.approx(1.0, rel=1e-9)
    assert gaussian_delta(1.0, ledger.mu(noise)) <= 1e-6


def test_noise_from_the_start():
    one = visit_sensitivity(0.1, math.sqrt(2), 3, 32)
    assert one == pytest.approx(0.1 * math.sqrt(2) * 3 / 32)
    mu = noisy_start_mu([0.05, 0.1], one)
    assert mu == pytest.approx(math.hypot(one / 0.05, one / 0.1))
    std = noisy_start_sigma(2.0, 1e-5, 7, one)
    assert gaussian_epsilon(1e-5, noisy_start_mu([std] * 7, one)) <= 2.0
    assert gaussian_epsilon(1e-5, noisy_start_mu([std * 0.999] * 7, one)) > 2.0
    assert visit_sensitivity(0.1, math.sqrt(2), 3, 32, epochs=2) == pytest.approx(2 * one)
