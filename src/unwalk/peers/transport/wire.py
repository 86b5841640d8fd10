"""How messages travel: a small Transport, over gRPC with mutual TLS or in memory.

``hand`` moves a token: an envelope (JSON), which may be there long before the rest, the token's
bytes in pieces of 1 MiB, and a stamp (JSON: the signed log entry, with the digest of those bytes);
one answer comes back.
``tell`` is one small JSON message and its answer.  Tokens are pushed; nobody polls.  There is no
way to make a connection without certificates of the network's CA on both ends.

Whoever only opens connections, or calls and says nothing, is bounded before anything is read: a
peer has so many incoming connections at most, each with seconds for its TLS handshake; a call is
looked at when its head arrives, counted for the peer that its certificate names, and ended if its
first message does not come.  All methods are therefore served as streams: for a plain call gRPC
would wait for the message by itself, without an end and without asking who calls.
"""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from unwalk.core.errors import InvalidInput, Refused, UnwalkError
from unwalk.peers.identity.credentials import host_name
from unwalk.peers.identity.trust import Bundle, Trust
from unwalk.peers.protocol import codec

CHUNK = 1 << 20
MESSAGE = 256 << 10
HEAD_START = 0.25
"""Seconds for which a token's way to the next peer comes before its way to this peer's disk."""
LEAVES_SOON = 64 << 20
"""Bytes of a token up to which that is of use: a larger one is on its way for longer, and its stamp
would come later by the whole head start."""
SERVICE = "unwalk.Peer"
HELLO = b"unwalk-hello-1:"
NONCE = 32
READ = 256 << 10
"""Bytes that are read from one connection at once, at most."""
WINDOW = 64 << 10
"""So much of a call may have arrived that nobody has asked for; a guess of the line's speed could
be all.  Times the calls that a peer may have open, it is what a loud member can fill."""
CONNECTIONS = 256
"""Incoming connections at once, at most; fewer where the process may open few files."""
STREAMS, CALLS = 8, 12
"""Calls at once on one connection, where more wait at their sender, and of one peer, where more are
refused: it may have come back while calls of a connection that broke are still open."""
READS = 2
"""Calls of one peer at once whose first message is read; the others wait with no more of it than
``WINDOW``.  gRPC makes room for a whole message, whatever its kind, once it is asked for."""
IDLE = 60.0
"""Seconds after which a connection without a call is closed, at least; four leases if longer."""
OPTIONS = [
    ("grpc.max_receive_message_length", CHUNK + MESSAGE),
    ("grpc.max_send_message_length", CHUNK + MESSAGE),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW),
    ("grpc.experimental.tcp_max_read_chunk_size", READ),
    ("grpc.so_reuseport", 0),
    ("grpc.use_local_subchannel_pool", 1),
]

NOTHING_TAKEN = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION)
"""How a call ends of which nothing was read; gRPC itself never says so."""

Chunks = Callable[[], AsyncIterator[bytes]]


class MemoryPieces:
    """Bytes from memory in pieces of 1 MiB, then a stamp.

    A token can so be on its way before it is written down here.  Without its stamp it is worth
    nothing; ``stamp`` gives None if the token was dropped meanwhile.  Until ``gone`` is set the
    memory is still read from; afterwards it is not, whoever asks for more.  ``sent`` is set once
    the far end has made room for the last piece too.
    """

    def __init__(
        self, parts: Sequence[memoryview], stamp: asyncio.Future[bytes | None], log: bytes = b""
    ) -> None:
        self.parts, self.stamp, self.log = parts, stamp, log
        self.size = sum(len(part) for part in parts)
        self.gone, self.sent = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> AsyncIterator[bytes]:
        held: list[memoryview] = []
        left = CHUNK
        for part in self.parts:
            rest = part
            while rest:
                if self.gone.is_set():  # the call has ended
                    return
                held.append(rest[:left])
                rest, left = rest[left:], left - len(held[-1])
                if left == 0:
                    yield b"".join(held)
                    held, left = [], CHUNK
        last = b"".join(held)
        self.gone.set()
        if last:
            yield last
        self.sent.set()
        stamp = await asyncio.shield(self.stamp)  # a call that ends does not take the stamp along
        if stamp is None:
            raise Unreachable("the token was dropped before it was sent.", certain=True)
        yield stamp
        if self.log:
            yield self.log

    async def left(self) -> None:
        """Wait until all pieces have left, or none will; not long, and not for a large token."""
        if self.size > LEAVES_SOON:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAD_START):
                await self.sent.wait()

    def close(self) -> None:
        """The call has ended."""
        self.gone.set()
        self.sent.set()
        self.parts = ()


class FilePieces:
    """A file in pieces of 1 MiB, then a stamp if there is one; it may be renamed meanwhile."""

    def __init__(self, path: Path, stamp: bytes = b"", log: bytes = b"") -> None:
        self.stamp, self.log = stamp, log
        self.fd = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self.fd).st_size

    async def __call__(self) -> AsyncIterator[bytes]:
        left = self.size
        while left > 0:
            piece = os.pread(self.fd, CHUNK, self.size - left)
            left = left - len(piece) if piece else 0
            yield piece
        for words in (self.stamp, self.log):
            if words:
                yield words

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Unreachable(UnwalkError):
    """No answer.  ``certain``: nothing arrived there; otherwise it may have."""

    def __init__(self, text: str, *, certain: bool) -> None:
        super().__init__(text)
        self.certain = certain


class Handler(Protocol):
    """What a peer does with what arrives; ``sender`` is who the certificate says."""

    async def take(self, sender: int, envelope: bytes, chunks: AsyncIterator[bytes]) -> bytes: ...
    async def answer(self, sender: int, message: bytes) -> bytes: ...


class Transport(Protocol):
    """The way to other peers."""

    async def start(self, handler: Handler) -> None: ...
    async def stop(self) -> None: ...
    async def hand(self, peer: int, envelope: bytes, chunks: Chunks, timeout: float) -> bytes:
        """Move a token; the receiver's answer, or :class:`Unreachable`."""

    async def ready(self, peer: int, envelope: bytes) -> None:
        """A token will be handed to that peer soon, probably with this envelope.

        What can be done before is done now: the peer may look at the envelope already.
        """

    async def tell(self, peer: int, message: bytes, timeout: float) -> bytes: ...


@dataclass(eq=False)
class Memory:
    """Peers of one process, for tests: links can be cut, answers can be lost."""

    handlers: dict[int, Handler] = field(default_factory=dict)
    cut: set[frozenset[int]] = field(default_factory=set)
    lose_answers: set[tuple[int, int]] = field(default_factory=set)

    def at(self, peer: int) -> MemoryTransport:
        """The transport of one peer."""
        return MemoryTransport(self, peer)

    def reach(self, source: int, target: int) -> Handler:
        if frozenset((source, target)) in self.cut or target not in self.handlers:
            raise Unreachable(f"peer {target} cannot be reached.", certain=True)
        return self.handlers[target]


@dataclass(eq=False)
class MemoryTransport:
    """One peer's end of a :class:`Memory`."""

    memory: Memory
    me: int

    async def start(self, handler: Handler) -> None:
        self.memory.handlers[self.me] = handler

    async def stop(self) -> None:
        self.memory.handlers.pop(self.me, None)

    async def hand(self, peer: int, envelope: bytes, chunks: Chunks, timeout: float) -> bytes:
        async def stream() -> AsyncIterator[bytes]:
            async for chunk in chunks():
                if chunk:
                    yield chunk

        handler = self.memory.reach(self.me, peer)
        async with asyncio.timeout(timeout):
            answer = await handler.take(self.me, envelope, stream())
        return self._back(peer, answer)

    async def ready(self, peer: int, envelope: bytes) -> None:
        pass

    async def tell(self, peer: int, message: bytes, timeout: float) -> bytes:
        handler = self.memory.reach(self.me, peer)
        async with asyncio.timeout(timeout):
            answer = await handler.answer(self.me, message)
        return self._back(peer, answer)

    def _back(self, peer: int, answer: bytes) -> bytes:
        if (peer, self.me) in self.memory.lose_answers:
            raise Unreachable(f"the answer of peer {peer} was lost.", certain=False)
        return answer


class Way:
    """A call to hand a token over, opened with the envelope alone; ``said`` is the rest."""

    def __init__(
        self, peer: int, envelope: bytes, channel: grpc.aio.Channel, timeout: float
    ) -> None:
        self.peer, self.envelope = peer, envelope
        self.said: asyncio.Future[AsyncIterator[bytes]]
        self.said = asyncio.get_running_loop().create_future()
        self.call = channel.stream_unary(f"/{SERVICE}/Hand")(self._messages(), timeout=timeout)

    async def _messages(self) -> AsyncIterator[bytes]:
        yield len(self.envelope).to_bytes(4, "big") + self.envelope
        async for message in await self.said:
            yield message

    @property
    def open(self) -> bool:
        """Whether a token can still go this way."""
        return not self.said.done() and not self.call.done()

    def close(self) -> None:
        """End the call, unless a token goes this way."""
        if not self.said.done():
            self.call.cancel()
            self.said.cancel()


class Grpc:
    """Mutual TLS over gRPC; the only transport that leaves a process."""

    def __init__(self, bundle: Bundle, trust: Trust, listen: str | None = None) -> None:
        self.bundle = bundle
        self.trust = trust
        self.listen = listen or bundle.network.peers[bundle.index].address
        self.channels: dict[int, grpc.aio.Channel] = {}
        self.greeted: set[int] = set()
        self.locks: dict[int, asyncio.Lock] = {}
        self.server: grpc.aio.Server | None = None
        self.handler: Handler | None = None
        self.way: Way | None = None
        self.calls: Counter[int] = Counter()
        self.reads: dict[int, asyncio.Semaphore] = {}

    async def start(self, handler: Handler) -> None:
        self.handler = handler
        limits = self.bundle.network.limits
        bounds = [
            ("grpc.max_allowed_incoming_connections", most_connections()),
            ("grpc.server_handshake_timeout_ms", int(1000 * limits.connect)),
            ("grpc.max_connection_idle_ms", int(1000 * max(IDLE, 4.0 * limits.lease))),
            ("grpc.max_concurrent_streams", STREAMS),
        ]
        server = grpc.aio.server(options=[*OPTIONS, *bounds])
        methods = {
            "Hand": grpc.stream_unary_rpc_method_handler(self._hand),
            "Tell": grpc.stream_unary_rpc_method_handler(self._tell),
            "Hello": grpc.stream_unary_rpc_method_handler(self._hello),
        }
        generic = grpc.method_handlers_generic_handler(SERVICE, methods)
        server.add_generic_rpc_handlers((generic,))
        credentials = grpc.ssl_server_credentials(
            [(self.bundle.tls_pem(), self.bundle.certificate_pem)],
            root_certificates=self.bundle.authority_pem,
            require_client_auth=True,
        )
        try:
            server.add_secure_port(self.listen, credentials)
        except RuntimeError as error:
            await server.start()  # only a server that was started can be stopped
            await server.stop(None)
            text = f"{self.listen} cannot be listened on; is another program using it?"
            raise InvalidInput(text) from error
        self.server = server
        await server.start()

    async def stop(self) -> None:
        self._close_way()
        if self.server is not None:
            await self.server.stop(grace=0.5)
        for channel in self.channels.values():
            await channel.close()
        self.channels.clear()
        self.greeted.clear()

    def _sender(self, context: Any) -> tuple[int, str]:
        """Number and name of the caller; :class:`Refused` unless its certificate is good now."""
        shown = context.auth_context().get("x509_pem_cert")
        if not shown:
            raise Refused("the caller showed no certificate.")
        identity = self.trust.identity(shown[0].decode("ascii", "replace"))
        return self.trust.network.index(identity.peer), identity.peer

    async def _caller(self, context: Any) -> tuple[int, str]:
        """The same, looked at when a call's head has arrived; otherwise the call ends."""
        try:
            return self._sender(context)
        except UnwalkError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise AssertionError from error

    async def _within(
        self, sender: int, context: Any, seconds: float, work: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """Do ``work`` for one of the peer's calls: not too many at once, and not for ever."""
        try:
            with self._counted(sender):
                async with asyncio.timeout(seconds):
                    return await work()
        except Refused as error:
            why = grpc.StatusCode.FAILED_PRECONDITION, str(error)
        except TimeoutError:
            text = f"the call did not end within {seconds:g} seconds."
            why = grpc.StatusCode.DEADLINE_EXCEEDED, text
        await context.abort(*why)  # out here, or what was read would live as long as the error
        raise AssertionError

    @contextmanager
    def _counted(self, sender: int) -> Iterator[None]:
        if self.calls[sender] >= CALLS:
            raise Refused(f"peer {sender} has {CALLS} calls open here, which is the most.")
        self.calls[sender] += 1
        try:
            yield
        finally:
            self.calls[sender] -= 1

    async def _soon(self, sender: int, context: Any) -> Any:
        """The next message of a call; one that is not there soon is not waited for."""
        seconds = self.bundle.network.limits.connect
        turn = self.reads.setdefault(sender, asyncio.Semaphore(READS))
        try:
            async with turn, asyncio.timeout(seconds):
                return await context.read()
        except TimeoutError as error:
            raise Refused(f"the call said nothing for {seconds:g} seconds.") from error

    async def _first(self, sender: int, context: Any) -> bytes:
        """The first message of a call."""
        first = await self._soon(sender, context)
        if first is grpc.aio.EOF:
            raise Refused("the call ended before it said anything.")
        data: bytes = first
        return data

    async def _hand(self, _: AsyncIterator[bytes], context: Any) -> bytes:
        handler, limits = self.handler, self.bundle.network.limits
        assert handler is not None
        sender = (await self._caller(context))[0]

        async def take() -> bytes:
            first = memoryview(await self._first(sender, context))
            self._sender(context)  # the call may have been open for a while
            end = 4 + int.from_bytes(first[:4], "big")
            pieces = self._pieces(sender, first[end:], context)
            return await handler.take(sender, bytes(first[4:end]), pieces)

        return await self._within(sender, context, limits.lease + 2.0 * limits.connect, take)

    async def _pieces(self, sender: int, begun: memoryview, context: Any) -> AsyncIterator[bytes]:
        """What follows an envelope; ``begun`` came in one message with it."""
        if begun:
            yield bytes(begun)
        elif (piece := await self._soon(sender, context)) is not grpc.aio.EOF:
            self._sender(context)  # and for another while
            yield piece
        while (piece := await context.read()) is not grpc.aio.EOF:
            yield piece

    async def _tell(self, _: AsyncIterator[bytes], context: Any) -> bytes:
        handler, limits = self.handler, self.bundle.network.limits
        assert handler is not None
        sender = (await self._caller(context))[0]

        async def answer() -> bytes:
            return await handler.answer(sender, await self._first(sender, context))

        return await self._within(sender, context, 2.0 * limits.connect, answer)

    async def _hello(self, _: AsyncIterator[bytes], context: Any) -> bytes:
        """Prove who answers, with a certificate that the caller can look up as revoked."""
        limits = self.bundle.network.limits
        sender, name = await self._caller(context)

        async def greet() -> bytes:
            nonce = await self._first(sender, context)
            if len(nonce) != NONCE:
                raise Refused(f"a greeting has {NONCE} bytes.")
            words = _hello_words(nonce, name, self.bundle.name)
            return codec.dump(
                {
                    "certificate": self.bundle.certificate_pem.decode(),
                    "signature": self.bundle.sign(words).hex(),
                }
            )

        return await self._within(sender, context, 2.0 * limits.connect, greet)

    async def _channel(self, peer: int, timeout: float) -> grpc.aio.Channel:
        """A channel that is up and whose far end has proved who it is."""
        async with self.locks.setdefault(peer, asyncio.Lock()):
            return await self._proved(peer, timeout)

    async def _proved(self, peer: int, timeout: float) -> grpc.aio.Channel:
        channel = self.channels.get(peer)
        if channel is None or channel.get_state() != grpc.ChannelConnectivity.READY:
            self.greeted.discard(peer)
            await self._probe(peer, timeout)
            if channel is not None:
                await channel.close()
            channel = self.channels[peer] = self._connect(peer)
            try:
                async with asyncio.timeout(timeout):
                    await _ready(channel)
            except (TimeoutError, ConnectionError) as error:
                raise Unreachable(f"peer {peer} cannot be reached.", certain=True) from error
        if peer not in self.greeted:
            await self._greet(peer, channel, timeout)
            self.greeted.add(peer)
        return channel

    async def _probe(self, peer: int, timeout: float) -> None:
        """Whether anybody listens there: a plain connection tells at once, gRPC takes its time."""
        host, _, port = self.bundle.network.peers[peer].address.rpartition(":")
        try:
            async with asyncio.timeout(timeout):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except (TimeoutError, OSError) as error:
            raise Unreachable(f"peer {peer} cannot be reached.", certain=True) from error
        writer.close()

    def _connect(self, peer: int) -> grpc.aio.Channel:
        network = self.bundle.network
        member = network.peers[peer]
        credentials = grpc.ssl_channel_credentials(
            root_certificates=self.bundle.authority_pem,
            private_key=self.bundle.tls_pem(),
            certificate_chain=self.bundle.certificate_pem,
        )
        name = host_name(member.name, network.name)
        options = [*OPTIONS, ("grpc.ssl_target_name_override", name)]
        return grpc.aio.secure_channel(member.address, credentials, options=options)

    async def _greet(self, peer: int, channel: grpc.aio.Channel, timeout: float) -> None:
        nonce = secrets.token_bytes(NONCE)
        try:
            data = await channel.unary_unary(f"/{SERVICE}/Hello")(nonce, timeout=timeout)
            record = codec.fields_of(
                codec.parse(data, MESSAGE), "hello", "certificate", "signature"
            )
            name = self.bundle.network.peers[peer].name
            words = _hello_words(nonce, self.bundle.name, name)
            signer = self.trust.check(str(record["certificate"]), str(record["signature"]), words)
            if signer != name:
                raise Refused(f"{signer} answered in the place of {name}.")
        except (grpc.aio.AioRpcError, UnwalkError) as error:
            raise Unreachable(
                f"peer {peer} did not prove who it is: {_why(error)}", certain=True
            ) from error
        except asyncio.CancelledError:
            _raise_if_mine()  # else the channel was closed under the call
            raise Unreachable(f"peer {peer} did not prove who it is.", certain=True) from None

    async def hand(self, peer: int, envelope: bytes, chunks: Chunks, timeout: float) -> bytes:
        way = self.way
        if way is None or not way.open or (way.peer, way.envelope) != (peer, envelope):
            if way is not None and way.peer == peer:
                way.close()
            channel = await self._channel(peer, min(timeout, self.bundle.network.limits.connect))
            way = Way(peer, envelope, channel, timeout)
        way.said.set_result(chunks())
        return await self._outcome(peer, way.call)

    async def ready(self, peer: int, envelope: bytes) -> None:
        """Open the call already; it is closed again before the far end has waited too long."""
        limits = self.bundle.network.limits
        self._close_way()
        with suppress(Unreachable):
            channel = await self._channel(peer, limits.connect)
            way = self.way = Way(peer, envelope, channel, limits.lease + limits.connect)
            asyncio.get_running_loop().call_later(limits.connect / 2.0, way.close)

    def _close_way(self) -> None:
        if self.way is not None:
            self.way.close()
            self.way = None

    async def tell(self, peer: int, message: bytes, timeout: float) -> bytes:
        channel = await self._channel(peer, min(timeout, self.bundle.network.limits.connect))
        call = channel.unary_unary(f"/{SERVICE}/Tell")(message, timeout=timeout)
        return await self._outcome(peer, call)

    async def _outcome(self, peer: int, call: Any) -> bytes:
        try:
            answer: bytes = await call
            return answer
        except grpc.aio.AioRpcError as error:
            certain = error.code() in NOTHING_TAKEN
            raise Unreachable(f"peer {peer}: {_why(error)}", certain=certain) from error
        except asyncio.CancelledError:
            call.cancel()
            _raise_if_mine()  # else the call ended itself: its channel or the file went away
            raise Unreachable(f"the call to peer {peer} broke off.", certain=False) from None


def most_connections() -> int:
    """How many incoming connections leave enough files for everything else."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS if files < 0 else max(8, min(CONNECTIONS, files // 4))


def _raise_if_mine() -> None:
    """Go on being cancelled if it is this task that is to end, and not only a call it made."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _ready(channel: grpc.aio.Channel) -> None:
    """Wait until the channel is up; a failed attempt to connect ends the wait."""
    state = channel.get_state(try_to_connect=True)
    while state != grpc.ChannelConnectivity.READY:
        if state in (
            grpc.ChannelConnectivity.SHUTDOWN,
            grpc.ChannelConnectivity.TRANSIENT_FAILURE,
        ):
            raise ConnectionError
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


def _hello_words(nonce: bytes, caller: str, answerer: str) -> bytes:
    return HELLO + nonce + f":{caller}:{answerer}".encode()


def _why(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name.lower()} ({(error.details() or '')[:200]})."
    return str(error)
