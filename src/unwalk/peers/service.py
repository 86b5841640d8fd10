"""The daemon: takes the token, does its visit, hands it on, and watches over what it handed on.

All decisions are in :mod:`unwalk.peers.protocol`; here they meet a disk, a network and a clock.
State changes happen in the event loop's thread only, each as one transaction, with nothing
awaited between deciding and writing: so they are atomic.  Visits and file writes run in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from unwalk.core.errors import UnwalkError
from unwalk.core.plan import Move
from unwalk.peers import codec
from unwalk.peers import protocol as pr
from unwalk.peers.gate import Gate
from unwalk.peers.hoplog import Entry, chain_start, hop_body, recovery_body, sign_entry
from unwalk.peers.intake import Intake, move_from, move_to, words_of
from unwalk.peers.protocol import Parcel, PeerState
from unwalk.peers.store import Incoming, KeptLocal, Store
from unwalk.peers.talk import Talk
from unwalk.peers.telemetry import Journal, Metrics
from unwalk.peers.tokens import open_token, token_pieces
from unwalk.peers.trust import Bundle, Trust
from unwalk.peers.wire import CHUNK, FilePieces, Transport, Unreachable
from unwalk.peers.work import Visited, Work
from unwalk.walks import NOBODY

SLOW = 6.0
"""A peer that was released asks around after so many leases without news."""
TIDY = 0.02
"""Seconds after a change before files that are no longer needed are removed."""
PAUSE = 0.2
"""Seconds before the same peer is tried again."""


class Service:
    """One peer of one run."""

    def __init__(
        self,
        bundle: Bundle,
        trust: Trust,
        work: Work,
        store: Store,
        transport: Transport,
        journal: Journal,
    ) -> None:
        self.bundle, self.trust, self.work, self.store = bundle, trust, work, store
        self.transport, self.journal = transport, journal
        self.network = bundle.network
        self.run_id = self.network.run_id
        self.limits = self.network.limits
        self.me = bundle.index
        self.gate = Gate(self.network, trust, work, self.me)
        self.metrics = Metrics(self.run_id, bundle.name)
        self.stopping = False
        self.collecting = False
        self.early: tuple[Parcel, asyncio.Task[bytes]] | None = None
        self.deadline = float("inf")
        self.ended: str | None = None
        self.news = monotonic()
        self.changed = asyncio.Event()
        self.disk = ThreadPoolExecutor(1, "disk")
        self.hashing = ThreadPoolExecutor(1, "hashing")
        self.visits = ThreadPoolExecutor(1, "visit")
        self.start_chain = chain_start({"network": self.network.name, "run": self.run_id})
        self.state, self.open_move = self._first_state()
        self.talk = Talk(self)
        self.intake = Intake(self)

    def _first_state(self) -> tuple[PeerState, dict[str, Any]]:
        found = self.store.load(self.run_id)
        if found is not None:
            return pr.restarted(found[0]), found[1]
        digest = self.store.write(token_pieces(self.work.initial()))
        first = self.work.move(1, NOBODY, {}, 0)
        peers, hops = len(self.network.peers), self.work.plan.hops
        state = pr.begin(self.me, peers, hops, first.receiver, self.start_chain, digest)
        move = move_to(NOBODY, 0, first, ()) if self.me == first.receiver else {}
        self.store.save(self.run_id, state, move)
        self.store.pinned.discard(digest)
        self.store.collect(self.run_id, state)
        return state, move

    def put(
        self,
        state: PeerState,
        *,
        move: dict[str, Any] | None = None,
        entry: Entry | None = None,
        local: tuple[pr.Generation, int, KeptLocal] | None = None,
    ) -> None:
        """Change state: written first, then true."""
        before = self.state
        if state == before and move is None and entry is None:
            return
        self.open_move = self.open_move if move is None else move
        self.store.save(self.run_id, state, self.open_move, entry=entry, local=local)
        self.state = state
        if not self.collecting:
            self.collecting = True
            asyncio.get_running_loop().call_later(TIDY, self._collect)
        self.news = monotonic()
        self.changed.set()
        self._count(before, state)

    def _collect(self) -> None:
        self.collecting = False
        self.store.collect(self.run_id, self.state)

    def _count(self, before: PeerState, after: PeerState) -> None:
        metrics = self.metrics
        if before.held is not None and after.held is None and after.fence > before.fence:
            metrics.add("dropped_total")
            self.journal.write(
                "dropped", hop=before.held.hop, generation=before.held.generation, by=after.fence
            )
        if after.committed is not None and before.committed is None:
            self.journal.write("committed", **(codec.value_to(after.committed) or {}))
        metrics.set("holding", int(after.held is not None))
        metrics.set("hop", max(0, after.reached[1][0]))
        metrics.set("generation", after.fence[0])
        metrics.set("committed", int(after.committed is not None))

    async def run(self) -> None:
        """Serve until :meth:`stop`."""
        await self.transport.start(self)
        self.journal.write("started", run=self.run_id, network=self.network.version)
        self._count(self.state, self.state)
        tasks = [
            asyncio.create_task(c)
            for c in (self._drive(), self._watch(), self.talk.spread(), self.talk.catch_up())
        ]
        try:
            done, _ = await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end_all([*tasks, *self.talk.tasks])
            await self.transport.stop()
            self.journal.write("stopped", holding=self.state.held is not None)
            self.visits.shutdown(wait=True, cancel_futures=True)
            self.hashing.shutdown(wait=True)
            self.disk.shutdown(wait=True)

    def stop(self) -> None:
        """Hand the token over, if it is here, and end."""
        if not self.stopping:
            self.stopping = True
            self.journal.write("stopping", holding=self.state.held is not None)
            asyncio.get_running_loop().call_later(self.limits.stop, self.changed.set)
            self.deadline = monotonic() + self.limits.stop
            self.changed.set()

    async def take(self, sender: int, envelope: bytes, chunks: AsyncIterator[bytes]) -> bytes:
        """A token is offered."""
        return await self.intake.take(sender, envelope, chunks)

    async def answer(self, sender: int, message: bytes) -> bytes:
        """A small message came."""
        return self.intake.answer(sender, message)

    # What this peer does by itself

    async def _drive(self) -> None:
        while True:
            self.changed.clear()
            stage = self.state.stage
            if self.stopping and (not stage or monotonic() >= self.deadline):
                return
            if stage == "arrived":
                await self._visit()
            elif stage == "visited":
                await self._choose()
            elif stage == "offered":
                await self._offer()
            elif stage == "final":
                if not await self.talk.propose():
                    await self._pause(PAUSE * (1 + self.me % 5))
            else:
                await self.changed.wait()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed.wait()

    async def _visit(self) -> None:
        parcel = self.state.held
        assert parcel is not None
        loop = asyncio.get_running_loop()
        kept = self.store.local(self.run_id, parcel.lineage)
        move = move_from(self.open_move)
        done = await loop.run_in_executor(self.visits, self._do_visit, parcel, move, kept)
        visited, incoming, local = done
        try:
            if self.state.held == parcel and self.state.stage == "arrived":
                await self._conclude(parcel, visited, incoming, local)
        finally:
            incoming.discard()
            self.store.pinned -= {incoming.digest, local.file}

    def _do_visit(
        self, parcel: Parcel, move: Move, kept: KeptLocal | None
    ) -> tuple[Visited, Incoming, KeptLocal]:
        """In the visit's own thread: read, work, write."""
        opened, self.intake.opened = self.intake.opened, None
        if opened is None or opened[0] != parcel.token:
            path = self.store.file(parcel.token)
            opened = parcel.token, open_token(path, len(self.network.peers))
        visited = self.work.visit(opened[1].token(), move, self.store.read_local(kept))
        del opened
        local = self.store.write_local(visited.local)
        incoming = self.store.fill(token_pieces(visited.token))
        if incoming.size <= CHUNK:  # too small to gain anything from being sent meanwhile
            self._name(incoming)
        return visited, incoming, local

    async def _conclude(
        self, parcel: Parcel, visited: Visited, incoming: Incoming, local: KeptLocal
    ) -> None:
        """Sign the visit and write it down; the token may be on its way meanwhile.

        The last piece of it is held back until the change of state is on disk.
        """
        body = hop_body(
            run=self.run_id,
            generation=parcel.generation,
            lineage=parcel.lineage,
            hop=visited.hop,
            token_in=parcel.token,
            token_out=incoming.digest,
            passed_over=tuple(self.open_move.get("passed_over", ())),
        )
        entry = self._sign(parcel.chain, body)
        state = pr.visited(self.state, entry["chain"], incoming.digest)
        move: dict[str, Any] = {}
        if state.stage == "visited":
            chosen = self._next_move(state, visited.token.memory)
            state, move = chosen or (state, move)
        now = (parcel.generation, visited.hop.hop, local)
        if incoming.named:
            self.put(state, move=move, entry=entry, local=now)
            if state.stage == "offered":
                path = self.store.file(incoming.digest)
                self.early = self._send(state, move, entry, path, None)
        else:
            gate: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            if state.stage == "offered":
                self.early = self._send(state, move, entry, incoming.path, gate)
            try:
                await self.intake.on_disk(self._name, incoming)
                if self.state.held == parcel and self.state.stage == "arrived":
                    self.put(state, move=move, entry=entry, local=now)
                    gate.set_result(True)
            finally:
                if not gate.done():
                    gate.set_result(False)
        self.metrics.add("visits_total")
        self.journal.write(
            "visited",
            began=visited.began,
            ended=visited.ended,
            generation=parcel.generation,
            hop=visited.hop.hop,
        )

    @staticmethod
    def _name(incoming: Incoming) -> None:
        incoming.keep(incoming.finish())

    def _sign(self, previous: str, body: dict[str, Any]) -> Entry:
        return sign_entry(previous, body, self.bundle.sign, self.bundle.certificate_pem.decode())

    def _next_move(
        self, state: PeerState, memory: Mapping[str, int]
    ) -> tuple[PeerState, dict[str, Any]] | None:
        """The state with the next peer chosen by the route's rule, or None if nobody is left."""
        parcel = state.held
        assert parcel is not None
        found = self.work.choose(parcel.hop + 1, self.me, memory, state.passed_over)
        if found is None:
            return None
        attempt, move = found
        record = move_to(self.me, attempt, move, state.passed_over)
        record["sender"] = self.open_move.get("sender", NOBODY)
        return pr.address(state, move.path), record

    async def _choose(self) -> None:
        assert self.state.held is not None
        path = self.store.file(self.state.held.token)
        memory = open_token(path, len(self.network.peers)).header["memory"]
        found = self._next_move(self.state, memory)
        if found is None:
            self.journal.write("waiting", passed_over=self.state.passed_over)
            await self._pause(PAUSE * 5)
            self.put(pr.waited(self.state))
            return
        self.put(found[0], move=found[1])

    def _send(
        self,
        state: PeerState,
        move: dict[str, Any],
        entry: Entry | None,
        path: Path,
        gate: asyncio.Future[bool] | None,
    ) -> tuple[Parcel, asyncio.Task[bytes]]:
        """Start to hand the token over."""
        parcel = state.held
        assert parcel is not None
        pieces = FilePieces(path, gate)
        said = {k: v for k, v in move.items() if k not in ("passed_over", "sender")}
        envelope = self.talk.words(
            "offer",
            parcel=codec.parcel_to(parcel),
            path=list(state.path),
            move=said,
            passed_over=move.get("passed_over", []),
            size=pieces.size,
            entry=entry,
        )
        hand = self.transport.hand(state.path[0], envelope, pieces, self.limits.lease)
        task = asyncio.create_task(hand)
        task.add_done_callback(lambda _: pieces.close())
        self.talk.tasks.add(task)
        task.add_done_callback(self.talk.ended)
        return parcel, task

    async def _offer(self) -> None:
        state, parcel = self.state, self.state.held
        assert parcel is not None
        target = state.path[0]
        begun, self.early = self.early, None
        if begun is None or begun[0] != parcel:
            entry = self.store.entry(parcel.chain)
            begun = self._send(state, self.open_move, entry, self.store.file(parcel.token), None)
        try:
            reply, reason = codec.reply_from(codec.parse(await begun[1], 1 << 18))
        except (UnwalkError, TimeoutError, OSError) as error:
            certain = isinstance(error, Unreachable) and error.certain
            self._not_delivered(parcel, target, certain=certain, why=str(error))
            if self.state.unclear:
                await self._pause(PAUSE)
            return
        except asyncio.CancelledError:
            begun[1].cancel()
            raise
        if reply.kind in ("refused", "busy"):
            self._not_delivered(parcel, target, certain=True, why=reason or reply.kind)
            if self.state.unclear:
                await self._pause(PAUSE)
            return
        before = int(self.open_move.get("sender", NOBODY))
        opened = self.state.public is not None
        self.put(pr.answered(self.state, parcel, reply))
        if reply.kind == "accepted":
            size = self.store.file(parcel.token).stat().st_size
            self.metrics.add("tokens_handed_total")
            self.metrics.add("bytes_handed_total", size)
            self.journal.write("handed", to=target, **words_of(parcel))
            self.talk.after_handing(parcel, before, opened=opened)

    def _not_delivered(self, parcel: Parcel, target: int, *, certain: bool, why: str) -> None:
        if self.state.held != parcel or self.state.stage != "offered":
            return
        self.put(pr.failed(self.state, certain=certain))
        if self.state.stage == "visited":
            self.metrics.add("passed_over_total")
            self.journal.write("passed over", to=target, why=why[:300], **words_of(parcel))
        else:
            self.journal.write("unclear", to=target, why=why[:300], **words_of(parcel))

    async def _watch(self) -> None:
        """When the lease has run out without news, ask everybody where the token is."""
        self.news = monotonic()
        while True:
            state = self.state
            quick = state.watching or (state.stage == "offered" and state.unclear)
            lease = self.limits.lease * (1.0 if quick else SLOW + 0.5 * self.me)
            left = self.news + lease - monotonic()
            if pr.basis(state) is None:
                left = self.limits.lease
            if left > 0:
                await asyncio.sleep(min(left, self.limits.lease / 4))
                continue
            self.metrics.add("lease_expired_total")
            await self.look_around()
            self.news = monotonic()

    async def look_around(self) -> None:
        """Ask all, decide, and go on from this peer's copy if the token is lost."""
        before = pr.basis(self.state)
        answers = await self.talk.ask_all()
        if pr.basis(self.state) != before:
            return  # the answers are about something that is over
        verdict = pr.consider(self.state, answers)
        self.journal.write("looked around", heard=sorted(answers), verdict=verdict.kind)
        if verdict.kind == "committed" and verdict.value is not None:
            self.put(pr.commit(self.state, verdict.value))
        elif verdict.kind == "fenced":
            self.put(pr.fenced(self.state, verdict.fence, verdict.lineage))
        elif verdict.kind == "ahead":
            self.put(pr.released(self.state, *max(s.reached for s in answers.values())))
        elif verdict.kind == "recover" and not self.stopping:
            self._recover(max((s.fence[0] for s in answers.values()), default=0))

    def _recover(self, seen: int) -> None:
        parcel = pr.basis(self.state)
        assert parcel is not None
        held = pr.recover(self.state, seen, "").held
        assert held is not None
        lost = self.state.path[0] if self.state.stage == "offered" else self.state.kept_for
        body = recovery_body(
            run=self.run_id,
            generation=held.generation,
            lineage=held.lineage,
            peer=self.me,
            hop=held.hop,
            token=held.token,
            lost=lost,
        )
        entry = self._sign(parcel.chain, body)
        move: dict[str, Any] = {}
        if parcel.hop == 0:  # nobody had it yet: this peer does the first visit
            memory = self.work.move(1, NOBODY, {}, 0).memory
            move = move_to(NOBODY, 0, Move(self.me, (), memory), (lost,))
        self.put(pr.recover(self.state, seen, entry["chain"]), move=move, entry=entry)
        self.metrics.add("recoveries_total")
        self.journal.write("recovered", lost=lost, **words_of(held))


async def end_all(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel until all have ended: a cancellation can get lost when a wait ends just then."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=0.2)
        for task in done:
            if not task.cancelled():
                task.exception()
