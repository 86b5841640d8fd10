"""Triton kernels: batch normalisation of channels-last pictures, with what follows it.

Activations are tables of batch * places rows and as many columns as channels.  Many programs add
to the sums over rows at once.  They add whole numbers (the share of a sum, in units of 2**-40),
whose order does not matter, so the same step gives the same bits every time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from unwalk.engines.cuda.batch_norm_state import BatchNormState

UNIT = tl.constexpr(2.0**-40)
"""What sums are counted in."""
PROGRAMS = 528
"""So many programs share a sum over rows: four for each multiprocessor."""
ELEMENTS = 4096
"""Numbers that a program looks at together."""


@dataclass(frozen=True)
class _Cut:
    """How a table is cut: channels per block, rows per tile, blocks, programs, rows per program."""

    block: int
    tile: int
    blocks: int
    programs: int
    per: int

    @staticmethod
    def of(rows: int, channels: int, elements: int = ELEMENTS) -> _Cut:
        block = min(64, triton.next_power_of_2(channels))
        blocks = triton.cdiv(channels, block)
        tile = max(16, elements // block)
        share = triton.cdiv(rows, max(1, PROGRAMS // blocks))
        per = triton.cdiv(share, tile) * tile
        return _Cut(block, tile, blocks, triton.cdiv(rows, per), per)


def _rows(x: torch.Tensor) -> int:
    return x.numel() // x.shape[1]


@triton.jit
def _tile(rows, channels, block: tl.constexpr, tile: tl.constexpr):
    """This program's rows and channels, which channels are real, and which numbers are."""
    r = tl.program_id(0) * tile + tl.arange(0, tile)
    c = tl.program_id(1) * block + tl.arange(0, block)
    there = c < channels
    mask = (r < rows)[:, None] & there[None, :]
    return r, c, there, mask


@triton.jit
def _add(place, c, there, total):
    tl.atomic_add(place + c, (total / UNIT).to(tl.int64), mask=there, sem="relaxed")


@triton.jit
def _counted(place, c, there):
    return tl.load(place + c, mask=there, other=0).to(tl.float32) * UNIT


@triton.jit
def _find_moments(sums, running, c, there, stride, eps):
    """Mean, 1 / std and variance of a batch, from its sums."""
    about = _counted(sums, c, there)
    variance = tl.maximum(_counted(sums + stride, c, there) - about * about, 0.0)
    mean = tl.load(running + c, mask=there, other=0.0) + about
    return mean, tl.rsqrt(variance + eps), variance


@triton.jit
def _moments(moments, c, there, stride):
    """Mean and 1 / std, as they were found."""
    mean = tl.load(moments + c, mask=there, other=0.0)
    return mean, tl.load(moments + stride + c, mask=there, other=0.0)


@triton.jit
def _corner(q, high, wide):
    """The first row of window ``q`` of 2 x 2 places, in a picture of ``high`` x ``wide`` places."""
    columns = wide // 2
    lines = high // 2
    line = q // columns
    return (line // lines * high + line % lines * 2) * wide + q % columns * 2


@triton.jit
def best_of(v0, v1, v2, v3, w, b):
    """The largest of four values after scaling, and where it is first."""
    a0, a1, a2, a3 = v0 * w + b, v1 * w + b, v2 * w + b, v3 * w + b
    best = tl.maximum(tl.maximum(a0, a1), tl.maximum(a2, a3))
    where = tl.where(a0 == best, 0, tl.where(a1 == best, 1, tl.where(a2 == best, 2, 3)))
    return best, where


@triton.jit
def _statistics(
    x, sums, running, rows, channels, stride,
    per: tl.constexpr, block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Adds this program's share to the mean and the mean square about the running mean."""
    c = tl.program_id(0) * block + tl.arange(0, block)
    there = c < channels
    about = tl.load(running + c, mask=there, other=0.0)
    total = tl.zeros((tile, block), tl.float32)
    square = tl.zeros((tile, block), tl.float32)
    for start in range(0, per, tile):
        r = tl.program_id(1) * per + start + tl.arange(0, tile)
        mask = (r < rows)[:, None] & there[None, :]
        value = tl.load(x + r[:, None] * channels + c[None, :], mask=mask, other=0.0)
        value = tl.where(mask, value.to(tl.float32) - about[None, :], 0.0)
        total += value
        square += value * value
    _add(sums, c, there, tl.sum(total, 0) / rows)
    _add(sums + stride, c, there, tl.sum(square, 0) / rows)


def _count(x: torch.Tensor, layer: BatchNormState) -> None:
    """Sums up mean and mean square of the channels of ``x``."""
    rows = _rows(x)
    cut = _Cut.of(rows, layer.weight.numel())
    _statistics[(cut.blocks, cut.programs)](
        x, layer.sums, layer.running, rows, layer.weight.numel(), layer.sums.stride(0),
        cut.per, cut.block, cut.tile,
    )  # fmt: skip


@triton.jit
def _tell(
    news, moments, shift, c, there, stride, mean, scale, variance, rows, shifted: tl.constexpr
):
    """Write the moments down, and what the running statistics will move towards."""
    tl.store(moments + c, mean, mask=there)
    tl.store(moments + stride + c, scale, mask=there)
    if shifted:
        mean += tl.load(shift + c, mask=there, other=0.0).to(tl.float32)
    tl.store(news + c, mean, mask=there)
    tl.store(news + stride + c, variance * (rows / (rows - 1.0)), mask=there)


@triton.jit
def _normalise(
    x, y, other, sums, running, news, moments, shift, weight, bias, rows, channels, stride, eps,
    given: tl.constexpr, shifted: tl.constexpr, summed: tl.constexpr, relu: tl.constexpr,
    block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    r, c, there, mask = _tile(rows, channels, block, tile)
    at = r[:, None] * channels + c[None, :]
    value = tl.load(x + at, mask=mask).to(tl.float32)
    if given:
        mean, scale = _moments(moments, c, there, stride)
    else:
        mean, scale, variance = _find_moments(sums, running, c, there, stride, eps)
        if tl.program_id(0) == 0:
            _tell(news, moments, shift, c, there, stride, mean, scale, variance, rows, shifted)
    factor = scale * tl.load(weight + c, mask=there)
    value = (value - mean[None, :]) * factor[None, :] + tl.load(bias + c, mask=there)[None, :]
    if summed:
        value += tl.load(other + at, mask=mask).to(tl.float32)
    if relu:
        value = tl.maximum(value, 0.0)
    tl.store(y + at, value, mask=mask)


@triton.jit
def _normalise_pooled(
    x, y, sums, running, news, moments, shift, weight, bias, windows, channels, high, wide,
    stride, eps, given: tl.constexpr, shifted: tl.constexpr, block: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    q, c, there, mask = _tile(windows, channels, block, tile)
    at = x + _corner(q, high, wide)[:, None] * channels + c[None, :]
    v0 = tl.load(at, mask=mask).to(tl.float32)
    v1 = tl.load(at + channels, mask=mask).to(tl.float32)
    v2 = tl.load(at + wide * channels, mask=mask).to(tl.float32)
    v3 = tl.load(at + (wide + 1) * channels, mask=mask).to(tl.float32)
    if given:
        mean, scale = _moments(moments, c, there, stride)
    else:
        mean, scale, variance = _find_moments(sums, running, c, there, stride, eps)
        if tl.program_id(0) == 0:
            count = 4.0 * windows
            _tell(news, moments, shift, c, there, stride, mean, scale, variance, count, shifted)
    factor = scale * tl.load(weight + c, mask=there)
    offset = tl.load(bias + c, mask=there) - mean * factor
    best, _ = best_of(v0, v1, v2, v3, factor[None, :], offset[None, :])
    tl.store(y + q[:, None] * channels + c[None, :], tl.maximum(best, 0.0), mask=mask)


def normalise(
    x: torch.Tensor,
    layer: BatchNormState,
    shift: torch.Tensor | None,
    other: torch.Tensor | None,
    relu: bool,
    *,
    given: bool = False,
) -> torch.Tensor:
    """Normalised, scaled, summed with ``other`` and cut off below zero, as asked for.

    ``shift`` is added to the running mean's news: a bias that was left out in front.  The moments
    are those of ``x``, or such as are ``given``.
    """
    if not given:
        _count(x, layer)
    y = torch.empty_like(x)
    rows = _rows(x)
    cut = _Cut.of(rows, layer.weight.numel())
    _normalise[(triton.cdiv(rows, cut.tile), cut.blocks)](
        x, y, x if other is None else other, layer.sums, layer.running, layer.news,
        layer.moments, x if shift is None else shift, layer.weight, layer.bias, rows,
        layer.weight.numel(), layer.sums.stride(0), layer.eps,
        given, shift is not None, other is not None, relu, cut.block, cut.tile,
    )  # fmt: skip
    return y


def normalise_pooled(
    x: torch.Tensor, layer: BatchNormState, shift: torch.Tensor | None, *, given: bool = False
) -> torch.Tensor:
    """Normalised, cut off below zero, and the largest of each window of 2 x 2 places."""
    if not given:
        _count(x, layer)
    batch, channels, high, wide = x.shape
    shape = (batch, channels, high // 2, wide // 2)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    windows = _rows(y)
    cut = _Cut.of(windows, channels, ELEMENTS // 4)
    _normalise_pooled[(triton.cdiv(windows, cut.tile), cut.blocks)](
        x, y, layer.sums, layer.running, layer.news, layer.moments, x if shift is None else shift,
        layer.weight, layer.bias, windows, channels, high, wide, layer.sums.stride(0), layer.eps,
        given, shift is not None, cut.block, cut.tile,
    )  # fmt: skip
    return y


@triton.jit
def _sums(
    gradient, second, x, kept, sums, moments, weight, bias, rows, channels, stride,
    two: tl.constexpr, relu: tl.constexpr, has_kept: tl.constexpr,
    per: tl.constexpr, block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Adds this program's share to the sums of the gradient."""
    c = tl.program_id(0) * block + tl.arange(0, block)
    there = c < channels
    mean, scale = _moments(moments, c, there, stride)
    w = tl.load(weight + c, mask=there, other=0.0)
    b = tl.load(bias + c, mask=there, other=0.0)
    plain = tl.zeros((tile, block), tl.float32)
    times = tl.zeros((tile, block), tl.float32)
    for start in range(0, per, tile):
        r = tl.program_id(1) * per + start + tl.arange(0, tile)
        mask = (r < rows)[:, None] & there[None, :]
        at = r[:, None] * channels + c[None, :]
        g = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
        if two:
            g += tl.load(second + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        value = (value - mean[None, :]) * scale[None, :]
        if relu:
            if has_kept:
                g = tl.where(tl.load(kept + at, mask=mask, other=0.0) > 0.0, g, 0.0)
            else:
                g = tl.where(value * w[None, :] + b[None, :] > 0.0, g, 0.0)
        plain += g
        times += g * value
    _add(sums + 2 * stride, c, there, tl.sum(plain, 0))
    _add(sums + 3 * stride, c, there, tl.sum(times, 0))


@triton.jit
def _sums_pooled(
    gradient, x, sums, moments, weight, bias, windows, channels, high, wide, stride,
    per: tl.constexpr, block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The same where only the largest place of a window has a gradient."""
    c = tl.program_id(0) * block + tl.arange(0, block)
    there = c < channels
    mean, scale = _moments(moments, c, there, stride)
    mean, scale = mean[None, :], scale[None, :]
    w = tl.load(weight + c, mask=there, other=0.0)[None, :]
    b = tl.load(bias + c, mask=there, other=0.0)[None, :]
    plain = tl.zeros((tile, block), tl.float32)
    times = tl.zeros((tile, block), tl.float32)
    for start in range(0, per, tile):
        q = tl.program_id(1) * per + start + tl.arange(0, tile)
        mask = (q < windows)[:, None] & there[None, :]
        at = x + _corner(q, high, wide)[:, None] * channels + c[None, :]
        v0 = (tl.load(at, mask=mask, other=0.0).to(tl.float32) - mean) * scale
        v1 = (tl.load(at + channels, mask=mask, other=0.0).to(tl.float32) - mean) * scale
        at += wide * channels
        v2 = (tl.load(at, mask=mask, other=0.0).to(tl.float32) - mean) * scale
        v3 = (tl.load(at + channels, mask=mask, other=0.0).to(tl.float32) - mean) * scale
        best, where = best_of(v0, v1, v2, v3, w, b)
        at = gradient + q[:, None] * channels + c[None, :]
        g = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        g = tl.where(best > 0.0, g, 0.0)
        value = tl.where(where == 0, v0, tl.where(where == 1, v1, tl.where(where == 2, v2, v3)))
        plain += g
        times += g * value
    _add(sums + 2 * stride, c, there, tl.sum(plain, 0))
    _add(sums + 3 * stride, c, there, tl.sum(times, 0))


@triton.jit
def _backward(
    gradient, second, x, kept, sums, moments, weight, bias, for_weight, for_bias, for_x, for_other,
    rows, channels, stride,
    two: tl.constexpr, relu: tl.constexpr, has_kept: tl.constexpr, summed: tl.constexpr,
    block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    r, c, there, mask = _tile(rows, channels, block, tile)
    at = r[:, None] * channels + c[None, :]
    value = tl.load(x + at, mask=mask).to(tl.float32)
    g = tl.load(gradient + at, mask=mask).to(tl.float32)
    if two:
        g += tl.load(second + at, mask=mask).to(tl.float32)
    mean, scale = _moments(moments, c, there, stride)
    w = tl.load(weight + c, mask=there)
    plain = _counted(sums + 2 * stride, c, there)
    times = _counted(sums + 3 * stride, c, there)
    value = (value - mean[None, :]) * scale[None, :]
    if relu:
        if has_kept:
            g = tl.where(tl.load(kept + at, mask=mask) > 0.0, g, 0.0)
        else:
            b = tl.load(bias + c, mask=there)
            g = tl.where(value * w[None, :] + b[None, :] > 0.0, g, 0.0)
    if summed:
        tl.store(for_other + at, g, mask=mask)
    g = g - (plain / rows)[None, :] - value * (times / rows)[None, :]
    tl.store(for_x + at, (scale * w)[None, :] * g, mask=mask)
    if tl.program_id(0) == 0:
        tl.store(for_bias + c, plain, mask=there)
        tl.store(for_weight + c, times, mask=there)


@triton.jit
def _backward_pooled(
    gradient, x, sums, moments, weight, bias, for_weight, for_bias, for_x,
    windows, channels, high, wide, stride, block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    q, c, there, mask = _tile(windows, channels, block, tile)
    place = _corner(q, high, wide)[:, None] * channels + c[None, :]
    down = wide * channels
    v0 = tl.load(x + place, mask=mask).to(tl.float32)
    v1 = tl.load(x + place + channels, mask=mask).to(tl.float32)
    v2 = tl.load(x + place + down, mask=mask).to(tl.float32)
    v3 = tl.load(x + place + down + channels, mask=mask).to(tl.float32)
    mean, scale = _moments(moments, c, there, stride)
    mean, scale = mean[None, :], scale[None, :]
    w = tl.load(weight + c, mask=there)[None, :]
    b = tl.load(bias + c, mask=there)[None, :]
    all_plain = _counted(sums + 2 * stride, c, there)
    all_times = _counted(sums + 3 * stride, c, there)
    rows = 4.0 * windows
    plain, times = (all_plain / rows)[None, :], (all_times / rows)[None, :]
    v0, v1, v2, v3 = (
        (v0 - mean) * scale,
        (v1 - mean) * scale,
        (v2 - mean) * scale,
        (v3 - mean) * scale,
    )
    best, where = best_of(v0, v1, v2, v3, w, b)
    g = tl.load(gradient + q[:, None] * channels + c[None, :], mask=mask).to(tl.float32)
    g = tl.where(best > 0.0, g, 0.0)
    factor = scale * w
    d0 = factor * (tl.where(where == 0, g, 0.0) - plain - v0 * times)
    d1 = factor * (tl.where(where == 1, g, 0.0) - plain - v1 * times)
    d2 = factor * (tl.where(where == 2, g, 0.0) - plain - v2 * times)
    d3 = factor * (tl.where(where == 3, g, 0.0) - plain - v3 * times)
    tl.store(for_x + place, d0, mask=mask)
    tl.store(for_x + place + channels, d1, mask=mask)
    tl.store(for_x + place + down, d2, mask=mask)
    tl.store(for_x + place + down + channels, d3, mask=mask)
    if tl.program_id(0) == 0:
        tl.store(for_bias + c, all_plain, mask=there)
        tl.store(for_weight + c, all_times, mask=there)


def backward(
    gradient: torch.Tensor,
    second: torch.Tensor | None,
    x: torch.Tensor,
    layer: BatchNormState,
    kept: torch.Tensor | None,
    *,
    relu: bool,
    summed: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gradients of the input and, where there was one, of what was summed with it.

    ``second`` is added to ``gradient``; ``kept`` is the output, where it cannot be told from ``x``.
    Those of weight and bias are written into the layer's places.
    """
    rows = _rows(x)
    cut = _Cut.of(rows, layer.weight.numel())
    given = (gradient, gradient if second is None else second, x, x if kept is None else kept)
    held = (layer.sums, layer.moments, layer.weight, layer.bias)
    size = (rows, layer.weight.numel(), layer.sums.stride(0))
    kind = (second is not None, relu, kept is not None)
    _sums[(cut.blocks, cut.programs)](*given, *held, *size, *kind, cut.per, cut.block, cut.tile)
    for_x = torch.empty_like(x)
    for_other = torch.empty_like(x) if summed else None
    _backward[(triton.cdiv(rows, cut.tile), cut.blocks)](
        *given, *held, layer.for_weight, layer.for_bias,
        for_x, for_x if for_other is None else for_other, *size, *kind, summed,
        cut.block, cut.tile,
    )  # fmt: skip
    return for_x, for_other


def backward_pooled(gradient: torch.Tensor, x: torch.Tensor, layer: BatchNormState) -> torch.Tensor:
    """The gradient of the input of :func:`normalise_pooled`."""
    windows = _rows(gradient)
    cut = _Cut.of(windows, layer.weight.numel(), ELEMENTS // 4)
    held = (layer.sums, layer.moments, layer.weight, layer.bias)
    size = (windows, layer.weight.numel(), x.shape[2], x.shape[3], layer.sums.stride(0))
    _sums_pooled[(cut.blocks, cut.programs)](
        gradient, x, *held, *size, cut.per, cut.block, cut.tile
    )
    for_x = torch.empty_like(x)
    _backward_pooled[(triton.cdiv(windows, cut.tile), cut.blocks)](
        gradient, x, *held, layer.for_weight, layer.for_bias, for_x, *size, cut.block, cut.tile
    )
    return for_x
