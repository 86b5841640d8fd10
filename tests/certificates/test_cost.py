"""What a certified deletion of one record costs, on splits the preset was not tuned on."""

import importlib.util
import statistics

import pytest

from tests.conftest import ROOT

SPEC = importlib.util.spec_from_file_location("certified", ROOT / "benchmarks" / "certified.py")
assert SPEC is not None
assert SPEC.loader is not None
certified = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(certified)


def means(task, seeds):
    rows = [certified.hops_needed(task, 1, seed) for seed in seeds]
    return {name: statistics.fmean(row[name] for row in rows) for name in certified.METHODS}


def test_one_record_is_cheaper_to_seal_than_to_retrain():
    found = means("digits-flat", range(100, 102))
    assert found["seal"] < found["retrain"]


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_one_record_takes_at_most_half_of_retraining_on_digits():
    found = means("digits-flat", range(100, 120))
    assert found["seal"] <= found["retrain"] / 2
