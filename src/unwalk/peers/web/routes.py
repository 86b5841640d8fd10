"""The paths of the endpoint: which question gets which answer, who may ask, and how often.

Everything under ``/v1/`` needs the peer's token; the page, its script and the description of the
interface do not, and hold nothing of the peer.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, unquote

from unwalk.core.errors import InvalidInput, Refused
from unwalk.peers.forgetting.request_form import REQUEST_ID, Conflict, RequestForm, UnknownRecords
from unwalk.peers.protocol.codec import finite_float, no_constant, short_int
from unwalk.peers.storage.disk_space import DiskFull
from unwalk.peers.transport.rate_limit import Rate
from unwalk.peers.web.openapi import api_description, api_page
from unwalk.peers.web.views import MOST_LISTED, NAME, Desk, to_json

JSON = "application/json"
LISTED = 50
BODY_BYTES = 8 << 20
"""Largest body that is read: a request with the most records, ids of usual length."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


@dataclass(frozen=True)
class Question:
    """The head of an HTTP request; header names are in small letters."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """What is sent back."""

    status: int
    body: bytes = b""
    kind: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class Problem(Exception):
    """A question that is not answered, with the reason in one sentence."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})

    def answer(self) -> Answer:
        return Answer(self.status, dump({"error": self.sentence}), headers=self.headers)


@dataclass(frozen=True)
class Route:
    """A question that was let in: its handler, what its path names, and the most it may send."""

    handler: Callable[[Question, str, bytes], Awaitable[Answer]]
    name: str
    body: int


class Routes:
    """The paths of one peer's endpoint."""

    def __init__(
        self,
        desk: Desk,
        token: str,
        *,
        rate: float = 50.0,
        anonymous: float = 20.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.desk, self.clock = desk, clock
        self._token = hashlib.sha256(token.encode()).digest()
        self._known, self._anonymous = Rate(rate), Rate(anonymous)
        self._verifying = asyncio.Semaphore(1)
        self._table: list[tuple[re.Pattern[str], dict[str, Any]]] = [
            (re.compile(pattern), methods)
            for pattern, methods in (
                ("/v1/status", {"GET": self._status}),
                ("/v1/requests", {"GET": self._requests, "POST": self._submit}),
                ("/v1/requests/([^/]+)", {"GET": self._request}),
                ("/v1/certificates", {"GET": self._certificates}),
                ("/v1/certificates/([^/]+)", {"GET": self._certificate}),
                ("/v1/certificates/([^/]+)/files", {"GET": self._files}),
                ("/v1/certificates/([^/]+)/verify", {"GET": self._verify}),
                ("(/|/app[.]js|/draw[.]js|/style[.]css|/icon[.]svg)", {"GET": self._page}),
                ("/openapi[.]json", {"GET": self._description}),
                ("/docs", {"GET": self._docs}),
            )
        ]

    def admit(self, question: Question) -> Route:
        """The route of a question, or a :class:`Problem`; nothing of its body was read yet."""
        inside = question.path.startswith("/v1/")
        known = self._has_token(question.headers.get("authorization", ""))
        if not (self._known if known else self._anonymous).allows(0, self.clock()):
            raise Problem(429, "too many questions; ask again in a second.", {"Retry-After": "1"})
        if inside and not known:
            raise Problem(
                401,
                "the access token is missing or wrong; it stands in the file http.token of the "
                "peer's store and is sent as 'Authorization: Bearer TOKEN'.",
                {"WWW-Authenticate": "Bearer"},
            )
        for pattern, methods in self._table:
            found = pattern.fullmatch(question.path)
            if found is None:
                continue
            method = "GET" if question.method == "HEAD" else question.method
            if method not in methods:
                allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
                raise Problem(
                    405, f"the method is not allowed here; allowed: {allowed}.", {"Allow": allowed}
                )
            name = unquote(found[1], errors="replace") if pattern.groups else ""
            return Route(methods[method], name, BODY_BYTES if method == "POST" else 0)
        raise Problem(404, "there is nothing here; /docs lists what there is.")

    def _has_token(self, given: str) -> bool:
        scheme, _, token = given.partition(" ")
        digest = hashlib.sha256(token.strip().encode("latin-1", "replace")).digest()
        return hmac.compare_digest(digest, self._token) and scheme.lower() == "bearer"

    async def answer(self, route: Route, question: Question, body: bytes) -> Answer:
        """Ask the desk; its refusals become problems."""
        try:
            return await route.handler(question, route.name, body)
        except UnknownRecords as error:
            return Answer(422, dump({"error": str(error), "unknown": list(error.ids)}))
        except Conflict as error:
            raise Problem(409, str(error)) from error
        except (InvalidInput, Refused) as error:
            raise Problem(422, str(error)) from error
        except DiskFull as error:
            raise Problem(503, str(error), {"Retry-After": "10"}) from error

    async def _status(self, question: Question, _name: str, _body: bytes) -> Answer:
        _query(question, ())
        return tagged(question, dump(to_json(self.desk.overview())), JSON, "no-store")

    async def _requests(self, question: Question, _name: str, _body: bytes) -> Answer:
        given = _query(question, ("after", "limit"))
        limit, after = given.get("limit", str(LISTED)), given.get("after")
        if not re.fullmatch("[0-9]{1,4}", limit, re.ASCII) or not 0 < int(limit) <= MOST_LISTED:
            raise Problem(
                400, f"limit is {limit[:80]!r}; allowed: a whole number, 1 to {MOST_LISTED}."
            )
        if after is not None and not REQUEST_ID.fullmatch(after):
            raise Problem(400, f"after is {after[:80]!r}; allowed: the id of a request.")
        try:
            found = list(self.desk.requests(after, int(limit) + 1))
        except InvalidInput as error:
            raise Problem(404, str(error)) from error
        more = found[int(limit) - 1].id if len(found) > int(limit) else None
        body = dump({"requests": to_json(found[: int(limit)]), "next": more})
        return tagged(question, body, JSON, "no-store")

    async def _submit(self, question: Question, _name: str, body: bytes) -> Answer:
        _query(question, ())
        kind = question.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:
            raise Problem(415, f"the body's type is {kind[:80]!r}; allowed: {JSON}.")
        view = await self.desk.submit(RequestForm.from_json(load(body)))
        return Answer(202, dump(to_json(view)), headers={"Location": f"/v1/requests/{view.id}"})

    async def _request(self, question: Question, name: str, _body: bytes) -> Answer:
        _query(question, ())
        view = self.desk.request(name) if REQUEST_ID.fullmatch(name) else None
        if view is None:
            raise Problem(404, f"this peer has no request {name[:80]!r}.")
        return Answer(200, dump(to_json(view)))

    async def _certificates(self, question: Question, _name: str, _body: bytes) -> Answer:
        _query(question, ())
        body = dump({"certificates": to_json(list(self.desk.certificates()))})
        return tagged(question, body, JSON, "no-store")

    async def _certificate(self, question: Question, name: str, _body: bytes) -> Answer:
        _query(question, ())
        data = self.desk.certificate(name) if NAME.fullmatch(name) else None
        if data is None:
            raise _no_certificate(name)
        file = name if name.endswith(".json") else f"{name}.json"
        headers = {"Content-Disposition": f'attachment; filename="{file}"'}
        return Answer(200, data, headers=headers)

    async def _files(self, question: Question, name: str, _body: bytes) -> Answer:
        _query(question, ())
        async with self._verifying:
            data = await self.desk.evidence(name) if NAME.fullmatch(name) else None
        if data is None:
            raise _no_certificate(name)
        file = f"{name.removesuffix('.json')}.zip"
        headers = {"Content-Disposition": f'attachment; filename="{file}"'}
        return Answer(200, data, "application/zip", headers)

    async def _verify(self, question: Question, name: str, _body: bytes) -> Answer:
        _query(question, ())
        async with self._verifying:  # these answers cost something
            said = await self.desk.verify(name) if NAME.fullmatch(name) else None
        if said is None:
            raise _no_certificate(name)
        return Answer(200, dump(dict(said)))

    async def _page(self, question: Question, name: str, _body: bytes) -> Answer:
        _query(question, ())
        file, kind = PAGE[name]
        return tagged(question, page_file(file), kind, "no-cache")

    async def _description(self, question: Question, _name: str, _body: bytes) -> Answer:
        _query(question, ())
        return tagged(question, dump(api_description()), JSON, "no-cache")

    async def _docs(self, question: Question, _name: str, _body: bytes) -> Answer:
        _query(question, ())
        kind = "text/html; charset=utf-8"
        return tagged(question, api_page().encode(), kind, "no-cache")


def _no_certificate(name: str) -> Problem:
    return Problem(404, f"this peer has no certificate {name[:80]!r}.")


@cache
def page_file(name: str) -> bytes:
    """A file of the dashboard."""
    return resources.files("unwalk.peers.web").joinpath("page", name).read_bytes()


def tagged(question: Question, body: bytes, kind: str, cache_control: str) -> Answer:
    """An answer that is not sent again to somebody who has it."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": cache_control}
    if question.headers.get("if-none-match") == tag:
        return Answer(304, b"", kind, headers)
    return Answer(200, body, kind, headers)


def _query(question: Question, known: tuple[str, ...]) -> dict[str, str]:
    """The query's fields, each once and by a known name."""
    try:
        pairs = parse_qsl(
            question.query, keep_blank_values=True, errors="strict", max_num_fields=16
        )
    except ValueError as error:
        raise Problem(400, "the query after '?' cannot be read.") from error
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            allowed = ", ".join(known) or "none here"
            raise Problem(400, f"the query has a field {name[:80]!r}; allowed: {allowed}.")
        if name in found:
            raise Problem(400, f"the query has {name!r} twice.")
        found[name] = value
    return found


def dump(record: Any) -> bytes:
    """JSON, ASCII, one line."""
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def load(body: bytes) -> Any:
    """The JSON in a body; refused where two readers could understand it differently."""
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_no_twice,
            parse_constant=_said(no_constant),
            parse_int=_said(short_int),
            parse_float=_said(finite_float),
        )
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, _Unclear) else "it cannot be read"
        raise Problem(400, f"the body is not JSON as RFC 8259 has it: {why[:200]}.") from error


class _Unclear(ValueError):
    """Readers may differ in what it means; says why."""


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Unclear("an object has one name twice")
    return found


def _said(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same reader, whose reasons may be told."""

    def told(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise _Unclear(str(error)) from error

    return told
