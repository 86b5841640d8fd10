"""The environment is the pinned one, and holds no CUDA packages where there is no GPU."""

from __future__ import annotations

import re
import shutil
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

import unwalk
from tests.conftest import ROOT
from tools.bill_of_materials import bill, closure

CUDA = re.compile(r"(nvidia|cuda)(-|$)")
TARGETS = [
    {"python_version": python, "python_full_version": f"{python}.5", **platform}
    for python in ("3.11", "3.12", "3.13", "3.14")
    for platform in (
        {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": "x86_64"},
        {"platform_system": "Darwin", "sys_platform": "darwin", "platform_machine": "arm64"},
    )
]


def pins(text: str) -> dict[str, str]:
    """Names and versions of a constraints file; anything but ``name==version`` is an error."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            pin = re.fullmatch(r"([\w.-]+)==([\w.!]+)", line.strip())
            assert pin, f"{line!r} is not name==version"
            name = canonicalize_name(pin[1])
            assert name not in found, f"{name} is pinned twice"
            found[name] = pin[2]
    return found


@pytest.fixture(scope="module")
def pinned() -> dict[str, str]:
    return pins((ROOT / "constraints.txt").read_text())


def test_every_dependency_is_installed_at_its_pinned_version(pinned):
    names = closure("unwalk", ["dev"], {}) - {"unwalk"}
    assert {"torch", "numpy", "pytest", "sympy", "grpcio"} <= names
    wrong = []
    for name in sorted(names):
        if CUDA.match(name):  # torch names these itself, to the digit
            continue
        installed = metadata.version(name).partition("+")[0]
        if installed != pinned.get(name):
            wrong.append(f"{name}: installed {installed}, pinned {pinned.get(name, 'nowhere')}")
    assert not wrong, wrong


@pytest.mark.parametrize(
    "target", TARGETS, ids=[f"{t['platform_system']}-{t['python_version']}" for t in TARGETS]
)
def test_other_platforms_and_pythons_are_pinned_too(pinned, target):
    names = closure("unwalk", ["dev"], target) - {"unwalk"}
    missing = {name for name in names - pinned.keys() if not CUDA.match(name)}
    assert not missing


def test_nothing_is_pinned_in_vain(pinned):
    used: set[str] = set()
    for target in TARGETS:
        used |= closure("unwalk", ["dev"], target)
    assert pinned.keys() <= used, pinned.keys() - used


def test_torch_is_the_release_we_test(pinned):
    assert pinned["torch"] == "2.13.0"


def test_no_cuda_packages_without_a_gpu():
    if Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi"):
        pytest.skip("this machine has a GPU")
    names = {canonicalize_name(found.metadata["Name"]) for found in metadata.distributions()}
    assert "torch" in names
    assert not sorted(name for name in names if CUDA.match(name))


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text()
    assert metadata.version("unwalk") == unwalk.__version__, "run 'make install' again"
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [unwalk.__version__]


def test_the_bill_of_materials_lists_what_a_release_needs():
    made = bill()
    named = {part["name"]: part for part in made["components"]}
    assert {"torch", "numpy", "grpcio", "cryptography", "sympy"} <= named.keys()
    assert not {"unwalk", "pytest", "ray", "sphinx"} & named.keys()
    for name, part in named.items():
        assert part["version"] == metadata.version(name)
        assert part["licenses"][0]["license"]["name"] not in ("", "not stated"), name
    refs = [made["metadata"]["component"]["bom-ref"], *(p["bom-ref"] for p in made["components"])]
    assert len(refs) == len(set(refs))
    told = {line["ref"]: line["dependsOn"] for line in made["dependencies"]}
    assert set(told) == set(refs)
    assert {need for needs in told.values() for need in needs} <= set(refs)
    assert named["numpy"]["purl"] in told[refs[0]]
