from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unwalk.core.errors import InvalidInput
from unwalk.walks import (
    Restart,
    Uniform,
    WalkGraph,
    chains,
    complete,
    from_edges,
    hitting_times,
    messages_per_hop,
    mixing_time,
    random_regular,
    receivers,
    restart_stationary,
    restart_travel,
    ring,
    simulate,
    spectral_gap,
    star,
    stationary,
    torus,
    visit_counts,
)
from unwalk.walks.__main__ import table

PATH = from_edges("path", 7, range(6), range(1, 7))
SMALL: list[WalkGraph] = [complete(7), ring(7), torus(8), star(7), PATH]


@pytest.mark.parametrize("graph", SMALL, ids=lambda graph: graph.kind)
def test_the_stationary_law_does_not_move(graph: WalkGraph) -> None:
    law = stationary(graph)
    assert law.sum() == pytest.approx(1.0)
    assert law @ chains.transition(graph) == pytest.approx(law)
    visited = visit_counts(receivers(simulate(graph, Uniform(), 8000, rng())), graph.peers)
    assert visited / 8000 == pytest.approx(law, abs=0.03)


def rng() -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=8))


def test_spectral_gaps_known_in_closed_form() -> None:
    assert spectral_gap(complete(10)) == pytest.approx(1 + 1 / 9)
    assert spectral_gap(complete(10), absolute=True) == pytest.approx(1 - 1 / 9)
    assert spectral_gap(ring(10)) == pytest.approx(1 - np.cos(2 * np.pi / 10))
    assert spectral_gap(star(10)) == pytest.approx(1.0)
    assert spectral_gap(torus(25)) == pytest.approx((1 - np.cos(2 * np.pi / 5)) / 2)
    for bipartite in (ring(10), star(10), PATH):
        assert spectral_gap(bipartite, absolute=True) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("graph", SMALL, ids=lambda graph: graph.kind)
@pytest.mark.parametrize("distance", [0.25, 0.01])
def test_the_mixing_time_is_the_first_hop_that_is_near(graph: WalkGraph, distance: float) -> None:
    lazy = (np.eye(graph.peers) + chains.transition(graph)) / 2
    hops, reached = 0, np.eye(graph.peers)
    while np.abs(reached - stationary(graph)).sum(axis=1).max() / 2 > distance:
        hops, reached = hops + 1, reached @ lazy
    assert mixing_time(graph, distance) == hops


def test_hitting_times_known_in_closed_form() -> None:
    assert hitting_times(ring(9), 0) == pytest.approx([k * (9 - k) for k in range(9)])
    assert hitting_times(star(6), 0) == pytest.approx([0, 1, 1, 1, 1, 1])
    assert hitting_times(star(6), 1) == pytest.approx([9, 0, 10, 10, 10, 10])
    assert hitting_times(PATH, 0) == pytest.approx([k * (12 - k) for k in range(7)])


@pytest.mark.parametrize("graph", SMALL, ids=lambda graph: graph.kind)
@pytest.mark.parametrize("u", [0, 2])
def test_restart_chains_match_the_route(graph: WalkGraph, u: int) -> None:
    p = 0.3
    moves = simulate(graph, Restart(u, p), 8000, rng(), at=u)
    shares = visit_counts(receivers(moves), graph.peers) / 8000
    law = restart_stationary(graph, u, p)
    assert shares == pytest.approx(law, abs=0.03)
    assert law[u] == pytest.approx(p)
    restarts = [len(move.path) for move in moves if move.receiver == u]
    assert np.mean(restarts) == pytest.approx(restart_travel(graph, u, p), abs=0.1)
    messages = np.mean([len(move.path) for move in moves])
    assert messages == pytest.approx(messages_per_hop(graph, u, p), abs=0.05)


def test_restarts_on_the_complete_graph_in_closed_form() -> None:
    assert restart_travel(complete(10), 4, 0.1) == pytest.approx(0.9)
    assert restart_travel(complete(10), 4, 1.0) == pytest.approx(0.0)
    # A hop sends nothing if it goes from u to u, or stays at one of the nine others.
    assert messages_per_hop(complete(10), 4, 0.2) == pytest.approx(1 - 0.2**2 - 0.8**2 / 9)


def test_random_regular_graphs_mix_fast() -> None:
    assert spectral_gap(random_regular(100, 6, rng())) > 0.2 > spectral_gap(ring(100))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: spectral_gap(ring(5000)), "peers is 5000; allowed for a transition matrix"),
        (lambda: restart_travel(complete(10**6), 0, 0.5), "peers is 1000000"),
        (lambda: hitting_times(ring(5), 5), "target is 5"),
        (lambda: restart_travel(ring(5), -1, 0.5), "unlearner is -1"),
        (lambda: restart_stationary(ring(5), 0, 0.0), "p is 0.0"),
        (lambda: mixing_time(ring(5), 0.0), "distance is 0.0"),
    ],
)
def test_bad_input_is_refused_by_name(make, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert words in str(caught.value)


def test_the_table_in_the_documentation_is_what_the_command_prints() -> None:
    page = Path(__file__).parents[2] / "docs" / "walks.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    printed = list(table())
    assert len(printed) == 14
    begin = lines.index(printed[0])
    assert lines[begin : begin + 14] == printed
