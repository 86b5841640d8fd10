"""Whose turn it is to recover: nobody can keep signatures back, or have them all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from unwalk.peers.handover import turns
from unwalk.peers.handover.log_rules import known_by
from unwalk.peers.handover.turns import SETTLE, TURN, Turns
from unwalk.peers.protocol.handover import Sighting

LIAR, HONEST = 1, 3


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(turns, "monotonic", lambda: now[0])
    return now


def signer(fence: int = 0) -> Turns:
    """One peer of four, with leases of a second, that does not know where the token is."""
    walk: Any = SimpleNamespace(
        is_lost=True,
        limits=SimpleNamespace(lease=1.0),
        poll=SimpleNamespace(rules=SimpleNamespace(lies=1)),
        network=SimpleNamespace(peers=range(4)),
        state=SimpleNamespace(fence=(fence, 0)),
    )
    return Turns(walk)


def number(promised: int) -> int:
    """What a recovery may open that was signed for with this."""
    seen = [Sighting((0, 0), (), ((0, 0), (0, 0)), promised=promised) for _ in range(2)]
    return known_by(seen, 1, 4)[0] + 1


def test_a_recovery_that_was_kept_back_is_below_the_next_one(clock):
    peer = signer()
    waits, kept = peer.answer(LIAR, "a")
    assert (waits, number(kept)) == (False, 1)
    assert peer.answer(LIAR, "a") == (False, kept), "asking again gives no second number"
    assert peer.answer(LIAR, "b")[0], "nor does it go on from what it keeps back"
    assert peer.answer(HONEST, "c")[0], "one at a time"
    clock[0] += TURN
    waits, later = peer.answer(HONEST, "c")
    assert not waits
    assert number(later) > number(kept)
    assert peer.answer(LIAR, "a")[0]


def test_who_opened_a_generation_waits_until_the_others_had_their_turn(clock):
    peer = signer(fence=1)
    peer.heard(LIAR)
    assert peer.answer(HONEST, "c")[0], "the token has time to come"
    clock[0] += SETTLE
    assert peer.answer(LIAR, "a")[0]
    assert not peer.answer(HONEST, "c")[0]
    clock[0] += peer.between - SETTLE
    assert not peer.answer(LIAR, "a")[0]


def test_who_brought_a_token_may_recover_again(clock):
    peer = signer()
    assert not peer.answer(HONEST, "c")[0]
    clock[0] += TURN + 0.1
    assert peer.answer(HONEST, "c")[0]
    peer.brought(HONEST)
    assert not peer.answer(HONEST, "d")[0]


def test_who_only_looks_around_takes_no_turn(clock):
    peer = signer()
    assert peer.answer(HONEST, "") == (False, 0)
    assert not peer.answer(LIAR, "a")[0]
