"""Whose turn it is to recover a lost token: what a peer signs for whom, and when.

A recovery needs the signatures of a quorum.  A member that lies could collect them and open a
generation whenever an honest peer has just recovered.  So a peer signs for one asker at a time.
Where nothing was recovered lately that is whoever asks first.  After a recovery it is the peer
whose turn it is by the clock, the same one everywhere.  Turns get longer with each round of
generations, so that at some time a turn is long enough for an honest peer to recover, and for the
token to be visited and handed on, before a liar's turn comes.

A recovery's number is above all that its signers have signed for, so that one which was kept back
is of no use once somebody else has recovered.

All of this is about time alone, and forgotten when a peer starts again.
"""

from __future__ import annotations

from time import monotonic, time

from unwalk.walks import NOBODY

TURN = 2.0
"""Leases of a turn."""
ROUNDS = 2
"""Rounds without a new generation after which peers go by turns no longer."""


class Turns:
    """What one of ``peers`` signs in one walk."""

    def __init__(self, peers: int, lease: float) -> None:
        self.peers, self.lease = peers, lease
        self.opened = self.began = float("-inf")
        self.asker, self.chain, self.told = NOBODY, "", 0
        self.promised = 0

    def length(self, fence: int) -> float:
        """Seconds of a turn after so many generations."""
        return TURN * self.lease * (1 + fence // self.peers)

    def heard(self) -> None:
        """A generation was opened."""
        self.opened = monotonic()

    def answer(self, asker: int, chain: str, fence: int, *, lost: bool) -> tuple[bool, int]:
        """Whether the asker has to wait, and the highest number that others may have.

        ``fence`` is the number of the generation that this peer believes in, ``lost`` whether its
        token may be.  Who does not go on from any ``chain`` only looks around.
        """
        if not chain or not lost:
            return not lost, self.promised
        if not self._may_ask(asker, chain, fence):
            return True, self.promised
        if (asker, chain) != (self.asker, self.chain):
            self.asker, self.chain, self.told = asker, chain, self.promised
            self.began = monotonic()
        self.promised = max(self.promised, self.told + 1, fence + 1)
        return False, self.told

    def _may_ask(self, asker: int, chain: str, fence: int) -> bool:
        now, length = monotonic(), self.length(fence)
        lately = now - self.opened < ROUNDS * self.peers * length
        if lately or self.promised >= fence + self.peers:
            if asker != int(time() / length) % self.peers:
                return False
            return asker != self.asker or chain == self.chain or now - self.began >= length
        taken = now - self.began < TURN * self.lease
        return (asker, chain) == (self.asker, self.chain) or not taken
