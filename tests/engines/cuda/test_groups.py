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
from unwalk.engines import fleet_steps
from unwalk.engines.cuda import (
    CapturedSteps,
    compiled,
    fleet_layers,
    fused_network,
    groups,
    layers,
)
from unwalk.engines.fleet_steps import Kind, Team

IN_TRITON = ("batch normalisation", "group normalisation")
"""Without these a fused network runs on a CPU."""


@pytest.fixture(autouse=True)
def as_with_triton(monkeypatch, request):
    """As where Triton is; functions are taken as they are, since compiling them takes long."""
    if "device" in request.keywords:
        yield
        return
    for module in (fused_network, fleet_layers):
        monkeypatch.setattr(module, "available", lambda: True)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    compiled.compiled.cache_clear()
    yield
    compiled.compiled.cache_clear()


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
    ("group", "name", "gone", "there"),
    [
        ("batch normalisation", "residual", layers.Normalisation, compiled.CompiledNorm),
        (
            "group normalisation",
            "residual, groups",
            layers.GroupNormalisation,
            compiled.CompiledNorm,
        ),
    ],
)
def test_each_switch_replaces_its_own_layers(group, name, gone, there):
    every, _ = fused_without(made(name)[0])
    fewer, _ = fused_without(made(name)[0], group)
    before, after = called(every), called(fewer)
    assert before.count(gone) > 0
    assert after.count(gone) == 0
    assert after.count(there) == before.count(there) + before.count(gone)
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


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_a_compiled_update_of_a_fleet_is_the_plain_one(optimizer):
    torch.manual_seed(0)
    rule = StepRule(optimizer)
    parameters, slopes, settings = torch.randn(3, 7), torch.randn(3, 7), torch.rand(3, 6)
    active = torch.tensor([[True], [False], [True]])
    moments = {slot: torch.randn(3, 7) for slot in rule.slots}
    plain = Team(
        parameters.clone(),
        {},
        {slot: moment.clone() for slot, moment in moments.items()},
        torch.zeros(3, 1),
        settings,
    )
    batch = fleet_steps.Batch(slopes, slopes, slopes, active, None)
    fleet_steps._plain(plain, Kind(rule, None, clipped=False, noisy=False), slopes, batch)
    given = (rule, parameters, slopes, moments, settings, plain.counters, active)
    with groups.without("fleet optimizer step"):
        assert not fleet_layers.update(*given, clipped=True)
        assert fleet_layers.update(*given, clipped=False)
    assert torch.allclose(parameters, plain.parameters, atol=1e-6)
    for slot, moment in moments.items():
        assert torch.allclose(moment, plain.moments[slot], atol=1e-6)


@pytest.mark.parametrize("heavy", [False, True])
def test_a_compiled_step_of_one_walk_is_descent(heavy):
    torch.manual_seed(0)
    masters, gradients = torch.randn(9), torch.randn(9).to(torch.bfloat16)
    velocity = torch.randn(9) if heavy else None
    knobs, factor = torch.tensor([0.1, 0.0, 0.0, 0.9, 0.01, 0.0]), torch.tensor(-2.0)
    change = gradients.float() * -2.0 + 0.01 * masters
    change = change if velocity is None else 0.9 * velocity + change
    wanted, values = masters - 0.1 * change, torch.zeros(9, dtype=torch.bfloat16)
    compiled.descend(masters, values, gradients, velocity, knobs, factor)
    assert torch.allclose(masters, wanted)
    assert torch.equal(values, masters.to(torch.bfloat16))
    assert velocity is None or torch.allclose(velocity, change)


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
def test_captured_steps_without_a_group_are_the_same_steps(group, monkeypatch):
    from torch._dynamo import config

    if hasattr(config, "recompile_limit"):
        monkeypatch.setattr(config, "recompile_limit", 64)
    norm = in_fours if group in ("group normalisation", "clipping") else nn.BatchNorm2d
    bound = 0.3 if group == "clipping" else None
    every = after_steps((), norm=norm, bound=bound)
    fewer = after_steps((group,), norm=norm, bound=bound)
    assert float(every.norm()) > 0
    assert float((every - fewer).norm()) < 5e-3 * float(every.norm())
