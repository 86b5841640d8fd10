"""A peer as a process: started, asked to stop, asked how it is."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from unwalk.core.errors import InvalidInput, UnwalkError
from unwalk.peers import process_memory
from unwalk.peers.decisions.decided import chapters_in
from unwalk.peers.identity.credentials import now, read_certificate
from unwalk.peers.identity.network_file import Limits
from unwalk.peers.identity.trust import Bundle, read_network
from unwalk.peers.lifecycle.chapter_runner import Chapters
from unwalk.peers.lifecycle.leaving import GONE
from unwalk.peers.protocol.hoplog import Entry, chain_start, check_chain
from unwalk.peers.status import running, status
from unwalk.peers.storage.database import RECORDS_DATABASE, read_only
from unwalk.peers.storage.disk_space import DiskFull
from unwalk.peers.storage.error_file import keep_short
from unwalk.peers.storage.store import Store, no_fault
from unwalk.peers.telemetry import Journal
from unwalk.peers.transport.wire import Grpc, most_connections
from unwalk.peers.web.connections import HttpLimits
from unwalk.peers.web.http_server import TOKEN_FILE, HttpDesk, serve_metrics
from unwalk.peers.web.live_desk import Reception

LOG = "log.jsonl"
HTTP = "127.0.0.1:0"
"""A free port of the loopback interface; ``store/http.address`` says which."""
CHECK = 60.0
"""Seconds between looks at one's own certificate."""


def run_peer(
    folder: Path,
    *,
    listen: str | None = None,
    metrics: str | None = None,
    http: str | None = HTTP,
    ready: Callable[[], None] | None = None,
    fault: Callable[[str], None] = no_fault,
) -> None:
    """Run a peer from its bundle until SIGTERM or SIGINT.

    ``http`` is where its organisation's own systems reach it; None: nowhere.  ``ready`` is called
    once it listens to other peers.
    """
    process_memory.settle()
    try:
        asyncio.run(_serve(folder, listen, metrics, http, ready, fault))
    except (OSError, sqlite3.Error, DiskFull) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise UnwalkError(
            f"the store of {folder.name} cannot be written or read: {why or error}; what this peer "
            "has acknowledged is on its disk."
        ) from error


async def _serve(
    folder: Path,
    listen: str | None,
    metrics: str | None,
    http: str | None,
    ready: Callable[[], None] | None,
    fault: Callable[[str], None],
) -> None:
    bundle = Bundle.read(folder)
    if has_left(bundle.store):
        raise InvalidInput(
            f"{bundle.name} has left the network {bundle.network.name} for good: its records and "
            "models are erased and the others no longer count it."
        )
    trust = bundle.trust()
    store = Store(bundle.store, fault)
    journal = Journal(bundle.store / LOG, bundle.name, space=store.space)
    try:
        transport = Grpc(bundle, trust, listen)
        chapters = Chapters(bundle, trust, store, transport, journal)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, chapters.stop)
        loop.add_signal_handler(signal.SIGHUP, _read_again, chapters)
        shown = None if metrics is None else await serve_metrics(chapters.metrics, metrics)
        desk = None
        if http is not None:
            token = bundle.store / TOKEN_FILE
            limits = HttpLimits(connections=min(HttpLimits.connections, most_connections()))
            desk = HttpDesk(
                Reception(chapters), http, token, bundle=folder, journal=journal, limits=limits
            )
            await desk.start()
        gc.freeze()  # what was loaded so far stays: no need to look through it again and again
        beside = [asyncio.create_task(c) for c in (_guard(chapters), keep_short(bundle.store))]
        try:
            await chapters.run(ready)
        finally:
            for task in beside:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            if desk is not None:
                await desk.stop()
            if shown is not None:
                await shown.stop()
        if chapters.ended is not None:
            raise InvalidInput(chapters.ended)
    finally:
        journal.close()
        store.close()


async def _guard(service: Chapters) -> None:
    """A peer whose own certificate is about to end hands the token over and stops.

    Once it has ended nobody takes anything from this peer any more, so it stops a little earlier.
    """
    bundle = service.bundle
    ends = read_certificate(bundle.folder / "certificate.pem").not_valid_after_utc
    early = dt.timedelta(seconds=bundle.network.limits.stop + CHECK)
    while True:
        try:
            service.trust.identity(bundle.certificate_pem.decode())
            if now() + early > ends:
                raise InvalidInput(
                    f"the certificate of {bundle.name} ends at {ends:%Y-%m-%d %H:%M:%S} UTC, so "
                    "that this peer could soon not hand the token over; it needs a new one."
                )
        except UnwalkError as error:
            service.ended = str(error)
            service.journal.write("certificate", reason=str(error))
            service.stop()
            return
        await asyncio.sleep(CHECK)


def _read_again(service: Chapters) -> None:
    """SIGHUP: take over a newer network file, for its revocations."""
    trust = service.trust
    try:
        network = read_network(service.bundle.folder / "network.json", trust.authority)
    except UnwalkError as error:
        service.journal.write("network file refused", reason=str(error))
        return
    if network.run_id != service.network.run_id or network.version < trust.network.version:
        service.journal.write("network file refused", reason="another run, or an older version")
        return
    trust.network = network
    service.journal.write("network file read", version=network.version)


def has_left(store: Path) -> bool:
    """Whether a peer with this store has left its network for good."""
    path = store / RECORDS_DATABASE
    if not path.exists():
        return False
    with closing(read_only(path)) as db, suppress(sqlite3.OperationalError):
        query = "SELECT COUNT(*) FROM facts WHERE name = ?"
        return bool(db.execute(query, (GONE,)).fetchone()[0])
    return False


def committed_log(folder: Path) -> list[Entry]:
    """The whole committed hop log of the last chapter, as far as this peer has gathered it.

    Every entry is checked.  The logs of earlier chapters are erased with what they tell of.
    """
    bundle = Bundle.read(folder)
    state = status(folder)
    if not state.get("committed"):
        raise InvalidInput(f"the run of {folder} is not committed yet.")
    start = chain_start({"network": bundle.network.name, "run": state["run"]})
    place, chain = state["committed"]["chain"], []
    path = bundle.store / "state.sqlite"
    with closing(read_only(path)) as db:
        specs = chapters_in(db, len(bundle.network.peers))
        while place != start:
            query = "SELECT entry FROM entries WHERE chain = ? AND run = ?"
            row = db.execute(query, (place, state["run"])).fetchone()
            if row is None:
                raise InvalidInput(
                    f"{folder} does not have the whole log yet; a peer gathers it after the end."
                )
            chain.append(json.loads(row[0]))
            place = chain[-1]["body"]["previous"]
    base = specs[-1].before if specs else 0
    check_chain(chain[::-1], start, state["committed"]["chain"], bundle.trust().signer, base)
    return chain[::-1]


def _stop_limit(folder: Path) -> float:
    """How long a peer may take to hand the token over; also where its bundle is damaged."""
    try:
        return Bundle.read(folder).network.limits.stop
    except UnwalkError:
        return Limits().stop


def stop_peer(folder: Path) -> bool:
    """Ask a peer to hand the token over and end; whether one was running."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is no folder; a peer runs from its bundle.")
    bundle_store = folder / "store"
    pid = running(bundle_store)
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + 60.0 + _stop_limit(folder)
    while running(bundle_store) is not None:
        if time.monotonic() > end:
            raise InvalidInput(f"the peer in {folder} (process {pid}) does not end.")
        time.sleep(0.05)
    return True
