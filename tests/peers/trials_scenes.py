"""Where a trial takes place: peers in one process under a seeded loop, or as real processes.

Both offer the same to whoever has something go wrong: start, kill, stop and cut off peers, let
messages get lost, fill a disk, speak as a member that lies, and see how far the walk is.
"""

from __future__ import annotations

import abc
import asyncio
import errno
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

from tests.peers import deletions, harness
from tests.peers.harness import Town
from tests.peers.liars import Liar, lying
from tests.peers.scheduler import LIFE, Life, Loop, Post
from tests.peers.trials_twists import TWISTS, Twist
from tests.processes import CONTEXT
from unwalk.core.errors import UnwalkError
from unwalk.peers import daemon
from unwalk.peers.handover.service import Service
from unwalk.peers.identity.network_file import Limits, Network
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.lifecycle.chapter_runner import Chapters
from unwalk.peers.local_network import free_addresses
from unwalk.peers.provision import make_network
from unwalk.peers.storage.database import read_only
from unwalk.peers.storage.store import Fault, Store
from unwalk.peers.telemetry import Journal
from unwalk.peers.transport.wire import Grpc, Unreachable

LEASE, CONNECT = 0.6, 0.4
PAUSE = 0.01
"""Seconds that each visit of a real process takes longer, so that faults meet visits as well."""
LOOK = 0.02
FULL, WEATHER = "full", "weather.json"
"""Files beside a peer's store, and beside all bundles: its disk is full; what befalls messages."""


class Killed(BaseException):
    """A peer dies here."""


class DidNotEnd(AssertionError):
    """A trial waited for longer than it may take."""


def make(
    folder: Path,
    peers: int,
    hops: int,
    *,
    records: bool,
    seed: int,
    visit: float = 600.0,
    **more: Any,
) -> Network:
    """A network for one trial; with ``records`` each peer has a table of its own."""
    kind = deletions.SETTINGS if records else harness.SETTINGS
    return make_network(
        folder,
        name="test",
        addresses=free_addresses(peers),
        settings={**kind, "train.hops": hops, "seed": seed, **more},
        limits=Limits(lease=LEASE, connect=CONNECT, stop=1.5, messages=5000.0, visit=visit),
        noise="secret" if records else "simulation",
        begin_with=(),
    )


class FullStore(Store):
    """A store whose disk is full while a file says so; small changes may find room or not."""

    def _room_or_not(self) -> None:
        if (self.folder.parent / FULL).exists():
            raise OSError(errno.ENOSPC, "no room")

    def claim(self, size: int) -> Path:
        self._room_or_not()
        return super().claim(size)

    def __post_init__(self) -> None:
        super().__post_init__()
        reserve = self.space._reserve

        def perhaps() -> bool:
            return not (self.folder.parent / FULL).exists() and reserve()

        self.space._reserve = perhaps  # type: ignore[method-assign]


def twisted(twist: Twist | None) -> type[Chapters]:
    """A peer that lies in one way, or none."""
    if twist is None:
        return Chapters
    lie = twist

    class Twisted(Chapters):
        def _open(self, number: int) -> Service:
            service = super()._open(number)
            lie(self, service)
            return service

    return Twisted


class Scene(abc.ABC):
    """What both ways have in common.

    ``away`` are down, ``excused`` may stop with a sentence, of ``liars`` nothing is expected;
    ``twists`` are in which way they lie while they run.  ``asked`` is the peer that was asked to
    forget, and ``pending`` says that its certificate waits for a receipt.  ``longest`` is for how
    many seconds a fault lasts, at most.
    """

    longest: float

    def __init__(self, folder: Path, network: Network, rng: random.Random, limit: float) -> None:
        self.folder, self.network, self.rng, self.limit = folder, network, rng, limit
        self.hops = int(network.settings["train.hops"])
        self.liars: set[int] = set()
        self.twists: dict[int, str] = {}
        self.away: set[int] = set()
        self.excused: set[int] = set()
        self.asked: int | None = None
        self.pending = False

    @abc.abstractmethod
    async def start(self, peer: int, fault: str = "") -> None:
        """Start a peer; ``fault`` is ``POINT#N``, where it is killed the N-th time."""

    @abc.abstractmethod
    async def kill(self, peer: int) -> None:
        """SIGKILL."""

    @abc.abstractmethod
    def freeze(self, peer: int) -> None:
        """SIGSTOP."""

    @abc.abstractmethod
    def thaw(self, peer: int) -> None:
        """SIGCONT."""

    @abc.abstractmethod
    def weather(self, **how: Any) -> None:
        """What befalls messages from now on: ``cut``, ``lost_answers``, ``twice``, ``delay``."""

    @abc.abstractmethod
    def running(self, peer: int) -> bool:
        """Whether a peer is there."""

    @abc.abstractmethod
    def hop(self) -> int:
        """Visits of training that were done, as far as anybody knows."""

    @abc.abstractmethod
    def holder(self) -> int | None:
        """Who has the token, as far as one can see."""

    @abc.abstractmethod
    def ended(self, peer: int) -> bool:
        """Whether a peer has the end of its chapter: the model and the whole log."""

    @abc.abstractmethod
    def ask(self, peer: int, id: str, record: str) -> None:
        """Have a peer asked to forget a record."""

    @abc.abstractmethod
    def stage(self, peer: int, id: str) -> str:
        """How far a request is; empty if it is not known."""

    @abc.abstractmethod
    def events(self) -> list[dict[str, Any]]:
        """What the peers wrote into their journals."""

    @abc.abstractmethod
    def speaker(self, peer: int) -> AbstractAsyncContextManager[Liar]:
        """A way to say anything in the name of a member that lies."""

    @abc.abstractmethod
    async def until(self, done: Callable[[], bool], limit: float = 0.0) -> None:
        """Wait; :class:`DidNotEnd` after ``limit`` seconds, or the trial's own."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End all peers; afterwards only their folders are left."""


class InMemory(Scene):
    """Peers in one process, by the seed's order and the loop's time."""

    longest = 30.0

    def __init__(
        self, folder: Path, network: Network, rng: random.Random, limit: float, loop: Loop
    ) -> None:
        super().__init__(folder, network, rng, limit)
        self.post = Post(loop, random.Random(rng.random()))
        self.lives: dict[int, Life] = {}
        self.mains: dict[int, asyncio.Task[None]] = {}
        self.peers: dict[int, Chapters] = {}
        self.copies: dict[Life, Path] = {}
        self.journal: list[dict[str, Any]] = []
        self.failures: list[BaseException] = []
        loop.set_exception_handler(self._unforeseen)

    async def start(self, peer: int, fault: str = "") -> None:
        life = self.lives[peer] = Life(peer)
        self.peers.pop(peer, None)
        self.mains[peer] = asyncio.get_running_loop().create_task(
            self._main(peer, life, fault), context=life.context
        )
        self.away.discard(peer)

    async def _main(self, peer: int, life: Life, fault: str) -> None:
        bundle = Bundle.read(self.folder / f"peer-{peer}")

        def note(record: dict[str, Any]) -> None:
            if not life.dead:
                self.journal.append(record)

        journal = Journal(None, bundle.name, [note])
        store = FullStore(bundle.store, self._dying(life, fault))
        made = twisted(TWISTS.get(self.twists.get(peer, "")))
        try:
            chapters = made(bundle, bundle.trust(), store, self.post.at(peer, life), journal)
            self.peers[peer] = chapters
            await chapters.run()
        except Killed:
            pass
        except Exception as error:
            if not life.dead:
                self.failures.append(error)
        finally:
            store.close()

    def _unforeseen(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Something failed for which nobody waits."""
        error, handle = context.get("exception"), context.get("handle")
        life = None if handle is None else handle._context.get(LIFE)
        if not isinstance(error, Killed) and not (life is not None and life.dead):
            self.failures.append(error or AssertionError(context["message"]))

    def _dying(self, life: Life, fault: str) -> Fault:
        name, _, number = fault.partition("#")
        left = [int(number or 0)]

        def die(point: str) -> None:
            if point == name and not life.dead:
                left[0] -= 1
                if left[0] == 0:
                    self._die(life)
                    raise Killed

        return die

    def _die(self, life: Life) -> None:
        """What is on disk now is what is left; nobody hears of this life any more."""
        if life.dead:
            return
        place = self.folder / f"peer-{life.peer}"
        copy = self.copies[life] = self.folder / f"copy-{life.peer}"
        shutil.copytree(place, copy)
        table = self.folder / f"records-{life.peer}.csv"
        if table.exists():
            shutil.copyfile(table, copy / table.name)
        life.dead, life.frozen = True, False
        if self.post.handlers.get(life.peer, (None, None))[1] is life:
            del self.post.handlers[life.peer]

    async def kill(self, peer: int) -> None:
        life = self.lives[peer]
        self.away.add(peer)
        if self.mains[peer].done() and not life.dead:
            return
        self._die(life)
        await self._bury(life)
        copy, place = self.copies.pop(life), self.folder / f"peer-{peer}"
        table = copy / f"records-{peer}.csv"
        if table.exists():
            table.replace(self.folder / table.name)
        shutil.rmtree(place)
        copy.rename(place)

    async def _bury(self, life: Life) -> None:
        while life.tasks:
            for task in list(life.tasks):
                task.cancel()
            await asyncio.wait(set(life.tasks), timeout=0.2)
        self.post.loop.bury(life)

    def freeze(self, peer: int) -> None:
        self.lives[peer].frozen = True

    def thaw(self, peer: int) -> None:
        self.lives[peer].frozen = False

    def weather(self, **how: Any) -> None:
        usual = {"cut": set(), "lost_answers": 0.0, "twice": 0.0, "delay": Post.delay}
        for name, value in {**usual, **how}.items():
            setattr(self.post, name, value)

    def running(self, peer: int) -> bool:
        return peer in self.lives and not self.lives[peer].dead and not self.mains[peer].done()

    def _there(self) -> list[Chapters]:
        return [self.peers[p] for p in sorted(self.peers) if self.running(p)]

    def hop(self) -> int:
        states = [c.service.state for c in self._there() if not c.service.chapter.number]
        if any(c.service.chapter.number for c in self._there()):
            return self.hops
        return max((self.hops if s.committed else s.reached[1][0] for s in states), default=0)

    def holder(self) -> int | None:
        return next((c.me for c in self._there() if c.service.state.held is not None), None)

    def ended(self, peer: int) -> bool:
        if peer not in self.peers or not self.running(peer):
            return False
        chapters = self.peers[peer]
        return chapters.service.whole.is_set() and bool(chapters.final(len(chapters.specs)))

    def ask(self, peer: int, id: str, record: str) -> None:
        chapters = self.peers[peer]
        assert chapters.requests is not None
        assert chapters.records is not None
        chapters.records.refresh()
        chapters.requests.submit(deletions.form(id, record))
        chapters.wake.set()

    def stage(self, peer: int, id: str) -> str:
        chapters = self.peers.get(peer)
        if chapters is None or chapters.requests is None or not self.running(peer):
            return ""
        found = chapters.requests.get(id)
        return "" if found is None else found.stage

    def events(self) -> list[dict[str, Any]]:
        return self.journal

    @asynccontextmanager
    async def speaker(self, peer: int) -> AsyncIterator[Liar]:
        yield Liar(self.folder, peer, self.post.at(peer))

    async def until(self, done: Callable[[], bool], limit: float = 0.0) -> None:
        end = self.post.loop.time() + (limit or self.limit)
        while not done():
            if self.post.loop.time() > end:
                raise DidNotEnd(str([_short(c) for c in self._there()]))
            await asyncio.sleep(LOOK)

    async def close(self) -> None:
        for peer in list(self.lives):
            life = self.lives[peer]
            life.frozen = False
            if life.dead and life in self.copies:
                await self.kill(peer)
            self.mains[peer].cancel()
            await self._bury(life)


def _short(chapters: Chapters) -> dict[str, Any]:
    state = chapters.service.state
    return {
        "peer": chapters.me,
        "chapter": chapters.service.chapter.number,
        "stage": state.stage,
        "reached": state.reached,
        "fence": state.fence,
        "committed": state.committed is not None,
    }


class Street(Town):
    """Processes for a trial."""

    def begin(self, peer: int, fault: str, twist: str) -> None:
        folder = str(self.folder / f"peer-{peer}")
        given = (folder, fault, twist, self.pause)
        process = CONTEXT.Process(target=_child, args=given, daemon=True)
        process.start()
        self.processes[peer] = process


class InProcesses(Scene):
    """Peers as processes over mutual TLS."""

    longest = 3.5

    def __init__(self, folder: Path, network: Network, rng: random.Random, limit: float) -> None:
        super().__init__(folder, network, rng, limit)
        self.street = Street(folder, network, PAUSE)

    async def start(self, peer: int, fault: str = "") -> None:
        self.street.begin(peer, fault, self.twists.get(peer, ""))
        self.away.discard(peer)

    async def kill(self, peer: int) -> None:
        self.away.add(peer)
        self.street.signal(peer, signal.SIGKILL)

    def freeze(self, peer: int) -> None:
        self.street.signal(peer, signal.SIGSTOP)

    def thaw(self, peer: int) -> None:
        self.street.signal(peer, signal.SIGCONT)

    def weather(self, **how: Any) -> None:
        said = {**how, "cut": sorted(sorted(pair) for pair in how.get("cut", ()))}
        fresh = self.folder / f"{WEATHER}.new"
        fresh.write_text(json.dumps(said))
        fresh.replace(self.folder / WEATHER)

    def running(self, peer: int) -> bool:
        process = self.street.processes.get(peer)
        return process is not None and process.is_alive()

    def _state(self, peer: int) -> dict[str, Any]:
        with suppress(sqlite3.Error, UnwalkError, OSError):
            return self.street.state(peer)
        return {}

    def hop(self) -> int:
        found = [self._state(p) for p in self.street.processes]
        if any(s.get("chapter") for s in found):
            return self.hops
        return max((int(s.get("hop", 0)) for s in found), default=0)

    def holder(self) -> int | None:
        there = [p for p in self.street.processes if self.running(p)]
        return next((p for p in there if self._state(p).get("holding")), None)

    def ended(self, peer: int) -> bool:
        if not self.running(peer) or not self._state(peer).get("model"):
            return False
        try:
            return bool(daemon.committed_log(self.folder / f"peer-{peer}"))
        except (UnwalkError, sqlite3.Error):
            return False

    def ask(self, peer: int, id: str, record: str) -> None:
        from unwalk.cli.forgetting import _hand_in

        _hand_in(self.folder / f"peer-{peer}", deletions.form(id, record))

    def stage(self, peer: int, id: str) -> str:
        path = self.folder / f"peer-{peer}" / "store" / "records.sqlite"
        with suppress(sqlite3.Error), closing(read_only(path)) as db:
            found = db.execute("SELECT stage FROM requests WHERE id = ?", (id,)).fetchone()
            return "" if found is None else str(found[0])
        return ""

    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for path in sorted(self.folder.glob("peer-*/store/log.jsonl")):
            found += [json.loads(line) for line in path.read_text().splitlines()]
        return found

    def speaker(self, peer: int) -> AbstractAsyncContextManager[Liar]:
        return lying(self.folder, peer)

    async def until(self, done: Callable[[], bool], limit: float = 0.0) -> None:
        end = time.monotonic() + (limit or self.limit)
        while not done():
            if time.monotonic() > end:
                raise DidNotEnd(str([self._state(p) for p in self.street.processes])[:2000])
            await asyncio.sleep(LOOK)

    async def close(self) -> None:
        self.street.close()


def _child(folder: str, fault: str, twist: str, pause: float) -> None:
    """One real peer of a trial."""
    import torch

    torch.set_num_threads(1)
    place = Path(folder)
    with (place / "errors.txt").open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    harness._slower(pause)
    name, _, number = fault.partition("#")
    left = [int(number or 0)]

    def die(point: str) -> None:
        if point == name:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    _bad_weather(place)
    vars(daemon).update(Store=FullStore, Chapters=twisted(TWISTS.get(twist)))
    try:
        daemon.run_peer(place, http=None, fault=die)
    except UnwalkError as error:
        sys.exit(f"error: {error}")


def _bad_weather(place: Path) -> None:
    """Let a file beside all bundles say what befalls the messages of a real process."""
    path, me = place.parent / WEATHER, int(place.name.rpartition("-")[2])
    rng = random.Random(me)
    seen: list[Any] = [0.0, {}]

    def now() -> dict[str, Any]:
        with suppress(OSError, ValueError):
            if (when := path.stat().st_mtime_ns) != seen[0]:
                seen[:] = [when, json.loads(path.read_text())]
        return dict(seen[1])

    def cut(peer: int) -> bool:
        return sorted((me, peer)) in now().get("cut", [])

    hand, tell, sender = Grpc.hand, Grpc.tell, Grpc._sender

    async def through(peer: int, timeout: float, call: Callable[[], Any]) -> bytes:
        how = now()
        if cut(peer):
            await asyncio.sleep(timeout)
            raise Unreachable(f"peer {peer} did not answer.", certain=False)
        await asyncio.sleep(rng.random() * float(how.get("delay", 0.0)))
        answer: bytes = await call()
        if rng.random() < float(how.get("twice", 0.0)):
            with suppress(UnwalkError):
                await call()  # whose answer is for nobody
        if cut(peer) or rng.random() < float(how.get("lost_answers", 0.0)):
            await asyncio.sleep(timeout)
            raise Unreachable(f"peer {peer} did not answer.", certain=False)
        return answer

    async def worse_hand(
        self: Any, peer: int, envelope: bytes, chunks: Any, timeout: float
    ) -> bytes:
        return await through(peer, timeout, lambda: hand(self, peer, envelope, chunks, timeout))

    async def worse_tell(self: Any, peer: int, message: bytes, timeout: float) -> bytes:
        return await through(peer, timeout, lambda: tell(self, peer, message, timeout))

    def worse_sender(self: Any, context: Any) -> tuple[int, str]:
        found = sender(self, context)
        if cut(found[0]):
            from unwalk.core.errors import Refused

            raise Refused("the link is cut.")
        return found

    Grpc.hand, Grpc.tell, Grpc._sender = worse_hand, worse_tell, worse_sender  # type: ignore[method-assign]
