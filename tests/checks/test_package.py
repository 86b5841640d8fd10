"""The sdist holds all that a wheel is made from, and the wheel all that runs outside a checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import unwalk
from tests.conftest import ROOT

CARRIED = ("pyproject.toml", "README.md", "LICENSE", "src")
TINY = ["train.hops=2", "unlearn.hops=2", "compare=none"]


def done(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(list(map(str, words)), cwd=cwd, env=clean, capture_output=True, text=True)


def run(*words: object, cwd: Path) -> str:
    ended = done(*words, cwd=cwd)
    assert ended.returncode == 0, f"{words}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def built(kind: str, source: Path, out: Path) -> Path:
    """The ``sdist`` or ``wheel`` of a folder, built by the tools that are installed here."""
    call = f"from setuptools import build_meta as b; b.build_{kind}({str(out)!r})"
    run(sys.executable, "-W", "ignore", "-c", call, cwd=source)
    (made,) = out.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from the sdist, which was made from a copy of the checkout."""
    place = tmp_path_factory.mktemp("package")
    checkout, out = place / "checkout", place / "dist"
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    checkout.mkdir()
    for name in CARRIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, ignore=skip)
        else:
            shutil.copy(ROOT / name, checkout)
    sdist = built("sdist", checkout, out)
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (source,) = (place / "unpacked").iterdir()
    return built("wheel", source, out)


@pytest.fixture(scope="module")
def command(wheel: Path) -> Path:
    """``unwalk`` of an environment that holds the wheel, and shares all other packages."""
    place = wheel.parent.parent / "env"
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=wheel.parent)
    site = next((place / "lib").glob("python*/site-packages"))
    (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", place)
    run(*pip, "install", "-q", "--no-deps", "--no-index", "--force-reinstall", wheel, cwd=place)
    return place / "bin" / "unwalk"


def test_the_wheel_holds_every_file_of_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("unwalk/")}
    source = ROOT / "src"
    there = {
        path.relative_to(source).as_posix()
        for path in (source / "unwalk").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == there


def test_the_installed_wheel_lists_trains_and_verifies_outside_the_checkout(command, tmp_path):
    where = "import unwalk, sys; sys.stdout.write(unwalk.__file__)"
    assert run(command.with_name("python"), "-c", where, cwd=tmp_path).startswith(
        str(command.parent.parent)
    )
    assert run(command, "--version", cwd=tmp_path).strip() == unwalk.__version__
    assert "Start with" in run(command, "--help", cwd=tmp_path)
    assert "rrdu" in run(command, "methods", cwd=tmp_path)
    settings = [word for pair in TINY for word in ("--set", pair)]
    words = ["run", "--task", "blobs", "--method", "restart", *settings, "--out", "first"]
    run(command, *words, cwd=tmp_path)
    assert "<html" in (tmp_path / "first" / "report.html").read_text()
    ended = done(command, "verify", "first", "--json", "--html", "page.html", cwd=tmp_path)
    assert ended.returncode == 3, ended.stdout + ended.stderr  # it is signed by nobody
    assert json.loads(ended.stdout)["problems"] == []
    assert "<html" in (tmp_path / "page.html").read_text()
