"""Walks: graphs, routes and statistics of a random walk; no torch.

In come a graph's name and its parameters, or a list of edges; out come the graph (who may hand the
token to whom), the route (who is next), and numbers about both: visits, delays, messages per hop,
hitting and mixing times.

========== ================================================================================
graphs     how a graph is stored; the named graphs: ring, torus, star, random-regular, ...
routes     the rules that choose the next peer: uniform, restart to u, a fixed list
chains     long-run behaviour, computed from the transition matrix
statistics what is counted on a walk that happened or was simulated
========== ================================================================================

Start reading at ``routes.Restart``; ``docs/walks.md`` explains the choices.
"""

from unwalk.walks.chains import (
    hitting_times,
    messages_per_hop,
    mixing_time,
    restart_stationary,
    restart_travel,
    spectral_gap,
    stationary,
)
from unwalk.walks.graphs import (
    GRAPHS,
    CompleteGraph,
    SparseGraph,
    WalkGraph,
    build,
    complete,
    erdos_renyi,
    from_edge_list,
    from_edges,
    random_regular,
    ring,
    star,
    torus,
)
from unwalk.walks.routes import NOBODY, Among, FirstTo, Fixed, Restart, Uniform, UniformPeer
from unwalk.walks.statistics import (
    GeometricFit,
    expected_visits,
    first_observation_delays,
    geometric_fit,
    receivers,
    sightings,
    simulate,
    visit_counts,
)

__all__ = [
    "GRAPHS",
    "NOBODY",
    "Among",
    "CompleteGraph",
    "FirstTo",
    "Fixed",
    "GeometricFit",
    "Restart",
    "SparseGraph",
    "Uniform",
    "UniformPeer",
    "WalkGraph",
    "build",
    "complete",
    "erdos_renyi",
    "expected_visits",
    "first_observation_delays",
    "from_edge_list",
    "from_edges",
    "geometric_fit",
    "hitting_times",
    "messages_per_hop",
    "mixing_time",
    "random_regular",
    "receivers",
    "restart_stationary",
    "restart_travel",
    "ring",
    "sightings",
    "simulate",
    "spectral_gap",
    "star",
    "stationary",
    "torus",
    "visit_counts",
]
