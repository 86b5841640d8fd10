"""What follows a chapter's end at one peer, and what leads to the next: requests, step by step.

Every step is idempotent and begins with what is on disk, so that a peer that dies anywhere goes on
where it was.  The named points (``store.fault``) are those that tests kill a peer at.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from unwalk.certificates.document import FILE
from unwalk.core.errors import Corrupt, InvalidInput, Refused, UnwalkError
from unwalk.core.refusals import advised
from unwalk.core.transcript import Transcript
from unwalk.peers import attest, codec, history
from unwalk.peers.agenda import MOST_REQUESTS, Spec, line, run_of
from unwalk.peers.closing import visits_digest
from unwalk.peers.erasure import Kept, Receipt, erase_since, receipt_of
from unwalk.peers.forgetting import first_visit, walked
from unwalk.peers.identity import now
from unwalk.peers.leaving import LEAVING as LEAVING
from unwalk.peers.leaving import Leaving
from unwalk.peers.quiet import Quiet
from unwalk.peers.register import was_released
from unwalk.peers.requests import Batch, Request

if TYPE_CHECKING:
    from unwalk.peers.chapters import Chapters

AGAIN = 2.0
"""Seconds before peers whose receipt is missing are asked again, at most."""
SELDOM = 60.0
"""Seconds before a certificate that does not verify is looked at again."""
VANISHED = "vanished/"
"""Facts that name the request with which a peer is given up, by that peer's number."""
GONE = "the token from before the records were used is gone"


class NotYet(Exception):
    """The model that a chapter goes on from is on its way to this peer."""


def exactly(request: Request, method: str | None = None) -> Request:
    """The same request, answered by more than was asked for."""
    return replace(request, grade="exact", epsilon=None, delta=None, method=method)


class Aftermath:
    """Requests and erasure of one peer."""

    def __init__(self, chapters: Chapters) -> None:
        self.chapters = chapters
        self.receipted: set[int] = set()
        self.complete: set[int] = set()
        self.again: dict[int, float] = {}
        self.doubted: dict[str, float] = {}
        self.asked: dict[int, float] = {}
        self.quiet, self.leaving = Quiet(self), Leaving(self)
        for spec in chapters.specs:
            self.begun(spec)

    def begun(self, spec: Spec) -> None:
        """A chapter was decided: if it is this peer's, its requests are under way."""
        requests = self.chapters.requests
        if requests is None or spec.peer != self.chapters.me or spec.vanished or spec.void:
            return
        known = [r for name in spec.requests if (r := requests.get(name)) is not None]
        waiting = [r.id for r in known if r.stage in ("received", "waiting", "walking")]
        requests.advance(waiting, "walking", chapter=spec.number)

    def given_up(self, spec: Spec) -> None:
        """A chapter came to nothing: if it was this peer's, its requests wait for another."""
        requests = self.chapters.requests
        if requests is not None and spec.peer == self.chapters.me:
            requests.put_back(spec.number)

    async def step(self) -> None:
        """Do what can be done now."""
        for number in self._over():
            if number not in self.receipted and self._has_successor(number):
                try:
                    erased = await self._erase(number)
                except InvalidInput as error:  # somebody reads the database just now
                    self.chapters.journal.write("not erased yet", reason=str(error)[:300])
                    return
                if erased:
                    self.receipted.add(number)
        if self.chapters.requests is None:
            return
        for number in self._over():
            if number not in self.complete and self._spec(number).holder == self.chapters.me:
                await self._conclude(number)
        await self.quiet.step()
        if not await self.leaving.step():
            await self._next()

    def _over(self) -> list[int]:
        """Chapters of forgetting that are committed."""
        chapters = self.chapters
        last = len(chapters.specs) - (0 if chapters.over else 1)
        return [number for number in range(1, last + 1) if not self._spec(number).void]

    def _spec(self, number: int) -> Spec:
        return self.chapters.specs[number - 1]

    # Erasure, at every peer

    def _has_successor(self, number: int) -> bool:
        """Whether the model that forgot is here, or a later one: nothing is erased without it."""
        chapters = self.chapters
        later = range(number, len(chapters.specs) + 1)
        return any(chapters.final(n) is not None for n in later)

    async def _erase(self, number: int) -> bool:
        """Erase all that is left of the walk since first contact, and sign that; whether it is.

        What the chapter ended with stands in the receipt, and is asked for if this peer was away.
        Own records stay, also where the chapter says that this peer has vanished: they go only
        when its own organisation asks.
        """
        chapters, store = self.chapters, self.chapters.store
        if receipt_of(store, chapters.runs[number], number) is not None:
            return True
        closing = await chapters.council.have_end(number)
        if closing is None:
            return False
        for earlier in {n for n, _ in chapters.line(number)}:
            await self.have_visits(earlier)
        spec = self._spec(number)
        if spec.vanished and spec.peer == chapters.me:
            chapters.journal.write("voted out", chapter=number, by=spec.holder)
        gone, runs = chapters.runs[:number], chapters.runs[number:]
        specs = chapters.specs[:number]
        valid = history.valid_arrivals(store, chapters.runs, specs, chapters.book.hops)
        keep = {arrival.token for arrival in valid}
        for run in runs:
            keep |= {arrival.token for arrival in store.arrivals(run)}
            keep |= store.named(run)
        history.forget_runs(store, gone)
        store.fault("runs forgotten")
        receipt = erase_since(
            store,
            chapters.bundle,
            chapters.runs[number],
            number,
            keep=keep,
            kept=[Kept(run) for run in gone],
            end=closing.digest,
        )
        store.archive(chapters.service.run_id)
        chapters.journal.write("erased", chapter=number, files=len(receipt.erased))
        return True

    async def have_line(self) -> bool:
        """See to it that all visits on the line that leads to the present model are here."""
        chapters = self.chapters
        for number in {n for n, _ in line(chapters.book.hops, chapters.specs)}:
            if not await self.have_visits(number):
                return False
        return True

    async def have_visits(self, number: int) -> bool:
        """See to it that all committed visits of a chapter are here, and how it ended."""
        chapters = self.chapters
        if await chapters.council.have_end(number) is None:
            return False
        spec = None if number == 0 else self._spec(number)
        count = chapters.book.hops if spec is None else spec.hops
        if history.count_visits(chapters.store, chapters.runs[number]) == count:
            return True
        base = 0 if spec is None else spec.before
        return await chapters.council.fetch_visits(number, count, base)

    async def _have_all(self, number: int) -> bool:
        """See to it that all is here that the certificate of a chapter rests on."""
        for chapter in sorted({n for n, _ in self.chapters.line(number)} | {number}):
            if not await self.have_visits(chapter):
                return False
        return True

    def ends(self, places: Sequence[tuple[int, int]]) -> tuple[attest.ShownEnd, ...]:
        """How the chapters ended that ``places`` lie in, as a certificate shows it."""
        chapters, found = self.chapters, list[attest.ShownEnd]()
        for number, count in sorted(Counter(chapter for chapter, _ in places).items()):
            known = history.end_decision(chapters.store, chapters.runs[number])
            assert known is not None
            visits = history.visits_of(chapters.store, chapters.runs[number], count)
            found.append((number, *known, visits_digest(visits)))
        return tuple(found)

    # The requests of this peer's own chapters

    async def _conclude(self, number: int) -> None:
        """The forgotten model is committed: erase the records, gather receipts, certify."""
        chapters, requests, records = self.chapters, self.chapters.requests, self.chapters.records
        assert requests is not None
        assert records is not None
        if self._spec(number).vanished:
            if await self._have_all(number):
                await self._certify(number, Batch((), ()))
            return
        batch = requests.of_chapter(number)
        by_stage: dict[str, list[str]] = {}
        for request in batch.requests:
            by_stage.setdefault(request.stage, []).append(request.id)
        if "walking" in by_stage:
            requests.advance(by_stage["walking"], "committed")
            chapters.store.fault("request committed")
            batch = requests.of_chapter(number)
        if any(r.stage == "committed" for r in batch.requests):
            if not await self.erase_records(batch):
                return
            requests.advance([r.id for r in batch.requests if r.stage == "committed"], "erasing")
            chapters.store.fault("request erasing")
        if not await self._have_all(number):
            return
        await self._certify(number, requests.of_chapter(number))

    async def erase_records(self, batch: Batch) -> bool:
        """Erase the records of a batch; False where that has to be tried again."""
        records = self.chapters.records
        assert records is not None
        before = records.trouble
        if await asyncio.to_thread(records.try_erase, batch.records):
            return True
        if records.trouble != before:
            self.chapters.journal.write("records", reason=records.trouble)
        return False

    async def _certify(self, number: int, batch: Batch) -> None:
        chapters, requests = self.chapters, self.chapters.requests
        assert requests is not None
        known = await self.receipts(number)
        name = f"chapter-{number}"
        place = chapters.bundle.store / attest.FOLDER / name / FILE
        document = attest.intact(place)
        if document is None or len(document["peers"]["receipts"]) != len(known):
            transcript, visits = self.transcript(number)
            spec, places = self._spec(number), self._places(number)
            facts = attest.Facts(
                number,
                chapters.runs[number],
                spec.requests,
                0 if spec.method == "restart" else spec.position,
                known,
                tuple(chapters.council.known[:number]),
                self.ends(places),
            )
            issued = now().isoformat(timespec="seconds")
            document = await asyncio.to_thread(  # long walks: meanwhile the peer answers others
                attest.issue, chapters.bundle, name, transcript, visits, facts, issued
            )
            chapters.store.fault("certificate written")
            chapters.journal.write(
                "certificate", chapter=number, to=name, pending=document["peers"]["pending"]
            )
            open_ = [r.id for r in batch.requests if r.stage == "erasing"]
            requests.advance(open_, "erasing", certificate=name)
        open_ = [r.id for r in batch.requests if r.stage == "erasing"]
        if not document["peers"]["pending"] and await self.verifies(name, open_):
            requests.advance(open_, "done", certificate=name)
            chapters.store.fault("request done")
            self.complete.add(number)

    async def verifies(self, name: str, ids: Sequence[str]) -> bool:
        """Whether a certificate of this peer's own does; if not, its requests say why."""
        chapters, requests = self.chapters, self.chapters.requests
        assert requests is not None
        if monotonic() < self.doubted.get(name, 0.0):
            return False
        bundle = chapters.bundle
        place = bundle.store / attest.FOLDER / name / FILE
        files = bundle.folder / "ca.pem", bundle.folder / "network.json"
        try:
            found = await asyncio.to_thread(attest.verified, place, *files)
            problems = found["problems"]
        except UnwalkError as error:
            problems = [str(error)]
        if not problems:
            return True
        self.doubted[name] = monotonic() + SELDOM
        why = f"the certificate {name} was issued, but does not verify: {problems[0]}"
        requests.advance(ids, "erasing", reason=why[:300])
        chapters.journal.write("certificate does not verify", to=name, reason=why[:300])
        return False

    async def receipts(self, number: int) -> dict[str, dict[str, Any]]:
        """Receipts that are here, after asking those whose receipt is missing."""
        chapters = self.chapters
        known = history.receipts_of(chapters.store, number)
        own = receipt_of(chapters.store, chapters.runs[number], number)
        if own is not None:
            known[chapters.bundle.name] = own.to_json()
        known = {**history.receipts_of(chapters.store, history.LEAVERS), **known}
        if monotonic() < self.again.get(number, 0.0):
            return known
        closing = await chapters.council.have_end(number)
        if closing is None:
            return known
        missing = [n for n, p in enumerate(chapters.network.peers) if p.name not in known]
        message = chapters.council.words("agenda-receipt", number=number)
        asked = [p for p in missing if p != chapters.me]
        found = await asyncio.gather(*(chapters.council.ask(p, message, "receipt") for p in asked))
        for peer, record in zip(asked, found, strict=True):
            if record is None:
                continue
            try:
                run = chapters.runs[number]
                with codec.reading("a receipt"):
                    receipt = Receipt.from_json(record)
                    signer = receipt.check(
                        chapters.trust, run=run, chapter=number, end=closing.digest
                    )
                if signer != peer:
                    raise Refused(f"peer {peer} sent a receipt of peer {signer}.")
            except UnwalkError as error:
                chapters.journal.refused(peer, error)
                continue
            history.put_receipt(chapters.store, number, receipt.peer, record)
            known[receipt.peer] = record
            chapters.store.fault("receipt kept")
        self.again[number] = monotonic() + min(chapters.network.limits.lease, AGAIN)
        return known

    def transcript(self, number: int) -> tuple[Transcript, list[dict[str, Any]]]:
        """What a chapter's certificate is made from, and the same as it was signed."""
        chapters, spec = self.chapters, self._spec(number)
        plan = chapters.book.forgetting(spec, chapters.runs[number], chapters.specs[: number - 1])
        places = self._places(number)
        visits = chapters.visits(places)
        signed = [visits[chapter][place - 1] for chapter, place in places]
        header = plan.header()
        first = visits[number][0]["visit"]["receiver"]
        if spec.method == "rewind" and not spec.vanished and first != spec.peer:
            header["recovered"] = True
        return walked(header, places, visits), signed

    def _places(self, number: int) -> list[tuple[int, int]]:
        """The visits that the certificate of a chapter rests on."""
        own = [(number, k) for k in range(1, self._spec(number).hops + 1)]
        return self.chapters.line(number) + own

    # The next chapter

    async def _next(self) -> None:
        chapters, requests = self.chapters, self.chapters.requests
        assert requests is not None
        received = [r.id for r in requests.at("received")]
        if received:
            requests.advance(received, "waiting")
        if not chapters.over or len(chapters.council.decided()) > len(chapters.specs):
            return
        batch = requests.batch(MOST_REQUESTS)
        gone = None if batch is not None else self._vanished()
        if batch is None and gone is None:
            chapters.council.propose(None)
            return
        if not await self.have_line():
            return
        if batch is None:
            assert gone is not None
            told = self.without(*gone)
            chapters.council.propose(None if self._leaves_to_others(told) else told)
            return
        try:
            spec = self.plan(batch)
        except NotYet:
            return
        except (Refused, InvalidInput, Corrupt) as error:
            why = advised(error) if isinstance(error, Refused) else str(error)
            requests.advance(batch.ids, "refused", reason=why)
            chapters.journal.write(
                "request refused", requests=list(batch.ids), why=str(error)[:300]
            )
            return
        if spec is None:
            requests.advance(batch.ids, "committed", chapter=0)
            chapters.wake.set()
            return
        if chapters.stands_for(spec):
            chapters.council.propose(spec)

    def _leaves_to_others(self, spec: Spec) -> bool:
        """Whether somebody else may go back less far for a vanished peer than this one can."""
        chapters = self.chapters
        first = self.asked.setdefault(spec.peer, monotonic())
        if spec.method == "rewind":
            return False
        return monotonic() - first < chapters.network.limits.lease or any(
            other.vanished and other.peer == spec.peer and other.method == "rewind"
            for other in chapters.council.offered()
        )

    def told_vanished(self, peer: int) -> bool:
        """Whether this peer's own operator has said that another has vanished."""
        records = self.chapters.records
        return records is not None and bool(records.fact(f"{VANISHED}{peer}"))

    def _vanished(self) -> tuple[int, str] | None:
        """A peer that this one was told has vanished, and under which name that was asked."""
        chapters = self.chapters
        assert chapters.records is not None
        answered = {spec.peer for spec in chapters.specs if spec.vanished and not spec.void}
        for peer in range(len(chapters.network.peers)):
            name = chapters.records.fact(f"{VANISHED}{peer}")
            if name and peer not in answered:
                return peer, name
        return None

    def without(self, peer: int, name: str) -> Spec:
        """The chapter that forgets a vanished peer: from the token that it first got, if here."""
        chapters = self.chapters
        places = line(chapters.book.hops, chapters.specs)
        visits = chapters.visits(places)
        position, method = first_visit(peer, places, visits), "rewind"
        if position is None or not self._has_token(position, peer):
            position, method = 0, "restart"
        if "rewind" not in chapters.book.ways("exact", None):
            position, method = 0, "restart"
        return Spec(
            number=len(chapters.specs) + 1,
            peer=peer,
            method=method,
            grade="exact",
            epsilon=None,
            delta=None,
            requests=(name,),
            records=0,
            before=len(places),
            position=position,
            hops=chapters.book.hops_of(method, len(places), position),
            holder=chapters.me,
            after=chapters.present,
            left=tuple(sorted({*chapters.counted_out, peer} - {chapters.me})),
        )

    def plan(self, batch: Batch) -> Spec | None:
        """The chapter that answers a batch; None where nothing has to be walked."""
        chapters, me = self.chapters, self.chapters.me
        assert chapters.records is not None
        places = line(chapters.book.hops, chapters.specs)
        visits = chapters.visits(places)
        first = first_visit(me, places, visits)
        oldest: Request = batch.requests[0]
        records, used = chapters.records, batch.records
        leaver = {me} if self.leaving.request in batch.ids else set()
        if records.first_use(used, places) is None:
            erased = chapters.present and chapters.present == len(chapters.specs)
            if erased or records.first_use(used) is None:
                return None
            # A walk that was dropped used them: only a new beginning is sure to be without.
            oldest, first = exactly(oldest, "restart"), 0
        assert first is not None
        if oldest.grade == "certified" and was_released(chapters.bundle, used):
            # A chapter that was given up may have shown noise for them: none is drawn again.
            oldest = exactly(oldest)
        for method in chapters.book.ways(oldest.grade, oldest.method):
            position = 0 if method == "restart" else first
            spec = Spec(
                number=len(chapters.specs) + 1,
                peer=me,
                method=method,
                grade=oldest.grade,
                epsilon=oldest.epsilon,
                delta=oldest.delta,
                requests=batch.ids,
                records=len(batch.records),
                before=len(places),
                position=position,
                hops=chapters.book.hops_of(method, len(places), position),
                holder=me,
                after=chapters.present,
                left=tuple(sorted(chapters.counted_out - {me} | leaver)),
            )
            if method == "rewind" and not self._has_token(position, me):
                continue
            if method == "seal" and chapters.model(spec.number) is None:
                raise NotYet
            if method == "seal":
                run = run_of(chapters.network.run_id, spec)
                header = chapters.book.forgetting(spec, run, chapters.specs).header()
                before = walked(header, places, visits)
                chapters.book.forgetting(spec, run, chapters.specs, before)
            return spec
        raise Refused(f"{GONE}, and {oldest.method} needs it.", "token-gone")

    def _has_token(self, position: int, peer: int) -> bool:
        chapters = self.chapters
        found = history.find_arrival(chapters.store, chapters.runs, chapters.specs, peer, position)
        return found is not None
