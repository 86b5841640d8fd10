"""A cell: one method with one setting and one seed, and the paper's number for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unwalk.settings.config import Value

TASKS = ("mnist", "cifar10")
"""The paper's datasets; ``digits`` stands in for both in quick runs."""


@dataclass(frozen=True)
class Reported:
    """What the paper reports, in percent; None where it says nothing."""

    clean: float | None = None
    asr: float | None = None


NOTHING = Reported()


@dataclass(frozen=True)
class Cell:
    """One row of a table or one line of a figure, for one seed.

    ``curve`` says that all measurements of its walk are shown, not the last alone.
    """

    experiment: str
    row: str
    method: str
    seed: int
    settings: Mapping[str, Value] = field(default_factory=dict)
    reported: Reported = NOTHING
    curve: bool = False

    @property
    def name(self) -> str:
        """A file name for this cell's part."""
        safe = "".join(c if c.isalnum() or c in "-." else "_" for c in self.row)
        return f"{self.experiment}-{safe}-{self.seed}"


def over_seeds(
    experiment: str,
    row: str,
    method: str,
    seeds: int,
    settings: Mapping[str, Value] | None = None,
    reported: Reported = NOTHING,
    *,
    curve: bool = False,
) -> list[Cell]:
    """The same cell for seeds 0, 1, ..., ``seeds`` - 1."""
    return [
        Cell(experiment, row, method, seed, settings or {}, reported, curve)
        for seed in range(seeds)
    ]
