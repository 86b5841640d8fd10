"""A desk that lives in memory, and a way to serve one from a thread of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from unwalk.core.errors import InvalidInput, Refused
from unwalk.peers.forgetting import request_form
from unwalk.peers.forgetting.certificate_archive import packed
from unwalk.peers.forgetting.peer_certificate import rule_without
from unwalk.peers.storage.disk_space import DiskFull
from unwalk.peers.web import views as d
from unwalk.peers.web.connections import HttpLimits
from unwalk.peers.web.http_server import HttpDesk

QUICK = HttpLimits(rate=1e6, anonymous=1e6)
CERTIFICATE = {"certificate": 1, "claims": [{"grade": "exact", "reason": "it went back."}]}


class MemoryDesk:
    """Five peers on a ring; records ``r-0`` to ``r-99``; a request waits until :meth:`settle`."""

    def __init__(self, peers: int = 5, hop: int = 34, records: int = 100) -> None:
        self.known = {f"r-{i}" for i in range(records)}
        self.asked: dict[str, request_form.RequestForm] = {}
        self.views: dict[str, request_form.RequestView] = {}
        self.files: dict[str, d.CertificateView] = {}
        self.peers = [d.PeerView(f"peer-{i}", f"127.0.0.1:{7440 + i}", "up") for i in range(peers)]
        self.edges = tuple((i, (i + 1) % peers) for i in range(peers))
        self.token = d.TokenView("peer-2", False, hop, 60)
        self.chapter = d.ChapterView(0, "train", "walking")
        self.accuracy = [
            d.AccuracyPoint(0, hop, 1 - 0.8 * 0.9**hop, 40) for hop in range(0, hop + 1, 5)
        ]
        self.clock = 0
        self.submitted = 0
        self.broken = False
        self.disk = "ok"

    def overview(self) -> d.Overview:
        if self.broken:
            raise RuntimeError("a secret about r-17")
        parts = tuple(
            d.Spent(c.name, c.grade, c.epsilon or 0.0, c.delta or 0.0, 1.0, 1e-5, c.badge)
            for c in self.files.values()
        )
        return d.Overview(
            peer="peer-0",
            network="trial",
            run="0123456789abcdef0123456789abcdef",
            chapter=self.chapter,
            token=self.token,
            peers=tuple(self.peers),
            edges=self.edges,
            privacy=d.Privacy(
                sum(p.epsilon for p in parts),
                sum(p.delta for p in parts),
                rule_without(["chapter-9"]),
                parts,
            ),
            accuracy=tuple(self.accuracy),
            queue=dict(Counter(v.stage for v in self.views.values())),
            records=len(self.known),
            hold_out=40,
            disk=self.disk,
        )

    async def submit(self, form: request_form.RequestForm) -> request_form.RequestView:
        self.submitted += 1
        if self.disk == "full":
            raise DiskFull
        if form.id in self.asked:
            if self.asked[form.id] != form:
                raise request_form.Conflict(
                    f"request {form.id} was made before with other content."
                )
            return self.views[form.id]
        unknown = [r for r in form.records if r not in self.known]
        if unknown:
            raise request_form.UnknownRecords(unknown)
        if form.method == "seal":
            words = "seal cannot be certified for this model: its loss is not convex."
            raise Refused(words, "loss", "ask for grade exact")
        self.asked[form.id] = form
        self.clock += 1
        view = request_form.RequestView(
            id=form.id,
            stage="waiting",
            records=len(form.records),
            grade=form.grade,
            epsilon=form.epsilon,
            delta=form.delta,
            received=f"2026-03-04T10:{self.clock // 60 % 60:02d}:{self.clock % 60:02d}+00:00",
            method=form.method,
        )
        self.views[form.id] = view
        return view

    async def offers(self) -> Sequence[request_form.Offer]:
        reason = "seal cannot be certified for this model."
        return [
            request_form.Offer("exact", "rewind", "as if they had never been there", 20, 20_000),
            request_form.Offer("certified", "seal", "within a budget", reason=reason),
        ]

    def settle(self, id: str, stage: str = "done", pending: tuple[str, ...] = ()) -> None:
        """Let a request come to its end, with a certificate."""
        form, chapter = self.asked[id], len(self.files) + 1
        if stage == "refused":
            reason = "the peer that keeps the first token has left."
            self.views[id] = replace(self.views[id], stage=stage, reason=reason)
            return
        name = f"chapter-{chapter}.json"
        self.files[name] = d.CertificateView(
            name=name,
            requests=(id,),
            chapter=chapter,
            grade=form.grade,
            epsilon=0.62 if form.grade == "certified" else 0.0,
            delta=1e-6 if form.grade == "certified" else 0.0,
            complete=not pending,
            pending=pending,
            issued="2026-03-04T11:00:00+00:00",
            badge=form.grade,
        )
        self.known -= set(form.records)
        self.views[id] = replace(self.views[id], stage=stage, chapter=chapter, certificate=name)

    def requests(self, after: str | None, limit: int) -> Sequence[request_form.RequestView]:
        newest = list(self.views.values())[::-1]
        if after is None:
            return newest[:limit]
        places = [i for i, view in enumerate(newest) if view.id == after]
        if not places:
            raise InvalidInput(f"after is {after!r}, which is no request of this peer.")
        return newest[places[0] + 1 :][:limit]

    def request(self, id: str) -> request_form.RequestView | None:
        return self.views.get(id)

    def certificates(self) -> Sequence[d.CertificateView]:
        return list(self.files.values())[::-1]

    def certificate(self, name: str) -> bytes | None:
        return json.dumps(CERTIFICATE).encode() + b"\n" if name in self.files else None

    async def evidence(self, name: str) -> bytes | None:
        data = self.certificate(name)
        return None if data is None else packed({"certificate.json": data})

    async def verify(self, name: str) -> Mapping[str, Any] | None:
        if name not in self.files:
            return None
        return {
            "verdict": "intact, signer trusted",
            "problems": [],
            "checked": ["every number was recomputed from its events"],
            "claims": [{"grade": "exact", "reason": "the walk went back to before the records."}],
        }

    async def document(self, name: str) -> bytes | None:
        return b"<!doctype html>" if name in self.files else None


class Served:
    """A running endpoint: its URL, its token, and the desk behind it."""

    def __init__(self, desk: Any, http: HttpDesk, loop: asyncio.AbstractEventLoop) -> None:
        self.desk, self.http, self.loop = desk, http, loop
        self.token = http.token_file.read_text().strip()

    @property
    def url(self) -> str:
        return self.http.url

    @property
    def place(self) -> tuple[str, int]:
        return self.http.host, self.http.port

    def raw(self, data: bytes, timeout: float = 10.0) -> bytes:
        """Everything that comes back for these bytes."""
        with socket.create_connection(self.place, timeout) as connection:
            connection.sendall(data)
            got = b""
            while piece := connection.recv(1 << 16):
                got += piece
        return got


@contextmanager
def serving(
    desk: d.Desk,
    folder: Path,
    *,
    address: str = "127.0.0.1:0",
    limits: HttpLimits = QUICK,
    **settings: Any,
) -> Iterator[Served]:
    """Serve a desk in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> HttpDesk:
        http = HttpDesk(desk, address, folder / "http.token", limits=limits, **settings)
        await http.start()
        return http

    try:
        http = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        try:
            yield Served(desk, http, loop)
        finally:
            asyncio.run_coroutine_threadsafe(http.stop(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def ask(
    served: Served,
    method: str,
    path: str,
    record: Any = None,
    *,
    token: str | None = "",
    body: bytes | None = None,
    **headers: str,
) -> tuple[int, Any, dict[str, str]]:
    """Status, body and headers of an answer; the body is read as JSON where it is that."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        given.setdefault("Authorization", f"Bearer {token or served.token}")
    if record is not None:
        body = json.dumps(record).encode()
    if body is not None:
        given.setdefault("Content-Type", "application/json")
    connection = http.client.HTTPConnection(*served.place, timeout=20)
    try:
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        data = answer.read()
        kind = answer.headers.get("Content-Type", "")
        found = json.loads(data) if kind == "application/json" and data else data
        return answer.status, found, {k.lower(): v for k, v in answer.headers.items()}
    finally:
        connection.close()


def sentence(found: Any) -> str:
    """The one sentence of an error."""
    assert set(found) <= {"error", "unknown"}
    words = found["error"]
    assert words.endswith(".")
    assert "\n" not in words
    return str(words)
