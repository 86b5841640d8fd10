"""Effect of the clipping constant L in RR-DU (appendix E, one seed).

L sets the noise too, through Corollary 5.2.  ``baseline`` is the preset's own L.
"""

from __future__ import annotations

from unwalk.experiments.cells import Cell, Reported, one_setting

SEEDS = 1

REPORTED = {
    "mnist": {
        "baseline": Reported(99.13, 10.40),
        "0.1": Reported(99.20, 10.20),
        "0.2": Reported(99.10, 10.20),
        "0.5": Reported(99.13, 10.40),
        "0.7": Reported(99.09, 10.40),
        "1": Reported(99.10, 10.40),
    },
    "cifar10": {
        "baseline": Reported(88.12, 12.00),
        "0.1": Reported(88.61, 12.20),
        "0.2": Reported(88.12, 12.00),
        "0.5": Reported(88.57, 14.00),
        "0.7": Reported(87.34, 16.60),
        "1": Reported(86.39, 16.80),
    },
}


def cells(task: str, seeds: int = SEEDS) -> list[Cell]:
    """One row a value."""
    return one_setting("table-l", "unlearn.clip", REPORTED, task, seeds)
