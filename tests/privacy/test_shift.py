"""The constrained minimum against a solver and exact Gaussians; iteration and release level."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from unwalk.core.errors import InvalidInput, Refused
from unwalk.privacy.gaussian import gaussian_sigma
from unwalk.privacy.iteration import check_nonexpansive, contraction_factor, pnsgd_rdp
from unwalk.privacy.release import (
    best_shifted_zcdp,
    contracting_sigma,
    contracting_zcdp,
    release_sigma,
    released_distance,
    shifted_sigma,
    shifted_zcdp,
    visit_caps,
)
from unwalk.privacy.renyi import zcdp_epsilon
from unwalk.privacy.shift import convex_minorant_slopes, hiding_cost


def by_solver(gaps, stds, contractions, start):
    """The same minimum by a general-purpose solver."""
    size = len(gaps)

    def left(a):
        z, out = start, []
        for t in range(size):
            z = contractions[t] * z + gaps[t] - a[t]
            out.append(z)
        return np.array(out)

    constraints = [
        {"type": "ineq", "fun": lambda a: left(a)[:-1]},
        {"type": "eq", "fun": lambda a: left(a)[-1]},
    ]
    solve: Any = minimize  # its stubs do not know two kinds of constraints in one list
    found = solve(
        lambda a: float(np.sum((a / stds) ** 2)),
        np.full(size, (start + sum(gaps)) / size),
        constraints=constraints,
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-14},
    )
    return float(found.fun)


@pytest.mark.parametrize("seed", range(12))
def test_hiding_cost_equals_a_solver(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 7))
    gaps = np.where(rng.random(size) < 0.4, 0.0, rng.uniform(0, 2, size))
    stds = rng.uniform(0.5, 2, size)
    contractions = rng.uniform(0.6, 1.0, size) if seed % 2 else np.ones(size)
    start = float(rng.uniform(0, 2)) if seed % 3 else 0.0
    ours = hiding_cost(
        gaps.tolist(), stds.tolist(), contractions=contractions.tolist(), start=start
    )
    assert ours == pytest.approx(by_solver(gaps, stds, contractions, start), rel=1e-5, abs=1e-9)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 5.0), st.floats(0.1, 3.0)),
        min_size=1,
        max_size=12,
    )
)
def test_hiding_cost_properties(steps):
    gaps, stds = [g for g, _ in steps], [s for _, s in steps]
    cost = hiding_cost(gaps, stds)
    relaxed = math.fsum(gaps) ** 2 / math.fsum(s * s for s in stds)  # a gap hidden before it opens
    assert cost >= relaxed * (1 - 1e-9)
    assert cost <= math.fsum((g / s) ** 2 for g, s in steps) * (1 + 1e-9)  # hiding at once
    assert hiding_cost([*gaps, 0.0], [*stds, 1.0]) <= cost * (1 + 1e-9)  # more noise helps
    assert hiding_cost([g * 2 for g in gaps], stds) == pytest.approx(4 * cost, rel=1e-9)
    factors = [0.9] * len(steps)
    assert hiding_cost(gaps, stds, contractions=factors) <= cost * (1 + 1e-9)


def test_minorant_slopes_increase():
    segments = convex_minorant_slopes([1, 1, 1, 1], [4.0, 0.0, 1.0, 5.0])
    slopes = [slope for _, slope in segments]
    assert slopes == sorted(slopes)
    assert sum(length * slope for length, slope in segments) == pytest.approx(10.0)


def test_gap_after_the_last_noise_cannot_be_hidden():
    assert hiding_cost([1.0, 1.0], [1.0, 0.0]) == math.inf
    assert hiding_cost([1.0, 0.0], [0.0, 2.0]) == 0.25
    with pytest.raises(InvalidInput, match="one of each per step"):
        hiding_cost([1.0], [1.0, 2.0])


def test_pnsgd_is_attained_by_linear_losses():
    """With a linear loss every step adds a constant: the last iterate is Gaussian, exactly."""
    alpha, sigma, size, later = 3.0, 1.3, 2.0, 5
    variance = (
        later * sigma**2
    )  # all noisy steps since the contribution (what came before is known)
    exact = alpha * size**2 / (2 * variance)
    assert pnsgd_rdp(alpha, sigma, later, sensitivity=size) == pytest.approx(exact, rel=1e-12)


def test_pnsgd_with_contraction_is_attained_by_quadratics():
    """theta <- c theta + noise: a Gaussian whose mean and variance are known."""
    alpha, sigma, size, later, c = 2.0, 1.0, 1.5, 4, 0.8
    shift = size * c ** (later - 1)
    variance = sigma**2 * sum(c ** (2 * i) for i in range(later))
    exact = alpha * shift**2 / (2 * variance)
    value = pnsgd_rdp(alpha, sigma, later, sensitivity=size, contraction=c)
    assert value == pytest.approx(exact, rel=1e-12)


@given(steps=st.integers(1, 50), sigma=st.floats(0.1, 10.0))
@settings(max_examples=30)
def test_pnsgd_falls_with_steps_and_noise(steps, sigma):
    base = pnsgd_rdp(2.0, sigma, steps, sensitivity=1.0)
    assert pnsgd_rdp(2.0, sigma, steps + 1, sensitivity=1.0) < base
    assert pnsgd_rdp(2.0, sigma * 1.1, steps, sensitivity=1.0) < base
    assert pnsgd_rdp(2.0, sigma, steps, sensitivity=1.0, contraction=0.9) <= base * (1 + 1e-12)


def test_contraction_of_a_quadratic():
    """A quadratic with Hessian eigenvalues in [lambda, beta] attains the factor."""
    rng = np.random.default_rng(0)
    eta, lam, beta = 0.3, 0.5, 4.0
    basis, _ = np.linalg.qr(rng.standard_normal((6, 6)))
    hessian = basis @ np.diag(np.linspace(lam, beta, 6)) @ basis.T
    factor = np.linalg.norm(np.eye(6) - eta * hessian, 2)
    assert contraction_factor(eta, beta, lam) == pytest.approx(factor, rel=1e-12)
    with pytest.raises(Refused, match="may expand"):
        check_nonexpansive(0.6, beta)


def test_release_noise_and_distance():
    assert release_sigma(1.0, 1e-5, 2.0) == pytest.approx(gaussian_sigma(1.0, 1e-5, 2.0), rel=1e-12)
    shrunk = released_distance(2.0, [0.1] * 50, strong_convexity=0.5, smoothness=2.0)
    assert shrunk == pytest.approx(2.0 * 0.95**50, rel=1e-12)
    with pytest.raises(Refused, match=r"step 1 has size 0.9"):
        released_distance(1.0, [0.1, 0.9], strong_convexity=0.5, smoothness=2.0)


def test_shifted_divergence_solves_the_constrained_minimum():
    caps = visit_caps(0.5, 0.1, 1.0, [2, 3, 50])
    assert caps == pytest.approx([1.4, 1.6, 11.0])
    sigma = 2.0
    gaps = np.diff([0.0, *caps])
    expected = by_solver(gaps, np.full(3, sigma), np.ones(3), 0.0) / 2
    assert shifted_zcdp(caps, sigma) == pytest.approx(expected, rel=1e-6)
    closed = (caps[-1] / 3) ** 2 * 3 / (2 * sigma**2)  # equal parts: not feasible here
    assert shifted_zcdp(caps, sigma) > closed * 1.05
    even = visit_caps(5.0, 0.1, 1.0, [10, 20, 30])
    assert shifted_zcdp(even, 1.0) == pytest.approx((even[-1] / 3) ** 2 * 3 / 2)
    assert best_shifted_zcdp(caps, sigma) == pytest.approx(0.5 * (0.8**2 * 2) / sigma**2)


def test_shifted_sigma_meets_its_target():
    caps = visit_caps(0.5, 0.1, 1.0, [2, 9, 10])
    for epsilon in (0.01, 1.0, 30.0):
        sigma = shifted_sigma(epsilon, 1e-6, caps)
        assert zcdp_epsilon(shifted_zcdp(caps, sigma), 1e-6) <= epsilon
        assert zcdp_epsilon(shifted_zcdp(caps, sigma * 0.999), 1e-6) > epsilon * 0.9
    with pytest.raises(InvalidInput, match="not decreasing"):
        visit_caps(1.0, 0.1, 1.0, [3, 2])


@pytest.mark.parametrize("contraction", [0.0, 0.3, 0.99, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_contracting_steps_equal_the_exact_gaussians_of_a_linear_recursion(contraction, steps):
    """x <- c x + s z has Gaussian ends, whose divergence is known: the bound is tight."""
    mean, variance = 3.0, 0.0
    for _ in range(steps):
        mean, variance = contraction * mean, contraction**2 * variance + 0.5**2
    expected = mean**2 / (2.0 * variance)
    assert contracting_zcdp(3.0, contraction, steps, 0.5) == pytest.approx(expected, rel=1e-12)


def test_contracting_sigma_meets_its_target_and_more_steps_need_less_noise():
    before = math.inf
    for steps in (1, 5, 50, 500):
        sigma = contracting_sigma(1.0, 1e-5, 4.0, 0.99, steps)
        assert zcdp_epsilon(contracting_zcdp(4.0, 0.99, steps, sigma), 1e-5) <= 1.0
        assert zcdp_epsilon(contracting_zcdp(4.0, 0.99, steps, sigma * 0.999), 1e-5) > 0.99
        assert sigma < before
        before = sigma
    assert contracting_sigma(1.0, 1e-5, 0.0, 0.99, 3) == 0.0
