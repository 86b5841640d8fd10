"""Skips that would hide a check in continuous integration are failures there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, forbidden_skip


@pytest.mark.parametrize(
    ("reason", "ci", "shared_exists", "forbidden"),
    [
        ("Skipped: chromium is not installed", True, False, True),
        ("Skipped: could not import 'ray': No module named 'ray'", True, False, True),
        ("Skipped: shared has no mnist", True, True, True),
        ("Skipped: no folder named shared beside the repository", True, False, False),
        ("Skipped: an array of no length", True, True, False),
        ("Skipped: no accelerator on this machine", True, True, False),
        ("Skipped: chromium is not installed", False, True, False),
    ],
)
def test_which_skips_are_forbidden(reason, ci, shared_exists, forbidden):
    assert forbidden_skip(reason, ci=ci, shared_exists=shared_exists) is forbidden


def _pytest(folder: Path, test: str, ci: str) -> subprocess.CompletedProcess[str]:
    """Run one test file under this project's conftest, in a folder of its own."""
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_it.py").write_text(test)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder],
        cwd=folder,
        env={
            **os.environ,
            "CI": ci,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # importing them is what costs
            "UNWALK_SHARED": str(folder),
        },
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "test",
    [
        "import pytest\npytest.importorskip('absent', reason='ray is missing')\n",
        "def test_data(shared_path):\n    assert shared_path('absent')\n",
    ],
    ids=["whole module", "one test"],
)
def test_a_forbidden_skip_fails_in_ci_only(tmp_path, test):
    in_ci = _pytest(tmp_path, test, "true")
    assert in_ci.returncode not in (0, 5), in_ci.stdout
    assert "not to be skipped here" in in_ci.stdout
    elsewhere = _pytest(tmp_path, test, "")
    assert elsewhere.returncode in (0, 5), elsewhere.stdout
    assert "1 skipped" in elsewhere.stdout


def test_torch_runs_on_one_thread():
    import torch

    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert torch.get_num_threads() == 1
