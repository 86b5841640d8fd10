"""Bytes that no peer would send, from a member with a good certificate, over mutual TLS."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import random

import grpc
import grpc.aio
import pytest

from tests.peers.harness import network
from tests.peers.test_fuzz import snapshot
from unwalk.peers.handover.service import Service
from unwalk.peers.handover.visit import Work, plan_of
from unwalk.peers.identity import credentials
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import messages as ms
from unwalk.peers.storage.store import Store
from unwalk.peers.telemetry import Journal
from unwalk.peers.transport.wire import CHUNK, MESSAGE, SERVICE, Grpc, MemoryPieces, Unreachable

PEER = 1


class Scene:
    """A peer that serves over gRPC, and the end of another member."""

    def __init__(self, folder) -> None:
        self.bundle = Bundle.read(folder / f"peer-{PEER}")
        other = Bundle.read(folder / "peer-0")
        self.trust = self.bundle.trust()
        work = Work(plan_of(self.bundle.network, self.bundle.noise_secret), PEER)
        self.store = Store(self.bundle.store)
        self.server = Grpc(self.bundle, self.trust)
        journal = Journal(None, self.bundle.name)
        self.service = Service(self.bundle, self.trust, work, self.store, self.server, journal)
        self.client = Grpc(other, other.trust())

    async def close(self) -> None:
        await self.client.stop()
        await self.server.stop()
        self.store.close()


def scene(tmp_path, script) -> None:
    folder = tmp_path / "net"
    network(folder, peers=3, lease=600.0)

    async def main() -> None:
        here = Scene(folder)
        await here.server.start(here.service)
        try:
            await script(here)
        finally:
            await here.close()

    asyncio.run(main())


def raw(rng: random.Random, good: bytes) -> list[bytes]:
    """Pieces of a call: lengths that lie, an empty one, too much, or almost right."""
    kind = rng.randrange(6)
    if kind == 0:
        return [b""]
    if kind == 1:
        return [rng.randbytes(rng.choice([0, 1, 3, 4, 5, 40]))]
    if kind == 2:
        return [rng.randrange(1 << 32).to_bytes(4, "big") + good]
    if kind == 3:
        return [len(good).to_bytes(4, "big") + good, *(rng.randbytes(9) for _ in range(3))]
    if kind == 4:
        return [bytes(4), good]
    return [len(good).to_bytes(4, "big"), good]


def test_calls_of_any_bytes_are_answered_and_change_nothing(tmp_path):
    rng = random.Random(5)

    async def script(here):
        channel = await here.client._channel(PEER, 5.0)
        hand = channel.stream_unary(f"/{SERVICE}/Hand")
        head = ms.head(here.service.network.name, here.service.run_id)
        good = codec.dump(
            {**head, "kind": "offer", "parcel": {}, "path": [PEER], "move": {}, "size": 8}
        )
        before = snapshot(here.service)
        for _ in range(150):
            reply = codec.parse(await hand(iter(raw(rng, good)), timeout=5.0), MESSAGE)
            assert reply["kind"] == "refused"
            assert reply["reason"]
            told = await channel.unary_unary(f"/{SERVICE}/Tell")(rng.randbytes(30), timeout=5.0)
            assert codec.parse(told, MESSAGE)["reason"]
        for name in ("Hand", "Tell", "Hello", "Nothing"):
            call = channel.unary_unary(f"/{SERVICE}/{name}")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(bytes(CHUNK + MESSAGE + 1), timeout=5.0)
            assert caught.value.code() in (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                grpc.StatusCode.UNIMPLEMENTED,
            )
        assert snapshot(here.service) == before
        assert here.service.metrics.values["refusals_total"] == 300
        assert json.loads(
            await here.client.tell(
                PEER, here.service.control_messages.words(ms.Where, chain="", number=0), 5.0
            )
        )

    scene(tmp_path, script)


def test_a_greeting_is_signed_for_32_bytes_only(tmp_path):
    async def script(here):
        channel = await here.client._channel(PEER, 5.0)
        for size in (0, 31, 33, 5000):
            with pytest.raises(grpc.aio.AioRpcError, match="32 bytes"):
                await channel.unary_unary(f"/{SERVICE}/Hello")(bytes(size), timeout=5.0)

    scene(tmp_path, script)


def test_a_certificate_that_ends_ends_its_connections(tmp_path, monkeypatch):
    async def script(here):
        words = here.service.control_messages.words(ms.Where, chain="", number=0)
        assert await here.client.tell(PEER, words, 5.0)
        later = credentials.now() + dt.timedelta(days=400)
        monkeypatch.setattr("unwalk.peers.identity.trust.now", lambda: later)
        with pytest.raises(Unreachable, match="certificate of peer-0 is not valid now") as caught:
            await here.client.tell(PEER, words, 5.0)
        assert caught.value.certain

    scene(tmp_path, script)


def test_a_revocation_ends_connections_that_are_open(tmp_path):
    from unwalk.peers import provision

    async def script(here):
        words = here.service.control_messages.words(ms.Where, chain="", number=0)
        assert await here.client.tell(PEER, words, 5.0)
        here.trust.network = provision.revoke(tmp_path / "net", "peer-0", chapter=1)
        with pytest.raises(Unreachable, match="certificate of peer-0 was revoked") as caught:
            await here.client.tell(PEER, words, 5.0)
        assert caught.value.certain

    scene(tmp_path, script)


def test_offers_are_counted_by_the_limit_too(tmp_path):
    async def script(here):
        here.service.door.rate.rate = 3.0
        replies = []
        for _ in range(8):
            answer = await here.client.hand(PEER, b"{}", pieces(b"x"), 5.0)
            replies.append(codec.parse(answer, MESSAGE)["reason"])
        assert sum("calls a second" in reason for reason in replies) >= 1
        assert "calls a second" not in replies[0]

    scene(tmp_path, script)


def pieces(data: bytes):
    async def stream():
        yield data

    return stream


def test_a_stamp_that_never_comes_leaves_nothing_at_the_far_end(tmp_path):
    """A token is dropped, or its sender goes away, while the far end waits for the stamp."""
    seen: list[str] = []

    class Waiting:
        async def take(self, sender, envelope, chunks):
            seen.append("bytes " + str(len(await anext(chunks))))
            try:
                seen.append("stamp " + str(len(await anext(chunks, b""))))
            except (asyncio.CancelledError, Exception) as error:
                seen.append(type(error).__name__)
                raise

        async def answer(self, sender, message):
            return b""

    async def script(here):
        here.server.handler = Waiting()
        stamp = asyncio.get_running_loop().create_future()
        sent = MemoryPieces([memoryview(bytes(1000))], stamp)
        call = asyncio.create_task(here.client.hand(PEER, b"{}", sent, 5.0))
        await sent.left()
        while not seen:
            await asyncio.sleep(0.01)
        stamp.set_result(None)
        with pytest.raises(Unreachable):
            await call
        for _ in range(100):
            if len(seen) > 1:
                break
            await asyncio.sleep(0.02)
        assert seen[0] == "bytes 1000"
        assert seen[1] in ("stamp 0", "CancelledError"), "there is nothing to take it by"

    scene(tmp_path, script)
