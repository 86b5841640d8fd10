"""Gradients clipped by record out of fused networks, against the reference for one."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.kernels import DEVICE, runs_kernels
from unwalk.engines.cuda import fused_network
from unwalk.engines.cuda.clipped_steps import Clipped
from unwalk.engines.cuda.layers import Convolution, GroupNormalisation, Linear
from unwalk.engines.cuda.record_gradients import Unfit
from unwalk.engines.per_example import Batch, ghost_gradients
from unwalk.tasks.models import flnet, group_norm, small_cnn
from unwalk.tasks.resnet import Block


def in_fours(channels):
    return nn.GroupNorm(4, channels)


def residual():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        in_fours(8),
        nn.ReLU(),
        Block(8, 8, 1, in_fours),
        Block(8, 12, 2, in_fours),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 10),
    )


def rows():
    """Group norms of pictures and of rows, convolutions with a bias, layers without one."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)),
        nn.Conv2d(1, 8, 3, (2, 1)),
        nn.GroupNorm(2, 8),
        nn.Conv2d(8, 5, 2, dilation=(1, 2)),
        nn.Flatten(),
        nn.Linear(10, 12, bias=False),
        nn.GroupNorm(3, 12),
        nn.ReLU(),
        nn.Linear(12, 10),
    )


NETWORKS = {
    "flnet": (lambda: flnet((1, 16, 16), 10, group_norm), (1, 16, 16)),
    "residual": (residual, (3, 9, 8)),
    "rows": (rows, (36,)),
    "no norm": (lambda: small_cnn((1, 5, 5), 10), (1, 5, 5)),
}


def made(name, records=3):
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model = make().to(DEVICE).train()
    for norm in (m for m in model.modules() if isinstance(m, nn.GroupNorm)):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.5, 0.5)
    x = torch.randn(records, *shape, device=DEVICE)
    return model, x, torch.randint(10, (records,), device=DEVICE)


def nowhere(model):
    return {p: torch.full_like(p, float("nan")) for p in model.parameters() if p.requires_grad}


def laid_out(x):
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def squares(output, y):
    return (output - functional.one_hot(y, 10)).square().sum(1)


@runs_kernels
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("loss", [None, squares], ids=["cross-entropy", "own loss"])
def test_clipped_gradients_equal_the_reference(name, loss):
    model, x, y = made(name)
    reference, places = copy.deepcopy(model), nowhere(model)
    mine = Clipped.of(model, places)
    assert mine is not None
    given = laid_out(x)
    for bound in (0.3, 1e6) if loss is None else (0.3,):
        torch.manual_seed(1)
        mine.step(given, y, bound, loss)
        torch.manual_seed(1)
        wanted = ghost_gradients(reference, Batch(x, y, bound=bound, loss=loss))
        largest = max(float(g.norm()) for g in wanted.values())
        for key, p in model.named_parameters():
            error = float((places[p] - wanted[key]).norm())
            assert error < 1e-4 * float(wanted[key].norm()) + 1e-6 * largest, key


class Spare(nn.Module):
    """One of its layers takes no part."""

    def __init__(self):
        super().__init__()
        self.layer, self.spare = nn.Linear(5, 10), nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x)


@runs_kernels
def test_a_parameter_that_takes_no_part_gets_no_gradient():
    torch.manual_seed(0)
    model = Spare().to(DEVICE)
    places = nowhere(model)
    mine = Clipped.of(model, places)
    y = torch.zeros(3, dtype=torch.long, device=DEVICE)
    mine.step(torch.randn(3, 5, device=DEVICE), y, 0.5, None)
    assert not places[model.spare.weight].any()
    assert not places[model.spare.bias].any()
    assert bool(places[model.layer.weight].isfinite().all())


class Folded(nn.Module):
    """Its convolution sees two rows a record."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.norm(self.layer(x.reshape(-1, 1, 3, 3))).reshape(-1, 8))


def test_what_sees_other_rows_than_records_is_refused(monkeypatch):
    monkeypatch.setattr(fused_network, "available", lambda: True)
    model = Folded()
    mine = Clipped.of(model, nowhere(model))
    assert mine is not None
    with pytest.raises(Unfit):
        mine.step(torch.randn(3, 2, 3, 3), torch.zeros(3, dtype=torch.long), 1.0, None)


def test_what_is_rewritten(monkeypatch):
    monkeypatch.setattr(fused_network, "available", lambda: True)
    for name in NETWORKS:
        model, _, _ = made(name)
        network = Clipped.of(model, nowhere(model)).network.network
        nodes = [n for n in network.graph.nodes if n.op == "call_module"]
        called = [type(network.get_submodule(n.target)) for n in nodes]
        kinds = [type(m) for m in model.modules()]
        assert called.count(Convolution) == kinds.count(nn.Conv2d)
        assert called.count(Linear) == kinds.count(nn.Linear)
        assert called.count(GroupNormalisation) == kinds.count(nn.GroupNorm)


def test_what_is_left_to_the_reference(monkeypatch):
    monkeypatch.setattr(fused_network, "available", lambda: True)
    shared = nn.Linear(4, 4)
    for model in (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False)),
        nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.GroupNorm(2, 4)),
        nn.Sequential(nn.Conv2d(1, 4, 3, padding="same"), nn.GroupNorm(2, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
        nn.Sequential(shared, nn.Tanh(), shared),
    ):
        assert Clipped.of(model, nowhere(model)) is None
    partly = nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4))
    assert Clipped.of(partly, nowhere(partly)) is not None
    partly[0].bias.requires_grad_(False)
    assert Clipped.of(partly, nowhere(partly)) is None
    partly[0].weight.requires_grad_(False)
    assert Clipped.of(partly, nowhere(partly)) is not None
    monkeypatch.setattr(fused_network, "available", lambda: False)
    assert Clipped.of(partly, nowhere(partly)) is None
