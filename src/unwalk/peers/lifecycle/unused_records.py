"""Answers requests for records that the present model never used: erasure and certificate, no walk.

Records that are held out are never trained on; others left the line when a chapter went back to
before they were used, and what knew them was erased then.  Either way the records are erased, and
a certificate says that no visit on the line used them, with the receipts of the last chapter.
"""

from __future__ import annotations

from typing import Any

from unwalk.certificates.document import FILE
from unwalk.core.errors import UnwalkError
from unwalk.core.transcript import Transcript
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.plans import silent_spec, walked
from unwalk.peers.forgetting.requests import Request
from unwalk.peers.identity.credentials import now
from unwalk.peers.lifecycle.certifying import Certifying
from unwalk.peers.lifecycle.next_chapter import NextChapter
from unwalk.peers.lifecycle.progress import Progress
from unwalk.peers.protocol.schedule import MOST_REQUESTS, line

CHAPTER = 0
"""The chapter that such requests are put down under: training is all that ever happened."""


class UnusedRecords:
    """What is left to do for such requests at one peer."""

    def __init__(
        self, progress: Progress, next_chapter: NextChapter, certifying: Certifying
    ) -> None:
        self.progress, self.next_chapter, self.certifying = progress, next_chapter, certifying
        self.complete: set[str] = set()

    async def step(self) -> None:
        """Erase, certify, and issue again as receipts come in."""
        requests = self.progress.requests
        assert requests is not None
        stages = ("committed", "erasing")
        open_ = [r for s in stages for r in requests.at(s, MOST_REQUESTS) if r.chapter == CHAPTER]
        fresh = [r for r in open_ if r.certificate is None]
        issued = peer_certificate.names_in(self.progress.bundle.store / peer_certificate.FOLDER)
        quiet = {name for name in issued if name.startswith(peer_certificate.QUIET)}
        wanting = {r.certificate for r in open_ if r.certificate is not None}
        for name in sorted(wanting | quiet - self.complete):
            asked = [r for r in open_ if r.certificate == name]
            if not await self._again(name, asked):
                fresh += asked  # its files were changed: they need another
                self.complete.add(name)
        if fresh:
            await self._certify(sorted(fresh, key=lambda r: r.number))

    async def _certify(self, fresh: list[Request]) -> None:
        progress = self.progress
        requests = progress.requests
        assert requests is not None
        batch, records = requests.batch_of(fresh), progress.records
        assert records is not None
        if not progress.over or not await self.certifying.have_line():
            return  # while a chapter is under way the line is not what it will be
        held_out = records.held_out(batch.records)
        if not await self.certifying.erase_records(batch):
            return
        requests.advance(batch.ids, "erasing")
        progress.store.fault("request erasing")
        places = line(progress.book.hops, progress.specs)
        visits = progress.visits(places)
        last = progress.present
        run, earlier = progress.runs[last], progress.specs[:last]
        count = sum(r.records for r in batch.requests)
        spec = silent_spec(earlier, len(places), progress.me, batch.ids, count)
        header = progress.book.quiet(spec, run, earlier).header()
        signed = [visits[chapter][place - 1] for chapter, place in places]
        known = await self.certifying.receipts(last) if last else {}
        facts = peer_certificate.Facts(
            last,
            run,
            batch.ids,
            len(places),
            known,
            tuple(self.next_chapter.known[:last]),
            self.certifying.ends(places),
            decided=False,
            silent=not last,
            held_out=held_out,
            received=batch.received,
        )
        name = f"{peer_certificate.QUIET}{batch.requests[0].number}"
        issued = now().isoformat(timespec="seconds")
        peer_certificate.issue(
            progress.bundle, name, walked(header, places, visits), signed, facts, issued
        )
        progress.store.fault("certificate written")
        requests.advance(batch.ids, "erasing", certificate=name)

    async def _again(self, name: str, asked: list[Request]) -> bool:
        """Issue a certificate again if it would say more, or something said there does not count
        any more; False where it was changed.
        """
        progress = self.progress
        requests = progress.requests
        assert requests is not None
        place, ids = progress.bundle.store / peer_certificate.FOLDER / name, [r.id for r in asked]
        document = peer_certificate.own(progress.bundle, place / FILE)
        if document is None or not set(ids) <= set(document["peers"]["requests"]):
            return False
        stated = document["peers"]
        chapter, run, known = stated["chapter"], stated["run"], dict[str, dict[str, Any]]()
        if chapter:
            known = await self.certifying.receipts(chapter)
        if not peer_certificate.states(progress.bundle, document, run, stated["requests"], known):
            try:
                transcript = Transcript.read(place / peer_certificate.TRANSCRIPT)
                visits = peer_certificate.read_visits(place / peer_certificate.VISITS)
            except (UnwalkError, OSError, UnicodeError):
                return False
            facts = peer_certificate.Facts(
                chapter,
                run,
                tuple(stated["requests"]),
                stated["erased_after_hop"],
                known,
                tuple((text, decision) for text, decision in stated["decisions"]),
                tuple(tuple(end) for end in stated["ends"]),
                decided=False,
                silent=not chapter,
                held_out=stated.get("held_out"),
                received=tuple(stated.get("received", ())),
            )
            document = peer_certificate.issue(
                progress.bundle, name, transcript, visits, facts, stated["issued"]
            )
        if document["peers"]["pending"]:
            return True
        if ids and await self.certifying.verifies(name, ids):
            why = f"{peer_certificate.unused(document)}: nothing had to be walked"
            requests.advance(ids, "done", reason=why)
            progress.store.fault("request done")
        self.complete.add(name)
        return True
