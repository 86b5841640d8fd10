from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from unwalk.core.errors import InvalidInput
from unwalk.core.seeds import PublicSeeds
from unwalk.core.walking import Graph, Move, Route
from unwalk.walks import (
    Among,
    Fixed,
    Restart,
    SparseGraph,
    Uniform,
    UniformPeer,
    complete,
    first_observation_delays,
    from_edges,
    geometric_fit,
    receivers,
    ring,
    simulate,
    star,
    torus,
    visit_counts,
)

ROUTES: list[Route] = [
    Uniform(),
    UniformPeer(),
    Restart(2, 0.3),
    Restart(2, 0.3, max_visits=1),
    Restart(0, 1.0),
    Restart(0, 0.0),
    Fixed([3, 3, 0, 5] * 10),
    Among([1, 4, 6]),
]
GRAPHS: list[Graph] = [
    complete(8), ring(8), torus(8), star(8), from_edges("path", 8, range(7), range(1, 8))
]  # fmt: skip


def philox(key: int = 11) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key))


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.kind)
@pytest.mark.parametrize("route", ROUTES, ids=repr)
def test_every_message_runs_along_an_edge_and_ends_at_the_receiver(
    graph: Graph, route: Route
) -> None:
    at = -1
    for move in simulate(graph, route, 40, philox()):
        if at == -1:
            assert move.path == ()
        for peer in move.path:
            assert peer in graph.neighbours(at)
            at = peer
        at = move.receiver if at == -1 else at
        assert at == move.receiver


@pytest.mark.parametrize("route", ROUTES, ids=repr)
def test_memory_is_returned_and_never_changed(route: Route) -> None:
    memory: Mapping[str, int] = {"other": 7}
    move = route.next(ring(8), 4, memory, philox())
    assert memory == {"other": 7}
    assert move.memory["other"] == 7
    assert all(type(value) is int for value in (move.receiver, *move.path, *move.memory.values()))


def test_uniform_starts_anywhere_and_goes_to_any_neighbour() -> None:
    graph, rng = ring(5), philox()
    starts = [Uniform().next(graph, -1, {}, rng).receiver for _ in range(4000)]
    assert stats.chisquare(visit_counts(starts, 5)).pvalue > 1e-3
    moves = [Uniform().next(graph, 0, {}, rng) for _ in range(4000)]
    assert {move.path for move in moves} == {(1,), (4,)}
    assert abs(sum(move.receiver == 1 for move in moves) - 2000) < 4 * np.sqrt(1000)


def test_uniform_peer_draws_from_everyone_and_travels() -> None:
    graph, rng = ring(6), philox()
    moves = [UniformPeer().next(graph, 0, {}, rng) for _ in range(6000)]
    assert stats.chisquare(visit_counts(receivers(moves), 6)).pvalue > 1e-3
    assert {move.path for move in moves} == {(), (1,), (1, 2), (1, 2, 3), (5, 4), (5,)}
    assert UniformPeer().next(complete(6), 0, {}, rng).path in {(), (1,), (2,), (3,), (4,), (5,)}


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_restart_on_the_complete_graph_is_the_papers_rule(p: float) -> None:
    peers, u, hops = 10, 3, 12_000
    moves = simulate(complete(peers), Restart(u, p), hops, philox(), at=0)
    visited = receivers(moves)
    counts = visit_counts(visited, peers)
    assert stats.binomtest(int(counts[u]), hops, p).pvalue > 1e-3
    assert stats.chisquare(np.delete(counts, u)).pvalue > 1e-3
    # Each hop is independent of the holder: staying is as likely as any other peer of V \ {u}.
    holders = np.append(0, visited[:-1])
    away = (holders != u) & (visited != u)
    stays = int(np.sum(away & (visited == holders)))
    assert stats.binomtest(stays, int(away.sum()), 1 / (peers - 1)).pvalue > 1e-3
    assert all(
        move.path == (() if move.receiver == at else (move.receiver,))
        for at, move in zip(holders, moves, strict=True)
    )
    assert moves[-1].memory == {"visits": counts[u]}


@pytest.mark.parametrize("p", [0.1, 0.4])
def test_the_first_observation_delay_is_geometric(p: float) -> None:
    peers, u, v = 6, 0, 4
    visited = receivers(simulate(complete(peers), Restart(u, p), 40_000, philox(5)))
    rate = (1 - p) / (peers - 1)
    fit = geometric_fit(first_observation_delays(visited, u, v, disjoint=True), rate)
    assert fit.count > 1500
    assert fit.degrees >= 10
    assert abs(fit.mean_error) < 3.3
    assert stats.chi2.sf(fit.chi_square, fit.degrees) > 1e-3
    wrong = geometric_fit(first_observation_delays(visited, u, v, disjoint=True), 1.2 * rate)
    assert stats.chi2.sf(wrong.chi_square, wrong.degrees) < 1e-6
    every = first_observation_delays(visited, u, v)
    assert abs(every.mean() * rate - 1) < 0.06


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.kind)
def test_u_is_visited_with_probability_p_on_every_graph(graph: Graph) -> None:
    visited = receivers(simulate(graph, Restart(2, 0.25), 4000, philox()))
    assert stats.binomtest(int(np.sum(visited == 2)), 4000, 0.25).pvalue > 1e-3


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.kind)
@pytest.mark.parametrize("u", [0, 3])
def test_the_ends_of_p(graph: Graph, u: int) -> None:
    never = simulate(graph, Restart(u, 0.0), 200, philox())
    assert u not in receivers(never)
    assert never[-1].memory["visits"] == 0
    always = simulate(graph, Restart(u, 1.0), 20, philox(), at=5)
    assert set(receivers(always)) == {u}
    assert always[0].path == graph.path(5, u)
    assert all(move.path == () for move in always[1:])


def test_a_restart_travels_round_the_ring() -> None:
    go = Restart(0, 1.0)
    assert go.next(ring(9), 4, {}, philox()) == Move(0, (3, 2, 1, 0), {"visits": 1})
    assert go.next(ring(9), 5, {}, philox()).path == (6, 7, 8, 0)
    assert go.next(ring(8), 4, {}, philox()).path == (3, 2, 1, 0)
    assert go.next(ring(9), 0, {"visits": 4}, philox()) == Move(0, (), {"visits": 5})


def test_a_restart_passes_the_centre_of_a_star() -> None:
    assert Restart(3, 1.0).next(star(6), 5, {}, philox()).path == (0, 3)
    assert Restart(0, 1.0).next(star(6), 5, {}, philox()).path == (0,)


def test_elsewhere_is_a_uniform_neighbour_other_than_u() -> None:
    graph, rng = torus(16), philox()
    near = graph.neighbours(5).tolist()
    assert near == [1, 4, 6, 9]
    for u, allowed in ((4, [1, 6, 9]), (9, [1, 4, 6]), (1, [4, 6, 9]), (15, near), (5, near)):
        moves = [Restart(u, 0.0).next(graph, 5, {}, rng) for _ in range(2000)]
        assert all(move.path == (move.receiver,) for move in moves)
        counts = visit_counts(receivers(moves), 16)
        assert counts[allowed].sum() == 2000
        assert stats.chisquare(counts[allowed]).pvalue > 1e-3


def test_a_leaf_of_u_is_relayed_through_u_without_a_visit() -> None:
    graph, rng = star(6), philox()
    moves = [Restart(0, 0.0).next(graph, 2, {}, rng) for _ in range(3000)]
    assert {move.path for move in moves} == {(0, leaf) for leaf in range(1, 6)}
    assert all(move.receiver == move.path[-1] and move.memory["visits"] == 0 for move in moves)
    assert stats.chisquare(visit_counts(receivers(moves), 6)[1:]).pvalue > 1e-3


def test_two_peers_hand_the_token_back_through_u() -> None:
    assert Restart(1, 0.0).next(ring(2), 0, {}, philox()) == Move(0, (1, 0), {"visits": 0})
    assert Restart(1, 0.0).next(complete(2), 0, {}, philox()) == Move(0, (), {"visits": 0})


def test_nobody_holds_the_token_at_first() -> None:
    graph, rng = star(5), philox()
    firsts = [Restart(2, 0.5).next(graph, -1, {}, rng) for _ in range(4000)]
    assert all(move.path == () for move in firsts)
    counts = visit_counts(receivers(firsts), 5)
    expected = np.array([500, 500, 2000, 500, 500])
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    assert all(move.memory["visits"] == (move.receiver == 2) for move in firsts)


@given(cap=st.integers(0, 12), p=st.floats(0, 1), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_visits_are_capped_and_the_coin_is_drawn_all_the_same(
    cap: int, p: float, seed: int
) -> None:
    graph, u, memory = torus(9), 4, {"visits": 0}
    capped: list[int] = []
    coins = []
    for hop in range(1, 41):
        rng = PublicSeeds(seed).numpy("route", hop)
        coins.append(PublicSeeds(seed).numpy("route", hop).random() < p)
        move = Restart(u, p, max_visits=cap).next(graph, capped[-1] if capped else 0, memory, rng)
        memory = dict(move.memory)
        capped.append(move.receiver)
    shown = np.flatnonzero(coins)[:cap].tolist()
    assert [hop for hop, peer in enumerate(capped) if peer == u] == shown
    assert memory["visits"] == len(shown)


def test_relays_through_u_do_not_spend_the_cap() -> None:
    route = Restart(0, 0.5, max_visits=3)
    moves = simulate(star(5), route, 300, philox())
    assert sum(move.receiver == 0 for move in moves) == 3 == moves[-1].memory["visits"]
    assert sum(0 in move.path[:-1] for move in moves) > 100


def test_a_fixed_route_follows_its_list() -> None:
    moves = simulate(ring(6), Fixed([4, 4, 1]), 3, philox())
    assert [move.receiver for move in moves] == [4, 4, 1]
    assert [move.path for move in moves] == [(), (), (3, 2, 1)]
    with pytest.raises(InvalidInput, match=r"hop 4 of a fixed route .* up to 3"):
        simulate(ring(6), Fixed([4, 4, 1]), 4, philox())
    assert Fixed([1, 2]) == Fixed((1, 2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Restart(0, -0.1), "p is -0.1; allowed: a number in [0, 1]"),
        (lambda: Restart(0, 1.1), "p is 1.1"),
        (lambda: Restart(0, float("nan")), "p is nan"),
        (lambda: Restart(0, "0.5"), "p is '0.5'"),  # type: ignore[arg-type]
        (lambda: Restart(-1, 0.5), "unlearner is -1"),
        (lambda: Restart(1.0, 0.5), "unlearner is 1.0"),  # type: ignore[arg-type]
        (lambda: Restart(0, 0.5, max_visits=-2), "max_visits is -2"),
        (lambda: Restart(9, 0.5).next(ring(9), 0, {}, philox()), "unlearner is 9; allowed: a w"),
        (lambda: Fixed([]), "sequence is empty"),
        (lambda: Fixed([0, -4]), "sequence[1] is -4"),
        (lambda: Fixed([9]).next(ring(9), 0, {}, philox()), "sequence[0] is 9; allowed: a whole"),
        (lambda: Uniform().next(ring(9), 9, {}, philox()), "peer 9 is not in the graph"),
        (lambda: Restart(0, 0.5).next(complete(9), 9, {}, philox()), "peer 9 is not in the graph"),
    ],
)
def test_bad_input_is_refused_by_name(make, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert words in str(caught.value)


GOLDEN = {
    "uniform-complete": "272687483507840431952317472613 in 29 messages",
    "uniform-torus": "272389595616761232761016594321 in 29 messages",
    "anyone-complete": "272688483507841331952327572512 in 27 messages",
    "anyone-ring": "272688483507841331952327572512 in 84 messages",
    "restart-complete": "264503417123283311390910132320 in 27 messages",
    "restart-ring": "212121321212132133432132134343 in 33 messages",
    "restart-star": "364510427230380022091921203031 in 44 messages",
    "restart-capped": "276503405013276167878721212767 in 31 messages",
}


def golden_walks() -> dict[str, str]:
    walks: dict[str, tuple[Graph, Route]] = {
        "uniform-complete": (complete(10), Uniform()),
        "uniform-torus": (torus(10), Uniform()),
        "anyone-complete": (complete(10), UniformPeer()),
        "anyone-ring": (ring(10), UniformPeer()),
        "restart-complete": (complete(10), Restart(3, 0.25)),
        "restart-ring": (ring(10), Restart(3, 0.25)),
        "restart-star": (star(10), Restart(0, 0.25)),
        "restart-capped": (torus(10), Restart(3, 0.25, max_visits=2)),
    }
    shown = {}
    for name, (graph, route) in walks.items():
        moves = simulate(graph, route, 30, philox(2024))
        visited = "".join(str(move.receiver) for move in moves)
        shown[name] = f"{visited} in {sum(len(move.path) for move in moves)} messages"
    return shown


def test_routes_are_the_same_in_every_version() -> None:
    assert golden_walks() == GOLDEN


def test_a_hop_costs_the_same_among_a_hundred_thousand_peers() -> None:
    peers = 100_000
    begun = time.perf_counter()
    for graph in (complete(peers), ring(peers), star(peers)):
        assert len(simulate(graph, Uniform(), 2000, philox())) == 2000
    everyone = simulate(complete(peers), Restart(5, 0.1), 2000, philox())
    assert 120 < sum(move.receiver == 5 for move in everyone) < 290
    wide = ring(peers)
    assert isinstance(wide, SparseGraph)
    round_the_ring = simulate(wide, Restart(5, 0.01), 2000, philox(), at=50_005)
    longest = max(len(move.path) for move in round_the_ring)
    assert 49_000 < longest <= 50_000
    assert time.perf_counter() - begun < 20.0
