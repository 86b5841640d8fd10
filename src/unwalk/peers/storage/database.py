"""SQLite as a peer uses it: durable, and without a trace of what was deleted."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unwalk.core.errors import InvalidInput

PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "temp_store=MEMORY")
BEGINNING = "beginning.json"
"""Says whether training has begun, and for whom it waits."""
RECORDS_DATABASE = "records.sqlite"
"""The database of a peer's records and requests, in its store."""


def open_database(path: Path, schema: str) -> sqlite3.Connection:
    """A database that only its owner may read; deleted rows are overwritten with zeros."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
    for pragma in PRAGMAS:
        db.execute(f"PRAGMA {pragma}").fetchone()
    db.executescript(schema)
    return db


def compact(db: sqlite3.Connection, path: Path, *, rewrite: bool = True) -> None:
    """Write a database anew and truncate its log, so that no page of before is left.

    ``secure_delete`` overwrites a deleted row where it stands, but not the copies that moving rows
    between pages may have left behind: only writing anew drops those.  Refused while another
    process holds the log, and then nothing is written anew: the log would grow by a whole database
    at each attempt.
    """
    if rewrite:
        _truncate_log(db, path)
        db.execute("VACUUM")
    _truncate_log(db, path)


def _truncate_log(db: sqlite3.Connection, path: Path) -> None:
    """SQLite does not wait for whoever reads: nothing else would be done here meanwhile."""
    its_own = db.execute("PRAGMA busy_timeout").fetchone()[0]
    db.execute("PRAGMA busy_timeout=0").fetchone()
    try:
        busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        db.execute(f"PRAGMA busy_timeout={its_own}").fetchone()
    if busy:
        raise InvalidInput(f"the log of {path} cannot be truncated: another process reads it.")


def read_only(path: Path, **options: Any) -> sqlite3.Connection:
    """A connection that only looks; the path may hold any character."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    db: sqlite3.Connection = sqlite3.connect(address, uri=True, **options)
    return db


class Glance:
    """Looks at what is committed in a database, and never waits for whoever writes to it."""

    def __init__(self, path: Path) -> None:
        self._db = read_only(path, isolation_level=None, check_same_thread=False, timeout=30.0)
        self._one = threading.Lock()

    @contextmanager
    def __call__(self) -> Iterator[sqlite3.Connection]:
        """All questions of one look see the same state."""
        with self._one:
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                self._db.execute("COMMIT")

    def close(self) -> None:
        """No more looks."""
        with self._one:
            self._db.close()


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other thread or process does what is done under the lock of this file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
