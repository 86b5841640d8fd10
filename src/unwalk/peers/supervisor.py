"""Keeps the peers of a network on one machine running, and shows them all on one page.

A peer that ends without having been asked to is started again after a pause.  Everything is said in
one line each.  A signal ends all peers in order; a second one ends them at once, which loses
nothing either: what a peer has acknowledged is on its disk.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from unwalk.core.errors import UnwalkError
from unwalk.peers.daemon import has_left
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.handover.service import end_all
from unwalk.peers.handover.visit import assembled_of
from unwalk.peers.local_network import LocalNetwork
from unwalk.peers.records.sources import DataSettings
from unwalk.peers.status import chapters_of
from unwalk.peers.web.http_server import ADDRESS_FILE, TOKEN_FILE, read_token
from unwalk.peers.web.live_desk import edges_of
from unwalk.peers.web.network_page import TOKEN_FILE as PAGE_TOKEN
from unwalk.peers.web.network_page import NetworkPage, NetworkView, PeerRow

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PAUSE, LONGEST, STEADY = 1.0, 60.0, 10.0
"""Seconds until a peer is started again: twice as long each time, until it has run for STEADY."""
LOOK, SAY, WEIGH = 1.0, 10.0, 10.0
"""Seconds between looks at the peers, lines about the walk, looks at memory (they cost more)."""


@dataclass
class Kept:
    """One peer as its supervisor knows it."""

    state: str = "starting"
    note: str = ""
    restarts: int = 0
    stored: dict[str, Any] = field(default_factory=dict)
    certificates: int = 0


class Supervisor:
    """Runs all peers of a :class:`LocalNetwork` until a signal comes; ``tell`` gets the lines."""

    def __init__(self, local: LocalNetwork, tell: Callable[[str], None], port: int = 0) -> None:
        self.local, self.tell = local, tell
        self.kept = [Kept() for _ in local.names]
        self.edges = edges_of(assembled_of(local.network).graph)
        self.page = NetworkPage(self._asked, local.folder / PAGE_TOKEN, port)
        self.stopping = asyncio.Event()
        self._failed: BaseException | None = None
        self._about: dict[int, str] = {}
        self._starting, self._looking = asyncio.Lock(), asyncio.Lock()
        self.memory: dict[int, int] = {}
        self._looked = self._said = -LONGEST
        self._weighed = monotonic()
        self.view = self._read()
        self._news: tuple[Any, ...] = ((None, False), None)

    async def run(self) -> None:
        """Start everybody, keep them running, and end in order when a signal comes."""
        with self.local.held() as say_where:
            await self._run(say_where)

    async def _run(self, say_where: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, self._stop)
        await self.page.start()
        say_where(self.page.url)
        self.tell(f"page: {self.page.url}")
        work = [self._watch(), *(self._keep(peer) for peer in range(len(self.kept)))]
        tasks = [asyncio.create_task(one) for one in work]
        for task in tasks:
            task.add_done_callback(self._done)
        try:
            await self.stopping.wait()
        finally:
            await end_all(tasks)
            await self._end()
            await self.page.stop()
        if self._failed is not None:
            raise self._failed

    def _done(self, task: asyncio.Task[None]) -> None:
        """A fault in here ends everything, in order; it is raised then."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed = error
            self.stopping.set()

    def _stop(self) -> None:
        if self.stopping.is_set():
            for peer in range(len(self.kept)):
                self.local.signal(peer, signal.SIGKILL)
        self.stopping.set()

    async def _end(self) -> None:
        most = self.local.network.limits.stop
        self.tell(f"all peers are asked to stop (at most {most:g} s; Ctrl-C again: at once)")
        late = await asyncio.to_thread(self.local.close)
        await self._look()
        words = f"; {', '.join(late)} had to be killed" if late else ""
        if (holder := self.view.token) is not None:
            words += f"; {holder} keeps the token"
        self.tell(f"stopped{words}. The same command goes on from here.")

    # One peer

    async def _keep(self, peer: int) -> None:
        """Start a peer, and again whenever it ended without having been asked to."""
        kept, name, ends = self.kept[peer], self.local.names[peer], 0
        while not has_left(self.local.bundles[peer].store):
            async with self._starting:
                await asyncio.to_thread(self.local.start, peer)
            kept.state, kept.note, begun = "starting", "", monotonic()
            await self._ended(peer)
            if self.local.exit_code(peer) == 0:
                break
            kept.note = await asyncio.to_thread(self.local.last_words, peer)
            ends = 0 if monotonic() - begun > STEADY else ends
            pause, ends = min(PAUSE * 2.0**ends, LONGEST), min(ends + 1, 16)
            kept.state, kept.restarts = "restarting", kept.restarts + 1
            self.tell(f"{name} ended ({kept.note}); it is started again in {pause:g} s")
            await asyncio.sleep(pause)
        if has_left(self.local.bundles[peer].store):
            kept.state = "left"
            self.tell(f"{name} has left the network for good")
        else:
            kept.state, kept.note = "stopped", "somebody asked it to stop"
            self.tell(f"{name} was stopped; go on with: unwalk peer start {self._bundle(peer)}")

    async def _ended(self, peer: int) -> None:
        """Wait until a peer's process has ended."""
        loop, sentinel = asyncio.get_running_loop(), self.local.processes[peer].sentinel
        ended = asyncio.Event()
        loop.add_reader(sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(sentinel)

    def _bundle(self, peer: int) -> Path:
        return self.local.folder / self.local.names[peer]

    # All of them

    async def _watch(self) -> None:
        """Say in lines how it goes on."""
        while True:
            await self._asked()
            self._say()
            await asyncio.sleep(LOOK)

    def _say(self) -> None:
        """One line, when something is new: at once if it is an end or a return, else in time."""
        view, counted = self.view, [k for k in self.kept if k.state not in ("left", "stopped")]
        up = sum(k.state == "up" for k in counted)
        done = sum(row.finished and row.chapter == view.chapter for row in view.peers)
        all_up = 0 < up == len(counted)
        over = all_up and done >= up
        important, news = (view.chapter if over else None, all_up), (view.chapter, view.hop, up)
        if not view.hops or (important, news) == self._news:
            return
        if important == self._news[0] and monotonic() - self._said < SAY:
            return
        self._news, self._said = (important, news), monotonic()
        walk = "training" if not view.chapter else f"chapter {view.chapter}"
        if view.forgets is not None:
            walk += f" (forgets records of {view.forgets})"
        words = "finished, all have the model" if over else f"hop {view.hop} of {view.hops}"
        self.tell(f"{up} of {len(counted)} peers up; {walk}: {words}")

    async def _asked(self) -> NetworkView:
        """How the network is, not older than a second."""
        async with self._looking:
            if monotonic() - self._looked >= LOOK:
                await self._look()
                self._looked = monotonic()
        return self.view

    async def _look(self) -> None:
        self.view = await asyncio.to_thread(self._read)

    def _read(self) -> NetworkView:
        """Read every peer's store; what cannot be read now stays as it was."""
        for peer, kept in enumerate(self.kept):
            with suppress(sqlite3.Error, OSError, UnwalkError):
                kept.stored = self.local.state(peer)
            store = self.local.bundles[peer].store
            with suppress(OSError):
                names = peer_certificate.names_in(store / peer_certificate.FOLDER)
                kept.certificates = len(names)
            if kept.state == "starting" and self._link(peer) and self.local.alive(peer):
                kept.state = "up"
        if monotonic() - self._weighed >= WEIGH:
            self.memory, self._weighed = self.local.memory(), monotonic()
        return self._seen()

    def _seen(self) -> NetworkView:
        rows = tuple(self._row(peer) for peer in range(len(self.kept)))
        chapter = max(row.chapter for row in rows)
        inside = [row for row in rows if row.chapter == chapter]
        hops = max(int(k.stored.get("hops", 0)) for k in self.kept if _chapter(k) == chapter)
        holders = [k for k in self.kept if k.stored.get("holding") and _chapter(k) == chapter]
        holder = max(holders, key=lambda k: k.stored["generation"], default=None)
        return NetworkView(
            network=self.local.network.name,
            folder=str(self.local.folder),
            chapter=chapter,
            forgets=self._forgets(chapter),
            hop=max(row.hop for row in inside),
            hops=hops,
            token=None if holder is None else self.local.names[self.kept.index(holder)],
            peers=rows,
            edges=self.edges,
            memory=sum(self.memory.values()) or None,
        )

    def _row(self, peer: int) -> PeerRow:
        kept, process = self.kept[peer], self.local.processes.get(peer)
        member, stored = self.local.network.peers[peer], kept.stored
        return PeerRow(
            name=member.name,
            address=member.address,
            state=kept.state,
            note=kept.note,
            chapter=_chapter(kept),
            hop=int(stored.get("hop", 0)),
            finished=bool(stored.get("model")),
            records=stored.get("records"),
            requests=stored.get("requests", {}),
            certificates=kept.certificates,
            restarts=kept.restarts,
            memory=None if process is None else self.memory.get(process.pid),
            page=self._link(peer) if kept.state == "up" else None,
        )

    def _link(self, peer: int) -> str | None:
        """The address of a peer's own page, with the token that lets one in."""
        store = self.local.bundles[peer].store
        try:
            address = (store / ADDRESS_FILE).read_text(encoding="ascii").strip()
            return f"{address}#token={read_token(store / TOKEN_FILE)}"
        except (OSError, UnwalkError):
            return None

    def _forgets(self, chapter: int) -> str | None:
        """The peer whose records a chapter is about."""
        if chapter and chapter not in self._about:
            knows = next(n for n, kept in enumerate(self.kept) if _chapter(kept) == chapter)
            with suppress(sqlite3.Error, OSError, UnwalkError):
                spec = chapters_of(self._bundle(knows))[chapter - 1]
                self._about[chapter] = self.local.names[spec.peer]
        return self._about.get(chapter)


def _chapter(kept: Kept) -> int:
    return int(kept.stored.get("chapter", 0))


def supervise(local: LocalNetwork, tell: Callable[[str], None], port: int = 0) -> None:
    """Run a network until a signal comes."""
    count, bundle = len(local.names), local.folder / local.names[0]
    tell(f"{count} peers in {local.folder}; stop them with Ctrl-C")
    if local.network.settings.get("task") == "records":
        tell(f"ask to forget: unwalk forget --peer {bundle} --ids ids.txt --grade exact --wait")
        tell(f"ids of its records: the first column of {DataSettings.read(bundle).path}")
    asyncio.run(Supervisor(local, tell, port).run())
