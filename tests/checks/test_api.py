"""The public names and their signatures change on purpose only.

After a wanted change: ``UNWALK_PIN_API=1 .venv/bin/pytest tests/checks/test_api.py``.
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from types import ModuleType

import unwalk

PINNED = Path(__file__).with_name("api.txt")


def signature(thing: object) -> str:
    """The signature as text, without memory addresses."""
    try:
        text = str(inspect.signature(thing))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def describe(name: str, thing: object) -> list[str]:
    """One line for a function or a constant; for a class its public members too."""
    if inspect.isclass(thing):
        lines = [f"class {name}{signature(thing)}"]
        for member, value in sorted(vars(thing).items()):
            if member.startswith("_"):
                continue
            if isinstance(value, property):
                lines.append(f"    {name}.{member}")
            elif isinstance(value, staticmethod | classmethod):
                lines.append(f"    {name}.{member}{signature(value.__func__)}")
            elif inspect.isfunction(value):
                lines.append(f"    {name}.{member}{signature(value)}")
        return lines
    if isinstance(thing, ModuleType):
        return [f"module {name}"]
    if callable(thing):
        return [f"{name}{signature(thing)}"]
    return [f"{name}: {type(thing).__name__}"]


def public_api() -> str:
    lines = [line for name in sorted(unwalk.__all__) for line in describe(name, _get(name))]
    return "\n".join(lines) + "\n"


def _get(name: str) -> object:
    return getattr(unwalk, name)


def test_public_api_is_as_pinned():
    now = public_api()
    if os.environ.get("UNWALK_PIN_API"):
        PINNED.write_text(now, encoding="utf-8")
    assert PINNED.is_file(), "no pinned API yet; see the top of this file"
    assert now.splitlines() == PINNED.read_text(encoding="utf-8").splitlines()


def test_names_are_listed_once():
    assert len(set(unwalk.__all__)) == len(unwalk.__all__)


def test_description_shows_what_callers_depend_on():
    class Thing:
        """A class with one of each."""

        def __init__(self, size: int = 3) -> None:
            self._size = size

        @property
        def size(self) -> int:
            return self._size

        @staticmethod
        def make(size: int, /) -> Thing:
            return Thing(size)

    assert describe("Thing", Thing) == [
        "class Thing(size: 'int' = 3) -> 'None'",
        "    Thing.make(size: 'int', /) -> 'Thing'",
        "    Thing.size",
    ]
    assert describe("one", 1) == ["one: int"]
