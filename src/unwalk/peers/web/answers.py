"""What the endpoint sends back, and JSON that no two readers understand differently."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from unwalk.peers.protocol.codec import finite_float, no_constant, short_int

JSON = "application/json"


class Json(Response):
    """JSON, ASCII, one line."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode() + b"\n"


class Problem(HTTPException):
    """A question that is not answered, with the reason in one sentence."""

    def answer(self, **further: object) -> Json:
        return Json({"error": self.detail, **further}, self.status_code, self.headers)


def tagged(request: Request, answer: Response) -> Response:
    """The answer with a tag of its content; nothing of it for somebody who has it already."""
    tag = f'"{hashlib.sha256(answer.body).hexdigest()[:32]}"'
    answer.headers["ETag"] = tag
    if request.headers.get("if-none-match") != tag:
        return answer
    kept = {name: answer.headers[name] for name in ("etag", "cache-control")}
    return Response(status_code=304, headers=kept)


def load(body: bytes) -> Any:
    """The JSON in a body; refused where two readers could understand it differently."""
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_no_twice,
            parse_constant=no_constant,
            parse_int=short_int,
            parse_float=finite_float,
        )
    except (ValueError, RecursionError) as error:
        why = str(error)[:200]
        raise Problem(400, f"the body is not JSON as RFC 8259 has it: {why}.") from error


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("an object has one name twice")
    return fields
