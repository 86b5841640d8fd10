"""The closed form of a certificate: which keys it has, and the type, range and length of each.

Whoever signs a certificate chooses what stands in it.  So nothing of it is used or printed before
its form was checked: every key is known, every text is short and printable, and what only the
issuer states (times, counts, names) has one format that leaves no room for sentences.  Whether what
it says is true is checked elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from unwalk.core import validation as may
from unwalk.core.transcript import HEADER_RANGES, read_json
from unwalk.core.validation import Range

MOST_REQUESTS = 1024
"""Requests that one certificate answers, at most."""
RULE = (
    "for all records that this peer ever asked to forget together: epsilons add up, "
    "delta = max(d1 + exp(e1) d2, d2 + exp(e2) d1), one certificate after the other"
)
"""How certificates of one peer are composed."""
MANY = 100_000
SHORT, LONG = 200, 4000
"""Characters of names, and of sentences."""


@dataclass(frozen=True)
class Fields:
    """An object with exactly these keys; ``maybe`` may be missing."""

    always: Mapping[str, Shape]
    maybe: Mapping[str, Shape] | None = None


@dataclass(frozen=True)
class Listed:
    """A list of at most ``most`` entries of one shape; ``once``: each of them once."""

    entry: Shape
    most: int = MANY
    once: bool = False


@dataclass(frozen=True)
class Row:
    """A list with one entry per shape."""

    entries: tuple[Shape, ...]


@dataclass(frozen=True)
class Or:
    """Nothing (null), or something of this shape."""

    shape: Shape


Shape = Range | Fields | Listed | Row | Or


def wrong(value: Any, shape: Shape, place: str = "") -> str | None:
    """The first place that has another form than it may, with what is allowed; None if none has.

    >>> wrong({"a": 1, "b": "?"}, Fields({"a": may.whole()}))
    'b does not belong there'
    >>> wrong([1, True], Listed(may.whole()), "counts")
    'counts[1] is True; allowed: a whole number from 0'
    """
    match shape:
        case Range():
            if shape.holds(value):
                return None
            return f"{place} is {_short(value)}; allowed: {shape.allowed}"
        case Or():
            return None if value is None else wrong(value, shape.shape, place)
        case Fields():
            return _wrong_fields(value, shape, place)
        case Listed():
            if not isinstance(value, list) or len(value) > shape.most:
                return f"{place} is {_short(value)}; allowed: a list of up to {shape.most} entries"
            if shape.once and len({json.dumps(v, sort_keys=True) for v in value}) < len(value):
                return f"{place} names something twice"
            rows = enumerate(value)
            found = (wrong(entry, shape.entry, f"{place}[{k}]") for k, entry in rows)
        case Row():
            if not isinstance(value, list) or len(value) != len(shape.entries):
                allowed = f"a list of {len(shape.entries)} entries"
                return f"{place} is {_short(value)}; allowed: {allowed}"
            pairs = enumerate(zip(value, shape.entries, strict=True))
            found = (wrong(entry, one, f"{place}[{k}]") for k, (entry, one) in pairs)
    return next((text for text in found if text is not None), None)


def _wrong_fields(value: Any, shape: Fields, place: str) -> str | None:
    at = f"{place}." if place else ""
    if not isinstance(value, dict):
        return f"{place} is {_short(value)}; allowed: an object"
    known = {**shape.always, **(shape.maybe or {})}
    for name in sorted(value):
        if name not in known:
            return f"{at}{_plain(name)} does not belong there"
    for name, one in known.items():
        if name not in value:
            if name in shape.always:
                return f"{at}{name} is missing"
            continue
        found = wrong(value[name], one, f"{at}{name}")
        if found is not None:
            return found
    return None


def _plain(name: str) -> str:
    return name if re.fullmatch("[a-z_]{1,40}", name) else _short(name)


def _short(value: Any) -> str:
    """A value for a message, in plain ASCII and at most one line."""
    text = ascii(value if not isinstance(value, dict | list) else type(value)())
    if isinstance(value, dict | list) and value:
        text = f"{text[0]}...{text[-1]}"
    return text if len(text) <= 80 else f"{text[:77]}..."


# Texts


def text(most: int = SHORT) -> Range:
    """A text without control characters, line breaks or signs that turn its direction.

    >>> text().holds("u"), text().holds("\\x1b[2J"), text(3).holds("four")
    (True, False, False)
    """
    holds = lambda v: isinstance(v, str) and len(v) <= most and v.isprintable()  # noqa: E731
    return Range(f"a text of up to {most} printable characters", holds)


def like(pattern: str, allowed: str) -> Range:
    """A text of the pattern, which has to be ASCII.

    >>> like("[a-z]+", "small letters").holds("a\\n")
    False
    """
    known = re.compile(pattern, re.ASCII)

    def holds(value: Any) -> bool:
        return isinstance(value, str) and known.fullmatch(value) is not None

    return Range(allowed, holds)


def _is_time(value: Any) -> bool:
    if not isinstance(value, str) or not TIME.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\+00:00", re.ASCII)
time = Range("a time (UTC) such as 2026-01-31T12:00:00+00:00", _is_time)
peer = like("[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", "a name of small letters, digits and hyphens")
request = like("[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "1 to 64 letters, digits, dots, hyphens, _")
walk = like("[0-9a-f]{32}", "32 hexadecimal digits")
receipt_walk = like("(left-)?[0-9a-f]{32}", "32 hexadecimal digits, after left- or not")
signature = like("[0-9a-f]{128}", "128 small hexadecimal digits")
pem = Range(
    "an X.509 certificate in PEM form",
    lambda v: isinstance(v, str) and v.isascii() and len(v) <= 1 << 16,
)
_NAME, _OTHERS = "(chapter|quiet)-[0-9]{1,9}", "[0-9]{1,9} others?"
rule = like(
    f"{re.escape(RULE)}(; not counted, since changed: "
    f"({_OTHERS}|{_NAME}(, {_NAME}){{0,99}}(, {_OTHERS})?))?",
    "the rule by which certificates are composed, and the names of those that were changed",
)
count, digest = may.whole(), may.digest()
hop = may.whole(0, 2**40)


def _holds_json(shape: Shape) -> Range:
    def holds(value: Any) -> bool:
        try:
            return isinstance(value, str) and wrong(read_json(value), shape) is None
        except ValueError:
            return False

    return Range("the text of what peers decided", holds)


# The document

_NOISE = Fields(
    {
        **dict.fromkeys(("times", "hops", "visits"), count),
        **dict.fromkeys(("by", "first", "last"), Or(hop)),
    }
)


_CLAIM = Fields(
    {
        "code": Or(like("[a-z0-9-]{1,60}", "the code of a refusal")),
        "grade": may.word("nominal", "certified", "exact", "refused"),
        "epsilon": Or(may.real(0.0)),
        "delta": Or(may.real(0.0, 1.0)),
        "accountant": text(),
        "assumptions": Listed(text(LONG), 64),
        "reason": text(LONG),
    }
)
_SCALAR = may.either(may.truth(), may.real(), text(), may.word("all"))
_FACTS: dict[str, Shape] = {
    "hops": count,
    "noise_std": Listed(may.real(0.0)),
    **HEADER_RANGES,
}

# A decided chapter and an end are checked again, with their signatures, where peers' certificates
# are; here it matters to pages, which are also made where nothing else was checked.  No form is
# closer than what peers accept of each other: else one of them could spoil others' certificates.

RECEIPT = Fields(
    {
        "network": peer,
        "run": receipt_walk,
        "chapter": count,
        "peer": peer,
        "erased": Listed(digest, MANY),
        "records": count,
        "time": time,
        "end": like("([0-9a-f]{64})?", "64 hexadecimal digits, or nothing"),
        "signature": signature,
        "certificate": pem,
    }
)
_SPEC = Fields(
    {
        **dict.fromkeys(("number", "peer", "holder", "records", "before", "position"), count),
        **dict.fromkeys(("hops", "after"), count),
        "method": like("[a-z][a-z0-9_-]{0,31}", "the name of a method"),
        "grade": may.word("certified", "exact"),
        "epsilon": Or(may.real(0.0)),
        "delta": Or(may.real(0.0, 1.0)),
        "requests": Listed(request, MOST_REQUESTS),
        "left": Listed(count, once=True),
    }
)
_DECIDED = _holds_json(Fields({"spec": _SPEC, "signature": signature, "certificate": pem}))
_END = _holds_json(Fields(dict.fromkeys(("hidden", "visits", "model"), digest)))
_VOTES = Range("votes", lambda v: isinstance(v, dict))

PEERS = Fields(
    {
        "network": peer,
        "network_file": Fields(
            {
                "network": Range("a network file", lambda v: isinstance(v, dict)),
                "signature": like("[0-9a-f]{2,512}", "hexadecimal digits"),
            }
        ),
        "decisions": Listed(Row((_DECIDED, _VOTES))),
        "ends": Listed(Row((count, _END, _VOTES, digest))),
        "decided": may.truth(),
        "members": Listed(peer, once=True),
        "peer": peer,
        "issuer": peer,
        "chapter": may.whole(0, MANY),
        "run": walk,
        "requests": Listed(request, MOST_REQUESTS, once=True),
        "version": may.whole(1, 10**9),
        "issued": time,
        "visits": digest,
        "erased_after_hop": count,
        "receipts": Listed(RECEIPT),
        "pending": Listed(peer, once=True),
        "composed": Fields(
            {
                "certificates": count,
                "epsilon": may.real(0.0),
                "delta": may.real(0.0, 1.0),
                "rule": rule,
            }
        ),
    },
    {"held_out": count, "received": Listed(time, MOST_REQUESTS)},
)
"""What a certificate says of peers (:mod:`unwalk.peers.forgetting.peer_certificate`)."""


def document_of(facts: Sequence[str], origins: Sequence[str], registers: Sequence[str]) -> Fields:
    """The form of a whole certificate, whose parameters are some of these ``facts``."""
    parameters = {**dict.fromkeys(facts, _SCALAR), **_FACTS}
    always = ("hops", "noise_std")
    return Fields(
        {
            "certificate": count,
            "unwalk": Or(text()),
            "run": Or(text()),
            "task": Or(text()),
            "method": Or(text()),
            "claims": Listed(_CLAIM, 64),
            "threat_model": Fields(
                {
                    **dict.fromkeys(("observers", "coalition"), text(LONG)),
                    **dict.fromkeys(("training_time_view", "adaptive_requests"), may.truth()),
                }
            ),
            "certifier": Or(text(LONG)),
            "public": Fields(
                {
                    "unlearner": Or(may.whole(-1, 2**40)),
                    "forgotten": Or(may.either(count, may.word("all"))),
                    "request_after_hop": hop,
                }
            ),
            "done": Fields(
                {
                    "start": Or(may.word("token", "initial", "arrival")),
                    "start_hop": Or(hop),
                    **dict.fromkeys(("hops", "visits", "used", "uphill", "sums"), count),
                    "balls": Range("hops by the centre of a ball", _are_balls),
                    "noise": Fields({"before": _NOISE, "after": _NOISE}),
                }
            ),
            "parameters": Fields(
                {name: parameters[name] for name in always},
                {name: one for name, one in parameters.items() if name not in always},
            ),
            "noise": Fields({"origin": may.word(*origins), "meaning": text(LONG)}),
            "redraws": Fields(
                {
                    "register": may.word(*registers),
                    "draws": count,
                    **dict.fromkeys(("entry", "earlier"), Or(count)),
                    "chain": Or(digest),
                    "meaning": text(LONG),
                }
            ),
            "transcript": Fields({"chain": digest, "hops": hop, "model": Or(digest)}),
            "model": Or(Fields({"file": may.word("model.safetensors"), "sha256": digest})),
            "not_shown": Listed(text(LONG), 64),
            "signer": Fields(
                {
                    "algorithm": may.word("none", "ed25519"),
                    "public_key": Or(digest),
                    "fingerprint": Or(digest),
                    "chain": Or(pem),
                }
            ),
            "signature": Or(signature),
        },
        {"peers": PEERS},
    )


def _are_balls(value: Any) -> bool:
    if not isinstance(value, dict) or len(value) > 64:
        return False
    return all(text().holds(name) and count.holds(hops) for name, hops in value.items())


def disagreement(document: Mapping[str, Any]) -> str | None:
    """What does not fit together in a document whose single fields have their form."""
    for number, claim in enumerate(document["claims"]):
        place, numbers = f"claims[{number}]", (claim["epsilon"], claim["delta"])
        refused = claim["grade"] == "refused"
        if refused != (numbers == (None, None)) or (None in numbers and not refused):
            return f"{place} has grade {claim['grade']} with epsilon and delta {numbers}"
        if refused != (claim["code"] is not None):
            return f"{place} has grade {claim['grade']} with code {claim['code']}"
        if claim["grade"] == "exact" and any(numbers):
            return f"{place} is exact with epsilon and delta {numbers}; allowed: 0 and 0"
    said, records = document.get("peers"), document["public"]["forgotten"]
    if said is None:
        return None
    if "held_out" in said and not (records != "all" and said["held_out"] <= records):
        return f"peers.held_out is {said['held_out']} of {records} records"
    if "held_out" in said and said["decided"]:
        return "peers.held_out stands beside a chapter that was decided"
    return _peers_disagree(said)


def _peers_disagree(said: Mapping[str, Any]) -> str | None:
    members = said["members"]
    for name in ("peer", "issuer"):
        if said[name] not in members:
            return f"peers.{name} is {said[name]}, which is no member"
    for number, (decided, _) in enumerate(said["decisions"]):
        spec = json.loads(decided)["spec"]
        if not max(spec["peer"], spec["holder"], *spec["left"]) < len(members):
            return f"peers.decisions[{number}] names a peer that is no member"
    erased = [receipt["peer"] for receipt in said["receipts"]]
    if erased != sorted(set(erased)):
        return "peers.receipts does not name each peer once, in order"
    if said["pending"] != [n for n in members if n in said["pending"] and n not in erased]:
        return "peers.pending does not name members without a receipt, each once, in order"
    return None
