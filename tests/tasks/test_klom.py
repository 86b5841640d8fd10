"""``cifar10-klom``: the published forget sets, each at the first peer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from unwalk.core.data import Held
from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.tasks import Deletion, build_task, cifar10
from unwalk.tasks.klom import FILE, forget_sets
from unwalk.tasks.sources import Source, Table

RECORDS = 60
SETS = {"2": [3, 50, 7], "5": [8, 3]}


def small_cifar10(root: Path) -> tuple[Source, Table]:
    """A few pictures in the place of the official ones; a record's first pixel is its place."""
    y = torch.arange(RECORDS) % 10
    x = torch.arange(RECORDS, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 32, 32)
    test = Held(cifar10.SCALE.inputs(torch.rand(20, 3, 32, 32)), torch.arange(20) % 10)
    source = Source("cifar10", 10, test, cifar10.LABELS, cifar10.SCALE, published=(RECORDS,))
    return source, Table(x.contiguous(), y, np.arange(RECORDS))


def write(root: Path, document: object) -> Path:
    place = root / FILE
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(document))
    return place


def lay_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNWALK_DATA", str(root))
    monkeypatch.setattr(cifar10, "read", small_cifar10)
    write(root, {"sets": SETS})
    return root


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return lay_out(tmp_path, monkeypatch)


def test_the_asked_set_is_forgotten_by_the_peer_that_holds_all_sets(small):
    two, five = (
        build_task("cifar10-klom", peers=4, options={"forget_set": n}, model="logistic")
        for n in (2, 5)
    )
    assert two.ids(0).tolist() == five.ids(0).tolist() == [3, 7, 8, 50]
    assert two.ids(0)[two.records(0).forgotten].tolist() == [3, 7, 50]
    assert five.ids(0)[five.records(0).forgotten].tolist() == [3, 8]
    assert cifar10.SCALE.pixels(five.forgotten.x)[:, 0, 0, 0].mul(255).round().tolist() == [3, 8]
    everybody = np.concatenate([two.ids(peer) for peer in range(4)])
    assert np.array_equal(np.sort(everybody), np.arange(RECORDS))
    for peer in range(1, 4):
        assert two.records(peer).forgotten.size == 0
        assert np.array_equal(two.ids(peer), five.ids(peer)), "training is the same walk"


def test_wrong_requests_are_named(small):
    with pytest.raises(InvalidInput, match=r"data.forget_set is 4; allowed: 2, 5\."):
        build_task("cifar10-klom", peers=4, options={"forget_set": 4}, model="logistic")
    with pytest.raises(InvalidInput, match="peers is 1; task 'cifar10-klom' allows 2 or more"):
        build_task("cifar10-klom", peers=1, model="logistic")
    with pytest.raises(InvalidInput, match=r"forget\.peer is 1, which holds 0 of the 3 records"):
        build_task("cifar10-klom", peers=4, unlearner=1, model="logistic")
    with pytest.raises(
        InvalidInput, match=r"'digits' lists no records; allowed: forget\.ids, or ba"
    ):
        build_task("digits", forget=Deletion("listed"))


def test_a_file_without_sets_is_refused(small):
    (small / FILE).unlink()
    with pytest.raises(InvalidInput, match=r"needs .*forget_sets\.json, which is not there; write"):
        build_task("cifar10-klom", peers=4, model="logistic")
    wrong: list[object] = [[], {}, {"sets": [1]}, {"sets": {"a": [1]}}, {"sets": {"1": ["x"]}}]
    for document in wrong:
        with pytest.raises(Corrupt, match="holds no forget sets"):
            forget_sets(write(small, document))
    for rows in ([], [-1], [cifar10.RECORDS]):
        with pytest.raises(Corrupt, match=r"set 1 in .* is empty or names a picture that does not"):
            forget_sets(write(small, {"sets": {"1": rows}}))


def test_the_published_sets_fit(shared_path):
    sets = forget_sets(shared_path("data") / FILE)
    assert [sets[n].size for n in range(1, 11)] == [10, 100, 1000, 10, 100, 500, 10, 100, 500, 100]
