"""A peer's own records: taken in from its files, kept in SQLite, never named.

``store/records.sqlite`` (WAL, ``synchronous=FULL``, ``secure_delete``) holds inputs and labels
under keyed hashes of their ids (HMAC-SHA256 under ``records.key``, which stays in the bundle); ids
themselves are not kept.  Every change is one transaction.

A record is *active*, *excluded* (asked to be forgotten: not trained on any more, not erased yet) or
*gone* (no longer in the source; its content is erased, but it is known that it was used).  An
erased record leaves a tombstone, so that it is not taken in again.

A record that is trained on has a *place*, the row number under which methods see it.  It keeps
that place; the place of an erased record is free for a new one.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unwalk.core.data import Held, Shard
from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.program import Records as Rows
from unwalk.core.validation import check_count
from unwalk.peers.records.id_hashing import KEY, RecordKey
from unwalk.peers.records.source_changes import (
    ABSENCE,
    NEXT_VISIT,
    Survey,
    known_files,
    survey,
    take_over,
)
from unwalk.peers.records.source_erasure import check_erasable, erase_from_source
from unwalk.peers.records.sources import SETTINGS, DataSettings, SourceRefused
from unwalk.peers.storage.database import RECORDS_DATABASE, Glance, alone, compact, open_database
from unwalk.peers.storage.disk_space import DiskFull, means_full
from unwalk.peers.storage.integrity_mark import (
    MarkFile,
    check_whole,
    count,
    count_on,
    damage_refused,
)
from unwalk.peers.storage.store import Fault, no_fault
from unwalk.tasks.declared import Declared
from unwalk.tasks.tables import Columns

MARK = "records.mark"
WAIT, PAUSE = 30.0, 0.1
"""Seconds for which an erasure waits for a program that reads, and between two attempts."""
STATES = ("active", "excluded", "gone")
SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    hash TEXT PRIMARY KEY, file TEXT NOT NULL, digest TEXT NOT NULL, split TEXT NOT NULL,
    state TEXT NOT NULL, place INTEGER UNIQUE, since INTEGER NOT NULL, until INTEGER,
    label INTEGER, x BLOB);
CREATE INDEX IF NOT EXISTS records_by_file ON records (file);
CREATE TABLE IF NOT EXISTS tombstones (hash TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS sources (
    file TEXT PRIMARY KEY, size INTEGER NOT NULL, changed INTEGER NOT NULL,
    inode INTEGER NOT NULL, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS visits (
    serial INTEGER PRIMARY KEY AUTOINCREMENT, chapter INTEGER NOT NULL, hop INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS repeated (
    serial INTEGER NOT NULL, visit INTEGER NOT NULL, PRIMARY KEY (serial, visit));
CREATE TABLE IF NOT EXISTS absences (
    hash TEXT NOT NULL, gone INTEGER NOT NULL, back INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS absences_by_hash ON absences (hash);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
BEGIN = """INSERT INTO visits (chapter, hop) SELECT ?, ? WHERE NOT EXISTS (
    SELECT 1 FROM visits v WHERE chapter = ? AND hop = ? AND NOT EXISTS (
        SELECT 1 FROM records WHERE since > v.serial OR until > v.serial)
    AND NOT EXISTS (SELECT 1 FROM absences WHERE back > v.serial))"""
"""A visit that is begun again, with the same records, is the same."""
VISITS = """SELECT serial, MIN(serial, COALESCE(MIN(visit), serial)), chapter, hop
    FROM visits LEFT JOIN repeated USING (serial) GROUP BY serial ORDER BY serial"""
"""Every visit, and the first of those whose records alone it took: itself, or what it repeats."""
TAKEN = """SELECT hash, place, label, x, state FROM records
    WHERE place IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM json_each(?) v WHERE since > v.value OR EXISTS (
            SELECT 1 FROM absences a
            WHERE a.hash = records.hash AND gone <= v.value AND v.value < back))
    ORDER BY place"""
"""Records that are here, and were at each of some visits."""


@dataclass(frozen=True)
class Changes:
    """How many records came, changed or went when the source was looked at again."""

    added: int = 0
    changed: int = 0
    removed: int = 0

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


@dataclass(frozen=True)
class Found:
    """Which of some ids are records here: hashes of those that are, and ids of those that are not.

    ``forgotten`` are ids of records that were here and were erased; ``asked`` ids of records that
    an open request already names.
    """

    known: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Counts:
    """How many records there are."""

    train: int
    hold_out: int
    excluded: int
    forgotten: int


class Records:
    """The records of one peer.

    ``folder`` is the bundle; safe to use from several threads and processes.  ``capacity`` is the
    most records that the network lets a peer train on.
    """

    def __init__(
        self,
        folder: Path,
        declared: Declared,
        *,
        capacity: int | None = None,
        fault: Fault = no_fault,
    ) -> None:
        self.folder, self.declared, self.capacity, self.fault = folder, declared, capacity, fault
        self.key = RecordKey.read(folder)
        self.guard, self.reading = threading.RLock(), threading.Lock()
        store = folder / "store"
        store.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = store / RECORDS_DATABASE
        self.mark = MarkFile(folder / MARK)
        self.mark.check_there(self.path)
        with damage_refused(self.path):
            self.db = open_database(self.path, SCHEMA)
        self.mark.check_newest(self.path, count(self.db))
        if self.mark.last is None:  # before the first change, so that none is without a mark
            self.mark.write(0, "", flush=True)
        self.glance = Glance(self.path)
        self.changes = 0
        self.trouble = ""
        self._cached: tuple[object, Shard] | None = None
        self._check_key()
        if self.unclean:
            with suppress(InvalidInput):  # whoever goes on asks again
                self.clean()

    def _check_key(self) -> None:
        fingerprint = self.hash("", "key")
        with self.transaction(touches=False):
            if self.fact("key") not in ("", fingerprint):
                raise InvalidInput(
                    f"{self.folder / KEY} is not the key that {self.path} was made with; put the "
                    "right one back: without it no record can be found by its id."
                )
            if not self.fact("key"):
                self.put_fact("key", fingerprint)

    def close(self) -> None:
        """Leave everything as it is on disk."""
        with self.guard:
            self._cached = None
            self.glance.close()
            self.db.close()
            self.mark.close()

    def check(self) -> None:
        """Refuse a database that is damaged; reads all of it."""
        check_whole(self.db, self.path)

    def hash(self, text: str, use: str = "id") -> str:
        """The keyed hash of an id."""
        return self.key.hash(text, use)

    # Taking in

    def refresh(self) -> Changes:
        """Look at the source again and take over what changed there, all of it or nothing.

        Costs a look at the times of its files where nothing changed.  A source that cannot be
        read raises :class:`SourceRefused` and leaves all records as they were.
        """
        with self.reading:
            settings = DataSettings.read(self.folder)
            surveyed = self._survey(settings)
            changes = self._take_over(settings, surveyed) if surveyed else Changes()
            self._drop_old(changes)
            return changes

    def _survey(self, settings: DataSettings, *, anew: bool = False) -> Survey:
        with self.guard:
            known, before = known_files(self.db), self.fact("declared")
        return survey(self.key, self.declared, settings, known, before, anew=anew)

    def _take_over(self, settings: DataSettings, surveyed: Survey) -> Changes:
        with self.transaction(touches=bool(surveyed.parts or surveyed.vanished)) as db:
            counts = take_over(db, self.key, settings, surveyed, self.capacity)
            self.put_fact("declared", surveyed.setting)
        return Changes(*counts)

    def _drop_old(self, changes: Changes) -> None:
        """Take what was overwritten out of the log as well, unless somebody reads it just now.

        Copies that SQLite may have left in other pages go with the next erasure.
        """
        if changes.changed or changes.removed:
            with suppress(InvalidInput):
                compact(self.db, self.path, rewrite=False)

    def take_over(self, settings: DataSettings, allow_again: Iterable[str] = ()) -> Changes:
        """Take in the records that ``settings`` describe, and keep the settings; or neither.

        ``allow_again`` are ids that may come back although they were forgotten.
        """
        if settings.erase_source:
            check_erasable(settings)
        allowed = [(self.hash(i),) for i in allow_again]
        with self.reading:
            surveyed = self._survey(settings, anew=bool(allowed))
            with self.transaction() as db:
                db.executemany("DELETE FROM tombstones WHERE hash = ?", allowed)
                changes = self._take_over(settings, surveyed)
                settings.write(self.folder)
            self._drop_old(changes)
            return changes

    # Looking

    def find(self, ids: Sequence[str]) -> Found:
        """Which of ``ids`` are records here."""
        known: list[str] = []
        unknown: list[str] = []
        forgotten: list[str] = []
        asked: list[str] = []
        with self.guard:
            for name in dict.fromkeys(ids):
                hashed = self.hash(name)
                row = self.one("SELECT state FROM records WHERE hash = ?", hashed)
                if row is None:
                    gone = self.one("SELECT 1 FROM tombstones WHERE hash = ?", hashed)
                    (forgotten if gone else unknown).append(name)
                else:
                    known.append(hashed)
                    if row[0] == "excluded":
                        asked.append(name)
        return Found(tuple(known), tuple(unknown), tuple(forgotten), tuple(asked))

    def hashes(self) -> tuple[str, ...]:
        """All records that no request names yet: what a peer that leaves has to forget."""
        with self.guard:
            rows = self.db.execute("SELECT hash FROM records WHERE state != 'excluded'")
            return tuple(row[0] for row in rows)

    def counts(self) -> Counts:
        """How many records are trained on, held out, excluded; how many were forgotten."""
        query = """SELECT COALESCE(SUM(split = 'train' AND state = 'active'), 0),
            COALESCE(SUM(split = 'hold-out' AND state = 'active'), 0),
            COALESCE(SUM(state = 'excluded'), 0) FROM records"""
        with self.glance() as db:
            train, held, excluded = db.execute(query).fetchone()
            (gone,) = db.execute("SELECT COUNT(*) FROM tombstones").fetchone()
            return Counts(train, held, excluded, gone)

    def held_out(self, hashes: Sequence[str]) -> int | None:
        """How many of these records are never trained on; None if not all are here any more."""
        query = "SELECT split = 'hold-out' FROM records WHERE hash = ?"
        with self.guard:
            rows = [row[0] for h in hashes if (row := self.one(query, h)) is not None]
        return sum(rows) if len(rows) == len(hashes) else None

    def uses(self, hashes: Iterable[str]) -> list[tuple[int, int]]:
        """The visits begun here, as (chapter, hop), that could use one of these records, in order.

        A visit that was dropped is among them; on the line its number may be another peer's.
        """
        with self.guard:
            query = "SELECT since, until FROM records WHERE hash = ? AND split = 'train'"
            spans = {row for h in hashes if (row := self.one(query, h)) is not None}
            return [
                (chapter, hop)
                for serial, first, chapter, hop in self.db.execute(VISITS).fetchall()
                if any(
                    since <= first and (until is None or serial < until) for since, until in spans
                )
            ]

    # What a visit works with

    def begin_visit(
        self,
        chapter: int,
        hop: int,
        forgetting: Collection[str] = (),
        repeats: Collection[tuple[int, int]] = (),
        sure: bool = True,
    ) -> tuple[Shard, SourceRefused | None, int | None]:
        """The shard for one visit; written down first, so that it is known who could be used.

        A visit of a walk that ``repeats`` others of this peer, as (chapter, hop), takes no record
        that the last of them did not take, or one of them if it is not ``sure`` which were
        dropped: it would do more than they did.

        The source is looked at before.  If it cannot be read, the records stay as they are, and
        the reason comes back beside them.  Last comes the number of the mark, for
        :meth:`take_back`; None where the same visit had been begun before.
        """
        refused = None
        try:
            self.refresh()
        except SourceRefused as error:
            refused = error
        with self.guard:
            with self.transaction(touches=False) as db:
                row = (check_count("chapter", chapter), check_count("hop", hop))
                made = db.execute(BEGIN, row * 2)
                mark = made.lastrowid if made.rowcount else None
                then = self._then(repeats, sure)
                if mark is not None:
                    rows = [(mark, visit) for visit in then]
                    db.executemany("INSERT INTO repeated VALUES (?, ?)", rows)
            return self.shard(forgetting, then), refused, mark

    def _then(self, repeats: Collection[tuple[int, int]], sure: bool) -> tuple[int, ...]:
        """The visits at which a record must have been here: the last of some, or all, and those
        that they repeat themselves.
        """
        rows = self.db.execute(VISITS).fetchall() if repeats else []
        begun = [row[0] for row in rows if row[2:] in repeats]
        known = json.dumps(begun[-1:] if sure else begun)
        query = """SELECT value FROM json_each(:known) UNION
            SELECT visit FROM repeated WHERE serial IN (SELECT value FROM json_each(:known))"""
        return tuple(sorted(row[0] for row in self.db.execute(query, {"known": known})))

    def take_back(self, mark: int) -> None:
        """A visit came to nothing before anything of it left this peer: it used no record."""
        with self.transaction(touches=False) as db:
            db.execute("DELETE FROM visits WHERE serial = ?", (mark,))
            db.execute("DELETE FROM repeated WHERE serial = ?", (mark,))

    def shard(self, forgetting: Collection[str] = (), then: tuple[int, ...] = ()) -> Shard:
        """Active training records, each in its place; ``forgetting`` are there as forgotten ones.

        Excluded records are absent unless they are among ``forgetting``, and so are those that
        were not here at each of the visits ``then``.
        """
        with self.guard:
            version = self._version(), frozenset(forgetting), then
            if self._cached is None or self._cached[0] != version:
                self._cached = version, self._shard(frozenset(forgetting), then)
            return self._cached[1]

    def _shard(self, forgetting: frozenset[str], then: tuple[int, ...]) -> Shard:
        (size,) = self.one("SELECT COALESCE(MAX(place), -1) + 1 FROM records") or (0,)
        x = np.zeros((size, *self.declared.kept), np.float32)
        y = np.zeros(size, np.int64)
        here = np.zeros(size, bool)
        marked = []
        for hashed, place, label, data, state in self.db.execute(TAKEN, [json.dumps(then)]):
            if state == "excluded" and hashed not in forgetting:
                continue
            x[place] = self._input(data)
            y[place] = label
            here[place] = True
            if hashed in forgetting:
                marked.append(place)
        rows = Rows(size, np.array(marked, np.int64), np.flatnonzero(~here))
        return Shard(torch.from_numpy(x), torch.from_numpy(y), rows)

    def hold_out(self) -> Held:
        """Records that are never trained on."""
        query = "SELECT label, x FROM records WHERE split = 'hold-out' AND state = 'active'"
        with self.guard:
            rows = self.db.execute(query + " ORDER BY hash").fetchall()
        x = np.zeros((len(rows), *self.declared.kept), np.float32)
        for number, (_, data) in enumerate(rows):
            x[number] = self._input(data)
        y = torch.tensor([label for label, _ in rows], dtype=torch.int64)
        return Held(torch.from_numpy(x), y)

    def _input(self, data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        array = np.frombuffer(data, "<f4")
        if array.size != int(np.prod(self.declared.kept)):
            raise Corrupt(f"{self.path} holds an input of {array.size} numbers.")
        return array.reshape(self.declared.kept)

    def _version(self) -> tuple[int, int]:
        """Changes with every change of the records, whoever makes it."""
        (others,) = self.one("PRAGMA data_version") or (0,)
        return others, self.changes

    # Forgetting

    def exclude(self, hashes: Iterable[str]) -> None:
        """From now on these are trained on no more.  Part of an open transaction, if there is."""
        with self.transaction() as db:
            db.executemany(
                f"""UPDATE records SET state = 'excluded', until = COALESCE(until, {NEXT_VISIT})
                WHERE hash = ?""",
                [(h,) for h in hashes],
            )

    def include(self, hashes: Iterable[str]) -> None:
        """Take back an exclusion: nothing was erased."""
        with self.transaction() as db:
            rows = [(h, "excluded") for h in hashes]
            excluded = "WHERE hash = ? AND state = ?"
            db.executemany(f"UPDATE records SET state = 'gone' {excluded} AND x IS NULL", rows)
            db.executemany(ABSENCE, rows)
            db.executemany(f"UPDATE records SET state = 'active', until = NULL {excluded}", rows)

    def erase(self, hashes: Iterable[str]) -> int:
        """Erase records for good: here, and from the source if the settings say so; how many.

        Rows are overwritten, the database is written anew and its log truncated.  What was begun
        is finished when the records are opened again after a crash.
        """
        with self.transaction() as db:
            before = db.total_changes
            rows = [(h,) for h in hashes]
            db.executemany("DELETE FROM records WHERE hash = ?", rows)
            erased = db.total_changes - before
            db.executemany("DELETE FROM absences WHERE hash = ?", rows)
            db.executemany("INSERT OR IGNORE INTO tombstones VALUES (?)", rows)
            self.put_fact("unclean", "1")
        self.fault("records erased")
        self.clean()
        return erased

    def try_erase(self, hashes: Iterable[str]) -> bool:
        """Erase records; False where that has to be tried again, and ``trouble`` says why."""
        try:
            self.erase(hashes)
        except InvalidInput as error:
            self.trouble = getattr(error, "for_log", str(error))
            return False
        self.trouble = ""
        return True

    def tombstones(self) -> Iterator[str]:
        """Hashes of the records that were erased."""
        for row in self.db.execute("SELECT hash FROM tombstones"):
            yield row[0]

    @property
    def unclean(self) -> bool:
        """Whether an erasure was begun and not finished; :meth:`clean` finishes it."""
        return bool(self.fact("unclean"))

    def clean(self) -> None:
        """Finish an erasure, unless somebody else does it meanwhile."""
        with alone(self.folder / KEY):
            if self.unclean:
                self._finish()

    def _finish(self) -> None:
        """The source, then everything that the database still holds of what was erased."""
        if (self.folder / SETTINGS).exists():
            settings = DataSettings.read(self.folder)
            if settings.erase_source:
                with self.guard:
                    gone = set(self.tombstones())
                columns = self._columns(settings)
                erase_from_source(settings, columns, lambda name: self.hash(name) in gone)
                self.fault("source rewritten")
        self._without_readers(self._forget_rows)
        self._without_readers(partial(compact, self.db, self.path, rewrite=False))

    def _forget_rows(self) -> None:
        compact(self.db, self.path)
        self.fault("records compacted")
        with self.transaction():
            self.put_fact("unclean", "")

    def _without_readers(self, act: Callable[[], None]) -> None:
        """Do what needs the database alone, and wait for programs that read it.

        Nothing is held up by waiting: visits and requests go on.
        """
        end = time.monotonic() + WAIT
        while True:
            try:
                with self.guard:
                    return act()
            except InvalidInput:
                if time.monotonic() >= end:
                    raise
            time.sleep(PAUSE)

    def _columns(self, settings: DataSettings) -> Columns:
        return self.declared.at_peer(settings.id_column, settings.label_column)

    # The database

    @contextmanager
    def transaction(self, *, touches: bool = True) -> Iterator[sqlite3.Connection]:
        """One change, whole or not at all; one inside another belongs to it.

        ``touches`` says whether records change.
        """
        with self.guard:
            if self.db.in_transaction:
                yield self.db
                return
            try:
                self.db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if means_full(error):
                    raise DiskFull from error
                raise InvalidInput(
                    f"another process writes to {self.path} for long; try again later."
                ) from error
            try:
                yield self.db
                self.fault("records before commit")
                changes = count_on(self.db)
                self.db.execute("COMMIT")
            except BaseException as error:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                if means_full(error):
                    raise DiskFull from error
                raise
            self.mark.write(changes, "", flush=touches)
            self.changes += touches
            self.fault("records after commit")

    def one(self, query: str, *values: object) -> tuple[Any, ...] | None:
        """The first row of a query."""
        row: tuple[Any, ...] | None = self.db.execute(query, values).fetchone()
        return row

    def fact(self, name: str) -> str:
        """A fact that was put down; empty if none."""
        with self.glance() as db:
            row = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return "" if row is None else str(row[0])

    def put_fact(self, name: str, value: str) -> None:
        """Put a fact down."""
        self.db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))
