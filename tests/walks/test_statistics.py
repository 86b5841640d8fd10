from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unwalk.core.errors import InvalidInput
from unwalk.core.walking import Move
from unwalk.walks import (
    Fixed,
    Restart,
    complete,
    expected_visits,
    first_observation_delays,
    geometric_fit,
    receivers,
    ring,
    sightings,
    simulate,
    visit_counts,
)


def test_relays_are_seen_but_not_counted_as_visits() -> None:
    moves = simulate(ring(6), Fixed([0, 3, 3, 2]), 4, np.random.default_rng(0))
    assert visit_counts(receivers(moves), 6).tolist() == [1, 0, 1, 2, 0, 0]
    assert sightings(moves, 6).tolist() == [0, 1, 2, 1, 0, 0]


@given(st.lists(st.integers(0, 3), max_size=60))
def test_delays_are_the_ones_counted_by_hand(visited: list[int]) -> None:
    by_hand, firsts, last_end = [], [], -1
    for start, peer in enumerate(visited):
        if peer == 0 and 1 in visited[start:]:
            delay = visited[start:].index(1)
            by_hand.append(delay)
            if start > last_end:
                firsts.append(delay)
                last_end = start + delay
    assert first_observation_delays(visited, 0, 1).tolist() == by_hand
    assert first_observation_delays(visited, 0, 1, disjoint=True).tolist() == firsts


@given(
    peers=st.integers(2, 20),
    p=st.sampled_from([0.0, 1.0]) | st.floats(1e-6, 1),
    hops=st.integers(0, 80),
    cap=st.none() | st.integers(0, 100),
)
def test_expected_visits_match_the_binomial(
    peers: int, p: float, hops: int, cap: int | None
) -> None:
    mean = expected_visits(peers, peers - 1, p, hops, cap)
    outcomes = np.arange(hops + 1)
    spent = np.minimum(outcomes, hops if cap is None else cap)
    assert mean[-1] == pytest.approx(spent @ stats.binom.pmf(outcomes, hops, p), abs=1e-9)
    assert mean.sum() == pytest.approx(hops)
    assert np.ptp(mean[:-1]) == 0.0


def test_expected_visits_match_a_capped_simulation() -> None:
    rng = np.random.default_rng(1)
    walks = [simulate(complete(5), Restart(1, 0.2, 4), 25, rng) for _ in range(400)]
    mean = np.mean([visit_counts(receivers(moves), 5) for moves in walks], axis=0)
    expected = expected_visits(5, 1, 0.2, 25, 4)
    assert mean == pytest.approx(expected, abs=0.5)
    assert mean[1] == pytest.approx(expected[1], abs=0.2)
    assert expected[1] < 4.0


def test_geometric_samples_fit_and_others_do_not() -> None:
    rng = np.random.default_rng(2)
    for rate in (0.02, 0.1, 0.5, 0.9):
        fit = geometric_fit(rng.geometric(rate, 3000), rate)
        assert stats.chi2.sf(fit.chi_square, fit.degrees) > 1e-3
        assert abs(fit.mean_error) < 3.5
        assert fit.mean == pytest.approx(1 / rate, rel=0.1)
    shifted = geometric_fit(1 + rng.geometric(0.1, 3000), 0.1)
    assert stats.chi2.sf(shifted.chi_square, shifted.degrees) < 1e-9


def test_the_chi_square_is_pearsons() -> None:
    delays = [1] * 50 + [2] * 30 + [3] * 20
    fit = geometric_fit(delays, 0.5, smallest_bin=26)
    # Bins: 1, and 2 or more, since only 25 of 100 are expected above 2.
    assert fit.degrees == 1
    assert fit.chi_square == pytest.approx(0.0)
    fine = geometric_fit(delays, 0.5, smallest_bin=10)
    expected = [50, 25, 12.5, 12.5]
    assert fine.chi_square == pytest.approx(stats.chisquare([50, 30, 20, 0], expected).statistic)
    assert (fine.degrees, fine.count, fine.expected_mean) == (3, 100, 2.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: visit_counts([0, 4], 4), "visit 2 is at peer 4"),
        (lambda: visit_counts([-1], 4), "visit 1 is at peer -1"),
        (lambda: sightings([Move(1, (5, 1), {})], 4), "peer 5"),
        (lambda: first_observation_delays([0], 2, 2), "observer is 2, the unlearner"),
        (lambda: geometric_fit([1] * 20, 0.5), "there are 20 delays; allowed: at least 30"),
        (lambda: geometric_fit([1] * 99 + [0], 0.5), "a delay is 0"),
        (lambda: geometric_fit([1] * 50, 1.5), "rate is 1.5"),
        (lambda: geometric_fit([1] * 50, 0.95), "rate is 0.95: nearly all of 50"),
        (lambda: expected_visits(5, 5, 0.1, 9), "unlearner is 5"),
        (lambda: expected_visits(5, 0, 2.0, 9), "p is 2.0"),
        (lambda: expected_visits(5, 0, 0.5, 9, -1), "max_visits is -1"),
        (lambda: simulate(ring(5), Fixed([1]), -1, np.random.default_rng(0)), "hops is -1"),
    ],
)
def test_bad_input_is_refused_by_name(make, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert words in str(caught.value)
