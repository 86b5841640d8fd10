"""Refuses a store that another protocol wrote, with a sentence that says what to do.

The protocol's number stands in the database (``application_id``).  Stores of protocol 2 and before
have none there; what they lack is the table of how walks ended, which came with protocol 3.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from unwalk.core.errors import InvalidInput
from unwalk.peers.protocol.messages import PROTOCOL


def check_protocol(db: sqlite3.Connection, path: Path) -> None:
    """Refuse a store of another protocol; one that is new is from now on of this one."""
    number = int(db.execute("PRAGMA application_id").fetchone()[0])
    if number == PROTOCOL:
        return
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if number or ("agenda" in tables and "ends" not in tables):
        raise InvalidInput(
            f"{path} was written by protocol {number or '2 or older'}, and protocol {PROTOCOL} is "
            "spoken here: stop the whole network and make a new one with this release (unwalk net "
            "init), or start this peer with the release that wrote its store."
        )
    db.execute(f"PRAGMA application_id = {PROTOCOL}")
