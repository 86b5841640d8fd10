"""CIFAR-10: the official binary version, its normalisation, and its augmentation."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.tasks import TASKS, Deletion, build_task, cifar10, official
from unwalk.tasks.cifar10 import LABELS, SCALE, FlipAndShift, parse_batch

AUGMENT = FlipAndShift(SCALE)
BLACK = SCALE.inputs(torch.zeros(3, 1, 1))
RECORDS = 40


def pictures(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return SCALE.inputs(torch.rand(count, 3, 32, 32, generator=generator, dtype=dtype))


def seeded(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


def one_by_one(x: torch.Tensor, draws: torch.Tensor, margin: int = 4) -> torch.Tensor:
    """The meaning of the augmentation, picture after picture, on pixels."""
    made = []
    for picture, (down, right, flip) in zip(x, draws.tolist(), strict=True):
        padded = BLACK.to(x).expand(3, 32 + 2 * margin, 32 + 2 * margin).clone()
        padded[:, margin : margin + 32, margin : margin + 32] = picture
        crop = padded[:, down : down + 32, right : right + 32]
        made.append(crop.flip(-1) if flip else crop)
    return torch.stack(made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_at_once_is_picture_after_picture(dtype):
    x = pictures(200, dtype)
    before = x.clone()
    found = AUGMENT(x, seeded())
    assert found.dtype == dtype
    assert torch.equal(found, one_by_one(x, AUGMENT.draw(200, seeded())))
    assert torch.equal(x, before), "the batch that was passed in stays as it is"


def test_the_margin_is_black_as_a_pixel():
    white = SCALE.inputs(torch.ones(500, 3, 32, 32))
    found = SCALE.pixels(AUGMENT(white, seeded()))
    assert torch.all((found.abs() < 1e-6) | ((found - 1).abs() < 1e-6))
    covered = (found < 0.5).any(1).flatten(1).float().mean(1)
    assert float(covered.max()) == pytest.approx(1 - (28 / 32) ** 2)
    assert float(covered.min()) == 0.0


def test_every_crop_and_flip_is_as_likely():
    count = 81 * 2 * 500
    draws = AUGMENT.draw(count, seeded(3))
    cells = (draws[:, 0] * 9 + draws[:, 1]) * 2 + draws[:, 2]
    assert int(draws.min()) == 0
    assert draws.max(0).values.tolist() == [8, 8, 1]
    seen = torch.bincount(cells, minlength=162).double()
    chi_square = float(((seen - 500) ** 2 / 500).sum())
    assert 100 < chi_square < 235, "161 degrees of freedom: the tails beyond are 1e-4 each"


def test_it_draws_from_the_generator_that_is_passed():
    x = pictures(20)
    state = torch.random.get_rng_state()
    assert torch.equal(AUGMENT(x, seeded(1)), AUGMENT(x, seeded(1)))
    assert not torch.equal(AUGMENT(x, seeded(1)), AUGMENT(x, seeded(2)))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.device
def test_the_same_on_an_accelerator():
    x = pictures(300)
    found = AUGMENT(x.cuda(), seeded(5, "cuda"))
    assert found.device.type == "cuda"
    expected = one_by_one(x, AUGMENT.draw(300, seeded(5, "cuda")).cpu())
    assert torch.equal(found.cpu(), expected)


def test_the_constants_are_a_normalisation():
    assert len(SCALE.mean) == len(SCALE.std) == 3
    assert torch.allclose(SCALE.inputs(SCALE.pixels(pictures(3))), pictures(3), atol=1e-5)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10 with 40 records a batch, as its own official files."""
    rng = np.random.default_rng(0)
    files = []
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name in (*cifar10.TRAINING, "test_batch.bin"):
        records = rng.integers(256, size=(RECORDS, cifar10.RECORD), dtype=np.uint8)
        records[:, 0] = np.arange(RECORDS) % 10
        place = tmp_path / "cifar-10-batches-bin" / name
        place.write_bytes(records.tobytes())
        digest = hashlib.md5(records.tobytes()).hexdigest()
        relative = f"cifar-10-batches-bin/{name}"
        files.append(official.OfficialFile(relative, records.size, f"md5:{digest}"))
    monkeypatch.setattr(cifar10, "BATCH_RECORDS", RECORDS)
    described = replace(official.DATASETS["cifar10"], files=tuple(files))
    monkeypatch.setitem(official.DATASETS, "cifar10", described)
    monkeypatch.setenv("UNWALK_DATA", str(tmp_path))
    return tmp_path


def test_batches_become_a_task(tiny):
    task = build_task("cifar10", peers=4, model="logistic", forget=Deletion("backdoor", size=20))
    assert (task.training_records, task.classes, task.peers) == (200, 10, 4)
    assert task.source.labels == LABELS
    raw = np.frombuffer((tiny / "cifar-10-batches-bin" / "data_batch_3.bin").read_bytes(), np.uint8)
    record = raw.reshape(RECORDS, -1)[7]
    peer = next(v for v in range(4) if 2 * RECORDS + 7 in task.ids(v))
    row = int(np.flatnonzero(task.ids(peer) == 2 * RECORDS + 7)[0])
    pixels = SCALE.pixels(task.shard(peer).x[row])
    red_first = torch.from_numpy(record[1:].reshape(3, 32, 32).copy()) / 255.0
    assert torch.allclose(pixels, red_first, atol=1e-6)
    assert task.shard(peer).y[row] == (0 if peer == 0 and row in task.records(0).forgotten else 7)
    ids = np.concatenate([task.ids(v) for v in range(4)])
    assert np.array_equal(np.sort(ids), np.arange(200))


def test_the_trigger_keeps_its_corner(tiny):
    task = build_task("cifar10", peers=4, model="logistic", forget=Deletion("backdoor", size=20))
    shard, rows = task.shard(0), torch.from_numpy(task.records(0).forgotten)
    x, y = shard.take(rows, seeded())
    assert torch.all(SCALE.pixels(x)[:, :, -4:, -4:] > 1 - 1e-5)
    assert torch.all(y == 0)
    moved = AUGMENT(shard.x[rows], seeded())
    assert torch.equal(x[:, :, :-4], moved[:, :, :-4]), "the rest was moved"
    assert task.trigger_text == "4 x 4 square in the lower-right corner"
    assert (TASKS["cifar10"].model, TASKS["cifar10"].forget.size) == ("resnet18", 1000)


def test_the_archive_will_do(tiny):
    folder = tiny / "cifar-10-batches-bin"
    before = official.read("cifar10")
    with tarfile.open(tiny / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(folder, folder.name)
    for place in folder.iterdir():
        place.unlink()
    assert official.read("cifar10") == before


@pytest.mark.parametrize("name", ["cifar-10-batches-py", "cifar-10-python.tar.gz"])
def test_the_python_version_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.setenv("UNWALK_DATA", str(tmp_path))
    (tmp_path / name).mkdir()
    with pytest.raises(InvalidInput, match="is the python version of CIFAR-10, a pickle") as told:
        build_task("cifar10", model="logistic")
    assert "put the binary version, cifar-10-binary.tar.gz, beside it" in str(told.value)


def test_a_python_archive_under_the_binary_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("UNWALK_DATA", str(tmp_path))
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"\x80\x02}q\x00")
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
    with pytest.raises(InvalidInput, match="is the python version of CIFAR-10, a pickle"):
        build_task("cifar10", model="logistic")


def test_a_wrong_batch_is_told(monkeypatch):
    monkeypatch.setattr(cifar10, "BATCH_RECORDS", 2)
    data = bytearray(2 * cifar10.RECORD)
    assert parse_batch(bytes(data), "f")[1].tolist() == [0, 0]
    with pytest.raises(Corrupt, match=r"f has 6,145 bytes; a batch of 2 records of 3,073 bytes"):
        parse_batch(bytes(data[:-1]), "f")
    data[cifar10.RECORD] = 10
    with pytest.raises(Corrupt, match=r"f has label 10 for record 1; allowed: 0 to 9\."):
        parse_batch(bytes(data), "f")


def test_the_official_test_batch(unpacked):
    root = unpacked("cifar10")
    state = {s.task: s.state for s in official.status(root)}["cifar10"]
    assert state == "complete"
    x, y = parse_batch((root / "cifar-10-batches-bin" / "test_batch.bin").read_bytes(), "test")
    assert x.shape == (10_000, 3, 32, 32)
    assert y[:5].tolist() == [3, 8, 8, 0, 6]
    assert torch.bincount(y).tolist() == [1000] * 10


@pytest.mark.soak
def test_the_constants_are_those_of_the_official_files(official_data):
    official_data("cifar10")
    task = build_task("cifar10", model="logistic", forget=Deletion("nothing"))
    assert (task.training_records, len(task.test.y)) == (50_000, 10_000)
    x = torch.cat([SCALE.pixels(task.shard(peer).x) for peer in range(10)])
    assert x.mean((0, 2, 3)).tolist() == pytest.approx(SCALE.mean, abs=6e-5)
    assert x.std((0, 2, 3)).tolist() == pytest.approx(SCALE.std, abs=6e-5)
