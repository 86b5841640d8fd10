"""Agrees with the other peers on the next chapter; sends decided ones to peers that were away."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import Any

from unwalk.core.errors import Corrupt, Refused, UnwalkError
from unwalk.core.transcript import canonical
from unwalk.peers.decisions import history
from unwalk.peers.decisions.ballot import Poll, pace_of
from unwalk.peers.decisions.decided import (
    Said,
    kept_chapter,
    matter_of,
    read_chapter,
    read_decision,
    read_end,
    words_of,
)
from unwalk.peers.decisions.votes import Clerk, decision_from, decision_to, digest_of
from unwalk.peers.decisions.walk_end import Closing, closing_from, visits_digest
from unwalk.peers.forgetting.erasure import Receipt, left_of, receipt_of
from unwalk.peers.handover.doorway import Answer
from unwalk.peers.lifecycle.progress import Progress
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import consensus as de
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.hoplog import longest
from unwalk.peers.protocol.schedule import Spec
from unwalk.peers.transport.wire import MESSAGE

AT_ONCE = 3
"""Decided chapters in one answer, at most."""
PAGE = 40
"""Visits in one answer, at most."""
A_VISIT = 0.02
"""Seconds that a peer has for each visit that it is asked for, besides ``limits.connect``."""
SELDOM = 0.5
"""Seconds between two times that messages of others make this peer ask for chapters."""
FRESH = 0.25
"""Seconds for which what this peer thinks of a chapter is not looked at again."""


class NextChapter:
    """One peer's part in deciding chapters."""

    def __init__(self, progress: Progress, stands_for: Callable[[Spec], bool]) -> None:
        self.progress, self.stands_for = progress, stands_for
        self.clerk = Clerk(progress.bundle, progress.trust)
        self.run_id = progress.network.run_id
        self.known = history.agenda(progress.store)
        peers = len(progress.network.peers)
        self.specs = [kept_chapter(text, peers) for text, _ in self.known]
        self.asked = -SELDOM
        self.told: dict[int, float] = {}
        self.judged: dict[str, tuple[float, bool]] = {}
        self.catching = False
        self.hearing = False
        self.fetching = asyncio.Lock()
        self.sources = [p for p in range(peers) if p != progress.me]
        self.written: set[str] = set()
        self.fork: str | None = None
        self.wish: str | None = None
        self.moved = asyncio.Event()
        self.answers: dict[type, Callable[[int, Any], Answer]] = {
            ms.AgendaDecide: self._vote,
            ms.AgendaDecided: self._told,
            ms.AgendaAsk: lambda _, said: {"decided": self._from(said.number)},
            ms.AgendaEnd: self._end,
            ms.AgendaVisits: lambda _, said: {"visits": self._page(said.number, said.after)},
            ms.AgendaReceipt: lambda _, said: {"receipt": self._receipt(said.number)},
            ms.AgendaLeft: self._left,
            ms.AgendaLeaver: self._leaver,
            ms.AgendaReady: lambda _, said: {"ready": progress.ready(said.number)},
        }
        self.poll = self._open()
        while (decided := self.poll.decided) is not None:  # written down, and then this peer died
            self._decided(self.poll.texts[decided.value], decided)

    def decided(self) -> list[Spec]:
        """The chapters that are known to be decided, in order, without a gap."""
        return list(self.specs)

    def write(self, spec: Spec) -> str:
        """The signed text of a chapter."""
        bundle, record = self.progress.bundle, spec.to_json()
        signature = bundle.sign(words_of(self.run_id, spec)).hex()
        pem = bundle.certificate_pem.decode()
        return canonical({"spec": record, "signature": signature, "certificate": pem})

    def read(self, number: int, text: Any) -> Said:
        """A chapter in its signed text; refused unless whom it names signed it."""
        return read_chapter(self.progress.trust, self.run_id, number, text)

    # The vote on the next number

    def _open(self) -> Poll:
        progress, number = self.progress, len(self.known) + 1
        return Poll(
            self.clerk,
            progress.store,
            progress.journal,
            matter_of(progress.network, number, self.specs),
            judge=self._judge,
            offer=lambda: self.wish,
            told=self._decided,
            tell=partial(self._show, number),
            pace=pace_of(progress.network.limits),
            digest=lambda text: digest_of(self.read(number, text).text),
        )

    def _judge(self, text: str, polled: bool) -> bool:
        """Whether this peer stands for a chapter: one that it finds to be right itself."""
        then, good = self.judged.get(text, (-FRESH, False))
        if monotonic() - then >= FRESH:
            try:
                trust, number = self.progress.trust, len(self.known) + 1
                spec = read_chapter(trust, self.run_id, number, text, voted_on=True).spec
                good = self._is_mine(spec, text) and self.stands_for(spec)
            except UnwalkError:
                good = False
            if len(self.judged) > 4 * len(self.progress.network.peers):
                self.judged.clear()
            self.judged[text] = (monotonic(), good)
        return good

    def _is_mine(self, spec: Spec, text: str) -> bool:
        """Whether this peer wrote a chapter in its own name, or it is in another's.

        What it voted for it wrote: after a new start nothing else tells.
        """
        me, state, value = self.progress.me, self.poll.state, digest_of(text)
        if spec.holder != me or value in self.written:
            return True
        votes = state.votes.union(*state.chain, *state.proof)
        return any(vote.voter == me and vote.value == value for vote in votes)

    def _decided(self, text: str, decision: de.Decision) -> None:
        spec = kept_chapter(text, len(self.progress.network.peers))
        self._keep(len(self.known) + 1, text, spec, decision)

    def _keep(self, number: int, text: str, spec: Spec, decision: de.Decision) -> None:
        progress = self.progress
        record = decision_to(decision)
        history.put_chapter(progress.store, number, text, record)
        self.known.append((text, record))
        self.specs.append(spec)
        self.wish = None
        self.written.clear()
        self.judged.clear()
        self.poll = self._open()
        self.moved.set()
        self.moved = asyncio.Event()
        progress.store.fault("chapter decided")
        progress.journal.write("chapter decided", chapter=number, to=spec.peer)
        progress.wake.set()

    def learn(self, number: int, text: Any, record: Any) -> None:
        """Somebody says that a chapter was decided, and shows how; refused if it was not."""
        if not 1 <= number <= len(self.known) + 1:
            raise Refused(f"{len(self.known)} chapters are known here; {number} is not the next.")
        progress = self.progress
        known = self.known[number - 1] if number <= len(self.known) else None
        if known is not None and known[0] == text:
            return
        trust = progress.trust
        with codec.reading("a decided chapter"):
            signed, decision = read_decision(trust, self.run_id, number, self.specs, text, record)
        if known is None:
            self._keep(number, signed.text, signed.spec, decision)
            return
        matter = matter_of(progress.network, number, self.specs)
        own_decision = decision_from(known[1], trust, self.run_id, matter)
        self.forked(number, sorted(de.blame(own_decision, decision)))

    def forked(self, number: int, liars: list[int]) -> None:
        """Two chapters were decided for one number: this peer stops, and says who lied."""
        progress = self.progress
        names = ", ".join(progress.network.peers[p].name for p in liars)
        self.fork = (
            f"two chapters were decided for number {number}, which only lies make possible; two "
            f"votes that no honest peer casts both are signed by: {names}."
        )
        progress.journal.write("fork", chapter=number, liars=liars)
        progress.wake.set()
        raise Refused(self.fork)

    async def run(self) -> None:
        """Take part in the vote on the next number, and the one after it, and so on."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                poll, moved = self.poll, self.moved
                task = asyncio.create_task(self._take_part(poll))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                await moved.wait()
                if poll.decided is None:  # it was heard of elsewhere
                    task.cancel()
        finally:
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_part(self, poll: Poll) -> None:
        """Vote until it is decided; again once nothing is wanting."""
        space = self.progress.store.space
        while True:
            try:
                return await poll.run()
            except (UnwalkError, OSError, sqlite3.Error) as error:
                if not space.passes(error):
                    self.progress.journal.write("failed", reason=str(error)[:300])
                    raise
            await space.wait()

    async def _show(self, number: int, peer: int, record: dict[str, Any]) -> Any:
        """Show another peer what is known of a number; what it knows of it, if that is the next.

        A vote that was just decided is shown once more, under its own number.
        """
        message = self.words(ms.AgendaDecide, number=number, poll=record)
        answer = await self._exchange(peer, message)
        self._take_in(number, answer.get("decided"))
        return answer.get("poll") if number == len(self.known) + 1 else None

    # Answers

    def answer(self, sender: int, message: ms.NETWORK) -> Answer:
        """What this peer says to a message about chapters."""
        if message.run != self.run_id:
            raise Refused("that run is not known here.")
        return self.answers[type(message)](sender, message)

    def _vote(self, sender: int, said: ms.AgendaDecide) -> Answer:
        """A peer shows its part in the vote on a number: only the next one is voted on."""
        if said.number <= len(self.known):
            return {"decided": self._from(said.number)}
        if said.number > len(self.known) + 1:
            self.hear_of_more()
            raise Refused(f"chapter {len(self.known) + 1} is the next here, not {said.number}.")
        poll = self.poll
        shown = poll.answer(sender, said.poll)
        return {"poll": shown} if self.poll is poll else {"decided": self._from(said.number)}

    def _told(self, _: int, said: ms.AgendaDecided) -> Answer:
        self.learn(said.number, said.value, said.decision)
        return {"decided": []}

    def _end(self, _: int, said: ms.AgendaEnd) -> Answer:
        progress, known = self.progress, said.number < len(self.progress.runs)
        end = history.end_decision(progress.store, progress.runs[said.number]) if known else None
        return {"end": None if end is None else list(end)}

    def _left(self, sender: int, said: ms.AgendaLeft) -> Answer:
        self.hear_left(sender, said.receipt)
        return {"left": True}

    def _leaver(self, _: int, said: ms.AgendaLeaver) -> Answer:
        peers = self.progress.network.peers
        if said.peer >= len(peers):
            raise Refused(f"peer {said.peer} is none of the {len(peers)} here.")
        receipts = history.receipts_of(self.progress.store, history.LEAVERS)
        return {"receipt": receipts.get(peers[said.peer].name)}

    def hear_left(self, sender: int, record: Any) -> None:
        """Another peer says that it has left, with its receipt; refused unless it signed that."""
        progress, receipt = self.progress, Receipt.from_json(record)
        if receipt.check(progress.trust, run=left_of(self.run_id)) != sender:
            raise Refused(f"peer {sender} says that {receipt.peer} has left.")
        following = len(self.known) + 1
        if receipt.chapter > following:  # it would stand for chapters that the peer still walks in
            self.hear_of_more()
            raise Refused(
                f"{receipt.peer} signed that it left after chapter {receipt.chapter}, but chapter "
                f"{following} is the next here."
            )
        if sender in history.left(progress.store):
            return  # known already
        history.put_left(progress.store, sender, receipt.peer, receipt.to_json())
        progress.left.add(sender)
        progress.journal.write("left", sender=sender)

    def _page(self, number: int, after: int) -> list[dict[str, Any]]:
        """Visits of a chapter that follow the first ``after``, as many as one answer holds."""
        progress = self.progress
        if number >= len(progress.runs):
            return []
        visits = history.visits_of(progress.store, progress.runs[number], after, PAGE)
        while len(visits) > 1 and len(codec.dump({"visits": visits})) > MESSAGE:
            visits = visits[: len(visits) // 2]
        return visits

    def _receipt(self, number: int) -> dict[str, Any] | None:
        progress = self.progress
        if not 0 < number < len(progress.runs):
            return None
        receipt = receipt_of(progress.store, progress.bundle, progress.runs[number], number)
        return None if receipt is None else receipt.to_json()

    def _from(self, number: int) -> list[Any]:
        """Decided chapters from ``number`` on, as many as an answer has room for."""
        chapters = [list(known) for known in self.known[number - 1 : number - 1 + AT_ONCE]]
        while len(chapters) > 1 and len(codec.dump({"decided": chapters})) > MESSAGE:
            chapters.pop()
        return chapters

    # Questions

    def words(self, kind: type[ms.Message], **fields: Any) -> bytes:
        """A message as it travels."""
        return ms.encode(kind(**ms.head(self.progress.network.name, self.run_id), **fields))

    async def _exchange(self, peer: int, message: bytes) -> dict[str, Any]:
        """The answer, empty if there is no good one."""
        limits = self.progress.network.limits
        try:
            data = await self.progress.transport.tell(peer, message, limits.connect)
            return codec.parse(data, MESSAGE)
        except (UnwalkError, TimeoutError, OSError):
            return {}

    async def ask(self, peer: int, message: bytes, field: str) -> Any:
        """The answer's ``field``, or None if there is no good answer."""
        return (await self._exchange(peer, message)).get(field)

    async def ask_all(self, message: bytes, field: str) -> dict[int, Any]:
        """The answers of all others who answer."""
        progress = self.progress
        others = [p for p in range(len(progress.network.peers)) if p != progress.me]
        answers = await asyncio.gather(*(self.ask(p, message, field) for p in others))
        return {p: a for p, a in zip(others, answers, strict=True) if a is not None}

    def propose(self, spec: Spec | None) -> None:
        """What this peer would have decided for the next number; nothing any more if None."""
        wish = None if spec is None else self.write(spec)
        if wish != self.wish:
            self.wish = wish
            if wish is not None:
                self.written.add(digest_of(wish))
                self.progress.store.fault("chapter proposed")

    def offered(self) -> list[Spec]:
        """The chapters that others would have decided for the next number, and this peer too."""
        number, specs = len(self.known) + 1, []
        for text in self.poll.offers.values():
            if self._judge(text, False):
                specs.append(self.read(number, text).spec)
        return specs

    def hear_of_more(self) -> None:
        """Somebody knows of chapters that are not known here: ask, but not at every message."""
        if monotonic() - self.asked >= SELDOM:
            self.asked = monotonic()
            self.progress.later(self.catch_up())

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
            before = len(self.known)
            number = max(before, 1)  # the last one that is known too: others may know another
            answers = await self.ask_all(self.words(ms.AgendaAsk, number=number), "decided")
            for news in answers.values():
                self._take_in(number, news)
            if len(self.known) == before:
                return

    def _take_in(self, number: int, news: Any) -> None:
        """Decided chapters from ``number`` on, as somebody shows them."""
        try:
            for place, item in enumerate(news if isinstance(news, list) else []):
                if not isinstance(item, list) or len(item) != 2:
                    raise Corrupt("a decided chapter is not shown with its votes.")
                self.learn(number + place, *item)
        except UnwalkError as error:
            self.progress.journal.write("refused", reason=str(error)[:300])

    async def inform(self, peer: int, number: int) -> None:
        """Tell a peer that is behind of the chapters from ``number`` on."""
        if monotonic() - self.told.get(peer, -10.0) < 1.0:
            return
        self.told[peer] = monotonic()
        for place, (text, decision) in enumerate(self._from(number)):
            fields = {"number": number + place, "value": text, "decision": decision}
            await self.ask(peer, self.words(ms.AgendaDecided, **fields), "decided")

    async def have_end(self, number: int) -> Closing | None:
        """What stays of how a chapter ended, asked for if need be; None while nobody shows it."""
        progress, run = self.progress, self.progress.runs[number]
        known = history.end_decision(progress.store, run)
        if known is not None:
            return closing_from(known[0])
        message = self.words(ms.AgendaEnd, number=number)
        for peer, shown in (await self.ask_all(message, "end")).items():
            try:
                if not isinstance(shown, list) or len(shown) != 2:
                    raise Corrupt("an end is not shown with its votes.")
                with codec.reading("an end"):
                    closing = read_end(progress.trust, number, self.specs, *shown)
            except UnwalkError as error:
                progress.journal.refused(peer, error)
                continue
            history.put_end(progress.store, run, closing.text, shown[1])
            return closing
        return None

    async def ask_who_left(self, peer: int, leavers: Iterable[int]) -> None:
        """Have a peer that counts others out show their own word that they left."""
        if self.hearing:
            return
        self.hearing = True
        try:
            for leaver in leavers:
                message = self.words(ms.AgendaLeaver, number=0, peer=leaver)
                record = await self.ask(peer, message, "receipt")
                if record is not None:
                    self._hear_told(peer, leaver, record)
        finally:
            self.hearing = False

    def _hear_told(self, peer: int, leaver: int, record: Any) -> None:
        """A peer shows another's word that it left: signed with a certificate that is good now."""
        progress = self.progress
        try:
            with codec.reading("a receipt"):
                progress.trust.identity(Receipt.from_json(record).certificate)
                self.hear_left(leaver, record)
        except UnwalkError as error:
            progress.journal.refused(peer, error)

    async def fetch_visits(self, number: int, count: int, base: int) -> bool:
        """Ask one peer after the other for a chapter's visits; whether all ``count`` are here now.

        They have to be those that the peers decided on when the chapter ended.  Each peer has so
        much time for all of them; who is slow, or wrong, is asked last the next time.
        """
        progress, limits = self.progress, self.progress.network.limits
        run, closing = progress.runs[number], await self.have_end(number)
        if closing is None:
            return False
        for peer in list(self.sources):
            try:
                async with asyncio.timeout(limits.connect + A_VISIT * count):
                    visits = await self._visits_from(peer, number, count, base)
                if len(visits) >= count and visits_digest(visits) != closing.visits:
                    raise Refused("those visits are not the ones that were decided on.")
            except UnwalkError as error:
                progress.journal.refused(peer, error)
            except TimeoutError:
                progress.journal.refused(peer, Refused("its visits did not come in time."))
            else:
                if len(visits) == count:
                    history.put_visits(progress.store, run, visits)
                    return True
            self.sources.remove(peer)
            self.sources.append(peer)
        return False

    async def _visits_from(
        self, peer: int, number: int, count: int, base: int
    ) -> list[dict[str, Any]]:
        """The visits that a peer shows of a chapter, each looked at as it comes; all, if it can."""
        progress, run = self.progress, self.progress.runs[number]
        visits: list[dict[str, Any]] = []
        while len(visits) < count:
            message = self.words(ms.AgendaVisits, number=number, after=len(visits))
            page = await self.ask(peer, message, "visits")
            if not page:
                break
            for visit in codec.listed(page, "visits", most=PAGE):
                place = len(visits) + 1
                with codec.reading("a visit"):
                    history.check_visit(progress.trust, visit, run, base + place)
                    if len(canonical(visit["visit"])) > longest(place):
                        raise Corrupt(f"visit {place} is too long.")
                visits.append(visit)
        return visits
