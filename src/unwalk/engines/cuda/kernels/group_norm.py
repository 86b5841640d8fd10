"""Triton kernels: group normalisation of channels-last pictures, with what follows it.

A record's activations are a table of places and channels.  One program takes a record and some
neighbouring groups: it reads their columns for mean and variance, and again, out of the cache, to
write the result.  It shares no sum with another program, so the same step gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from unwalk.engines.cuda.kernels.batch_norm import best_of

ELEMENTS = 4096
"""Numbers that a program looks at together."""
NEIGHBOURS = 16
"""Channels that a program takes at least, where there are as many: whole lines of memory."""
LEAST = 2048
"""Numbers of a record that make a program worth its start."""


@dataclass(frozen=True)
class _Cut:
    """A record's cut: channels per group, that rounded up, groups per program, places per tile."""

    size: int
    up: int
    many: int
    tile: int
    programs: int

    @staticmethod
    def of(places: int, channels: int, groups: int, elements: int = ELEMENTS) -> _Cut:
        size = channels // groups
        up = triton.next_power_of_2(size)
        rows, most = triton.next_power_of_2(places), triton.next_power_of_2(groups)
        many = min(most, max(1, NEIGHBOURS // up))
        while many < most and many * up * rows < LEAST:
            many *= 2
        tile = max(1, min(rows, elements // (many * up)))
        return _Cut(size, up, many, tile, triton.cdiv(groups, many))

    @property
    def warps(self) -> int:
        return max(1, min(8, self.many * self.up * self.tile // 256))


@triton.jit
def _channels(groups, size: tl.constexpr, up: tl.constexpr, many: tl.constexpr):
    """This program's channels, each group's filled up to a power of two, and which are real."""
    k = tl.program_id(1) * many * up + tl.arange(0, many * up)
    c, there = k, k < groups * size
    if size != up:
        c, there = k // up * size + k % up, (k // up < groups) & (k % up < size)
    return c, there


@triton.jit
def _in_groups(value, up: tl.constexpr, many: tl.constexpr):
    """For each channel the sum over its group."""
    total = tl.sum(tl.reshape(value, (many, up)), 1)
    return tl.reshape(tl.broadcast_to(total[:, None], (many, up)), (many * up,))


@triton.jit
def _moments(
    x, c, there, places, channels, eps,
    size: tl.constexpr, up: tl.constexpr, many: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / std of each channel's group, from the channels' own about their first value."""
    about = tl.load(x + c, mask=there, other=0.0).to(tl.float32)
    total = tl.zeros((tile, many * up), tl.float32)
    square = tl.zeros((tile, many * up), tl.float32)
    for start in range(0, places, tile):
        r = start + tl.arange(0, tile)
        mask = (r < places)[:, None] & there[None, :]
        value = tl.load(x + r[:, None] * channels + c[None, :], mask=mask, other=0.0)
        value = tl.where(mask, value.to(tl.float32) - about[None, :], 0.0)
        total += value
        square += value * value
    shift = tl.sum(total, 0) / places
    own = tl.maximum(tl.sum(square, 0) / places - shift * shift, 0.0)
    mean = _in_groups(about + shift, up, many) / size
    apart = tl.where(there, about + shift - mean, 0.0)
    variance = _in_groups(own + apart * apart, up, many) / size
    return mean, tl.rsqrt(variance + eps)


@triton.jit
def _remember(stats, c, there, groups, mean, scale, size: tl.constexpr):
    first = there & (c % size == 0)
    at = stats + tl.program_id(0) * groups * 2 + c // size * 2
    tl.store(at, mean, mask=first)
    tl.store(at + 1, scale, mask=first)


@triton.jit
def _read(place, c, there):
    return tl.load(place + c, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _remembered(
    stats, weight, bias, places, channels, groups,
    size: tl.constexpr, up: tl.constexpr, many: tl.constexpr,
):  # fmt: skip
    """This program's channels and record; moments, weight and bias of each channel, as rows."""
    c, there = _channels(groups, size, up, many)
    record = tl.program_id(0).to(tl.int64) * places * channels
    at = stats + tl.program_id(0) * groups * 2 + c // size * 2
    mean = tl.load(at, mask=there, other=0.0)[None, :]
    scale = tl.load(at + 1, mask=there, other=0.0)[None, :]
    w, b = _read(weight, c, there)[None, :], _read(bias, c, there)[None, :]
    return c, there, record, mean, scale, w, b


@triton.jit
def _normalise(
    x, y, other, stats, weight, bias, places, channels, groups, eps,
    summed: tl.constexpr, relu: tl.constexpr,
    size: tl.constexpr, up: tl.constexpr, many: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    c, there = _channels(groups, size, up, many)
    record = tl.program_id(0).to(tl.int64) * places * channels
    mean, scale = _moments(x + record, c, there, places, channels, eps, size, up, many, tile)
    _remember(stats, c, there, groups, mean, scale, size)
    factor = (scale * _read(weight, c, there))[None, :]
    offset = _read(bias, c, there)[None, :]
    for start in range(0, places, tile):
        r = start + tl.arange(0, tile)
        mask = (r < places)[:, None] & there[None, :]
        at = record + r[:, None] * channels + c[None, :]
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        value = (value - mean[None, :]) * factor + offset
        if summed:
            value += tl.load(other + at, mask=mask, other=0.0).to(tl.float32)
        if relu:
            value = tl.maximum(value, 0.0)
        tl.store(y + at, value, mask=mask)


@triton.jit
def _window(x, q, mask, c, wide, channels, mean, scale):
    """The four normalised values of the windows ``q`` of 2 x 2 places, and where they begin."""
    columns = wide // 2
    place = (q // columns * 2 * wide + q % columns * 2)[:, None] * channels + c[None, :]
    down = wide * channels
    v0 = (tl.load(x + place, mask=mask, other=0.0).to(tl.float32) - mean) * scale
    v1 = (tl.load(x + place + channels, mask=mask, other=0.0).to(tl.float32) - mean) * scale
    v2 = (tl.load(x + place + down, mask=mask, other=0.0).to(tl.float32) - mean) * scale
    v3 = (tl.load(x + place + down + channels, mask=mask, other=0.0).to(tl.float32) - mean) * scale
    return v0, v1, v2, v3, place


@triton.jit
def _window_gradient(gradient, x, record, q, mask, c, wide, channels, mean, scale, w, b):
    """:func:`_window`, then which of the four is the largest and the gradient that it gets."""
    v0, v1, v2, v3, place = _window(x + record, q, mask, c, wide, channels, mean, scale)
    best, where = best_of(v0, v1, v2, v3, w, b)
    at = record // 4 + q[:, None] * channels + c[None, :]
    g = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
    return v0, v1, v2, v3, place, where, tl.where(best > 0.0, g, 0.0)


@triton.jit
def _normalise_pooled(
    x, y, stats, weight, bias, places, channels, groups, eps, wide,
    size: tl.constexpr, up: tl.constexpr, many: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    c, there = _channels(groups, size, up, many)
    record = tl.program_id(0).to(tl.int64) * places * channels
    mean, scale = _moments(x + record, c, there, places, channels, eps, size, up, many, tile)
    _remember(stats, c, there, groups, mean, scale, size)
    w, b = _read(weight, c, there)[None, :], _read(bias, c, there)[None, :]
    windows = places // 4
    for start in range(0, windows, tile):
        q = start + tl.arange(0, tile)
        mask = (q < windows)[:, None] & there[None, :]
        v0, v1, v2, v3, _ = _window(
            x + record, q, mask, c, wide, channels, mean[None, :], scale[None, :]
        )
        best, _ = best_of(v0, v1, v2, v3, w, b)
        at = record // 4 + q[:, None] * channels + c[None, :]
        tl.store(y + at, tl.maximum(best, 0.0), mask=mask)


@triton.jit
def _gradient(
    gradient, second, x, kept, start, places, record, channels, c, there, mean, scale, w, b,
    two: tl.constexpr, relu: tl.constexpr, has_kept: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """A tile's gradient before sum and ReLU, its normalised values, where it lies, what is real."""
    r = start + tl.arange(0, tile)
    mask = (r < places)[:, None] & there[None, :]
    at = record + r[:, None] * channels + c[None, :]
    g = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
    if two:
        g += tl.load(second + at, mask=mask, other=0.0).to(tl.float32)
    value = (tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - mean) * scale
    if relu:
        if has_kept:
            g = tl.where(tl.load(kept + at, mask=mask, other=0.0) > 0.0, g, 0.0)
        else:
            g = tl.where(value * w + b > 0.0, g, 0.0)
    return g, value, at, mask


@triton.jit
def _tell(sums, c, there, channels, w, plain, times, up: tl.constexpr, many: tl.constexpr):
    """Write a record's gradients of bias and weight; the sums over groups that its input needs."""
    at = sums + tl.program_id(0).to(tl.int64) * channels * 2 + c
    tl.store(at, plain, mask=there)
    tl.store(at + channels, times, mask=there)
    return _in_groups(w * plain, up, many)[None, :], _in_groups(w * times, up, many)[None, :]


@triton.jit
def _backward(
    gradient, second, x, kept, stats, weight, bias, sums, for_x, for_other,
    places, channels, groups,
    two: tl.constexpr, relu: tl.constexpr, has_kept: tl.constexpr, summed: tl.constexpr,
    size: tl.constexpr, up: tl.constexpr, many: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    c, there, record, mean, scale, w, b = _remembered(
        stats, weight, bias, places, channels, groups, size, up, many
    )
    plain = tl.zeros((tile, many * up), tl.float32)
    times = tl.zeros((tile, many * up), tl.float32)
    for start in range(0, places, tile):
        g, value, _, _ = _gradient(
            gradient, second, x, kept, start, places, record, channels, c, there,
            mean, scale, w, b, two, relu, has_kept, tile,
        )  # fmt: skip
        plain += g
        times += g * value
    count = places * size
    weigh = _read(weight, c, there)
    a, h = _tell(sums, c, there, channels, weigh, tl.sum(plain, 0), tl.sum(times, 0), up, many)
    for start in range(0, places, tile):
        g, value, at, mask = _gradient(
            gradient, second, x, kept, start, places, record, channels, c, there,
            mean, scale, w, b, two, relu, has_kept, tile,
        )  # fmt: skip
        if summed:
            tl.store(for_other + at, g, mask=mask)
        tl.store(for_x + at, scale * (w * g - (a + value * h) / count), mask=mask)


@triton.jit
def _backward_pooled(
    gradient, x, stats, weight, bias, sums, for_x, places, channels, groups, wide,
    size: tl.constexpr, up: tl.constexpr, many: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The same where only the largest place of a window has a gradient."""
    c, there, record, mean, scale, w, b = _remembered(
        stats, weight, bias, places, channels, groups, size, up, many
    )
    plain = tl.zeros((tile, many * up), tl.float32)
    times = tl.zeros((tile, many * up), tl.float32)
    windows = places // 4
    for start in range(0, windows, tile):
        q = start + tl.arange(0, tile)
        mask = (q < windows)[:, None] & there[None, :]
        v0, v1, v2, v3, _, where, g = _window_gradient(
            gradient, x, record, q, mask, c, wide, channels, mean, scale, w, b
        )
        value = tl.where(where == 0, v0, tl.where(where == 1, v1, tl.where(where == 2, v2, v3)))
        plain += g
        times += g * value
    count = places * size
    weigh = _read(weight, c, there)
    a, h = _tell(sums, c, there, channels, weigh, tl.sum(plain, 0), tl.sum(times, 0), up, many)
    a, h = a / count, h / count
    for start in range(0, windows, tile):
        q = start + tl.arange(0, tile)
        mask = (q < windows)[:, None] & there[None, :]
        v0, v1, v2, v3, place, where, g = _window_gradient(
            gradient, x, record, q, mask, c, wide, channels, mean, scale, w, b
        )
        g = w * g
        d0 = scale * (tl.where(where == 0, g, 0.0) - a - v0 * h)
        d1 = scale * (tl.where(where == 1, g, 0.0) - a - v1 * h)
        d2 = scale * (tl.where(where == 2, g, 0.0) - a - v2 * h)
        d3 = scale * (tl.where(where == 3, g, 0.0) - a - v3 * h)
        down = wide * channels
        out = for_x + record + place
        tl.store(out, d0, mask=mask)
        tl.store(out + channels, d1, mask=mask)
        tl.store(out + down, d2, mask=mask)
        tl.store(out + down + channels, d3, mask=mask)


@triton.jit
def _collect(
    sums, for_weight, for_bias, records, channels, block: tl.constexpr, tile: tl.constexpr
):
    """Sums over records."""
    c = tl.program_id(0) * block + tl.arange(0, block)
    there = c < channels
    plain = tl.zeros((tile, block), tl.float32)
    times = tl.zeros((tile, block), tl.float32)
    for start in range(0, records, tile):
        r = start + tl.arange(0, tile)
        mask = (r < records)[:, None] & there[None, :]
        at = sums + r[:, None] * (2 * channels) + c[None, :]
        plain += tl.load(at, mask=mask, other=0.0)
        times += tl.load(at + channels, mask=mask, other=0.0)
    tl.store(for_bias + c, tl.sum(plain, 0), mask=there)
    tl.store(for_weight + c, tl.sum(times, 0), mask=there)


def normalise(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    other: torch.Tensor | None,
    groups: int,
    eps: float,
    *,
    relu: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised, scaled, summed with ``other`` and cut off below zero, as asked for.

    Also mean and 1 / std by record and group, for the way back.
    """
    records, channels, places = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
    cut = _Cut.of(places, channels, groups)
    y = torch.empty_like(x)
    stats = torch.empty(records, groups, 2, device=x.device)
    _normalise[(records, cut.programs)](
        x, y, x if other is None else other, stats, weight, bias, places, channels, groups, eps,
        other is not None, relu, cut.size, cut.up, cut.many, cut.tile, num_warps=cut.warps,
    )  # fmt: skip
    return y, stats


def normalise_pooled(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised, cut off below zero, and the largest of each window of 2 x 2 places."""
    records, channels, high, wide = x.shape
    y = torch.empty(
        (records, channels, high // 2, wide // 2),
        dtype=x.dtype,
        device=x.device,
        memory_format=torch.channels_last,
    )
    cut = _Cut.of(high * wide, channels, groups, ELEMENTS // 4)
    stats = torch.empty(records, groups, 2, device=x.device)
    _normalise_pooled[(records, cut.programs)](
        x, y, stats, weight, bias, high * wide, channels, groups, eps, wide,
        cut.size, cut.up, cut.many, cut.tile, num_warps=cut.warps,
    )  # fmt: skip
    return y, stats


def backward(
    gradient: torch.Tensor,
    second: torch.Tensor | None,
    x: torch.Tensor,
    kept: torch.Tensor | None,
    stats: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    relu: bool,
    summed: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Gradients of the input, of what was summed with it, and by record of bias and weight.

    ``second`` is added to ``gradient``; ``kept`` is the output, where it cannot be told from ``x``.
    The last result is (records, 2, channels).
    """
    records, channels, places = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
    groups = stats.shape[1]
    cut = _Cut.of(places, channels, groups)
    sums = torch.empty(records, 2, channels, device=x.device)
    for_x = torch.empty_like(x)
    for_other = torch.empty_like(x) if summed else None
    _backward[(records, cut.programs)](
        gradient, gradient if second is None else second, x, x if kept is None else kept, stats,
        weight, bias, sums, for_x, for_x if for_other is None else for_other,
        places, channels, groups, second is not None, relu, kept is not None, summed,
        cut.size, cut.up, cut.many, cut.tile, num_warps=cut.warps,
    )  # fmt: skip
    return for_x, for_other, sums


def backward_pooled(
    gradient: torch.Tensor,
    x: torch.Tensor,
    stats: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of :func:`normalise_pooled`: of the input, and by record of bias and weight."""
    records, channels, high, wide = x.shape
    groups = stats.shape[1]
    cut = _Cut.of(high * wide, channels, groups, ELEMENTS // 4)
    sums = torch.empty(records, 2, channels, device=x.device)
    for_x = torch.empty_like(x)
    _backward_pooled[(records, cut.programs)](
        gradient, x, stats, weight, bias, sums, for_x, high * wide, channels, groups, wide,
        cut.size, cut.up, cut.many, cut.tile, num_warps=cut.warps,
    )  # fmt: skip
    return for_x, sums


def collect(sums: torch.Tensor, for_weight: torch.Tensor, for_bias: torch.Tensor) -> None:
    """Sums of the records' gradients of bias and weight."""
    records, _, channels = sums.shape
    _collect[(triton.cdiv(channels, 32),)](
        sums, for_weight, for_bias, records, channels, 32, 64, num_warps=4
    )
