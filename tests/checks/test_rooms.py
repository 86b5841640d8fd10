"""The docs list the rooms that exist, and each room says where to start reading."""

from __future__ import annotations

import ast
import re

import pytest

from tests.checks.test_imports import layers
from tests.conftest import ROOT

SRC = ROOT / "src" / "unwalk"


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
        place = SRC / room
        assert place.is_dir() or place.with_suffix(".py").is_file(), room


PACKAGES = sorted([*SRC.glob("*/__init__.py"), *SRC.glob("peers/*/__init__.py")])


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_a_room_says_where_to_start_reading(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert len(text.splitlines()) >= 8, "about ten lines: what enters, what leaves"
    assert "tart reading at" in text or "tart with" in text
