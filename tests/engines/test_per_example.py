"""Both ways to clip per example against a loop over examples."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.tiny import TinyTask, plan
from unwalk.core.errors import InvalidInput
from unwalk.core.events import GradientSteps
from unwalk.core.plan import Local
from unwalk.core.program import StepRule, Steps
from unwalk.core.token import Workspace, build_model
from unwalk.engines import per_example
from unwalk.engines.execute import Bench, execute
from unwalk.engines.per_example import (
    Batch,
    check_per_example,
    choose_way,
    clipped_gradients,
    ghost_gradients,
    loop_gradients,
    vmap_gradients,
)

WAYS: dict[str, Callable[..., Any]] = {
    "ghost": ghost_gradients,
    "loop": loop_gradients,
    "vmap": vmap_gradients,
}
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}


class Residual(nn.Module):
    """A block like those of a ResNet with GroupNorm: in-place ReLU, a shortcut, a stride."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, 4)
        self.second = nn.Conv2d(4, 4, 3, padding=1, dilation=1)
        self.short = nn.Conv2d(2, 4, 1, stride=2)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        inner = self.second(self.relu(self.norm(self.first(x))))
        return self.head(self.relu(inner + self.short(x)).mean((2, 3)))


class Twice(nn.Module):
    """One layer used twice: norms of its uses do not add up."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Tied(nn.Module):
    """A weight used outside its own layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(functional.linear(torch.tanh(self.layer(x)), self.layer.weight.t()))


class Mean(nn.Module):
    """Pictures to one number a channel."""

    def forward(self, x):
        return x.mean((2, 3))


class Overwriting(nn.Module):
    """Changes a layer's input after the layer has seen it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        x = x.clone()
        output = self.layer(x)
        x.zero_()
        return output


def small_net():
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 2 * 2, 3),
    )


def frozen_net():
    model = nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(2, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].weight.requires_grad_(False)
    model[1].bias.requires_grad_(False)
    return model


PICTURE, ROW = (2, 8, 8), (5,)
MODELS = {
    "softmax": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 3)), ROW),
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)), ROW),
    "convolutions": (small_net, PICTURE),
    "residual": (Residual, PICTURE),
    "frozen": (frozen_net, ROW),
}
ODD = {
    "twice": (Twice, ROW),
    "tied": (Tied, ROW),
    "layer norm": (lambda: nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)), ROW),
    "groups": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(144, 3)),
        PICTURE,
    ),
    "sequence": (
        lambda: nn.Sequential(nn.Linear(8, 4), nn.Flatten(), nn.Linear(64, 3)),
        PICTURE,
    ),
}


def case(entry, dtype, records=6, seed=0):
    make, shape = entry
    model = build_model(make, seed).to(dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    x = 3 * torch.randn(records, *shape, generator=generator, dtype=dtype)
    y = torch.randint(0, 3, (records,), generator=generator)
    weights = torch.rand(records, generator=generator, dtype=torch.float64)
    return model, x, y, weights


def loop(model, x, y, bound, weights, loss=None):
    """The definition: one example after the other."""
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    total = {n: torch.zeros_like(p) for n, p in named.items()}
    for one in range(len(x)):
        output = model(x[one : one + 1])
        value = functional.cross_entropy(output, y[one : one + 1])
        if loss is not None:
            value = loss(output, y[one : one + 1]).sum()
        gradients = torch.autograd.grad(value, list(named.values()))
        norm = float(torch.cat([g.reshape(-1) for g in gradients]).norm())
        for name, gradient in zip(named, gradients, strict=True):
            total[name] += float(weights[one]) * min(1.0, bound / norm) * gradient
    return total


def assert_close(found, expected, tolerance):
    assert set(found) == set(expected)
    largest = max(1.0, *(float(v.abs().max()) for v in expected.values()))
    for name, value in expected.items():
        assert float((found[name] - value).abs().max()) <= tolerance * largest, name


@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_each_way_equals_a_loop_over_examples(name, dtype, way):
    model, x, y, weights = case(MODELS[name], dtype)
    assert choose_way(model) == "ghost"
    for bound in (0.3, 2.0, 1e6):
        found = WAYS[way](model, Batch(x, y, bound=bound, weights=weights))
        assert_close(found, loop(model, x, y, bound, weights), TOLERANCE[dtype])


@pytest.mark.device
@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.parametrize("name", sorted(MODELS))
def test_an_accelerator_agrees_with_the_loop(name, way):
    model, x, y, weights = case(MODELS[name], torch.float64)
    expected = loop(model, x, y, 0.3, weights)
    found = WAYS[way](model.cuda(), Batch(x.cuda(), y.cuda(), bound=0.3, weights=weights.cuda()))
    assert_close({n: g.cpu() for n, g in found.items()}, expected, 1e-10)


@pytest.mark.parametrize("name", sorted(ODD))
def test_models_beyond_the_ghost_way_fall_back(name):
    model, x, y, weights = case(ODD[name], torch.float64)
    assert choose_way(model) == "vmap" or ghost_gradients(model, Batch(x, y, bound=0.3)) is None
    found = clipped_gradients(model, Batch(x, y, bound=0.3, weights=weights))
    assert_close(found, loop(model, x, y, 0.3, weights), 1e-10)


def test_an_input_overwritten_later_is_noticed():
    model, x, y, _ = case((Overwriting, ROW), torch.float64)
    assert ghost_gradients(model, Batch(x, y, bound=1.0)) is None


@pytest.mark.parametrize("listing", [0, 10**9])
@pytest.mark.parametrize("name", ["convolutions", "residual"])
def test_convolutions_agree_listed_or_not(name, listing, monkeypatch):
    model, x, y, weights = case(MODELS[name], torch.float64)
    monkeypatch.setattr(per_example, "LISTING", listing)
    found = ghost_gradients(model, Batch(x, y, bound=0.3, weights=weights))
    assert_close(found, loop(model, x, y, 0.3, weights), 1e-10)


@settings(max_examples=30)
@given(*[st.integers(1, 3)] * 4, st.integers(0, 2), st.integers(0, 2))
def test_convolutions_of_any_shape_equal_the_loop(high, wide, step, gap, down, across):
    layer = nn.Conv2d(2, 3, (high, wide), (step, 1), (down, across), (1, gap)).double()
    model = nn.Sequential(layer, nn.Tanh(), Mean())
    _, x, y, weights = case((lambda: nn.Linear(1, 1), PICTURE), torch.float64, 3)
    found = ghost_gradients(model, Batch(x, y, bound=0.01, weights=weights))
    assert_close(found, loop(model, x, y, 0.01, weights), 1e-12)


def test_without_weights_it_is_the_mean():
    model, x, y, _ = case(MODELS["mlp"], torch.float64)
    for way in WAYS.values():
        found = way(model, Batch(x, y, bound=1e9))
        model.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        assert_close(found, {n: p.grad for n, p in model.named_parameters()}, 1e-12)


def squares(output, y):
    return (output - functional.one_hot(y, 3)).square().sum(1)


def plain_squares(output, y):
    return (output - y.unsqueeze(1)).square().sum(1)


def test_a_loss_of_ones_own_is_clipped_alike():
    model, x, y, weights = case(MODELS["mlp"], torch.float64)
    for way in WAYS.values():
        found = way(model, Batch(x, y, bound=0.5, loss=plain_squares, weights=weights))
        assert_close(found, loop(model, x, y, 0.5, weights, plain_squares), 1e-10)


@pytest.mark.parametrize("name", sorted(ODD))
def test_what_vmap_cannot_take_is_looped_over(name):
    model, x, y, weights = case(ODD[name], torch.float64)
    with pytest.raises(RuntimeError, match=r"^vmap:"):
        vmap_gradients(model, Batch(x, y, bound=0.5, loss=squares, weights=weights))
    found = clipped_gradients(model, Batch(x, y, bound=0.5, loss=squares, weights=weights))
    assert_close(found, loop(model, x, y, 0.5, weights, squares), 1e-10)


def test_other_errors_of_a_model_are_not_hidden():
    model, x, y, _ = case(ODD["layer norm"], torch.float64)
    with pytest.raises(RuntimeError, match="Expected size"):
        clipped_gradients(model, Batch(x[:, :4], y, bound=0.5))


def test_small_memory_means_small_chunks_and_the_same_sum():
    model, x, y, weights = case(MODELS["convolutions"], torch.float64, records=7)
    whole = vmap_gradients(model, Batch(x, y, bound=0.3, weights=weights))
    size = sum(p.numel() for p in model.parameters()) * 8
    for memory in (1, 2 * size, 3 * size):
        parts = vmap_gradients(model, Batch(x, y, bound=0.3, weights=weights), memory=memory)
        assert_close(parts, whole, 1e-12)


def test_norms_and_sum_of_the_ghost_way_see_the_same_dropout():
    model = build_model(
        lambda: nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.5), nn.ReLU(), nn.Linear(40, 3)), 0
    ).double()
    _, x, y, weights = case(MODELS["mlp"], torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        found = ghost_gradients(model, Batch(x, y, bound=0.4, weights=weights))
        torch.manual_seed(3)
        losses = functional.cross_entropy(model(x), y, reduction="none")
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for loss, weight in zip(losses, weights, strict=True):
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        norm = float(torch.cat([g.reshape(-1) for g in gradients]).norm())
        assert norm > 0.4
        for name, gradient in zip(total, gradients, strict=True):
            total[name] += weight * 0.4 / norm * gradient
    assert_close(found, total, 1e-12)


def test_examples_have_dropout_masks_of_their_own():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(400, 3)).double()
    x, y = torch.ones(2, 400, dtype=torch.float64), torch.zeros(2, dtype=torch.long)
    for way in WAYS.values():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            untouched = way(model, Batch(x, y, bound=1e9))["1.weight"][0] == 0
        assert 0.15 < float(untouched.double().mean()) < 0.35


@settings(max_examples=20)
@given(st.floats(1e-3, 10.0), st.integers(1, 9), st.integers(0, 99))
def test_one_record_moves_the_mean_by_at_most_its_share(bound, records, seed):
    model, x, y, _ = case(MODELS["mlp"], torch.float64, records, seed)
    other = x.clone()
    other[0] *= -100
    flat = [
        torch.cat(
            [g.reshape(-1) for g in clipped_gradients(model, Batch(z, y, bound=bound)).values()]
        )
        for z in (x, other)
    ]
    assert float(flat[0].norm()) <= bound * (1 + 1e-9)
    assert float((flat[0] - flat[1]).norm()) <= 2 * bound / records * (1 + 1e-9)


def test_a_gradient_of_zero_stays_zero():
    model = nn.Linear(5, 3, bias=False).double()
    x, y = torch.zeros(4, 5, dtype=torch.float64), torch.zeros(4, dtype=torch.long)
    for way in WAYS.values():
        assert not way(model, Batch(x, y, bound=1.0))["weight"].any()


def test_batchnorm_is_refused_and_groupnorm_named():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))
    x, y = torch.randn(4, 1, 5, 5), torch.zeros(4, dtype=torch.long)
    model(x)
    message = "layer '1' is a BatchNorm2d.* flnet-gn or resnet18-gn"
    with pytest.raises(InvalidInput, match=message):
        clipped_gradients(model, Batch(x, y, bound=1.0))
    check_per_example(model.eval())


def bench(model):
    task = TinyTask(size=12, features=5, classes=3)
    return Bench(
        Workspace(model), task.shard(1), Local(), plan().noise, None, 1, 1, torch.Generator()
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_steps_clip_each_example_before_averaging(weighted):
    batches = np.array([[[0, 1, 2, 3], [7, 8, 9, 11]], [[4, 5, 6, 7], [0, 2, 4, 6]]])
    weights = None
    if weighted:
        batches = np.where(batches == 11, -1, batches)
        weights = np.linspace(0.1, 1.6, batches.size).reshape(batches.shape)
    place = bench(build_model(MODELS["mlp"][0], 0).double())
    reference = build_model(MODELS["mlp"][0], 0).double()
    x, y = place.shard.x, place.shard.y
    op = Steps(batches, "all", StepRule("sgd"), 0.5, clip_per_example=0.3, weights=weights)
    events, gradients = execute((op,), place)
    for step in range(2):
        rows = batches[step].reshape(-1)
        there = rows >= 0
        share = np.full(8, 1 / 8) if weights is None else weights[step].reshape(-1)
        found = loop(reference, x[rows[there]], y[rows[there]], 0.3, share[there])
        with torch.no_grad():
            for name, parameter in reference.named_parameters():
                parameter.sub_(found[name], alpha=0.5)
    expected = torch.cat([p.detach().reshape(-1) for p in reference.parameters()])
    assert torch.allclose(place.work.parameters, expected, rtol=0, atol=1e-12)
    (event,) = events
    assert isinstance(event, GradientSteps)
    assert event.clip_per_example == 0.3
    assert gradients == (batches >= 0).sum()
