"""Deletion requests at one peer: durable, idempotent by their id, each with a stage.

They stand in the database of the records: a request and the exclusion of the records it names are
one transaction.  A request knows hashes of records, never ids.

Stages go one way: *received* (durable), *waiting* (for the chapter under way to end), *walking* (a
chapter forgets the records), *committed* (the forgotten model is final), *erasing* (peers erase),
*done*; or *refused* before it is committed, and then the records are trained on again.  Only a
chapter that was given up takes its requests back, from *walking* to *waiting*.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.core.transcript import canonical
from unwalk.core.validation import check_choice, check_count
from unwalk.peers.forgetting.request_form import (
    MOST_RECORDS,
    STAGES,
    Conflict,
    RequestForm,
    RequestView,
    UnknownRecords,
)
from unwalk.peers.identity.credentials import now
from unwalk.peers.records.record_store import Found, Records

SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, content TEXT NOT NULL,
    records INTEGER NOT NULL, grade TEXT NOT NULL, epsilon REAL, delta REAL, method TEXT,
    received TEXT NOT NULL, stage TEXT NOT NULL, chapter INTEGER, reason TEXT, certificate TEXT);
CREATE INDEX IF NOT EXISTS requests_by_stage ON requests (stage, number);
CREATE TABLE IF NOT EXISTS asked (
    request INTEGER NOT NULL, hash TEXT NOT NULL, PRIMARY KEY (request, hash)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS asked_by_hash ON asked (hash);
"""
COLUMNS = (
    "number, id, records, grade, epsilon, delta, method, received, stage, chapter, reason, "
    "certificate"
)


@dataclass(frozen=True)
class Request:
    """One request; ``records`` is how many records it names, ``number`` its place in the queue."""

    number: int
    id: str
    records: int
    grade: str
    epsilon: float | None
    delta: float | None
    method: str | None
    received: str
    stage: str
    chapter: int | None = None
    reason: str | None = None
    certificate: str | None = None

    def view(self) -> RequestView:
        """The same as the endpoint shows it."""
        return RequestView(
            id=self.id,
            stage=self.stage,
            records=self.records,
            grade=self.grade,
            epsilon=self.epsilon,
            delta=self.delta,
            received=self.received,
            method=self.method,
            chapter=self.chapter,
            reason=self.reason,
            certificate=self.certificate,
        )


@dataclass(frozen=True)
class Batch:
    """Requests that one chapter answers: alike in grade, budget and method."""

    requests: tuple[Request, ...]
    records: tuple[str, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The requests' ids."""
        return tuple(r.id for r in self.requests)

    @property
    def received(self) -> tuple[str, ...]:
        """When each came in."""
        return tuple(r.received for r in self.requests)


class AlreadyAsked(InvalidInput):
    """Records that another request names or named; nothing was taken in."""


class Requests:
    """The requests of one peer."""

    def __init__(self, records: Records) -> None:
        self.records = records
        with records.transaction(touches=False) as db:
            for statement in SCHEMA.split(";"):
                db.execute(statement)

    def submit(self, form: RequestForm) -> Request:
        """Take a request in and exclude its records, in one step.

        The same form under the same id gets the same request, however often and from wherever it
        comes; another form under that id is :class:`Conflict`.  Ids that are no records here are
        named in :class:`UnknownRecords`, those that were asked for before in
        :class:`AlreadyAsked`; nothing is changed then.
        """

        def find() -> tuple[str, ...]:
            matches = self.records.find(form.records)
            if matches.unknown:
                raise UnknownRecords(matches.unknown)
            _refuse_asked(matches)
            return matches.known

        return self._take_in(form, sorted(map(self.records.hash, form.records)), find)

    def submit_all(self, id: str, *, grade: str = "exact") -> Request:
        """A request for all records that no other request names: of a peer that leaves."""
        form = RequestForm(id, ("all",), grade)
        return self._take_in(form, "all", self.records.hashes)

    def _take_in(
        self, form: RequestForm, content: Any, find: Callable[[], tuple[str, ...]]
    ) -> Request:
        said = (form.grade, form.epsilon, form.delta, form.method)
        text = canonical({"records": content, "said": list(said)})
        digest = hashlib.sha256(text.encode()).hexdigest()
        with self.records.transaction() as db:
            row = self.records.one("SELECT content FROM requests WHERE id = ?", form.id)
            if row is not None:
                if row[0] != digest:
                    raise Conflict(
                        f"request {form.id} was made before with other records, grade, budget or "
                        "method; nothing was changed."
                    )
                return self._known(form.id)
            hashes = find()
            values = (form.id, digest, len(hashes), *said, now().isoformat(timespec="seconds"))
            number = db.execute(
                "INSERT INTO requests (id, content, records, grade, epsilon, delta, method, "
                "received, stage) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'received')",
                values,
            ).lastrowid
            db.executemany("INSERT INTO asked VALUES (?, ?)", [(number, h) for h in hashes])
            self.records.exclude(hashes)
            return self._known(form.id)

    # Looking

    def get(self, id: str) -> Request | None:
        """The request with this id."""
        with self.records.glance() as db:
            return _find(db, id)

    def _known(self, id: str) -> Request:
        """The same within a change, which sees what it changed itself."""
        request = _find(self.records.db, id)
        if request is None:
            raise InvalidInput(f"there is no request {id!r} at this peer.")
        return request

    def page(self, after: str | None = None, limit: int = 50) -> tuple[Request, ...]:
        """Newest first, at most ``limit``, older than the request ``after`` if one is named."""
        check_count("limit", limit, low=1)
        query = f"SELECT {COLUMNS} FROM requests WHERE number < ? ORDER BY number DESC LIMIT ?"
        with self.records.glance() as db:
            named = None if after is None else _find(db, after)
            if after is not None and named is None:
                raise InvalidInput(f"there is no request {after!r} at this peer.")
            before = 1 << 62 if named is None else named.number
            return tuple(Request(*row) for row in db.execute(query, (before, limit)))

    def queue(self) -> dict[str, int]:
        """How many requests are at each stage."""
        with self.records.glance() as db:
            rows = db.execute("SELECT stage, COUNT(*) FROM requests GROUP BY stage")
            return dict(rows.fetchall())

    def at(self, stage: str, limit: int = 1000) -> tuple[Request, ...]:
        """The oldest requests at a stage."""
        check_choice("stage", stage, STAGES)
        query = f"SELECT {COLUMNS} FROM requests WHERE stage = ? ORDER BY number LIMIT ?"
        with self.records.glance() as db:
            return tuple(Request(*row) for row in db.execute(query, (stage, limit)))

    def of_chapter(self, chapter: int) -> Batch:
        """The requests that a chapter answers, in order."""
        query = f"SELECT {COLUMNS} FROM requests WHERE chapter = ? ORDER BY number"
        with self.records.glance() as db:
            rows = db.execute(query, (chapter,)).fetchall()
            return _batch(db, tuple(Request(*row) for row in rows))

    def batch(self, limit: int = 1000, most_records: int = MOST_RECORDS) -> Batch | None:
        """What the next chapter of this peer should forget; None if nobody waits.

        The oldest open request, and those after it with the same grade, budget and method, up to
        ``limit`` requests and ``most_records`` records (but never less than one request).
        """
        check_count("limit", limit, low=1)
        query = f"""SELECT {COLUMNS} FROM requests r WHERE stage IN ('received', 'waiting')
            AND (SELECT (f.grade, f.epsilon, f.delta, f.method) IS (r.grade, r.epsilon, r.delta,
            r.method) FROM requests f WHERE f.number = ?) ORDER BY number LIMIT ?"""
        with self.records.glance() as db:
            (oldest,) = db.execute(
                "SELECT MIN(number) FROM requests WHERE stage IN ('received', 'waiting')"
            ).fetchone()
            if oldest is None:
                return None
            chosen: list[Request] = []
            total = 0
            for row in db.execute(query, (oldest, limit)).fetchall():
                total += row[2]
                if chosen and total > most_records:
                    break
                chosen.append(Request(*row))
            return _batch(db, tuple(chosen))

    def batch_of(self, requests: Iterable[Request]) -> Batch:
        """These requests with the records that they name."""
        with self.records.glance() as db:
            return _batch(db, tuple(requests))

    # Moving on

    def advance(
        self,
        ids: Iterable[str],
        stage: str,
        *,
        chapter: int | None = None,
        reason: str | None = None,
        certificate: str | None = None,
    ) -> None:
        """Take requests to a later stage, all of them or none; the same stage again is allowed.

        What is given beside the stage is put down with it.  A request that is ``refused`` gives
        its records back, unless they are erased; one that is ``done`` no longer knows which they
        were.
        """
        check_choice("stage", stage, STAGES)
        with self.records.transaction() as db:
            for id in ids:
                request = self._known(id)
                if not _may_follow(request.stage, stage):
                    raise InvalidInput(
                        f"request {id} is {request.stage}; it cannot become {stage} after that."
                    )
                db.execute(
                    "UPDATE requests SET stage = ?, chapter = COALESCE(?, chapter), "
                    "reason = ?, certificate = COALESCE(?, certificate) WHERE number = ?",
                    (stage, chapter, reason, certificate, request.number),
                )
                if stage in ("refused", "done"):
                    hashes = [
                        r[0]
                        for r in db.execute(
                            "SELECT hash FROM asked WHERE request = ?", (request.number,)
                        )
                    ]
                    db.execute("DELETE FROM asked WHERE request = ?", (request.number,))
                    if stage == "refused" and request.stage != "erasing":
                        self.records.include(hashes)

    def put_back(self, chapter: int) -> tuple[str, ...]:
        """A chapter was given up: its requests wait for another; which they are."""
        with self.records.transaction(touches=False) as db:
            where = "WHERE chapter = ? AND stage = 'walking'"
            rows = db.execute(f"SELECT id FROM requests {where} ORDER BY number", (chapter,))
            ids = tuple(row[0] for row in rows.fetchall())
            if ids:
                change = "UPDATE requests SET stage = 'waiting', chapter = NULL "
                db.execute(change + where, (chapter,))
            return ids


def _find(db: sqlite3.Connection, id: str) -> Request | None:
    row = db.execute(f"SELECT {COLUMNS} FROM requests WHERE id = ?", (id,)).fetchone()
    return None if row is None else Request(*row)


def _batch(db: sqlite3.Connection, requests: tuple[Request, ...]) -> Batch:
    hashes: list[str] = []
    for request in requests:
        query = "SELECT hash FROM asked WHERE request = ?"
        hashes += (row[0] for row in db.execute(query, (request.number,)))
    return Batch(requests, tuple(sorted(set(hashes))))


def _may_follow(before: str, after: str) -> bool:
    """Whether a stage may come after another.

    >>> _may_follow("waiting", "walking"), _may_follow("done", "refused")
    (True, False)
    """
    if after == "refused":
        return before not in ("committed", "done")
    return before != "refused" and STAGES.index(after) >= STAGES.index(before)


def _refuse_asked(found: Found) -> None:
    for ids, one, several in (
        (found.forgotten, "was forgotten before", "were forgotten before"),
        (found.asked, "is named in a request that is still open", "are named in open requests"),
    ):
        if ids:
            shown = ", ".join(map(repr, ids[:10]))
            more = f" and {len(ids) - 10} more" if len(ids) > 10 else ""
            what, words = ("record", one) if len(ids) == 1 else ("records", several)
            raise AlreadyAsked(f"{what} {shown}{more} {words}; nothing was changed.")
