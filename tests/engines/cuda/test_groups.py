"""Switches of kernel groups: what takes a group's place computes the same, and is what is said."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.engines.cuda.test_fused_network import NETWORKS, in_fours, made, residual
from unwalk.core.errors import InvalidInput
from unwalk.core.program import StepRule, Steps
from unwalk.core.token import Workspace, build_model
from unwalk.engines.cuda import CapturedSteps, fused_network, groups, layers

IN_TRITON = ("batch normalisation", "group normalisation")
"""Without these a fused network runs on a CPU."""


@pytest.fixture(autouse=True)
def as_with_triton(monkeypatch, request):
    """As where Triton is."""
    if "device" not in request.keywords:
        monkeypatch.setattr(fused_network, "available", lambda: True)


def fused_without(model, *off):
    places = {p: torch.full_like(p, float("nan")) for p in model.parameters()}
    with groups.without(*off):
        return fused_network.fuse(model, places), places


def called(network):
    nodes = [n for n in network.network.graph.nodes if n.op == "call_module"]
    return [type(network.network.get_submodule(n.target)) for n in nodes]


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_without_kernels_are_the_same_networks(name):
    model, shape = made(name)
    model, reference = model.cpu(), copy.deepcopy(model.cpu())
    mine, _ = fused_without(model, *IN_TRITON)
    assert mine is not None
    mine.load()
    x, y = torch.randn(6, *shape), torch.randint(10, (6,))
    torch.manual_seed(1)
    found = mine(x)
    torch.manual_seed(1)
    wanted = reference(x)
    mine.settle()
    mine.store()
    gradients, expected = (
        torch.autograd.grad(functional.cross_entropy(output, y), list(one.parameters()))
        for output, one in ((found, model), (wanted, reference))
    )
    assert torch.allclose(found, wanted, atol=1e-5)
    for a, b in zip(gradients, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)
    for (key, a), (_, b) in zip(model.named_buffers(), reference.named_buffers(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), key


@pytest.mark.parametrize(
    ("group", "name", "gone"),
    [
        ("batch normalisation", "residual", layers.Normalisation),
        ("group normalisation", "residual, groups", layers.GroupNormalisation),
    ],
)
def test_each_switch_replaces_its_own_layers(group, name, gone):
    every, _ = fused_without(made(name)[0])
    fewer, _ = fused_without(made(name)[0], group)
    before, after = called(every), called(fewer)
    assert before.count(gone) > 0
    assert after.count(gone) == 0
    assert after.count(layers.PlainNorm) == before.count(gone)
    assert len(after) == len(before)


def test_switches_of_convolutions(monkeypatch):
    from unwalk.engines.cuda import convolution

    monkeypatch.setattr(convolution, "_takes", lambda *_: True)
    how = ((1, 1), (1, 1), (1, 1), 1)
    x, weight = torch.randn(2, 4, 5, 5), torch.randn(3, 4, 3, 3)
    assert convolution.ours(x, weight, how)
    with groups.without("convolutions"):
        assert not convolution.ours(x, weight, how)
        gradient, place = torch.randn(2, 3, 5, 5), torch.empty_like(weight)
        place = place.contiguous(memory_format=torch.channels_last)
        convolution.weight_gradient(gradient, x, weight, how, place)
    wanted = nn.grad.conv2d_weight(x, weight.shape, gradient, padding=1)
    assert torch.allclose(place, wanted, atol=1e-4)


def test_switches_are_put_back_and_unknown_ones_refused():
    with groups.without("convolutions"), groups.without("clipping"):
        assert not groups.uses("convolutions")
        assert not groups.uses("clipping")
    assert all(groups.uses(group) for group in groups.GROUPS)
    with pytest.raises(InvalidInput, match="heads"), groups.without("heads"):
        pass


def after_steps(off, *, norm=nn.BatchNorm2d, bound=None):
    """How a small residual network on a CUDA device has moved after captured steps."""
    work = Workspace(build_model(lambda: residual(norm), 0), torch.device("cuda"))
    work.model.train()
    start = work.parameters.clone()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 1, 8, 3, 8, 8, generator=generator).cuda()
    y = torch.randint(10, (3, 1, 8), generator=generator).cuda()
    rows = np.zeros((3, 1, 8), dtype=np.int64)
    op = Steps(rows, "all", StepRule("momentum"), 0.05, clip_per_example=bound)
    moments = {"momentum": torch.zeros_like(work.parameters)}
    with groups.without(*off):
        steps = CapturedSteps(work, None, precision="float32", compiled=True)
        steps.run(op, x, y, moments, 0, lambda: torch.zeros_like(work.parameters))
    return work.parameters - start


@pytest.mark.device
@pytest.mark.parametrize("group", [g for g in groups.GROUPS if not g.startswith("fleet ")])
def test_captured_steps_without_a_group_are_the_same_steps(group):
    norm = in_fours if group in ("group normalisation", "clipping") else nn.BatchNorm2d
    bound = 0.3 if group == "clipping" else None
    every = after_steps((), norm=norm, bound=bound)
    fewer = after_steps((group,), norm=norm, bound=bound)
    assert float(every.norm()) > 0
    assert float((every - fewer).norm()) < 5e-3 * float(every.norm())
