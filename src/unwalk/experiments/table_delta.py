"""Effect of the privacy parameter delta in RR-DU (appendix E, one seed).

epsilon stays at its default.
"""

from __future__ import annotations

from unwalk.experiments.cells import Cell, Reported, one_setting

SEEDS = 1

REPORTED = {
    "mnist": {
        "0.0001": Reported(99.12, 10.40),
        "1e-06": Reported(99.13, 10.80),
    },
    "cifar10": {
        "0.0001": Reported(89.05, 12.00),
        "1e-06": Reported(88.68, 11.20),
    },
}


def cells(task: str, seeds: int = SEEDS) -> list[Cell]:
    """One row a value."""
    return one_setting("table-delta", "unlearn.delta", REPORTED, task, seeds)
