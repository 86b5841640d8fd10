"""A Triton kernel for the optimizer steps of many walks: one pass over memory.

It is :func:`unwalk.engines.fleet_steps.update` without noise, for ``sgd`` and ``momentum``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
"""Parameters of one walk that a program takes."""


@triton.jit
def _step(
    parameters, slopes, velocity, knobs, active, norms, size,
    momentum: tl.constexpr, clipped: tl.constexpr, decays: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Part of one walk's step; a walk that waits is left alone."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = (column < size) & (tl.load(active + row) != 0)
    knob = knobs + row * 6
    scale = tl.load(knob + 1) * tl.load(knob + 3)
    if clipped:
        norm = tl.load(norms + row) * tl.abs(scale)
        scale *= tl.minimum(tl.load(knob + 2) / (norm + 1e-12), 1.0)
    at = row * size + column
    change = tl.load(slopes + at, mask=inside, other=0.0) * scale
    held = tl.load(parameters + at, mask=inside, other=0.0)
    if momentum:
        change += tl.load(velocity + at, mask=inside, other=0.0) * tl.load(knob + 4)
    if decays:
        change += held * tl.load(knob + 5)
    if momentum:
        tl.store(velocity + at, change, mask=inside)
    tl.store(parameters + at, held - tl.load(knob) * change, mask=inside)


def step(
    parameters: torch.Tensor,
    slopes: torch.Tensor,
    velocity: torch.Tensor | None,
    knobs: torch.Tensor,
    active: torch.Tensor,
    norms: torch.Tensor | None,
    decays: bool,
) -> None:
    """Take the step of every active row; ``norms`` are the slopes', where they are clipped."""
    rows, size = parameters.shape
    _step[(rows, triton.cdiv(size, BLOCK))](
        parameters,
        slopes,
        parameters if velocity is None else velocity,
        knobs,
        active.view(torch.uint8),
        knobs if norms is None else norms,
        size,
        momentum=velocity is not None,
        clipped=norms is not None,
        decays=decays,
        block=BLOCK,
    )
