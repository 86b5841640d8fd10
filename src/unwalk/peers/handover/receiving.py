"""Receives tokens and small messages: checked, then taken or refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from unwalk.core.errors import Corrupt, Refused
from unwalk.peers.handover.byte_stream import begun, pieces, receive_bytes
from unwalk.peers.handover.checks import Offer, OfferChecks
from unwalk.peers.handover.control_messages import ControlMessages
from unwalk.peers.handover.doorway import STOPPING, Answer
from unwalk.peers.handover.early_visit import EarlyVisits
from unwalk.peers.handover.last_token import LastToken
from unwalk.peers.handover.log_rules import MOST_ENTRIES
from unwalk.peers.handover.moves import move_to, words_of
from unwalk.peers.handover.walk import Walk
from unwalk.peers.process_memory import give_back
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.handover import Reply
from unwalk.peers.protocol.hoplog import Entry, parse_entry
from unwalk.peers.storage.disk_space import DiskFull
from unwalk.peers.storage.store import Incoming, KeptLocal
from unwalk.peers.storage.token_files import TokenFile
from unwalk.peers.transport.wire import CHUNK, MESSAGE


class Receiving:
    """The receiving side of one walk."""

    def __init__(
        self,
        walk: Walk,
        control_messages: ControlMessages,
        early_visits: EarlyVisits,
        last_token: LastToken,
    ) -> None:
        self.walk, self.control_messages = walk, control_messages
        self.early_visits, self.last_token = early_visits, last_token
        self.opened: tuple[str, TokenFile] | None = None
        self.takes: dict[type, Callable[[int, Any, AsyncIterator[bytes]], Awaitable[Answer]]] = {
            ms.Offer: self._offered,
            ms.Final: self._last,
        }

    async def take(self, sender: int, chunks: AsyncIterator[bytes], message: ms.Message) -> Answer:
        """A token is offered."""
        self.walk.gate.of_this_run(message)
        if type(message) not in self.takes:
            raise Corrupt("a token is offered as something unknown.")
        use = partial(self.takes[type(message)], sender, message, chunks)
        try:
            return await self.walk.calls.answer(use)
        except OSError as error:  # nothing was accepted, so that somebody else can be asked
            if self.walk.store.space.ran_out(error):
                raise DiskFull from error
            why = error.strerror or error
            raise Refused(f"the token cannot be stored here: {why}.") from error

    async def _last(self, sender: int, said: ms.Final, chunks: AsyncIterator[bytes]) -> Answer:
        self.walk.gate.sent(sender, said.size)
        return codec.reply_to(await self.last_token.take(sender, said, chunks))

    async def _offered(self, sender: int, said: ms.Offer, chunks: AsyncIterator[bytes]) -> Answer:
        offer = self.walk.gate.offer(sender, said)
        self.walk.work.draws(offer.parcel.hop + 1)  # looked up before the bytes are there
        chunks = await begun(chunks)
        reply = await self._take(offer, chunks)
        first = reply.kind == "accepted" and self.walk.came_first(offer.parcel)
        return codec.reply_to(reply, first=first)

    async def _take(self, offer: Offer, chunks: AsyncIterator[bytes]) -> Reply:
        walk = self.walk
        state, reply = pr.receive(walk.state, offer.parcel, offer.path)
        if state == walk.state:  # nothing new: no need for the bytes
            return reply
        if walk.stopping:
            raise Refused(STOPPING)
        walk.store.space.check()
        kept = walk.store.local(walk.run_id, offer.parcel.lineage)
        if kept is None:
            raise Refused("this peer no longer has what it kept at that time.")
        async with walk.receiving.place(offer.sender):
            return await self._receive(offer, kept, chunks)

    async def _receive(self, offer: Offer, kept: KeptLocal, chunks: AsyncIterator[bytes]) -> Reply:
        walk = self.walk
        incoming, times = Incoming(walk.store, offer.size), dict[str, float]()
        try:
            offer, file, log = await self._examine(incoming, offer, kept, chunks, times)
            state, reply = pr.receive(walk.state, offer.parcel, offer.path)
            if state != walk.state:
                incoming.keep(offer.parcel.token)
                self.opened = (offer.parcel.token, file)
                move = move_to(offer.mover, offer.attempt, offer.move, offer.passed_over)
                moved = {**move, "sender": offer.sender}
                arrival = walk.to_keep(state)
                if log:
                    walk.store.add_entries(walk.run_id, log)
                walk.put(state, move=moved, entry=offer.entry, arrival=arrival)
                walk.metrics.add("tokens_received_total")
                walk.metrics.add("bytes_received_total", offer.size)
                times["at"] = monotonic()
                walk.journal.write("received", **times, **words_of(offer.parcel))
            return reply
        finally:
            if not incoming.named:
                self.early_visits.leave(incoming)
            walk.store.pinned.discard(offer.parcel.token)
            incoming.discard()

    async def _examine(
        self,
        incoming: Incoming,
        offer: Offer,
        kept: KeptLocal,
        chunks: AsyncIterator[bytes],
        times: dict[str, float],
    ) -> tuple[Offer, TokenFile, list[Entry]]:
        """Receive all of the token, flush it to disk, and check everything that can be checked.

        The visit begins as soon as the token's content and route are known to be in order; the disk
        and all other checks come after that.  A small token is looked through in memory before it
        is written, and the visit reads it there; a large one is looked through in its file, while
        that is flushed.  When what was done is noted in ``times``.
        """
        gate, loop = self.walk.gate, asyncio.get_running_loop()
        flushed: asyncio.Future[None] | None = None
        try:
            if offer.size <= CHUNK:
                data = bytearray().join([piece async for piece in pieces(chunks, offer.size)])
                times["arrived"] = monotonic()
                file = gate.open_bytes(data, incoming.path.name)
                gate.content(offer.parcel, file)
                self._begin(incoming, offer, file, kept)
                flushed = self.walk.on_disk(_flush, incoming, times, memoryview(data))
            else:
                await receive_bytes(self.walk, incoming, chunks)
                times["arrived"] = monotonic()
                flushed = self.walk.on_disk(_flush, incoming, times)
                look = partial(_look, gate, offer, incoming.path)
                file = await loop.run_in_executor(self.walk.hashing, look)
                self._begin(incoming, offer, file, kept)
            times["checked"] = monotonic()
            offer = gate.stamped(offer, await anext(chunks, b""))
            times["stamped"] = monotonic()
            log = await self._check_log(offer, file, await anext(chunks, b""))
        finally:
            if flushed is not None:
                await flushed
        if incoming.digest != offer.parcel.token:
            raise Refused("the token's bytes do not match its digest.")
        return offer, file, log

    def _begin(self, incoming: Incoming, offer: Offer, file: TokenFile, kept: KeptLocal) -> None:
        """Begin the visit, if the route leads here."""
        self.walk.gate.route(offer, file.header["memory"])
        self.early_visits.begin(incoming, offer, file, kept)

    async def _check_log(self, offer: Offer, file: TokenFile, data: bytes) -> list[Entry]:
        """Check a token's log back to the last entry that is known here; what came before it."""
        walk = self.walk
        assert offer.entry is not None
        sent: dict[str, Entry] = {}
        if data:
            record = codec.fields_of(codec.parse(data, MESSAGE), "a log", "log")
            for item in codec.listed(record["log"], "log", most=MOST_ENTRIES):
                parsed = parse_entry(item)
                sent[parsed["chain"]] = parsed
        # Whoever carries a token for a revoked peer has to put a visit of its own behind it.
        pem, chapter = offer.entry["certificate"], walk.chapter.number
        walk.trust.identity(pem, past=True, chapter=chapter)
        fresh, place = await self.control_messages.led_to(offer.entry, offer.sender, sent)
        walk.gate.agrees(file, place)
        return fresh

    async def answer(self, sender: int, message: ms.Message) -> Answer:
        """A small message."""
        self.walk.gate.of_this_run(message)
        if type(message) not in self.control_messages.answers:
            raise Corrupt("a message of that kind comes with a token.")
        use = partial(self.control_messages.answers[type(message)], sender, message)
        return await self.walk.calls.answer(use)


def _look(gate: OfferChecks, offer: Offer, path: Path) -> TokenFile:
    give_back()  # what the pieces lay in; the token itself is about to be read
    file = gate.open(path)
    gate.content(offer.parcel, file)
    return file


def _flush(incoming: Incoming, times: dict[str, float], data: memoryview | None = None) -> None:
    """``data`` is what was not written while it arrived; hashed last, when the visit has begun."""
    if data is not None:
        incoming.put_part(data)
    incoming.finish()
    if data is not None:
        incoming.hash_part(data)
    times["flushed"] = monotonic()
