"""One walk at one peer: its state, written to disk before it counts, and the parts it needs.

State changes happen in the event loop's thread only, each as one transaction, with nothing
awaited between deciding and writing: so they are atomic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Any

from unwalk.core.errors import Refused, UnwalkError
from unwalk.peers.decisions.ballot import Poll
from unwalk.peers.decisions.history import another_visit, keep_visits, put_lie
from unwalk.peers.handover.checks import OfferChecks
from unwalk.peers.handover.doorway import Calls
from unwalk.peers.handover.log_rules import Place, Succession
from unwalk.peers.handover.moves import move_to
from unwalk.peers.handover.receiving_places import ReceivingPlaces
from unwalk.peers.handover.turns import Turns
from unwalk.peers.handover.visit import Work
from unwalk.peers.identity.network_file import Limits
from unwalk.peers.identity.trust import Bundle, Trust
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol.handover import Parcel, PeerState
from unwalk.peers.protocol.hoplog import Entry, chain_start, sign_entry
from unwalk.peers.protocol.schedule import Chapter
from unwalk.peers.storage.store import Arrival, KeptLocal, Store
from unwalk.peers.storage.token_files import token_pieces
from unwalk.peers.telemetry import Journal, Metrics
from unwalk.peers.transport.wire import Transport
from unwalk.walks import NOBODY

AT_ONCE = 256
"""Log entries that are gone through before others have their turn."""
TIDY = 0.02
"""Seconds after a change before files that are no longer needed are removed, or later."""
IN_THE_WAY = 0.5
"""Seconds for which that is put off, at most, because tokens are on their way."""


TRIES = 3.0
"""A peer that neither takes a token nor refuses it is offered it for so many leases."""


def longest_visit(limits: Limits, lies: int, turn: float = 0.0) -> float:
    """Seconds for which a peer may have the token, where so many lie.

    A neighbour that never answers costs it a lease and then ``TRIES`` more, and ``turn`` seconds
    until it may recover the token; all who lie may be such ones, and where nobody lies one may
    hang.
    """
    return limits.visit + max(1, lies) * ((1.0 + TRIES) * limits.lease + turn)


class Walk:
    """What all parts of a service share.

    ``notify`` is called when somebody outside may have something to do, ``ends_changed`` when
    another last token is known; ``busy`` says whether files are better left alone just now.
    ``receiving`` are those whose token is on its way, ``calls`` all that others ask or bring at
    the time, ``places`` where the walk was after each log entry that is known here.  ``poll`` is
    the vote on the end, and ``succession`` what a log entry may follow; both are there once the
    service is.
    """

    poll: Poll
    succession: Succession

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
        self.bundle, self.trust, self.work, self.store = bundle, trust, work, store
        self.transport, self.journal = transport, journal
        self.network = bundle.network
        self.chapter = chapter or Chapter(0, self.network.run_id)
        self.run_id = self.chapter.run
        self.limits = self.network.limits
        self.me = bundle.index
        self.gate = OfferChecks(self.network, trust, work, self.me, self.run_id)
        self.metrics = Metrics(self.run_id, bundle.name)
        self.stopping, self.calls = False, Calls()
        self.notify: Callable[[], None] = lambda: None
        self.ends_changed: Callable[[], None] = lambda: None
        self.busy: Callable[[], bool] = lambda: False
        self.receiving = ReceivingPlaces(self.limits.lease, self._received)
        self.places: dict[str, Place] = {}
        self.collecting = False
        self.broken: asyncio.Future[None] | None = None
        self.news = monotonic()
        self.handed: tuple[pr.Generation, float] | None = None  # and nobody said that it is further
        rules = self.network.rules(self.chapter.left)
        longest = 2.0 * (longest_visit(self.limits, rules.lies) + self.limits.connect)
        self.turns = Turns(len(self.network.peers), self.limits.lease, longest)
        self.changed, self.over = asyncio.Event(), asyncio.Event()
        self.whole = asyncio.Event()
        self.disk = ThreadPoolExecutor(1, "disk")
        self.hashing = ThreadPoolExecutor(1, "hashing")
        self.visits = ThreadPoolExecutor(1, "visit")
        self.start_chain = chain_start({"network": self.network.name, "run": self.run_id})
        store.space.need = 2 * work.most_bytes
        self.arrivals = store.arrivals(self.run_id)
        self.state, self.open_move = self._first_state()
        if self.state.committed is not None:
            self.over.set()

    def _first_state(self) -> tuple[PeerState, dict[str, Any]]:
        stored = self.store.load(self.run_id)
        chapter, digest = self.chapter, self.chapter.token
        if stored is not None and not (digest and pr.untouched(stored[0])):
            return pr.restarted(stored[0]), stored[1]
        if chapter.public:
            digest = self.store.write(token_pieces(self.work.initial()))
        first = self.work.move(1, NOBODY, {}, 0)
        state = pr.begin(
            self.me,
            self.network.rules(chapter.left).quorum,
            self.work.hops,
            first.receiver,
            self.start_chain,
            digest,
            has=bool(digest),
        )
        move = move_to(NOBODY, 0, first, ()) if self.me == first.receiver else {}
        kept = self.to_keep(state)
        self.store.save(self.run_id, state, move, arrival=kept)
        self.arrivals += [] if kept is None else [kept]
        self.store.pinned.discard(digest)
        self.store.collect(self.run_id, state)
        return state, move

    @property
    def closed(self) -> bool:
        """Whether this walk is over here: it changes nothing any more."""
        return self.calls.closed

    @property
    def void(self) -> bool:
        """Whether this walk was given up: it ended without a visit."""
        committed = self.state.committed
        return committed is not None and committed.chain == self.start_chain

    async def place(self, chain: str) -> Place:
        """Where the walk is after the log entry ``chain``, which is known here."""
        ahead: list[str] = []
        while chain != self.start_chain and chain not in self.places:
            entry = self.store.entry(self.run_id, chain)
            if entry is None:
                raise Refused("the log that is known here is not whole.")
            ahead.append(chain)
            chain = entry["body"]["previous"]
            if len(ahead) % AT_ONCE == 0:
                await asyncio.sleep(0)
        place = self.places.get(chain, Place())
        for count, chain in enumerate(reversed(ahead), 1):
            entry = self.store.entry(self.run_id, chain)
            if entry is None:
                raise Refused("the log that is known here is not whole.")
            place = self.places[chain] = self.succession.after(place, entry["body"])
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)
        return place

    def to_keep(self, state: PeerState) -> Arrival | None:
        """The token that has just come to stay, if it is the first one of its lineage."""
        parcel = state.held
        if parcel is None or state.stage != "arrived" or self.chapter.contacted:
            return None
        for known in self.arrivals:
            if known.peer == self.me and pr.belongs(known.generation, known.done, parcel.lineage):
                return None
        return Arrival(parcel.generation, parcel.hop, self.me, parcel.token)

    def came_first(self, parcel: Parcel) -> bool:
        """Whether the token at this place was the first to come here to stay."""
        place = (parcel.generation, parcel.hop, self.me)
        return any((a.generation, a.done, a.peer) == place for a in self.arrivals)

    def saw(self, entry: Entry) -> None:
        """Somebody shows a log entry that its peer signed: did that peer sign another one before?

        An honest peer shows nobody a visit before it is written down, and does it once.
        """
        body, store = entry["body"], self.store
        here = body["run"] == self.run_id and 1 <= body["hop"] <= self.work.hops
        if body["kind"] != "hop" or not here:
            return
        codec.pair(body["generation"], "generation")
        known = another_visit(store, self.run_id, body)
        if known is not None and put_lie(store, self.run_id, body["peer"], known, entry):
            place = {"hop": body["hop"], "generation": body["generation"]}
            self.journal.write("liar", who=body["peer"], visits=2, **place)

    def written(self, entries: list[Entry]) -> None:
        """The whole log of the committed walk is here: what must outlive it is set aside."""
        keep_visits(self.store, self.run_id, entries)
        self.whole.set()
        self.notify()

    def put(
        self,
        state: PeerState,
        *,
        move: dict[str, Any] | None = None,
        entry: Entry | None = None,
        local: tuple[pr.Generation, int, KeptLocal] | None = None,
        arrival: Arrival | None = None,
    ) -> None:
        """Change state: written first, then true."""
        before = self.state
        if state == before and move is None and entry is None:
            return
        if state.fence > before.fence:
            self.turns.heard()
        open_move = self.open_move if move is None else move
        self.store.save(
            self.run_id,
            state,
            open_move,
            entry=entry,
            local=local,
            arrival=arrival,
        )
        self.state, self.open_move = state, open_move
        if arrival is not None:
            self.arrivals = self.store.arrivals(self.run_id)
        self.tidy()
        if state.fence == before.fence or (state.held, state.kept) != (before.held, before.kept):
            self.news = monotonic()  # a generation that brings nothing is none
        if state.kept != before.kept and state.watching:
            self.handed = state.fence, self.news
        self.changed.set()
        if state.ends != before.ends:
            self.ends_changed()
        self._count(before, state)

    @property
    def is_lost(self) -> bool:
        """Whether the token may be lost, as far as this peer knows.

        Not if it has the token and others take it, nor if it has handed it on in this generation,
        not longer ago than a visit may take, and has not heard from that peer that it went on.
        """
        state = self.state
        if state.held is not None and state.public is None and not state.refused:
            return False
        if self.handed is None or self.handed[0] != state.fence:
            return True
        return monotonic() - self.handed[1] >= self.patience(self.handed[1])

    def patience(self, since: float) -> float:
        """Seconds for which a peer may have the token that it got at the time ``since``.

        While peers go by turns it may have to wait for its own.
        """
        turns = self.turns
        turn = turns.longest_wait if since < turns.end else 0.0
        return longest_visit(self.limits, self.poll.rules.lies, turn)

    def _received(self) -> None:
        """A token is no longer on its way: who waits for that to stop can go on."""
        if self.stopping:
            self.changed.set()

    def tidy(self) -> None:
        """Soon remove files that are no longer needed, and make one for the next token."""
        if not self.collecting:
            self.collecting = True
            self._collect_later(monotonic() + IN_THE_WAY)

    def _collect_later(self, latest: float) -> None:
        asyncio.get_running_loop().call_later(TIDY, self._collect, latest)

    def _collect(self, latest: float) -> None:
        """Remove files, in nobody's way: a token on its way is waited for until ``latest``."""
        receiving = self.receiving and monotonic() < latest
        if self.busy() or receiving or self.state.stage == "offered":
            self._collect_later(latest)
            return
        self.collecting = False
        if self.closed:
            return
        try:
            self.store.collect(self.run_id, self.state)
        except OSError as error:
            if not self.store.space.passes(error):  # else after the next change
                raise
        if self.state.held is None and self.state.kept is not None:
            self.prepare_file(self.state.kept.token)

    def prepare_file(self, token: str) -> None:
        """Have a file for the next token, which will be about as long as ``token``."""
        with suppress(FileNotFoundError):
            size = self.store.file(token).stat().st_size
            if self.store.lacks_spare(size):
                self.on_disk(self.store.prepare, size)

    def _count(self, before: PeerState, after: PeerState) -> None:
        metrics = self.metrics
        if before.held is not None and after.held is None and after.fence > before.fence:
            metrics.add("dropped_total")
            self.journal.write(
                "dropped", hop=before.held.hop, generation=before.held.generation, by=after.fence
            )
        if after.committed is not None and before.committed is None:
            self.journal.write("committed", generation=after.committed.generation)
            self.over.set()
            self.notify()
        metrics.set("holding", int(after.held is not None))
        metrics.set("hop", max(0, after.reached[1][0]))
        metrics.set("generation", after.fence[0])
        metrics.set("committed", int(after.committed is not None))

    def break_off(self, error: UnwalkError) -> None:
        """End with a sentence: something of this peer's own is damaged."""
        if self.broken is not None and not self.broken.done():
            self.broken.set_exception(error)

    async def pause(self, seconds: float) -> None:
        """Wait, but not beyond the next change."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed.wait()

    def sign(self, previous: str, body: dict[str, Any]) -> Entry:
        """A log entry of this peer's own."""
        return sign_entry(previous, body, self.bundle.sign, self.bundle.certificate_pem.decode())

    def on_disk(self, call: Any, *args: Any) -> asyncio.Future[Any]:
        """Run something that waits for the disk in a thread."""
        return asyncio.get_running_loop().run_in_executor(self.disk, call, *args)
