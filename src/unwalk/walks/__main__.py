"""``python -m unwalk.walks``: what travelling to u costs on each kind of graph.

The table of ``docs/walks.md``: computed from transition matrices, not simulated.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unwalk.core.seeds import PublicSeeds
from unwalk.walks.chains import hitting_times, messages_per_hop, restart_travel, stationary
from unwalk.walks.graphs import WalkGraph, build

ROWS: tuple[tuple[str, int, int | None, float | None], ...] = (
    ("complete", 10, None, None),
    ("ring", 10, None, None),
    ("torus", 10, None, None),
    ("star", 10, None, None),
    ("random-regular", 10, 3, None),
    ("erdos-renyi", 10, None, 0.5),
    ("complete", 100, None, None),
    ("ring", 100, None, None),
    ("torus", 100, None, None),
    ("star", 100, None, None),
    ("random-regular", 100, 3, None),
    ("erdos-renyi", 100, None, 0.1),
)
"""(kind, peers, degree, probability) of each row; random graphs come from public seed 0."""


def travel_costs(graph: WalkGraph) -> tuple[float, float, float]:
    """Means over every choice of u, with p = 1/N: messages per restart, per hop, hops to u."""
    p = 1.0 / graph.peers
    everyone = range(graph.peers)
    return (
        float(np.mean([restart_travel(graph, u, p) for u in everyone])),
        float(np.mean([messages_per_hop(graph, u, p) for u in everyone])),
        float(np.mean([stationary(graph) @ hitting_times(graph, u) for u in everyone])),
    )


def table() -> Iterator[str]:
    """The lines of a Markdown table."""
    yield "| graph | peers | messages of a restart | messages of a hop | hops of a walk to u |"
    yield "| --- | --- | --- | --- | --- |"
    for kind, peers, degree, probability in ROWS:
        rng = PublicSeeds(0).numpy("graph", kind, peers)
        graph = build(kind, peers, degree=degree, probability=probability, rng=rng)
        restart, hop, walk = travel_costs(graph)
        name = kind
        if degree is not None:
            name += f", degree {degree}"
        if probability is not None:
            name += f", probability {probability:g}"
        yield f"| {name} | {peers} | {restart:.2f} | {hop:.2f} | {walk:.1f} |"


if __name__ == "__main__":
    print("\n".join(table()))
