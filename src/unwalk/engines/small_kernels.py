"""Triton kernels for layers with small pictures and few channels, for many models at once.

A product sums over pictures, at one place at a time, and not over the places of a picture: what is
read at a place then serves all columns of the kernel as it is, and padding is left out when the
kernel is compiled.  Layouts and sums as in :mod:`unwalk.engines.kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from unwalk.engines.kernels import _read


@triton.jit
def weigh_row(
    pictures,
    gradient,
    gate,
    weights,
    bias,
    count,
    share,
    picture_step,
    gradient_step,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    THROUGH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Gradient of one row of the kernel, and of the bias, over one ``share`` of the pictures.

    The row that PAD shifts to the middle meets every place, where 2 * PAD < ROWS: it has the bias.
    """
    down = tl.program_id(0)
    model = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    parts = tl.num_programs(2)
    channel = tl.arange(0, BLOCK_M)
    outputs = tl.arange(0, BLOCK_N)
    pictures += model * picture_step
    gradient += model * gradient_step
    gate += model * gradient_step
    totals = (tl.zeros((BLOCK_M, BLOCK_N), tl.float32),) * COLUMNS
    sums = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    first = (tl.maximum(PAD - down, 0) + STRIDE - 1) // STRIDE
    end = tl.minimum((HEIGHT - 1 + PAD - down + STRIDE) // STRIDE, OUT_HEIGHT)
    last = tl.minimum((part + 1) * share, count)
    for start in range(part * share, last, BLOCK_R):
        picture = start + tl.arange(0, BLOCK_R)
        inside = (picture < last)[:, None]
        for row in range(first, end):
            across = (picture * HEIGHT + row * STRIDE - PAD + down) * WIDTH
            for column in tl.static_range(OUT_WIDTH):
                slope = _read(
                    gradient,
                    gate,
                    picture[:, None],
                    row,
                    column,
                    outputs[None, :],
                    inside & (outputs < OUTPUTS)[None, :],
                    OUT_HEIGHT,
                    OUT_WIDTH,
                    OUTPUTS,
                    THROUGH,
                )
                sums += slope.to(tl.float32)
                for right in tl.static_range(COLUMNS):
                    if column * STRIDE + right >= PAD and column * STRIDE + right < WIDTH + PAD:
                        x = column * STRIDE + right - PAD
                        patch = tl.load(
                            pictures + (across + x)[:, None] * CHANNELS + channel[None, :],
                            mask=inside & (channel < CHANNELS)[None, :],
                            other=0.0,
                        )
                        total = tl.dot(
                            tl.trans(patch),
                            slope.to(patch.dtype),
                            totals[right],
                            input_precision=PRECISION,
                        )
                        totals = totals[:right] + (total,) + totals[right + 1 :]
    place = model * parts + part
    mask = (channel < CHANNELS)[:, None] & (outputs < OUTPUTS)[None, :]
    for right in tl.static_range(COLUMNS):
        at = ((place * ROWS + down) * COLUMNS + right) * CHANNELS + channel
        tl.store(weights + at[:, None] * OUTPUTS + outputs[None, :], totals[right], mask=mask)
    if down == PAD:
        tl.store(bias + place * OUTPUTS + outputs, tl.sum(sums, 0), mask=outputs < OUTPUTS)


@triton.jit
def convolve_row(
    source,
    gate,
    weights,
    out,
    count,
    source_step,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    THROUGH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAD: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Gradient of the input, with turned weights: one row of places of some of the pictures."""
    row = tl.program_id(0) % OUT_HEIGHT
    model = tl.program_id(1).to(tl.int64)
    depth: tl.constexpr = ROWS * COLUMNS * CHANNELS
    picture = tl.program_id(0) // OUT_HEIGHT * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tl.arange(0, BLOCK_N)
    channel = tl.arange(0, BLOCK_K)
    inside = (picture < count)[:, None]
    source += model * source_step
    gate += model * source_step
    weights += model * OUTPUTS * depth
    known = (channel < CHANNELS)[:, None] & (outputs < OUTPUTS)[None, :]
    totals = (tl.zeros((BLOCK_M, BLOCK_N), tl.float32),) * OUT_WIDTH
    for down in range(tl.maximum(PAD - row, 0), tl.minimum(HEIGHT + PAD - row, ROWS)):
        for x in tl.static_range(WIDTH):
            patch = _read(
                source,
                gate,
                picture[:, None],
                row - PAD + down,
                x,
                channel[None, :],
                inside & (channel < CHANNELS)[None, :],
                HEIGHT,
                WIDTH,
                CHANNELS,
                THROUGH,
            )
            for column in tl.static_range(x + PAD - COLUMNS + 1, x + PAD + 1):
                if column >= 0 and column < OUT_WIDTH:
                    tap = (down * COLUMNS + x + PAD - column) * CHANNELS + channel
                    weight = tl.load(
                        weights + outputs[None, :] * depth + tap[:, None], mask=known, other=0.0
                    )
                    total = tl.dot(
                        patch.to(weight.dtype), weight, totals[column], input_precision=PRECISION
                    )
                    totals = totals[:column] + (total,) + totals[column + 1 :]
    line = (model * count + picture) * OUT_HEIGHT + row
    mask = inside & (outputs < OUTPUTS)[None, :]
    for column in tl.static_range(OUT_WIDTH):
        at = (line * OUT_WIDTH + column)[:, None] * OUTPUTS + outputs[None, :]
        tl.store(out + at, totals[column].to(out.dtype.element_ty), mask=mask)
