"""Whose turn it is to recover: nobody can keep signatures back, or have them all."""

from __future__ import annotations

import pytest

from unwalk.peers.handover import turns
from unwalk.peers.handover.log_rules import FAR, known_by
from unwalk.peers.handover.turns import ROUNDS, TURN, Turns
from unwalk.peers.protocol.handover import Sighting

LIAR, HONEST, PEERS = 1, 3, 4


@pytest.fixture
def clock(monkeypatch):
    now = [8000.0]
    monkeypatch.setattr(turns, "monotonic", lambda: now[0])
    monkeypatch.setattr(turns, "time", lambda: now[0])
    return now


class Signer(Turns):
    """One peer of four, with leases of a second, that does not know where the token is."""

    def __init__(self, fence: int = 0) -> None:
        super().__init__(PEERS, 1.0)
        self.fence = fence

    def signs(self, asker: int, chain: str) -> tuple[bool, int]:
        return self.answer(asker, chain, self.fence, lost=True)


def number(promised: int) -> int:
    """What a recovery may open that was signed for with this."""
    seen = [Sighting((0, 0), (), ((0, 0), (0, 0)), promised=promised) for _ in range(2)]
    return known_by(seen, 1, FAR * PEERS)[0] + 1


def test_a_recovery_that_was_kept_back_is_below_the_next_one(clock):
    peer = Signer()
    waits, kept = peer.signs(LIAR, "a")
    assert (waits, number(kept)) == (False, 1)
    assert peer.signs(LIAR, "a") == (False, kept), "asking again gives no second number"
    assert peer.signs(LIAR, "b")[0], "nor does it go on from what it keeps back"
    assert peer.signs(HONEST, "c")[0], "one at a time"
    clock[0] += TURN
    waits, later = peer.signs(HONEST, "c")
    assert not waits
    assert number(later) > number(kept)
    assert peer.signs(LIAR, "a")[0]


def test_who_asks_again_and_again_is_not_signed_for_by_one_peer_after_the_other(clock):
    """Without another who asks, the first one has its turn until it has all signatures."""
    peers = [Signer(), Signer()]
    for peer in peers:
        for _ in range(9):
            assert not peer.signs(HONEST, "c")[0]
            clock[0] += 1.0


def test_after_a_recovery_each_peer_has_its_turn_at_the_same_time_everywhere(clock):
    peers = [Signer(fence=1), Signer(fence=1)]
    for peer in peers:
        peer.heard()
        clock[0] += 0.3
    signed: dict[int, float] = dict.fromkeys(range(PEERS), 0.0)
    for _ in range(int(TURN * PEERS * 10)):
        for asker in range(PEERS):
            answers = {peer.signs(asker, "c")[0] for peer in peers}
            assert len(answers) == 1
            signed[asker] += 0.1 * (answers == {False})
        clock[0] += 0.1
    assert signed == pytest.approx(dict.fromkeys(range(PEERS), TURN), abs=0.11)


def test_turns_end_some_rounds_after_the_last_recovery_and_get_longer_with_each_round(clock):
    peer = Signer(fence=1)
    peer.heard()
    assert not all(peer.signs(asker, "c")[0] for asker in range(PEERS))
    assert sum(not peer.signs(asker, "c")[0] for asker in range(PEERS)) == 1
    clock[0] += ROUNDS * PEERS * TURN
    for asker in range(PEERS):
        assert not peer.signs(asker, "c")[0]
        clock[0] += TURN
    assert peer.length(2 * PEERS) == 3 * peer.length(1)


def test_two_who_ask_in_turn_cannot_raise_the_number_beyond_what_others_count(clock):
    peer = Signer()
    for round in range(1000):
        peer.signs((0, LIAR)[round % 2], "a")
        clock[0] += 0.97 * TURN
        if peer.promised >= PEERS:
            break
    assert peer.promised == PEERS
    clock[0] += peer.length(0)
    asked = [asker for asker in range(PEERS) if not peer.signs(asker, "b")[0]]
    assert len(asked) == 1, "now they go by the clock"


def test_who_only_looks_around_takes_no_turn(clock):
    peer = Signer()
    assert peer.signs(HONEST, "") == (False, 0)
    assert not peer.signs(LIAR, "a")[0]
