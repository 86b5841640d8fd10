# ruff: noqa: E501
"""Four peers, f = 1, `limits.connect` longer than the lease (`net up` does that from 31 peers on).
The liar opens a generation from its own visit in each of its turns, and answers the peer that has
the furthest copy so late that this peer never asks in its own turn."""

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
from unwalk.peers.handover.turns import SKEW, TURN
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.handover import NOWHERE, Sighting
from unwalk.peers.storage.store import Store

pytestmark = pytest.mark.soak
LEASES = float(os.environ.get("LEASES", "300"))


@pytest.mark.parametrize("connect", [0.4, 0.7, 0.95, 1.1, 1.25, 1.5])
def test_walk_ends_though_answers_come_late(tmp_path, connect):
    lease, peers, hops = 1.0, range(4), 14
    opened, asked = list[float](), list[float]()

    async def script(here: Any) -> None:
        route = route_of(here, hops)
        hop = next(h for h in range(3, hops) if len(set(route[:h])) == 4)
        me, at = route[hop - 1], route[hop - 2]
        honest = [p for p in peers if p != me]
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
        entries = {}
        store = Store(liar.bundle.store)
        chain = kept.chain
        while (e := store.entry(liar.network.run_id, chain)) is not None:
            entries[chain], chain = e, e["body"]["previous"]
        store.close()
        first = kept.lineage[0][0]
        over = Sighting(kept.generation, kept.lineage, (first, NOWHERE), over=True)
        rest = [0.0]

        def bad(answered: float, margin: float = 0.02) -> bool:
            """Whether that peer would ask in its turn if it has the last answer then."""
            length = len(peers) * TURN
            soon = (at * TURN + SKEW - answered) % length
            if -margin < soon - 2.0 < margin or soon > length - margin:
                return True
            if soon > length - TURN / 2.0:  # it takes what is left of this turn
                soon, again = 0.0, answered + 1.0
            elif soon < 2.0:
                return True
            else:
                again = answered + 1.0
            into = (again - at * TURN) % length
            if into < TURN + margin or into > length - margin:
                return True
            y = length + SKEW - into  # until it would ask in its turn
            return 1.2 < y < 2.02 if connect >= 0.875 else False

        class Late:
            async def take(self, *_: Any) -> bytes:
                return NO

            async def answer(self, sender: int, message: bytes) -> bytes:
                said, now = codec.parse(message, 1 << 18), here.loop.now
                if said["kind"] == "entry":
                    return codec.dump({"entry": entries.get(said["chain"])})
                if said["kind"] == "decide":
                    wait, rest[0] = rest[0], 0.0
                    await asyncio.sleep(wait)
                if said["kind"] != "where" or sender != at:
                    raise OSError
                asked.append(now)
                most = 0.97 * connect
                tries = [i * 2 * most / 200 for i in range(201)]

                def in_turn(when: float) -> bool:
                    into = (when - at * TURN) % (len(peers) * TURN)
                    return into < TURN + 0.02 or into > len(peers) * TURN - 0.02

                wrong = in_turn if said["chain"] == "" else bad
                seconds = next((d for d in tries if not wrong(now + d)), 0.0)
                rest[0] = seconds - min(seconds, most)
                await asyncio.sleep(min(seconds, most))
                run = liar.network.run_id
                question = Question(run, sender, said["chain"], said["number"])
                return codec.dump(sign_sighting(liar.bundle, question, over))

        here.memory.handlers[me] = Late()
        rules = here.services[at].succession.rules

        async def lie() -> None:
            while True:
                await asyncio.sleep(lease / 20)
                if opened and here.loop.now - opened[-1] < 2.0 * lease:
                    continue
                number, answers = await liar.signs([p for p in honest if p != at], kept.chain)
                seen = sightings_of(answers)
                if 1 + sum(not s.waits for s in seen) < rules.quorum:
                    continue
                entry, _ = liar.opens(kept, number, answers)
                entries[entry["chain"]] = entry
                await liar.shows(honest, entry)
                if any(here.services[p].state.fence == (number, me) for p in honest):
                    opened.append(here.loop.now)

        lying, begun = asyncio.create_task(lie()), here.loop.now
        try:
            await here.until(lambda: lying.done() or here.finished(*honest), LEASES * lease)
            if lying.done():
                lying.result()
            print(
                f"connect {connect}: ended after {here.loop.now - begun:.0f} leases, {len(opened)} opened"
            )
        except AssertionError:
            done = max(here.services[p].state.reached[1][0] for p in honest)
            raise AssertionError(
                f"connect {connect}: after {LEASES:g} leases {done} visits of {hops} are done; the liar opened "
                f"{len(opened)} generations, the last after {opened[-1] - begun:.0f} leases; "
                f"the honest recovered "
                f"{sum(e['event'] == 'recovered' for e in here.events)} times and asked {len(asked)} times"
            ) from None
        finally:
            lying.cancel()

    lived_virtually(
        tmp_path,
        script,
        4,
        lease=lease,
        connect=connect,
        visit=3.0,
        visit_takes=0.3,
        train__hops=hops,
    )
