"""Renyi tools against numerical integration, dp-accounting and each other."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwalk.core.errors import InvalidInput, Refused
from unwalk.privacy.gaussian import gaussian_epsilon
from unwalk.privacy.iteration import weak_convexity_rdp
from unwalk.privacy.renyi import (
    compose_rdp,
    curve_epsilon,
    gaussian_rdp,
    mironov_epsilon_at,
    mixture_rdp,
    rdp_epsilon,
    rdp_epsilon_at,
    zcdp_epsilon,
)


def test_golden_conversion():
    orders = list(range(2, 33))
    assert rdp_epsilon(orders, [1.1] * 31, 1e-5) == pytest.approx(1.32783806176, abs=1e-11)


def test_gaussian_rdp_is_the_integral():
    alpha, mu = 2.7, 0.9
    inner = mp.quad(
        lambda x: mp.npdf(x, mu, 1) ** alpha * mp.npdf(x, 0, 1) ** (1 - alpha), [-12, 0, 6, 14]
    )
    assert gaussian_rdp(alpha, mu) == pytest.approx(float(mp.log(inner)) / (alpha - 1), rel=1e-9)


def test_conversion_agrees_with_dp_accounting():
    from dp_accounting.rdp import compute_epsilon

    orders = [1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    values = [0.02 * a for a in orders]
    theirs, _ = compute_epsilon(orders, values, 1e-6)
    assert rdp_epsilon(orders, values, 1e-6) == pytest.approx(theirs, rel=1e-12)


@given(
    alpha=st.floats(1.01, 200.0),
    value=st.floats(0.0, 20.0),
    log_delta=st.floats(-60.0, -0.5),
)
def test_conversion_is_tighter_than_the_old_one(alpha, value, log_delta):
    delta = math.exp(log_delta)
    epsilon = rdp_epsilon_at(alpha, value, delta)
    assert epsilon <= mironov_epsilon_at(alpha, value, delta) + 1e-9
    if epsilon > 0.0:  # solved for delta
        log = (alpha - 1.0) * (value - epsilon + math.log1p(-1.0 / alpha)) - math.log(alpha)
        assert log == pytest.approx(log_delta, rel=1e-9)


@given(mu=st.floats(0.01, 5.0), log_delta=st.floats(-60.0, -2.0))
def test_rdp_never_beats_the_exact_gaussian(mu, log_delta):
    delta = math.exp(log_delta)
    exact = gaussian_epsilon(delta, mu)
    bound = zcdp_epsilon(mu * mu / 2, delta)
    assert bound >= exact * (1 - 1e-9)
    assert bound <= exact * 1.3 + mu + 1e-3


def test_continuous_orders_beat_tabulated_ones():
    orders = [2.0, 4.0, 8.0, 16.0, 32.0]
    tabulated = rdp_epsilon(orders, [0.1 * a for a in orders], 1e-5)
    assert curve_epsilon(lambda a: 0.1 * a, 1e-5) < tabulated


def test_composed_curves_add():
    curve = compose_rdp([lambda a: 0.1 * a, lambda a: 0.02 * a * a])
    assert curve(3.0) == pytest.approx(0.1 * 3.0 + 0.02 * 9.0)
    assert curve_epsilon(curve, 1e-7) > curve_epsilon(lambda a: 0.1 * a, 1e-7)


def test_mixture_is_the_divergence_of_the_pair():
    """Public coin between N(0,1) v N(0,1) and N(1,1) v N(0,1), by integration."""
    alpha, p = 3.0, 0.3
    value = mixture_rdp(alpha, [math.log(1 - p), math.log(p)], [0.0, gaussian_rdp(alpha, 1.0)])
    inner = (1 - p) + p * mp.quad(
        lambda x: mp.npdf(x, 1, 1) ** alpha * mp.npdf(x, 0, 1) ** (1 - alpha), [-12, 0, 8, 16]
    )
    assert value == pytest.approx(float(mp.log(inner)) / (alpha - 1), rel=1e-9)


@given(
    alpha=st.floats(1.1, 20.0),
    parts=st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=6),
)
def test_log_mean_exp_is_never_above_weak_convexity(alpha, parts):
    total = math.fsum(w for w, _ in parts)
    weights = [w / total for w, _ in parts]
    values = [share / (alpha - 1) for _, share in parts]
    mixed = mixture_rdp(alpha, [math.log(w) for w in weights], values)
    assert mixed <= weak_convexity_rdp(alpha, weights, values) + 1e-12
    assert mixed >= math.fsum(w * v for w, v in zip(weights, values, strict=True)) - 1e-12


def test_weak_convexity_refuses_outside_its_condition():
    with pytest.raises(Refused, match="mixture_rdp"):
        weak_convexity_rdp(2.0, [0.5, 0.5], [0.0, 1.5])
    with pytest.raises(InvalidInput, match=r"sum 0\.9"):
        weak_convexity_rdp(2.0, [0.5, 0.4], [0.0, 0.5])


def test_tables_of_unequal_length_are_refused():
    with pytest.raises(InvalidInput, match="lengths 2 and 1"):
        rdp_epsilon([2.0, 3.0], [1.0], 1e-5)
    assert rdp_epsilon([2.0], [np.inf], 1e-5) == math.inf
