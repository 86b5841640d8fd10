"""The sampled Gaussian against dp-accounting, against an integral, and by its properties."""

import math

import dp_accounting
import mpmath
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from unwalk.core.errors import InvalidInput
from unwalk.privacy.renyi import gaussian_rdp
from unwalk.privacy.subsampled import ORDERS, sampled_epsilon, sampled_multiplier, sampled_rdp

CASES = [
    (1.1, 0.01, 1000, 1e-5),
    (0.7, 0.05, 93, 1e-6),
    (4.0, 0.5, 10, 1e-5),
    (1.5, 1.0, 3, 1e-5),
    (20.0, 0.2, 2000, 1e-5),
]


def event(multiplier, rate, steps):
    one = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    return dp_accounting.SelfComposedDpEvent(one, steps)


@pytest.mark.parametrize(("multiplier", "rate", "steps", "delta"), CASES)
def test_epsilon_equals_dp_accounting_on_the_same_orders(multiplier, rate, steps, delta):
    oracle = RdpAccountant(list(ORDERS)).compose(event(multiplier, rate, steps))
    ours = sampled_epsilon(delta, multiplier, rate, steps)
    assert ours == pytest.approx(oracle.get_epsilon(delta), rel=1e-9)


def test_golden_values():
    assert sampled_epsilon(1e-5, 1.1, 0.01, 1000) == pytest.approx(1.7252908180, abs=1e-9)
    assert sampled_multiplier(1.0, 1e-5, 64 / 6000, 930) == pytest.approx(1.5481195986, abs=1e-9)


@pytest.mark.parametrize(("alpha", "multiplier", "rate"), [(2, 0.8, 0.3), (5, 1.3, 0.05)])
def test_rdp_is_the_larger_divergence_of_the_mixture(alpha, multiplier, rate):
    """Both directions of D_alpha between N(0, z^2) and (1-q) N(0, z^2) + q N(1, z^2)."""

    def plain(x):
        return mpmath.npdf(x, 0, multiplier)

    def mixed(x):
        return (1 - rate) * plain(x) + rate * mpmath.npdf(x, 1, multiplier)

    def divergence(p, q):
        moment = mpmath.quad(lambda x: p(x) ** alpha * q(x) ** (1 - alpha), range(-30, 35, 5))
        return float(mpmath.log(moment) / (alpha - 1))

    larger = max(divergence(mixed, plain), divergence(plain, mixed))
    assert sampled_rdp(alpha, multiplier, rate) == pytest.approx(larger, rel=1e-7)


@settings(max_examples=30)
@given(st.integers(2, 80), st.floats(0.4, 20.0), st.floats(0.0, 1.0))
def test_sampling_never_costs_more_than_using_every_record(alpha, multiplier, rate):
    cost = sampled_rdp(alpha, multiplier, rate)
    assert 0.0 <= cost <= gaussian_rdp(alpha, 1.0 / multiplier) * (1 + 1e-9)
    assert cost <= sampled_rdp(alpha, multiplier, min(1.0, rate * 1.1)) * (1 + 1e-9) + 1e-12
    assert sampled_rdp(alpha, 1.1 * multiplier, rate) <= cost + 1e-12


@settings(max_examples=8)
@given(st.floats(0.2, 5.0), st.sampled_from([1e-6, 1e-5]), st.floats(0.01, 1.0))
def test_the_multiplier_meets_its_target_and_hardly_more(epsilon, delta, rate):
    multiplier = sampled_multiplier(epsilon, delta, rate, 50)
    assert sampled_epsilon(delta, multiplier, rate, 50) <= epsilon
    assert sampled_epsilon(delta, multiplier * 0.999, rate, 50) > epsilon


def test_nothing_drawn_needs_no_noise():
    assert sampled_multiplier(1.0, 1e-5, 0.5, 0) == 0.0
    assert sampled_multiplier(1.0, 1e-5, 0.0, 10) == 0.0
    assert sampled_rdp(4, 1.0, 0.0) == 0.0
    assert math.isfinite(sampled_multiplier(1e-3, 1e-5, 0.5, 10))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sampled_rdp(1, 1.0, 0.5), "alpha is 1"),
        (lambda: sampled_rdp(2, 0.0, 0.5), "multiplier is 0.0"),
        (lambda: sampled_rdp(2, 1.0, 1.5), "rate is 1.5"),
        (lambda: sampled_multiplier(1e-6, 1e-5, 0.5, 10), "epsilon is 1e-06; allowed with delta"),
        (lambda: sampled_multiplier(1.0, 1.0, 0.5, 10), "delta is 1.0"),
    ],
)
def test_bad_values_are_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()
