"""Chooses what one peer has to forget: poisoned records, some records, a class, or everything.

A poisoned record is one of a peer's own pictures, stamped with a trigger and relabelled to the
target (Gu, Dolan-Gavitt and Garg, *BadNets*, 2017).  A model that learned it answers with the
target whenever it sees the trigger; a model that forgot it no longer does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput
from unwalk.core.program import Rows
from unwalk.core.validation import check_choice, check_count, check_number

if TYPE_CHECKING:
    import torch

    from unwalk.tasks.sources import Source, Table

Cells = npt.NDArray[np.bool_]


def _square(size: int) -> Cells:
    return np.ones((size, size), bool)


def _cross(size: int) -> Cells:
    middle = np.zeros(size, bool)
    middle[[(size - 1) // 2, size // 2]] = True
    return middle[:, None] | middle[None, :]


def _checkerboard(size: int) -> Cells:
    cells: Cells = np.add.outer(np.arange(size), np.arange(size)) % 2 == 0
    return cells


SHAPES: Mapping[str, Callable[[int], Cells]] = {
    "square": _square,
    "cross": _cross,
    "checkerboard": _checkerboard,
}

# Room left above and to the left of the patch, as a share of the room that there is.
PLACES: Mapping[str, tuple[float, float]] = {
    "lower-right": (1.0, 1.0),
    "lower-left": (1.0, 0.0),
    "upper-right": (0.0, 1.0),
    "upper-left": (0.0, 0.0),
    "centre": (0.5, 0.5),
}

MODES = ("replace", "add")


@dataclass(frozen=True)
class Trigger:
    """A patch of ``size`` x ``size`` pixels, and how it gets into a peer's records.

    ``shape`` says which of its pixels are set: all (``square``), the middle row and column
    (``cross``, two of each when ``size`` is even) or every other one (``checkerboard``).  They
    get brightness ``value``, 0 to 1.  ``mode`` says whether poisoned records ``replace`` clean
    ones or are ``add``-ed as copies.

    >>> print(Trigger(size=4))
    4 x 4 square in the lower-right corner
    """

    shape: str = "square"
    size: int = 2
    place: str = "lower-right"
    value: float = 1.0
    target: int = 0
    mode: str = "replace"

    def __post_init__(self) -> None:
        check_choice("trigger.shape", self.shape, SHAPES)
        check_count("trigger.size", self.size, low=1)
        check_choice("trigger.place", self.place, PLACES)
        check_number("trigger.value", self.value, low=0.0, high=1.0)
        check_count("trigger.target", self.target)
        check_choice("trigger.mode", self.mode, MODES)

    def mask(self, height: int, width: int) -> Cells:
        """Which pixels of a picture are set.

        >>> Trigger(shape="checkerboard", size=2).mask(3, 3).astype(int).tolist()
        [[0, 0, 0], [0, 1, 0], [0, 0, 1]]
        """
        if self.size > min(height, width):
            raise InvalidInput(
                f"trigger.size is {self.size}; the pictures have {height} x {width} pixels, "
                f"so allowed: 1 to {min(height, width)}."
            )
        down, right = PLACES[self.place]
        top, left = int(down * (height - self.size)), int(right * (width - self.size))
        mask = np.zeros((height, width), bool)
        mask[top : top + self.size, left : left + self.size] = SHAPES[self.shape](self.size)
        return mask

    def __str__(self) -> str:
        side = f"{self.size} x {self.size} {self.shape}"
        return f"{side} in the {self.place}{'' if self.place == 'centre' else ' corner'}"

    def stamper(self, source: Source) -> Stamper:
        """What stamps this trigger on inputs of ``source``."""
        import torch  # not for whoever only names a trigger

        if source.scale is None or len(source.shape) < 2:
            raise InvalidInput(
                f"a trigger is stamped on pictures; the inputs of {source.name!r} have shape "
                f"{source.shape} and are not pictures."
            )
        if self.target >= source.classes:
            raise InvalidInput(
                f"trigger.target is {self.target}; allowed: a class from 0 to {source.classes - 1}."
            )
        height, width = source.shape[-2:]
        value = source.scale.inputs(torch.full((1, 1, 1), self.value))
        return Stamper(torch.from_numpy(self.mask(height, width)), value)


@dataclass(frozen=True, eq=False)
class Stamper:
    """Puts the trigger on a batch; the batch that was passed in stays as it is."""

    mask: torch.Tensor
    value: torch.Tensor
    _near: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=dict, init=False, repr=False
    )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """A stamped copy of inputs of shape (..., height, width)."""
        if x.device not in self._near:
            self._near[x.device] = self.mask.to(x.device), self.value.to(x.device)
        mask, value = self._near[x.device]
        return value.to(x.dtype).where(mask, x)


def poison(
    table: Table, count: int, trigger: Trigger, rng: np.random.Generator
) -> tuple[Table, Rows]:
    """Records of which ``count`` are poisoned, and the rows of these: relabelled, not yet stamped.

    Records of other classes than the target are taken first: the target's own would teach the
    model nothing.  The caller has made sure that there are ``count`` records.
    """
    order = rng.permutation(len(table))
    of_target = table.y.numpy()[order] == trigger.target
    chosen = np.sort(np.concatenate([order[~of_target], order[of_target]])[:count])
    if trigger.mode == "add":
        rows = np.arange(len(table), len(table) + count, dtype=np.int64)
        return table.with_copies(chosen, "+poison").relabelled(rows, trigger.target), rows
    return table.relabelled(chosen, trigger.target), chosen


KINDS: Mapping[str, str] = {
    "backdoor": "the peer's poisoned records: its own, stamped with a trigger and relabelled",
    "records": "records of the peer, drawn at random",
    "class": "all the peer's records of one class",
    "peer": "all records of the peer, which withdraws",
    "listed": "the records that forget.ids names, or the task itself",
    "nothing": "no record: a run that only learns",
}


def read_ids(path: Path) -> tuple[str, ...]:
    """The record ids in a text file, one per line; empty lines are passed over."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text: {error.reason}.") from error
    ids = tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not ids:
        raise InvalidInput(f"{path} names no record; allowed: one id per line.")
    return ids


@dataclass(frozen=True)
class Deletion:
    """What has to be forgotten.

    ``size`` is the number of records, the paper's m, for ``backdoor`` and ``records``; ``label``
    the class for ``class``; ``ids`` are those of the records for ``listed``, without which the task
    lists them.  The other kinds ask for none of these.
    """

    kind: str = "backdoor"
    size: int | None = None
    label: int | None = None
    ids: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        check_choice("forget.kind", self.kind, KINDS)
        if self.ids is not None and (self.kind != "listed" or not len(self.ids)):
            raise InvalidInput(
                f"forget.ids names {len(self.ids)} records and forget.kind is {self.kind!r}; "
                "allowed: one id or more, and kind 'listed'."
            )
        if self.kind in ("backdoor", "records"):
            _needed("forget.size", self.kind, self.size)
            check_count("forget.size", self.size or 0, low=1)
        if self.kind == "class":
            _needed("forget.label", self.kind, self.label)
            check_count("forget.label", self.label or 0)


def _needed(key: str, kind: str, value: int | None) -> None:
    if value is None:
        raise InvalidInput(f"{key} is missing; forget.kind {kind!r} needs it.")


@dataclass(frozen=True, eq=False)
class Marked:
    """A peer's training records, and which of them are to be forgotten."""

    table: Table
    forgotten: Rows
    poisoned: bool


def mark(
    deletion: Deletion,
    trigger: Trigger | None,
    source: Source,
    peer: int,
    table: Table,
    rng: np.random.Generator,
    holder: Callable[[str], int | None],
) -> Marked:
    """Choose what ``peer`` has to forget among the records of ``table``, poisoning them first.

    ``holder`` says who trains on a record, by its id.
    """
    size, label = deletion.size or 0, deletion.label or 0
    if deletion.kind in ("backdoor", "records") and size > len(table):
        raise InvalidInput(
            f"forget.size is {size}; peer {peer} has {len(table)} records, "
            f"so allowed: 1 to {len(table)}."
        )
    if deletion.kind == "backdoor":
        if trigger is None:
            raise InvalidInput("forget.kind is 'backdoor', which needs a trigger.")
        poisoned, rows = poison(table, size, trigger, rng)
        return Marked(poisoned, rows, poisoned=True)
    match deletion.kind:
        case "records":
            rows = np.sort(rng.permutation(len(table))[:size])
        case "class":
            rows = _of_class(table, label, source.classes, peer)
        case "peer":
            rows = np.arange(len(table), dtype=np.int64)
        case "listed" if deletion.ids is not None:
            rows = _named(table, peer, deletion.ids, holder)
        case "listed":
            rows = _listed(table, source, peer)
        case _:
            rows = np.empty(0, np.int64)
    return Marked(table, rows, poisoned=False)


def _of_class(table: Table, label: int, classes: int, peer: int) -> Rows:
    if label >= classes:
        raise InvalidInput(f"forget.label is {label}; allowed: a class from 0 to {classes - 1}.")
    rows = np.flatnonzero(table.y.numpy() == label)
    if not rows.size:
        raise InvalidInput(
            f"forget.label is {label}; peer {peer} has no record of that class, but of "
            f"{', '.join(map(str, np.unique(table.y.numpy())))}."
        )
    return rows


def _listed(table: Table, source: Source, peer: int) -> Rows:
    if source.listed is None:
        raise InvalidInput(
            f"forget.kind is 'listed', but task {source.name!r} lists no records; allowed: "
            f"forget.ids, or {', '.join(kind for kind in KINDS if kind != 'listed')}."
        )
    rows = np.flatnonzero(np.isin(table.ids, source.listed))
    if rows.size != len(source.listed):
        raise InvalidInput(
            f"forget.peer is {peer}, which holds {rows.size} of the {len(source.listed)} records "
            f"that task {source.name!r} lists; allowed: the peer that holds all of them."
        )
    return rows


def _named(
    table: Table, peer: int, ids: Sequence[Any], holder: Callable[[str], int | None]
) -> Rows:
    """The rows of the records with these ids; the peer has to train on all of them."""
    names = table.ids.astype(str)
    for name in map(str, ids):
        if name not in names:
            owner = holder(name)
            raise InvalidInput(
                f"forget.ids names {name!r}, which "
                + (
                    "nobody trains on: no record has it, or the test set, which the seed draws; "
                    "leave it out, or bring a test set (data.test_path)."
                    if owner is None
                    else f"peer {owner} holds, but forget.peer is {peer}; allowed: one peer for "
                    "all ids, named with forget.peer."
                )
            )
    return np.flatnonzero(np.isin(names, list(map(str, ids))))
