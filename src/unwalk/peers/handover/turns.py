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
from typing import TYPE_CHECKING

from unwalk.walks import NOBODY

if TYPE_CHECKING:
    from unwalk.peers.handover.walk import Walk

TURN = 2.0
"""Leases of a turn."""
ROUNDS = 2
"""Rounds without a new generation after which peers go by turns no longer."""


class Turns:
    """What one peer signs in one walk."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.opened = self.began = float("-inf")
        self.asker, self.chain, self.told = NOBODY, "", 0
        self.promised = 0

    @property
    def peers(self) -> int:
        return len(self.walk.network.peers)

    @property
    def length(self) -> float:
        """Seconds of a turn."""
        walk = self.walk
        return TURN * walk.limits.lease * (1 + walk.state.fence[0] // self.peers)

    def heard(self) -> None:
        """A generation was opened."""
        self.opened = monotonic()

    def answer(self, asker: int, chain: str) -> tuple[bool, int]:
        """Whether the asker has to wait, and the highest number that others may have.

        Who does not go on from any ``chain`` only looks around.
        """
        walk = self.walk
        if not chain or not walk.is_lost:
            return not walk.is_lost, self.promised
        if not self._may_ask(asker, chain):
            return True, self.promised
        if (asker, chain) != (self.asker, self.chain):
            self.asker, self.chain, self.told = asker, chain, self.promised
            self.began = monotonic()
        self.promised = max(self.promised, self.told + 1, walk.state.fence[0] + 1)
        return False, self.told

    def _may_ask(self, asker: int, chain: str) -> bool:
        walk, now = self.walk, monotonic()
        lately = now - self.opened < ROUNDS * self.peers * self.length
        if lately or self.promised >= walk.state.fence[0] + self.peers:
            if asker != int(time() / self.length) % self.peers:
                return False
            return asker != self.asker or chain == self.chain or now - self.began >= self.length
        taken = now - self.began < TURN * walk.limits.lease
        return (asker, chain) == (self.asker, self.chain) or not taken
