"""Effect of the trust radius rho in RR-DU (appendix E, one seed).

``baseline`` is the preset's own radius.
"""

from __future__ import annotations

from unwalk.experiments.cells import Cell, Reported, one_setting

SEEDS = 1

REPORTED = {
    "mnist": {
        "baseline": Reported(99.13, 10.40),
        "5": Reported(99.12, 15.60),
        "10": Reported(99.13, 10.80),
        "25": Reported(99.04, 10.20),
        "50": Reported(99.01, 10.20),
        "60": Reported(99.01, 10.20),
    },
    "cifar10": {
        "baseline": Reported(88.12, 12.00),
        "5": Reported(88.03, 60.60),
        "10": Reported(88.41, 46.40),
        "25": Reported(88.80, 17.00),
        "50": Reported(88.12, 12.00),
        "60": Reported(88.12, 12.00),
    },
}


def cells(task: str, seeds: int = SEEDS) -> list[Cell]:
    """One row a value."""
    return one_setting("table-rho", "unlearn.trust_radius", REPORTED, task, seeds)
