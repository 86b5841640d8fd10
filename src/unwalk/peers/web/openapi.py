"""The endpoint's description of itself: OpenAPI 3.1, and a page that shows it to a person.

The schemas of answers are made from the views in :mod:`unwalk.peers.web.views`, so that they cannot
say anything else.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from html import escape
from typing import Any, Union, get_args, get_origin, get_type_hints

import unwalk
from unwalk.core.grades import SHOWN
from unwalk.peers.forgetting import request_form
from unwalk.peers.protocol import codec
from unwalk.peers.web import views

NUMBERS = {int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"}}
WORDS: dict[str, dict[str, Any]] = {
    "RequestView.id": {"pattern": f"^{request_form.REQUEST_ID.pattern}$"},
    "RequestView.stage": {"enum": list(request_form.STAGES)},
    "RequestView.grade": {"enum": list(request_form.GRADES)},
    "RequestView.records": {"description": "How many records; their ids are not kept."},
    "CertificateView.badge": {"enum": sorted(SHOWN), "description": "The grade for people."},
    "Spent.badge": {"enum": sorted(SHOWN), "description": "The grade for people."},
    "CertificateView.name": {"pattern": f"^{views.NAME.pattern}$"},
    "CertificateView.complete": {"description": "Whether every peer has signed that it erased."},
    "PeerView.state": {"enum": list(views.PEER_STATES)},
    "ChapterView.kind": {"enum": ["train", "forget"]},
    "Overview.edges": {"description": "Pairs of places in peers."},
    "Overview.disk": {"enum": ["ok", "full"]},
    "Overview.queue": {"description": "How many requests are at which stage."},
}
FORM: dict[str, Any] = {
    "type": "object",
    "required": ["records"],
    "additionalProperties": False,
    "properties": {
        "records": {
            "type": "array",
            "items": {
                "type": "string",
                "minLength": 1,
                "maxLength": request_form.LONGEST_RECORD_ID,
                "pattern": r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$",
            },
            "minItems": 1,
            "maxItems": request_form.MOST_RECORDS,
            "uniqueItems": True,
            "description": "Ids of the records, as this organisation knows them.",
        },
        "id": {
            "type": ["string", "null"],
            "pattern": f"^{request_form.REQUEST_ID.pattern}$",
            "description": "Names the request; public in the network, so make it from nothing "
            "personal. The same request sent again under the same id is the same request. Without "
            "it, one is made up.",
        },
        "grade": {"type": ["string", "null"], "enum": [*request_form.GRADES, None]},
        "epsilon": {
            "type": ["number", "null"],
            "minimum": codec.EPSILONS[0],
            "maximum": codec.EPSILONS[1],
            "description": f"For grade certified only; {request_form.EPSILON:g} if not given.",
        },
        "delta": {
            "type": ["number", "null"],
            "minimum": codec.DELTAS[0],
            "maximum": codec.DELTAS[1],
            "description": f"For grade certified only; {request_form.DELTA:g} if not given.",
        },
        "method": {"type": ["string", "null"], "pattern": f"^{request_form.METHOD.pattern}$"},
    },
    "anyOf": [
        {"properties": {"grade": {"enum": ["certified", None]}}},
        {"properties": {"epsilon": {"type": "null"}, "delta": {"type": "null"}}},
    ],
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "string", "description": "One sentence."},
        "unknown": {"type": "array", "items": {"type": "string"}},
    },
}
VERDICT = {
    "type": "object",
    "description": "As 'unwalk verify --json' has it.",
    "required": ["verdict", "problems"],
    "properties": {
        "verdict": {"type": "string", "description": "In a few words."},
        "badge": {"type": ["string", "null"], "enum": [*sorted(SHOWN), None]},
        "words": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Each claim, and last what is guaranteed to whom.",
        },
        "problems": {
            "type": "array",
            "items": {"type": "string"},
            "description": "What was changed; empty if nothing was.",
        },
        "model": {
            "type": "string",
            "enum": ["checked", "differs", "not checked", "not bound"],
            "description": "What became of the model that the certificate is for.",
        },
    },
}
REASONS = {
    "400": "The question cannot be read.",
    "401": "The access token is missing or wrong.",
    "404": "There is no such thing.",
    "409": "The id was used before, for another request.",
    "411": "The body's length is not said.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "422": "The request cannot be done: a record is not here, a value is not allowed, or the grade "
    "cannot be reached. Nothing was changed.",
    "429": "Too many questions.",
    "503": "The disk of the peer is full. Nothing was changed; ask again once there is room.",
}


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type that a view is made of.

    >>> schema_of(int | None)
    {'anyOf': [{'type': 'integer'}, {'type': 'null'}]}
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(k) for k in inner]}
    if kind is types.NoneType:
        return {"type": "null"}
    if origin is tuple and inner[-1] is not Ellipsis:
        return {
            "type": "array",
            "items": schema_of(inner[0]),
            "minItems": len(inner),
            "maxItems": len(inner),
        }
    if origin is tuple:
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if is_dataclass(kind) and isinstance(kind, type):
        return {"$ref": f"#/components/schemas/{kind.__name__}"}
    return dict(NUMBERS.get(kind, {"type": "string"}))


def _view(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    names = [f.name for f in fields(kind)]
    text = " ".join((kind.__doc__ or "").replace("``", "'").split())
    return {
        "type": "object",
        "description": text,
        "required": names,
        "additionalProperties": False,
        "properties": {
            n: {**schema_of(hints[n]), **WORDS.get(f"{kind.__name__}.{n}", {})} for n in names
        },
    }


def _answers(good: dict[str, Any], *bad: str) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        **good,
        **{code: {"description": REASONS[code], "content": error} for code in sorted(bad)},
    }


def _good(text: str, schema: dict[str, Any], **further: Any) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}, **further}


def _list_of(name: str, kind: type[Any], **further: Any) -> dict[str, Any]:
    properties = {name: {"type": "array", "items": schema_of(kind)}, **further}
    return {
        "type": "object",
        "required": list(properties),
        "properties": properties,
        "additionalProperties": False,
    }


def _name_in_path(name: str, what: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": 128}
    return {"name": name, "in": "path", "required": True, "description": what, "schema": schema}


@cache
def api_description() -> dict[str, Any]:
    """The OpenAPI document."""
    shown = (
        views.Overview,
        views.ChapterView,
        views.TokenView,
        views.PeerView,
        views.AccuracyPoint,
        views.Privacy,
        views.Spent,
        request_form.RequestView,
        views.CertificateView,
    )
    request = schema_of(request_form.RequestView)
    name = _name_in_path("name", "The name of a certificate.")
    usual = ("400", "401", "429")
    paths: dict[str, Any] = {
        "/v1/status": {
            "get": {
                "operationId": "status",
                "summary": "Where the token is, the graph, accuracy, privacy spent",
                "responses": _answers({"200": _good("Now.", schema_of(views.Overview))}, *usual),
            }
        },
        "/v1/requests": {
            "get": {
                "operationId": "listRequests",
                "summary": "Requests with their stage, newest first",
                "parameters": [
                    {
                        "name": "after",
                        "in": "query",
                        "description": "Go on after this request: 'next' of the page before.",
                        "schema": {
                            "type": "string",
                            "pattern": f"^{request_form.REQUEST_ID.pattern}$",
                        },
                    },
                    {
                        "name": "limit",
                        "in": "query",
                        "schema": {"type": "integer", "minimum": 1, "maximum": views.MOST_LISTED},
                    },
                ],
                "responses": _answers(
                    {"200": _good("One page.", {"$ref": "#/components/schemas/RequestPage"})},
                    *usual,
                    "404",
                ),
            },
            "post": {
                "operationId": "submitRequest",
                "summary": "Ask that records be forgotten",
                "description": "The answer comes once the request is on disk. From then on the "
                "records are no longer trained on. Sending it again is harmless.",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Form"}}
                    },
                },
                "responses": _answers(
                    {
                        "202": _good(
                            "Taken in.",
                            request,
                            links={
                                "stage": {
                                    "operationId": "getRequest",
                                    "parameters": {"id": "$response.body#/id"},
                                },
                                "older": {
                                    "operationId": "listRequests",
                                    "parameters": {"query.after": "$response.body#/id"},
                                },
                            },
                            headers={
                                "Location": {
                                    "description": "Where its stage can be asked.",
                                    "schema": {"type": "string"},
                                }
                            },
                        )
                    },
                    *usual,
                    "409",
                    "411",
                    "413",
                    "415",
                    "422",
                    "503",
                ),
            },
        },
        "/v1/requests/{id}": {
            "get": {
                "operationId": "getRequest",
                "summary": "One request",
                "parameters": [_name_in_path("id", "The id of a request.")],
                "responses": _answers(
                    {
                        "200": _good(
                            "The request.",
                            request,
                            links={
                                "certificate": {
                                    "operationId": "getCertificate",
                                    "parameters": {"name": "$response.body#/certificate"},
                                },
                                "verdict": {
                                    "operationId": "verifyCertificate",
                                    "parameters": {"name": "$response.body#/certificate"},
                                },
                            },
                        )
                    },
                    *usual,
                    "404",
                ),
            }
        },
        "/v1/certificates": {
            "get": {
                "operationId": "listCertificates",
                "summary": "The certificates of this peer",
                "responses": _answers(
                    {"200": _good("All.", {"$ref": "#/components/schemas/CertificateList"})},
                    *usual,
                ),
            }
        },
        "/v1/certificates/{name}": {
            "get": {
                "operationId": "getCertificate",
                "summary": "A certificate's file",
                "parameters": [name],
                "responses": _answers(
                    {"200": _good("The signed document.", {"type": "object"})}, *usual, "404"
                ),
            }
        },
        "/v1/certificates/{name}/files": {
            "get": {
                "operationId": "getEvidence",
                "summary": "A certificate with all that 'unwalk verify' needs, as one archive",
                "parameters": [name],
                "responses": _answers(
                    {"200": {"description": "The archive.", "content": {"application/zip": {}}}},
                    *usual,
                    "404",
                ),
            }
        },
        "/v1/certificates/{name}/verify": {
            "get": {
                "operationId": "verifyCertificate",
                "summary": "What 'unwalk verify' says of a certificate",
                "parameters": [name],
                "responses": _answers(
                    {"200": _good("The verdict.", {"$ref": "#/components/schemas/Verdict"})},
                    *usual,
                    "404",
                ),
            }
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "unwalk peer",
            "version": unwalk.__version__,
            "description": "Ask a peer to forget records, follow a request, fetch certificates. "
            "For the organisation that runs the peer: every question carries its access token.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The access token, in the file http.token of the store.",
                }
            },
            "schemas": {
                "Form": FORM,
                "RequestPage": _list_of(
                    "requests", request_form.RequestView, next=schema_of(str | None)
                ),
                "CertificateList": _list_of("certificates", views.CertificateView),
                "Verdict": VERDICT,
                "Error": ERROR,
                **{v.__name__: _view(v) for v in shown},
            },
        },
    }


# The same as a page for people: no script, no outside address

ASK = """\
token=$(cat bundle/store/http.token)
address=$(cat bundle/store/http.address)
curl -H "Authorization: Bearer $token" -H "Content-Type: application/json" \\
  -d '{"records": ["patient-17"], "grade": "exact"}' "${address}v1/requests"
curl -H "Authorization: Bearer $token" "${address}v1/requests"
"""


@cache
def api_page() -> str:
    """The whole page."""
    api = api_description()
    operations = [
        _operation(path, verb, what)
        for path, verbs in api["paths"].items()
        for verb, what in verbs.items()
    ]
    schemas = [_schema(name, s) for name, s in api["components"]["schemas"].items()]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<title>HTTP interface of an unwalk peer</title>"
        '<link rel="icon" href="/icon.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="/style.css"></head><body>'
        '<a class="skip" href="#main">Skip to the content</a>'
        '<header><p class="brand">unwalk peer</p><h1>HTTP interface</h1>'
        f'<p class="story">{escape(api["info"]["description"])} Machines read '
        '<a href="/openapi.json">openapi.json</a>; people may prefer '
        '<a href="/">the dashboard</a>.</p></header><main id="main" tabindex="-1">'
        f'<h2>In a shell</h2><pre tabindex="0"><code>{escape(ASK)}</code></pre>'
        "<h2>Questions</h2>" + "".join(operations) + "<h2>What is sent and answered</h2>"
        "" + "".join(schemas) + f"</main><footer><p>unwalk {escape(api['info']['version'])}</p>"
        "</footer></body></html>\n"
    )


def _operation(path: str, verb: str, what: dict[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{code}</th><td>{escape(answer["description"])}</td>'
        f"<td>{_body(answer['content'])}</td></tr>"
        for code, answer in what["responses"].items()
    )
    given = "".join(
        f"<li><code>{escape(p['name'])}</code> in the {p['in']}: "
        f"{escape(p.get('description', ''))} {_shape(p['schema'])}</li>"
        for p in what.get("parameters", [])
    )
    body = what.get("requestBody")
    if body:
        given += f"<li>body: {_shape(body['content']['application/json']['schema'])}</li>"
    return (
        f'<section class="card operation" aria-label="{verb.upper()} {escape(path)}">'
        f'<h3><span class="verb">{verb.upper()}</span><code>{escape(path)}</code></h3>'
        f"<p>{escape(what['summary'])}. {escape(what.get('description', ''))}</p>"
        + (f"<ul>{given}</ul>" if given else "")
        + '<div class="scroll" tabindex="0" role="region" aria-label="Answers">'
        '<table><thead><tr><th scope="col">Code</th><th scope="col">Meaning</th>'
        f'<th scope="col">Body</th></tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def _body(content: dict[str, Any]) -> str:
    """What an answer is made of: JSON of some shape, or a file of some kind."""
    ((kind, said),) = content.items()
    return _shape(said["schema"]) if "schema" in said else f"<code>{escape(kind)}</code>"


def _schema(name: str, schema: dict[str, Any]) -> str:
    needed = schema.get("required", [])
    rows = "".join(
        f'<tr><th scope="row"><code>{escape(field)}</code></th><td>{_shape(s)}</td>'
        f"<td>{'' if field in needed else 'may be left out. '}{escape(s.get('description', ''))}"
        "</td></tr>"
        for field, s in schema["properties"].items()
    )
    return (
        f'<section class="card operation fieldlist" id="{name}" aria-label="{name}"><h3>{name}</h3>'
        f"<p>{escape(schema.get('description', ''))}</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Fields">'
        '<table><thead><tr><th scope="col">Field</th><th scope="col">Type</th>'
        f'<th scope="col">Meaning</th></tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def _shape(schema: dict[str, Any]) -> str:
    """A schema in a few words, as HTML."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_shape(s) for s in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(
            f"<code>{escape(json.dumps(v))}</code>" for v in schema["enum"]
        )
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_shape(schema['items'])}"
    words = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if "pattern" in schema:
        words += f" like {schema['pattern']}"
    for name, sign in (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ):
        if name in schema:
            words += f" {sign} {schema[name]}"
    return escape(words)
