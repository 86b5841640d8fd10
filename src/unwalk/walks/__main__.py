"""``python -m unwalk.walks``: what travelling to u costs on each kind of graph.

The table of ``docs/walks.md``: computed from transition matrices, not simulated.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unwalk.core.seeds import PublicSeeds
from unwalk.walks.chains import hitting_times, messages_per_hop, restart_travel, stationary
from unwalk.walks.graphs import WalkGraph, build

KINDS = ("complete", "ring", "torus", "star", "random-regular", "erdos-renyi")
DEGREE = 3
PROBABILITIES = {10: 0.5, 100: 0.1}
"""By number of peers; random graphs come from public seed 0."""


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
    for peers, probability in PROBABILITIES.items():
        for kind in KINDS:
            degree = DEGREE if kind == "random-regular" else None
            chance = probability if kind == "erdos-renyi" else None
            rng = PublicSeeds(0).numpy("graph", kind, peers)
            graph = build(kind, peers, degree=degree, probability=chance, rng=rng)
            restart, hop, walk = travel_costs(graph)
            name = kind
            if degree is not None:
                name += f", degree {degree}"
            if chance is not None:
                name += f", probability {chance:g}"
            yield f"| {name} | {peers} | {restart:.2f} | {hop:.2f} | {walk:.1f} |"


if __name__ == "__main__":
    print("\n".join(table()))
