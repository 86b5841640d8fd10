"""Triton kernels of a step: patches of the input, gradient of the softmax loss, optimizers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _patches(
    x, room, rows, channels, high, wide, lines, columns, down, across, step_down, step_across,
    size: tl.constexpr, size_across: tl.constexpr, width: tl.constexpr, up: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * tile + tl.arange(0, tile)
    k = tl.arange(0, up)
    line, column = r // columns % lines, r % columns
    picture = r // columns // lines * channels
    i, j, c = k // channels // size_across, k // channels % size_across, k % channels
    y = line[:, None] * step_down + i[None, :] - down
    z = column[:, None] * step_across + j[None, :] - across
    there = (y >= 0) & (y < high) & (z >= 0) & (z < wide) & (i < size)[None, :]
    here = (r < rows)[:, None]
    at = ((picture[:, None] + c[None, :]) * high + y) * wide + z
    value = tl.load(x + at, mask=there & here, other=0.0)
    tl.store(room + r[:, None] * width + k[None, :], value, mask=here & (k < width)[None, :])


def patches(
    room: torch.Tensor,
    x: torch.Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> None:
    """The patches of pictures (..., channels, height, width) as rows of ``room``."""
    x = x.contiguous()
    channels, high, wide = x.shape[-3:]
    lines, columns, width = room.shape[-3:]
    rows = room.numel() // width
    _patches[(triton.cdiv(rows, 64),)](
        x, room, rows, channels, high, wide, lines, columns, *padding, *stride, *kernel,
        width, triton.next_power_of_2(width), 64,
    )  # fmt: skip


@triton.jit
def _softmax_gradient(logits, labels, out, classes, share, block: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, block)
    mask = c < classes
    z = tl.load(logits + row * classes + c, mask=mask, other=float("-inf")).to(tl.float32)
    e = tl.exp(z - tl.max(z, 0))
    p = e / tl.sum(e, 0)
    p = tl.where(c == tl.load(labels + row), p - 1.0, p)
    tl.store(out + row * classes + c, p * share, mask=mask)


def softmax_gradient(logits: torch.Tensor, labels: torch.Tensor, share: float) -> torch.Tensor:
    """The gradient of ``share`` times the summed cross-entropy with respect to the logits."""
    logits = logits.contiguous()
    out = torch.empty_like(logits)
    rows, classes = logits.shape
    _softmax_gradient[(rows,)](
        logits, labels, out, classes, share, triton.next_power_of_2(classes), num_warps=1
    )
    return out


@triton.jit
def _descend(
    masters, values, gradients, velocity, knobs, factor, size,
    heavy: tl.constexpr, lowered: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * block + tl.arange(0, block)
    mask = i < size
    theta = tl.load(masters + i, mask=mask)
    change = tl.load(gradients + i, mask=mask).to(tl.float32) * tl.load(factor)
    change += tl.load(knobs + 4) * theta
    if heavy:
        change += tl.load(knobs + 3) * tl.load(velocity + i, mask=mask)
        tl.store(velocity + i, change, mask=mask)
    theta -= tl.load(knobs) * change
    tl.store(masters + i, theta, mask=mask)
    if lowered:
        tl.store(values + i, theta, mask=mask)


def descend(
    masters: torch.Tensor,
    values: torch.Tensor,
    gradients: torch.Tensor,
    velocity: torch.Tensor | None,
    knobs: torch.Tensor,
    factor: torch.Tensor,
) -> None:
    """Plain or heavy-ball descent on flat vectors, in place.

    ``knobs`` holds step size, -, -, momentum, weight decay; the gradient is multiplied by
    ``factor``.  ``values`` is a copy of ``masters`` in another precision, or ``masters`` itself.
    """
    _descend[(triton.cdiv(masters.numel(), 1024),)](
        masters, values, gradients, masters if velocity is None else velocity, knobs, factor,
        masters.numel(), velocity is not None, values is not masters, 1024,
    )  # fmt: skip


@triton.jit
def fleet_step(
    parameters,
    gradient,
    norms,
    mean,
    square,
    knobs,
    corrections,
    active,
    size,
    OPTIMIZER: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    DAMPING: tl.constexpr,
    CLIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One optimizer step of a row of parameters: 0 is plain, 1 with momentum, 2 is Adam.

    ``knobs`` holds step size, scale, clip, sign, momentum and weight decay of every row;
    ``corrections`` what Adam divides its two moments by.
    """
    model = tl.program_id(1).to(tl.int64)
    if tl.load(active + model) != 0:
        knobs += model * 6
        rate = tl.load(knobs)
        scale = tl.load(knobs + 1)
        if CLIP:
            norm = tl.load(norms + model) * tl.abs(scale)
            scale = scale * tl.minimum(tl.load(knobs + 2) / (norm + 1e-12), 1.0)
        scale = scale * tl.load(knobs + 3)
        inner = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = inner < size
        at = model * size + inner
        value = tl.load(parameters + at, mask=mask, other=0.0)
        slope = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32) * scale
        slope += tl.load(knobs + 5) * value
        if OPTIMIZER == 0:
            change = rate * slope
        elif OPTIMIZER == 1:
            velocity = tl.load(mean + at, mask=mask, other=0.0) * tl.load(knobs + 4) + slope
            tl.store(mean + at, velocity, mask=mask)
            change = rate * velocity
        else:
            first = tl.load(mean + at, mask=mask, other=0.0)
            first = first + (1.0 - FIRST) * (slope - first)
            second = tl.load(square + at, mask=mask, other=0.0) * SECOND
            second = second + (1.0 - SECOND) * slope * slope
            tl.store(mean + at, first, mask=mask)
            tl.store(square + at, second, mask=mask)
            root = tl.sqrt(second / tl.load(corrections + model * 2 + 1)) + DAMPING
            change = rate * first / tl.load(corrections + model * 2) / root
        tl.store(parameters + at, value - change, mask=mask)
