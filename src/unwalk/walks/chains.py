"""Long-run behaviour of a walk, computed from its transition matrix.

Everything here builds an N x N matrix, so it is for up to :data:`LARGEST` peers.  For larger
graphs simulate (:mod:`unwalk.walks.statistics`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_count, check_number
from unwalk.walks.graphs import CompleteGraph, WalkGraph

LARGEST = 2048
"""Most peers for which a transition matrix is built."""

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]


def stationary(graph: WalkGraph) -> Vector:
    r"""Share of hops that the uniform-neighbour walk spends at each peer: :math:`d_v/\sum_w d_w`.

    >>> from unwalk.walks.graphs import star
    >>> stationary(star(4)).round(3).tolist()
    [0.5, 0.167, 0.167, 0.167]
    """
    degrees = graph.degrees().astype(np.float64)
    law: Vector = degrees / degrees.sum()
    return law


def transition(graph: WalkGraph) -> Matrix:
    """The uniform-neighbour walk's matrix: row v holds where the token goes from v."""
    _check_small(graph)
    if isinstance(graph, CompleteGraph):
        return (1.0 - np.eye(graph.peers)) / (graph.peers - 1)
    degrees = graph.degrees()
    matrix = np.zeros((graph.peers, graph.peers))
    tails = np.repeat(np.arange(graph.peers), degrees)
    matrix[tails, graph.indices] = np.repeat(1.0 / degrees, degrees)
    return matrix


def spectral_gap(graph: WalkGraph, *, absolute: bool = False) -> float:
    r"""One minus the second largest eigenvalue of the uniform-neighbour walk.

    With ``absolute`` it is one minus the second largest *modulus*: zero on a bipartite graph
    (an even ring, a star), where the walk alternates between two halves for ever.

    >>> from unwalk.walks.graphs import complete
    >>> round(spectral_gap(complete(5)), 6)
    1.25
    """
    root = np.sqrt(graph.degrees().astype(np.float64))
    symmetric = transition(graph) * root[:, None] / root[None, :]
    values = np.linalg.eigvalsh((symmetric + symmetric.T) / 2.0)
    second = max(abs(values[0]), abs(values[-2])) if absolute else values[-2]
    return max(0.0, float(1.0 - second))


def mixing_time(graph: WalkGraph, distance: float = 0.25) -> int:
    """Hops until the lazy walk is near its long-run law, from the worst start.

    Near means total variation at most ``distance``.  The lazy walk stays put with probability
    1/2, so that bipartite graphs mix too.
    """
    check_number("distance", distance, above=0.0, below=1.0)
    law = stationary(graph)
    powers = [(np.eye(graph.peers) + transition(graph)) / 2.0]

    def mixed(matrix: Matrix) -> bool:
        return bool(0.5 * np.abs(matrix - law).sum(axis=1).max() <= distance)

    if mixed(np.eye(graph.peers)):
        return 0
    while not mixed(powers[-1]):
        powers.append(powers[-1] @ powers[-1])
    # The first power of two that mixes is an upper end; add smaller powers while none mixes.
    hops, reached = 0, np.eye(graph.peers)
    for exponent in reversed(range(len(powers) - 1)):
        further = reached @ powers[exponent]
        if not mixed(further):
            hops, reached = hops + 2**exponent, further
    return hops + 1


def hitting_times(graph: WalkGraph, target: int) -> Vector:
    """Mean number of hops of the uniform-neighbour walk from each peer until it is at ``target``.

    >>> from unwalk.walks.graphs import complete
    >>> hitting_times(complete(5), 0).round(6).tolist()
    [0.0, 4.0, 4.0, 4.0, 4.0]
    """
    _check_peer("target", target, graph)
    others = np.delete(np.arange(graph.peers), target)
    inside = transition(graph)[np.ix_(others, others)]
    times = np.zeros(graph.peers)
    times[others] = np.linalg.solve(np.eye(len(others)) - inside, np.ones(len(others)))
    return times


def elsewhere(graph: WalkGraph, unlearner: int) -> tuple[Matrix, Vector]:
    """Where :class:`~unwalk.walks.routes.Restart` goes when its coin does not choose u.

    Returns the matrix of receivers, and the mean number of messages sent from each peer.
    """
    _check_peer("unlearner", unlearner, graph)
    peers, u = graph.peers, unlearner
    if graph.complete:
        matrix = np.full((peers, peers), 1.0 / (peers - 1))
        matrix[:, u] = 0.0
        return matrix, 1.0 - np.diag(matrix)
    matrix = transition(graph)
    matrix[:, u] = 0.0
    messages = np.ones(peers)
    for peer in np.flatnonzero(matrix.sum(axis=1) == 0.0):
        matrix[peer, graph.neighbours(u)] = 1.0 / graph.degree(u)
        messages[peer] = 2.0
    return matrix / matrix.sum(axis=1, keepdims=True), messages


def restart_stationary(graph: WalkGraph, unlearner: int, p: float) -> Vector:
    r"""Long-run share of visits at each peer under randomized restart, p > 0.

    The solution of :math:`\pi = p\,e_u + (1-p)\,\pi E`, where E is :func:`elsewhere`.

    >>> from unwalk.walks.graphs import complete
    >>> restart_stationary(complete(5), 0, 0.2).round(6).tolist()
    [0.2, 0.2, 0.2, 0.2, 0.2]
    """
    check_number("p", p, above=0.0, high=1.0)
    matrix, _ = elsewhere(graph, unlearner)
    start = np.zeros(graph.peers)
    start[unlearner] = p
    law = np.linalg.solve(np.eye(graph.peers) - (1.0 - p) * matrix.T, start)
    return law.astype(np.float64)


def restart_travel(graph: WalkGraph, unlearner: int, p: float) -> float:
    r"""Mean number of messages of a restart: :math:`\sum_v \pi_v\,d(v, u)` in the long run.

    A restart that finds the token at u already sends nothing and counts as 0.

    >>> from unwalk.walks.graphs import complete
    >>> round(restart_travel(complete(10), 0, 0.1), 6)
    0.9
    """
    law = restart_stationary(graph, unlearner, p)
    return float(law @ graph.distances(unlearner))


def messages_per_hop(graph: WalkGraph, unlearner: int, p: float) -> float:
    """Mean number of messages of a hop under randomized restart, in the long run, p > 0."""
    law = restart_stationary(graph, unlearner, p)
    _, messages = elsewhere(graph, unlearner)
    travel = law @ graph.distances(unlearner)
    return float(p * travel + (1.0 - p) * (law @ messages))


def _check_small(graph: WalkGraph) -> None:
    if graph.peers > LARGEST:
        raise InvalidInput(
            f"peers is {graph.peers}; allowed for a transition matrix: up to {LARGEST}."
        )


def _check_peer(name: str, peer: int, graph: WalkGraph) -> None:
    _check_small(graph)
    check_count(name, peer, high=graph.peers - 1)
