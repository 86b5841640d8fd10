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

    def room(self, size: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for inputs and labels of ``size`` walks with ``width`` rows each."""

    def fill(self, x: torch.Tensor, y: torch.Tensor, step: int) -> None:
        """Write one step's inputs and labels into ``x`` and ``y``."""


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Batches that were taken before the first step, each walk's in its own order."""

    x: torch.Tensor
    y: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[3:])

    def room(self, size: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            self.x.new_zeros(size, width, *self.x.shape[3:]),
            self.y.new_zeros(size, width, *self.y.shape[3:]),
        )

    def fill(self, x: torch.Tensor, y: torch.Tensor, step: int) -> None:
        x.copy_(self.x[step])
        y.copy_(self.y[step])


@dataclass(frozen=True, eq=False)
class _Listed:
    """Batches that are gathered from a table when their step comes."""

    x: torch.Tensor
    y: torch.Tensor
    rows: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    def room(self, size: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            self.x.new_zeros(size, width, *self.x.shape[1:]),
            self.y.new_zeros(size, width, *self.y.shape[1:]),
        )

    def fill(self, x: torch.Tensor, y: torch.Tensor, step: int) -> None:
        rows = self.rows[step].view(-1)
        torch.index_select(self.x, 0, rows, out=x.view(-1, *self.x.shape[1:]))
        torch.index_select(self.y, 0, rows, out=y.view(-1, *self.y.shape[1:]))


class Depot:
    """Every visited shard in one table, but those whose records are changed as they are taken."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.shards: dict[int, tuple[int, Shard]] = {}
        self.used = 0
        self.x = torch.empty(0)
        self.y = torch.empty(0)

    def take(self, rows: Rows, benches: Sequence[Bench]) -> Taken:
        """Batches of (steps, walks, rows) row numbers of each walk's own shard."""
        if all(b.shard.augment is None and b.shard.stamp is None for b in benches):
            starts = np.array([self._start(bench.shard) for bench in benches])
            at = to_device(torch.from_numpy(rows + starts[:, None]), self.device)
            return _Listed(self.x, self.y, at)
        xs, ys = [], []
        listed = to_device(torch.from_numpy(rows), self.device).unbind(1)
        for index, bench in zip(listed, benches, strict=True):
            x, y = bench.shard.take(index.reshape(-1), bench.generator)
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
        if need >= len(self.y):  # a row is left over, which stands for the rows of an empty shard
            room = max(need + 1, 2 * len(self.y))
            x = shard.x.new_zeros(room, *shard.x.shape[1:])
            y = shard.y.new_zeros(room, *shard.y.shape[1:])
            if self.used:
                x[: self.used], y[: self.used] = self.x[: self.used], self.y[: self.used]
            self.x, self.y = x, y
        self.x[self.used : need], self.y[self.used : need] = shard.x, shard.y
        self.used = need
