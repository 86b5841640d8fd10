"""What an honest peer signs is what the log says, whatever the sender of its token writes into it.

A liar sends each of its tokens again and again, each time with one thing changed: in the offer, in
the token's header, in its signed visit.  Each is refused, or taken and then visited so that every
honest peer takes what follows.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.certificates.test_tampering import places
from tests.peers.harness import Village, lived
from unwalk.core.token import MOST_STEPS
from unwalk.peers.handover.service import Service
from unwalk.peers.handover.visit import Visited
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.hoplog import BARE, Entry, bare_text
from unwalk.peers.storage.token_files import METADATA, pieces, tensors_in
from unwalk.peers.transport.wire import MESSAGE

LIAR, HONEST = 2, (0, 1, 3)
BUSY = ("another token is on its way", "not whole", "handed to you")
"""Refusals that concern a moment, not what was sent."""
ODD = [-2, -1, 0, 1, 2, 3, 4, 999, 1000, MOST_STEPS, [], {}, {"x": 1}, [1], [0, 3], "0" * 64]

MOST = 60
"""Lies about one token, at most."""


def others(name: str, record: Any) -> Iterator[tuple[str, Any]]:
    """Copies of a record, each with one thing changed, and what was: every place, in many ways."""
    for path, value in places(record):
        odd = [v for v in ODD if path and type(v) is type(value) and v != value]
        near = [value + 1, value - 1] if type(value) is int else []
        for new in odd + near:
            changed = copy.deepcopy(record)
            parent = changed
            for step in path[:-1]:
                parent = parent[step]
            parent[path[-1]] = new
            yield f"{name} {path}", changed


class Liar:
    """Sends each token in many ways before it sends it as it is."""

    def __init__(self, here: Village, service: Service, seed: int) -> None:
        self.here, self.service, self.rng, self.tried = here, service, Random(seed), 0
        self.taken, self.hand = set[str](), service.transport.hand
        service.transport.hand = self.lying  # type: ignore[method-assign]

    def signed(self, entry: Entry, **changes: Any) -> bytes:
        body = {k: v for k, v in entry["body"].items() if k != "previous"} | changes
        if "visit" in changes:
            words = BARE + bare_text(body["run"], body["generation"], body["visit"])
            body["bare"] = self.service.bundle.sign(words).hex()
        return codec.dump(self.service.sign(entry["body"]["previous"], body))

    def lies(self, envelope: bytes, sent: list[bytes]) -> Iterator[tuple[str, bytes, list[bytes]]]:
        """Offers, each with one thing changed, of a token that is small enough for one piece."""
        data, stamp, *log = sent
        said, entry = json.loads(envelope), codec.parse(stamp, MESSAGE)
        for name, other in others("offer", said):
            yield name, codec.dump(other), sent
        words, tensors = tensors_in(bytearray(data), "token")
        for name, header in others("header", json.loads(words[METADATA])):
            parts = pieces(tensors, {METADATA: json.dumps(header)})
            changed = b"".join(map(bytes, parts))
            digest = hashlib.sha256(changed).hexdigest()
            longer = codec.dump({**said, "size": len(changed)})
            yield name, longer, [changed, self.signed(entry, token=digest), *log]
        body = {k: v for k, v in entry["body"].items() if k not in ("previous", "bare", "run")}
        for name, other in others("entry", body):
            yield name, envelope, [data, self.signed(entry, **other), *log]

    async def lying(self, peer: int, envelope: bytes, chunks: Any, timeout: float) -> bytes:
        sent = [chunk async for chunk in chunks()]
        lies = [(name, words, parts) for name, words, parts in self.lies(envelope, sent)]
        self.rng.shuffle(lies)
        fresh = [lie for lie in lies if lie[0] not in self.taken][:MOST]
        for lie in [*fresh, ("", envelope, sent)]:
            name, words, parts = lie

            async def told(parts: list[bytes] = parts) -> AsyncIterator[bytes]:
                for part in parts:
                    yield part

            before = self.here.services[peer].state
            answer = await self.hand(peer, words, told, timeout)
            self.tried += 1
            if self.here.services[peer].state != before:
                self.taken.add(name)
                break
        return answer


def refusals(here: Village) -> list[str]:
    """Why something that an honest peer sent was refused, but for what only was not its moment."""
    found = [e for e in here.events if e["event"] == "refused" and e["sender"] in HONEST]
    return [e["reason"] for e in found if not any(text in e["reason"] for text in BUSY)]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_whatever_a_sender_writes_an_honest_peer_signs_what_its_log_says(tmp_path, optimizer):
    liars: list[Liar] = []

    async def script(here: Village) -> None:
        services = [here.start(peer) for peer in range(4)]
        liars.append(Liar(here, services[LIAR], 1))
        await here.until(lambda: here.finished(*HONEST))

    here = lived(tmp_path, script, peers=4, lease=60.0, train__optimizer=optimizer, train__hops=40)
    assert refusals(here) == []
    assert liars[0].tried > 100


def test_a_count_of_steps_that_the_log_does_not_tell_of_is_refused(tmp_path):
    """Once it was taken, and with one more step nobody took the token of the peer that made it."""

    async def script(here: Village) -> None:
        liar = [here.start(peer) for peer in range(4)][LIAR]
        visit = liar.work.visit

        def high(*args: Any, **more: Any) -> Visited:
            visited = visit(*args, **more)
            token = replace(visited.token, optimizer_steps=MOST_STEPS)
            return replace(visited, token=token)

        liar.work.visit = high  # type: ignore[method-assign]
        await here.until(lambda: here.finished(*HONEST))

    here = lived(tmp_path, script, peers=4, lease=0.3, visit=0.6, train__optimizer="adam")
    assert refusals(here) == []
    refused = [e for e in here.events if e["event"] == "refused" and e["sender"] == LIAR]
    assert any(f"counts {MOST_STEPS} optimizer steps" in e["reason"] for e in refused)
