"""The official data files, laid out once and kept in pytest's own cache."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDERS = {
    "mnist": "mnist",
    "cifar10": "cifar-10-batches-bin",
    "heart_disease": "heart_disease",
    "a9a": "a9a",
}


@pytest.fixture(scope="session")
def unpacked(
    shared_path: Callable[[str], Path],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """Lays out the official files of a data set and returns the folder that holds all of them."""
    script = shared_path("data/unpack")
    cache = request.config.cache
    base = tmp_path_factory.mktemp("official") if cache is None else cache.mkdir("official-data")

    def lay_out(name: str) -> Path:
        if name == "cifar10":
            pytest.importorskip("PIL", reason="pictures are unpacked with Pillow")
        with (base / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # test processes share this folder
            if not (base / FOLDERS[name]).is_dir():
                fresh = Path(tempfile.mkdtemp(dir=base))
                subprocess.run(
                    [sys.executable, script, fresh, name], check=True, capture_output=True
                )
                (fresh / FOLDERS[name]).rename(base / FOLDERS[name])
                fresh.rmdir()
        return base

    return lay_out


@pytest.fixture
def official_data(
    unpacked: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """Lays out a data set and makes its folder the data folder."""

    def use(name: str) -> Path:
        root = unpacked(name)
        monkeypatch.setenv("UNWALK_DATA", str(root))
        return root

    return use
