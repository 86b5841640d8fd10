r"""Exactly rounded noise, and projections that stay inside their ball in floating point.

*Noise.*  A release is the correctly rounded value of the real sum,

.. math:: Y = \mathrm{clamp}\big(g\,\mathrm{round}((\theta + s Z)/g)\big),

where :math:`\theta` are the stored floats, Z is a real Gaussian and g a public power of two.  So Y
is a function of :math:`\theta + sZ`: post-processing of the Gaussian mechanism, whatever the number
format.

*Bounds* on Z, of which only the first bits are known, are computed in whole numbers alone.  Box and
Muller: :math:`Z = \sqrt{-2\ln U_1}\,\cos 2\pi U_2` is Gaussian, and the same with a sine is another
one.  Of both uniforms the first m bits are known, :math:`U_1 \in [a, a+1]/2^m` and
:math:`U_2 \in [b, b+1]/2^m`.  The radius falls with :math:`U_1`, so two logarithms bound it; the
cosine moves by :math:`2\pi 2^{-m}` at most.  All is in fixed point with P = m + 64 places.  Each
logarithm, cosine and sine is off by at most 8P units of the last place (each function says why),
the root by one.

*Projections* are computed in 64 bits and rounded towards the centre, so that the stored result lies
in the ball as real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core.errors import InvalidInput


def normal_bounds(a: int, b: int, known: int, *, sine: bool) -> tuple[Fraction, Fraction]:
    """Numbers below and above Z, when its uniforms begin with the ``known`` bits of a > 0 and b."""
    places = known + 64
    slack = 8 * places
    least = max(minus_log(a + 1, known, places) - slack, 0)
    most = minus_log(a, known, places) + slack
    short, long = isqrt(2 * least << places), isqrt(2 * most << places) + 1
    middle = turned(b, known, places, sine=sine)
    spread = slack + (7 << (places - known))  # 2 pi < 7
    low, high = middle - spread, middle + spread
    one = 1 << 2 * places
    return (
        Fraction((long if low < 0 else short) * low, one),
        Fraction((short if high < 0 else long) * high, one),
    )


def minus_log(a: int, known: int, places: int) -> int:
    r"""The fixed-point value of :math:`-\ln(a/2^{m})`, for 0 < a <= 2^m.

    With :math:`2^e \le a < 2^{e+1}` and :math:`y = (a - 2^e)/(a + 2^e) < 1/3`, the logarithm of a
    is :math:`e \ln 2 + 2(y + y^3/3 + \dots)`.  A power is off by less than 2 units (it inherits a
    ninth of the error before it), so a term by less than 2; there are fewer than P/3 + 2 terms,
    which makes less than 2P units in all, and those of e ln 2 make 2m.
    """
    exponent = a.bit_length() - 1
    top = 1 << exponent
    power = total = ((a - top) << places) // (a + top)
    square, odd = power * power >> places, 1
    while power:
        power = power * square >> places
        odd += 2
        total += power // odd
    return (known - exponent) * _log_2(places) - 2 * total


def turned(b: int, known: int, places: int, *, sine: bool) -> int:
    r"""The fixed-point value of the cosine, or the sine, of :math:`2\pi b/2^{m}`.

    The first two bits of b are the quadrant, which is exact.  In it, an angle of at most
    :math:`\pi/2`, off by at most 2 units, goes into Taylor's series.  Its first terms are off by 6
    units at most and later ones by less than 2, and there are fewer than P of them.
    """
    quadrant, rest = divmod(4 * b, 1 << known)
    if not sine:
        quadrant += 1  # the cosine is the sine of a quarter turn more
    angle = _pi(places) * rest >> known + 1
    square = angle * angle >> places
    term, factor = ((1 << places), 1) if quadrant % 2 else (angle, 2)
    total, sign = 0, 1
    while term:
        total += sign * term
        term = (term * square >> places) // (factor * (factor + 1))
        factor, sign = factor + 2, -sign
    return total if quadrant % 4 < 2 else -total


def _series(n: int, places: int, sign: int) -> int:
    """1/n + sign/3n^3 + 1/5n^5 + ...: the artanh of 1/n, or its arctangent for sign -1.

    Each power is rounded down exactly, so that fewer than P terms are off by less than 2 each.
    """
    power = total = (1 << places) // n
    odd, now = 1, 1
    while power:
        power //= n * n
        odd, now = odd + 2, now * sign
        total += now * (power // odd)
    return total


@lru_cache(maxsize=16)
def _log_2(places: int) -> int:
    """The logarithm of 2, off by less than 2 units: 32 more places than 2 P units need."""
    return 2 * _series(3, places + 32, 1) >> 32


@lru_cache(maxsize=16)
def _pi(places: int) -> int:
    """Machin's formula, off by less than 2 units: 32 more places than 40 P units need."""
    fifth, small = _series(5, places + 32, -1), _series(239, places + 32, -1)
    return 16 * fifth - 4 * small >> 32


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
    if dtype not in BITS:
        raise InvalidInput(f"noise on {dtype} cannot be rounded; allowed: float32, float64.")
    exponent = min(math.frexp(std)[1] - 5, LARGEST[dtype])
    if not 0.0 < std < math.inf or exponent < SMALLEST[dtype]:
        raise InvalidInput(
            f"noise of std {std:g} cannot be rounded in {str(dtype).removeprefix('torch.')}; "
            f"allowed: {math.ldexp(1.0, SMALLEST[dtype] + 4):g} or more, and finite."
        )
    return math.ldexp(1.0, exponent)


def length(vector: Sequence[float]) -> float:
    """The length of a vector, rounded up.

    >>> length([0.0, 0.0]), length([1.0]), 1.0 < length([1.0, 1e-9]) < 1.0 + 1e-15
    (0.0, 1.0, True)
    """
    values = [value for value in vector if value]
    near = math.hypot(*values)  # within one unit in the last place
    return near if len(values) < 2 else math.nextafter(math.nextafter(near, math.inf), math.inf)


def _length(x: torch.Tensor) -> torch.Tensor:
    """Each row's Euclidean norm, scaled so that no square overflows or vanishes."""
    shape = (*x.shape[:-1], 1)
    scale = x.abs().amax(-1, keepdim=True) if x.numel() else x.new_zeros(shape)
    scaled = torch.where(scale > 0.0, (x / scale).norm(dim=-1, keepdim=True) * scale, scale)
    return torch.where(scale.isfinite(), scaled, scale)


def onto_ball(theta: torch.Tensor, centre: torch.Tensor | None, radius: float) -> torch.Tensor:
    r"""The projection of ``theta``, or of each of its rows, on a ball around ``centre`` or around
    its own row of that; what is not finite becomes the centre.

    Lengths are computed in 64 bits, with a relative error of at most :math:`(d + 8) 2^{-53}`.  The
    radius aimed at is smaller by that, and by what storing the result can add, so that the result
    lies inside as real numbers; a point that lies inside by that much stays as it is.  The centre
    has the format of ``theta``.
    """
    wide = theta.detach().to(torch.float64)
    middle = torch.zeros_like(wide) if centre is None else centre.to(wide)
    out = wide - middle
    length = _length(out)
    slack = (theta.shape[-1] + 8) * 2.0**-53
    stored = 2.0 ** (2 - BITS[theta.dtype])
    vanishing = math.sqrt(theta.shape[-1]) * torch.finfo(theta.dtype).smallest_normal * stored
    inside = radius * (1.0 - slack) - stored * (_length(middle) * (1.0 + slack) + radius)
    inside = (inside - vanishing).clamp(0.0)
    # In two steps: the quotient of two lengths may be too small a number to keep its digits.
    unit = torch.nan_to_num(out / length, nan=0.0, posinf=0.0, neginf=0.0)
    pulled = (middle + unit * inside).to(theta)
    moved = torch.where(length.isfinite(), pulled, middle.to(theta))
    return torch.where(length <= inside, theta, moved)


class Bits(Protocol):
    """Where random bits come from: words of 64 bits, each the beginning of an endless stream."""

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """The first ``count`` words."""

    def more(self, place: int, count: int) -> int:
        """The ``count`` bits that follow word ``place``; asking for more extends these."""


TAIL = 2**44
"""First words below it, or as close to 2^64, are computed exactly: 2 in a million."""
MARGIN = 2.0**-35
"""Sums this near a boundary, in units of the noise, are computed exactly: 16 times the bound."""
PAIRS = 2**15
"""Pairs that are drawn together: few enough for a processor's cache."""


def add_rounded(values: npt.NDArray[Any], std: float, grid: float, bits: Bits) -> npt.NDArray[Any]:
    r"""The correctly rounded sum of ``values`` and Gaussian noise, the same on every machine.

    With n + f = :math:`\theta/g` and r = s/g, both without rounding error, :math:`f + rZ` is
    computed in 64 bits by the transform of Box and Muller.  It is off by less than
    :math:`2^{-39} r` (``docs/math.md``, "Rounded noise"), so a sum further than
    :math:`2^{-35} r` from the boundaries between cells is rounded rightly.  The others take more
    bits and exact arithmetic until they are decided, which happens with probability 1.  Only
    ``std``, ``grid`` and the format decide whether the call is refused, never ``values``: one that
    is not a number counts as 0, an infinite one as the largest finite number.
    """
    if values.dtype not in (np.float32, np.float64):
        raise InvalidInput(f"noise on {values.dtype} cannot be rounded; allowed: float32, float64.")
    ratio = std / grid if grid > 0.0 else math.nan
    if math.frexp(grid)[0] != 0.5 or not 16.0 <= ratio <= 2.0**960:
        raise InvalidInput(
            f"noise of std {std:g} cannot be rounded to multiples of {grid:g}; allowed: a power of "
            "two that is at most a sixteenth of the std, as grid_for gives it."
        )
    most = 2.0 ** BITS[torch.float32 if values.dtype == np.float32 else torch.float64]
    flat, half = values.reshape(-1), (values.size + 1) // 2
    rounded = np.empty_like(flat)
    stream = bits.words(2 * half)
    for start in range(0, half, PAIRS):
        stop = min(start + PAIRS, half)
        first, second = stream[start:stop], stream[half + start : half + stop]
        uniform = np.maximum(first, np.uint64(TAIL)).astype(np.float64) * 2.0**-64
        radius = np.sqrt(-2.0 * np.log(uniform)) * ratio
        angle = second.astype(np.float64) * (2.0 * np.pi * 2.0**-64)
        extreme = (first < np.uint64(TAIL)) | (first > np.uint64(2**64 - TAIL))
        for offset, turn in ((0, np.cos), (half, np.sin)):
            here = slice(offset + start, min(offset + stop, values.size))
            count = here.stop - here.start
            with np.errstate(all="ignore"):
                theta = np.nan_to_num(flat[here].astype(np.float64))
                scaled = np.clip(theta / grid, -(2.0**1000), 2.0**1000)
            whole = np.rint(scaled)
            sums = (scaled - whole) + radius[:count] * turn(angle[:count])
            steps = np.rint(sums)
            decided = 0.5 - np.abs(sums - steps) > MARGIN * ratio
            total = np.clip(whole + steps, -most, most)
            for i in np.flatnonzero(extreme[:count] | ~decided).tolist():
                exact = Fraction(float(theta[i])) / Fraction(grid)
                total[i] = _decide(exact, ratio, int(most), bits, stream, here.start + i)
            rounded[here] = (total + 0.0) * grid  # one zero only: its sign would tell
    return rounded.reshape(values.shape)


def _decide(
    scaled: Fraction,
    ratio: float,
    most: int,
    bits: Bits,
    stream: npt.NDArray[np.uint64],
    coordinate: int,
) -> int:
    """The rounded sum of ``scaled`` and ``ratio`` times Z, from as many bits as it takes."""
    half = stream.size // 2
    sine, pair = divmod(coordinate, half)
    more = 64
    while True:
        a, b = (
            (int(stream[place]) << more) + bits.more(place, more) for place in (pair, half + pair)
        )
        if a:
            bounds = normal_bounds(a, b, 64 + more, sine=bool(sine))
            low, high = (
                min(max(math.floor(scaled + Fraction(ratio) * bound + Fraction(1, 2)), -most), most)
                for bound in bounds
            )
            if low == high:
                return low
        more *= 2
