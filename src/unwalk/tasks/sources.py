"""The records of a task and who holds them, before anything is poisoned or forgotten.

A :class:`Source` says what records look like and carries the test set.  :class:`Holdings` returns
the records of one peer: from a pool that was split (:class:`Split`), or made on demand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core.data import Augment, Held
from unwalk.core.program import Rows

Ids = npt.NDArray[Any]
"""Record ids: an array of whole numbers or of text, no id twice."""


@dataclass(frozen=True)
class Scale:
    """How a picture's pixels (0 to 1) become inputs: ``(pixel - mean) / std`` in every channel.

    >>> Scale(mean=(0.5,), std=(0.25,)).inputs(torch.ones(1, 1, 1)).item()
    2.0
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def inputs(self, pixels: torch.Tensor) -> torch.Tensor:
        """Inputs of the model from pixels of shape (..., channels, height, width)."""
        mean, std = self._channels(pixels)
        return (pixels - mean) / std

    def pixels(self, inputs: torch.Tensor) -> torch.Tensor:
        """Pixels from inputs: the way back, for people to look at."""
        mean, std = self._channels(inputs)
        return inputs * std + mean

    def _channels(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, std = (torch.tensor(v, dtype=like.dtype) for v in (self.mean, self.std))
        return mean.view(-1, 1, 1).to(like.device), std.view(-1, 1, 1).to(like.device)


@dataclass(frozen=True, eq=False)
class Cells:
    """The values of records as a file has them, by the names of its columns.

    ``columns`` holds all of them, also those that are no features; ``rows`` says which of their
    entries belong to these records; ``owners`` are the columns of ids and groups.
    """

    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]
    rows: Rows
    owners: frozenset[str] = frozenset()

    def take(self, rows: Rows) -> Cells:
        """The same for some of the records."""
        return replace(self, rows=self.rows[rows])

    def contents(self, row: int) -> tuple[str, str]:
        """A record's content with and without id and group, independent of the order of columns.

        >>> one = Cells({"id": ["x"], "age": ["50.0"]}, np.arange(1), frozenset({"id"}))
        >>> one.contents(0)
        ('[["age", "50.0"], ["id", "x"]]', '[["age", "50.0"]]')
        >>> other = Cells({"age": np.array([50]), "id": ["y"]}, np.arange(1), frozenset({"id"}))
        >>> other.contents(0)[1] == one.contents(0)[1]
        True
        """
        at = int(self.rows[row])
        pairs = sorted((name.strip(), _plain(cells[at])) for name, cells in self.columns.items())
        bare = [pair for pair in pairs if pair[0] not in self.owners]
        return json.dumps(pairs), json.dumps(bare)


def _plain(cell: Any) -> str:
    """A value as text that does not depend on how the file writes it."""
    try:
        number = float(cell)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    return repr(number + 0.0) if math.isfinite(number) else str(cell).strip()


@dataclass(frozen=True, eq=False)
class Table:
    """Labelled records with an id each; ``groups`` names the natural owner of each, if any.

    ``cells`` are the values that they were made from, where a file names them.
    """

    x: torch.Tensor
    y: torch.Tensor
    ids: Ids
    groups: Rows | None = None
    cells: Cells | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Rows) -> Table:
        """A copy of these rows."""
        index = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
        groups = None if self.groups is None else self.groups[rows]
        cells = None if self.cells is None else self.cells.take(rows)
        x, y = self.x.index_select(0, index), self.y.index_select(0, index)
        return Table(x, y, self.ids[rows], groups, cells)

    def relabelled(self, rows: Rows, label: int) -> Table:
        """A copy in which ``rows`` have another label."""
        y = self.y.clone()
        y[torch.from_numpy(rows)] = label
        return replace(self, y=y)

    def with_copies(self, rows: Rows, mark: str) -> Table:
        """These records and, behind them, a copy of ``rows`` whose ids end in ``mark``."""
        extra = self.take(rows)
        ids = np.concatenate([self.ids.astype(str), [f"{i}{mark}" for i in extra.ids]])
        both = np.concatenate([np.arange(len(self)), rows])
        cells = None if self.cells is None else self.cells.take(both)
        x, y = torch.cat([self.x, extra.x]), torch.cat([self.y, extra.y])
        return Table(x, y, ids, cells=cells)


@dataclass(frozen=True, eq=False)
class Source:
    """What the records of a task look like.

    ``scale`` is given for pictures and None for other records; ``augment`` changes a batch of
    training inputs at random.  Labels are the numbers 0 to ``classes`` - 1, called ``labels``.

    ``feature_norm`` bounds the length of every input that could exist, None where nothing does.
    ``normalisation`` says where the numbers come from that inputs were made with: ``published``
    constants, what was ``declared`` of a file's columns, or ``unknown``.  ``labels_from`` says the
    same of the classes: ``published``, ``declared``, or read off the data, ``as-they-occur``.
    ``holdout`` is ``share`` where the test set is a share of the records, and ``apart`` where it
    is another set; ``own_code`` says whether ``augment`` is a user's own.

    ``published`` is how many records there are to train on, in all or for each natural peer, by
    what is documented about the task: constants and settings, never a count of the records at hand.
    None where nothing is.
    """

    name: str
    classes: int
    test: Held
    labels: tuple[str, ...]
    scale: Scale | None = None
    augment: Augment | None = None
    feature_norm: float | None = None
    normalisation: str = "published"
    labels_from: str = "published"
    holdout: str = "apart"
    own_code: bool = False
    published: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.test.x.shape[1:])


class Holdings(Protocol):
    """Who holds which records.

    ``dealing`` names the partition by which records were dealt; it is ``natural`` where nobody
    dealt them, so that each peer would hold the same without any other record.
    """

    @property
    def dealing(self) -> str: ...

    @property
    def peers(self) -> int: ...
    @property
    def records(self) -> int:
        """How many records all peers hold together."""

    def table(self, peer: int) -> Table:
        """The records of one peer: equal at every call, and not kept here."""


@dataclass(frozen=True, eq=False)
class Split:
    """A pool of records dealt to peers: ``parts`` holds the rows of each."""

    pool: Table
    parts: Sequence[Rows]
    dealing: str = "natural"

    @property
    def peers(self) -> int:
        return len(self.parts)

    @property
    def records(self) -> int:
        return sum(len(rows) for rows in self.parts)

    def table(self, peer: int) -> Table:
        """The rows of one peer, copied out of the pool."""
        return self.pool.take(self.parts[peer])
