"""Runs one walk at one peer: takes the token, visits, hands it on, watches what it handed on.

All decisions are in :mod:`unwalk.peers.protocol.handover`; here they meet a disk, a network and
a clock.
State changes happen in the event loop's thread only, each as one transaction, with nothing
awaited between deciding and writing: so they are atomic.  Visits and file writes run in threads.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

from unwalk.core.errors import Corrupt, UnwalkError
from unwalk.core.plan import Local, Move
from unwalk.peers.handover.control_messages import ControlMessages
from unwalk.peers.handover.doorway import Doorway
from unwalk.peers.handover.early_visit import EarlyVisits
from unwalk.peers.handover.end_vote import Ends
from unwalk.peers.handover.last_token import LastToken
from unwalk.peers.handover.log_rules import Succession
from unwalk.peers.handover.moves import move_from, move_to, words_of
from unwalk.peers.handover.receiving import Receiving
from unwalk.peers.handover.recovery import SALT, Recovery
from unwalk.peers.handover.sending import PAUSE, TokenSender
from unwalk.peers.handover.visit import Unusable, Visited, Work
from unwalk.peers.handover.walk import Walk
from unwalk.peers.identity.trust import Bundle, Trust
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol.handover import Parcel, PeerState
from unwalk.peers.protocol.hoplog import hop_body
from unwalk.peers.protocol.schedule import NO_TOKEN, Chapter
from unwalk.peers.storage.disk_space import LOOK, NoDescriptors
from unwalk.peers.storage.store import KeptLocal, Store
from unwalk.peers.storage.token_files import token_pieces
from unwalk.peers.telemetry import Journal
from unwalk.peers.transport.wire import MemoryPieces, Transport
from unwalk.walks import NOBODY


class Service(Walk):
    """One peer in one chapter."""

    def __init__(
        self,
        bundle: Bundle,
        trust: Trust,
        work: Work,
        store: Store,
        transport: Transport,
        journal: Journal,
        chapter: Chapter | None = None,
    ) -> None:
        super().__init__(bundle, trust, work, store, transport, journal, chapter)
        self.avoid: set[int] = set()
        self._drawn: tuple[Any, tuple[int, Move] | None] = (None, None)
        self.late = asyncio.Event()
        self.ended: str | None = None
        self.control_messages, self.early_visits = ControlMessages(self), EarlyVisits(self)
        self.token_sender = TokenSender(self, self.control_messages)
        self.ends = Ends(self, self.control_messages, lambda: self.recovery.consents)
        self.poll, self.ends_changed = self.ends.poll, self.ends.look
        self.recovery = Recovery(self, self.control_messages, self.ends)
        self.last_token = LastToken(self, self.control_messages, self.ends)
        self.door = Doorway(self.network, journal, self.metrics)
        self.receiver = Receiving(self, self.control_messages, self.early_visits, self.last_token)
        self.busy = lambda: self.early_visits.reading
        spec = self.chapter.spec
        only = spec.holder if spec is not None and spec.method == "seal" else None
        self.succession = Succession(
            trust, work, self.poll.rules, self.run_id, self.start_chain, only, self.saw
        )

    async def run(self) -> None:
        """Serve alone until :meth:`stop`."""
        await self.transport.start(self)
        try:
            await self.walk()
        finally:
            await self.door.calls.close()
            await self.transport.stop()

    async def walk(self) -> None:
        """Do this peer's part until :meth:`stop`; what arrives is brought by somebody else."""
        self.journal.write("started", run=self.run_id, network=self.network.version)
        self._count(self.state, self.state)
        self.tidy()
        works = (
            self._drive,
            self.recovery.watch,
            self.ends.take_part,
            self.last_token.spread,
            self.control_messages.catch_up,
        )
        tasks = [asyncio.create_task(self.enduring(work)) for work in works]
        tasks.append(asyncio.create_task(self._look_for_room()))
        late = asyncio.create_task(self.late.wait())
        self.broken = asyncio.get_running_loop().create_future()
        try:
            ends: list[asyncio.Future[Any]] = [*tasks[:3], late, self.broken]
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await self.calls.close()  # which may have begun some of those tasks
            ending = end_all([*tasks, late, *self.control_messages.tasks])
            await in_full(asyncio.ensure_future(ending))
            self.early_visits.close()
            self.journal.write("stopped", holding=self.state.held is not None)
            self.visits.shutdown(wait=not self.late.is_set(), cancel_futures=True)
            self.hashing.shutdown(wait=True)
            self.disk.shutdown(wait=True)

    def stop(self) -> None:
        """Hand the token over, if it is here, and end."""
        if not self.stopping:
            self.stopping = True
            self.journal.write("stopping", holding=self.state.held is not None)
            asyncio.get_running_loop().call_later(self.limits.stop, self.late.set)
            self.changed.set()

    async def take(self, sender: int, envelope: bytes, chunks: AsyncIterator[bytes]) -> bytes:
        """A token is offered, where this walk is served alone."""
        use = partial(self.receiver.take, sender, chunks)
        return await self.door.let_in(sender, envelope, use)

    async def answer(self, sender: int, message: bytes) -> bytes:
        """A small message came, where this walk is served alone."""
        return await self.door.let_in(sender, message, partial(self.receiver.answer, sender))

    # What this peer does by itself

    async def _drive(self) -> None:
        while True:
            self.changed.clear()
            stage = self.state.stage
            if self.stopping and not stage and not self.receiving:
                return
            if stage == "arrived":
                await self._visit()
            elif stage == "visited":
                await self._choose()
            elif stage == "offered":
                await self.token_sender.offer()
            else:
                await self.changed.wait()

    async def enduring(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work``, which starts from what is on disk; after a shortage, do it again."""
        while True:
            try:
                return await work()
            except (UnwalkError, OSError, sqlite3.Error) as error:
                if not self.store.space.passes(error):
                    raise
            await self.store.space.wait()

    async def _look_for_room(self) -> None:
        """Log when room or descriptors run out, and when they are back."""
        space, full, short = self.store.space, False, False
        while True:
            if (full or short) and space.look():
                if full:
                    self.journal.write("disk has room again")
                if short:
                    self.journal.write("descriptors again")
                full = short = False
                self.changed.set()
                self.notify()
            if space.full and not full:
                self.journal.write("disk full", need=space.need)
            if space.short and not short:
                self.journal.write("no descriptors", reason=str(NoDescriptors()))
            full, short = full or space.full, short or space.short
            self.metrics.set("disk_full", int(space.full))
            await asyncio.sleep(LOOK)

    async def _visit(self) -> None:
        parcel = self.state.held
        assert parcel is not None
        kept = self.store.local(self.run_id, parcel.lineage)
        opened, self.receiver.opened = self.receiver.opened, None
        move = move_from(self.open_move)
        self.early_visits.reading = True
        preparing = asyncio.get_running_loop().call_soon(self._prepare, parcel, move)
        try:
            visited = await self.early_visits.visit(parcel, opened, move, kept)
            preparing.cancel()  # it is too late for that if the visit had ended already
            del opened
            if visited.cut:
                self.journal.write("values cut off", hop=parcel.hop + 1, most=self.limits.weight)
            if self.state.held == parcel and self.state.stage == "arrived":
                await self._conclude(parcel, visited)
        except Unusable as error:
            self._let_go(parcel, error)
        finally:
            self.early_visits.reading = False

    def _let_go(self, parcel: Parcel, error: UnwalkError) -> None:
        """Drop a token of another peer's that cannot be used: whoever had it before goes on.

        What the walk begins with is this peer's own: then something is wrong here.
        """
        if not parcel.hop:
            raise error
        if self.state.held == parcel:
            self.journal.write("token let go", reason=str(error)[:300], **words_of(parcel))
            self.put(pr.let_go(self.state))

    def _prepare(self, parcel: Parcel, move: Move) -> None:
        """While the visit goes on, see where the token goes then, and tell that peer.

        The log that it takes along is gathered, and the file made into which it is written.  It is
        as long as the one that came, unless numbers in its header grew: then it is told anew.
        """
        if self.closed or self.state.held != parcel or self.state.stage != "arrived":
            return
        self.prepare_file(parcel.token)
        after = pr.visited(self.state, "", "")
        next_move = self._next_move(after, move.memory) if after.stage == "visited" else None
        if next_move is not None:
            target = next_move[0].path[0]
            self.token_sender.log(parcel.chain, target)
            size = self.store.file(parcel.token).stat().st_size
            envelope = self.token_sender.envelope(*next_move, size)
            self.control_messages.later(self.transport.ready(target, envelope))

    async def _conclude(self, parcel: Parcel, visited: Visited) -> None:
        """Send the token on its way, then write it down, sign the visit, and send its stamp.

        Nobody takes a token without its stamp, which is held back until the change of state is on
        disk.  The first token of a chapter, and one that carries noise, does not leave before: if
        this peer died, the visit might be done again on other records with the same noise.
        """
        after, move = pr.visited(self.state, "", ""), dict[str, Any]()
        if after.stage == "visited":
            after, move = self._next_move(after, visited.token.memory) or (after, move)
        stamp: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        parts, begun = list(token_pieces(visited.token)), None
        try:
            if after.stage == "offered" and parcel.hop and not visited.noisy:
                log = self.token_sender.log(parcel.chain, after.path[0])
                pieces = self.early_visits.leaving = MemoryPieces(parts, stamp, log)
                begun = self.token_sender.send(after, move, pieces)
                await pieces.left()
                self.store.fault("token left")
            digest, local = await self._written(parts, visited.local)
            written = monotonic()
            body = hop_body(
                run=self.run_id,
                generation=parcel.generation,
                lineage=parcel.lineage,
                hop=visited.hop,
                token_in=parcel.token if parcel.hop else NO_TOKEN,
                token_out=digest,
                passed_over=tuple(self.open_move.get("passed_over", ())),
                number=parcel.hop + 1,
                sign=self.bundle.sign,
            )
            entry = self.sign(parcel.chain, body)
            if self.state.held == parcel and self.state.stage == "arrived":
                salt = secrets.token_hex(SALT)
                state = pr.visited(self.state, entry["chain"], digest, salt)
                if after.stage in ("offered", "arrived"):
                    state = pr.address(state, after.path)
                now = (parcel.generation, parcel.hop + 1, local)
                self.put(state, move=move, entry=entry, local=now)
                stamp.set_result(codec.dump(entry))
                if begun is not None and state.held is not None:
                    self.token_sender.early = state.held, begun
            self.store.pinned -= {digest, local.file}
        finally:
            if not stamp.done():
                stamp.set_result(None)
                if begun is not None:
                    begun.cancel()  # or it would go on sending what is dropped
        self.metrics.add("visits_total")
        self.journal.write(
            "visited",
            began=visited.began,
            ended=visited.ended,
            written=written,
            generation=parcel.generation,
            hop=parcel.hop + 1,
        )

    async def _written(self, parts: list[memoryview], local: Local) -> tuple[str, KeptLocal]:
        """Token and local state on disk; the workspace is not given free before."""

        def write() -> tuple[str, KeptLocal]:
            return self.store.write(parts), self.store.write_local(local)

        writing = self.on_disk(write)
        try:
            written: tuple[str, KeptLocal] = await asyncio.shield(writing)
        except asyncio.CancelledError:
            await in_full(writing)
            if not writing.exception():
                digest, kept = writing.result()
                self.store.pinned -= {digest, kept.file}
            raise
        return written

    def _next_move(
        self, state: PeerState, memory: Mapping[str, int]
    ) -> tuple[PeerState, dict[str, Any]] | None:
        """The state with the next peer chosen by the route's rule, or None if nobody is left."""
        parcel = state.held
        assert parcel is not None
        over = {*state.passed_over, *self.avoid, *self.recovery.slow}
        drawn = parcel.hop + 1, dict(memory), over
        if self._drawn[0] != drawn:
            self._drawn = drawn, self.work.choose(parcel.hop + 1, self.me, memory, over)
        drawn_move = self._drawn[1]
        if drawn_move is None:
            return None
        attempt, move = drawn_move
        named = over if attempt else state.passed_over
        record = move_to(self.me, attempt, move, tuple(sorted(named)))
        record["sender"] = self.open_move.get("sender", NOBODY)
        return pr.address(state, move.path), record

    async def _choose(self) -> None:
        parcel = self.state.held
        assert parcel is not None
        try:
            memory = self.gate.open(self.store.file(parcel.token)).header["memory"]
        except Corrupt as error:  # it was written before tokens were checked as they are now
            self._let_go(parcel, error)
            return
        next_move = self._next_move(self.state, memory)
        if next_move is None:
            self.journal.write("waiting", passed_over=self.state.passed_over)
            self.recovery.slow.clear()
            await self.pause(PAUSE * 5)
            self.put(pr.waited(self.state))
            return
        self.put(next_move[0], move=next_move[1])


async def in_full(work: asyncio.Future[Any]) -> None:
    """Wait for the end of ``work``, however often the one who waits is cancelled."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({work})


async def end_all(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel until all have ended: a cancellation can get lost when a wait ends just then."""
    left = tasks
    while left:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.2)
        done, left = [t for t in left if t.done()], [t for t in left if not t.done()]
        for task in done:
            if not task.cancelled():
                task.exception()
