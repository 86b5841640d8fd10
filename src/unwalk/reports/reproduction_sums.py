"""The reproduction summed up: ours over seeds, the paper's, and how far apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unwalk.reports.reproduction_documents import (
    FIGURE,
    FIRST,
    MEASURES,
    RETRAIN,
    Part,
    Reading,
    Reported,
    collect,
)

AGREE_POINTS = 2.0
AGREE_STDS = 2.0
NEAR_POINTS = 5.0


@dataclass(frozen=True)
class Compared:
    """One number of ours over seeds beside the paper's, in per cent."""

    experiment: str
    task: str
    row: str
    hop: int | None
    preset: str
    measure: str
    seeds: int
    mean: float | None
    std: float | None
    reported: float | None
    sigma: float | None
    final: bool = True
    """Whether the row ends here: retraining is also read where training ended."""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in points."""
        if self.mean is None or self.reported is None:
            return None
        return self.mean - self.reported

    @property
    def agreement(self) -> str | None:
        """``agree``, ``spread``, ``near`` or ``differ``; None where there is nothing to compare."""
        return None if self.difference is None else agreement(self.difference, self.std)


def agreement(difference: float, std: float | None) -> str:
    """How well a difference in points agrees, given our standard deviation over seeds.

    ``spread`` is agreement within two standard deviations only: the seeds are that far apart.

    >>> [agreement(d, None) for d in (-2.0, 2.1, 5.0, 5.1)]
    ['agree', 'near', 'near', 'differ']
    >>> agreement(9.0, 4.5), agreement(9.0, 4.4)
    ('spread', 'differ')
    """
    size = round(abs(difference), 6)
    if size <= AGREE_POINTS:
        return "agree"
    if std is not None and size <= round(AGREE_STDS * std, 6):
        return "spread"
    return "near" if size <= NEAR_POINTS else "differ"


def compared(part: Part) -> list[Compared]:
    """Every number of a part, summed up over seeds; for the figure where its lines end."""
    found = []
    for row in part.rows:
        for preset in part.presets:
            readings = part.of(row, preset)
            hops = [r.hop for r in readings if r.hop is not None]
            at: list[int | None] = [max(hops)] if hops else [None]
            if row == RETRAIN and (begun := start(part, preset)) in hops and begun not in at:
                at.append(begun)
            for hop in at:
                chosen = [r for r in readings if r.hop == hop]
                if chosen:
                    found += [_summed(part, chosen, m, hop == at[0]) for m in MEASURES]
    return found


def mean_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation; no deviation of a single value.

    >>> mean_std([1.0, 3.0]), mean_std([2.0]), mean_std([])
    ((2.0, 1.4142135623730951), (2.0, None), (None, None))
    """
    if not values:
        return None, None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def start(part: Part, preset: str) -> int | None:
    """The hop at which unlearning starts: as the document says, else where methods part."""
    return shared_until(part, preset) if part.train_hops is None else part.train_hops


def shared_until(part: Part, preset: str) -> int | None:
    """The last hop up to which methods agree in every number: the training that they share."""
    rows = sorted((r for r in part.rows if r != RETRAIN), key=lambda r: r not in FIRST)
    if part.experiment != FIGURE or len(rows) < 2:
        return None
    shared = [s for r in rows[1:] if (s := prefix(part, preset, rows[0], r)) is not None]
    ends = [r.hop for r in part.of(rows[0], preset) if r.hop is not None]
    return min(shared) if shared and min(shared) < max(ends, default=0) else None


def prefix(part: Part, preset: str, one: str, other: str) -> int | None:
    """The last hop up to which two methods agree in every number of every common seed."""
    mine = {(r.hop, r.seed): r.values for r in part.of(one, preset) if r.hop is not None}
    yours = {(r.hop, r.seed): r.values for r in part.of(other, preset) if r.hop is not None}
    common = sorted(mine.keys() & yours.keys())
    parted = next((key[0] for key in common if mine[key] != yours[key]), math.inf)
    return max((hop for hop, _ in common if hop < parted), default=None)


def reproduction_rows(
    documents: Mapping[str, Any], reported: Reported | None = None
) -> list[dict[str, Any]]:
    """Ours (mean, std, seeds), the paper's, difference and agreement of every number.

    >>> row = {"row": "5", "preset": "paper", "seed": 0, "clean": 0.9, "reported_clean": 91.0}
    >>> found = reproduction_rows({"table-rho-mnist": {"task": "mnist", "rows": [row]}})
    >>> [(r["measure"], r["mean"], r["difference"], r["agreement"]) for r in found][0]
    ('clean', 90.0, -1.0, 'agree')
    """
    return [
        {**asdict(c), "difference": c.difference, "agreement": c.agreement}
        for part in collect(documents, reported)
        for c in compared(part)
    ]


def _summed(part: Part, readings: Sequence[Reading], measure: str, final: bool) -> Compared:
    first = readings[0]
    values = [r.values[measure] for r in readings if measure in r.values]
    mean, std = mean_std(values)
    told = [r.reported[measure] for r in readings if measure in r.reported]
    sigma = next((r.sigma for r in readings if r.sigma is not None), None)
    return Compared(
        part.experiment,
        part.task,
        first.row,
        first.hop,
        first.preset,
        measure,
        len(values),
        mean,
        std,
        told[0] if told else None,
        sigma,
        final,
    )
