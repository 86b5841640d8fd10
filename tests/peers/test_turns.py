"""Whose turn it is to recover: nobody can keep signatures back, or have them all."""

from __future__ import annotations

from itertools import accumulate

import pytest

from unwalk.peers.handover import turns
from unwalk.peers.handover.turns import FREE, ROUNDS, TURN, Turns, round_at, rounds_in
from unwalk.peers.protocol.codec import LAST_GENERATION

LIAR, HONEST, PEERS, DOUBLINGS = 1, 3, 4, 4
LONGEST = TURN * (1 << DOUBLINGS)


@pytest.fixture
def clock(monkeypatch):
    now = [8000.0]
    monkeypatch.setattr(turns, "monotonic", lambda: now[0])
    monkeypatch.setattr(turns, "time", lambda: now[0])
    return now


class Signer(Turns):
    """One peer of four, with leases of a second, that does not know where the token is."""

    def __init__(self, *, by_turns: bool = True) -> None:
        super().__init__(PEERS, 1.0, LONGEST)
        for _ in range(FREE if by_turns else 0):
            self.heard()

    def signs(self, asker: int, number: int = 0) -> bool:
        """Whether it signs for a number, or for the next one."""
        waits, promised = self.answer(asker, number or self.promised + 1, 0, lost=True)
        return not waits and promised == (number or promised)


def long_turn(peer: int) -> float:
    """When the longest turn of a peer begins, after the time 8000."""
    period = rounds_in(DOUBLINGS) * PEERS * TURN
    ends = (8000.0 // period + 1) * period
    return ends - (PEERS - peer) * LONGEST


@pytest.mark.parametrize("doublings", range(7))
def test_rounds_are_as_long_as_two_divides_their_number(doublings):
    numbers = range(1, 2**doublings + 1)
    levels = [(number & -number).bit_length() - 1 for number in numbers]
    begins = [0, *accumulate(2**level for level in levels)]
    assert begins[-1] == rounds_in(doublings)
    for begin, level in zip(begins, levels, strict=False):
        for into in (0.0, 2.0**level - 2**-20):
            assert round_at(begin + into, doublings) == (begin, level)


def test_turns_follow_each_other_and_each_peer_has_one_of_each_length():
    peer, when, lengths = Signer(by_turns=False), 8000.0, dict[int, set[float]]()
    _, when, _ = peer.turn_at(when)
    for _ in range(PEERS * 2 ** (DOUBLINGS + 1)):
        begins, ends, whose = peer.turn_at(when + 1e-6)
        assert begins == pytest.approx(when)
        lengths.setdefault(whose, set()).add(ends - begins)
        when = ends
    assert lengths == {p: {TURN * 2**d for d in range(DOUBLINGS + 1)} for p in range(PEERS)}


def test_a_recovery_that_was_kept_back_is_below_the_next_one(clock):
    peer = Signer(by_turns=False)
    assert peer.signs(LIAR, 1)
    assert not peer.signs(LIAR, 1)
    assert not peer.signs(HONEST, 1)
    assert peer.signs(HONEST, 2)
    assert not peer.signs(LIAR, 2)
    assert Signer(by_turns=False).answer(HONEST, 8, 8, lost=True) == (True, 0), "it knows of 8"


def test_nobody_can_use_the_numbers_up(clock):
    peer = Signer(by_turns=False)
    most = peer.highest
    assert not peer.signs(LIAR, most + 1)
    assert peer.signs(LIAR, most)
    clock[0] += turns.NUMBER
    assert peer.signs(HONEST), "the time allows one more"
    clock[0] = 4.1e9  # in the year 2099
    assert peer.highest < LAST_GENERATION


def test_after_some_recoveries_each_peer_has_its_turn_at_the_same_time_everywhere(clock):
    peers = [Signer(), Signer()]
    signed: dict[int, float] = dict.fromkeys(range(PEERS), 0.0)
    for _ in range(int(rounds_in(DOUBLINGS) * PEERS * TURN / 0.5)):
        for asker in range(PEERS):
            answers = {peer.signs(asker) for peer in peers}
            assert len(answers) == 1
            signed[asker] += 0.5 * (answers == {True})
        for peer in peers:
            peer.heard()
        clock[0] += 0.5
    whole = rounds_in(DOUBLINGS) * TURN
    assert all(seconds >= 0.9 * whole for seconds in signed.values())


def test_who_asks_in_its_turn_has_the_rest_of_it_alone_else_others_have_parts(clock):
    for asks in (False, True):
        peer, others = Signer(), set[int]()
        clock[0] = long_turn(HONEST) + 0.01
        for _ in range(int(PEERS * TURN / 0.5)):
            assert not asks or peer.signs(HONEST)
            others |= {other for other in range(PEERS) if other != HONEST and peer.signs(other)}
            clock[0] += 0.5
        assert others == (set() if asks else {0, 1, 2})
        assert peer.signs(HONEST), "it may ask as long as its turn lasts"


def test_clocks_may_differ_by_less_than_the_longest_turn(clock):
    """Both sign in what their turns have in common, and neither for anybody else then."""
    apart = LONGEST / 2
    ahead, behind, both = Signer(), Signer(), 0
    for step in range(int(LONGEST)):
        signed = []
        for peer, shift in ((ahead, apart), (behind, 0.0)):
            clock[0] = long_turn(HONEST) - apart + step + shift
            signed.append(peer.signs(HONEST))
            if all(signed) and len(signed) == 2:
                both += 1
                assert not peer.signs(LIAR)
    assert both >= apart - 1


def test_peers_go_by_turns_only_while_many_recoveries_were_opened_lately(clock):
    peer = Signer(by_turns=False)
    for _ in range(FREE):
        assert all(peer.signs(asker) for asker in range(PEERS))
        peer.heard()
    assert sum(peer.signs(asker) for asker in range(PEERS)) in (1, 2)
    clock[0] += ROUNDS * PEERS * LONGEST
    assert all(peer.signs(asker) for asker in range(PEERS))


def test_a_peer_asks_early_in_its_turn(clock):
    peer = Signer()
    for _ in range(500):
        wait = peer.starts_in(HONEST)
        assert 0.0 <= wait <= peer.longest_wait
        clock[0] += wait
        assert peer.signs(HONEST)
        clock[0] += 0.37
    clock[0] = long_turn(HONEST) - 0.5
    assert peer.starts_in(HONEST) <= 0.5 + turns.SKEW
    clock[0] += LONGEST / 2
    assert peer.starts_in(HONEST) == 0.0


def test_who_only_looks_around_takes_no_turn(clock):
    peer = Signer()
    assert peer.answer(HONEST, 0, 0, lost=True) == (False, 0)
    assert peer.promised == 0
