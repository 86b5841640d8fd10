"""The description of the endpoint as a page for people: no script, no outside address."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from typing import Any

from unwalk.peers.web.openapi import api_description

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
