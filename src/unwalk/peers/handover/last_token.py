"""The last token of a walk: brought to the neighbours to vote on, and once decided to keep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import astuple, replace
from functools import partial

from unwalk.core.errors import Refused, UnwalkError
from unwalk.peers.handover.byte_stream import receive_bytes
from unwalk.peers.handover.control_messages import ControlMessages
from unwalk.peers.handover.end_vote import Ends
from unwalk.peers.handover.log_fetch import LogFetch
from unwalk.peers.handover.walk import Walk
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.codec import EndValue
from unwalk.peers.protocol.handover import Reply
from unwalk.peers.storage.store import Incoming
from unwalk.peers.transport.wire import MESSAGE, FilePieces

AGAIN = 5.0
"""Seconds between attempts to bring the last token to a neighbour, at most."""
SOON = 0.1
MOST_BROUGHT = 2
"""Ends of one generation, or later ones, that one neighbour may bring before one is proposed."""
MOST_WAITING = 2
"""Calls that wait for a log at once, at most; others are told to come again."""


class LastToken:
    """Last tokens that one service is brought, and brings to others.

    ``brought`` says which neighbour brought an end that is kept here, by its chain.  ``fetches``
    are the logs of ends that were brought, by the end without its salt: each neighbour is
    ``bringing`` one at most, and none is dropped that another brings.  ``waiting`` are
    neighbours whose call waits for one.
    """

    def __init__(self, walk: Walk, control_messages: ControlMessages, ends: Ends) -> None:
        self.walk, self.control_messages, self.ends = walk, control_messages, ends
        self.brought: dict[str, int] = {}
        self.fetches: dict[pr.Value, LogFetch] = {}
        self.bringing: dict[int, pr.Value] = {}
        self.waiting: set[int] = set()

    async def take(self, sender: int, offer: ms.Final, chunks: AsyncIterator[bytes]) -> Reply:
        """A neighbour brings the last token of the walk: the committed one, or one to vote on."""
        walk, value = self.walk, offer.value.value()
        fetch = None
        if not self._is_here(value) and walk.state.committed is None:
            fetch = await self._fetched(sender, value)
        if self._is_here(value):  # also if somebody else has brought it meanwhile
            return Reply("accepted")
        async with walk.receiving.place(sender):
            await self._receive_final(sender, offer, chunks, fetch)
        return Reply("accepted")

    def _is_here(self, value: pr.Value) -> bool:
        """Whether an end is kept here; refused if another one was committed."""
        walk, committed = self.walk, self.walk.state.committed
        if committed is not None and replace(committed, salt=value.salt) != value:
            raise Refused("that is not what this run was committed to, as far as known here.")
        return any(end.chain == value.chain for end in walk.state.ends) or (
            committed is not None and walk.store.file(value.token).exists()
        )

    async def _fetched(self, sender: int, value: pr.Value) -> LogFetch:
        """The log that leads to an end, whole; until it is, the end has to be brought again.

        It is fetched in a task of its own, which goes on when this call has ended: half a lease is
        waited for it, so that there is time for the bytes.
        """
        self._room_for(sender, value)
        fetch = self._fetch(sender, value)
        task, waiting = fetch.begin(), self.waiting
        if sender not in waiting and len(waiting) < MOST_WAITING:  # each has bytes in memory
            waiting.add(sender)
            try:
                await asyncio.wait({task}, timeout=self.walk.limits.lease / 2.0)
            finally:
                waiting.discard(sender)
        if not task.done() or task.cancelled():
            raise Refused("the log that leads to that end is being fetched; bring it again.")
        if fetch.wrong:
            self.fetches.pop(replace(value, salt=""), None)
        task.result()
        return fetch

    def _fetch(self, sender: int, value: pr.Value) -> LogFetch:
        """What is known of the log that leads to an end; refused if the sender has another one."""
        key, before = replace(value, salt=""), self.bringing.get(sender)
        if value.chain == self.walk.start_chain:
            raise Refused("no log leads to that end.")
        others = {end for peer, end in self.bringing.items() if peer != sender}
        if before is not None and before != key and before not in others:
            known = self.fetches.get(before)
            if known is not None and known.task is not None and not known.task.done():
                raise Refused("another log that you lead to is fetched; bring it again.")
            self.fetches.pop(before, None)
        self.bringing[sender] = key
        if key not in self.fetches:
            self.fetches[key] = LogFetch(self.walk, self.control_messages, value, sender)
        return self.fetches[key]

    def _room_for(self, sender: int, value: pr.Value) -> None:
        """Refuse one more end than may be kept, unless it is voted on: then it replaces another.

        A refused end is brought again, so nobody can keep a proposed end out for good.
        """
        state, wanted = self.walk.state, self.ends.wanted()
        brought = [
            e
            for e in state.ends
            if self.brought.get(e.chain) == sender
            and e.generation >= value.generation
            and e.chain not in wanted
        ]
        if value.chain in wanted:
            return
        if len(brought) >= MOST_BROUGHT or pr.hold(state, value, wanted) == state:
            raise Refused(f"{len(state.ends)} other ends are kept here until one is decided.")

    async def _receive_final(
        self, sender: int, offer: ms.Final, chunks: AsyncIterator[bytes], fetch: LogFetch | None
    ) -> None:
        walk, value = self.walk, offer.value.value()
        incoming = Incoming(walk.store, offer.size)
        try:
            await receive_bytes(walk, incoming, chunks)
            digest = await walk.on_disk(incoming.finish)
            if digest != value.token:
                raise Refused("the token's bytes do not match its digest.")
            place = None if fetch is None else fetch.place  # a decided end was looked at by voters
            if value.chain != walk.start_chain:  # else it is the model of another walk, as decided
                look = partial(walk.gate.final_content, incoming.path, place)
                await asyncio.get_running_loop().run_in_executor(walk.hashing, look)
            incoming.keep(digest)
            if walk.state.committed is None and fetch is not None:
                log = fetch.log()
                walk.store.add_entries(walk.run_id, fetch.found)
                self.ends.checked(value.chain, log)
                self.fetches.pop(replace(value, salt=""), None)
                state = pr.hold(walk.state, value, self.ends.wanted())
                known = {**self.brought, value.chain: sender}
                self.brought = {e.chain: known[e.chain] for e in state.ends if e.chain in known}
                walk.put(state)
            walk.journal.write("final")
            walk.changed.set()
            walk.notify()
            self.control_messages.wake.set()
        finally:
            walk.store.pinned.discard(value.token)
            incoming.discard()

    async def spread(self) -> None:
        """Bring each neighbour the last token: to vote on, and once it is decided to keep."""
        walk = self.walk
        near = [p for p in range(len(walk.network.peers)) if walk.gate.near(walk.me, p)]
        brought: set[tuple[int, pr.Value]] = set()
        pause, whole, fetch = SOON, False, None
        while True:
            value = walk.state.committed
            is_here = value is not None and walk.store.file(value.token).exists()
            ends = [value] if value is not None else list(walk.state.ends)
            missing = [
                (peer, end)
                for end in ends
                for peer in near
                if (peer, end) not in brought and walk.store.file(end.token).exists()
            ]
            done = await asyncio.gather(*(self._bring_final(*item) for item in missing))
            brought |= {item for item, good in zip(missing, done, strict=True) if good}
            if value is not None and fetch is None:
                self._end_fetches()
                fetch = LogFetch(walk, self.control_messages, value)
            if is_here and not whole and fetch is not None:
                whole = await self._gathered(fetch)
            if is_here and whole and all(done):
                return
            pause = SOON if value is None else min(2.0 * pause, AGAIN)
            self.control_messages.wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.control_messages.wake.wait()

    async def _bring_final(self, peer: int, value: pr.Value) -> bool:
        walk = self.walk
        try:
            if walk.state.committed is not None:
                await walk.poll.show(peer)
            pieces = FilePieces(walk.store.file(value.token))
            try:
                said = EndValue(*astuple(value))
                envelope = self.control_messages.words(ms.Final, value=said, size=pieces.size)
                data = await walk.transport.hand(peer, envelope, pieces, walk.limits.lease)
            finally:
                pieces.close()
            reply, _ = codec.reply_from(codec.parse(data, MESSAGE))
        except (UnwalkError, TimeoutError, OSError):
            return False
        return reply.kind == "accepted"

    async def _gathered(self, fetch: LogFetch) -> bool:
        """Put the whole log of the committed lineage down here; whether it is."""
        walk = self.walk
        try:
            entries = await fetch.whole()
        except UnwalkError as error:
            walk.journal.write("log not whole", reason=str(error)[:300])
            return False
        if fetch.found:
            walk.store.add_entries(walk.run_id, fetch.found)
        walk.written(entries)
        return True

    def _end_fetches(self) -> None:
        """An end was decided: no other log is needed."""
        for fetch in self.fetches.values():
            if fetch.task is not None:
                fetch.task.cancel()
        self.fetches.clear()
