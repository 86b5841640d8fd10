"""The endpoint of a peer for its own organisation: a small, strict HTTP server.

It reads one question per connection and closes it, so that there is nothing to confuse about where
one ends and the next begins; it reads no body before the token was checked; every wait has an end.
It listens on the loopback interface; on another address it speaks TLS with the peer's certificate.
A web framework would bring more than what is needed here: ten paths, one of which takes a body.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import secrets
import ssl
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self

from unwalk.core.errors import InvalidInput
from unwalk.peers.identity.credentials import read_private, write_private
from unwalk.peers.identity.network_file import ADDRESS
from unwalk.peers.telemetry import Journal
from unwalk.peers.web.routes import POLICY, Answer, Problem, Question, Route, Routes
from unwalk.peers.web.views import Desk

TOKEN_FILE = "http.token"
ADDRESS_FILE = "http.address"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
NAMES = ("127.0.0.1", "localhost", "[::1]")
METHOD = re.compile(rb"[A-Z][A-Z-]{0,19}")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*?)[ \t]*")


@dataclass(frozen=True)
class HttpLimits:
    """What the endpoint puts up with.

    ``head``: bytes before the body.  ``read`` and ``write``: seconds for a whole question and for
    a whole answer.  ``connections``: open ones; one more ends the one that has kept its question
    back for longest.  ``rate`` and ``anonymous``: questions a second with and without the token.
    """

    head: int = 16 << 10
    fields: int = 64
    read: float = 10.0
    write: float = 30.0
    connections: int = 64
    rate: float = 50.0
    anonymous: float = 20.0


class HttpDesk:
    """Serves a desk over HTTP, from :meth:`start` to :meth:`stop` or in an ``async with``.

    ``address`` is HOST:PORT; port 0 takes a free one, which ``url`` then says.  ``token_file`` is
    made with mode 0600 if it is missing.  ``bundle`` is the folder with ``certificate.pem`` and
    ``tls.key``, needed for addresses that are not of the loopback interface.
    """

    def __init__(
        self,
        desk: Desk,
        address: str,
        token_file: Path,
        *,
        bundle: Path | None = None,
        journal: Journal | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        self.limits = limits or HttpLimits()
        self.host, self.port, self._tls = _place(address, bundle)
        self.token_file, self.journal = token_file, journal
        self.routes = Routes(
            desk,
            read_token(token_file),
            rate=self.limits.rate,
            anonymous=self.limits.anonymous,
        )
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[None], None] = {}
        self._quiet_until, self._unsaid = 0.0, 0

    @property
    def url(self) -> str:
        """Where the dashboard is."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}/"

    async def start(self) -> None:
        """Listen, and say where in the file ``http.address`` beside the token."""
        try:
            self._server = await asyncio.start_server(
                self._connected,
                self.host,
                self.port,
                limit=self.limits.head,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self.limits.read,
            )
        except OSError as error:
            raise InvalidInput(
                f"the HTTP address {self.host}:{self.port} cannot be served: {error.strerror}."
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        write_private(self._address_file, f"{self.url}\n".encode())
        self._say("http started", url=self.url)

    async def stop(self) -> None:
        """End all connections."""
        if self._server is None:
            return
        self._server.close()
        while self._open:
            for task in self._open:
                task.cancel()
            await asyncio.wait(self._open, timeout=0.2)
        await self._server.wait_closed()
        self._server = None
        self._address_file.unlink(missing_ok=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def _address_file(self) -> Path:
        return self.token_file.with_name(ADDRESS_FILE)

    def _say(self, event: str, **facts: object) -> None:
        if self.journal is not None:
            self.journal.write(event, **facts)

    def _refused(self, problem: Problem) -> None:
        """Log that somebody was turned away, at most once a second; never what was asked."""
        if problem.status not in (401, 421, 429) or self.journal is None:
            return
        now = self.routes.clock()
        if now < self._quiet_until:
            self._unsaid += 1
            return
        self._quiet_until = now + 1.0
        unsaid, self._unsaid = self._unsaid, 0
        self._say("http refused", status=problem.status, unsaid=unsaid)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= self.limits.connections:
            if not self._waiting:
                writer.close()
                return
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.cancel()
        self._open.add(task)
        self._waiting[task] = None
        try:
            await self._talk(reader, writer, lambda: self._waiting.pop(task, None))
        except (OSError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()  # closing would wait until the other side has read it all
        finally:
            self._waiting.pop(task, None)
            self._open.discard(task)
            writer.close()

    async def _talk(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: Callable[[], object],
    ) -> None:
        """One question, one answer."""
        unread, only_head = False, False
        try:
            async with asyncio.timeout(self.limits.read):
                question = await self._head(reader)
                if question is None:
                    return
                only_head = question.method == "HEAD"
                said = question.headers.get("content-length", "0")
                unread = said != "0" or "transfer-encoding" in question.headers
                self._check_host(question)
                route = self.routes.admit(question)
                body = await _body(reader, writer, question, route.body)
                unread = False
            asked()
            answer = await self._ask(route, question, body)
        except TimeoutError:
            answer = Problem(408, f"no whole question in {self.limits.read:g} seconds.").answer()
        except Problem as problem:
            self._refused(problem)
            answer = problem.answer()
        asked()
        async with asyncio.timeout(self.limits.write):
            writer.write(_head_bytes(answer))
            if not only_head:
                writer.write(answer.body)
            await writer.drain()
            if unread:
                await _linger(reader, writer)

    async def _ask(self, route: Route, question: Question, body: bytes) -> Answer:
        """The desk's answer; the endpoint stays, whatever one question did."""
        try:
            return await self.routes.answer(route, question, body)
        except Problem:
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            self._say("http failed", kind=type(error).__name__, place=place)
            said = "something went wrong inside the peer; its log says when and where."
            raise Problem(500, said) from error

    async def _head(self, reader: asyncio.StreamReader) -> Question | None:
        try:
            data = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise Problem(431, f"the head is larger than {self.limits.head} bytes.") from error
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return None
            raise Problem(400, "the question ends in the middle of its head.") from error
        return parse_head(data[:-4], self.limits.fields)

    def _check_host(self, question: Question) -> None:
        """A page of another site that was told that its name is this address stays outside."""
        name = question.headers.get("host", "").rpartition(":")[0] or question.headers.get("host")
        if self._tls is None and name not in (*NAMES, self.host, f"[{self.host}]"):
            raise Problem(421, f"this endpoint answers to {', '.join(NAMES)} only.")


def _place(address: str, bundle: Path | None) -> tuple[str, int, ssl.SSLContext | None]:
    """Host, port, and TLS where others could listen in."""
    found = ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65535:
        raise InvalidInput(f"the HTTP address is {address!r}; allowed: HOST:PORT.")
    host = "127.0.0.1" if found[1] == "localhost" else found[1].strip("[]")
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return host, int(found[2]), None
    if bundle is None:
        raise InvalidInput(
            f"the HTTP address is {address!r}, which others can reach; allowed without the "
            "certificate of a bundle: 127.0.0.1:PORT or [::1]:PORT."
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(bundle / "certificate.pem", bundle / "tls.key")
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"the certificate in {bundle} cannot be used for TLS.") from error
    return host, int(found[2]), context


def read_token(path: Path) -> str:
    """The token in ``path``, made if it is not there; refused where others may read it."""
    if not path.exists():
        partial = path.with_name(f"{path.name}.partial")
        write_private(partial, secrets.token_urlsafe(32).encode() + b"\n")
        os.replace(partial, path)
    token = read_private(path).decode("ascii", "replace").strip()
    if not re.fullmatch(r"[A-Za-z0-9_-]{32,128}", token):
        raise InvalidInput(
            f"{path} holds no token; allowed: 32 to 128 letters, digits, hyphens and _. "
            "Remove the file and a new one is made."
        )
    return token


def parse_head(data: bytes, most_fields: int = 64) -> Question:
    """The question in the bytes before the empty line; :class:`Problem` unless it is plain.

    >>> parse_head(b"GET /v1/status?x=1 HTTP/1.1\\r\\nHost: localhost:80").query
    'x=1'
    """
    first, *lines = data.split(b"\r\n")
    parts = first.split(b" ")
    if len(parts) != 3 or not METHOD.fullmatch(parts[0]):
        raise Problem(400, "the first line is not METHOD PATH HTTP/1.1.")
    if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise Problem(505, "the version is not HTTP/1.1 or HTTP/1.0.")
    if not re.fullmatch(rb"/[\x21-\x7e]*", parts[1]) or b"#" in parts[1]:
        raise Problem(400, "the path is not one of visible ASCII letters that starts with '/'.")
    if len(lines) > most_fields:
        raise Problem(431, f"the head has more than {most_fields} fields.")
    headers: dict[str, str] = {}
    for line in lines:
        found = FIELD.fullmatch(line)
        if found is None:
            raise Problem(400, "a header field is not NAME: VALUE.")
        name = found[1].decode().lower()
        if name in headers and name in ("host", "authorization", "content-length", "content-type"):
            raise Problem(400, f"the header field {name} is there twice.")
        headers.setdefault(name, found[2].decode("latin-1"))
    if "host" not in headers:
        raise Problem(400, "the header field host is missing.")
    path, _, query = parts[1].decode().partition("?")
    return Question(parts[0].decode(), path, query, headers)


async def _body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: Question, most: int
) -> bytes:
    """The body, if this question may have one of that size."""
    if "transfer-encoding" in question.headers:
        raise Problem(411, "the body's length must be said with Content-Length.")
    said = question.headers.get("content-length")
    if said is None and question.method == "POST":
        raise Problem(411, "the body's length must be said with Content-Length.")
    if not re.fullmatch("[0-9]{1,12}", said or "0"):
        raise Problem(400, "Content-Length is no whole number.")
    size = int(said or "0")
    if size > most:
        raise Problem(413, f"the body has {size} bytes; allowed here: {most} at most.")
    if size and question.headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        raise Problem(400, "the body is shorter than Content-Length says.") from error


def _head_bytes(answer: Answer) -> bytes:
    status = HTTPStatus(answer.status)
    headers = {**HEADERS, **answer.headers, "Connection": "close"}
    if answer.status != 304:
        headers |= {"Content-Type": answer.kind, "Content-Length": str(len(answer.body))}
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what is still coming, up to a bound: else the answer could be lost on its way."""
    if writer.can_write_eof():
        writer.write_eof()
    left = 32 << 20
    with suppress(TimeoutError):
        async with asyncio.timeout(2.0):
            while left > 0 and (data := await reader.read(1 << 16)):
                left -= len(data)
