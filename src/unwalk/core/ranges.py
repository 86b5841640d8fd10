"""What a field of a record may hold: its type and its range, said in words.

Whoever reads a record checks it before anything is computed from it: a radius below zero, a word
that nobody knows or a truth value in the place of a number would otherwise pass through a proof
that was never made for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MOST = 2**53
"""Whole numbers up to here are the same in every reader of JSON."""
LARGEST = 1e100
"""Larger numbers are none that a run could have: their squares would not be finite."""


@dataclass(frozen=True)
class Range:
    """What is ``allowed``, in words, and whether a value ``holds``."""

    allowed: str
    holds: Callable[[Any], bool]


def whole(low: int = 0, high: int = MOST) -> Range:
    """A whole number; truth values are none.

    >>> whole(1).holds(3), whole(1).holds(True), whole(1).holds(3.0)
    (True, False, False)
    """
    upto = f"from {low}" if high == MOST else f"from {low} to {high}"
    return Range(f"a whole number {upto}", lambda v: type(v) is int and low <= v <= high)


def real(low: float = -LARGEST, high: float = LARGEST, *, above: float | None = None) -> Range:
    """A finite number in [low, high], and above ``above`` where that is given.

    >>> real(0.0).holds(0.5), real(0.0).holds(float("nan")), real(above=0.0).holds(0)
    (True, False, False)
    """
    edge = f"above {above:g}" if above is not None else f"from {low:g}"
    low, upto = (low if above is None else above), "" if high == LARGEST else f" to {high:g}"

    def holds(value: Any) -> bool:
        return is_number(value) and low <= value <= high and (above is None or value > above)

    return Range(f"a finite number {edge}{upto}", holds)


def is_number(value: Any) -> bool:
    """Whether a value is a number and neither a truth value nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def power_of_two() -> Range:
    """2 to a whole power, as floating-point numbers have it.

    >>> power_of_two().holds(0.125), power_of_two().holds(0.1), power_of_two().holds(-2.0)
    (True, False, False)
    """

    def holds(value: Any) -> bool:
        return is_number(value) and 0 < value <= LARGEST and math.frexp(value)[0] == 0.5

    return Range("a power of two", holds)


def word(*words: str) -> Range:
    """One of these words."""
    return Range(", ".join(words), lambda v: isinstance(v, str) and v in words)


def name() -> Range:
    """A text of 1 to 200 signs."""
    return Range("a name", lambda v: isinstance(v, str) and 0 < len(v) <= 200)


def truth() -> Range:
    """True or false."""
    return Range("true or false", lambda v: isinstance(v, bool))


def digest() -> Range:
    """A SHA-256 as hexadecimal digits."""

    def holds(value: Any) -> bool:
        return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None

    return Range("64 hexadecimal digits", holds)


def optional(inner: Range) -> Range:
    """Nothing, or what ``inner`` allows."""
    return Range(f"{inner.allowed}, or nothing", lambda v: v is None or inner.holds(v))


def either(*ranges: Range) -> Range:
    """What any of these allows."""
    words = ", or ".join(inner.allowed for inner in ranges)
    return Range(words, lambda v: any(inner.holds(v) for inner in ranges))


def every(inner: Range, low: int = 0, high: int = MOST) -> Range:
    """A tuple of ``low`` to ``high`` entries, each of which ``inner`` allows."""
    many = f"{low} to {high}" if high != MOST else f"{low} or more"

    def holds(value: Any) -> bool:
        return (
            isinstance(value, tuple) and low <= len(value) <= high and all(map(inner.holds, value))
        )

    return Range(f"{many} entries: {inner.allowed}", holds)


def group(*parts: Range) -> Range:
    """A tuple of as many entries, each of which its own range allows."""

    def holds(value: Any) -> bool:
        return (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(part.holds(entry) for part, entry in zip(parts, value, strict=True))
        )

    return Range("; ".join(part.allowed for part in parts), holds)


def problem(values: Mapping[str, Any], ranges: Mapping[str, Range]) -> str | None:
    """The first of these fields that is out of its range, with what is allowed; None if none is.

    >>> problem({"radius": -1.0}, {"radius": real(above=0.0)})
    'radius is -1.0; allowed: a finite number above 0'
    """
    for field, allowed in ranges.items():
        if not allowed.holds(values[field]):
            shown = repr(values[field])
            shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
            return f"{field} is {shown}; allowed: {allowed.allowed}"
    return None
