"""Takes over what changed in the files of a peer's records, in one transaction.

Everything that has to be read is read and checked first.  Then records are added, changed or
emptied, and the files' sizes, times and digests are written down, so that the next look is cheap.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from unwalk.core.transcript import canonical
from unwalk.peers.records.id_hashing import RecordKey
from unwalk.peers.records.sources import (
    DataSettings,
    Part,
    SourceRefused,
    files_of,
    name_of,
    read_part,
)
from unwalk.tasks.declared import Declared

SETTLED = 2_000_000_000
"""Nanoseconds after which a file's time is trusted to change with its content."""
CHUNK = 1 << 20
FileRow = tuple[int, int, int, str]
"""Size, time of change, inode and keyed digest of a file."""
NEXT_VISIT = "(SELECT COALESCE(MAX(serial), 0) + 1 FROM visits)"


@dataclass(frozen=True)
class Look:
    """A file of the source as it was found; a time that is not ``settled`` says nothing."""

    path: Path
    size: int
    changed: int
    inode: int
    settled: bool

    @property
    def stamp(self) -> tuple[int, int, int]:
        """What is compared."""
        return self.size, self.changed, self.inode


@dataclass(frozen=True, eq=False)
class Survey:
    """What was found in the source: all that is needed to take it over, read and checked."""

    looks: dict[str, Look]
    parts: dict[str, Part]
    rows: dict[str, FileRow]
    vanished: frozenset[str]
    setting: str

    def __bool__(self) -> bool:
        return bool(self.parts or self.rows or self.vanished)


def known_files(db: sqlite3.Connection) -> dict[str, FileRow]:
    """The files of the source as they were when they were last taken over, by hashed name."""
    query = "SELECT file, size, changed, inode, digest FROM sources"
    return {row[0]: row[1:] for row in db.execute(query)}


def survey(
    key: RecordKey,
    declared: Declared,
    settings: DataSettings,
    known: Mapping[str, FileRow],
    setting_before: str,
    *,
    anew: bool = False,
) -> Survey:
    """Read what changed since the last look, or, ``anew``, everything; nothing is written."""
    looks = {key.hash(name_of(f), "file"): _look(f) for f in files_of(settings.path)}
    columns = {"columns": [settings.id_column, settings.label_column]}
    setting = canonical({**columns, "declared": declared.to_json()})
    anew = anew or setting_before != setting
    parts: dict[str, Part] = {}
    rows: dict[str, FileRow] = {}
    for file, look in looks.items():
        old = known.get(file)
        if not anew and old is not None and old[:3] == look.stamp and look.settled:
            continue
        row = (*look.stamp, _digest(key, look.path))
        if row != old:
            rows[file] = row
        if anew or old is None or row[3] != old[3]:
            parts[file] = read_part(look.path, settings, declared)
    return Survey(looks, parts, rows, frozenset(known.keys() - looks.keys()), setting)


def take_over(
    db: sqlite3.Connection,
    key: RecordKey,
    settings: DataSettings,
    surveyed: Survey,
    capacity: int | None,
) -> tuple[int, int, int]:
    """Take over what changed, in the caller's transaction.

    How many records were added, changed and removed.
    """
    done = _take_over(db, key, settings, surveyed)
    _check_capacity(db, settings, capacity)
    for file, row in surveyed.rows.items():
        db.execute("INSERT OR REPLACE INTO sources VALUES (?,?,?,?,?)", (file, *row))
    for file in surveyed.vanished:
        db.execute("DELETE FROM sources WHERE file = ?", (file,))
    return done


def _look(path: Path) -> Look:
    try:
        stat = path.stat()
    except OSError as error:
        raise SourceRefused(f"{path} cannot be read: {error.strerror}.") from error
    settled = abs(time.time_ns() - stat.st_mtime_ns) > SETTLED
    return Look(path, stat.st_size, stat.st_mtime_ns if settled else -1, stat.st_ino, settled)


def _digest(key: RecordKey, path: Path) -> str:
    def chunks() -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk

    try:
        return key.digest(chunks())
    except OSError as error:
        raise SourceRefused(f"{path} cannot be read: {error.strerror}.") from error


def _take_over(
    db: sqlite3.Connection, key: RecordKey, settings: DataSettings, surveyed: Survey
) -> tuple[int, int, int]:
    """Put the records that were found in the place of what their files held before."""
    looks, parts = surveyed.looks, surveyed.parts
    query = "SELECT hash, file, digest, state FROM records"
    before = {row[0]: row[1:] for row in db.execute(query)}
    forgotten = {row[0] for row in db.execute("SELECT hash FROM tombstones")}
    places = _free_places(db)
    seen: dict[str, str] = {}
    added = changed = 0
    for file, part in parts.items():
        for row, name in enumerate(part.ids):
            hashed = key.hash(name)
            old_file, old_digest, state = before.get(hashed, ("", "", ""))
            elsewhere = old_file != file and old_file in looks and old_file not in parts
            if hashed in seen or (elsewhere and state != "gone"):
                first = looks[seen.get(hashed, old_file)].path
                raise SourceRefused(
                    f"{looks[file].path} has the id {name!r}, and so has {first}; allowed: an id "
                    "of its own for each record."
                )
            seen[hashed] = file
            if hashed in forgotten:
                continue
            x, label = part.x[row].astype("<f4").tobytes(), int(part.y[row])
            digest = key.digest([label.to_bytes(8, "little"), x])
            if not state:
                split = _split(key, name, settings.hold_out)
                place = next(places) if split == "train" else None
                values = (hashed, file, digest, split, "active", place, label, x)
                db.execute(INSERT, values)
                added += 1
            elif state == "gone":
                query = "SELECT split FROM records WHERE hash = ?"
                (split,) = db.execute(query, (hashed,)).fetchone()
                place = next(places) if split == "train" else None
                db.execute(ABSENCE, (hashed, state))
                db.execute(RETURN, (file, digest, place, label, x, hashed))
                added += 1
            elif state == "active" and digest != old_digest:
                db.execute(CHANGE, (file, digest, label, x, hashed))
                changed += 1
            elif old_file != file:
                db.execute("UPDATE records SET file = ? WHERE hash = ?", (file, hashed))
    lost = [
        (hashed,)
        for hashed, (file, _, state) in before.items()
        if hashed not in seen and state != "gone" and (file in parts or file in surveyed.vanished)
    ]
    db.executemany(LEAVE, lost)
    return added, changed, len(lost)


INSERT = f"""INSERT INTO records (hash, file, digest, split, state, place, since, label, x)
    VALUES (?, ?, ?, ?, ?, ?, {NEXT_VISIT}, ?, ?)"""
ABSENCE = f"""INSERT INTO absences SELECT hash, until, {NEXT_VISIT} FROM records
    WHERE hash = ? AND state = ? AND until < {NEXT_VISIT}"""
"""What is remembered of a record that was away during visits, before it is there again."""
RETURN = """UPDATE records SET file = ?, digest = ?, place = ?, label = ?, x = ?,
    state = 'active', until = NULL WHERE hash = ?"""
CHANGE = "UPDATE records SET file = ?, digest = ?, label = ?, x = ? WHERE hash = ?"
LEAVE = f"""UPDATE records SET place = NULL, label = NULL, x = NULL, digest = '', file = '',
    state = CASE state WHEN 'active' THEN 'gone' ELSE state END,
    until = COALESCE(until, {NEXT_VISIT}) WHERE hash = ?"""


def _split(key: RecordKey, name: str, share: float) -> str:
    """Whether a record is trained on; the same for the same id, whatever else there is."""
    drawn = int(key.hash(name, "split")[:16], 16) / 2.0**64
    return "hold-out" if drawn < share else "train"


def _free_places(db: sqlite3.Connection) -> Iterator[int]:
    query = "SELECT place FROM records WHERE place IS NOT NULL"
    taken = {row[0] for row in db.execute(query)}
    return (place for place in count() if place not in taken)


def _check_capacity(db: sqlite3.Connection, settings: DataSettings, capacity: int | None) -> None:
    if capacity is None:
        return
    (size,) = db.execute("SELECT COALESCE(MAX(place), -1) + 1 FROM records").fetchone()
    if size > capacity:
        raise SourceRefused(
            f"{settings.path} makes {size} records to train on; the network's train.capacity "
            f"allows a peer {capacity}."
        )
