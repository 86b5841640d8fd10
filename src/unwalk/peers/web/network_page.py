"""One page for all peers of a network on this machine, on the loopback interface.

It is served by the process that started the peers.  What it shows lies under ``/v1/``, which needs
the token, since there are the addresses at which the peers' own pages let somebody in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unwalk.peers.telemetry import Journal
from unwalk.peers.web.answers import Problem
from unwalk.peers.web.connections import Connections, HttpLimits
from unwalk.peers.web.http_server import NAMES, AccessControl, read_token
from unwalk.peers.web.operations import Operation
from unwalk.peers.web.routes import AGAIN, HTML, PAGE, SCRIPT, page_file

TOKEN_FILE = "page.token"
WHERE = f"the file {TOKEN_FILE} of the network's folder"
HOST = "127.0.0.1"
FILES = {
    "/": ("network.html", HTML),
    "/network.js": ("network.js", SCRIPT),
    **{path: PAGE[path] for path in PAGE if path not in ("/", "/app.js")},
}
STATES = ("starting", "up", "restarting", "stopped", "left")


@dataclass(frozen=True)
class PeerRow:
    """One peer: ``state`` is one of ``STATES``, ``note`` why it is not up.

    ``hop`` and ``chapter`` are the last that it knows of.  ``finished``: it has the model at that
    chapter's end.  ``records`` are those it trains on (None: it brings none of its own), ``memory``
    is in bytes, and ``page`` the address of its own page, with the token that lets one in.
    """

    name: str
    address: str
    state: str
    note: str = ""
    chapter: int = 0
    hop: int = 0
    finished: bool = False
    records: int | None = None
    requests: Mapping[str, int] = field(default_factory=dict)
    certificates: int = 0
    restarts: int = 0
    memory: int | None = None
    page: str | None = None


@dataclass(frozen=True)
class NetworkView:
    """The whole network; ``edges`` are pairs of places in ``peers``.

    ``chapter`` is the last one that was decided, 0 the training walk; ``forgets`` is the peer whose
    records it is about.  ``token`` is who was last seen with the token.  ``memory`` is that of all
    processes together, the one that the peers are forked from and this one included.
    """

    network: str
    folder: str
    chapter: int
    forgets: str | None
    hop: int
    hops: int
    token: str | None
    peers: tuple[PeerRow, ...]
    edges: tuple[tuple[int, int], ...]
    memory: int | None = None


class NetworkPage:
    """Serves the page from :meth:`start` to :meth:`stop`; port 0 takes a free one."""

    def __init__(
        self, ask: Callable[[], Awaitable[NetworkView]], token_file: Path, port: int = 0
    ) -> None:
        self._token, self._port = read_token(token_file), port
        app = Starlette(routes=_routes(ask), exception_handlers={HTTPException: _refused})
        app.router.redirect_slashes = False
        journal = app.state.journal = Journal(None, "")
        limits = HttpLimits()
        gate = AccessControl(app, self._token, limits, NAMES, journal, where=WHERE)
        self.connections = Connections(gate, limits)

    @property
    def url(self) -> str:
        """Where the page is; whoever has this address is let in."""
        return f"http://{HOST}:{self.connections.port}/#token={self._token}"

    async def start(self) -> None:
        """Listen."""
        await self.connections.start(HOST, self._port)

    async def stop(self) -> None:
        """End all connections."""
        await self.connections.stop()


def _routes(ask: Callable[[], Awaitable[NetworkView]]) -> list[Route]:
    async def network(_request: Request) -> NetworkView:
        return await ask()

    async def page(request: Request) -> Response:
        name, kind = FILES[request.scope["path"]]
        return Response(await asyncio.to_thread(page_file, name), headers=AGAIN, media_type=kind)

    asked = [Operation(network, "GET", "/v1/network"), *(Operation(page, "GET", p) for p in FILES)]
    return [Route(o.path, o.respond, methods=[o.method]) for o in asked]


async def _refused(_request: Request, error: Exception) -> Response:
    """Problems say their own sentence; everything else is a path or a method that is not here."""
    if isinstance(error, Problem):
        return error.answer()
    assert isinstance(error, HTTPException)
    return Problem(error.status_code, "there is nothing here; the page is at /.").answer()
