"""What a peer remembers of a network's chapters: how each was decided, every visit that counted.

Visits are kept as they were signed, without any digest of a token, so that they can stay when the
log that they came from is erased.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unwalk.core.errors import Corrupt, Refused
from unwalk.core.transcript import Hop
from unwalk.peers.decisions.ballot import end_of, forget_texts
from unwalk.peers.identity.trust import Trust
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.handover import Generation
from unwalk.peers.protocol.hoplog import BARE, Entry, bare_text, bare_visit
from unwalk.peers.protocol.schedule import Spec, line, started
from unwalk.peers.storage.store import Arrival, Store, Stored

SCHEMA = """
CREATE TABLE IF NOT EXISTS agenda (
    number INTEGER PRIMARY KEY, text TEXT NOT NULL, decision TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS visits (
    run TEXT NOT NULL, place INTEGER NOT NULL, visit TEXT NOT NULL, PRIMARY KEY (run, place));
CREATE TABLE IF NOT EXISTS receipts (
    chapter INTEGER NOT NULL, peer TEXT NOT NULL, receipt TEXT NOT NULL,
    PRIMARY KEY (chapter, peer));
CREATE TABLE IF NOT EXISTS lies (
    run TEXT NOT NULL, peer INTEGER NOT NULL, one TEXT NOT NULL, other TEXT NOT NULL,
    PRIMARY KEY (run, peer));
CREATE TABLE IF NOT EXISTS left_peers (peer INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS ends (
    run TEXT PRIMARY KEY, text TEXT NOT NULL, decision TEXT NOT NULL);
"""
LEAVERS = -1
"""Under this number stand the receipts of peers that have left: good for every chapter."""


def agenda(store: Store) -> list[tuple[str, dict[str, Any]]]:
    """The chapters that were decided, in order: each as it was signed, and its decision."""
    store.db.executescript(SCHEMA)
    rows = store.db.execute("SELECT text, decision FROM agenda ORDER BY number")
    return [(text, json.loads(decision)) for text, decision in rows]


def put_chapter(store: Store, number: int, text: str, decision: dict[str, Any]) -> None:
    """Write a decided chapter down, with the votes that decided it."""
    with store.transaction() as db:
        row = (number, text, json.dumps(decision))
        db.execute("INSERT OR IGNORE INTO agenda VALUES (?, ?, ?)", row)


def put_end(store: Store, run: str, text: str, decision: dict[str, Any]) -> None:
    """Write down what stays of how a walk ended, with the votes that decided it."""
    store.db.executescript(SCHEMA)
    with store.transaction() as db:
        row = (run, text, json.dumps(decision))
        db.execute("INSERT OR IGNORE INTO ends VALUES (?, ?, ?)", row)


def end_decision(store: Store, run: str) -> tuple[str, dict[str, Any]] | None:
    """What stays of how a walk ended, and the votes that decided it, if they are known here."""
    store.db.executescript(SCHEMA)
    query = "SELECT text, decision FROM ends WHERE run = ?"
    row = store.db.execute(query, (run,)).fetchone()
    return None if row is None else (row[0], json.loads(row[1]))


def bare_visits(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """The visits of a log, as they stay."""
    return [bare_visit(e) for e in entries if e["body"]["kind"] == "hop"]


def keep_visits(store: Store, run: str, entries: Iterable[Entry]) -> None:
    """Set the visits of a committed log aside, in order."""
    put_visits(store, run, bare_visits(entries))


def put_visits(store: Store, run: str, visits: Sequence[dict[str, Any]]) -> None:
    """Keep the visits of a run, all of them, in order."""
    store.db.executescript(SCHEMA)
    with store.transaction() as db:
        for place, visit in enumerate(visits, 1):
            row = (run, place, json.dumps(visit))
            db.execute("INSERT OR REPLACE INTO visits VALUES (?, ?, ?)", row)


def visits_of(
    store: Stored, run: str, after: int = 0, limit: int = 1 << 30
) -> list[dict[str, Any]]:
    """The visits of a run that are known here, in order."""
    query = "SELECT visit FROM visits WHERE run = ? AND place > ? ORDER BY place LIMIT ?"
    return [json.loads(row[0]) for row in store.db.execute(query, (run, after, limit))]


def count_visits(store: Store, run: str) -> int:
    """How many visits of a run are known here."""
    query = "SELECT COUNT(*) FROM visits WHERE run = ?"
    return int(store.db.execute(query, (run,)).fetchone()[0])


def check_visit(trust: Trust, visit: Any, run: str, number: int) -> Hop:
    """A signed visit of ``run`` with the given number; refused unless its peer signed it."""
    names = ("run", "generation", "visit", "signature", "certificate")
    found = codec.fields_of(visit, "a visit", *names)
    if found["run"] != run:
        raise Corrupt("a visit belongs to another walk.")
    generation = codec.pair(found["generation"], "generation")
    hop = Hop.from_json(found["visit"])
    if hop.hop != number:
        raise Corrupt(f"visit {number} is missing.")
    data = BARE + bare_text(run, generation, found["visit"])
    pem, signature = str(found["certificate"]), str(found["signature"])
    signer = trust.check(pem, signature, data, past=True)
    if trust.network.index(signer) != hop.receiver:
        raise Refused(f"visit {number} was signed by {signer}, which did not do it.")
    return hop


def opening(store: Store, run: str, generation: Generation) -> Entry | None:
    """The recovery with which a generation of a walk was opened, if it is known here."""
    query = "SELECT entry FROM entries WHERE run = ? AND number = ? AND opener = ? ORDER BY hop"
    for (text,) in store.db.execute(query, (run, *generation)):
        entry: Entry = json.loads(text)
        if entry["body"]["kind"] == "recovery":
            return entry
    query = "SELECT entry FROM openings WHERE run = ? AND number = ? AND opener = ?"
    row = store.db.execute(query, (run, *generation)).fetchone()
    found: Entry | None = None if row is None else json.loads(row[0])
    return found


def beginning(store: Store, run: str, start: str) -> Entry | None:
    """The first entry of a walk's log, whose chain begins with ``start``, if it is known here."""
    query = "SELECT entry FROM entries WHERE run = ? AND hop <= 1 ORDER BY hop DESC"
    for (text,) in store.db.execute(query, (run,)):
        entry: Entry = json.loads(text)
        if entry["body"]["previous"] == start:
            return entry
    return None


def another_visit(store: Store, run: str, body: Mapping[str, Any]) -> Entry | None:
    """Another visit that the peer of ``body`` signed for the same place, if one is known here."""
    query = "SELECT entry FROM entries WHERE run = ? AND number = ? AND opener = ? AND hop = ?"
    for (text,) in store.db.execute(query, (run, *body["generation"], body["hop"])):
        entry: Entry = json.loads(text)
        known = entry["body"]
        if (known["kind"], known["peer"]) == ("hop", body["peer"]) and known != body:
            return entry
    return None


def put_lie(store: Store, run: str, peer: int, one: Entry, other: Entry) -> bool:
    """Keep two entries that no honest peer signs both, one pair for a walk; whether it is new."""
    store.db.executescript(SCHEMA)
    query = "SELECT 1 FROM lies WHERE run = ? AND peer = ?"
    if store.db.execute(query, (run, peer)).fetchone() is not None:
        return False
    with store.transaction() as db:
        row = (run, peer, json.dumps(one), json.dumps(other))
        db.execute("INSERT INTO lies VALUES (?, ?, ?, ?)", row)
    return True


def _forget_lies(store: Store, runs: Sequence[str]) -> None:
    """Erase the entries that show who lied, which hold digests of tokens; the names stay."""
    store.db.executescript(SCHEMA)
    with store.transaction() as db:
        for run in runs:
            db.execute("UPDATE lies SET one = '', other = '' WHERE run = ?", (run,))


def forget_runs(store: Store, runs: Sequence[str]) -> None:
    """Delete states, logs and what was kept between visits of walks that are over."""
    with store.transaction() as db:
        for run in runs:
            for table in ("runs", "entries", "openings", "locals"):
                db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
    for run in runs:
        forget_texts(store, end_of(run))
    _forget_lies(store, runs)


def forget_logs(store: Store, run: str) -> None:
    """Delete the log of a walk and what was kept between visits; its state stays."""
    with store.transaction() as db:
        for table in ("entries", "openings", "locals"):
            db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
    forget_texts(store, end_of(run))
    _forget_lies(store, [run])


def forget_arrivals(store: Store, run: str) -> None:
    """Let go of the tokens that were kept in a walk that was given up."""
    if store.arrivals(run):
        with store.transaction() as db:
            db.execute("DELETE FROM arrivals WHERE run = ?", (run,))


def valid_arrivals(
    store: Store, runs: Sequence[str], specs: Sequence[Spec], hops: int
) -> list[Arrival]:
    """Kept tokens that stay when the last of ``specs`` is over: those from before first contact.

    A token counts where the committed line says that its peer did the visit it came for.  What
    cannot be shown to belong there goes.
    """
    *earlier, last = specs
    before = line(hops, earlier)
    position = 0 if last.method == "restart" else last.position
    found = []
    for number, run in enumerate(runs[: last.number]):
        known = visits_of(store, run)
        start = started(number, specs)
        for arrival in store.arrivals(run):
            on_line = _on_line(number, arrival, before, specs)
            if on_line and start + arrival.done <= position and _served(known, arrival):
                found.append(arrival)
    return found


def _on_line(
    number: int, arrival: Arrival, places: Sequence[tuple[int, int]], specs: Sequence[Spec]
) -> bool:
    """Whether the line goes on from where a token came in chapter ``number``, with what it came
    for or with a later chapter that went back to it.
    """
    place = started(number, specs) + arrival.done
    chapter, visit = places[place] if place < len(places) else (-1, 0)
    if chapter > number and visit == 1:
        spec = specs[chapter - 1]
        return spec.method == "rewind" and spec.peer == arrival.peer
    return (chapter, visit) == (number, arrival.done + 1)


def _served(visits: Sequence[dict[str, Any]], arrival: Arrival) -> bool:
    """Whether the visit that a token came for is the one that was committed."""
    if not arrival.done < len(visits):
        return False
    visit = visits[arrival.done]
    same = tuple(visit["generation"]) == arrival.generation
    return same and visit["visit"]["receiver"] == arrival.peer


def find_arrival(
    store: Stored,
    runs: Sequence[str],
    specs: Sequence[Spec],
    peer: int,
    position: int,
    hops: int,
) -> Arrival | None:
    """The token as it came to ``peer`` after ``position`` visits of the line, if it is here.

    Whatever else lies here is no such token, and may know what was forgotten.
    """
    places = line(hops, specs)
    for number, run in enumerate(runs):
        for arrival in store.arrivals(run):
            there = started(number, specs) + arrival.done == position and arrival.peer == peer
            there = there and _on_line(number, arrival, places, specs)
            there = there and store.file(arrival.token).exists()
            if there and _served(visits_of(store, run), arrival):
                return arrival
    return None


def put_receipt(store: Store, chapter: int, peer: str, receipt: dict[str, Any]) -> None:
    """Keep another peer's receipt."""
    with store.transaction() as db:
        row = (chapter, peer, json.dumps(receipt))
        db.execute("INSERT OR REPLACE INTO receipts VALUES (?, ?, ?)", row)


def receipts_of(store: Store, chapter: int) -> dict[str, dict[str, Any]]:
    """The receipts for a chapter that are here, by peer."""
    rows = store.db.execute("SELECT peer, receipt FROM receipts WHERE chapter = ?", (chapter,))
    return {peer: json.loads(text) for peer, text in rows}


def left(store: Store) -> set[int]:
    """Peers that have left the network: no token is sent to them."""
    store.db.executescript(SCHEMA)
    return {row[0] for row in store.db.execute("SELECT peer FROM left_peers")}


def put_left(store: Store, peer: int, name: str, receipt: dict[str, Any]) -> None:
    """A peer said that it has left, and signed that it kept nothing."""
    with store.transaction() as db:
        db.execute("INSERT OR IGNORE INTO left_peers VALUES (?)", (peer,))
        row = (LEAVERS, name, json.dumps(receipt))
        db.execute("INSERT OR REPLACE INTO receipts VALUES (?, ?, ?)", row)
