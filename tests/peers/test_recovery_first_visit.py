# ruff: noqa: E501
"""Four peers, f = 1, one liar that has nothing.  It opens a generation before the first visit in
each of its turns, and brings no token.  Others should recover after 6 + n / 2 leases, in their next
turn."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from tests.peers.test_false_generations import NO, route_of
from tests.peers.test_recovery_attacked import Recoverer, sightings_of
from tests.peers.virtual_village import lived_virtually
from unwalk.peers.protocol.handover import Parcel

pytestmark = pytest.mark.soak
LEASES = float(os.environ.get("LEASES", "1000"))


@pytest.mark.parametrize(("count", "takes"), [(4, 1.0), (7, 1.0)])
def test_walk_begins_though_one_opens_generations_before_it(tmp_path, count, takes):
    lease, peers, hops = 1.0, range(count), 8
    opened = list[float]()

    async def script(here: Any) -> None:
        first = route_of(here, hops)[0]
        me = next(p for p in peers if p != first)
        honest = [p for p in peers if p != me]
        liar = Recoverer(here.folder, me, here.memory.at(me))

        class Refuses:
            async def take(self, *_: Any) -> bytes:
                return NO

            async def answer(self, *_: Any) -> bytes:
                return NO

        here.memory.handlers[me] = Refuses()
        here.at = []

        class Noting(list):  # type: ignore[type-arg]
            def append(self, event: Any) -> None:
                super().append(event)
                if event["event"] == "recovered":
                    here.at.append(here.loop.now)

        here.events = Noting()
        for peer in honest:
            here.start(peer)
        service = here.services[first]
        generation = (0, first)
        begins = Parcel(
            generation, 0, 0, service.start_chain, service.state.held.token, ((generation, 0),)
        )
        rules = service.succession.rules

        async def lie() -> None:
            while True:
                await asyncio.sleep(lease / 4)
                if opened and here.loop.now - opened[-1] < 2.0 * lease:
                    continue
                number, answers = await liar.signs(honest, begins.chain)
                seen = sightings_of(answers)
                if 1 + sum(not s.waits for s in seen) < rules.quorum:
                    continue
                entry, _ = liar.opens(begins, number, answers)
                await liar.shows(honest, entry)
                if any(here.services[p].state.fence == (number, me) for p in honest):
                    opened.append(here.loop.now)

        lying, begun = asyncio.create_task(lie()), here.loop.now
        try:
            await here.until(lambda: lying.done() or here.finished(*honest), LEASES * lease)
            if lying.done():
                lying.result()
            first_at = (min(here.at) - begun) / lease
            turns = here.services[first].turns
            liars = turns.short * 2**turns.doublings / lease  # its longest turn
            round_ = 2.0 * count + liars
            assert first_at <= 6 + count / 2 + round_ + 1, (
                f"n={count}: the first honest recovery came after {first_at:.1f} leases; promised are "
                f"{6 + count / 2} and the wait for its turn, {round_} at most; opened {len(opened)}"
            )
            took = (here.loop.now - begun) / lease
            print(
                f"n={count} visits of {takes:g}: ended after {took:.0f} leases, {len(opened)} opened"
            )
        except AssertionError as error:
            if "promised" in str(error):
                raise
            hop = max(here.services[p].state.reached[1][0] for p in honest)
            tried = sum(e["event"] == "recovered" for e in here.events)
            raise AssertionError(
                f"after {LEASES:g} leases {hop} visits of {hops} are done; the liar opened "
                f"{len(opened)} generations, the last after {opened[-1] - begun:.0f} leases; "
                f"the honest recovered {tried} times"
            ) from None
        finally:
            lying.cancel()

    lived_virtually(
        tmp_path,
        script,
        count,
        lease=lease,
        connect=0.5,
        visit=20.0,
        visit_takes=takes * lease,
        train__hops=hops,
    )
