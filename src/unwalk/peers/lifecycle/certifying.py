"""What certificates of a peer rest on: visits, ends and receipts, gathered here and from others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from unwalk.certificates.document import FILE, read_certificate
from unwalk.core.errors import Refused, UnwalkError
from unwalk.peers.decisions import history
from unwalk.peers.decisions.decided import check_decided
from unwalk.peers.decisions.walk_end import visits_digest
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.erasure import Receipt, receipt_of
from unwalk.peers.forgetting.requests import Batch
from unwalk.peers.identity.trust import NotInForce
from unwalk.peers.lifecycle.next_chapter import NextChapter
from unwalk.peers.lifecycle.progress import Progress
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import messages as ms

AGAIN = 2.0
"""Seconds before peers whose receipt is missing are asked again, at most."""
SELDOM = 60.0
"""Seconds before a certificate that does not verify is looked at again."""


class Certifying:
    """The parts that every certificate of one peer is made of."""

    def __init__(self, progress: Progress, next_chapter: NextChapter) -> None:
        self.progress, self.next_chapter = progress, next_chapter
        self.again: dict[int, float] = {}
        self.doubted: dict[str, float] = {}

    async def have_line(self) -> bool:
        """See to it that all visits on the line that leads to the present model are here."""
        return await self.have_before(len(self.progress.specs) + 1)

    async def have_before(self, number: int) -> bool:
        """See to it that all visits are here that led to what a chapter began with."""
        for chapter in sorted({n for n, _ in self.progress.line(number)}):
            if not await self.have_visits(chapter):
                return False
        return True

    async def have_visits(self, number: int) -> bool:
        """See to it that all committed visits of a chapter are here, and how it ended.

        They are asked for by one at a time; who comes meanwhile waits for what is found.
        """
        async with self.next_chapter.fetching:
            return await self._have_visits(number)

    async def _have_visits(self, number: int) -> bool:
        progress = self.progress
        if await self.next_chapter.have_end(number) is None:
            return False
        spec = None if number == 0 else progress.specs[number - 1]
        count = progress.book.hops if spec is None else spec.hops
        if history.count_visits(progress.store, progress.runs[number]) == count:
            return True
        base = 0 if spec is None else spec.before
        return await self.next_chapter.fetch_visits(number, count, base)

    async def have_all(self, number: int) -> bool:
        """See to it that all is here that the certificate of a chapter rests on."""
        return await self.have_before(number) and await self.have_visits(number)

    def ends(self, places: Sequence[tuple[int, int]]) -> tuple[peer_certificate.ShownEnd, ...]:
        """How the chapters ended that ``places`` lie in, as a certificate shows it."""
        progress, shown = self.progress, list[peer_certificate.ShownEnd]()
        for number, count in sorted(Counter(chapter for chapter, _ in places).items()):
            known = history.end_decision(progress.store, progress.runs[number])
            assert known is not None
            visits = history.visits_of(progress.store, progress.runs[number], count)
            shown.append((number, *known, visits_digest(visits)))
        return tuple(shown)

    async def receipts(self, number: int) -> dict[str, dict[str, Any]]:
        """Receipts that are here, after asking those whose receipt is missing.

        One under a certificate that was revoked since is missing too: its peer signs it anew.
        """
        progress = self.progress
        found = history.receipts_of(progress.store, number)
        known = {peer: record for peer, record in found.items() if self._stands(record)}
        own = receipt_of(progress.store, progress.bundle, progress.runs[number], number)
        if own is not None:
            known[progress.bundle.name] = own.to_json()
        known = {**self._leavers(number), **known}
        if monotonic() < self.again.get(number, 0.0):
            return known
        closing = await self.next_chapter.have_end(number)
        if closing is None:
            return known
        missing = [n for n, p in enumerate(progress.network.peers) if p.name not in known]
        message = self.next_chapter.words(ms.AgendaReceipt, number=number)
        asked = [p for p in missing if p != progress.me]
        answers = await asyncio.gather(
            *(self.next_chapter.ask(p, message, "receipt") for p in asked)
        )
        for peer, record in zip(asked, answers, strict=True):
            if record is None:
                continue
            try:
                run = progress.runs[number]
                with codec.reading("a receipt"):
                    receipt = Receipt.from_json(record)
                    signer = receipt.check(
                        progress.trust, run=run, chapter=number, end=closing.digest
                    )
                if signer != peer:
                    raise Refused(f"peer {peer} sent a receipt of peer {signer}.")
            except UnwalkError as error:
                progress.journal.refused(peer, error)
                continue
            history.put_receipt(progress.store, number, receipt.peer, record)
            known[receipt.peer] = record
            progress.store.fault("receipt kept")
        self.again[number] = monotonic() + min(progress.network.limits.lease, AGAIN)
        return known

    def _stands(self, record: dict[str, Any]) -> bool:
        """Whether a receipt that was checked when it came is still good."""
        try:
            Receipt.from_json(record).check(self.progress.trust)
        except UnwalkError:
            return False
        return True

    def _leavers(self, number: int) -> dict[str, dict[str, Any]]:
        """Receipts of peers that have left, as far as they stand for a chapter."""
        progress, receipts = self.progress, dict[str, dict[str, Any]]()
        out = progress.specs[number - 1].left
        for peer, record in history.receipts_of(progress.store, history.LEAVERS).items():
            with suppress(UnwalkError):
                Receipt.from_json(record).check_left(progress.trust, number, out)
                receipts[peer] = record
        return receipts

    async def erase_records(self, batch: Batch) -> bool:
        """Erase the records of a batch; False where that has to be tried again."""
        records = self.progress.records
        assert records is not None
        before = records.trouble
        if await asyncio.to_thread(records.try_erase, batch.records):
            return True
        if records.trouble != before:
            self.progress.journal.write("records", reason=records.trouble)
        return False

    async def verifies(self, name: str, ids: Sequence[str]) -> bool:
        """Whether a certificate of this peer's own does, and proves what its requests asked for.

        If not, they say why.
        """
        progress, requests = self.progress, self.progress.requests
        assert requests is not None
        if monotonic() < self.doubted.get(name, 0.0):
            return False
        bundle = progress.bundle
        place = bundle.store / peer_certificate.FOLDER / name / FILE
        files = bundle.folder / "ca.pem", bundle.folder / "network.json"
        try:
            verdict = await asyncio.to_thread(peer_certificate.verified, place, *files)
            problems = verdict["problems"]
        except UnwalkError as error:
            problems = [str(error)]
        if not problems:
            return not ids or self._proves(place, ids)
        self.doubted[name] = monotonic() + SELDOM
        gone = self._undone()
        if gone is None:
            why = f"the certificate {name} was issued, but does not verify: {problems[0]}"
            requests.advance(ids, "erasing", reason=why[:300])
        else:
            why = f"everything was erased, but no certificate of it can hold any more: {gone}"
            requests.advance(ids, "refused", reason=why[:300])
        progress.journal.write("certificate does not verify", to=name, reason=why[:300])
        return False

    def _proves(self, place: Path, ids: Sequence[str]) -> bool:
        """Whether a certificate proves what was asked; if not, that is the end of its requests."""
        requests = self.progress.requests
        assert requests is not None
        asked = requests.get(ids[0])  # the others ask for the same
        assert asked is not None
        short = peer_certificate.falls_short(read_certificate(place)["claims"], asked)
        if short is None:
            return True
        why = f"everything was erased, but no certificate can prove what was asked for: {short}"
        requests.advance(ids, "refused", reason=why)
        self.progress.journal.write("request refused", requests=list(ids), why=why[:300])
        return False

    def _undone(self) -> str | None:
        """Why chapters that were decided, or their ends, count no more, if they do not: for good.

        Nobody takes a revocation back.
        """
        try:
            check_decided(self.progress.trust, self.progress.store.db)
        except NotInForce as error:
            return str(error)
        return None
