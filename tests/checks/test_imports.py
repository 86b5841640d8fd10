"""Rooms without torch stay without torch when imported; the docs list the rooms that exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(
    "room",
    [
        "unwalk",
        "unwalk.privacy",
        "unwalk.walks",
        "unwalk.settings.config",
        "unwalk.methods",
        "unwalk.certificates",
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


def layers() -> list[list[str]]:
    """The rooms that the import linter knows, from the lowest layer to the highest."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = [c for c in contracts["contracts"] if c.get("containers") == ["unwalk"]]
    return [layer.split(" | ") for layer in reversed(contract["layers"])]


def test_contributing_lists_the_layers_of_the_import_linter():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\d+\. (.+)$", page, flags=re.MULTILINE)
    assert [sorted(re.findall(r"`(\w+)`", line)) for line in listed] == [*map(sorted, layers())]


def test_architecture_lists_the_rooms_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## The main types")[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, flags=re.MULTILINE)
    listed = [room for row in rows for room in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(room for layer in layers() for room in layer)
    for room in listed:
        place = ROOT / "src" / "unwalk" / room
        assert place.is_dir() or place.with_suffix(".py").is_file(), room


PACKAGES = [
    path
    for path in sorted((ROOT / "src" / "unwalk").glob("*/__init__.py"))
    if path.parent.name != "peers"  # its map is docs/peers.md
]


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_a_room_says_where_to_start_reading(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert len(text.splitlines()) >= 8, "about ten lines: what enters, what leaves"
    assert "tart reading at" in text or "tart with" in text
