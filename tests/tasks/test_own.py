"""A user's own arrays and datasets: dealt to peers, or refused with the row that is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from unwalk.core.errors import InvalidInput
from unwalk.tasks import Deletion, OwnData, Scale, Trigger, build_task, from_arrays, from_dataset
from unwalk.tasks.datasets import arrays_of
from unwalk.tasks.own import own_task

X = np.random.default_rng(0).normal(size=(60, 5))
Y = np.arange(60) % 3
IMAGES = np.random.default_rng(1).random((40, 1, 6, 6))


def rows_of(x: torch.Tensor) -> list[int]:
    """Which rows of X these are."""
    return [int(np.abs(X - row.numpy()).sum(1).argmin()) for row in x]


def test_arrays_are_dealt_out_and_a_fifth_is_held_out():
    task = from_arrays(X, Y, peers=6)
    assert (task.peers, task.classes, task.name, task.model_name) == (6, 3, "own", "mlp")
    assert len(task.test.y) == 12
    assert [task.records(v).size for v in range(6)] == [8] * 6
    train = [i for v in range(6) for i in rows_of(task.shard(v).x)]
    assert sorted(train + rows_of(task.test.x)) == list(range(60))
    assert [int(i) for v in range(6) for i in task.ids(v)] == train
    for peer in range(6):
        assert task.shard(peer).y.tolist() == [int(Y[i]) for i in task.ids(peer)]
    assert task.shard(0).x.dtype == torch.float32


def test_the_caller_may_change_the_arrays_afterwards():
    x, y = X.copy(), Y.copy()
    task = from_arrays(x, y, test=(x, y), peers=2, dtype=torch.float64)
    x[:] = 0.0
    assert float(task.test.x.abs().sum()) > 0
    assert float(task.shard(0).x.abs().sum()) > 0


def test_a_test_set_may_be_brought():
    task = from_arrays(X[:50], Y[:50], test=(X[50:], Y[50:]), peers=5)
    assert rows_of(task.test.x) == list(range(50, 60))
    assert [task.records(v).size for v in range(5)] == [10] * 5


def test_groups_become_peers_and_all_keep_some():
    groups = np.array(["east", "west", "north"])[np.arange(60) % 3 // (np.arange(60) % 2 + 1)]
    task = from_arrays(X, Y, groups=groups)
    names = sorted(set(groups.tolist()))
    assert task.peers == len(names)
    for peer, name in enumerate(names):
        assert {str(groups[i]) for i in task.ids(peer)} == {name}
        held = sum(str(groups[i]) == name for i in rows_of(task.test.x))
        assert held == int(0.2 * (groups == name).sum())


def test_parts_name_the_rows_of_each_peer():
    parts = [[0, 2, 4], np.array([1, 3]), torch.arange(10, 20)]
    task = from_arrays(X, Y, parts=parts, test=(X[50:], Y[50:]))
    assert [task.ids(v).tolist() for v in range(3)] == [[0, 2, 4], [1, 3], list(range(10, 20))]
    assert task.training_records == 15


def test_parts_lose_their_share_of_the_test_set():
    parts = [range(20), range(20, 30)]
    task = from_arrays(X, Y, parts=[list(p) for p in parts], test=0.3)
    assert [task.records(v).size for v in range(2)] == [14, 7]
    held = rows_of(task.test.x)
    assert len(held) == 9
    assert max(held) < 30
    for peer, part in enumerate(parts):
        assert set(task.ids(peer).tolist()) == set(part) - set(held)


def test_ids_travel_with_their_records():
    ids = [f"patient {i}" for i in range(60)]
    task = from_arrays(X, Y, ids=ids, peers=3)
    for peer in range(3):
        assert task.ids(peer).tolist() == [ids[i] for i in rows_of(task.shard(peer).x)]


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.uint8, np.uint16, bool])
def test_any_numbers_become_inputs(dtype):
    x = (np.abs(X) * 10).astype(dtype)
    task = from_arrays(x[::-1], Y.astype(np.uint8), peers=2, test=(x, Y))
    assert task.test.x.dtype == torch.float32
    assert np.allclose(task.test.x.numpy(), x.astype(np.float32))
    assert task.shard(0).y.dtype == torch.int64


def test_types_can_be_left_as_they_come():
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(10, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.table(x).mean(1)
            return found

    words = np.random.default_rng(0).integers(10, size=(60, 4))
    task = from_arrays(words, Y, peers=2, model=Counts, dtype=None)
    assert task.shard(0).x.dtype == torch.int64


def test_own_pictures_take_a_trigger():
    task = from_arrays(
        IMAGES * 255.0,
        np.arange(40) % 2,
        peers=4,
        scale=Scale(std=(1 / 255,)),
        forget=Deletion("backdoor", size=3),
        trigger=Trigger(size=2, target=1),
    )
    assert task.model_name == "small-cnn"
    assert torch.allclose(task.forgotten.x[:, :, -2:, -2:], torch.tensor(255.0))
    assert float(task.sample_images.max()) <= 1.0


class Pairs(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Columns:
    """A dataset of mappings that is none of torch's, as those of Hugging Face are."""

    column_names = ("features", "label")

    def __len__(self):
        return len(X)

    def __getitem__(self, row):
        return {"features": X[row].tolist(), "label": int(Y[row])}

    def __iter__(self):
        return (self[row] for row in range(len(self)))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.tensor(x), int(y)) for x, y in zip(X, Y, strict=True)])


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(torch.tensor(X), torch.tensor(Y)),
        Pairs([(x, y) for x, y in zip(X, Y, strict=True)]),
        Pairs([(torch.tensor(x), torch.tensor(y)) for x, y in zip(X, Y, strict=True)]),
        Pairs([[x.tolist(), int(y)] for x, y in zip(X, Y, strict=True)]),
        Stream(),
        Pairs([{"x": x, "label": y} for x, y in zip(X, Y, strict=True)]),
        Columns(),
    ],
    ids=["tensors", "arrays", "items", "lists", "stream", "mappings", "columns"],
)
def test_a_dataset_is_the_same_as_its_arrays(dataset):
    expected = from_arrays(X, Y, peers=4, seed=3, forget=Deletion("records", size=2))
    task = from_dataset(dataset, peers=4, seed=3, forget=Deletion("records", size=2))
    for peer in range(4):
        assert torch.equal(task.shard(peer).x, expected.shard(peer).x)
        assert torch.equal(task.shard(peer).y, expected.shard(peer).y)
    assert torch.equal(task.test.x, expected.test.x)
    assert np.array_equal(task.records(0).forgotten, expected.records(0).forgotten)


def test_a_test_dataset_may_be_brought():
    train, test = (
        TensorDataset(torch.tensor(X[s]), torch.tensor(Y[s])) for s in (slice(50), slice(50, 60))
    )
    task = from_dataset(train, test=test, peers=5)
    assert rows_of(task.test.x) == list(range(50, 60))


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([], "the dataset is empty"),
        ([3], r"item 0 of the dataset is a int; allowed: a pair \(input, label\)"),
        ([{"x": X[0], "y": 0}], r"in item 0 of the dataset there is no label; label=KEY, of: x, y"),
        ([{"a": 1, "b": 2, "label": 0}], r"keys a, b, label; say which are the input: inputs=KEY"),
        ([(X[0], 0), (X[1, :2], 1)], r"item 1 of the dataset has shape \(2,\); item 0 has \(5,\)"),
        ([(X[0], 0), (X[1], 0.5)], "label of item 1 of the dataset is 0.5"),
        ([("text", 0)], "input of item 0 of the dataset is a str"),
    ],
)
def test_a_dataset_that_cannot_be_read_is_named(items, words):
    with pytest.raises(InvalidInput, match=words):
        from_dataset(Pairs(items))


def test_keys_of_a_mapping_may_be_named():
    items = [{"a": i, "b": 2.5, "kind": i % 2, "note": "n"} for i in range(60)]
    task = from_dataset(Pairs(items), inputs=["b", "a"], label="kind", peers=3, classes=2)
    seen = torch.cat([task.test.x, *(task.shard(peer).x for peer in range(3))])
    assert sorted(seen.tolist()) == [[2.5, float(i)] for i in range(60)]
    for keys, words in [
        ({"inputs": "c", "label": "kind"}, "inputs names 'c'; allowed: a, b, note"),
        ({"inputs": "a", "label": "sort"}, "in item 0 of the dataset there is no 'sort'"),
        ({"inputs": ["a", "note"], "label": "kind"}, "'note' of item 0 of the dataset is 'n'"),
        ({"inputs": ["kind"], "label": "kind"}, "inputs names 'kind'; allowed"),
    ]:
        with pytest.raises(InvalidInput, match=words):
            from_dataset(Pairs(items), **keys)
    with pytest.raises(InvalidInput, match="inputs and label name keys, but item 0"):
        from_dataset(Pairs([(X[0], 0)]), label="kind")
    with pytest.raises(InvalidInput, match=r"the dataset has the parts train, test; bring one"):
        from_dataset({"train": Pairs(items), "test": Pairs(items)})


def test_pictures_of_a_dataset_are_channels_rows_columns_from_zero_to_one():
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[0, 1] = (255, 0, 51)
    grey = Image.fromarray(np.full((2, 3), 255, np.uint8))
    for picture, shape in ((Image.fromarray(pixels), (3, 2, 3)), (grey, (1, 2, 3))):
        x, _ = arrays_of(Pairs([{"image": picture, "label": 1}]))
        assert x.shape == (1, *shape)
        assert x.dtype == torch.float32
        assert float(x.max()) == 1.0
    x, _ = arrays_of(Pairs([{"image": Image.fromarray(pixels), "label": 1}]))
    assert x[0, :, 0, 1].tolist() == pytest.approx([1.0, 0.0, 0.2])


def spoilt(row: int, value: float) -> np.ndarray[Any, Any]:
    x = X.copy()
    x[row, 2] = value
    return x


def relabelled(row: int, value: int) -> np.ndarray[Any, Any]:
    y = Y.copy()
    y[row] = value
    return y


@pytest.mark.parametrize(
    ("x", "y", "settings", "words"),
    [
        (spoilt(17, np.nan), Y, {}, "x has NaN in row 17; allowed: finite numbers"),
        (spoilt(4, np.inf), Y, {}, "x has infinity in row 4"),
        (X, Y[:59], {}, r"y has shape \(59,\), but there are 60 records"),
        (X, Y[:, None], {}, r"y has shape \(60, 1\)"),
        (X, Y / 2, {}, "y has type float64; allowed: whole numbers"),
        (X, relabelled(9, 3), {"classes": 3}, "y has label 3 in row 9; allowed: 0 to 2"),
        (X, relabelled(9, -1), {}, "y has label -1 in row 9; allowed: whole numbers from 0"),
        (X, Y, {"classes": 1}, "classes is 1"),
        (X[:, 0], Y, {}, r"x has shape \(60,\); allowed: one row per record"),
        (X[:0], Y[:0], {}, r"x has shape \(0, 5\)"),
        ([["a"]] * 60, Y, {}, "x has type <U1; allowed: numbers"),
        ([[1], [1, 2]], [0, 1], {}, "x is not an array: its rows differ in length"),
        (X, Y, {"test": (X[:, :2], Y)}, r"test set have shape \(2,\); those of the training"),
        (X, Y, {"test": (spoilt(3, np.nan), Y)}, "the test x has NaN in row 3"),
        (X, Y, {"test": 1.0}, r"test is 1.0; allowed: a number in \(0, 1\)"),
        (X, Y, {"test": 0.01}, "test is 0.01, which leaves no record of 60"),
        (X, Y, {"peers": 49}, "peers is 49; there are 48 training records"),
        (X, Y, {"groups": Y[:5]}, r"groups has shape \(5,\); allowed: \(60,\)"),
        (X, Y, {"groups": Y, "peers": 4}, "peers is 4; the records belong to 3 groups"),
        (X, Y, {"groups": Y, "parts": [[0]]}, "groups and parts are both given"),
        (X, Y, {"parts": []}, "parts is empty"),
        (X, Y, {"parts": [[0, 60]]}, "peer 0 is given row 60"),
        (X, Y, {"parts": [[0.5]]}, "part 0 has type float64; allowed: whole numbers"),
        (X, Y, {"parts": [[[0]]]}, r"part 0 has shape \(1, 1\)"),
        (X, Y, {"parts": [[0], []], "test": (X, Y)}, "peer 1 would hold no record"),
        (X, Y, {"parts": [[0, 1]], "peers": 2, "test": (X, Y)}, "parts names the rows of 1 peers"),
        (X, Y, {"ids": [1] * 60}, "id 1 occurs twice"),
        (X, Y, {"ids": [1, 2]}, r"ids has shape \(2,\) and type int64; allowed: \(60,\)"),
        (X, Y, {"labels": ["a"]}, "labels has 1 names; there are 3 classes"),
        (X, Y, {"forget": Deletion("records", size=6)}, "forget.size is 6; peer 0 has 5 records"),
        (X, Y, {"forget": Deletion("backdoor", size=2)}, "are not pictures"),
        (X, Y, {"model": torch.nn.Linear(5, 2)}, r"shape \(2, 2\); labels 0 to 2 need \(2, 3\)"),
    ],
)
def test_what_is_wrong_is_named(x, y, settings, words):
    with pytest.raises(InvalidInput, match=words):
        from_arrays(x, y, **settings)


MODULE = """
import numpy as np
import torch
from torch.utils.data import TensorDataset
from unwalk.tasks import OwnData

x, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 4

def pair():
    return x, y

def dataset():
    return TensorDataset(torch.tensor(x), torch.tensor(y))

class Mappings:
    column_names = ("x", "label")

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        return {"x": x[row], "label": int(y[row])}

    def __iter__(self):
        return (self[row] for row in range(self.rows))

def columns():
    return Mappings(40), Mappings(8)

def two():
    return dataset(), TensorDataset(torch.tensor(x[:8]), torch.tensor(y[:8]))

def pairs():
    return (x, y), (x[:8], y[:8])

def told():
    return OwnData(x, y, test=(x[:8], y[:8]), groups=y // 2, name="mine")

def nothing():
    return 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "brought_data.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "peers", "tested"),
    [
        ("pair", 5, 8),
        ("dataset", 5, 8),
        ("two", 5, 8),
        ("pairs", 5, 8),
        ("columns", 5, 8),
        ("told", 2, 8),
    ],
)
def test_own_data_has_a_name_on_the_command_line(here, name, peers, tested):
    text = f"brought_data:{name}"
    task = build_task(text, peers=peers, forget=Deletion("records", size=2), model="logistic")
    assert task.peers == peers
    assert task.classes == 4
    assert len(task.test.y) == tested
    assert len(task.forgotten.y) == 2
    assert task.name == ("mine" if name == "told" else text)


def test_an_empty_setting_is_one_that_was_not_made(here):
    task = build_task("brought_data:told", partition="", model="")
    assert (task.peers, task.model_name) == (2, "mlp")
    data = OwnData(X, Y, parts=[[0, 1], [2]], test=(X, Y))
    assert own_task(data, partition="").peers == 2
    with pytest.raises(InvalidInput, match="partition is 'iid', but parts already says"):
        own_task(data, partition="iid")


def test_other_answers_and_options_are_refused(here):
    with pytest.raises(InvalidInput, match="task 'brought_data:nothing' returned a int; allowed"):
        build_task("brought_data:nothing")
    with pytest.raises(InvalidInput, match="has no option 'records'"):
        build_task("brought_data:pair", options={"records": 3})
