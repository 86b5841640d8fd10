"""Limits tokens that arrive at once to two; senders that failed least often have precedence."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from unwalk.core.errors import Refused, UnwalkError
from unwalk.peers.storage.disk_space import DiskFull

PLACES = 2
"""Tokens that may be on their way at once: each takes memory, and a file."""


class ReceivingPlaces:
    """Who has a place at one peer, each for a lease at most.

    ``failures`` counts, by sender, the tokens that did not arrive whole, correct and in time.  If
    no place is free, a sender that failed less often replaces one that failed more often.  So a
    sender that takes a place and brings nothing is the first to lose it from then on.  Being
    replaced is not a failure.  ``held`` are the deadlines of all who have a place or wait for one,
    ``put_out`` those among them who are about to leave; ``left`` is called whenever one has left.
    """

    def __init__(self, lease: float, left: Callable[[], None]) -> None:
        self.lease, self.left = lease, left
        self.failures: Counter[int] = Counter()
        self.held: dict[int, asyncio.Timeout] = {}
        self.put_out: set[int] = set()
        self.room = asyncio.Semaphore(PLACES)

    def __len__(self) -> int:
        return len(self.held)

    @asynccontextmanager
    async def place(self, sender: int) -> AsyncIterator[None]:
        """A place for a token of ``sender``; refused if there is none, or if it takes too long."""
        self._make_room(sender)
        try:
            async with asyncio.timeout(self.lease) as deadline:
                self.held[sender] = deadline
                async with self.room:  # who was put out may still have to close its file
                    yield
        except DiskFull:
            raise
        except (UnwalkError, TimeoutError, asyncio.CancelledError) as error:
            if sender not in self.put_out:
                self.failures[sender] += 1
            if not isinstance(error, TimeoutError):
                raise
            if sender in self.put_out:
                raise _taken() from error
            raise Refused("the token did not arrive within the lease.") from error
        finally:
            del self.held[sender]
            self.put_out.discard(sender)
            self.left()

    def _make_room(self, sender: int) -> None:
        if sender in self.held:
            raise _taken()
        stay = [p for p, end in self.held.items() if p not in self.put_out and not end.expired()]
        if len(stay) < PLACES:
            return
        worst = max(stay, key=self.failures.__getitem__)
        if self.failures[worst] <= self.failures[sender]:
            raise _taken()
        self.put_out.add(worst)
        self.held[worst].reschedule(asyncio.get_running_loop().time())


def _taken() -> Refused:
    return Refused("another token is on its way already.")
