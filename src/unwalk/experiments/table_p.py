"""Effect of the routing probability p, without noise and without projection (section 6.3).

p = 0 is fine-tuning, p = 1 continuous unlearning: always at the forgetting peer.
"""

from __future__ import annotations

from unwalk.experiments.cells import Cell, Reported, over_seeds

SEEDS = 3

REPORTED = {
    "mnist": {
        0.0: Reported(99.18, 10.33),
        0.1: Reported(99.18, 10.33),
        1.0: Reported(10.10, 0.00),
    },
    "cifar10": {
        0.0: Reported(88.61, 10.93),
        0.1: Reported(88.30, 11.20),
        1.0: Reported(17.74, 0.00),
    },
}


def cells(task: str, seeds: int = SEEDS) -> list[Cell]:
    """Three values of p."""
    reported = REPORTED.get(task, {})
    return [
        cell
        for p in (0.0, 0.1, 1.0)
        for cell in over_seeds(
            "table-p",
            f"{p:g}",
            "rrdu",
            seeds,
            {"unlearn.p": p, "unlearn.calibration": "none", "unlearn.trust_radius": None},
            reported.get(p, Reported()),
        )
    ]
