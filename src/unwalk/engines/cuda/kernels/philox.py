"""A Triton kernel for many public streams at once (:mod:`unwalk.core.philox`)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 64
"""Counters of one stream that a program takes."""


@triton.jit
def _philox(keys, hops, words, draws, blocks, block: tl.constexpr):
    """The four words of each counter of one draw of one walk."""
    walk, draw = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    number = tl.program_id(2) * block + tl.arange(0, block).to(tl.int64)
    nothing = tl.zeros((block,), tl.int64)
    c0 = (number + 1).to(tl.uint64)
    c1 = (nothing + draw).to(tl.uint64)
    c2 = (nothing + tl.load(hops + walk)).to(tl.uint64)
    c3 = nothing.to(tl.uint64)
    k0 = (nothing + tl.load(keys + 2 * walk)).to(tl.uint64)
    k1 = (nothing + tl.load(keys + 2 * walk + 1)).to(tl.uint64)
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, 0xD2E7470EE14C6C93), c0 * 0xD2E7470EE14C6C93
        high1, low1 = tl.umulhi(c2, 0xCA5A826395121157), c2 * 0xCA5A826395121157
        c0, c1 = high1 ^ c1 ^ k0, low1
        c2, c3 = high0 ^ c3 ^ k1, low0
        k0 += 0x9E3779B97F4A7C15
        k1 += 0xBB67AE8584CAA73B
    inside = number < blocks
    at = words + ((walk * draws + draw) * blocks + number) * 4
    tl.store(at, c0.to(tl.int64), mask=inside)
    tl.store(at + 1, c1.to(tl.int64), mask=inside)
    tl.store(at + 2, c2.to(tl.int64), mask=inside)
    tl.store(at + 3, c3.to(tl.int64), mask=inside)


def stream_words(keys: torch.Tensor, hops: torch.Tensor, count: int, draws: int) -> torch.Tensor:
    """Words of the first ``draws`` draws of each walk: (walks, draws, count), as signed numbers."""
    blocks = -(-count // 4)
    words = torch.empty(len(keys), draws, blocks * 4, dtype=torch.int64, device=keys.device)
    grid = (len(keys), draws, triton.cdiv(blocks, BLOCK))
    _philox[grid](keys, hops, words, draws, blocks, block=BLOCK)
    return words[:, :, :count]
