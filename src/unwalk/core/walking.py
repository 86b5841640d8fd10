"""The interfaces of graphs and routes: who may hand the token to whom, and who is next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from unwalk.core.seeds import Draws, Streams

Peers = npt.NDArray[np.int64]


class Graph(Protocol):
    """Who may hand the token to whom."""

    @property
    def kind(self) -> str: ...
    @property
    def peers(self) -> int: ...
    @property
    def complete(self) -> bool: ...
    def neighbours(self, peer: int) -> Peers:
        """Neighbours of ``peer``, ascending (not to be called on large complete graphs)."""

    def random_neighbour(self, peer: int, rng: Draws) -> int:
        """A uniformly random neighbour, in O(1)."""

    def random_neighbours(self, peers: Peers, rngs: Streams) -> Peers:
        """A uniformly random neighbour of each peer: what :meth:`random_neighbour` draws."""

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """A shortest path without its source: (..., target); empty if source is target."""


@dataclass(frozen=True)
class Move:
    """Where the token goes: every peer it is sent to, in order, and the route's memory.

    An empty path means that the token stays at ``receiver``.
    """

    receiver: int
    path: tuple[int, ...]
    memory: Mapping[str, int]


@dataclass(frozen=True)
class Moves:
    """Where the tokens of many walks go: each in one message, or in none where it stays."""

    receivers: Peers
    memory: Mapping[str, Peers]


@runtime_checkable
class ManyRoute(Protocol):
    """A route that moves many tokens at once, each as :meth:`Route.next` would."""

    def next_all(
        self, graph: Graph, at: Peers, memory: Mapping[str, Peers], rngs: Streams
    ) -> Moves | None:
        """The moves from ``at``, where everybody is somewhere; None if it needs relays."""


class Route(Protocol):
    """Who is next."""

    def next(self, graph: Graph, at: int, memory: Mapping[str, int], rng: Draws) -> Move:
        """The move from ``at`` (-1: nobody holds the token yet)."""
