"""Small talk between peers: where is the token, who fences whom, what is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from unwalk.core.errors import Corrupt, Refused, UnwalkError
from unwalk.peers import codec
from unwalk.peers import commit as cm
from unwalk.peers import protocol as pr
from unwalk.peers.gate import HEAD, PROTOCOL, FinalOffer
from unwalk.peers.hoplog import Entry, parse_entry
from unwalk.peers.protocol import Parcel, Reply, Sighting
from unwalk.peers.store import Incoming
from unwalk.peers.wire import MESSAGE, FilePieces

if TYPE_CHECKING:
    from unwalk.peers.service import Service

BODY = {
    "where": (),
    "release": ("generation", "place"),
    "fence": ("fence", "lineage"),
    "prepare": ("ballot", "generation"),
    "accept": ("ballot", "value"),
    "committed": ("value",),
    "entry": ("chain",),
}
AGAIN = 5.0
"""Seconds between attempts to bring the committed token to a neighbour."""


class Talk:
    """Messages of one service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.tasks: set[asyncio.Task[Any]] = set()
        self.refused: pr.Ballot = (-1, -1)
        self.wake = asyncio.Event()

    def words(self, kind: str, **fields: Any) -> bytes:
        """A message as it travels."""
        service = self.service
        name, run = service.network.name, service.run_id
        head = {"protocol": PROTOCOL, "network": name, "run": run, "kind": kind}
        return codec.dump({**head, **fields})

    # Answers

    def answer(self, sender: int, data: bytes) -> dict[str, Any]:
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
            lineage = codec.lineage_from(record["lineage"])
            fence = codec.pair(record["fence"], "fence")
            if lineage[-1][0] != fence or sender != fence[1]:
                raise Refused("a generation is announced by the peer that opened it.")
            service.put(pr.fenced(service.state, fence, lineage))
        elif kind == "committed":
            service.put(pr.commit(service.state, codec.value_from(record["value"])))
        elif kind in ("prepare", "accept"):
            return {"vote": codec.vote_to(self._vote(kind, sender, record))}
        elif kind == "entry":
            return {"entry": service.store.entry(codec.digest(record["chain"], "chain"))}
        elif service.state.committed is not None:
            self.wake.set()  # somebody who asks after the end may lack the final token
        return {"sighting": codec.sighting_to(pr.sighting(service.state))}

    def _vote(self, kind: str, sender: int, record: dict[str, Any]) -> cm.Vote:
        service = self.service
        ballot = codec.pair(record["ballot"], "ballot")
        if ballot[1] != sender:
            raise Refused("a ballot is proposed by the peer that it names.")
        if kind == "prepare":
            generation = codec.pair(record["generation"], "generation")
            state, vote = cm.prepare(service.state, ballot, generation)
        else:
            state, vote = cm.accept(service.state, ballot, codec.value_from(record["value"]))
        service.put(state)
        return vote

    # Questions

    async def _ask(self, peer: int, message: bytes, field: str) -> Any:
        """The answer's ``field``, or None if there is no good answer."""
        service = self.service
        try:
            data = await service.transport.tell(peer, message, service.limits.connect)
            return codec.parse(data, MESSAGE).get(field)
        except (UnwalkError, TimeoutError, OSError):
            return None

    async def _ask_all(self, message: bytes, field: str) -> dict[int, Any]:
        service = self.service
        others = [p for p in range(len(service.network.peers)) if p != service.me]
        found = await asyncio.gather(*(self._ask(p, message, field) for p in others))
        return {p: a for p, a in zip(others, found, strict=True) if a is not None}

    async def ask_all(self) -> dict[int, Sighting]:
        """Where every reachable peer believes the token to be."""
        found = {}
        for peer, record in (await self._ask_all(self.words("where"), "sighting")).items():
            try:
                found[peer] = codec.sighting_from(record)
            except Corrupt:
                continue
        return found

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.ended)

    def ended(self, task: asyncio.Task[Any]) -> None:
        """A task of its own has ended, one way or another."""
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def after_handing(self, parcel: Parcel, before: int, *, opened: bool) -> None:
        """Release the peer before, and make a generation that was ``opened`` here known."""
        if before >= 0 and before != self.service.me:
            self._later(self._release(before, parcel))
        if opened:
            lineage = codec.lineage_to(parcel.lineage)
            message = self.words("fence", fence=list(parcel.generation), lineage=lineage)
            self._later(self._ask_all(message, "sighting"))

    async def _release(self, before: int, parcel: Parcel) -> None:
        place, generation = list(parcel.place), list(parcel.generation)
        message = self.words("release", generation=generation, place=place)
        record = await self._ask(before, message, "sighting")
        if record is not None:
            self.learn(codec.sighting_from(record))

    def learn(self, sighting: Sighting) -> None:
        """Take over what somebody knows of the end or of a generation."""
        service = self.service
        if sighting.committed is not None:
            service.put(pr.commit(service.state, sighting.committed))
        elif sighting.fence > service.state.fence:
            service.put(pr.fenced(service.state, sighting.fence, sighting.lineage))

    async def catch_up(self) -> None:
        """After a start: what happened meanwhile?"""
        for sighting in (await self.ask_all()).values():
            self.learn(sighting)

    # The end

    async def propose(self, own: pr.Value | None = None) -> bool:
        """Try to have the last token committed, or ``own``; whether this run is over now."""
        service = self.service
        own = cm.final_value(service.state) if own is None else own
        if own is None:
            return True
        ballot = cm.next_ballot(service.state, [self.refused])
        state, vote = cm.prepare(service.state, ballot, own.generation)
        service.put(state)
        fields: dict[str, Any] = {"generation": list(own.generation)}
        votes = await self._round("prepare", ballot, fields, vote)
        if votes is None:
            return service.state.committed is not None
        value = cm.chosen(own, votes)
        state, vote = cm.accept(service.state, ballot, value)
        service.put(state)
        fields = {"value": codec.value_to(value)}
        if await self._round("accept", ballot, fields, vote) is None:
            return service.state.committed is not None
        service.put(pr.commit(service.state, value))
        await self._ask_all(self.words("committed", **fields), "sighting")
        return True

    async def _round(
        self, kind: str, ballot: pr.Ballot, fields: dict[str, Any], own: cm.Vote
    ) -> list[cm.Vote] | None:
        """One question to all others; the yes votes, if with ``own`` they are a majority."""
        service = self.service
        message = self.words(kind, ballot=list(ballot), **fields)
        votes = {service.me: own}
        for peer, record in (await self._ask_all(message, "vote")).items():
            try:
                votes[peer] = codec.vote_from(record)
            except Corrupt:
                continue
        for vote in votes.values():
            if vote.kind == "committed" and vote.value is not None:
                service.put(pr.commit(service.state, vote.value))
                return None
            if vote.kind == "stale":
                service.put(pr.fenced(service.state, vote.fence, vote.lineage))
                return None
            self.refused = max(self.refused, vote.ballot)
        left = service.chapter.left
        yes = [v for peer, v in votes.items() if v.kind == "yes" and peer not in left]
        return yes if len(yes) >= pr.majority(service.state.peers) else None

    async def take_final(self, offer: FinalOffer, chunks: AsyncIterator[bytes]) -> Reply:
        """A neighbour brings the committed token."""
        service = self.service
        committed = service.state.committed
        if committed is None or committed != offer.value:
            raise Refused("that is not what this run was committed to, as far as known here.")
        if service.store.file(committed.token).exists():
            return Reply("accepted")
        incoming = Incoming(service.store, offer.size)
        try:
            async with asyncio.timeout(service.limits.lease):
                await service.intake.receive_bytes(incoming, chunks)
            digest = await service.intake.on_disk(incoming.finish)
            if digest != committed.token:
                raise Refused("the token's bytes do not match its digest.")
            incoming.keep(digest)
            service.journal.write("final")
            service.changed.set()
            service.notify()
            return Reply("accepted")
        except TimeoutError as error:
            raise Refused("the token did not arrive within the lease.") from error
        finally:
            service.store.pinned.discard(committed.token)
            incoming.discard()

    async def spread(self) -> None:
        """Once the run is committed, every neighbour gets the final token; the log is gathered."""
        service = self.service
        missing = {p for p in range(len(service.network.peers)) if service.gate.near(service.me, p)}
        whole = False
        while missing or not whole:
            value = service.state.committed
            if value is None or not service.store.file(value.token).exists():
                await asyncio.sleep(0.1)
                continue
            for peer in sorted(missing):
                try:
                    if await self._bring_final(peer, value):
                        missing.discard(peer)
                except (UnwalkError, TimeoutError, OSError):
                    continue
            if not whole and (entries := await self.gather()) is not None:
                service.written(entries)
                whole = True
            if not missing and whole:
                return
            self.wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN):
                    await self.wake.wait()

    async def _bring_final(self, peer: int, value: pr.Value) -> bool:
        service = self.service
        path, said = service.store.file(value.token), codec.value_to(value)
        told = self.words("committed", value=said)
        await service.transport.tell(peer, told, service.limits.connect)
        pieces = FilePieces(path)
        try:
            envelope = self.words("final", value=said, size=pieces.size)
            data = await service.transport.hand(peer, envelope, pieces, service.limits.lease)
        finally:
            pieces.close()
        return codec.reply_from(codec.parse(data, MESSAGE))[0].kind == "accepted"

    async def gather(self) -> list[Entry] | None:
        """The whole log of the committed lineage, asked for entry by entry, last one first."""
        service = self.service
        value = service.state.committed
        assert value is not None
        chain, asked = value.chain, -1
        while chain != service.start_chain:
            entry = service.store.entry(chain)
            if entry is None:
                entry = await self._find_entry(chain, asked)
                if entry is None:
                    return None
                service.store.add_entries(service.run_id, [entry])
            body = entry["body"]
            chain = body["previous"]
            asked = body["visit"]["sender"] if body["kind"] == "hop" else body["peer"]
        return service.store.chain(value.chain, service.start_chain)

    async def _find_entry(self, chain: str, first: int) -> Entry | None:
        """Whoever made it has it, and so has whoever got the token next."""
        service = self.service
        others = [p for p in range(len(service.network.peers)) if p != service.me]
        for peer in sorted(others, key=lambda p: p != first):
            record = await self._ask(peer, self.words("entry", chain=chain), "entry")
            try:
                if record is not None and parse_entry(record)["chain"] == chain:
                    service.trust.signer(record)
                    return parse_entry(record)
            except UnwalkError:
                continue
        return None
