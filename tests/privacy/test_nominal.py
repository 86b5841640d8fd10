"""The paper's formulas at the paper's settings, and what stands beside them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from unwalk.core.errors import InvalidInput
from unwalk.privacy.capacity import (
    alignment_bias,
    central_capacity,
    ddp_capacity,
    ddp_user_capacity,
    nominal_alignment_bias,
    nominal_central_capacity,
    nominal_ddp_capacity,
    nominal_rrdu_capacity,
    rrdu_capacity,
)
from unwalk.privacy.gaussian import gaussian_epsilon
from unwalk.privacy.nominal import (
    PAPER_SETTINGS,
    PaperSetting,
    corrected_ddp_sigma,
    corrected_epsilon,
    corrected_sigma,
    nominal_appendix_epsilon,
    nominal_ddp_sigma,
    nominal_epsilon,
    nominal_sigma,
    nominal_theorem_51,
    nominal_view_rdp,
    nominal_visits_bound,
    visits_quantile,
)
from unwalk.privacy.paper_tables import paper_tables
from unwalk.privacy.published import published_complete_graph_rdp
from unwalk.privacy.renyi import mironov_epsilon_at
from unwalk.privacy.utility import (
    averaged_risk,
    effective_variance,
    last_risk,
    nominal_averaged_risk,
    nominal_c4,
    nominal_effective_variance,
    nominal_last_risk,
    nominal_table_1,
    stationarity,
    strongly_convex_risk,
    substituted_table_1,
)

MNIST = PAPER_SETTINGS["mnist"]
WALK = (1e-5, 0.5, 100, 0.1, 10)


def test_corollary_golden_values():
    assert nominal_sigma(1.0, *WALK) == pytest.approx(2.5744, abs=5e-5)
    assert nominal_sigma(1.0, 1e-5, 0.2, 100, 0.1, 10) == pytest.approx(1.030, abs=5e-4)
    assert nominal_epsilon(2.5744, *WALK) == pytest.approx(1.0, abs=1e-4)
    assert corrected_epsilon(2.5744, 1e-5, 0.5, 100, 0.1) == pytest.approx(2.882, abs=5e-4)
    assert corrected_epsilon(2.5744, 1e-5, 0.5, 100, 0.1, replacement=True) == pytest.approx(
        6.587, abs=5e-4
    )
    assert corrected_sigma(1.0, 1e-5, 0.5, 100, 0.1, replacement=True) == pytest.approx(
        13.094, abs=5e-4
    )


def test_the_appendix_contradicts_the_corollary():
    """The corollary's epsilon rises as delta falls, the appendix's falls."""
    tight = (1e-10, *WALK[1:])
    assert nominal_epsilon(3.0, *tight) > nominal_epsilon(3.0, *WALK)
    assert nominal_appendix_epsilon(3.0, *tight) < nominal_appendix_epsilon(3.0, *WALK)
    ratio = nominal_epsilon(3.0, *WALK) / nominal_appendix_epsilon(3.0, *WALK)
    assert ratio == pytest.approx(math.log(1e5))


@given(
    epsilon=st.floats(0.1, 10.0),
    hops=st.integers(1, 1000),
    p=st.floats(0.01, 1.0),
    peers=st.integers(2, 1000),
)
def test_corollary_round_trip_and_scaling(epsilon, hops, p, peers):
    sigma = nominal_sigma(epsilon, 1e-5, 0.5, hops, p, peers)
    assert nominal_epsilon(sigma, 1e-5, 0.5, hops, p, peers) == pytest.approx(epsilon, rel=1e-12)
    assert nominal_sigma(epsilon, 1e-5, 1.0, hops, p, peers) == pytest.approx(2 * sigma)
    assert nominal_sigma(epsilon, 1e-5, 0.5, hops, p, peers, constant=3.0) == pytest.approx(
        3 * sigma
    )
    theorem, _ = nominal_theorem_51(1.0, 0.0, hops, p, peers, 1e-5)
    assert theorem == pytest.approx(nominal_sigma(1.0, 1e-5, 1.0, hops, p, peers))


def test_ddp_readings():
    assert nominal_ddp_sigma("algorithm", 1.0, 1e-5, 1.0) == pytest.approx(
        math.sqrt(8 * math.log(1.25e5))
    )
    table = nominal_ddp_sigma("table", 1.0, 1e-5, 1.0, hops=100, peers=10, forgotten=1000)
    assert table == pytest.approx(1000 * math.sqrt(100 * math.log(1e5) * math.log(10) / 10))
    sigma = nominal_ddp_sigma("lemma", 1.0, 1e-5, 1.0, hops=100, peers=10)
    orders = 1 + np.geomspace(1e-2, 1e4, 20_000)
    slope = nominal_view_rdp(2.0, sigma, 10, 10, lipschitz=1.0) / 2.0
    best = min(mironov_epsilon_at(float(a), slope * float(a), 1e-5) for a in orders)
    assert best == pytest.approx(1.0, rel=1e-5)
    with pytest.raises(InvalidInput, match="did you mean table"):
        nominal_ddp_sigma("tabel", 1.0, 1e-5, 1.0)


def test_algorithm_2_noise_covers_one_step_but_not_the_walk():
    sigma = nominal_ddp_sigma("algorithm", 1.0, 1e-5, 1.0)
    assert gaussian_epsilon(1e-5, 2.0 / sigma) < 1.0
    assert corrected_ddp_sigma(1.0, 1e-5, 1.0, 100, 10) > 2 * sigma
    assert nominal_ddp_sigma("algorithm", 50.0, 1e-5, 1.0) > 0  # no claim there:
    assert gaussian_epsilon(1e-5, 2.0 / nominal_ddp_sigma("algorithm", 50.0, 1e-5, 1.0)) > 50


def test_view_rdp_is_a_quarter_of_its_source():
    ours = nominal_view_rdp(2.0, 10.0, 7, 50, lipschitz=1.0)
    assert ours * 4 == pytest.approx(published_complete_graph_rdp(2.0, 10.0, 50, 7, lipschitz=1.0))


def test_chernoff_bound_does_not_apply_where_the_paper_uses_it():
    bound, applies = nominal_visits_bound(100, 0.1, 1e-5 / 4)
    assert not applies
    assert nominal_visits_bound(10_000, 0.1, 1e-5 / 4)[1]
    exact = visits_quantile(100, 0.1, 1e-5 / 4)
    assert binom.sf(exact, 100, 0.1) <= 1e-5 / 4 < binom.sf(exact - 1, 100, 0.1)
    assert exact <= bound


@given(hops=st.integers(1, 500), p=st.floats(0.0, 1.0), log=st.floats(-20.0, -0.1))
def test_visits_quantile_is_exact(hops, p, log):
    failure = math.exp(log)
    c = visits_quantile(hops, p, failure)
    assert binom.sf(c, hops, p) <= failure * (1 + 1e-9)
    assert c == 0 or binom.sf(c - 1, hops, p) > failure * (1 - 1e-9)


# Utility


def test_averaged_risk_is_the_lemma_at_its_best_step():
    radius, hops, second, d, sigma = 3.0, 50, 1.2, 7, 0.4
    variance = second**2 + d * sigma**2
    best = min(
        nominal_averaged_risk(radius, eta, hops, second, d, sigma)
        for eta in np.geomspace(1e-3, 10, 5000)
    )
    assert averaged_risk(radius, hops, variance) == pytest.approx(best, rel=1e-5)
    expected = 2 * radius * math.sqrt(variance) * (2 + math.log(hops)) / math.sqrt(hops)
    assert nominal_last_risk(radius, hops, second, d, sigma) == pytest.approx(expected)


def test_risks_hold_for_noisy_sgd_that_really_runs():
    """|theta| on [-1, 1]: average and last iterate of many runs stay below the bounds."""
    rng = np.random.default_rng(0)
    hops, runs, sigma = 60, 4000, 1.5
    variance = 1.0 + sigma**2
    radius = 2.0
    eta = radius / math.sqrt(variance * hops)
    theta = np.full(runs, 1.0)
    mean = np.zeros(runs)
    last = np.full(runs, 1.0)
    for t in range(1, hops + 1):
        mean += theta / hops
        theta = np.clip(theta - eta * (np.sign(theta) + sigma * rng.standard_normal(runs)), -1, 1)
        step = radius / math.sqrt(variance * t)
        last = np.clip(last - step * (np.sign(last) + sigma * rng.standard_normal(runs)), -1, 1)
    assert np.abs(mean).mean() <= averaged_risk(radius, hops, variance)
    assert np.abs(last).mean() <= last_risk(radius, hops, variance)


def test_strongly_convex_and_stationary_bounds_hold_on_a_quadratic():
    rng = np.random.default_rng(1)
    hops, runs, sigma, mu = 40, 3000, 0.8, 1.0
    theta = np.full(runs, 1.0)
    for t in range(1, hops + 1):
        theta = np.clip(theta - (mu * theta + sigma * rng.standard_normal(runs)) / (mu * t), -1, 1)
    variance = mu**2 + sigma**2
    assert (0.5 * mu * theta**2).mean() <= strongly_convex_risk(hops, variance, mu)
    theta, total = np.full(runs, 1.0), 0.0
    eta = math.sqrt(2 * 0.5 / (1.0 * hops * variance))
    for _ in range(hops):
        total += float((theta**2).mean()) / hops
        theta = theta - eta * (theta + sigma * rng.standard_normal(runs))
    assert total <= stationarity(hops, variance, 1.0, 0.5)


def test_effective_variance():
    assert nominal_effective_variance(0.5, 0.1, 4, 100, 2.0) == pytest.approx(0.25 + 10.0)
    assert effective_variance(0.5, 0.1, 100, 2.0) == pytest.approx(0.25 + 40.0)
    rng = np.random.default_rng(2)
    noise = np.where(rng.random((20_000, 1)) < 0.3, rng.standard_normal((20_000, 5)) * 1.5, 0.0)
    measured = float((noise**2).sum(axis=1).mean())
    assert measured == pytest.approx(effective_variance(0.0, 0.3, 5, 1.5), rel=0.05)


def test_table_1_does_not_follow_from_appendix_c():
    unit = replace(MNIST, radius=0.5)
    convex = nominal_table_1("convex", unit)[1]
    assert substituted_table_1("convex", unit) == pytest.approx(convex)
    assert substituted_table_1("convex", MNIST) == pytest.approx(convex)  # it lacks R
    log = math.log(1e5) * math.log(10)
    strong = 0.1**2 * 62_538 * 0.25 * log / (4 * 10)
    assert substituted_table_1("strongly-convex", MNIST) == pytest.approx(strong)
    assert strong > 10 * nominal_table_1("strongly-convex", MNIST)[1]
    growing = substituted_table_1("non-convex", replace(MNIST, hops=400))
    assert growing == pytest.approx(2 * substituted_table_1("non-convex", MNIST))
    small = replace(MNIST, dimension=10, radius=1.5)
    assert nominal_c4("convex", small, 2.0) == pytest.approx(
        (3.0 * 0.5 / 20, math.sqrt(0.1 * 10 * 4 / 400))
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("radius", 0.0),
        ("epsilon", 0.0),
        ("delta", 1.0),
        ("hops", 0),
        ("p", 1.5),
        ("peers", 1),
        ("dimension", 0),
        ("records", 0),
        ("averaging", 0),
    ],
)
def test_a_setting_that_no_formula_holds_for_is_refused(name, value):
    with pytest.raises(InvalidInput, match=name):
        PaperSetting(**{"radius": 1.0, "lipschitz": 1.0, "dimension": 1, "records": 1, name: value})


# Capacity


def test_ddp_capacity():
    value = nominal_ddp_capacity(MNIST)
    expected = (
        1 / (10 * (2 + math.log(100))) * math.sqrt(10 / (62_538 * math.log(1e5) * math.log(10)))
    )
    assert value == pytest.approx(expected)
    assert nominal_ddp_capacity(MNIST, averaging=4) == pytest.approx(2 * value)
    assert ddp_capacity(3.0, MNIST) == pytest.approx(1.5 * value)
    assert ddp_user_capacity(1.0, MNIST) == 0
    assert ddp_user_capacity(1e6, MNIST) == 6000


def test_ddp_capacity_solves_its_own_inequality():
    gamma, epsilon, delta, radius, bound, hops, d, peers = 0.3, 1.0, 1e-5, 10.0, 1.0, 100, 50, 10
    m = ddp_capacity(gamma, replace(MNIST, dimension=d))
    sigma = m * bound / epsilon * math.sqrt(hops * math.log(1 / delta) * math.log(peers) / peers)
    risk = 2 * radius * math.sqrt(d) * sigma * (2 + math.log(hops)) / math.sqrt(hops)
    assert risk == pytest.approx(gamma, rel=1e-12)


def test_rrdu_capacity_has_two_regimes():
    assert nominal_rrdu_capacity(220.0, MNIST) == 0.0
    low, high = nominal_rrdu_capacity(221.0, MNIST), nominal_rrdu_capacity(222.0, MNIST)
    assert high - low == pytest.approx(6000 / 0.5)
    values = [rrdu_capacity(g, MNIST) for g in (1e4, 14_801.0, 14_803.0, 2e4)]
    assert values == sorted(values)
    assert values[0] == 0
    assert values[-1] == 6000
    assert rrdu_capacity(14_801.0, MNIST, exact=True) == 6000


def test_alignment_bias_is_attained():
    """Gradients of D_f and of the rest pointing the same way attain p L (1 + m/n_u)."""
    bound, m, n, p = 0.5, 1000, 6000, 0.1
    direction = np.array([1.0, 0.0])
    rest, forget = bound * direction, bound * direction
    update = p * (m / n) * forget  # LIGHTWEIGHT at u; elsewhere cancels against the target
    target = p * rest
    assert np.linalg.norm(update + target) == pytest.approx(alignment_bias(bound, m, n, p))
    assert nominal_alignment_bias(bound, m, n) == pytest.approx(bound / 6)


def test_central_capacity():
    value = nominal_central_capacity(1.0, 1e-5, 10.0, 1.0, 62_538, 60_000)
    assert value == pytest.approx(60_000 / (10 * math.sqrt(62_538 * math.log(1e5))))
    assert central_capacity(0.5, 1.0, 1e-5, 10.0, 1.0, 62_538, 60_000) == pytest.approx(value / 2)


@pytest.mark.parametrize("name", PAPER_SETTINGS)
def test_tables_at_the_papers_settings(name):
    rows = paper_tables(name)
    assert set(rows) == {
        "table1/convex",
        "table1/strongly-convex",
        "table1/non-convex",
        "table2/ddp",
        "table2/rrdu",
    }
    convex = rows["table1/convex"]
    assert convex["substituted"] == pytest.approx(convex["privacy"])
    assert convex["corrected"] > convex["optimization"] + convex["privacy"]
    assert rows["table2/rrdu"]["corrected_sigma"] > 2 * rows["table2/rrdu"]["sigma"]
    assert rows["table2/ddp"]["sigma"] == pytest.approx(16_281.7, abs=0.1)
    with pytest.raises(InvalidInput, match="did you mean mnist"):
        paper_tables("minst")
