"""The public coin against mpmath, enumeration, Monte Carlo and dp-accounting."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unwalk.core.errors import InvalidInput
from unwalk.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_sigma
from unwalk.privacy.pld import pld_epsilon, visits_pld
from unwalk.privacy.visits import (
    capped_visits_mu,
    visit_law,
    visits_epsilon,
    visits_log_delta,
    visits_rdp,
    visits_rdp_epsilon,
    visits_sigma,
)


def reference(epsilon: float, ratio: float, hops: int, p: float) -> mp.mpf:
    with mp.workdps(60):
        total = mp.mpf(0)
        for m in range(1, hops + 1):
            mu = mp.sqrt(m) * mp.mpf(ratio)
            a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
            root = mp.sqrt(2)
            delta = mp.erfc(a / root) / 2 - mp.exp(epsilon) * mp.erfc(b / root) / 2
            chance = mp.binomial(hops, m) * mp.mpf(p) ** m * (1 - mp.mpf(p)) ** (hops - m)
            total += chance * delta
        return mp.log(total)


def test_golden_values():
    assert visits_sigma(1.0, 1e-5, 0.5, 100, 0.1) == pytest.approx(6.547, abs=5e-4)
    assert visits_sigma(1.0, 1e-5, 1.0, 100, 0.1) == pytest.approx(13.094, abs=5e-4)
    assert visits_epsilon(1e-5, 0.5 / 2.5744, 100, 0.1) == pytest.approx(2.882, abs=5e-4)
    assert visits_epsilon(1e-5, 1.0 / 2.5744, 100, 0.1) == pytest.approx(6.587, abs=5e-4)
    assert visits_rdp_epsilon(1e-5, 0.5 / 2.5744, 100, 0.1) == pytest.approx(3.229, abs=5e-4)
    assert visits_rdp_epsilon(1e-5, 1.0 / 2.5744, 100, 0.1) == pytest.approx(7.339, abs=5e-4)


@pytest.mark.parametrize(
    ("epsilon", "ratio", "hops", "p"),
    [(1.0, 0.2, 100, 0.1), (0.01, 1e-3, 30, 0.5), (20.0, 2.0, 12, 0.9), (0.0, 0.3, 50, 0.02)],
)
def test_log_delta_equals_mpmath(epsilon, ratio, hops, p):
    expected = reference(epsilon, ratio, hops, p)
    assert visits_log_delta(epsilon, ratio, hops, p) == pytest.approx(float(expected), abs=1e-11)


@pytest.mark.parametrize("delta", [0.2, 1e-5, 1e-30])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 1e3])
def test_sigma_never_exceeds_the_target(epsilon, delta):
    sigma = visits_sigma(epsilon, delta, 0.7, 40, 0.25)
    reached = reference(epsilon, 0.7 / sigma, 40, 0.25)
    assert mp.log(mp.mpf(delta)) - 1e-9 < reached <= mp.log(mp.mpf(delta))
    assert visits_epsilon(delta, 0.7 / sigma, 40, 0.25) == pytest.approx(epsilon, rel=1e-8)


def test_enumeration_of_all_coins():
    hops, p, ratio, epsilon = 4, 0.3, 0.8, 0.7
    total = 0.0
    for coins in itertools.product((0, 1), repeat=hops):
        chance = math.prod(p if c else 1 - p for c in coins)
        total += chance * gaussian_delta(epsilon, ratio * math.sqrt(sum(coins)))
    assert math.exp(visits_log_delta(epsilon, ratio, hops, p)) == pytest.approx(total, rel=1e-12)


def test_monte_carlo():
    rng = np.random.default_rng(3)
    hops, p, ratio, epsilon, draws = 20, 0.2, 0.5, 0.6, 300_000
    mu = ratio * np.sqrt(rng.binomial(hops, p, draws))
    loss = mu * (mu / 2 + rng.standard_normal(draws))
    estimate = np.maximum(0.0, -np.expm1(epsilon - loss)).mean()
    value = math.exp(visits_log_delta(epsilon, ratio, hops, p))
    assert value == pytest.approx(estimate, abs=4 / math.sqrt(draws))


def test_dp_accounting_gives_the_same_slightly_above():
    exact = visits_epsilon(1e-5, 0.4, 30, 0.2)
    theirs = pld_epsilon([visits_pld(0.4, 30, 0.2, discretization=1e-3)], 1e-5)
    assert exact <= theirs + 1e-9
    assert theirs == pytest.approx(exact, rel=5e-3)


@given(
    ratio=st.floats(0.01, 3.0),
    hops=st.integers(1, 200),
    p=st.floats(0.01, 1.0),
    log_delta=st.floats(-40.0, -3.0),
)
@settings(max_examples=40)
def test_sandwich(ratio, hops, p, log_delta):
    """Between one sure visit with the mean's worth of noise nothing, and all hops; below RDP."""
    delta = math.exp(log_delta)
    exact = visits_epsilon(delta, ratio, hops, p)
    assert exact <= gaussian_epsilon(delta, ratio * math.sqrt(hops)) * (1 + 1e-9) + 1e-12
    assert exact <= visits_rdp_epsilon(delta, ratio, hops, p) * (1 + 1e-9) + 1e-12
    capped = visits_epsilon(delta, ratio, hops, p, cap=max(1, hops // 2))
    assert capped <= exact * (1 + 1e-9) + 1e-12
    ceiling = gaussian_epsilon(delta, capped_visits_mu(ratio, max(1, hops // 2)))
    assert capped <= ceiling * (1 + 1e-9) + 1e-12


@given(
    ratio=st.floats(0.01, 3.0),
    hops=st.integers(1, 100),
    p=st.floats(0.01, 0.9),
    epsilon=st.floats(0.0, 10.0),
)
@example(ratio=3.0, hops=65, p=0.8203125, epsilon=0.0)
@settings(max_examples=40)
def test_monotone_in_every_argument(ratio, hops, p, epsilon):
    base = visits_log_delta(epsilon, ratio, hops, p)
    assert visits_log_delta(epsilon, ratio * 1.1, hops, p) >= base
    assert visits_log_delta(epsilon, ratio, hops + 1, p) >= base
    assert visits_log_delta(epsilon, ratio, hops, p * 1.1) >= base
    assert visits_log_delta(epsilon + 0.1, ratio, hops, p) <= base
    assert visits_log_delta(epsilon, ratio, hops, p, seal_mu=0.3) >= base


def test_edges():
    assert visits_sigma(1.0, 1e-5, 1.0, 10, 1.0) == pytest.approx(
        gaussian_sigma(1.0, 1e-5, math.sqrt(10)), rel=1e-10
    )
    assert visits_epsilon(1e-5, 5.0, 10, 0.0) == 0.0
    assert visits_sigma(1.0, 0.2, 1.0, 10, 0.01) == 0.0  # a visit is rarer than delta
    assert visits_rdp(4.0, 0.5, 7, 1.0) == 7 * 4.0 * 0.125
    assert visits_rdp(50.0, 30.0, 7, 0.5) > visits_rdp(50.0, 29.0, 7, 0.5)


def test_seal_mu_joins_every_term():
    counts, logs, _ = visit_law(5, 0.4)
    expected = sum(
        math.exp(w) * gaussian_delta(1.0, math.hypot(0.6, 0.3 * math.sqrt(m)))
        for m, w in zip(counts, logs, strict=True)
    )
    value = visits_log_delta(1.0, 0.3, 5, 0.4, seal_mu=0.6)
    assert math.exp(value) == pytest.approx(expected, rel=1e-12)


def test_visit_law_is_binomial_and_windows_are_charged():
    counts, logs, left = visit_law(1_000_000, 0.3, depth=80.0)
    assert counts.size < 20_000
    assert left == -80.0
    assert math.fsum(np.exp(logs)) == pytest.approx(1.0, rel=1e-12)
    assert float(np.exp(logs) @ counts) == pytest.approx(300_000, rel=1e-9)
    law = visit_law(6, 0.5, cap=2)
    assert law[0].tolist() == [0.0, 1.0, 2.0]
    assert np.exp(law[1]).tolist() == pytest.approx([1 / 64, 6 / 64, 57 / 64])


def test_large_horizons_are_quick_and_consistent():
    sigma = visits_sigma(1.0, 1e-5, 1.0, 10**6, 1e-4)
    assert visits_epsilon(1e-5, 1.0 / sigma, 10**6, 1e-4) == pytest.approx(1.0, rel=1e-8)
    poisson = visits_sigma(1.0, 1e-5, 1.0, 10**5, 1e-3)
    assert poisson == pytest.approx(sigma, rel=1e-3)


def test_bad_input_is_named():
    with pytest.raises(InvalidInput, match=r"p is 1\.5"):
        visits_epsilon(1e-5, 1.0, 10, 1.5)
    with pytest.raises(InvalidInput, match="hops is 0"):
        visits_sigma(1.0, 1e-5, 1.0, 0, 0.5)
