"""The register of draws: each use of noise is entered before the noise is drawn.

Whoever draws noise again until the result is convenient has not added the noise that was accounted
for.  So each secret has a register in its folder.  After training and before each draw an entry is
written there: the run, the peer, the hop and the draw's number within its visit; marks of the
records that are hidden (see :func:`marks_of`): those to be forgotten, or, for noise of training
itself, all of the visited peer; and ``inputs``, an HMAC of the noise's std and grid
and of the exact bytes that it is added to.  Entries are chained by HMACs under the secret, and the
noise is keyed by the chain value: other bytes, made by other settings or by another processor, are
another entry with other noise.

The same entry again is a replay, with the same noise.  Any other entry that shares a mark is an
earlier draw, unless it is another hop or draw of the same run.  The event of the noise has the
entry's number, its chain value and how many earlier draws there are; where there is any, a
certificate is refused.

Not covered: another secret; the same secret copied to another folder, which has a register of its
own there; a register whose end was cut off (two certificates with one entry number and different
chain values show it, if they ever meet); a record of which both the id and the content, or the
names of its columns, were altered.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unwalk.core.data import Shard
from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.events import Draw
from unwalk.core.program import Rows
from unwalk.core.transcript import canonical
from unwalk.core.validation import check_private_file
from unwalk.tasks.task import ShardedTask


@dataclass(frozen=True)
class Place:
    """What a draw is for: its place, the marks of the records it hides, and its inputs.

    ``hop`` is None in lines written before version 2, which stand for a whole run.
    """

    run: str
    peer: int | None
    hop: int | None
    step: int | None
    marks: frozenset[str]
    inputs: str | None

    def counts_for(self, other: Place) -> bool:
        """Whether this draw makes ``other`` a second draw for the same records."""
        if self.hop is None or self.run != other.run:
            return bool(self.marks & other.marks)
        same = (self.hop, self.step) == (other.hop, other.step)
        return same and bool(self.marks & other.marks)


@dataclass(frozen=True)
class Entry:
    """One line: its number from 1, what it is for, and its chain value."""

    number: int
    place: Place
    chain: str


@dataclass(eq=False)
class Draws:
    """The register of one secret, stored beside it whatever the secret's file is called.

    With ``mend`` an incomplete last line, as a crash leaves it, is removed before the next one is
    written: no noise was drawn for it.
    """

    secret_file: Path
    secret: bytes = field(repr=False)
    mend: bool = False
    _text: str = field(default="", init=False, repr=False)
    _entries: list[Entry] = field(default_factory=list, init=False, repr=False)

    @property
    def path(self) -> Path:
        """The register's file."""
        name = hmac.new(self.secret, b"unwalk/register", hashlib.sha256).hexdigest()[:16]
        return self.secret_file.resolve().parent / f"releases-{name}.jsonl"

    def enter(self, place: Place) -> Draw:
        """The entry of a draw, written now unless it is already there."""
        with _held(self.path) as file:
            text = file.read()
            if self.mend and not text.endswith("\n"):
                text = text[: text.rfind("\n") + 1]
                os.ftruncate(file.fileno(), len(text))
                file.seek(0, os.SEEK_END)
            entries = self._read(text)
            entry = _same(entries, place)
            if entry is None:
                number, before = len(entries) + 1, entries[-1].chain if entries else ""
                entry = Entry(number, place, self._chained(before, _body(number, place)))
                file.write(_line(entry))
                file.flush()
                os.fsync(file.fileno())
        return _draw_of(entries, entry)

    def find(self, place: Place) -> Draw | None:
        """What :meth:`enter` returned, or None if there is no such entry; nothing is written."""
        entries = self.entries()
        entry = _same(entries, place)
        return None if entry is None else _draw_of(entries, entry)

    def entries(self) -> list[Entry]:
        """Every whole entry, checked."""
        if not self.path.exists():
            return []
        with _held(self.path) as file:
            text = file.read()
        return self._read(text[: text.rfind("\n") + 1])

    def _read(self, text: str) -> list[Entry]:
        """The entries, each checked against the one before it; those already read are cached."""
        if not text.startswith(self._text):
            self._text, self._entries = "", []
        entries = list(self._entries)
        for line in text[len(self._text) :].splitlines(keepends=True):
            number = len(entries) + 1
            try:
                entry = _parsed(line)
                before = entries[-1].chain if entries else ""
                chain = self._chained(before, _body(number, entry.place))
                intact = line == _line(entry) and entry.number == number
                intact = intact and hmac.compare_digest(entry.chain, chain)
            except (ValueError, KeyError, TypeError) as error:
                raise self._damaged(number) from error
            if not intact:
                raise self._damaged(number)
            entries.append(entry)
        self._text, self._entries = text, list(entries)
        return entries

    def _chained(self, before: str, body: dict[str, Any]) -> str:
        message = f"unwalk/release/{before}/{canonical(body)}".encode()
        return hmac.new(self.secret, message, hashlib.sha256).hexdigest()

    def _damaged(self, number: int) -> Corrupt:
        return Corrupt(
            f"{self.path}, the register of draws, was changed in line {number}: that noise is "
            "drawn once cannot be shown any more; use an exact method, or a new secret."
        )


@dataclass(frozen=True, eq=False)
class RunRegister:
    """The register as a run on one machine writes it.

    Every noise hides the records to be forgotten, which have ``marks``.  With ``trained``, the
    noise is that of training itself, and hides all records of the peer that is visited.
    """

    draws: Draws
    marks: frozenset[str]
    trained: ShardedTask | None = None

    def enter(self, *, run: str, peer: int, hop: int, step: int, inputs: str) -> Draw:
        return self.draws.enter(Place(run, peer, hop, step, self._hidden(peer), inputs))

    def _hidden(self, peer: int) -> frozenset[str]:
        if self.trained is None:
            return self.marks
        rows = self.trained.records(peer).rows("all")
        return marks_of(self.trained, self.draws.secret, peer, rows)


@dataclass(frozen=True, eq=False)
class ReplayRegister(RunRegister):
    """The register as a replay reads it: a draw without an entry gets no noise."""

    def enter(self, *, run: str, peer: int, hop: int, step: int, inputs: str) -> Draw:
        draw = self.draws.find(Place(run, peer, hop, step, self._hidden(peer), inputs))
        if draw is None:
            raise NotEntered(
                f"hop {hop} at peer {peer}: the register of draws has no entry for what would get "
                "noise there, so none was drawn; the numbers before the noise differ, or the "
                "register is not the one that the run wrote"
            )
        return draw


class NotEntered(Exception):
    """A replay asked for a draw that never took place."""


def marks_of(
    task: ShardedTask, secret: bytes, peer: int | None = None, rows: Rows | None = None
) -> frozenset[str]:
    """Marks of some records of a peer, several per record; one match is enough.  Without a peer,
    of those that have to be forgotten.

    One is of the id.  One is of the inputs as the model sees them, with the label, and where these
    are features another one of what they were made from.  Where a file
    names its columns, one is of all that it says of the record, and one of the same without id and
    group; neither depends on the file's name, on the order of columns or rows, on which of them
    are features, or on how they are scaled.  One more, of id and task's name, finds what was
    entered when there was no other mark of an id.
    """
    peer = task.unlearner if peer is None else peer
    rows = task.records(peer).forgotten if rows is None else rows
    ids, cells = task.ids(peer), task.cells(peer)
    messages = []
    for row in rows.tolist():
        messages += [f"unwalk/record-name/{ids[row]}", f"unwalk/record-id/{task.name}/{ids[row]}"]
        if cells is not None:
            messages += [f"unwalk/record-cells/{text}" for text in cells.contents(row)]
    id_marks = {_mark(secret, message.encode()) for message in messages}
    seen = content_marks(task.shard(peer), secret, rows)
    if task.features is not None:  # the same record under other features is the same
        shard = replace(task.shard(peer), x=task.before_features(peer))
        seen |= content_marks(shard, secret, rows)
    return seen | id_marks


def content_marks(shard: Shard, secret: bytes, rows: Rows | None = None) -> frozenset[str]:
    """A mark of the inputs and label of each of these rows, or of each forgotten record; equal
    ones have equal marks."""
    marks = set()
    for row in (shard.records.forgotten if rows is None else rows).tolist():
        x = shard.x[row].detach().to("cpu", torch.float64).contiguous()
        label = shard.y[row].tolist()  # a class, a number, or marks of labels
        message = b"unwalk/record/" + x.numpy().tobytes() + str(label).encode()
        marks.add(_mark(secret, message))
    return frozenset(marks)


def _mark(secret: bytes, message: bytes) -> str:
    return hmac.new(secret, message, hashlib.sha256).hexdigest()[:32]


def _same(entries: list[Entry], place: Place) -> Entry | None:
    return next((entry for entry in entries if entry.place == place), None)


def _draw_of(entries: list[Entry], entry: Entry) -> Draw:
    earlier = [e for e in entries[: entry.number - 1] if e.place.counts_for(entry.place)]
    return entry.number, entry.chain, len(earlier)


@contextmanager
def _held(path: Path) -> Iterator[Any]:
    """The register, open for its owner alone, while nobody else writes to it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise InvalidInput(
            f"{path}, the register of draws, cannot be opened: {error.strerror}."
        ) from error
    with os.fdopen(handle, "r+", encoding="ascii") as file:
        check_private_file(path)
        if os.name == "posix":
            import fcntl  # Windows has none

            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        file.seek(0)
        yield file


def _body(number: int, place: Place) -> dict[str, Any]:
    body = {"entry": number, "run": place.run, "records": sorted(place.marks)}
    if place.hop is None:
        return body
    at = {"peer": place.peer, "hop": place.hop, "step": place.step}
    return {**body, **at, "inputs": place.inputs}


def _line(entry: Entry) -> str:
    return canonical({**_body(entry.number, entry.place), "chain": entry.chain}) + "\n"


def _parsed(line: str) -> Entry:
    record = json.loads(line)
    peer, hop, step = (record.get(name) for name in ("peer", "hop", "step"))
    marks, inputs = frozenset(record["records"]), record.get("inputs")
    place = Place(record["run"], peer, hop, step, marks, inputs)
    return Entry(record["entry"], place, record["chain"])
