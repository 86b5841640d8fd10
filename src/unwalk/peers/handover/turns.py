"""Whose turn it is to recover a lost token: what a peer signs for whom, and when.

A recovery needs the signatures of a quorum.  A member that lies could collect them and open a
generation whenever an honest peer has just recovered.  So, after a recovery, peers sign only for
the one whose turn it is by the clock, the same one everywhere.  Turns get longer with each round of
generations, so that at some time a turn is long enough for an honest peer to recover, and for the
token to be visited and handed on, before a liar's turn comes.  Where nothing was recovered lately
they sign for whoever asks.

A recovery's number is above all that its signers have signed for, so that one which was kept back
is of no use once somebody else has recovered.  Who asks again in the same generation and turn is
told the same number: nobody can raise it alone.

All of this is about time alone, and forgotten when a peer starts again.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic, time

TURN = 2.0
"""Leases of a turn, at first."""
ROUNDS = 2
"""Rounds without a new generation after which peers go by turns no longer."""
SKEW = 0.25
"""Leases into its turn at which a peer asks, for clocks that differ."""


@dataclass(frozen=True)
class Told:
    """The ``number`` that a peer was told when the fence was ``fence``, in turn ``turn``."""

    fence: int
    turn: int | None
    number: int


class Turns:
    """What one of ``peers`` signs in one walk."""

    def __init__(self, peers: int, lease: float) -> None:
        self.peers, self.lease = peers, lease
        self.opened = float("-inf")
        self.promised = 0
        self.told: dict[int, Told] = {}

    def length(self, opened: int) -> float:
        """Seconds of a turn, if a walk's lineage has so many generations besides the first.

        Their numbers would not do: a liar can make them grow.
        """
        return TURN * self.lease * (1 + opened // self.peers)

    def heard(self) -> None:
        """A generation was opened."""
        self.opened = monotonic()

    def answer(
        self, asker: int, chain: str, fence: int, opened: int, *, lost: bool
    ) -> tuple[bool, int]:
        """Whether the asker has to wait, and the highest number that others may have.

        ``fence`` is the number of the generation that this peer believes in, ``opened`` how many
        were opened before and with it, ``lost`` whether its token may be.  Who does not go on from
        any ``chain`` only looks around.
        """
        if not chain or not lost:
            return not lost, self.promised
        length, turn = self.length(opened), None
        if monotonic() - self.opened < ROUNDS * self.peers * length:
            turn = int(time() / length)
            if turn % self.peers != asker:
                return True, self.promised
        told = self.told.get(asker)
        if told is None or (told.fence, told.turn) != (fence, turn):
            told = self.told[asker] = Told(fence, turn, self.promised)
        self.promised = max(self.promised, told.number + 1, fence + 1)
        return False, told.number

    def starts_in(self, peer: int, opened: int) -> float:
        """Seconds until a peer should ask in its next turn; 0.0 while there is time in this one."""
        length, now = self.length(opened), time()
        turn = int(now / length)
        ahead = (peer - turn) % self.peers
        asks = (turn + ahead) * length + SKEW * self.lease
        if now > asks + length / 2:
            asks += self.peers * length
        return max(0.0, asks - now)
