"""The two representations of a graph: complete, without storage, or compressed sparse rows.

Peers are numbered 0 to N - 1, edges are undirected, without loops and without repeats.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_count

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

    def random_neighbour(self, peer: int, rng: np.random.Generator) -> int:
        """A uniformly random other peer."""
        _check_peer(peer, self.peers)
        drawn = int(rng.integers(self.peers - 1))
        return drawn + (drawn >= peer)

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

    def random_neighbour(self, peer: int, rng: np.random.Generator) -> int:
        """A uniformly random neighbour, in O(1)."""
        near = self.neighbours(peer)
        return int(near[rng.integers(len(near))])

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
        order, parents = breadth_first_order(self._matrix(), target, directed=True)
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

    def _matrix(self) -> csr_array:
        ones = np.ones(len(self.indices), dtype=np.int8)
        return csr_array((ones, self.indices, self.indptr), shape=(self.peers, self.peers))

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
    count, labels = connected_components(graph._matrix(), directed=False)
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
