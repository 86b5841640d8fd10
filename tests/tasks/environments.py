"""Environments with packages that are not installed here, for tests of those alone."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest


def environment(place: Path, *packages: str) -> Path:
    """An interpreter with ``packages``, and all that are installed here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    site = next((place / "lib").glob("python*/site-packages"))
    shared = sysconfig.get_path("purelib")
    (site / "shared.pth").write_text(shared + "\n")
    pip = [sys.executable, "-m", "pip", "-q", "--python", str(place)]
    done = subprocess.run([*pip, "install", *packages], capture_output=True, text=True)
    if done.returncode and re.search("No matching distribution|connection|resolve", done.stderr):
        pytest.skip(f"no package index has {', '.join(packages)}")
    assert done.returncode == 0, done.stderr
    return place / "bin" / "python"
