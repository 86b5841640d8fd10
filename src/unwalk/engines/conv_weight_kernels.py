"""Weight gradients of the convolutions of `conv_kernels`.

A product of two tables for each tap of the kernel: the gradient, and what the tap saw, summed over
all places.  Programs share the places; what each of them finds is added up in fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from unwalk.engines.conv_kernels import pictures

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
    ready = gl.allocate_shared_memory(gl.int64, [AHEAD, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(AHEAD):
        mbarrier.init(ready.index(k), count=1)
    fence_async_shared()
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


class _Cut(NamedTuple):
    """How the gradient of a weight is cut: into tiles, and its places into parts."""

    parts: int
    lines: int
    columns: int
    rows: int
    ahead: int

    @staticmethod
    def of(places: int, inner: int, outer: int, taps: int) -> _Cut:
        lines, columns = 64, 128 if inner % 128 == 0 else 64
        tiles = outer // lines * (inner // columns) * taps
        rows, room = (128, PROCESSORS) if 3 * tiles <= PROCESSORS else (64, 2 * PROCESSORS)
        parts = max(1, min(room // tiles, places // rows // 2))
        together = min(3, triton.cdiv(tiles * parts, PROCESSORS))
        ahead = max(2, min(6, SHARED // together // (2 * rows * (lines + columns))))
        return _Cut(parts, lines, columns, rows, ahead)


def weight_gradient(
    gradient: torch.Tensor, x: torch.Tensor, place: torch.Tensor, stride: int
) -> None:
    """Writes the gradient of a convolution's weight into ``place``, which lies as the weight."""
    n, outer, across, _ = gradient.shape
    inner, size = place.shape[1], place.shape[2]
    cut = _Cut.of(n * across**2, inner, outer, size**2)
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
