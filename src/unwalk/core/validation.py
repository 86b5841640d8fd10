"""One form of message for every bad value: what it is, where it is, and what is allowed.

Functions that begin with ``check`` refuse a user's value.  A :class:`Range` says what a field of a
record may hold.  A record that is read is checked before anything is computed from it.  Otherwise a
negative radius, an unknown word or a boolean in place of a number could reach a proof that does not
cover it.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unwalk.core.errors import InvalidInput


def near(word: str, words: Iterable[str]) -> str:
    """A hint for a mistyped word, or an empty string.

    >>> near("epsilom", ["epsilon", "delta"])
    ' (did you mean epsilon?)'
    >>> near("x", ["epsilon"])
    ''
    """
    matches = difflib.get_close_matches(word, list(words), n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""


def check_choice(name: str, value: str, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    allowed = sorted(choices)
    if value not in allowed:
        raise InvalidInput(
            f"{name} is {value!r}{near(str(value), allowed)}; allowed: {', '.join(allowed)}."
        )
    return value


def check_number(
    name: str,
    value: float,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float | None = None,
    below: float | None = None,
) -> float:
    """Return ``value`` if it lies in [low, high] and, where given, strictly above / below."""
    edges = [
        "(" if above is not None else "[",
        f"{above if above is not None else low:g}, {below if below is not None else high:g}",
        ")" if below is not None or high == math.inf else "]",
    ]
    wrong = isinstance(value, bool) or not isinstance(value, int | float)
    wrong = wrong or (isinstance(value, float) and math.isnan(value))
    if (
        wrong
        or value < low
        or value > high
        or (above is not None and value <= above)
        or (below is not None and value >= below)
    ):
        raise InvalidInput(f"{name} is {_shown(value)}; allowed: a number in {''.join(edges)}.")
    return value


def _shown(value: object) -> str:
    """A value for a message, at most one line long however many digits it has."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of about {int(value.bit_length() * math.log10(2)) + 1} digits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_count(name: str, value: int, *, low: int = 0, high: int | None = None) -> int:
    """Return ``value`` if it is a whole number in [low, high]."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < low
        or (high is not None and value > high)
    ):
        upto = f" to {high}" if high is not None else " or more"
        raise InvalidInput(f"{name} is {_shown(value)}; allowed: a whole number, {low}{upto}.")
    return value


SECRET_BYTES = 32
"""A secret that noise is drawn from has as many bytes at least."""


def check_private_file(path: Path) -> None:
    """Refuse a secret that others than its owner may read."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    if os.name == "posix" and mode & 0o077:
        raise InvalidInput(f"{path} has mode {mode:04o}; allowed: 0600, its owner's alone.")


MOST = 2**53
"""Integers up to this one are exact in every JSON reader."""
LARGEST = 1e100
"""No run has larger numbers: their squares might overflow."""


@dataclass(frozen=True)
class Range:
    """What is ``allowed``, in words, and whether a value ``holds``."""

    allowed: str
    holds: Callable[[Any], bool]


def whole(low: int = 0, high: int = MOST) -> Range:
    """A whole number, not a boolean.

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
    """Whether a value is a number and neither a boolean nor NaN."""
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
    """A text of 1 to 200 characters."""
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
    """A tuple with one entry per range, each within its range."""

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
