r"""Bounds on a Gaussian of which only the first bits are known, in whole numbers alone.

Box and Muller: :math:`Z = \sqrt{-2\ln U_1}\,\cos 2\pi U_2` is Gaussian, and the same with a sine is
another one.  Of both uniforms the first m bits are known, :math:`U_1 \in [a, a+1]/2^m` and
:math:`U_2 \in [b, b+1]/2^m`.  The radius falls with :math:`U_1`, so two logarithms bound it; the
cosine moves by :math:`2\pi 2^{-m}` at most.

All is computed in fixed point with P = m + 64 places.  Each logarithm, cosine and sine is off by at
most 8P units of the last place (each function says why), the root by one.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import isqrt


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
