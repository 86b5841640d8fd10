"""A Triton kernel: the optimizer steps of all models of a fleet."""

from __future__ import annotations

import triton
import triton.language as tl


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
