"""Task ``records``: what a network declares about records that it never sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unwalk.core.errors import InvalidInput
from unwalk.runs.assemble import assemble, resolve
from unwalk.tasks import build_task, from_file
from unwalk.tasks.declared import declare, declared_task

HERE = Path("somewhere.csv")


@pytest.mark.parametrize(
    ("options", "shape", "labels"),
    [
        ({"shape": "3x32x32", "classes": 2}, (3, 32, 32), ("0", "1")),
        ({"features": 5, "labels": "low | high"}, (5,), ("low", "high")),
        ({"columns": "age|sex", "categories": "sex=f|m|x", "classes": 3}, (4,), ("0", "1", "2")),
        ({"columns": "a|b|c|d", "shape": "1x2x2", "classes": 2}, (1, 2, 2), ("0", "1")),
    ],
)
def test_shape_and_classes_follow_from_what_is_said(options, shape, labels):
    declared = declare(options)
    assert (declared.shape, declared.labels) == (shape, labels)
    task = declared_task(declared, 4, unlearner=2)
    assert (task.peers, task.classes, task.records(3).size) == (4, len(labels), 0)
    assert task.shard(1).x.shape == (0, *shape)
    assert (task.source.normalisation, task.source.labels_from) == ("declared", "declared")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"classes": 2}, "needs the shape of an input: set data.shape, data.features"),
        ({"features": 3}, "needs its classes: set data.classes"),
        ({"features": 3, "classes": 1}, "data.classes is 1; allowed: a whole number, 2"),
        ({"features": 3, "classes": 3, "labels": "a|b"}, "data.classes is 3; data.labels names 2"),
        ({"shape": "3x", "classes": 2}, "data.shape is '3x'; allowed: as in 20, or 1x28x28"),
        ({"shape": "0x2", "classes": 2}, "data.shape is '0x2'"),
        ({"shape": "2x2", "columns": "a|b", "classes": 2}, "data.shape makes 4 inputs and data.co"),
        ({"features": 3, "classes": 2, "norm": 0.0}, "data.norm is 0.0; allowed"),
        ({"features": 3, "classes": 2, "path": "x.csv"}, "task 'records' has no option 'path'"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, said):
    with pytest.raises(InvalidInput, match=said):
        declare(options)


def test_inputs_are_put_into_shape_and_shortened_each_by_itself():
    declared = declare({"shape": "1x2x2", "classes": 2, "norm": 2.0})
    x = np.array([[3.0, 0.0, 4.0, 0.0], [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 0.0]])
    made = declared.inputs(x, HERE)
    assert made.shape == (3, 1, 2, 2)
    assert made.dtype == np.float32
    assert np.allclose(made[0].ravel(), [1.2, 0, 1.6, 0], atol=1e-5)
    assert np.array_equal(made[1].ravel(), x[1].astype(np.float32))
    rng = np.random.default_rng(0)
    many = declared.inputs(rng.standard_normal((1000, 4)) * 1e6, HERE)
    assert np.linalg.norm(many.reshape(1000, 4).astype(np.float64), axis=1).max() <= 2.0
    with pytest.raises(InvalidInput, match=r"somewhere\.csv have shape 3; allowed: 1x2x2"):
        declared.inputs(x[:, :3], HERE)
    with pytest.raises(InvalidInput, match="have shape 2x2x1"):
        declared.inputs(x.reshape(3, 2, 2, 1), HERE)


def test_a_simulator_has_nobody_s_records():
    with pytest.raises(InvalidInput, match="leaves its records with the peers of a network"):
        build_task("records", peers=3, options={"features": 3, "classes": 2})
    config = resolve({"task": "records", "data.features": 3, "data.classes": 2})
    with pytest.raises(InvalidInput, match="to simulate with a file of your own, use task 'file'"):
        assemble(config)


def test_features_can_be_named_for_a_file_too(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text(
        "b,name,a,label\n" + "".join(f"{k},n{k},{k + 100},{k % 2}\n" for k in range(20))
    )
    task = from_file(path, features=["a", "b"], peers=2)
    assert task.test.x.shape[1:] == (2,)
    assert ((task.test.x[:, 0] - task.test.x[:, 1]) == 100).all()
    with pytest.raises(InvalidInput, match=r"no column 'c', named as feature 'c'"):
        from_file(path, features=["c"], peers=2)
    with pytest.raises(InvalidInput, match=r"feature 'label' is given, but 'label' is no feature"):
        from_file(path, features=["a", "label"], peers=2)
