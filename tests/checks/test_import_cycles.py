"""No two modules import each other, not even for types or within a function.

``lint-imports`` leaves type-only imports out; here all imports count.
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KNOWN = {
    "unwalk.cli": ("unwalk.cli.forgetting", "unwalk.cli.peer_data"),
    "unwalk.runs": ("unwalk",),
}
"""Packages with cycles that are left, and what they import to close them: not counted there."""


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted((ROOT / "src" / "unwalk").rglob("*.py")):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(text: str, known: set[str]) -> set[str]:
    """The modules that a text imports anywhere, those among ``known``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.add(whole if whole in known else node.module)
    return names & known


@cache
def _edges() -> dict[str, frozenset[str]]:
    found = modules()
    return {
        name: frozenset(imported(path.read_text(encoding="utf-8"), set(found)) - {name})
        for name, path in found.items()
    }


def graph() -> dict[str, set[str]]:
    """Every module with those that it imports."""
    return {name: set(targets) for name, targets in _edges().items()}


def cycle(edges: dict[str, set[str]]) -> list[str] | None:
    """Modules that import each other in a ring, or None."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def test_no_modules_import_each_other():
    edges = graph()
    assert len([name for name in edges if name.startswith("unwalk.peers.")]) > 50
    for package, closing in KNOWN.items():
        for name in edges:
            if name.startswith(package):
                edges[name] -= set(closing)
    assert cycle(edges) is None


@pytest.mark.parametrize("package", KNOWN)
def test_a_cycle_that_is_left_is_still_there(package):
    edges = graph()
    for other, closing in KNOWN.items():
        for name in edges:
            if name.startswith(other) and other != package:
                edges[name] -= set(closing)
    assert cycle(edges) is not None, f"{package} has none any more: take it out of KNOWN"


def test_rooms_of_peers_know_only_rooms_below_even_for_types():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = [c["layers"] for c in contracts if c.get("containers") == ["unwalk.peers"]]
    height = {f"unwalk.peers.{name}": place for place, name in enumerate(reversed(layers))}
    rooms = {name: ".".join(name.split(".")[:3]) for name in modules()}
    for name, targets in graph().items():
        for target in targets:
            if rooms[name] in height and rooms[target] in height:
                assert height[rooms[target]] <= height[rooms[name]], f"{name} imports {target}"


def test_an_import_for_types_or_in_a_function_counts():
    text = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from unwalk.a import B\n"
        "def f():\n    from unwalk import c\n"
    )
    known = {"unwalk", "unwalk.a", "unwalk.c"}
    assert imported(text, known) == {"unwalk.a", "unwalk.c"}
    assert cycle({"unwalk.a": {"unwalk.c"}, "unwalk.c": {"unwalk.a"}}) is not None
