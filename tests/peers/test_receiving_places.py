"""Places for tokens on their way: members that keep them and bring nothing hold nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.peers.harness import Village, check_end, lived
from tests.peers.liars import Liar
from unwalk.core.errors import Refused
from unwalk.peers.handover.receiving_places import PLACES, ReceivingPlaces
from unwalk.peers.storage.disk_space import DiskFull

A, B, C, HONEST = range(4)
LEASE = 0.08


def places(**failures: int) -> ReceivingPlaces:
    made = ReceivingPlaces(LEASE, lambda: None)
    made.failures.update({"abch".index(name): count for name, count in failures.items()})
    return made


async def for_ever() -> None:
    await asyncio.Event().wait()


async def a_while() -> None:
    await asyncio.sleep(LEASE / 4)


async def inside(
    made: ReceivingPlaces, sender: int, work: Callable[[], Awaitable[None]] = for_ever
) -> None:
    """Take a place and keep it as long as ``work`` takes."""
    async with made.place(sender):
        await work()


async def said(task: asyncio.Task[None]) -> str:
    with pytest.raises(Refused) as told:
        await task
    return str(told.value)


async def begun(*calls: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    return tasks


def test_who_brings_nothing_gives_its_place_up_to_who_failed_less():
    async def main() -> None:
        made = places()
        keep = await begun(inside(made, A), inside(made, B))
        for sender in (A, HONEST):  # once each, and two in all
            with pytest.raises(Refused, match="on its way already"):
                await inside(made, sender)
        assert "within the lease" in await said(keep[0])
        assert "within the lease" in await said(keep[1])
        assert made.failures == {A: 1, B: 1}
        keep = await begun(inside(made, A), inside(made, B))
        await inside(made, HONEST, a_while)
        assert "on its way already" in await said(keep[0])
        assert made.failures == {A: 1, B: 1}, "to be put out is no failure, nor to bring a token"
        bringing = await begun(inside(made, HONEST, a_while))
        with pytest.raises(Refused, match="on its way already"):
            await inside(made, A)  # it does not get its place back
        await bringing[0]
        await said(keep[1])
        assert not made

    asyncio.run(main())


def test_an_honest_peer_is_put_out_only_as_often_as_it_failed():
    async def main() -> None:
        made, outs = places(h=2), 0
        for _ in range(4):
            brought = [inside(made, p, a_while) for p in (B, HONEST)]
            tasks = await begun(*brought)
            with pytest.raises(Refused):
                await inside(made, A, wrong)
            other, honest = await asyncio.gather(*tasks, return_exceptions=True)
            assert other is None
            outs += isinstance(honest, Refused)
        assert outs == 2
        assert made.failures == {A: 2, HONEST: 2}

    async def wrong() -> None:
        raise Refused("the token's bytes do not match its digest.")

    asyncio.run(main())


def test_a_call_that_is_given_up_is_a_failure_and_a_full_disk_is_none():
    async def main() -> None:
        made = places()
        (call,) = await begun(inside(made, A))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

        async def full() -> None:
            raise DiskFull

        with pytest.raises(DiskFull):
            await inside(made, B, full)
        assert made.failures == {A: 1}
        assert not made

    asyncio.run(main())


def test_never_more_than_two_are_inside_while_one_closes_its_file():
    async def main() -> None:
        made, now, most = places(a=3, b=2, c=1), 0, 0

        async def slow() -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(LEASE / 4)
                now -= 1

        tasks = []
        for sender in (A, B, C, HONEST):
            tasks += await begun(inside(made, sender, slow))
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, Refused) for end in ended)
        assert made.failures == {A: 3, B: 2, C: 2, HONEST: 1}, "C and HONEST took A's and B's"
        assert most == PLACES

    asyncio.run(main())


async def hog(here: Village, liar: Liar, victim: int) -> None:
    """Begin a token that is never finished; again whenever the call has ended."""
    clock = asyncio.get_running_loop().time
    while True:
        state = here.services[victim].state
        lineage = [[number, peer, done] for (number, peer), done in state.lineage]
        hop = here.network.settings["train.hops"] - 1
        way = {"mover": liar.me, "attempt": 0, "receiver": victim, "path": [victim], "memory": {}}
        envelope = liar.words(
            "offer",
            parcel={"generation": list(state.fence), "hop": hop, "leg": 0, "lineage": lineage},
            path=[victim],
            move=way,
            passed_over=[],
            size=here.services[victim].work.most_bytes,
        )

        async def pieces() -> AsyncIterator[bytes]:
            yield bytes(10)
            await asyncio.Event().wait()

        assert liar.transport is not None
        began = clock()
        with suppress(TimeoutError):
            await liar.transport.hand(victim, envelope, pieces, 60.0)
        had_a_place = clock() > began + 0.1
        await asyncio.sleep(0.0 if had_a_place else 0.005)


@asynccontextmanager
async def beset(here: Village, *liars: Liar) -> AsyncIterator[None]:
    """Liars keep a place at everybody who is there."""
    tasks = [asyncio.create_task(hog(here, liar, p)) for liar in liars for p in here.services]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_two_liars_of_seven_do_not_stop_a_walk_by_keeping_both_places(tmp_path):
    honest = range(5)

    async def script(here: Village) -> None:
        liars = [Liar(here.folder, p, here.memory.at(p)) for p in (5, 6)]
        for peer in honest:
            here.start(peer)
        async with beset(here, *liars):
            await here.until(here.finished)
        refused = [e for e in here.events if e["event"] == "refused"]
        assert {5, 6} <= {e["sender"] for e in refused}
        assert any("already" in e["reason"] for e in refused), "both places were taken"

    here = lived(tmp_path, script, peers=7, lease=0.4, visit=0.8)
    check_end(here.folder, here.network, honest)


def test_a_token_that_never_ends_does_not_keep_files_from_being_removed(tmp_path):
    honest = range(3)

    def unneeded(here: Village, peer: int) -> set[str]:
        service = here.services[peer]
        store = service.store
        kept = store.named(service.run_id, service.state) | store.archived | store.pinned
        return {path.stem for path in store.tokens.glob("*.safetensors")} - kept

    async def script(here: Village) -> None:
        liar = Liar(here.folder, 3, here.memory.at(3))
        for peer in honest:
            here.start(peer)
        async with beset(here, liar):
            await here.until(here.finished, timeout=10.0)
            assert all(here.services[p].receiving for p in honest)
            await here.until(lambda: not any(unneeded(here, p) for p in honest), timeout=3.0)

    lived(tmp_path, script, peers=4, lease=20.0)
