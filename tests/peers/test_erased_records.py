"""Erased records leave no trace in any file, whatever happens in between."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.peers.own_files import (
    DECLARED,
    FEATURES,
    content,
    killed,
    label_of,
    line_of,
    make_csv,
    names_of,
    peer,
    rows_of,
    write_csv,
)
from unwalk.core.errors import InvalidInput
from unwalk.peers.records.record_store import Changes, Records
from unwalk.peers.records.sources import DataSettings, SourceRefused
from unwalk.peers.records.trace_search import search, traces
from unwalk.tasks.declared import declare


@pytest.mark.parametrize("rewrite", [True, False])
def test_erased_rows_are_in_no_file(tmp_path, rewrite):
    names, rows = names_of(50), rows_of(50)
    records = peer(tmp_path, erase_source=rewrite)
    path = tmp_path / "source" / "patients.csv"
    gone = [0, 11, 12, 49]
    changed = rows.copy()
    changed[11] += 1.0  # an earlier version of a record has to go as well
    write_csv(path, names, changed, [label_of(k) for k in range(50)])
    records.refresh()
    records.begin_visit(0, 1)
    lines = [line_of(names[k], changed[k], label_of(k)) for k in gone]
    needles = traces([names[k] for k in gone], [*rows[gone], *changed[gone]], lines)
    inside = traces(rows=[*changed[gone]])
    hashes = [records.hash(names[k]) for k in gone]
    records.exclude(hashes)
    assert {h.path.name for h in search(tmp_path, inside)} >= {"records.sqlite-wal"}
    assert {h.path.name for h in search(tmp_path, needles)} >= {"patients.csv"}
    assert not search(tmp_path / "store", traces(names))  # no id was ever there
    assert records.erase(hashes) == 4
    where = tmp_path if rewrite else tmp_path / "store"
    assert search(where, needles) == []
    assert search(where, traces([names[1]], [changed[1]])) != [] or not rewrite
    assert (tmp_path / "store" / "records.sqlite-wal").stat().st_size == 0
    assert records.find([names[k] for k in gone]).forgotten == tuple(names[k] for k in gone)
    assert records.erase(hashes) == 0
    make_csv(path)  # somebody puts them back
    assert records.refresh().added == 0
    assert records.counts().forgotten == 4
    records.take_over(DataSettings.read(tmp_path), [names[0]])
    assert records.find([names[0], names[11]]).known == (hashes[0],)
    assert records.counts().forgotten == 3
    records.close()
    assert search(tmp_path / "store", traces(names)) == []


def test_what_left_the_source_leaves_the_store_as_well(tmp_path):
    records = peer(tmp_path)
    rows = rows_of(50)
    path = tmp_path / "source" / "patients.csv"
    make_csv(path, 10)
    assert records.refresh().removed == 40
    assert search(tmp_path, traces(rows=rows[10:])) == []
    assert records.counts().train + records.counts().hold_out == 10
    records.close()


def test_a_row_over_several_pages_is_erased_whole(tmp_path):
    rows = rows_of(30, features=1200)
    file = tmp_path / "p.npz"
    names = names_of(30)
    np.savez(file, x=rows, y=np.zeros(30, int), id=np.array(names))
    records = Records(tmp_path, declare({"features": 1200, "classes": 2}))
    records.take_over(DataSettings(file, hold_out=0.0, erase_source=True))
    needles = traces([names[4], names[20]], rows[[4, 20]])
    records.erase([records.hash(names[4]), records.hash(names[20])])
    assert search(tmp_path, needles) == []
    assert np.array_equal(records.shard().x[21].numpy(), rows[21])
    records.close()


def test_a_place_is_used_again_and_the_others_stay(tmp_path):
    records = peer(tmp_path, hold_out=0.0)
    names, rows = names_of(53), rows_of(53)
    records.erase([records.hash(names[k]) for k in (10, 30)])
    shard = records.shard()
    assert shard.records.absent.tolist() == [10, 30]
    assert np.array_equal(shard.x[31].numpy(), rows[31])
    make_csv(tmp_path / "source" / "patients.csv", 53)
    records.refresh()
    shard = records.shard()
    assert np.array_equal(shard.x[[10, 30, 50]].numpy(), rows[50:])
    assert shard.records.size == 51
    records.close()


def test_a_source_that_cannot_be_rewritten_leaves_the_erasure_open(tmp_path):
    records = peer(tmp_path, hold_out=0.0, erase_source=True)
    path = tmp_path / "source" / "patients.csv"
    name, row = names_of(50)[4], rows_of(50)[4]
    text = path.read_text()
    path.write_text(text.replace("id,f0", "ID,f0", 1))
    with pytest.raises(SourceRefused, match="cannot be written anew without the forgotten"):
        records.erase([records.hash(name)])
    assert records.unclean
    assert not records.try_erase([records.hash(name)])
    assert records.trouble
    assert "patient" not in records.trouble
    path.write_text(text)
    assert records.find([name]).forgotten == (name,)
    records.close()
    records = Records(tmp_path, DECLARED)
    assert not records.unclean
    assert search(tmp_path, traces([name], [row])) == []
    records.close()


def test_a_source_from_which_nothing_could_be_erased_is_refused_at_once(tmp_path):
    records = peer(tmp_path)
    path = tmp_path / "source" / "patients.csv"
    (tmp_path / "link.csv").symlink_to(path)
    os.link(path, tmp_path / "second.csv")
    for name, said in (("link.csv", "is a link"), ("second.csv", "has another name as well")):
        with pytest.raises(InvalidInput, match=said):
            records.take_over(DataSettings(tmp_path / name, erase_source=True))
    assert not DataSettings.read(tmp_path).erase_source
    records.close()


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_table_with_quotes_and_lines_within_cells_keeps_all_other_bytes(tmp_path, newline):
    declared = declare({"columns": "f0", "classes": 2})
    path = tmp_path / "p.csv"
    rows = ["id,note,f0,label", '"a,1","two\nlines",1,0', 'b2,"""quoted""",2,1', "", "c3,,3,0"]
    data = ("\ufeff" + newline.join(rows) + newline).encode()
    path.write_bytes(data)
    records = Records(tmp_path, declared)
    records.take_over(DataSettings(path, hold_out=0.0, erase_source=True))
    assert records.shard().x.flatten().tolist() == [1.0, 2.0, 3.0]
    records.erase([records.hash("b2")])
    assert path.read_bytes() == data.replace(f'b2,"""quoted""",2,1{newline}'.encode(), b"")
    records.erase([records.hash("a,1")])
    assert b"two" not in path.read_bytes()
    assert path.read_bytes().endswith(f"c3,,3,0{newline}".encode())
    records.close()


@settings(max_examples=8, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_no_sequence_of_changes_leaves_a_trace_of_what_was_erased(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("peer")
    declared = declare({"features": 40, "classes": 2})
    path = folder / "p.npz"
    present: dict[str, np.ndarray] = {}
    seen: dict[str, list[np.ndarray]] = {}

    def write() -> None:
        names = np.array(list(present), dtype=str)
        np.savez(path, x=np.stack(list(present.values())), y=np.zeros(len(names), int), id=names)

    def put(name: str) -> None:
        fresh = sum(map(len, seen.values()))
        present[name] = rows_of(1, seed=fresh, features=40)[0]
        seen.setdefault(name, []).append(present[name])

    for k in range(6):
        put(f"name-{k:04d}")
    write()
    records = Records(folder, declared)
    records.take_over(DataSettings(path, hold_out=0.3, erase_source=True))
    gone: list[str] = []
    for number in range(1, data.draw(st.integers(3, 7))):
        for name in data.draw(st.lists(st.sampled_from(sorted(present)), max_size=3)):
            put(name)
        for k in range(data.draw(st.integers(0, 8))):
            put(f"name-{number:02d}{k:02d}")
        write()
        records.refresh()
        chosen = data.draw(st.lists(st.sampled_from(sorted(present)), max_size=2, unique=True))
        if len(present) > len(chosen):
            records.erase([records.hash(name) for name in chosen])
            for name in chosen:
                del present[name]
            gone += chosen
    needles = traces(gone, [row for name in gone for row in seen[name]])
    assert search(folder, needles) == []
    assert len(records.shard().records.all) + len(records.hold_out().y) == len(present)
    records.close()


@pytest.mark.parametrize("point", ["records before commit", "records after commit"])
def test_a_kill_while_records_are_taken_in_leaves_all_or_nothing(tmp_path, point):
    records = peer(tmp_path)
    before = content(records)
    records.close()
    make_csv(tmp_path / "source" / "patients.csv", 60, seed=1)
    killed(point, tmp_path, "refresh")
    records = Records(tmp_path, DECLARED)
    left = content(records)
    if point == "records before commit":
        assert left == before
        assert records.refresh() == Changes(added=10, changed=50)
    else:
        assert len(left) == 60
        assert records.refresh() == Changes()
    assert len(content(records)) == 60
    records.close()


@pytest.mark.parametrize(
    "point", ["records before commit", "records erased", "source rewritten", "records compacted"]
)
def test_a_kill_while_records_are_erased_is_made_good_at_the_next_start(tmp_path, point):
    peer(tmp_path, hold_out=0.0, erase_source=True).close()
    killed(point, tmp_path, "erase")
    records = Records(tmp_path, DECLARED)
    gone = [3, 30]
    if point == "records before commit":
        assert records.counts().train == 50
        assert not records.unclean
        records.erase([records.hash(names_of(50)[k]) for k in gone])
    assert not records.unclean
    assert records.counts().train == 48
    needles = traces([names_of(50)[k] for k in gone], rows_of(50)[gone])
    assert search(tmp_path, needles) == []
    assert records.refresh() == Changes()
    records.close()


def test_a_reader_in_another_process_does_not_keep_erased_pages_alive(tmp_path):
    records = peer(tmp_path, hold_out=0.0)
    name, row = names_of(50)[4], rows_of(50)[4]
    reader = sqlite3.connect(records.path, check_same_thread=False, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM records").fetchone()
    erasure = threading.Thread(target=records.erase, args=([records.hash(name)],))
    erasure.start()
    while not records.unclean:
        time.sleep(0.05)
    begun = time.monotonic()
    shard, _, _ = records.begin_visit(0, 1)
    assert time.monotonic() - begun < 2.0, "a visit waits for somebody else's reader"
    assert len(shard.records.all) == 49
    assert erasure.is_alive()
    reader.execute("COMMIT")
    erasure.join()
    assert search(tmp_path / "store", traces([name], [row])) == []
    reader.close()
    records.close()


def test_settings_hold_no_id_and_say_where_records_lie(tmp_path):
    peer(tmp_path).close()
    record = json.loads((tmp_path / "data.json").read_text())
    assert record["path"] == str(tmp_path / "source" / "patients.csv")
    (tmp_path / "data.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"data\.json cannot be used"):
        DataSettings.read(tmp_path)


def test_features_of_these_tests():
    assert rows_of(2).shape == (2, FEATURES)
