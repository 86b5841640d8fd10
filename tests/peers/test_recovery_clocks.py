# ruff: noqa: E501, F841
"""Four peers, f = 1; the clocks of two honest peers differ by two turns.  One member opens a
generation from its own visit whenever it has a quorum of signatures, which it collects one by one."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from tests.peers.test_false_generations import NO, gone, route_of
from tests.peers.test_recovery_attacked import Recoverer, sightings_of
from tests.peers.virtual_village import lived_virtually
from unwalk.peers.protocol import codec
from unwalk.peers.storage.store import Store

pytestmark = pytest.mark.soak
LEASES = float(os.environ.get("LEASES", "1000"))


@pytest.mark.parametrize(
    ("apart", "rate"),
    [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (4.0, 1.0), (0.0, 1.1), (1003.0, 1.0)],
)
def test_walk_ends_though_clocks_differ(tmp_path, apart, rate):
    lease, peers, hops = 1.0, range(4), 14
    opened = list[float]()
    clocks: dict[int, Any] = {}

    async def script(here: Any) -> None:
        route = route_of(here, hops)
        hop = next(h for h in range(3, hops) if len(set(route[:h])) == 4)
        me, at = route[hop - 1], route[hop - 2]
        honest = [p for p in peers if p != me]
        other = next(p for p in honest[::-1] if p != at)
        clocks[other] = lambda now: now * rate + apart * lease
        for peer in peers:
            here.start(peer)
        service = here.services[me]
        liar = Recoverer(here.folder, me, here.memory.at(me))
        send = service.token_sender.send
        keeping = [False]

        def keeps(state: Any, *given: Any) -> Any:
            if state.held.hop != hop:
                return send(state, *given)
            return asyncio.create_task(asyncio.sleep(1e6))

        service.token_sender.send = keeps
        while (h := service.state.held) is None or h.hop != hop or service.state.stage != "offered":
            await asyncio.sleep(0.002)
        kept = service.state.held
        await gone(here, me)
        entries = {}
        store = Store(liar.bundle.store)
        chain = kept.chain
        while (e := store.entry(liar.network.run_id, chain)) is not None:
            entries[chain], chain = e, e["body"]["previous"]
        store.close()

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
            signed: dict[int, Any] = {}
            fence: Any = None
            number = 0
            while True:
                await asyncio.sleep(lease / 10)
                now = max(here.services[p].state.fence for p in honest)
                known = sightings_of(await liar.asks([p for p in honest if p not in signed]))
                if now != fence or any(max(s.fence[0], s.promised) >= number for s in known):
                    everybody = sightings_of(await liar.asks(honest))
                    number = 1 + max(max(s.fence[0], s.promised) for s in everybody)
                    fence, signed = now, {}
                for p in [p for p in honest if p not in signed]:
                    for a in await liar.asks([p], kept.chain, number):
                        (s,) = sightings_of([a])
                        if not s.waits and s.reached <= (kept.lineage[-1][0], (kept.hop, 99)):
                            signed[p] = a
                seen = sightings_of(signed.values())
                if len(seen) + 1 < rules.quorum or (
                    opened and here.loop.now - opened[-1] < 0.5 * lease
                ):
                    continue
                if (number, me) <= fence:
                    continue
                entry, _ = liar.opens(kept, number, list(signed.values()))
                entries[entry["chain"]] = entry
                await liar.shows(honest, entry)
                if any(here.services[p].state.fence == (number, me) for p in honest):
                    opened.append(here.loop.now)

        task = asyncio.create_task(lie())
        begun = here.loop.now
        try:
            await here.until(lambda: here.finished(*honest), LEASES * lease)
            print("ended after", (here.loop.now - begun) / lease, "leases", len(opened), "opened")
        except AssertionError:
            hop_now = max(here.services[p].state.reached[1][0] for p in honest)
            raise AssertionError(
                f"after {LEASES:g} leases the walk is at hop {hop_now} of {hops}; "
                f"{len(opened)} generations opened by the liar, last at {opened[-1:]}, "
                f"honest recoveries: "
                f"{sum(e['event'] == 'recovered' for e in here.events)}"
            ) from None
        finally:
            if task.done():
                print(task.exception())
            task.cancel()

    lived_virtually(
        tmp_path,
        script,
        4,
        clocks=clocks,
        lease=lease,
        connect=0.5,
        visit=3.0,
        visit_takes=0.3,
        train__hops=hops,
    )
