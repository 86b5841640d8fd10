"""Fixed features: named by a digest, of one record at a time, on every task."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.tasks import own_features
from unwalk.core.data import Held
from unwalk.core.errors import InvalidInput
from unwalk.tasks import (
    Deletion,
    Scale,
    Source,
    Table,
    Trigger,
    build_task,
    from_arrays,
    from_file,
    mnist,
)
from unwalk.tasks import features as room
from unwalk.tasks.features import Extraction, cached, extractor_for, with_constant
from unwalk.tasks.gabor import GaborMap
from unwalk.tasks.patches import PatchMap

PIXELS = Scale()
HERE = "tests.tasks.own_features"


def pictures(records: int, shape: tuple[int, ...] = (1, 8, 8), seed: int = 0) -> torch.Tensor:
    return torch.rand(records, *shape, generator=torch.Generator().manual_seed(seed))


def source(shape: tuple[int, ...] = (1, 8, 8), scale: Scale | None = PIXELS) -> Source:
    return Source("some", 2, Held(pictures(3, shape), torch.arange(3) % 2), ("0", "1"), scale)


def made(extractor: object, shape: tuple[int, ...] = (1, 8, 8), **asked: object):
    return extractor_for(Extraction(extractor, **asked), source(shape))  # type: ignore[arg-type]


MAPS = {
    "gabor": lambda: made("gabor", cosines=20),
    "gabor, without waves": lambda: made("gabor", cosines=0),
    "patches": lambda: made("patches", filters=5),
    "patches in colour": lambda: made("patches", (3, 9, 12), filters=5),
    "plain": lambda: made("plain", norm=2.0),
    "own": lambda: made(f"{HERE}:doubled", norm=0.5),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_record_has_its_features_to_itself(name):
    extractor = MAPS[name]()
    shape = (3, 9, 12) if "colour" in name else (1, 8, 8)
    x = pictures(7, shape)
    whole = extractor(x)
    assert whole.shape == (7, extractor.width)
    assert whole.dtype == torch.float32
    assert torch.equal(whole, torch.cat([extractor(row[None]) for row in x]))
    assert torch.equal(extractor(x[[5, 0, 3]]), whole[[5, 0, 3]])


@pytest.mark.parametrize("name", MAPS)
@settings(max_examples=15)
@given(st.sampled_from(["noise", "black", "white", "far", "dot"]), st.integers(0, 9))
def test_no_record_has_features_longer_than_the_norm(name, kind, seed):
    extractor = MAPS[name]()
    x = pictures(3, (3, 9, 12) if "colour" in name else (1, 8, 8), seed)
    match kind:
        case "black":
            x = torch.zeros_like(x)
        case "white":
            x = torch.ones_like(x)
        case "far":
            x = x * 1e6 if name in ("plain", "own") else x.round()
        case "dot":
            x = torch.zeros_like(x)
            x[..., 3, 4] = 1.0
    found = extractor(x).double()
    assert torch.isfinite(found).all()
    assert found.norm(dim=1).max() <= extractor.norm
    assert (found[:, 0] > 0.2 * extractor.norm).all()


def test_short_inputs_keep_their_length():
    x = torch.tensor([[0.1, -0.2], [30.0, 40.0]])
    assert torch.equal(with_constant(x, None), torch.tensor([[1.0, 0.1, -0.2], [1.0, 30.0, 40.0]]))
    assert torch.equal(with_constant(x, 1.0)[0], torch.tensor([0.5, 0.1, -0.2]))
    wanted = math.sqrt(0.75) * torch.tensor([0.6, 0.8])
    assert torch.allclose(with_constant(x, 1.0)[1, 1:], wanted, atol=1e-5)


def test_every_map_and_every_setting_has_a_digest_of_its_own(monkeypatch):
    found = {
        extractor.digest
        for extractor in (
            made("gabor", cosines=20),
            made("gabor", cosines=22),
            made("gabor", (1, 8, 9), cosines=20),
            made("patches", filters=5),
            made("patches", filters=6),
            made("plain"),
            made("plain", norm=1.0),
            made("plain", norm=2.0),
            made(f"{HERE}:doubled"),
            made(f"{HERE}:doubled", norm=1.0),
        )
    }
    assert len(found) == 10
    assert made("gabor", cosines=20).digest == GaborMap(20).digest((1, 8, 8))
    assert made("patches", filters=5).digest == PatchMap(5).digest((1, 8, 8))


def test_another_weight_or_other_code_is_another_digest():
    before = made(own_features.doubled).digest
    assert made(own_features.doubled).digest == before

    def heavier() -> nn.Module:
        network = own_features.Doubled()
        network.weight.data += 2.0**-20
        return network

    class Doubled(nn.Module):  # says the same of itself and has the same weights
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x.flatten(1)

    assert made(heavier).digest != before
    assert made(Doubled).digest != before


def test_a_random_network_is_the_same_for_everybody():
    asked = Extraction(f"{HERE}:drawn")
    table = replace(source((4,), None))
    torch.manual_seed(1)
    first = extractor_for(asked, table)
    torch.manual_seed(2)
    second = extractor_for(asked, table)
    assert first.digest == second.digest
    assert torch.equal(first(pictures(3, (4,))), second(pictures(3, (4,))))
    network = vars(second)["network"]
    assert not any(p.requires_grad for p in network.parameters())
    assert not network.training


def test_what_was_agreed_on_is_kept_to():
    digest = made("plain").digest
    assert made("plain", extractor_digest=digest).digest == digest
    with pytest.raises(InvalidInput, match="all peers need the same map"):
        made("plain", norm=1.0, extractor_digest=digest)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: made("gabr"), r"data.extractor is 'gabr' \(did you mean gabor\?\)"),
        (lambda: made("gabor", cosines=3), "cosines is 3; allowed: an even number"),
        (lambda: made("gabor", filters=3), "data.filters is 3, which features 'gabor' do not use"),
        (lambda: made("gabor", norm=1.0), "data.norm is 1.0, which features 'gabor' do not use"),
        (lambda: made("plain", trained="apart"), "data.trained is 'apart', which features 'plain'"),
        (lambda: made("plain", norm=-1.0), "data.norm is -1.0"),
        (lambda: made(f"{HERE}:doubled", trained="no"), "data.trained is 'no'; allowed: apart"),
        (lambda: made("patches", (1, 6, 9), filters=3), "more than 6 x 6 pixels; .* 6 x 9"),
        (lambda: made(f"{HERE}:none"), "data.extractor is .* has no 'none'"),
        (lambda: made(f"{HERE}:torch"), "is a module; allowed: a function"),
        (lambda: made(f"{HERE}:pairs"), "are no tensor with one row of numbers"),
        (lambda: made(lambda: nn.Linear(3, 3)), r"cannot take inputs of shape \(1, 8, 8\)"),
        (lambda: made(own_features.Counting)(pictures(2)), "change while they are computed"),
        (
            lambda: build_task("blobs", options={"extractor": "gabor"}),
            "features 'gabor' are of pictures",
        ),
        (lambda: build_task("digits", options={"cosines": 4}), "data.cosines is 4, which belongs"),
        (lambda: build_task("digits", options={"norm": 1.0}), "task 'digits' has no option 'norm'"),
    ],
)
def test_bad_values_are_named(make, words):
    extractor_or_error = pytest.raises(InvalidInput, match=words)
    with extractor_or_error:
        made_of = make()
        made_of(pictures(2, (1, 6, 9)))  # a map that refuses pictures when it sees them


def test_what_a_network_remembers_is_put_back_after_each_record():
    """Each record's features are those that it has alone, whichever records came before."""
    x, extractor = pictures(5), made(own_features.Remembering)
    together = extractor(x)
    alone = torch.cat([made(own_features.Remembering)(one) for one in x.split(1)])
    assert torch.equal(together, alone)
    assert torch.equal(extractor(x.flip(0)).flip(0), together)


@pytest.mark.parametrize("task", ["digits", "blobs", "digits-flat"])
def test_every_task_has_features(task):
    plain = build_task(task, peers=4)
    asked = {"extractor": "plain", "norm": 1.0}
    forget = None if task != "digits" else Deletion("records", size=3)
    found = build_task(task, peers=4, options=asked, forget=forget)
    width = 1 + math.prod(plain.source.shape)
    assert (found.name, found.model_name, found.source.shape) == (task, "linear", (width,))
    assert found.source.feature_norm == 1.0
    assert found.ids(2).tolist() == plain.ids(2).tolist()
    wanted = with_constant(plain.shard(2).x, 1.0)
    assert torch.equal(found.shard(2).x, wanted)
    assert torch.equal(found.test.x, with_constant(plain.test.x, 1.0))
    assert found.retained.x.shape[1:] == (width,)


def test_poison_is_stamped_on_pictures_before_features_are_made():
    forget = Deletion("backdoor", size=9)
    pixels = build_task("digits", peers=5, forget=forget)
    task = build_task("digits", peers=5, forget=forget, options={"extractor": "gabor"})
    features = task.features.extractor
    assert torch.equal(task.shard(0).x, features(pixels.shard(0).x))
    assert torch.equal(task.shard(0).y, pixels.shard(0).y)
    assert torch.equal(task.triggered.x, features(pixels.triggered.x))
    assert torch.equal(task.forgotten.x, features(pixels.forgotten.x))
    assert torch.equal(task.before_features(0), pixels.shard(0).x)
    assert torch.equal(task.sample_images, pixels.sample_images)
    assert torch.equal(task.samples.x, features(pixels.samples.x))


class Counted(nn.Module):
    """Counts how often it is called, behind torch's back."""

    calls: list[int] = []  # noqa: RUF012

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(x))
        return x.flatten(1)


def test_features_of_a_record_are_computed_once():
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    Counted.calls.clear()
    task = from_arrays(x, y, peers=4, extractor=Counted, forget=Deletion("records", size=2))
    for _ in range(2):
        for peer in range(4):
            task.shard(peer)
        assert len(task.retained.y) + len(task.test.y) == 38
    tries = 1 + 4 + 1  # zeros; the first record of each peer and of the test set a second time
    assert Counted.calls == [1] * (40 + tries)


def test_own_arrays_and_files_have_a_norm(tmp_path):
    rng = np.random.default_rng(0)
    x, y = 5 * rng.normal(size=(60, 3)), rng.integers(2, size=60)
    task = from_arrays(x, y, peers=3, norm=2.0, dtype=torch.float64)
    assert task.source.feature_norm == 2.0
    lengths = torch.cat([task.shard(p).x for p in range(3)] + [task.test.x]).norm(dim=1)
    assert lengths.max() <= 2.0
    assert lengths.max() > 1.99
    path = tmp_path / "some.csv"
    rows = [f"{a},{b},{c}" for (a, b, _), c in zip(x, y, strict=True)]
    path.write_text("one,two,label\n" + "\n".join(rows))
    read = from_file(path, labels=["0", "1"], norm=1.5, peers=3)
    named = build_task("file", peers=3, options={"path": str(path), "labels": "0|1", "norm": 1.5})
    assert read.source.feature_norm == named.source.feature_norm == 1.5
    assert torch.equal(read.shard(1).x, named.shard(1).x)
    assert read.shard(1).x.norm(dim=1).max() <= 1.5
    plain = from_file(path, labels=["0", "1"], norm=1.5, peers=3, extractor="plain")
    assert plain.source.shape == (3,)
    assert plain.shard(1).x.norm(dim=1).max() <= 1.5
    with pytest.raises(InvalidInput, match=r"data\.norm is 1, but x holds whole numbers"):
        from_arrays(np.eye(8, dtype=np.int64), np.arange(8) % 2, dtype=None, norm=1.0)


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNWALK_DATA", str(tmp_path))
    return tmp_path


def never() -> dict[str, torch.Tensor]:
    raise AssertionError("made although it was there")


def test_features_are_made_once(data_folder):
    wanted, made = {"a": (2, 3)}, {"a": torch.rand(2, 3)}
    assert cached("some", wanted, lambda: made) is made
    assert torch.equal(cached("some", wanted, never)["a"], made["a"])
    files = [path.name for path in (data_folder / "features").iterdir()]
    assert files == ["some.safetensors"]


@pytest.mark.parametrize("spoil", ["cut", "empty", "other"])
def test_a_file_that_does_not_fit_is_made_anew(data_folder, spoil):
    wanted, made = {"a": (2, 3)}, {"a": torch.rand(2, 3)}
    cached("some", wanted if spoil != "other" else {}, lambda: {"b": torch.rand(4, 4)})
    place = data_folder / "features" / "some.safetensors"
    if spoil != "other":
        place.write_bytes(place.read_bytes()[:-5] if spoil == "cut" else b"")
    assert cached("some", wanted, lambda: made) is made
    assert torch.equal(cached("some", wanted, never)["a"], made["a"])


def test_a_write_that_fails_leaves_nothing_and_costs_nothing(data_folder, monkeypatch):
    def full(tensors: object, place: Path) -> None:
        place.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(room, "save_file", full)
    made = {"a": torch.rand(2, 3)}
    assert cached("some", {"a": (2, 3)}, lambda: made) is made
    assert list((data_folder / "features").iterdir()) == []


def few(root: Path) -> tuple[Source, Table]:
    """Sixty pictures in the place of MNIST's, of which twenty are the test set as well."""
    x, y = (255 * pictures(60, (1, 28, 28))).to(torch.uint8), torch.arange(60) % 10
    test = Held(mnist.inputs(x[:20], Scale()), y[:20])
    source = Source("mnist", 10, test, tuple("0123456789"), Scale(), archive="mnist")
    return source, Table(x, y, np.arange(60))


def test_the_task_wraps_mnist(data_folder, monkeypatch):
    monkeypatch.setattr(mnist, "_read", few)
    settings = {"peers": 3, "options": {"cosines": 12}, "forget": Deletion("records", size=2)}
    task = build_task("mnist-gabor", **settings)  # type: ignore[arg-type]
    assert (task.name, task.model_name, task.classes) == ("mnist-gabor", "linear", 10)
    gabor, (_, pool) = GaborMap(12), few(data_folder)
    x, y = mnist.inputs(pool.x, Scale()), pool.y
    assert torch.equal(task.test.x, gabor(x[:20]))
    for peer in range(3):
        shard = task.shard(peer)
        assert torch.equal(shard.x, gabor(x)[task.ids(peer)])
        assert torch.equal(shard.y, y[task.ids(peer)])
    monkeypatch.setattr(GaborMap, "__call__", never)
    again = build_task("mnist-gabor", **settings)  # type: ignore[arg-type]
    assert torch.equal(again.shard(1).x, task.shard(1).x)
    with pytest.raises(TypeError, match="never"):
        build_task("mnist-gabor", **{**settings, "options": {"cosines": 14}})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="cosines is 3"):
        build_task("mnist-gabor", options={"cosines": 3})


def test_poisoned_pictures_of_an_archive_are_not_among_the_kept_ones(data_folder, monkeypatch):
    monkeypatch.setattr(mnist, "_read", few)
    forget = Deletion("backdoor", size=4)
    for mode in ("replace", "add"):
        settings = {"peers": 3, "forget": forget, "trigger": Trigger(size=4, mode=mode)}
        task = build_task("mnist-gabor", options={"cosines": 12}, **settings)  # type: ignore[arg-type]
        assert torch.equal(task.shard(0).x, GaborMap(12)(task.before_features(0)))
        assert torch.equal(task.shard(1).x, GaborMap(12)(task.before_features(1)))
        assert len(task.shard(0).y) == 20 + 4 * (mode == "add")
