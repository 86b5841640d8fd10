"""The end of a network, mean over places and linear layer, against plain torch in float64."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.kernels import DEVICE, quiet, runs_kernels
from unwalk.engines.cuda import fused_network
from unwalk.engines.cuda.layers import Head
from unwalk.engines.cuda.record_gradients import RecordGradients
from unwalk.tasks.models import MODELS, flnet

pytestmark = quiet
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 1e-2}
SHAPES = {  # records, channels, height, width, classes
    "as in a ResNet": (5, 512, 4, 4, 10),
    "uneven": (3, 24, 3, 5, 3),
    "one place": (4, 40, 1, 1, 10),
    "one record": (1, 16, 2, 3, 5),
    "many classes": (7, 130, 3, 3, 100),
    "the most classes": (2, 33, 2, 2, 128),
    "several turns": (150, 600, 2, 1, 17),
    "many places": (2, 512, 7, 5, 2),
    "one of each": (1, 1, 1, 1, 1),
    "one channel": (3, 1, 4, 2, 33),
}


def drawn(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def head_of(channels, classes, dtype, *, bias=True, side=None):
    """A layer whose gradients land where nothing is yet."""
    torch.manual_seed(0)
    linear = nn.Linear(channels, classes, bias=bias).to(DEVICE, dtype)
    places = {p: torch.full_like(p, float("nan")) for p in linear.parameters()}
    return Head(linear, side, places[linear.weight], places.get(linear.bias)), places


@runs_kernels
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", SHAPES)
def test_forward_and_backward(name, bias, dtype):
    records, channels, high, wide, classes = SHAPES[name]
    side = torch.cuda.Stream() if DEVICE == "cuda" else None
    head, places = head_of(channels, classes, dtype, bias=bias, side=side)
    x = drawn(records, channels, high, wide, dtype=dtype).requires_grad_()
    start = drawn(records, classes, dtype=dtype, seed=1)
    y = head(x)
    found = torch.autograd.grad(y, [x, *head.parameters()], start)
    if side is not None:
        torch.cuda.current_stream().wait_stream(side)
    given = [t.detach().double().requires_grad_() for t in (x, *head.parameters())]
    wanted = functional.linear(given[0].mean((2, 3)), *given[1:])
    gradients = torch.autograd.grad(wanted, given, start.double())
    assert y.dtype == dtype
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    for a, b in zip([y, *found], [wanted, *gradients], strict=True):
        assert (a.dtype, a.shape) == (dtype, b.shape)
        assert float((a.double() - b).detach().norm() / b.detach().norm()) < TOLERANCE[dtype]
    for parameter, gradient in zip(head.parameters(), found[1:], strict=True):
        assert torch.equal(places[parameter], gradient)


@runs_kernels
def test_the_same_step_gives_the_same_bits():
    head, places = head_of(48, 10, torch.float32)
    x, start = drawn(70, 48, 4, 4).requires_grad_(), drawn(70, 10, seed=1)
    runs = []
    for _ in range(2):
        y = head(x)
        (for_x,) = torch.autograd.grad(y, [x], start)
        runs.append([y, for_x, *(p.clone() for p in places.values())])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@runs_kernels
def test_pictures_that_need_no_gradient_or_lie_otherwise():
    head, places = head_of(6, 4, torch.float32)
    x = drawn(3, 6, 4, 5)[:, :, ::2]
    y = head(x)
    y.sum().backward()  # its gradient is one number, expanded
    plain = copy.deepcopy(head.linear)
    wanted = plain(x.mean((2, 3)))
    wanted.sum().backward()
    assert torch.allclose(y, wanted, atol=1e-6)
    for mine, theirs in zip(head.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(places[mine], theirs.grad, atol=1e-5)


@runs_kernels
def test_pictures_without_channels():
    head, _ = head_of(1, 4, torch.float32)
    x = drawn(3, 5, 4)
    wanted = head.linear(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))
    assert torch.allclose(head(x), wanted, atol=1e-6)


def test_what_does_not_fit_is_refused():
    head, _ = head_of(6, 4, torch.float32)
    with pytest.raises(ValueError, match=r"in_features=6.* cannot take \(3, 5, 4, 4\)"):
        head(drawn(3, 5, 4, 4))
    with pytest.raises(ValueError, match="bfloat16"):
        head(drawn(3, 6, 4, 4, dtype=torch.bfloat16))


def places_of(model):
    return {p: torch.full_like(p, float("nan")) for p in model.parameters() if p.requires_grad}


def called(mine):
    """The kinds of layers and functions that a rewritten network calls."""
    nodes = mine.network.graph.nodes
    layers = [type(mine.network.get_submodule(n.target)) for n in nodes if n.op == "call_module"]
    return [*layers, *(n.target for n in nodes if n.op in ("call_function", "call_method"))]


@pytest.mark.parametrize("name", ["resnet18", "resnet18-gn"])
def test_the_end_of_a_resnet_is_found(name, monkeypatch):
    monkeypatch.setattr(fused_network, "available", lambda: True)
    model = MODELS[name].build((3, 32, 32), 10)
    mine = fused_network.fuse(model, None, places_of(model))
    kinds = called(mine)
    assert kinds.count(Head) == 1
    assert not {nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear} & set(kinds)
    assert mine.placed == set(model.parameters())
    assert set(mine.network.parameters()) == set(model.parameters())


class End(nn.Module):
    """A norm, then one of many ways to go on."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.norm = kind, nn.GroupNorm(2, 4)
        sizes = {"size": 1, "pair": (1, 1), "two places": (1, 2), "as it is": (None, 1)}
        self.pool = nn.AdaptiveAvgPool2d(sizes.get(kind, 1))
        self.flat = nn.Flatten(0 if kind == "flatten all" else 1)
        outs = 129 if kind == "too many classes" else 3
        inner = 8 if kind in ("two places", "flatten all") else 4
        self.last = nn.Linear(inner, outs, bias=kind != "no bias")

    def forward(self, x):
        x = self.norm(x)
        y = functional.adaptive_max_pool2d(x, 1) if self.kind == "max" else self.pool(x)
        if self.kind == "function":
            return self.last(torch.flatten(y, 1))
        if self.kind == "function, named":
            return self.last(torch.flatten(y, start_dim=1))
        if self.kind == "method":
            return self.last(y.flatten(1))
        if self.kind == "two users of the mean":
            return self.last(self.flat(y)) + y.sum()
        if self.kind == "two users of the rows":
            rows = self.flat(y)
            return self.last(rows) + rows.sum()
        if self.kind == "something between":
            return self.last(self.flat(y).tanh())
        return self.last(self.flat(y))


@pytest.mark.parametrize(
    "kind", ["size", "pair", "function", "function, named", "method", "no bias"]
)
def test_ways_to_write_it(kind, monkeypatch):
    monkeypatch.setattr(fused_network, "available", lambda: True)
    model = End(kind)
    mine = fused_network.fuse(model, None, places_of(model))
    assert called(mine).count(Head) == 1
    assert len(called(mine)) == 2
    assert mine.placed == set(model.parameters())


@pytest.mark.parametrize(
    "kind",
    [
        "two places",
        "as it is",
        "flatten all",
        "max",
        "too many classes",
        "two users of the mean",
        "two users of the rows",
        "something between",
        "frozen",
        "frozen bias",
        "other precision",
    ],
)
def test_what_is_left_alone(kind, monkeypatch):
    monkeypatch.setattr(fused_network, "available", lambda: True)
    model = End(kind)
    model.last.weight.requires_grad_(kind != "frozen")
    model.last.bias.requires_grad_(kind not in ("frozen", "frozen bias"))
    if kind == "other precision":
        model.last.double()
    mine = fused_network.fuse(model, None, places_of(model))
    assert Head not in called(mine)
    assert nn.Linear in called(mine)
    assert mine.placed == {model.norm.weight, model.norm.bias}


def test_a_network_that_ends_otherwise_is_left_alone(monkeypatch):
    monkeypatch.setattr(fused_network, "available", lambda: True)
    model = flnet((1, 20, 20), 10)
    mine = fused_network.fuse(model, None, places_of(model))
    assert Head not in called(mine)
    assert nn.Linear in called(mine)


def test_records_are_clipped_without_it(monkeypatch):
    monkeypatch.setattr(fused_network, "available", lambda: True)
    model = End("size")
    mine = fused_network.fuse_by_record(model, None, places_of(model), RecordGradients())
    assert Head not in called(mine)


@runs_kernels
@pytest.mark.parametrize("kind", ["size", "method", "no bias", "two users of the mean"])
def test_gradients_of_a_network_land_in_their_places(kind):
    torch.manual_seed(0)
    model = End(kind).to(DEVICE)
    reference, x = copy.deepcopy(model), drawn(5, 4, 3, 3)
    places = places_of(model)
    mine = fused_network.fuse(model, None, places)
    assert mine is not None
    found, wanted = mine(x), reference(x)
    assert torch.allclose(found, wanted, atol=1e-5)
    torch.autograd.grad(found.square().sum(), list(model.parameters()))
    expected = torch.autograd.grad(wanted.square().sum(), list(reference.parameters()))
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        if parameter in mine.placed:
            assert torch.allclose(places[parameter], gradient, rtol=1e-4, atol=1e-5)
