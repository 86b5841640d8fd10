"""Every message between peers: its bytes are pinned, and whatever else comes is refused."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from unwalk.peers.handover.control_messages import Talk
from unwalk.peers.handover.last_token import LastToken
from unwalk.peers.handover.sending import Delivery
from unwalk.peers.lifecycle.next_chapter import Council
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.handover import Parcel, Value

RUN, DIGEST, OTHER = "ab" * 16, "0f" * 32, "1e" * 32
HEAD = f'{{"protocol":3,"network":"tést","run":"{RUN}","kind":'.replace("é", "\\u00e9")
FREE: dict[str, Any] = {"b": [1, -2.5, None, True, {"c": "ü"}], "a": {}}
SAID = '{"b":[1,-2.5,null,true,{"c":"\\u00fc"}],"a":{}}'
TYPES = {msgspec.inspect.type_info(t).tag: t for t in get_args(ms.WALK | ms.NETWORK)}
GOLDEN: list[tuple[str, dict[str, Any], str]] = [
    ("where", {"chain": ""}, '"where","chain":""}'),
    ("where", {"chain": DIGEST}, f'"where","chain":"{DIGEST}"}}'),
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
        return Talk(walk).words(TYPES[kind], **fields)
    council = Council.__new__(Council)
    council.progress, council.run_id = walk, RUN
    return council.words(TYPES[kind], **fields)


@pytest.mark.parametrize(("kind", "fields", "rest"), GOLDEN, ids=[g[0] for g in GOLDEN])
def test_a_message_has_these_bytes(kind, fields, rest):
    assert said(kind, **fields) == (HEAD + rest).encode()


def test_an_offer_has_these_bytes():
    async def main() -> bytes:
        walk = speaker()
        parcel = Parcel((1, 2), 5, 1, DIGEST, OTHER, (((0, 0), 0), ((1, 2), 3)))
        state = SimpleNamespace(held=parcel, path=(3, 1))
        move = {"mover": 2, "attempt": 1, "receiver": 1, "path": [0, 3, 1], "memory": {"step": 4}}
        move |= {"passed_over": [4], "sender": 0}
        pieces = SimpleNamespace(size=11, close=lambda: None)
        await Delivery(walk, Talk(walk)).send(state, move, pieces)
        return walk.transport.sent[0]

    assert asyncio.run(main()) == (HEAD + OFFER).encode()


def test_the_last_token_is_offered_with_these_bytes(tmp_path):
    file = tmp_path / "token"
    file.write_bytes(b"eleven byte")

    async def main() -> bytes:
        walk = speaker()
        walk.store = SimpleNamespace(file=lambda token: file)
        walk.state = SimpleNamespace(committed=None)
        last_token = LastToken(walk, Talk(walk), None)
        await last_token._bring_final(1, Value((1, 2), DIGEST, OTHER, "5a"))
        return walk.transport.sent[0]

    assert asyncio.run(main()) == (HEAD + FINAL).encode()
