"""The signed log: whole, in order, and by those who did what it says, or refused."""

from __future__ import annotations

import copy
import random
from contextlib import nullcontext
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.peers.fuzz_mutations import ODD, places_of, put, without
from unwalk.core.errors import Corrupt, UnwalkError
from unwalk.core.events import GradientSteps, Start
from unwalk.core.transcript import Hop
from unwalk.peers.protocol.hoplog import (
    PREFIX,
    Entry,
    chain_next,
    chain_start,
    check_chain,
    hop_body,
    parse_entry,
    recovery_body,
    sign_entry,
)

KEYS = [Ed25519PrivateKey.generate() for _ in range(3)]
START = chain_start({"run": "r"})
STEPS = GradientSteps(
    steps=1, minibatches=1, batch=2, data="all", touched=True, direction=-1, scale=1.0, clip=None,
    clip_per_example=None, noise=0.0, origin=None, optimizer="sgd", step_size=0.1, momentum=0.0,
    weight_decay=0.0, state="fresh",
)  # fmt: skip


def verify(entry: Entry) -> int:
    """The signer, as its certificate says: here a number."""
    number = int(entry["certificate"])
    signature = bytes.fromhex(entry["signature"])
    KEYS[number].public_key().verify(signature, PREFIX + entry["chain"].encode())
    return number


def signed(previous: str, body: dict[str, Any], by: int) -> Entry:
    return sign_entry(previous, body, KEYS[by].sign, str(by))


def visit(previous: str, number: int, peer: int, generation=(0, 0)) -> Entry:
    begun = (Start("train", "initial", False, (), None),) if number == 1 else ()
    hop = Hop(
        hop=number, phase="train", phase_hop=number, sender=peer - 1, receiver=peer,
        path=(peer,), nbytes=8, events=(*begun, STEPS), gradients=1, digest=None,
    )  # fmt: skip
    body = hop_body(
        run="r", generation=generation, lineage=((generation, 0),), hop=hop, token_in="a" * 64,
        token_out="b" * 64, passed_over=(), sign=KEYS[peer].sign,
    )  # fmt: skip
    return signed(previous, body, peer)


def log() -> list[Entry]:
    """Two visits, a recovery by peer 1, one more visit."""
    one = visit(START, 1, 0)
    two = visit(one["chain"], 2, 1)
    body = recovery_body(
        run="r", generation=(1, 1), lineage=(((0, 0), 0), ((1, 1), 2)), peer=1, hop=2,
        token="b" * 64, lost=2,
    )  # fmt: skip
    gone = signed(two["chain"], body, 1)
    return [one, two, gone, visit(gone["chain"], 3, 2, (1, 1))]


def test_a_whole_log_gives_its_hops():
    entries = log()
    hops = check_chain(entries, START, entries[-1]["chain"], verify)
    assert [(h.hop, h.receiver) for h in hops] == [(1, 0), (2, 1), (3, 2)]


def resigned(entries: list[Entry], place: int, by: int, **changes: Any) -> list[Entry]:
    """The log with one body changed, and everything after it chained and signed anew."""
    found, previous = entries[:place], entries[place]["body"]["previous"]
    for number, entry in enumerate(entries[place:]):
        body = {k: v for k, v in entry["body"].items() if k != "previous"}
        if number == 0:
            body |= changes
        found.append(signed(previous, body, by if number == 0 else body["peer"]))
        previous = found[-1]["chain"]
    return found


WRONG = {
    "does not follow": lambda e: [e[0], e[2], e[3]],
    "does not end where": lambda e: e[:3],
    "was not signed by peer 1": lambda e: resigned(e, 1, by=2),
    "falls back to generation": lambda e: resigned(e, 3, by=2, generation=[0, 2]),
    "neither a hop nor a recovery after one": lambda e: resigned(e, 2, by=1, hop=1),
    "neither a hop nor a recovery, or has": lambda e: resigned(e, 1, by=1, kind="note"),
    "visit at another peer": lambda e: resigned(e, 1, by=2, peer=2),
    "is not hop 2": lambda e: resigned(e, 1, by=1, visit={**e[1]["body"]["visit"], "hop": 7}),
    "number that is none": lambda e: resigned(e, 1, by=1, hop=True),
    "names no generation": lambda e: resigned(e, 1, by=1, generation=[0]),
    "that outlives it": lambda e: resigned(e, 1, by=1, bare=None),
}


@pytest.mark.parametrize("words", WRONG)
def test_a_log_that_is_not_what_it_should_be_is_refused(words):
    entries, good = WRONG[words](log()), log()
    end = good[-1]["chain"] if "end where" in words else entries[-1]["chain"]
    with pytest.raises(Corrupt, match=words):
        check_chain(entries, START, end, verify)


def test_a_changed_entry_does_not_match_its_chain_value():
    entries = log()
    entries[1]["body"]["token"] = "c" * 64
    with pytest.raises(Corrupt, match="does not match its chain value"):
        check_chain(entries, START, entries[-1]["chain"], verify)


def test_half_a_character_is_refused():
    """JSON can spell one, UTF-8 cannot: no chain value can be made of it."""
    entry = copy.deepcopy(log()[1])
    entry["body"]["previous"] = "\ud800" * 64
    with pytest.raises(Corrupt, match="cannot be written as JSON"):
        parse_entry(entry)


def test_an_entry_is_no_longer_than_a_visit_needs():
    """Lineages and sightings have bounds of their own; whatever else is long is refused."""
    first, one, gone, _ = log()
    body = {k: v for k, v in one["body"].items() if k != "previous"}
    parse_entry(signed(START, {**body, "lineage": [[10**9, 0, 0]] * 4096}, 0))
    parse_entry(signed(START, {**gone["body"], "sightings": ["x" * 100_000]}, 1))
    visit = {**body["visit"], "events": body["visit"]["events"] * 15}
    parse_entry(signed(START, {**body, "visit": visit}, 0))
    begun = {**first["body"]["visit"]["events"][0], "travels": ["buffer"] * 6_000}
    visit = {**first["body"]["visit"], "events": [begun]}
    parse_entry(signed(START, {**first["body"], "visit": visit}, 0))
    for field, value in (
        ("visit", {**body["visit"], "events": body["visit"]["events"] * 30}),
        ("passed_over", [0] * 10_000),
        ("bare", "0" * 20_000),
        ("token", "0" * 20_000),
    ):
        with pytest.raises(Corrupt, match="allowed: up to 8192"):
            parse_entry(signed(START, {**body, field: value}, 0))
    with pytest.raises(Corrupt, match="longer than 128"):
        parse_entry({**one, "signature": one["signature"] + " " * 200_000})


def test_a_first_visit_is_not_padded():
    """A field that nobody knows would be signed, kept and handed on by everybody."""
    first = log()[0]["body"]
    with pytest.raises(Corrupt, match=r"further fields: \['pad'\]"):
        parse_entry(signed(START, {**first, "visit": {**first["visit"], "pad": ""}}, 0))
    for path, words in (([0] * 100_000, "allowed: up to 65536"), ([0] * 20_000, "")):
        entry = signed(START, {**first, "visit": {**first["visit"], "path": path}}, 0)
        with pytest.raises(Corrupt, match=words) if words else nullcontext():
            parse_entry(entry)


def test_whatever_a_member_signs_is_taken_or_refused_and_never_a_crash():
    """Bodies with odd values anywhere, with chain values that fit."""
    rng, taken, refused = random.Random(1), 0, 0
    good = [log()[0], log()[2]]
    for _ in range(1500):
        entry = copy.deepcopy(rng.choice(good))
        place = rng.choice([p for p in places_of(entry["body"]) if p[0] != "previous"])
        odd = rng.choice([*ODD, KeyError])
        body = entry["body"]
        entry["body"] = without(body, place) if odd is KeyError else put(body, place, odd)
        entry["chain"] = chain_next(entry["body"]["previous"], entry["body"])
        try:
            parse_entry(entry)
            taken += 1
        except UnwalkError:
            refused += 1
    assert refused > 300
    assert taken > 50, "what only a liar would write cannot be told from the truth"
