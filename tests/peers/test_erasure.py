"""Erasing at every peer: nothing is left, also after a crash, and the receipt can be checked."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.peers.harness import network
from tests.peers.own_files import unreadable
from unwalk.core.errors import Corrupt, InvalidInput, Refused
from unwalk.core.plan import Local
from unwalk.peers.forgetting.erasure import (
    Receipt,
    erase_since,
    hidden_name,
    receipt_of,
)
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.protocol import handover as pr
from unwalk.peers.records.trace_search import search, traces
from unwalk.peers.storage.database import compact, open_database, read_only
from unwalk.peers.storage.store import Store
from unwalk.peers.storage.token_files import pieces

RUN, EARLIER = "0123456789abcdef" * 2, "0" * 32
PLACES = range(0, 1500, 12)
POINTS = [
    "before commit",
    "erasure planned",
    "erasure unlinked",
    "erasure compacted",
    "receipt written",
]


class Died(Exception):
    """What a test raises where a process would be killed."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    network(folder / "net", peers=3)
    return [Bundle.read(folder / "net" / f"peer-{k}") for k in range(3)]


def tensors(number: int) -> dict[str, torch.Tensor]:
    return {"parameters": torch.tensor(np.random.default_rng(number).standard_normal(48))}


def filled(folder) -> tuple[Store, list[str]]:
    """A store with six tokens, one spare file, and what was kept at visits 1 to 4."""
    store = Store(folder)
    names = [store.write(pieces(tensors(k), {})) for k in range(6)]
    state = pr.begin(0, 3, 9, 0, "0" * 64, names[0])
    for hop, run in enumerate((EARLIER, RUN, RUN, RUN), start=1):
        moments = {"momentum": torch.tensor(np.random.default_rng(50 + hop).standard_normal(32))}
        local = store.write_local(Local(visits=hop, moments=moments))
        store.save(run, state, {}, local=((0, 0), hop, local))
    store.pinned.clear()
    spare = store.write(pieces(tensors(99), {}))
    store.pinned.clear()
    store.spare(store.file(spare))
    return store, names


def needles() -> dict[str, bytes]:
    rows = [tensors(k)["parameters"].numpy() for k in (1, 2, 3, 4, 99)]
    rows += [np.random.default_rng(50 + hop).standard_normal(32) for hop in (2, 3, 4)]
    return traces(rows=rows)


def erase(store: Store, bundle: Bundle, names: list[str]) -> Receipt:
    keep = {names[0], names[5], first_local(store)}
    return erase_since(store, bundle, RUN, 1, keep=keep, runs=[RUN])


def unfinished(store: Store) -> list[int]:
    """Chapters whose erasure was planned and has no receipt yet."""
    rows = store.db.execute("SELECT chapter FROM erasures WHERE receipt IS NULL ORDER BY chapter")
    return [row[0] for row in rows]


def first_local(store: Store) -> str:
    row = store.db.execute("SELECT file FROM locals WHERE hop = 1").fetchone()
    return str(row[0])


def test_everything_but_what_is_kept_goes(tmp_path, bundles):
    store, names = filled(tmp_path)
    there = {hit.name.partition(",")[0] for hit in search(tmp_path, needles())}
    assert there == {f"row {k}" for k in range(8)}
    mine = first_local(store)
    receipt = erase(store, bundles[1], names)
    assert search(tmp_path, needles()) == []
    assert {p.stem for p in store.tokens.iterdir()} == {names[0], names[5], mine}
    assert set(receipt.erased) >= {hidden_name(bundles[1], n) for n in names[1:5]}
    assert len(receipt.erased) == 4 + 3
    said = (tmp_path / "state.sqlite").read_bytes()
    assert not [n for n in names[1:5] if n.encode() in said], "no plain digest of what is gone"
    assert (receipt.peer, receipt.records, receipt.chapter) == ("peer-1", 0, 1)
    assert store.read_local(store.local(EARLIER, (((0, 0), 0),))).visits == 1
    for name in (names[0], names[5]):
        data = store.file(name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == name
    assert erase(store, bundles[1], names) == receipt  # asked again: the same answer
    assert receipt_of(store, bundles[1], RUN, 1) == receipt
    assert receipt_of(store, bundles[1], RUN, 2) is None
    store.close()


def test_tokens_that_cannot_be_listed_are_not_said_to_be_erased(tmp_path, bundles):
    store, names = filled(tmp_path)
    with unreadable(store.tokens), pytest.raises(PermissionError):
        erase(store, bundles[0], names)
    assert unfinished(store) == []
    assert receipt_of(store, bundles[0], RUN, 1) is None
    assert len(erase(store, bundles[0], names).erased) == 7
    assert search(tmp_path, needles()) == []
    store.close()


def test_a_search_does_not_pass_over_a_folder_that_it_cannot_read(tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "file").write_text("patient-17")
    with unreadable(tmp_path / "inside"), pytest.raises(PermissionError):
        search(tmp_path, traces(["patient-17"]))
    assert search(tmp_path, traces(["patient-17"]))


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_is_made_good_and_the_receipt_lists_everything(tmp_path, bundles, point):
    store, names = filled(tmp_path)

    def die(here: str) -> None:
        if here == point:
            raise Died

    store.fault = die
    with pytest.raises(Died):
        erase(store, bundles[0], names)
    store.close()
    store = Store(tmp_path)
    assert unfinished(store) == ([] if point in (POINTS[0], POINTS[-1]) else [1])
    receipt = erase(store, bundles[0], names)
    assert set(receipt.erased) >= {hidden_name(bundles[0], n) for n in names[1:5]}
    assert len(receipt.erased) == 7
    assert unfinished(store) == []
    assert search(tmp_path, needles()) == []
    store.close()


def test_writing_a_database_anew_drops_what_overwriting_leaves(tmp_path):
    # After this history SQLite 3.40 with secure_delete alone still holds pieces of old rows.
    rng = random.Random(25)
    path = tmp_path / "rows.sqlite"
    db = open_database(path, "CREATE TABLE rows (hash TEXT PRIMARY KEY, x BLOB)")
    db.execute("PRAGMA synchronous=OFF")
    rows: dict[str, bytes] = {}
    old: list[bytes] = []
    sizes = [rng.choice([24, 64, 200, 500, 1500]) for _ in range(3)]
    for _ in range(600):
        what = rng.random()
        if what < 0.6 or len(rows) < 5:
            name = rng.randbytes(16).hex()
            rows[name] = rng.randbytes(rng.choice(sizes))
            db.execute("INSERT INTO rows VALUES (?, ?)", (name, rows[name]))
            continue
        name = rng.choice(list(rows))
        old.append(rows.pop(name))
        if what < 0.8:
            rows[name] = rng.randbytes(rng.choice(sizes))
            db.execute("UPDATE rows SET x = ? WHERE hash = ?", (rows[name], name))
        else:
            old.append(name.encode())
            db.execute("DELETE FROM rows WHERE hash = ?", (name,))
    compact(db, path)
    pieces_of = {f"{k} {at}": x[at : at + 12] for k, x in enumerate(old) for at in PLACES}
    assert search(tmp_path, {k: piece for k, piece in pieces_of.items() if len(piece) == 12}) == []
    assert dict(db.execute("SELECT * FROM rows")) == rows
    db.close()


@contextmanager
def read_by_a_program(path: Path) -> Iterator[None]:
    """Another program has an open look at a database."""
    other = read_only(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM runs").fetchone()
    try:
        yield
    finally:
        other.close()


def test_a_program_that_reads_the_database_holds_an_erasure_up_but_not_the_peer(tmp_path, bundles):
    store, names = filled(tmp_path)
    log = store.path.with_name(f"{store.path.name}-wal")
    sizes = []
    with read_by_a_program(store.path):
        begun = time.monotonic()
        for _ in range(3):
            with pytest.raises(InvalidInput, match="another process reads it"):
                erase(store, bundles[0], names)
            sizes.append(log.stat().st_size)
        assert time.monotonic() - begun < 2.0, "it waits for the reader, and answers nobody"
    assert sizes[2] - sizes[0] < store.path.stat().st_size, "each attempt writes everything anew"
    assert erase(store, bundles[0], names).erased
    store.close()


def test_an_erasure_that_goes_on_leaves_what_was_needed_since(tmp_path, bundles):
    # The next chapter may begin with a token that had to go: the starting model has the same bytes.
    store, names = filled(tmp_path)
    with read_by_a_program(store.path), pytest.raises(InvalidInput, match="reads it"):
        erase(store, bundles[0], names)
    assert not store.file(names[2]).exists()
    assert store.write(pieces(tensors(2), {})) == names[2]
    store.pinned.clear()
    keep = {names[0], names[2], names[5], first_local(store)}
    receipt = erase_since(store, bundles[0], RUN, 1, keep=keep, runs=[RUN])
    assert store.file(names[2]).exists()
    assert hidden_name(bundles[0], names[2]) not in receipt.erased
    assert hidden_name(bundles[0], names[3]) in receipt.erased
    store.close()


def test_a_token_that_is_being_written_stays(tmp_path, bundles):
    store, names = filled(tmp_path)
    store.pinned.add(names[3])
    receipt = erase(store, bundles[0], names)
    assert hidden_name(bundles[0], names[3]) not in receipt.erased
    assert store.file(names[3]).exists()
    store.close()


def test_a_receipt_travels_and_is_checked(tmp_path, bundles):
    store, names = filled(tmp_path)
    receipt = erase(store, bundles[2], names)
    store.close()
    trust = bundles[0].trust()
    again = Receipt.from_json(json.loads(json.dumps(receipt.to_json())))
    assert again == receipt
    assert again.check(trust, run=RUN, chapter=1) == 2
    for change in (
        {"erased": receipt.erased[1:]},
        {"peer": "peer-0"},
        {"chapter": 2},
        {"records": 4},
        {"time": "2020-01-01T00:00:00+00:00"},
        {"run": "other"},
        {"network": "other"},
        {"signature": "00" * 64},
        {"signature": "not hexadecimal"},
        {"certificate": bundles[0].certificate_pem.decode()},
        {"certificate": "nothing"},
    ):
        with pytest.raises(Refused):
            replace(receipt, **change).check(trust)
    with pytest.raises(Refused, match="for chapter 1, not 3"):
        receipt.check(trust, chapter=3)
    with pytest.raises(Refused, match=f"for run {RUN}, not another"):
        receipt.check(trust, run="another")
    stolen = replace(receipt, peer="peer-1").signed(bundles[2])
    with pytest.raises(Refused, match="of peer-1 was signed by peer-2"):
        stolen.check(trust)
    elsewhere = replace(receipt, network="elsewhere").signed(bundles[2])
    with pytest.raises(Refused, match="for network elsewhere"):
        elsewhere.check(trust)


def test_a_receipt_of_another_network_s_peer_is_refused(tmp_path, bundles):
    network(tmp_path / "other", peers=3)
    stranger = Bundle.read(tmp_path / "other" / "peer-2")
    store, names = filled(tmp_path / "store")
    receipt = erase(store, stranger, names)
    store.close()
    with pytest.raises(Refused, match="not issued by the CA"):
        receipt.check(bundles[0].trust())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("erased", ["x"]),
        ("erased", "0" * 64),
        ("erased", [1]),
        ("erased", ["0" * 64] * 100_001),
        ("chapter", -1),
        ("chapter", True),
        ("records", 1.5),
        ("time", "yesterday"),
        ("peer", None),
        ("certificate", "x" * 100_000),
        ("extra", 1),
    ],
)
def test_a_receipt_of_another_form_is_refused(name, value, bundles):
    plain = Receipt("net", RUN, 1, "peer-0", ("a" * 64,), 0, "2026-01-01T00:00:00+00:00", "0" * 64)
    good = plain.signed(bundles[0])
    assert Receipt.from_json(good.to_json()) == good
    with pytest.raises(Corrupt):
        Receipt.from_json({**good.to_json(), name: value})
    with pytest.raises(Corrupt):
        Receipt.from_json([])


def test_the_search_finds_what_is_there(tmp_path):
    row = np.random.default_rng(3).standard_normal(30).astype(np.float32)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.bin").write_bytes(b"x" * 1000 + row.tobytes()[40:120])
    (tmp_path / "b.bin").write_bytes(row.astype(">f8").tobytes())
    np.savez_compressed(tmp_path / "c.npz", x=row)
    (tmp_path / "d.txt").write_bytes("patient-17".encode("utf-16-le"))
    (tmp_path / "patient-17.png").write_bytes(b"")
    hits = search(tmp_path, traces(["patient-17"], [row]))
    assert {str(h.path.relative_to(tmp_path)) for h in hits} == {
        "deep/a.bin",
        "b.bin",
        "c.npz/x.npy",
        "d.txt",
        "patient-17.png",
    }
    assert search(tmp_path, traces(["patient-18"], [row + 1])) == []
    (long,) = traces(["patient-17"]).keys() & {"id 'patient-17' as utf-8"}
    chunk = (1 << 22) - 5
    (tmp_path / "e.bin").write_bytes(bytes(chunk) + b"patient-17" + bytes(chunk))
    found = search(tmp_path, {long: b"patient-17"})
    assert {(h.path.name, h.offset) for h in found} == {("e.bin", chunk), ("patient-17.png", -1)}
    with pytest.raises(InvalidInput, match="shorter ones are found anywhere"):
        traces(["17"])
    black = np.zeros(64, np.float32)
    assert traces(rows=[black]) == {}
