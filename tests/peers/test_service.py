"""Whole walks of peers in one process, undisturbed and disturbed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from time import monotonic

import pytest

from tests.peers.deletions import Hamlet
from tests.peers.harness import Village, carry_out, check_end, lived, network
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.hoplog import recovery_body


def walk(tmp_path, script, peers=4, lease=0.4, **settings):
    """The village in which ``script(village)`` was carried out."""
    return lived(tmp_path, script, peers, lease=lease, **settings)


def events(village: Village) -> Counter[str]:
    return Counter(e["event"] for e in village.events)


def test_an_undisturbed_walk_is_the_simulators(tmp_path):
    async def script(village):
        for peer in range(4):
            village.start(peer)
        await village.until(village.finished)

    village = walk(tmp_path, script)
    served = check_end(village.folder, village.network, range(4))
    plan_route = [e["peer"] for e in village.events if e["event"] == "visited"]
    assert [f"peer-{p}" for p in served] == plan_route
    seen = events(village)
    assert (seen["visited"], seen["handed"], seen["recovered"]) == (12, 11, 0)
    text = village.services[0].metrics.text().decode()
    assert f'unwalk_committed{{peer="peer-0",run="{village.network.run_id}"}} 1' in text


def test_visits_begin_while_their_token_is_written_down_and_each_is_done_once(tmp_path):
    done = []

    def counted(visit):
        def one(*given, **named):
            done.append(1)
            return visit(*given, **named)

        return one

    async def script(village):
        for peer in range(4):
            service = village.start(peer)
            service.work.visit = counted(service.work.visit)
        await village.until(village.finished)

    village = walk(tmp_path, script, lease=60.0)  # a call that takes longer is done again
    assert len(done) == 12
    began = {e["hop"]: e["began"] for e in village.events if e["event"] == "visited"}
    came = {e["hop"] + 1: e["at"] for e in village.events if e["event"] == "received"}
    assert sum(began[hop] < came[hop] for hop in came) > len(came) / 2


@pytest.mark.parametrize("settings", [{"train__state": "local"}, {"graph__kind": "ring"}])
def test_other_walks_are_the_simulators_too(tmp_path, settings):
    async def script(village):
        for peer in range(4):
            village.start(peer)
        await village.until(village.finished)

    village = walk(tmp_path, script, **settings)
    assert len(check_end(village.folder, village.network, range(4))) == 12


def test_a_peer_that_is_down_is_passed_over_and_the_log_says_so(tmp_path):
    async def script(village):
        for peer in (0, 1, 2):
            village.start(peer)
        await village.until(lambda: village.finished(0, 1, 2))
        village.start(3)
        await village.until(village.finished)

    village = walk(tmp_path, script)
    served = check_end(village.folder, village.network, range(4))
    assert 3 not in served
    over = [e for e in village.events if e["event"] == "passed over"]
    assert over
    assert all(e["to"] == 3 for e in over)


def test_when_the_holder_dies_its_neighbour_goes_on(tmp_path):
    async def script(village):
        for peer in range(4):
            village.start(peer)
        await village.until(lambda: any(s.state.reached[1][0] >= 4 for s in all_of(village)))
        await village.until(lambda: any(s.state.stage for s in all_of(village)))
        holder = next(s.me for s in all_of(village) if s.state.stage)
        await village.crash(holder)
        others = [p for p in range(4) if p != holder]
        await village.until(lambda: village.finished(*others))
        village.start(holder)
        await village.until(village.finished)

    village = walk(tmp_path, script)
    check_end(village.folder, village.network, range(4))


def all_of(village):
    return list(village.services.values())


def test_a_lost_answer_does_not_make_a_second_token(tmp_path):
    async def script(village):
        for peer in range(4):
            village.start(peer)
        village.memory.lose_answers = {(a, b) for a in range(4) for b in range(4)}
        await asyncio.sleep(0.5)
        village.memory.lose_answers = set()
        await village.until(village.finished)

    village = walk(tmp_path, script, lease=2.0)
    check_end(village.folder, village.network, range(4))
    visits = [e["hop"] for e in village.events if e["event"] == "visited"]
    assert sorted(visits) == list(range(1, 13)), "no hop was served twice"


def test_a_partition_ends_in_one_lineage(tmp_path):
    async def script(village):
        for peer in range(5):
            village.start(peer)
        await village.until(lambda: any(s.state.reached[1][0] >= 4 for s in all_of(village)))
        await village.until(lambda: any(s.state.stage for s in all_of(village)))
        alone = next(s.me for s in all_of(village) if s.state.stage)
        village.memory.cut = {frozenset((alone, p)) for p in range(5) if p != alone}
        others = [p for p in range(5) if p != alone]
        await village.until(lambda: village.finished(*others))
        assert village.services[alone].state.committed is None
        village.memory.cut = set()
        await village.until(village.finished)

    village = walk(tmp_path, script, peers=5)
    check_end(village.folder, village.network, range(5))


def test_stopping_hands_the_token_over(tmp_path):
    async def script(village):
        for peer in range(4):
            village.start(peer)
        await village.until(lambda: any(s.state.stage for s in all_of(village)))
        holder = next(s for s in all_of(village) if s.state.stage)
        holder.stop()
        async with asyncio.timeout(10):
            await village.tasks[holder.me]
        assert holder.state.held is None
        holder.store.close()
        others = [p for p in range(4) if p != holder.me]
        await village.until(lambda: village.finished(*others))
        village.start(holder.me)
        await village.until(village.finished)

    village = walk(tmp_path, script)
    check_end(village.folder, village.network, range(4))
    assert events(village)["recovered"] == 0


def test_a_generation_counts_only_if_a_quorum_signed_that_the_token_was_lost(tmp_path):
    """Whoever is told of one by a member that made it up keeps its token."""

    async def script(village):
        services = [village.start(peer) for peer in range(4)]
        await village.until(lambda: any(s.state.stage for s in services))
        holder = next(s for s in services if s.state.stage)
        other, *rest = [s for s in services if s is not holder]
        basis = pr.basis(other.state)
        assert basis is not None
        seen = await other.control_messages.ask_all(basis.chain, 1)
        signed = [seen[s.me].record for s in rest]

        def opened(number, sightings, by=other, start=0):
            lineage = (*basis.lineage, ((number, other.me), start))
            body = recovery_body(
                run=other.run_id,
                generation=(number, other.me),
                lineage=lineage,
                peer=other.me,
                hop=start,
                token=basis.token,
                lost=holder.me,
                sightings=sightings,
            )
            return by.sign(basis.chain, body)

        async def tell(entry):
            message = holder.control_messages.words(ms.Fence, entry=entry)
            return codec.parse(await holder.answer(other.me, message), 1 << 18)

        wrong = [
            opened(1, signed[:1]),
            opened(1, [signed[0], signed[0]]),
            opened(2**30, signed),
            opened(2, signed),
            opened(1, signed, by=rest[0]),
            opened(1, [signed[0], {**signed[1], "signature": "00" * 64}]),
            opened(1, [*signed, seen[holder.me].record]) if holder.state.reached[1][0] else {},
            {},
        ]
        held = holder.state.held
        for entry in wrong:
            assert (await tell(entry))["kind"] == "refused"
        assert holder.state.fence == basis.generation
        assert holder.state.held is None or holder.state.held.hop >= held.hop
        if holder.state.held is not None:
            reply = await tell(opened(1, signed))
            assert codec.sighting_from(reply["sighting"]).fence == (1, other.me)
            assert holder.state.held is None
            assert events(village)["dropped"] == 1

    walk(tmp_path, script)


def test_recovery_needs_a_quorum(tmp_path):
    async def script(village):
        services = [village.start(peer) for peer in range(4)]
        await village.until(lambda: any(s.state.reached[1][0] >= 2 for s in services))
        keeper = next(
            s for s in services if pr.basis(s.state) is not None and s.state.kept_for >= 0
        )
        for service in services:
            if service is not keeper:
                await village.crash(service.me)
        await keeper.recovery.look_around()
        assert keeper.state.fence[0] == 0

    walk(tmp_path, script)


@pytest.mark.parametrize("what", ["visit", "hand-over"])
def test_a_peer_that_is_asked_to_stop_ends_when_its_time_is_over(tmp_path, what):
    """``limits.stop`` is kept, with the token safe, whatever takes longer than that."""
    go_on = threading.Event()

    async def hang(peer, envelope, chunks, timeout):
        await asyncio.sleep(3600)

    def long(*given, **named):
        go_on.wait(10)
        raise AssertionError("nobody waits for this")

    async def script(village):
        services = [village.start(peer) for peer in range(4)]
        for service in services:
            if what == "visit":
                service.work.visit = long
            else:
                service.transport.hand = hang
        stage = "arrived" if what == "visit" else "offered"
        await village.until(lambda: any(s.state.stage == stage for s in services))
        holder = next(s for s in services if s.state.stage == stage)
        holder.stop()
        begun = monotonic()
        async with asyncio.timeout(8):
            await village.tasks[holder.me]
        assert monotonic() - begun == pytest.approx(holder.limits.stop, abs=1.0)
        assert holder.state.stage == stage
        assert holder.store.file(holder.state.held.token).exists()
        holder.store.close()
        go_on.set()

    try:
        walk(tmp_path, script, lease=600.0, real=True)
    finally:
        go_on.set()


@pytest.mark.parametrize(("kind", "stubborn"), [(Village, True), (Hamlet, False)])
def test_a_call_that_meets_a_store_that_closes_is_answered(tmp_path, kind, stubborn):
    """One that is under way ends before the store is closed, one that comes later is refused."""

    async def script(here):
        here.start(0)
        host = here.services[0] if kind is Village else here.peers[0]
        service = host if kind is Village else host.service
        begun, go_on = asyncio.Event(), asyncio.Event()
        answers = service.control_messages.answers
        answer = answers[ms.EntryOf]

        async def slow(sender, message):
            begun.set()
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                if not stubborn:
                    raise
                await asyncio.sleep(0.1)
            return await answer(sender, message)

        answers[ms.EntryOf] = slow
        asked = service.control_messages.words(ms.EntryOf, chain="0" * 64)
        call = asyncio.create_task(host.answer(1, asked))
        await begun.wait()
        await here.crash(0)
        go_on.set()
        found = [
            codec.parse(await call, 1 << 18),
            codec.parse(await host.answer(1, asked), 1 << 18),
        ]
        refused = ("refused", "this peer is stopping.")
        assert [(a.get("kind"), a.get("reason")) == refused for a in found] == [not stubborn, True]
        assert not stubborn or found[0] == {"entry": None}

    folder = tmp_path / "net"
    here = kind(folder, network(folder, peers=3))

    async def main() -> None:
        try:
            await script(here)
        finally:
            await here.close()

    carry_out(main())
