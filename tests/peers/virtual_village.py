"""Whole peers in virtual time, with slow visits, and clocks that differ."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.peers import scheduler
from tests.peers.harness import Village, network
from tests.peers.scheduler import LIFE, Life, Loop, in_virtual_time
from unwalk.peers.handover import turns
from unwalk.peers.handover.service import Service

DID_NOT_END = "did not end"


class VirtualVillage(Village):
    """A village whose time is the loop's; each peer may have a clock of its own."""

    loop: Loop
    lives: dict[int, Life]
    clocks: dict[int, Callable[[float], float]]

    def wall(self) -> float:
        life = LIFE.get()
        turn = self.clocks.get(life.peer) if life is not None else None
        return self.loop.now if turn is None else turn(self.loop.now)

    def start(self, peer: int) -> Service:
        life = Life(peer)
        self.lives[peer] = life
        service = life.context.run(super().start, peer)
        plain = service.transport.start

        async def begin(handler: Any) -> None:
            await plain(InContext(handler, life))

        service.transport.start = begin  # type: ignore[method-assign]
        return service

    async def until(self, done: Callable[[], bool], timeout: float = 60.0) -> None:
        end = self.loop.time() + timeout
        while not done():
            for task in self.tasks.values():
                if task.done() and not task.cancelled() and task.exception():
                    raise AssertionError("a peer failed") from task.exception()
            assert self.loop.time() < end, DID_NOT_END
            await asyncio.sleep(0.01)


class InContext:
    """A peer's handler, in that peer's own context: so that its own clock is asked."""

    def __init__(self, handler: Any, life: Life) -> None:
        self.handler, self.life = handler, life

    async def _do(self, work: Any) -> bytes:
        return await asyncio.get_running_loop().create_task(work, context=self.life.context)

    async def take(self, *given: Any) -> bytes:
        return await self._do(self.handler.take(*given))

    async def answer(self, *given: Any) -> bytes:
        return await self._do(self.handler.answer(*given))


def slow_visits(loop: Loop, seconds: float) -> None:
    plain = loop.run_in_executor

    def run(executor: Any, func: Any, *args: Any) -> Any:
        if getattr(executor, "_thread_name_prefix", "") != "visit":
            return plain(executor, func, *args)
        done = loop.create_future()

        def begin() -> None:
            inner = plain(executor, func, *args)

            def copy(found: Any) -> None:
                if done.cancelled():
                    return
                if found.exception() is not None:
                    done.set_exception(found.exception())
                else:
                    done.set_result(found.result())

            inner.add_done_callback(copy)

        loop.call_later(seconds, begin)
        return done

    loop.run_in_executor = run  # type: ignore[method-assign]


def lived_virtually(
    tmp_path: Path,
    script: Callable[[VirtualVillage], Awaitable[None]],
    peers: int,
    *,
    seed: int = 1,
    visit_takes: float = 0.0,
    clocks: dict[int, Callable[[float], float]] | None = None,
    **settings: Any,
) -> VirtualVillage:
    folder = tmp_path / "net"
    made = network(folder, peers=peers, **settings)
    here = VirtualVillage(folder, made)
    scheduler.STEPS = 50_000_000
    here.clocks, here.lives = {} if clocks is None else clocks, {}
    with in_virtual_time(seed) as loop, patch.object(turns, "time", here.wall):
        here.loop = loop
        if visit_takes:
            slow_visits(loop, visit_takes)

        async def main() -> None:
            try:
                await script(here)
            finally:
                await here.close()

        loop.run_until_complete(main())
    return here
