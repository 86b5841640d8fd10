"""Connections of a small, strict HTTP server: one question each, and every wait has an end.

h11 reads and writes HTTP; an ASGI application answers.  A connection is closed after its answer, so
that there is nothing to confuse about where one question ends and the next begins.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import h11
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Scope

from unwalk.core.errors import InvalidInput
from unwalk.peers.web.answers import Problem

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""What every answer says, unless it says something else itself."""
PLAIN = re.compile(
    rb'[A-Z][A-Z-]{0,19} /[!"$-~]* HTTP/[0-9]\.[0-9]\r\n'
    rb"(?:[^\s:]+:[\t -~\x80-\xff]*\r\n)*\r\n"
)
"""A head whose lines all end alike and go on nowhere; h11 would take others as well."""
ONCE = (b"host", b"authorization", b"content-length", b"content-type")
WHOLE = re.compile(rb"[ \t]*[0-9]{1,12}[ \t]*")
BACKLOG = 100
PAUSE = 0.1
"""Seconds until the next try to accept a connection, after descriptors ran out."""


@dataclass(frozen=True)
class HttpLimits:
    """The limits of an endpoint.

    ``head``: bytes before the body.  ``read`` and ``write``: seconds for a whole question and for
    a whole answer.  ``connections``: open ones, from before the TLS handshake until the other side
    has gone; one more closes the one that has kept the endpoint waiting longest.  ``rate`` and
    ``anonymous``: questions per second with and without the token.
    """

    head: int = 16 << 10
    fields: int = 64
    read: float = 10.0
    write: float = 30.0
    connections: int = 64
    rate: float = 50.0
    anonymous: float = 20.0


def as_it_is(problem: Problem) -> Problem:
    """Refuse a question for what is wrong with it, however many there were."""
    return problem


class Connections:
    """Serves an ASGI application in the running loop, from :meth:`start` to :meth:`stop`.

    A head that cannot be read is no question for the application: ``refuse`` hears what is wrong
    with it and says what is answered.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: HttpLimits,
        tls: ssl.SSLContext | None = None,
        refuse: Callable[[Problem], Problem] = as_it_is,
    ) -> None:
        self.app, self.limits, self.tls, self.port = app, limits, tls, 0
        self.refuse = refuse
        self.open: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[None], None] = {}
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one, which ``port`` then is."""
        loop = asyncio.get_running_loop()
        try:
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            for family, address in dict.fromkeys((each[0], each[4]) for each in addresses):
                one = socket.create_server(address, family=family, backlog=BACKLOG)
                one.setblocking(False)
                self._listening.append(one)
        except OSError as error:
            await self.stop()
            raise InvalidInput(
                f"the HTTP address {host}:{port} cannot be served: {error.strerror}."
            ) from error
        self.port = self._listening[0].getsockname()[1]
        self._accepting = [loop.create_task(self._accept(one)) for one in self._listening]

    async def stop(self) -> None:
        """End all connections."""
        while left := {task for task in (*self._accepting, *self.open) if not task.done()}:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0.2)
        for one in self._listening:
            one.close()
        self._accepting, self._listening = [], []

    async def _accept(self, listening: socket.socket) -> None:
        """Take connections, each into a task of its own; never more than are allowed."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError:
                await asyncio.sleep(PAUSE)
                continue
            if self._has_place():
                task = loop.create_task(self._serve(connected))
                self.open.add(task)
                self._waiting[task] = None
                task.add_done_callback(self._gone)
            else:
                connected.close()
            await asyncio.sleep(0)  # in a flood the next one is here already: others go on first

    def _has_place(self) -> bool:
        """Whether one more may come, maybe for another that has to go."""
        if len(self.open) < self.limits.connections:
            return True
        if not self._waiting:
            return False
        oldest = next(iter(self._waiting))
        del self._waiting[oldest]
        oldest.cancel()
        return True

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._waiting.pop(task, None)
        self.open.discard(task)

    async def _serve(self, connected: socket.socket) -> None:
        """Shake hands, answer a question, and see the other side go."""
        task = asyncio.current_task()
        assert task is not None
        writer = None
        with suppress(OSError, TimeoutError, asyncio.CancelledError, h11.LocalProtocolError):
            try:
                reader, writer = await self._streams(connected)
                heard = partial(self._waiting.pop, task, None)
                await Exchange(reader, writer, self.limits, heard).run(self.app, self.refuse)
                writer.close()
                self._waiting[task] = None
                async with asyncio.timeout(self.limits.write):
                    await writer.wait_closed()
            finally:
                if writer is not None:
                    writer.transport.abort()

    async def _streams(
        self, connected: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The two directions of a connection, behind TLS where that is spoken."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=self.limits.head, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connected,
            ssl=self.tls,
            ssl_handshake_timeout=None if self.tls is None else self.limits.read,
            ssl_shutdown_timeout=None if self.tls is None else self.limits.write,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class Exchange:
    """One question and its answer; ``heard`` is called once the question is here or refused."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: HttpLimits,
        heard: Callable[[], object],
    ) -> None:
        self.reader, self.writer, self.limits, self.heard = reader, writer, limits, heard
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head)
        self.scope: Scope = {"type": "http", "method": "GET"}
        self._deadline = asyncio.timeout(limits.read)

    async def run(self, app: ASGIApp, unreadable: Callable[[Problem], Problem]) -> None:
        """Read a question, let the application answer it."""
        try:
            async with self._deadline:
                try:
                    head = await self._head()
                    if head is None:
                        return
                    self.scope = parse_head(head, self.http, self.limits.fields)
                except Problem as problem:
                    app = unreadable(problem).answer()
                await app(self.scope, self.receive, self.send)
        except TimeoutError:
            if self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                raise
            late = Problem(408, f"no whole question in {self.limits.read:g} seconds.")
            async with asyncio.timeout(None) as self._deadline:
                await late.answer()(self.scope, self.receive, self.send)
        if self._unread():
            await self._linger()

    async def _head(self) -> bytes | None:
        try:
            return await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise Problem(431, f"the head is larger than {self.limits.head} bytes.") from error
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return None
            raise Problem(400, "the question ends in the middle of its head.") from error

    async def receive(self) -> Message:
        """The next part of the body, for the application."""
        if self.http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self._write(go_on)
        try:
            while (event := self.http.next_event()) is h11.NEED_DATA:
                self.http.receive_data(await self.reader.read(1 << 16))
        except h11.RemoteProtocolError as error:
            raise Problem(400, "the body is shorter than Content-Length says.") from error
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        self.heard()
        self._deadline.reschedule(None)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Message) -> None:
        """The next part of the answer, from the application."""
        if message["type"] == "http.response.start":
            self.heard()
            self._deadline.reschedule(asyncio.get_running_loop().time() + self.limits.write)
            headers = MutableHeaders(raw=list(message["headers"]))
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers["Connection"] = "close"
            status = HTTPStatus(message["status"])
            self._write(h11.Response(status_code=status, reason=status.phrase, headers=headers.raw))
            return
        if self.scope["method"] != "HEAD":
            self._write(h11.Data(data=message["body"]))
        if not message.get("more_body"):
            self._write(h11.EndOfMessage())
        await self.writer.drain()

    def _write(self, event: h11.Event) -> None:
        self.writer.write(self.http.send(event) or b"")

    def _unread(self) -> bool:
        """Whether something of the body is still to come."""
        if self.http.their_state is not h11.SEND_BODY:
            return False
        return not isinstance(self.http.next_event(), h11.EndOfMessage)

    async def _linger(self) -> None:
        """Read what is still coming, up to a bound: else the answer could be lost on its way."""
        if self.writer.can_write_eof():
            self.writer.write_eof()
        left = 32 << 20
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                while left > 0 and (data := await self.reader.read(1 << 16)):
                    left -= len(data)


def parse_head(head: bytes, http: h11.Connection, most_fields: int = 64) -> Scope:
    """The question in the bytes up to the empty line; :class:`Problem` unless it is plain.

    >>> http = h11.Connection(h11.SERVER)
    >>> parse_head(b"GET /v1/status?x=1 HTTP/1.1\\r\\nHost: localhost:80\\r\\n\\r\\n", http)["path"]
    '/v1/status'
    """
    lines = head.split(b"\r\n")[1:-2]
    if len(lines) > most_fields:
        raise Problem(431, f"the head has more than {most_fields} fields.")
    if not PLAIN.fullmatch(head):
        raise Problem(400, "the head is not METHOD /PATH HTTP/1.1 and then lines NAME: VALUE.")
    if not head.partition(b"\r\n")[0].endswith((b" HTTP/1.1", b" HTTP/1.0")):
        raise Problem(505, "the version is not HTTP/1.1 or HTTP/1.0.")
    fields = [(line.partition(b":")[0].lower(), line.partition(b":")[2]) for line in lines]
    for once in ONCE:
        if len([name for name, _ in fields if name == once]) > 1:
            raise Problem(400, f"the header field {once.decode()} is there twice.")
    if not all(WHOLE.fullmatch(value) for name, value in fields if name == b"content-length"):
        raise Problem(400, "Content-Length is no whole number.")
    if b"host" not in dict(fields):
        raise Problem(400, "the header field host is missing.")
    try:
        http.receive_data(head)
        event = http.next_event()
    except h11.RemoteProtocolError as error:
        raise Problem(400, "the head is not HTTP/1.1 as RFC 9112 has it.") from error
    assert isinstance(event, h11.Request)
    path, _, query = event.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": event.http_version.decode(),
        "method": event.method.decode(),
        "path": path.decode(),  # as it was sent: no other spelling leads to the same place
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": list(event.headers),
    }
