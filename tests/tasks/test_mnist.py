"""MNIST: the official idx files, and what becomes of wrong ones."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch

from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.engines.inprocess import InProcess
from unwalk.runs.assemble import assemble, resolve
from unwalk.tasks import TASKS, Deletion, Scale, build_task
from unwalk.tasks.mnist import PixelSplit, checked_labels, inputs, parse_idx

FOUR = bytes(range(4))


def idx(data: bytes, *shape: int, kind: int = 8) -> bytes:
    return gzip.compress(
        bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data
    )


def test_an_idx_file_is_read():
    assert parse_idx(idx(FOUR, 1, 2, 2), "f", (1, 2, 2)).tolist() == [[[0, 1], [2, 3]]]
    assert parse_idx(idx(FOUR, 4), "f", (4,)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (idx(FOUR, 1, 2, 2)[:-6], "f is not a whole gzip file"),
        (b"text", "f is not a whole gzip file"),
        (b"", "f begins with nothing; an idx file"),
        (idx(FOUR, 4), r"f begins with 00 00 08 01; .* in 3 dimensions begins with 00 00 08 03\."),
        (idx(FOUR, 1, 2, 2, kind=13), "f begins with 00 00 0d 03"),
        (gzip.compress(b"\0\0\x08\x03\0\0"), r"f ends after 6 bytes, within its header of 16\."),
        (idx(FOUR, 2, 1, 2), r"f has shape \(2, 1, 2\); MNIST has \(1, 2, 2\)\."),
        (idx(FOUR[:3], 1, 2, 2), r"f holds 3 bytes after its header; .* needs 4\."),
        (idx(FOUR + b"x", 1, 2, 2), r"f holds 5 bytes after its header"),
    ],
    ids=["truncated", "text", "empty", "labels", "type", "short", "shape", "fewer", "more"],
)
def test_a_wrong_idx_file_is_told(data, words):
    with pytest.raises(Corrupt, match=words) as told:
        parse_idx(data, "f", (1, 2, 2))
    assert str(told.value).endswith(".")


def test_a_label_outside_the_classes_is_told():
    labels = np.array([3, 9, 10, 11], np.uint8)
    with pytest.raises(Corrupt, match=r"f has label 10 for record 2; allowed: 0 to 9\."):
        checked_labels(labels, "f", 10)
    assert checked_labels(labels[:2], "f", 10).tolist() == [3, 9]


def test_inputs_are_what_the_scale_says():
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16)
    scale = Scale((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    assert torch.equal(inputs(pixels, scale), scale.inputs(pixels.float() / 255.0))
    assert pixels[0, 0, 15, 15] == 255, "the bytes stay as they are"


def test_without_the_files(tmp_path, monkeypatch):
    monkeypatch.setenv("UNWALK_DATA", str(tmp_path))
    with pytest.raises(InvalidInput, match="unwalk data fetch mnist") as told:
        build_task("mnist", model="logistic")
    assert str(tmp_path / "mnist" / "train-images-idx3-ubyte.gz") in str(told.value)


def test_the_official_files(official_data):
    official_data("mnist")
    task = build_task("mnist", model="logistic", forget=Deletion("nothing"))
    assert (task.peers, task.classes, task.training_records) == (10, 10, 60_000)
    assert task.test.x.shape == (10_000, 1, 28, 28)
    assert task.test.y[:5].tolist() == [7, 2, 1, 0, 4]
    holdings = task.holdings
    assert isinstance(holdings, PixelSplit)
    pool = holdings.pool
    assert pool.x.dtype == torch.uint8, "a quarter of the memory"
    assert pool.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert torch.bincount(pool.y).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert float(pool.x.double().mean()) / 255 == pytest.approx(0.1307, abs=5e-5)
    ids = np.concatenate([task.ids(v) for v in range(10)])
    assert np.array_equal(np.sort(ids), np.arange(60_000))
    shard, own = task.shard(3), task.ids(3)
    assert shard.x.shape == (6000, 1, 28, 28)
    assert torch.equal(shard.x, pool.x[own].float() / 255.0), "an id is the place in the file"
    assert torch.equal(shard.y, pool.y[own])
    assert shard.augment is None


def test_what_is_forgotten_by_default(official_data):
    official_data("mnist")
    task = build_task("mnist", model="logistic", unlearner=2)
    assert task.records(2).forgotten.size == 1000
    assert task.trigger_text == "4 x 4 square in the lower-right corner"
    assert torch.all(task.forgotten.x[:, :, -4:, -4:] == 1.0)
    assert set(task.forgotten.y.tolist()) == {0}
    recipe = TASKS["mnist"]
    assert (recipe.model, recipe.peers, recipe.partition) == ("flnet", 10, "iid")


def test_same_seed_same_shards(official_data):
    official_data("mnist")
    first, again, other = (build_task("mnist", model="logistic", seed=s) for s in (5, 5, 6))
    assert torch.equal(first.shard(4).x, again.shard(4).x)
    assert np.array_equal(first.ids(4), again.ids(4))
    assert not np.array_equal(first.ids(4), other.ids(4))
    assert torch.equal(first.test.x, other.test.x)


def test_a_short_walk_learns(official_data):
    official_data("mnist")
    settings = {"task": "mnist", "model.name": "logistic", "forget.kind": "nothing"}
    assembled = assemble(resolve({**settings, "train.hops": 2}))
    (outcome,) = InProcess().run([assembled.training()])
    model, test = outcome.workspace.model.eval(), assembled.task.test
    assert float((model(test.x).argmax(1) == test.y).float().mean()) > 0.85
