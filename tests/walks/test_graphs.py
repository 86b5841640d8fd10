from __future__ import annotations

import pickle
import time
import tracemalloc

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unwalk.core.errors import InvalidInput
from unwalk.core.seeds import PublicSeeds
from unwalk.walks import graphs
from unwalk.walks.graphs import WalkGraph

EXAMPLES = settings(max_examples=60, deadline=None)


def generator(seed: int = 0) -> np.random.Generator:
    return PublicSeeds(seed).numpy("graph")


@st.composite
def any_graph(draw: st.DrawFn) -> WalkGraph:
    kind = draw(st.sampled_from(sorted(set(graphs.GRAPHS) - {"edge-list"})))
    seed = draw(st.integers(0, 1000))
    if kind == "torus":
        peers = draw(st.integers(2, 6)) * draw(st.integers(2, 6))
    else:
        peers = draw(st.integers(2, 30))
    degree = draw(st.integers(3, 6))
    if kind == "random-regular":
        peers = 2 * draw(st.integers(4, 15))
    return graphs.build(kind, peers, degree=degree, probability=0.6, rng=generator(seed))


def as_networkx(graph: WalkGraph) -> nx.Graph[int]:
    same: nx.Graph[int] = nx.Graph()
    same.add_nodes_from(range(graph.peers))
    same.add_edges_from(graph.edges())
    return same


@given(graph=any_graph())
@EXAMPLES
def test_adjacency_is_symmetric_connected_and_without_loops(graph: WalkGraph) -> None:
    rows = [graph.neighbours(v).tolist() for v in range(graph.peers)]
    for peer, near in enumerate(rows):
        assert near == sorted(set(near))
        assert peer not in near
        assert all(peer in rows[other] for other in near)
        assert graph.degree(peer) == graph.degrees()[peer] == len(near)
    same = as_networkx(graph)
    assert nx.is_connected(same)
    assert all(sorted(same[v]) == rows[v] for v in range(graph.peers))
    edges = list(graph.edges())
    assert edges == sorted(set(edges))
    assert all(a < b for a, b in edges)


@given(graph=any_graph(), data=st.data())
@EXAMPLES
def test_paths_are_shortest_and_take_the_lowest_peer(graph: WalkGraph, data: st.DataObject) -> None:
    source = data.draw(st.integers(0, graph.peers - 1))
    target = data.draw(st.integers(0, graph.peers - 1))
    same = as_networkx(graph)
    lengths = nx.single_source_shortest_path_length(same, target)
    assert graph.distances(target).tolist() == [lengths[v] for v in range(graph.peers)]
    path = graph.path(source, target)
    assert len(path) == lengths[source]
    at = source
    for peer in path:
        assert peer == min(v for v in same[at] if lengths[v] == lengths[at] - 1)
        at = peer
    assert at == target
    assert graph.path(source, target) == path


@given(graph=any_graph(), seed=st.integers(0, 1000))
@EXAMPLES
def test_random_neighbours_are_neighbours(graph: WalkGraph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for peer in range(graph.peers):
        assert graph.random_neighbour(peer, rng) in graph.neighbours(peer)


@pytest.mark.parametrize("graph", [graphs.complete(6), graphs.torus(6), graphs.star(6)])
def test_random_neighbours_are_uniform(graph: WalkGraph) -> None:
    rng = generator(1)
    drawn = np.bincount([graph.random_neighbour(0, rng) for _ in range(5000)], minlength=6)
    near = graph.neighbours(0)
    assert drawn.sum() == drawn[near].sum()
    expected = 5000 / len(near)
    assert np.all(np.abs(drawn[near] - expected) < 4.5 * np.sqrt(expected))


def test_the_families_are_what_their_names_say() -> None:
    assert nx.is_isomorphic(as_networkx(graphs.ring(7)), nx.cycle_graph(7))
    assert nx.is_isomorphic(as_networkx(graphs.star(7)), nx.star_graph(6))
    assert graphs.star(7).neighbours(0).tolist() == [1, 2, 3, 4, 5, 6]
    grid = nx.grid_2d_graph(3, 4, periodic=True)
    assert nx.is_isomorphic(as_networkx(graphs.torus(12)), grid)
    assert nx.is_isomorphic(as_networkx(graphs.complete(6)), nx.complete_graph(6))
    assert list(graphs.ring(2).edges()) == list(graphs.star(2).edges()) == [(0, 1)]
    assert list(graphs.torus(4).edges()) == [(0, 1), (0, 2), (1, 3), (2, 3)]


@given(peers=st.integers(2, 24), degree=st.integers(1, 23), seed=st.integers(0, 1000))
@settings(max_examples=150, deadline=None)
def test_random_regular_graphs_exist_wherever_they_can(peers: int, degree: int, seed: int) -> None:
    possible = degree < peers and peers * degree % 2 == 0 and (degree > 1 or peers == 2)
    if possible:
        graph = graphs.random_regular(peers, degree, generator(seed))
        assert set(graph.degrees().tolist()) == {degree}
    else:
        with pytest.raises(InvalidInput, match=str(degree)):
            graphs.random_regular(peers, degree, generator(seed))


def test_sparse_random_regular_graphs_are_uniform() -> None:
    # Of the 70 labelled cubic graphs on six peers 60 are prisms, which have triangles, and 10 are
    # K_{3,3}, which has none.
    rng = generator(6)
    drawn = [graphs.random_regular(6, 3, rng) for _ in range(1000)]
    prisms = sum(np.trace(np.linalg.matrix_power(dense(graph), 3)) > 0 for graph in drawn)
    assert abs(prisms / 1000 - 6 / 7) < 4 * np.sqrt(6 / 49 / 1000)
    assert len({tuple(graph.edges()) for graph in drawn}) == 70


def dense(graph: WalkGraph) -> np.ndarray:
    return np.array([np.isin(np.arange(graph.peers), graph.neighbours(v)) for v in range(6)], int)


def test_erdos_renyi_joins_the_right_share_of_pairs() -> None:
    rng = generator(3)
    for peers, chance in ((60, 0.5), (400, 0.05), (2000, 0.01)):
        pairs = peers * (peers - 1) / 2
        joined = len(list(graphs.erdos_renyi(peers, chance, rng).edges()))
        assert abs(joined - pairs * chance) < 4 * np.sqrt(pairs * chance * (1 - chance))
    full = graphs.erdos_renyi(9, 1.0, rng)
    assert list(full.edges()) == list(graphs.complete(9).edges())


def test_every_pair_of_an_erdos_renyi_graph_is_as_likely() -> None:
    rng = generator(4)
    counts = np.zeros((6, 6))
    for _ in range(600):
        a, b = np.transpose(list(graphs.erdos_renyi(6, 0.8, rng).edges()))
        counts[a, b] += 1
    upper = counts[np.triu_indices(6, 1)]
    assert np.all(np.abs(upper - upper.mean()) < 4.5 * np.sqrt(600 * 0.16))
    assert abs(upper.mean() / 600 - 0.8) < 0.02


@given(rank=st.integers(0, 2**50))
def test_pair_numbers_count_the_pairs_in_order(rank: int) -> None:
    (large,), (small,) = graphs._unrank(np.array([rank]))
    assert 0 <= small < large
    assert large * (large - 1) // 2 + small == rank


REGULAR = "01 03 06 12 17 25 27 34 37 45 46 56"
ERDOS_RENYI = "03 07 14 15 16 24 34 37 67"


def test_random_graphs_are_the_same_in_every_version() -> None:
    seeds = PublicSeeds(20)
    regular = graphs.random_regular(8, 3, seeds.numpy("graph"))
    assert " ".join(f"{a}{b}" for a, b in regular.edges()) == REGULAR
    joined = graphs.erdos_renyi(8, 0.3, seeds.numpy("graph"))
    assert " ".join(f"{a}{b}" for a, b in joined.edges()) == ERDOS_RENYI


def test_edge_lists_are_read(tmp_path) -> None:
    file = tmp_path / "net.txt"
    file.write_text("# a square\n0 1\n\n1 2  # a diagonal comes later\n2\t3\n3 0\n1 0\n0 2\n")
    graph = graphs.from_edge_list(file)
    assert (graph.kind, graph.peers) == ("edge-list", 4)
    assert list(graph.edges()) == [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]
    assert graphs.build("edge-list", 4, path=file).peers == 4
    assert graphs.build("edge-list", path=str(file)).peers == 4
    with pytest.raises(InvalidInput, match=r"peers is 5 but .*net\.txt names 4"):
        graphs.build("edge-list", 5, path=file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 1\n1\n", "line 2 is '1'"),
        ("0 1\n\n# x\n1 2 3\n", "line 4 is '1 2 3'"),
        ("0 one\n", "line 1 is '0 one'"),
        ("0 -1\n", "line 1 is '0 -1'"),
        ("0 1.5\n", "line 1 is '0 1.5'"),
        ("0 ٣\n", "line 1 is '0 ٣'"),
        ("0 1\n1 1\n", "line 2 is '1 1'"),
        ("0 1\n1 99999999999999999999\n", "line 2 is '1 99999999999999999999'"),
        ("0 1\n1 3\n", "names peer 3 but not peer 2"),
        ("0 1\n1 999999999999\n", "names peer 999999999999 but not peer 2"),
        ("1 2\n", "names peer 2 but not peer 0"),
        ("# nothing\n", "holds no edge"),
        ("0 1\n2 3\n4 5\n", "falls apart into 3 components: peer 2 cannot be reached from peer 0"),
    ],
)
def test_bad_edge_lists_are_refused_by_line(tmp_path, text: str, words: str) -> None:
    file = tmp_path / "net.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput) as caught:
        graphs.from_edge_list(file)
    assert words in str(caught.value)


def test_unreadable_edge_lists_are_refused(tmp_path) -> None:
    with pytest.raises(InvalidInput, match=r"missing\.txt' cannot be read: No such file"):
        graphs.from_edge_list(tmp_path / "missing.txt")
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        graphs.from_edge_list(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe0 1")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        graphs.from_edge_list(tmp_path / "bytes")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: graphs.complete(1), "peers is 1; allowed: a whole number, 2 or more"),
        (lambda: graphs.ring(0), "peers is 0"),
        (lambda: graphs.star(True), "peers is True"),
        (lambda: graphs.ring(5.0), "peers is 5.0"),  # type: ignore[arg-type]
        (lambda: graphs.torus(3), "peers is 3"),
        (lambda: graphs.torus(13), "peers is 13, a prime"),
        (lambda: graphs.random_regular(5, 3, generator()), "graph.degree is 3 for 5 peers"),
        (lambda: graphs.random_regular(5, 5, generator()), "graph.degree is 5; allowed: a whole"),
        (lambda: graphs.random_regular(5, 0, generator()), "graph.degree is 0"),
        (lambda: graphs.random_regular(6, 1, generator()), "graph.degree 1 came up in 100 draws"),
        (lambda: graphs.random_regular(2**20, 2**10, generator()), "5.37e+08 edges"),
        (lambda: graphs.erdos_renyi(9, 0.0, generator()), "graph.probability is 0.0"),
        (lambda: graphs.erdos_renyi(9, 1.5, generator()), "graph.probability is 1.5"),
        (lambda: graphs.erdos_renyi(9, float("nan"), generator()), "graph.probability is nan"),
        (lambda: graphs.erdos_renyi(50, 1e-3, generator()), "graph.probability 0.001 came up in"),
        (lambda: graphs.erdos_renyi(50, 1e-300, generator()), "graph.probability 1e-300 came up"),
        (lambda: graphs.erdos_renyi(10**6, 0.5, generator()), "2.5e+11 edges"),
        (lambda: graphs.build("cirlce", 5), "graph.kind is 'cirlce'; allowed: complete"),
        (lambda: graphs.build("strar", 5), "(did you mean star?)"),
        (lambda: graphs.build("ring"), "peers is missing; graph.kind 'ring' needs it"),
        (lambda: graphs.build("random-regular", 6, rng=generator()), "graph.degree is missing"),
        (lambda: graphs.build("erdos-renyi", 6, rng=generator()), "graph.probability is missing"),
        (lambda: graphs.build("erdos-renyi", 6, probability=0.9), "(rng) is missing"),
        (lambda: graphs.build("random-regular", 6, degree=3), "(rng) is missing"),
        (lambda: graphs.build("edge-list", 6), "graph.path is missing"),
        (lambda: graphs.ring(5).neighbours(5), "peer 5 is not in the graph"),
        (lambda: graphs.ring(5).degree(-1), "peer -1 is not in the graph"),
        (lambda: graphs.ring(5).path(0, 9), "peer 9 is not in the graph"),
        (lambda: graphs.ring(5).path(-1, 0), "peer -1 is not in the graph"),
        (lambda: graphs.complete(5).random_neighbour(-1, generator()), "peer -1 is not in"),
        (lambda: graphs.from_edges("own", 3, [0, 1], [1, 3]), "peer 3 is not in the graph"),
        (lambda: graphs.from_edges("own", 3, [0, 1], [1, 1]), "joins peer 1 to itself"),
        (lambda: graphs.from_edges("own", 3, [0], [1, 2]), "shapes (1,) and (2,)"),
    ],
)
def test_bad_input_is_refused_by_name(make, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")


def test_next_hop_tables_are_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graphs.ring(12)
    assert graph.next_hops(3) is graph.next_hops(3)
    monkeypatch.setattr(graphs, "_NEXT_HOP_ENTRIES", 12)
    for target in range(12):
        assert graph.path((target + 2) % 12, target)[-1] == target
    assert len(graph._next_hops) == 8


def test_graphs_survive_pickling_and_cannot_be_written_to() -> None:
    graph = graphs.torus(12)
    graph.path(0, 7)
    copy = pickle.loads(pickle.dumps(graph))
    assert copy.kind == "torus"
    assert list(copy.edges()) == list(graph.edges())
    with pytest.raises(ValueError, match="read-only"):
        graph.neighbours(0)[0] = 5


def test_a_hundred_thousand_peers_are_cheap() -> None:
    peers = 100_000
    rng = generator(5)
    tracemalloc.start()
    everyone = graphs.complete(peers)
    for _ in range(1000):
        everyone.random_neighbour(77_777, rng)
    assert everyone.path(0, 99_999) == (99_999,)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()

    begun = time.perf_counter()
    for graph in (
        graphs.ring(peers),
        graphs.torus(peers),
        graphs.star(peers),
        graphs.random_regular(peers, 4, rng),
        graphs.random_regular(peers, 10, rng),
        graphs.erdos_renyi(peers, 3e-4, rng),
    ):
        assert graph.peers == peers
        for _ in range(1000):
            graph.random_neighbour(0, rng)
    circle = graphs.ring(peers)
    assert len(circle.path(50_000, 0)) == 50_000
    assert time.perf_counter() - begun < 30.0
