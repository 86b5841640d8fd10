"""Strangers that open connections, members that call and say nothing: nobody ends, all recover."""

from __future__ import annotations

import asyncio
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.peers.floods import (
    Strangers,
    attack,
    bad_handshakes,
    descriptors,
    forget_peak,
    hoard,
    listens,
    loud,
    resident,
    silence,
    silent,
)
from tests.peers.harness import Town, check_end, network, town
from tests.peers.trials import furthest
from unwalk.core.errors import Refused
from unwalk.peers import provision, telemetry
from unwalk.peers.daemon import HTTP
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.storage import error_file
from unwalk.peers.transport.wire import CALLS, READS, Grpc, most_connections
from unwalk.peers.web.client import Asker
from unwalk.peers.web.connections import HttpLimits

PEERS = 3
SLACK = 24
"""Descriptors that a peer opens and closes in its walk."""
ALLOWED = 64.0
"""MiB that a flood may cost a peer, besides two tokens."""


def beset(here: Town, strangers: Strangers, seconds: float) -> None:
    """Connections come again and again; every peer stays."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        strangers.again()
        time.sleep(0.05)
        assert all(process.is_alive() for process in here.processes.values())


@pytest.mark.parametrize(
    ("files", "count", "seconds"),
    [(200, 240, 1.0), pytest.param(1024, 1100, 30.0, marks=pytest.mark.soak)],
)
def test_peers_outlive_more_connections_than_they_have_descriptors(tmp_path, files, count, seconds):
    folder = tmp_path / "net"
    made = network(folder, peers=PEERS, lease=0.8, connect=0.5, train__hops=30)
    with town(folder, made, pause=0.02, files=files) as here:
        for peer in range(PEERS):
            here.start(peer)
        here.until(lambda: furthest(here) >= 3)
        idle = {p: resident(here.processes[p].pid) for p in range(PEERS)}
        for peer in range(PEERS):
            forget_peak(here.processes[peer].pid)
        strangers = Strangers([peer.address for peer in made.peers], count)
        try:
            beset(here, strangers, seconds)
        finally:
            strangers.close()
        here.until(here.finished, timeout=30.0)
        for peer in range(PEERS):
            more = resident(here.processes[peer].pid, "VmHWM") - idle[peer]
            assert more < ALLOWED, f"peer {peer} took {more:.0f} MiB more"
    check_end(folder, made, range(PEERS))


@pytest.mark.parametrize(
    ("files", "count", "seconds"),
    [(200, 300, 1.0), pytest.param(1024, 1500, 30.0, marks=pytest.mark.soak)],
)
def test_a_page_with_tls_bounds_connections_before_the_handshake(tmp_path, files, count, seconds):
    folder = tmp_path / "net"
    hops = max(30, int(5 * seconds))
    made = network(folder, peers=PEERS, lease=0.8, connect=0.5, train__hops=hops)
    with town(folder, made, pause=0.02, files=files) as here:
        for peer in range(PEERS):
            here.start(peer, http="0.0.0.0:0" if peer == 0 else HTTP)
        here.until(lambda: furthest(here) >= 3)
        desk = Asker.of_bundle(folder / "peer-0")
        pid, most, before = here.processes[0].pid, [], furthest(here)
        idle = descriptors(pid)
        strangers = Strangers([desk.url.removeprefix("https://").rstrip("/")], count)
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                beset(here, strangers, 0.2)
                most.append(descriptors(pid) - idle)
                assert desk.status()["peer"] == "peer-0"
            assert before < furthest(here), "the walk goes on meanwhile"
        finally:
            strangers.close()
        allowed = min(HttpLimits.connections, files // 4)
        assert allowed // 2 < max(most) < allowed + SLACK
        here.until(here.finished, timeout=30.0)
    check_end(folder, made, range(PEERS))


@pytest.mark.soak
def test_peers_without_descriptors_wait_for_some(tmp_path):
    folder, sign = tmp_path / "net", tmp_path / "sign"
    made = network(folder, peers=PEERS, lease=0.8, connect=0.5, train__hops=30)
    with town(folder, made, pause=0.02, files=200) as here:
        for peer in range(PEERS):
            here.start(peer, lie=partial(hoard, sign))
        here.until(lambda: furthest(here) >= 3)
        sign.touch()
        here.until(lambda: any(descriptors(p.pid) == 200 for p in here.processes.values()))
        time.sleep(1.0)
        assert furthest(here) < 30
        assert all(process.is_alive() for process in here.processes.values())
        sign.unlink()
        here.until(here.finished, timeout=30.0)
    check_end(folder, made, range(PEERS))


def write_errors(folder: Path, largest: int) -> None:
    """Let this process write its errors into the store, as one in the background does."""
    error_file.LARGEST, error_file.LOOK = largest, 0.05  # type: ignore[misc]
    folder.mkdir(exist_ok=True)
    with error_file.open_errors(folder) as errors:
        os.dup2(errors.fileno(), 2)


def test_handshakes_that_fail_do_not_fill_the_disk(tmp_path):
    folder = tmp_path / "net"
    made = network(folder, peers=PEERS)
    errors = folder / "peer-0" / "store" / error_file.NAME
    with town(folder, made) as here:
        here.start(0, lie=partial(write_errors, errors.parent, 8192))
        here.until(lambda: listens(made.peers[0].address))
        bad_handshakes(made.peers[0].address, 20)
        here.until(lambda: errors.read_bytes().count(b"Handshake failed") >= 20)
        bad_handshakes(made.peers[0].address, 280)
        time.sleep(0.3)
        text = errors.read_bytes()
        assert text.endswith(b"\n")
        assert len(text) <= 8192
        assert b"Handshake failed" in text
        assert here.processes[0].is_alive()


@pytest.mark.parametrize("revoked", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_silent_calls_of_a_member_do_not_stop_the_others(tmp_path, revoked):
    """64 calls of every kind, to each of the others, for as long as the walk lasts."""
    silent_calls(tmp_path, silence, revoked=revoked)


@pytest.mark.parametrize(
    "method", ["Hand", *(pytest.param(m, marks=pytest.mark.soak) for m in ("Tell", "Hello"))]
)
def test_silent_calls_of_one_kind_do_not_stop_the_others(tmp_path, method):
    silent_calls(tmp_path, silent(method, 64), revoked=False)


def silent_calls(tmp_path, calls, *, revoked: bool) -> None:
    folder = tmp_path / "net"
    made = network(folder, peers=PEERS + 1, lease=2.0, connect=1.0, train__hops=20)
    liar = Bundle.read(folder / f"peer-{PEERS}")
    if revoked:
        provision.revoke(folder, liar.name, chapter=1)
    with town(folder, made, pause=0.02) as here:
        for peer in range(PEERS):
            here.start(peer)
        with attack(liar, list(range(PEERS)), calls):
            here.until(here.finished, timeout=30.0)
    check_end(folder, made, range(PEERS))


@pytest.mark.soak
@pytest.mark.parametrize("method", ["Tell", "Hand", "Hello"])
@pytest.mark.parametrize("kind", [silent, loud])
@pytest.mark.parametrize("connections", [1, 8])
def test_memory_under_calls_of_a_member_is_bounded(tmp_path, method, kind, connections):
    """Besides two tokens, which are small here."""
    folder = tmp_path / "net"
    made = network(folder, peers=PEERS, lease=2.0, connect=1.0, train__hops=4000)
    with town(folder, made, pause=0.02) as here:
        for peer in range(PEERS - 1):
            here.start(peer)
        here.until(lambda: furthest(here) >= 3)
        pid = here.processes[0].pid
        idle = resident(pid)
        forget_peak(pid)
        liar = Bundle.read(folder / f"peer-{PEERS - 1}")
        with attack(liar, connections * [0], kind(method, 64)):
            time.sleep(20.0)
            more = resident(pid, "VmHWM") - idle
            assert here.processes[0].is_alive()
        assert more < ALLOWED, f"{more:.0f} MiB more"


def test_few_calls_of_one_peer_are_read_at_once(tmp_path):
    """gRPC makes room for a message of 1 MiB for each; those of another peer do not wait."""
    network(tmp_path / "net", peers=PEERS, connect=60.0)
    bundle = Bundle.read(tmp_path / "net" / "peer-0")

    class Context:
        asked = 0

        async def read(self) -> bytes:
            Context.asked += 1
            await asyncio.Event().wait()
            return b""

    async def main() -> None:
        end = Grpc(bundle, bundle.trust())
        for sender in (1, 2):
            calls = [asyncio.create_task(end._first(sender, Context())) for _ in range(CALLS)]
            await asyncio.sleep(0.01)
            assert Context.asked == sender * READS
            calls[0].cancel()
            await asyncio.sleep(0.01)
            assert Context.asked == sender * READS + 1, "the next one"
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            Context.asked = sender * READS

    asyncio.run(main())


def test_a_flood_of_refusals_takes_few_lines_and_is_counted(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(telemetry, "monotonic", lambda: now[0])
    journal = telemetry.Journal(tmp_path / "log.jsonl", "peer-0")
    for number in range(3000):
        journal.refused(1, Refused("no."))
        journal.refused(2, Refused(f"number {number}."))
    journal.refused(3, Refused("no."))
    assert len(lines_of(journal)) == 2 + telemetry.REASONS
    now[0] += telemetry.INTERVAL
    journal.write("visited")
    journal.refused(1, Refused("no."))
    journal.close()
    said = lines_of(journal)[2 + telemetry.REASONS :]
    assert [line["event"] for line in said] == 2 * ["refused more"] + ["visited", "refused"]
    more = {line["sender"]: line["times"] for line in said[:2]}
    assert more == {1: 2999, 2: 3000 - telemetry.REASONS}


def lines_of(journal: telemetry.Journal) -> list[dict[str, Any]]:
    assert journal.path is not None
    return [json.loads(line) for line in journal.path.read_text().splitlines()]


def test_fewer_connections_where_fewer_files_may_be_open(monkeypatch):
    for files, most in ((1024, 256), (100_000, 256), (-1, 256), (200, 50), (16, 8)):
        monkeypatch.setattr("resource.getrlimit", lambda _, files=files: (files, files))
        assert most_connections() == most
