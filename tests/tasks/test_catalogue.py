"""What the catalogue writes out, so that it needs no torch, agrees with the modules it names."""

from __future__ import annotations

import importlib

import pytest

from unwalk.tasks import TASKS
from unwalk.tasks.features import KEYS, extraction_among
from unwalk.tasks.files import HOLDOUT
from unwalk.tasks.heart import HOSPITALS


@pytest.mark.parametrize("name", TASKS)
def test_a_recipe_names_its_loader(name):
    module, function = TASKS[name].loader.split(".")
    assert callable(getattr(importlib.import_module(f"unwalk.tasks.{module}"), function))


def test_what_is_written_twice_agrees():
    assert TASKS["file"].options["holdout"] == HOLDOUT
    assert TASKS["heart"].peers == len(HOSPITALS)
    assert [key for key in TASKS["records"].options if key in KEYS] == list(KEYS)


@pytest.mark.parametrize("name", [name for name in TASKS if TASKS[name].features])
def test_features_of_a_recipe_can_be_asked_for(name):
    assert extraction_among(TASKS[name].features) is not None
