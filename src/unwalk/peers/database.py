"""SQLite as a peer uses it: durable, and without a trace of what was deleted."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from unwalk.core.errors import InvalidInput

PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "temp_store=MEMORY")
ATTEMPTS, PAUSE = 3, 0.1
"""How often, and after how many seconds, it is tried again to truncate the log."""


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
    process holds the log.
    """
    if rewrite:
        db.execute("VACUUM")
    for _ in range(ATTEMPTS):
        busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if not busy:
            return
        time.sleep(PAUSE)
    raise InvalidInput(f"the log of {path} cannot be truncated: another process reads it.")
