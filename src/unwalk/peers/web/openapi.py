"""The endpoint's description of itself: OpenAPI 3.1, and a page that shows it to a person.

Both are made from the routes and the types of :mod:`unwalk.peers.web.views`, so that they cannot
say anything else.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import core_schema

import unwalk
from unwalk.peers.forgetting.request_form import RequestForm
from unwalk.peers.web.answers import JSON
from unwalk.peers.web.operations import Operation
from unwalk.peers.web.views import Refusal, Verdict
from unwalk.reports.page import templates_of

PLACE = "#/components/schemas/{model}"
READ = (RequestForm, Verdict, Refusal)
"""Types of which a field with a default may be missing; others are sent whole."""
USUAL = (400, 401, 429, 503)
REASONS = {
    400: "The question cannot be read.",
    401: "The access token is missing or wrong.",
    404: "There is no such thing.",
    409: "The id was used before, for another request.",
    411: "The body's length is not said.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The request cannot be done: a record is not here, a value is not allowed, or the grade "
    "cannot be reached. Nothing was changed.",
    429: "Too many questions.",
    503: "The disk of the peer is full, or it has as many files open as it may have. Nothing was "
    "changed; ask again later.",
}


class _Schemas(GenerateJsonSchema):
    """Schemas without titles, of views that are sent whole and with nothing more."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def field_is_required(self, field: Any, total: bool) -> bool:
        return self.mode == "serialization" or super().field_is_required(field, total)

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> dict[str, Any]:
        found = super().dataclass_schema(schema)
        found["description"] = " ".join(found["description"].replace("``", "'").split())
        if self.mode == "serialization":
            found["additionalProperties"] = False
        return found


def described(operations: Iterable[Operation]) -> dict[str, Any]:
    """The OpenAPI document of all that needs the token."""
    inside = [o for o in operations if o.path.startswith("/v1/")]
    types = {t for o in inside for t in (o.answer, o.form) if t} | {Refusal}
    inputs: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]] = [
        (kind, "validation" if kind in READ else "serialization", TypeAdapter(kind))
        for kind in sorted(types, key=str)
    ]
    made, shared = TypeAdapter.json_schemas(inputs, ref_template=PLACE, schema_generator=_Schemas)
    schemas = {kind: schema for (kind, _), schema in made.items()}
    paths: dict[str, Any] = {}
    for operation in inside:
        verb = operation.method.lower()
        paths.setdefault(operation.path, {})[verb] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "unwalk peer",
            "version": unwalk.__version__,
            "description": "Ask a peer to forget records, follow a request, fetch certificates. "
            "For the organisation that runs the peer: every question carries its access token, "
            "which stands in the file http.token of the store.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": shared["$defs"],
        },
    }


def _operation(operation: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    """What is said of one method of one path."""

    def content(kind: Any) -> dict[str, Any]:
        return {JSON: {"schema": schemas[kind]}}

    summary, _, further = (inspect.getdoc(operation.handler) or "").partition("\n\n")
    good: dict[str, Any] = {"description": HTTPStatus(operation.status).phrase}
    good["links"] = {
        name: {"operationId": name, "parameters": {parameter: f"$response.body#/{field}"}}
        for name, (parameter, field) in operation.links.items()
    }
    good["content"] = content(operation.answer) if operation.answer else {operation.kind: {}}
    bad = {
        str(code): {"description": REASONS[code], "content": content(Refusal)}
        for code in sorted((*USUAL, *operation.refusals))
    }
    described: dict[str, Any] = {
        "operationId": to_camel(operation.handler.__name__),
        "summary": summary,
        "description": " ".join(further.split()),
        "parameters": [*_names_in(operation.path), *_fields_of(operation.query)],
        "responses": {str(operation.status): good, **bad},
    }
    if operation.form:
        described["requestBody"] = {"required": True, "content": content(operation.form)}
    return described


def _names_in(path: str) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1, "maxLength": 128}
    return [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _fields_of(query: type[Any] | None) -> list[dict[str, Any]]:
    """The fields after '?', of which none need be there and none may be null."""
    if query is None:
        return []
    fields = TypeAdapter(query).json_schema(schema_generator=_Schemas)["properties"]
    return [
        {
            "name": name,
            "in": "query",
            "description": schema.get("description", ""),
            "schema": schema.get("anyOf", [schema])[0],
        }
        for name, schema in fields.items()
    ]


def page_of(api: dict[str, Any]) -> str:
    """The description as a page for people: no script, no outside address."""
    pages = templates_of("unwalk.peers.web")
    pages.filters["json"] = json.dumps
    return pages.get_template("docs.html").render(api=api)
