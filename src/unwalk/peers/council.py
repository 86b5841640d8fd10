"""The peers agree on the next chapter, and tell whoever was away which ones there were."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from unwalk.core.errors import Corrupt, Refused, UnwalkError
from unwalk.core.transcript import canonical
from unwalk.peers import agenda as ag
from unwalk.peers import codec, history, leaving
from unwalk.peers.agenda import Seat, Spec, Word
from unwalk.peers.erasure import receipt_of
from unwalk.peers.gate import HEAD, PROTOCOL, Rate
from unwalk.peers.protocol import Ballot, majority
from unwalk.peers.wire import MESSAGE

if TYPE_CHECKING:
    from unwalk.peers.chapters import Chapters

PREFIX = b"unwalk-chapter-1:"
BODY = {
    "agenda-prepare": ("number", "ballot"),
    "agenda-accept": ("number", "ballot", "value"),
    "agenda-decided": ("number", "value"),
    "agenda-ask": ("number",),
    "agenda-visits": ("number", "after"),
    "agenda-receipt": ("number",),
    "agenda-left": ("number", "receipt"),
    "agenda-ready": ("number",),
    "agenda-holds": ("number",),
}
AT_ONCE = 4
"""Decided chapters in one answer, at most."""
PAGE = 40
"""Visits in one answer, at most."""
MARK = b'"kind":"agenda-'


@dataclass(frozen=True)
class Said:
    """A chapter as it was proposed: the signed text, and what it says."""

    text: str
    spec: Spec


class Council:
    """One peer's part in deciding chapters."""

    def __init__(self, chapters: Chapters) -> None:
        self.chapters = chapters
        self.seats = history.seats(chapters.store)
        self.rate = Rate(chapters.network.limits.messages)
        self.refused: Ballot = (-1, -1)
        self.told: dict[int, float] = {}
        self.catching = False
        self.known: list[Spec] = []

    def decided(self) -> list[Spec]:
        """The chapters that are known to be decided, in order, without a gap."""
        found: list[Spec] = []
        while (seat := self.seats.get(len(found) + 1)) is not None and seat.decided is not None:
            if len(found) == len(self.known):
                self.known.append(self.read(len(found) + 1, seat.decided).spec)
            found.append(self.known[len(found)])
        return found

    def write(self, spec: Spec) -> str:
        """The signed text of a chapter."""
        bundle, said = self.chapters.bundle, spec.to_json()
        signature = bundle.sign(PREFIX + self._words(spec)).hex()
        pem = bundle.certificate_pem.decode()
        return canonical({"spec": said, "signature": signature, "certificate": pem})

    def _words(self, spec: Spec) -> bytes:
        said = {"network": self.chapters.network.run_id, "spec": spec.to_json()}
        return canonical(said).encode()

    def read(self, number: int, text: Any) -> Said:
        """A chapter in its signed text; refused unless whom it names signed it."""
        if not isinstance(text, str) or not text.isascii():
            raise Corrupt("a chapter is no plain text.")
        record = codec.parse(text.encode(), MESSAGE)
        names = ("spec", "signature", "certificate")
        found = codec.fields_of(record, "a chapter", *names)
        spec = Spec.from_json(found["spec"], len(self.chapters.network.peers))
        if spec.number != number or canonical(record) != text:
            raise Corrupt(f"a text is not chapter {number} in its one form.")
        pem, signature = str(found["certificate"]), str(found["signature"])
        trust, words = self.chapters.trust, PREFIX + self._words(spec)
        signer = trust.network.index(trust.check(pem, signature, words, past=True))
        if signer != spec.holder:
            raise Refused(f"chapter {number} was not signed by peer {spec.holder}.")
        return Said(text, spec)

    # Answers

    def answer(self, sender: int, data: bytes) -> bytes:
        """What this peer says to a message about chapters."""
        chapters = self.chapters
        try:
            if not self.rate.allows(sender, monotonic()):
                raise Refused(f"more than {self.rate.rate:g} calls a second.")
            return codec.dump(self._answer(sender, data))
        except UnwalkError as error:
            chapters.journal.write("refused", sender=sender, reason=str(error)[:300])
            return codec.dump({"kind": "refused", "reason": str(error)[:300]})

    def _answer(self, sender: int, data: bytes) -> dict[str, Any]:
        chapters = self.chapters
        record = codec.parse(data, MESSAGE)
        kind = record.get("kind")
        if not isinstance(kind, str) or kind not in BODY:
            raise Corrupt("a message is of no known kind.")
        codec.fields_of(record, "a message", *HEAD, *BODY[kind])
        if record["protocol"] != PROTOCOL or record["network"] != chapters.network.name:
            raise Refused(f"this is network {chapters.network.name}, protocol {PROTOCOL}.")
        if record["run"] != chapters.network.run_id:
            raise Refused("that run is not known here.")
        number = codec.whole(record["number"], "number")
        if "ballot" in record and codec.pair(record["ballot"], "ballot")[1] != sender:
            raise Refused("a ballot is proposed by the peer that it names.")
        if kind == "agenda-left":
            leaving.heard(chapters, sender, record["receipt"])
            return {"left": True}
        if kind == "agenda-ready":
            return {"ready": chapters.ready(number)}
        if kind == "agenda-holds":
            return {"holds": chapters.holds(number)}
        if kind == "agenda-receipt":
            return {"receipt": self._receipt(number)}
        if kind == "agenda-visits":
            after = codec.whole(record["after"], "after")
            found = []
            if number < len(chapters.runs):
                found = history.visits_of(chapters.store, chapters.runs[number], after, PAGE)
            return {"visits": found}
        if number < 1:
            raise Corrupt("the agenda begins with chapter 1.")
        if kind == "agenda-ask":
            return {"decided": self._from(number)}
        if kind == "agenda-decided":
            self.learn(number, record["value"])
            return {"decided": []}
        return {"word": ag.word_to(self._vote(kind, number, record))}

    def _receipt(self, number: int) -> dict[str, Any] | None:
        chapters = self.chapters
        if not 0 < number < len(chapters.runs):
            return None
        receipt = receipt_of(chapters.store, chapters.runs[number], number)
        return None if receipt is None else receipt.to_json()

    def _from(self, number: int) -> list[str]:
        found: list[str] = []
        while len(found) < AT_ONCE and (seat := self.seats.get(number + len(found))) is not None:
            if seat.decided is None:
                break
            found.append(seat.decided)
        return found

    def _vote(self, kind: str, number: int, record: dict[str, Any]) -> Word:
        ballot = codec.pair(record["ballot"], "ballot")
        seat = self.seats.get(number, Seat())
        if kind == "agenda-prepare":
            seat, word = ag.prepare(seat, ballot)
        else:
            said = self.read(number, record["value"])
            self._check_next(said.spec)
            seat, word = ag.accept(seat, ballot, said.text)
        self._put(number, seat)
        return word

    def _check_next(self, spec: Spec) -> None:
        """Refuse a chapter that does not follow the ones that are known here."""
        chapters = self.chapters
        if spec.number != len(chapters.specs) + 1:
            return
        if chapters.over and spec.after != chapters.present:
            raise Refused(f"the model here comes from chapter {chapters.present}.")
        *before, _ = ag.marked([*chapters.specs, spec])
        walked = len(ag.line(chapters.book.hops, before))
        if spec.before != walked:
            raise Refused(f"{walked} visits led to the model here, not {spec.before}.")

    def members(self, number: int) -> frozenset[int]:
        """Who decides chapter ``number``: those that the chapter before it counts."""
        return ag.members(len(self.chapters.network.peers), self.decided()[: number - 1])

    def _put(self, number: int, seat: Seat) -> None:
        if seat != self.seats.get(number):
            history.put_seat(self.chapters.store, number, seat)
            self.seats[number] = seat

    def learn(self, number: int, text: Any) -> None:
        """Somebody says that a chapter was decided."""
        said = self.read(number, text)
        before = self.seats.get(number, Seat())
        if before.decided is None:
            self._put(number, ag.decide(before, said.text))
            self.chapters.store.fault("chapter decided")
            self.chapters.journal.write("chapter decided", chapter=number, to=said.spec.peer)
            self.chapters.wake.set()

    # Questions

    def words(self, kind: str, **fields: Any) -> bytes:
        """A message as it travels."""
        network = self.chapters.network
        head = {"protocol": PROTOCOL, "network": network.name, "run": network.run_id, "kind": kind}
        return codec.dump({**head, **fields})

    async def ask(self, peer: int, message: bytes, field: str) -> Any:
        """The answer's ``field``, or None if there is no good answer."""
        limits = self.chapters.network.limits
        try:
            data = await self.chapters.transport.tell(peer, message, limits.connect)
            return codec.parse(data, MESSAGE).get(field)
        except (UnwalkError, TimeoutError, OSError):
            return None

    async def ask_all(self, message: bytes, field: str) -> dict[int, Any]:
        """The answers of all others who answer."""
        chapters = self.chapters
        others = [p for p in range(len(chapters.network.peers)) if p != chapters.me]
        found = await asyncio.gather(*(self.ask(p, message, field) for p in others))
        return {p: a for p, a in zip(others, found, strict=True) if a is not None}

    async def secured(self, number: int) -> bool:
        """Whether a majority has the model that chapter ``number`` is to go on from.

        Otherwise it could vanish with the peer that proposes, and nothing could go on without it.
        """
        members, chapters = self.members(number), self.chapters
        answers = await self.ask_all(self.words("agenda-holds", number=number - 1), "holds")
        answers[chapters.me] = chapters.holds(number - 1)
        there = [p for p, answer in answers.items() if answer is True and p in members]
        return len(there) >= majority(len(members))

    async def propose(self, spec: Spec) -> bool:
        """Try to have ``spec`` decided; whether something was decided for its number."""
        number, own = spec.number, self.write(spec)
        self.chapters.store.fault("chapter proposed")
        ballot = ag.next_ballot(self.seats.get(number, Seat()), self.chapters.me, [self.refused])
        seat, word = ag.prepare(self.seats.get(number, Seat()), ballot)
        self._put(number, seat)
        words = await self._round("agenda-prepare", number, ballot, {}, word)
        if words is None:
            return self._is_decided(number)
        value = ag.chosen(own, words)
        seat, word = ag.accept(self.seats.get(number, Seat()), ballot, value)
        self._put(number, seat)
        self.chapters.store.fault("chapter accepted")
        if await self._round("agenda-accept", number, ballot, {"value": value}, word) is None:
            return self._is_decided(number)
        self.learn(number, value)
        await self.ask_all(self.words("agenda-decided", number=number, value=value), "decided")
        return True

    def _is_decided(self, number: int) -> bool:
        return self.seats.get(number, Seat()).decided is not None

    async def _round(
        self, kind: str, number: int, ballot: Ballot, fields: dict[str, Any], own: Word
    ) -> list[Word] | None:
        """One question to all others; the yes answers, if with ``own`` they are a majority."""
        message = self.words(kind, number=number, ballot=list(ballot), **fields)
        words = {self.chapters.me: own}
        for peer, record in (await self.ask_all(message, "word")).items():
            try:
                words[peer] = ag.word_from(record)
            except Corrupt:
                continue
        for word in words.values():
            if word.kind == "decided":
                self.learn(number, word.value)
                return None
            self.refused = max(self.refused, word.ballot)
        members = self.members(number)
        yes = [w for peer, w in words.items() if w.kind == "yes" and peer in members]
        return yes if len(yes) >= majority(len(members)) else None

    async def catch_up(self) -> None:
        """Which chapters were decided while this peer did not listen?"""
        if self.catching:
            return
        self.catching = True
        try:
            await self._catch_up()
        finally:
            self.catching = False

    async def _catch_up(self) -> None:
        while True:
            number = len(self.decided()) + 1
            answers = await self.ask_all(self.words("agenda-ask", number=number), "decided")
            lists = [a for a in answers.values() if isinstance(a, list)]
            news: list[Any] = max(lists, key=len, default=[])
            if not news:
                return
            try:
                for place, text in enumerate(news):
                    self.learn(number + place, text)
            except UnwalkError as error:
                self.chapters.journal.write("refused", reason=str(error)[:300])
                return

    async def inform(self, peer: int, number: int) -> None:
        """Tell a peer that is behind of the chapters from ``number`` on."""
        if monotonic() - self.told.get(peer, -10.0) < 1.0:
            return
        self.told[peer] = monotonic()
        for place, text in enumerate(self._from(number)):
            message = self.words("agenda-decided", number=number + place, value=text)
            await self.ask(peer, message, "decided")

    async def fetch_visits(self, number: int, count: int, base: int) -> bool:
        """Ask others for the visits of a chapter; whether all ``count`` are here now."""
        chapters = self.chapters
        run = chapters.runs[number]
        for peer in range(len(chapters.network.peers)):
            if peer == chapters.me:
                continue
            found: list[Any] = []
            while len(found) < count:
                message = self.words("agenda-visits", number=number, after=len(found))
                page = await self.ask(peer, message, "visits")
                if not isinstance(page, list) or not page:
                    break
                found += page
            try:
                if len(found) != count:
                    continue
                for place, visit in enumerate(found, 1):
                    history.check_visit(chapters.trust, visit, run, base + place)
            except UnwalkError:
                continue
            history.put_visits(chapters.store, run, found)
            return True
        return False
