"""Peers for tests: in one process over memory, or as processes over gRPC from a forkserver."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.peers.scheduler import in_virtual_time
from tests.processes import CONTEXT
from unwalk.peers.daemon import HTTP, run_peer
from unwalk.peers.demo import equal_bytes, same_walk
from unwalk.peers.handover.service import Service
from unwalk.peers.handover.visit import Work, plan_of
from unwalk.peers.identity.network_file import Limits, Network
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.local_network import free_addresses
from unwalk.peers.protocol.hoplog import chain_start, check_chain
from unwalk.peers.provision import make_network
from unwalk.peers.status import status
from unwalk.peers.storage.store import Store
from unwalk.peers.storage.token_files import open_token
from unwalk.peers.telemetry import Journal
from unwalk.peers.transport.wire import Memory

JOURNAL_TIMES = frozenset(
    ["at", "began", "ended", "written", "offered", "arrived", "checked", "stamped", "flushed"]
)
"""Fields of a peer's journal that hold times; all others hold words and whole numbers."""

SETTINGS: dict[str, Any] = {
    "task": "blobs",
    "method": "finetune",
    "compare": "none",
    "forget.kind": "nothing",
    "data.records": 40,
    "train.batch": 8,
    "train.hops": 12,
    "performance.threads": 1,
}
ROUTE = 230987
"""A seed for scenes: training begins 0 1 2 1 2 0 1 0 among three peers, 0 2 3 2 3 1 0 1 among four,
and 1 2 4 2 4 1 0 among five."""


def network(
    folder: Path,
    peers: int = 5,
    lease: float = 0.6,
    connect: float = 2.0,
    visit: float = 600.0,
    begin_with: Sequence[str] | None = (),
    **settings: Any,
) -> Network:
    changed = {k.replace("__", "."): v for k, v in settings.items()}
    return make_network(
        folder,
        name="test",
        addresses=free_addresses(peers),
        settings={**SETTINGS, **changed},
        limits=Limits(lease=lease, connect=connect, stop=1.5, messages=5000.0, visit=visit),
        noise="simulation",
        begin_with=begin_with,
    )


class Village:
    """Peers of one process."""

    def __init__(self, folder: Path, made: Network) -> None:
        self.folder, self.network = folder, made
        self.memory = Memory()
        self.services: dict[int, Service] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.events: list[dict[str, Any]] = []

    def start(self, peer: int) -> Service:
        bundle = Bundle.read(self.folder / f"peer-{peer}")
        work = Work(plan_of(self.network, bundle.noise_secret), peer)
        journal = Journal(None, bundle.name, [self.events.append])
        service = Service(
            bundle, bundle.trust(), work, Store(bundle.store), self.memory.at(peer), journal
        )
        self.services[peer] = service
        self.tasks[peer] = asyncio.create_task(service.run())
        return service

    async def crash(self, peer: int) -> None:
        """Like SIGKILL, as far as one process can: nothing more is written or answered."""
        self.memory.handlers.pop(peer, None)
        self.tasks[peer].cancel()
        await asyncio.gather(self.tasks[peer], return_exceptions=True)
        self.services[peer].store.close()

    async def until(self, done: Callable[[], bool], timeout: float = 60.0) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + timeout
        while not done():
            for task in self.tasks.values():
                if task.done() and not task.cancelled() and task.exception():
                    raise AssertionError("a peer failed") from task.exception()
            assert clock() < end, [s.state for s in self.services.values()]
            await asyncio.sleep(0.01)

    def finished(self, *peers: int) -> bool:
        return all(
            (value := self.services[p].state.committed) is not None
            and self.services[p].store.file(value.token).exists()
            for p in (peers or self.services)
        )

    async def close(self) -> None:
        for peer in self.tasks:
            if not self.tasks[peer].done():
                await self.crash(peer)


def carry_out(script: Coroutine[Any, Any, None], real: bool = False) -> None:
    """In virtual time, so that nobody waits; ``real``: with threads, by the clock."""
    if real:
        asyncio.run(script)
        return
    with in_virtual_time(0) as loop:
        loop.run_until_complete(script)


def lived(
    tmp_path: Path,
    script: Callable[[Village], Awaitable[None]],
    peers: int,
    real: bool = False,
    **settings: Any,
) -> Village:
    """A village in which ``script(village)`` was carried out; closed."""
    folder = tmp_path / "net"
    here = Village(folder, network(folder, peers=peers, **settings))

    async def main() -> None:
        try:
            await script(here)
        finally:
            await here.close()

    carry_out(main(), real)
    return here


def check_end(folder: Path, made: Network, peers: Iterable[int]) -> list[int]:
    """All ended alike: one value, an intact signed chain, and the simulator's own bits."""
    ends, tokens, entries = set(), [], {}
    for peer in peers:
        bundle = Bundle.read(folder / f"peer-{peer}")
        store = Store(bundle.store)
        try:
            found = store.load(made.run_id)
            assert found is not None
            value = found[0].committed
            assert value is not None
            ends.add(value)
            entries.update({e["chain"]: e for e in store.entries(made.run_id)})
            tokens.append(open_token(store.file(value.token), len(made.peers)).token())
        finally:
            store.close()
    assert len(ends) == 1
    (end,) = ends
    start = chain_start({"network": made.name, "run": made.run_id})
    chain, place = [], end.chain
    while place != start:
        chain.append(entries[place])
        place = chain[-1]["body"]["previous"]
    hops = check_chain(chain[::-1], start, end.chain, bundle.trust().signer)
    served = [h.receiver for h in hops]
    plan = plan_of(made)
    assert len(served) == plan.hops
    same = same_walk(plan, served)
    assert all(equal_bytes(token, same) for token in tokens)
    return served


def checking_every(seconds: float) -> None:
    """Let a peer look after its certificate more often than it would."""
    from unwalk.peers import daemon

    daemon.CHECK = seconds  # type: ignore[misc]


def _child(
    folder: str,
    fault: str | None,
    pause: float,
    files: int,
    lie: Callable[[], None] | None,
    http: str,
) -> None:
    import torch

    torch.set_num_threads(1)
    if files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if pause:
        _slower(pause)
    count = [0]

    def die(point: str) -> None:
        name, _, number = (fault or "").partition("#")
        if point == name:
            count[0] += 1
            if count[0] == int(number):
                os.kill(os.getpid(), signal.SIGKILL)

    _cuttable(Path(folder) / "cut")
    if lie is not None:
        lie()
    run_peer(Path(folder), http=http, fault=die)


def _slower(pause: float) -> None:
    """Let every visit take longer."""
    from unwalk.peers.handover.visit import Visited, Work

    visit = Work.visit

    def slow(self: Work, *args: Any, **options: Any) -> Visited:
        time.sleep(pause)
        return visit(self, *args, **options)

    Work.visit = slow  # type: ignore[method-assign]


def _cuttable(path: Path) -> None:
    """Let a file name a peer with which nothing is exchanged: calls hang, as packets get lost."""
    from unwalk.peers.transport.wire import Grpc, Unreachable

    def cut(peer: int) -> bool:
        return path.exists() and path.read_text() == str(peer)

    hand, tell, sender = Grpc.hand, Grpc.tell, Grpc._sender

    async def lost(peer: int, timeout: float) -> bytes:
        await asyncio.sleep(timeout)
        raise Unreachable(f"peer {peer} did not answer.", certain=False)

    async def cut_hand(self: Any, peer: int, envelope: bytes, chunks: Any, timeout: float) -> bytes:
        if cut(peer):
            return await lost(peer, timeout)
        answer = await hand(self, peer, envelope, chunks, timeout)
        return await lost(peer, timeout) if cut(peer) else answer

    async def cut_tell(self: Any, peer: int, message: bytes, timeout: float) -> bytes:
        return await (lost(peer, timeout) if cut(peer) else tell(self, peer, message, timeout))

    def cut_sender(self: Any, context: Any) -> tuple[int, str]:
        found = sender(self, context)
        if cut(found[0]):
            from unwalk.core.errors import Refused

            raise Refused("the link is cut.")
        return found

    Grpc.hand, Grpc.tell, Grpc._sender = cut_hand, cut_tell, cut_sender  # type: ignore[method-assign]


class Town:
    """Peers as processes."""

    def __init__(self, folder: Path, made: Network, pause: float = 0.0, files: int = 0) -> None:
        self.folder, self.network, self.pause, self.files = folder, made, pause, files
        self.processes: dict[int, Any] = {}

    def start(
        self,
        peer: int,
        fault: str | None = None,
        lie: Callable[[], None] | None = None,
        http: str = HTTP,
    ) -> None:
        """``lie`` changes the code of the peer's process before it begins."""
        folder = str(self.folder / f"peer-{peer}")
        given = (folder, fault, self.pause, self.files, lie, http)
        process = CONTEXT.Process(target=_child, args=given, daemon=True)
        process.start()
        self.processes[peer] = process

    def signal(self, peer: int, number: int) -> None:
        process = self.processes[peer]
        if process.is_alive():
            os.kill(process.pid, number)
            if number == signal.SIGKILL:
                process.join(10)

    def cut(self, one: int, other: int) -> None:
        """Cut the link: neither answers the other any more."""
        for here, there in ((one, other), (other, one)):
            (self.folder / f"peer-{here}" / "cut").write_text(str(there))

    def heal(self, one: int, other: int) -> None:
        for peer in (one, other):
            (self.folder / f"peer-{peer}" / "cut").unlink(missing_ok=True)

    def state(self, peer: int) -> dict[str, Any]:
        return status(self.folder / f"peer-{peer}")

    def until(self, done: Callable[[], bool], timeout: float = 60.0) -> None:
        end = time.monotonic() + timeout
        while not done():
            assert time.monotonic() < end, [self.state(p) for p in self.processes]
            time.sleep(0.02)

    def finished(self) -> bool:
        return all(self.state(p).get("model") for p in self.processes)

    def close(self) -> None:
        for peer in self.processes:
            self.signal(peer, signal.SIGCONT)
            self.signal(peer, signal.SIGTERM)
        for peer, process in self.processes.items():
            process.join(8)
            if process.is_alive():
                self.signal(peer, signal.SIGKILL)


@contextmanager
def town(folder: Path, made: Network, pause: float = 0.0, files: int = 0) -> Iterator[Town]:
    """``files``: how many descriptors each process may have open; 0: as many as this one."""
    here = Town(folder, made, pause, files)
    try:
        yield here
    finally:
        here.close()
