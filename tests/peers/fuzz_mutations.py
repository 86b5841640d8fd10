"""Bad messages made from good ones: in their structure, their text, their bytes, their signatures.

A member that lies has its own keys: what it changed it can sign again, so that a message gets past
the check of signatures and is judged by what it says.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.peers.fuzz_scenes import Call, Record
from unwalk.core.transcript import canonical
from unwalk.peers.decisions.decided import PREFIX as CHAPTER
from unwalk.peers.decisions.votes import Matter, digest_of, words
from unwalk.peers.forgetting.erasure import Receipt
from unwalk.peers.handover import log_rules
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.protocol import consensus as de
from unwalk.peers.protocol.hoplog import BARE, bare_text, sign_entry

Place = tuple[Any, ...]
DIGITS = "9" * 5000
NUMBERS: list[Any] = [0, 1, 2, 3, -1, 7, 255, 4095, 4096, 4097, 2**31 - 1, 2**31, 2**31 + 1]
NUMBERS += [2**48, 2**53, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30, 0.0, -0.0, 0.5, 1.0, 1e300]
TEXTS: list[Any] = ["", "x", "0", "0" * 32, "0" * 64, "f" * 64, "F" * 64, "NaN", "null", "\x00"]
TEXTS += ["é", "\u2028", "\ud800", "😀", "../../etc/passwd", "a" * 65, "a" * 3000, "z" * 50_000]
TEXTS += ["-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "{}", "[[[[", "ab" * 32]
TEXTS += [
    "ab" * 64,
    "hop",
    "recovery",
    "propose",
    "prevote",
    "precommit",
    "where",
    "offer",
    "final",
]
OTHERS: list[Any] = [None, True, False, [], {}, [[]], [{}], {"": []}, [0, 0], [1, 2], [[0, 0, 0]]]
OTHERS += [[None] * 7, [0] * 5000, {str(n): n for n in range(20)}, [[0, 1, 0], [0, 0, 0]]]
ODD = [*NUMBERS, *TEXTS, *OTHERS]
TOKENS = ["NaN", "Infinity", "-Infinity", "1e999", "-0", "1E400", "0x10", "01", "1.", ".5", DIGITS]
TOKENS += ["-" + DIGITS, "0." + DIGITS, DIGITS + ".5", "1e-" + DIGITS, "1e" + DIGITS, "nul", "'a'"]
TOKENS += ['"\\ud800"', '"\\u0000"', '"\\x"', "9223372036854775808", "1" * 21, "1e308", "5e-324"]
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
KEY = re.compile(rb'"([a-z_-]+)":')


@dataclass(frozen=True)
class Sent:
    """A call that the fuzzer makes: who makes it, with which bytes, and how it came about."""

    method: str
    kind: str
    who: str
    sender: int
    parts: tuple[bytes, ...]
    way: str


def places_of(value: Any, here: Place = ()) -> Iterator[Place]:
    """Every place in a nested record, but for the record itself."""
    if isinstance(value, dict):
        for key in value:
            yield (*here, key)
            yield from places_of(value[key], (*here, key))
    elif isinstance(value, list):
        for number in range(len(value)):
            yield (*here, number)
            yield from places_of(value[number], (*here, number))


def at(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value


def put(value: Any, place: Place, new: Any) -> Any:
    """The same with something else at a place; what is not on the way there is shared."""
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = put(value[place[0]], place[1:], new)
    return copy


def without(value: Any, place: Place) -> Any:
    """The same without what stands at a place."""
    inner, key = at(value, place[:-1]), place[-1]
    if isinstance(inner, dict):
        return put(value, place[:-1], {k: v for k, v in inner.items() if k != key})
    return put(value, place[:-1], [v for n, v in enumerate(inner) if n != key])


def dump(record: Any) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


class Liar:
    """A member with its own keys: signs whatever a record says, as far as it can be signed."""

    def __init__(self, bundle: Bundle, rng: random.Random) -> None:
        self.bundle, self.rng, self.me = bundle, rng, bundle.index
        self.pem = bundle.certificate_pem.decode()
        self.network = bundle.network.run_id
        self.matter: Matter | None = None
        self.asked = log_rules.Question(bundle.network.run_id, 0)
        self.run = bundle.network.run_id
        self.former: Bundle | None = None

    def sign(self, data: bytes) -> str:
        return self.bundle.sign(data).hex()

    def signed(self, value: Any) -> Any:
        """The record with everything in it that has a known form signed by this member."""
        if isinstance(value, dict):
            value = {k: self.signed(v) for k, v in value.items()}
            names = set(value)
            try:
                if names == {"body", "chain", "signature", "certificate"}:
                    return self.entry(value["body"])
                if names == set(log_rules.SIGNED):
                    return self.sighting(value["sighting"])
                if names == set(Receipt.__dataclass_fields__):
                    return self.receipt(value)
                if names >= {"certificates", "votes"}:
                    return self.poll(value)
                if names == {"decided", "certificates"} and isinstance(value["decided"], dict):
                    return self.decision(value)
                if names == {"run", "generation", "visit", "signature", "certificate"}:
                    return self.visit(value)
            except (TypeError, ValueError, KeyError, AttributeError, IndexError):
                return value
            return value
        if isinstance(value, list):
            return [self.signed(v) for v in value] if len(value) < 100 else value
        if isinstance(value, str) and value.startswith('{"certificate"'):
            return self.text(value)
        return value

    def entry(self, body: dict[str, Any], **changes: Any) -> dict[str, Any]:
        """A log entry; mostly it says of itself that it is this member's."""
        body = {**body, **changes}
        if self.rng.random() < 0.7:
            body["peer"] = self.me
            if isinstance(body.get("visit"), dict):
                body["visit"] = {**body["visit"], "receiver": self.me}
            number = body["generation"]
            if body["kind"] == "recovery" and isinstance(number, list) and number:
                body["generation"] = [number[0], self.me]
        if body["kind"] == "hop":
            visit = bare_text(body["run"], body["generation"], body["visit"])
            body["bare"] = self.sign(BARE + visit)
        rest = {k: v for k, v in body.items() if k != "previous"}
        return sign_entry(body["previous"], rest, self.bundle.sign, self.pem)

    def sighting(self, said: dict[str, Any]) -> dict[str, Any]:
        data = log_rules.words(self.asked, said)
        return {"sighting": said, "signature": self.sign(data), "certificate": self.pem}

    def receipt(self, record: dict[str, Any]) -> dict[str, Any]:
        if self.rng.random() < 0.7:
            record = {**record, "peer": self.bundle.name}
        said = Receipt(**{**record, "erased": tuple(record["erased"])})
        return said.signed(self.bundle).to_json()

    def visit(self, record: dict[str, Any]) -> dict[str, Any]:
        data = BARE + bare_text(record["run"], record["generation"], record["visit"])
        return {**record, "signature": self.sign(data), "certificate": self.pem}

    def text(self, text: str) -> str:
        """A chapter's text, if it still is one."""
        try:
            return self.chapter(json.loads(text)["spec"])
        except (ValueError, KeyError):
            return text

    def chapter(self, spec: dict[str, Any]) -> str:
        data = CHAPTER + canonical({"network": self.network, "spec": spec}).encode()
        return canonical({"spec": spec, "signature": self.sign(data), "certificate": self.pem})

    def poll(self, record: dict[str, Any]) -> dict[str, Any]:
        """This member's own votes in what is shown; those of others cannot be made."""
        pems = [*record["certificates"], self.pem]
        place = len(pems) - 1

        def votes(items: Any) -> Any:
            return [self.vote(v, place) for v in items] if isinstance(items, list) else items

        found = {**record, "certificates": pems}
        for name in ("votes", "opened"):
            found[name] = votes(found.get(name))
        if isinstance(found.get("chains"), list):
            found["chains"] = [[votes(p) for p in chain] for chain in found["chains"]]
        if isinstance(found.get("decided"), dict):
            found["decided"] = self._decided(found["decided"], votes)
        return found

    def decision(self, record: dict[str, Any]) -> dict[str, Any]:
        pems = [*record["certificates"], self.pem]
        place = len(pems) - 1

        def votes(items: Any) -> Any:
            return [self.vote(v, place) for v in items]

        return {"decided": self._decided(record["decided"], votes), "certificates": pems}

    def _decided(self, said: dict[str, Any], votes: Callable[[Any], Any]) -> dict[str, Any]:
        chain = [votes(p) for p in said["chain"]]
        return {**said, "precommits": votes(said["precommits"]), "chain": chain}

    def vote(self, item: Any, place: int) -> Any:
        if not isinstance(item, list) or len(item) != 7 or self.matter is None:
            return item
        if self.rng.random() < 0.3:
            item = [*item[:4], self.me, *item[5:]]
        if item[4] != self.me and self.rng.random() < 0.95:  # or it signs for another
            return item
        vote = de.Vote(*item[:5])
        return [*item[:5], self.sign(words(self.network, self.matter, vote)), place]

    def fresh_votes(self, values: list[str]) -> list[Any]:
        """Votes of this member: any kind, for any value, some of them for rounds far away."""
        rng, found = self.rng, []
        for _ in range(rng.randint(1, 6)):
            round = rng.choice([0, 0, 0, 1, 2, 4095, 4096, -1])
            since = rng.choice([-1, -1, 0, round - 1, round])
            value = rng.choice([*values, "", digest_of(str(rng.random()))])
            found.append([rng.choice(de.KINDS), round, value, since, self.me, "", 0])
        return found


class Mutator:
    """Bad messages from a record of good ones."""

    def __init__(self, record: Record, liar: Liar, rng: random.Random) -> None:
        self.record, self.liar, self.rng = record, liar, rng
        self.by_kind: dict[str, list[Call]] = {}
        for call in (c for c in record.calls if c.parts):  # others were never answered
            self.by_kind.setdefault(call.kind, []).append(call)
        self.kinds = sorted(self.by_kind)
        self.near: dict[str, list[Call]] = {}
        self.target = 0
        self.made: dict[str, Any] = {}
        self.parsed: dict[bytes, tuple[Any, list[Place]]] = {}
        self.pool: dict[Any, list[Any]] = {}
        self.entries: dict[str, Any] = {}
        for call in record.calls:
            for data in (*call.parts, call.answer):
                if data[:1] == b"{":
                    self._gather(json.loads(data))

    def _gather(self, value: Any, key: Any = None) -> None:
        """Remember what stands under each name, to put it elsewhere."""
        if key is not None and not isinstance(key, int):
            found = self.pool.setdefault(key, [])
            if len(found) < 60:
                found.append(value)
        if isinstance(value, dict):
            if set(value) == {"body", "chain", "signature", "certificate"}:
                self.entries[value["chain"]] = value
            for name, inner in value.items():
                self._gather(inner, name)
        elif isinstance(value, list):
            for inner in value:
                self._gather(inner, key if isinstance(inner, list) else 0)

    def focus(self, target: int, calls: list[Call], welcome: Call) -> None:
        """Prefer these calls from now on: they mean something to the peer under test.

        ``welcome`` is the one that it was about to get.
        """
        self.target, self.near, self.welcome = target, {}, welcome
        for call in calls:
            if call.method != "hand" or call.target == target:
                self.near.setdefault(call.kind, []).append(call)

    def json_of(self, data: bytes) -> tuple[Any, list[Place]]:
        if data not in self.parsed:
            if len(self.parsed) > 2000:
                self.parsed.clear()
            record = json.loads(data)
            self.parsed[data] = record, list(places_of(record))
        return self.parsed[data]

    def entry(self, chain: Any) -> Any:
        """A log entry, a true one or one that the liar has made up."""
        return self.entries.get(chain) or self.made.get(chain)

    def page(self, chain: Any, most: int) -> list[Any]:
        """Log entries up to one, true ones or made up ones."""
        entries: list[Any] = []
        while len(entries) < most and (entry := self.entry(chain)) is not None:
            entries.append(entry)
            chain = entry["body"]["previous"]
        return entries

    # One record

    def odd(self, key: Any, old: Any) -> Any:
        """Something else in the place of ``old``, which stands under ``key``."""
        rng, way = self.rng, self.rng.random()
        if way < 0.25 and key in self.pool:
            return rng.choice(self.pool[key])
        if way < 0.6:
            if isinstance(old, bool):
                return rng.choice([not old, 0, 1, None])
            if isinstance(old, int):
                return old + rng.choice([-2, -1, 1, 2, 1000, -1000])
            if isinstance(old, str):
                return self.odd_text(old)
            if isinstance(old, list):
                return self.odd_list(old)
            if isinstance(old, dict):
                return self.odd_dict(old)
        return rng.choice(ODD)

    def odd_text(self, text: str) -> Any:
        rng = self.rng
        if text.startswith("{") and rng.random() < 0.8:
            return self.odd_json(text)
        where = rng.randrange(len(text) + 1)
        return rng.choice(
            [
                text[:where],
                text[where:],
                text.upper(),
                text + text,
                text[:where] + rng.choice("0aZ é\x00\n") + text[where:],
                text[:where] + rng.choice("0123456789abcdef") + text[where + 1 :],
            ]
        )

    def odd_json(self, text: str) -> str:
        """A text that is a record itself, changed and written in its one form."""
        try:
            inner = json.loads(text)
            place = self.rng.choice(list(places_of(inner)))
            return canonical(put(inner, place, self.odd(place[-1], at(inner, place))))
        except (ValueError, IndexError):
            return text[:-1]

    def odd_list(self, items: list[Any]) -> list[Any]:
        rng, way = self.rng, self.rng.randrange(6)
        if way == 0 or not items:
            return [*items, rng.choice(ODD)]
        if way == 1:
            return items[: rng.randrange(len(items))]
        if way == 2:
            return items * rng.choice([2, 3, 40])
        if way == 3:
            return items[::-1]
        if way == 4:
            return [*items, *items[:1]]
        return items[1:]

    def odd_dict(self, record: dict[str, Any]) -> dict[str, Any]:
        rng = self.rng
        if not record or rng.random() < 0.4:
            return {**record, rng.choice(["x", "", "kind", "é", "a" * 300]): rng.choice(ODD)}
        gone = rng.choice(list(record))
        return {k: v for k, v in record.items() if k != gone}

    def changed(self, data: bytes, times: int = 1) -> Any:
        """A record with something else at one place or a few."""
        record, places = self.json_of(data)
        for _ in range(times):
            place = self.rng.choice(places) if places else ()
            try:
                if self.rng.random() < 0.08:
                    record = without(record, place)
                else:
                    record = put(record, place, self.odd(place[-1], at(record, place)))
            except (KeyError, IndexError, TypeError):
                continue
        return record

    # Text and bytes

    def odd_bytes(self, data: bytes) -> bytes:
        rng, way = self.rng, self.rng.randrange(11)
        if way == 0:
            return data[: rng.randrange(len(data) + 1)]
        if way == 1:
            raw = bytearray(data or b"x")
            for _ in range(rng.randint(1, 8)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
            return bytes(raw)
        if way == 2:
            where = rng.randrange(len(data) + 1)
            return data[:where] + rng.randbytes(rng.randint(1, 20)) + data[where:]
        if way in (3, 4):
            return _instead(data, NUMBER, rng, rng.choice(TOKENS).encode())
        if way == 5:  # a key twice
            odd = json.dumps(rng.choice(ODD)).encode()
            found = list(KEY.finditer(data))
            if not found:
                return data + data
            one = rng.choice(found)
            return data[: one.start()] + one.group() + odd + b"," + data[one.start() :]
        if way == 6:
            depth = rng.choice([11, 12, 13, 100, 20_000])
            inner = rng.choice(
                [b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth]
            )
            return _instead(data, NUMBER, rng, inner)
        if way == 7:
            return data.decode("utf-8", "replace").encode(
                rng.choice(["utf-16", "utf-32", "utf-8-sig"])
            )
        if way == 8:
            return rng.randbytes(rng.choice([0, 1, 4, 32, 300]))
        if way == 9:
            return data + rng.choice([b" ", b"x", b"\x00", data, b" " * 300_000])
        return data.replace(b":", b" : ")

    # Calls

    def next(self) -> Sent:
        """One bad call, or now and then a good one."""
        rng = self.rng
        kind = rng.choice(self.kinds)
        known = self.near.get(kind) if rng.random() < 0.8 else None
        call = rng.choice(known or self.by_kind[kind])
        if rng.random() < 0.25:
            call = self.welcome
        way = rng.random()
        liar = self.liar.me
        if call.method == "hello":
            size = rng.choice([0, 1, 31, 32, 32, 33, 300])
            return Sent("hello", "hello", "member", liar, (rng.randbytes(size),), "bytes")
        if way < 0.02:
            return Sent(call.method, call.kind, "member", call.sender, call.parts, "replay")
        if way < 0.04:
            return Sent(call.method, call.kind, "member", liar, call.parts, "replay by another")
        if way < 0.12:
            return self.crafted()
        if call.method == "hand" and way < 0.16:
            parts, word = self.frames(call), "frames"
        elif call.method == "hand":
            parts, word = self.hand(call)
        else:
            parts, word = self.told(call)
        return Sent(call.method, call.kind, "member", liar, parts, word)

    def told(self, call: Call) -> tuple[tuple[bytes, ...], str]:
        rng, way = self.rng, self.rng.random()
        if way < 0.3:
            return (self.odd_bytes(call.parts[0]),), "bytes"
        record = self.changed(call.parts[0], rng.choice([1, 1, 1, 2, 4]))
        if way < 0.65:
            return (dump(self.liar.signed(record)),), "fields, signed"
        return (dump(record),), "fields"

    def hand(self, call: Call) -> tuple[tuple[bytes, ...], str]:
        """An offer: mostly its envelope is wrong, or what follows it."""
        rng, way = self.rng, self.rng.random()
        envelope, *rest = call.parts
        if way < 0.15:
            return (self.odd_bytes(envelope), *rest), "bytes"
        if way < 0.25 and call.kind == "final" and rest:
            return self.own_end(call), "an end of its own"
        if way < 0.5 or not rest:
            said = self.changed(envelope, rng.choice([1, 1, 2]))
            if call.kind == "offer" and rng.random() < 0.2:
                said = {**json.loads(envelope), "passed_over": self.some_peers()}
            return (dump(said), *rest), "fields"
        if way < 0.6:
            return (envelope, *self.pieces(rest)), "pieces"
        if way < 0.8 and len(rest) > 1:
            if rng.random() < 0.6:
                return (envelope, rest[0], *self.relinked(*rest[1:3])), "log of its own"
            place = rng.randrange(1, len(rest))
            if rng.random() < 0.3:
                rest[place] = self.odd_bytes(rest[place])
                return (envelope, *rest), "stamp or log bytes"
            changed = self.changed(rest[place], rng.choice([1, 1, 2]))
            rest[place] = dump(self.liar.signed(changed) if rng.random() < 0.6 else changed)
            return (envelope, *rest), "stamp or log"
        return self.other_token(call), "token"

    def frames(self, call: Call) -> tuple[bytes, ...]:
        """Pieces of a call with lengths that lie, nothing, too much, or almost right."""
        rng, good = self.rng, call.parts[0]
        size = len(good).to_bytes(4, "big")
        return rng.choice(
            [
                (),
                (rng.randbytes(rng.choice([0, 1, 3, 4, 5, 40])),),
                (rng.randrange(1 << 32).to_bytes(4, "big") + good,),
                (size + good, *(rng.randbytes(9) for _ in range(3))),
                (bytes(4), good),
                (size, good),
            ]
        )

    def relinked(self, stamp: bytes, log: bytes = b'{"log":[]}') -> tuple[bytes, bytes]:
        """A log in which one entry is changed, and all that follow are signed by the liar.

        Mostly that is the last one, which may be the liar's own visit.
        """
        rng, liar = self.rng, self.liar
        entries = [*json.loads(log)["log"], json.loads(stamp)]
        entries.sort(key=lambda e: e["body"]["hop"])
        first = rng.randrange(len(entries)) if rng.random() < 0.4 else len(entries) - 1
        before = entries[first]["body"]["previous"]
        for number in range(first, len(entries)):
            body = {**entries[number]["body"], "previous": before}
            if number == first:
                body = self.other_body(body)
            try:
                entries[number] = liar.entry(body)
            except (TypeError, ValueError, KeyError, AttributeError):
                break
            before = entries[number]["chain"]
        return dump(entries[-1]), dump({"log": entries[:-1]})

    def other_body(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body of a log entry with one thing wrong."""
        rng = self.rng
        if rng.random() < 0.15 and body["kind"] == "hop":
            return {**body, "passed_over": self.some_peers()}
        if rng.random() < 0.5 and isinstance(body.get("visit"), dict):
            key = rng.choice([*body["visit"], "path", "path"])
            odd = self.odd(key, body["visit"][key])
            if key in ("sender", "receiver", "hop") and rng.random() < 0.7:
                odd = rng.randrange(9)
            if key == "path" and rng.random() < 0.7:
                odd = self.some_peers()
            if key == "digest" and rng.random() < 0.7:
                odd = "0" * 64
            return {**body, "visit": {**body["visit"], key: odd}}
        key = rng.choice([k for k in body if k != "previous"])
        return {**body, key: self.odd(key, body[key])}

    def some_peers(self) -> list[int]:
        """A few peers, now and then with one that there is not."""
        return [self.rng.randrange(5) for _ in range(self.rng.randrange(4))]

    def own_end(self, call: Call) -> tuple[bytes, ...]:
        """An end that the liar walked alone: every visit its own, signed, and none of them done."""
        rng, liar = self.rng, self.liar
        said, token = json.loads(call.parts[0]), call.parts[1]
        log = [e for e in self.entries.values() if e["body"]["run"] == said["run"]]
        hops = sorted(
            (e for e in log if e["body"]["kind"] == "hop"), key=lambda e: e["body"]["hop"]
        )
        chain = min(hops, key=lambda e: e["body"]["hop"])["body"]["previous"]
        generation = rng.choice([said["value"]["generation"], [rng.choice([1, 2, 9]), liar.me]])
        lineage = [[*generation, 0]]
        if rng.random() < 0.3:
            hops = hops[: rng.randrange(len(hops))]
        done: set[int] = set()
        self.made.clear()
        for entry in hops:
            body = dict(entry["body"])
            if body["hop"] in done:
                continue
            done.add(body["hop"])
            visit = {**body["visit"], "receiver": liar.me, "sender": liar.me, "path": []}
            body |= {"previous": chain, "generation": generation, "lineage": lineage}
            body |= {"peer": liar.me, "visit": visit, "token": said["value"]["token"]}
            if rng.random() < 0.1:
                body = self.other_body(body)
            if rng.random() < 0.03:
                body = {**body, "generation": [0, 0], "lineage": [[0, 0, 0]]}
            try:
                made = liar.entry(body)
            except (TypeError, ValueError, KeyError, AttributeError):
                break
            chain = made["chain"]
            self.made[chain] = made
        value = {**said["value"], "chain": chain, "generation": generation}
        return dump({**said, "value": value}), token

    def pieces(self, rest: list[bytes]) -> list[bytes]:
        """The same in other pieces, too few, too many, or in another order."""
        rng, way = self.rng, self.rng.randrange(7)
        if way == 0:
            return rest[:-1]
        if way == 1:
            return rest[::-1]
        if way == 2:
            return [b"", *rest]
        if way == 3:
            return [rest[0][:100], rest[0][100:], *rest[1:]]
        if way == 4:
            return [rest[0] + bytes(rng.randint(1, 5000)), *rest[1:]]
        if way == 5:
            return [*rest, *rest]
        return [rest[0][: rng.randrange(len(rest[0]))], *rest[1:]]

    def other_token(self, call: Call) -> tuple[bytes, ...]:
        """A token with something wrong in it, whose size and digest all fit and which is signed."""
        rng = self.rng
        envelope, token, *rest = call.parts
        data = self.odd_token(token)
        said = {**json.loads(envelope), "size": len(data)}
        digest = hashlib.sha256(data).hexdigest()
        if call.kind == "final":
            said["value"] = {**said["value"], "token": digest}
        if rest and rng.random() < 0.8:
            body = {**json.loads(rest[0])["body"], "token": digest}
            rest[0] = dump(self.liar.entry(body))
        return (dump(said), data, *rest)

    def odd_token(self, token: bytes) -> bytes:
        rng, way = self.rng, self.rng.randrange(9)
        length = int.from_bytes(token[:8], "little")
        header, body = token[8 : 8 + length], token[8 + length :]
        if way > 6:
            return self.odd_tensors(json.loads(header), body)
        if way == 0:
            return self.odd_bytes(token[:2000]) + token[2000:]
        if way == 1:
            size = rng.choice([0, 1, length - 1, length + 1, 2**20, 2**63, 2**64 - 1])
            return size.to_bytes(8, "little") + token[8:]
        if way in (2, 3):
            text = dump(self.changed(header.rstrip()))
        elif way == 4:
            text = self.odd_bytes(header.rstrip())
        elif way == 5:  # what the token says of itself
            record = json.loads(header)
            said = self.changed(record["__metadata__"]["unwalk-token"].encode())
            if rng.random() < 0.2:
                said = self.odd_dict(said)
            record["__metadata__"] = {"unwalk-token": dump(said).decode()}
            text = dump(record)
        else:
            raw = bytearray(body)
            odd = rng.choice(
                [b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\x00\x00\x80\xff", b"\xff" * 4]
            )
            odd = rng.choice([odd, rng.randbytes(4), b"\xff\xff\x7f\x7f"])
            where = 4 * rng.randrange(len(raw) // 4)
            raw[where : where + 4] = odd
            text, body = header, bytes(raw)
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + body

    def odd_tensors(self, header: dict[str, Any], body: bytes) -> bytes:
        """A whole safetensors file, with other tensors than a visit here works on."""
        rng, way = self.rng, self.rng.randrange(7)
        name = rng.choice([n for n in header if n != "__metadata__"])
        first, last = header[name]["data_offsets"]
        if way == 0:
            header[name]["dtype"] = "I32"
        elif way == 1:
            header[name]["shape"] = [*header[name]["shape"], 1]
        elif way == 2:
            header[name]["shape"] = [*header[name]["shape"], *[1] * 20]
        elif way == 3:
            header = {n if n != name else "another": v for n, v in header.items()}
        elif way == 4:
            end = {"dtype": "U8", "shape": [8], "data_offsets": [len(body), len(body) + 8]}
            header["moment/other"], body = end, body + bytes(8)
        elif way == 5 and last == len(body):
            del header[name]
            body = body[:first]
        else:
            return body[: rng.randrange(8)]
        text = dump(header)
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + body

    def crafted(self) -> Sent:
        """Something that its member made up from what it knows, and signed."""
        rng = self.rng
        make = rng.choice(
            [
                self.votes,
                self.votes,
                self.chapter,
                self.chapter,
                self.recovery,
                self.ready,
                self.mixed,
            ]
        )
        kind, fields = make()
        base = self.near.get(kind) or self.by_kind[kind]
        head = self.json_of(rng.choice(base).parts[0])[0]
        return Sent("tell", kind, "member", self.liar.me, (dump({**head, **fields}),), "made up")

    def votes(self) -> tuple[str, dict[str, Any]]:
        rng, liar = self.rng, self.liar
        kind = rng.choice(["decide", "agenda-decide"])
        base = dict(rng.choice(self.pool["poll"]))
        texts = [t for t in base.get("texts") or () if isinstance(t, str)]
        base["votes"] = [
            *(base.get("votes") or ()),
            *liar.fresh_votes([digest_of(t) for t in texts]),
        ]
        if rng.random() < 0.3:
            base["opened"] = [v for v in base["votes"] if v[0] == de.PRECOMMIT]
        if rng.random() < 0.3:
            base["chains"] = [[[v for v in base["votes"] if v[0] == de.PREVOTE]]]
        if rng.random() < 0.3:
            base["offer"] = rng.choice([t for t in self.pool["offer"] if t] or [None])
        poll = liar.poll(base)
        if liar.former is not None and liar.matter is not None and rng.random() < 0.2:
            former, value = liar.former, digest_of(str(rng.random()))
            vote = de.Vote(de.PREVOTE, 0, value, -1, former.index)
            data = words(liar.network, liar.matter, vote)
            poll["certificates"] = [former.certificate_pem.decode(), *poll["certificates"]]
            said = [de.PREVOTE, 0, value, -1, former.index, former.sign(data).hex(), 0]
            poll["votes"] = [said]
        return kind, {"poll": poll}

    def chapter(self) -> tuple[str, dict[str, Any]]:
        rng, liar = self.rng, self.liar
        spec = json.loads(rng.choice(self.record.true["chapters"]))["spec"]
        if rng.random() < 0.7:
            spec = {**spec, "holder": liar.me}
        if rng.random() < 0.5:
            spec = {**spec, "peer": rng.randrange(4)}
        for _ in range(rng.randint(0, 2)):
            key = rng.choice(list(spec))
            spec = {**spec, key: self.odd(key, spec[key])}
        if rng.random() < 0.2:
            spec = {**spec, "left": [rng.randrange(4) for _ in range(rng.randint(1, 3))]}
        if rng.random() < 0.03:
            spec = {**spec, "records": 2**31}
        if rng.random() < 0.2:
            spec = {**spec, "method": "seal", "grade": "certified", "epsilon": rng.choice(ODD)}
        text = liar.chapter(spec)
        value = digest_of(text) if text.isascii() else "0" * 64
        if rng.random() < 0.4:
            decision = rng.choice(self.pool["decision"])
            return "agenda-decided", {"value": text, "decision": liar.signed(decision)}
        poll = dict(rng.choice(self.pool["poll"]))
        votes = [[k, 0, value, -1, liar.me, "", 0] for k in de.KINDS]
        poll |= {"texts": [text], "offer": text, "votes": votes, "decided": None}
        return "agenda-decide", {"poll": liar.poll({**poll, "chains": [], "opened": []})}

    def recovery(self) -> tuple[str, dict[str, Any]]:
        """A generation that nobody opened: with sightings of others, or of the liar's own."""
        rng, liar = self.rng, self.liar
        entry = self.json_of(self.by_kind["fence"][0].parts[0])[0]["entry"]
        body = dict(entry["body"])
        liar.run = body["run"]
        liar.asked = log_rules.Question(liar.run, liar.me, body["previous"], body["generation"][0])
        number, hop, first = body["generation"][0], body["hop"], body["lineage"][0]
        if rng.random() < 0.4:
            number = rng.choice([0, 2, 3, 1000, 2**31 - 1])
        if rng.random() < 0.4:
            hop = rng.choice([0, 1, hop + 1, 2**31])
        if rng.random() < 0.2:
            first = [0, rng.randrange(4), 0]
        if rng.random() < 0.3:
            body["sightings"] = body["sightings"][: rng.randrange(3)]
        if rng.random() < 0.3:
            said = dict(rng.choice(self.pool["sighting"]))
            body["sightings"] = [*body["sightings"], liar.sighting(said)]
        if rng.random() < 0.2:
            body["lost"] = rng.choice([0, 1, 2, 3, -1, None, []])
        lineage = rng.choice([[first], [], [first, first]]) if rng.random() < 0.2 else [first]
        body |= {"generation": [number, liar.me], "peer": liar.me, "hop": hop}
        body["lineage"] = [*lineage, [number, liar.me, hop]]
        if rng.random() < 0.1:
            body = self.other_body(body)
        try:
            return "fence", {"entry": liar.entry(body)}
        except (TypeError, ValueError, KeyError, AttributeError):
            return "fence", {"entry": entry}

    def ready(self) -> tuple[str, dict[str, Any]]:
        kind = self.rng.choice(["agenda-ready", "agenda-receipt", "agenda-visits", "agenda-ask"])
        fields: dict[str, Any] = {"number": self.rng.choice([0, 1, 2, 3, 2**31, 2**31 + 1])}
        if kind == "agenda-visits":
            fields["after"] = self.rng.choice([0, 1, 7, 40, 2**31])
        return kind, fields

    def mixed(self) -> tuple[str, dict[str, Any]]:
        """The fields of one message, each from anywhere."""
        kind = self.rng.choice([k for k in self.kinds if k not in ("hello", "offer", "final")])
        record, _ = self.json_of(self.by_kind[kind][0].parts[0])
        return kind, {k: self.rng.choice(self.pool.get(k) or [v]) for k, v in record.items()}

    # Answers

    def answer(self, message: bytes) -> bytes:
        """An answer to a question of the peer under test: a true one, or something like it."""
        rng, liar = self.rng, self.liar
        said = json.loads(message)
        kind = said["kind"]
        liar.run = str(said.get("run", liar.network))
        chain, number = str(said.get("chain", "")), int(said.get("number", 0))
        liar.asked = log_rules.Question(liar.run, self.target, chain, number)
        if kind == "entry" and rng.random() < 0.9:
            good = dump({"entry": self.entry(said["chain"])})
        elif kind == "entries" and rng.random() < 0.9:
            good = dump({"entries": self.page(said["chain"], said["most"])})
        else:
            known = self.by_kind.get(kind if rng.random() < 0.95 else rng.choice(self.kinds))
            good = rng.choice(known or self.by_kind["where"]).answer
        way = rng.random()
        if way < 0.35:
            return good
        if way < 0.5:
            return self.odd_bytes(good)
        if kind == "agenda-visits" and way < 0.65:
            return self.odd_visits(json.loads(good).get("visits") or [])
        record = self.changed(good, rng.choice([1, 1, 2]))
        return dump(liar.signed(record) if way < 0.8 else record)

    def odd_visits(self, visits: list[Any]) -> bytes:
        """A page of visits in another order or not whole, or the first one the liar's, and long."""
        if visits and self.rng.random() < 0.3:
            own = {"receiver": self.liar.me, "path": [0] * 40_000}
            first = {**visits[0], "visit": {**visits[0]["visit"], **own}}
            return dump({"visits": [self.liar.visit(first), *visits[1:]]})
        return dump({"visits": self.odd_list(visits)})


def _instead(data: bytes, what: re.Pattern[bytes], rng: random.Random, new: bytes) -> bytes:
    """The data with ``new`` in the place of one match."""
    found = list(what.finditer(data))
    if not found:
        return data + new
    one = rng.choice(found)
    return data[: one.start()] + new + data[one.end() :]
