"""What one peer has to forget: its poisoned records, some records, a class, or all it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from unwalk.core.errors import InvalidInput
from unwalk.core.program import Rows
from unwalk.core.validation import check_choice, check_count
from unwalk.tasks.backdoors import Trigger, poison
from unwalk.tasks.sources import Source, Table

KINDS: Mapping[str, str] = {
    "backdoor": "the peer's poisoned records: its own, stamped with a trigger and relabelled",
    "records": "records of the peer, drawn at random",
    "class": "all the peer's records of one class",
    "peer": "all records of the peer, which withdraws",
    "nothing": "no record: a run that only learns",
}


@dataclass(frozen=True)
class Deletion:
    """What has to be forgotten.

    ``size`` is the number of records, the paper's m, for ``backdoor`` and ``records``; ``label``
    the class for ``class``.  The other kinds ask for neither and ignore them.
    """

    kind: str = "backdoor"
    size: int | None = None
    label: int | None = None

    def __post_init__(self) -> None:
        check_choice("forget.kind", self.kind, KINDS)
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
    """A peer's records as they are trained on, and which of them are to be forgotten."""

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
) -> Marked:
    """Choose what ``peer`` has to forget among the records of ``table``, poisoning them first."""
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
