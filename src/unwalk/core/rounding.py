r"""Arithmetic that a guarantee can rest on: rounded noise, and projections that stay inside.

*Noise.*  A release is the correctly rounded value of the real sum,

.. math:: Y = \mathrm{clamp}\big(g\,\mathrm{round}((\theta + s Z)/g)\big),

where :math:`\theta` are the stored floats, Z is a real Gaussian and g a public power of two.  So Y
is a function of :math:`\theta + sZ`: post-processing of the Gaussian mechanism, whatever the number
format.

*Projections* are computed in 64 bits and rounded towards the centre, so that the stored result lies
in the ball as real numbers.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core.errors import InvalidInput

BITS = {torch.float32: 24, torch.float64: 53}
"""Bits of precision: whole multiples of g up to 2^bits g are numbers of the format."""
SMALLEST = {torch.float32: -126, torch.float64: -1022}
"""The smallest power of two without loss of precision, as an exponent."""
LARGEST = {torch.float32: 100, torch.float64: 960}


def grid_for(std: float, dtype: torch.dtype) -> float:
    """The public grid for noise of this std: the largest power of two up to a sixteenth of it.

    >>> grid_for(1.0, torch.float32), grid_for(3.0, torch.float64)
    (0.0625, 0.125)
    """
    exponent = min(math.frexp(std)[1] - 5, LARGEST[dtype])
    if not std > 0.0 or exponent < SMALLEST[dtype]:
        raise InvalidInput(
            f"noise of std {std:g} cannot be rounded in {str(dtype).removeprefix('torch.')}; "
            f"allowed: {math.ldexp(1.0, SMALLEST[dtype] + 5):g} or more."
        )
    return math.ldexp(1.0, exponent)


def onto_ball(theta: torch.Tensor, centre: torch.Tensor | None, radius: float) -> torch.Tensor:
    r"""The projection of ``theta`` on a ball; what is not finite becomes the centre.

    Lengths are computed in 64 bits, with a relative error of at most :math:`(d + 8) 2^{-53}`.  The
    radius aimed at is smaller by that, and by what storing the result can add, so that the result
    lies inside as real numbers; a point that lies inside by that much stays as it is.
    """
    wide = theta.detach().to(torch.float64)
    middle = torch.zeros_like(wide) if centre is None else centre.to(wide)
    out = wide - middle
    length = out.norm()
    slack = (theta.numel() + 8) * 2.0**-53
    stored = 2.0 ** (2 - BITS[theta.dtype])
    inside = (radius * (1.0 - slack) - stored * (middle.norm() * (1.0 + slack) + radius)).clamp(0.0)
    factor = torch.nan_to_num(inside / length, nan=0.0, posinf=0.0)
    pulled = (middle + torch.nan_to_num(out, nan=0.0, posinf=0.0, neginf=0.0) * factor).to(theta)
    moved = torch.where(length.isfinite(), pulled, middle.to(theta))
    return torch.where(length <= inside, theta, moved)


class Bits(Protocol):
    """Where random bits come from: two streams of 64-bit words, and more bits for any of them."""

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """The first ``count`` words of the stream."""

    def more(self, place: int, count: int) -> int:
        """``count`` further bits of word ``place``, as a whole number; always the same ones."""


def add_rounded(values: npt.NDArray[Any], std: float, grid: float, bits: Bits) -> npt.NDArray[Any]:
    """The correctly rounded sum of ``values`` and Gaussian noise."""
    half = (values.size + 1) // 2
    stream = bits.words(2 * half)
    uniform = ((stream >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53  # (0, 1]
    radius, angle = np.sqrt(-2.0 * np.log(uniform[:half])), 2.0 * np.pi * uniform[half:]
    normals = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[: values.size]
    most = 2.0 ** (24 if values.dtype == np.float32 else 53)
    whole = np.rint((values.astype(np.float64).reshape(-1) + std * normals) / grid)
    rounded = np.clip(whole, -most, most) * grid
    return rounded.astype(values.dtype).reshape(values.shape)
