"""Answers every question alike: checks what came with it, calls its handler, words refusals."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.grades import advised
from unwalk.peers.forgetting.request_form import Conflict, UnknownRecords
from unwalk.peers.storage.disk_space import DiskFull, NoDescriptors, means_no_files
from unwalk.peers.web.answers import JSON, Json, Problem, tagged
from unwalk.peers.web.views import to_json

BODY_BYTES = 8 << 20
"""Largest body that is read: a request with the most records, ids of usual length."""
REFUSED: dict[type[Exception], int] = {
    Conflict: 409,
    InvalidInput: 422,
    Refused: 422,
    DiskFull: 503,
}
SOON = {"Retry-After": "10"}
SAID: tuple[type[Exception], ...] = (HTTPException, *REFUSED)
"""What is raised for a question and answered with its own words; anything else is a fault."""

Handler = Callable[[Request], Awaitable[Any]]


@dataclass(frozen=True)
class Operation:
    """One method of one path, and what the description says of it.

    The docstring of ``handler`` is said there as well.  ``answer`` is the type of what comes back
    with ``status``, ``query`` the dataclass of the fields that may follow '?', ``form`` that of the
    body.  ``refusals`` are the statuses of problems besides those that every question may meet,
    ``links`` the operations that may follow: which parameter is which field of the answer.
    """

    handler: Handler
    method: str
    path: str
    answer: Any = None
    kind: str = JSON
    status: int = 200
    query: type[Any] | None = None
    form: type[Any] | None = None
    refusals: tuple[int, ...] = ()
    links: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    async def respond(self, request: Request) -> Response:
        """Check what came with the question, ask the desk, answer."""
        request.state.query = _query(request, self.query)
        await _read_body(request, BODY_BYTES if self.form else 0)
        try:
            result = await self.handler(request)
        except Exception as error:
            if means_no_files(error):
                raise Problem(503, str(NoDescriptors()), SOON) from error
            if isinstance(error, SAID):
                raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            request.app.state.journal.write("http failed", kind=type(error).__name__, place=place)
            reason = "something went wrong inside the peer; its log says when and where."
            raise Problem(500, reason) from error
        answer = result if isinstance(result, Response) else Json(to_json(result), self.status)
        answer.headers.setdefault("Cache-Control", "no-store")
        return tagged(request, answer) if request.method != "POST" else answer


OPERATIONS: list[Operation] = []


def asked(method: str, path: str, **said: Any) -> Callable[[Handler], Handler]:
    """Let a function answer a path; ``said`` are the fields of its :class:`Operation`."""

    def register(handler: Handler) -> Handler:
        OPERATIONS.append(Operation(handler, method, path, **said))
        return handler

    return register


def _query(request: Request, kind: type[Any] | None) -> dict[str, str]:
    """The query's fields, each once and by a known name."""
    known = [f.name for f in fields(kind)] if kind is not None else []
    query = request.scope["query_string"].decode()
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=16)
    except ValueError as error:
        raise Problem(400, "the query after '?' cannot be read.") from error
    asked: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            allowed = ", ".join(known) or "none here"
            raise Problem(400, f"the query has a field {name[:80]!r}; allowed: {allowed}.")
        if name in asked:
            raise Problem(400, f"the query has {name!r} twice.")
        asked[name] = value
    return asked


async def _read_body(request: Request, most: int) -> None:
    """Read the body, if this question may have one of that size."""
    length = request.headers.get("content-length")
    if "transfer-encoding" in request.headers or (length is None and request.method == "POST"):
        raise Problem(411, "the body's length must be said with Content-Length.")
    size = int(length or "0")
    if size > most:
        raise Problem(413, f"the body has {size} bytes; allowed here: {most} at most.")
    await request.body()


async def _no_route(request: Request, error: Exception) -> Response:
    """Problems say their own sentence; the router's are told apart by their status."""
    if isinstance(error, Problem):
        return error.answer()
    routes = [r for r in request.app.routes if r.path_regex.fullmatch(request.scope["path"])]
    if not routes:
        return Problem(404, "there is nothing here; /docs lists what there is.").answer()
    allowed = ", ".join(sorted({method for r in routes for method in r.methods}))
    words = f"the method is not allowed here; allowed: {allowed}."
    return Problem(405, words, {"Allow": allowed}).answer()


async def _refused(_request: Request, error: Exception) -> Response:
    """What the desk did not do, and why."""
    status = next(code for kind, code in REFUSED.items() if isinstance(error, kind))
    further = {"unknown": list(error.ids)} if isinstance(error, UnknownRecords) else {}
    headers = SOON if isinstance(error, DiskFull) else None
    reason = advised(error) if isinstance(error, Refused) else str(error)
    return Problem(status, reason, headers).answer(**further)


HANDLERS: dict[Any, Any] = {HTTPException: _no_route, **dict.fromkeys(REFUSED, _refused)}
