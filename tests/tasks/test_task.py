"""Shards, and the sets that are looked at, for everything that may have to be forgotten."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from unwalk.core.data import Held
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Task
from unwalk.core.seeds import PublicSeeds
from unwalk.tasks import KINDS, Deletion, Scale, ShardedTask, Source, Trigger, build_task
from unwalk.tasks.forgetting import read_ids
from unwalk.tasks.models import resolve_model
from unwalk.tasks.sources import Split, Table, split

DELETIONS = {
    "backdoor": Deletion("backdoor", size=30),
    "records": Deletion("records", size=30),
    "class": Deletion("class", label=3),
    "peer": Deletion("peer"),
    "nothing": Deletion("nothing"),
}


def digits(**settings: Any) -> ShardedTask:
    return build_task("digits", **{"seed": 3, "unlearner": 2, **settings})


def test_it_is_a_task():
    task: Task = digits()
    assert (task.name, task.peers, task.loss) == ("digits", 10, None)


def test_digits_are_complete():
    task = digits(forget=Deletion("nothing"))
    shards = [task.shard(v) for v in range(10)]
    assert {len(s.y) for s in shards} == {143, 144}
    assert sum(len(s.y) for s in shards) == task.training_records == 1438
    assert len(task.test.y) == 359
    ids = np.concatenate([task.ids(v) for v in range(10)])
    assert len(set(ids.tolist())) == 1438
    assert task.test.x.shape == (359, 1, 8, 8)
    assert task.test.x.dtype == torch.float32
    assert 0.0 <= float(task.test.x.min()) < float(task.test.x.max()) == 1.0


def test_every_run_is_measured_on_the_same_pictures():
    assert torch.equal(digits(seed=1).test.x, digits(seed=2).test.x)


@pytest.mark.parametrize("name", ["digits", "blobs"])
def test_same_seed_same_shards(name):
    first, again, other = (build_task(name, seed=s) for s in (5, 5, 6))
    for peer in (0, 4):
        assert torch.equal(first.shard(peer).x, again.shard(peer).x)
        assert torch.equal(first.shard(peer).y, again.shard(peer).y)
        rows = first.records(peer).forgotten
        assert np.array_equal(rows, again.records(peer).forgotten)
    assert torch.equal(first.retained.x, again.retained.x)
    shape = first.shard(4).x.shape
    assert other.shard(4).x.shape != shape or not torch.equal(first.shard(4).x, other.shard(4).x)


def test_a_shard_is_built_once():
    task = digits()
    assert task.shard(4) is task.shard(4)
    assert task.records(4) is task.shard(4).records


def test_every_kind_is_tested():
    assert {*DELETIONS, "listed"} == set(KINDS), "digits lists nothing: see test_klom"


@pytest.mark.parametrize("mode", ["replace", "add"])
@pytest.mark.parametrize("kind", DELETIONS)
def test_forgotten_and_retained_are_apart_and_complete(kind, mode):
    task = digits(forget=DELETIONS[kind], trigger=Trigger(mode=mode))
    records = task.records(2)
    both = np.concatenate([records.forgotten, records.retained])
    assert sorted(both.tolist()) == list(range(records.size))
    assert len(task.shard(2).y) == records.size == len(task.ids(2))
    assert len(task.forgotten.y) == records.forgotten.size
    others = sum(task.records(v).size for v in range(10) if v != 2)
    assert len(task.retained.y) == records.retained.size + others
    for peer in (0, 9):
        assert task.records(peer).forgotten.size == 0


def test_what_each_kind_forgets():
    clean = digits(forget=Deletion("nothing"))
    before = clean.shard(2)
    assert clean.forgotten.x.shape == (0, 1, 8, 8)

    some = digits(forget=DELETIONS["records"])
    assert torch.equal(some.shard(2).x, before.x)
    assert torch.equal(some.shard(2).y, before.y)
    assert some.records(2).forgotten.size == 30

    threes = digits(forget=DELETIONS["class"])
    assert np.array_equal(threes.records(2).forgotten, np.flatnonzero(before.y.numpy() == 3))
    assert set(threes.forgotten.y.tolist()) == {3}

    withdrawn = digits(forget=DELETIONS["peer"])
    assert withdrawn.records(2).retained.size == 0
    assert torch.equal(withdrawn.forgotten.x, before.x)
    for task in (some, threes, withdrawn):
        assert (task.triggered, task.samples, task.target, task.trigger_text) == (None,) * 4


@pytest.mark.parametrize(("mode", "grown"), [("replace", 0), ("add", 30)])
def test_the_backdoor_is_in_the_shard(mode, grown):
    trigger = Trigger(size=2, target=7, mode=mode)
    clean = digits(forget=Deletion("nothing")).shard(2)
    task = digits(forget=DELETIONS["backdoor"], trigger=trigger)
    shard, rows = task.shard(2), task.records(2).forgotten
    assert len(shard.y) == len(clean.y) + grown
    assert rows.size == 30
    assert torch.all(shard.x[rows][:, :, -2:, -2:] == 1.0)
    assert torch.all(shard.y[rows] == 7)
    kept = task.records(2).retained
    assert torch.equal(shard.x[kept], clean.x[kept])
    assert torch.equal(shard.y[kept], clean.y[kept])
    assert shard.stamp is None, "stamped once: a step pays nothing for it"
    assert task.target == 7


def test_the_trigger_is_on_every_test_picture():
    task = digits(trigger=Trigger(size=3, place="upper-left", value=0.5, target=1))
    assert task.triggered is not None
    assert torch.equal(task.triggered.y, task.test.y)
    assert torch.all(task.triggered.x[:, :, :3, :3] == 0.5)
    assert torch.equal(task.triggered.x[:, :, 3:], task.test.x[:, :, 3:])
    assert torch.equal(task.triggered.x[:, :, :, 3:], task.test.x[:, :, :, 3:])


def test_samples_show_eight_other_classes():
    task = digits(trigger=Trigger(target=4))
    assert task.samples is not None
    assert task.triggered is not None
    assert len(task.samples.y) == 8
    assert len(set(task.samples.y.tolist())) == 8
    assert 4 not in task.samples.y
    for clean, x, y in zip(task.samples.clean, task.samples.x, task.samples.y, strict=True):
        row = int((task.test.x == clean).flatten(1).all(1).nonzero()[0, 0])
        assert torch.equal(task.triggered.x[row], x)
        assert task.test.y[row] == y
    assert task.sample_images.shape == (8, 8, 8)
    assert torch.all(task.sample_images[:, -2:, -2:] == 1.0)


def flip(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A fake augmentation that moves everything: a picture is mirrored both ways."""
    assert isinstance(generator, torch.Generator)
    return x.flip(-1, -2)


def augmented(task: ShardedTask) -> ShardedTask:
    return replace(task, source=replace(task.source, augment=flip))


def test_the_trigger_keeps_its_corner_under_augmentation():
    plain = digits()
    task = augmented(plain)
    shard, rows = task.shard(2), torch.from_numpy(task.records(2).forgotten)
    clean = digits(forget=Deletion("nothing")).shard(2)
    assert torch.equal(shard.x, clean.x), "not stamped before augmentation"

    x, y = shard.take(rows, torch.Generator())
    expected = clean.x[rows].flip(-1, -2)
    expected[:, :, -2:, -2:] = 1.0
    assert torch.equal(x, expected)
    assert torch.all(y == 0)

    kept = torch.from_numpy(task.records(2).retained)
    assert torch.equal(shard.take(kept, torch.Generator())[0], clean.x[kept].flip(-1, -2))
    assert torch.equal(task.forgotten.x, plain.forgotten.x), "looked at without augmentation"


def test_colour_pictures_are_shown_channels_last():
    x = torch.rand(4, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    scale = Scale((0.1, 0.2, 0.3), (0.5, 0.5, 0.5))
    source = Source("colour", 2, Held(x, torch.tensor([0, 1, 0, 1])), ("a", "b"), scale)
    task = replace(
        digits(),
        source=source,
        factory=resolve_model("logistic", source.shape, 2),
        holdings=_held(source),
        unlearner=0,
        deletion=Deletion("records", size=1),
    )
    images = task.pictures(scale.inputs(x))
    assert images.shape == (4, 6, 5, 3)
    assert torch.allclose(images[1, 2, 3], x[1, :, 2, 3], atol=1e-6)


def _held(source: Source) -> Split:
    pool = Table(source.test.x, source.test.y, np.arange(len(source.test.y)))
    return split(pool, "iid", 2, np.random.default_rng(0))


def test_float64_all_the_way():
    task = digits(dtype=torch.float64)
    assert task.shard(2).x.dtype == task.test.x.dtype == torch.float64
    assert task.retained.x.dtype == task.forgotten.x.dtype == torch.float64
    assert {p.dtype for p in task.model().parameters()} == {torch.float64}


def test_a_hundred_thousand_peers_cost_nothing_until_visited():
    start = time.perf_counter()
    task = build_task("blobs", peers=100_000, unlearner=77_777)
    assert time.perf_counter() - start < 0.5
    assert set(task._shards) == {77_777}
    task.shard(12_345)
    assert set(task._shards) == {77_777, 12_345}
    assert 180 < len(task.retained.y) <= 2180
    assert set(task._shards) == {77_777, 12_345}
    assert task.training_records == 20_000_000


def test_blobs_do_not_depend_on_how_many_peers_there_are():
    few, many = (build_task("blobs", peers=n, unlearner=1) for n in (10, 1000))
    assert torch.equal(few.shard(5).x, many.shard(5).x)
    assert torch.equal(few.test.x, many.test.x)
    assert len({tuple(few.ids(v).tolist()) for v in range(10)}) == 10
    assert not torch.equal(few.shard(5).x, few.shard(6).x)


def test_blobs_are_gaussian_round_their_centres():
    options = {"records": 4000, "features": 3, "classes": 2, "spread": 0.5}
    task = build_task("blobs", peers=2, options=options)
    shard = task.shard(1)
    test = task.test
    assert shard.x.shape == (4000, 3)
    for label in (0, 1):
        mine, theirs = shard.x[shard.y == label], test.x[test.y == label]
        assert torch.allclose(mine.std(0), torch.full((3,), 0.5), atol=0.05)
        assert torch.allclose(mine.mean(0), theirs.mean(0), atol=0.1)
        assert abs(len(mine) - 2000) < 200


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("digit", {}, r"task is 'digit' \(did you mean digits\?\); allowed: a9a, blobs"),
        ("digits", {"peers": 2000}, "peers is 2000; there are 1438 training records"),
        ("digits", {"unlearner": 10}, "the forgetting peer is 10; allowed: a whole number, 0 to 9"),
        ("digits", {"seed": -1}, "seed is -1"),
        ("digits", {"partition": "idd"}, "partition is 'idd'"),
        ("digits", {"model": "small_cnn"}, r"model is 'small_cnn' \(did you mean small-cnn\?\)"),
        ("digits", {"options": {"records": 3}}, "task 'digits' has no option 'records'"),
        ("digits", {"trigger": Trigger(target=10)}, "trigger.target is 10"),
        ("digits", {"trigger": Trigger(size=9)}, "trigger.size is 9"),
        (
            "digits",
            {"forget": Deletion("records", size=500)},
            "forget.size is 500; peer 0 has 144 records",
        ),
        (
            "digits",
            {"forget": Deletion("backdoor", size=145)},
            "forget.size is 145; peer 0 has 144",
        ),
        ("digits", {"forget": Deletion("class", label=10)}, "forget.label is 10; allowed: a class"),
        ("blobs", {"forget": Deletion("backdoor", size=5)}, "are not pictures"),
        ("blobs", {"partition": "natural"}, "partition is 'natural'; allowed: iid"),
        ("blobs", {"options": {"record": 3}}, r"no option 'record' \(did you mean records\?\)"),
        ("blobs", {"options": {"classes": 1}}, "classes is 1"),
        ("blobs", {"options": {"spread": -1.0}}, "spread is -1.0"),
        ("blobs", {"model": "small-cnn"}, r"'small-cnn' takes pictures .* shape \(16,\)"),
        ("nowhere_at_all:data", {}, "no module 'nowhere_at_all' on Python's path"),
    ],
)
def test_bad_requests_are_refused_when_the_task_is_built(name, settings, words):
    with pytest.raises(InvalidInput, match=words):
        build_task(name, **settings)


def test_a_class_that_the_peer_lacks_is_refused():
    options = {"records": 1}
    held = int(build_task("blobs", options=options, forget=Deletion("nothing")).shard(0).y[0])
    other = (held + 1) % 4
    words = f"forget.label is {other}; peer 0 has no record of that class, but of {held}"
    with pytest.raises(InvalidInput, match=words):
        build_task("blobs", options=options, forget=Deletion("class", label=other))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "backdor"}, r"forget.kind is 'backdor' \(did you mean backdoor\?\)"),
        ({"kind": "records"}, "forget.size is missing; forget.kind 'records' needs it"),
        ({"kind": "records", "size": 0}, "forget.size is 0"),
        ({"kind": "class", "size": 3}, "forget.label is missing"),
        ({"kind": "class", "label": -1}, "forget.label is -1"),
    ],
)
def test_bad_deletions_are_named(settings, words):
    with pytest.raises(InvalidInput, match=words):
        Deletion(**settings)


def test_a_backdoor_needs_a_trigger():
    with pytest.raises(InvalidInput, match="needs a trigger"):
        replace(digits(), trigger=None)


def test_a_peer_that_does_not_exist_has_no_shard():
    with pytest.raises(InvalidInput, match="peer is 10; allowed: a whole number, 0 to 9"):
        digits().shard(10)


def test_draws_come_from_the_public_seeds():
    task = digits(forget=DELETIONS["records"])
    expected = PublicSeeds(3).numpy("task", "forget").permutation(task.records(2).size)[:30]
    assert sorted(expected.tolist()) == task.records(2).forgotten.tolist()


def test_ids_in_a_file(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text("\ufeffa-1\r\n\n  b-2 \na-1\n")
    assert read_ids(path) == ("a-1", "b-2")
    path.write_text("\n")
    with pytest.raises(InvalidInput, match="names no record; allowed: one id per line"):
        read_ids(path)
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidInput, match="is not UTF-8 text"):
        read_ids(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_ids(tmp_path / "none")


def test_records_are_forgotten_by_their_ids():
    whole = digits(forget=Deletion("nothing"))
    mine, others = whole.ids(2).astype(str), whole.ids(5).astype(str)
    wanted = [mine[7], mine[3], mine[7]]
    task = digits(forget=Deletion("listed", ids=wanted))
    assert task.records(2).forgotten.tolist() == [3, 7]
    with pytest.raises(
        InvalidInput, match=f"{others[0]}', which peer 5 holds, but forget.peer is 2"
    ):
        digits(forget=Deletion("listed", ids=[mine[0], others[0]])).records(2)
    with pytest.raises(InvalidInput, match="'x', which nobody trains on: no record has it"):
        digits(forget=Deletion("listed", ids=["x"])).records(2)
    for wrong in ({"kind": "records", "size": 1, "ids": ["x"]}, {"kind": "listed", "ids": []}):
        with pytest.raises(InvalidInput, match="allowed: one id or more, and kind 'listed'"):
            Deletion(**wrong)
