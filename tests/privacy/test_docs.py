"""Names that docs/math.md gives for bounds and tests exist, and every public bound is listed."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest

import unwalk.privacy
from tests.conftest import ROOT

MATH = (ROOT / "docs" / "math.md").read_text(encoding="utf-8")
MODULES = {module.name for module in pkgutil.iter_modules(unwalk.privacy.__path__)}
# Rooms whose every public function is a bound and has to be in the tables.
LISTED = (
    "visits",
    "seal",
    "release",
    "noisy_start",
    "dp_training",
    "gossip",
    "published",
    "nominal",
    "utility",
    "capacity",
    "iteration",
    "stability",
    "accountants",
)
HELPERS = {
    "accountants.events_claim",
    "iteration.check_nonexpansive",
    "published.check_view",
    "stability.Facts",
}


def code_names() -> set[str]:
    found = re.findall(r"`([a-z_0-9]+)\.([A-Za-z_0-9]+)`", MATH)
    return {f"{room}.{name}" for room, name in found if room in MODULES}


@pytest.mark.parametrize("name", sorted(code_names()))
def test_named_code_exists(name):
    room, member = name.split(".")
    assert hasattr(importlib.import_module(f"unwalk.privacy.{room}"), member)


def test_named_tests_exist():
    named = set(re.findall(r"`([a-z]+/)?(test_[a-z_]+\.py)::(test_[a-z_0-9]+)`", MATH))
    assert len(named) > 50
    for room, file, test in named:
        text = (ROOT / "tests" / (room or "privacy") / file).read_text(encoding="utf-8")
        assert f"def {test}(" in text, f"{file}::{test}"


@pytest.mark.parametrize("room", LISTED)
def test_every_bound_is_listed(room):
    module = importlib.import_module(f"unwalk.privacy.{room}")
    public = {
        f"{room}.{name}"
        for name, thing in vars(module).items()
        if inspect.isfunction(thing)
        and thing.__module__ == module.__name__
        and not name.startswith("_")
        and (room != "accountants" or thing.__annotations__["return"] == "Claim")
    }
    assert public - code_names() - HELPERS == set()


@pytest.mark.parametrize("room", sorted(MODULES))
def test_every_public_function_has_a_docstring(room):
    module = importlib.import_module(f"unwalk.privacy.{room}")
    for name, thing in vars(module).items():
        if inspect.isfunction(thing) and thing.__module__ == module.__name__:
            assert name.startswith("_") or inspect.getdoc(thing), name
