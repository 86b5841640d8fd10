"""Small talk between peers: where is the token, who fences whom, how the walk ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from unwalk.core.errors import Corrupt, Refused, UnwalkError
from unwalk.peers.decisions.history import beginning, opening
from unwalk.peers.handover import log_rules as succession
from unwalk.peers.handover.checks import HEAD, PROTOCOL, FinalOffer
from unwalk.peers.handover.log_rules import MOST_RECOVERIES
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol.handover import Parcel, Reply, Sighting
from unwalk.peers.protocol.hoplog import Entry, check_chain, parse_entry
from unwalk.peers.storage.disk_space import DiskFull
from unwalk.peers.storage.store import Incoming
from unwalk.peers.transport.wire import MESSAGE, FilePieces

if TYPE_CHECKING:
    from unwalk.peers.handover.service import Service

BODY = {
    "where": ("chain",),
    "release": ("generation", "place"),
    "fence": ("entry",),
    "opening": ("generation",),
    "beginning": (),
    "decide": ("poll",),
    "entry": ("chain",),
}
AGAIN = 5.0
"""Seconds between attempts to bring the last token to a neighbour, at most."""
SOON = 0.1
MOST_BROUGHT = 2
"""Ends of one generation, or later ones, that one neighbour may bring before one is proposed."""


@dataclass(frozen=True)
class Seen:
    """What a peer says of the token, and the same as it signed it."""

    sighting: Sighting
    record: dict[str, Any]


class Talk:
    """Messages of one service."""

    def __init__(self, service: Service) -> None:
        self.service, self.brought = service, dict[str, int]()
        self.tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they began
        self.wake = asyncio.Event()
        self.hearing: set[int] = set()

    def words(self, kind: str, **fields: Any) -> bytes:
        """A message as it travels."""
        service = self.service
        name, run = service.network.name, service.run_id
        head = {"protocol": PROTOCOL, "network": name, "run": run, "kind": kind}
        return codec.dump({**head, **fields})

    # Answers

    async def answer(self, sender: int, data: bytes) -> dict[str, Any]:
        """What a peer says to a message; may change state, in one transaction."""
        service = self.service
        record = service.gate.message(data)
        kind = record.get("kind")
        if not isinstance(kind, str) or kind not in BODY:
            raise Corrupt("a message is of no known kind.")
        codec.fields_of(record, "a message", *HEAD, *BODY[kind])
        if kind == "release":
            place = codec.pair(record["place"], "place")
            generation = codec.pair(record["generation"], "generation")
            service.put(pr.released(service.state, generation, place))
        elif kind == "fence":
            await self.hear_opening(sender, record["entry"])
        elif kind == "opening":
            generation = codec.pair(record["generation"], "generation")
            return {"entry": opening(service.store, service.run_id, generation)}
        elif kind == "beginning":
            return {"entry": beginning(service.store, service.run_id, service.start_chain)}
        elif kind == "where":
            if service.store.space.full and service.state.held is not None:
                raise DiskFull  # as if it were away: the others go on, and nobody waits for room
            if service.state.committed is not None:
                self.wake.set()  # somebody who asks after the end may lack the final token
            chain, said = str(record["chain"])[:64], pr.sighting(service.state)
            return succession.sign(service.bundle, service.run_id, sender, chain, said)
        elif kind == "decide":
            return {"poll": service.poll.answer(sender, record["poll"])}
        elif kind == "entry":
            chain = codec.digest(record["chain"], "chain")
            return {"entry": service.store.entry(service.run_id, chain)}
        return {"sighting": codec.sighting_to(pr.sighting(service.state))}

    # Questions

    async def _exchange(self, peer: int, message: bytes) -> dict[str, Any]:
        """The answer, empty if there is no good one."""
        service = self.service
        try:
            data = await service.transport.tell(peer, message, service.limits.connect)
            return codec.parse(data, MESSAGE)
        except (UnwalkError, TimeoutError, OSError):
            return {}

    async def _ask(self, peer: int, message: bytes, field: str) -> Any:
        """The answer's ``field``, or None if there is no good answer."""
        return (await self._exchange(peer, message)).get(field)

    async def _ask_all(self, message: bytes, field: str) -> dict[int, Any]:
        service = self.service
        others = [p for p in range(len(service.network.peers)) if p != service.me]
        found = await asyncio.gather(*(self._ask(p, message, field) for p in others))
        return {p: a for p, a in zip(others, found, strict=True) if a is not None}

    async def ask_all(self, chain: str = "") -> dict[int, Seen]:
        """Where every reachable peer believes the token to be, signed for who goes on there."""
        service, message, found = self.service, self.words("where", chain=chain), dict[int, Seen]()
        others = [p for p in range(len(service.network.peers)) if p != service.me]
        answers = await asyncio.gather(*(self._exchange(p, message) for p in others))
        for peer, record in zip(others, answers, strict=True):
            try:
                with codec.reading("a sighting"):
                    who, sighting = service.succession.sighted(record, service.me, chain)
            except UnwalkError:
                continue
            if who == peer:
                found[peer] = Seen(sighting, record)
        return found

    async def beginnings(self) -> dict[int, Entry]:
        """The first entry of the walk's log, from each who counts and can show one."""
        service, found = self.service, dict[int, Entry]()
        for peer, record in (await self._ask_all(self.words("beginning"), "entry")).items():
            try:
                with codec.reading("a log entry"):
                    entry = parse_entry(record)
                    service.succession.entry(entry, None, service.state.lineage)
            except UnwalkError:
                continue
            if peer not in service.chapter.left:
                found[peer] = entry
        return found

    async def hear_opening(self, peer: int, record: Any) -> None:
        """Somebody shows how a generation was opened; refused unless it was allowed.

        Where what it goes on from is not known here, that is asked for.
        """
        service = self.service
        entry, fence, lineage = service.succession.opening(record, pr.shown(service.state)[1])
        if fence <= service.state.fence:
            return
        if peer in self.hearing:
            raise Refused("another generation that you show is being looked up; ask again.")
        self.hearing.add(peer)
        try:
            async with asyncio.timeout(service.limits.lease):
                await self.led_to(entry, peer)
        except TimeoutError as error:
            raise Refused("the log of a generation did not come within the lease.") from error
        finally:
            self.hearing.discard(peer)
        if fence > service.state.fence and not service.closed:
            service.succession.admit(entry)
            service.store.put_opening(service.run_id, entry)
            service.put(pr.fenced(service.state, fence, lineage))

    async def led_to(
        self, later: Entry, first: int, sent: Mapping[str, Entry] | None = None
    ) -> list[Entry]:
        """Check an entry, and the log before it back to the last one known here; what is new.

        What was not ``sent`` is asked for, of the peer ``first`` before the others.
        """
        service, fresh, known = self.service, list[Entry](), pr.shown(self.service.state)[1]
        while (chain := later["body"]["previous"]) != service.start_chain:
            here = service.store.entry(service.run_id, chain)
            entry = here or (sent or {}).get(chain) or await self.find_entry(chain, first)
            if entry is None or len(fresh) > service.work.hops + MOST_RECOVERIES:
                raise Refused("the log of the token is not whole.")
            service.succession.entry(later, entry["body"], known)
            if here is not None:
                return fresh
            fresh.append(entry)
            later = entry
        service.succession.entry(later, None, known)
        return fresh

    async def hear_fence(self, peer: int, fence: pr.Generation) -> bool:
        """Have somebody who knows of a generation show how it was opened; whether it did."""
        service = self.service
        record = await self._ask(peer, self.words("opening", generation=list(fence)), "entry")
        try:
            with codec.reading("an opening"):
                await self.hear_opening(peer, record)
        except UnwalkError as error:
            service.journal.refused(peer, error)
            return False
        return fence <= service.state.fence

    async def announce(self) -> None:
        """Show all others how the generation that is known here was opened."""
        service = self.service
        entry = opening(service.store, service.run_id, pr.shown(service.state)[0])
        if entry is not None:
            await self._ask_all(self.words("fence", entry=entry), "sighting")

    def later(self, work: Any) -> None:
        """Do something beside everything else; it ends with the service."""
        task = asyncio.create_task(work)
        self.tasks[task] = None
        task.add_done_callback(self.ended)

    def ended(self, task: asyncio.Task[Any]) -> None:
        """A task of its own has ended, one way or another."""
        self.tasks.pop(task, None)
        if not task.cancelled():
            task.exception()

    def after_handing(self, parcel: Parcel, before: int, *, opened: bool) -> None:
        """Release the peer before, and make a generation that was ``opened`` here known."""
        if before >= 0 and before != self.service.me:
            self.later(self._release(before, parcel))
        if opened:
            self.later(self.announce())

    async def _release(self, before: int, parcel: Parcel) -> None:
        place, generation = list(parcel.place), list(parcel.generation)
        message = self.words("release", generation=generation, place=place)
        record = await self._ask(before, message, "sighting")
        if record is not None:
            await self.learn(before, codec.sighting_from(record))

    async def learn(self, peer: int, sighting: Sighting) -> None:
        """Take over what a peer knows of the end, which it has to show, or of a generation."""
        service = self.service
        if sighting.over:
            await self.hear_end(peer)
        elif sighting.fence > service.state.fence:
            await self.hear_fence(peer, sighting.fence)

    async def catch_up(self) -> None:
        """After a start: what happened meanwhile?"""
        for peer, seen in (await self.ask_all()).items():
            await self.learn(peer, seen.sighting)

    # The end

    async def hear_end(self, peer: int) -> None:
        """Have somebody who says that the walk is over show the decision."""
        if self.service.state.committed is None:
            await self.service.poll.show(peer)

    async def show(self, peer: int, poll: dict[str, Any]) -> Any:
        """Show another peer what is known of the end; what it knows."""
        return await self._ask(peer, self.words("decide", poll=poll), "poll")

    async def take_final(
        self, sender: int, offer: FinalOffer, chunks: AsyncIterator[bytes]
    ) -> Reply:
        """A neighbour brings the last token of the walk: the committed one, or one to vote on."""
        service, value = self.service, offer.value
        committed, receiving = service.state.committed, service.intake.receiving
        if committed is not None and replace(committed, salt=value.salt) != value:
            raise Refused("that is not what this run was committed to, as far as known here.")
        if any(end.chain == value.chain for end in service.state.ends) or (
            committed is not None and service.store.file(value.token).exists()
        ):
            return Reply("accepted")
        if committed is None:
            self._room_for(sender, value)
        if sender in receiving or len(receiving) >= 2:
            raise Refused("another token is on its way already.")
        receiving.add(sender)
        try:
            entries = [] if committed is not None else await self.whole_log(value, sender)
            await self._receive_final(sender, offer, chunks, entries)
        finally:
            receiving.discard(sender)
        return Reply("accepted")

    def _room_for(self, sender: int, value: pr.Value) -> None:
        """Refuse an end beyond those that are kept, unless it is voted on: then it takes a place.

        One that is refused is brought again; so nobody can keep those out that somebody proposes.
        """
        state, wanted = self.service.state, self.service.ends.wanted()
        mine = [
            e
            for e in state.ends
            if self.brought.get(e.chain) == sender
            and e.generation >= value.generation
            and e.chain not in wanted
        ]
        if value.chain in wanted:
            return
        if len(mine) >= MOST_BROUGHT or pr.hold(state, value, wanted) == state:
            raise Refused(f"{len(state.ends)} other ends are kept here until one is decided.")

    async def _receive_final(
        self, sender: int, offer: FinalOffer, chunks: AsyncIterator[bytes], entries: list[Entry]
    ) -> None:
        service, value = self.service, offer.value
        incoming = Incoming(service.store, offer.size)
        try:
            async with asyncio.timeout(service.limits.lease):
                await service.intake.receive_bytes(incoming, chunks)
            digest = await service.intake.on_disk(incoming.finish)
            if digest != value.token:
                raise Refused("the token's bytes do not match its digest.")
            service.gate.final_content(incoming.path)
            incoming.keep(digest)
            if service.state.committed is None:
                service.store.add_entries(service.run_id, entries)
                service.ends.checked(value.chain, entries)
                state = pr.hold(service.state, value, service.ends.wanted())
                known = {**self.brought, value.chain: sender}
                self.brought = {e.chain: known[e.chain] for e in state.ends if e.chain in known}
                service.put(state)
            service.journal.write("final")
            service.changed.set()
            service.notify()
            self.wake.set()
        except TimeoutError as error:
            raise Refused("the token did not arrive within the lease.") from error
        finally:
            service.store.pinned.discard(value.token)
            incoming.discard()

    async def whole_log(self, value: pr.Value, first: int) -> list[Entry]:
        """The log that leads to an end, every entry checked; refused unless it is whole."""
        service = self.service
        entries = await self.gather(value, first)
        if not entries:
            raise Refused("the log that leads to that end is not whole.")
        work, signer = service.work, service.trust.signer
        check_chain(entries, service.start_chain, value.chain, signer, work.base)
        service.succession.route(entries)
        return entries

    async def spread(self) -> None:
        """Bring each neighbour the last token: to vote on, and once it is decided to keep."""
        service = self.service
        near = [p for p in range(len(service.network.peers)) if service.gate.near(service.me, p)]
        brought: set[tuple[int, pr.Value]] = set()
        pause, whole = SOON, False
        while True:
            value = service.state.committed
            there = value is not None and service.store.file(value.token).exists()
            ends = [value] if value is not None else list(service.state.ends)
            missing = [
                (peer, end)
                for end in ends
                for peer in near
                if (peer, end) not in brought and service.store.file(end.token).exists()
            ]
            done = await asyncio.gather(*(self._bring_final(*item) for item in missing))
            brought |= {item for item, good in zip(missing, done, strict=True) if good}
            if there and not whole and (entries := await self._gathered()) is not None:
                service.written(entries)
                whole = True
            if there and whole and all(done):
                return
            pause = SOON if value is None else min(2.0 * pause, AGAIN)
            self.wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.wake.wait()

    async def _bring_final(self, peer: int, value: pr.Value) -> bool:
        service = self.service
        try:
            if service.state.committed is not None:
                await service.poll.show(peer)
            pieces = FilePieces(service.store.file(value.token))
            try:
                envelope = self.words("final", value=codec.value_to(value), size=pieces.size)
                data = await service.transport.hand(peer, envelope, pieces, service.limits.lease)
            finally:
                pieces.close()
            reply, _ = codec.reply_from(codec.parse(data, MESSAGE))
        except (UnwalkError, TimeoutError, OSError):
            return False
        return reply.kind == "accepted"

    async def _gathered(self) -> list[Entry] | None:
        """The whole log of the committed lineage, put down here."""
        service, value = self.service, self.service.state.committed
        assert value is not None
        entries = await self.gather(value)
        if entries:
            service.store.add_entries(service.run_id, entries)
        return entries

    async def gather(self, value: pr.Value, first: int = -1) -> list[Entry] | None:
        """The log that leads to ``value``, asked for entry by entry, last one first.

        Unless that is what was decided, each entry is checked as it comes: a log that somebody
        made up is refused at the first one that is wrong, not once it is all here.
        """
        service, decided = self.service, self.service.state.committed is not None
        chain, asked, found = value.chain, first, list[Entry]()
        while chain != service.start_chain:
            here = service.store.entry(service.run_id, chain)
            entry = here or await self.find_entry(chain, asked)
            if entry is None or len(found) > service.work.hops + MOST_RECOVERIES:
                return None
            body = entry["body"]
            if not decided:
                self._check_before(found[-1] if found else None, body, value)
            found.append(entry)
            chain = body["previous"]
            asked = body["visit"]["sender"] if body["kind"] == "hop" else body["peer"]
        if found and not decided:
            self._check_before(found[-1], None, value)
        return found[::-1]

    def _check_before(
        self, later: Entry | None, body: Mapping[str, Any] | None, value: pr.Value
    ) -> None:
        """Whether an entry with ``body`` can be the one before ``later``, or the end itself."""
        succession = self.service.succession
        if later is not None:
            succession.entry(later, body, codec.lineage_from(later["body"]["lineage"]))
        elif body is not None:
            ends = (body["kind"], body["hop"], tuple(body["generation"]), body["token"])
            if ends != ("hop", self.service.work.hops, value.generation, value.token):
                raise Refused("that is not the end of the log that leads to it.")

    async def find_entry(self, chain: str, first: int) -> Entry | None:
        """Whoever made it has it, and so has whoever got the token next."""
        service = self.service
        others = [p for p in range(len(service.network.peers)) if p != service.me]
        for peer in sorted(others, key=lambda p: p != first):
            record = await self._ask(peer, self.words("entry", chain=chain), "entry")
            try:
                with codec.reading("a log entry"):
                    if record is not None and parse_entry(record)["chain"] == chain:
                        entry = parse_entry(record)
                        if service.trust.signer(entry) == entry["body"]["peer"]:
                            service.saw(entry)
                        return entry
            except UnwalkError:
                continue
        return None
