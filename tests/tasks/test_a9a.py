"""a9a: LIBSVM text, 123 binary features, and a model that learns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.engines.inprocess import InProcess
from unwalk.runs.assemble import assemble, resolve
from unwalk.settings.config import Value
from unwalk.tasks import build_task
from unwalk.tasks.a9a import SHRINK, parse

GOOD = "-1 3:1 11:1 123:1"


def test_lines_become_records():
    x, y = parse(f"{GOOD}\n+1 1:1 \n-1\n".encode(), "a9a", 3)
    assert y.tolist() == [0, 1, 0]
    assert [row.nonzero().flatten().tolist() for row in x] == [[2, 10, 122, 123], [0, 123], [123]]
    assert set(x[x != 0].tolist()) == {float(np.float32(SHRINK))}


def test_the_longest_record_is_not_longer_than_one():
    line = "+1 " + " ".join(f"{k}:1" for k in range(1, 15))
    x, _ = parse(line.encode(), "a9a", 1)
    assert 1 - 1e-5 < float(x.double().norm()) < 1.0
    assert 0 <= 1 / math.sqrt(15) - SHRINK < 1e-6


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0 3:1", r"line 2: the label is '0'; allowed: -1 or \+1\."),
        ("", "line 2: the label is ''"),
        ("-1 0:1", r"line 2: '0:1' is not a feature; allowed: 1:1 to 123:1\."),
        ("-1 124:1", "line 2: '124:1' is not a feature"),
        ("-1 3:2", "line 2: '3:2' is not a feature"),
        ("-1 3", "line 2: '3' is not a feature"),
        ("-1 x:1", "line 2: 'x:1' is not a feature"),
        ("-1 3:1 3:1", r"line 2: a feature occurs twice; allowed: once\."),
        ("-1 " + " ".join(f"{k}:1" for k in range(1, 16)), r"line 2: 15 features are set"),
        ("é", "is not a text file: byte 18 is not ASCII"),
    ],
)
def test_a_wrong_line_is_told(line, words):
    with pytest.raises(Corrupt, match=rf"^a9a.*{words}"):
        parse(f"{GOOD}\n{line}\n{GOOD}\n".encode(), "a9a", 3)


def test_a_truncated_file_is_told():
    with pytest.raises(Corrupt, match=r"a9a has 2 lines; it is to have 3\."):
        parse(f"{GOOD}\n{GOOD}\n".encode(), "a9a", 3)


def test_without_the_files(tmp_path, monkeypatch):
    monkeypatch.setenv("UNWALK_DATA", str(tmp_path))
    with pytest.raises(InvalidInput, match=r"needs a9a/a9a, .* run 'unwalk data fetch a9a'"):
        build_task("a9a")


def test_the_official_files(official_data):
    official_data("a9a")
    first, again, other = (build_task("a9a", seed=s) for s in (0, 0, 1))
    assert (first.training_records, len(first.test.y)) == (32_561, 16_281)
    assert (first.peers, first.classes, first.model_name) == (10, 2, "logistic")
    shards = [first.shard(v) for v in range(10)]
    assert sum(int(s.y.sum()) for s in shards) == 7841
    assert int(first.test.y.sum()) == 3846
    longest = max(float(s.x.double().norm(dim=1).max()) for s in shards)
    assert 1 - 1e-5 < longest < 1.0
    ids = np.concatenate([first.ids(v) for v in range(10)])
    assert np.array_equal(np.sort(ids), np.arange(32_561))
    assert np.array_equal(first.ids(3), again.ids(3))
    assert not np.array_equal(first.ids(3), other.ids(3))
    assert first.records(0).forgotten.size == 100


def test_a_walk_learns(official_data):
    official_data("a9a")
    settings: dict[str, Value] = {
        "train.optimizer": "sgd",
        "train.learning_rate": 2.0,
        "train.hops": 20,
    }
    assembled = assemble(resolve({"task": "a9a", "forget.kind": "nothing", **settings}))
    (outcome,) = InProcess().run([assembled.training()])
    model, test = outcome.workspace.model.eval(), assembled.task.test
    assert float((model(test.x).argmax(1) == test.y).float().mean()) > 0.845
