"""Triton kernels for many models of one architecture at once: the model is an axis of the grid.

Pictures lie channels-last, (models, pictures, height, width, channels), and weights likewise,
(models, outputs, kernel rows, kernel columns, channels).  A convolution is a matrix product whose
left side, the patches, is gathered tile by tile and never written down.  Sums are taken in
float32, in an order that depends on shapes alone, so that the same inputs give the same bits.

Layers with small pictures and few channels have kernels of their own (:func:`weigh_row`,
:func:`convolve_row`).  There a product sums over pictures, at one place at a time, and not over the
places of a picture: what is read at a place serves all columns of the kernel as it is, and padding
is left out when the kernel is compiled.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _place(rows, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, WINDOWS: tl.constexpr):
    """Picture, row and column of numbered places; with windows, the four of a 2x2 window first."""
    if WINDOWS:
        window = rows // 4
        corner = rows % 4
        across = window // (WIDTH // 2)
        column = 2 * (window % (WIDTH // 2)) + corner % 2
        row = 2 * (across % (HEIGHT // 2)) + corner // 2
        picture = across // (HEIGHT // 2)
    else:
        across = rows // WIDTH
        column = rows % WIDTH
        row = across % HEIGHT
        picture = across // HEIGHT
    return picture, row, column


@triton.jit
def _read(
    source,
    gate,
    picture,
    row,
    column,
    channel,
    mask,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    THROUGH: tl.constexpr,
):
    """Values of pictures of HEIGHT x WIDTH, or of gradients through a gate or a pool."""
    if THROUGH == 2:
        place = (picture * (HEIGHT // 2) + row // 2) * (WIDTH // 2) + column // 2
        at = place * CHANNELS + channel
        corner = (row % 2) * 2 + column % 2
        chosen = tl.load(gate + at, mask=mask, other=4) == corner
        value = tl.where(chosen, tl.load(source + at, mask=mask, other=0.0), 0.0)
    else:
        at = ((picture * HEIGHT + row) * WIDTH + column) * CHANNELS + channel
        value = tl.load(source + at, mask=mask, other=0.0)
        if THROUGH == 1:
            value = tl.where(tl.load(gate + at, mask=mask, other=0.0) > 0.0, value, 0.0)
    return value


@triton.jit
def convolve(
    source,
    gate,
    weights,
    bias,
    out,
    corners,
    places,
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
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    POOL: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Convolution of one tile of ``places``; also the gradient of the input, with turned weights.

    With POOL the four places of a window lie in one tile: the largest is kept, and which it was.
    """
    model = tl.program_id(1).to(tl.int64)
    across: tl.constexpr = (OUTPUTS + BLOCK_N - 1) // BLOCK_N
    depth: tl.constexpr = ROWS * COLUMNS * CHANNELS
    rows = tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = rows < places
    picture, row, column = _place(rows, OUT_HEIGHT, OUT_WIDTH, POOL)
    top = row * STRIDE - PAD
    left = column * STRIDE - PAD
    source += model * source_step
    gate += model * source_step
    weights += model * OUTPUTS * depth
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, depth, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        if CHANNELS % BLOCK_K == 0:  # one tap of the kernel at a time
            tap = start // CHANNELS
            channel = tl.arange(0, BLOCK_K)
            if CHANNELS > BLOCK_K:
                channel += tl.multiple_of(start % CHANNELS, BLOCK_K)
            y = top + tap // COLUMNS
            x = left + tap % COLUMNS
            there = inside
            if PAD > 0:
                there = there & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
            patch = _read(
                source,
                gate,
                picture[:, None],
                y[:, None],
                x[:, None],
                channel[None, :],
                there[:, None],
                HEIGHT,
                WIDTH,
                CHANNELS,
                THROUGH,
            )
        else:
            tap = inner // CHANNELS
            y = top[:, None] + (tap // COLUMNS)[None, :]
            x = left[:, None] + (tap % COLUMNS)[None, :]
            there = inside[:, None] & (inner < depth)[None, :]
            if PAD > 0:
                there = there & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
            patch = _read(
                source,
                gate,
                picture[:, None],
                y,
                x,
                (inner % CHANNELS)[None, :],
                there,
                HEIGHT,
                WIDTH,
                CHANNELS,
                THROUGH,
            )
        weight = tl.load(
            weights + outputs[None, :] * depth + inner[:, None],
            mask=(outputs < OUTPUTS)[None, :] & (inner < depth)[:, None],
            other=0.0,
        )
        total = tl.dot(patch.to(weight.dtype), weight, total, input_precision=PRECISION)
    if BIAS:
        given = tl.load(bias + model * OUTPUTS + outputs, mask=outputs < OUTPUTS, other=0.0)
        total += given.to(tl.float32)[None, :]
    if POOL:
        best, corner = tl.max(tl.reshape(total, (BLOCK_M // 4, 4, BLOCK_N)), 1, return_indices=True)
        windows = tl.program_id(0) // across * (BLOCK_M // 4) + tl.arange(0, BLOCK_M // 4)
        at = (model * (places // 4) + windows[:, None]) * OUTPUTS + outputs[None, :]
        mask = (windows * 4 < places)[:, None] & (outputs < OUTPUTS)[None, :]
        corner = tl.where(best > 0.0, corner, 4)
        tl.store(out + at, tl.maximum(best, 0.0).to(out.dtype.element_ty), mask=mask)
        tl.store(corners + at, corner.to(tl.int8), mask=mask)
    else:
        if RELU:
            total = tl.maximum(total, 0.0)
        at = (model * places + rows[:, None]) * OUTPUTS + outputs[None, :]
        mask = inside[:, None] & (outputs < OUTPUTS)[None, :]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def weigh(
    pictures,
    gradient,
    gate,
    weights,
    bias,
    places,
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
    """Gradient of the weights and the bias over one ``share`` of the places."""
    model = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    parts = tl.num_programs(2)
    across: tl.constexpr = (OUTPUTS + BLOCK_N - 1) // BLOCK_N
    depth: tl.constexpr = ROWS * COLUMNS * CHANNELS
    inner = tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    tap = inner // CHANNELS
    down = tap // COLUMNS
    right = tap % COLUMNS
    shift = (down * WIDTH + right) * CHANNELS + inner % CHANNELS
    pictures += model * picture_step
    gradient += model * gradient_step
    gate += model * gradient_step
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    sums = tl.zeros((BLOCK_N,), tl.float32)
    last = tl.minimum((part + 1) * share, places)
    for start in range(part * share, last, BLOCK_R):
        rows = start + tl.arange(0, BLOCK_R)
        inside = rows < last
        picture, row, column = _place(rows, OUT_HEIGHT, OUT_WIDTH, THROUGH == 2)
        top = row * STRIDE - PAD
        left = column * STRIDE - PAD
        at = ((picture * HEIGHT + top) * WIDTH + left) * CHANNELS
        there = inside[:, None] & (inner < depth)[None, :]
        if PAD > 0:
            y = top[:, None] + down[None, :]
            x = left[:, None] + right[None, :]
            there = there & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        patch = tl.load(pictures + at[:, None] + shift[None, :], mask=there, other=0.0)
        slope = _read(
            gradient,
            gate,
            picture[:, None],
            row[:, None],
            column[:, None],
            outputs[None, :],
            inside[:, None] & (outputs < OUTPUTS)[None, :],
            OUT_HEIGHT,
            OUT_WIDTH,
            OUTPUTS,
            THROUGH,
        )
        sums += tl.sum(slope.to(tl.float32), 0)
        slope = slope.to(patch.dtype)
        total = tl.dot(tl.trans(patch), slope, total, input_precision=PRECISION)
    place = model * parts + part
    at = (place * depth + inner[:, None]) * OUTPUTS + outputs[None, :]
    tl.store(weights + at, total, mask=(inner < depth)[:, None] & (outputs < OUTPUTS)[None, :])
    if tl.program_id(0) // across == 0:
        tl.store(bias + place * OUTPUTS + outputs, sums, mask=outputs < OUTPUTS)


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
