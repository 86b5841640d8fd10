"""The places for tokens that are on their way: two, and those go first that failed least."""

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

    ``failures`` counts by sender the tokens that did not come whole and right, in time.  If no
    place is free and somebody comes who failed less often than one who has a place, that one is
    put out: so whoever keeps a place and brings nothing pays for it, and is first to go from then
    on.  To be put out is no failure.  ``held`` are the deadlines of all who have a place or wait
    for one to be left, ``put_out`` those of them who are about to leave; ``left`` is called when
    one has.
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
