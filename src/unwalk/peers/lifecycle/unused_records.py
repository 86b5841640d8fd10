"""Requests for records that the present model never met: nothing to walk, all the rest to do.

Records that are held out are never trained on; others left the line when a chapter went back to
before they were used, and what knew them was erased then.  Either way the records are erased, and
a certificate says that no visit on the line used them, with the receipts of the last chapter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwalk.certificates.document import FILE, read_certificate
from unwalk.core.transcript import Transcript
from unwalk.peers.forgetting import peer_certificate as attest
from unwalk.peers.forgetting.plans import silent_spec, walked
from unwalk.peers.forgetting.requests import Request
from unwalk.peers.identity.credentials import now
from unwalk.peers.protocol.schedule import MOST_REQUESTS, line

if TYPE_CHECKING:
    from unwalk.peers.lifecycle.request_steps import Aftermath

CHAPTER = 0
"""The chapter that such requests are put down under: training is all that ever happened."""


class Quiet:
    """What is left to do for such requests at one peer."""

    def __init__(self, aftermath: Aftermath) -> None:
        self.aftermath = aftermath

    async def step(self) -> None:
        """Erase, certify, and issue again as receipts come in."""
        requests = self.aftermath.chapters.requests
        assert requests is not None
        stages = ("committed", "erasing")
        open_ = [r for s in stages for r in requests.at(s, MOST_REQUESTS) if r.chapter == CHAPTER]
        fresh = [r for r in open_ if r.certificate is None]
        if fresh:
            await self._certify(fresh)
        for name in {r.certificate for r in open_ if r.certificate is not None}:
            await self._again(name, [r.id for r in open_ if r.certificate == name])

    async def _certify(self, fresh: list[Request]) -> None:
        chapters = self.aftermath.chapters
        requests = chapters.requests
        assert requests is not None
        batch = requests.batch_of(fresh)
        if not await self.aftermath.have_line():
            return
        if not await self.aftermath.erase_records(batch):
            return
        requests.advance(batch.ids, "erasing")
        chapters.store.fault("request erasing")
        places = line(chapters.book.hops, chapters.specs)
        visits = chapters.visits(places)
        last = chapters.present
        run, earlier = chapters.runs[last], chapters.specs[:last]
        records = sum(r.records for r in batch.requests)
        spec = silent_spec(earlier, len(places), chapters.me, batch.ids, records)
        header = chapters.book.quiet(spec, run, earlier).header()
        signed = [visits[chapter][place - 1] for chapter, place in places]
        known = await self.aftermath.receipts(last) if last else {}
        facts = attest.Facts(
            last,
            run,
            batch.ids,
            len(places),
            known,
            tuple(chapters.council.known[:last]),
            self.aftermath.ends(places),
            decided=False,
            silent=not last,
        )
        name = f"quiet-{batch.requests[0].number}"
        issued = now().isoformat(timespec="seconds")
        attest.issue(chapters.bundle, name, walked(header, places, visits), signed, facts, issued)
        chapters.store.fault("certificate written")
        requests.advance(batch.ids, "erasing", certificate=name)

    async def _again(self, name: str, ids: list[str]) -> None:
        chapters = self.aftermath.chapters
        requests = chapters.requests
        assert requests is not None
        place = chapters.bundle.store / attest.FOLDER / name
        said = read_certificate(place / FILE)["peers"]
        if said["pending"]:
            known = await self.aftermath.receipts(said["chapter"])
            if len(known) == len(said["receipts"]):
                return
            facts = attest.Facts(
                said["chapter"],
                said["run"],
                tuple(said["requests"]),
                said["erased_after_hop"],
                known,
                tuple((text, decision) for text, decision in said["decisions"]),
                tuple(tuple(end) for end in said["ends"]),
                decided=False,
            )
            said = attest.issue(
                chapters.bundle,
                name,
                Transcript.read(place / attest.TRANSCRIPT),
                attest.read_visits(place / attest.VISITS),
                facts,
                said["issued"],
            )["peers"]
        if not said["pending"] and await self.aftermath.verifies(name, ids):
            requests.advance(ids, "done")
            chapters.store.fault("request done")
