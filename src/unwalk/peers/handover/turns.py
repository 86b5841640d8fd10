"""Whose turn it is to recover a lost token: what a peer signs for whom, and when.

A recovery needs the signatures of a quorum.  A member that lies could collect them and open a
generation whenever an honest peer has just recovered.  So each peer signs for one asker at a time,
who goes on from one copy; who had its turn waits until all others had theirs; and after a
generation was opened its token has some leases in which nobody can open another.  A recovery's
number is above all that its signers have signed for, so that one which was kept back is of no use
once somebody else had a turn.

All of this is about time alone, and forgotten when a peer starts again.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from unwalk.walks import NOBODY

if TYPE_CHECKING:
    from unwalk.peers.handover.walk import Walk

SLOW = 6.0
"""A peer that was released asks around after so many leases without news, and ``APART`` more for
each peer before it."""
APART = 0.5
TURN = 2.0
"""Leases for which others wait while a peer recovers."""
SETTLE = 5.0
"""Leases in which nobody signs after a generation was opened."""


@dataclass(frozen=True)
class Turn:
    """A peer goes on from ``chain``; ``promised`` is what it was told when its turn began."""

    chain: str
    began: float
    promised: int


class Turns:
    """What one peer signs in one walk."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.opened = float("-inf")
        self.promised = 0
        self.last = NOBODY
        self.turns: dict[int, Turn] = {}

    @property
    def between(self) -> float:
        """Leases between two turns of a peer: all who lie, and one who does not, have theirs."""
        walk = self.walk
        return (walk.poll.rules.lies + 1) * (SLOW + APART * len(walk.network.peers))

    def heard(self, opener: int) -> None:
        """A generation was opened: its opener's turn is over, and the token has time to come."""
        self.opened = monotonic()
        self.turns[opener] = Turn("", self.opened, self.promised)

    def brought(self, opener: int) -> None:
        """A token came in a generation that this peer opened: it did not open it for nothing."""
        self.turns.pop(opener, None)

    def answer(self, asker: int, chain: str) -> tuple[bool, int]:
        """Whether the asker has to wait, and the highest number that others may have.

        Who does not go on from any ``chain`` only looks around.
        """
        walk = self.walk
        if not chain or not walk.is_lost:
            return not walk.is_lost, self.promised
        now, lease = monotonic(), walk.limits.lease
        turn, other = self.turns.get(asker), self.turns.get(self.last)
        if turn is None or now - turn.began >= self.between * lease:
            taken = self.last != asker and other is not None and now - other.began < TURN * lease
            if taken or now - self.opened < SETTLE * lease:
                return True, self.promised
            turn = self.turns[asker] = Turn(chain, now, self.promised)
            self.last = asker
        elif turn.chain != chain or now - turn.began >= TURN * lease:
            return True, self.promised
        self.promised = max(self.promised, turn.promised + 1, walk.state.fence[0] + 1)
        return False, turn.promised
