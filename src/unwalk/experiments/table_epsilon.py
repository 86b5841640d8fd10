"""Effect of the privacy parameter epsilon in RR-DU (appendix E, one seed).

delta stays at its default.
"""

from __future__ import annotations

from unwalk.experiments.cells import Cell, Reported, one_setting

SEEDS = 1

REPORTED = {
    "mnist": {
        "0.1": Reported(99.19, 60.60),
        "0.5": Reported(99.16, 15.80),
        "2": Reported(99.12, 10.20),
        "10": Reported(99.12, 10.20),
    },
    "cifar10": {
        "0.1": Reported(85.81, 38.20),
        "0.5": Reported(88.66, 14.00),
        "2": Reported(88.61, 11.60),
        "10": Reported(89.06, 10.80),
    },
}


def cells(task: str, seeds: int = SEEDS) -> list[Cell]:
    """One row a value."""
    return one_setting("table-epsilon", "unlearn.epsilon", REPORTED, task, seeds)
