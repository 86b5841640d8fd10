"""Statistics of a walk: visits, delays until a peer sees the token again, messages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput
from unwalk.core.seeds import Draws
from unwalk.core.validation import check_count, check_number
from unwalk.core.walking import Graph, Move, Route
from unwalk.walks.routes import NOBODY

Counts = npt.NDArray[np.int64]


def simulate(graph: Graph, route: Route, hops: int, rng: Draws, *, at: int = NOBODY) -> list[Move]:
    """``hops`` moves of ``route`` from ``at``, all drawn from one generator.

    An engine draws each hop from a generator of its own, so its walk differs from this one.
    """
    check_count("hops", hops)
    moves: list[Move] = []
    memory: dict[str, int] = {}
    for _ in range(hops):
        move = route.next(graph, at, memory, rng)
        at, memory = move.receiver, dict(move.memory)
        moves.append(move)
    return moves


def receivers(moves: Iterable[Move]) -> Counts:
    """Who did the visits, in order."""
    return np.array([move.receiver for move in moves], dtype=np.int64)


def visit_counts(visited: npt.ArrayLike, peers: int) -> Counts:
    """Visits of each peer, relays not counted.

    >>> visit_counts([2, 0, 2], 4).tolist()
    [1, 0, 2, 0]
    """
    check_count("peers", peers, low=1)
    sequence = np.asarray(visited, dtype=np.int64)
    outside = np.flatnonzero((sequence < 0) | (sequence >= peers))
    if len(outside):
        raise InvalidInput(
            f"visit {outside[0] + 1} is at peer {sequence[outside[0]]}; "
            f"allowed: a whole number, 0 to {peers - 1}."
        )
    return np.bincount(sequence, minlength=peers).astype(np.int64)


def sightings(moves: Sequence[Move], peers: int) -> Counts:
    """Messages that each peer received, as relay or for a visit: how often it sees the token.

    >>> sightings([Move(0, (1, 0), {}), Move(0, (), {})], 3).tolist()
    [1, 1, 0]
    """
    return visit_counts([peer for move in moves for peer in move.path], peers)


def expected_visits(
    peers: int, unlearner: int, p: float, hops: int, max_visits: int | None = None
) -> npt.NDArray[np.float64]:
    r"""Mean visits of each peer in ``hops`` hops of randomized restart on the complete graph.

    Without a cap it is p T_u at u and (1 - p) T_u / (N - 1) elsewhere.  With a cap c it is
    :math:`\mathbb{E}\min(\mathrm{Bin}(T_u, p), c)` at u, and the rest is shared.

    >>> expected_visits(5, 2, 0.2, 100).tolist()
    [20.0, 20.0, 20.0, 20.0, 20.0]
    """
    check_count("peers", peers, low=2)
    check_count("unlearner", unlearner, high=peers - 1)
    check_number("p", p, low=0.0, high=1.0)
    check_count("hops", hops)
    at_unlearner = p * hops if max_visits is None else _capped_mean(hops, p, max_visits)
    mean = np.full(peers, (hops - at_unlearner) / (peers - 1))
    mean[unlearner] = at_unlearner
    return mean


def _capped_mean(trials: int, p: float, cap: int) -> float:
    """E min(Bin(trials, p), cap)."""
    check_count("max_visits", cap)
    if p in (0.0, 1.0):
        return min(p * trials, float(cap))
    cap = min(cap, trials)

    def mass(k: int) -> float:
        ways = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        return math.exp(ways + k * math.log(p) + (trials - k) * math.log1p(-p))

    return cap - math.fsum((cap - k) * mass(k) for k in range(cap))


def first_observation_delays(
    visited: npt.ArrayLike, unlearner: int, observer: int, *, disjoint: bool = False
) -> Counts:
    """For each visit to u, the number of hops until the observer v is visited next.

    Visits to u after v's last visit are left out: their delay is not known.  Several visits to u
    before the same visit to v give overlapping delays; ``disjoint`` keeps the first of them, and
    the delays are then independent.  Under randomized restart on the complete graph each delay is
    geometric with rate (1 - p)/(N - 1).

    >>> first_observation_delays([0, 1, 0, 2, 1, 0], unlearner=0, observer=1).tolist()
    [1, 2]
    """
    if unlearner == observer:
        raise InvalidInput(f"observer is {observer}, the unlearner; allowed: another peer.")
    sequence = np.asarray(visited)
    left, seen = np.flatnonzero(sequence == unlearner), np.flatnonzero(sequence == observer)
    upcoming = np.searchsorted(seen, left)
    known = upcoming < len(seen)
    left, upcoming = left[known], upcoming[known]
    if disjoint:
        _, first = np.unique(upcoming, return_index=True)
        left, upcoming = left[first], upcoming[first]
    return (seen[upcoming] - left).astype(np.int64)


@dataclass(frozen=True)
class GeometricFit:
    """Delays beside the geometric law on 1, 2, ... that they should follow.

    ``chi_square`` has ``degrees`` degrees of freedom; ``mean_error`` is the mean's distance from
    1/rate in standard errors of the law.
    """

    count: int
    mean: float
    expected_mean: float
    mean_error: float
    chi_square: float
    degrees: int


def geometric_fit(
    delays: npt.ArrayLike, rate: float, *, smallest_bin: float = 10.0
) -> GeometricFit:
    """Compare independent delays with Geom(rate): mean, and Pearson's chi-square.

    Delays 1, 2, ... are pooled into bins that expect at least ``smallest_bin`` delays each.
    """
    check_number("rate", rate, above=0.0, below=1.0)
    check_number("smallest_bin", smallest_bin, low=1.0)
    sample = np.asarray(delays, dtype=np.int64)
    count = len(sample)
    if count < 3 * smallest_bin:
        raise InvalidInput(
            f"there are {count} delays; allowed: at least {math.ceil(3 * smallest_bin)}, "
            "three bins full."
        )
    if sample.min() < 1:
        raise InvalidInput(f"a delay is {sample.min()}; allowed: a whole number, 1 or more.")
    edges = [0]  # bin i holds the delays in (edges[i], edges[i + 1]]; the last one is open
    share = smallest_bin / count
    while (left := (1.0 - rate) ** edges[-1]) >= 2.0 * share:
        width = math.ceil(math.log1p(-share / left) / math.log1p(-rate))
        if (1.0 - rate) ** (edges[-1] + width) < share:
            break
        edges.append(edges[-1] + width)
    if len(edges) < 2:
        raise InvalidInput(f"rate is {rate!r}: nearly all of {count} delays would fall in one bin.")
    survival = (1.0 - rate) ** np.array(edges, dtype=np.float64)
    expected = count * np.append(survival[:-1] - survival[1:], survival[-1])
    observed = np.bincount(np.searchsorted(edges, sample) - 1, minlength=len(edges))
    return GeometricFit(
        count=count,
        mean=float(sample.mean()),
        expected_mean=1.0 / rate,
        mean_error=float((sample.mean() - 1.0 / rate) * rate * math.sqrt(count / (1.0 - rate))),
        chi_square=float(((observed - expected) ** 2 / expected).sum()),
        degrees=len(edges) - 1,
    )
