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
        return self.answer(asker, chain, self.fence, self.fence, lost=True)


def number(promised: int) -> int:
    """What a recovery may open that was signed for with this."""
    seen = [Sighting((0, 0), (), ((0, 0), (0, 0)), promised=promised) for _ in range(2)]
    return known_by(seen, 1, FAR * PEERS) + 1


def test_a_recovery_that_was_kept_back_is_below_the_next_one(clock):
    peer = Signer()
    waits, kept = peer.signs(LIAR, "a")
    assert (waits, number(kept)) == (False, 1)
    assert peer.signs(LIAR, "b") == (False, kept), "asking again gives no second number"
    waits, later = peer.signs(HONEST, "c")
    assert not waits
    assert number(later) > number(kept)
    assert peer.signs(LIAR, "a") == (False, kept)


def test_nobody_alone_raises_the_number_or_changes_whose_turn_it_is(clock):
    peer = Signer()
    for made_up in range(100):
        peer.signs(LIAR, f"{made_up}")
        clock[0] += 1.0
    assert peer.promised == 1
    assert not peer.signs(HONEST, "c")[0]


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


def test_a_new_turn_gives_a_new_number(clock):
    peer = Signer(fence=1)
    peer.heard()
    told = []
    for asker in (HONEST, LIAR, HONEST):
        clock[0] += 0.01 + peer.starts_in(asker, 1)
        waits, promised = peer.signs(asker, "c")
        assert not waits
        told.append(promised)
        clock[0] += TURN
    assert told == sorted(set(told))


def test_turns_end_some_rounds_after_the_last_recovery_and_get_longer_with_each_round(clock):
    peer = Signer(fence=1)
    peer.heard()
    assert sum(not peer.signs(asker, "c")[0] for asker in range(PEERS)) == 1
    clock[0] += ROUNDS * PEERS * TURN
    assert not any(peer.signs(asker, "c")[0] for asker in range(PEERS))
    assert peer.length(2 * PEERS) == 3 * peer.length(1)


def test_a_peer_asks_early_in_its_turn(clock):
    peer = Signer(fence=1)
    peer.heard()
    for _ in range(200):
        wait = peer.starts_in(HONEST, 1)
        assert 0.0 <= wait <= PEERS * TURN
        clock[0] += wait
        assert not peer.signs(HONEST, "c")[0]
        clock[0] += 0.37
    clock[0] = 8 * TURN * PEERS + HONEST * TURN + 0.9 * TURN
    assert peer.starts_in(HONEST, 1) > TURN, "what is left of this turn is too short"


def test_who_only_looks_around_takes_no_turn(clock):
    peer = Signer()
    assert peer.signs(HONEST, "") == (False, 0)
    assert peer.promised == 0
