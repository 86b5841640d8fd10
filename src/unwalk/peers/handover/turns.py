"""Whose turn it is to recover a lost token: what a peer signs for whom, and when.

A recovery needs the signatures of a quorum.  A member that lies could collect them and open a
generation whenever an honest peer has just recovered.  So, where recoveries are many, peers sign
only for the one whose turn it is by the clock, the same one everywhere.  Who asks in its own turn
has the rest of it alone; else the others have it in short parts, one after the other, so that
nobody waits for peers that want nothing.

Turns come in rounds.  The length of round k is a power of two, as often as two divides k, up to one
that is enough for a token to be recovered, visited and handed on.  So each peer has a long turn
again and again, whatever liars do, and as clocks differ less than that, all sign for it then.

A signature is for one number, above all that the peer has signed for.  So a recovery that was kept
back is below each that is opened later.  Numbers are at most as many as leases have gone by since
1970: nobody can use them up.

All of this is about time alone, and forgotten when a peer starts again.
"""

from __future__ import annotations

from collections import deque
from math import ceil, log2
from time import monotonic, time

from unwalk.peers.protocol.codec import LAST_GENERATION

TURN = 2.0
"""Leases of a short turn."""
FREE = 3
"""As long as fewer generations were opened lately, peers sign for whoever asks."""
ROUNDS = 2
"""Longest rounds for which peers count a generation that was opened."""
SKEW = 0.25
"""Leases into its turn at which a peer asks, for clocks that differ."""
NUMBER = 4.0
"""Seconds in which numbers may grow by one, at least: then the last one is for the year 2106."""


def rounds_in(doublings: int) -> int:
    """Lengths of the shortest round in a period: 2^d rounds, the last of 2^d, twice those before.

    >>> [rounds_in(d) for d in range(4)]  # 1; 1, 2; 1, 2, 1, 4; ...
    [1, 3, 8, 20]
    """
    return (doublings + 2) * (1 << doublings) // 2


def round_at(when: float, doublings: int) -> tuple[int, int]:
    """The round at this time of a period: when it began, and how often its length is doubled.

    >>> [round_at(when + 0.5, 2) for when in range(8)]
    [(0, 0), (1, 1), (1, 1), (3, 0), (4, 2), (4, 2), (4, 2), (4, 2)]
    """
    begun = 0
    for level in range(doublings, 0, -1):
        half = rounds_in(level - 1)
        if when < begun + half:
            continue
        begun += half
        last = begun + half - (1 << level - 1)
        if when >= last:
            return last, level
    return begun, 0


class Turns:
    """What one of ``peers`` signs in one walk; the longest turns have ``longest`` seconds."""

    def __init__(self, peers: int, lease: float, longest: float = 0.0) -> None:
        self.peers, self.lease, self.short = peers, lease, TURN * lease
        self.doublings = max(0, ceil(log2(max(longest, self.short) / self.short)))
        self.opened: deque[float] = deque(maxlen=FREE)
        self.promised = 0
        self.taken = 0.0  # the end of the turn whose owner was signed for

    @property
    def longest_wait(self) -> float:
        """Seconds in which every peer has a whole turn, if nobody has a long one alone."""
        return (self.peers + 1) * self.short

    @property
    def end(self) -> float:
        """When peers go by turns no longer, unless another generation is opened."""
        if len(self.opened) < FREE:
            return float("-inf")
        return self.opened[0] + ROUNDS * self.peers * self.short * (1 << self.doublings)

    @property
    def highest(self) -> int:
        """The highest number that a generation may have now."""
        return min(int(time() / max(self.lease, NUMBER)), LAST_GENERATION)

    def heard(self) -> None:
        """A generation was opened."""
        self.opened.append(monotonic())

    def turn_at(self, when: float) -> tuple[float, float, int]:
        """When the turn of this time begins and ends, and whose it is."""
        unit = self.peers * self.short
        period = unit * rounds_in(self.doublings)
        before = when // period * period
        begun, level = round_at((when - before) / unit, self.doublings)
        begins, length = before + begun * unit, self.short * (1 << level)
        peer = min(int((when - begins) / length), self.peers - 1)
        return begins + peer * length, begins + (peer + 1) * length, peer

    def answer(self, asker: int, number: int, fence: int, *, lost: bool) -> tuple[bool, int]:
        """Whether the asker has to wait, and the highest number that was signed for.

        ``fence`` is the number of the generation that this peer believes in, ``lost`` whether its
        token may be.  Who asks for no ``number`` only looks around.
        """
        if not number or not lost:
            return not lost, self.promised
        if not max(self.promised, fence) < number <= self.highest:
            return True, self.promised
        if monotonic() < self.end:
            now = time()
            _, ends, peer = self.turn_at(now)
            if asker == peer:
                self.taken = ends
            elif self.taken == ends or int(now / self.short) % self.peers != asker:
                return True, self.promised
        self.promised = number
        return False, number

    def starts_in(self, peer: int) -> float:
        """Seconds until a peer should ask in its next turn; 0.0 while there is time in this one."""
        now, early = time(), SKEW * self.lease
        part = int(now / self.short)
        asks = (part + (peer - part) % self.peers) * self.short + early
        if now > asks + self.short / 2:
            asks += self.peers * self.short
        begins, ends, whose = self.turn_at(now)
        while whose != peer or now > ends - self.short / 2:
            if ends >= asks:
                return max(0.0, asks - now)
            begins, ends, whose = self.turn_at(ends + self.short / 2)
        return max(0.0, min(asks, begins + early) - now)
