"""Many daemons on one machine, killed again and again while they forget: nothing is lost."""

from __future__ import annotations

import asyncio
import csv
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from unwalk.certificates.document import FILE
from unwalk.core.errors import InvalidInput
from unwalk.peers.daemon import committed_log
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.request_form import Conflict, RequestForm, UnknownRecords
from unwalk.peers.local_network import LocalNetwork, make_local
from unwalk.peers.records.trace_search import search, traces
from unwalk.peers.status import chapters_of
from unwalk.peers.storage.database import RECORDS_DATABASE, read_only
from unwalk.peers.supervisor import Supervisor
from unwalk.peers.web.client import Asker

RECORDS = 1797
EVERY = 10.0
"""Seconds from one SIGKILL to the next."""
EACH = 2
"""Records of one deletion."""
AT_ONCE = 5
"""Deletions after which it is waited until they are done."""
MOST_MEMORY = 4_000_000_000


class Scene:
    """A network under its supervisor, in this process; somebody kills, somebody asks to forget."""

    def __init__(self, folder: Path, peers: int, deletions: int) -> None:
        make_local(folder, peers, degree=4, task="digits", settings={"train.hops": 4 * peers})
        self.folder, self.begun, self.kills = folder, time.monotonic(), 0
        self.local = LocalNetwork(folder)
        self.supervisor = Supervisor(self.local, self.tell)
        self.random = random.Random(7)
        self.idle_memory = 0
        chosen = self.random.sample(range(peers), deletions)
        self.requests = {peer: self.some_ids(peer) for peer in chosen}

    def tell(self, words: str) -> None:
        print(f"{time.monotonic() - self.begun:7.1f} s  {words}", flush=True)

    def some_ids(self, peer: int) -> tuple[str, ...]:
        with (self.folder / f"organisation-{peer}.csv").open(encoding="utf-8") as file:
            ids = [row["id"] for row in csv.DictReader(file)]
        return tuple(self.random.sample(ids, EACH))

    async def run(self) -> None:
        watched = asyncio.create_task(self.supervisor.run())
        try:
            await self.until(lambda: self.up() == len(self.local.names))
            killing = asyncio.create_task(self.kill())
            await self.until(lambda: self.supervisor.view.hop > len(self.local.names))
            for number, (peer, ids) in enumerate(self.requests.items(), 1):
                await self.ask(peer, ids)
                await asyncio.sleep(EVERY / 2)
                if number % AT_ONCE == 0:  # else the first walk drops what all others would forget
                    await self.until_done(number)
            await self.until_done(len(self.requests))
            killing.cancel()
            await self.until(self.quiet)
            await asyncio.sleep(10.0)
            self.idle_memory = sum((await asyncio.to_thread(self.local.memory)).values())
            self.tell(f"memory of {self.up()} idle peers together: {self.idle_memory / 1e6:.0f} MB")
        finally:
            self.supervisor.stopping.set()
            await watched

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(3000.0):
            while not done():
                assert self.supervisor._failed is None
                await asyncio.sleep(0.5)

    async def until_done(self, count: int) -> None:
        await self.until(lambda: self.done() == count)
        self.tell(f"{count} deletions are done, after {self.kills} kills")

    def up(self) -> int:
        return sum(row.state == "up" for row in self.supervisor.view.peers)

    def done(self) -> int:
        return sum(row.requests.get("done", 0) for row in self.supervisor.view.peers)

    def quiet(self) -> bool:
        view = self.supervisor.view
        return self.up() == len(view.peers) and all(
            row.finished and row.chapter == view.chapter for row in view.peers
        )

    async def kill(self) -> None:
        """One of those that run, whatever it is doing."""
        while True:
            await asyncio.sleep(EVERY)
            running = [p for p in range(len(self.local.names)) if self.local.alive(p)]
            os.kill(self.local.processes[self.random.choice(running)].pid, signal.SIGKILL)
            self.kills += 1

    async def ask(self, peer: int, ids: tuple[str, ...]) -> None:
        """Ask, and again if the peer was killed before it answered: that is the same request."""
        form = RequestForm(f"deletion-{peer}", ids, "exact")
        while True:
            try:
                await asyncio.to_thread(self.submit, peer, form)
                return
            except (Conflict, UnknownRecords):
                raise
            except InvalidInput:
                await asyncio.sleep(0.5)

    def submit(self, peer: int, form: RequestForm) -> None:
        Asker.of_bundle(self.folder / f"peer-{peer}").submit(form)

    # What has to be so in the end

    def check(self) -> None:
        bundles = [self.folder / name for name in self.local.names]
        states = self.local.states()
        assert len({state["run"] for state in states}) == 1
        assert len({str(state["committed"]) for state in states}) == 1  # one lineage
        agendas = [[spec.to_json() for spec in chapters_of(bundle)] for bundle in bundles]
        assert all(agenda == agendas[0] for agenda in agendas)
        assert committed_log(bundles[0])  # every entry is chained and signed
        found = 0
        for peer in self.requests:
            assert states[peer]["requests"] == {"done": 1}
            places = list((bundles[peer] / "store" / peer_certificate.FOLDER).glob(f"*/{FILE}"))
            for place in places:
                said = peer_certificate.verified(place, self.folder / "ca.pem")
                assert said["problems"] == []
                assert said["badge"] == "exact", said["words"]
                found += 1
        assert found == len(self.requests)
        forgotten = [id for ids in self.requests.values() for id in ids]
        assert search(self.folder, traces(ids=forgotten)) == []
        assert self.kept() == RECORDS - len(forgotten)

    def kept(self) -> int:
        """How many records all peers still have."""
        count = 0
        for bundle in self.local.bundles:
            with closing(read_only(bundle.store / RECORDS_DATABASE)) as db, suppress(sqlite3.Error):
                count += db.execute("SELECT COUNT(*) FROM records").fetchone()[0]
        return count


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("peers", "deletions"), [(6, 4), (30, 20)])
def test_peers_that_are_killed_while_they_forget_lose_nothing(tmp_path, peers, deletions):
    scene = Scene(tmp_path / "net", peers, deletions)
    asyncio.run(scene.run())
    scene.check()
    assert scene.kills > deletions / 3
    assert 0 < scene.idle_memory < MOST_MEMORY
