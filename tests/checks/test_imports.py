"""No import goes in a circle or upwards, brings torch where none is needed, or hides unexplained.

Every import counts here: those for types only, and those inside functions.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from tests.conftest import ROOT

SRC = ROOT / "src"
REASON = "# Imports in functions: "
"""A line of a module that gives one reason for all of its imports in functions."""


@cache
def modules() -> dict[str, Path]:
    """Every module by its name."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@dataclass(frozen=True)
class Import:
    """One statement that imports."""

    node: ast.Import | ast.ImportFrom
    in_function: bool

    @property
    def ours(self) -> Iterator[str]:
        """The modules of ours that it imports; they are all named in full."""
        if isinstance(self.node, ast.Import):
            yield from (alias.name for alias in self.node.names if alias.name in modules())
            return
        assert self.node.level == 0, "an import that is not named in full"
        home = self.node.module or ""
        for alias in self.node.names:
            name = f"{home}.{alias.name}"
            if name in modules() or home in modules():
                yield name if name in modules() else home


@cache
def imports(text: str) -> list[Import]:
    """Every import of a module, wherever it stands."""
    return list(_imports(ast.parse(text), in_function=False))


def _imports(block: ast.AST, *, in_function: bool) -> Iterator[Import]:
    """Statements only are looked at: no import stands inside an expression."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for node in getattr(block, name, ()):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield Import(node, in_function)
            within = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports(node, in_function=in_function or within)


def edges() -> Iterator[tuple[str, str]]:
    """Every module with each that it imports."""
    for name, path in modules().items():
        for one in imports(path.read_text(encoding="utf-8")):
            yield from ((name, other) for other in one.ours if other != name)


def test_no_import_goes_in_a_circle():
    graph: nx.DiGraph[str] = nx.DiGraph(edges())
    circles = [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]
    assert circles == [], "move what both need to a third module, or pass the value"


def test_an_import_for_types_counts():
    text = "if TYPE_CHECKING:\n    from unwalk.core.errors import InvalidInput\n"
    assert [list(one.ours) for one in imports(text)] == [["unwalk.core.errors"]]


@pytest.mark.parametrize(
    "room",
    [
        "unwalk",
        "unwalk.privacy",
        "unwalk.walks",
        "unwalk.settings.config",
        "unwalk.methods",
        "unwalk.certificates",
        "unwalk.audits.bounds",
    ],
)
def test_import_leaves_torch_out(room):
    program = f"import sys, {room}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False", f"import {room} imports torch"


def layers(package: str = "unwalk") -> list[list[str]]:
    """The rooms of a package that the import linter knows, from the lowest to the highest."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (contract,) = [c for c in contracts if c.get("containers") == [package]]
    return [layer.split(" | ") for layer in reversed(contract["layers"])]


def test_rooms_of_peers_know_only_rooms_below_even_for_types():
    levels = enumerate(layers("unwalk.peers"))
    height = {f"unwalk.peers.{room}": level for level, rooms in levels for room in rooms}
    for name, other in edges():
        room, below = (".".join(module.split(".")[:3]) for module in (name, other))
        if room in height and below in height:
            assert height[below] <= height[room], f"{name} imports {other}"


def unexplained(text: str) -> list[int]:
    """Lines of imports in functions of which no comment says why they are not at the top."""
    if any(line.startswith(REASON) for line in text.splitlines()):
        return []
    lines = text.splitlines()
    numbers = [one.node.lineno for one in imports(text) if one.in_function]
    return [number for number in numbers if not said(lines, number)]


def said(lines: list[str], number: int) -> bool:
    """Whether a comment stands behind an import, or above the block of imports it belongs to."""
    _, _, behind = lines[number - 1].partition("  # ")
    if behind and not behind.startswith("noqa"):
        return True
    above = lines[number - 2].strip()
    if above.startswith(("import ", "from ")):
        return said(lines, number - 1)
    return above.startswith("# ")


def test_an_import_in_a_function_says_why():
    bad = [
        f"{name}:{line}"
        for name, path in modules().items()
        for line in unexplained(path.read_text(encoding="utf-8"))
    ]
    assert bad == [], f"import at the top, or say why not ({REASON!r} once, or a comment there)"


def test_a_comment_that_is_missing_is_found():
    bare = "def f():\n    import a\n    import b  # noqa: F401\n"
    assert unexplained(bare) == [2, 3]
    assert unexplained(bare.replace("import a", "import a  # slow")) == []
    assert unexplained("def f():\n    # Slow.\n    import a\n    import b\n") == []
    assert unexplained(f"{REASON}slow.\n{bare}") == []
