"""Heart disease: four hospitals, constants that no patient decides, and a model that learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.engines.inprocess import InProcess
from unwalk.runs.assemble import assemble, resolve
from unwalk.settings.config import Value
from unwalk.tasks import build_task
from unwalk.tasks.heart import ATTRIBUTES, FEATURES, HOSPITALS, SHRINK, Category, held_out, parse

PATIENT = "63,1,1,145,233,1,2,150,0,2.3,3,0,6,0"
SETTINGS: dict[str, Value] = {
    "train.optimizer": "sgd",
    "train.learning_rate": 1.0,
    "forget.kind": "nothing",
}


def changed(column: int, cell: str) -> str:
    cells = PATIENT.split(",")
    cells[column] = cell
    return ",".join(cells)


def features(line: str) -> dict[str, list[float]]:
    """The features of one patient by attribute, before they are shrunk."""
    row = (parse(line.encode(), "va").x[0].double() / SHRINK).tolist()
    blocks, start = {}, 0
    for attribute in ATTRIBUTES:
        blocks[attribute.name] = row[start : start + attribute.width]
        start += attribute.width
    assert row[start:] == pytest.approx([1.0], abs=1e-6), "the constant feature comes last"
    return blocks


def test_a_patient_becomes_blocks_of_features():
    blocks = features(PATIENT)
    assert sum(map(len, blocks.values())) + 1 == FEATURES == 36
    expected = {
        "age": [13 / 30, 0],
        "sex": [1, 0],
        "cp": [1, 0, 0, 0, 0],
        "trestbps": [25 / 60, 0],
        "chol": [33 / 200, 0],
        "fbs": [1, 0],
        "restecg": [0, 0, 1, 0],
        "thalach": [5 / 75, 0],
        "exang": [-1, 0],
        "oldpeak": [1.3 / 3, 0],
        "slope": [0, 0, 1, 0],
        "ca": [-1, 0],
        "thal": [0, 1, 0, 0],
    }
    for name, values in expected.items():
        assert blocks[name] == pytest.approx(values, abs=1e-6), name


@pytest.mark.parametrize("column", range(13))
def test_a_missing_value_is_a_feature(column):
    attribute = ATTRIBUTES[column]
    block = features(changed(column, "?"))[attribute.name]
    assert block == pytest.approx([0.0] * (attribute.width - 1) + [1.0], abs=1e-6)


@pytest.mark.parametrize("column", [3, 4, 7])
def test_a_zero_that_nobody_can_have_is_missing(column):
    assert features(changed(column, "0")) == features(changed(column, "?"))


@given(
    st.lists(
        st.one_of(st.just("?"), st.floats(-1e6, 1e6).map(repr), st.integers(0, 7).map(str)),
        min_size=13,
        max_size=13,
    ),
    st.integers(0, 4),
)
def test_no_patient_who_could_exist_is_longer_than_one(cells, diagnosis):
    for column, attribute in enumerate(ATTRIBUTES):
        if isinstance(attribute, Category) and cells[column] not in map(str, attribute.values):
            cells[column] = "?"
    table = parse(",".join([*cells, str(diagnosis)]).encode(), "va")
    assert float(table.x.double().norm()) <= 1.0
    assert table.y.tolist() == [int(diagnosis > 0)]


def test_the_constant_leaves_the_bound_room_for_rounding():
    assert 0 <= 1 / math.sqrt(len(ATTRIBUTES) + 1) - SHRINK < 1e-6
    assert (len(ATTRIBUTES) + 1) * float(np.float32(SHRINK)) ** 2 < 1 - 1e-6


def test_no_patient_changes_the_features_of_another():
    lines = [changed(0, str(30 + 5 * k)) for k in range(6)]
    everybody = parse("\n".join(lines).encode(), "va")
    without = parse("\n".join([*lines[:2], "", *lines[3:]]).encode(), "va")
    kept = [0, 1, 3, 4, 5]
    assert torch.equal(without.x, everybody.x[kept])
    assert without.ids.tolist() == everybody.ids[kept].tolist()
    assert everybody.ids[2] == "va-3"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (PATIENT[:-2], r"line 2: 13 values; allowed: 14\."),
        (PATIENT + ",1", r"line 2: 15 values; allowed: 14\."),
        (changed(4, "high"), r"line 2: 'high' is not a number; allowed: numbers and \?\."),
        (changed(4, "nan"), "line 2: 'nan' is not a number"),
        (changed(4, ""), "line 2: '' is not a number"),
        (changed(2, "5"), r"line 2: cp is 5; allowed: 1, 2, 3, 4 or \?\."),
        (changed(12, "4.5"), r"line 2: thal is 4.5; allowed: 3, 6, 7 or \?\."),
        (changed(13, "5"), r"line 2: the diagnosis is 5; allowed: 0 to 4\."),
        (changed(13, "?"), r"line 2: the diagnosis is \?; allowed: 0 to 4\."),
        (changed(13, "-1"), "line 2: the diagnosis is -1"),
        ("é", "is not a text file"),
    ],
)
def test_a_wrong_line_is_told(line, words):
    with pytest.raises(Corrupt, match=rf"processed.va.data.*{words}"):
        parse(f"{PATIENT}\n{line}\n".encode(), "va")


def test_a_file_without_patients_is_told():
    with pytest.raises(Corrupt, match=r"processed.va.data holds no patient\."):
        parse(b"\n\n", "va")


def test_the_hold_out_is_a_share_of_every_hospital():
    hospitals = np.repeat([0, 1, 2], [50, 30, 1])
    rows = held_out(hospitals, 0.2, np.random.default_rng(0))
    assert np.bincount(hospitals[rows], minlength=3).tolist() == [10, 6, 0]
    assert len(set(rows.tolist())) == len(rows)
    assert not np.array_equal(rows, held_out(hospitals, 0.2, np.random.default_rng(1)))


def test_the_official_files(official_data):
    official_data("heart_disease")
    first, again, other = (build_task("heart", seed=s) for s in (0, 0, 1))
    assert (first.peers, first.classes, first.model_name) == (4, 2, "logistic")
    assert [len(first.shard(v).y) for v in range(4)] == [242, 235, 98, 160]
    assert first.source.published == (242, 235, 98, 160)
    assert len(first.test.y) == 185
    for peer, hospital in enumerate(HOSPITALS):
        assert {i.split("-")[0] for i in first.ids(peer)} == {hospital}
    sick = sum(int(first.shard(v).y.sum()) for v in range(4)) + int(first.test.y.sum())
    assert sick == (303 - 164) + (294 - 188) + (123 - 8) + (200 - 51)
    assert first.shard(0).x.shape[1:] == (FEATURES,)
    assert first.records(0).forgotten.size == 20
    everybody = torch.cat([first.test.x, *(first.shard(v).x for v in range(4))])
    assert 0.6 < float(everybody.double().norm(dim=1).max()) <= 1.0
    assert first.ids(2).tolist() == again.ids(2).tolist() != other.ids(2).tolist()


def test_ids_name_the_same_patient_in_every_split(official_data):
    official_data("heart_disease")
    first, other = (build_task("heart", seed=s) for s in (0, 1))
    rows = dict(zip(first.ids(1).tolist(), first.shard(1).x, strict=True))
    both = [(rows[i], x) for i, x in zip(other.ids(1), other.shard(1).x, strict=True) if i in rows]
    assert len(both) > 150
    assert all(torch.equal(a, b) for a, b in both)


def test_other_ways_to_deal_patients_out(official_data):
    official_data("heart_disease")
    task = build_task("heart", peers=10, partition="iid", options={"holdout": 0.5})
    assert task.peers == 10
    assert task.training_records == 920 - len(task.test.y) == 459
    with pytest.raises(InvalidInput, match="peers is 5; the records belong to 4 groups"):
        build_task("heart", peers=5)
    with pytest.raises(InvalidInput, match=r"holdout is 1.0; allowed: a number in"):
        build_task("heart", options={"holdout": 1.0})


def accuracy(seed: int) -> float:
    assembled = assemble(resolve({"task": "heart", "seed": seed, **SETTINGS}))
    (outcome,) = InProcess().run([assembled.training()])
    model, test = outcome.workspace.model.eval(), assembled.task.test
    return float((model(test.x).argmax(1) == test.y).float().mean())


def test_four_hospitals_learn_together(official_data):
    official_data("heart_disease")
    reached = [accuracy(seed) for seed in range(20)]
    assert np.mean(reached) >= 0.81, "0.82 was measured; a pooled logistic model has 0.82 too"
    assert min(reached) > 0.74
