"""Convolutions in bfloat16 on Hopper against torch's own in float32."""

import pytest
import torch
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

pytestmark = pytest.mark.device
SHAPES = {  # batch, channels in and out, places across, size, stride
    "many places": (8, 64, 64, 32, 3, 1),
    "many channels": (8, 512, 512, 4, 3, 1),
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
    from unwalk.engines import conv_kernels

    batch, inner, outer, across, size, stride = shape
    x = drawn(batch, inner, across, across, seed=0)
    weight = drawn(outer, inner, size, size, seed=1)
    assert conv_kernels.fits(x, weight, stride)
    y = conv_kernels.convolve(x, weight, stride)
    wanted = functional.conv2d(x.float(), weight.float(), stride=stride, padding=size // 2)
    assert y.shape == wanted.shape
    assert near(y, wanted)
    gradient = drawn(*y.shape, seed=2)
    for_x = conv_kernels.input_gradient(gradient, weight, stride)
    back = conv2d_input(x.shape, weight.float(), gradient.float(), stride, size // 2)
    assert near(for_x, back)
    places = torch.full((2, *weight.shape), float("nan"), device="cuda", dtype=torch.bfloat16)
    for place in (lying := [p.contiguous(memory_format=torch.channels_last) for p in places]):
        conv_kernels.weight_gradient(gradient, x, place, stride)
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
    from unwalk.engines import conv_kernels

    base = {"across": 8, "inner": 64, "size": 3, "stride": 1, "dtype": torch.bfloat16}
    how = {**base, "format": torch.channels_last, **change}
    x = torch.zeros(2, how["inner"], how["across"], how["across"], device="cuda")
    weight = torch.zeros(64, how["inner"], how["size"], how["size"], device="cuda")
    x, weight = (t.to(how["dtype"]).contiguous(memory_format=how["format"]) for t in (x, weight))
    assert conv_kernels.fits(x, weight, how["stride"]) == (change == {})
