"""Triton kernels: convolutions of many models at once; the model is an axis of the grid.

Pictures lie channels-last, (models, pictures, height, width, channels), and weights likewise,
(models, outputs, kernel rows, kernel columns, channels).  A convolution is a matrix product whose
left side, the patches, is gathered tile by tile and never written down.  Sums are taken in
float32, in an order that depends on shapes alone, so that the same inputs give the same bits.

``SOURCE`` and ``OUT`` are the sizes of what a convolution reads and computes
(:class:`unwalk.engines.cuda.fleet_layers.Pictures`), ``TAPS`` is its kernel
(:class:`unwalk.engines.cuda.fleet_layers.Taps`).  ``THROUGH`` says what a gradient is read through.

Layers with small pictures and few channels have kernels of their own (:func:`weigh_row`,
:func:`convolve_row`).  There a product sums over pictures, at one place at a time, and not over the
places of a picture: what is read at a place serves all columns of the kernel as it is, and padding
is left out when the kernel is compiled.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _place(rows, SIZE: tl.constexpr, WINDOWS: tl.constexpr):
    """Picture, row and column of numbered places; with windows, the four of a 2x2 window first."""
    if WINDOWS:
        window = rows // 4
        corner = rows % 4
        across = window // (SIZE.width // 2)
        column = 2 * (window % (SIZE.width // 2)) + corner % 2
        row = 2 * (across % (SIZE.height // 2)) + corner // 2
        picture = across // (SIZE.height // 2)
    else:
        across = rows // SIZE.width
        column = rows % SIZE.width
        row = across % SIZE.height
        picture = across // SIZE.height
    return picture, row, column


@triton.jit
def _read(
    source, gate, picture, row, column, channel, mask, SIZE: tl.constexpr, THROUGH: tl.constexpr
):
    """Values of pictures of this size, or of gradients through a gate or a pool."""
    if THROUGH == 2:
        place = (picture * (SIZE.height // 2) + row // 2) * (SIZE.width // 2) + column // 2
        at = place * SIZE.channels + channel
        corner = (row % 2) * 2 + column % 2
        chosen = tl.load(gate + at, mask=mask, other=4) == corner
        value = tl.where(chosen, tl.load(source + at, mask=mask, other=0.0), 0.0)
    else:
        at = ((picture * SIZE.height + row) * SIZE.width + column) * SIZE.channels + channel
        value = tl.load(source + at, mask=mask, other=0.0)
        if THROUGH == 1:
            value = tl.where(tl.load(gate + at, mask=mask, other=0.0) > 0.0, value, 0.0)
    return value


@triton.jit
def convolve(
    source, gate, weights, bias, out, corners, places, source_step,
    SOURCE: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr, THROUGH: tl.constexpr,
    BIAS: tl.constexpr, RELU: tl.constexpr, POOL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Convolution of one tile of ``places``; also the gradient of the input, with turned weights.

    With POOL the four places of a window lie in one tile: the largest is kept, and which it was.
    """
    model = tl.program_id(1).to(tl.int64)
    across: tl.constexpr = (OUT.channels + BLOCK_N - 1) // BLOCK_N
    depth: tl.constexpr = TAPS.rows * TAPS.columns * SOURCE.channels
    rows = tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = rows < places
    picture, row, column = _place(rows, OUT, POOL)
    top = row * TAPS.stride - TAPS.padding
    left = column * TAPS.stride - TAPS.padding
    source += model * source_step
    gate += model * source_step
    weights += model * OUT.channels * depth
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, depth, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        if SOURCE.channels % BLOCK_K == 0:  # one tap of the kernel at a time
            tap = start // SOURCE.channels
            channel = tl.arange(0, BLOCK_K)
            if SOURCE.channels > BLOCK_K:
                channel += tl.multiple_of(start % SOURCE.channels, BLOCK_K)
            y = top + tap // TAPS.columns
            x = left + tap % TAPS.columns
            there = inside
            if TAPS.padding > 0:
                there = there & (y >= 0) & (y < SOURCE.height) & (x >= 0) & (x < SOURCE.width)
            patch = _read(
                source, gate, picture[:, None], y[:, None], x[:, None], channel[None, :],
                there[:, None], SOURCE, THROUGH,
            )  # fmt: skip
        else:
            tap = inner // SOURCE.channels
            y = top[:, None] + (tap // TAPS.columns)[None, :]
            x = left[:, None] + (tap % TAPS.columns)[None, :]
            there = inside[:, None] & (inner < depth)[None, :]
            if TAPS.padding > 0:
                there = there & (y >= 0) & (y < SOURCE.height) & (x >= 0) & (x < SOURCE.width)
            patch = _read(
                source, gate, picture[:, None], y, x, (inner % SOURCE.channels)[None, :],
                there, SOURCE, THROUGH,
            )  # fmt: skip
        weight = tl.load(
            weights + outputs[None, :] * depth + inner[:, None],
            mask=(outputs < OUT.channels)[None, :] & (inner < depth)[:, None],
            other=0.0,
        )
        total = tl.dot(patch.to(weight.dtype), weight, total, input_precision=PRECISION)
    if BIAS:
        known = outputs < OUT.channels
        given = tl.load(bias + model * OUT.channels + outputs, mask=known, other=0.0)
        total += given.to(tl.float32)[None, :]
    if POOL:
        best, corner = tl.max(tl.reshape(total, (BLOCK_M // 4, 4, BLOCK_N)), 1, return_indices=True)
        windows = tl.program_id(0) // across * (BLOCK_M // 4) + tl.arange(0, BLOCK_M // 4)
        at = (model * (places // 4) + windows[:, None]) * OUT.channels + outputs[None, :]
        mask = (windows * 4 < places)[:, None] & (outputs < OUT.channels)[None, :]
        corner = tl.where(best > 0.0, corner, 4)
        tl.store(out + at, tl.maximum(best, 0.0).to(out.dtype.element_ty), mask=mask)
        tl.store(corners + at, corner.to(tl.int8), mask=mask)
    else:
        if RELU:
            total = tl.maximum(total, 0.0)
        at = (model * places + rows[:, None]) * OUT.channels + outputs[None, :]
        mask = inside[:, None] & (outputs < OUT.channels)[None, :]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def weigh(
    pictures, gradient, gate, weights, bias, places, share, picture_step, gradient_step,
    SOURCE: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr, THROUGH: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Gradient of the weights and the bias over one ``share`` of the places."""
    model = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    parts = tl.num_programs(2)
    across: tl.constexpr = (OUT.channels + BLOCK_N - 1) // BLOCK_N
    depth: tl.constexpr = TAPS.rows * TAPS.columns * SOURCE.channels
    inner = tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    tap = inner // SOURCE.channels
    down = tap // TAPS.columns
    right = tap % TAPS.columns
    shift = (down * SOURCE.width + right) * SOURCE.channels + inner % SOURCE.channels
    pictures += model * picture_step
    gradient += model * gradient_step
    gate += model * gradient_step
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    sums = tl.zeros((BLOCK_N,), tl.float32)
    last = tl.minimum((part + 1) * share, places)
    for start in range(part * share, last, BLOCK_R):
        rows = start + tl.arange(0, BLOCK_R)
        inside = rows < last
        picture, row, column = _place(rows, OUT, THROUGH == 2)
        top = row * TAPS.stride - TAPS.padding
        left = column * TAPS.stride - TAPS.padding
        at = ((picture * SOURCE.height + top) * SOURCE.width + left) * SOURCE.channels
        there = inside[:, None] & (inner < depth)[None, :]
        if TAPS.padding > 0:
            y = top[:, None] + down[None, :]
            x = left[:, None] + right[None, :]
            there = there & (y >= 0) & (y < SOURCE.height) & (x >= 0) & (x < SOURCE.width)
        patch = tl.load(pictures + at[:, None] + shift[None, :], mask=there, other=0.0)
        slope = _read(
            gradient, gate, picture[:, None], row[:, None], column[:, None], outputs[None, :],
            inside[:, None] & (outputs < OUT.channels)[None, :], OUT, THROUGH,
        )  # fmt: skip
        sums += tl.sum(slope.to(tl.float32), 0)
        slope = slope.to(patch.dtype)
        total = tl.dot(tl.trans(patch), slope, total, input_precision=PRECISION)
    place = model * parts + part
    at = (place * depth + inner[:, None]) * OUT.channels + outputs[None, :]
    mask = (inner < depth)[:, None] & (outputs < OUT.channels)[None, :]
    tl.store(weights + at, total, mask=mask)
    if tl.program_id(0) // across == 0:
        tl.store(bias + place * OUT.channels + outputs, sums, mask=outputs < OUT.channels)


@triton.jit
def weigh_row(
    pictures, gradient, gate, weights, bias, count, share, picture_step, gradient_step,
    SOURCE: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr, THROUGH: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Gradient of one row of the kernel, and of the bias, over one ``share`` of the pictures.

    The row that the padding shifts to the middle meets every place, where the padding is less than
    half of the rows: it has the bias.
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
    columns: tl.constexpr = TAPS.columns
    width: tl.constexpr = OUT.width
    totals = (tl.zeros((BLOCK_M, BLOCK_N), tl.float32),) * columns
    sums = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    first = (tl.maximum(TAPS.padding - down, 0) + TAPS.stride - 1) // TAPS.stride
    end = tl.minimum(
        (SOURCE.height - 1 + TAPS.padding - down + TAPS.stride) // TAPS.stride, OUT.height
    )
    last = tl.minimum((part + 1) * share, count)
    for start in range(part * share, last, BLOCK_R):
        picture = start + tl.arange(0, BLOCK_R)
        inside = (picture < last)[:, None]
        for row in range(first, end):
            across = picture * SOURCE.height + row * TAPS.stride - TAPS.padding + down
            across = across * SOURCE.width
            for column in tl.static_range(width):
                slope = _read(
                    gradient, gate, picture[:, None], row, column, outputs[None, :],
                    inside & (outputs < OUT.channels)[None, :], OUT, THROUGH,
                )  # fmt: skip
                sums += slope.to(tl.float32)
                for right in tl.static_range(columns):
                    x = column * TAPS.stride + right - TAPS.padding
                    if x >= 0 and x < SOURCE.width:
                        patch = tl.load(
                            pictures + (across + x)[:, None] * SOURCE.channels + channel[None, :],
                            mask=inside & (channel < SOURCE.channels)[None, :],
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
    mask = (channel < SOURCE.channels)[:, None] & (outputs < OUT.channels)[None, :]
    for right in tl.static_range(columns):
        at = ((place * TAPS.rows + down) * columns + right) * SOURCE.channels + channel
        tl.store(weights + at[:, None] * OUT.channels + outputs[None, :], totals[right], mask=mask)
    if down == TAPS.padding:
        own = place * OUT.channels + outputs
        tl.store(bias + own, tl.sum(sums, 0), mask=outputs < OUT.channels)


@triton.jit
def convolve_row(
    source, gate, weights, out, count, source_step,
    SOURCE: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr, THROUGH: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Gradient of the input, with turned weights: one row of places of some of the pictures."""
    row = tl.program_id(0) % OUT.height
    model = tl.program_id(1).to(tl.int64)
    depth: tl.constexpr = TAPS.rows * TAPS.columns * SOURCE.channels
    picture = tl.program_id(0) // OUT.height * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tl.arange(0, BLOCK_N)
    channel = tl.arange(0, BLOCK_K)
    inside = (picture < count)[:, None]
    source += model * source_step
    gate += model * source_step
    weights += model * OUT.channels * depth
    known = channel < SOURCE.channels
    real = (outputs < OUT.channels)[None, :]
    columns: tl.constexpr = TAPS.columns
    padding: tl.constexpr = TAPS.padding
    source_width: tl.constexpr = SOURCE.width
    width: tl.constexpr = OUT.width
    totals = (tl.zeros((BLOCK_M, BLOCK_N), tl.float32),) * width
    first = tl.maximum(TAPS.padding - row, 0)
    for down in range(first, tl.minimum(SOURCE.height + TAPS.padding - row, TAPS.rows)):
        for x in tl.static_range(source_width):
            patch = _read(
                source, gate, picture[:, None], row - TAPS.padding + down, x, channel[None, :],
                inside & known[None, :], SOURCE, THROUGH,
            )  # fmt: skip
            for column in tl.static_range(x + padding - columns + 1, x + padding + 1):
                if column >= 0 and column < width:
                    tap = (down * columns + x + padding - column) * SOURCE.channels + channel
                    weight = tl.load(
                        weights + outputs[None, :] * depth + tap[:, None],
                        mask=known[:, None] & real,
                        other=0.0,
                    )
                    total = tl.dot(
                        patch.to(weight.dtype), weight, totals[column], input_precision=PRECISION
                    )
                    totals = totals[:column] + (total,) + totals[column + 1 :]
    line = (model * count + picture) * OUT.height + row
    for column in tl.static_range(width):
        at = (line * width + column)[:, None] * OUT.channels + outputs[None, :]
        tl.store(out + at, totals[column].to(out.dtype.element_ty), mask=inside & real)
