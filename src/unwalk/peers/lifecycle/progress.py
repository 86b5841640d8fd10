"""How far a peer is: which chapters were decided, how they ended, and which models are here.

Everything that a step of a peer is decided from, and what follows from it without asking anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from unwalk.core.transcript import Transcript
from unwalk.peers.decisions import history
from unwalk.peers.forgetting.plans import Book, Visits, walked
from unwalk.peers.forgetting.requests import Requests
from unwalk.peers.handover.service import Service
from unwalk.peers.identity.trust import Bundle, Trust
from unwalk.peers.protocol.schedule import Spec, line, present
from unwalk.peers.records.own_task import open_records
from unwalk.peers.records.record_store import Records
from unwalk.peers.records.sources import DataSettings
from unwalk.peers.storage.store import Store
from unwalk.peers.telemetry import Journal
from unwalk.peers.transport.wire import Transport

VANISHED = "vanished/"
"""Facts that name the request with which a peer is given up, by that peer's number."""


class Progress:
    """One peer's place in its network.

    ``specs`` are the chapters that were decided, ``runs`` the run ids of all chapters, training
    first.  ``service`` is the walk under way, or the last one.  ``left`` are the peers that no
    token is sent to any more.  ``wake`` is set when there may be something to do.
    """

    service: Service

    def __init__(
        self,
        bundle: Bundle,
        trust: Trust,
        store: Store,
        transport: Transport,
        journal: Journal,
    ) -> None:
        self.bundle, self.trust, self.store = bundle, trust, store
        self.transport, self.journal = transport, journal
        self.network, self.me = bundle.network, bundle.index
        self.book = Book(self.network, bundle.noise_secret)
        self.records: Records | None = open_records(
            bundle.folder, self.book.assembled.config, store.fault
        )
        if self.records is not None:
            DataSettings.read(bundle.folder)  # a peer without records does not start
            self.records.check()
        self.requests = None if self.records is None else Requests(self.records)
        self.wake = asyncio.Event()
        self.tasks: dict[asyncio.Task[None], None] = {}
        self.left: set[int] = set()
        self.runs = [self.network.run_id]
        self.specs: list[Spec] = []

    def final(self, number: int) -> str | None:
        """The digest of the model that a chapter ended with, if it is here."""
        value = self.store.committed(self.runs[number])
        if value is None or not self.store.file(value.token).exists():
            return None
        return value.token

    def model(self, number: int) -> str | None:
        """The digest of the model from before chapter ``number``, if it is here.

        A chapter that was given up ended with the model that it began with.
        """
        after = self.specs[number - 1].after if number <= len(self.specs) else self.present
        finals = (self.final(n) for n in range(number - 1, after - 1, -1))
        return next((token for token in finals if token is not None), None)

    @property
    def present(self) -> int:
        """The last chapter that was not given up."""
        return present(self.specs)

    def hops_of(self, number: int) -> int:
        """How many visits a chapter makes."""
        return self.specs[number - 1].hops if number else self.book.hops

    @property
    def over(self) -> bool:
        """Whether the last chapter has ended here, and how it ended is taken account of."""
        marked_void = bool(self.specs) and self.specs[-1].void
        return self.service.over.is_set() and self.service.void == marked_void

    def ready(self, number: int) -> bool:
        """Whether chapter ``number`` is over here, and its model and visits do not need others."""
        if number != len(self.specs) or not self.over:
            return False
        last = self.present
        whole = history.count_visits(self.store, self.runs[last]) == self.hops_of(last)
        return whole and self.model(number + 1) is not None

    @property
    def vanished(self) -> set[int]:
        """Peers that others were told to do without."""
        return {spec.peer for spec in self.specs if spec.vanished and not spec.void}

    @property
    def counted_out(self) -> set[int]:
        """Peers that have left or vanished, by their own word or by a chapter."""
        left_by_chapter = {p for spec in self.specs if not spec.void for p in spec.left}
        return history.left(self.store) | self.vanished | left_by_chapter

    def told_vanished(self, peer: int) -> bool:
        """Whether this peer's own operator has said that another has vanished."""
        records = self.records
        return records is not None and bool(records.fact(f"{VANISHED}{peer}"))

    def walked_before(self, number: int) -> Transcript:
        """What was walked on the line before a chapter, as its certificate will have it."""
        spec = self.specs[number - 1]
        plan = self.book.forgetting(spec, self.runs[number], self.specs[: number - 1])
        places = self.line(number)
        return walked(plan.header(), places, self.visits(places))

    def line(self, number: int) -> list[tuple[int, int]]:
        """The visits that led to the model with which chapter ``number`` began."""
        return line(self.book.hops, self.specs[: number - 1])

    def visits(self, places: Iterable[tuple[int, int]]) -> dict[int, list[dict[str, Any]]]:
        """The committed visits of the chapters that ``places`` lie in."""
        numbers = {chapter for chapter, _ in places}
        return {n: history.visits_of(self.store, self.runs[n]) for n in sorted(numbers)}

    def whole(self, visits: Visits) -> bool:
        """Whether all visits are known of the chapters that ``visits`` are of."""
        return all(len(known) == self.hops_of(n) for n, known in visits.items())

    def later(self, work: object) -> None:
        """Let something go on beside everything else."""
        task: asyncio.Task[None] = asyncio.create_task(work)  # type: ignore[arg-type]
        self.tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.journal.write("failed", reason=str(error)[:300])
