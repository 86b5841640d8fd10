"""A user's own file is a task, with an id for every record; what is wrong in it is named."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unwalk.core.errors import InvalidInput
from unwalk.tasks import Dealing, Deletion, ShardedTask, build_task, from_file

HEADER = ["id", "hospital", "age", "sex", "label"]
ROWS = [
    (f"patient {i}", ["east", "west"][i % 2], 20 + i, "fm"[i % 3 == 0], ["ill", "well"][i % 5 < 2])
    for i in range(40)
]
SEX = {"sex": ("f", "m")}


def write(path: Path, rows: list[Any], header: list[str] | None = None) -> Path:
    lines = [header or HEADER, *rows]
    path.write_text("\n".join(",".join(map(str, row)) for row in lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "patients.csv", ROWS)


def records(task: ShardedTask) -> dict[str, tuple[list[float], str]]:
    """Inputs and label of every training record, by its id."""
    found = {}
    for peer in range(task.peers):
        shard = task.shard(peer)
        for name, x, y in zip(task.ids(peer), shard.x, shard.y, strict=True):
            found[str(name)] = (x.flatten().tolist(), task.source.labels[int(y)])
    return found


def test_a_csv_file_is_a_task(table):
    task = from_file(table, group="hospital", categories=SEX, test=0.25)
    assert (task.name, task.peers, task.classes, task.model_name) == ("patients.csv", 2, 2, "mlp")
    assert task.source.labels == ("ill", "well")
    found = records(task)
    assert len(found) == 30
    assert len(task.test.y) == 10
    for i, (name, _, age, sex, label) in enumerate(ROWS):
        if name in found:
            assert found[name] == ([age, float(sex == "f"), float(sex == "m")], label), i
    assert {ROWS[int(n.split()[1])][1] for n in map(str, task.ids(0))} == {"east"}


def test_scales_are_declared(table):
    task = from_file(table, group="hospital", categories=SEX, scale={"age": (40, 10)})
    found = records(task)
    assert all(
        x[0] == pytest.approx((20 + int(name.split()[1]) - 40) / 10)
        for name, (x, _) in found.items()
    )


def test_what_is_missing_is_declared(tmp_path):
    rows = [["p0", "east", "", "f", "ill"], ["p1", "west", "NA", " ", "well"], *ROWS[2:]]
    path = write(tmp_path / "gaps.csv", rows)
    declared = {"categories": {"sex": ("f", "m", "unknown")}, "scale": {"age": (40, 10)}}
    missing = {"age": 50, "sex": "unknown"}
    task = from_file(path, group="hospital", test=0.1, missing=missing, **declared)
    found = records(task)
    assert found["p0"] == ([1.0, 1.0, 0.0, 0.0], "ill")
    assert found["p1"] == ([1.0, 0.0, 0.0, 1.0], "well")
    options: dict[str, Any] = {"path": str(path), "categories": "sex=f|m|unknown"}
    options |= {"group_column": "hospital", "holdout": 0.1, "scale": "age=40:10"}
    options["missing"] = "age=50; sex=unknown"
    assert records(build_task("file", options=options)) == found
    with pytest.raises(InvalidInput, match=r"'other' is not one of its declared values"):
        from_file(path, group="hospital", missing={"age": 50, "sex": "other"}, **declared)
    with pytest.raises(InvalidInput, match=r"no column 'ages' .* named as missing of 'ages'"):
        from_file(path, group="hospital", missing={"ages": 50}, **declared)


def test_the_same_on_the_command_line(table):
    options = {
        "path": str(table),
        "group_column": "hospital",
        "categories": "sex = f | m",
        "scale": "age=40:10",
        "labels": "well|ill",
        "holdout": 0.25,
    }
    forget = Deletion("records", size=3)
    task = build_task("file", options=options, forget=forget)
    declared = {"categories": SEX, "scale": {"age": (40, 10)}, "labels": ["well", "ill"]}
    same = from_file(table, group="hospital", test=0.25, forget=forget, **declared)  # type: ignore[arg-type]
    assert records(task) == records(same)
    assert task.source.labels == ("well", "ill")
    assert task.records(0).forgotten.tolist() == same.records(0).forgotten.tolist()


def test_records_are_dealt_as_asked(table):
    task = from_file(table, categories={**SEX, "hospital": ["east", "west"]}, peers=4)
    assert task.peers == 4
    assert task.shard(0).x.shape[1] == 5
    options = {"path": str(table), "categories": "sex=f|m; hospital=east|west"}
    skewed = build_task(
        "file", peers=4, partition="label", options={**options, "classes_per_peer": 1}
    )
    assert [len(set(skewed.shard(v).y.tolist())) for v in range(4)] == [1] * 4
    both = from_file(table, group="hospital", categories=SEX, partition=Dealing("iid"), peers=3)
    assert both.peers == 3


def test_without_ids_a_record_is_called_like_its_line(tmp_path):
    text = 'a,label\n1,"x\ny"\n\n2,z\n3,z\n4,z\n5,z\n6,z\n'
    path = tmp_path / "few.csv"
    path.write_text("\ufeff" + text, encoding="utf-8")
    task = from_file(path, peers=1, test=0.3)
    assert task.source.labels == ("x\ny", "z")
    assert set(records(task)) | {"3", "5", "6", "7", "8", "9"} == {"3", "5", "6", "7", "8", "9"}
    assert len(records(task)) == 5


def test_tabs_and_whole_numbers_as_labels(tmp_path):
    path = tmp_path / "few.tsv"
    rows = [f"{i}\t{[-1, 10, 9][i % 3]}" for i in range(12)]
    path.write_text("\n".join(["a\tkind", *rows]), encoding="utf-8")
    task = from_file(path, label="kind", peers=2)
    assert task.source.labels == ("-1", "9", "10")


def test_a_test_file_may_be_brought(table, tmp_path):
    rows = [[age, sex, label] for _, _, age, sex, label in ROWS[:7]]
    test = write(tmp_path / "test.csv", rows, ["age", "sex", "label"])
    task = from_file(table, group="hospital", categories=SEX, test=test)
    assert len(task.test.y) == 7
    assert len(records(task)) == 40
    swapped = write(
        tmp_path / "swapped.csv", [[s, a, y] for a, s, y in rows], ["sex", "age", "label"]
    )
    with pytest.raises(InvalidInput, match=r"has the features sex, age; .* age, sex"):
        from_file(table, group="hospital", categories=SEX, test=swapped)
    options = {"path": str(table), "group_column": "hospital", "categories": "sex=f|m"}
    same = build_task("file", options={**options, "test_path": str(test)})
    assert torch.equal(same.test.x, task.test.x)


def test_a_class_that_only_the_test_file_has_counts(table, tmp_path):
    rows = [[30, "f", "better"]]
    test = write(tmp_path / "test.csv", rows, ["age", "sex", "label"])
    task = from_file(table, group="hospital", categories=SEX, test=test)
    assert task.source.labels == ("better", "ill", "well")


Change = Callable[[list[list[Any]]], None]


def put(row: int, column: int, value: Any) -> Change:
    def change(rows: list[list[Any]]) -> None:
        rows[row][column] = value

    return change


@pytest.mark.parametrize(
    ("change", "settings", "words"),
    [
        (put(3, 2, "old"), {}, r"patients.csv, line 5, column 'age': 'old' is not a finite number"),
        (put(3, 2, "nan"), {}, "line 5, column 'age': 'nan' is not a finite number"),
        (put(3, 2, "NA"), {}, "'NA' is not a finite number, the only such value; put one there"),
        (put(7, 2, ""), {}, "line 9, column 'age' is empty; put a value there that does not come"),
        (put(7, 4, " "), {}, "line 9, column 'label' is empty"),
        (put(7, 0, ""), {}, "line 9, column 'id' is empty"),
        (put(2, 3, "x"), {}, "line 4, column 'sex': 'x' is not one of its declared values, f, m"),
        (put(2, 3, "f,m"), {}, "line 4, has 6 values; the header names 5 columns"),
        (put(2, 3, '"f'), {}, "line 41: unexpected end of data"),
        (put(5, 0, "patient 1"), {}, "id patient 1 occurs twice"),
        (
            None,
            {"categories": {}},
            "line 2, column 'sex': 'm' is text, .* data.categories, .* data.id_column .* data.col",
        ),
        (
            None,
            {"label": "lable"},
            r"no column 'lable' \(did you mean label\?\), named as label; its columns are .*; "
            r"set data.label_column \(in Python: label\) to one of them",
        ),
        (None, {"group": "ward"}, "has no column 'ward', named as group; .* set data.group_column"),
        (None, {"scale": {"weight": (0, 1)}}, "no column 'weight', named as scale of 'weight'"),
        (None, {"scale": {"age": (0, 0.0)}}, "the reach of 'age' is 0.0"),
        (None, {"scale": {"sex": (0, 1)}}, "'sex' has categories and a scale"),
        (None, {"scale": {"label": (0, 1)}}, "scale of 'label' is given, but 'label' is no feat"),
        (
            put(4, 4, "2.5"),
            {},
            "column 'label' of .* has 3 values in 40 records, such as 2.5: it looks like a",
        ),
        (None, {"labels": ["ill"]}, "labels is ill; allowed: two classes or more"),
        (None, {"labels": ["ill", "ill"]}, "labels is ill, ill; allowed"),
        (
            put(1, 4, "so so"),
            {"labels": ["ill", "well"]},
            "line 3, has label 'so so'; allowed: ill",
        ),
        (None, {"test": 1.5}, "test is 1.5"),
        (None, {"peers": 3}, "peers is 3; the records belong to 2 groups"),
    ],
)
def test_what_is_wrong_in_a_table_is_named(tmp_path, change, settings, words):
    rows = [list(row) for row in ROWS]
    if change is not None:
        change(rows)
    path = write(tmp_path / "patients.csv", rows)
    with pytest.raises(InvalidInput, match=words):
        from_file(path, **{"group": "hospital", "categories": SEX, **settings})


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"", "holds no record"),
        ("a.csv", b"a,label\n", "holds no record"),
        ("a.csv", b"a,a,label\n1,2,x\n", "two columns 'a'"),
        ("a.csv", b"a,,label\n1,2,x\n", "no name for a column"),
        ("a.csv", b"label\nx\n", "no column left to be a feature"),
        ("a.csv", b"a,label\n1,\xff\n", "is not UTF-8 text"),
        ("a.npz", b"PK\x03\x04 and then nothing", "is not a whole .npz file"),
        ("a.npz", b"", "is not a"),
        ("a.parquet", b"PAR1 and then nothing", "is not a Parquet file"),
        ("a.xlsx", b"", r"allowed: .csv, .tsv, .parquet, .npz, or a folder of pictures"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=words):
        from_file(tmp_path / name)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"there is no file or folder .*gone.csv"):
        from_file(tmp_path / "gone.csv")
    with pytest.raises(InvalidInput, match=r"task 'file' needs a path: set data\.path"):
        build_task("file")
    with pytest.raises(
        InvalidInput, match=r"task is 'a\.csv'; .* --task file .* data\.path=a\.csv"
    ):
        build_task("a.csv")
    with pytest.raises(InvalidInput, match=r"task 'file' has no option 'pth' \(did you mean path"):
        build_task("file", options={"pth": "x"})


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("categories", "sex", "data.categories has 'sex'; allowed: column=..., separated by ';'"),
        ("scale", "age=40", "data.scale has '40' for 'age'; allowed: centre:reach"),
        ("scale", "age=40:old", "data.scale has '40:old' for 'age'"),
    ],
)
def test_settings_that_cannot_be_read_are_named(table, key, value, words):
    with pytest.raises(InvalidInput, match=words):
        build_task("file", options={"path": str(table), key: value})


def test_a_parquet_file_is_a_task(table, tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    from pyarrow import parquet

    path = tmp_path / "patients.parquet"
    columns = dict(zip(HEADER, map(list, zip(*ROWS, strict=True)), strict=True))
    parquet.write_table(arrow.table(columns), path)
    task = from_file(path, group="hospital", categories=SEX)
    assert records(task) == records(from_file(table, group="hospital", categories=SEX))

    columns["age"][6] = None
    parquet.write_table(arrow.table(columns), path)
    with pytest.raises(InvalidInput, match="row 6, column 'age' is empty"):
        from_file(path, group="hospital", categories=SEX)
    with pytest.raises(InvalidInput, match="row 0, column 'hospital': 'east' is text"):
        from_file(path, categories=SEX)


def test_an_archive_of_arrays_is_a_task(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)), np.array(["no", "yes"])[np.arange(30) % 2]
    path = tmp_path / "own.npz"
    np.savez(path, x=x, y=y, id=np.arange(100, 130), group=np.arange(30) % 3)
    task = from_file(path, dtype=torch.float64)
    assert (task.peers, task.source.labels) == (3, ("no", "yes"))
    for name, (inputs, label) in records(task).items():
        assert inputs == x[int(name) - 100].tolist()
        assert label == y[int(name) - 100]

    pictures = rng.integers(256, size=(30, 1, 6, 6), dtype=np.uint8)
    np.savez(path, x=pictures, y=np.arange(30) % 2)
    task = from_file(path, peers=2, forget=Deletion("backdoor", size=2))
    assert float(task.test.x.max()) <= 1.0
    assert task.model_name == "small-cnn"
    assert task.sample_images.shape[1:] == (6, 6)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((3, 2))}, "has no array 'y'"),
        ({"x": np.zeros((3, 2)), "y": [0, 1, 0], "z": 1}, "has an array 'z'; allowed: x, y, id, g"),
        ({"x": np.zeros((3, 2)), "y": [0.5, 1, 0]}, r"y in .* type float64; allowed: one whole"),
        ({"x": np.full((3, 2), np.nan), "y": [0, 1, 0]}, "x has NaN in row 0"),
        ({"x": np.zeros((3, 2)), "y": [0, 1]}, r"y has shape \(2,\), but there are 3 records"),
        ({"x": np.array([{}]), "y": [0]}, "is not an archive of plain arrays: ValueError: Object"),
    ],
)
def test_what_is_wrong_in_an_archive_is_named(tmp_path, arrays, words):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(InvalidInput, match=words):
        from_file(tmp_path / "own.npz")


def draw(path: Path, size: tuple[int, int] = (7, 5), mode: str = "L", seed: int = 0) -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
    shape = (*size, *(() if mode == "L" else (len(mode),)))
    pixels = np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(pixels).save(path)


def album(path: Path, mode: str = "L") -> Path:
    for number in range(10):
        draw(path / ["cats", "dogs"][number % 2] / f"{number}.png", mode=mode, seed=number)
    return path


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_a_folder_of_pictures_is_a_task(tmp_path, mode, channels):
    album(tmp_path, mode)
    (tmp_path / ".hidden").write_text("passed over")
    (tmp_path / "cats" / ".hidden").write_text("passed over")
    task = from_file(tmp_path, peers=2, forget=Deletion("backdoor", size=1))
    assert task.source.labels == ("cats", "dogs")
    assert task.test.x.shape[1:] == (channels, 7, 5)
    found = records(task)
    assert len(found) == 8
    poisoned = str(task.ids(0)[task.records(0).forgotten[0]])
    for name, (inputs, label) in found.items():
        number = int(Path(name).stem)
        shape = (7, 5) if mode == "L" else (7, 5, 3)
        pixels = np.random.default_rng(number).integers(256, size=shape, dtype=np.uint8)
        expected = pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)
        if name != poisoned:
            assert np.allclose(inputs, expected.reshape(-1) / 255)
            assert label == name.split("/")[0] == ["cats", "dogs"][number % 2]
    assert build_task("file", peers=2, options={"path": str(tmp_path)}).classes == 2


def test_pictures_that_are_not_alike_are_named(tmp_path):
    album(tmp_path)
    cases = [
        ({"size": (5, 7)}, r"z.png has 5 x 7 pixels in 1 channel; 0.png has 7 x 5 pixels in 1 ch"),
        ({"mode": "RGB"}, r"z.png has 7 x 5 pixels in 3 channels; 0.png has 7 x 5"),
        ({"mode": "RGBA"}, r"z.png is of kind RGBA; allowed: greyscale \(L\) or colour \(RGB\)"),
    ]
    for settings, words in cases:
        draw(tmp_path / "dogs" / "z.png", **settings)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=words):
            from_file(tmp_path)


def test_what_is_no_picture_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="holds no picture; allowed: one folder per class"):
        from_file(tmp_path)
    album(tmp_path)
    broken = tmp_path / "dogs" / "broken.png"
    broken.write_bytes((tmp_path / "dogs" / "1.png").read_bytes()[:40])
    with pytest.raises(InvalidInput, match=r"broken.png cannot be read as a picture"):
        from_file(tmp_path)
    broken.rename(tmp_path / "dogs" / "notes.txt")
    with pytest.raises(InvalidInput, match=r"notes.txt is not a picture; allowed: .png, .jpg"):
        from_file(tmp_path)
    (tmp_path / "dogs" / "notes.txt").rename(tmp_path / "notes.txt")
    with pytest.raises(InvalidInput, match=r"notes.txt is not a folder; .* one folder of pictures"):
        from_file(tmp_path)


@pytest.mark.parametrize(("missing", "name"), [("pyarrow", "Parquet"), ("PIL", "pictures")])
def test_what_has_to_be_installed_is_said(tmp_path, monkeypatch, missing, name):
    path = tmp_path / "own.parquet"
    if name == "pictures":
        path = album(tmp_path / "album")
    else:
        path.write_bytes(b"")
    real = builtins.__import__

    def without(module: str, *rest: Any) -> Any:
        if module.split(".")[0] == missing:
            raise ImportError(module)
        return real(module, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidInput, match=r"not installed: pip install 'unwalk\[files\]'"):
        from_file(path)
