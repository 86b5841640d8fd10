"""Records from real files: tables of every kind, pictures, and erasing from them."""

from __future__ import annotations

import json
import stat
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.peers.harness import network
from tests.peers.own_files import (
    DECLARED,
    FEATURES,
    label_of,
    make_csv,
    names_of,
    peer,
    rows_of,
    unreadable,
    write_csv,
)
from unwalk import cli
from unwalk.engines.inprocess import InProcess
from unwalk.peers.demo import equal_bytes
from unwalk.peers.handover.visit import plan_of
from unwalk.peers.records.own_task import OwnRecords, open_records, public_task
from unwalk.peers.records.record_store import Changes, Records
from unwalk.peers.records.sources import DataSettings, SourceRefused
from unwalk.peers.records.trace_search import search, traces
from unwalk.runs.assemble import resolve
from unwalk.tasks import from_arrays
from unwalk.tasks.declared import declare, declared_task

PUBLIC = {"data__labels": "well|ill", "data__records": "none", "model__name": "logistic"}


def write_as(kind: str, path: Path, names: list[str], rows: np.ndarray) -> Path:
    labels = [label_of(k) for k in range(len(names))]
    file = path / f"p.{kind}"
    if kind == "csv":
        write_csv(file, names, rows, labels)
    elif kind == "tsv":
        write_csv(file, names, rows, labels)
        file.write_text(file.read_text().replace(",", "\t"))
    elif kind == "npz":
        np.savez_compressed(file, x=rows, y=np.array(labels), id=np.array(names))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow.parquet import write_table

        columns = {f"f{k}": rows[:, k].astype(np.float64) for k in range(rows.shape[1])}
        write_table(pyarrow.table({"id": names, **columns, "label": labels}), file)
    return file


@pytest.mark.parametrize("kind", ["csv", "tsv", "npz", "parquet"])
def test_every_kind_of_table_gives_the_same_rows_and_can_be_written_anew(tmp_path, kind):
    names, rows = names_of(20), rows_of(20)
    file = write_as(kind, tmp_path, names, rows)
    file.chmod(0o640)
    records = peer(tmp_path / "peer", path=file, hold_out=0.0, erase_source=True)
    shard = records.shard()
    assert np.array_equal(shard.x.numpy(), rows)
    assert shard.y.tolist() == [int(label_of(k) == "ill") for k in range(20)]
    lines = file.read_bytes().splitlines()
    gone = [records.hash(names[k]) for k in (0, 7, 19)]
    assert records.erase(gone) == 3
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    if kind in ("csv", "tsv"):
        kept = [line for k, line in enumerate(lines) if k not in (1, 8, 20)]
        assert file.read_bytes().splitlines() == kept
    assert records.refresh() == Changes()
    fresh = peer(tmp_path / "fresh", path=file, hold_out=0.0)
    left = [k for k in range(20) if k not in (0, 7, 19)]
    assert np.array_equal(fresh.shard().x.numpy(), rows[left])
    assert search(tmp_path, traces([names[k] for k in (0, 7, 19)], rows[[0, 7, 19]])) == []
    fresh.close()
    records.close()


def test_pictures_are_records_and_are_unlinked(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (8, 5, 4), dtype=np.uint8)
    source = tmp_path / "pictures"
    for k, label in enumerate(["cat", "dog"] * 4):
        (source / label).mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels[k]).save(source / label / f"picture-{k}.png")
    declared = declare({"shape": "1x5x4", "labels": "cat|dog"})
    (tmp_path / "peer").mkdir()
    records = Records(tmp_path / "peer", declared)
    assert records.take_over(DataSettings(source, hold_out=0.0, erase_source=True)).added == 8
    found = {x.tobytes() for x in records.shard().x.numpy()}
    assert found == {(p[None].astype(np.float32) / 255).tobytes() for p in pixels}
    assert records.find(["cat/picture-2.png"]).known == (records.hash("cat/picture-2.png"),)
    image.fromarray(pixels[0]).save(source / "dog" / "picture-9.png")
    assert records.refresh() == Changes(added=1)
    (source / "dog").rename(tmp_path / "dog")
    with unreadable(source / "cat"), pytest.raises(SourceRefused, match="cannot be read"):
        records.erase([records.hash("cat/picture-2.png")])
    (tmp_path / "dog").rename(source / "dog")
    assert (source / "cat" / "picture-2.png").exists()
    records.erase([records.hash("cat/picture-2.png")])
    assert not (source / "cat" / "picture-2.png").exists()
    assert (source / "cat" / "picture-4.png").exists()
    assert records.refresh() == Changes()
    (source / "cat" / "picture-4.png").unlink()
    assert records.refresh() == Changes(removed=1)
    image.fromarray(pixels[0][:, :3]).save(source / "dog" / "picture-9.png")
    with pytest.raises(SourceRefused, match=r"picture-9.png have shape 1x5x3; allowed: 1x5x4"):
        records.refresh()
    names = [f"picture-{k}.png" for k in (2, 4)]
    assert search(tmp_path, traces(names, pixels[[2, 4]] / np.float32(255))) == []
    records.close()


def test_columns_may_stand_in_any_order_and_others_are_left_out(tmp_path):
    declared = declare(
        {
            "columns": "age|sex",
            "categories": "sex=f|m",
            "scale": "age=50:30",
            "labels": "well|ill",
            "norm": 1.0,
        }
    )
    path = tmp_path / "p.csv"
    path.write_text("sex,who,state,age,pid\nf,Jo,ill,80,p1\nm,Al,well,50,p2\n")
    records = Records(tmp_path, declared)
    columns = {"id_column": "pid", "label_column": "state", "hold_out": 0.0}
    records.take_over(DataSettings(path, **columns))
    x = records.shard().x.numpy()
    assert x.shape == (2, 3)
    assert np.allclose(x, [[2**-0.5, 2**-0.5, 0], [0, 0, 1]], atol=1e-5)
    assert (np.linalg.norm(x.astype(np.float64), axis=1) <= 1.0).all()
    assert records.shard().y.tolist() == [1, 0]
    with pytest.raises(SourceRefused, match="no column 'id'"):
        records.take_over(DataSettings(path, label_column="state"))
    records.close()


def test_the_task_shows_methods_what_is_there_now(tmp_path):
    records = peer(tmp_path, hold_out=0.0)
    hashes = [records.hash(n) for n in names_of(50)]
    public = declared_task(DECLARED, 3, unlearner=1)
    task = OwnRecords(public, {1: records}, hashes[5:7])
    assert task.records(1).forgotten.tolist() == [5, 6]
    assert task.records(1).retained.size == 48
    assert task.records(0).size == 0
    records.exclude(hashes[4:7])
    assert task.records(1).absent.tolist() == [4]
    assert task.records(1).forgotten.tolist() == [5, 6]
    assert records.shard().records.absent.tolist() == [4, 5, 6]
    assert not records.shard().x[4:7].any()
    assert records.counts() == type(records.counts())(47, 0, 3, 0)
    records.include(hashes[4:7])
    assert records.shard().records.absent.size == 0
    records.close()


def test_a_simulator_with_the_same_rows_walks_the_same_walk(tmp_path):
    made = network(
        tmp_path / "net",
        peers=2,
        task="records",
        data__features=FEATURES,
        **PUBLIC,
    )
    config = resolve({**made.settings, "peers": 2})
    rows, y = rows_of(60), np.array([int(label_of(k) == "ill") for k in range(60)])
    held = []
    for k, part in enumerate((slice(0, 25), slice(25, 60))):
        path = tmp_path / f"p{k}.csv"
        names = names_of(60)[part]
        write_csv(path, names, rows[part], [label_of(n) for n in range(60)[part]])
        records = open_records(tmp_path / "net" / f"peer-{k}", config)
        assert records is not None
        records.take_over(DataSettings(path, hold_out=0.0))
        held.append(records)
    plan = plan_of(made)
    own = replace(plan, task=OwnRecords(public_task(config, 2), dict(enumerate(held))))
    parts = [np.arange(25), np.arange(25, 60)]
    arrays = from_arrays(rows, y, test=(rows, y), parts=parts, classes=2, model="logistic")
    same = replace(plan, task=arrays)
    (one, two) = (next(iter(InProcess().run([p]))).token for p in (own, same))
    assert equal_bytes(one, two)
    held[0].exclude([held[0].hash(names_of(1)[0])])
    (other,) = (o.token for o in InProcess().run([own]))
    assert not equal_bytes(one, other)
    for records in held:
        records.close()


def test_the_command_line_takes_records_in_and_counts_them(tmp_path, monkeypatch, capsys):
    network(tmp_path / "net", peers=2, task="records", data__features=FEATURES, **PUBLIC)
    make_csv(tmp_path / "p.csv")
    bundle = str(tmp_path / "net" / "peer-0")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["unwalk", "peer", "data", bundle, *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    code, _, err = call()
    assert (code, "say where they lie with --from PATH" in err) == (2, True)
    code, out, err = call("--from", str(tmp_path / "p.csv"), "--hold-out", "0", "--json")
    assert (code, json.loads(out)["train"], json.loads(out)["changes"]["added"]) == (0, 50, 50)
    make_csv(tmp_path / "p.csv", 52)
    code, out, _ = call("--erase-source")
    assert code == 0
    assert "52 records to train on, 0 held out, 0 about to be forgotten, 0 forgotten" in out
    assert "2 were added, 0 changed, 0 removed" in out
    settings = DataSettings.read(tmp_path / "net" / "peer-0")
    assert (settings.erase_source, settings.hold_out) == (True, 0.0)
    (tmp_path / "p.csv").write_text("id,label\n1,ill\n")
    code, _, err = call()
    assert (code, "has no column left to be a feature" in err) == (2, True)


def test_a_network_with_data_of_its_own_takes_no_records(tmp_path, monkeypatch, capsys):
    network(tmp_path / "net", peers=2)
    make_csv(tmp_path / "p.csv")
    words = ["peer", "data", str(tmp_path / "net" / "peer-0"), "--from", str(tmp_path / "p.csv")]
    monkeypatch.setattr(sys, "argv", ["unwalk", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "task is 'blobs', which brings its own data" in capsys.readouterr().err
    assert not (tmp_path / "net" / "peer-0" / "records.key").exists()
