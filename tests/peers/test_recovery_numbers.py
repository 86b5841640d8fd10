# ruff: noqa: E501
"""Seven peers, f = 2.  A second liar signs that it has promised a far number.  So the first makes,
of one round of honest signatures, recoveries that are above those which honest peers open later."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from tests.peers.test_false_generations import NO, gone, route_of
from tests.peers.test_recovery_attacked import Recoverer, sightings_of
from tests.peers.virtual_village import lived_virtually
from unwalk.peers.handover.log_rules import Question
from unwalk.peers.handover.log_rules import sign as sign_sighting
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.handover import NOWHERE, Sighting
from unwalk.peers.storage.store import Store

pytestmark = pytest.mark.soak
LEASES = float(os.environ.get("LEASES", "600"))


@pytest.mark.parametrize(("lifts", "takes"), [(False, 0.2), (True, 0.2), (True, 0.05)])
def test_a_recovery_that_was_kept_back_is_of_no_use(tmp_path, lifts, takes):
    count, lease, hops = 7, 1.0, 14
    peers = range(count)
    shown, undone, refills = list[int](), list[float](), list[float]()

    async def script(here: Any) -> None:
        route = route_of(here, hops)
        hop = next(h for h in range(3, hops) if route[h - 1] not in route[: h - 1])
        me, at = route[hop - 1], route[hop - 2]
        friend = next(p for p in peers if p not in route[:hop])
        honest = [p for p in peers if p not in (me, friend)]
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
            await asyncio.sleep(0.002)
        kept = service.state.held
        await gone(here, me)
        await gone(here, friend)
        entries, run = {}, liar.network.run_id
        store = Store(liar.bundle.store)
        chain = kept.chain
        while (e := store.entry(run, chain)) is not None:
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

        here.memory.handlers[me] = here.memory.handlers[friend] = Shows()
        rules, first = here.services[at].succession.rules, kept.lineage[0][0]
        stash: dict[int, Any] = {}

        others = [p for p in honest if p != at]

        async def fill() -> None:
            """Recoveries from the liar's visit, with other numbers than the honest signed too."""
            number, answers = await liar.signs(others, kept.chain)
            base = (kept.lineage[-1][0], (kept.hop, 0))
            answers = [a for a in answers if sightings_of([a])[0].reached <= base]
            if 2 + sum(not s.waits for s in sightings_of(answers)) < rules.quorum:
                return
            low = Sighting(first, kept.lineage[:1], (first, NOWHERE))
            for other in range(number, number + 28 if lifts else number + 1):
                asked = Question(run, me, kept.chain, other)
                signed = sign_sighting(liar.member(friend), asked, low)
                entry, _ = liar.opens(kept, other, [*answers, signed])
                stash[other] = entry
                entries[entry["chain"]] = entry
            refills.append(here.loop.now)

        async def lie() -> None:
            while True:
                await asyncio.sleep(lease / 50)
                top = max(
                    here.services[p].state.fence
                    for p in honest
                    if here.services[p].state.public is None
                )
                above = [n for n in stash if (n, me) > top]
                if len(above) < 3:
                    await fill()
                if (top[1] in honest and (top[0] or not shown)) and above:
                    number = min(above)
                    await liar.shows(honest, stash[number])
                    if any(here.services[p].state.fence == (number, me) for p in honest):
                        shown.append(number)
                        undone.append(here.loop.now)

        lying, begun = asyncio.create_task(lie()), here.loop.now
        try:
            await here.until(lambda: lying.done() or here.finished(*honest), LEASES * lease)
            if lying.done():
                lying.result()
            print(
                f"lifts {lifts} {takes}: ended after {here.loop.now - begun:.0f} leases, {len(shown)} opened, {len(refills)} times signed"
            )
        except AssertionError:
            done = max(here.services[p].state.reached[1][0] for p in honest)
            raise AssertionError(
                f"lifts {lifts} {takes}: after {LEASES:g} leases {done} visits of {hops} are done (the liar's is {hop}); the liar showed "
                f"{len(shown)} recoveries, the last after {undone[-1] - begun:.0f} leases, and had {len(refills)} "
                f"rounds of signatures; the honest recovered "
                f"{sum(e['event'] == 'recovered' for e in here.events)} times, dropped {sum(e['event'] == 'dropped' for e in here.events)}"
            ) from None
        finally:
            lying.cancel()

    lived_virtually(
        tmp_path,
        script,
        count,
        lease=lease,
        connect=0.5,
        visit=3.0,
        visit_takes=takes,
        train__hops=hops,
    )
