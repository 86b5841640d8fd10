"""Kernels of group normalisation, and of norms by record, against plain torch in float64."""

import pytest
import torch
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from tests.kernels import DEVICE, INTERPRETED, quiet, runs_kernels

pytestmark = [runs_kernels, quiet]
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2}
SHAPES = {  # records, channels, groups, height, width
    "pairs": (2, 8, 4, 3, 5),
    "threes": (3, 12, 4, 4, 4),
    "fives, two programs": (2, 100, 20, 17, 9),
    "one group": (2, 7, 1, 2, 6),
    "a channel a group": (2, 5, 5, 20, 20),
    "one place": (3, 21, 7, 1, 1),
    "as in a ResNet": (2, 64, 16, 8, 8),
}


def drawn(*shape, dtype=torch.float32, seed=0, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    values = (torch.randn(*shape, generator=generator) + shift).to(DEVICE, dtype)
    return values.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else values


def assert_near(found, wanted, dtype):
    for a, b in zip(found, wanted, strict=True):
        error = float((a.detach().double() - b.detach()).norm() / b.detach().norm())
        assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    ("relu", "summed", "two"),
    [(False, False, False), (True, False, True), (True, True, False), (True, True, True)],
    ids=["alone", "relu, two users", "sum, relu", "sum, relu, two users"],
)
def test_group_norm_forward_and_backward(name, dtype, relu, summed, two):
    from unwalk.engines.cuda.kernels import group_norm

    records, channels, groups, high, wide = SHAPES[name]
    shape = (records, channels, high, wide)
    x, first, second, other = (drawn(*shape, dtype=dtype, seed=k) for k in range(4))
    weight, bias = drawn(channels, seed=4, dtype=dtype), drawn(channels, seed=5, dtype=dtype)
    y, stats = group_norm.normalise(
        x, weight, bias, other if summed else None, groups, 1e-5, relu=relu
    )
    for_x, for_other, sums = group_norm.backward(
        first, second if two else None, x, y if relu and summed else None, stats, weight, bias,
        relu=relu, summed=summed,
    )  # fmt: skip
    for_weight, for_bias = torch.full((2, channels), float("nan"), device=DEVICE)
    group_norm.collect(sums, for_weight, for_bias)
    given = [t.double().requires_grad_() for t in (x, weight, bias, other)]
    wanted = functional.group_norm(given[0], groups, given[1], given[2], 1e-5)
    wanted = wanted + given[3] if summed else wanted
    wanted = torch.relu(wanted) if relu else wanted
    start = first.double() + second.double() if two else first.double()
    count = 4 if summed else 3
    gradients = torch.autograd.grad(wanted, given[:count], start)
    found = [y, for_x, for_weight, for_bias, for_other][: count + 1]
    assert_near(found, [wanted, *gradients], dtype)
    own = [start[k] * (wanted[k] > 0) if relu else start[k] for k in range(records)]
    assert_near([sums[k, 0] for k in range(records)], [g.sum((1, 2)) for g in own], dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(2, 8, 4, 4, 6), (2, 12, 4, 8, 8), (1, 32, 16, 24, 24)])
def test_group_norm_with_a_pool(shape, dtype):
    from unwalk.engines.cuda.kernels import group_norm

    records, channels, groups, high, wide = shape
    x = drawn(records, channels, high, wide, dtype=dtype)
    gradient = drawn(records, channels, high // 2, wide // 2, seed=1, dtype=dtype)
    weight, bias = drawn(channels, seed=2), drawn(channels, seed=3)
    y, stats = group_norm.normalise_pooled(x, weight, bias, groups, 1e-5)
    for_x, sums = group_norm.backward_pooled(gradient, x, stats, weight, bias)
    given = [t.double().requires_grad_() for t in (x, weight, bias)]
    normalised = functional.group_norm(given[0], groups, given[1], given[2], 1e-5)
    wanted = functional.max_pool2d(torch.relu(normalised), 2)
    gradients = torch.autograd.grad(wanted, given, gradient.double())
    assert_near([y, for_x, sums[:, 1].sum(0), sums[:, 0].sum(0)], [wanted, *gradients], dtype)


def test_values_far_from_zero_keep_their_variance():
    from unwalk.engines.cuda.kernels import group_norm

    x = drawn(2, 8, 6, 6, shift=1000.0)
    one, none = torch.ones(8, device=DEVICE), torch.zeros(8, device=DEVICE)
    y, _ = group_norm.normalise(x, one, none, None, 4, 1e-5, relu=False)
    wanted = functional.group_norm(x.double(), 4)
    assert float((y.double() - wanted).norm() / wanted.norm()) < 2e-4


CONVOLUTIONS = {  # records, channels in and out, height, width, kernel, stride, padding, dilation
    "padded": (2, 3, 8, 6, 5, (3, 3), (1, 1), (1, 1), (1, 1)),
    "uneven": (3, 5, 20, 7, 9, (3, 2), (2, 1), (0, 1), (1, 2)),
    "several tiles": (2, 150, 140, 4, 4, (1, 1), (2, 2), (0, 0), (1, 1)),
    "few places": (2, 40, 50, 5, 4, (3, 2), (2, 1), (1, 0), (1, 2)),
    "few places, several chunks": (2, 140, 130, 4, 4, (1, 1), (1, 1), (0, 0), (1, 1)),
    "many places": (2, 16, 24, 17, 9, (3, 3), (2, 2), (1, 1), (1, 1)),
}
HALVES = [torch.float32, torch.float16] if INTERPRETED else [torch.float32, torch.bfloat16]
"""The interpreter multiplies no bfloat16."""


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_norms_of_convolutions_by_record(name, dtype):
    from unwalk.engines.cuda.kernels import record_gradients

    records, channels, outs, high, wide, kernel, stride, padding, dilation = CONVOLUTIONS[name]
    how = (stride, padding, dilation)
    x = drawn(records, channels, high, wide, dtype=dtype)
    shape = (outs, channels, *kernel)
    places = functional.conv2d(x.double(), drawn(*shape).double(), None, *how).shape
    gradient = drawn(*places, seed=1, dtype=dtype)
    found = record_gradients.convolution_squares(x, gradient, kernel, how).sum(1)
    for record in range(records):
        given = (x[record : record + 1].double(), shape, gradient[record : record + 1].double())
        wanted = float(conv2d_weight(*given, *how).square().sum())
        assert abs(float(found[record]) - wanted) < 1e-5 * wanted


def test_records_are_scaled_in_float32():
    from unwalk.engines.cuda.kernels import record_gradients

    factors = torch.rand(3, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for dtype, rounding in ((torch.float32, 0.0), (torch.bfloat16, 2.0**-7)):
        x = drawn(3, 5, 7, 4, dtype=dtype)
        found = record_gradients.scaled(x, factors)
        wanted = x.float() * factors.view(-1, 1, 1, 1)
        assert found.dtype == dtype
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert bool(((found.float() - wanted).abs() <= rounding * wanted.abs()).all())
