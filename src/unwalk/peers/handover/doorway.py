"""Turns the bytes of other peers into messages: a limited number a second, each parsed once.

The door closes before the parts that answer: calls under way are ended, later ones are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

from unwalk.core.errors import Refused, UnwalkError
from unwalk.peers.identity.network_file import Network
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.handover import Reply
from unwalk.peers.protocol.messages import NETWORK, WALK, Entries, decode
from unwalk.peers.telemetry import Journal, Metrics
from unwalk.peers.transport.rate_limit import SHORT, Rate
from unwalk.peers.transport.wire import MESSAGE

Answer = dict[str, Any]
STOPPING = "this peer is stopping."


class Calls:
    """Calls under way, which can be ended all at once; none begins after that."""

    def __init__(self) -> None:
        self.closed = False
        self.under_way: dict[asyncio.Timeout, None] = {}  # in the order in which they began
        self.last = asyncio.Event()

    async def close(self) -> None:
        """Refuse all calls from now on; those under way have ended when this returns.

        It waits for them however often it is cancelled: what they use is closed next.
        """
        self.closed = True
        for call in self.under_way:
            call.reschedule(asyncio.get_running_loop().time())
        while self.under_way:
            self.last.clear()
            with suppress(asyncio.CancelledError):
                await self.last.wait()

    async def answer(self, use: Callable[[], Awaitable[Answer]]) -> Answer:
        """What ``use`` answers, unless the calls are closed first.

        A token that was taken is never refused this way: nothing is awaited after it was taken.
        """
        if self.closed:
            raise Refused(STOPPING)
        call = asyncio.timeout(None)
        self.under_way[call] = None
        try:
            async with call:
                return await use()
        except TimeoutError as error:
            if not call.expired():
                raise
            raise Refused(STOPPING) from error
        finally:
            del self.under_way[call]
            if not self.under_way:
                self.last.set()


class Doorway:
    """Where messages come in at one peer."""

    def __init__(self, network: Network, journal: Journal, metrics: Metrics) -> None:
        self.network, self.journal, self.metrics = network, journal, metrics
        self.rate = Rate(network.limits.messages)
        self.calls = Calls()

    def _read(self, sender: int, data: bytes) -> WALK | NETWORK:
        if not self.rate.allows(sender, monotonic(), len(data)):
            raise Refused(f"more than {self.rate.rate:g} calls a second.")
        message = decode(data, MESSAGE)
        more = message.most - 1 if isinstance(message, Entries) else 0
        if more and not self.rate.allows(sender, monotonic(), more * SHORT):
            raise Refused(f"more than {self.rate.rate:g} calls a second.")
        if message.network != self.network.name:
            raise Refused(f"this is network {self.network.name}.")
        return message

    async def let_in(
        self, sender: int, data: bytes, use: Callable[[WALK | NETWORK], Awaitable[Answer]]
    ) -> bytes:
        """The answer that ``use`` has for a message, or a refusal if anything is wrong with it."""
        try:
            return codec.dump(await self.calls.answer(partial(use, self._read(sender, data))))
        except UnwalkError as error:
            self.metrics.add("refusals_total")
            self.journal.refused(sender, error)
            return codec.dump(refusal(str(error)))


def refusal(reason: str) -> Answer:
    """An answer that something is refused."""
    return codec.reply_to(Reply("refused"), reason[:300])
