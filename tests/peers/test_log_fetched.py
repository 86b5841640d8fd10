"""The log that leads to an end is fetched in pages, checked once, and kept between tries."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.peers.harness import Village, lived
from unwalk.peers.handover.service import Service
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol import messages as ms
from unwalk.peers.transport.wire import MESSAGE

VICTIM, BRINGER = 0, 1
SLOW = 0.2
LEASE = 0.5


def before_the_end(service: Service, kept: int = 0) -> pr.Value:
    """As at a peer that was away: it has the first entries only, and has heard of no end."""
    value = service.state.committed
    assert value is not None
    service.state = replace(service.state, committed=None, ends=())
    log = service.store.chain(service.run_id, value.chain, service.start_chain)
    assert log is not None
    with service.store.transaction() as db:
        for entry in log[kept:]:
            db.execute("DELETE FROM entries WHERE chain = ?", (entry["chain"],))
    service.ends.visits.clear()
    service.last_token.fetches.clear()
    return value


class Shown:
    """A member's daemon that shows its log slowly, or otherwise."""

    def __init__(self, service: Service, pause: float = 0.0, change: Any = None) -> None:
        self.service, self.pause, self.change, self.asked = service, pause, change, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.service, name)

    async def answer(self, sender: int, message: bytes) -> bytes:
        answer = await self.service.answer(sender, message)
        said = codec.parse(message, MESSAGE)
        if said["kind"] not in ("entry", "entries"):
            return answer
        self.asked += 1
        await asyncio.sleep(self.pause)
        return answer if self.change is None else codec.dump(self.change(said, answer))


async def settled(here: Village) -> list[Service]:
    services = [here.start(peer) for peer in range(4)]
    await here.until(here.finished)
    await here.until(lambda: all(s.whole.is_set() for s in services))
    return services


async def brought(services: list[Service], value: pr.Value, tries: int) -> int:
    """How often the end had to be brought until it was taken to vote on; never: 0."""
    bringer = services[BRINGER]
    bringer.state = replace(bringer.state, committed=None)  # or it would show the decision first
    for number in range(1, tries + 1):
        if await bringer.last_token._bring_final(VICTIM, value):
            return number
        await asyncio.sleep(0.05)
    return 0


def test_a_log_that_takes_longer_than_the_lease_is_fetched_all_the_same(tmp_path, monkeypatch):
    async def script(here: Village) -> None:
        services = await settled(here)
        monkeypatch.setattr(ms, "PAGE", 3)
        victim = services[VICTIM]
        value = before_the_end(victim)
        for service in services:
            service.limits = replace(service.limits, lease=LEASE)
        for peer in (1, 2, 3):
            here.memory.handlers[peer] = Shown(services[peer], SLOW)
        tries = await brought(services, value, tries=12)
        assert victim.state.committed is None
        assert tries > 1, "one lease is not enough for the log"
        assert [end.chain for end in victim.state.ends] == [value.chain]
        log = victim.store.chain(victim.run_id, value.chain, victim.start_chain)
        assert log is not None
        assert len(log) == 12

    lived(tmp_path, script, peers=4, lease=60.0, train__hops=12)
