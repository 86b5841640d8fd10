"""Answers what the organisation asks from a running peer: the desk behind the endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

from unwalk.certificates.document import FILE
from unwalk.certificates.form import RULE
from unwalk.core.errors import InvalidInput, Refused, UnwalkError
from unwalk.core.grades import badge_of
from unwalk.core.plan import Graph
from unwalk.peers.forgetting import certificate_archive, peer_certificate
from unwalk.peers.forgetting.offers import offers_at
from unwalk.peers.forgetting.plans import Book, for_peers
from unwalk.peers.forgetting.request_form import Offer, RequestForm, RequestView
from unwalk.peers.forgetting.requests import Request, Requests
from unwalk.peers.handover.visit import token_size
from unwalk.peers.lifecycle.chapter_runner import Chapters
from unwalk.peers.protocol.schedule import Spec
from unwalk.peers.records.sources import SourceRefused
from unwalk.peers.storage.disk_space import DiskFull, means_no_files
from unwalk.peers.web.views import (
    AccuracyPoint,
    CertificateView,
    ChapterView,
    Overview,
    PeerView,
    Privacy,
    Spent,
    TokenView,
)

NO_RECORDS = (
    "this network's records are the simulator's own; only with task 'records' can a peer be asked "
    "to forget some."
)


def check_reachable(
    book: Book,
    peer: int,
    grade: str,
    method: str | None = None,
    records: int = 1,
    earlier: Sequence[Spec] = (),
) -> None:
    """Refuse what no chapter of this network could answer, and say what could be asked instead."""
    try:
        book.check(peer, grade, method, records, earlier)
    except Refused as error:
        advised = for_peers(error)
        if grade != "certified" or method not in (None, "seal"):
            raise advised from error
        raise Refused(
            "grade 'certified' cannot be proved for the way this network trains "
            f"({str(error).rstrip('.')}).",
            error.code,
            advised.instead,
        ) from error


def edges_of(graph: Graph) -> tuple[tuple[int, int], ...]:
    """Every pair of peers that may hand the token to each other, once."""
    peers = range(graph.peers)
    return tuple(
        (a, b)
        for a in peers
        for b in peers
        if a < b and (graph.complete or b in graph.neighbours(a))
    )


class Reception:
    """The :class:`~unwalk.peers.web.views.Desk` of a running peer."""

    def __init__(self, chapters: Chapters) -> None:
        self.chapters = chapters
        self.edges = edges_of(chapters.book.assembled.graph)

    def overview(self) -> Overview:
        """How the peer is."""
        chapters = self.chapters
        requests, records = chapters.requests, chapters.records
        counts = None if records is None else records.counts()
        return Overview(
            peer=chapters.bundle.name,
            network=chapters.network.name,
            run=chapters.service.run_id,
            chapter=self._chapter(),
            token=self._token(),
            peers=tuple(self._peer(n) for n in range(len(chapters.network.peers))),
            edges=self.edges,
            privacy=self._privacy(),
            accuracy=tuple(AccuracyPoint(*point) for point in chapters.accuracy_meter.points),
            queue={} if requests is None else requests.queue(),
            records=None if counts is None else counts.train,
            hold_out=None if counts is None else counts.hold_out,
            disk="full" if chapters.store.space.full else "ok",
        )

    def _chapter(self) -> ChapterView:
        chapters = self.chapters
        stage = "committed" if chapters.service.over.is_set() else "walking"
        number = chapters.present if chapters.over else len(chapters.specs)
        if not number:
            return ChapterView(0, "train", stage)
        spec = chapters.specs[number - 1]
        name = chapters.network.peers[spec.peer].name
        return ChapterView(
            spec.number, "forget", stage, name, spec.requests, spec.method, spec.grade
        )

    def _token(self) -> TokenView:
        chapters, state = self.chapters, self.chapters.service.state
        names = [p.name for p in chapters.network.peers]
        hop, hops = max(0, state.reached[1][0]), state.hops
        where, certain = None, False
        if state.committed is not None:
            if chapters.service.void:  # the model is that of the chapter before
                hops = chapters.hops_of(chapters.present)
            hop, certain = hops, True
        elif state.held is not None:
            where, certain = names[chapters.me], True
        elif state.kept is not None and state.kept_for >= 0:
            where = names[state.kept_for]
        return TokenView(where, certain, hop, hops, state.fence[0])

    def _peer(self, number: int) -> PeerView:
        chapters = self.chapters
        member = chapters.network.peers[number]
        then = chapters.heard.get(number)
        state = "unknown"
        if number in chapters.left:
            state = "left"
        elif number == chapters.me:
            state = "up"
        elif then is not None:
            recent = monotonic() - then < 3.0 * chapters.network.limits.lease
            state = "up" if recent else "silent"
        return PeerView(member.name, member.address, state)

    def _privacy(self) -> Privacy:
        parts = []
        known, changed = peer_certificate.read_all(self.chapters.bundle)
        for name, document in known:
            claim = peer_certificate.proved(document)
            if claim is not None:
                allowed = document["parameters"]
                certified = claim["grade"] == "certified"
                parts.append(
                    Spent(
                        name,
                        claim["grade"],
                        claim["epsilon"],
                        claim["delta"],
                        allowed.get("epsilon") if certified else None,
                        allowed.get("delta") if certified else None,
                        badge_of(document),
                    )
                )
        epsilon, delta = peer_certificate.compose((p.epsilon, p.delta) for p in parts)
        exact = all(part.grade == "exact" for part in parts)
        how = peer_certificate.EXACT_ONLY if exact else RULE
        rule = peer_certificate.rule_without(changed, how)
        if any(part.badge == "rehearsal" for part in parts):
            rule += "; rehearsals among them, whose noise came from a known seed, protect nobody"
        return Privacy(epsilon, delta, rule, tuple(parts))

    @property
    def _folder(self) -> Any:
        return self.chapters.bundle.store / peer_certificate.FOLDER

    def _desk(self) -> Requests:
        if self.chapters.requests is None:
            raise InvalidInput(NO_RECORDS)
        return self.chapters.requests

    async def submit(self, form: RequestForm) -> RequestView:
        """Take a request in, durably."""
        chapters, requests = self.chapters, self._desk()
        records = chapters.records
        assert records is not None
        if requests.get(form.id) is None:
            asked = form.grade, form.method, len(form.records)
            check_reachable(chapters.book, chapters.me, *asked, chapters.specs)
            with suppress(SourceRefused):
                await asyncio.to_thread(records.refresh)
        try:
            request = await asyncio.to_thread(requests.submit, form)
        except DiskFull as error:
            chapters.store.space.ran_out(error)
            raise
        chapters.store.fault("request durable")
        chapters.journal.write(
            "request", id=request.id, records=request.records, grade=request.grade
        )
        chapters.wake.set()
        return self._view(request)

    async def offers(self) -> Sequence[Offer]:
        """What a request would cost now, by method."""
        self._desk()
        chapters = self.chapters
        size = token_size(chapters.book.assembled, chapters.service.work.bare)
        return await asyncio.to_thread(offers_at, chapters.bundle, chapters.book, size)

    def _view(self, request: Request) -> RequestView:
        """A request; if it left the method open, with the one that its chapter took."""
        view = request.view()
        if view.method is not None or not view.chapter:
            return view
        return replace(view, method=self.chapters.specs[view.chapter - 1].method)

    def requests(self, after: str | None, limit: int) -> Sequence[RequestView]:
        """Newest first."""
        if self.chapters.requests is None:
            return []
        return [self._view(r) for r in self.chapters.requests.page(after, limit)]

    def request(self, id: str) -> RequestView | None:
        """One request."""
        request = None if self.chapters.requests is None else self.chapters.requests.get(id)
        return None if request is None else self._view(request)

    def certificates(self) -> Sequence[CertificateView]:
        """The latest version of each certificate, newest first; changed ones before them."""
        known, changed = peer_certificate.read_all(self.chapters.bundle)
        views = [CertificateView(name, (), 0, "refused", None, None, False) for name in changed]
        for name, document in reversed(known):
            said, claim = document["peers"], peer_certificate.proved(document)
            claim = claim or document["claims"][-1]
            views.append(
                CertificateView(
                    name,
                    tuple(said["requests"]),
                    said["chapter"],
                    claim["grade"],
                    claim["epsilon"],
                    claim["delta"],
                    not said["pending"],
                    tuple(said["pending"]),
                    said["version"],
                    said["issued"],
                    badge_of(document),
                )
            )
        return views

    def certificate(self, name: str) -> bytes | None:
        """The bytes of a certificate's file."""
        known = name in peer_certificate.names_in(self._folder)
        return (self._folder / name / FILE).read_bytes() if known else None

    async def evidence(self, name: str) -> bytes | None:
        """The certificate's file with its transcript and the signed visits, as a zip archive."""
        if self.certificate(name) is None:
            return None
        return await asyncio.to_thread(certificate_archive.pack, self._folder / name / FILE)

    async def verify(self, name: str) -> Mapping[str, Any] | None:
        """What ``unwalk verify --json`` says of it, with the network's CA trusted."""
        if self.certificate(name) is None:
            return None
        place, bundle = self._folder / name / FILE, self.chapters.bundle.folder
        files = (bundle / "ca.pem", bundle / "network.json")
        try:
            return await asyncio.to_thread(peer_certificate.verified, place, *files)
        except UnwalkError as error:
            if means_no_files(error):
                raise
            return {"verdict": "changed", "problems": [str(error)]}

    async def document(self, name: str) -> bytes | None:
        """The certificate as a page, as ``unwalk verify --html`` writes it."""
        checked = await self.verify(name)
        if checked is None:
            return None
        page = await asyncio.to_thread(
            peer_certificate.printed, self._folder / name / FILE, checked
        )
        return page.encode()
