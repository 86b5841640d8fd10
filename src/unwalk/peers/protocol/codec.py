"""The protocol's records as JSON and back; anything else than expected is refused."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from unwalk.core.errors import Corrupt
from unwalk.peers.protocol.handover import (
    Generation,
    Lineage,
    Parcel,
    PeerState,
    Place,
    Reply,
    Sighting,
    Value,
)

DIGEST_LENGTH = 64
LARGEST = 1 << 31
LAST_GENERATION = 1 << 30
"""The highest number of a generation: a state that holds it, or the next one, can be read."""
EPSILONS, DELTAS = (1e-6, 1e6), (1e-30, 0.999)
"""The least and the largest budget of a certified request: less would be noise and nothing else."""
LONGEST_LINEAGE = 4096
RECENT = 32
"""Generations that a sighting names, at most; older ones stand in a digest."""
DEEPEST = 12

Whole = Annotated[int, Meta(ge=0, le=LARGEST)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
NoDigest = Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
"""A digest, or nothing."""
Pair = tuple[Whole, Whole]
Line = tuple[Annotated[int, Meta(ge=0, le=LAST_GENERATION)], Whole, Whole]
Lines = Annotated[list[Line], Meta(max_length=LONGEST_LINEAGE)]
ECHO = re.compile(r"\A(Object contains unknown field|Invalid value) .*", re.DOTALL)
"""What msgspec says with words of the sender's: left out, so that a flood has one reason."""
_Seat = Annotated[int, Meta(ge=-1, le=LARGEST)]
_Reached = tuple[Pair, tuple[_Seat, _Seat]]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON object with exactly these fields, each of its type."""


class BareParcel(Part, frozen=True):
    """A parcel without its digests, which are known only once all its bytes were read."""

    generation: Pair
    hop: Whole
    leg: Whole
    lineage: Lines

    def parcel(self, chain: str = "", token: str = "") -> Parcel:
        """The parcel; refused unless its lineage leads to it."""
        lineage = _grown(self.lineage, first=True)
        if lineage[-1][0] != self.generation or lineage[-1][1] > self.hop:
            raise Corrupt("lineage does not end with the parcel's generation.")
        return Parcel(self.generation, self.hop, self.leg, chain, token, lineage)


class _Parcel(BareParcel, frozen=True):
    chain: Digest
    token: Digest


class EndValue(Part, frozen=True):
    """What a walk ended with."""

    generation: Pair
    chain: Digest
    token: Digest
    salt: Annotated[str, Meta(pattern=r"\A[\x00-\x7f]{0,64}\Z")]

    def value(self) -> Value:
        """The same as what the protocol calls a value."""
        return Value(self.generation, self.chain, self.token, self.salt)


def typed(record: Any, kind: Any, what: str) -> Any:
    """A record as what it has to be; otherwise refused, with the first thing that is wrong."""
    with reading(what):
        try:
            return msgspec.convert(record, kind)
        except msgspec.ValidationError as error:
            wrong = ECHO.sub(r"\1", str(error))
            raise Corrupt(f"{what} is not as it has to be: {wrong}.") from error


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Take whatever goes wrong while something of another peer's is read as a refusal of it.

    Readers check what they read; this is for what they forgot.  No answer may end a peer.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Corrupt(f"{what} cannot be read ({type(error).__name__}).") from error
    except RecursionError as error:
        raise Corrupt(f"{what} is nested too deeply.") from error


def whole(value: Any, what: str, *, low: int = 0, high: int = LARGEST) -> int:
    """A whole number in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Corrupt(f"{what} is no whole number from {low} to {high}.")
    return value


def digest(value: Any, what: str) -> str:
    """A SHA-256 in small hexadecimal letters."""
    good = isinstance(value, str) and len(value) == DIGEST_LENGTH
    if not good or set(value) - set("0123456789abcdef"):
        raise Corrupt(f"{what} is no SHA-256 digest.")
    return str(value)


def listed(value: Any, what: str, *, most: int = LONGEST_LINEAGE) -> list[Any]:
    """A list that is not too long."""
    if not isinstance(value, list) or len(value) > most:
        raise Corrupt(f"{what} is no list of at most {most} items.")
    return value


def pair(value: Any, what: str) -> tuple[int, int]:
    """Two whole numbers."""
    both: tuple[int, int] = typed(value, Pair, what)
    return both


def parse(data: bytes, longest: int) -> dict[str, Any]:
    """A JSON object of at most ``longest`` bytes, without NaN and not nested deeply."""
    if len(data) > longest:
        raise Corrupt(f"a message has {len(data)} bytes; allowed: {longest}.")
    try:
        record = json.loads(
            data.decode("utf-8"),
            parse_constant=no_constant,
            parse_int=short_int,
            parse_float=finite_float,
        )
    except (ValueError, RecursionError) as error:
        raise Corrupt("a message is not JSON.") from error
    if not isinstance(record, dict):
        raise Corrupt("a message is no JSON object.")
    _check_depth(record, DEEPEST)
    return record


def no_constant(name: str) -> Any:
    """NaN and Infinity are no JSON."""
    raise ValueError(f"{name} is no number there")


def short_int(text: str) -> int:
    """A whole number that fits into 64 bits: longer ones mean nothing here, and cannot all be
    made into floating-point numbers.

    >>> short_int("-12")
    -12
    """
    if len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def finite_float(text: str) -> float:
    """A number that is finite as a floating-point number; ``1e999`` is not."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is larger than any number here")
    return value


def _check_depth(value: Any, left: int) -> None:
    if left == 0:
        raise Corrupt("a message is nested too deeply.")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, left - 1)


def dump(record: Mapping[str, Any]) -> bytes:
    """JSON as it travels."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode()


def fields_of(record: Any, what: str, *names: str) -> dict[str, Any]:
    """A JSON object with exactly these fields."""
    if not isinstance(record, dict) or set(record) != set(names):
        raise Corrupt(f"{what} does not have the fields {', '.join(names)}.")
    return record


def lineage_from(value: Any) -> Lineage:
    """A lineage: generations strictly grow, visits done never fall."""
    return _grown(typed(value, Lines, "lineage"), first=True)


def _grown(lines: list[tuple[int, int, int]], *, first: bool) -> Lineage:
    """A lineage, or the last part of one; ``first``: with its first generation."""
    lineage: list[tuple[Generation, int]] = []
    for number, peer, start in lines:
        if lineage and ((number, peer) <= lineage[-1][0] or start < lineage[-1][1]):
            raise Corrupt("lineage does not grow.")
        lineage.append(((number, peer), start))
    if not lineage or (first and lineage[0][1] != 0):
        raise Corrupt("lineage does not start at the first hop.")
    return tuple(lineage)


def lineage_to(lineage: Lineage) -> list[list[int]]:
    """A lineage as JSON."""
    return [[number, peer, start] for (number, peer), start in lineage]


def parcel_to(parcel: Parcel | None) -> dict[str, Any] | None:
    """A parcel as JSON."""
    if parcel is None:
        return None
    return {**vars(parcel), "lineage": lineage_to(parcel.lineage)}


def bare_parcel_of(parcel: Parcel) -> BareParcel:
    """A parcel as it travels."""
    lineage = [(number, peer, start) for (number, peer), start in parcel.lineage]
    return BareParcel(parcel.generation, parcel.hop, parcel.leg, lineage)


def parcel_from(record: Any) -> Parcel:
    """The parcel that :func:`parcel_to` wrote."""
    parcel: _Parcel = typed(record, _Parcel, "a parcel")
    return parcel.parcel(parcel.chain, parcel.token)


def value_to(value: Value | None) -> dict[str, Any] | None:
    """A committed value as JSON."""
    if value is None:
        return None
    return {**vars(value), "generation": list(value.generation)}


def value_from(record: Any) -> Value:
    """The value that :func:`value_to` wrote."""
    found: EndValue = typed(record, EndValue, "a value")
    return found.value()


def reply_to(reply: Reply, reason: str = "", *, first: bool = False) -> dict[str, Any]:
    """An answer to an offer as JSON; ``first``: it is the first token that came there to stay."""
    return {
        "kind": reply.kind,
        "fence": list(reply.fence),
        "lineage": lineage_to(reply.lineage),
        "reason": reason,
        "first": first,
    }


def reply_from(record: Any) -> tuple[Reply, str]:
    """An answer and the reason it gives."""
    names = ("kind", "fence", "lineage", "reason", "first")
    found = fields_of(record, "a reply", *names)
    kind = found["kind"]
    if kind not in ("accepted", "stale", "busy", "over", "refused"):
        raise Corrupt("a reply is of no known kind.")
    lineage = lineage_from(found["lineage"]) if kind == "stale" else ()
    return Reply(kind, pair(found["fence"], "fence"), lineage), str(found["reason"])


def root_of(lineage: Lineage) -> str:
    """A digest of generations; empty for none."""
    return hashlib.sha256(dump({"root": lineage_to(lineage)})).hexdigest() if lineage else ""


def sighting_to(sighting: Sighting) -> dict[str, Any]:
    """What a peer knows, as JSON, with the last generations of the whole lineage."""
    generation, place = sighting.reached
    older = max(0, len(sighting.lineage) - RECENT)
    return {
        "fence": list(sighting.fence),
        "lineage": lineage_to(sighting.lineage[older:]),
        "older": older,
        "root": root_of(sighting.lineage[:older]),
        "reached": [list(generation), list(place)],
        "over": sighting.over,
        "waits": sighting.waits,
        "promised": sighting.promised,
    }


class _Sighting(Part, frozen=True):
    fence: Pair
    lineage: Annotated[list[Line], Meta(max_length=RECENT)]
    older: Annotated[int, Meta(ge=0, le=LONGEST_LINEAGE - RECENT)]
    root: NoDigest
    reached: _Reached
    over: bool
    waits: bool
    promised: Annotated[int, Meta(ge=0, le=LAST_GENERATION)]


def sighting_from(record: Any) -> Sighting:
    """The sighting that :func:`sighting_to` wrote, as far as it travels."""
    sighting: _Sighting = typed(record, _Sighting, "a sighting")
    if (sighting.older == 0) != (sighting.root == ""):
        raise Corrupt("a sighting has a digest of no generations.")
    lineage = _grown(sighting.lineage, first=not sighting.older)
    of_token = sighting.fence, lineage, sighting.reached, sighting.over
    return Sighting(*of_token, sighting.older, sighting.root, sighting.waits, sighting.promised)


Public = tuple[Generation, Lineage, tuple[Generation, Place]] | None


def _public_to(public: Public) -> Any:
    return None if public is None else [public[0], lineage_to(public[1]), public[2]]


def _public_from(record: Any) -> Public:
    if record is None:
        return None
    return pair(record[0], "fence"), lineage_from(record[1]), typed(record[2], _Reached, "reached")


def state_to(state: PeerState) -> dict[str, Any]:
    """A peer's state as JSON, for its own store."""
    return {
        **vars(state),
        "lineage": lineage_to(state.lineage),
        "public": _public_to(state.public),
        "held": parcel_to(state.held),
        "kept": parcel_to(state.kept),
        "ends": [value_to(end) for end in state.ends],
        "committed": value_to(state.committed),
    }


def state_from(record: dict[str, Any]) -> PeerState:
    """The state that :func:`state_to` wrote."""
    held, kept, committed = record["held"], record["kept"], record["committed"]
    return PeerState(
        **{
            **record,
            "fence": pair(record["fence"], "fence"),
            "lineage": lineage_from(record["lineage"]),
            "reached": typed(record["reached"], _Reached, "reached"),
            "public": _public_from(record["public"]),
            "held": None if held is None else parcel_from(held),
            "path": tuple(record["path"]),
            "passed_over": tuple(record["passed_over"]),
            "had": tuple(record.get("had", ())),
            "kept": None if kept is None else parcel_from(kept),
            "ends": tuple(value_from(end) for end in record["ends"]),
            "committed": None if committed is None else value_from(committed),
        }
    )
