"""What arrives at a peer: offered tokens and small messages, checked, then taken or refused."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from unwalk.core.errors import Corrupt, Refused, UnwalkError
from unwalk.core.plan import Move
from unwalk.peers.handover.checks import FinalOffer, Gate, Offer
from unwalk.peers.handover.log_rules import MOST_ENTRIES
from unwalk.peers.process_memory import give_back
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol.handover import Parcel, Reply
from unwalk.peers.protocol.hoplog import Entry, parse_entry
from unwalk.peers.storage.disk_space import DiskFull
from unwalk.peers.storage.store import Incoming, KeptLocal
from unwalk.peers.storage.token_files import TokenFile
from unwalk.peers.transport.rate_limit import Rate
from unwalk.peers.transport.wire import CHUNK, MESSAGE

if TYPE_CHECKING:
    from unwalk.peers.handover.service import Service


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
                reply = await self.service.talk.take_final(sender, offer, chunks)
                return codec.dump(codec.reply_to(reply))
            reply = await self._take(offer, chunks)
            first = reply.kind == "accepted" and self.service.came_first(offer.parcel)
            return codec.dump(codec.reply_to(reply, first=first))
        except UnwalkError as error:
            return self._refusal(sender, error)
        except OSError as error:  # nothing was accepted, so that somebody else can be asked
            why: UnwalkError = Refused(
                f"the token cannot be stored here: {error.strerror or error}."
            )
            if self.service.store.space.ran_out(error):
                why = DiskFull()
            return self._refusal(sender, why)

    def _refusal(self, sender: int, error: UnwalkError) -> bytes:
        self.service.metrics.add("refusals_total")
        self.service.journal.refused(sender, error)
        return codec.dump(codec.reply_to(Reply("refused"), str(error)[:300]))

    async def _take(self, offer: Offer, chunks: AsyncIterator[bytes]) -> Reply:
        service = self.service
        state, reply = pr.receive(service.state, offer.parcel, offer.path)
        if state == service.state:  # nothing new: no need for the bytes
            return reply
        if service.stopping:
            raise Refused("this peer is stopping.")
        if service.store.space.full:
            raise DiskFull
        kept = service.store.local(service.run_id, offer.parcel.lineage)
        if kept is None:
            raise Refused("this peer no longer has what it kept at that time.")
        if offer.sender in self.receiving or len(self.receiving) >= 2:
            raise Refused("another token is on its way already.")
        incoming = Incoming(service.store, offer.size)
        self.receiving.add(offer.sender)
        try:
            async with asyncio.timeout(service.limits.lease):
                offer, file, log = await self._examine(incoming, offer, kept, chunks)
            state, reply = pr.receive(service.state, offer.parcel, offer.path)
            if state != service.state:
                incoming.keep(offer.parcel.token)
                self.opened = (offer.parcel.token, file)
                move = move_to(offer.mover, offer.attempt, offer.move, offer.passed_over)
                moved = {**move, "sender": offer.sender}
                arrival = service.to_keep(state)
                if log:
                    service.store.add_entries(service.run_id, log)
                service.put(state, move=moved, entry=offer.entry, arrival=arrival)
                service.metrics.add("tokens_received_total")
                service.metrics.add("bytes_received_total", offer.size)
                service.journal.write("received", at=monotonic(), **words_of(offer.parcel))
            return reply
        except TimeoutError as error:
            raise Refused("the token did not arrive within the lease.") from error
        finally:
            if not incoming.named:
                service.ahead.leave(incoming)
            self.receiving.discard(offer.sender)
            if service.stopping:
                service.changed.set()
            service.store.pinned.discard(offer.parcel.token)
            incoming.discard()

    async def _examine(
        self, incoming: Incoming, offer: Offer, kept: KeptLocal, chunks: AsyncIterator[bytes]
    ) -> tuple[Offer, TokenFile, list[Entry]]:
        """All of it arrives and is flushed; whatever can be wrong with it is looked for.

        The visit begins as soon as the token's content is known to be in order; the disk and all
        other checks come after that.
        """
        gate, loop = self.service.gate, asyncio.get_running_loop()
        data = b""
        if offer.size <= CHUNK:  # written and looked through sooner than a thread would start
            data = b"".join([piece async for piece in pieces(chunks, offer.size)])
            incoming.put_part(data)
            file = gate.content(offer, incoming.path)
        else:
            await self.receive_bytes(incoming, chunks)
            look = partial(_look, gate, offer, incoming.path)
            file = await loop.run_in_executor(self.service.hashing, look)
        self.service.ahead.begin(incoming, offer, file, kept)
        flushed = self.on_disk(_flush_and_hash, incoming, data)
        try:
            gate.route(offer, file.header["memory"])
            offer = gate.stamped(offer, await anext(chunks, b""))
            log = await self._check_log(offer, await anext(chunks, b""))
        finally:
            await flushed
        if incoming.digest != offer.parcel.token:
            raise Refused("the token's bytes do not match its digest.")
        return offer, file, log

    async def _check_log(self, offer: Offer, data: bytes) -> list[Entry]:
        """Check a token's log back to the last entry that is known here; what came before it."""
        service = self.service
        assert offer.entry is not None
        sent: dict[str, Entry] = {}
        if data:
            record = codec.fields_of(codec.parse(data, MESSAGE), "a log", "log")
            for item in codec.listed(record["log"], "log", most=MOST_ENTRIES):
                parsed = parse_entry(item)
                sent[parsed["chain"]] = parsed
        fresh = await service.talk.led_to(offer.entry, offer.sender, sent)
        service.succession.admit(offer.entry)
        return fresh

    async def receive_bytes(self, incoming: Incoming, chunks: AsyncIterator[bytes]) -> None:
        """Hash and write, each in a thread of its own, while the next pieces are on their way."""
        loop, service = asyncio.get_running_loop(), self.service
        working: deque[asyncio.Future[None]] = deque()
        try:
            async for chunk in pieces(chunks, incoming.size):
                working.append(loop.run_in_executor(service.hashing, incoming.hash_part, chunk))
                working.append(loop.run_in_executor(service.disk, incoming.put_part, chunk))
                while len(working) > 2 * AHEAD:
                    await working.popleft()
        finally:
            await asyncio.gather(*working)

    def on_disk(self, call: Any, *args: Any) -> asyncio.Future[Any]:
        """Run something that waits for the disk in a thread."""
        return asyncio.get_running_loop().run_in_executor(self.service.disk, call, *args)

    async def answer(self, sender: int, message: bytes) -> bytes:
        """A small message."""
        try:
            if not self.rate.allows(sender, monotonic(), len(message)):
                raise Refused(f"more than {self.rate.rate:g} calls a second.")
            return codec.dump(await self.service.talk.answer(sender, message))
        except UnwalkError as error:
            return self._refusal(sender, error)


async def pieces(chunks: AsyncIterator[bytes], size: int) -> AsyncIterator[bytes]:
    """The pieces of ``size`` bytes; what follows them stays in ``chunks``."""
    left = size
    while left > 0:
        piece = await anext(chunks, b"")
        if not piece:
            raise Corrupt(f"the token has {size - left} bytes instead of {size}.")
        left -= len(piece)
        if left < 0:
            raise Corrupt(f"the token is longer than the {size} bytes announced.")
        yield piece


def _look(gate: Gate, offer: Offer, path: Path) -> TokenFile:
    give_back()  # what the pieces lay in; the token itself is about to be read
    return gate.content(offer, path)


def _flush_and_hash(incoming: Incoming, data: bytes) -> None:
    incoming.finish()
    incoming.hash_part(data)


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
