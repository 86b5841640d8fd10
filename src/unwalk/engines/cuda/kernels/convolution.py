"""Convolutions of channels-last pictures in bfloat16, for NVIDIA's Hopper, written in Gluon.

A convolution is a matrix product: one row per place, and as columns all that the place sees.  That
table is never written.  Each tile of it is a box of the picture, moved by a tap of the kernel,
which the tensor memory accelerator copies into shared memory, with zeros outside the picture.
With a stride of two, places are told apart by whether their line and column are even: a box then
holds every other place.

The gradient of the weights is a product of two tables for each tap of the kernel: the gradient, and
what the tap saw, summed over all places.  Programs share the places; what each of them finds is
added up in fixed order.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

DEPTH = 64
"""Channels are read in multiples of this."""
STAGES = 4
"""Tiles that are on their way at a time."""
PROGRAMS = 100
"""Tiles are made smaller until there are so many: most multiprocessors have work then."""


class _Tiles(NamedTuple):
    """Rows, columns and depth of what a program computes at a time."""

    rows: int
    columns: int
    depth: int

    @staticmethod
    def of(rows: int, inner: int, outer: int, classes: int) -> _Tiles:
        columns = 128 if outer % 128 == 0 else 64
        wide = triton.cdiv(rows, 128) * (outer // columns) * classes >= PROGRAMS
        deep = inner % 512 == 0 and not wide  # both would not fit a multiprocessor's memory
        return _Tiles(128 if wide else 64, columns, 128 if deep else 64)


@gluon.jit
def _barriers(AHEAD: gl.constexpr):
    """One barrier for each tile that is on its way."""
    ready = gl.allocate_shared_memory(gl.int64, [AHEAD, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(AHEAD):
        mbarrier.init(ready.index(k), count=1)
    fence_async_shared()
    return ready


@gluon.jit
def _fetch(
    xd, wd, xs, ws, ready, step, n, line, column, below, beside, wanted,
    INNER: gl.constexpr, OUTER: gl.constexpr, SIZE: gl.constexpr, STRIDE: gl.constexpr,
    BACK: gl.constexpr, DEEP: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    """Have the tiles of a step copied: of the pictures, and of the weights."""
    parts: gl.constexpr = INNER // DEEP
    half: gl.constexpr = SIZE // 2
    tap = step // parts
    c = step % parts * DEEP
    if BACK:
        if STRIDE == 1:
            r = tap // SIZE
            s = tap % SIZE
            down = half - r
            across = half - s
        else:
            width = 1 + beside * half
            r = (half - below) * half + 2 * (tap // width)
            s = (half - beside) * half + 2 * (tap % width)
            down = below - tap // width
            across = beside - tap % width
        place = [n, line + down, 0, across, c]
        at = [c, (r * SIZE + s) * OUTER + column]
    else:
        down = tap // SIZE - half
        across = tap % SIZE - half
        if STRIDE == 1:
            place = [n, line + down, 0, across, c]
        else:
            place = [n, line + (down >> 1), down & 1, across >> 1, (across & 1) * INNER + c]
        at = [column, tap * INNER + c]
    slot = step % AHEAD
    there = ready.index(slot)
    mbarrier.expect(there, xd.block_type.nbytes + wd.block_type.nbytes, pred=wanted)
    tma.async_copy_global_to_shared(xd, place, there, xs.index(slot), pred=wanted)
    tma.async_copy_global_to_shared(wd, at, there, ws.index(slot), pred=wanted)


@gluon.jit
def _convolve(
    xd, wd, yd,
    ACROSS: gl.constexpr, INNER: gl.constexpr, OUTER: gl.constexpr, SIZE: gl.constexpr,
    STRIDE: gl.constexpr, BACK: gl.constexpr,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, DEEP: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    """One tile; rows are cut from pictures of ``ACROSS`` x ``ACROSS`` places."""
    first = gl.program_id(0) * ROWS
    column = gl.program_id(1) * COLUMNS
    n = first // (ACROSS * ACROSS)
    line = first // ACROSS % ACROSS
    below = 0
    beside = 0
    steps = SIZE * SIZE * (INNER // DEEP)
    if BACK and STRIDE == 2:  # even and odd lines and columns are reached by different taps
        below = 1 - gl.program_id(2) // 2
        beside = 1 - gl.program_id(2) % 2
        if SIZE == 1:
            steps = (1 - below) * (1 - beside) * (INNER // DEEP)
        else:
            steps = (1 + below) * (1 + beside) * (INNER // DEEP)
    xs = gl.allocate_shared_memory(xd.dtype, [AHEAD] + xd.block_type.shape, xd.layout)
    ws = gl.allocate_shared_memory(wd.dtype, [AHEAD] + wd.block_type.shape, wd.layout)
    ready = _barriers(AHEAD)
    for k in gl.static_range(AHEAD - 1):
        _fetch(
            xd, wd, xs, ws, ready, k, n, line, column, below, beside, k < steps,
            INNER, OUTER, SIZE, STRIDE, BACK, DEEP, AHEAD,
        )  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, COLUMNS, 16]
    )
    total = gl.zeros((ROWS, COLUMNS), gl.float32, layout)
    for k in range(steps):
        slot = k % AHEAD
        mbarrier.wait(ready.index(slot), k // AHEAD & 1)
        weight = ws.index(slot)
        if not BACK:
            weight = weight.permute([1, 0])
        x = xs.index(slot).reshape([ROWS, DEEP])
        total = warpgroup_mma(x, weight, total, is_async=True)
        total = warpgroup_mma_wait(1, deps=[total])
        later = k + AHEAD - 1
        _fetch(
            xd, wd, xs, ws, ready, later, n, line, column, below, beside, later < steps,
            INNER, OUTER, SIZE, STRIDE, BACK, DEEP, AHEAD,
        )  # fmt: skip
    total = warpgroup_mma_wait(0, deps=[total])
    for k in gl.static_range(AHEAD):
        mbarrier.invalidate(ready.index(k))
    ys = gl.allocate_shared_memory(yd.dtype, yd.block_type.shape, yd.layout)
    ys.reshape([ROWS, COLUMNS]).store(total.to(yd.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(yd, [n, line, below, 0, beside * OUTER + column], ys)
    tma.store_wait(0)


def pictures(x: torch.Tensor, stride: int, rows: int, channels: int) -> TensorDescriptor:
    """Channels-last pictures, in boxes of so many places (every ``stride``-th) and channels."""
    n, c, lines, columns = x.shape
    across = columns // stride
    box = [max(1, rows // across**2), min(across, rows // across), 1, across, channels]
    shape = [n, lines // stride, stride, across, stride * c]
    strides = [lines * columns * c, stride * columns * c, columns * c, stride * c, 1]
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
    return TensorDescriptor(x, shape, strides, box, layout)


def _table(weight: torch.Tensor, lines: int, columns: int) -> TensorDescriptor:
    """A kernel as a table (out, taps * in), in boxes of so many lines and columns."""
    flat = weight.permute(0, 2, 3, 1).reshape(len(weight), -1)
    layout = gl.NVMMASharedLayout.get_default_for([lines, columns], gl.bfloat16)
    return TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [lines, columns], layout)


def _launch(
    x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, stride: int, *, back: bool
) -> None:
    small = x if back else y
    n, _, across, _ = small.shape
    rows, inner, outer = n * across**2, x.shape[1], y.shape[1]
    classes = 4 if back and stride == 2 else 1
    tiles = _Tiles.of(rows, inner, outer, classes)
    box = (tiles.depth, tiles.columns) if back else (tiles.columns, tiles.depth)
    _convolve[(triton.cdiv(rows, tiles.rows), outer // tiles.columns, classes)](
        pictures(x, 1 if back else stride, tiles.rows, tiles.depth),
        _table(weight, *box),
        pictures(y, stride if back else 1, tiles.rows, tiles.columns),
        across, inner, outer, weight.shape[2], stride, back, *tiles, STAGES, num_warps=4,
    )  # fmt: skip


def _lies(x: torch.Tensor) -> bool:
    """Channels-last, where a descriptor can point at it."""
    return x.is_contiguous(memory_format=torch.channels_last) and x.data_ptr() % 16 == 0


def fits(x: torch.Tensor, weight: torch.Tensor, stride: int) -> bool:
    """Whether these pictures and this kernel, padded by half its size, can be convolved here."""
    outer, inner, high, wide = weight.shape
    across = x.shape[3] // stride
    return (
        x.is_cuda
        and x.dtype == weight.dtype == torch.bfloat16
        and (inner % DEPTH, outer % DEPTH) == (0, 0)
        and high == wide
        and high in (1, 3)
        and stride in (1, 2)
        and x.shape[2] == x.shape[3] == across * stride
        and across in (1, 2, 4, 8, 16, 32, 64)
        and _lies(x)
        and _lies(weight)
        and usable()
    )


@cache
def usable() -> bool:
    """Whether this device and this Triton build the kernels, and they compute what they should."""
    if torch.cuda.get_device_capability() != (9, 0):
        return False
    generator = torch.Generator(device="cuda").manual_seed(0)
    x, gradient, weight = (
        torch.randn(n, 64, side, side, device="cuda", generator=generator)
        .to(torch.bfloat16)
        .contiguous(memory_format=torch.channels_last)
        for n, side in ((3, 4), (3, 4), (64, 3))
    )
    place = torch.empty_like(weight)
    try:
        weight_gradient(gradient, x, place, 1)
        ours = (convolve(x, weight, 1), input_gradient(gradient, weight, 1), place)
    except Exception:  # another version of what is called experimental
        return False
    wanted = (
        functional.conv2d(x, weight, padding=1),
        conv2d_input(x.shape, weight, gradient, padding=1),
        conv2d_weight(x, weight.shape, gradient, padding=1),
    )
    pairs = zip(ours, wanted, strict=True)
    return all(float((a - b).float().norm()) < 0.02 * float(b.float().norm()) for a, b in pairs)


def convolve(x: torch.Tensor, weight: torch.Tensor, stride: int) -> torch.Tensor:
    """The convolution of ``x`` padded by half the kernel's size."""
    n, _, lines, columns = x.shape
    shape = (n, len(weight), lines // stride, columns // stride)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    _launch(x, weight, y, stride, back=False)
    return y


def input_gradient(gradient: torch.Tensor, weight: torch.Tensor, stride: int) -> torch.Tensor:
    """The gradient of the input of :func:`convolve`, from that of its output."""
    n, _, lines, columns = gradient.shape
    shape = (n, weight.shape[1], lines * stride, columns * stride)
    x = torch.empty(
        shape, dtype=gradient.dtype, device=gradient.device, memory_format=torch.channels_last
    )
    _launch(gradient, weight, x, stride, back=True)
    return x


PROCESSORS = 132
"""Multiprocessors of the device."""
SHARED = 220 * 1024
"""Bytes of shared memory that the programs on one of them can have together."""


@gluon.jit
def _bring(
    gd, xd, gs, xs, ready, block, step, line, c, tap, wanted,
    ACROSS: gl.constexpr, INNER: gl.constexpr, SIZE: gl.constexpr, STRIDE: gl.constexpr,
    ROWS: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    """Have the tiles of a block of places copied: of the gradient, and of what a tap saw."""
    n = block * ROWS // (ACROSS * ACROSS)
    i = block * ROWS // ACROSS % ACROSS
    down = tap // SIZE - SIZE // 2
    across = tap % SIZE - SIZE // 2
    if STRIDE == 1:
        place = [n, i + down, 0, across, c]
    else:
        place = [n, i + (down >> 1), down & 1, across >> 1, (across & 1) * INNER + c]
    slot = step % AHEAD
    there = ready.index(slot)
    mbarrier.expect(there, gd.block_type.nbytes + xd.block_type.nbytes, pred=wanted)
    tma.async_copy_global_to_shared(gd, [n, i, 0, 0, line], there, gs.index(slot), pred=wanted)
    tma.async_copy_global_to_shared(xd, place, there, xs.index(slot), pred=wanted)


@gluon.jit
def _weigh(
    gd, xd, out, blocks,
    ACROSS: gl.constexpr, INNER: gl.constexpr, OUTER: gl.constexpr, SIZE: gl.constexpr,
    STRIDE: gl.constexpr, PARTS: gl.constexpr,
    LINES: gl.constexpr, COLUMNS: gl.constexpr, ROWS: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    """One tile of the gradient of the weight, for one tap, summed over a part of the places."""
    taps: gl.constexpr = SIZE * SIZE
    tile = gl.program_id(0)
    part = gl.program_id(1)
    tap = tile % taps
    c = tile // taps % (INNER // COLUMNS) * COLUMNS
    line = tile // taps // (INNER // COLUMNS) * LINES
    first = part * blocks // PARTS
    steps = (part + 1) * blocks // PARTS - first
    gs = gl.allocate_shared_memory(gd.dtype, [AHEAD] + gd.block_type.shape, gd.layout)
    xs = gl.allocate_shared_memory(xd.dtype, [AHEAD] + xd.block_type.shape, xd.layout)
    ready = _barriers(AHEAD)
    for k in gl.static_range(AHEAD - 1):
        _bring(
            gd, xd, gs, xs, ready, first + k, k, line, c, tap, k < steps,
            ACROSS, INNER, SIZE, STRIDE, ROWS, AHEAD,
        )  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, COLUMNS, 16]
    )
    total = gl.zeros((LINES, COLUMNS), gl.float32, layout)
    for k in range(steps):
        slot = k % AHEAD
        mbarrier.wait(ready.index(slot), k // AHEAD & 1)
        gradient = gs.index(slot).reshape([ROWS, LINES]).permute([1, 0])
        x = xs.index(slot).reshape([ROWS, COLUMNS])
        total = warpgroup_mma(gradient, x, total, is_async=True)
        total = warpgroup_mma_wait(1, deps=[total])
        later = k + AHEAD - 1
        _bring(
            gd, xd, gs, xs, ready, first + later, later, line, c, tap, later < steps,
            ACROSS, INNER, SIZE, STRIDE, ROWS, AHEAD,
        )  # fmt: skip
    total = warpgroup_mma_wait(0, deps=[total])
    for k in gl.static_range(AHEAD):
        mbarrier.invalidate(ready.index(k))
    o = line + gl.arange(0, LINES, gl.SliceLayout(1, layout))
    at = tap * INNER + c + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    out += part * OUTER * taps * INNER
    gl.store(out + o[:, None] * (taps * INNER) + at[None, :], total.to(out.dtype.element_ty))


@triton.jit
def _add_up(shares, place, size, PARTS: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of the parts, in fixed order: the same step gives the same bits every time."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, LINES)
    there = (part[:, None] < PARTS) & (k[None, :] < size)
    values = tl.load(shares + part[:, None] * size + k[None, :], mask=there, other=0.0)
    tl.store(place + k, tl.sum(values, 0), mask=k < size)


class _WeightCut(NamedTuple):
    """How the gradient of a weight is cut: into tiles, and its places into parts."""

    parts: int
    lines: int
    columns: int
    rows: int
    ahead: int

    @staticmethod
    def of(places: int, inner: int, outer: int, taps: int) -> _WeightCut:
        lines, columns = 64, 128 if inner % 128 == 0 else 64
        tiles = outer // lines * (inner // columns) * taps
        rows, room = (128, PROCESSORS) if 3 * tiles <= PROCESSORS else (64, 2 * PROCESSORS)
        parts = max(1, min(room // tiles, places // rows // 2))
        together = min(3, triton.cdiv(tiles * parts, PROCESSORS))
        ahead = max(2, min(6, SHARED // together // (2 * rows * (lines + columns))))
        return _WeightCut(parts, lines, columns, rows, ahead)


def weight_gradient(
    gradient: torch.Tensor, x: torch.Tensor, place: torch.Tensor, stride: int
) -> None:
    """Writes the gradient of a convolution's weight into ``place``, which lies as the weight."""
    n, outer, across, _ = gradient.shape
    inner, size = place.shape[1], place.shape[2]
    cut = _WeightCut.of(n * across**2, inner, outer, size**2)
    flat = place.permute(0, 2, 3, 1).view(-1)
    out = flat
    if cut.parts > 1:
        out = torch.empty(cut.parts * len(flat), dtype=torch.float32, device=x.device)
    tiles = outer // cut.lines * (inner // cut.columns) * size**2
    _weigh[(tiles, cut.parts)](
        pictures(gradient, 1, cut.rows, cut.lines),
        pictures(x, stride, cut.rows, cut.columns),
        out, triton.cdiv(n * across**2, cut.rows),
        across, inner, outer, size, stride, *cut, num_warps=4,
    )  # fmt: skip
    if cut.parts > 1:
        lines = triton.next_power_of_2(cut.parts)
        block = max(32, min(1024, 8192 // lines, triton.next_power_of_2(len(flat) // 512)))
        _add_up[(triton.cdiv(len(flat), block),)](
            out, flat, len(flat), cut.parts, lines, block, num_warps=4
        )
