"""Losses and augmentations as they were given: copies of what keeps something, and why not."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch.nn import functional

from unwalk.core.outside import held_fast, renewed


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: int = 1) -> int:
        self.calls += step
        return self.calls

    def method(self) -> int:
        return self()


class Louder(Counter):
    def method(self) -> int:
        return 10 * super().method()


def closure() -> Any:
    calls, seen = 0, [0]

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    def call() -> int:
        seen[0] += 1
        return count() + seen[0]

    return call


def with_default(seen: list[int] = [0]) -> int:  # noqa: B006
    seen[0] += 1
    return seen[0]


def itself_in_its_closure() -> Any:
    left = [3]

    def call() -> int:
        left[0] -= 1
        return 1 + call() if left[0] > 0 else 0

    return call


def test_a_copy_begins_where_the_given_one_stood():
    kept: list[Any] = [
        *(Counter(), Counter().method, Louder().method, closure(), with_default),
        *(functools.partial(Counter(), 2), itself_in_its_closure()),
    ]
    for call in kept:
        assert held_fast(call) is None, call
        first = [renewed(call)() for _ in range(3)]
        assert len(set(first)) == 1, call
        again = renewed(call)
        assert again() == first[0]
        assert again() != first[0], "within a visit it remembers"


def test_a_plain_function_stays_itself():
    for call in (None, functional.cross_entropy, torch.relu, lambda x, y: x):
        assert renewed(call) is call
        assert held_fast(call) is None


def test_what_no_copy_reaches_is_told():
    locked: Any = Counter()
    locked.lock = threading.Lock()
    assert held_fast(locked) == "Counter cannot be copied (TypeError)"
    holding: Any = Counter()
    holding.inner = {"deep": [closure()]}
    assert held_fast(holding) == "Counter holds a function with state, call"
    assert held_fast(functools.partial(closure())) is not None
    assert held_fast([].append) is not None
    assert held_fast(functools.lru_cache(lambda x: x)) is not None
    assert renewed(locked) is locked
