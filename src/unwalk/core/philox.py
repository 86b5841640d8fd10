"""Philox4x64-10, a generator without state: a counter and a key give four words.

It is NumPy's ``Philox`` and Random123's ``philox4x64``: J. Salmon, M. Moraes, R. Dror and D. Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011.  NumPy draws one stream after the other in
C; the function here draws many streams at once.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

MULTIPLIERS: Final = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL: Final = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
"""What is added to the key after every round."""
ROUNDS: Final = 10

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def _product(word: Words, multiplier: int) -> tuple[Words, Words]:
    """The upper and the lower 64 bits of a product."""
    low, high = np.uint64(multiplier & 0xFFFFFFFF), np.uint64(multiplier >> 32)
    right, left = word & _LOW, word >> _HALF
    middle = right * low
    middle >>= _HALF
    middle += left * low
    right *= high
    right += middle & _LOW
    right >>= _HALF
    left *= high
    left += right
    middle >>= _HALF
    left += middle
    return left, word * np.uint64(multiplier)


def philox(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Four words per counter; arrays are broadcast against each other.

    >>> zero = np.zeros(1, np.uint64)
    >>> [hex(int(word[0])) for word in philox((zero,) * 4, (zero,) * 2)][:2]
    ['0x16554d9eca36314c', '0xdb20fe9d672d0fdc']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(ROUNDS):
        high0, low0 = _product(c0, MULTIPLIERS[0])
        high1, low1 = _product(c2, MULTIPLIERS[1])
        high1 = high1 ^ c1
        high0 = high0 ^ c3
        c0, c1 = high1 ^ (k0 + np.uint64(number * WEYL[0] % 2**64)), low1
        c2, c3 = high0 ^ (k1 + np.uint64(number * WEYL[1] % 2**64)), low0
    return c0, c1, c2, c3
