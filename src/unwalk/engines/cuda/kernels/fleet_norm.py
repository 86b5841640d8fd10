"""Triton kernels for batch normalisation of many models at once.

A ReLU and a 2x2 pool are taken along in the same pass over memory: in the backward pass the pool
looks again at which corner of its window was the largest, instead of having it written down.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def spread(
    pictures,
    sums,
    rows,
    share,
    CHANNELS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Sums and sums of squares of every channel round its first value, over one share of rows."""
    model = tl.program_id(1).to(tl.int64)
    part = tl.program_id(0)
    channels = tl.arange(0, BLOCK_C)
    pictures += model * rows * CHANNELS
    near = tl.load(pictures + channels, mask=channels < CHANNELS, other=0.0).to(tl.float32)
    first = tl.zeros((BLOCK_C,), tl.float32)
    second = tl.zeros((BLOCK_C,), tl.float32)
    last = tl.minimum((part + 1) * share, rows)
    for start in range(part * share, last, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        mask = (row < last)[:, None] & (channels < CHANNELS)[None, :]
        value = tl.load(
            pictures + row[:, None] * CHANNELS + channels[None, :], mask=mask, other=0.0
        )
        away = tl.where(mask, value.to(tl.float32) - near[None, :], 0.0)
        first += tl.sum(away, 0)
        second += tl.sum(away * away, 0)
    at = ((model * tl.num_programs(0) + part) * 2) * CHANNELS + channels
    tl.store(sums + at, first, mask=channels < CHANNELS)
    tl.store(sums + at + CHANNELS, second, mask=channels < CHANNELS)


@triton.jit
def _corner(
    rows, corner, channels, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, POOL: tl.constexpr
):
    """Where one corner of numbered 2x2 windows lies (without POOL: the numbered places)."""
    if POOL:
        row = 2 * (rows // (WIDTH // 2)) + corner // 2  # pictures lie one under the other
        rows = row * WIDTH + 2 * (rows % (WIDTH // 2)) + corner % 2
    return rows[:, None] * CHANNELS + channels[None, :]


@triton.jit
def _norm(mean, root, weight, bias, model, channels, CHANNELS: tl.constexpr):
    """Mean, one over the deviation, weight and bias of every channel, as rows."""
    at = model * CHANNELS + channels
    mask = channels < CHANNELS
    return (
        tl.load(mean + at, mask=mask, other=0.0)[None, :],
        tl.load(root + at, mask=mask, other=0.0)[None, :],
        tl.load(weight + at, mask=mask, other=0.0)[None, :],
        tl.load(bias + at, mask=mask, other=0.0)[None, :],
    )


@triton.jit
def normalise(
    pictures,
    mean,
    root,
    weight,
    bias,
    out,
    rows,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    RELU: tl.constexpr,
    POOL: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Batch normalisation by given statistics, then, as asked for, a ReLU and a 2x2 pool."""
    model = tl.program_id(1).to(tl.int64)
    corners: tl.constexpr = 4 if POOL else 1
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    channels = tl.arange(0, BLOCK_C)
    mask = (row < rows)[:, None] & (channels < CHANNELS)[None, :]
    centre, scale, slope, height = _norm(mean, root, weight, bias, model, channels, CHANNELS)
    pictures += model * rows * corners * CHANNELS
    best = tl.full((BLOCK_R, BLOCK_C), float("-inf"), tl.float32)
    for corner in tl.static_range(corners):
        at = _corner(row, corner, channels, WIDTH, CHANNELS, POOL)
        value = tl.load(pictures + at, mask=mask, other=0.0).to(tl.float32)
        best = tl.maximum(best, (value - centre) * scale * slope + height)
    if RELU:
        best = tl.maximum(best, 0.0)
    at = (model * rows + row[:, None]) * CHANNELS + channels[None, :]
    tl.store(out + at, best.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _choose(
    pictures,
    gradient,
    row,
    channels,
    mask,
    centre,
    scale,
    slope,
    height,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    RELU: tl.constexpr,
    POOL: tl.constexpr,
):
    """Which corner of a window was kept, its normalised value, and the gradient that it gets."""
    corners: tl.constexpr = 4 if POOL else 1
    best = tl.full(mask.shape, float("-inf"), tl.float32)
    kept = tl.zeros(mask.shape, tl.float32)
    chosen = tl.zeros(mask.shape, tl.int32)
    for corner in tl.static_range(corners):
        at = _corner(row, corner, channels, WIDTH, CHANNELS, POOL)
        value = tl.load(pictures + at, mask=mask, other=0.0).to(tl.float32)
        value = (value - centre) * scale
        height_here = value * slope + height
        better = height_here > best
        best = tl.where(better, height_here, best)
        kept = tl.where(better, value, kept)
        chosen = tl.where(better, corner, chosen)
    at = row[:, None] * CHANNELS + channels[None, :]
    given = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        given = tl.where(best > 0.0, given, 0.0)
    return chosen, kept, given


@triton.jit
def norm_sums(
    pictures,
    gradient,
    mean,
    root,
    weight,
    bias,
    sums,
    rows,
    share,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    RELU: tl.constexpr,
    POOL: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Gradients of bias and weight of a normalisation over one share of the rows."""
    model = tl.program_id(1).to(tl.int64)
    part = tl.program_id(0)
    corners: tl.constexpr = 4 if POOL else 1
    channels = tl.arange(0, BLOCK_C)
    centre, scale, slope, height = _norm(mean, root, weight, bias, model, channels, CHANNELS)
    pictures += model * rows * corners * CHANNELS
    gradient += model * rows * CHANNELS
    first = tl.zeros((BLOCK_C,), tl.float32)
    second = tl.zeros((BLOCK_C,), tl.float32)
    last = tl.minimum((part + 1) * share, rows)
    for start in range(part * share, last, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        mask = (row < last)[:, None] & (channels < CHANNELS)[None, :]
        _, kept, given = _choose(
            pictures, gradient, row, channels, mask, centre, scale, slope, height,
            WIDTH, CHANNELS, RELU, POOL,
        )  # fmt: skip
        first += tl.sum(given, 0)
        second += tl.sum(given * kept, 0)
    at = ((model * tl.num_programs(0) + part) * 2) * CHANNELS + channels
    tl.store(sums + at, first, mask=channels < CHANNELS)
    tl.store(sums + at + CHANNELS, second, mask=channels < CHANNELS)


@triton.jit
def norm_gradient(
    pictures,
    gradient,
    mean,
    root,
    weight,
    bias,
    sums,
    out,
    rows,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    RELU: tl.constexpr,
    POOL: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Gradient of a normalisation's input; ``sums`` are the whole gradients of bias and weight."""
    model = tl.program_id(1).to(tl.int64)
    corners: tl.constexpr = 4 if POOL else 1
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    channels = tl.arange(0, BLOCK_C)
    mask = (row < rows)[:, None] & (channels < CHANNELS)[None, :]
    centre, scale, slope, height = _norm(mean, root, weight, bias, model, channels, CHANNELS)
    at = model * 2 * CHANNELS + channels
    count = rows * corners
    first = tl.load(sums + at, mask=channels < CHANNELS, other=0.0)[None, :] / count
    second = tl.load(sums + at + CHANNELS, mask=channels < CHANNELS, other=0.0)[None, :] / count
    pictures += model * count * CHANNELS
    gradient += model * rows * CHANNELS
    out += model * count * CHANNELS
    chosen, _, given = _choose(
        pictures, gradient, row, channels, mask, centre, scale, slope, height,
        WIDTH, CHANNELS, RELU, POOL,
    )  # fmt: skip
    for corner in tl.static_range(corners):
        at = _corner(row, corner, channels, WIDTH, CHANNELS, POOL)
        value = tl.load(pictures + at, mask=mask, other=0.0).to(tl.float32)
        away = tl.where(chosen == corner, given, 0.0) - first - (value - centre) * scale * second
        tl.store(out + at, (scale * slope * away).to(out.dtype.element_ty), mask=mask)
