"""What all tests share: one thread, settled randomness, and data that must not go missing."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import settings

# Before torch is first imported, here and in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[1]
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if IN_CI else "local")


def shared_folder() -> Path:
    """The folder with data sets that are too large for the repository; it may be absent."""
    return Path(os.environ.get("UNWALK_SHARED") or ROOT.parent / "shared").resolve()


def forbidden_skip(reason: str, *, ci: bool, shared_exists: bool) -> bool:
    """Whether a skip for this reason hides a check that continuous integration must make."""
    if not ci:
        return False
    words = r"\b(chromium|ray|shared)\b" if shared_exists else r"\b(chromium|ray)\b"
    return re.search(words, reason, re.IGNORECASE) is not None


def _fail_forbidden_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    if forbidden_skip(reason, ci=IN_CI, shared_exists=shared_folder().is_dir()):
        report.outcome = "failed"
        report.longrepr = f"not to be skipped here: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a skip that hides a check fail."""
    report = yield
    _fail_forbidden_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module (``pytest.importorskip``)."""
    report = yield
    _fail_forbidden_skip(report)
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip ``device`` tests where there is no accelerator."""
    if item.get_closest_marker("device") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no accelerator on this machine")


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """Results are pinned to one thread; torch is not imported for tests that do without it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of large data sets: ``UNWALK_SHARED``, or ``shared`` beside the repository."""
    folder = shared_folder()
    if not folder.is_dir():
        if "UNWALK_SHARED" in os.environ:
            pytest.fail(f"UNWALK_SHARED is {str(folder)!r}, which is not a folder")
        pytest.skip("no folder named shared beside the repository (or set UNWALK_SHARED)")
    return folder


@pytest.fixture(scope="session")
def shared_path(shared_dir: Path) -> Callable[[str], Path]:
    """A file or folder of ``shared_dir``; the test is skipped (in CI: fails) without it."""

    def find(name: str) -> Path:
        path = shared_dir / name
        if not path.exists():
            pytest.skip(f"shared has no {name}")
        return path

    return find
