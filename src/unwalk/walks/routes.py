"""Routes: pure functions that choose the next peer from graph, holder, memory and generator.

A move lists *every* peer that the token is sent to.  The last one visits the token; those before it
are relays, which see it and do nothing with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unwalk.core.errors import InvalidInput
from unwalk.core.seeds import Draws, Streams
from unwalk.core.validation import check_count, check_number
from unwalk.core.walking import Graph, ManyRoute, Move, Moves, Peers, Route

NOBODY = -1
"""The holder before the first hop: the first peer drawn has the token without any message."""


def _travel(graph: Graph, at: int, target: int) -> tuple[int, ...]:
    return () if at == NOBODY else graph.path(at, target)


def _someone_else(peers: int, without: int, rng: Draws) -> int:
    """A uniformly random peer other than ``without``."""
    drawn = int(rng.integers(peers - 1))
    return drawn + (drawn >= without)


@dataclass(frozen=True)
class Uniform:
    """The random walk of Network-SGD (Alg. 1): a uniformly random neighbour, every hop."""

    def next(self, graph: Graph, at: int, memory: Mapping[str, int], rng: Draws) -> Move:
        if at == NOBODY:
            return Move(int(rng.integers(graph.peers)), (), memory)
        neighbour = graph.random_neighbour(at, rng)
        return Move(neighbour, (neighbour,), memory)

    def next_all(
        self, graph: Graph, at: Peers, memory: Mapping[str, Peers], rngs: Streams
    ) -> Moves | None:
        return Moves(graph.random_neighbours(at, rngs), memory)


@dataclass(frozen=True)
class UniformPeer:
    """Uniform over all of V, the holder included (DDP, Alg. 2).

    On a graph that is not complete the token travels there along a shortest path.
    """

    def next(self, graph: Graph, at: int, memory: Mapping[str, int], rng: Draws) -> Move:
        receiver = int(rng.integers(graph.peers))
        return Move(receiver, _travel(graph, at, receiver), memory)

    def next_all(
        self, graph: Graph, at: Peers, memory: Mapping[str, Peers], rngs: Streams
    ) -> Moves | None:
        return Moves(rngs.integers(graph.peers), memory) if graph.complete else None


@dataclass(frozen=True)
class Restart:
    r"""Randomized restart (RR-DU): to the unlearner u with probability p, else elsewhere.

    On the complete graph, elsewhere is :math:`\mathrm{Uniform}(V \setminus \{u\})`, the holder
    included, as in the paper.  On any other graph a restart *travels* to u along a shortest path,
    and elsewhere is a uniformly random neighbour other than u; a peer whose only neighbour is u
    has the token relayed through u to a random neighbour of u.  Each hop visits u with
    probability p on every graph, but elsewhere is uniform on the complete graph only.

    ``max_visits`` caps the visits to u, counted in ``memory["visits"]`` (relaying is no visit).
    Once the cap is reached the coin is still drawn, but u is not visited whatever it shows.

    >>> from unwalk.walks.graphs import ring
    >>> Restart(unlearner=0, p=1.0).next(ring(6), 2, {}, np.random.default_rng(0))
    Move(receiver=0, path=(1, 0), memory={'visits': 1})
    """

    unlearner: int
    p: float
    max_visits: int | None = None

    def __post_init__(self) -> None:
        check_count("unlearner", self.unlearner)
        check_number("p", self.p, low=0.0, high=1.0)
        if self.max_visits is not None:
            check_count("max_visits", self.max_visits)

    def next(self, graph: Graph, at: int, memory: Mapping[str, int], rng: Draws) -> Move:
        if self.unlearner >= graph.peers:
            raise InvalidInput(
                f"unlearner is {self.unlearner}; allowed: a whole number, 0 to {graph.peers - 1}."
            )
        visits = memory.get("visits", 0)
        restart = rng.random() < self.p
        if restart and (self.max_visits is None or visits < self.max_visits):
            path = _travel(graph, at, self.unlearner)
            return Move(self.unlearner, path, {**memory, "visits": visits + 1})
        receiver, path = self._elsewhere(graph, at, rng)
        return Move(receiver, path, {**memory, "visits": visits})

    def next_all(
        self, graph: Graph, at: Peers, memory: Mapping[str, Peers], rngs: Streams
    ) -> Moves | None:
        if not graph.complete or self.unlearner >= graph.peers:
            return None
        visits = memory.get("visits", np.zeros_like(at))
        restart = rngs.random() < self.p
        if self.max_visits is not None:
            restart &= visits < self.max_visits
        drawn = rngs.integers(graph.peers - 1)
        elsewhere = drawn + (drawn >= self.unlearner)
        receivers = np.where(restart, self.unlearner, elsewhere)
        return Moves(receivers, {**memory, "visits": visits + restart})

    def _elsewhere(self, graph: Graph, at: int, rng: Draws) -> tuple[int, tuple[int, ...]]:
        u = self.unlearner
        if at == NOBODY or graph.complete:
            receiver = _someone_else(graph.peers, u, rng)
            return receiver, _travel(graph, at, receiver)
        near = graph.neighbours(at)
        place = int(np.searchsorted(near, u))
        if place == len(near) or near[place] != u:
            receiver = graph.random_neighbour(at, rng)
            return receiver, (receiver,)
        if len(near) == 1:
            receiver = graph.random_neighbour(u, rng)
            return receiver, (u, receiver)
        receiver = int(near[_someone_else(len(near), place, rng)])
        return receiver, (receiver,)


@dataclass(frozen=True)
class Fixed:
    """A given list of peers, one per hop: for tests and replays.

    ``memory["index"]`` counts the hops done.  Peers that are not neighbours are reached through
    relays.

    >>> from unwalk.walks.graphs import ring
    >>> Fixed((3, 0)).next(ring(6), 3, {"index": 1}, np.random.default_rng(0))
    Move(receiver=0, path=(2, 1, 0), memory={'index': 2})
    """

    sequence: Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sequence", tuple(self.sequence))
        if not self.sequence:
            raise InvalidInput("sequence is empty; allowed: a list of one peer or more.")
        for place, peer in enumerate(self.sequence):
            check_count(f"sequence[{place}]", peer)

    def next(self, graph: Graph, at: int, memory: Mapping[str, int], rng: Draws) -> Move:
        index = memory.get("index", 0)
        if index >= len(self.sequence):
            raise InvalidInput(
                f"hop {index + 1} of a fixed route was asked for; "
                f"allowed: up to {len(self.sequence)}, the length of its sequence."
            )
        receiver = check_count(f"sequence[{index}]", self.sequence[index], high=graph.peers - 1)
        return Move(receiver, _travel(graph, at, receiver), {**memory, "index": index + 1})


@dataclass(frozen=True)
class Among:
    """A uniformly random member other than the holder: a walk among some of the peers.

    On a graph that is not complete the token travels there along a shortest path, through relays
    that may be no members.

    >>> from unwalk.walks.graphs import ring
    >>> Among((1, 4)).next(ring(6), 1, {}, np.random.default_rng(0))
    Move(receiver=4, path=(0, 5, 4), memory={})
    """

    members: Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(sorted(self.members)))
        if len(set(self.members)) < max(2, len(self.members)):
            raise InvalidInput(
                f"members is {list(self.members)}; allowed: two peers or more, each once."
            )
        check_count("members[0]", self.members[0])

    def receiver(self, at: int, rng: Draws) -> int:
        """Who is next; it does not depend on the graph."""
        if at not in self.members:
            return self.members[int(rng.integers(len(self.members)))]
        return self.members[_someone_else(len(self.members), self.members.index(at), rng)]

    def next(self, graph: Graph, at: int, memory: Mapping[str, int], rng: Draws) -> Move:
        check_count("the last member", self.members[-1], high=graph.peers - 1)
        receiver = self.receiver(at, rng)
        return Move(receiver, _travel(graph, at, receiver), memory)


@dataclass(frozen=True)
class FirstTo:
    """To ``peer`` first, whoever holds the token, then along another route.

    ``memory["begun"]`` says that the first hop is done; the rest belongs to the other route.

    >>> from unwalk.walks.graphs import complete
    >>> FirstTo(0, Uniform()).next(complete(4), 2, {}, np.random.default_rng(0))
    Move(receiver=0, path=(0,), memory={'begun': 1})
    """

    peer: int
    then: Route

    def next(self, graph: Graph, at: int, memory: Mapping[str, int], rng: Draws) -> Move:
        check_count("peer", self.peer, high=graph.peers - 1)
        if "begun" not in memory:
            return Move(self.peer, _travel(graph, at, self.peer), {"begun": 1})
        rest = {k: v for k, v in memory.items() if k != "begun"}
        move = self.then.next(graph, at, rest, rng)
        return Move(move.receiver, move.path, {**move.memory, "begun": 1})

    def next_all(
        self, graph: Graph, at: Peers, memory: Mapping[str, Peers], rngs: Streams
    ) -> Moves | None:
        if "begun" not in memory or not isinstance(self.then, ManyRoute):
            return None
        rest = {k: v for k, v in memory.items() if k != "begun"}
        moves = self.then.next_all(graph, at, rest, rngs)
        if moves is None:
            return None
        return Moves(moves.receivers, {**moves.memory, "begun": memory["begun"]})
