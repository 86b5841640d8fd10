"""Floods: connections and calls that say nothing, or too much, and what a peer's memory does."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from unwalk.peers.identity.trust import Bundle
from unwalk.peers.transport.wire import CHUNK, SERVICE, Grpc, Unreachable


def resident(pid: int, what: str = "VmRSS") -> float:
    """What a process has in memory now (``VmRSS``) or had at most (``VmHWM``), in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no {what}")


def descriptors(pid: int) -> int:
    """How many files and connections a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Nothing more can be opened in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def hoard(sign: Path) -> None:
    """Keep every descriptor that this process may still have while there is a file ``sign``."""

    def work() -> None:
        kept: list[int] = []
        while True:
            time.sleep(0.005)
            if not sign.exists():
                while kept:
                    os.close(kept.pop())
                continue
            with suppress(OSError):
                while True:
                    kept.append(os.open("/dev/null", os.O_RDONLY))

    threading.Thread(target=work, daemon=True).start()


def forget_peak(pid: int) -> None:
    """Let ``VmHWM`` begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


class Strangers:
    """Connections that nobody says anything on; those that were closed are opened again."""

    def __init__(self, addresses: list[str], count: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = len(addresses) * count + 256
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
        self.places = [_place(address) for address in addresses for _ in range(count)]
        self.sockets = [_opened(place) for place in self.places]

    def again(self) -> int:
        """Open those anew that the far end closed; how many these were."""
        count = 0
        for number, one in enumerate(self.sockets):
            if _closed(one):
                one.close()
                self.sockets[number] = _opened(self.places[number])
                count += 1
        return count

    def close(self) -> None:
        for one in self.sockets:
            one.close()


def listens(address: str) -> bool:
    with socket.socket() as one:
        return one.connect_ex(_place(address)) == 0


def bad_handshakes(address: str, count: int) -> None:
    """Connect and say something that is no TLS, one after the other, each to its end."""
    for _ in range(count):
        with socket.create_connection(_place(address), 5.0) as one, suppress(ConnectionError):
            one.sendall(b"GET / HTTP/1.1\r\n\r\n")
            one.recv(1)


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _opened(place: tuple[str, int]) -> socket.socket:
    one = socket.socket()
    one.setblocking(False)
    with suppress(BlockingIOError):
        one.connect(place)
    return one


def _closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


Attack = Callable[[grpc.aio.Channel], Coroutine[Any, Any, None]]


@contextmanager
def attack(member: Bundle, targets: list[int], work: Attack) -> Iterator[None]:
    """A member with the keys of a bundle does ``work`` to each target, over and over.

    A target that is named twice is attacked over two connections.
    """
    begun, over = threading.Event(), threading.Event()

    async def one(target: int) -> None:
        end = Grpc(member, member.trust())
        while True:
            with suppress(grpc.aio.AioRpcError, Unreachable, asyncio.CancelledError, TimeoutError):
                channel = end._connect(target)
                try:
                    await asyncio.wait_for(channel.channel_ready(), 10.0)
                    begun.set()
                    await work(channel)
                finally:
                    await channel.close()
            if (task := asyncio.current_task()) is not None and task.cancelling():
                return
            await asyncio.sleep(0.05)

    async def main() -> None:
        tasks = [asyncio.create_task(one(t)) for t in targets]
        await asyncio.to_thread(over.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert begun.wait(20.0), "nobody could be called"
        yield
    finally:
        over.set()
        thread.join(20)


def silent(method: str, count: int) -> Attack:
    """``count`` calls at once, of which none ever says anything; opened again when they end."""

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def work(channel: grpc.aio.Channel) -> None:
        async def call() -> None:
            while True:
                with suppress(grpc.aio.AioRpcError):
                    await channel.stream_unary(f"/{SERVICE}/{method}")(nothing())
                await asyncio.sleep(0.02)

        await asyncio.gather(*(call() for _ in range(count)))

    return work


def silence(channel: grpc.aio.Channel) -> Coroutine[Any, Any, None]:
    """64 such calls of each kind."""
    return _all(silent(m, 64)(channel) for m in ("Tell", "Hand", "Hello"))


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*works)


def loud(method: str, count: int) -> Attack:
    """``count`` calls at once that send as much as they can, nothing of which is a message."""

    async def much() -> AsyncIterator[bytes]:
        while True:
            yield bytes(CHUNK)

    async def work(channel: grpc.aio.Channel) -> None:
        async def call() -> None:
            while True:
                with suppress(grpc.aio.AioRpcError):
                    await channel.stream_unary(f"/{SERVICE}/{method}")(much())
                await asyncio.sleep(0.02)

        await asyncio.gather(*(call() for _ in range(count)))

    return work
