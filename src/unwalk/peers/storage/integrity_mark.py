"""Finds at the start what a disk has lost: a mark beside the database says how much was written.

A peer that forgets a vote may vote twice.  SQLite notices a torn write, but not a page that was
damaged on disk, and a log that was cut short looks to it like one that ended earlier.  So every
change of the database counts up in the same transaction, and the mark, outside the store, says how
far the count has come; at a checkpoint it also takes the SHA-256 of the database's file, which
SQLite does not touch until the next one.  What is less than the mark says is refused at the start.

The mark is written after the change that it counts, so it is never ahead of a disk that keeps what
it flushed.  It is flushed itself only with a promise (a vote) and at checkpoints: a process that
dies loses nothing either way.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from unwalk.core.errors import InvalidInput

SLOT = 512
"""Bytes of each of two places that are written in turn, so that one is always whole."""


@dataclass(frozen=True)
class Mark:
    """What the database has to be like.

    ``changes`` were committed, at least.  ``file`` is the SHA-256 of the database's file, empty
    while a checkpoint is under way.  ``number`` counts the marks themselves.
    """

    changes: int = 0
    file: str = ""
    number: int = 0


class MarkFile:
    """The mark of one database.

    It lies in the bundle, outside the folder ``store``: whoever loses that still has the mark.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self.last = self._read()
            if self.last is None:
                sync_folder(self.path.parent)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _read(self) -> Mark | None:
        data = os.pread(self.fd, 2 * SLOT, 0)
        marks = [mark for at in (0, SLOT) if (mark := _parse(data[at : at + SLOT])) is not None]
        if data and not marks:
            raise InvalidInput(
                f"{self.path} is damaged: it says nothing of what the store holds; {WAY_BACK}"
            )
        return max(marks, key=lambda m: (m.changes, m.number), default=None)

    def write(self, changes: int, file: str, *, flush: bool) -> None:
        """Put the mark further on."""
        number = 0 if self.last is None else self.last.number + 1
        mark = Mark(changes, file, number)
        os.pwrite(self.fd, _text(mark), SLOT * (number % 2))
        if flush:
            os.fsync(self.fd)
        self.last = mark

    def check_there(self, database: Path) -> None:
        """Refuse a database that is gone, or whose bytes were changed since its last checkpoint."""
        mark = self.last
        if mark is not None and not database.exists():
            raise InvalidInput(f"{database} is not there, but was; {WAY_BACK}")
        if mark is not None and mark.file and digest_of(database) != mark.file:
            raise InvalidInput(
                f"{database} is damaged: its bytes are not those that this peer wrote; {WAY_BACK}"
            )

    def check_newest(self, database: Path, changes: int) -> None:
        """Refuse a database that has seen fewer changes than were written to it."""
        mark = self.last
        if mark is None and changes:
            raise InvalidInput(
                f"{database} has lost its mark, which lay beside the store; {WAY_BACK}"
            )
        if mark is not None and changes < mark.changes:
            raise InvalidInput(
                f"{database} is older than what this peer has written: {mark.changes - changes} of "
                f"{mark.changes} changes are lost; {WAY_BACK}"
            )


WAY_BACK = (
    "this peer does not start, since it could break what it promised. Put back a copy of the store "
    "that was made after this peer last stopped, or join again: docs/failures.md, 'A store that is "
    "damaged or lost'."
)


def count(db: sqlite3.Connection) -> int:
    """How many changes a database says that it has seen."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def count_on(db: sqlite3.Connection) -> int:
    """Count the change that a transaction is about to commit."""
    changes = count(db) + 1
    db.execute(f"PRAGMA user_version = {changes}")
    return changes


@contextmanager
def damage_refused(database: Path) -> Iterator[None]:
    """Turn what SQLite says of a damaged file into a refusal; a full disk or a lock passes."""
    try:
        yield
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise InvalidInput(f"{database} is damaged ({error}); {WAY_BACK}") from error


def check_whole(db: sqlite3.Connection, path: Path) -> None:
    """Refuse a database whose pages do not fit together."""
    try:
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise InvalidInput(f"{path} is damaged ({error}); {WAY_BACK}") from error
    if verdict != "ok":
        raise InvalidInput(f"{path} is damaged ({verdict[:200]}); {WAY_BACK}")


def _text(mark: Mark) -> bytes:
    body = json.dumps(asdict(mark)).encode()
    return (hashlib.sha256(body).hexdigest().encode() + b" " + body).ljust(SLOT)


def _parse(data: bytes) -> Mark | None:
    digest, _, body = data.rstrip().partition(b" ")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    with suppress(ValueError, TypeError):
        return Mark(**json.loads(body))
    return None


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(path: Path) -> None:
    """Flush which files a folder has."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
