"""Tokens made from good ones are refused, or visited and handed on, as ``fuzz_tokens`` does it."""

from __future__ import annotations

import pytest

from tests.peers import fuzz_tokens


@pytest.mark.parametrize("scene", ["adam", "random, after it was drawn", "seal"])
def test_odd_tokens(tmp_path, scene):
    found = fuzz_tokens.run(tmp_path, 40, seed=1, scenes=[scene])
    assert found.problems == []
    assert len(found.outcomes) > 15, "so many sentences, and tokens that are taken"
    assert found.outcomes["accepted"] >= 2


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scene", fuzz_tokens.SCENES)
def test_many_odd_tokens(tmp_path, scene):
    found = fuzz_tokens.run(tmp_path, 2_000, seed=2, scenes=[scene])
    assert found.problems == []
    assert found.outcomes["accepted"] > 100
