"""gRPC with mutual TLS: who gets through, and what travels."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from tests.peers.harness import network
from unwalk.core.errors import InvalidInput
from unwalk.peers import provision
from unwalk.peers.identity.credentials import host_name
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.transport.wire import CHUNK, SERVICE, Grpc, MemoryPieces, Unreachable


class Echo:
    """Answers with what it got."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bytes, int]] = []

    async def take(self, sender, envelope, chunks):
        digest, size, largest = hashlib.sha256(), 0, 0
        async for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            largest = max(largest, len(chunk))
        assert largest <= CHUNK
        self.calls.append((sender, envelope, size))
        return digest.digest()

    async def answer(self, sender, message):
        self.calls.append((sender, message, -1))
        return message[::-1]


@pytest.fixture
def made(tmp_path):
    network(tmp_path / "net", peers=3)
    return tmp_path / "net"


OPEN: list[Grpc] = []


async def sent(*parts):
    for part in parts:
        yield part


def ends(folder, *peers):
    bundles = [Bundle.read(folder / f"peer-{p}") for p in peers]
    made = [Grpc(b, b.trust()) for b in bundles]
    OPEN.extend(made)
    return made


def scene(script):
    async def whole():
        try:
            await script()
        finally:
            while OPEN:
                await OPEN.pop().stop()

    asyncio.run(whole())


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17])
def test_tokens_of_any_size_arrive_whole(made, size):
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]

    async def script():
        here, there = ends(made, 0, 1)
        echo = Echo()
        await there.start(echo)
        parts = [data[i : i + CHUNK] for i in range(0, size, CHUNK)]
        answer = await here.hand(1, b"envelope", lambda: sent(*parts), 10.0)
        assert answer == hashlib.sha256(data).digest()
        assert await here.tell(1, b"abc", 5.0) == b"cba"
        assert echo.calls == [(0, b"envelope", size), (0, b"abc", -1)]

    scene(script)


def test_a_peer_that_is_down_is_certainly_unreachable(made):
    async def script():
        (here,) = ends(made, 0)
        with pytest.raises(Unreachable, match="peer 1 cannot be reached") as caught:
            await here.tell(1, b"x", 2.0)
        assert caught.value.certain

    scene(script)


def test_an_answer_that_does_not_come_is_unclear(made):
    class Silent(Echo):
        async def take(self, sender, envelope, chunks):
            await asyncio.sleep(30)

    async def script():
        here, there = ends(made, 0, 1)
        await there.start(Silent())
        with pytest.raises(Unreachable) as caught:
            await here.hand(1, b"e", lambda: sent(b"x"), 0.3)
        assert not caught.value.certain

    scene(script)


def test_a_file_that_goes_away_meanwhile_is_unclear_and_no_crash(made):
    async def broken():
        yield b"x"
        raise FileNotFoundError

    async def script():
        here, there = ends(made, 0, 1)
        await there.start(Echo())
        with pytest.raises((Unreachable, FileNotFoundError)) as caught:
            await here.hand(1, b"e", broken, 3.0)
        assert not getattr(caught.value, "certain", False)
        assert await here.tell(1, b"ab", 5.0) == b"ba"

    scene(script)


def test_a_stranger_does_not_get_through(made, tmp_path):
    network(tmp_path / "other", peers=3)

    async def script():
        (there,) = ends(made, 1)
        echo = Echo()
        await there.start(echo)
        (stranger,) = ends(tmp_path / "other", 0)
        address = there.listen
        stranger.bundle = _with_address(stranger.bundle, 1, address)
        with pytest.raises(Unreachable) as caught:
            await stranger.tell(1, b"x", 2.0)
        assert caught.value.certain
        # Neither without a certificate of one's own, nor without TLS.
        name = host_name("peer-1", "test")
        half = grpc.ssl_channel_credentials(root_certificates=there.bundle.authority_pem)
        options = [("grpc.ssl_target_name_override", name)]
        for channel in (
            grpc.aio.secure_channel(address, half, options=options),
            grpc.aio.insecure_channel(address),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/{SERVICE}/Tell")(b"x", timeout=1.0)
            await channel.close()
        assert echo.calls == []

    scene(script)


def _with_address(bundle, peer, address):
    members = list(bundle.network.peers)
    members[peer] = replace(members[peer], address=address)
    return replace(bundle, network=replace(bundle.network, peers=tuple(members)))


def test_a_revoked_peer_is_refused_in_both_directions(made):
    async def script():
        (old,) = ends(made, 1)  # still has its old certificate
        provision.rotate(made, "peer-1", chapter=1)
        (other,) = ends(made, 0)
        echo = Echo()
        await other.start(echo)
        with pytest.raises(Unreachable, match=r"permission_denied \(the certificate .* revoked"):
            await old.tell(0, b"x", 2.0)
        await old.start(Echo())
        with pytest.raises(Unreachable, match="certificate of peer-1 was revoked") as caught:
            await other.hand(1, b"e", lambda: sent(b"secret"), 2.0)
        assert caught.value.certain
        assert echo.calls == old.handler.calls == []

    scene(script)


def test_somebody_else_at_the_address_is_not_taken_for_the_peer(made):
    async def script():
        here, wrong = ends(made, 0, 2)
        wrong.listen = here.bundle.network.peers[1].address
        await wrong.start(Echo())
        with pytest.raises(Unreachable) as caught:
            await here.hand(1, b"e", lambda: sent(b"secret"), 2.0)
        assert caught.value.certain
        assert wrong.handler.calls == []

    scene(script)


def test_a_peer_that_greets_with_the_key_of_another_is_not_taken_for_it(made):
    """Its connection is in order: only the signature under the greeting is not its own."""

    async def script():
        here, there, other = ends(made, 0, 1, 2)
        await there.start(Echo())
        keys, pem = other.bundle.keys, other.bundle.certificate_pem
        there.bundle = replace(there.bundle, keys=keys, certificate_pem=pem)
        with pytest.raises(Unreachable, match="peer-2 answered in the place of peer-1"):
            await here.hand(1, b"e", lambda: sent(b"secret"), 2.0)
        assert there.handler.calls == []

    scene(script)


def test_an_address_in_use_is_said_clearly(made):
    async def script():
        one, two = ends(made, 0, 0)
        await one.start(Echo())
        with pytest.raises(InvalidInput, match="cannot be listened on"):
            await two.start(Echo())

    scene(script)


def test_a_message_that_is_too_large_is_refused(made):
    async def script():
        here, there = ends(made, 0, 1)
        echo = Echo()
        await there.start(echo)
        with pytest.raises(Unreachable, match="resource_exhausted"):
            await here.tell(1, bytes(3 * CHUNK), 5.0)
        assert echo.calls == []

    scene(script)


def test_a_channel_that_is_closed_under_a_greeting_is_a_failure_and_no_end(made):
    async def script():
        one, other = ends(made, 0, 1)
        await other.start(Echo())
        asked = asyncio.Event()
        connected = one._connect

        def connect(peer):
            channel = connected(peer)
            call = channel.unary_unary

            def noticed(method):
                asked.set()
                return call(method)

            channel.unary_unary = noticed
            return channel

        one._connect = connect
        calling = asyncio.create_task(one.tell(1, b"x", 5.0))
        await asked.wait()
        await one.channels[1].close()
        with pytest.raises(Unreachable):
            await calling
        assert not calling.cancelled()

    scene(script)


def test_a_call_that_ends_while_it_waits_for_the_stamp_does_not_take_it_along():
    """The sender writes its visit down meanwhile, and then sets the stamp."""

    async def main() -> None:
        stamp: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        sent = MemoryPieces([memoryview(bytes(10))], stamp)

        async def call() -> None:
            async for _ in sent():
                pass

        task = asyncio.create_task(call())
        await sent.left()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not stamp.done()
        stamp.set_result(b"stamp")

    asyncio.run(main())


def test_a_token_goes_the_way_that_was_opened_for_it(made):
    async def script():
        here, there = ends(made, 0, 1)
        echo = Echo()
        await there.start(echo)
        await here.ready(1, b"e")
        way = here.way
        while not there.calls[0]:  # its head is there, and is counted
            await asyncio.sleep(0.01)
        answer = await here.hand(1, b"e", lambda: sent(b"one", b"two"), 5.0)
        assert answer == hashlib.sha256(b"onetwo").digest()
        assert way.said.done()
        assert await here.hand(1, b"f", lambda: sent(b"three"), 5.0)
        assert [call[1] for call in echo.calls] == [b"e", b"f"], "a way is good for one token"

    scene(script)


class Early(Echo):
    """Notes an envelope when it comes, before there is anything more."""

    def __init__(self) -> None:
        super().__init__()
        self.envelopes: list[bytes] = []

    async def take(self, sender, envelope, chunks):
        self.envelopes.append(envelope)
        return await super().take(sender, envelope, chunks)


def test_an_envelope_is_there_before_its_token_and_another_one_replaces_it(made):
    async def script():
        here, there = ends(made, 0, 1)
        early = Early()
        await there.start(early)
        await here.ready(1, b"e")
        while not early.envelopes:
            await asyncio.sleep(0.01)
        announced = here.way
        assert (
            await here.hand(1, b"other", lambda: sent(b"x"), 5.0) == hashlib.sha256(b"x").digest()
        )
        assert announced.call.cancelled(), "what was announced is not what came"
        assert early.envelopes == [b"e", b"other"]
        assert early.calls == [(0, b"other", 1)]

    scene(script)


def test_whoever_announces_a_token_and_sends_none_is_not_waited_for(made):
    async def script():
        here, there = ends(made, 0, 1)
        limits = replace(there.bundle.network.limits, connect=0.3)
        there.bundle = replace(there.bundle, network=replace(there.bundle.network, limits=limits))
        echo = Echo()
        await there.start(echo)
        await here.ready(1, b"e")
        with pytest.raises(grpc.aio.AioRpcError, match="said nothing for 0"):
            await here.way.call
        assert echo.calls == []
        assert not there.calls[0]

    scene(script)


def test_a_way_that_no_token_goes_is_closed_and_nobody_minds(made):
    async def script():
        here, there = ends(made, 0, 1)
        for end in (here, there):
            limits = replace(end.bundle.network.limits, connect=0.4)
            end.bundle = replace(end.bundle, network=replace(end.bundle.network, limits=limits))
        echo = Echo()
        await there.start(echo)
        await here.ready(1, b"e")
        way = here.way
        while way.open:
            await asyncio.sleep(0.01)
        while there.calls[0]:
            await asyncio.sleep(0.01)
        assert way.call.cancelled(), "the far end had not lost its patience yet"
        assert echo.calls == []
        assert await here.hand(1, b"e", lambda: sent(b"x"), 5.0)
        await here.ready(2, b"e")  # which is down
        assert here.way is None

    scene(script)


def test_a_call_that_ends_without_a_word_is_no_offer(made):
    async def script():
        here, there = ends(made, 0, 1)
        echo = Echo()
        await there.start(echo)
        call = (await here._channel(1, 5.0)).stream_unary(f"/{SERVICE}/Hand")(sent())
        with pytest.raises(grpc.aio.AioRpcError, match="before it said anything"):
            await call
        assert echo.calls == []

    scene(script)


def test_a_certificate_revoked_since_the_way_was_opened_is_refused(made):
    async def script():
        here, there = ends(made, 0, 1)
        early = Early()
        await there.start(early)
        await here.ready(1, b"e")
        while not early.envelopes:
            await asyncio.sleep(0.01)
        provision.revoke(made, "peer-0", chapter=1)
        there.trust = Bundle.read(made / "peer-1").trust()
        with pytest.raises(Unreachable, match="was revoked") as caught:
            await here.hand(1, b"e", lambda: sent(b"x"), 5.0)
        assert caught.value.certain
        assert early.calls == []

    scene(script)
