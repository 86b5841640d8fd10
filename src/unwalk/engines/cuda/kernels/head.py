"""Triton kernels of a network's end: the mean over places of channels-last pictures, then logits.

Forward, a program takes a record; backward, one kernel gives the pictures' gradient and another
the gradients of weight and bias.  No two programs share a sum, so the same step gives the same
bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

ELEMENTS = 8192
"""Numbers that a program looks at together."""
FORWARD, BACKWARD = 512, 128
"""Channels that a program takes at a time: of a whole record, and of its gradient."""
BLOCK = 32
"""Channels, and classes, of the piece of the weight's gradient that a program writes."""
RECORDS = 64
"""Records that it takes at a time."""


@triton.jit
def _forward(
    x, weight, bias, mean, logits, places, channels, classes,
    biased: tl.constexpr, up: tl.constexpr, block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    record = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, up)
    real = k < classes
    total = tl.zeros((up, block), tl.float32)
    for first in range(0, channels, block):
        c = first + tl.arange(0, block)
        there = c < channels
        w = tl.load(
            weight + k[:, None] * channels + c[None, :], mask=real[:, None] & there[None, :],
            other=0.0,
        )  # fmt: skip
        values = tl.zeros((tile, block), tl.float32)
        for start in range(0, places, tile):
            r = start + tl.arange(0, tile)
            at = record * places * channels + r[:, None] * channels + c[None, :]
            mask = (r < places)[:, None] & there[None, :]
            values += tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        own = tl.sum(values, 0) / places
        tl.store(mean + record * channels + c, own, mask=there)
        total += w.to(tl.float32) * own[None, :]
    found = tl.sum(total, 1)
    if biased:
        found += tl.load(bias + k, mask=real, other=0.0).to(tl.float32)
    tl.store(logits + record * classes + k, found, mask=real)


@triton.jit
def _backward(
    gradient, weight, for_x, places, channels, classes,
    up: tl.constexpr, block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The same gradient for all places of a record, for some of its channels."""
    record = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, up)
    c = tl.program_id(1) * block + tl.arange(0, block)
    real, there = k < classes, c < channels
    w = tl.load(
        weight + k[:, None] * channels + c[None, :], mask=real[:, None] & there[None, :], other=0.0
    )
    g = tl.load(gradient + record * classes + k, mask=real, other=0.0).to(tl.float32)
    own = tl.sum(w.to(tl.float32) * g[:, None], 0) / places
    for start in range(0, places, tile):
        r = start + tl.arange(0, tile)
        at = record * places * channels + r[:, None] * channels + c[None, :]
        mask = (r < places)[:, None] & there[None, :]
        tl.store(for_x + at, tl.broadcast_to(own[None, :], (tile, block)), mask=mask)


@triton.jit
def _collect(
    gradient, mean, for_weight, for_bias, records, channels, classes,
    biased: tl.constexpr, many: tl.constexpr, block: tl.constexpr, tile: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Sums over records, for some classes and channels; the first channels do the bias."""
    c = tl.program_id(0) * block + tl.arange(0, block)
    k = tl.program_id(1) * many + tl.arange(0, many)
    real, there = k < classes, c < channels
    total = tl.zeros((many, block), tl.float32)
    plain = tl.zeros((many, tile), tl.float32)
    for start in range(0, records, tile):
        r = start + tl.arange(0, tile)
        here = r < records
        g = tl.load(
            gradient + r[None, :] * classes + k[:, None], mask=here[None, :] & real[:, None],
            other=0.0,
        ).to(tl.float32)  # fmt: skip
        m = tl.load(
            mean + r[:, None] * channels + c[None, :], mask=here[:, None] & there[None, :],
            other=0.0,
        )  # fmt: skip
        plain += g
        total = tl.dot(g, m, total, input_precision=precision)
    at = for_weight + k[:, None] * channels + c[None, :]
    tl.store(at, total, mask=real[:, None] & there[None, :])
    if biased:
        tl.store(for_bias + k, tl.sum(plain, 1), mask=real & (tl.program_id(0) == 0))


def _cut(places: int, channels: int, classes: int, most: int) -> tuple[int, int, int]:
    """Classes rounded up, channels and places at a time."""
    up = triton.next_power_of_2(classes)
    block = min(triton.next_power_of_2(channels), most, ELEMENTS // up)
    return up, block, min(triton.next_power_of_2(places), ELEMENTS // block)


def forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and the mean over places that they are made of, in float32 for the way back."""
    records, channels, places = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
    classes = len(weight)
    up, block, tile = _cut(places, channels, classes, FORWARD)
    mean = torch.empty(records, channels, device=x.device)
    logits = torch.empty(records, classes, dtype=x.dtype, device=x.device)
    _forward[(records,)](
        x, weight, weight if bias is None else bias, mean, logits, places, channels, classes,
        bias is not None, up, block, tile, num_warps=max(1, min(8, block * max(up, tile) // 256)),
    )  # fmt: skip
    return logits, mean


def backward(
    gradient: torch.Tensor, weight: torch.Tensor, shape: tuple[int, int, int, int]
) -> torch.Tensor:
    """The gradient of the pictures, of ``shape``, from that of the logits; channels-last."""
    records, channels, high, wide = shape
    classes = len(weight)
    up, block, tile = _cut(high * wide, channels, classes, BACKWARD)
    for_x = torch.empty(
        shape, dtype=gradient.dtype, device=gradient.device, memory_format=torch.channels_last
    )
    _backward[(records, triton.cdiv(channels, block))](
        gradient, weight, for_x, high * wide, channels, classes, up, block, tile,
        num_warps=max(1, min(8, block * max(up, tile) // 256)),
    )  # fmt: skip
    return for_x


def collect(
    gradient: torch.Tensor,
    mean: torch.Tensor,
    for_weight: torch.Tensor,
    for_bias: torch.Tensor | None,
) -> None:
    """The gradients of weight and bias, written where they belong."""
    records, channels = mean.shape
    classes = gradient.shape[1]
    many = min(BLOCK, max(16, triton.next_power_of_2(classes)))  # products take no fewer
    tile = min(RECORDS, max(16, triton.next_power_of_2(records)))
    precision = "ieee" if gradient.dtype == torch.float32 else "tf32"  # finer than bfloat16
    _collect[(triton.cdiv(channels, BLOCK), triton.cdiv(classes, many))](
        gradient, mean, for_weight, for_weight if for_bias is None else for_bias,
        records, channels, classes, for_bias is not None, many, BLOCK, tile,
        precision, num_warps=4,
    )  # fmt: skip
