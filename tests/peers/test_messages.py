"""Every message between peers: its bytes are pinned, and whatever else comes is refused."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from unwalk.core.errors import Corrupt
from unwalk.peers.handover.control_messages import ControlMessages
from unwalk.peers.handover.last_token import LastToken
from unwalk.peers.handover.receiving import Receiving
from unwalk.peers.handover.sending import TokenSender
from unwalk.peers.lifecycle.next_chapter import NextChapter
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.handover import Parcel, Value

RUN, DIGEST, OTHER = "ab" * 16, "0f" * 32, "1e" * 32
HEAD = f'{{"protocol":4,"network":"tést","run":"{RUN}","kind":'.replace("é", "\\u00e9")
FREE: dict[str, Any] = {"b": [1, -2.5, None, True, {"c": "ü"}], "a": {}}
SAID = '{"b":[1,-2.5,null,true,{"c":"\\u00fc"}],"a":{}}'
TYPES = {t.__struct_config__.tag: t for t in get_args(ms.WALK | ms.NETWORK)}
GOLDEN: list[tuple[str, dict[str, Any], str]] = [
    ("where", {"chain": "", "number": 0}, '"where","chain":"","number":0}'),
    ("where", {"chain": DIGEST, "number": 7}, f'"where","chain":"{DIGEST}","number":7}}'),
    (
        "release",
        {"generation": [2, 1], "place": [7, 0]},
        '"release","generation":[2,1],"place":[7,0]}',
    ),
    ("fence", {"entry": FREE}, f'"fence","entry":{SAID}}}'),
    ("opening", {"generation": [2, 1]}, '"opening","generation":[2,1]}'),
    ("beginning", {}, '"beginning"}'),
    ("decide", {"poll": FREE}, f'"decide","poll":{SAID}}}'),
    ("entry", {"chain": DIGEST}, f'"entry","chain":"{DIGEST}"}}'),
    (
        "entries",
        {"chain": DIGEST, "most": 32},
        f'"entries","chain":"{DIGEST}","most":32}}',
    ),
    ("agenda-decide", {"number": 1, "poll": FREE}, f'"agenda-decide","number":1,"poll":{SAID}}}'),
    (
        "agenda-decided",
        {"number": 1, "value": "text", "decision": FREE},
        f'"agenda-decided","number":1,"value":"text","decision":{SAID}}}',
    ),
    ("agenda-ask", {"number": 1}, '"agenda-ask","number":1}'),
    ("agenda-end", {"number": 0}, '"agenda-end","number":0}'),
    ("agenda-visits", {"number": 0, "after": 40}, '"agenda-visits","number":0,"after":40}'),
    ("agenda-receipt", {"number": 1}, '"agenda-receipt","number":1}'),
    (
        "agenda-left",
        {"number": 0, "receipt": FREE},
        f'"agenda-left","number":0,"receipt":{SAID}}}',
    ),
    ("agenda-leaver", {"number": 0, "peer": 2}, '"agenda-leaver","number":0,"peer":2}'),
    (
        "agenda-begin",
        {"begun": False, "without": [1, 3]},
        '"agenda-begin","begun":false,"without":[1,3]}',
    ),
    ("agenda-ready", {"number": 2}, '"agenda-ready","number":2}'),
]
OFFER = (
    '"offer","parcel":{"generation":[1,2],"hop":5,"leg":1,"lineage":[[0,0,0],[1,2,3]]},'
    '"path":[3,1],"move":{"mover":2,"attempt":1,"receiver":1,"path":[0,3,1],'
    '"memory":{"step":4}},"passed_over":[4],"size":11}'
)
FINAL = (
    f'"final","value":{{"generation":[1,2],"chain":"{DIGEST}","token":"{OTHER}","salt":"5a"}},'
    '"size":11}'
)


class Sink:
    """Takes whatever is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def hand(self, peer: int, envelope: bytes, chunks: Any, timeout: float) -> bytes:
        self.sent.append(envelope)
        return b"{}"


def speaker() -> Any:
    """As much of a walk, and of a peer's progress, as it takes to say something."""
    network = SimpleNamespace(name="tést", run_id=RUN)
    limits = SimpleNamespace(lease=1.0)
    return SimpleNamespace(network=network, run_id=RUN, transport=Sink(), limits=limits)


def said(kind: str, **fields: Any) -> bytes:
    walk = speaker()
    if not kind.startswith("agenda-"):
        return ControlMessages(walk).words(TYPES[kind], **fields)
    next_chapter = NextChapter.__new__(NextChapter)
    next_chapter.progress, next_chapter.run_id = walk, RUN
    return next_chapter.words(TYPES[kind], **fields)


@pytest.mark.parametrize(("kind", "fields", "rest"), GOLDEN, ids=[g[0] for g in GOLDEN])
def test_a_message_has_these_bytes(kind, fields, rest):
    assert said(kind, **fields) == (HEAD + rest).encode()


def test_an_offer_has_these_bytes():
    async def main() -> Any:
        walk = speaker()
        parcel = Parcel((1, 2), 5, 1, DIGEST, OTHER, (((0, 0), 0), ((1, 2), 3)))
        state = SimpleNamespace(held=parcel, path=(3, 1))
        move = {"mover": 2, "attempt": 1, "receiver": 1, "path": [0, 3, 1], "memory": {"step": 4}}
        move |= {"passed_over": [4], "sender": 0}
        pieces = SimpleNamespace(size=11, close=lambda: None)
        await TokenSender(walk, ControlMessages(walk)).send(state, move, pieces)
        return walk.transport.sent[0]

    assert asyncio.run(main()) == (HEAD + OFFER).encode()


def test_the_last_token_is_offered_with_these_bytes(tmp_path):
    file = tmp_path / "token"
    file.write_bytes(b"eleven byte")

    async def main() -> Any:
        walk = speaker()
        walk.store = SimpleNamespace(file=lambda token: file)
        walk.state = SimpleNamespace(committed=None)
        last_token = LastToken(walk, ControlMessages(walk), None)
        await last_token._bring_final(1, Value((1, 2), DIGEST, OTHER, "5a"))
        return walk.transport.sent[0]

    assert asyncio.run(main()) == (HEAD + FINAL).encode()


def test_every_message_about_a_walk_has_one_who_answers_it():
    control_messages = ControlMessages(speaker())
    known = [
        *control_messages.answers,
        *Receiving(control_messages.walk, control_messages, None, None).takes,
    ]
    assert sorted(known, key=str) == sorted(get_args(ms.WALK), key=str)


# What is refused

LONG = 1 << 12
PLACES: dict[str, list[Any]] = {
    "digest": [None, 7, "", "0F" * 32, "0f" * 31, DIGEST + "\n", DIGEST + "0", [DIGEST], "\ud800"],
    "whole": [None, -1, 1.0, True, "1", [], {}, 2**31 + 1, 2**63 - 1],
    "number": [None, -1, 1.0, True, "1", [], {}, 2**30 + 1],
    "page": [None, 0, -1, 1.0, True, "1", [], 33, 2**31],
    "pair": [None, 7, [], [1], [1, 2, 3], [1, -1], [1, True], [1, 2.0], ["a", 1], {"0": 1}],
    "object": [None, 7, "{}", [], [{}], True],
    "truth": [None, 0, 1, "true", [], {}],
    "text": [None, 7, [], {}, True],
    "peers": [None, 7, [-1], [True], ["0"], [[0]], {}, [0] * 5000],
}
"""What a field of a kind cannot be."""
FIELDS: dict[str, dict[str, str]] = {
    "where": {"chain": "digest", "number": "number"},
    "release": {"generation": "pair", "place": "pair"},
    "fence": {"entry": "object"},
    "opening": {"generation": "pair"},
    "beginning": {},
    "decide": {"poll": "object"},
    "entry": {"chain": "digest"},
    "entries": {"chain": "digest", "most": "page"},
    "offer": {"parcel": "object", "path": "peers", "move": "object", "passed_over": "peers"},
    "final": {"value": "object"},
    "agenda-decide": {"number": "whole", "poll": "object"},
    "agenda-decided": {"number": "whole", "value": "text", "decision": "object"},
    "agenda-ask": {"number": "whole"},
    "agenda-end": {"number": "whole"},
    "agenda-visits": {"number": "whole", "after": "whole"},
    "agenda-receipt": {"number": "whole"},
    "agenda-left": {"number": "whole", "receipt": "object"},
    "agenda-leaver": {"number": "whole", "peer": "whole"},
    "agenda-begin": {"begun": "truth", "without": "peers"},
    "agenda-ready": {"number": "whole"},
}
GOOD = {json.loads(HEAD + rest)["kind"]: json.loads(HEAD + rest) for *_, rest in GOLDEN}
GOOD |= {"offer": json.loads(HEAD + OFFER), "final": json.loads(HEAD + FINAL)}


def refused(record: Any) -> str:
    data = record if isinstance(record, bytes) else json.dumps(record).encode()
    with pytest.raises(Corrupt) as caught:
        ms.decode(data, 1 << 16)
    said = str(caught.value)
    assert said.endswith(".")
    assert len(said) < 200
    return said


@pytest.mark.parametrize("kind", TYPES)
def test_a_message_that_is_not_of_its_kind_is_refused(kind):
    good = GOOD[kind]
    assert json.loads(ms.encode(ms.decode(json.dumps(good).encode(), LONG))) == good
    for name in good:
        refused({k: v for k, v in good.items() if k != name})
    for name, what in FIELDS[kind].items():
        for junk in PLACES[what]:
            if (kind, name, junk) == ("where", "chain", ""):  # it asks without a chain
                continue
            refused({**good, name: junk})
    assert refused({**good, "more": 1}) == refused({**good, "m\ud7ff" * 30: 1}), "no echo"
    assert refused({**good, "kind": "x"}) == refused({**good, "kind": "y - at z" * 30})
    for head in ({"network": 7}, {"run": None}, {"run": [RUN]}, {"kind": [kind]}):
        refused({**good, **head})
    for protocol in (3, 5, "4", None, [4]):
        assert refused({**good, "protocol": protocol}) == "protocol 4 is spoken here."
    refused({**good, "protocol": 4.0})


def inner(kind: str, name: str, **changes: Any) -> dict[str, Any]:
    return {**GOOD[kind], name: {**GOOD[kind][name], **changes}}


def test_a_token_offered_with_wrong_numbers_is_refused():
    for size in (7, -1, 2**48 + 1, 9.0, True, "9", None):
        refused({**GOOD["offer"], "size": size})
        refused({**GOOD["final"], "size": size})
    for name, what in {"generation": "pair", "hop": "whole", "leg": "whole"}.items():
        for junk in PLACES[what]:
            refused(inner("offer", "parcel", **{name: junk}))
    for lines in (None, [[0, 0]], [[0, 0, 0, 0]], [[2**30 + 1, 0, 0]], [[0, 0, True]], [0]):
        refused(inner("offer", "parcel", lineage=lines))
    for name in ("mover", "attempt", "receiver"):
        for junk in PLACES["whole"]:
            refused(inner("offer", "move", **{name: junk}))
    memories: list[Any] = [None, [], {"a": -1}, {"a" * 65: 1}, {str(n): n for n in range(17)}]
    for memory in memories:
        refused(inner("offer", "move", memory=memory))
    for junk in PLACES["digest"]:
        refused(inner("final", "value", chain=junk))
        refused(inner("final", "value", token=junk))
    for salt in (None, 7, "é", "a" * 65, "\ud800"):
        refused(inner("final", "value", salt=salt))
    for name, part in (("offer", "parcel"), ("offer", "move"), ("final", "value")):
        refused(inner(name, part, more=1))


@pytest.mark.parametrize(
    "free", ["NaN", "-Infinity", "1e999", str(2**63), "9" * 5000, "[" * 12 + "]" * 12, "[" * 999]
)
def test_what_stays_free_is_strict_and_flat(free):
    message = HEAD.replace("%", "%%") + '"fence","entry":{"a":%s}}'
    ms.decode((message % ("[" * 9 + "]" * 9)).encode(), LONG)
    refused((message % free).encode())


def test_a_message_that_is_too_long_is_not_looked_at():
    data = json.dumps(GOOD["where"]).encode()
    assert ms.decode(data, len(data)) == ms.decode(data + b" " * 9, LONG)
    with pytest.raises(Corrupt, match=f"has {len(data)} bytes; allowed: {len(data) - 1}"):
        ms.decode(data, len(data) - 1)
    for other in (b"", b"[]", b"7", b"null", b"\xff", data[:-1], data + b"x"):
        refused(other)
