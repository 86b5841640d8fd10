"""Asks and answers small messages of a walk: where the token is, who may go on, log entries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from unwalk.core.errors import Refused, UnwalkError
from unwalk.peers.decisions.history import beginning, opening
from unwalk.peers.handover.doorway import Answer
from unwalk.peers.handover.log_rules import MOST_RECOVERIES, Place, Question
from unwalk.peers.handover.log_rules import sign as sign_sighting
from unwalk.peers.handover.walk import Walk
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.handover import Parcel, Sighting
from unwalk.peers.protocol.hoplog import Entry, parse_entry
from unwalk.peers.transport.wire import MESSAGE


@dataclass(frozen=True)
class Seen:
    """What a peer says of the token, and the same as it signed it."""

    sighting: Sighting
    record: dict[str, Any]


class ControlMessages:
    """Messages of one walk."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they began
        self.wake = asyncio.Event()
        self.hearing: set[int] = set()
        self.answers: dict[type, Callable[[int, Any], Awaitable[Answer]]] = {
            ms.Where: self._where,
            ms.Release: self._released,
            ms.Fence: self._fence,
            ms.Opening: self._opening,
            ms.Beginning: self._beginning,
            ms.Decide: self._decide,
            ms.EntryOf: self._entry,
            ms.Entries: self._entries,
        }

    def words(self, kind: type[ms.Message], **fields: Any) -> bytes:
        """A message as it travels."""
        return ms.encode(kind(**ms.head(self.walk.network.name, self.walk.run_id), **fields))

    # Answers; each may change state, in one transaction

    async def _where(self, sender: int, message: ms.Where) -> Answer:
        walk = self.walk
        if walk.state.held is not None:
            walk.store.space.check()  # as if it were away: the others go on, and nobody waits
        if walk.state.committed is not None:
            self.wake.set()  # somebody who asks after the end may lack the final token
        lost = walk.is_lost and sender in walk.poll.rules.members
        waits, promised = walk.turns.answer(sender, message.number, walk.state.fence[0], lost=lost)
        sighting = replace(pr.sighting(walk.state), waits=waits, promised=promised)
        asked = Question(walk.run_id, sender, message.chain, message.number)
        return sign_sighting(walk.bundle, asked, sighting)

    async def _released(self, sender: int, message: ms.Release) -> Answer:
        walk = self.walk
        if (message.generation, message.place) <= walk.state.reached:
            return self._sighting()  # it came late: the token has been here since
        if sender != pr.awaited(walk.state):
            raise Refused("the token was not handed to you.")
        walk.put(pr.released(walk.state, message.generation, message.place))
        if not walk.state.watching:
            walk.handed = None
        return self._sighting()

    async def _fence(self, sender: int, message: ms.Fence) -> Answer:
        await self.hear_opening(sender, message.entry)
        return self._sighting()

    def _sighting(self) -> Answer:
        return {"sighting": codec.sighting_to(pr.sighting(self.walk.state))}

    async def _opening(self, _: int, message: ms.Opening) -> Answer:
        walk = self.walk
        if message.generation > pr.shown(walk.state)[0]:
            return {"entry": None}  # one that is tentative here is shown to nobody
        return {"entry": opening(walk.store, walk.run_id, message.generation)}

    async def _beginning(self, _: int, message: ms.Beginning) -> Answer:
        walk = self.walk
        return {"entry": beginning(walk.store, walk.run_id, walk.start_chain)}

    async def _decide(self, sender: int, message: ms.Decide) -> Answer:
        return {"poll": self.walk.poll.answer(sender, message.poll)}

    async def _entry(self, _: int, message: ms.EntryOf) -> Answer:
        return {"entry": self.walk.store.entry(self.walk.run_id, message.chain)}

    async def _entries(self, _: int, message: ms.Entries) -> Answer:
        entries, chain, size = list[Entry](), message.chain, len('{"entries":[]}')
        store, run = self.walk.store, self.walk.run_id
        while len(entries) < message.most and (entry := store.entry(run, chain)) is not None:
            size += len(codec.dump(entry)) + 1
            if entries and size > MESSAGE:
                break
            entries.append(entry)
            chain = entry["body"]["previous"]
        return {"entries": entries}

    # Questions

    async def _exchange(self, peer: int, message: bytes) -> dict[str, Any]:
        """The answer, empty if there is no good one."""
        walk = self.walk
        try:
            data = await walk.transport.tell(peer, message, walk.limits.connect)
            return codec.parse(data, MESSAGE)
        except (UnwalkError, TimeoutError, OSError):
            return {}

    async def _ask(self, peer: int, message: bytes, field: str) -> Any:
        """The answer's ``field``, or None if there is no good answer."""
        return (await self._exchange(peer, message)).get(field)

    async def _ask_all(self, message: bytes, field: str) -> dict[int, Any]:
        walk = self.walk
        others = [p for p in range(len(walk.network.peers)) if p != walk.me]
        answers = await asyncio.gather(*(self._ask(p, message, field) for p in others))
        return {p: a for p, a in zip(others, answers, strict=True) if a is not None}

    async def ask_all(self, chain: str = "", number: int = 0) -> dict[int, Seen]:
        """Where each reachable peer last saw the token, signed for a recovery of this number."""
        walk, seen = self.walk, dict[int, Seen]()
        message = self.words(ms.Where, chain=chain, number=number)
        asked = Question(walk.run_id, walk.me, chain, number)
        others = [p for p in range(len(walk.network.peers)) if p != walk.me]
        answers = await asyncio.gather(*(self._exchange(p, message) for p in others))
        for peer, record in zip(others, answers, strict=True):
            try:
                with codec.reading("a sighting"):
                    who, sighting = walk.succession.sighted(record, asked)
            except UnwalkError:
                continue
            if who == peer:
                seen[peer] = Seen(sighting, record)
        return seen

    async def beginnings(self) -> dict[int, Entry]:
        """The first entry of the walk's log, from every member that can show one."""
        walk, first_entries = self.walk, dict[int, Entry]()
        for peer, record in (await self._ask_all(self.words(ms.Beginning), "entry")).items():
            try:
                with codec.reading("a log entry"):
                    entry = parse_entry(record)
                    walk.succession.entry(entry, None)
            except UnwalkError:
                continue
            if peer not in walk.chapter.left:
                first_entries[peer] = entry
        return first_entries

    async def hear_opening(self, peer: int, record: Any) -> None:
        """Somebody shows how a generation was opened; refused unless it was allowed.

        If the log before it is not known here, it is asked for, and kept: others who are shown the
        generation will ask this peer for it.
        """
        walk = self.walk
        entry, fence, lineage = walk.succession.opening(record)
        if fence <= walk.state.fence:
            return
        if peer in self.hearing:
            raise Refused("another generation that you show is being looked up; ask again.")
        self.hearing.add(peer)
        try:
            async with asyncio.timeout(walk.limits.lease):
                fresh, _ = await self.led_to(entry, peer)
        except TimeoutError as error:
            raise Refused("the log of a generation did not come within the lease.") from error
        finally:
            self.hearing.discard(peer)
        if fence > walk.state.fence:
            walk.store.add_entries(walk.run_id, fresh)
            walk.store.put_opening(walk.run_id, entry)
            walk.put(pr.fenced(walk.state, fence, lineage))

    async def led_to(
        self, later: Entry, first: int, sent: Mapping[str, Entry] | None = None
    ) -> tuple[list[Entry], Place]:
        """Check an entry and the log before it, back to the last entry known here.

        Returns the entries that are new, and where the walk is after this one.  Entries that were
        not ``sent`` along are asked for: of the peer ``first``, then of the others.
        """
        walk, fresh = self.walk, list[Entry]()
        new = [later]
        while (chain := later["body"]["previous"]) != walk.start_chain:
            here = walk.store.entry(walk.run_id, chain)
            entry = here or (sent or {}).get(chain) or await self.find_entry(chain, first)
            if entry is None or len(fresh) > walk.work.hops + MOST_RECOVERIES:
                raise Refused("the log of the token is not whole.")
            walk.succession.entry(later, entry["body"])
            if here is not None:
                break
            fresh.append(entry)
            new.append(entry)
            later = entry
        else:
            walk.succession.entry(later, None)
        place = await walk.place(chain)
        for entry in reversed(new):
            place = walk.succession.after(place, entry["body"])
        return fresh, place

    async def hear_fence(self, peer: int, fence: pr.Generation) -> bool:
        """Ask a peer that knows of a generation to show how it was opened; whether it did."""
        walk = self.walk
        record = await self._ask(peer, self.words(ms.Opening, generation=fence), "entry")
        try:
            with codec.reading("an opening"):
                await self.hear_opening(peer, record)
        except UnwalkError as error:
            walk.journal.refused(peer, error)
            return False
        return fence <= walk.state.fence

    async def announce(self) -> None:
        """Show all others how the generation that is known here was opened."""
        walk = self.walk
        entry = opening(walk.store, walk.run_id, pr.shown(walk.state)[0])
        if entry is not None:
            await self._ask_all(self.words(ms.Fence, entry=entry), "sighting")

    def later(self, work: Any) -> asyncio.Task[Any]:
        """Do something beside everything else; it ends with the walk."""
        task = asyncio.create_task(work)
        self.tasks[task] = None
        task.add_done_callback(self.ended)
        return task

    def ended(self, task: asyncio.Task[Any]) -> None:
        """A task of its own has ended, one way or another."""
        self.tasks.pop(task, None)
        if not task.cancelled():
            task.exception()

    def after_handing(self, parcel: Parcel, before: int, *, opened: bool) -> None:
        """Release the peer before, and make a generation that was ``opened`` here known.

        The place of the walk is computed now, while there is time: the next token is checked from
        there.
        """
        self.later(self.walk.place(parcel.chain))
        if before >= 0 and before != self.walk.me:
            self.later(self._release(before, parcel))
        if opened:
            self.later(self.announce())

    async def _release(self, before: int, parcel: Parcel) -> None:
        message = self.words(ms.Release, generation=parcel.generation, place=parcel.place)
        record = await self._ask(before, message, "sighting")
        if record is not None:
            await self.learn(before, codec.sighting_from(record))

    async def learn(self, peer: int, sighting: Sighting) -> None:
        """Adopt what a peer knows of the end or of a later generation, once it has shown it."""
        walk = self.walk
        if sighting.over:
            await self.hear_end(peer)
        elif sighting.fence > walk.state.fence:
            await self.hear_fence(peer, sighting.fence)

    async def catch_up(self) -> None:
        """After a start: what happened meanwhile?"""
        for peer, seen in (await self.ask_all()).items():
            await self.learn(peer, seen.sighting)

    # The end

    async def hear_end(self, peer: int) -> None:
        """Have somebody who says that the walk is over show the decision."""
        if self.walk.state.committed is None:
            await self.walk.poll.show(peer)

    async def show(self, peer: int, poll: dict[str, Any]) -> Any:
        """Show another peer what is known of the end; what it knows."""
        return await self._ask(peer, self.words(ms.Decide, poll=poll), "poll")

    async def page(self, peer: int, chain: str) -> list[Entry] | None:
        """Log entries up to ``chain`` that a peer shows, the last first; None: it did not answer.

        Each is the one that the entry after it follows, and no more than that is looked at.
        """
        asked = self.words(ms.Entries, chain=chain, most=ms.PAGE)
        record, page = await self._ask(peer, asked, "entries"), list[Entry]()
        if record is None:
            return None
        with codec.reading("a page of the log"):
            for item in codec.listed(record, "entries", most=ms.PAGE):
                entry = parse_entry(item)
                if entry["chain"] != chain:
                    raise Refused("a page of the log does not lead to where it was asked for.")
                page.append(entry)
                chain = entry["body"]["previous"]
        return page

    async def find_entry(self, chain: str, first: int) -> Entry | None:
        """Whoever made it has it, and so has whoever got the token next."""
        walk = self.walk
        others = [p for p in range(len(walk.network.peers)) if p != walk.me]
        for peer in sorted(others, key=lambda p: p != first):
            record = await self._ask(peer, self.words(ms.EntryOf, chain=chain), "entry")
            try:
                with codec.reading("a log entry"):
                    if record is not None and parse_entry(record)["chain"] == chain:
                        entry = parse_entry(record)
                        if walk.trust.signer(entry) == entry["body"]["peer"]:
                            walk.saw(entry)
                        return entry
            except UnwalkError:
                continue
        return None
