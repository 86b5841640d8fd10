"""The graphs a token can walk on: how they are stored, and the named ones.

Peers are numbered 0 to N - 1, edges are undirected, without loops and without repeats.  A graph is
complete, which stores no edges, or compressed sparse rows, built with array operations, so that
100,000 peers take a fraction of a second.  Every graph here is connected; one that is not is
refused with the name of an unreachable peer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy

from unwalk.core.errors import InvalidInput
from unwalk.core.seeds import Draws, Streams
from unwalk.core.validation import check_choice, check_count, check_number

Peers = npt.NDArray[np.int64]

LARGEST_EDGE_COUNT = 50_000_000
"""Explicit graphs above this many edges are refused; ``complete`` stores none."""

_NEXT_HOP_ENTRIES = 1 << 22  # cached next-hop tables hold about this many peers together


def _check_peer(peer: int, peers: int) -> None:
    if not 0 <= peer < peers:
        raise InvalidInput(
            f"peer {peer} is not in the graph; allowed: a whole number, 0 to {peers - 1}."
        )


@dataclass(frozen=True)
class CompleteGraph:
    """Everyone may hand the token to everyone; no edge is stored.

    >>> graph = CompleteGraph(100_000)
    >>> graph.path(3, 99_999)
    (99999,)
    >>> CompleteGraph(4).neighbours(1).tolist()
    [0, 2, 3]
    """

    peers: int
    kind: str = field(default="complete", init=False)
    complete: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        check_count("peers", self.peers, low=2)

    def degree(self, peer: int) -> int:
        """Number of neighbours of ``peer``: N - 1."""
        _check_peer(peer, self.peers)
        return self.peers - 1

    def degrees(self) -> Peers:
        """Number of neighbours of every peer."""
        return np.full(self.peers, self.peers - 1, dtype=np.int64)

    def neighbours(self, peer: int) -> Peers:
        """Everyone but ``peer``, ascending; builds an array of N - 1 numbers."""
        _check_peer(peer, self.peers)
        everyone = np.arange(self.peers - 1, dtype=np.int64)
        everyone[peer:] += 1
        return everyone

    def random_neighbour(self, peer: int, rng: Draws) -> int:
        """A uniformly random other peer."""
        _check_peer(peer, self.peers)
        drawn = int(rng.integers(self.peers - 1))
        return drawn + (drawn >= peer)

    def random_neighbours(self, peers: Peers, rngs: Streams) -> Peers:
        """A uniformly random other peer for each."""
        drawn = rngs.integers(self.peers - 1)
        return drawn + (drawn >= peers)

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """One message, or none if the token is already there."""
        _check_peer(source, self.peers)
        _check_peer(target, self.peers)
        return () if source == target else (target,)

    def distances(self, target: int) -> Peers:
        """Length of a shortest path from every peer to ``target``: 1, and 0 for itself."""
        _check_peer(target, self.peers)
        distances = np.ones(self.peers, dtype=np.int64)
        distances[target] = 0
        return distances

    def edges(self) -> Iterator[tuple[int, int]]:
        """Every pair (a, b) with a < b, one after the other."""
        return itertools.combinations(range(self.peers), 2)


@dataclass(frozen=True, eq=False)
class SparseGraph:
    """Neighbours of peer v are ``indices[indptr[v]:indptr[v + 1]]``, ascending.

    Make one with :func:`from_edges`, which removes repeats and checks that the graph is connected.
    """

    kind: str
    indptr: Peers = field(repr=False)
    indices: Peers = field(repr=False)
    complete: bool = field(default=False, init=False)
    _next_hops: dict[int, Peers] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for array in (self.indptr, self.indices):
            array.setflags(write=False)

    def __reduce__(self) -> tuple[type[SparseGraph], tuple[str, Peers, Peers]]:
        return SparseGraph, (self.kind, self.indptr, self.indices)

    @property
    def peers(self) -> int:
        return len(self.indptr) - 1

    def degree(self, peer: int) -> int:
        """Number of neighbours of ``peer``."""
        _check_peer(peer, self.peers)
        return int(self.indptr[peer + 1] - self.indptr[peer])

    def degrees(self) -> Peers:
        """Number of neighbours of every peer."""
        return np.diff(self.indptr)

    def neighbours(self, peer: int) -> Peers:
        """Neighbours of ``peer``, ascending; a view that cannot be written to."""
        _check_peer(peer, self.peers)
        return self.indices[self.indptr[peer] : self.indptr[peer + 1]]

    def random_neighbour(self, peer: int, rng: Draws) -> int:
        """A uniformly random neighbour, in O(1)."""
        near = self.neighbours(peer)
        return int(near[rng.integers(len(near))])

    def random_neighbours(self, peers: Peers, rngs: Streams) -> Peers:
        """A uniformly random neighbour of each."""
        first = self.indptr[peers]
        drawn: Peers = self.indices[first + rngs.integers(self.indptr[peers + 1] - first)]
        return drawn

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """The shortest path without its source; of equal ones the lowest next peer wins."""
        _check_peer(source, self.peers)
        hops = self.next_hops(target)
        path = []
        while source != target:
            source = int(hops[source])
            path.append(source)
        return tuple(path)

    def next_hops(self, target: int) -> Peers:
        """For every peer, whom it hands the token to on the way to ``target``.

        Computed once per target, in O(N + edges), and kept; large graphs keep the latest few.
        """
        _check_peer(target, self.peers)
        table = self._next_hops.get(target)
        if table is None:
            table = self._towards(target)
            if len(self._next_hops) >= max(8, _NEXT_HOP_ENTRIES // self.peers):
                self._next_hops.pop(next(iter(self._next_hops)), None)
            self._next_hops[target] = table
        return table

    def distances(self, target: int) -> Peers:
        """Length of a shortest path from every peer to ``target``."""
        _check_peer(target, self.peers)
        order, parents = scipy.sparse.csgraph.breadth_first_order(
            self._matrix(), target, directed=True
        )
        distances = [0] * self.peers
        for peer, parent in zip(order[1:].tolist(), parents[order[1:]].tolist(), strict=True):
            distances[peer] = distances[parent] + 1
        return np.array(distances, dtype=np.int64)

    def _towards(self, target: int) -> Peers:
        distance = self.distances(target)
        nearer = distance[self.indices] == np.repeat(distance, self.degrees()) - 1
        candidates = np.where(nearer, self.indices, self.peers)
        table = np.minimum.reduceat(candidates, self.indptr[:-1])
        table[target] = target
        return table

    def _matrix(self) -> scipy.sparse.csr_array:
        ones = np.ones(len(self.indices), dtype=np.int8)
        return scipy.sparse.csr_array(
            (ones, self.indices, self.indptr), shape=(self.peers, self.peers)
        )

    def edges(self) -> Iterator[tuple[int, int]]:
        """Every edge (a, b) with a < b, in ascending order."""
        tails = np.repeat(np.arange(self.peers, dtype=np.int64), self.degrees())
        once = tails < self.indices
        return zip(tails[once].tolist(), self.indices[once].tolist(), strict=True)


WalkGraph = CompleteGraph | SparseGraph


def check_edge_count(count: float, what: str) -> None:
    """Refuse an explicit graph that would not fit in memory, before it is built."""
    if count > LARGEST_EDGE_COUNT:
        raise InvalidInput(
            f"{what} would store about {count:.3g} edges; allowed: up to {LARGEST_EDGE_COUNT:,} "
            "(the complete graph stores none)."
        )


def compress(kind: str, peers: int, a: Peers, b: Peers) -> SparseGraph:
    """The edges {a[i], b[i]} as sparse rows; repeats are merged, connectivity is not checked."""
    keys = np.sort(np.concatenate([a * peers + b, b * peers + a]))
    keys = keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys
    tails, heads = np.divmod(keys, peers)
    indptr = np.zeros(peers + 1, dtype=np.int64)
    np.cumsum(np.bincount(tails, minlength=peers), out=indptr[1:])
    return SparseGraph(kind, indptr, heads)


def unreached(graph: SparseGraph) -> tuple[int, int | None]:
    """Number of components, and the lowest peer that peer 0 cannot reach (None: there is none)."""
    count, labels = scipy.sparse.csgraph.connected_components(graph._matrix(), directed=False)
    apart = np.flatnonzero(labels != labels[0])
    return int(count), int(apart[0]) if len(apart) else None


def from_edges(kind: str, peers: int, a: npt.ArrayLike, b: npt.ArrayLike) -> SparseGraph:
    """A connected graph with the edges {a[i], b[i]}.

    >>> graph = from_edges("path", 4, [0, 1, 2], [1, 2, 3])
    >>> graph.path(3, 0)
    (2, 1, 0)
    >>> from_edges("broken", 4, [0, 2], [1, 3])
    Traceback (most recent call last):
    ...
    unwalk.core.errors.InvalidInput: the broken graph falls apart into 2 components: peer 2 cannot \
be reached from peer 0.
    """
    check_count("peers", peers, low=2)
    tails, heads = np.asarray(a, dtype=np.int64), np.asarray(b, dtype=np.int64)
    if tails.shape != heads.shape or tails.ndim != 1:
        raise InvalidInput(
            f"the {kind} graph's edge ends have shapes {tails.shape} and {heads.shape}; "
            "allowed: two lists of the same length."
        )
    check_edge_count(len(tails), f"the {kind} graph")
    for end in (tails, heads):
        outside = np.flatnonzero((end < 0) | (end >= peers))
        if len(outside):
            _check_peer(int(end[outside[0]]), peers)
    loops = np.flatnonzero(tails == heads)
    if len(loops):
        raise InvalidInput(
            f"the {kind} graph joins peer {tails[loops[0]]} to itself; "
            "allowed: two different peers."
        )
    graph = compress(kind, peers, tails, heads)
    components, apart = unreached(graph)
    if apart is not None:
        raise InvalidInput(
            f"the {kind} graph falls apart into {components} components: "
            f"peer {apart} cannot be reached from peer 0."
        )
    return graph


Value = TypeVar("Value")

TRIES = 100
"""A random graph that falls apart is drawn again, at most this often."""


def complete(peers: int) -> CompleteGraph:
    """Everyone may reach everyone: the paper's setting."""
    return CompleteGraph(peers)


def ring(peers: int) -> SparseGraph:
    """Peer v is next to v - 1 and v + 1, around the circle.

    >>> ring(5).neighbours(0).tolist()
    [1, 4]
    """
    check_count("peers", peers, low=2)
    here = np.arange(peers, dtype=np.int64)
    return from_edges("ring", peers, here, (here + 1) % peers)


def torus_sides(peers: int) -> tuple[int, int]:
    """The most square rows x columns with both at least 2.

    >>> torus_sides(12), torus_sides(10)
    ((3, 4), (2, 5))
    """
    check_count("peers", peers, low=4)
    for rows in range(math.isqrt(peers), 1, -1):
        if peers % rows == 0:
            return rows, peers // rows
    raise InvalidInput(
        f"peers is {peers}, a prime; allowed for a torus: rows x columns with both at least 2, "
        f"such as {peers - 1} or {peers + 1}."
    )


def torus(peers: int) -> SparseGraph:
    """A grid of rows x columns whose borders are joined; peer = row * columns + column."""
    rows, columns = torus_sides(peers)
    here = np.arange(peers, dtype=np.int64)
    row, column = np.divmod(here, columns)
    right = row * columns + (column + 1) % columns
    below = (row + 1) % rows * columns + column
    return from_edges("torus", peers, np.concatenate([here, here]), np.concatenate([right, below]))


def star(peers: int) -> SparseGraph:
    """Peer 0 in the middle; every other peer is next to it only."""
    check_count("peers", peers, low=2)
    leaves = np.arange(1, peers, dtype=np.int64)
    return from_edges("star", peers, np.zeros_like(leaves), leaves)


def random_regular(peers: int, degree: int, rng: np.random.Generator) -> SparseGraph:
    """A random connected graph where everyone has ``degree`` neighbours.

    Drawn through the complement where that is sparser.  Up to degree 4 (of the sparser one) random
    pairings of stubs are drawn until one has neither loops nor repeats: exactly uniform.  Above,
    that takes too long, and rejected pairs are paired again: uniform only for many peers (after
    Steger and Wormald 1999).
    """
    check_count("peers", peers, low=2)
    check_count("graph.degree", degree, low=1, high=peers - 1)
    if peers * degree % 2:
        raise InvalidInput(
            f"graph.degree is {degree} for {peers} peers; "
            "allowed: a degree such that peers x degree is even."
        )
    check_edge_count(peers * degree / 2, "the random-regular graph")
    for _ in range(TRIES):
        keys = _regular_edges(peers, degree, rng)
        if keys is None:
            continue
        graph = compress("random-regular", peers, *np.divmod(keys, peers))
        if unreached(graph)[1] is None:
            return graph
    raise InvalidInput(
        f"no connected graph of {peers} peers with graph.degree {degree} came up in {TRIES} draws; "
        "a degree of 3 or more nearly always connects."
    )


def _regular_edges(peers: int, degree: int, rng: np.random.Generator) -> Peers | None:
    """Keys a * N + b (a < b) of a random regular graph; None when the pairing got stuck."""
    if 2 * degree > peers - 1:
        absent = _regular_edges(peers, peers - 1 - degree, rng)
        if absent is None:
            return None
        a, b = np.triu_indices(peers, 1)
        return np.setdiff1d(a.astype(np.int64) * peers + b, absent, assume_unique=True)
    stubs = np.repeat(np.arange(peers, dtype=np.int64), degree)
    return _paired_at_once(peers, stubs, rng) if degree <= 4 else _paired(peers, stubs, rng)


def _paired_at_once(peers: int, stubs: Peers, rng: np.random.Generator) -> Peers | None:
    """The first random pairing without loops and repeats: about 1 in 43 at degree 4."""
    for _ in range(20 * TRIES):
        a, b = rng.permutation(stubs).reshape(2, -1)
        if np.any(a == b):
            continue
        keys = np.sort(np.minimum(a, b) * peers + np.maximum(a, b))
        if np.all(keys[1:] != keys[:-1]):
            return keys
    return None


def _paired(peers: int, stubs: Peers, rng: np.random.Generator) -> Peers | None:
    """A pairing whose loops and repeats are broken up and paired again, until none is left.

    A round that gets nowhere also breaks up some good pairs, so that the rest can be placed.
    """
    keys = np.empty(0, dtype=np.int64)
    for _ in range(20 * TRIES):
        pairs = np.sort(rng.permutation(stubs).reshape(-1, 2), axis=1)
        drawn = pairs[:, 0] * peers + pairs[:, 1]
        kept = np.zeros(len(drawn), dtype=bool)
        kept[np.unique(drawn, return_index=True)[1]] = True
        kept &= (pairs[:, 0] != pairs[:, 1]) & ~np.isin(drawn, keys, kind="sort")
        keys = np.concatenate([keys, drawn[kept]])
        stubs = pairs[~kept].reshape(-1)
        if not len(stubs):
            return keys
        if not kept.any():
            keys = rng.permutation(keys)
            keys, broken = np.split(keys, [max(0, len(keys) - len(stubs))])
            stubs = np.concatenate([stubs, *np.divmod(broken, peers)])
    return None


def erdos_renyi(peers: int, probability: float, rng: np.random.Generator) -> SparseGraph:
    """Every pair is joined with ``probability``, independently, given that the graph connects."""
    check_count("peers", peers, low=2)
    check_number("graph.probability", probability, above=0.0, high=1.0)
    pairs = peers * (peers - 1) // 2
    check_edge_count(pairs * probability, "the erdos-renyi graph")
    for _ in range(TRIES):
        a, b = _unrank(_chosen(pairs, probability, rng))
        graph = compress("erdos-renyi", peers, a, b)
        if unreached(graph)[1] is None:
            return graph
    raise InvalidInput(
        f"no connected graph of {peers} peers with graph.probability {probability:g} came up in "
        f"{TRIES} draws; it takes more than ln(N)/N = {math.log(peers) / peers:.3g}, "
        "twice that to be safe."
    )


def _chosen(count: int, probability: float, rng: np.random.Generator) -> Peers:
    """Each of 0 .. count - 1 independently with ``probability``: gaps are geometric."""
    parts = [np.empty(0, dtype=np.int64)]
    last = -1
    while last < count:
        expected = (count - last) * probability
        gaps = rng.geometric(probability, size=int(expected + 4 * math.sqrt(expected)) + 8)
        steps = last + np.cumsum(np.minimum(gaps, count + 1))
        parts.append(steps[steps < count])
        last = int(steps[-1])
    return np.concatenate(parts)


def _unrank(ranks: Peers) -> tuple[Peers, Peers]:
    """Pair number k, in the order (1,0), (2,0), (2,1), (3,0), ..., as two peers."""
    larger = ((1.0 + np.sqrt(8.0 * ranks + 1.0)) / 2.0).astype(np.int64)
    larger -= larger * (larger - 1) // 2 > ranks  # repair what the square root rounded
    larger += (larger + 1) * larger // 2 <= ranks
    return larger, ranks - larger * (larger - 1) // 2


def from_edge_list(path: str | Path) -> SparseGraph:
    """The graph in a text file: one edge ``a b`` per line, ``#`` starts a comment.

    Peers are named 0 to N - 1 and each of them must occur; an edge may be given twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidInput(f"graph.path {str(path)!r} cannot be read: {reason}.") from error
    tails, heads = [], []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        digits = all(word.isascii() and word.isdigit() and len(word) <= 12 for word in words)
        if len(words) != 2 or not digits or int(words[0]) == int(words[1]):
            raise InvalidInput(
                f"{path} line {number} is {line.strip()!r}; "
                "allowed: two different peer numbers, such as '0 1'."
            )
        tails.append(int(words[0]))
        heads.append(int(words[1]))
    named = np.unique(np.array(tails + heads, dtype=np.int64))
    if not len(named):
        raise InvalidInput(f"{path} holds no edge; allowed: lines of two peer numbers.")
    if named[-1] != len(named) - 1:
        missing = int(np.flatnonzero(named != np.arange(len(named)))[0])
        raise InvalidInput(
            f"{path} names peer {named[-1]} but not peer {missing}; "
            "allowed: peers 0 to N - 1 without a gap."
        )
    return from_edges("edge-list", len(named), tails, heads)


@dataclass(frozen=True)
class _Request:
    peers: int | None
    degree: int | None
    probability: float | None
    path: Path | None
    rng: np.random.Generator | None


def _given(kind: str, name: str, value: Value | None) -> Value:
    if value is None:
        raise InvalidInput(f"{name} is missing; graph.kind {kind!r} needs it.")
    return value


def _by_peers(kind: str, make: Callable[[int], WalkGraph]) -> Callable[[_Request], WalkGraph]:
    return lambda request: make(_given(kind, "peers", request.peers))


def _at_random(
    kind: str, parameter: str, make: Callable[[int, Any, np.random.Generator], WalkGraph]
) -> Callable[[_Request], WalkGraph]:
    return lambda request: make(
        _given(kind, "peers", request.peers),
        _given(kind, f"graph.{parameter}", getattr(request, parameter)),
        _given(kind, "a random generator (rng)", request.rng),
    )


def _make_edge_list(request: _Request) -> SparseGraph:
    path = _given("edge-list", "graph.path", request.path)
    graph = from_edge_list(path)
    if request.peers is not None and request.peers != graph.peers:
        raise InvalidInput(
            f"peers is {request.peers!r} but {path} names {graph.peers}; "
            f"allowed: {graph.peers}, or no number at all."
        )
    return graph


GRAPHS: Mapping[str, Callable[[_Request], WalkGraph]] = MappingProxyType(
    {
        "complete": _by_peers("complete", complete),
        "ring": _by_peers("ring", ring),
        "torus": _by_peers("torus", torus),
        "star": _by_peers("star", star),
        "random-regular": _at_random("random-regular", "degree", random_regular),
        "erdos-renyi": _at_random("erdos-renyi", "probability", erdos_renyi),
        "edge-list": _make_edge_list,
    }
)
"""Every kind of graph that :func:`build` knows."""


def build(
    kind: str,
    peers: int | None = None,
    *,
    degree: int | None = None,
    probability: float | None = None,
    path: str | Path | None = None,
    rng: np.random.Generator | None = None,
) -> WalkGraph:
    """The graph of that kind; parameters that the kind does not use are ignored.

    >>> build("torus", 12).kind
    'torus'
    >>> build("rnig", 12)
    Traceback (most recent call last):
    ...
    unwalk.core.errors.InvalidInput: graph.kind is 'rnig' (did you mean ring?); allowed: complete, \
edge-list, erdos-renyi, random-regular, ring, star, torus.
    """
    check_choice("graph.kind", kind, GRAPHS)
    return GRAPHS[kind](
        _Request(peers, degree, probability, None if path is None else Path(path), rng)
    )
