"""The paper's figure and tables: which runs each needs, and the numbers that the paper reports.

Numbers are (clean, backdoor) accuracy in percent, MNIST before CIFAR-10; None where the paper says
nothing.  A task that the paper does not have takes the same rows without numbers to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unwalk.experiments.cells import NOTHING, TASKS, Cell, Reported, over_seeds
from unwalk.settings.config import Value

Pair = tuple[float | None, float | None]

GROUP_NORM = {"mnist": "flnet-gn", "cifar10": "resnet18-gn"}
"""DP-SGD clips every record's gradient, which BatchNorm does not allow."""

FIGURE_SEEDS = 5
FIGURE: dict[str, tuple[Pair, Pair]] = {
    "rrdu": ((99.15, 10.0), (88.5, 10.0)),
    "finetune": ((99.15, 18.0), (None, 27.5)),
    "dpsgd": ((None, 60.0), (52.5, None)),
    "ddp": ((96.7, 35.0), (52.5, None)),
    "retrain": ((99.5, 10.0), (89.0, 10.0)),
}
"""Figure 1: accuracy over 100 + 100 hops; the end points that section 6.2 gives in words."""


@dataclass(frozen=True)
class Table:
    """A table of RR-DU in which one setting takes the values of its rows.

    The row ``baseline`` leaves the preset's own value.  ``fixed`` are settings of all rows.
    """

    setting: str
    seeds: int
    rows: Mapping[str, tuple[Pair, Pair]]
    fixed: Mapping[str, Value] = field(default_factory=dict)


TABLES = {
    # Section 6.3: the routing probability.  0 is fine-tuning, 1 is always at the forgetting peer.
    "table-p": Table(
        "unlearn.p",
        3,
        {
            "0": ((99.18, 10.33), (88.61, 10.93)),
            "0.1": ((99.18, 10.33), (88.30, 11.20)),
            "1": ((10.10, 0.00), (17.74, 0.00)),
        },
        {"unlearn.calibration": "none", "unlearn.trust_radius": None},
    ),
    # Appendix E: the trust radius rho.
    "table-rho": Table(
        "unlearn.trust_radius",
        1,
        {
            "baseline": ((99.13, 10.40), (88.12, 12.00)),
            "5": ((99.12, 15.60), (88.03, 60.60)),
            "10": ((99.13, 10.80), (88.41, 46.40)),
            "25": ((99.04, 10.20), (88.80, 17.00)),
            "50": ((99.01, 10.20), (88.12, 12.00)),
            "60": ((99.01, 10.20), (88.12, 12.00)),
        },
    ),
    # Appendix E: the clipping constant L, which sets the noise too (Corollary 5.2).
    "table-l": Table(
        "unlearn.clip",
        1,
        {
            "baseline": ((99.13, 10.40), (88.12, 12.00)),
            "0.1": ((99.20, 10.20), (88.61, 12.20)),
            "0.2": ((99.10, 10.20), (88.12, 12.00)),
            "0.5": ((99.13, 10.40), (88.57, 14.00)),
            "0.7": ((99.09, 10.40), (87.34, 16.60)),
            "1": ((99.10, 10.40), (86.39, 16.80)),
        },
    ),
    # Appendix E: epsilon; delta stays at its default.
    "table-epsilon": Table(
        "unlearn.epsilon",
        1,
        {
            "0.1": ((99.19, 60.60), (85.81, 38.20)),
            "0.5": ((99.16, 15.80), (88.66, 14.00)),
            "2": ((99.12, 10.20), (88.61, 11.60)),
            "10": ((99.12, 10.20), (89.06, 10.80)),
        },
    ),
    # Appendix E: delta; epsilon stays at its default.
    "table-delta": Table(
        "unlearn.delta",
        1,
        {
            "0.0001": ((99.12, 10.40), (89.05, 12.00)),
            "1e-06": ((99.13, 10.80), (88.68, 11.20)),
        },
    ),
}


def _reported(task: str, pairs: tuple[Pair, Pair]) -> Reported:
    return Reported(*pairs[TASKS.index(task)]) if task in TASKS else NOTHING


REPORTED = {
    task: {method: _reported(task, pairs) for method, pairs in FIGURE.items()} for task in TASKS
}
"""The figure's end points by task and method."""


def model(task: str, method: str) -> dict[str, Value]:
    """The model that a method needs, where it is not the task's own."""
    fits = method == "dpsgd" and task in GROUP_NORM
    return {"model.name": GROUP_NORM[task]} if fits else {}


def figure_cells(task: str, seeds: int = FIGURE_SEEDS) -> list[Cell]:
    """RR-DU, fine-tuning, DP-SGD, DDP and retraining from scratch, over every seed."""
    return [
        cell
        for method, pairs in FIGURE.items()
        for cell in over_seeds(
            "figure1",
            method,
            method,
            seeds,
            model(task, method),
            _reported(task, pairs),
            curve=True,
        )
    ]


def table_cells(name: str, task: str, seeds: int | None = None) -> list[Cell]:
    """Every row of a table over every seed."""
    table = TABLES[name]
    cells: list[Cell] = []
    for value, pairs in table.rows.items():
        own: dict[str, Value] = {} if value == "baseline" else {table.setting: float(value)}
        count, reported = table.seeds if seeds is None else seeds, _reported(task, pairs)
        cells += over_seeds(name, value, "rrdu", count, {**own, **table.fixed}, reported)
    return cells
