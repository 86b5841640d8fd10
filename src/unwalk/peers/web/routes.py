"""The paths of the endpoint: one function per path, and its part of the OpenAPI description.

The page, its script and the description of the interface hold nothing of the peer; everything else
lies under ``/v1/``, which needs the token.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from unwalk.core.errors import InvalidInput
from unwalk.peers.forgetting.request_form import REQUEST_ID, RequestForm, RequestView
from unwalk.peers.telemetry import Journal
from unwalk.peers.web.answers import JSON, Json, Problem, load
from unwalk.peers.web.operations import HANDLERS, OPERATIONS, asked
from unwalk.peers.web.views import (
    MOST_LISTED,
    NAME,
    CertificateList,
    Desk,
    OfferList,
    Overview,
    PageQuery,
    RequestPage,
    Verdict,
    to_json,
)

HTML = "text/html; charset=utf-8"
SCRIPT = "text/javascript; charset=utf-8"
PAGE = {
    "/": ("index.html", HTML),
    "/app.js": ("app.js", SCRIPT),
    "/draw.js": ("draw.js", SCRIPT),
    "/session.js": ("session.js", SCRIPT),
    "/table.js": ("table.js", SCRIPT),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
AGAIN = {"Cache-Control": "no-cache"}
"""May be kept, if it is asked for again whether it is still so."""


def application(desk: Desk, journal: Journal) -> Starlette:
    """The endpoint of one peer, for whoever was let in."""
    routes = [Route(o.path, o.respond, methods=[o.method]) for o in OPERATIONS]
    app = Starlette(routes=routes, exception_handlers=HANDLERS)
    app.router.redirect_slashes = False
    app.state.desk, app.state.journal = desk, journal
    app.state.verifying = asyncio.Semaphore(1)
    return app


@asked("GET", "/v1/status", answer=Overview)
async def status(request: Request) -> Overview:
    """Where the token is, the graph, accuracy, privacy spent."""
    return _desk(request).overview()


@asked("GET", "/v1/requests", answer=RequestPage, query=PageQuery, refusals=(404,))
async def list_requests(request: Request) -> RequestPage:
    """Requests with their stage, newest first."""
    given = request.state.query
    after, limit = given.get("after"), given.get("limit", str(PageQuery.limit))
    if not re.fullmatch("[0-9]{1,4}", limit) or not 0 < int(limit) <= MOST_LISTED:
        raise Problem(400, f"limit is {limit[:80]!r}; allowed: a whole number, 1 to {MOST_LISTED}.")
    if after is not None and not REQUEST_ID.fullmatch(after):
        raise Problem(400, f"after is {after[:80]!r}; allowed: the id of a request.")
    try:
        requests = tuple(_desk(request).requests(after, int(limit) + 1))
    except InvalidInput as error:
        raise Problem(404, str(error)) from error
    more = requests[int(limit) - 1].id if len(requests) > int(limit) else None
    return RequestPage(requests[: int(limit)], more)


@asked(
    "POST",
    "/v1/requests",
    answer=RequestView,
    status=202,
    form=RequestForm,
    refusals=(409, 411, 413, 415, 422),
    links={"getRequest": ("id", "id"), "listRequests": ("query.after", "id")},
)
async def submit_request(request: Request) -> Json:
    """Ask that records be forgotten.

    The answer comes once the request is on disk, and its header field Location says where its
    stage can be asked. From then on the records are no longer trained on. Sending it again is
    harmless.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise Problem(415, f"the body's type is {kind[:80]!r}; allowed: {JSON}.")
    form = RequestForm.from_json(load(await request.body()))
    view = await _desk(request).submit(form)
    return Json(to_json(view), 202, {"Location": f"/v1/requests/{view.id}"})


@asked("GET", "/v1/offers", answer=OfferList, refusals=(404,))
async def list_offers(request: Request) -> OfferList:
    """What a request to forget would cost now: each method with its walk, or why it is not."""
    try:
        async with request.app.state.verifying:
            return OfferList(tuple(await _desk(request).offers()))
    except InvalidInput as error:
        raise Problem(404, str(error)) from error


@asked(
    "GET",
    "/v1/requests/{id}",
    answer=RequestView,
    refusals=(404,),
    links=dict.fromkeys(("getCertificate", "verifyCertificate"), ("name", "certificate")),
)
async def get_request(request: Request) -> RequestView:
    """One request."""
    id = unquote(request.path_params["id"])
    view = _desk(request).request(id) if REQUEST_ID.fullmatch(id) else None
    if view is None:
        raise Problem(404, f"this peer has no request {id[:80]!r}.")
    return view


@asked("GET", "/v1/certificates", answer=CertificateList)
async def list_certificates(request: Request) -> CertificateList:
    """The certificates of this peer."""
    return CertificateList(tuple(_desk(request).certificates()))


@asked("GET", "/v1/certificates/{name}", answer=dict[str, Any], refusals=(404,))
async def get_certificate(request: Request) -> Response:
    """A certificate's file."""
    name = _name(request)
    return _file(_desk(request).certificate(name), name, ".json", JSON)


@asked("GET", "/v1/certificates/{name}/files", kind="application/zip", refusals=(404,))
async def get_evidence(request: Request) -> Response:
    """A certificate with all that 'unwalk verify' needs, as one archive."""
    name = _name(request)
    async with request.app.state.verifying:
        data = await _desk(request).evidence(name)
    return _file(data, name, ".zip", "application/zip")


@asked("GET", "/v1/certificates/{name}/verify", answer=Verdict, refusals=(404,))
async def verify_certificate(request: Request) -> Mapping[str, Any]:
    """What 'unwalk verify' says of a certificate."""
    name = _name(request)
    async with request.app.state.verifying:  # these answers cost something
        checked = await _desk(request).verify(name)
    if checked is None:
        raise _no_certificate(name)
    return dict(checked)


@asked("GET", "/v1/certificates/{name}/page", kind="text/html", refusals=(404,))
async def get_document(request: Request) -> Response:
    """A certificate as a page to read, print and file, with what 'unwalk verify' says of it."""
    name = _name(request)
    async with request.app.state.verifying:
        data = await _desk(request).document(name)
    return _file(data, name, ".html", "text/html")


async def page(request: Request) -> Response:
    """A file of the dashboard."""
    name, kind = PAGE[request.scope["path"]]
    return Response(await asyncio.to_thread(page_file, name), headers=AGAIN, media_type=kind)


for _path in PAGE:
    asked("GET", _path)(page)


@asked("GET", "/openapi.json")
async def description(_request: Request) -> Response:
    """The interface, for machines."""
    return Json(await asyncio.to_thread(api_description), headers=AGAIN)


@asked("GET", "/docs")
async def docs(_request: Request) -> Response:
    """The interface, for people."""
    return Response(await asyncio.to_thread(api_page), headers=AGAIN, media_type=HTML)


@cache
def api_description() -> dict[str, Any]:
    """The OpenAPI document."""
    from unwalk.peers.web import openapi  # with pydantic, which nothing else here needs

    return openapi.described(OPERATIONS)


@cache
def api_page() -> str:
    """The same, as a page without script."""
    from unwalk.peers.web import openapi  # with pydantic, which nothing else here needs

    return openapi.page_of(api_description())


@cache
def page_file(name: str) -> bytes:
    """A file of the dashboard."""
    if name.endswith(".html"):
        from unwalk.reports.page import templates_of  # only who opens the page needs it

        return templates_of("unwalk.peers.web").get_template(name).render().encode()
    return resources.files("unwalk.peers.web").joinpath("page", name).read_bytes()


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


def _name(request: Request) -> str:
    """The name of a certificate in the path."""
    name = unquote(request.path_params["name"])
    if not NAME.fullmatch(name):
        raise _no_certificate(name)
    return name


def _no_certificate(name: str) -> Problem:
    return Problem(404, f"this peer has no certificate {name[:80]!r}.")


def _file(data: bytes | None, certificate: str, ending: str, kind: str) -> Response:
    if data is None:
        raise _no_certificate(certificate)
    name = certificate.removesuffix(".json") + ending
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, headers=headers, media_type=kind)
