"""One setting: type, default, meaning and bounds, all on the dataclass field that holds it."""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_choice, check_count, check_number

Value = str | int | float | bool | None | list[str]


@dataclass(frozen=True)
class Bounds:
    """The values that a setting may have; a field left out allows any of its type.

    ``low`` and ``high`` may be taken themselves, ``above`` and ``below`` may not.  ``aliases`` are
    other names of ``choices``, in any case.
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: Collection[str] = ()
    aliases: Mapping[str, str] | None = None

    @property
    def edges(self) -> dict[str, float]:
        """The ends of the range, as :func:`unwalk.core.validation.check_number` takes them."""
        names = ("low", "high", "above", "below")
        return {name: end for name in names if (end := getattr(self, name)) is not None}


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
) -> Any:
    """A dataclass field that is a setting: its default, its meaning and its :class:`Bounds`."""
    bounds = Bounds(low, high, above, below, choices, aliases)
    return field(default=default, metadata={"help": help, "bounds": bounds})


@dataclass(frozen=True)
class Setting:
    """One row of the table of settings; ``kind`` is the type of the field, such as ``int | None``.

    >>> Setting("unlearn.p", float | None, None, "", Bounds(low=0.0)).read("0.5", "--set")
    0.5
    """

    key: str
    kind: Any
    value: Value
    help: str
    bounds: Bounds

    def read(self, value: Value, where: str) -> Value:
        """``value`` as the setting's type, reading text as ``--set`` gives it."""
        optional = type(None) in typing.get_args(self.kind)
        if optional and (value is None or value in ("", "none")):
            return None
        read, allowed = _TYPES[self.base]
        typed = read(value)
        if typed is None:
            allowed += ", or none" if optional else ""
            raise InvalidInput(f"{where} sets {self.key} to {value!r}; allowed: {allowed}.")
        return typed

    @property
    def base(self) -> Any:
        """The type without ``None`` and without what a list holds."""
        first = typing.get_args(self.kind)[0] if isinstance(self.kind, types.UnionType) else None
        return typing.get_origin(first or self.kind) or first or self.kind

    def check(self) -> None:
        """Refuse a value that is not allowed; an empty one always is."""
        value: Any = self.value
        if value is None:
            return
        if self.bounds.choices:
            if self.bounds.aliases is not None:
                value = self.bounds.aliases.get(value.lower(), value.lower())
            check_choice(self.key, value, self.bounds.choices)
        elif self.bounds.low is not None and self.base is int:
            check_count(self.key, value, low=int(self.bounds.low))
        elif edges := self.bounds.edges:
            check_number(self.key, value, **edges)


def _read_flag(value: Value) -> bool | None:
    return value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value))


def _read_count(value: Value) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,30}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_number(value: Value) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _read_text(value: Value) -> str | None:
    return value if isinstance(value, str) else None


def _read_names(value: Value) -> list[str] | None:
    if isinstance(value, str):
        value = [] if value == "none" else value.split(",")
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        return None
    return [name for v in value if (name := v.strip())]


_TYPES: Mapping[Any, tuple[Callable[[Value], Value], str]] = {
    bool: (_read_flag, "true or false"),
    int: (_read_count, "a whole number"),
    float: (_read_number, "a finite number"),
    str: (_read_text, "text"),
    list: (_read_names, "names, separated by commas"),
}
