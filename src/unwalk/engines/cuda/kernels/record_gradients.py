"""Triton kernels for gradients clipped record by record: norms of convolutions, and scaling."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from unwalk.engines.cuda.convolution import Pair

BLOCK = 128
"""Channels on either side that a program multiplies together, at most."""
DEPTH = 64
"""Places that it takes at a time; also the most for which products between places are made."""


@triton.jit
def _convolution_squares(
    x, gradient, squares, places, columns, outs, high, wide, channels,
    stride_down, stride_across, down, across, gap_down, gap_across, size_across, tiles_out, tiles,
    block_out: tl.constexpr, block_in: tl.constexpr, depth: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """The sum of squares of a tile of one record's gradient, at one place of the kernel."""
    part, record = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tap, tile = part // tiles, part % tiles
    o = tile % tiles_out * block_out + tl.arange(0, block_out)
    c = tile // tiles_out * block_in + tl.arange(0, block_in)
    here, there = (o < outs)[None, :], (c < channels)[None, :]
    i, j = tap // size_across * gap_down - down, tap % size_across * gap_across - across
    total = tl.zeros((block_out, block_in), tl.float32)
    for start in range(0, places, depth):
        p = start + tl.arange(0, depth)
        line, column = p // columns * stride_down + i, p % columns * stride_across + j
        inside = (line >= 0) & (line < high) & (column >= 0) & (column < wide) & (p < places)
        at = record * high * wide + line * wide + column
        a = tl.load(
            x + at[:, None] * channels + c[None, :], mask=inside[:, None] & there, other=0.0
        )
        at = record * places + p
        b = tl.load(
            gradient + at[:, None] * outs + o[None, :], mask=inside[:, None] & here, other=0.0
        )
        total = tl.dot(tl.trans(b), a, total, input_precision=precision)
    found = tl.sum(tl.sum(total * total, 1), 0)
    tl.store(squares + record * tl.num_programs(0) + part, found)


@triton.jit
def _convolution_products(
    x, gradient, squares, places, columns, outs, high, wide, channels,
    stride_down, stride_across, down, across, gap_down, gap_across, size_across, taps,
    block: tl.constexpr, chunk: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """The same for a whole record, from products of patches and of gradients between places."""
    record = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, block)
    near = tl.zeros((block, block), tl.float32)
    far = tl.zeros((block, block), tl.float32)
    chunks = tl.cdiv(channels, chunk)
    for part in range(taps * chunks):
        tap = part // chunks
        c = part % chunks * chunk + tl.arange(0, chunk)
        line = p // columns * stride_down + tap // size_across * gap_down - down
        column = p % columns * stride_across + tap % size_across * gap_across - across
        inside = (line >= 0) & (line < high) & (column >= 0) & (column < wide) & (p < places)
        at = record * high * wide + line * wide + column
        mask = inside[:, None] & (c < channels)[None, :]
        a = tl.load(x + at[:, None] * channels + c[None, :], mask=mask, other=0.0)
        near = tl.dot(a, tl.trans(a), near, input_precision=precision)
    for start in range(0, outs, chunk):
        o = start + tl.arange(0, chunk)
        at = record * places + p
        mask = (p < places)[:, None] & (o < outs)[None, :]
        b = tl.load(gradient + at[:, None] * outs + o[None, :], mask=mask, other=0.0)
        far = tl.dot(b, tl.trans(b), far, input_precision=precision)
    tl.store(squares + record, tl.sum(tl.sum(near * far, 1), 0))


def convolution_squares(
    x: torch.Tensor, gradient: torch.Tensor, kernel: Pair, how: tuple[Pair, Pair, Pair]
) -> torch.Tensor:
    """Squared norms, in parts (records, parts), of each record's gradient of a convolution.

    ``x`` is what went in, ``gradient`` that of what came out, both channels-last; ``how`` is
    stride, padding and dilation.  Products of half precision are summed up in float32.

    With patches of K numbers, O channels out and L places, a record's gradient takes KOL
    operations.  Where L is small, products between places take fewer, L(K + O) for each.
    """
    records, channels, high, wide = x.shape
    _, outs, lines, columns = gradient.shape
    stride, padding, dilation = how
    exact = x.dtype == torch.float32
    precision = "ieee" if exact else "tf32"
    places, patch = lines * columns, kernel[0] * kernel[1] * channels
    if places <= DEPTH and 2 * places * (patch + outs) <= patch * outs:
        squares = torch.empty(records, 1, device=x.device)
        chunk = max(16, min(BLOCK, triton.next_power_of_2(max(channels, outs))))
        _convolution_products[(records,)](
            x, gradient, squares, places, columns, outs, high, wide, channels,
            *stride, *padding, *dilation, kernel[1], kernel[0] * kernel[1],
            max(16, triton.next_power_of_2(places)), min(chunk, 64) if exact else chunk, precision,
            num_warps=4,
        )  # fmt: skip
        return squares
    block_out = max(16, min(BLOCK, triton.next_power_of_2(outs)))
    block_in = max(16, min(BLOCK, triton.next_power_of_2(channels)))
    if exact:
        block_out, block_in = min(block_out, BLOCK // 2), min(block_in, BLOCK // 2)
    depth = max(16, min(DEPTH, triton.next_power_of_2(places)))
    tiles_out = triton.cdiv(outs, block_out)
    tiles = tiles_out * triton.cdiv(channels, block_in)
    parts = kernel[0] * kernel[1] * tiles
    squares = torch.empty(records, parts, device=x.device)
    _convolution_squares[(parts, records)](
        x, gradient, squares, places, columns, outs, high, wide, channels,
        *stride, *padding, *dilation, kernel[1], tiles_out, tiles,
        block_out, block_in, depth, precision,
        num_warps=8 if block_out * block_in >= BLOCK * BLOCK else 4,
    )  # fmt: skip
    return squares


@triton.jit
def _scaled(x, factors, out, size, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    mask = i < size
    record = tl.program_id(1).to(tl.int64)
    value = tl.load(x + record * size + i, mask=mask).to(tl.float32) * tl.load(factors + record)
    tl.store(out + record * size + i, value, mask=mask)


def scaled(x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Every record of ``x``, which lies dense, times its factor in float32."""
    out = torch.empty_like(x)
    size = x.numel() // len(x)
    _scaled[(triton.cdiv(size, 2048), len(x))](x, factors, out, size, 2048)
    return out
