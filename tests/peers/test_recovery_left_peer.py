# ruff: noqa: E501, PT018
"""Four peers; one leaves, so that three count and f = 0.  With its old keys it opens a generation of
a later chapter, from the token that everybody can make, and one honest signature is enough."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.peers.deletions import ask, ended, hamlet, trained_on
from tests.peers.harness import ROUTE
from tests.peers.test_leaving import gone, leave
from tests.peers.test_recovery_attacked import Recoverer, slower
from unwalk.peers.protocol.handover import Parcel
from unwalk.peers.protocol.hoplog import recovery_body, sign_entry

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("again", [False, True])
def test_who_has_left_opens_no_generation(tmp_path, monkeypatch, again):
    slower(monkeypatch, 0.3)
    seen: dict[str, Any] = {}

    async def script(here):
        await here.until(here.trained)
        leaver = 3
        leave(here, leaver)
        await gone(here, leaver)
        here.tasks.pop(leaver)
        liar = Recoverer(here.folder, leaver, here.memory.at(leaver))
        ask(here, 0, "r", *trained_on(here, 0)[:1], method="restart")
        stay = (0, 1, 2)
        await here.until(lambda: all(here.peers[p].service.chapter.number == 2 for p in stay))
        service = here.peers[0].service
        run, first = service.run_id, service.state.fence[1]
        spec, rules = service.chapter.spec, service.succession.rules
        assert spec.method == "restart" and spec.left == (leaver,)
        assert (rules.members, rules.lies, rules.quorum) == (stay, 0, 2)
        await here.until(lambda: max(here.peers[p].service.state.reached[1][0] for p in stay) >= 3)
        before = max(here.peers[p].service.state.reached[1][0] for p in stay)
        generation = (0, first)
        token = service.work.initial()
        begins = Parcel(
            generation, 0, 0, service.start_chain, liar.digest(token), ((generation, 0),)
        )
        opened: list[float] = []

        async def opens() -> bool:
            for p in stay:
                state, promised = here.peers[p].service.state, here.peers[p].service.turns.promised
                number = 1 + max(state.fence[0], promised)
                asked = liar.words("where", run=run, chain=begins.chain, number=number)
                answer = await liar.tell(p, asked)
                if "sighting" not in answer:
                    continue
                new = (number, leaver)
                body = recovery_body(
                    run=run,
                    generation=new,
                    lineage=(*begins.lineage, (new, 0)),
                    peer=leaver,
                    hop=0,
                    token=begins.token,
                    lost=p,
                    sightings=[answer],
                )
                pem = liar.bundle.certificate_pem.decode()
                entry = sign_entry(begins.chain, body, liar.bundle.sign, pem)
                for q in stay:
                    await liar.tell(q, liar.words("fence", run=run, entry=entry))
                fences = [here.peers[q].service.state.fence for q in stay]
                if new in fences:
                    opened.append(time.monotonic())
                    seen.setdefault("fences", fences)
                    seen.setdefault("visits before", before)
                    return True
            return False

        async def lie() -> None:
            while True:
                await asyncio.sleep(0.05)
                if opened and not again:
                    return
                lease = 0.6
                into = (time.time() / lease) % 8.0 - 2.0 * leaver
                if not opened or (1.2 < into < 2.0 and time.monotonic() - opened[-1] > 2 * lease):
                    await opens()

        lying = asyncio.create_task(lie())
        began = time.monotonic()
        try:
            await here.until(ended(here, r=0), 100)
            seen["ended"] = True
        except AssertionError:
            seen["ended"] = False
        finally:
            if lying.done() and again:
                lying.result()
            lying.cancel()
        stood = max(here.peers[p].service.state.reached[1][0] for p in stay)
        seen.update(took=time.monotonic() - began, opened=len(opened), visits=stood)

    hamlet(tmp_path, script, train__hops=8, seed=ROUTE)
    assert all(opener != 3 for _, opener in seen.get("fences", [])), str(seen)
