"""Visits that a peer which was away asks for: each is bounded, and nobody is waited for long."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.peers.deletions import hamlet
from unwalk.peers.decisions import history
from unwalk.peers.lifecycle.next_chapter import A_VISIT
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.hoplog import BARE, LONGEST_ENTRY, LONGEST_FIRST, bare_text
from unwalk.peers.transport.wire import MESSAGE

ASKED = b'"kind":"agenda-visits"'
LIAR, VICTIM = 0, 1


class Other:
    """A member's daemon that answers questions for visits otherwise."""

    def __init__(self, chapters: Any, visits: Any, pause: float = 0.0) -> None:
        self.chapters, self.visits, self.pause, self.asked = chapters, visits, pause, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.chapters, name)

    async def answer(self, sender: int, message: bytes) -> bytes:
        if ASKED not in message[:512]:
            answer: bytes = await self.chapters.answer(sender, message)
            return answer
        self.asked += 1
        await asyncio.sleep(self.pause)
        after = codec.parse(message, MESSAGE)["after"]
        return codec.dump({"visits": self.visits(after)})


def away(victim: Any) -> None:
    """As at a peer that was away."""
    with victim.store.transaction() as db:
        db.execute("DELETE FROM visits")


def long_visits(honest: list[dict[str, Any]], sign: Any) -> Any:
    return lambda after: ["x" * 250_000]


def padded_visits(honest: list[dict[str, Any]], sign: Any) -> Any:
    """Each signed by the liar, as if it had done it."""

    def padded(after: int) -> list[dict[str, Any]]:
        visit = {**honest[after]["visit"], "receiver": LIAR, "path": [0] * LONGEST_FIRST}
        return [sign({**honest[after], "visit": visit})]

    return padded


def repeated_visits(honest: list[dict[str, Any]], sign: Any) -> Any:
    return lambda after: honest[:1]


def test_the_first_visit_that_is_wrong_is_the_last_that_is_asked_for(tmp_path):
    async def script(here):
        await here.until(here.trained)
        victim = here.peers[VICTIM]
        honest = history.visits_of(victim.store, victim.runs[0])
        bundle = here.peers[LIAR].bundle

        def sign(visit: dict[str, Any]) -> dict[str, Any]:
            data = BARE + bare_text(visit["run"], visit["generation"], visit["visit"])
            pem = bundle.certificate_pem.decode()
            return {**visit, "signature": bundle.sign(data).hex(), "certificate": pem}

        for kind in (long_visits, padded_visits, repeated_visits):
            liar = here.memory.handlers[LIAR] = Other(here.peers[LIAR], kind(honest, sign))
            victim.next_chapter.sources.sort()
            away(victim)
            assert await victim.certifying.have_visits(0)
            before = liar.asked
            assert 1 <= before <= 2, kind
            assert history.visits_of(victim.store, victim.runs[0]) == honest
            away(victim)
            assert await victim.certifying.have_visits(0)
            assert liar.asked == before, "it is asked last from then on"

    hamlet(tmp_path, script, peers=3, train__hops=4)


def test_a_peer_that_answers_slowly_has_so_much_time_for_all_visits(tmp_path):
    """It tells one visit at a time; what else asks meanwhile waits for the same visits."""

    async def script(here):
        await here.until(here.trained)
        victim = here.peers[VICTIM]
        honest = history.visits_of(victim.store, victim.runs[0])
        slow = Other(here.peers[LIAR], lambda after: honest[after : after + 1], pause=0.3)
        here.memory.handlers[LIAR] = slow
        away(victim)
        clock = asyncio.get_running_loop().time
        began = clock()
        found = await asyncio.gather(*(victim.certifying.have_visits(0) for _ in range(5)))
        assert found == [True] * 5
        most = victim.network.limits.connect + A_VISIT * len(honest)
        assert most <= clock() - began < 2 * most, "all 20 would take longer"
        assert slow.asked <= most / slow.pause + 1
        assert history.visits_of(victim.store, victim.runs[0]) == honest

    hamlet(tmp_path, script, peers=3, train__hops=20)


def test_judging_a_chapter_asks_for_missing_visits_once_at_a_time(tmp_path):
    async def script(here):
        await here.until(here.trained)
        victim = here.peers[VICTIM]
        here.memory.handlers[LIAR] = Other(here.peers[LIAR], lambda after: [], pause=0.5)
        away(victim)
        spec = here.peers[2].request_steps.without(LIAR, "r")
        asked = 0
        for _ in range(20):
            before = len(victim.tasks)
            assert not victim.stands_for(spec)
            asked += max(0, len(victim.tasks) - before)
            await asyncio.sleep(0.01)
        assert asked == 1

    hamlet(tmp_path, script, peers=3, train__hops=4)


def test_a_page_of_visits_can_be_read(tmp_path):
    """Visits may be as long as log entries may: fewer of them then fit into one answer."""

    async def script(here):
        await here.until(here.trained)
        chapters = here.peers[0]
        (one, *_) = history.visits_of(chapters.store, chapters.runs[0])
        long = [
            {**one, "visit": "x" * (LONGEST_FIRST if n == 0 else LONGEST_ENTRY)} for n in range(60)
        ]
        history.put_visits(chapters.store, chapters.runs[0], long)
        found: list[Any] = []
        while len(found) < len(long):
            words = chapters.next_chapter.words(ms.AgendaVisits, number=0, after=len(found))
            page = codec.parse(await chapters.answer(1, words), MESSAGE)["visits"]
            assert page
            found += page
        assert found == long

    hamlet(tmp_path, script, peers=2, train__hops=4)
