"""Takes deletion requests step by step: proposed as a chapter, erased, receipted, certified.

Every step is idempotent and begins with what is on disk, so that a peer that dies anywhere goes on
where it was.  The named points (``store.fault``) are those that tests kill a peer at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

from unwalk.certificates.document import FILE, claims_of
from unwalk.core.errors import Corrupt, InvalidInput, Refused
from unwalk.core.grades import advised
from unwalk.core.transcript import Transcript
from unwalk.peers.decisions import history
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.erasure import erase_since, receipt_of
from unwalk.peers.forgetting.plans import EXACT, first_visit, for_peers, visits_at, walked
from unwalk.peers.forgetting.requests import Batch, Request
from unwalk.peers.identity.credentials import now
from unwalk.peers.lifecycle.certifying import Certifying
from unwalk.peers.lifecycle.leaving import Leaving
from unwalk.peers.lifecycle.next_chapter import NextChapter
from unwalk.peers.lifecycle.progress import VANISHED, Progress
from unwalk.peers.lifecycle.unused_records import UnusedRecords
from unwalk.peers.protocol.schedule import MOST_REQUESTS, Spec, line, run_of
from unwalk.peers.records.noise_register import was_released

INSTEAD = {
    "rewind": "ask for the same with --method restart, a walk from the initial model",
    "restart": "ask for the same again",
}
"""What to ask for where a walk does not prove what it should, by method."""
GONE = "the token from before the records were used is gone"


class NotYet(Exception):
    """The model that a chapter goes on from is on its way to this peer."""


def exactly(request: Request, method: str | None = None) -> Request:
    """The same request, answered by more than was asked for."""
    return replace(request, grade="exact", epsilon=None, delta=None, method=method)


class RequestSteps:
    """Requests and erasure of one peer."""

    def __init__(
        self,
        progress: Progress,
        next_chapter: NextChapter,
        certifying: Certifying,
        stands_for: Callable[[Spec], bool],
        stop: Callable[[], None],
    ) -> None:
        self.progress, self.next_chapter, self.certifying = progress, next_chapter, certifying
        self.stands_for = stands_for
        self.receipted: set[int] = set()
        self.complete: set[int] = set()
        self.asked: dict[int, float] = {}
        self.network = progress.trust.network
        self.quiet = UnusedRecords(progress, next_chapter, certifying)
        self.leaving = Leaving(progress, next_chapter, stop)
        for spec in progress.specs:
            self.begun(spec)

    def begun(self, spec: Spec) -> None:
        """A chapter was decided: if it is this peer's, its requests are under way."""
        requests = self.progress.requests
        if requests is None or spec.peer != self.progress.me or spec.vanished or spec.void:
            return
        known = [r for name in spec.requests if (r := requests.get(name)) is not None]
        waiting = [r.id for r in known if r.stage in ("received", "waiting", "walking")]
        requests.advance(waiting, "walking", chapter=spec.number)

    def given_up(self, spec: Spec) -> None:
        """A chapter came to nothing: if it was this peer's, its requests wait for another."""
        requests = self.progress.requests
        if requests is not None and spec.peer == self.progress.me:
            requests.put_back(spec.number)

    async def step(self) -> None:
        """Do what can be done now."""
        if self.network is not self.progress.trust.network:  # it may have revoked receipts
            self.network = self.progress.trust.network
            self.complete.clear()
            self.quiet.complete.clear()
        for number in self._over():
            if number not in self.receipted and self._has_successor(number):
                try:
                    erased = await self._erase(number)
                except InvalidInput as error:  # somebody reads the database just now
                    self.progress.journal.write("not erased yet", reason=str(error)[:300])
                    return
                if erased:
                    self.receipted.add(number)
        if self.progress.requests is None:
            return
        for number in self._over():
            if number not in self.complete and self._spec(number).holder == self.progress.me:
                await self._conclude(number)
        await self.quiet.step()
        if not await self.leaving.step():
            await self._next()

    def _over(self) -> list[int]:
        """Chapters of forgetting that are committed."""
        progress = self.progress
        last = len(progress.specs) - (0 if progress.over else 1)
        return [number for number in range(1, last + 1) if not self._spec(number).void]

    def _spec(self, number: int) -> Spec:
        return self.progress.specs[number - 1]

    # Erasure, at every peer

    def _has_successor(self, number: int) -> bool:
        """Whether the model that forgot is here, or a later one: nothing is erased without it."""
        progress = self.progress
        later = range(number, len(progress.specs) + 1)
        return any(progress.final(n) is not None for n in later)

    async def _erase(self, number: int) -> bool:
        """Erase all that is left of the walk since first contact, and sign that; whether it is.

        What the chapter ended with stands in the receipt, and is asked for if this peer was away.
        Own records stay, also where the chapter says that this peer has vanished: they go only
        when its own organisation asks.
        """
        progress, store = self.progress, self.progress.store
        if receipt_of(store, progress.bundle, progress.runs[number], number) is not None:
            return True
        closing = await self.next_chapter.have_end(number)
        if closing is None:
            return False
        for earlier in {n for n, _ in progress.line(number)}:
            await self.certifying.have_visits(earlier)
        spec = self._spec(number)
        if spec.vanished and spec.peer == progress.me:
            progress.journal.write("voted out", chapter=number, by=spec.holder)
        gone, runs = progress.runs[:number], progress.runs[number:]
        specs = progress.specs[:number]
        valid = history.valid_arrivals(store, progress.runs, specs, progress.book.hops)
        keep = {arrival.token for arrival in valid}
        for run in runs:
            keep |= {arrival.token for arrival in store.arrivals(run)}
            keep |= store.named(run)
        history.forget_runs(store, gone)
        store.fault("runs forgotten")
        receipt = erase_since(
            store,
            progress.bundle,
            progress.runs[number],
            number,
            keep=keep,
            runs=gone,
            end=closing.digest,
        )
        store.archive(progress.service.run_id)
        progress.journal.write("erased", chapter=number, files=len(receipt.erased))
        return True

    # The requests of this peer's own chapters

    async def _conclude(self, number: int) -> None:
        """The forgotten model is committed: erase the records, gather receipts, certify."""
        progress, requests, records = self.progress, self.progress.requests, self.progress.records
        assert requests is not None
        assert records is not None
        if self._spec(number).vanished:
            if await self.certifying.have_all(number):
                await self._certify(number, Batch((), ()))
            return
        batch = requests.of_chapter(number)
        by_stage: dict[str, list[str]] = {}
        for request in batch.requests:
            by_stage.setdefault(request.stage, []).append(request.id)
        if batch.requests and by_stage.keys() == {"refused"}:
            self.complete.add(number)
            return
        if "walking" in by_stage:
            if not await self.certifying.have_all(number):
                return
            if (why := await self._unproved(number, batch)) is not None:
                requests.advance(by_stage["walking"], "refused", reason=why)
                progress.journal.write("request refused", requests=batch.ids, why=why[:300])
                return
            requests.advance(by_stage["walking"], "committed")
            progress.store.fault("request committed")
            batch = requests.of_chapter(number)
        if any(r.stage == "committed" for r in batch.requests):
            if not await self.certifying.erase_records(batch):
                return
            requests.advance([r.id for r in batch.requests if r.stage == "committed"], "erasing")
            progress.store.fault("request erasing")
        if not await self.certifying.have_all(number):
            return
        await self._certify(number, requests.of_chapter(number))

    async def _unproved(self, number: int, batch: Batch) -> str | None:
        """Why a walk does not prove what was asked for, and what does, before records are erased.

        A peer that leaves takes part no more, so that nothing else can be walked for it.
        """
        if self.leaving.request in batch.ids:
            return None
        transcript, _ = self.transcript(number)
        claims = await asyncio.to_thread(claims_of, transcript)
        short = peer_certificate.falls_short(claims, batch.requests[0])
        if short is None:
            return None
        instead = INSTEAD.get(self._spec(number).method, EXACT)
        return advised(Refused(str(short), short.code, instead))

    async def _certify(self, number: int, batch: Batch) -> None:
        progress, requests = self.progress, self.progress.requests
        assert requests is not None
        known = await self.certifying.receipts(number)
        spec, name = self._spec(number), peer_certificate.chapter_name(number)
        place = progress.bundle.store / peer_certificate.FOLDER / name / FILE
        document = peer_certificate.own(progress.bundle, place)
        wanted = (progress.runs[number], spec.requests, known)
        if document is None or not peer_certificate.states(progress.bundle, document, *wanted):
            transcript, visits = self.transcript(number)
            places = self._places(number)
            facts = peer_certificate.Facts(
                number,
                progress.runs[number],
                spec.requests,
                0 if spec.method == "restart" else spec.position,
                known,
                tuple(self.next_chapter.known[:number]),
                self.certifying.ends(places),
                received=batch.received if batch.ids == spec.requests else (),
            )
            issued = now().isoformat(timespec="seconds")
            document = await asyncio.to_thread(  # long walks: meanwhile the peer answers others
                peer_certificate.issue, progress.bundle, name, transcript, visits, facts, issued
            )
            progress.store.fault("certificate written")
            progress.journal.write(
                "certificate", chapter=number, to=name, pending=document["peers"]["pending"]
            )
            open_ = [r.id for r in batch.requests if r.stage == "erasing"]
            requests.advance(open_, "erasing", certificate=name)
        open_ = [r.id for r in batch.requests if r.stage == "erasing"]
        if not document["peers"]["pending"] and await self.certifying.verifies(name, open_):
            requests.advance(open_, "done", certificate=name)
            progress.store.fault("request done")
            self.complete.add(number)

    def transcript(self, number: int) -> tuple[Transcript, list[dict[str, Any]]]:
        """What a chapter's certificate is made from, and the same as it was signed."""
        progress, spec = self.progress, self._spec(number)
        plan = progress.book.forgetting(spec, progress.runs[number], progress.specs[: number - 1])
        places = self._places(number)
        visits = progress.visits(places)
        signed = [visits[chapter][place - 1] for chapter, place in places]
        header = plan.header()
        first = visits[number][0]["visit"]["receiver"]
        if spec.method == "rewind" and not spec.vanished and first != spec.peer:
            header["recovered"] = True
        return walked(header, places, visits), signed

    def _places(self, number: int) -> list[tuple[int, int]]:
        """The visits that the certificate of a chapter rests on."""
        own = [(number, k) for k in range(1, self._spec(number).hops + 1)]
        return self.progress.line(number) + own

    # The next chapter

    async def _next(self) -> None:
        progress, requests = self.progress, self.progress.requests
        assert requests is not None
        received = [r.id for r in requests.at("received")]
        if received:
            requests.advance(received, "waiting")
        if not progress.over or len(self.next_chapter.decided()) > len(progress.specs):
            return
        batch = requests.batch(MOST_REQUESTS)
        gone = None if batch is not None else self._vanished()
        if batch is None and gone is None:
            self.next_chapter.propose(None)
            return
        if not await self.certifying.have_line():
            return
        if batch is None:
            assert gone is not None
            told = self.without(*gone)
            self.next_chapter.propose(None if self._leaves_to_others(told) else told)
            return
        try:
            spec = self.plan(batch)
        except NotYet:
            return
        except (Refused, InvalidInput, Corrupt) as error:
            why = advised(for_peers(error)) if isinstance(error, Refused) else str(error)
            requests.advance(batch.ids, "refused", reason=why)
            progress.journal.write(
                "request refused", requests=list(batch.ids), why=str(error)[:300]
            )
            return
        if spec is None:
            requests.advance(batch.ids, "committed", chapter=0)
            progress.wake.set()
            return
        if self.stands_for(spec):
            self.next_chapter.propose(spec)

    def _leaves_to_others(self, spec: Spec) -> bool:
        """Whether somebody else may go back less far for a vanished peer than this one can."""
        progress = self.progress
        first = self.asked.setdefault(spec.peer, monotonic())
        if spec.method == "rewind":
            return False
        return monotonic() - first < progress.network.limits.lease or any(
            other.vanished and other.peer == spec.peer and other.method == "rewind"
            for other in self.next_chapter.offered()
        )

    def _vanished(self) -> tuple[int, str] | None:
        """A peer that this one was told has vanished, and under which name that was asked."""
        progress = self.progress
        assert progress.records is not None
        answered = {spec.peer for spec in progress.specs if spec.vanished and not spec.void}
        for peer in range(len(progress.network.peers)):
            name = progress.records.fact(f"{VANISHED}{peer}")
            if name and peer not in answered:
                return peer, name
        return None

    def without(self, peer: int, name: str) -> Spec:
        """The chapter that forgets a vanished peer: from the token that it first got, if here."""
        progress = self.progress
        places = line(progress.book.hops, progress.specs)
        visits = progress.visits(places)
        position, method = first_visit(peer, places, visits), "rewind"
        if position is None or not self._has_token(position, peer):
            position, method = 0, "restart"
        if "rewind" not in progress.book.ways("exact", None, progress.specs):
            position, method = 0, "restart"
        return Spec(
            number=len(progress.specs) + 1,
            peer=peer,
            method=method,
            grade="exact",
            epsilon=None,
            delta=None,
            requests=(name,),
            records=0,
            before=len(places),
            position=position,
            hops=progress.book.hops_of(method, len(places), position),
            holder=progress.me,
            after=progress.present,
            left=tuple(sorted({*progress.counted_out, peer} - {progress.me})),
        )

    def plan(self, batch: Batch) -> Spec | None:
        """The chapter that answers a batch; None where nothing has to be walked."""
        progress, me = self.progress, self.progress.me
        assert progress.records is not None
        places = line(progress.book.hops, progress.specs)
        visits = progress.visits(places)
        first = first_visit(me, places, visits)
        oldest: Request = batch.requests[0]
        records, used = progress.records, batch.records
        leaver = {me} if self.leaving.request in batch.ids else set()
        uses, own = records.uses(used), {places[at] for at in visits_at(me, places, visits)}
        if first is None or own.isdisjoint(uses):
            present = progress.present
            erased = present == len(progress.specs) and all(n < present for n, _ in uses)
            if erased or not uses:
                return None
            # A walk that was dropped used them, and others may have seen its tokens.  Those of the
            # present chapter are still there: only a new beginning is sure to be without.
            oldest, first = exactly(oldest, "restart"), 0
        if oldest.grade == "certified" and was_released(progress.bundle, used):
            # A chapter that was given up may have shown noise for them: none is drawn again.
            oldest = exactly(oldest)
        for method in progress.book.ways(oldest.grade, oldest.method, progress.specs):
            position = 0 if method == "restart" else first
            spec = Spec(
                number=len(progress.specs) + 1,
                peer=me,
                method=method,
                grade=oldest.grade,
                epsilon=oldest.epsilon,
                delta=oldest.delta,
                requests=batch.ids,
                records=len(batch.records),
                before=len(places),
                position=position,
                hops=progress.book.hops_of(method, len(places), position),
                holder=me,
                after=progress.present,
                left=tuple(sorted(progress.counted_out - {me} | leaver)),
            )
            if method == "rewind" and not self._has_token(position, me):
                continue
            if method == "seal" and progress.model(spec.number) is None:
                raise NotYet
            if method == "seal":
                progress.book.check(me, spec.grade, method, spec.records, progress.specs)
                run = run_of(progress.network.run_id, spec)
                header = progress.book.forgetting(spec, run, progress.specs).header()
                before = walked(header, places, visits)
                progress.book.forgetting(spec, run, progress.specs, before)
            return spec
        raise Refused(f"{GONE}, and {oldest.method} needs it.", "token-gone")

    def _has_token(self, position: int, peer: int) -> bool:
        progress = self.progress
        arrival = history.find_arrival(
            progress.store, progress.runs, progress.specs, peer, position, progress.book.hops
        )
        return arrival is not None
