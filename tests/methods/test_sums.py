"""The format of sums: few bits, from public bounds alone, and always enough."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unwalk.core.errors import InvalidInput
from unwalk.core.packing import size_of
from unwalk.methods.sums import Sums, places, width_of
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.run import run
from unwalk.settings.config import Value

DIGITS: dict[str, Value] = {
    "task": "digits",
    "method": "sums",
    "compare": [],
    "data.extractor": "plain",
    "data.norm": 1.0,
    "forget.kind": "records",
    "forget.size": 5,
    "evaluate.every": 100,
}


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(1, 5), st.floats(1e-3, 10.0), st.integers(0, 99))
def test_rounding_never_spoils_the_head(inputs, peers, strength, seed):
    """Any sums of any records, rounded by each peer by itself."""
    rng = np.random.default_rng(seed)
    bits = places(inputs, peers, strength)
    whole, rounded = np.zeros((inputs, inputs)), np.zeros((inputs, inputs))
    for _ in range(peers):
        x = rng.normal(size=(rng.integers(4), inputs)) * rng.choice([1e-4, 1.0])
        whole += x.T @ x
        rounded += np.round(x.T @ x * 2.0**bits) * 2.0**-bits
    assert np.linalg.norm(rounded - whole, 2) <= strength / 2.0
    assert np.linalg.eigvalsh(rounded + strength * np.eye(inputs)).min() >= strength / 2.0 * (
        1 - 1e-9
    )


def test_fewer_places_could_spoil_it():
    """One below the formula's number there are sums with which no head is certain."""
    inputs, peers, strength = 8, 4, 1.0
    bits = places(inputs, peers, strength) - 2
    worst = -np.full((inputs, inputs), 2.0 ** -(bits + 1)) * peers  # all rounded down by a half
    assert np.linalg.eigvalsh(worst + strength * np.eye(inputs)).min() <= 0.0


@given(st.floats(1.0, 1e9), st.integers(1, 100), st.integers(1, 30))
def test_the_width_holds_the_largest_sum_and_one_bit_less_would_not(largest, peers, bits):
    width = width_of(largest, peers, bits)
    needed = largest * 2.0**bits + peers / 2
    if width < 62:
        assert needed < 2.0 ** (width - 1)
        assert largest * 2.0**bits + peers + 1 > 2.0 ** (width - 2)


def method_of(**changes: Value) -> Sums:
    config = resolve({**DIGITS, **{k.replace("__", "."): v for k, v in changes.items()}})
    plan = assemble(config).unlearning("sums")
    first, last = (phase.method for phase in plan.phases)
    assert isinstance(first, Sums)
    assert isinstance(last, Sums)
    assert (first.bits, first.width) == (last.bits, last.width)
    return last


def test_the_format_follows_from_what_is_public():
    assert (method_of().bits, method_of().width) == (10, 22)  # 65 features, 1,438 records
    assert method_of(forget__size=30) == method_of(), "not the number of the forgotten"
    assert method_of(seed=3) == method_of()
    assert method_of(data__norm=2.0).width == 24
    assert method_of(sums__strength=0.01).bits == 16
    assert method_of(train__capacity=300).width == 23
    assert (method_of(sums__bits=20).bits, method_of(sums__bits=20).width) == (20, 32)
    assert method_of(data__norm=None).width == 62, "nothing bounds the sums"
    with pytest.raises(InvalidInput, match="bits is 61"):
        method_of(sums__bits=61)


def test_a_run_sends_as_many_bytes_as_that():
    result = run(resolve({**DIGITS, "model.precision": "float64"}))
    token = result.walks["sums"].outcome.token
    assert token.nbytes == 650 * 8 + size_of(65 * 66 // 2, 22) + size_of(650, 22)
    assert (result.final()["clean"] or 0.0) > 0.9
    fine = run(resolve({**DIGITS, "model.precision": "float64", "sums.bits": 40}))
    assert abs((result.final()["clean"] or 0) - (fine.final()["clean"] or 0)) < 0.01
    (weight,), (other,) = (r.model.state_dict().values() for r in (result, fine))
    assert 0.0 < float((weight - other).abs().max()) < 0.05
    assert torch.isfinite(weight).all()


def test_more_records_than_were_announced_are_refused():
    with pytest.raises(InvalidInput, match="there are more records, or longer ones, than was ann"):
        run(resolve({**DIGITS, "train.capacity": 3}))
