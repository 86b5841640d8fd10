"""The capacities that ``unwalk capacity`` draws: golden values, numeric search, monotony."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwalk.privacy.capacity import (
    CAPACITIES,
    alignment_bias,
    central_capacity,
    nominal_alignment_bias,
)
from unwalk.privacy.nominal import (
    PAPER_SETTINGS,
    PaperSetting,
    corrected_ddp_sigma,
    corrected_sigma,
    nominal_ddp_sigma,
)
from unwalk.privacy.utility import effective_variance, last_risk, nominal_table_1

DIGITS = PaperSetting(10.0, math.sqrt(2.0), 650, 144, averaging=4, forgotten=1)
GOLDEN = {
    "ddp-nominal": (0.1, 3.7183e-05),
    "ddp-kept": (0.1, 1.85915e-06),
    "ddp-user": (1e6, 6000),
    "rrdu-nominal": (221.0, 2179.3),
    "rrdu-corrected": (14_805.0, 6000),
}
SETTINGS = st.builds(
    PaperSetting,
    radius=st.floats(0.1, 50.0),
    lipschitz=st.floats(0.1, 5.0),
    dimension=st.integers(1, 10**6),
    records=st.integers(1, 10**5),
    epsilon=st.floats(0.1, 20.0),
    peers=st.integers(3, 1000),
)


def risks(name, at, m):
    """What has to stay at most gamma where m records are forgotten, from its parts."""
    if name in ("ddp-kept", "ddp-nominal"):
        sigma = nominal_ddp_sigma(
            "table", at.epsilon, at.delta, at.ddp_lipschitz, hops=at.hops, peers=at.peers
        )
        return last_risk(at.ddp_diameter, at.hops, at.dimension * (m * sigma) ** 2)
    if name == "ddp-user":
        sigma = corrected_ddp_sigma(at.epsilon, at.delta, at.ddp_lipschitz, at.hops, at.peers)
        moment = effective_variance(at.ddp_lipschitz, 1.0, at.dimension, sigma)
        return last_risk(at.ddp_diameter, at.hops, moment)
    if name == "rrdu-nominal":
        return sum(nominal_table_1("convex", at)) + at.lipschitz * m / at.records
    sigma = corrected_sigma(at.epsilon, at.delta, at.lipschitz, at.hops, at.p)
    moment = effective_variance(at.lipschitz, at.p, at.dimension, sigma)
    bias = alignment_bias(at.lipschitz, m, at.records, at.p)
    return last_risk(at.diameter, at.hops, moment) + at.diameter * bias


@pytest.mark.parametrize("name", CAPACITIES)
def test_golden_values_at_the_papers_mnist(name):
    gamma, expected = GOLDEN[name]
    assert CAPACITIES[name].at(gamma, PAPER_SETTINGS["mnist"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", ["ddp-kept", "rrdu-nominal"])
@pytest.mark.parametrize("gamma", [30.0, 61.0, 500.0, 5000.0])
def test_a_bisection_finds_the_same_number_of_records(name, gamma):
    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if risks(name, DIGITS, middle) <= gamma else (low, middle)
    assert CAPACITIES[name].at(gamma, DIGITS) == pytest.approx(low, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", ["ddp-user", "rrdu-corrected"])
@pytest.mark.parametrize("over", [-1.0, 0.0, 2.9, 3.0, 4.5, 1e5])
def test_trying_every_number_of_records_finds_the_same(name, over):
    gamma = risks(name, DIGITS, 0) + over
    able = [m for m in range(DIGITS.records + 1) if risks(name, DIGITS, m) <= gamma]
    assert CAPACITIES[name].at(gamma, DIGITS) == max(able, default=0)


@pytest.mark.parametrize("name", CAPACITIES)
@given(at=SETTINGS, gamma=st.floats(1e-3, 1e4), factor=st.integers(2, 9))
def test_more_budget_peers_and_records_or_fewer_parameters_never_allow_less(
    name, at, gamma, factor
):
    now = CAPACITIES[name].at(gamma, at)
    for key, sign in (("epsilon", 1), ("peers", 1), ("records", 1), ("dimension", -1)):
        more = replace(at, **{key: getattr(at, key) * factor})
        then = CAPACITIES[name].at(gamma, more)
        assert sign * (then - now) >= -1e-9 * max(now, then), key
    assert CAPACITIES[name].at(gamma * factor, at) >= now


def test_a_curator_and_the_bias_grow_as_they_are_written():
    for tolerance, records in ((0.1, 1000), (0.2, 2000)):
        found = central_capacity(tolerance, 1.0, 1e-5, 20.0, 1.0, 650, records)
        expected = tolerance * records / (20.0 * math.sqrt(650 * math.log(1e5)))
        assert found == pytest.approx(expected)
    for m in (0, 1, 144):
        assert alignment_bias(1.0, m, 144, 0.1) == pytest.approx(0.1 + 0.1 * m / 144)
        assert nominal_alignment_bias(1.0, m, 144) == pytest.approx(m / 144)
