"""Peers that leave: nothing of theirs is needed any more, and the rest decides without them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.peers.deletions import ask, check, ended, hamlet, trained_on
from tests.peers.harness import ROUTE
from unwalk.core.errors import InvalidInput, Refused
from unwalk.peers.decisions import history
from unwalk.peers.forgetting.erasure import Receipt, left_of
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.lifecycle.leaving import LEAVING
from unwalk.peers.lifecycle.progress import VANISHED
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import messages as ms
from unwalk.peers.provision import rotate


def leave(here, peer: int) -> None:
    """What ``unwalk peer leave --forget-all`` hands in."""
    chapters = here.peers[peer]
    chapters.requests.submit_all(f"leave-peer-{peer}")
    with chapters.records.transaction(touches=False):
        chapters.records.put_fact(LEAVING, f"leave-peer-{peer}")
    chapters.wake.set()


async def gone(here, peer: int) -> None:
    async with asyncio.timeout(60):
        await here.tasks[peer]
    here.peers[peer].store.close()


def test_peers_leave_one_after_the_other_and_the_rest_goes_on(tmp_path):
    """Five peers, of which three leave: the two that stay decide by themselves."""
    seen: dict[str, Any] = {}

    async def script(here):
        await here.until(here.trained)
        for peer in (1, 3, 4):
            leave(here, peer)
            await gone(here, peer)
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(ended(here, r=0))
        assert here.stage(0, "r") == "done"
        last = here.peers[0].specs[-1]
        assert last.left == (1, 3, 4)
        visits = here.peers[0].visits([(last.number, 1)])[last.number]
        assert {v["visit"]["receiver"] for v in visits} == {0, 2}
        seen.update(name=f"chapter-{last.number}")

    here = hamlet(tmp_path, script, peers=5, train__hops=8, seed=ROUTE)
    document = check(here, 0, seen["name"])
    assert document["peers"]["pending"] == []
    runs = {r["peer"]: r["run"] for r in document["peers"]["receipts"]}
    assert {p for p, run in runs.items() if run == left_of(here.network.run_id)} == {
        "peer-1",
        "peer-3",
        "peer-4",
    }
    for peer in (1, 3, 4):
        store = here.folder / f"peer-{peer}" / "store"
        assert not list((store / "tokens").iterdir()), "it kept no model"
        assert check(here, peer, f"chapter-{(1, 3, 4).index(peer) + 1}")


def test_one_of_those_who_stay_may_die_as_well(tmp_path):
    """Four peers: two of four decide nothing, two of the three that stayed do."""

    async def script(here):
        await here.until(here.trained)
        leave(here, 1)
        await gone(here, 1)
        await here.crash(3)
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(lambda: here.stage(0, "r") == "erasing")
        here.start(3)
        await here.until(ended(here, r=0))

    here = hamlet(tmp_path, script, train__hops=8)
    assert check(here, 0, "chapter-2")["peers"]["pending"] == []


def test_a_peer_that_has_left_and_starts_again_says_so_again(tmp_path):
    async def script(here):
        await here.until(here.trained)
        leave(here, 1)
        await gone(here, 1)
        here.start(1)
        await gone(here, 1)
        assert all(history.left(here.peers[p].store) == {1} for p in (0, 2))

    hamlet(tmp_path, script, peers=3, train__hops=6)


def test_one_of_two_peers_leaves(tmp_path):
    async def script(here):
        await here.until(here.trained)
        leave(here, 1)
        await gone(here, 1)
        assert here.peers[0].next_chapter.poll.rules.members == (0,)

    here = hamlet(tmp_path, script, peers=2, train__hops=6)
    assert check(here, 1, "chapter-1")["peers"]["pending"] == []


def test_a_peer_that_leaves_waits_for_those_who_need_it_or_read_its_database(tmp_path):
    async def script(here):
        await here.until(here.trained)
        chapters = here.peers[1]
        ready, here.peers[2].ready = here.peers[2].ready, lambda number: False
        leave(here, 1)
        await here.until(lambda: here.stage(1, "leave-peer-1") == "done")
        await asyncio.sleep(0.5)
        assert not here.tasks[1].done()
        assert chapters.model(2) is not None
        erase, failed = chapters.request_steps.leaving.erase_all, []

        def busy():
            chapters.request_steps.leaving.erase_all = erase
            failed.append(1)
            raise InvalidInput("a program reads the database.")

        chapters.request_steps.leaving.erase_all = busy
        here.peers[2].ready = ready
        await gone(here, 1)
        assert failed

    hamlet(tmp_path, script, peers=3, train__hops=6)


def test_a_peer_may_leave_after_another_has_vanished(tmp_path):
    async def script(here):
        await here.until(here.trained)
        await here.crash(3)
        for peer in range(3):
            records = here.peers[peer].records
            with records.transaction(touches=False):
                records.put_fact(f"{VANISHED}3", "gone-for-good")
            here.peers[peer].wake.set()
        await here.until(lambda: all(here.peers[p].left == {3} for p in range(3)))
        leave(here, 1)
        await gone(here, 1)
        await here.until(lambda: all(here.peers[p].left == {1, 3} for p in (0, 2)))
        ask(here, 2, "r", *trained_on(here, 2)[:1])
        await here.until(lambda: here.stage(2, "r") == "erasing")

    here = hamlet(tmp_path, script, train__hops=8)
    assert [s.left for s in here.peers[2].specs[:2]] == [(3,), (1, 3)]


def test_nobody_can_say_that_another_has_left(tmp_path):
    async def script(here):
        await here.until(here.trained)
        time = "2026-01-01T00:00:00+00:00"
        left = left_of(here.network.run_id)
        receipt = Receipt("test", left, 0, "peer-1", (), 0, time).signed(here.peers[1].bundle)
        message = here.peers[1].next_chapter.words(
            ms.AgendaLeft, number=0, receipt=receipt.to_json()
        )
        answer = codec.parse(await here.peers[0].answer(2, message), 1 << 20)
        assert "says that peer-1 has left" in answer["reason"]
        other = Receipt("test", "0" * 32, 0, "peer-1", (), 0, time).signed(here.peers[1].bundle)
        with pytest.raises(Refused, match="for run 0000"):
            here.peers[0].next_chapter.hear_left(1, other.to_json())
        assert history.left(here.peers[0].store) == set()
        assert here.peers[0].left == set()

    hamlet(tmp_path, script, peers=3, train__hops=6)


def test_nobody_has_left_after_a_chapter_that_is_far_away(tmp_path):
    """Its word would stand for all chapters before, in which it is counted and goes on walking."""

    async def script(here):
        await here.until(here.trained)
        time, left = "2026-01-01T00:00:00+00:00", left_of(here.network.run_id)
        next_chapter = here.peers[0].next_chapter
        for chapter in (2, 10**15):
            receipt = Receipt("test", left, chapter, "peer-1", (), 0, time)
            far = receipt.signed(here.peers[1].bundle).to_json()
            with pytest.raises(
                Refused, match=f"after chapter {chapter}, but chapter 1 is the next"
            ):
                next_chapter.hear_left(1, far)
        assert history.left(here.peers[0].store) == here.peers[0].left == set()
        near = Receipt("test", left, 1, "peer-1", (), 0, time).signed(here.peers[1].bundle)
        next_chapter.hear_left(1, near.to_json())  # it may know of a chapter more
        assert history.left(here.peers[0].store) == {1}

    hamlet(tmp_path, script, peers=3, train__hops=6)


def test_who_says_to_one_peer_alone_that_it_has_left_is_counted_out_by_all(tmp_path):
    """The others hear of it from the chapter that counts it out, whose peer shows them its word."""
    victim, liar = 0, 2

    async def script(here):
        await here.until(here.trained)
        time, bundle = "2026-01-01T00:00:00+00:00", here.peers[liar].bundle
        receipt = (
            Receipt("test", left_of(here.network.run_id), 0, bundle.name, (), 0, time)
            .signed(bundle)
            .to_json()
        )
        here.peers[victim].next_chapter.hear_left(liar, receipt)
        await here.crash(liar)
        ask(here, victim, "r", *trained_on(here, victim)[:1])
        await here.until(lambda: here.stage(victim, "r") == "done")
        assert [s.left for s in here.peers[1].specs] == [(liar,)]
        assert all(history.left(here.peers[p].store) == {liar} for p in (0, 1, 3))

    hamlet(tmp_path, script, train__hops=6, seed=ROUTE)


def test_nobody_is_counted_out_without_its_own_word(tmp_path):
    """A chapter that counts an honest peer out, by a peer that has nothing, or something forged."""

    async def script(here):
        await here.until(here.trained)
        one, other, time = here.peers[0], here.peers[1], "2026-01-01T00:00:00+00:00"
        forged = (
            Receipt("test", left_of(here.network.run_id), 0, "peer-2", (), 0, time)
            .signed(other.bundle)
            .to_json()
        )
        old = (
            Receipt("test", left_of(here.network.run_id), 0, "peer-2", (), 0, time)
            .signed(here.peers[2].bundle)
            .to_json()
        )
        ask(here, 1, "r", *trained_on(here, 1)[:1])
        spec = other.request_steps.plan(other.requests.batch(1))
        assert spec is not None
        assert one.stands_for(spec)
        changed = replace(spec, left=(2,))
        for shown in (None, forged):
            if shown is not None:
                history.put_left(other.store, 2, "peer-2", shown)
            assert not one.stands_for(changed)
            await asyncio.sleep(0.2)
            assert history.left(one.store) == set()
        rotate(here.folder, "peer-2")
        one.trust.network = Bundle.read(here.folder / "peer-0").network
        history.put_left(other.store, 2, "peer-2", old)
        assert not one.stands_for(changed)
        await asyncio.sleep(0.2)
        assert history.left(one.store) == set(), "its key was stolen and is revoked"

    hamlet(tmp_path, script, train__hops=6)
