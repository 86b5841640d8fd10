"""The endpoint of a peer for its own organisation: where it listens, and who is let in.

It listens on the loopback interface; on another address it speaks TLS with the peer's certificate.
Nothing of a body is read before the token was checked.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from unwalk.core.errors import InvalidInput
from unwalk.peers.identity.credentials import read_private, write_private
from unwalk.peers.identity.network_file import ADDRESS
from unwalk.peers.telemetry import Journal, Metrics
from unwalk.peers.transport.rate_limit import Rate
from unwalk.peers.web.answers import Problem
from unwalk.peers.web.connections import Connections, HttpLimits
from unwalk.peers.web.routes import application
from unwalk.peers.web.views import Desk

TOKEN_FILE = "http.token"
ADDRESS_FILE = "http.address"
NAMES = ("127.0.0.1", "localhost", "[::1]")


class HttpDesk:
    """Serves a desk over HTTP, from :meth:`start` to :meth:`stop`.

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
        limits = limits or HttpLimits()
        self.host, self.port, tls = _place(address, bundle)
        self.token_file, self.journal = token_file, journal or Journal(None, "")
        names = (*NAMES, self.host, f"[{self.host}]") if tls is None else ()
        app = application(desk, self.journal)
        self.gate = AccessControl(app, read_token(token_file), limits, names, self.journal)
        self.connections = Connections(self.gate, limits, tls, self.gate.refuse)

    @property
    def url(self) -> str:
        """Where the dashboard is."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.connections.tls is None else 'https'}://{host}:{self.port}/"

    async def start(self) -> None:
        """Listen, and say where in the file ``http.address`` beside the token."""
        await self.connections.start(self.host, self.port)
        self.port = self.connections.port
        partial = self._address_file.with_name(f"{ADDRESS_FILE}.partial")
        write_private(partial, f"{self.url}\n".encode())
        os.replace(partial, self._address_file)  # whoever reads it reads all of it
        self.journal.write("http started", url=self.url)

    async def stop(self) -> None:
        """End all connections."""
        await self.connections.stop()
        self._address_file.unlink(missing_ok=True)

    @property
    def _address_file(self) -> Path:
        return self.token_file.with_name(ADDRESS_FILE)


class AccessControl:
    """Stands before the application and decides who may ask, and how often.

    Everything under ``/v1/`` needs the token, and ``where`` says where it stands.  ``names`` are
    the hosts that are answered to; none: any, since a browser has checked the name with the
    certificate.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        limits: HttpLimits,
        names: tuple[str, ...],
        journal: Journal,
        clock: Callable[[], float] = monotonic,
        where: str = f"the file {TOKEN_FILE} of the peer's store",
    ) -> None:
        self.app, self.names, self.journal, self.clock = app, names, journal, clock
        self.where = where
        self._token = hashlib.sha256(token.encode()).digest()
        self._known, self._anonymous = Rate(limits.rate), Rate(limits.anonymous)
        self._quiet_until, self._unsaid = 0.0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        try:
            self._check(scope["path"], Headers(scope=scope))
        except Problem as problem:
            self._log(problem)
            app = problem.answer()
        await app(scope, receive, send)

    def refuse(self, problem: Problem) -> Problem:
        """What is answered to a head that cannot be read: it counts as a question too."""
        try:
            self._count(known=False)
        except Problem as too_many:
            problem = too_many
        self._log(problem)
        return problem

    def _count(self, *, known: bool) -> None:
        if not (self._known if known else self._anonymous).allows(0, self.clock()):
            raise Problem(429, "too many questions; ask again in a second.", {"Retry-After": "1"})

    def _check(self, path: str, headers: Headers) -> None:
        known = self._has_token(headers.get("authorization", ""))
        self._count(known=known)
        host = headers["host"]
        if self.names and (host.rpartition(":")[0] or host) not in self.names:
            # A page of another site that was told that its name is this address stays outside.
            raise Problem(421, f"this endpoint answers to {', '.join(NAMES)} only.")
        if path.startswith("/v1/") and not known:
            raise Problem(
                401,
                f"the access token is missing or wrong; it stands in {self.where} and is sent as "
                "'Authorization: Bearer TOKEN'.",
                {"WWW-Authenticate": "Bearer"},
            )

    def _has_token(self, given: str) -> bool:
        scheme, _, token = given.partition(" ")
        digest = hashlib.sha256(token.strip().encode("latin-1", "replace")).digest()
        return hmac.compare_digest(digest, self._token) and scheme.lower() == "bearer"

    def _log(self, problem: Problem) -> None:
        """Log that somebody was turned away, at most once a second; never what was asked."""
        now = self.clock()
        if now < self._quiet_until:
            self._unsaid += 1
            return
        self._quiet_until = now + 1.0
        unsaid, self._unsaid = self._unsaid, 0
        self.journal.write("http refused", status=problem.status_code, unsaid=unsaid)


async def serve_metrics(metrics: Metrics, address: str) -> Connections:
    """Answer GET /metrics on a loopback address."""
    host, _, port = address.rpartition(":")
    if host not in NAMES or not port.isdigit():
        raise InvalidInput(
            f"the metrics address is {address!r}; allowed: 127.0.0.1:PORT or [::1]:PORT."
        )

    async def answer(_request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    app = Starlette(routes=[Route("/metrics", answer)])
    connections = Connections(app, HttpLimits(connections=16, read=5.0, write=5.0))
    await connections.start(host.strip("[]"), int(port))
    return connections


def _place(address: str, bundle: Path | None) -> tuple[str, int, ssl.SSLContext | None]:
    """Host, port, and TLS where others could listen in."""
    match = ADDRESS.fullmatch(address)
    if match is None or int(match[2]) > 65535:
        raise InvalidInput(f"the HTTP address is {address!r}; allowed: HOST:PORT.")
    host = "127.0.0.1" if match[1] == "localhost" else match[1].strip("[]")
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return host, int(match[2]), None
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
    return host, int(match[2]), context


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
