"""The store survives a crash between any two steps, and names only files that are there."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.plan import Local
from unwalk.peers.protocol import handover as pr
from unwalk.peers.status import running
from unwalk.peers.storage.database import read_only
from unwalk.peers.storage.store import (
    LOCALS,
    SMALL,
    SPARES,
    WRITE_OUT,
    Incoming,
    KeptLocal,
    Store,
    begin_writing,
)
from unwalk.peers.storage.token_files import pieces

RUN = "r"
POINTS = ["token written", "token synced", "token renamed", "before commit", "after commit"]


class Died(Exception):
    """What a test raises where a process would be killed."""


def content(number: int, size: int = 100) -> list[memoryview]:
    return [memoryview(bytes([number]) * size)]


def digest(number: int, size: int = 100) -> str:
    return hashlib.sha256(bytes([number]) * size).hexdigest()


def first(store: Store) -> pr.PeerState:
    name = store.write(content(0))
    state = pr.begin(0, 3, 9, 0, "0" * 64, name)
    store.save(RUN, state, {})
    store.pinned.clear()
    return state


def go_on(store: Store, state: pr.PeerState, number: int) -> pr.PeerState:
    """One visit: a new token, then one transaction, then tidying."""
    name = store.write(content(number))
    after = pr.visited(replace(state, stage="arrived"), f"{number:064x}", name)
    store.save(RUN, after, {"n": number}, local=(state.fence, number, KeptLocal("{}", "")))
    store.pinned.clear()
    store.collect(RUN, after)
    return after


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_leaves_the_old_state_or_the_new_one(tmp_path, point):
    def die(here: str) -> None:
        if here == point:
            raise Died

    store = Store(tmp_path)
    old = go_on(store, first(store), 1)
    store.fault = die
    new = pr.visited(replace(old, stage="arrived"), f"{2:064x}", digest(2))
    with pytest.raises(Died):
        go_on(store, old, 2)
    store.close()
    store = Store(tmp_path)
    found = store.load(RUN)
    assert found is not None
    assert found == ((new, {"n": 2}) if point == "after commit" else (old, {"n": 1}))
    assert found[0].held is not None
    data = store.file(found[0].held.token).read_bytes()
    assert hashlib.sha256(data).hexdigest() == found[0].held.token
    store.collect(RUN, found[0])
    assert [p.stem for p in store.tokens.glob("*.safetensors")] == [found[0].held.token]
    assert not list(store.tokens.glob("*.new"))
    store.close()


def test_spares_are_written_over_and_can_be_erased(tmp_path):
    store = Store(tmp_path)
    state = first(store)
    for number in range(1, 6):
        state = go_on(store, state, number)
        assert store.file(digest(number)).read_bytes() == bytes([number]) * 100
    assert 0 < len(list(store.tokens.glob("*.spare"))) <= SPARES
    store.write(content(9, size=101))
    assert store.file(digest(9, 101)).stat().st_size == 101
    store.erase_spares()
    assert not list(store.tokens.glob("*.spare"))
    store.close()


def test_spares_serve_tokens_whose_headers_have_grown(tmp_path):
    """A header grows with its numbers: files as long as the tokens before are still of use."""
    store = Store(tmp_path)
    for number in range(1, SPARES + 1):
        store.write(content(number, size=1008))
    for number in range(1, SPARES + 1):
        store.spare(store.file(digest(number, 1008)))
    for number, size in enumerate((1016, 1000, 1016, 1008), 10):
        store.write(content(number, size=size))
        assert store.file(digest(number, size)).read_bytes() == bytes([number]) * size
        assert len(list(store.tokens.iterdir())) == SPARES, "no new file was made"
        store.spare(store.file(digest(number, size)))
    small = store.claim(8)
    assert small.suffix == ".new", "a spare token is not given away for something small"
    store.close()


def test_a_file_is_made_ahead_for_a_large_token_and_for_nothing_else(tmp_path):
    store, size = Store(tmp_path), SMALL + 5
    assert not store.lacks_spare(SMALL)
    assert store.lacks_spare(size)
    store.prepare(size)
    (spare,) = store.tokens.glob("*.spare")
    assert spare.stat().st_size == size
    assert not store.lacks_spare(size + 8)
    name = store.write(content(1, size=size + 8))
    assert name == digest(1, size + 8)
    assert [p.name for p in store.tokens.iterdir()] == [store.file(name).name]
    store.space.need = 1 << 60
    assert not store.lacks_spare(size), "there is no room to spare"
    store.close()


def test_a_token_that_comes_while_a_file_is_made_ahead_goes_first(tmp_path, monkeypatch):
    store, size, put = Store(tmp_path), SMALL + 5, Incoming.put_part
    came: list[Path] = []

    def put_part(self: Incoming, chunk: memoryview) -> None:
        put(self, chunk)
        if not came:
            came.append(store.claim(size))

    monkeypatch.setattr(Incoming, "put_part", put_part)
    store.prepare(size)
    assert came
    assert not list(store.tokens.iterdir()), "given up after one piece"
    store.close()


def test_a_large_token_begins_to_go_to_disk_while_it_comes_and_is_flushed_after_that(
    tmp_path, monkeypatch
):
    store, done, begin, flush = Store(tmp_path), list[tuple[str, int]](), begin_writing, os.fsync

    def begun(fd: int, start: int, end: int) -> None:
        assert os.pread(fd, end - start, start) == bytes([1]) * (end - start)
        begin(fd, start, end)
        done.append(("begun", end - start))

    def flushed(fd: int) -> None:
        flush(fd)
        done.append(("flushed", os.fstat(fd).st_size))

    monkeypatch.setattr("unwalk.peers.storage.store.begin_writing", begun)
    store.prepare(size := 2 * WRITE_OUT + 5)
    assert not done, "zeros need not be on disk"
    monkeypatch.setattr(os, "fsync", flushed)
    assert store.write(content(1, size)) == digest(1, size)
    assert done[:3] == [("begun", WRITE_OUT), ("begun", WRITE_OUT), ("flushed", size)]
    store.close()


def test_a_token_longer_or_shorter_than_announced_is_refused(tmp_path):
    store = Store(tmp_path)
    incoming = Incoming(store, 10)
    with pytest.raises(Corrupt, match="longer"):
        incoming.write(bytes(11))
    incoming.write(bytes(9))
    with pytest.raises(Corrupt, match="9 bytes instead of 10"):
        incoming.finish()
    incoming.discard()
    with pytest.raises(Corrupt, match="given up"):
        incoming.write(b"x")
    store.close()


def test_a_token_of_which_nothing_came_leaves_the_disk_as_it_was(tmp_path):
    store = Store(tmp_path)
    Incoming(store, 10).discard()
    assert not list(store.tokens.iterdir())
    whole = Incoming(store, 10)
    whole.write(bytes(10))
    whole.discard()
    (spare,) = store.tokens.iterdir()
    again = Incoming(store, 10)
    assert again.path == spare, "it would be written over"
    again.discard()
    again.discard()
    (kept,) = store.tokens.iterdir()
    assert kept.read_bytes() == bytes(10)
    assert Incoming(store, 10).path == kept
    store.close()


def test_one_process_at_a_time(tmp_path):
    store = Store(tmp_path)
    assert running(tmp_path) is not None
    with pytest.raises(InvalidInput, match="in use"):
        Store(tmp_path)
    store.close()
    assert running(tmp_path) is None
    assert running(tmp_path / "nowhere") is None


def test_who_asks_whether_a_peer_runs_is_in_nobodys_way(tmp_path):
    """Asking holds the lock for a moment: a peer still starts, and another who asks hears no."""
    Store(tmp_path).close()
    asking = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(asking, fcntl.LOCK_SH)
    assert running(tmp_path) is None
    done = threading.Timer(0.1, os.close, [asking])
    done.start()
    Store(tmp_path).close()
    done.join()


def test_a_missing_token_is_noticed(tmp_path):
    store = Store(tmp_path)
    state = first(store)
    assert state.held is not None
    store.file(state.held.token).unlink()
    with pytest.raises(Corrupt, match="not there"):
        store.load(RUN)
    store.close()


def test_what_a_peer_kept_follows_the_lineage(tmp_path):
    store = Store(tmp_path)
    state = first(store)
    lineage: pr.Lineage = (((0, 0), 0),)
    for hop in (1, 3, 6):
        local = Local(visits=hop, moments={"momentum": torch.full((4,), float(hop))})
        kept = store.write_local(local)
        store.save(RUN, state, {}, local=((0, 0), hop, kept))
        store.pinned.clear()
    assert store.read_local(store.local(RUN, lineage)).visits == 6
    branched: pr.Lineage = (((0, 0), 0), ((1, 2), 4))
    found = store.read_local(store.local(RUN, branched))
    assert (found.visits, found.moments["momentum"].tolist()) == (3, [3.0] * 4)
    early: pr.Lineage = (((0, 0), 0), ((1, 2), 0))
    assert store.read_local(store.local(RUN, early)).visits == 0
    store.close()


def test_what_is_too_far_back_is_gone_and_said_to_be(tmp_path):
    store = Store(tmp_path)
    state = first(store)
    for hop in range(1, LOCALS + 3):
        kept = store.write_local(Local(visits=hop, moments={"momentum": torch.ones(hop)}))
        store.save(RUN, state, {}, local=((0, 0), hop, kept))
        store.pinned.clear()
    store.collect(RUN, state)
    assert store.local(RUN, (((0, 0), 0), ((1, 1), 1))) is None
    with pytest.raises(Corrupt, match="gone"):
        store.read_local(None)
    assert store.local(RUN, (((0, 0), 0),)) is not None
    store.close()


def test_files_are_valid_safetensors(tmp_path):
    from safetensors.torch import load

    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2]), "c": torch.zeros(0)}
    data = b"".join(pieces(tensors, {"k": "v"}))
    found = load(data)
    assert {k: v.tolist() for k, v in found.items()} == {k: v.tolist() for k, v in tensors.items()}


def test_a_path_may_hold_any_character(tmp_path):
    folder = tmp_path / "a#b?c%20d"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "x.sqlite")) as db:
        db.execute("CREATE TABLE t (n)")
    with closing(read_only(folder / "x.sqlite")) as db:
        assert db.execute("SELECT COUNT(*) FROM t").fetchone() == (0,)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            db.execute("INSERT INTO t VALUES (1)")


def test_the_end_of_a_run_that_is_over_is_known_though_its_other_files_are_gone(tmp_path):
    """A peer came back with the token of a chapter that was given up, and ended with a trace."""
    with closing(Store(tmp_path)) as store:
        held = first(store)
        end = pr.Value((0, 0), "0" * 64, digest(7))
        over = replace(held, committed=end)
        store.save(RUN, over, {})
        other = pr.begin(0, 3, 9, 0, "1" * 64, store.write(content(1)))
        store.save("later", other, {})
        store.archive("later")
        store.pinned.clear()
        store.collect("later", other)
        with pytest.raises(Corrupt, match="is not there"):
            store.load(RUN)
        assert store.committed(RUN) == end
        assert store.committed("never heard of") is None
