"""Where the bytes of other peers become messages: so many a second of each, and each read once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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


class Doorway:
    """Where messages come in at one peer."""

    def __init__(self, network: Network, journal: Journal, metrics: Metrics) -> None:
        self.network, self.journal, self.metrics = network, journal, metrics
        self.rate = Rate(network.limits.messages)

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
            return codec.dump(await use(self._read(sender, data)))
        except UnwalkError as error:
            self.metrics.add("refusals_total")
            self.journal.refused(sender, error)
            return codec.dump(refusal(str(error)))


def refusal(reason: str) -> Answer:
    """An answer that something is refused."""
    return codec.reply_to(Reply("refused"), reason[:300])
