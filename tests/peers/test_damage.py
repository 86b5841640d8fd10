"""Damage on disk is found at the start: a peer that may have lost a vote does not vote again."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.peers.harness import Town, check_end, network, town
from tests.peers.own_files import DECLARED, peer
from tests.peers.trials import furthest
from unwalk.core.errors import InvalidInput
from unwalk.peers.daemon import run_peer
from unwalk.peers.decisions.ballot import keep, stored
from unwalk.peers.protocol.consensus import State
from unwalk.peers.protocol.messages import PROTOCOL
from unwalk.peers.records.record_store import Records
from unwalk.peers.status import status
from unwalk.peers.storage.integrity_mark import MarkFile, digest_of
from unwalk.peers.storage.store import Store

MATTER = "a matter"


def vote(store: Store, round: int) -> None:
    """What a peer must not forget: its vote in a round."""
    keep(store, MATTER, State(1, round), {})


def voted(store: Store) -> int:
    """The round of the last vote that is known."""
    found = stored(store, MATTER)
    assert found is not None
    return int(found[0]["round"])


def filled(folder: Path, *, closed: bool, changes: int = 30) -> Path:
    """A store with votes in it, whose process ended as asked to, or was killed."""
    place = folder / "alive" / "store"
    store = Store(place)
    for number in range(changes):
        vote(store, number)
    if closed:
        store.close()
    dead = folder / "peer" / "store"
    shutil.copytree(folder / "alive", dead.parent)
    if not closed:
        store.close()
    return dead


def cut(path: Path, share: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


@pytest.mark.parametrize("closed", [True, False])
def test_a_store_that_is_whole_is_opened_with_its_last_vote(tmp_path, closed):
    store = Store(filled(tmp_path, closed=closed))
    found = voted(store)
    store.close()
    assert found == 29


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_log_that_was_cut_short_is_refused(tmp_path, share):
    place = filled(tmp_path, closed=False)
    cut(place / "state.sqlite-wal", share)
    with pytest.raises(InvalidInput, match=r"older than what .* changes are lost; .* join again"):
        Store(place)


@pytest.mark.parametrize("seed", range(12))
def test_any_flipped_bit_of_the_database_is_found(tmp_path, seed):
    place = filled(tmp_path, closed=seed % 2 == 0)
    flip(place / "state.sqlite", random.Random(seed))
    with pytest.raises(InvalidInput, match=r"is damaged.* or join again"):
        Store(place)


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_of_the_log_loses_no_vote(tmp_path, seed):
    place = filled(tmp_path, closed=False)
    flip(place / "state.sqlite-wal", random.Random(seed))
    found = None
    with suppress(InvalidInput):
        store = Store(place)
        found = voted(store)
        store.close()
    if found is not None:  # the bit stood where nothing is read
        assert found == 29


def test_a_store_that_is_gone_or_is_an_older_copy_is_refused(tmp_path):
    place = filled(tmp_path, closed=True)
    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    store = Store(place)
    vote(store, 99)
    store.close()
    shutil.rmtree(place)
    with pytest.raises(InvalidInput, match="is not there, but was"):
        Store(place)
    shutil.rmtree(place)
    shutil.copytree(copy, place)
    with pytest.raises(InvalidInput, match="is damaged"):
        Store(place)


def test_a_copy_from_after_the_last_stop_is_taken_back(tmp_path):
    place = filled(tmp_path, closed=True)
    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    cut(place / "state.sqlite", 0.5)
    with pytest.raises(InvalidInput, match="is damaged"):
        Store(place)
    shutil.rmtree(place)
    shutil.copytree(copy, place)
    Store(place).close()


def test_a_mark_that_is_gone_or_damaged_is_noticed(tmp_path):
    place = filled(tmp_path, closed=True)
    mark = place.with_name("store.mark")
    data = mark.read_bytes()
    mark.write_bytes(bytes(len(data)))
    with pytest.raises(InvalidInput, match=r"store\.mark is damaged"):
        Store(place)
    mark.unlink()
    with pytest.raises(InvalidInput, match="lost its mark"):
        Store(place)
    for half in (0, 1):  # a torn write leaves the other half
        torn = bytearray(data)
        torn[512 * half : 512 * half + 512] = bytes(512)
        mark.write_bytes(torn)
        found = MarkFile(mark)
        assert found.last is not None
        found.close()


def test_a_checkpoint_that_was_cut_off_is_no_damage(tmp_path, monkeypatch):
    """The mark says that one was under way, so that the file may be anything in between."""
    place = filled(tmp_path, closed=False)
    store = Store(place)

    def dies(*args: object, **named: object) -> None:
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        raise KeyboardInterrupt

    monkeypatch.setattr("unwalk.peers.storage.store.compact", dies)
    vote(store, 40)
    with pytest.raises(KeyboardInterrupt):
        store.settle()
    monkeypatch.undo()
    store._release()
    again = Store(place)
    found = voted(again)
    again.close()
    assert found == 40


def test_a_killed_peer_with_a_cut_log_is_refused_and_the_others_go_on(tmp_path):
    folder = tmp_path / "net"
    made = network(folder, peers=3, lease=0.8, train__hops=30)
    with town(folder, made, pause=0.02) as here:
        for number in range(3):
            here.start(number)
        here.until(lambda: furthest(here) >= 6)
        here.signal(1, signal.SIGKILL)
        bundle = folder / "peer-1"
        kept = tmp_path / "kept"
        shutil.copytree(bundle, kept)
        cut(bundle / "store" / "state.sqlite-wal", 0.6)
        with pytest.raises(InvalidInput, match=r"changes are lost; this peer does not start"):
            run_peer(bundle)
        assert not status(bundle)["running"]
        shutil.rmtree(bundle)
        shutil.copytree(kept, bundle)
        raw = bytearray((bundle / "store" / "state.sqlite").read_bytes())
        raw[100:4000] = bytes(3900)
        (bundle / "store" / "state.sqlite").write_bytes(raw)
        with pytest.raises(InvalidInput, match="is damaged"):
            run_peer(bundle)
        shutil.rmtree(bundle)
        shutil.copytree(kept, bundle)
        comes_back(here)
    check_end(folder, made, range(3))


def comes_back(here: Town) -> None:
    here.start(1)
    here.until(here.finished)


def test_status_says_that_a_store_is_damaged(tmp_path):
    folder = tmp_path / "net"
    network(folder, peers=3)
    bundle = folder / "peer-0"
    Store(bundle / "store").close()
    (bundle / "store" / "state.sqlite").write_bytes(b"no database" * 1000)
    assert status(bundle)["store"].startswith("damaged")


def test_a_peer_that_dies_between_its_first_change_and_its_mark_starts_again(tmp_path, monkeypatch):
    peer(tmp_path).close()
    for file in (*(tmp_path / "store").glob("records.sqlite*"), tmp_path / "records.mark"):
        file.unlink()
    write = MarkFile.write

    def dies(mark: MarkFile, changes: int, file: str, *, flush: bool) -> None:
        if changes:
            raise InterruptedError
        write(mark, changes, file, flush=flush)

    monkeypatch.setattr(MarkFile, "write", dies)
    with pytest.raises(InterruptedError):
        Records(tmp_path, DECLARED)
    monkeypatch.undo()
    Records(tmp_path, DECLARED).close()


def test_records_that_lost_what_was_asked_are_refused(tmp_path):
    """Else a record that is to be forgotten would be trained on again."""
    records = peer(tmp_path)
    with records.transaction():
        records.put_fact("asked", "yes")
    records.close()
    path = tmp_path / "store" / "records.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 1")
    with pytest.raises(InvalidInput, match=r"records\.sqlite is older than what"):
        Records(tmp_path, DECLARED)


PROTOCOL_2 = """
CREATE TABLE runs (run TEXT PRIMARY KEY, state TEXT NOT NULL, move TEXT NOT NULL);
CREATE TABLE agenda (number INTEGER PRIMARY KEY, text TEXT NOT NULL, decision TEXT NOT NULL);
CREATE TABLE visits (
    run TEXT NOT NULL, place INTEGER NOT NULL, visit TEXT NOT NULL, PRIMARY KEY (run, place));
CREATE TABLE polls (matter TEXT PRIMARY KEY, state TEXT NOT NULL, texts TEXT NOT NULL);
"""
"""Tables as a daemon of protocol 2 made them, as far as they differ or hold what it promised."""


@pytest.mark.parametrize(
    ("tables", "number", "named"), [(PROTOCOL_2, 0, "2 or older"), ("", PROTOCOL + 1, PROTOCOL + 1)]
)
def test_a_store_of_another_protocol_is_refused_with_what_to_do(tmp_path, tables, number, named):
    folder = tmp_path / "net"
    network(folder, peers=3)
    place = folder / "peer-0" / "store"
    place.mkdir()
    with closing(sqlite3.connect(place / "state.sqlite")) as db:
        db.executescript(f"{tables} PRAGMA application_id = {number};")

    def begun() -> None:
        raise AssertionError("the peer has begun")

    said = rf"was written by protocol {named}, .* make a new one .*, or start this peer with the"
    for _ in range(2):  # it is refused again, not taken over by the first attempt
        with pytest.raises(InvalidInput, match=said):
            run_peer(folder / "peer-0", http=None, ready=begun)
    with closing(sqlite3.connect(place / "state.sqlite")) as db:
        found = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    assert "ends" not in found


def test_a_store_says_which_protocol_wrote_it_and_is_opened_again(tmp_path):
    """One that this protocol wrote before it put its number down is taken over."""
    place = filled(tmp_path, closed=True)
    with closing(sqlite3.connect(place / "state.sqlite")) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (PROTOCOL,)
        db.execute("PRAGMA application_id = 0")
    with closing(MarkFile(place.with_name("store.mark"))) as mark:
        assert mark.last is not None
        mark.write(mark.last.changes, digest_of(place / "state.sqlite"), flush=True)
    for _ in range(2):
        with closing(Store(place)) as store:
            assert voted(store) == 29
            assert store.db.execute("PRAGMA application_id").fetchone() == (PROTOCOL,)
