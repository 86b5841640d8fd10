"""Peers that lie while they run: one thing that each of them does otherwise than it should."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from unwalk.core.errors import UnwalkError
from unwalk.peers.forgetting.erasure import receipt_of
from unwalk.peers.handover import log_rules
from unwalk.peers.handover.doorway import Answer, refusal
from unwalk.peers.handover.service import Service
from unwalk.peers.lifecycle.chapter_runner import Chapters
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol import messages as ms
from unwalk.peers.transport.wire import Chunks, Transport

LONG = 3600.0
ECHO = 0.3
"""How often a message is followed by an old one."""

Twist = Callable[[Chapters, Service], None]


def never_visits(chapters: Chapters, service: Service) -> None:
    """Takes the token and says that all is well, for ever."""

    async def never() -> None:
        await asyncio.sleep(LONG)

    service._visit = never  # type: ignore[method-assign]


def huge_weights(chapters: Chapters, service: Service) -> None:
    """Sends a token with weights of 1e30."""
    visit = service.work.visit

    def wild(*args: Any, **options: Any) -> Any:
        found = visit(*args, **options)
        found.token.parameters.fill_(1e30)
        return found

    service.work.visit = wild  # type: ignore[method-assign]


def refuses(chapters: Chapters, service: Service) -> None:
    """Refuses every token that is handed to it."""

    async def no(sender: int, chunks: AsyncIterator[bytes], message: ms.Message) -> Answer:
        return refusal("not today.")

    service.receiver.take = no  # type: ignore[method-assign]


def never_answers_an_offer(chapters: Chapters, service: Service) -> None:
    """Lets every token wait until the sender gives up, and answers everything else."""

    async def never(sender: int, chunks: AsyncIterator[bytes], message: ms.Message) -> Answer:
        await asyncio.sleep(LONG)
        return refusal("too late.")

    service.receiver.take = never  # type: ignore[method-assign]


class _Withheld:
    """The bytes of a token, and then nothing."""

    def __init__(self, pieces: Any) -> None:
        self.pieces, self.size, self.close = pieces, pieces.size, pieces.close

    async def __call__(self) -> AsyncIterator[bytes]:
        left = self.size
        async for piece in self.pieces():
            if left <= 0:
                break
            left -= len(piece)
            yield piece
        await asyncio.sleep(LONG)


def withholds_stamp(chapters: Chapters, service: Service) -> None:
    """Sends the bytes of a token and never the stamp that makes it one."""
    send = service.token_sender.send

    def half(state: Any, move: Any, pieces: Any) -> Any:
        return send(state, move, _Withheld(pieces))

    service.token_sender.send = half  # type: ignore[method-assign]


def false_sightings(chapters: Chapters, service: Service) -> None:
    """Says, signed, that the walk is over, far ahead, never begun, or of a high generation."""
    rng = random.Random(chapters.me)

    async def lie(sender: int, message: ms.Where) -> Answer:
        said = pr.sighting(service.state)
        far = (said.fence, (service.work.hops - 1, 0))
        high = (said.fence[0] + 7, chapters.me)
        said = rng.choice(
            [
                replace(said, over=True),
                replace(said, reached=far),
                replace(said, reached=(said.fence, pr.NOWHERE)),
                replace(said, fence=high, lineage=(*said.lineage, (high, 1))),
                said,
            ]
        )
        asked = log_rules.Question(service.run_id, sender, message.chain, message.number)
        return log_rules.sign(service.bundle, asked, said)

    service.control_messages.answers[ms.Where] = lie


def wrong_receipts(chapters: Chapters, service: Service) -> None:
    """Answers with receipts of nothing, of another chapter, or in another's name."""
    rng, bundle = random.Random(chapters.me), chapters.bundle

    def lie(number: int) -> Any:
        if not 0 < number < len(chapters.runs):
            return None
        good = receipt_of(chapters.store, chapters.bundle, chapters.runs[number], number)
        if good is None:
            return None
        other = f"peer-{(chapters.me + 1) % len(chapters.network.peers)}"
        return rng.choice(
            [
                {"receipt": "none"},
                {**good.to_json(), "records": 7},
                replace(good, chapter=number + 1).signed(bundle).to_json(),
                replace(good, peer=other).signed(bundle).to_json(),
                replace(good, run="0" * 32).signed(bundle).to_json(),
            ]
        )

    chapters.next_chapter._receipt = lie  # type: ignore[method-assign]


class Echo:
    """A transport that says old things again, to whom it likes."""

    def __init__(self, transport: Transport, me: int, peers: int) -> None:
        self.transport, self.me, self.peers = transport, me, peers
        self.said: list[bytes] = []
        self.handed: list[tuple[bytes, list[bytes]]] = []
        self.rng = random.Random(me)

    async def start(self, handler: Any) -> None:
        await self.transport.start(handler)

    async def stop(self) -> None:
        await self.transport.stop()

    async def ready(self, peer: int, envelope: bytes) -> None:
        await self.transport.ready(peer, envelope)

    async def tell(self, peer: int, message: bytes, timeout: float) -> bytes:
        self.said.append(message)
        answer = await self.transport.tell(peer, message, timeout)
        if self.rng.random() < ECHO:
            with suppress(UnwalkError, TimeoutError):
                await self.transport.tell(self._anyone(), self.rng.choice(self.said), timeout)
        return answer

    async def hand(self, peer: int, envelope: bytes, chunks: Chunks, timeout: float) -> bytes:
        sent: list[bytes] = []
        self.handed.append((envelope, sent))

        async def heard() -> AsyncIterator[bytes]:
            async for piece in chunks():
                sent.append(piece)
                yield piece

        answer = await self.transport.hand(peer, envelope, heard, timeout)
        if self.rng.random() < ECHO:
            words, pieces = self.rng.choice(self.handed)

            async def again() -> AsyncIterator[bytes]:
                for piece in pieces:
                    yield piece

            with suppress(UnwalkError, TimeoutError):
                await self.transport.hand(self._anyone(), words, again, timeout)
        return answer

    def _anyone(self) -> int:
        return self.rng.choice([p for p in range(self.peers) if p != self.me])


def replays(chapters: Chapters, service: Service) -> None:
    """Sends old messages and tokens again, to anybody."""
    if not isinstance(chapters.transport, Echo):
        chapters.transport = Echo(chapters.transport, chapters.me, len(chapters.network.peers))
    service.transport = chapters.transport


TWISTS: dict[str, Twist] = {
    "never visits": never_visits,
    "huge weights": huge_weights,
    "refuses": refuses,
    "never answers an offer": never_answers_an_offer,
    "withholds the stamp": withholds_stamp,
    "false sightings": false_sightings,
    "wrong receipts": wrong_receipts,
    "replays": replays,
}
