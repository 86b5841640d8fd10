"""What a chapter may say, and the line that chapters leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwalk.core.errors import Corrupt
from unwalk.peers.protocol import schedule
from unwalk.peers.protocol.schedule import Spec


def spec(**changes: Any) -> Spec:
    base = Spec(1, 0, "rewind", "exact", None, None, ("a",), 2, 10, 3, 7, 0)
    return replace(base, **changes)


def test_the_line_follows_the_chapters():
    back = spec(position=3, hops=7)
    seal = spec(
        number=2, method="seal", grade="certified", epsilon=1.0, delta=1e-5, before=10, hops=2
    )
    again = spec(number=3, before=12, position=4, hops=8)
    fresh = spec(number=4, method="restart", before=12, position=0, hops=10)
    kept = [(0, 1), (0, 2), (0, 3)]
    assert schedule.line(10, [back]) == kept + [(1, k) for k in range(1, 8)]
    assert schedule.line(10, [back, seal])[-3:] == [(1, 7), (2, 1), (2, 2)]
    assert schedule.line(10, [back, seal, again]) == kept + [(1, 1)] + [(3, k) for k in range(1, 9)]
    assert schedule.line(10, [back, seal, again, fresh]) == [(4, k) for k in range(1, 11)]
    for count, last in enumerate((back, seal, again, fresh), 1):
        assert last.length == len(schedule.line(10, [back, seal, again, fresh][:count]))


@given(st.integers(0, 9), st.integers(1, 30), st.sampled_from(["rewind", "restart"]))
def test_a_chapter_comes_back_as_it_went(position, hops, method):
    said = spec(position=position, hops=hops, method=method, requests=("a", "b"))
    assert Spec.from_json(said.to_json(), 3) == said
    assert schedule.run_of("x", said) != schedule.run_of("x", replace(said, hops=hops + 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": 0},
        {"peer": 3},
        {"hops": 0},
        {"position": 11},
        {"requests": []},
        {"requests": ["a"] * 257},
        {"requests": [7]},
        {"method": "finetune"},
        {"grade": "certified"},
        {"epsilon": 1.0},
        {"records": -1},
        {"records": True},
        {"after": 1},
        {"after": -1},
        {"left": [3]},
        {"left": [1, 1]},
        {"left": [2, 1]},
        {"left": [0, 1, 2]},
        {"left": 1},
        {"left": [0], "peer": 1, "records": 0},
        {"void": True},
        {"more": 1},
    ],
)
def test_a_chapter_out_of_range_is_refused(wrong):
    with pytest.raises(Corrupt):
        Spec.from_json({**spec().to_json(), **wrong}, 3)


def test_chapters_that_were_given_up_are_no_part_of_the_line():
    specs = [spec(), spec(number=2, after=1), spec(number=3, after=1), spec(number=4, after=3)]
    found = schedule.marked(specs, [4])
    assert [s.void for s in found] == [False, True, False, True]
    assert (schedule.present(found), schedule.present([]), schedule.present(found[1:2])) == (
        3,
        0,
        0,
    )
    assert schedule.line(10, found) == schedule.line(10, [found[0], found[2]])
    assert [schedule.run_of("x", s) for s in found] == [schedule.run_of("x", s) for s in specs]


def test_a_budget_belongs_to_certified_chapters():
    sealed = spec(method="seal", grade="certified", epsilon=1.0, delta=1e-5)
    assert Spec.from_json(sealed.to_json(), 3) == sealed
    for wrong in (None, 0.0, -1.0, "1", True):
        with pytest.raises(Corrupt):
            Spec.from_json({**sealed.to_json(), "epsilon": wrong}, 3)
    odd = ({"delta": 2.0}, {"delta": 1.0}, {"delta": 1e-300}, {"epsilon": 1e-300})
    for changes in (*odd, {"epsilon": 1e7}, {"records": 2**31}):
        with pytest.raises(Corrupt, match=r"out of range|more than 33554432 records"):
            Spec.from_json({**sealed.to_json(), **changes}, 3)
