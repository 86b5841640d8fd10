"""The ball seal against mpmath, the kernel that attains it, and dp-accounting."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from unwalk.core.errors import Refused
from unwalk.privacy.gaussian import gaussian_log_delta, gaussian_mu
from unwalk.privacy.pld import gaussian_pld, pld_epsilon, profile_pld
from unwalk.privacy.seal import (
    seal_epsilon,
    seal_log_delta,
    seal_profile,
    seal_ratio,
    seal_sigma,
    seal_steps,
    seal_then_gaussian_epsilon,
    seal_then_gaussian_log_delta,
    surviving_nats,
)

GOLDEN = {0.268: 1, 0.5: 2, 1.0: 3, 2.0: 6, 3.0: 14, 4.0: 40, 5.0: 137}


def reference(epsilon: float, ratio: float, steps: int) -> mp.mpf:
    with mp.workdps(50):
        eps, r, delta = mp.mpf(epsilon), mp.mpf(ratio), mp.mpf(1)
        for _ in range(steps):
            bent = mp.log(1 + (mp.exp(eps) - 1) / delta)
            a, b = bent / r - r / 2, bent / r + r / 2
            root = mp.sqrt(2)
            delta *= mp.erfc(a / root) / 2 - mp.exp(bent) * mp.erfc(b / root) / 2
        return mp.log(delta)


@pytest.mark.parametrize(("ratio", "steps"), GOLDEN.items())
def test_golden_steps(ratio, steps):
    assert seal_steps(1.0, 1e-5, ratio) == steps


def test_golden_bound():
    assert math.exp(seal_log_delta(1.0, 2.0, 3)) == pytest.approx(0.064857, abs=5e-7)


@pytest.mark.parametrize(
    ("epsilon", "ratio", "steps"),
    [(1.0, 2.0, 3), (0.0, 1.0, 5), (1e-3, 0.3, 2), (30.0, 5.0, 4), (1.0, 5.0, 137), (0.5, 9.0, 20)],
)
def test_recursion_equals_mpmath(epsilon, ratio, steps):
    expected = float(reference(epsilon, ratio, steps))
    assert seal_log_delta(epsilon, ratio, steps) == pytest.approx(expected, rel=1e-11)
    assert float(seal_profile([epsilon], ratio, steps)[0]) == pytest.approx(expected, rel=1e-10)


def test_a_threshold_kernel_attains_the_bound():
    """psi sends everything above a threshold to +rho and the rest to -rho (one dimension)."""
    epsilon, ratio, steps = 1.0, 2.0, 3
    rho = ratio / 2  # noise std 1
    above_p, above_q = 1.0, 0.0  # one world starts at +rho, the other at -rho
    for _ in range(steps):
        delta = above_p - math.exp(epsilon) * above_q
        bent = math.log1p(math.expm1(epsilon) / delta)
        threshold = bent / ratio  # where the likelihood ratio of N(rho) to N(-rho) is e^bent
        up, down = ndtr(rho - threshold), ndtr(-rho - threshold)
        above_p = above_p * up + (1 - above_p) * down
        above_q = above_q * up + (1 - above_q) * down
    attained = above_p - math.exp(epsilon) * above_q
    assert attained == pytest.approx(math.exp(seal_log_delta(epsilon, ratio, steps)), rel=1e-12)


def test_random_threshold_kernels_stay_below():
    rng = np.random.default_rng(5)
    epsilon, ratio, steps = 0.5, 1.5, 4
    bound = math.exp(seal_log_delta(epsilon, ratio, steps))
    for _ in range(300):
        above_p, above_q = 1.0, 0.0
        for threshold in rng.uniform(-2, 2, steps):
            up, down = ndtr(ratio / 2 - threshold), ndtr(-ratio / 2 - threshold)
            above_p = above_p * up + (1 - above_p) * down
            above_q = above_q * up + (1 - above_q) * down
        assert above_p - math.exp(epsilon) * above_q <= bound + 1e-12


def test_one_step_is_the_gaussian_mechanism():
    assert seal_ratio(1.0, 1e-5, 1) == gaussian_mu(1.0, 1e-5)
    assert seal_sigma(1.0, 1e-5, 0.5, 1) == pytest.approx(3.73063, abs=5e-6)


@given(
    epsilon=st.floats(0.0, 20.0),
    ratio=st.floats(0.05, 6.0),
    steps=st.integers(1, 30),
)
@settings(max_examples=60)
def test_monotone_in_every_argument(epsilon, ratio, steps):
    base = seal_log_delta(epsilon, ratio, steps)
    slack = 1e-12 * (1 + abs(base)) if math.isfinite(base) else 0.0
    assert seal_log_delta(epsilon + 0.1, ratio, steps) <= base + slack
    assert seal_log_delta(epsilon, ratio * 1.05, steps) >= base - slack
    assert seal_log_delta(epsilon, ratio, steps + 1) <= base + slack


@given(ratio=st.floats(0.1, 4.0), steps=st.integers(1, 20), log_delta=st.floats(-30.0, -2.0))
@settings(max_examples=40)
def test_round_trips(ratio, steps, log_delta):
    delta = math.exp(log_delta)
    epsilon = seal_epsilon(delta, ratio, steps)
    if epsilon > 1e-6:
        assert seal_log_delta(epsilon, ratio, steps) <= log_delta
        assert seal_ratio(epsilon, delta, steps) == pytest.approx(ratio, rel=1e-6)
        assert seal_steps(epsilon, delta, ratio) <= steps + 1


@pytest.mark.parametrize("ratio", [11.0, 30.0, 1e6])
def test_hopeless_ratios_are_refused_at_once(ratio):
    with pytest.raises(Refused, match="more than 1,000,000 steps"):
        seal_steps(1.0, 1e-5, ratio)


def test_extremes():
    assert seal_steps(1e3, 1e-30, 5.0) == 1
    assert seal_steps(1e-3, 1e-30, 1e-6) == 1
    assert seal_steps(0.0, 1e-30, 1.0) == 72
    assert seal_log_delta(1.0, 0.0, 1) == -math.inf
    assert surviving_nats(5.0) == 25 / 8


def test_profile_is_symmetric_for_one_step():
    """For a Gaussian pair delta(-eps) = 1 - e^-eps + e^-eps delta(eps), both by definition."""
    mu = 0.7
    for epsilon in (0.1, 1.0, 3.0):
        a, b = -epsilon / mu - mu / 2, -epsilon / mu + mu / 2
        direct = float(ndtr(-a) - math.exp(-epsilon) * ndtr(-b))
        assert math.exp(float(seal_profile([-epsilon], mu, 1)[0])) == pytest.approx(direct)


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 5.0])
def test_one_step_then_visits_is_gaussian_composition(mu, epsilon):
    exact = gaussian_log_delta(epsilon, math.hypot(0.3, mu))
    value = seal_then_gaussian_log_delta(epsilon, 0.3, 1, mu)
    assert exact - 1e-12 <= value <= exact + 2e-9


def test_composition_agrees_with_dp_accounting():
    ratio, steps, mu = 2.0, 6, 0.3
    ours = seal_then_gaussian_epsilon(1e-5, ratio, steps, mu)
    grid = 1e-3
    seal = profile_pld(lambda x: seal_profile(x, ratio, steps), 15.0, discretization=grid)
    theirs = pld_epsilon([seal, gaussian_pld(mu, discretization=grid)], 1e-5)
    assert theirs == pytest.approx(ours, rel=2e-3)
    assert ours <= theirs + 1e-6


def test_composition_monte_carlo():
    """A two-point start through the attaining kernel, then a Gaussian visit, by simulation."""
    rng = np.random.default_rng(11)
    epsilon, ratio, mu, draws = 0.4, 1.0, 0.6, 400_000
    loss_seal = ratio * (ratio / 2 + rng.standard_normal(draws))
    loss_visit = mu * (mu / 2 + rng.standard_normal(draws))
    estimate = np.maximum(0.0, -np.expm1(epsilon - loss_seal - loss_visit)).mean()
    value = math.exp(seal_then_gaussian_log_delta(epsilon, ratio, 1, mu))
    assert value == pytest.approx(estimate, abs=5 / math.sqrt(draws))


def test_composition_sandwich():
    base = seal_epsilon(1e-5, 2.0, 6)
    mixed = seal_then_gaussian_epsilon(1e-5, 2.0, 6, 0.3)
    assert base < mixed
    assert mixed == pytest.approx(seal_then_gaussian_epsilon(1e-5, 2.0, 6, 0.3 + 1e-12), abs=1e-6)
    assert seal_then_gaussian_log_delta(1.0, 2.0, 6, 0.0) == seal_log_delta(1.0, 2.0, 6)
