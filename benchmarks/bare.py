"""The least that handing bytes over costs: grpc.aio with mutual TLS, hashed, flushed, answered."""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from unwalk.peers.identity.credentials import host_name
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.local_network import free_addresses
from unwalk.peers.transport.wire import CHUNK

OPTIONS = [
    ("grpc.max_receive_message_length", CHUNK + (64 << 10)),
    ("grpc.max_send_message_length", CHUNK + (64 << 10)),
]
METHOD = "/bare/Hand"
WARM = 3


def bare_minimum(sender: Path, receiver: Path, size: int, count: int) -> list[float]:
    """Milliseconds from offering ``size`` bytes to the answer, ``count`` times.

    ``sender`` and ``receiver`` are bundles: the certificates of two peers.
    """
    (address,) = free_addresses(1)
    context = multiprocessing.get_context("forkserver")
    ready = context.Event()
    process = context.Process(target=_receive, args=(receiver, address, ready), daemon=True)
    process.start()
    try:
        if not ready.wait(60.0):
            raise SystemExit("the bare receiver did not start")
        return asyncio.run(_send(sender, receiver, address, size, count))
    finally:
        process.terminate()
        process.join(10)


def _receive(folder: Path, address: str, ready: Any) -> None:
    asyncio.run(_serve(folder, address, ready))


async def _serve(folder: Path, address: str, ready: Any) -> None:
    bundle = Bundle.read(folder)
    place = bundle.store / "bare.token"  # written over, as a peer's spare files are

    async def hand(requests: AsyncIterator[bytes], context: Any) -> bytes:
        digest = hashlib.sha256()
        fd = os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            async for piece in requests:
                digest.update(piece)
                os.write(fd, piece)
            os.fsync(fd)
        finally:
            os.close(fd)
        return digest.digest()

    server = grpc.aio.server(options=OPTIONS)
    handlers = {"Hand": grpc.stream_unary_rpc_method_handler(hand)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    credentials = grpc.ssl_server_credentials(
        [(bundle.tls_pem(), bundle.certificate_pem)],
        root_certificates=bundle.authority_pem,
        require_client_auth=True,
    )
    server.add_secure_port(address, credentials)
    await server.start()
    ready.set()
    await server.wait_for_termination()


async def _send(folder: Path, other: Path, address: str, size: int, count: int) -> list[float]:
    bundle, there = Bundle.read(folder), Bundle.read(other)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=bundle.authority_pem,
        private_key=bundle.tls_pem(),
        certificate_chain=bundle.certificate_pem,
    )
    name = host_name(there.name, there.network.name)
    options = [*OPTIONS, ("grpc.ssl_target_name_override", name)]
    data = os.urandom(size)
    wanted, found = hashlib.sha256(data).digest(), []

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, size, CHUNK):
            yield data[start : start + CHUNK]

    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        hand = channel.stream_unary(METHOD)
        for _ in range(WARM + count):
            begun = time.monotonic()
            answer = await hand(pieces())
            found.append(1e3 * (time.monotonic() - begun))
            if answer != wanted:
                raise SystemExit("the bytes did not arrive as they left")
    return found[WARM:]
