"""The hop log: hash-chained entries, each signed by the peer that did what it says.

An entry is ``{"body", "chain", "signature", "certificate"}``.  ``chain`` is the SHA-256 of the
previous chain value and the body; the signature (Ed25519) is over ``chain``; the certificate says
whose it is.  An entry and the network's CA are therefore enough to check it, and the committed
chain value is enough to check the whole log: hops of a dropped lineage are not in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unwalk.core.errors import Corrupt
from unwalk.core.transcript import Hop, canonical
from unwalk.peers.protocol.handover import Generation, Lineage

PREFIX = b"unwalk-hop-log-1:"
BARE = b"unwalk-visit-1:"
SIGNATURE = 128
"""Characters of a signature."""
LONGEST_ENTRY = 8 << 10
"""Characters of an entry's body besides its lineage and the sightings in it.

A visit needs a thousand and a few hundred for each of its events, of which it has a handful.
"""
LONGEST_FIRST = 64 << 10
"""The same of a walk's first visit, which names all buffers that travel with the token."""
Entry = dict[str, Any]
Signer = Callable[[bytes], bytes]


def chain_start(header: Mapping[str, Any]) -> str:
    """The chain value before the first entry: a digest of what was public from the start."""
    return hashlib.sha256(("unwalk-run:" + canonical(dict(header))).encode()).hexdigest()


def chain_next(previous: str, body: Mapping[str, Any]) -> str:
    """The chain value after ``body``."""
    return _digest(previous, canonical(dict(body)))


def _digest(previous: str, text: str) -> str:
    return hashlib.sha256((previous + text).encode()).hexdigest()


def sign_entry(previous: str, body: dict[str, Any], sign: Signer, certificate: str) -> Entry:
    """A new entry at the end of the chain ``previous``."""
    body = {**body, "previous": previous}
    chain = chain_next(previous, body)
    signature = sign(PREFIX + chain.encode()).hex()
    return {"body": body, "chain": chain, "signature": signature, "certificate": certificate}


def hop_body(
    *,
    run: str,
    generation: Generation,
    lineage: Lineage,
    hop: Hop,
    token_in: str,
    token_out: str,
    passed_over: tuple[int, ...],
    number: int | None = None,
    sign: Signer | None = None,
) -> dict[str, Any]:
    """A visit, the ``number``-th of its walk, if that is not how ``hop`` itself is counted.

    With ``sign``, a second signature stands in it, on what the visit did alone.
    """
    record = hop.to_json()
    bare = "" if sign is None else sign(BARE + bare_text(run, generation, record)).hex()
    return {
        "kind": "hop",
        "run": run,
        "generation": list(generation),
        "lineage": lineage_json(lineage),
        "peer": hop.receiver,
        "hop": hop.hop if number is None else number,
        "token_in": token_in,
        "token": token_out,
        "passed_over": list(passed_over),
        "visit": record,
        "bare": bare,
    }


def bare_text(run: str, generation: Generation, visit: Mapping[str, Any]) -> bytes:
    """What a visit did, without any digest of a token, chain values included.

    A digest of a model that carries a record lets anyone test a guess of that record.  This
    signature therefore outlives the log entry that it came with.
    """
    said = {"run": run, "generation": list(generation), "visit": dict(visit)}
    return canonical(said).encode()


def bare_visit(entry: Entry) -> dict[str, Any]:
    """The part of a log entry that stays when digests have to go."""
    body = entry["body"]
    return {
        "run": body["run"],
        "generation": body["generation"],
        "visit": body["visit"],
        "signature": body["bare"],
        "certificate": entry["certificate"],
    }


def recovery_body(
    *,
    run: str,
    generation: Generation,
    lineage: Lineage,
    peer: int,
    hop: int,
    token: str,
    lost: int,
    sightings: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """A peer goes on from its copy after peer ``lost`` was not heard of within the lease.

    ``sightings`` are what the others signed when they were asked where the token is.
    """
    return {
        "kind": "recovery",
        "run": run,
        "generation": list(generation),
        "lineage": lineage_json(lineage),
        "peer": peer,
        "hop": hop,
        "token": token,
        "lost": lost,
        "sightings": list(sightings),
    }


def lineage_json(lineage: Lineage) -> list[list[int]]:
    """A lineage as JSON: number, peer and visits done of each generation."""
    return [[number, peer, start] for (number, peer), start in lineage]


COMMON = frozenset({"kind", "run", "generation", "lineage", "peer", "hop", "token", "previous"})
BODIES = {
    "hop": COMMON | {"token_in", "passed_over", "visit", "bare"},
    "recovery": COMMON | {"lost", "sightings"},
}


def _check_body(body: dict[str, Any]) -> None:
    """Refuse a body that a log could not be read with later, whoever signed it."""
    kind, generation = body.get("kind"), body.get("generation")
    if not isinstance(kind, str) or frozenset(body) != BODIES.get(kind):
        raise Corrupt("a log entry is neither a hop nor a recovery, or has other fields.")
    numbers = [body["peer"], body["hop"]]
    if not isinstance(generation, list) or len(generation) != 2:
        raise Corrupt("a log entry names no generation.")
    if any(type(value) is not int for value in (*numbers, *generation)):
        raise Corrupt("a log entry has a number that is none.")
    if kind == "hop":
        try:
            visit = Hop.from_json(body["visit"])
        except (ValueError, AttributeError) as error:
            raise Corrupt("a log entry tells of no visit.") from error
        if visit.receiver != body["peer"]:
            raise Corrupt("a log entry is about a visit at another peer.")
        if not isinstance(body["bare"], str) or not isinstance(body["token_in"], str):
            raise Corrupt("a log entry lacks the signature that outlives it, or a digest.")


def longest(hop: Any) -> int:
    """Characters that the entry of a walk's visit number ``hop`` may have."""
    return LONGEST_FIRST if hop == 1 else LONGEST_ENTRY


def parse_entry(record: Any) -> Entry:
    """Check the form and the chain value of an entry, not yet who signed it."""
    if not isinstance(record, dict) or set(record) != {"body", "chain", "signature", "certificate"}:
        raise Corrupt("a log entry lacks body, chain, signature or certificate.")
    body = record["body"]
    texts = [record["chain"], record["signature"], record["certificate"]]
    if not isinstance(body, dict) or not all(isinstance(t, str) for t in texts):
        raise Corrupt("a log entry is not made of text.")
    previous = body.get("previous")
    if not isinstance(previous, str) or len(previous) != 64:
        raise Corrupt("a log entry does not say what it follows.")
    try:
        text = canonical(body)
        size, most = len(text), longest(body.get("hop"))
        if size > most:
            grows = ("lineage", "sightings")  # these have bounds of their own
            size = len(canonical({k: v for k, v in body.items() if k not in grows}))
        chain = _digest(previous, text)
    except (ValueError, TypeError, RecursionError) as error:
        raise Corrupt("the body of a log entry cannot be written as JSON.") from error
    if len(record["signature"]) > SIGNATURE:
        raise Corrupt(f"a log entry's signature is longer than {SIGNATURE} characters.")
    if size > most:
        raise Corrupt(f"a log entry has {size} characters; allowed: up to {most}.")
    if chain != record["chain"]:
        raise Corrupt("a log entry does not match its chain value.")
    _check_body(body)
    return record


def check_chain(
    entries: list[Entry], start: str, end: str, verify: Callable[[Entry], int], base: int = 0
) -> list[Hop]:
    """The hops of a whole log, each entry checked; ``verify`` answers which peer signed it.

    A chapter's hops are counted on from ``base``, those that were walked before it.
    """
    chain, hops, generation = start, [], (-1, -1)
    for number, entry in enumerate(entries, 1):
        body = parse_entry(entry)["body"]
        if body["previous"] != chain:
            raise Corrupt(f"log entry {number} does not follow the one before it.")
        if verify(entry) != body["peer"]:
            raise Corrupt(f"log entry {number} was not signed by peer {body['peer']}.")
        opened = (body["generation"][0], body["generation"][1])
        if opened < generation:
            raise Corrupt(f"log entry {number} falls back to generation {opened}.")
        if body["kind"] == "hop":
            hops.append(Hop.from_json(body["visit"]))
            if hops[-1].hop != base + len(hops) or hops[-1].receiver != body["peer"]:
                raise Corrupt(f"log entry {number} is not hop {len(hops)}.")
        elif body["kind"] != "recovery" or body["hop"] != len(hops) or opened == generation:
            raise Corrupt(f"log entry {number} is neither a hop nor a recovery after one.")
        chain, generation = entry["chain"], opened
    if chain != end:
        raise Corrupt("the log does not end where the run was committed.")
    return hops
