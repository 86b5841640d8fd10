"""The docs list the rooms that exist, and each room says where to start reading."""

from __future__ import annotations

import ast
import re

import pytest

from tests.checks.test_imports import edges, layers
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


def test_architecture_says_what_each_room_imports():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = [room for layer in layers() for room in layer]
    above: list[str] = []
    for row in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|.*\| (.+) \|$", page, flags=re.MULTILINE):
        here = [room for room in re.findall(r"`(\w+)`", row[0]) if room in rooms]
        if not here:  # a row of another table
            continue
        said = set(re.findall(r"\w+", row[1])) & set(above)
        if row[1].startswith("all of the above"):
            said = set(above) - said
        assert said == imported(here), here
        above += here


def imported(rooms: list[str]) -> set[str]:
    """The rooms that some rooms import from, themselves apart."""
    pairs = [(name.split("."), other.split(".")) for name, other in edges()]
    found = {other[1] for name, other in pairs if name[1:2] and name[1] in rooms and other[1:]}
    return found - set(rooms)


PACKAGES = sorted([*SRC.glob("*/__init__.py"), *SRC.glob("peers/*/__init__.py")])


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_a_room_says_where_to_start_reading(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert len(text.splitlines()) >= 8, "about ten lines: what enters, what leaves"
    assert "tart reading at" in text or "tart with" in text
