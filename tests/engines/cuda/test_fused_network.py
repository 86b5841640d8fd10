"""Networks out of fused kernels against the networks they were made from."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.kernels import DEVICE, runs_kernels
from unwalk.engines.cuda import fused_network
from unwalk.engines.cuda.layers import Convolution, GroupNormalisation, Normalisation
from unwalk.tasks.models import flnet, group_norm
from unwalk.tasks.resnet import Block


def in_fours(channels):
    return nn.GroupNorm(4, channels)


def residual(norm=nn.BatchNorm2d):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        norm(8),
        nn.ReLU(),
        Block(8, 8, 1, norm),
        Block(8, 24, 2, norm),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 10),
    )


def mixed():
    """Both norms, with a bias in front and with a pool of an odd side; a group norm of rows."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.GroupNorm(1, 12),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 21),
        nn.GroupNorm(7, 21),
        nn.ReLU(inplace=True),
        nn.Linear(21, 10),
    )


NETWORKS = {
    "flnet": (lambda: flnet((1, 20, 20), 10), (1, 20, 20)),
    "flnet, odd pictures": (lambda: flnet((1, 18, 18), 10), (1, 18, 18)),
    "residual": (residual, (3, 9, 8)),
    "flnet, groups": (lambda: flnet((1, 20, 20), 10, group_norm), (1, 20, 20)),
    "flnet, groups, odd pictures": (lambda: flnet((1, 18, 18), 10, group_norm), (1, 18, 18)),
    "residual, groups": (lambda: residual(in_fours), (3, 9, 8)),
    "mixed": (mixed, (3, 7, 7)),
}


def made(name):
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model = make().to(DEVICE).train()
    for norm in (m for m in model.modules() if isinstance(m, (nn.BatchNorm2d, nn.GroupNorm))):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.5, 0.5)
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.uniform_(-0.2, 0.2)
    return model, shape


@runs_kernels
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_gradients_and_running_statistics_are_the_same(name):
    model, shape = made(name)
    reference = copy.deepcopy(model)
    x = torch.randn(6, *shape, device=DEVICE)
    y = torch.randint(10, (6,), device=DEVICE)
    places = {p: torch.full_like(p, float("nan")) for p in model.parameters()}
    mine = fused_network.fuse(model, places)
    assert mine is not None
    mine.load()
    torch.manual_seed(1)
    found = mine(x.contiguous(memory_format=torch.channels_last))
    torch.manual_seed(1)
    wanted = reference(x)
    assert float((found - wanted).detach().norm() / wanted.detach().norm()) < 1e-5
    loss = functional.cross_entropy(found, y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    mine.settle()
    mine.store()
    loss = functional.cross_entropy(wanted, y)
    reference_gradients = torch.autograd.grad(loss, list(reference.parameters()))
    largest = max(float(g.norm()) for g in reference_gradients)
    for (key, p), a, b in zip(
        model.named_parameters(), gradients, reference_gradients, strict=True
    ):
        assert float((a - b).norm()) < 1e-4 * float(b.norm()) + 1e-6 * largest, key
        if p in mine.placed:
            assert torch.equal(places[p], a), key
    for (key, a), (_, b) in zip(model.named_buffers(), reference.named_buffers(), strict=True):
        if "num_batches" not in key:
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), key


class Sums(nn.Module):
    """Sums behind a norm that are not quite those of a residual block."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.layer, self.norm = kind, nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8)
        self.around, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 10)

    def forward(self, x):
        other = self.around(x)
        inner = self.norm(self.layer(x))
        if self.kind == "broadcast":
            y = torch.relu(inner + other.mean((2, 3), keepdim=True))
        elif self.kind == "weighed":
            y = torch.relu(torch.add(inner, other, alpha=2))
        else:
            y = inner + other  # no ReLU
        return self.head((y + y.tanh()).mean((2, 3)))


@runs_kernels
@pytest.mark.parametrize("kind", ["broadcast", "weighed", "no relu"])
def test_other_sums_are_kept_as_they_are(kind):
    torch.manual_seed(0)
    model = Sums(kind).to(DEVICE)
    reference, x = copy.deepcopy(model), torch.randn(2, 3, 6, 6, device=DEVICE)
    places = {p: torch.zeros_like(p) for p in model.parameters()}
    mine = fused_network.fuse(model, places)
    assert mine is not None
    found, wanted = mine(x), reference(x)
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)
    gradients = torch.autograd.grad(found.square().sum(), list(model.parameters()))
    expected = torch.autograd.grad(wanted.square().sum(), list(reference.parameters()))
    for a, b in zip(gradients, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


@runs_kernels
@pytest.mark.parametrize("name", ["residual", "residual, groups"])
def test_the_same_step_gives_the_same_bits(name):
    model, shape = made(name)
    x = torch.randn(6, *shape, device=DEVICE)
    places = {p: torch.zeros_like(p) for p in model.parameters()}
    mine = fused_network.fuse(model, places)
    mine.load()
    first, again = mine(x), mine(x)  # type: ignore[misc]
    assert torch.equal(first, again)


def test_what_is_rewritten(monkeypatch):
    monkeypatch.setattr(fused_network, "available", lambda: True)
    for name in NETWORKS:
        model, _ = made(name)
        places = {p: torch.zeros_like(p) for p in model.parameters()}
        mine = fused_network.fuse(model, places)
        left = [n for n in mine.network.graph.nodes if n.op == "call_module"]
        called = [type(mine.network.get_submodule(n.target)) for n in left]
        gone = {nn.BatchNorm2d, nn.GroupNorm, nn.ReLU, nn.Identity, nn.Conv2d}
        assert not gone & set(called), name
        kinds = [type(m) for m in model.modules()]
        assert called.count(Normalisation) == kinds.count(nn.BatchNorm2d)
        assert called.count(GroupNormalisation) == kinds.count(nn.GroupNorm)
        assert called.count(Convolution) == kinds.count(nn.Conv2d)
        assert (nn.MaxPool2d in called) is False


class Twice(nn.Module):
    """A layer that is used twice, whose two gradients one place cannot take."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)

    def forward(self, x):
        return self.layer(self.norm(self.layer(x)))


class Outside(Twice):
    """A parameter that is used outside its layer as well."""

    def forward(self, x):
        return self.norm(self.layer(x)) * self.norm.weight.sum()


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4, affine=False)),
        Twice(),
        Outside(),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=None)),
        nn.Sequential(nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(16)),
    ],
    ids=[
        "no norm",
        "no weights, groups",
        "used twice",
        "used outside",
        "no weights",
        "cumulative",
        "another kind of norm",
    ],
)
def test_what_is_left_alone(model, monkeypatch):
    monkeypatch.setattr(fused_network, "available", lambda: True)
    places = {p: torch.zeros_like(p) for p in model.parameters()}
    assert fused_network.fuse(model, places) is None


def test_frozen_layers_are_left_alone(monkeypatch):
    monkeypatch.setattr(fused_network, "available", lambda: True)
    model, _ = made("flnet, groups")
    model[0].weight.requires_grad_(False)
    model[5].bias.requires_grad_(False)
    places = {p: torch.zeros_like(p) for p in model.parameters() if p.requires_grad}
    mine = fused_network.fuse(model, places)
    assert mine.placed == {model[1].weight, model[1].bias, model[4].weight}
    model, _ = made("flnet")
    model[1].weight.requires_grad_(False)
    places = {p: torch.zeros_like(p) for p in model.parameters() if p.requires_grad}
    assert fused_network.fuse(model, places) is None


def test_without_triton_nothing_is_fused(monkeypatch):
    monkeypatch.setattr(fused_network, "available", lambda: False)
    model, _ = made("flnet")
    assert fused_network.fuse(model, {p: torch.zeros_like(p) for p in model.parameters()}) is None
