"""A peer that leaves: all its records forgotten, nothing of the models kept, and the others told.

Its request for all records is a chapter like any other, in which it says that it no longer counts
(``Spec.left``).  When the certificate is complete and no other peer needs anything from it, the
peer erases every token, log and digest that it has, signs that in a receipt that stands for all
chapters, before and after, and ends once every other peer has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

from unwalk.certificates.document import FILE
from unwalk.core.errors import InvalidInput
from unwalk.peers.decisions import history
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.erasure import Receipt, erase_since, left_of
from unwalk.peers.forgetting.requests import Request
from unwalk.peers.lifecycle.next_chapter import NextChapter
from unwalk.peers.lifecycle.progress import Progress
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.handover import Value
from unwalk.peers.protocol.schedule import NO_TOKEN

LEAVING = "leaving"
"""The fact that names the request with which a peer leaves."""
GONE = "gone"
"""The fact that a peer has left: all others know, and it is not started again."""
PAUSE = 1.0
"""Seconds before those are asked again who were not ready or did not answer."""


class Leaving:
    """The last steps of a peer."""

    def __init__(
        self, progress: Progress, next_chapter: NextChapter, stop: Callable[[], None]
    ) -> None:
        self.progress, self.next_chapter, self.stop = progress, next_chapter, stop
        self.again = 0.0

    @property
    def request(self) -> str:
        """The request with which this peer leaves; empty if it stays."""
        records = self.progress.records
        return "" if records is None else records.fact(LEAVING)

    async def step(self) -> bool:
        """End, once everything that this peer had is forgotten and all others know."""
        progress = self.progress
        assert progress.requests is not None
        asked = progress.requests.get(self.request) if self.request else None
        if asked is None or not self._answered(asked) or not progress.over:
            return False
        if monotonic() < self.again:
            return True
        self.again = monotonic() + min(PAUSE, progress.network.limits.lease)
        last = len(progress.specs)
        if not await self._all(ms.AgendaReady, "ready", number=last):
            return True
        try:
            receipt = self.erase_all()
        except InvalidInput as error:  # somebody reads the database just now
            progress.journal.write("not erased yet", reason=str(error)[:300])
            return True
        if await self._all(ms.AgendaLeft, "left", number=last, receipt=receipt.to_json()):
            records = progress.records
            assert records is not None
            with records.transaction(touches=False):
                records.put_fact(GONE, "yes")
            progress.journal.write("leaving")
            self.stop()
        return True

    def _answered(self, asked: Request) -> bool:
        """Whether all have erased who can be expected to."""
        if asked.stage == "done" or asked.certificate is None:
            return asked.stage == "done"
        if asked.stage == "refused":  # all have erased, which no certificate can prove
            return True
        bundle = self.progress.bundle
        place = bundle.store / peer_certificate.FOLDER / asked.certificate / FILE
        document = peer_certificate.own(bundle, place)
        pending = [] if document is None else document["peers"]["pending"]
        names = [bundle.network.peers[p].name for p in self.progress.vanished]
        return asked.stage == "erasing" and len(pending) > 0 and set(pending) <= set(names)

    async def _all(self, kind: type[ms.Message], field: str, **fields: Any) -> bool:
        """Whether every other peer that has not left says yes."""
        progress = self.progress
        next_chapter = self.next_chapter
        answers = await next_chapter.ask_all(next_chapter.words(kind, **fields), field)
        gone = history.left(progress.store) | progress.vanished
        needed = set(range(len(progress.network.peers))) - gone - {progress.me}
        return {p for p, answer in answers.items() if answer is True} >= needed

    def erase_all(self) -> Receipt:
        """Nothing is left of any model, nor any digest of one; votes stay, without them."""
        progress = self.progress
        store, service = progress.store, progress.service
        value = service.state.committed
        assert value is not None
        blank = Value(value.generation, value.chain if service.void else NO_TOKEN, NO_TOKEN)
        service.put(replace(service.state, committed=blank))
        history.forget_runs(store, progress.runs[:-1])
        history.forget_logs(store, progress.runs[-1])
        store.archive(service.run_id)
        left, last = left_of(progress.network.run_id), len(progress.specs)
        return erase_since(store, progress.bundle, left, last, keep=(), runs=progress.runs)
