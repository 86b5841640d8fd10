"""Arithmetic on non-negative numbers, rounded up, so that an upper bound stays one.

Sums, products, quotients and roots of IEEE 754 are correctly rounded, so that the next larger
number is never below the exact result.  Zero stays zero.
"""

from __future__ import annotations

import math
from fractions import Fraction


def above(exact: Fraction) -> float:
    """The smallest float that is not below ``exact``.

    >>> above(Fraction(1, 2)), above(Fraction(1, 10)) >= Fraction(1, 10)
    (0.5, True)
    """
    try:
        near = float(exact)
    except OverflowError:
        return math.inf
    return math.nextafter(near, math.inf) if Fraction(near) < exact else near


def plus(*terms: float) -> float:
    """A sum, rounded up.

    >>> plus(0.0, 0.0), plus(0.1, 0.2) > 0.1 + 0.2
    (0.0, True)
    """
    total = 0.0
    for term in terms:
        if term == 0.0 or total == 0.0:
            total += term
        else:
            total = math.nextafter(total + term, math.inf)
    return total


def times(*factors: float) -> float:
    """A product, rounded up; zero times infinity is zero.

    >>> times(0.0, math.inf), times(3.0, 0.1) > 3.0 * 0.1, times(1.0, 0.1)
    (0.0, True, 0.1)
    """
    if 0.0 in factors:
        return 0.0
    product = 1.0
    for factor in factors:
        if factor == 1.0 or product == 1.0:
            product *= factor
        else:
            product = math.nextafter(product * factor, math.inf)
    return product


def over(above_line: float, below_line: float) -> float:
    """A quotient, rounded up.

    >>> over(0.0, 3.0), over(1.0, 3.0) > 1.0 / 3.0
    (0.0, True)
    """
    if above_line == 0.0:
        return 0.0
    return math.nextafter(above_line / below_line, math.inf)


def root(square: float) -> float:
    """A square root, rounded up.

    >>> root(0.0), root(2.0) ** 2 > 2.0
    (0.0, True)
    """
    return 0.0 if square == 0.0 else math.nextafter(math.sqrt(square), math.inf)


def power(base: float, exponent: int) -> float:
    """A power, rounded up, by squaring.

    >>> power(0.5, 3) >= 0.125, power(0.9, 0), power(0.0, 5)
    (True, 1.0, 0.0)
    """
    result, square = 1.0, base
    while exponent:
        if exponent & 1:
            result = times(result, square)
        exponent >>= 1
        if exponent:
            square = times(square, square)
    return result
