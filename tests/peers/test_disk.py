"""A disk that is full or damaged, a visit that fails: it is said and nothing is lost."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from tests.peers.floods import no_descriptors
from tests.peers.harness import Village, check_end, lived, network
from unwalk.core.errors import Corrupt, UnwalkError
from unwalk.peers.daemon import run_peer
from unwalk.peers.handover.visit import Unusable
from unwalk.peers.storage.disk_space import (
    RESERVE,
    DiskFull,
    NoDescriptors,
    Space,
    is_full,
    means_no_files,
)
from unwalk.peers.storage.store import no_fault
from unwalk.peers.telemetry import Journal

PEERS = 3


def full(point: str) -> None:
    if point == "token written":
        raise OSError(errno.ENOSPC, "No space left on device")


async def ended(here: Village, peer: int) -> BaseException:
    """What a peer ended with."""
    async with asyncio.timeout(10):
        (error,) = await asyncio.gather(here.tasks.pop(peer), return_exceptions=True)
    assert isinstance(error, BaseException)
    return error


def test_an_error_that_is_its_own_cause_is_looked_through_once():
    error = OSError(errno.EMFILE, "Too many open files")
    other = ValueError("first")
    other.__cause__ = error
    assert means_no_files(other)
    for last in (other, error.with_traceback(None)):
        odd = ValueError("second")
        last.__cause__ = odd
        odd.__cause__ = last
        assert means_no_files(odd) is (last is error)


def test_a_token_for_which_there_is_no_space_is_refused_with_the_reason(tmp_path):
    async def script(here):
        for peer in range(PEERS):
            here.start(peer)
        other = (here.services[0].state.lineage[0][0][1] + 1) % PEERS
        here.services[other].store.fault = full
        await here.until(
            lambda: all(here.services[p].state.committed for p in range(PEERS) if p != other)
        )
        here.services[other].store.fault = lambda point: None
        await here.until(here.finished)
        assert here.services[other].metrics.values["refusals_total"] > 0

    here = lived(tmp_path, script, PEERS, lease=30.0)
    served = check_end(here.folder, here.network, range(PEERS))
    over = [e for e in here.events if e["event"] == "passed over"]
    assert len(set(served)) == PEERS - 1
    assert all("the disk of this peer is full" in e["why"] for e in over)
    assert over


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space"), sqlite3.OperationalError("x")]
)
def test_a_peer_that_cannot_write_stops_with_a_sentence(tmp_path, error):
    network(tmp_path / "net", peers=PEERS)

    def fault(point: str) -> None:
        raise error

    with pytest.raises(UnwalkError, match=r"the store of peer-0 cannot be written or read: "):
        run_peer(tmp_path / "net" / "peer-0", http=None, fault=fault)


def test_a_token_file_that_was_damaged_is_noticed_before_it_is_visited(tmp_path):
    visiting, ending = [], threading.Event()

    def held_up(service):
        """Visits begin, and go on when the peer ends."""
        visit, shutdown = service.work.visit, service.visits.shutdown

        def wait(*given, **named):
            visiting.append(service.me)
            ending.wait(60)
            return visit(*given, **named)

        def end(**named):
            ending.set()
            shutdown(**named)

        service.work.visit, service.visits.shutdown = wait, end

    async def script(here):
        for peer in range(PEERS):
            here.start(peer)
        await here.until(lambda: any(s.state.reached[1][0] >= 3 for s in here.services.values()))
        for service in here.services.values():
            held_up(service)
        await here.until(lambda: visiting)  # perhaps ahead: its stamp is still on the way
        holder = visiting[0]
        await here.until(lambda: here.services[holder].state.stage == "arrived")
        await here.crash(holder)
        path = here.services[holder].store.file(here.services[holder].state.held.token)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        here.start(holder)
        error = await ended(here, holder)
        assert isinstance(error, Corrupt)
        assert "is damaged" in str(error)
        here.services.pop(holder).store.close()
        for peer in list(here.services):  # which wait less long for it than before
            await here.crash(peer)
            service = here.start(peer)
            service.limits = replace(service.limits, lease=0.5)
        await here.until(here.finished)

    lived(tmp_path, script, PEERS, real=True, lease=60.0)


def test_a_first_visit_that_fails_ends_its_peer_and_not_the_walk(tmp_path):
    """What a walk begins with comes from nobody else: something is wrong with that peer."""

    async def script(here):
        services = [here.start(peer) for peer in range(PEERS)]
        bad = services[0].state.lineage[0][0][1]

        def fail(*given, **named):
            raise Unusable("the token after hop 0 cannot be visited.")

        services[bad].work.visit = fail
        error = await ended(here, bad)
        assert isinstance(error, Unusable)
        assert services[bad].state.stage == "arrived", "it keeps the token it has"
        services[bad].store.close()
        del here.services[bad]
        await here.until(here.finished)

    here = lived(tmp_path, script, PEERS, lease=0.5)
    assert any(e["event"] == "recovered" for e in here.events)


@pytest.mark.soak
def test_a_peer_with_a_full_disk_is_passed_over_and_comes_back_by_itself(tmp_path):
    """Real processes and a real, small file system, which takes a name space of its own."""
    alone = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"]).returncode:
        pytest.skip("no file system can be mounted here")
    command = [*alone, sys.executable, "-m", "tests.peers.full_disk", str(tmp_path / "net"), "30"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["passed over"] > 0
    assert found["recovered"] <= 3, "its neighbours do not go on recovering"


def test_the_log_never_fails_and_says_how_many_lines_it_left_out(tmp_path, monkeypatch):
    space = Space(tmp_path)
    space.start()
    journal = Journal(tmp_path / "log.jsonl", "peer-0", space=space)
    journal.write("one")
    room = [0]
    write = os.write

    def short(fd, data):
        """Room for some bytes only; the reserve brings a hundred more."""
        left = room[0] + (100 if is_full(tmp_path) else 0)
        room[0] -= min(left, len(data))
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:left])

    monkeypatch.setattr("os.write", short)
    for number in range(5):
        journal.write("refused", reason=f"number {number}")
    assert space.full
    monkeypatch.undo()
    journal.write("last")
    journal.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [lines[0]["event"], lines[-1]["event"]] == ["one", "last"]
    assert lines[-1]["unsaid"] == 5 - (len(lines) - 2) > 0
    assert space.look()
    assert not is_full(tmp_path)
    assert (tmp_path / "reserve").stat().st_size == RESERVE


def test_a_holder_without_room_waits_and_then_does_its_visit(tmp_path):
    async def script(here):
        for peer in range(PEERS):
            here.start(peer)
        holder = here.services[0].state.lineage[0][0][1]
        service = here.services[holder]
        service.store.fault = full
        await here.until(lambda: any(e["event"] == "disk full" for e in here.events))
        assert service.state.stage == "arrived"
        assert service.state.held.hop == 0
        service.store.fault = no_fault
        await here.until(here.finished)
        await here.until(lambda: any(e["event"] == "disk has room again" for e in here.events))

    here = lived(tmp_path, script, PEERS, lease=30.0)
    assert not any(e["event"] == "recovered" for e in here.events)
    check_end(here.folder, here.network, range(PEERS))


def test_a_holder_without_descriptors_waits_and_then_does_its_visit(tmp_path):
    async def script(here):
        for peer in range(PEERS):
            here.start(peer)
        await here.until(lambda: any(s.state.reached[1][0] >= 3 for s in here.services.values()))
        with no_descriptors():
            await here.until(lambda: any(e["event"] == "no descriptors" for e in here.events))
            assert any(s.state.held is not None for s in here.services.values())
        await here.until(here.finished)
        await here.until(lambda: any(e["event"] == "descriptors again" for e in here.events))

    here = lived(tmp_path, script, PEERS, lease=30.0)
    assert not any(e["event"] == "recovered" for e in here.events)
    check_end(here.folder, here.network, range(PEERS))


def test_a_holder_without_descriptors_does_not_say_that_it_has_the_token(tmp_path):
    """So that the others go on after the lease, as where its disk is full."""

    async def script(here):
        for peer in range(PEERS):
            here.start(peer)
        await here.until(lambda: any(s.state.reached[1][0] >= 3 for s in here.services.values()))
        bad, given = here.services[1], []

        def none(point):
            if bad.state.stage == "arrived":
                given.append(point)
                raise OSError(errno.EMFILE, "Too many open files")

        bad.store.fault = none
        bad.store.space._opens = lambda: False
        await here.until(lambda: here.finished(*(p for p in range(PEERS) if p != 1)), 20.0)
        assert given
        bad.store.fault, bad.store.space._opens = no_fault, lambda: True
        await here.until(here.finished)

    here = lived(tmp_path, script, PEERS, lease=0.3)
    assert [e["lost"] for e in here.events if e["event"] == "recovered"][:1] == [1]
    check_end(here.folder, here.network, range(PEERS))


def test_a_database_that_finds_no_descriptor_waits_and_one_that_is_gone_does_not(tmp_path):
    space, path = Space(tmp_path), tmp_path / "some.sqlite"
    space.start()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE some AS SELECT zeroblob(1 << 20)")
    with no_descriptors():
        with pytest.raises(sqlite3.OperationalError) as wanting:
            db.execute("VACUUM")
        assert space.passes(wanting.value)
        assert not space.look()
        with pytest.raises(NoDescriptors):
            space.check()
    assert space.look()
    space.check()
    db.execute("VACUUM")
    db.close()
    with pytest.raises(sqlite3.OperationalError) as gone:
        sqlite3.connect(tmp_path / "nowhere" / "some.sqlite").execute("VACUUM")
    assert gone.value.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CANTOPEN
    assert not space.passes(gone.value)
    assert not space.short


def test_the_others_go_on_without_a_holder_that_has_no_room(tmp_path):
    """After the lease, not only after limits.visit: it answers, but does not say that it has it."""

    async def script(here):
        for peer in range(PEERS):
            here.start(peer)
        await here.until(lambda: any(s.state.reached[1][0] >= 3 for s in here.services.values()))
        bad = 1
        service, space = here.services[bad], here.services[bad].store.space
        need, space.need = space.need, 1 << 62  # so much room is nowhere

        def full_once_it_holds(point):
            if service.state.stage == "arrived":
                full(point)

        service.store.fault = full_once_it_holds
        await here.until(lambda: service.state.stage == "arrived" and space.full)
        await here.until(lambda: here.finished(*(p for p in range(PEERS) if p != bad)), 20.0)
        assert space.full
        space.need, service.store.fault = need, no_fault
        await here.until(here.finished)

    here = lived(tmp_path, script, PEERS, lease=0.3)
    lost = [e["lost"] for e in here.events if e["event"] == "recovered"]
    assert lost[:1] == [1]
    assert len(lost) <= 3, "they do not go on recovering"
    check_end(here.folder, here.network, range(PEERS))


def test_a_write_that_fails_leaves_no_file_and_no_mark_behind(tmp_path):
    async def script(here):
        service = here.start(0)
        before = sorted(p.name for p in service.store.tokens.iterdir())
        service.store.fault = full
        opened = len(os.listdir("/proc/self/fd"))
        with pytest.raises(DiskFull):
            service.store.write([memoryview(bytes(100))])
        assert len(os.listdir("/proc/self/fd")) == opened
        left = {p for p in service.store.tokens.iterdir() if p.name not in before}
        assert left <= set(service.store._spares)
        service.store.fault = no_fault

    lived(tmp_path, script, PEERS, lease=30.0)


def test_a_file_that_cannot_be_opened_leaves_no_token_on_its_way(tmp_path):
    """Without descriptors an offer is refused, and the next one is not."""

    async def script(here):
        for peer in range(PEERS):
            here.start(peer)
        other = (here.services[0].state.lineage[0][0][1] + 1) % PEERS
        service, calls = here.services[other], []

        def none(*given):
            calls.append(given)
            raise OSError(errno.EMFILE, "Too many open files")

        claim, service.store.claim = service.store.claim, none
        await here.until(lambda: calls)
        service.store.claim = claim
        assert not service.receiving
        await here.until(here.finished)

    lived(tmp_path, script, PEERS, lease=5.0, train__hops=40)
