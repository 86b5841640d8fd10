"""A peer's records: taken in whole or not at all, known by hashes alone."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest

from tests.peers.own_files import (
    DECLARED,
    content,
    label_of,
    make_csv,
    names_of,
    peer,
    rows_of,
    settled,
    write_csv,
)
from unwalk.core.errors import InvalidInput
from unwalk.peers.records import source_changes
from unwalk.peers.records.record_store import Changes, Records
from unwalk.peers.records.sources import DataSettings, SourceRefused


def test_rows_keep_their_place_and_the_hold_out_is_never_among_them(tmp_path):
    records = peer(tmp_path)
    names, rows = names_of(50), rows_of(50)
    shard, held = records.shard(), records.hold_out()
    split = content(records)
    trained = [n for n in names if split[records.hash(n)][0] == "train"]
    assert len(shard.y) == len(trained)
    assert len(shard.y) + len(held.y) == 50
    assert 2 <= len(held.y) <= 20
    for place, name in enumerate(trained):
        number = names.index(name)
        assert np.array_equal(shard.x[place].numpy(), rows[number])
        assert shard.y[place] == (label_of(number) == "ill")
    assert shard.records.absent.size == shard.records.forgotten.size == 0
    assert not {r.tobytes() for r in shard.x.numpy()} & {r.tobytes() for r in held.x.numpy()}
    records.close()


def test_the_hold_out_is_stable_whatever_else_comes_and_whatever_the_share_becomes(tmp_path):
    records = peer(tmp_path)
    before = {h: row[0] for h, row in content(records).items()}
    path = tmp_path / "source" / "patients.csv"
    write_csv(path, names_of(80)[::-1], rows_of(80), [label_of(k) for k in range(80)])
    assert records.refresh() == Changes(added=30, changed=50)
    records.take_over(DataSettings(path, hold_out=0.9))
    after = {h: row[0] for h, row in content(records).items()}
    assert {h: after[h] for h in before} == before
    assert len(after) == 80
    records.close()
    other = peer(tmp_path / "other", path=path, hold_out=0.2)
    mine = {records.hash(n): after[records.hash(n)] for n in names_of(50)}
    theirs = {records.hash(n): content(other)[other.hash(n)][0] for n in names_of(50)}
    assert mine != theirs  # another key, another split
    other.close()


def test_what_changes_in_the_source_takes_part_from_the_next_look_on(tmp_path):
    records = peer(tmp_path, hold_out=0.0)
    path = tmp_path / "source" / "patients.csv"
    names, rows = names_of(51), rows_of(51)
    before = records.shard()
    rows[3] += 1.0
    keep = [k for k in range(51) if k != 7]
    write_csv(path, [names[k] for k in keep], rows[keep], [label_of(k) for k in keep])
    assert records.shard() is before
    assert records.refresh() == Changes(added=1, changed=1, removed=1)
    after = records.shard()
    assert np.array_equal(after.x[3].numpy(), rows[3])
    assert np.array_equal(after.x[50].numpy(), rows[50])
    assert after.records.absent.tolist() == [7]
    assert not after.x[7].any()
    assert 7 not in after.records.all
    assert records.refresh() == Changes()
    assert records.shard() is after
    make_csv(path)
    assert records.refresh() == Changes(added=1, changed=1, removed=1)
    assert np.array_equal(records.shard().x[:50].numpy(), rows_of(50))
    records.close()


def test_nothing_is_read_when_nothing_changed(tmp_path, monkeypatch):
    records = peer(tmp_path)
    path = tmp_path / "source" / "patients.csv"
    settled(path)
    assert records.refresh() == Changes()  # the time is trusted from here on
    read = []
    monkeypatch.setattr(source_changes, "_digest", lambda *_: read.append("digest"))
    monkeypatch.setattr(source_changes, "read_part", lambda *_: read.append("part"))
    assert records.refresh() == Changes()
    assert read == []
    monkeypatch.undo()
    os.utime(path)  # touched, not changed: looked through, not taken in again
    monkeypatch.setattr(source_changes, "read_part", lambda *_: read.append("part"))
    assert records.refresh() == Changes()
    assert read == []
    records.close()


def test_a_change_within_the_same_instant_and_of_the_same_size_is_seen(tmp_path):
    records = peer(tmp_path, hold_out=0.0)
    path = tmp_path / "source" / "patients.csv"
    records.refresh()
    found = path.stat()
    names, rows = names_of(50), rows_of(50)
    rows[[0, 1]] = rows[[1, 0]]
    write_csv(path, names, rows, [label_of(k) for k in range(50)])
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert path.stat().st_size == found.st_size
    assert records.refresh() == Changes(changed=2)
    records.close()


def test_two_processes_of_one_peer_see_each_other_s_changes(tmp_path):
    records = peer(tmp_path, hold_out=0.0)
    shard = records.shard()
    other = Records(tmp_path, DECLARED)
    other.exclude([records.hash("patient-00001")])
    assert records.shard() is not shard
    assert records.shard().records.absent.tolist() == [1]
    other.close()
    records.close()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("patient-x,1,2,3,4,5,6", r"patients.csv, line 52, has 7 values; the header names 8"),
        ("patient-x,1,2,3,4,5,six,ill", r"line 52, column 'f5': 'six' is not a finite number"),
        ("patient-x,1,2,3,4,5,nan,ill", r"line 52, column 'f5': 'nan' is not a finite number"),
        ("patient-x,1,2,3,4,5,1e300,ill", r"line 52, holds .* too large for 32 bits"),
        ("patient-x,1,2,3,4,5,6,sick", r"line 52, has label 'sick'; allowed, .*: well, ill"),
        (",1,2,3,4,5,6,ill", r"line 52, column 'id' is empty"),
        ("patient-00003,1,2,3,4,5,6,ill", r"line 52, has the id 'patient-00003' of line 5;"),
        ("a\x07b,1,2,3,4,5,6,ill", r"line 52, has the id .*; allowed: a text of 1 to 256"),
    ],
)
def test_a_bad_line_is_named_and_nothing_of_its_file_is_taken_in(tmp_path, line, said):
    records = peer(tmp_path)
    before, settings_before = content(records), (tmp_path / "data.json").read_text()
    path = tmp_path / "source" / "patients.csv"
    make_csv(path, seed=1)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(SourceRefused, match=said):
        records.refresh()
    with pytest.raises(SourceRefused, match=said):
        records.take_over(DataSettings(path, hold_out=0.5))
    assert content(records) == before
    assert (tmp_path / "data.json").read_text() == settings_before
    shard, refused, _ = records.begin_visit(0, 1)
    assert refused is not None
    assert "patient" not in refused.for_log
    assert len(shard.y) == len([1 for row in before.values() if row[0] == "train"])
    records.close()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "f0,label\n1,ill\n", r"a.csv has no column 'id', named as id"),
        ("a.csv", "id,f0,label\np1,1,ill\n", r"a.csv have shape 1; allowed: 6, as the network"),
        ("a.csv", "id,f0,label\n", r"a.csv holds no record"),
        ("a.csv", b"\xff\xfe", r"a.csv is not UTF-8 text"),
        ("a.npz", b"PK\x03\x04", r"a.npz is not a whole .npz file"),
        ("a.parquet", b"PAR1", r"a.parquet is not a Parquet file"),
        ("a.xls", b"", r"a.xls is not a kind of file that is read; allowed: .csv, .tsv"),
        ("a.csv.bak", b"", r"is not a kind of file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    records = Records(tmp_path, DECLARED)
    with pytest.raises(SourceRefused, match=said):
        records.take_over(DataSettings(path))
    with pytest.raises(SourceRefused, match="there is no file or folder"):
        records.take_over(DataSettings(tmp_path / "nowhere"))
    with pytest.raises(InvalidInput, match=r"hold-out is 1\.0; allowed"):
        DataSettings(path, hold_out=1.0)
    assert content(records) == {}
    assert not (tmp_path / "data.json").exists()
    with pytest.raises(InvalidInput, match="has no records yet; say where they lie"):
        records.refresh()
    records.close()


def test_one_id_in_two_files_is_refused_also_if_only_one_of_them_changed(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    names, rows = names_of(4), rows_of(4)
    write_csv(source / "a.csv", names[:2], rows[:2], ["ill", "well"])
    write_csv(source / "b.csv", names[2:], rows[2:], ["ill", "well"])
    records = peer(tmp_path, path=source, hold_out=0.0)
    assert records.counts().train == 4
    before = content(records)
    write_csv(source / "b.csv", names[1:], rows[1:], ["ill", "ill", "well"])
    with pytest.raises(
        SourceRefused, match=r"b.csv has the id 'patient-00001', and so has .*a.csv"
    ):
        records.refresh()
    assert content(records) == before
    write_csv(source / "a.csv", names[:1], rows[:1], ["ill"])  # it moved from a to b
    assert records.refresh() == Changes(changed=1)  # under another label
    (source / "a.csv").unlink()
    assert records.refresh() == Changes(removed=1)
    (source / "notes.txt").write_text("x")
    with pytest.raises(SourceRefused, match=r"notes.txt lies among tables"):
        records.refresh()
    records.close()


def test_more_records_than_the_network_allows_are_refused(tmp_path):
    make_csv(tmp_path / "p.csv")
    records = Records(tmp_path, DECLARED, capacity=49)
    with pytest.raises(SourceRefused, match=r"makes 50 records .* train.capacity allows a peer 49"):
        records.take_over(DataSettings(tmp_path / "p.csv", hold_out=0.0))
    assert content(records) == {}
    records.close()


def test_a_key_that_others_may_read_or_that_is_another_s_is_refused(tmp_path):
    peer(tmp_path).close()
    path = tmp_path / "records.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "store" / "records.sqlite").stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match="mode 0644"):
        Records(tmp_path, DECLARED)
    path.chmod(0o600)
    path.write_bytes(bytes(32))
    with pytest.raises(InvalidInput, match=r"is not the key that .* was made with"):
        Records(tmp_path, DECLARED)


def test_the_visits_that_could_use_a_record(tmp_path):
    records = peer(tmp_path, hold_out=0.0)
    path = tmp_path / "source" / "patients.csv"
    names = names_of(51)
    first, late = records.hash(names[3]), records.hash(names[50])
    assert records.uses([first]) == []
    for hop in (4, 9):
        records.begin_visit(0, hop)
    make_csv(path, 51)
    records.begin_visit(0, 12)
    assert records.uses([late]) == [(0, 12)]
    assert records.uses([late, first]) == [(0, 4), (0, 9), (0, 12)]
    assert records.uses([records.hash("unknown")]) == []
    excluded = records.hash(names[5])
    records.exclude([excluded])
    records.begin_visit(2, 1)
    assert records.uses([excluded]) == [(0, 4), (0, 9), (0, 12)]
    make_csv(path, 50)  # the late one leaves the source; it was used all the same
    records.begin_visit(2, 5)
    assert records.find([names[50]]).known == (late,)
    assert records.uses([late]) == [(0, 12), (2, 1)]
    records.close()


def test_a_walk_that_repeats_another_takes_the_records_of_then(tmp_path):
    records = peer(tmp_path, hold_out=0.0)
    path = tmp_path / "source" / "patients.csv"
    names = names_of(60)
    training = {(0, 4), (0, 9), (0, 12)}
    for hop in (4, 9):
        records.begin_visit(0, hop)
    make_csv(path, 60)
    old, late = records.hash(names[3]), records.hash(names[55])
    sizes = []
    for chapter, repeats in (1, training), (2, {(0, 4), (1, 7)}), (3, {(0, 12)}), (4, ()):
        shard, _, mark = records.begin_visit(chapter, 7, (), repeats)
        sizes.append(len(shard.records.all))
        assert mark is not None
    assert sizes == [50, 50, 60, 60], "of a walk that this peer was not in, all"
    assert records.uses([late]) == [(3, 7), (4, 7)]
    assert records.uses([old]) == [(0, 4), (0, 9), (1, 7), (2, 7), (3, 7), (4, 7)]
    records.exclude([old])
    shard, _, _ = records.begin_visit(5, 1, (), {(0, 9), (4, 7)})
    assert len(shard.records.all) == 59
    shard, _, _ = records.begin_visit(5, 1, (), training)
    assert len(shard.records.all) == 49, "forgotten since"
    records.close()


def test_a_walk_that_repeats_another_leaves_out_records_that_were_away_then(tmp_path):
    records = peer(tmp_path, hold_out=0.0)
    path = tmp_path / "source" / "patients.csv"
    asked = [records.hash(name) for name in names_of(3)]
    make_csv(path, 10)  # a table that is read half-written looks like this
    records.exclude(asked)  # by a request that comes to nothing
    records.begin_visit(0, 4)
    make_csv(path, 50)
    records.include(asked)
    records.begin_visit(0, 9)
    make_csv(path, 20)
    make_csv(path, 50)  # nobody looked in between
    sizes: list[int] = []
    for repeats in {(0, 4)}, {(0, 4), (0, 9)}, set[tuple[int, int]]():
        shard, _, _ = records.begin_visit(len(sizes) + 1, 7, (), repeats)
        sizes.append(len(shard.records.all))
    assert sizes == [7, 50, 50]
    records.erase(asked)
    assert records.one("SELECT COUNT(*) FROM absences")[0] == 40
    records.close()


def test_a_walk_that_repeats_a_rewind_takes_what_that_and_all_before_it_took(tmp_path):
    records = peer(tmp_path, hold_out=0.0)
    path = tmp_path / "source" / "patients.csv"
    back = records.hash(names_of(45)[44])
    records.begin_visit(0, 4)
    make_csv(path, 10)
    records.begin_visit(1, 4, (), {(0, 4)})
    make_csv(path, 60)
    sizes = []
    for chapter, repeats in (2, {(0, 4), (1, 4)}), (3, {(2, 7)}), (4, {(0, 4)}), (5, ()):
        shard, _, _ = records.begin_visit(chapter, 7, (), repeats)
        sizes.append(len(shard.records.all))
    assert sizes == [10, 10, 50, 60]
    assert (5, 7) in records.uses([back])
    records.close()


def test_a_walk_that_may_repeat_a_dropped_visit_takes_what_all_took(tmp_path):
    records = peer(tmp_path, hold_out=0.0)
    path = tmp_path / "source" / "patients.csv"
    records.begin_visit(0, 4)
    make_csv(path, 60)
    records.begin_visit(0, 9)  # dropped, perhaps
    make_csv(path, 60)
    both = {(0, 4), (0, 9)}
    sizes = [
        len(records.begin_visit(chapter, 7, (), both, sure)[0].records.all)
        for chapter, sure in ((1, False), (2, True))
    ]
    assert sizes == [50, 60]
    assert len(records.begin_visit(3, 7, (), {(1, 7)})[0].records.all) == 50
    records.close()


def test_a_visit_that_came_to_nothing_is_taken_back_alone(tmp_path):
    records = peer(tmp_path, hold_out=0.0)
    one, other = (records.hash(name) for name in names_of(2))
    records.begin_visit(0, 4)
    assert records.begin_visit(0, 4)[2] is None, "the same visit: nothing to take back"
    mark = records.begin_visit(0, 9)[2]
    assert mark is not None
    records.exclude([other])  # while the visit goes on: it could use that one, too
    assert records.uses([other]) == [(0, 4), (0, 9)]
    records.take_back(mark)
    assert records.uses([one]) == records.uses([other]) == [(0, 4)]
    records.begin_visit(0, 9)
    assert (records.uses([one]), records.uses([other])) == ([(0, 4), (0, 9)], [(0, 4)])
    records.close()


def test_a_held_out_record_was_never_used(tmp_path):
    records = peer(tmp_path)
    records.begin_visit(0, 1)
    held = [h for h, row in content(records).items() if row[0] == "hold-out"]
    assert held
    assert records.uses(held) == []
    before = len(records.hold_out().y)
    records.exclude(held[:2])
    assert len(records.hold_out().y) == before - 2
    records.close()
