"""The log that leads to an end is fetched in pages, checked once, and kept between tries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import astuple, replace
from typing import Any

import pytest

from tests.peers.harness import Village, lived
from unwalk.core.errors import Refused
from unwalk.peers.handover import log_fetch
from unwalk.peers.handover.log_fetch import LogFetch
from unwalk.peers.handover.service import Service
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.codec import EndValue
from unwalk.peers.protocol.hoplog import COMMON, sign_entry
from unwalk.peers.transport.wire import MESSAGE

VICTIM, BRINGER = 0, 1
SLOW = 0.2
LEASE = 0.5


def before_the_end(service: Service, kept: int = 0) -> pr.Value:
    """As at a peer that was away: it has the first entries only, and has heard of no end."""
    value = service.state.committed
    assert value is not None
    service.state = replace(service.state, committed=None, ends=())
    has_only(service, kept)
    return value


def has_only(service: Service, kept: int) -> None:
    with service.store.transaction() as db:
        db.execute("DELETE FROM entries WHERE hop > ?", (kept,))
    service.ends.visits.clear()
    service.last_token.fetches.clear()


def fetch_of(service: Service, value: pr.Value) -> LogFetch:
    return LogFetch(service, service.control_messages, value, BRINGER)


async def taken(service: Service, value: pr.Value, sender: int = BRINGER) -> str:
    """What a peer says when it is brought an end."""

    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    offer = service.control_messages.words(ms.Final, value=EndValue(*astuple(value)), size=11)
    record = codec.parse(await service.take(sender, offer, nothing()), MESSAGE)
    return str(record["reason"])


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


def test_a_log_is_checked_once_and_nobody_can_fill_a_peer_with_one(tmp_path, monkeypatch):
    async def script(here: Village) -> None:
        services = await settled(here)
        await _pages(services)
        value = before_the_end(services[VICTIM], kept=12)
        await _known(here, services, value, monkeypatch)
        await _made_up(here, services, value, monkeypatch)

    lived(tmp_path, script, peers=4, lease=60.0, train__hops=12)


async def _pages(services: list[Service]) -> None:
    """A page counts as many calls as entries are asked for, and is never too long to be read."""
    shown = services[BRINGER]
    value = shown.state.committed
    assert value is not None
    words = shown.control_messages.words(ms.Entries, chain=value.chain, most=ms.PAGE)
    shown.door.rate.rate, shown.door.rate.buckets = 50.0, {}
    said = [codec.parse(await shown.answer(VICTIM, words), MESSAGE) for _ in range(6)]
    assert [len(s.get("entries", [])) for s in said[:3]] == [12] * 3
    assert all("calls a second" in s["reason"] for s in said[3:]), "100 at once, 32 each"
    shown.door.rate.rate, shown.door.rate.buckets = 5000.0, {}
    entry = shown.store.entry
    long = "x" * (60 << 10)
    shown.store.entry = lambda *a: {**(entry(*a) or {}), "certificate": long}  # type: ignore[method-assign]
    page = codec.parse(await shown.answer(VICTIM, words), MESSAGE)["entries"]
    assert len(page) == 4
    shown.store.entry = entry  # type: ignore[method-assign]


async def _known(here: Village, services: list[Service], value: pr.Value, monkeypatch: Any) -> None:
    """What is known is not checked again; a signature that is wrong is asked for elsewhere."""
    victim = services[VICTIM]
    checked: list[str] = []
    check = victim.trust.check

    def counted(pem: str, signature: str, *args: Any, **options: Any) -> str:
        checked.append(signature)
        return check(pem, signature, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(victim.trust), "check", lambda _, *a, **o: counted(*a, **o))
        assert len(await fetch_of(victim, value).whole()) == 12
        assert not checked
        has_only(victim, 7)
        assert len(await fetch_of(victim, value).whole()) == 12
        assert len(checked) == len(set(checked)) == 2 * 5, "the entry's own, and the visit's"

    def forged(said: Any, answer: bytes) -> Any:
        entries = codec.parse(answer, MESSAGE)["entries"]
        return {"entries": [{**e, "signature": "00" * 64} for e in entries]}

    liar = here.memory.handlers[BRINGER] = Shown(services[BRINGER], change=forged)
    has_only(victim, 0)
    true = services[2].store.chain(victim.run_id, value.chain, victim.start_chain)
    assert await fetch_of(victim, value).whole() == true
    assert liar.asked == 1, "it is asked first, and last from then on"
    for peer in (2, 3):
        here.memory.handlers[peer] = liar
    fetch = fetch_of(victim, value)
    with pytest.raises(Refused, match="signature is not"):
        await fetch.whole()
    assert fetch.wrong
    assert not fetch.found
    for peer in (BRINGER, 2, 3):
        here.memory.handlers[peer] = services[peer]


async def _made_up(
    here: Village, services: list[Service], value: pr.Value, monkeypatch: Any
) -> None:
    """It is as long as it likes, comes an entry at a time, and waits as long as it is let."""
    victim, bundle = services[VICTIM], services[BRINGER].bundle
    monkeypatch.setattr(log_fetch, "MOST_RECOVERIES", 40)
    end = services[2].store.entry(victim.run_id, value.chain)
    assert end is not None
    pem, made, chain = bundle.certificate_pem.decode(), dict[str, Any](), "0" * 64
    body = {k: v for k, v in end["body"].items() if k != "previous"}
    recovery = {k: body[k] for k in COMMON - {"previous"}} | {"lost": -1, "sightings": []}
    for entry in [{**recovery, "kind": "recovery", "hop": 11}] * 200 + [body]:
        one = sign_entry(chain, entry, bundle.sign, pem)
        chain = one["chain"]
        made[chain] = one
    lie = replace(value, chain=chain)

    def drip(said: Any, answer: bytes) -> Any:
        one = made.get(said["chain"])
        return {"entries": [] if one is None else [one]}

    liar = here.memory.handlers[BRINGER] = Shown(services[BRINGER], change=drip)
    fetch = fetch_of(victim, lie)
    with pytest.raises(Refused, match="does not begin"):
        await fetch.whole()
    assert fetch.wrong
    assert not fetch.found
    assert liar.asked == 1 + 41
    victim.limits = replace(victim.limits, connect=0.05, lease=0.2)
    monkeypatch.setattr(log_fetch, "A_VISIT", 0.01)
    liar.pause = 0.03
    last = victim.last_token
    refused = [await taken(victim, lie) for _ in range(2)]
    assert len(last.fetches) == 1
    refused.append(await taken(victim, replace(lie, chain="1" * 64)))
    assert len(last.fetches) == 1, "one of each neighbour"
    assert all("bring it again" in reason for reason in refused), refused
    await here.until(lambda: all(f.task.done() for f in last.fetches.values() if f.task))
    victim.limits = replace(victim.limits, connect=2.0, lease=60.0)
    for sender in (BRINGER, 2):
        assert "bring it again" not in await taken(victim, value, sender)
    await taken(victim, lie)
    assert replace(value, salt="") in last.fetches, "another brings it too"
    assert not victim.store.entries(victim.run_id)
