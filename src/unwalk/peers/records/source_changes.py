"""Taking over what changed in a peer's source, in one transaction.

Everything that has to be read is read and checked first.  Then records are added, changed or
emptied, and the files' sizes, times and digests are written down, so that the next look is cheap.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from unwalk.core.transcript import canonical
from unwalk.peers.records.sources import (
    DataSettings,
    Part,
    SourceRefused,
    files_of,
    name_of,
    read_part,
)

if TYPE_CHECKING:
    from unwalk.peers.records.record_store import Records

SETTLED = 2_000_000_000
"""Nanoseconds after which a file's time is trusted to change with its content."""
CHUNK = 1 << 20
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
    rows: dict[str, tuple[int, int, int, str]]
    vanished: frozenset[str]
    setting: str

    def __bool__(self) -> bool:
        return bool(self.parts or self.rows or self.vanished)


def survey(records: Records, settings: DataSettings, *, anew: bool = False) -> Survey:
    """Read what changed since the last look, or, ``anew``, everything; nothing is written."""
    looks = {records.hash(name_of(f), "file"): _look(f) for f in files_of(settings.path)}
    said = {"columns": [settings.id_column, settings.label_column]}
    setting = canonical({**said, "declared": records.declared.to_json()})
    with records.guard:
        query = "SELECT file, size, changed, inode, digest FROM sources"
        known = {row[0]: row[1:] for row in records.db.execute(query)}
        anew = anew or records.fact("declared") != setting
    parts: dict[str, Part] = {}
    rows: dict[str, tuple[int, int, int, str]] = {}
    for file, look in looks.items():
        old = known.get(file)
        if not anew and old is not None and old[:3] == look.stamp and look.settled:
            continue
        row = (*look.stamp, _digest(records, look.path))
        if row != old:
            rows[file] = row
        if anew or old is None or row[3] != old[3]:
            parts[file] = read_part(look.path, settings, records.declared)
    return Survey(looks, parts, rows, frozenset(known.keys() - looks.keys()), setting)


def take_over(records: Records, settings: DataSettings, found: Survey) -> tuple[int, int, int]:
    """Take over what changed; how many records were added, changed and removed."""
    with records.transaction(touches=bool(found.parts or found.vanished)) as db:
        done = _take_over(records, settings, found)
        for file, row in found.rows.items():
            db.execute("INSERT OR REPLACE INTO sources VALUES (?,?,?,?,?)", (file, *row))
        for file in found.vanished:
            db.execute("DELETE FROM sources WHERE file = ?", (file,))
        records.put_fact("declared", found.setting)
    return done


def _look(path: Path) -> Look:
    try:
        found = path.stat()
    except OSError as error:
        raise SourceRefused(f"{path} cannot be read: {error.strerror}.") from error
    settled = abs(time.time_ns() - found.st_mtime_ns) > SETTLED
    return Look(path, found.st_size, found.st_mtime_ns if settled else -1, found.st_ino, settled)


def _digest(records: Records, path: Path) -> str:
    def chunks() -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk

    try:
        return records.key.digest(chunks())
    except OSError as error:
        raise SourceRefused(f"{path} cannot be read: {error.strerror}.") from error


def _take_over(records: Records, settings: DataSettings, found: Survey) -> tuple[int, int, int]:
    """Put the records that were found in the place of what their files held before."""
    db, looks, parts = records.db, found.looks, found.parts
    query = "SELECT hash, file, digest, state FROM records"
    before = {row[0]: row[1:] for row in db.execute(query)}
    forgotten = set(records.tombstones())
    places = _free_places(records)
    seen: dict[str, str] = {}
    added = changed = 0
    for file, part in parts.items():
        for row, name in enumerate(part.ids):
            hashed = records.hash(name)
            old_file, old_digest, state = before.get(hashed, ("", "", ""))
            there = old_file != file and old_file in looks and old_file not in parts
            if hashed in seen or (there and state != "gone"):
                first = looks[seen.get(hashed, old_file)].path
                raise SourceRefused(
                    f"{looks[file].path} has the id {name!r}, and so has {first}; allowed: an id "
                    "of its own for each record."
                )
            seen[hashed] = file
            if hashed in forgotten:
                continue
            x, label = part.x[row].astype("<f4").tobytes(), int(part.y[row])
            digest = records.key.digest([label.to_bytes(8, "little"), x])
            if not state:
                split = _split(records, name, settings.hold_out)
                place = next(places) if split == "train" else None
                values = (hashed, file, digest, split, "active", place, label, x)
                db.execute(INSERT, values)
                added += 1
            elif state == "gone":
                (split,) = records.one("SELECT split FROM records WHERE hash = ?", hashed) or ("",)
                place = next(places) if split == "train" else None
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
        if hashed not in seen and state != "gone" and (file in parts or file in found.vanished)
    ]
    db.executemany(LEAVE, lost)
    _check_capacity(records, settings)
    return added, changed, len(lost)


INSERT = f"""INSERT INTO records (hash, file, digest, split, state, place, since, label, x)
    VALUES (?, ?, ?, ?, ?, ?, {NEXT_VISIT}, ?, ?)"""
RETURN = """UPDATE records SET file = ?, digest = ?, place = ?, label = ?, x = ?,
    state = 'active', until = NULL WHERE hash = ?"""
CHANGE = "UPDATE records SET file = ?, digest = ?, label = ?, x = ? WHERE hash = ?"
LEAVE = f"""UPDATE records SET place = NULL, label = NULL, x = NULL, digest = '', file = '',
    state = CASE state WHEN 'active' THEN 'gone' ELSE state END,
    until = COALESCE(until, {NEXT_VISIT}) WHERE hash = ?"""


def _split(records: Records, name: str, share: float) -> str:
    """Whether a record is trained on; the same for the same id, whatever else there is."""
    drawn = int(records.hash(name, "split")[:16], 16) / 2.0**64
    return "hold-out" if drawn < share else "train"


def _free_places(records: Records) -> Iterator[int]:
    query = "SELECT place FROM records WHERE place IS NOT NULL"
    taken = {row[0] for row in records.db.execute(query)}
    return (place for place in count() if place not in taken)


def _check_capacity(records: Records, settings: DataSettings) -> None:
    if records.capacity is None:
        return
    (size,) = records.one("SELECT COALESCE(MAX(place), -1) + 1 FROM records") or (0,)
    if size > records.capacity:
        raise SourceRefused(
            f"{settings.path} makes {size} records to train on; the network's train.capacity "
            f"allows a peer {records.capacity}."
        )
