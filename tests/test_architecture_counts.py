"""How many of our modules one run goes through, from the command line to the report.

Whoever follows a run reads these.  A module counts when one of its functions is called; that it is
imported is not enough.
"""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

from typer.testing import CliRunner

from tests.conftest import ROOT
from unwalk.cli import app

SRC = ROOT / "src"
MOST = 63
"""More than this asks for a reason why one more has to be read."""


def entered(*words: str) -> set[str]:
    """The modules of ours of which a command calls a function."""
    files: set[str] = set()

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_flags & CO_OPTIMIZED:  # no body of a class or a module
            files.add(frame.f_code.co_filename)

    for name in ("unwalk.runs.run", "sklearn.datasets"):  # loading them is no part of the run
        import_module(name)
    before = sys.gettrace()
    sys.settrace(look)
    try:
        done = CliRunner().invoke(app, list(words))
    finally:
        sys.settrace(before)
    assert done.exit_code == 0, done.output
    ours = {Path(file) for file in files if file.startswith(str(SRC))}
    return {str(path.relative_to(SRC)) for path in ours if path.suffix == ".py"}


def test_one_run_goes_through_few_modules(tmp_path):
    short = [f"--set={phase}.hops=2" for phase in ("train", "unlearn")]
    found = entered(
        "run", "--task", "digits", "--method", "rrdu", "--out", str(tmp_path / "run"), *short
    )
    for room in ("cli/running", "runs/run", "methods/rrdu", "tasks/digits", "reports/run_page"):
        assert f"unwalk/{room}.py" in found
    assert len(found) <= MOST, sorted(found)
