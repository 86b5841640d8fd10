"""Lower bounds on epsilon: golden values, an independent oracle, properties, and coverage."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from unwalk.audits import bounds
from unwalk.audits.bounds import Tally, cap, clopper_pearson
from unwalk.core.errors import InvalidInput
from unwalk.privacy.gaussian import gaussian_epsilon

ORACLE = Path(__file__).with_name("jax_privacy.json")


# Golden values


def test_an_attacker_without_errors_shows_the_cap():
    rate = 1.0 - 0.025 ** (1 / 150)
    assert cap(150, 0.95, 1e-5) == pytest.approx(math.log((1 - rate - 1e-5) / rate), abs=1e-12)
    assert cap(150, 0.95, 1e-5) == pytest.approx(3.69300, abs=1e-4)


def test_one_run_without_errors_has_a_closed_form():
    q = 0.05**0.01
    assert bounds.one_run(100, 100, 100, 0.0) == pytest.approx(math.log(q / (1 - q)), abs=1e-8)


def test_delta_lowers_the_bound():
    tally = Tally(3, 100, 60, 100)
    assert clopper_pearson(tally, 0.2) < clopper_pearson(tally, 0.0)
    assert clopper_pearson(Tally(0, 10, 0, 10), 0.9) == 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tally(3, 2, 0, 2),
        lambda: Tally(0, 0, 0, 2),
        lambda: Tally(-1, 2, 0, 2),
        lambda: cap(10, 1.0),
        lambda: clopper_pearson(Tally(0, 2, 0, 2), 1.0),
        lambda: bounds.one_run(10, 11, 3, 0.0),
        lambda: bounds.one_run(10, 5, 6, 0.0),
    ],
)
def test_impossible_counts_are_refused(make):
    with pytest.raises(InvalidInput):
        make()


# An oracle that shares no code: sums of binomials in fifty digits


def rate_by_sums(errors: int, runs: int, alpha: float) -> float:
    """The p at which so few errors have probability alpha, by bisection on the sum itself."""
    with mpmath.workdps(50):

        def below(p):
            return sum(
                mpmath.binomial(runs, k) * p**k * (1 - p) ** (runs - k) for k in range(errors + 1)
            )

        low, high = mpmath.mpf(0), mpmath.mpf(1)
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if below(middle) > alpha else (low, middle)
        return float(low)


@pytest.mark.parametrize(("errors", "runs"), [(0, 7), (3, 20), (19, 20), (5, 61)])
def test_a_rate_by_sums_of_binomials(errors, runs):
    for alpha in (0.025, 1e-9):
        assert bounds.upper_rate(errors, runs, alpha) == pytest.approx(
            rate_by_sums(errors, runs, alpha), rel=1e-10
        )


def test_one_run_by_enumeration():
    """The theorem's terms, written out as sums."""
    m, r, v, epsilon, delta = 12, 9, 7, 0.8, 0.01
    q = 1 / (1 + math.exp(-epsilon))

    def tail(at):
        return sum(math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(max(at, 0), r + 1))

    worst = max((tail(v - i) - tail(v)) / i for i in range(1, m + 1))
    expected = tail(v) + 2 * m * delta * worst
    assert bounds.one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(expected, abs=1e-12)


# Coverage, exactly: every outcome of a small game, weighed with its probability


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_bound_exceeds_the_truth_no_more_often_than_stated(epsilon, confidence):
    runs = 15
    found = {
        (a, b): clopper_pearson(Tally(a, runs, b, runs), 0.0, confidence)
        for a, b in itertools.product(range(runs + 1), repeat=2)
    }
    counts = np.arange(runs + 1)
    for alarm in np.linspace(0.01, 0.99, 33):
        miss = max(1.0 - math.exp(epsilon) * alarm, math.exp(-epsilon) * (1.0 - alarm))
        weights = np.outer(binom.pmf(counts, runs, alarm), binom.pmf(counts, runs, miss))
        wrong = sum(w for (at, w) in np.ndenumerate(weights) if found[at] > epsilon + 1e-12)
        assert wrong <= 1.0 - confidence


# Properties


tallies = st.tuples(st.integers(1, 60), st.integers(1, 60)).flatmap(
    lambda n: st.builds(
        Tally, st.integers(0, n[0]), st.just(n[0]), st.integers(0, n[1]), st.just(n[1])
    )
)


@settings(max_examples=60, deadline=None)
@given(tallies, st.sampled_from([0.0, 1e-5, 0.1]), st.floats(0.5, 0.999))
def test_properties_of_the_bound(tally, delta, confidence):
    bound = clopper_pearson(tally, delta, confidence)
    swapped = Tally(tally.misses, tally.with_, tally.false_alarms, tally.without)
    assert bound == clopper_pearson(swapped, delta, confidence)
    assert bound <= cap(max(tally.without, tally.with_), confidence, delta) + 1e-12
    assert bound >= clopper_pearson(tally, delta, confidence, tests=3)
    if tally.misses:
        fewer = Tally(tally.false_alarms, tally.without, tally.misses - 1, tally.with_)
        better = clopper_pearson(fewer, delta, confidence)
        if tally.false_alarms / tally.without + tally.misses / tally.with_ <= 1.0:
            assert better >= bound - 1e-12


@settings(max_examples=40, deadline=None)
@given(tallies, st.floats(0.0, 3.0), st.sampled_from([0.0, 1e-5]))
def test_a_p_value_is_where_the_bound_passes_the_claim(tally, epsilon, delta):
    p = bounds.p_value(tally, epsilon, delta)
    if bounds.SMALLEST < p < 0.9:
        assert clopper_pearson(tally, delta, 1.0 - min(p * 1.001, 0.999)) > epsilon - 1e-6
        if p > 1e-12:
            assert clopper_pearson(tally, delta, 1.0 - p * 0.999) <= epsilon + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_holm_is_between_plain_and_bonferroni(values):
    adjusted = bounds.holm(values)
    for p, q in zip(values, adjusted, strict=True):
        assert p <= q + 1e-15
        assert q <= min(1.0, len(values) * max(values)) + 1e-15
    assert min(adjusted) == pytest.approx(min(1.0, len(values) * min(values)))


def test_the_gaussian_bound_finds_mu_of_two_gaussians():
    """With very many runs the assumed shape gives the true mu back."""
    mu, runs = 1.2, 10**9
    tally = Tally(round(runs * norm.sf(0.6)), runs, round(runs * norm.cdf(0.6 - mu)), runs)
    assert bounds.gaussian_trade_off(tally, 1e-5) == pytest.approx(
        gaussian_epsilon(1e-5, mu), abs=2e-3
    )


# jax_privacy, in an environment of its own (benchmarks/audit_oracle.py)


@pytest.mark.parametrize("name", ["few values", pytest.param("all", marks=pytest.mark.soak)])
def test_bounds_are_those_of_jax_privacy(name):
    oracle = json.loads(ORACLE.read_text(encoding="utf-8"))
    cases = [c for c in oracle["cases"] if name in ("all", c["name"])]
    assert cases
    delta = oracle["delta"]
    for case in cases:
        with_, without = np.array(case["with"]), np.array(case["without"])
        for one in case["thresholds"]:
            tally = Tally.of(with_, without, one["threshold"])
            right = tally.with_ - tally.misses
            run = (len(with_) + len(without), right + tally.false_alarms, right, delta)
            assert clopper_pearson(tally, delta) == pytest.approx(one["clopper_pearson"], abs=1e-5)
            assert bounds.one_run(*run) == pytest.approx(one["one_run"], abs=1e-5)
            assert bounds.one_run_gaussian(*run) == pytest.approx(one["one_run_gaussian"], abs=1e-5)
        counts = [
            Tally(len(without) - tn, len(without), fn, len(with_)) for tn, fn in case["frontier"]
        ]
        many = len(counts)
        shaped = max(bounds.gaussian_trade_off(t, delta, tests=many) for t in counts)
        plain = max(clopper_pearson(t, delta, tests=many) for t in counts)
        if case["name"] == "equal":  # it takes the absolute value of a mu below 0: 8.46 for nothing
            assert shaped == 0.0 < case["gaussian"]
        else:
            assert shaped == pytest.approx(case["gaussian"], abs=1e-5)
        assert plain == pytest.approx(case["all"], abs=1e-5)


@pytest.mark.parametrize(
    ("m", "v", "delta"), [(1000, 899, 1e-4), (6000, 5910, 1e-5), (50, 50, 0.0)]
)
def test_a_claim_is_refuted_by_one_run_at_the_delta_of_two_worlds(m, v, delta):
    """Both worlds are close to one certifier, which adds up their deltas: half of the bound for a
    canary would be refuted with less confidence than is said."""
    found = bounds.one_run_claim(m, m, v, delta)
    apart = 2.0 * found, (1.0 + math.exp(found)) * delta
    assert bounds.one_run_p_value(m, m, v, *apart) == pytest.approx(0.05, abs=1e-6)
    half = bounds.one_run(m, m, v, delta) / 2.0
    assert found < half if delta else found == pytest.approx(half, abs=1e-8)
    if delta:
        assert bounds.one_run_p_value(m, m, v, 2.0 * half, (1.0 + math.exp(half)) * delta) > 0.055
