"""The Gaussian mechanism against mpmath and dp-accounting, and its properties."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwalk.core.errors import InvalidInput
from unwalk.privacy.gaussian import (
    compose_mu,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_log_delta,
    gaussian_log_deltas,
    gaussian_mu,
    gaussian_sigma,
)

EPSILONS = (1e-3, 0.03, 1.0, 12.0, 1e3)
DELTAS = (0.3, 1e-5, 1e-12, 1e-30)


def reference(epsilon: float, mu: float) -> mp.mpf:
    """log delta in 80 to 200 digits, straight from the definition."""
    with mp.workdps(200):
        eps, size = mp.mpf(epsilon), mp.mpf(mu)
        root = mp.sqrt(2)
        first = mp.erfc((eps / size - size / 2) / root) / 2
        second = mp.exp(eps) * mp.erfc((eps / size + size / 2) / root) / 2
        return mp.log(first - second)


def test_golden_values():
    assert gaussian_sigma(1.0, 1e-5) == pytest.approx(3.73063, abs=5e-6)
    assert gaussian_sigma(1.0, 1e-5, 0.5 * math.sqrt(10)) == pytest.approx(5.899, abs=5e-4)
    assert gaussian_delta(0.0, 1.0) == pytest.approx(math.erf(1 / math.sqrt(8)), rel=1e-14)


@pytest.mark.parametrize("mu", [1e-9, 1e-4, 0.03, 0.4, 0.6, 2.0, 9.0, 60.0])
@pytest.mark.parametrize("standardised", [-8.0, -1.5, -1e-3, 0.0, 0.7, 5.0, 13.0])
def test_log_delta_equals_mpmath(mu, standardised):
    epsilon = max(0.0, mu * (standardised + mu / 2))
    expected = reference(epsilon, mu)
    # What rounding of epsilon itself does to the answer:
    a = abs(epsilon / mu - mu / 2)
    allowed = 2e-13 + 4e-16 * (1 + a) * (epsilon / mu + mu)
    assert abs(float(gaussian_log_delta(epsilon, mu) - expected)) <= allowed
    assert abs(float(gaussian_log_deltas(epsilon, np.array([mu]))[0] - expected)) <= allowed


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_calibration_meets_the_target_and_is_tight(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    reached = reference(epsilon, mu) - mp.log(mp.mpf(delta))
    assert -1e-9 < reached <= 0
    back = gaussian_epsilon(delta, mu)
    assert back == pytest.approx(epsilon, rel=1e-9)
    assert reference(back, mu) <= mp.log(mp.mpf(delta))


def test_agrees_with_dp_accounting():
    from dp_accounting import gaussian_mechanism as other

    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-3)):
        theirs = other.get_sigma_gaussian(epsilon, delta)
        assert gaussian_sigma(epsilon, delta) == pytest.approx(theirs, rel=1e-6)


def test_monte_carlo():
    rng = np.random.default_rng(7)
    mu, epsilon, draws = 0.8, 0.5, 400_000
    loss = mu * (mu / 2 + rng.standard_normal(draws))
    estimate = np.maximum(0.0, -np.expm1(epsilon - loss)).mean()
    assert gaussian_delta(epsilon, mu) == pytest.approx(estimate, abs=5 / math.sqrt(draws))


@given(
    epsilon=st.floats(0.0, 50.0),
    mu=st.floats(1e-6, 30.0),
    factor=st.floats(1.0, 3.0),
)
def test_monotone_in_both_arguments(epsilon, mu, factor):
    base = gaussian_log_delta(epsilon, mu)
    assert gaussian_log_delta(epsilon, mu * factor) >= base - 1e-12 * (1 + abs(base))
    assert gaussian_log_delta(epsilon * factor, mu) <= base + 1e-12 * (1 + abs(base))
    assert base <= 0.0


@given(epsilon=st.floats(1e-3, 1e3), log_delta=st.floats(-69.0, -0.1))
def test_round_trip(epsilon, log_delta):
    delta = math.exp(log_delta)
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_epsilon(delta, mu) == pytest.approx(epsilon, rel=1e-8, abs=1e-9)


def test_extremes_do_not_warn_or_overflow():
    assert gaussian_log_delta(1.0, 0.0) == -math.inf
    assert gaussian_log_delta(1.0, 1e-200) == -math.inf
    assert gaussian_log_delta(1.0, math.inf) == 0.0
    assert gaussian_epsilon(1e-5, 1e-12) == 0.0
    assert gaussian_epsilon(1e-5, 1e8) == pytest.approx(5e15, rel=1e-6)
    assert gaussian_epsilon(0.5, math.inf) == math.inf
    assert gaussian_mu(0.0, 1e-5) == pytest.approx(1e-5 * math.sqrt(2 * math.pi), rel=1e-9)


def test_composition():
    assert compose_mu([0.3] * 4) == pytest.approx(0.6)
    assert compose_mu([]) == 0.0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gaussian_sigma(1.0, 0.0), "delta is 0.0"),
        (lambda: gaussian_sigma(-1.0, 1e-5), "epsilon is -1.0"),
        (lambda: gaussian_sigma(1.0, 1e-5, 0.0), "sensitivity is 0.0"),
        (lambda: gaussian_epsilon(1.5, 1.0), "delta is 1.5"),
        (lambda: compose_mu([math.nan]), "mu is nan"),
    ],
)
def test_bad_input_is_named(call, said):
    with pytest.raises(InvalidInput, match=said):
        call()
