"""The records of a fleet: every walk's shards, from which a whole step's batches are gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from unwalk.core.data import Shard
from unwalk.core.program import Rows
from unwalk.engines.execute import Bench, to_device


class Taken(Protocol):
    """Batches of a visit, (steps, walks, rows, ...)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a record."""

    def step(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of one step."""

    def fill(self, x: torch.Tensor, y: torch.Tensor, step: int) -> None:
        """Write them into ``x`` and ``y``."""


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Batches that were taken before the first step, each walk's in its own order."""

    x: torch.Tensor
    y: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[3:])

    def step(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[step], self.y[step]

    def fill(self, x: torch.Tensor, y: torch.Tensor, step: int) -> None:
        x.copy_(self.x[step])
        y.copy_(self.y[step])


@dataclass(frozen=True, eq=False)
class _Listed:
    """Batches that are gathered when their step comes."""

    x: torch.Tensor
    y: torch.Tensor
    rows: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    def step(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[self.rows[step]], self.y[self.rows[step]]

    def fill(self, x: torch.Tensor, y: torch.Tensor, step: int) -> None:
        rows = self.rows[step].view(-1)
        torch.index_select(self.x, 0, rows, out=x.view(-1, *self.x.shape[1:]))
        torch.index_select(self.y, 0, rows, out=y.view(-1, *self.y.shape[1:]))


class Depot:
    """On a CUDA device, every visited shard in one table; elsewhere nothing is copied."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.gathers = device.type == "cuda"
        self.shards: dict[int, tuple[int, Shard]] = {}
        self.used = 0
        self.x = torch.empty(0)
        self.y = torch.empty(0)

    def take(self, rows: Rows, benches: Sequence[Bench]) -> Taken:
        """Batches of (steps, walks, rows) row numbers of each walk's own shard."""
        plain = all(b.shard.augment is None and b.shard.stamp is None for b in benches)
        if plain and self.gathers:
            starts = np.array([self._start(bench.shard) for bench in benches])
            return _Listed(
                self.x, self.y, to_device(torch.from_numpy(rows + starts[:, None]), self.device)
            )
        xs, ys = [], []
        for place, bench in enumerate(benches):
            index = torch.from_numpy(np.ascontiguousarray(rows[:, place])).to(self.device)
            x, y = bench.shard.take(index.view(-1), bench.generator)
            xs.append(x.view(*index.shape, *x.shape[1:]))
            ys.append(y.view(*index.shape, *y.shape[1:]))
        return _Drawn(torch.stack(xs, 1), torch.stack(ys, 1))

    def _start(self, shard: Shard) -> int:
        """Where a shard begins in the table; it is added when it is first asked for."""
        found = self.shards.get(id(shard))
        if found is None:
            found = self.shards[id(shard)] = (self.used, shard)
            self._add(shard)
        return found[0]

    def _add(self, shard: Shard) -> None:
        need = self.used + len(shard.y)
        if self.used == 0 or need > len(self.y):
            room = max(need, 2 * len(self.y))
            x = shard.x.new_empty(room, *shard.x.shape[1:])
            y = shard.y.new_empty(room, *shard.y.shape[1:])
            if self.used:
                x[: self.used], y[: self.used] = self.x[: self.used], self.y[: self.used]
            self.x, self.y = x, y
        self.x[self.used : need], self.y[self.used : need] = shard.x, shard.y
        self.used = need
