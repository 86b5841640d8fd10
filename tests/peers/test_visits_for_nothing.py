"""Visits that are not on the line: begun and dropped, or begun for a token that was refused."""

from __future__ import annotations

import asyncio
import csv
import threading
from collections.abc import AsyncIterator

import pytest

from tests.peers.deletions import (
    Hamlet,
    ask,
    check,
    ended,
    form,
    hamlet,
    network,
    records_of,
    trained_on,
)
from tests.peers.harness import ROUTE, carry_out
from tests.peers.liars import PATIENCE, Liar
from unwalk.peers.handover.visit import Mark
from unwalk.peers.protocol import codec
from unwalk.peers.records.record_store import Records
from unwalk.peers.storage.token_files import token_pieces

LIAR = 2


def marks_of(here: Hamlet, peer: int) -> list[tuple[int, int]]:
    """The visits that a peer's records are said to have been used in."""
    records = here.peers[peer].records
    assert records is not None
    return records.db.execute("SELECT chapter, hop FROM visits ORDER BY serial").fetchall()


def receivers(here: Hamlet, chapter: int) -> list[int]:
    visits = here.peers[0].visits([(chapter, 1)])[chapter]
    return [visit["visit"]["receiver"] for visit in visits]


def test_a_peer_that_died_in_its_only_visit_can_still_forget(tmp_path, monkeypatch):
    """On the line the visit with that number is another peer's."""
    folder, victim = tmp_path / "net", 2
    here = Hamlet(folder, network(folder, peers=3, lease=0.3, train__hops=6))

    async def main() -> None:
        try:
            for peer in range(3):
                here.start(peer)
            while not marks_of(here, victim):
                await asyncio.sleep(0)
            monkeypatch.setattr(Records, "take_back", lambda *_: None)  # killed, it writes no more
            await here.crash(victim)
            monkeypatch.undo()
            await here.until(lambda: here.trained(0, 1))
            here.start(victim)
            await here.until(here.trained)
            assert victim not in receivers(here, 0)
            assert marks_of(here, victim), "it may have been used: nobody knows how far that got"
            ask(here, victim, "r", *trained_on(here, victim)[:1])
            await here.until(ended(here, r=victim))
            assert here.stage(victim, "r") == "done"
        finally:
            await here.close()

    carry_out(main())
    assert [spec.method for spec in here.peers[victim].specs] == ["restart"]
    assert check(here, victim, "chapter-1")["claims"][0]["grade"] == "exact"


def test_what_a_dropped_visit_used_is_erased_by_a_later_chapter_and_not_by_its_own(tmp_path):
    def comes(here: Hamlet, id: str, chapter: int) -> None:
        """A record comes, and is used in a visit whose number is another peer's on the line."""
        with (tmp_path / "net" / "records-1.csv").open("a", newline="") as file:
            csv.writer(file).writerow([id, *records_of(1)[0][1:]])
        hop = next(n for n, peer in enumerate(receivers(here, chapter), 1) if peer != 1)
        here.peers[1].records.begin_visit(chapter, hop)

    async def script(here):
        await here.until(here.trained)
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(ended(here, r=0))
        one = here.peers[1]
        await here.until(lambda: len(one.specs) == 1 and here.trained(1))
        planned = []
        for chapter in (0, 1):
            comes(here, f"late-{chapter}", chapter)
            one.requests.submit(form(f"r{chapter}", f"late-{chapter}"))
            asked = one.requests.get(f"r{chapter}")
            planned.append(one.request_steps.plan(one.requests.batch_of([asked])))
        assert planned[0] is None, "all that knew it was erased when chapter 1 ended"
        assert planned[1] is not None
        assert (planned[1].method, planned[1].position) == ("restart", 0)

    hamlet(tmp_path, script, peers=3, train__hops=6, hold_out=0.0, seed=ROUTE)


@pytest.mark.parametrize("slow", [False, True])
def test_a_token_that_is_refused_leaves_no_mark_in_the_records(tmp_path, slow, monkeypatch):
    folder = tmp_path / "net"
    here = Hamlet(folder, network(folder, peers=4, train__hops=4, seed=ROUTE))
    going_on, begun = threading.Event(), threading.Event()

    async def main() -> None:
        try:
            for peer in (1, LIAR, 3):
                here.start(peer)
            await here.until(lambda: 1 in here.memory.handlers)
            work, at, memory, route = here.peers[1].service.work, -1, dict[str, int](), []
            for hop in range(1, 5):
                move = work.move(hop, at, memory, 0)
                at, memory = move.receiver, dict(move.memory)
                route.append(at)
            (victim,) = set(range(4)) - set(route) - {LIAR}
            visit = (there := here.peers[victim].service.work).visit

            def noted(*given, **options):
                begun.set()
                if slow:
                    going_on.wait(10)
                return visit(*given, **options)

            monkeypatch.setattr(there, "visit", noted)
            answer = await offer(here, victim)
            assert answer["reason"] == "a message is not JSON.", "the stamp is missing"
            assert begun.is_set(), "its visit had begun"
            going_on.set()
            early_visits = here.peers[victim].service.early_visits
            await here.until(
                lambda: early_visits.for_nothing is not None and early_visits.for_nothing.done()
            )
            assert marks_of(here, victim) == []
            here.start(0)
            await here.until(here.trained)
            line = receivers(here, 0)
            assert victim not in line
            for peer in range(4):
                own = [(0, hop) for hop, who in enumerate(line, 1) if who == peer]
                assert marks_of(here, peer) == own, "what counted stays"
            ask(here, victim, "r", *trained_on(here, victim)[:1])
            await here.until(ended(here, r=victim))
            assert here.stage(victim, "r") == "done"
            assert here.peers[victim].specs == [], "nothing had to be walked"
        finally:
            going_on.set()
            await here.close()

    carry_out(main(), real=True)


async def offer(here: Hamlet, victim: int):
    """A token of good content whose sender passes over all others, without a stamp; the answer."""
    liar = Liar(here.folder, LIAR, here.memory.at(LIAR))
    work, over = here.peers[LIAR].service.work, sorted({0, 1, 3} - {victim})
    chosen = work.choose(3, LIAR, {}, over)
    assert chosen is not None
    attempt, move = chosen
    token = work.space.token(hop=2, at=0, memory={})
    data, state = b"".join(map(bytes, token_pieces(token))), here.peers[victim].service.state
    envelope = liar.words(
        "offer",
        parcel={
            "generation": list(state.fence),
            "hop": 2,
            "leg": 0,
            "lineage": [[*generation, since] for generation, since in state.lineage],
        },
        path=[victim],
        move={
            "mover": LIAR,
            "attempt": attempt,
            "receiver": move.receiver,
            "path": list(move.path),
            "memory": dict(move.memory),
        },
        passed_over=over,
        size=len(data),
    )

    async def pieces() -> AsyncIterator[bytes]:
        yield data

    return codec.parse(await liar.transport.hand(victim, envelope, pieces, PATIENCE), 1 << 20)


def test_a_mark_is_taken_back_once_whichever_comes_first():
    undone: list[str] = []
    mark = Mark()
    mark.written(lambda: undone.append("written first"))
    assert undone == []
    mark.take_back()
    mark.take_back()
    assert undone == ["written first"]
    early = Mark()
    early.take_back()
    early.written(lambda: undone.append("written late"))
    assert undone == ["written first", "written late"]
