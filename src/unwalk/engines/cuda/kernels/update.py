"""A Triton kernel for the optimizer step of one walk: one pass over memory.

It is plain or heavy-ball descent on a flat block, as ``captured_steps`` has it in plain torch, and
lowers the masters into the values that the network computes with.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
"""Parameters that a program takes."""


@triton.jit
def _descend(
    masters, values, gradients, velocity, knobs, scale, size,
    momentum: tl.constexpr, decays: tl.constexpr, lowered: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < size
    change = tl.load(gradients + at, mask=inside, other=0.0).to(tl.float32) * tl.load(scale)
    held = tl.load(masters + at, mask=inside, other=0.0)
    if momentum:
        change += tl.load(velocity + at, mask=inside, other=0.0) * tl.load(knobs + 3)
    if decays:
        change += held * tl.load(knobs + 4)
    if momentum:
        tl.store(velocity + at, change, mask=inside)
    held -= tl.load(knobs) * change
    tl.store(masters + at, held, mask=inside)
    if lowered:
        tl.store(values + at, held.to(values.dtype.element_ty), mask=inside)


def descend(
    masters: torch.Tensor,
    values: torch.Tensor,
    gradients: torch.Tensor,
    velocity: torch.Tensor | None,
    knobs: torch.Tensor,
    scale: torch.Tensor,
    decays: bool,
) -> None:
    """Take a step on flat vectors, in place; ``values`` may be the masters themselves.

    ``knobs`` holds step size, -, -, momentum, weight decay; ``scale`` multiplies the gradient.
    """
    size = masters.numel()
    _descend[(triton.cdiv(size, BLOCK),)](
        masters,
        values,
        gradients,
        masters if velocity is None else velocity,
        knobs,
        scale,
        size,
        momentum=velocity is not None,
        decays=decays,
        lowered=values is not masters,
        block=BLOCK,
    )
