"""How many of our modules one run goes through, from the command line to the report.

Whoever follows a run reads these.  A module counts when one of its functions is called; that it is
imported is not enough.  Drawing 1 of ``docs/architecture.md`` shows the same modules.
"""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.conftest import ROOT
from unwalk.cli import app

SRC = ROOT / "src" / "unwalk"
MOST = 46
"""More than this asks for a reason why one more has to be read.  The last was ``engines/choose``:
a run may be carried by any engine."""
DRAWING = "## Drawing 1: "

Door = tuple[str, str]
"""A module by its path, and one of its functions."""


def called(*words: str) -> list[Door]:
    """The functions of ours that a command calls, each once, in the order of their first calls."""
    doors: dict[Door, None] = {}

    def look(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_flags & CO_OPTIMIZED:  # no body of a class or a module
            doors.setdefault((code.co_filename, code.co_qualname.removesuffix(".__init__")))

    for name in ("unwalk.runs.run", "sklearn.datasets"):  # loading them is no part of the run
        import_module(name)
    before = sys.gettrace()
    sys.settrace(look)
    try:
        done = CliRunner().invoke(app, list(words))
    finally:
        sys.settrace(before)
    assert done.exit_code == 0, done.output
    ours = [(Path(file), name) for file, name in doors if file.startswith(str(SRC))]
    return [(str(path.relative_to(SRC)), name) for path, name in ours if path.suffix == ".py"]


def drawn(page: str) -> list[Door]:
    """The modules of the drawing with their doors, from above."""
    text = page.split(DRAWING, 1)[1].split("\n## ", 1)[0]
    rows = [line.strip(" |").split() for line in text.splitlines() if line.startswith("    ")]
    return [(row[0], row[1]) for row in rows if row and row[0].endswith(".py")]


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> list[Door]:
    short = [f"--set={phase}.hops=2" for phase in ("train", "unlearn")]
    out = str(tmp_path_factory.mktemp("counted") / "run")
    return called("run", "--task", "digits", "--method", "rrdu", "--out", out, *short)


def test_one_run_goes_through_few_modules(one_run):
    found = {module for module, _ in one_run}
    for room in ("cli/running", "runs/run", "methods/rrdu", "tasks/digits", "reports/run_page"):
        assert f"{room}.py" in found
    assert len(found) <= MOST, sorted(found)


def test_the_drawing_shows_the_modules_of_one_run_in_order(one_run):
    doors = drawn((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert sorted(module for module, _ in doors) == sorted({module for module, _ in one_run})
    assert doors == [door for door in one_run if door in set(doors)]


def test_a_drawing_is_read_line_by_line():
    rows = "    in\n    |   a/b.py  go  text\n    v\n        c.py  C  x\n"
    page = f"x\n{DRAWING}t\n\ntext a/b.py\n\n{rows}"
    assert drawn(page + "\n## Next\n\n    d.py e\n") == [("a/b.py", "go"), ("c.py", "C")]
