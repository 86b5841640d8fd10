"""What arrives at a peer: offered tokens and small messages, checked, then taken or refused."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from unwalk.core.errors import Refused, UnwalkError
from unwalk.core.plan import Move
from unwalk.peers import codec
from unwalk.peers import protocol as pr
from unwalk.peers.gate import FinalOffer, Offer, Rate
from unwalk.peers.protocol import Parcel, Reply
from unwalk.peers.store import Incoming
from unwalk.peers.tokens import TokenFile
from unwalk.peers.wire import CHUNK

if TYPE_CHECKING:
    from unwalk.peers.service import Service


AHEAD = 4
"""So many pieces may have arrived that are not hashed and written yet."""


class Intake:
    """The receiving side of one service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.rate = Rate(service.limits.messages)
        self.receiving: set[int] = set()
        self.opened: tuple[str, TokenFile] | None = None

    async def take(self, sender: int, envelope: bytes, chunks: AsyncIterator[bytes]) -> bytes:
        """A token is offered."""
        try:
            if not self.rate.allows(sender, monotonic()):
                raise Refused(f"more than {self.rate.rate:g} calls a second.")
            offer = self.service.gate.offer(sender, envelope)
            if isinstance(offer, FinalOffer):
                reply = await self.service.talk.take_final(offer, chunks)
                return codec.dump(codec.reply_to(reply))
            reply = await self._take(offer, chunks)
            first = reply.kind == "accepted" and self.service.came_first(offer.parcel)
            return codec.dump(codec.reply_to(reply, first=first))
        except UnwalkError as error:
            return self._refusal(sender, error)

    def _refusal(self, sender: int, error: UnwalkError) -> bytes:
        self.service.metrics.add("refusals_total")
        self.service.journal.write("refused", sender=sender, reason=str(error)[:300])
        return codec.dump(codec.reply_to(Reply("refused"), str(error)[:300]))

    async def _take(self, offer: Offer, chunks: AsyncIterator[bytes]) -> Reply:
        state, reply = pr.receive(self.service.state, offer.parcel, offer.path)
        if state == self.service.state:  # nothing new: no need for the bytes
            return reply
        if self.service.stopping:
            raise Refused("this peer is stopping.")
        if self.service.store.local(self.service.run_id, offer.parcel.lineage) is None:
            raise Refused("this peer no longer has what it kept at that time.")
        if offer.sender in self.receiving or len(self.receiving) >= 2:
            raise Refused("another token is on its way already.")
        self.receiving.add(offer.sender)
        incoming = Incoming(self.service.store, offer.size)
        try:
            if offer.size <= CHUNK:  # over sooner than a thread would start
                async for chunk in chunks:
                    incoming.write(chunk)
                self._examine(incoming, offer)
            else:
                await self.receive_bytes(incoming, chunks)
                await self.on_disk(self._examine, incoming, offer)
            state, reply = pr.receive(self.service.state, offer.parcel, offer.path)
            if state != self.service.state:
                move = move_to(offer.mover, offer.attempt, offer.move, offer.passed_over)
                moved = {**move, "sender": offer.sender}
                kept = self.service.to_keep(state)
                self.service.put(state, move=moved, entry=offer.entry, arrival=kept)
                self.service.metrics.add("tokens_received_total")
                self.service.metrics.add("bytes_received_total", offer.size)
                self.service.journal.write("received", at=monotonic(), **words_of(offer.parcel))
            return reply
        finally:
            self.receiving.discard(offer.sender)
            if self.service.stopping:
                self.service.changed.set()
            self.service.store.pinned.discard(offer.parcel.token)
            incoming.discard()

    async def receive_bytes(self, incoming: Incoming, chunks: AsyncIterator[bytes]) -> None:
        """Hash and write, each in a thread of its own, while the next pieces are on their way."""
        loop, service = asyncio.get_running_loop(), self.service
        put = partial(incoming.put_part, flush=True)
        working: deque[asyncio.Future[None]] = deque()
        try:
            async for chunk in chunks:
                working.append(loop.run_in_executor(service.hashing, incoming.hash_part, chunk))
                working.append(loop.run_in_executor(service.disk, put, chunk))
                while len(working) > 2 * AHEAD:
                    await working.popleft()
        finally:
            await asyncio.gather(*working)

    def on_disk(self, call: Any, *args: Any) -> asyncio.Future[Any]:
        """Run something that waits for the disk in a thread."""
        return asyncio.get_running_loop().run_in_executor(self.service.disk, call, *args)

    def _examine(self, incoming: Incoming, offer: Offer) -> None:
        digest = incoming.finish()
        if digest != offer.parcel.token:
            raise Refused("the token's bytes do not match its digest.")
        file = self.service.gate.content(offer, incoming.path)
        incoming.keep(digest)
        self.opened = (digest, file)

    def answer(self, sender: int, message: bytes) -> bytes:
        """A small message."""
        try:
            if not self.rate.allows(sender, monotonic()):
                raise Refused(f"more than {self.rate.rate:g} calls a second.")
            return codec.dump(self.service.talk.answer(sender, message))
        except UnwalkError as error:
            return self._refusal(sender, error)


def words_of(parcel: Parcel) -> dict[str, Any]:
    """A parcel in the log."""
    return {"hop": parcel.hop, "leg": parcel.leg, "generation": parcel.generation}


def move_to(mover: int, attempt: int, move: Move, passed_over: tuple[int, ...]) -> dict[str, Any]:
    """A move as it is stored and sent."""
    return {
        "mover": mover,
        "attempt": attempt,
        "receiver": move.receiver,
        "path": list(move.path),
        "memory": dict(move.memory),
        "passed_over": list(passed_over),
    }


def move_from(record: dict[str, Any]) -> Move:
    """The move that :func:`move_to` wrote."""
    return Move(record["receiver"], tuple(record["path"]), record["memory"])
