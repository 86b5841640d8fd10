"""A disk that is full or damaged, a visit that diverges: it is said and nothing is lost."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
from dataclasses import replace

import pytest

from tests.peers.harness import Village, check_end, lived, network
from unwalk.core.errors import Corrupt, Diverged, UnwalkError
from unwalk.peers.daemon import run_peer

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
    assert all("No space left on device" in e["why"] for e in over)
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

    lived(tmp_path, script, PEERS, lease=60.0)


def test_a_visit_that_diverges_ends_its_peer_and_not_the_walk(tmp_path):
    async def script(here):
        services = [here.start(peer) for peer in range(PEERS)]
        first = services[0].state.lineage[0][0][1]
        bad = (first + 1) % PEERS

        def diverge(*given, **named):
            raise Diverged("hop 2 left parameters that are not finite.")

        services[bad].work.visit = diverge
        error = await ended(here, bad)
        assert isinstance(error, Diverged)
        assert services[bad].state.stage == "arrived", "it keeps the token it got"
        services[bad].store.close()
        del here.services[bad]
        await here.until(here.finished)

    here = lived(tmp_path, script, PEERS, lease=0.5)
    assert any(e["event"] == "recovered" for e in here.events)
