"""Triton kernels: batch normalisation of many models at once; the model is an axis of the grid.

A ReLU and a 2x2 pool are computed in the same pass over memory.  The backward pass finds out again
which corner of a window was the largest, instead of reading that from memory.

``HOW`` is an :class:`unwalk.engines.cuda.fleet_layers.NormShape`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _store_sums(sums, first, second, model, part, channels, CHANNELS: tl.constexpr):
    """Write the two sums of one part of the rows."""
    at = ((model * tl.num_programs(0) + part) * 2) * CHANNELS + channels
    tl.store(sums + at, first, mask=channels < CHANNELS)
    tl.store(sums + at + CHANNELS, second, mask=channels < CHANNELS)


@triton.jit
def spread(
    pictures, sums, rows, share,
    CHANNELS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
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
    _store_sums(sums, first, second, model, part, channels, CHANNELS)


@triton.jit
def _tile(rows, CHANNELS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """This program's rows and channels, and which of them are real."""
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    channels = tl.arange(0, BLOCK_C)
    mask = (row < rows)[:, None] & (channels < CHANNELS)[None, :]
    return row, channels, mask


@triton.jit
def _corner(rows, corner, channels, HOW: tl.constexpr):
    """Where one corner of numbered 2x2 windows lies (without a pool: the numbered places)."""
    if HOW.pool:
        row = 2 * (rows // (HOW.width // 2)) + corner // 2  # pictures lie one under the other
        rows = row * HOW.width + 2 * (rows % (HOW.width // 2)) + corner % 2
    return rows[:, None] * HOW.channels + channels[None, :]


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
    pictures, mean, root, weight, bias, out, rows,
    HOW: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Batch normalisation by given statistics, then, as asked for, a ReLU and a 2x2 pool."""
    model = tl.program_id(1).to(tl.int64)
    row, channels, mask = _tile(rows, HOW.channels, BLOCK_R, BLOCK_C)
    centre, scale, slope, height = _norm(mean, root, weight, bias, model, channels, HOW.channels)
    pictures += model * rows * HOW.corners * HOW.channels
    corners: tl.constexpr = HOW.corners
    best = tl.full((BLOCK_R, BLOCK_C), float("-inf"), tl.float32)
    for corner in tl.static_range(corners):
        at = _corner(row, corner, channels, HOW)
        value = tl.load(pictures + at, mask=mask, other=0.0).to(tl.float32)
        best = tl.maximum(best, (value - centre) * scale * slope + height)
    if HOW.relu:
        best = tl.maximum(best, 0.0)
    at = (model * rows + row[:, None]) * HOW.channels + channels[None, :]
    tl.store(out + at, best.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _choose(
    pictures, gradient, row, channels, mask, centre, scale, slope, height, HOW: tl.constexpr
):
    """Which corner of a window was kept, its normalised value, and the gradient that it gets."""
    corners: tl.constexpr = HOW.corners
    best = tl.full(mask.shape, float("-inf"), tl.float32)
    kept = tl.zeros(mask.shape, tl.float32)
    chosen = tl.zeros(mask.shape, tl.int32)
    for corner in tl.static_range(corners):
        at = _corner(row, corner, channels, HOW)
        value = tl.load(pictures + at, mask=mask, other=0.0).to(tl.float32)
        value = (value - centre) * scale
        height_here = value * slope + height
        better = height_here > best
        best = tl.where(better, height_here, best)
        kept = tl.where(better, value, kept)
        chosen = tl.where(better, corner, chosen)
    at = row[:, None] * HOW.channels + channels[None, :]
    given = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
    if HOW.relu:
        given = tl.where(best > 0.0, given, 0.0)
    return chosen, kept, given


@triton.jit
def norm_sums(
    pictures, gradient, mean, root, weight, bias, sums, rows, share,
    HOW: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradients of bias and weight of a normalisation over one share of the rows."""
    model = tl.program_id(1).to(tl.int64)
    part = tl.program_id(0)
    channels = tl.arange(0, BLOCK_C)
    centre, scale, slope, height = _norm(mean, root, weight, bias, model, channels, HOW.channels)
    pictures += model * rows * HOW.corners * HOW.channels
    gradient += model * rows * HOW.channels
    first = tl.zeros((BLOCK_C,), tl.float32)
    second = tl.zeros((BLOCK_C,), tl.float32)
    last = tl.minimum((part + 1) * share, rows)
    for start in range(part * share, last, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        mask = (row < last)[:, None] & (channels < HOW.channels)[None, :]
        _, kept, given = _choose(
            pictures, gradient, row, channels, mask, centre, scale, slope, height, HOW
        )
        first += tl.sum(given, 0)
        second += tl.sum(given * kept, 0)
    _store_sums(sums, first, second, model, part, channels, HOW.channels)


@triton.jit
def norm_gradient(
    pictures, gradient, mean, root, weight, bias, sums, out, rows,
    HOW: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradient of a normalisation's input; ``sums`` are the whole gradients of bias and weight."""
    model = tl.program_id(1).to(tl.int64)
    row, channels, mask = _tile(rows, HOW.channels, BLOCK_R, BLOCK_C)
    centre, scale, slope, height = _norm(mean, root, weight, bias, model, channels, HOW.channels)
    at = model * 2 * HOW.channels + channels
    real = channels < HOW.channels
    corners: tl.constexpr = HOW.corners
    count = rows * corners
    first = tl.load(sums + at, mask=real, other=0.0)[None, :] / count
    second = tl.load(sums + at + HOW.channels, mask=real, other=0.0)[None, :] / count
    pictures += model * count * HOW.channels
    gradient += model * rows * HOW.channels
    out += model * count * HOW.channels
    chosen, _, given = _choose(
        pictures, gradient, row, channels, mask, centre, scale, slope, height, HOW
    )
    for corner in tl.static_range(corners):
        at = _corner(row, corner, channels, HOW)
        value = tl.load(pictures + at, mask=mask, other=0.0).to(tl.float32)
        away = tl.where(chosen == corner, given, 0.0) - first - (value - centre) * scale * second
        tl.store(out + at, (scale * slope * away).to(out.dtype.element_ty), mask=mask)
