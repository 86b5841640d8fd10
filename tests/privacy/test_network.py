"""Network DP by enumeration of all routes, exact Gaussians, and the published formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unwalk.core.errors import InvalidInput, Refused
from unwalk.privacy.network import (
    FirstHits,
    complete_graph_chain,
    complete_walk_epsilon,
    contribution_rdp,
    contributions_rdp,
    first_hit_law,
    first_hits,
    walk_rdp,
)
from unwalk.privacy.published import (
    published_any_graph_rdp,
    published_complete_graph_epsilon,
    published_complete_graph_rdp,
    published_visits_bound,
)
from unwalk.privacy.stability import view_zcdp


def random_chain(size, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.random((size, size))
    return matrix / matrix.sum(axis=1, keepdims=True), rng.dirichlet(np.ones(size))


def routes(matrix, start, hops):
    for route in itertools.product(range(len(matrix)), repeat=hops):
        chance = start[route[0]]
        for a, b in itertools.pairwise(route):
            chance *= matrix[a][b]
        if chance > 0.0:
            yield route, chance


def gaps_of(route, u, observers, released):
    for t, peer in enumerate(route):
        if peer == u:
            later = [k for k in range(t + 1, len(route)) if route[k] in (u, *observers)]
            if later:
                yield later[0] - t
            elif released:
                yield len(route) - t


@pytest.mark.parametrize("observers", [[1], [1, 2]])
@pytest.mark.parametrize("released", [False, True])
def test_walk_equals_enumeration_of_all_routes(observers, released):
    matrix, start = random_chain(3, 0)
    alpha, ratio, hops = 2.5, 1.1, 6
    total = 0.0
    for route, chance in routes(matrix, start, hops):
        cost = sum(0.5 * alpha * ratio**2 / g for g in gaps_of(route, 0, observers, released))
        total += chance * math.exp((alpha - 1) * cost)
    value = walk_rdp(alpha, ratio, matrix, 0, observers, hops, start=start, released=released)
    assert value == pytest.approx(math.log(total) / (alpha - 1), rel=1e-10)


def test_walk_bounds_the_exact_views_of_linear_losses():
    """Linear losses: given the route a view is a Gaussian vector; its divergence is exact."""
    matrix, start = random_chain(3, 4)
    alpha, ratio, hops, u, v = 2.0, 0.9, 6, 0, 1
    total = 0.0
    for route, chance in routes(matrix, start, hops):
        cost, shift, steps = 0.0, 0.0, 0
        for peer in route:
            if peer == v:
                cost += 0.5 * alpha * shift**2 / steps if steps else 0.0
                shift, steps = 0.0, 0
            else:
                shift, steps = shift + (ratio if peer == u else 0.0), steps + 1
        total += chance * math.exp((alpha - 1) * cost)
        solved = alpha * view_zcdp(route, u, v, [ratio] * hops)
        crude = sum(0.5 * alpha * ratio**2 / g for g in gaps_of(route, u, [v], False))
        assert cost <= solved * (1 + 1e-12) + 1e-15
        assert solved <= crude * (1 + 1e-12) + 1e-15
    exact = math.log(total) / (alpha - 1)
    bound = walk_rdp(alpha, ratio, matrix, u, [v], hops, start=start)
    assert exact <= bound <= 2.0 * exact


def test_adding_up_contributions_that_are_not_observed_is_no_bound():
    """The route u, u, v with linear losses: the exact divergence exceeds the sum of the two."""
    kappa = 0.5 * 2.0 * 1.0**2
    together = kappa * (1.0 + 1.0) ** 2 / 2
    one_by_one = kappa / 2 + kappa / 1
    assert together > one_by_one
    assert 2.0 * view_zcdp([0, 0, 1], 0, 1, [1.0] * 3) == pytest.approx(together)
    with_gap_to_u = kappa / 1 + kappa / 1
    assert with_gap_to_u >= together


def test_first_hits_equal_enumeration():
    matrix, _ = random_chain(4, 2)
    law = first_hit_law(matrix, 0, [1, 3], 4)
    for hop in range(1, 5):
        for column, target in enumerate((1, 3)):
            expected = 0.0
            for middle in itertools.product((0, 2), repeat=hop - 1):
                path = (0, *middle, target)
                expected += math.prod(matrix[a][b] for a, b in itertools.pairwise(path))
            assert law[hop - 1, column] == pytest.approx(expected, rel=1e-12)


def test_first_hits_on_the_complete_graph_are_geometric():
    hits = first_hits(complete_graph_chain(20), 0, [1], 50)
    t = np.arange(50)
    assert hits.observed == pytest.approx((1 / 20) * (18 / 20) ** t)
    assert hits.returned == pytest.approx(hits.observed)
    rows = complete_graph_chain(6, observers=2, stay=False)
    assert rows.sum(axis=1) == pytest.approx(1.0)
    assert rows[0].tolist() == pytest.approx([0.0, 2 / 5, 3 / 5])


def test_close_to_the_published_lemma_where_that_applies():
    """With gaps ending at {u, v}: 4 alpha L^2 ln(n/2)/(n-2) to first order, the lemma's size."""
    peers, sigma, alpha = 200, 200.0, 2.0
    hits = first_hits(complete_graph_chain(peers), 0, [1], 20_000)
    ours = contribution_rdp(alpha, 2.0 / sigma, hits)
    theirs = published_complete_graph_rdp(alpha, sigma, peers, 1, lipschitz=1.0)
    first_order = 4 * alpha / sigma**2 * math.log(peers / 2) / (peers - 2)
    assert ours == pytest.approx(first_order, rel=2e-3)
    assert 0.8 < ours / theirs < 1.1


def test_published_lemma_checks_its_condition():
    with pytest.raises(Refused, match="below L sqrt"):
        published_complete_graph_rdp(4.0, 1.0, 10, 5, lipschitz=1.0)
    assert published_visits_bound(100, 10, 1e-5) == pytest.approx(28.585, abs=1e-3)
    value = published_complete_graph_epsilon(1e-6, 10.0, 100, 10, lipschitz=1.0)
    worse = published_complete_graph_epsilon(1e-6, 10.0, 100, 20, lipschitz=1.0)
    assert value < worse


def test_published_any_graph_is_the_sum_of_powers():
    ring = np.array([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1]]) / 3
    hops, total, power = 2000, 0.0, np.eye(4)
    for t in range(1, hops + 1):
        power = power @ ring
        total += power[0, 2] / t
    closed = published_any_graph_rdp(2.0, 0.1, ring, 0, 2, hops)
    summed = 2.0 * 0.1**2 * hops / 4 * total
    euler = 2.0 * 0.1**2 * hops / 4 * 0.5772 / 4  # ln T stands for the harmonic number
    assert closed == pytest.approx(summed - euler, rel=1e-3)


@given(
    ratio=st.floats(0.01, 2.0),
    alpha=st.floats(1.1, 20.0),
    peers=st.integers(3, 30),
    hops=st.integers(2, 60),
)
@settings(max_examples=40)
def test_network_properties(ratio, alpha, peers, hops):
    hits = first_hits(complete_graph_chain(peers), 0, [1], hops)
    one = contribution_rdp(alpha, ratio, hits)
    assert 0.0 <= one <= 0.5 * alpha * ratio**2 * (1 + 1e-12)  # never worse than seen at once
    assert contribution_rdp(alpha, ratio * 1.1, hits) >= one
    more = first_hits(complete_graph_chain(peers, observers=2), 0, [1], hops)
    assert contribution_rdp(alpha, ratio, more) >= one * (1 - 1e-12)
    hidden = contributions_rdp(alpha, ratio, hits, 5)
    assert hidden == pytest.approx(5 * one)
    all_direct = contributions_rdp(alpha, ratio, hits, 5, direct=5)
    assert all_direct == pytest.approx(5 * 0.5 * alpha * ratio**2)


def test_direct_hand_offs_are_not_amplified():
    hits = FirstHits(np.array([0.0, 0.0]), np.array([1.0, 0.0]))
    with pytest.raises(Refused, match="handed directly"):
        contributions_rdp(2.0, 1.0, hits, 2, direct=1)
    ring = first_hits(complete_graph_chain(50), 0, [1], 500)
    shown = contributions_rdp(2.0, 0.3, ring, 10, direct=2)
    hidden = contributions_rdp(2.0, 0.3, ring, 10)
    assert shown > hidden


def test_complete_walk_epsilon_is_below_no_amplification():
    epsilon = complete_walk_epsilon(1e-5, 0.1, 10, 60)
    from unwalk.privacy.visits import visits_rdp_epsilon

    assert epsilon < visits_rdp_epsilon(1e-5, 0.1, 60, 0.1)
    assert complete_walk_epsilon(1e-5, 0.1, 10, 60, observers=9) > epsilon


def test_bad_chains_are_refused():
    with pytest.raises(InvalidInput, match=r"row 1 sums to 0\.9"):
        first_hit_law([[0.5, 0.5], [0.5, 0.4]], 0, [1], 3)
    with pytest.raises(InvalidInput, match="none of them the"):
        first_hits([[0.5, 0.5], [0.5, 0.5]], 0, [0], 3)
    with pytest.raises(InvalidInput, match="start is"):
        walk_rdp(2.0, 1.0, [[0.5, 0.5], [0.5, 0.5]], 0, [1], 3, start=[0.5, 0.1])
