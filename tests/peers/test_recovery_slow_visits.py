# ruff: noqa: E501
"""Six peers, f = 1, one liar.  Visits take ten leases, half of what `limits.visit` allows.  The liar
opens a generation from its own old visit in each of its turns, and brings no token."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from tests.peers.test_false_generations import NO, gone, route_of
from tests.peers.test_recovery_attacked import Recoverer, sightings_of
from tests.peers.virtual_village import lived_virtually
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.hoplog import recovery_body, sign_entry
from unwalk.peers.storage.store import Store

pytestmark = pytest.mark.soak
LEASES = float(os.environ.get("LEASES", "1500"))
EVERY = float(os.environ.get("EVERY", "2.0"))


@pytest.mark.parametrize(("count", "takes"), [(4, 10.0), (6, 10.0), (6, 3.0), (6, 0.5), (7, 10.0)])
def test_walk_ends_though_visits_take_long(tmp_path, count, takes):
    lease, peers, hops = 1.0, range(count), 14
    opened = list[float]()

    async def script(here: Any) -> None:
        route = route_of(here, hops)
        hop = next(
            h
            for h in range(3, hops)
            if len(set(route[:h])) >= 3 and route[h - 1] not in route[: h - 1]
        )
        me, at = route[hop - 1], route[hop - 2]
        friends = [p for p in peers if p not in route[:hop]][: (count - 1) // 3 - 1]
        honest = [p for p in peers if p != me and p not in friends]
        for peer in peers:
            here.start(peer)
        service = here.services[me]
        liar = Recoverer(here.folder, me, here.memory.at(me))
        send = service.token_sender.send

        def keeps(state: Any, *given: Any) -> Any:
            if state.held.hop != hop:
                return send(state, *given)
            return asyncio.create_task(asyncio.sleep(1e6))

        service.token_sender.send = keeps
        while (h := service.state.held) is None or h.hop != hop or service.state.stage != "offered":
            await asyncio.sleep(0.01)
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
        base = (kept.lineage[-1][0], (kept.hop, 99))

        async def lie() -> None:
            """Ask all; what is signed is good if it goes on from the liar's visit."""
            while True:
                good: dict[int, Any] = {}
                lost = -1
                everybody = [*honest, *friends]
                known = sightings_of(await liar.asks(everybody))
                number = 1 + max(max(s.fence[0], s.promised) for s in known)
                for p in everybody:
                    for a in await liar.asks([p], kept.chain, number):
                        (s,) = sightings_of([a])
                        if s.waits:
                            continue
                        if s.reached <= base:
                            good[p] = a
                        elif lost < 0:
                            lost, good[p] = p, a
                seen = sightings_of(good.values())
                if len(seen) + 1 >= rules.quorum and not (
                    opened and here.loop.now - opened[-1] < EVERY * lease
                ):
                    generation = (number, me)
                    body = recovery_body(
                        run=liar.network.run_id,
                        generation=generation,
                        lineage=(*kept.lineage, (generation, kept.hop)),
                        peer=me,
                        hop=kept.hop,
                        token=kept.token,
                        lost=lost,
                        sightings=list(good.values()),
                    )
                    entry = sign_entry(
                        kept.chain, body, liar.bundle.sign, liar.bundle.certificate_pem.decode()
                    )
                    entries[entry["chain"]] = entry
                    await liar.shows(honest, entry)
                    if any(here.services[p].state.fence == generation for p in honest):
                        opened.append(here.loop.now)
                await asyncio.sleep(lease / 4)

        task = asyncio.create_task(lie())
        begun = here.loop.now
        try:
            await here.until(lambda: task.done() or here.finished(*honest), LEASES * lease)
            if task.done():
                task.result()
            print(
                f"n={count} visit={takes}: ended after {(here.loop.now - begun) / lease:.0f} leases",
                len(opened),
                "opened",
            )
        except AssertionError:
            hop_now = max(here.services[p].state.reached[1][0] for p in honest)
            raise AssertionError(
                f"n={count}, visits of {takes} leases, route {route}, liar {me}, before it {at}: after {LEASES:g} leases the walk is at hop {hop_now} of {hops} (liar's {hop}); "
                f"{len(opened)} generations opened by the liar, last at {opened[-1:]}, "
                f"honest recoveries: "
                f"{sum(e['event'] == 'recovered' for e in here.events)}; dropped: {sum(e['event'] == 'dropped' for e in here.events)}"
            ) from None
        finally:
            task.cancel()

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
