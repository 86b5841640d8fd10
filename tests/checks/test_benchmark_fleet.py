"""The benchmark of fleets runs on a CPU, and bookkeeping stays a small part of a hop."""

from __future__ import annotations

import json

import pytest

from benchmarks import fleet

NOISY = 2.0  # other processes share caches and cores with the tests


def test_the_quick_benchmark_tells_steps_from_what_is_round_them(capsys):
    name = "MLP 64-64-10"
    code = fleet.main(["--device", "cpu", "--quick", name])
    *lines, last = capsys.readouterr().out.splitlines()
    (_, whole, _), (_, around, _), (_, ratio, limit) = json.loads(last)
    assert len(lines) == 3
    assert 0.0 < around < whole
    assert ratio == pytest.approx(whole / (whole - around))
    assert limit == fleet.FLEETS[name].ratio
    assert ratio <= NOISY * limit
    assert code == int(ratio > limit)
