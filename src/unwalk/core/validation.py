"""One form of message for every bad value: what it was, where it stood, what is allowed."""

from __future__ import annotations

import difflib
import math
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from unwalk.core.errors import InvalidInput


def near(word: str, words: Iterable[str]) -> str:
    """A hint for a mistyped word, or an empty string.

    >>> near("epsilom", ["epsilon", "delta"])
    ' (did you mean epsilon?)'
    >>> near("x", ["epsilon"])
    ''
    """
    found = difflib.get_close_matches(word, list(words), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


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
    """A value in a message: not longer than a line, however many digits it has."""
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


def check_private_file(path: Path) -> None:
    """Refuse a secret that others than its owner may read."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    if os.name == "posix" and mode & 0o077:
        raise InvalidInput(f"{path} has mode {mode:04o}; allowed: 0600, its owner's alone.")
