"""Convolutions in bfloat16 on Hopper against torch's own in float32."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from unwalk.core.program import StepRule, Steps
from unwalk.core.token import Workspace, build_model
from unwalk.engines.cuda import CapturedSteps
from unwalk.engines.cuda.groups import without
from unwalk.tasks.resnet import Block

pytestmark = pytest.mark.device
SHAPES = {  # batch, channels in and out, places across, size, stride
    "many places": (8, 64, 64, 32, 3, 1),
    "many channels": (8, 512, 512, 4, 3, 1),
    "many channels, many pictures": (256, 512, 512, 4, 3, 1),
    "half as many places": (8, 64, 128, 32, 3, 2),
    "half as many places, few": (5, 128, 256, 4, 3, 2),
    "brought to size": (8, 128, 256, 16, 1, 2),
    "one place": (3, 192, 64, 1, 1, 1),
    "a box that is not full": (7, 256, 64, 4, 3, 1),
    "down to one place": (70, 64, 64, 2, 3, 2),
}


@pytest.fixture(autouse=True)
def hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernels are for devices of compute capability 9.0")


def drawn(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator).to("cuda", torch.bfloat16)
    return values.contiguous(memory_format=torch.channels_last)


def near(found, wanted):
    return float((found.float() - wanted).norm()) < 4e-3 * float(wanted.norm())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_convolutions_and_their_gradients_equal_torch_ones(shape):
    from unwalk.engines.cuda.kernels import convolution as kernels

    batch, inner, outer, across, size, stride = shape
    x = drawn(batch, inner, across, across, seed=0)
    weight = drawn(outer, inner, size, size, seed=1)
    assert kernels.fits(x, weight, stride)
    y = kernels.convolve(x, weight, stride)
    wanted = functional.conv2d(x.float(), weight.float(), stride=stride, padding=size // 2)
    assert y.shape == wanted.shape
    assert near(y, wanted)
    gradient = drawn(*y.shape, seed=2)
    for_x = kernels.input_gradient(gradient, weight, stride)
    back = conv2d_input(x.shape, weight.float(), gradient.float(), stride, size // 2)
    assert near(for_x, back)
    places = torch.full((2, *weight.shape), float("nan"), device="cuda", dtype=torch.bfloat16)
    for place in (lying := [p.contiguous(memory_format=torch.channels_last) for p in places]):
        kernels.weight_gradient(gradient, x, place, stride)
    wanted = conv2d_weight(x.float(), weight.shape, gradient.float(), stride, size // 2)
    assert near(lying[0], wanted)
    assert torch.equal(*lying)


@pytest.mark.parametrize(
    "change",
    [
        {"across": 12},
        {"inner": 48},
        {"size": 5},
        {"stride": 3},
        {"dtype": torch.float32},
        {"format": torch.contiguous_format},
    ],
    ids=str,
)
def test_other_shapes_are_left_to_others(change):
    from unwalk.engines.cuda.kernels import convolution as kernels

    base = {"across": 8, "inner": 64, "size": 3, "stride": 1, "dtype": torch.bfloat16}
    how = {**base, "format": torch.channels_last, **change}
    x = torch.zeros(2, how["inner"], how["across"], how["across"], device="cuda")
    weight = torch.zeros(64, how["inner"], how["size"], how["size"], device="cuda")
    x, weight = (t.to(how["dtype"]).contiguous(memory_format=how["format"]) for t in (x, weight))
    assert kernels.fits(x, weight, how["stride"]) == (change == {})


def network():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        Block(64, 64, 1, nn.BatchNorm2d),
        Block(64, 128, 2, nn.BatchNorm2d),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def after_steps(precision, *, ours):
    with without(*() if ours else ("convolutions",)):
        return taken_steps(precision)


def taken_steps(precision):
    work = Workspace(build_model(network, 0), torch.device("cuda"))
    work.model.train()
    start = work.parameters.clone()
    steps = CapturedSteps(work, None, precision=precision, compiled=True)
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(4, 1, 24, 3, 8, 8, generator=generator).cuda()
    y = torch.randint(10, (4, 1, 24), generator=generator).cuda()
    op = Steps(np.zeros((4, 1, 24), dtype=np.int64), "all", StepRule("momentum"), 0.05)
    moments = {"momentum": torch.zeros_like(work.parameters)}
    steps.run(op, x, y, moments, 0, lambda: torch.zeros_like(work.parameters))
    return work.parameters - start, dict(work.buffers)


def test_a_network_of_them_moves_as_one_of_torch_ones():
    exact, there = after_steps("float32", ours=False)
    plain, _ = after_steps("bfloat16", ours=False)
    mine, here = after_steps("bfloat16", ours=True)
    far = float((plain - exact).norm())
    assert 0 < float((mine - exact).norm()) < 1.5 * far < 0.3 * float(exact.norm())
    for name, buffer in there.items():
        assert torch.allclose(here[name].float(), buffer.float(), rtol=0.05, atol=0.02), name
