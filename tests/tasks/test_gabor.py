"""Gabor features: of length 1 at most, one record at a time, and good enough for a linear head."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unwalk import walks
from unwalk.core.data import Held
from unwalk.core.errors import InvalidInput
from unwalk.core.noise import SimulatedNoise
from unwalk.core.plan import Phase, Plan
from unwalk.core.program import StepRule
from unwalk.core.seeds import PublicSeeds
from unwalk.engines.inprocess import InProcess
from unwalk.methods.network_sgd import Descent, LocalWork, NetworkSGD
from unwalk.tasks import Deletion, ShardedTask, build_task, from_arrays
from unwalk.tasks import gabor as room
from unwalk.tasks.gabor import BIAS, DIRECTIONS, WAVES, GaborMap, ridge_solution


def pictures(records: int, shape: tuple[int, ...] = (1, 28, 28), seed: int = 0) -> torch.Tensor:
    return torch.rand(records, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("shape", "cosines", "features"),
    [
        ((1, 28, 28), 0, 1177),
        ((1, 28, 28), 1000, 1001),
        ((1, 8, 8), 0, 97),
        ((3, 32, 32), 0, 4609),
        ((2, 5, 13), 6, 7),
        ((1, 1, 1), 0, 25),
    ],
)
def test_sizes_are_pinned(shape, cosines, features):
    gabor = GaborMap(cosines)
    assert gabor.features(shape) == features
    assert gabor(pictures(3, shape)).shape == (3, features)


@settings(max_examples=40)
@given(
    st.sampled_from(["noise", "black", "white", "bits", "dot", "stripes"]),
    st.sampled_from([(1, 28, 28), (3, 9, 14)]),
    st.sampled_from([0, 20]),
    st.integers(0, 9),
)
def test_no_picture_has_features_longer_than_one(kind, shape, cosines, seed):
    x = pictures(4, shape, seed)
    match kind:
        case "black":
            x = torch.zeros_like(x)
        case "white":
            x = torch.ones_like(x)
        case "bits":
            x = x.round()
        case "dot":
            x = torch.zeros_like(x)
            x[..., 3, 4] = 1.0
        case "stripes":
            x = ((torch.arange(shape[-1]) // (1 + seed)) % 2).float().expand_as(x)
    found = GaborMap(cosines)(x).double()
    assert torch.isfinite(found).all()
    lengths = found.norm(dim=1)
    assert lengths.max() <= 1.0
    assert torch.all(found[:, 0] == BIAS)
    if cosines:
        assert lengths.min() > 0.9999


@pytest.mark.parametrize("cosines", [0, 10])
def test_a_record_has_its_features_to_itself(cosines):
    gabor, x = GaborMap(cosines), pictures(7)
    assert torch.equal(gabor(x), torch.cat([gabor(row[None]) for row in x]))


@pytest.mark.parametrize("direction", range(DIRECTIONS))
@pytest.mark.parametrize("size", range(len(WAVES)))
def test_stripes_are_answered_by_their_wave_and_direction(size, direction):
    angle = math.pi * direction / DIRECTIONS
    down, right = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    phase = 2 * math.pi / WAVES[size].length * (right * math.cos(angle) + down * math.sin(angle))
    values = GaborMap()((0.5 + 0.5 * phase.sin())[None, None])[0, 1:]
    middle = values.view(len(WAVES), DIRECTIONS, 7, 7)[:, :, 3, 3]
    assert divmod(int(middle.argmax()), DIRECTIONS) == (size, direction)


def test_features_change_less_than_pixels_when_a_stroke_moves():
    x = torch.zeros(2, 1, 28, 28)
    x[0, :, 6:22, 13:15] = 1.0
    x[1, :, 6:22, 14:16] = 1.0
    found = GaborMap()(x)[:, 1:]

    def change(z: torch.Tensor) -> float:
        return float((z[0] - z[1]).norm() / z[0].norm())

    assert change(found) < 0.4 * change(x)
    assert torch.allclose(GaborMap()(0.8 * x), GaborMap()(x), atol=0.02), "contrast matters little"


def test_the_map_is_the_same_for_everybody():
    assert torch.equal(GaborMap(8)(pictures(2)), GaborMap(8)(pictures(2)))
    digests = {
        GaborMap(cosines).digest(shape)
        for cosines in (0, 8)
        for shape in ((1, 28, 28), (1, 28, 32))
    }
    assert len(digests) == 4


def test_a_changed_constant_changes_the_digest(monkeypatch):
    before = GaborMap().digest((1, 28, 28))
    assert before == GaborMap().digest((1, 28, 28))
    monkeypatch.setattr(room, "FLOOR", 0.2)
    assert GaborMap().digest((1, 28, 28)) != before


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GaborMap(-2), "cosines is -2"),
        (lambda: GaborMap(7), "cosines is 7; allowed: an even number, or 0"),
        (lambda: GaborMap()(torch.zeros(3, 28, 28)), r"pictures has shape \(3, 28, 28\)"),
        (lambda: ridge_solution(torch.eye(2), torch.tensor([0, 1]), 2, 0.0), "strength is 0.0"),
    ],
)
def test_bad_values_are_named(make, words):
    with pytest.raises(InvalidInput, match=words):
        make()


def test_the_ridge_head_is_the_least_squares_one():
    rng = np.random.default_rng(0)
    x, y, strength = rng.normal(size=(50, 6)), rng.integers(3, size=50), 0.7
    stacked = np.vstack([x, math.sqrt(strength) * np.eye(6)])
    wanted = np.linalg.lstsq(stacked, np.vstack([np.eye(3)[y], np.zeros((6, 3))]))[0]
    found = ridge_solution(torch.from_numpy(x), torch.from_numpy(y), 3, strength)
    assert np.allclose(found.numpy(), wanted, atol=1e-12)


def by_ridge(train: Held, test: Held) -> float:
    head = ridge_solution(train.x, train.y, 10, 1e-2)
    return float(((test.x.double() @ head).argmax(1) == test.y).double().mean())


def by_token(task: ShardedTask, hops: int, optimizer: str, rate: float) -> float:
    """Test accuracy of a softmax head after a token's walk, a local epoch a hop."""
    descent = Descent(StepRule(optimizer, rate), LocalWork("epochs", 64))
    phase = Phase("train", NetworkSGD(descent), walks.Uniform(), hops)
    seeds, graph = PublicSeeds(0), walks.complete(task.peers)
    (outcome,) = InProcess().run([Plan("gabor", task, graph, (phase,), seeds, SimulatedNoise(0))])
    with torch.no_grad():
        answers = outcome.workspace.model.eval()(task.test.x).argmax(1)
    return float((answers == task.test.y).double().mean())


@pytest.mark.parametrize(("cosines", "ridge", "token"), [(0, 0.965, 0.91), (400, 0.965, 0.93)])
def test_a_linear_head_learns_from_few_digits(official_data, cosines, ridge, token):
    official_data("mnist")
    everything = build_task("mnist", peers=1, model="logistic", forget=Deletion("nothing"))
    shard, gabor = everything.shard(0), GaborMap(cosines)
    train = Held(gabor(shard.x[:4000]), shard.y[:4000])
    test = Held(gabor(everything.test.x[:2000]), everything.test.y[:2000])
    assert by_ridge(train, test) > ridge
    task = from_arrays(train.x, train.y, test=(test.x, test.y), peers=10, model="linear")
    assert by_token(task, 60, "momentum", 1.0) > token


@pytest.fixture(scope="module")
def full_mnist(unpacked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder with MNIST whose features are thrown away afterwards."""
    root = tmp_path_factory.mktemp("gabor")
    (root / "mnist").symlink_to(unpacked("mnist") / "mnist")
    yield root
    shutil.rmtree(root / "features", ignore_errors=True)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("cosines", "ridge", "momentum", "plain"),
    [(0, 0.984, 0.978, 0.972), (1000, 0.989, 0.986, 0.983), (3000, 0.992, 0.987, 0.984)],
)
def test_a_linear_head_on_all_of_mnist(full_mnist, monkeypatch, cosines, ridge, momentum, plain):
    monkeypatch.setenv("UNWALK_DATA", str(full_mnist))
    options = {"cosines": cosines}
    task = build_task("mnist-gabor", options=options, forget=Deletion("nothing"))
    shards = [task.shard(peer) for peer in range(task.peers)]
    train = Held(torch.cat([s.x for s in shards]), torch.cat([s.y for s in shards]))
    found = {
        "ridge": by_ridge(train, task.test),
        "momentum": by_token(task, 100, "momentum", 1.0),
        "plain": by_token(task, 100, "sgd", 3.9),
    }
    print({"cosines": cosines, **found})
    assert found["ridge"] > ridge
    assert found["momentum"] > momentum
    assert found["plain"] > plain
