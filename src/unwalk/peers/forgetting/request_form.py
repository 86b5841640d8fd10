"""What can be asked to be forgotten, checked when it is asked, and what is said of it later.

The id of a request is public in the network, so an organisation must not make it from anything
about a person.  A form holds the ids of records; a view of a request only counts them.  The
``metadata`` of a field is what the endpoint's description says of it besides its type, in the words
of pydantic's ``Field``.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_choice, check_number, near
from unwalk.peers.protocol.codec import DELTAS, EPSILONS
from unwalk.peers.protocol.schedule import METHODS

GRADES = ("certified", "exact")
STAGES = ("received", "waiting", "walking", "committed", "erasing", "done", "refused")
"""The stages of a request, in order.

``refused`` may follow any before ``committed``; and ``erasing``, where all was erased but no
certificate of that can hold (:meth:`unwalk.peers.lifecycle.certifying.Certifying.verifies`).
"""
EPSILON, DELTA = 1.0, 1e-5
"""The budget of a certified request that names none."""
MOST_RECORDS = 100_000
LONGEST_RECORD_ID = 256
REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NOT_IN_AN_ID = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""What no record id holds: control characters, line breaks, halves of characters."""
METHOD = re.compile(r"[a-z][a-z0-9_-]{0,31}")
OR_NULL = {"type": ["string", "null"]}
RECORD_ID = {
    "type": "string",
    "minLength": 1,
    "maxLength": LONGEST_RECORD_ID,
    "pattern": r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$",
}


class Conflict(InvalidInput):
    """A request id that was used before, with other content."""


class UnknownRecords(InvalidInput):
    """Records that this peer does not have; nothing was taken in."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = tuple(ids)
        shown = ", ".join(repr(i) for i in self.ids[:10])
        more = f" and {len(self.ids) - 10} more" if len(self.ids) > 10 else ""
        what = "record" if len(self.ids) == 1 else "records"
        super().__init__(f"this peer has no {what} {shown}{more}; nothing was changed.")


def implied_grade(method: Any, epsilon: Any, delta: Any) -> str:
    """The grade of a request that names none: that of its method or budget, else exact.

    Every network can give ``exact``, and only some ``certified``.

    >>> implied_grade(None, None, None), implied_grade("seal", None, None)
    ('exact', 'certified')
    >>> implied_grade(None, 0.5, None), implied_grade("restart", None, None)
    ('certified', 'exact')
    """
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]
    return "exact" if epsilon is None and delta is None else "certified"


@dataclass(frozen=True)
class RequestForm:
    """What somebody asks to forget; checked when it is made.

    ``id`` is public in the network, so make it from nothing personal; the same request sent again
    under the same id is the same request, and without one an id is made up.  ``records`` are the
    ids as the organisation knows them, without repetition.  ``grade``, if not given, is that of
    ``method`` or ``certified`` with a budget, else ``exact``.  ``epsilon`` and ``delta`` belong to
    ``certified`` alone and are 1 and 1e-5 if not given.
    """

    id: str = field(metadata={"pattern": f"^{REQUEST_ID.pattern}$", "json_schema_extra": OR_NULL})
    records: tuple[str, ...] = field(
        repr=False,
        metadata={
            "min_length": 1,
            "max_length": MOST_RECORDS,
            "json_schema_extra": {"items": RECORD_ID, "uniqueItems": True},
        },
    )
    grade: str = field(
        default="exact", metadata={"json_schema_extra": {**OR_NULL, "enum": [*GRADES, None]}}
    )
    epsilon: float | None = field(default=None, metadata={"ge": EPSILONS[0], "le": EPSILONS[1]})
    delta: float | None = field(default=None, metadata={"ge": DELTAS[0], "le": DELTAS[1]})
    method: str | None = field(default=None, metadata={"pattern": f"^{METHOD.pattern}$"})

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "extra": "forbid",
        "json_schema_extra": {
            "required": ["records"],
            "anyOf": [
                {"properties": {"grade": {"enum": ["certified", None]}}},
                {"properties": {"epsilon": {"type": "null"}, "delta": {"type": "null"}}},
            ],
        },
    }

    def __post_init__(self) -> None:
        _check_text("id", self.id, REQUEST_ID, "1 to 64 letters, digits, dots, hyphens, _")
        check_choice("grade", self.grade, GRADES)
        _check_records(self.records)
        if self.grade == "exact":
            for name in ("epsilon", "delta"):
                if getattr(self, name) is not None:
                    raise InvalidInput(
                        f"{name} is {getattr(self, name)!r} with grade 'exact', which spends "
                        "none; allowed: leave it out."
                    )
        else:
            epsilon = EPSILON if self.epsilon is None else self.epsilon
            delta = DELTA if self.delta is None else self.delta
            check_number("epsilon", epsilon, low=EPSILONS[0], high=EPSILONS[1])
            check_number("delta", delta, low=DELTAS[0], high=DELTAS[1])
            object.__setattr__(self, "epsilon", float(epsilon))
            object.__setattr__(self, "delta", float(delta))
        if self.method is not None:
            _check_text("method", self.method, METHOD, "the name of a method")

    @staticmethod
    def from_json(record: Any) -> RequestForm:
        """The form in a JSON object; a missing id is made up.

        >>> RequestForm.from_json({"records": ["a-17"], "grade": "exact"}).grade
        'exact'
        """
        if not isinstance(record, Mapping):
            raise InvalidInput("the request is no JSON object.")
        known = [f.name for f in fields(RequestForm)]
        for name in record:
            if name not in known:
                raise InvalidInput(
                    f"the request has a field {str(name)[:80]!r}{near(str(name)[:80], known)}; "
                    f"allowed: {', '.join(known)}."
                )
        ids = record.get("records")
        if not isinstance(ids, list):
            wrong = f"'records' is {str(ids)[:80]!r}"
            if ids is None:
                wrong = "the request lacks 'records'"
            raise InvalidInput(f"{wrong}; allowed: a list of record ids.")
        given = {k: v for k, v in record.items() if v is not None and k != "records"}
        asked = (given.get(name) for name in ("method", "epsilon", "delta"))
        given.setdefault("grade", implied_grade(*asked))
        return RequestForm(**{"id": new_request_id(), **given, "records": tuple(ids)})


def _check_text(name: str, value: Any, pattern: re.Pattern[str], allowed: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidInput(f"{name} is {str(value)[:80]!r}; allowed: {allowed}.")


def _check_records(records: tuple[str, ...]) -> None:
    if not 0 < len(records) <= MOST_RECORDS:
        raise InvalidInput(
            f"records has {len(records)} ids; allowed: 1 to {MOST_RECORDS} in one request."
        )
    for place, record in enumerate(records):
        if (
            not isinstance(record, str)
            or not 0 < len(record) <= LONGEST_RECORD_ID
            or NOT_IN_AN_ID.search(record)
        ):
            raise InvalidInput(
                f"records[{place}] is {str(record)[:80]!r}; allowed: a text of 1 to "
                f"{LONGEST_RECORD_ID} characters without control characters."
            )
    if len(set(records)) != len(records):
        seen: set[str] = set()
        twice = next(r for r in records if r in seen or seen.add(r))  # type: ignore[func-returns-value]
        raise InvalidInput(f"records names {twice[:80]!r} twice.")


def new_request_id() -> str:
    """An id that says nothing."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class RequestView:
    """A request as its asker and the dashboard see it.

    ``records`` is their number.  ``method`` is the one that was asked for or, once there is a
    chapter, taken.  ``chapter`` is the chapter that forgets them, once there is one.
    ``reason`` says why a request was refused, what it waits for, or why nothing was walked for it.
    ``certificate`` is the name of its certificate.  ``received`` is a time in UTC, ISO 8601.
    """

    id: str = field(metadata={"pattern": f"^{REQUEST_ID.pattern}$"})
    stage: str = field(metadata={"json_schema_extra": {"enum": STAGES}})
    records: int = field(metadata={"description": "How many; their ids are not kept."})
    grade: str = field(metadata={"json_schema_extra": {"enum": GRADES}})
    epsilon: float | None
    delta: float | None
    received: str
    method: str | None = None
    chapter: int | None = None
    reason: str | None = None
    certificate: str | None = None


@dataclass(frozen=True)
class Offer:
    """One way to answer a request for records that were used.

    ``hops`` and ``bytes`` are what its walk costs, without what a lost token or a peer that is away
    adds; None where it is not possible, and ``reason`` says why.
    """

    grade: str = field(metadata={"json_schema_extra": {"enum": GRADES}})
    method: str
    words: str
    hops: int | None = None
    bytes: int | None = field(default=None, metadata={"description": "Of all tokens that travel."})
    reason: str | None = None
