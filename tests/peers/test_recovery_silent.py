"""Seven peers, f = 2.  One member opens a generation from its own visit in each of its turns, and a
second never answers an offer: a liar, or an honest peer that hangs."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from tests.peers.test_false_generations import NO, gone
from tests.peers.test_recovery_attacked import Recoverer, sightings_of, two_takers
from tests.peers.virtual_village import lived_virtually
from unwalk.peers.protocol import codec
from unwalk.peers.storage.store import Store

pytestmark = pytest.mark.soak
LEASES = float(os.environ.get("LEASES", "1500"))


def test_walk_ends_though_one_opens_and_another_is_silent(tmp_path):
    lease, peers, hops = 1.0, range(7), 14
    opened, offers = list[float](), list[float]()

    async def script(here: Any) -> None:
        at, me, other = two_takers(here, hops)
        honest = [p for p in peers if p not in (me, other)]
        for peer in peers:
            here.start(peer)
        service = here.services[me]
        liar = Recoverer(here.folder, me, here.memory.at(me))

        def keeps(state: Any, *given: Any) -> Any:
            return asyncio.create_task(asyncio.sleep(1e6))

        service.token_sender.send = keeps
        while service.state.held is None or service.state.stage != "offered":
            await asyncio.sleep(0.002)
        kept = service.state.held
        await gone(here, me)
        entries = {}
        store = Store(liar.bundle.store)
        chain = kept.chain
        while (e := store.entry(liar.network.run_id, chain)) is not None:
            entries[chain], chain = e, e["body"]["previous"]
        store.close()
        await gone(here, other)

        class Silent:
            async def take(self, sender: int, *_: Any) -> bytes:
                offers.append(here.loop.now)
                await asyncio.sleep(1e6)
                return NO

            async def answer(self, *_: Any) -> bytes:
                await asyncio.sleep(1e6)
                return NO

        here.memory.handlers[other] = Silent()

        class Shows:
            async def take(self, *_: Any) -> bytes:
                return NO

            async def answer(self, sender: int, message: bytes) -> bytes:
                said = codec.parse(message, 1 << 18)
                if said["kind"] == "entry":
                    return codec.dump({"entry": entries.get(said["chain"])})
                return NO

        here.memory.handlers[me] = Shows()
        rules = here.services[at].succession.rules

        async def lie() -> None:
            while True:
                await asyncio.sleep(lease / 4)
                number, answers = await liar.signs([p for p in honest if p != at], kept.chain)
                seen = sightings_of(answers)
                if sum(not s.waits for s in seen) + 1 < rules.quorum:
                    continue
                entry, _ = liar.opens(kept, number, answers)
                if here.services[at].state.fence < (number, me) and (
                    not opened or here.loop.now - opened[-1] > 2.0 * lease
                ):
                    entries[entry["chain"]] = entry
                    await liar.shows(honest, entry)
                    if any(here.services[p].state.fence == (number, me) for p in honest):
                        opened.append(here.loop.now)

        task = asyncio.create_task(lie())
        try:
            await here.until(lambda: here.finished(*honest), LEASES * lease)
        except AssertionError:
            hop = max(s.state.reached[1][0] for s in here.services.values())
            raise AssertionError(
                f"after {LEASES:g} leases the walk is at hop {hop} of {hops}; "
                f"{len(opened)} generations opened by the liar, last at {opened[-1:]}, "
                f"{len(offers)} offers to the silent one; "
                f"recoveries of the honest: {sum(e['event'] == 'recovered' for e in here.events)}"
            ) from None
        finally:
            task.cancel()

    lived_virtually(tmp_path, script, 7, lease=lease, connect=0.5, visit=3.0, train__hops=hops)
