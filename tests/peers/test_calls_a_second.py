"""One rate for all that a peer sends: who trains, votes and forgets as usual is never refused."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from tests.peers.deletions import SETTINGS, records_of, write_records
from tests.peers.scheduler import in_virtual_time
from tests.peers.trials_scenes import DidNotEnd, InMemory
from unwalk.peers.identity.network_file import Limits
from unwalk.peers.local_network import free_addresses
from unwalk.peers.provision import make_network

ASKED = (0, 1)
"""Peers that are asked to forget a record while the token walks."""


def refused(
    folder: Path, peers: int, hops: int, limits: Limits, seconds: float
) -> tuple[bool, int]:
    """Whether all ended within ``seconds`` of the loop's time; calls refused for their rate."""
    made = make_network(
        folder,
        name="test",
        addresses=free_addresses(peers),
        settings={**SETTINGS, "train.hops": hops},
        limits=limits,
        noise="secret",
    )
    for peer in range(peers):
        write_records(folder / f"peer-{peer}", peer, hold_out=0.0)

    def over() -> bool:
        done = all(scene.stage(peer, "r") == "done" for peer in ASKED)
        return done and all(map(scene.ended, range(peers)))

    async def lived() -> bool:
        try:
            for peer in range(peers):
                await scene.start(peer)
            await scene.until(lambda: scene.hop() >= hops // 2)
            for peer in ASKED:
                scene.ask(peer, "r", records_of(peer)[0][0])
            await scene.until(over)
        finally:
            await scene.close()
        return True

    ended = False
    with in_virtual_time(0) as loop, suppress(DidNotEnd):
        scene = InMemory(folder, made, random.Random(0), seconds, loop)
        ended = loop.run_until_complete(lived())
    assert not scene.failures
    reasons = [e["reason"] for e in scene.journal if e["event"] == "refused"]
    return ended, sum("calls a second" in reason for reason in reasons)


@pytest.mark.parametrize(("peers", "hops"), [(4, 8), pytest.param(11, 40, marks=pytest.mark.soak)])
def test_usual_work_stays_within_the_rate(tmp_path, peers, hops):
    assert refused(tmp_path, peers, hops, Limits(lease=2.0), 120.0) == (True, 0)


def test_calls_beyond_the_rate_are_counted(tmp_path):
    _, found = refused(tmp_path, 4, 8, Limits(lease=2.0, messages=1.0), 3.0)
    assert found > 0
