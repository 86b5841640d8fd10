"""What a peer has on disk: token files named by their digest, and one SQLite database.

A token file is written under a temporary name, flushed, and renamed to its SHA-256.  Every change
of state is one transaction (WAL, ``synchronous = FULL``) and is done before anybody is told.  A
transaction only ever names files that are there; files that no state names are removed, but for
those ``pinned`` by a change that is under way.  A database that is damaged, or older than what was
written (:mod:`unwalk.peers.storage.integrity_mark`), is not opened; nor is one that another
protocol wrote.

A file that is no longer needed is written over by the next token of about the same size: on common
file systems that costs a sixth of a new file, and on a virtual machine whose memory is lent by its
host a tenth or less, since the system still has the file's pages.  For large tokens one is made
ahead (:meth:`Store.prepare`).  :meth:`Store.erase_spares` unlinks such files.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.plan import Local
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.handover import Generation, Lineage, PeerState, Value, belongs
from unwalk.peers.protocol.hoplog import Entry
from unwalk.peers.storage.database import compact
from unwalk.peers.storage.disk_space import DiskFull, Space
from unwalk.peers.storage.integrity_mark import (
    MarkFile,
    check_whole,
    count,
    count_on,
    damage_refused,
    digest_of,
)
from unwalk.peers.storage.token_files import (
    join_local,
    mapped,
    pieces,
    split_local,
    tensors_in,
)
from unwalk.peers.storage.written_by import check_protocol

TAKE = 0.5
"""Seconds for which a peer that starts asks for the lock of its store."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, state TEXT NOT NULL, move TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS entries (
    chain TEXT PRIMARY KEY, run TEXT NOT NULL, number INTEGER NOT NULL, opener INTEGER NOT NULL,
    hop INTEGER NOT NULL, peer INTEGER NOT NULL, entry TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS entries_by_hop ON entries (run, number, opener, hop);
CREATE TABLE IF NOT EXISTS openings (
    run TEXT NOT NULL, opener INTEGER NOT NULL, number INTEGER NOT NULL, entry TEXT NOT NULL,
    PRIMARY KEY (run, opener));
CREATE TABLE IF NOT EXISTS locals (
    run TEXT NOT NULL, number INTEGER NOT NULL, opener INTEGER NOT NULL, hop INTEGER NOT NULL,
    numbers TEXT NOT NULL, file TEXT NOT NULL, PRIMARY KEY (run, number, opener, hop));
CREATE TABLE IF NOT EXISTS arrivals (
    run TEXT NOT NULL, number INTEGER NOT NULL, opener INTEGER NOT NULL, done INTEGER NOT NULL,
    peer INTEGER NOT NULL, token TEXT NOT NULL, PRIMARY KEY (run, number, opener, done, peer));
"""
SPARES = 2
NEAR = 512
"""Bytes by which a spare file may be longer or shorter than the token that is written over it: the
header of a token grows with its numbers, and a spare of each length would soon be of no use."""
SMALL = 8 << 20
"""Bytes up to which a file is not worth a thread that hashes it while it is written."""
WRITE_OUT = 4 << 20
"""Bytes of a token that begin to go to disk at once, so that the flush waits for little."""
SETTLE = 200
"""Changes after which the database's log is taken over into its file, at least."""
LOCALS = 4
"""So many visits back a peer can return to what it kept then."""
ARRIVALS = 4
"""Tokens that are kept for one peer's first contact in one walk: those of the last lineages."""

Fault = Callable[[str], None]


def no_fault(point: str) -> None:
    """Where tests let a peer die."""


@dataclass(frozen=True)
class KeptLocal:
    """What a peer keeps between visits: numbers as JSON, and the file of its tensors, if any."""

    numbers: str
    file: str


@dataclass(frozen=True)
class Arrival:
    """A token that is kept from first contact on: as ``peer`` got it, after ``done`` visits."""

    generation: Generation
    done: int
    peer: int
    token: str


class Incoming:
    """A token file under construction, opened when the first bytes are written.

    ``write`` may be split into ``hash_part`` and ``put_part``, which two threads can do at once.
    """

    def __init__(self, store: Store, size: int) -> None:
        self.store = store
        self.size = size
        self.hashed = self.written = self.leaving = 0
        self.named = False
        self.hash = hashlib.sha256()
        self.guard = threading.Lock()
        self.path, self.fd, self.over = store.claim(size), -1, False

    def write(self, chunk: bytes | memoryview) -> None:
        """The next bytes; more than were announced are refused."""
        self.hash_part(chunk)
        self.put_part(chunk)

    def hash_part(self, chunk: bytes | memoryview) -> None:
        """Take the next bytes into the digest."""
        if self.hashed + len(chunk) > self.size:
            raise Corrupt(f"the token is longer than the {self.size} bytes announced.")
        self.hash.update(chunk)
        self.hashed += len(chunk)

    def hash_parts(self, parts: Iterable[memoryview]) -> None:
        """Take all of them into the digest."""
        for part in parts:
            self.hash_part(part)

    def put_part(self, chunk: bytes | memoryview) -> None:
        """Write the next bytes."""
        with self.guard:
            if self.over:
                raise Corrupt("the token was given up while it was written.")
            if self.written + len(chunk) > self.size:
                raise Corrupt(f"the token is longer than the {self.size} bytes announced.")
            if self.fd < 0:
                self._open()
            view = memoryview(chunk)
            while view:
                count = os.write(self.fd, view[:WRITE_OUT])
                view, self.written = view[count:], self.written + count
                if self.written - self.leaving >= WRITE_OUT:
                    begin_writing(self.fd, self.leaving, self.written)
                    self.leaving = self.written

    def finish(self) -> str:
        """Flush to disk; the digest of what was written."""
        with self.guard:
            if self.written != self.size:
                raise Corrupt(f"the token has {self.written} bytes instead of {self.size}.")
            self.store.fault("token written")
            os.fsync(self.fd)
            self.store.fault("token synced")
            return self.hash.hexdigest()

    @property
    def digest(self) -> str:
        """SHA-256 of what was written so far."""
        return self.hash.hexdigest()

    def keep(self, digest: str) -> None:
        """Give the file its name."""
        with self.guard:
            self._close()
            self.store.pinned.add(digest)
            self.path.replace(self.store.file(digest))
            self.named = True
            self.store.sync_folder()
            self.store.fault("token renamed")

    def discard(self) -> None:
        """Forget what was written, unless it was kept."""
        with self.guard:
            if self.over:
                return
            untouched = self.fd < 0
            self._close()
            if untouched or self.written == self.size:
                self.store.spare(self.path)  # a claimed file is still somebody's
            else:  # beneath may lie what it was written over
                self.path.unlink(missing_ok=True)

    def _open(self) -> None:
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        if os.fstat(self.fd).st_size > self.size:
            os.ftruncate(self.fd, self.size)

    def _close(self) -> None:
        self.over = True
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def begin_writing(fd: int, start: int, end: int) -> None:
    """Have the system begin to write these bytes of a file to disk; only Linux can be asked to.

    Whether that went well is not known before the file is flushed, which says so.
    """
    with suppress(OSError, AttributeError):
        sync_file_range, write = ctypes.CDLL(None).sync_file_range, 2
        sync_file_range(fd, ctypes.c_int64(start), ctypes.c_int64(end - start), write)


class Stored:
    """What can be read of a store, also while its peer runs."""

    def __init__(self, db: sqlite3.Connection, tokens: Path) -> None:
        self.db, self.tokens = db, tokens

    def file(self, digest: str) -> Path:
        """Where the token with this digest lies."""
        return self.tokens / f"{digest}.safetensors"

    def arrivals(self, run: str) -> list[Arrival]:
        """The tokens of a run that are kept from first contact on."""
        query = "SELECT number, opener, done, peer, token FROM arrivals WHERE run = ? ORDER BY done"
        return [
            Arrival((number, opener), done, peer, token)
            for number, opener, done, peer, token in self.db.execute(query, (run,))
        ]


@dataclass(eq=False)
class Store(Stored):
    """A peer's store; one process at a time."""

    folder: Path
    fault: Fault = no_fault
    pinned: set[str] = field(default_factory=set)
    archived: set[str] = field(default_factory=set)
    changes: int = 0
    _settled: int = 0
    _names: int = 0
    _hurry: bool = False
    _spares: dict[Path, int] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.tokens = self.folder / "tokens"
        self.tokens.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder.chmod(0o700)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._take()
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        self._folder = os.open(self.tokens, os.O_RDONLY)
        self.space = Space(self.folder)
        try:
            self.space.start()
            self._open_database()
            self.archive()
            for path in self.tokens.iterdir():
                if path.suffix in (".new", ".spare"):
                    path.unlink()
        except BaseException:
            self._release()
            raise

    def _take(self) -> None:
        """Hold the lock; whoever asks whether a peer runs has it for a moment."""
        end = time.monotonic() + TAKE
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if time.monotonic() >= end:
                    os.close(self._lock)
                    raise InvalidInput(f"{self.folder} is in use by a peer that runs.") from error
            time.sleep(0.01)

    def _open_database(self) -> None:
        """Open the database, unless it is less than this peer has written."""
        self.path = self.folder / "state.sqlite"
        self.mark = MarkFile(self.folder.with_name(f"{self.folder.name}.mark"))
        self.mark.check_there(self.path)
        with damage_refused(self.path):
            self.db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            for pragma in (
                "journal_mode=WAL",
                "synchronous=FULL",
                "secure_delete=ON",
                "wal_autocheckpoint=0",  # only :meth:`settle` does it
            ):
                self.db.execute(f"PRAGMA {pragma}").fetchone()
            self.changes = count(self.db)
        check_whole(self.db, self.path)
        self.mark.check_newest(self.path, self.changes)
        check_protocol(self.db, self.path)
        self.db.executescript(SCHEMA)
        self.settle()

    def close(self) -> None:
        """Leave everything as it is on disk."""
        with suppress(DiskFull):
            self.settle()
        self._release()

    def _release(self) -> None:
        if hasattr(self, "db"):
            self.db.close()
        if hasattr(self, "mark"):
            self.mark.close()
        os.close(self._folder)
        os.close(self._lock)

    def settle(self, *, rewrite: bool = False, must: bool = False) -> None:
        """Take the log over into the database's file, and mark what that now looks like.

        With ``rewrite`` the file is written anew, so that nothing of deleted rows is left.  A
        program that reads the log holds this up: refused if it ``must`` be, else later.
        """
        self.mark.write(self.changes, "", flush=True)
        try:
            with self.room():
                compact(self.db, self.path, rewrite=rewrite)
        except InvalidInput:
            if must:
                raise
            return
        self.mark.write(self.changes, digest_of(self.path), flush=True)
        self._settled = self.changes

    def token_files(self) -> list[Path]:
        """The files of all tokens here; unlike with ``glob`` an unreadable folder is an error."""
        return [path for path in self.tokens.iterdir() if path.suffix == ".safetensors"]

    def check_file(self, digest: str) -> None:
        """Refuse a file that is no longer what its name says."""
        with self.file(digest).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise Corrupt(f"token {digest[:16]} is damaged: its bytes have another digest.")

    def claim(self, size: int) -> Path:
        """A temporary file for ``size`` bytes: a spare one of about that size, or a new one."""
        self._hurry = True
        with self._guard:
            near = [spare for spare, known in self._spares.items() if abs(known - size) <= NEAR]
            if near:
                del self._spares[near[0]]
                return near[0]
            self._names += 1
            return self.tokens / f"{self._names}.new"

    def spare(self, path: Path) -> None:
        """A file that is no longer needed: kept for its space, or removed."""
        with self._guard:
            if len(self._spares) >= SPARES:
                path.unlink(missing_ok=True)
                return
            self._names += 1
            spare = self.tokens / f"{self._names}.spare"
            with suppress(FileNotFoundError):
                path.replace(spare)
                self._spares[spare] = spare.stat().st_size

    def lacks_spare(self, size: int) -> bool:
        """Whether it is worth while to :meth:`prepare` a file, and there is room for it."""
        if size <= SMALL or self.space.full or len(self._spares) >= SPARES:
            return False
        if any(abs(known - size) <= NEAR for known in list(self._spares.values())):
            return False
        volume = os.fstatvfs(self._folder)
        return volume.f_bavail * volume.f_frsize >= self.space.need + size

    def prepare(self, size: int) -> None:
        """Have a spare file for ``size`` bytes, filled while nobody waits for it.

        What a new file costs is mostly the fresh memory that it is written into.  Whoever claims a
        file meanwhile goes first; a failure is left to be found by whoever needs the room.
        """
        with suppress(OSError):
            incoming, zeros = Incoming(self, size), memoryview(bytes(1 << 20))
            incoming.leaving = size  # zeros need not be on disk
            self._hurry = False
            try:
                while not self._hurry and incoming.written < size:
                    incoming.put_part(zeros[: size - incoming.written])
            finally:
                incoming.discard()

    def erase_spares(self) -> None:
        """Unlink every file that holds bytes of tokens which are no longer needed."""
        with self._guard:
            for path in self._spares:
                path.unlink(missing_ok=True)
            self._spares.clear()

    def sync_folder(self) -> None:
        os.fsync(self._folder)

    def fill(self, parts: Iterable[memoryview]) -> Incoming:
        """A file with all its parts in it, not yet flushed or named."""
        held = list(parts)
        incoming = Incoming(self, sum(len(p) for p in held))
        try:
            if incoming.size <= SMALL:
                for part in held:
                    incoming.write(part)
                return incoming
            hashing = threading.Thread(target=incoming.hash_parts, args=(held,))
            hashing.start()
            try:
                for part in held:
                    incoming.put_part(part)
            finally:
                hashing.join()
        except BaseException:
            incoming.discard()
            raise
        return incoming

    def write(self, parts: Iterable[memoryview]) -> str:
        """Write a file from its parts; its digest."""
        with self.room():
            incoming = self.fill(parts)
            try:
                digest = incoming.finish()
                incoming.keep(digest)
            finally:
                incoming.discard()
        return digest

    @contextmanager
    def room(self) -> Iterator[None]:
        """Say :class:`DiskFull` where something finds no room."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            if self.space.ran_out(error):
                raise DiskFull from error
            raise

    @contextmanager
    def transaction(self, *, promise: bool = False) -> Iterator[sqlite3.Connection]:
        """One change, whole or not at all; a ``promise`` is one that must never be forgotten."""
        with self.room():
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield self.db
                self.fault("before commit")
                changes = count_on(self.db)
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
        self.changes, last = changes, self.mark.last
        try:
            with self.room():
                self.mark.write(changes, last.file if last is not None else "", flush=promise)
        except DiskFull:
            if promise:  # which is then not told to anybody
                raise
        self.fault("after commit")

    def load(self, run: str) -> tuple[PeerState, dict[str, Any]] | None:
        """State and open move of a run, or None."""
        row = self.db.execute("SELECT state, move FROM runs WHERE run = ?", (run,)).fetchone()
        if row is None:
            return None
        state = _state(row[0])
        for parcel in (state.held, state.kept):
            if parcel is not None and not self.file(parcel.token).exists():
                raise Corrupt(f"the store names token {parcel.token[:16]}, which is not there.")
        return state, json.loads(row[1])

    def committed(self, run: str) -> Value | None:
        """What a run ended with, if that is known.

        Of a run that is over, other files that its state names may be gone.
        """
        row = self.db.execute("SELECT state FROM runs WHERE run = ?", (run,)).fetchone()
        return None if row is None else _state(row[0]).committed

    def save(
        self,
        run: str,
        state: PeerState,
        move: dict[str, Any],
        *,
        entry: Entry | None = None,
        local: tuple[Generation, int, KeptLocal] | None = None,
        arrival: Arrival | None = None,
    ) -> None:
        """One change of state, whole or not at all."""
        with self.transaction() as db:
            if arrival is not None:
                self._put_arrival(run, arrival)
            if entry is not None:
                self._put_entry(run, entry)
            if local is not None:
                (number, opener), hop, kept = local
                row = (run, number, opener, hop, kept.numbers, kept.file)
                db.execute("INSERT OR REPLACE INTO locals VALUES (?,?,?,?,?,?)", row)
            db.execute(
                "INSERT OR REPLACE INTO runs VALUES (?,?,?)",
                (run, json.dumps(codec.state_to(state)), json.dumps(move)),
            )

    def _put_arrival(self, run: str, arrival: Arrival) -> None:
        """Keep a token from first contact; those of lineages long replaced are given back."""
        came = (run, *arrival.generation, arrival.done, arrival.peer, arrival.token)
        self.db.execute("INSERT OR REPLACE INTO arrivals VALUES (?,?,?,?,?,?)", came)
        self.archived.add(arrival.token)
        query = (
            "SELECT token, number, opener, done FROM arrivals WHERE run = ? AND peer = ? "
            "ORDER BY number DESC, opener DESC, done DESC LIMIT -1 OFFSET ?"
        )
        for token, *place in self.db.execute(query, (run, arrival.peer, ARRIVALS)).fetchall():
            where = "run = ? AND number = ? AND opener = ? AND done = ? AND peer = ?"
            self.db.execute(f"DELETE FROM arrivals WHERE {where}", (run, *place, arrival.peer))
            left = self.db.execute("SELECT 1 FROM arrivals WHERE token = ?", (token,)).fetchone()
            if left is None:
                self.archived.discard(token)

    def put_opening(self, run: str, entry: Entry) -> None:
        """How a generation was opened whose token is not here: the latest of each opener stays."""
        number, opener = entry["body"]["generation"]
        with self.transaction() as db:
            row = (run, opener, number, json.dumps(entry))
            db.execute("INSERT OR REPLACE INTO openings VALUES (?,?,?,?)", row)

    def _put_entry(self, run: str, entry: Entry) -> None:
        body = entry["body"]
        number, opener = body["generation"]
        row = (entry["chain"], run, number, opener, body["hop"], body["peer"], json.dumps(entry))
        self.db.execute("INSERT OR IGNORE INTO entries VALUES (?,?,?,?,?,?,?)", row)

    def add_entries(self, run: str, entries: Iterable[Entry]) -> None:
        """Entries that other peers made."""
        with self.transaction():
            for entry in entries:
                self._put_entry(run, entry)

    def entry(self, run: str, chain: str) -> Entry | None:
        """The entry of a walk's log with this chain value."""
        query = "SELECT entry FROM entries WHERE chain = ? AND run = ?"
        row = self.db.execute(query, (chain, run)).fetchone()
        entry: Entry | None = None if row is None else json.loads(row[0])
        return entry

    def entries(self, run: str) -> list[Entry]:
        """All entries known here, in order of generation and hop."""
        rows = self.db.execute(
            "SELECT entry FROM entries WHERE run = ? ORDER BY number, opener, hop, rowid", (run,)
        )
        return [json.loads(row[0]) for row in rows]

    def chain(self, run: str, end: str, start: str) -> list[Entry] | None:
        """Entries of a walk's log from ``start`` to ``end``, or None while one is missing."""
        entries = []
        while end != start:
            entry = self.entry(run, end)
            if entry is None:
                return None
            entries.append(entry)
            end = entry["body"]["previous"]
        return entries[::-1]

    def local(self, run: str, lineage: Lineage) -> KeptLocal | None:
        """What this peer kept at its last visit in ``lineage``; None if that is gone."""
        rows = self.db.execute(
            "SELECT number, opener, hop, numbers, file FROM locals WHERE run = ? "
            "ORDER BY number DESC, opener DESC, hop DESC",
            (run,),
        )
        for number, opener, hop, numbers, name in rows:
            if belongs((number, opener), hop, lineage):
                there = not name or self.file(name).exists()
                return KeptLocal(numbers, name) if there else None
        return KeptLocal("{}", "")

    def read_local(self, kept: KeptLocal | None) -> Local:
        """The same as the visit wants it."""
        if kept is None:
            raise Corrupt("what this peer kept at its last visit is gone.")
        tensors = tensors_in(mapped(self.file(kept.file)), kept.file)[1] if kept.file else {}
        return join_local(json.loads(kept.numbers), tensors)

    def write_local(self, local: Local) -> KeptLocal:
        """Put what a peer keeps on disk: numbers go into the database, tensors into a file."""
        numbers, tensors = split_local(local)
        name = self.write(pieces(tensors, {})) if tensors else ""
        return KeptLocal(json.dumps(numbers), name)

    def archive(self, run: str = "") -> None:
        """Look up which files stay whatever becomes of ``run``, the one under way."""
        kept = {row[0] for row in self.db.execute("SELECT token FROM arrivals")}
        rows = self.db.execute("SELECT state FROM runs WHERE run != ?", (run,))
        ends = (_state(text).committed for (text,) in rows)
        kept |= {end.token for end in ends if end is not None}
        self.archived = kept

    def named(self, run: str, state: PeerState | None = None) -> set[str]:
        """The files that a run needs, by its ``state`` or by what is on disk of it."""
        if state is None:
            query = "SELECT state FROM runs WHERE run = ?"
            row = self.db.execute(query, (run,)).fetchone()
            if row is None:
                return set()
            state = _state(row[0])
        parcels = (state.held, state.kept, state.committed, *state.ends)
        named = {p.token for p in parcels if p is not None}
        rows = self.db.execute(
            "SELECT file FROM locals WHERE run = ? ORDER BY rowid DESC LIMIT ?",
            (run, LOCALS),
        )
        return named | {row[0] for row in rows}

    def collect(self, run: str, state: PeerState) -> None:
        """Remove files that nothing names any more."""
        named = self.named(run, state) | self.archived
        for path in self.token_files():
            if path.stem not in named and path.stem not in self.pinned:
                self.spare(path)
        self.fault("collected")
        if self.changes - self._settled >= max(SETTLE, self.path.stat().st_size >> 16):
            with suppress(DiskFull):
                self.settle()


def _state(text: str) -> PeerState:
    return codec.state_from(json.loads(text))
