"""Runs a peer through all chapters of its network: training, then one deletion after the other.

Each chapter is a :class:`~unwalk.peers.handover.service.Service` of its own, so that what is
proved of one walk holds for every one of them.  Here what arrives is brought to the
chapter it belongs to, the next chapter is opened once it is decided, and what
follows a chapter's end is carried out (:mod:`unwalk.peers.lifecycle.request_steps`).  A chapter
that was given up leaves nothing behind: the next one goes on from the model before it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from time import monotonic

from unwalk.core.data import Shard
from unwalk.core.errors import InvalidInput, Refused, UnwalkError
from unwalk.peers.decisions import history
from unwalk.peers.forgetting.plans import first_visit, visits_at
from unwalk.peers.handover.doorway import Answer, Doorway, refusal
from unwalk.peers.handover.service import Service, end_all
from unwalk.peers.handover.visit import Data, Mark, Work
from unwalk.peers.identity.trust import Bundle, Trust
from unwalk.peers.lifecycle.accuracy import AccuracyMeter
from unwalk.peers.lifecycle.beginning import Beginning
from unwalk.peers.lifecycle.certifying import Certifying
from unwalk.peers.lifecycle.next_chapter import NextChapter
from unwalk.peers.lifecycle.progress import Progress
from unwalk.peers.lifecycle.request_steps import RequestSteps
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.schedule import Chapter, Spec, line, marked, run_of, started
from unwalk.peers.records.noise_register import noting
from unwalk.peers.records.sources import SourceRefused
from unwalk.peers.storage.store import Store
from unwalk.peers.telemetry import Journal, Metrics
from unwalk.peers.transport.wire import Transport

SOON = 0.25
"""Seconds between looks at what is to be done, where nothing calls for one."""


class Chapters(Progress):
    """One peer of one network, from chapter to chapter."""

    def __init__(
        self,
        bundle: Bundle,
        trust: Trust,
        store: Store,
        transport: Transport,
        journal: Journal,
    ) -> None:
        super().__init__(bundle, trust, store, transport, journal)
        self.stopping = False
        self.ended: str | None = None
        self.asked = monotonic()
        self.heard: dict[int, float] = {}
        self.repeated: tuple[frozenset[tuple[int, int]], bool] = frozenset(), True
        self.metrics = Metrics(self.network.run_id, bundle.name)
        self.door = Doorway(self.network, journal, self.metrics)
        self.next_chapter = NextChapter(self, self.stands_for)
        self.specs = marked(self.next_chapter.decided())
        self.runs += [run_of(self.network.run_id, spec) for spec in self.specs]
        self._count_out()
        self.service = self._open(len(self.specs))
        self.beginning = Beginning(self, self.next_chapter)
        self.walking: asyncio.Task[None] | None = None
        self.certifying = Certifying(self, self.next_chapter)
        self.request_steps = RequestSteps(
            self, self.next_chapter, self.certifying, self.stands_for, self.stop
        )
        self.accuracy_meter = AccuracyMeter(self)
        self._settle()

    # Chapters

    def _open(self, number: int) -> Service:
        """The service of a chapter, from what is on disk or from its beginning."""
        chapter, work = self._prepare(number)
        self.store.archive(chapter.run)
        if chapter.token:
            self.store.archived.add(chapter.token)
        service = Service(
            self.bundle, self.trust, work, self.store, self.transport, self.journal, chapter
        )
        service.notify, service.metrics = self.wake.set, self.metrics
        service.avoid = self.left
        self.metrics.set("chapter", number)
        return service

    def _prepare(self, number: int) -> tuple[Chapter, Work]:
        run = self.runs[number]
        if number == 0:
            return Chapter(0, run), Work(self.book.training, self.me, self._data(number))
        spec = self.specs[number - 1]
        before = None
        if spec.method == "seal" and spec.peer == self.me:
            before = self.walked_before(number)
        plan = self.book.forgetting(spec, run, self.specs[: number - 1], before)
        public, token = spec.method == "restart", self._rewound_to(number)
        model = self.model(number) or ""
        if spec.method == "seal" and spec.holder == self.me:
            token = model
        contacted = not public and self._was_visited(number)
        chapter = Chapter(number, run, public, token, contacted, spec, model)
        plan = noting(plan, self.bundle, lambda: self._hidden(number), self.store.fault)
        return chapter, Work(plan, self.me, self._data(number))

    def _rewound_to(self, number: int) -> str:
        """The digest of the token that a rewind goes back to, if it is here."""
        spec, earlier = self.specs[number - 1], self.specs[: number - 1]
        if spec.method != "rewind":
            return ""
        arrival = history.find_arrival(
            self.store, self.runs[:number], earlier, spec.peer, spec.position, self.book.hops
        )
        return "" if arrival is None else arrival.token

    def _begins_late(self) -> bool:
        """Whether the token of a rewind is here that was opened as if it were not."""
        service, number = self.service, self.service.chapter.number
        late = number and not service.chapter.token and pr.untouched(service.state)
        return bool(late and self._rewound_to(number))

    async def _have_repeated(self) -> None:
        """See to it that a rewind's peer knows the visits that it repeats, if it was away."""
        number = self.service.chapter.number
        if not number or self.specs[number - 1].method != "rewind" or self.service.over.is_set():
            return
        if await self.certifying.have_before(number) and number == self.service.chapter.number:
            self.repeated = self._repeated(number)
            self.wake.set()

    def stands_for(self, spec: Spec) -> bool:
        """Whether this peer votes for a chapter: the next, right in all that can be computed here.

        It goes on from the model that is here; it goes back as far, and is as long, as the visits
        say that it must; and whoever no longer counts has said so itself, or this peer's own
        operator has.
        """
        if spec.number != len(self.specs) + 1 or not self.over or spec.after != self.present:
            return False
        places = line(self.book.hops, self.specs)
        visits = self.visits(places)
        if not self.whole(visits):
            if not self.next_chapter.fetching.locked():
                self.later(self.certifying.have_line())
            return False
        if spec.method != "restart" and self.model(spec.number) is None:
            return False
        if spec.method not in (*self.book.ways(spec.grade, None, self.specs), "restart"):
            return False
        first = first_visit(spec.peer, places, visits)
        position = 0 if spec.method == "restart" else first
        hops = self.book.hops_of(spec.method, len(places), position or 0)
        if (spec.before, spec.position, spec.hops) != (len(places), position, hops):
            return False
        return self._may_leave(spec) and self._answerable(spec)

    def _answerable(self, spec: Spec) -> bool:
        """Whether a request for such a chapter would be taken: where nothing can be sealed, no."""
        try:
            self.book.check(spec.peer, spec.grade, spec.method, spec.records, self.specs)
        except Refused:
            return False
        return True

    def _may_leave(self, spec: Spec) -> bool:
        """Whether nobody is counted out who has not left, or vanished as far as is known here."""
        if spec.holder not in self.next_chapter.poll.rules.members:
            return False
        out = self.counted_out
        decided = {p for s in self.specs if not s.void for p in s.left}
        if spec.vanished:
            if spec.peer == self.me or not self.told_vanished(spec.peer):
                return False
            out.add(spec.peer)
            if spec.peer not in spec.left:
                return False
        else:
            out.add(spec.peer)  # it signed that itself
        if unheard := set(spec.left) - out:
            self.later(self.next_chapter.ask_who_left(spec.holder, unheard))
            return False
        return decided - {spec.holder} <= set(spec.left)

    def _settle(self) -> None:
        """Mark the chapters that were given up, and let go of what belongs to them."""
        given_up = [self.service.chapter.number] if self.service.void else []
        before = [spec.number for spec in self.specs if spec.void]
        self.specs = marked(self.specs, given_up)
        for spec in self.specs:
            if spec.void:
                history.forget_arrivals(self.store, self.runs[spec.number])
                self.request_steps.given_up(spec)
                if spec.number not in before:
                    self.journal.write("chapter given up", chapter=spec.number)
        self._count_out()

    def _count_out(self) -> None:
        """Put down to whom no token is sent any more; a peer that leaves walks its own chapter."""
        out = self.counted_out
        if self.specs and not self.specs[-1].vanished:
            out.discard(self.specs[-1].peer)
        self.left.clear()
        self.left |= out | history.left(self.store)

    def _was_visited(self, number: int) -> bool:
        """Whether this peer was visited before the token that a chapter goes on from."""
        limit = started(number, self.specs)
        for earlier, run in enumerate(self.runs[:number]):
            for arrival in self.store.arrivals(run):
                place = started(earlier, self.specs) + arrival.done
                if arrival.peer == self.me and place <= limit:
                    return True
        return False

    def _data(self, number: int) -> Data | None:
        """The records for a visit of a chapter, as they are when it begins.

        A rewind takes none that its peer did not have in the walk that it repeats.
        """
        records = self.records
        if records is None:
            return None
        self.repeated = self._repeated(number)

        def data(hop: int, mark: Mark) -> Shard:
            forgetting = self._forgotten(number)
            shard, refused, written = records.begin_visit(number, hop, forgetting, *self.repeated)
            if written is not None:
                mark.written(partial(take_back, written))
            if refused is not None:
                self.journal.write("records", reason=refused.for_log)
            return shard

        def take_back(written: int) -> None:
            with suppress(UnwalkError, OSError, sqlite3.Error):  # one too many does no harm
                records.take_back(written)

        return data

    def _repeated(self, number: int) -> tuple[frozenset[tuple[int, int]], bool]:
        """This peer's own visits that a rewind repeats; of those that were dropped none counts.

        While it is not known here which were committed, which comes second, all places of the line
        may be its own.
        """
        if not number or self.specs[number - 1].method != "rewind":
            return frozenset(), True
        places = self.line(number)
        visits = self.visits(places)
        if not self.whole(visits):
            return frozenset(places), False
        return frozenset(places[at] for at in visits_at(self.me, places, visits)), True

    def _forgotten(self, number: int) -> tuple[str, ...]:
        """The keyed hashes of the records that this peer forgets in a chapter."""
        if self.requests is None or not number or self.specs[number - 1].peer != self.me:
            return ()
        return self.requests.of_chapter(number).records

    def _hidden(self, number: int) -> tuple[tuple[str, ...], Shard | None]:
        """What noise of a chapter hides: hashes of records, and the records themselves."""
        hashes = self._forgotten(number)
        return hashes, self.records.shard(hashes) if self.records is not None and hashes else None

    # Life

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until :meth:`stop`; ``ready`` is called once others can reach this peer."""
        await self.transport.start(self)
        if ready is not None:
            ready()
        self.walking = asyncio.create_task(self._walk(self.service))
        self.later(self.next_chapter.run())
        self.later(self.next_chapter.catch_up())
        self.later(self._take_in())
        try:
            while not self.walking.done():
                try:
                    await self._step()
                except (UnwalkError, OSError, sqlite3.Error) as error:
                    if not self.store.space.passes(error):  # else it is done again, later
                        raise
                await self._wait()
            self.walking.result()
        finally:
            await self.door.calls.close()
            await end_all([self.walking, *self.tasks])
            await self.transport.stop()
            if self.records is not None:
                self.records.close()

    async def _take_in(self) -> None:
        """Look at the source of the records, so that a request finds them."""
        if self.records is None:
            return
        try:
            await asyncio.to_thread(self.records.refresh)
        except SourceRefused as error:
            self.journal.write("records", reason=error.for_log)

    def stop(self) -> None:
        """Hand the token over, if it is here, and end."""
        self.stopping = True
        self.service.stop()
        self.wake.set()

    async def _wait(self) -> None:
        assert self.walking is not None
        waking = asyncio.create_task(self.wake.wait())
        try:
            await asyncio.wait(
                {waking, self.walking}, timeout=SOON, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waking.cancel()  # not awaited: that could swallow a cancellation of this task

    async def _step(self) -> None:
        """Whatever is to be done next."""
        self.wake.clear()
        if self.next_chapter.fork is not None:
            raise InvalidInput(self.next_chapter.fork)
        if self.stopping:
            return
        while len(decided := self.next_chapter.decided()) > len(self.specs):
            await self._go_on(decided)
        if self._begins_late():
            await self._go_on(decided)
        if self.service.over.is_set() and not self.over:
            self._settle()
        lease = self.network.limits.lease
        if monotonic() - self.asked > lease:
            self.asked = monotonic()
            self.later(self.next_chapter.catch_up())
            self.later(self._have_repeated())
        await self.request_steps.step()
        await self.accuracy_meter.step()

    async def _go_on(self, decided: list[Spec]) -> None:
        """Open the last chapter that was decided; the ones before it are over.

        Once more, if what it begins with is found here only then.
        """
        walking = self.walking
        assert walking is not None
        self.specs = marked(decided)
        self.runs = [self.network.run_id, *(run_of(self.network.run_id, s) for s in decided)]
        await end_all([walking])
        await self.service.calls.close()  # also where it had not begun to walk
        while not self._begin(decided):
            await self.store.space.wait()
        self.store.fault("chapter opened")
        self.journal.write("chapter", chapter=len(decided), run=self.service.run_id)
        self.walking = asyncio.create_task(self._walk(self.service))
        self.later(self._have_repeated())

    def _begin(self, decided: list[Spec]) -> bool:
        """Open the last of these chapters; whether nothing was wanting for it."""
        try:
            self._settle()
            self.request_steps.begun(decided[-1])
            self.service = self._open(len(decided))
        except (UnwalkError, OSError, sqlite3.Error) as error:
            if not self.store.space.passes(error):
                raise
            return False
        return True

    async def _walk(self, service: Service) -> None:
        """Do this peer's part in a chapter; before noise is drawn, ask whether it is still wanted.

        A peer that comes back may find that its chapter was given up meanwhile.  Training waits for
        the peers that it has to begin with.
        """
        if not service.chapter.number:
            await self.beginning.wait()
        spec, held = service.chapter.spec, service.state.held
        if spec is not None and spec.method == "seal" and held is not None and not held.hop:
            await self.next_chapter.catch_up()
            await service.control_messages.catch_up()
            while len(self.next_chapter.decided()) > len(self.specs) and not self.stopping:
                self.wake.set()
                await asyncio.sleep(SOON)  # until the next chapter is opened instead
        await service.walk()

    # What arrives

    def _over(self, sender: int, message: ms.Message) -> Answer | None:
        """A refusal of what is about a chapter that is over; who sent it is told of the next."""
        if message.run == self.service.run_id:
            return None
        if message.run not in self.runs:
            self.next_chapter.hear_of_more()
            return None
        number = self.runs.index(message.run)
        self.later(self.next_chapter.inform(sender, number + 1))
        return refusal(f"chapter {number} is over.")

    async def take(self, sender: int, envelope: bytes, chunks: AsyncIterator[bytes]) -> bytes:
        """A token is offered."""
        self.heard[sender] = monotonic()

        async def use(message: ms.WALK | ms.NETWORK) -> Answer:
            if over := self._over(sender, message):
                return over
            await self.beginning.check()
            return await self.service.receiver.take(sender, chunks, message)

        return await self.door.let_in(sender, envelope, use)

    async def answer(self, sender: int, message: bytes) -> bytes:
        """A small message came."""
        self.heard[sender] = monotonic()

        async def use(message: ms.WALK | ms.NETWORK) -> Answer:
            if isinstance(message, ms.NETWORK):
                return self.next_chapter.answer(sender, message)
            over = self._over(sender, message)
            return over or await self.service.receiver.answer(sender, message)

        return await self.door.let_in(sender, message, use)
