"""A seeded event loop for whole networks of peers in one process: virtual time, hostile order.

Time jumps to the next timer when nothing is ready.  Whatever belongs to one peer is done in the
order in which it came, as in a process of its own; which peer is next, how late timers are and how
long threads take is drawn from a seed.  So is what :class:`Post` does to messages.  Peers can be
stopped (:attr:`Life.frozen`) and, as far as others can see, killed (:attr:`Life.dead`).

The same seed gives the same run, as long as nothing else is asked for the time or for randomness:
:func:`in_virtual_time` gives the modules of :mod:`unwalk.peers` the loop's clock and the seed's
salts.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import secrets
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from unwalk.peers.handover import turns
from unwalk.peers.storage import disk_space
from unwalk.peers.transport.wire import Chunks, Handler, Unreachable

STEP = 2e-4
"""Seconds that a step of a peer takes, at most."""
LATE = 2e-3
"""Seconds by which a timer is late, at most."""
THREAD = 0.012
"""Seconds that work in a thread takes, at most."""
DELAY = 4e-3
"""Seconds that a message travels, at most, where nothing else is said."""
STEPS = 2_000_000
"""Steps after which a run is taken to go on for ever."""
BEGIN = 1000.0
"""What the clock shows at the start."""


class Endless(AssertionError):
    """Nothing will ever happen again, or far too much happens."""


@dataclass(eq=False)
class Life:
    """One peer from its start to its end; ``context`` marks all that it does.

    ``dead``: nobody hears of it any more; ``buried``: it does not do anything any more.
    """

    peer: int
    frozen: bool = False
    dead: bool = False
    buried: bool = False
    tasks: dict[asyncio.Task[Any], None] = field(default_factory=dict)
    context: Context = field(default_factory=copy_context)

    def __post_init__(self) -> None:
        self.context.run(LIFE.set, self)


LIFE: ContextVar[Life | None] = ContextVar("LIFE", default=None)


class Ready:
    """What could be done now: a queue for each life, and one for whoever looks on."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.queues: dict[Life | None, deque[asyncio.Handle]] = {None: deque()}

    def append(self, handle: asyncio.Handle) -> None:
        life = handle._context.get(LIFE)  # type: ignore[attr-defined]
        if life is None or not life.buried:
            self.queues.setdefault(life, deque()).append(handle)

    def __len__(self) -> int:
        return sum(len(q) for life, q in self.queues.items() if life is None or not life.frozen)

    def clear(self) -> None:
        self.queues = {None: deque()}

    def next(self) -> asyncio.Handle | None:
        """The oldest of one peer, whichever it is."""
        able = [q for life, q in self.queues.items() if q and (life is None or not life.frozen)]
        return self.rng.choice(able).popleft() if able else None


class Loop(asyncio.BaseEventLoop):
    """The event loop."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(f"loop {seed}")
        self.now = BEGIN
        self.steps = 0
        self.busy: dict[Any, float] = {}
        self._ready = Ready(self.rng)
        self.set_task_factory(_made)  # type: ignore[arg-type]

    def time(self) -> float:
        return self.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, **options: Any
    ) -> asyncio.TimerHandle:
        return super().call_at(when + self.rng.random() * LATE, callback, *args, **options)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """As a thread of one's own would: later, one after the other for each executor."""
        done = self.create_future()

        def work() -> None:
            if done.cancelled():
                return
            try:
                found = func(*args)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(found)

        when = self.now + self.rng.random() * THREAD
        if executor is not None:
            when = self.busy[executor] = max(when, self.busy.get(executor, 0.0) + LATE)
        super().call_at(when, work)
        return done

    def _run_once(self) -> None:
        timers = self._scheduled  # type: ignore[attr-defined]
        handle = None
        while handle is None:
            while timers and (timers[0].cancelled() or timers[0].when() <= self.now):
                timer = heapq.heappop(timers)
                timer._scheduled = False
                if not timer.cancelled():
                    self._ready.append(timer)
            handle = self._ready.next()
            if handle is None:
                if not timers:
                    raise Endless("every peer waits for ever.")
                self.now = timers[0].when()
        if handle.cancelled():
            return
        self.steps += 1
        if self.steps > STEPS:
            raise Endless(f"{STEPS} steps, and no end.")
        self.now += self.rng.random() * STEP
        handle._run()

    def bury(self, life: Life) -> None:
        """All that is left to do of a life is left undone."""
        life.buried = True
        self._ready.queues.pop(life, None)

    def _process_events(self, _: Any) -> None:
        """There are none from outside."""

    def _write_to_self(self) -> None:
        """Nobody waits in a system call."""


def _made(loop: Loop, work: Any, context: Context | None = None, **options: Any) -> Any:
    task = asyncio.Task(work, loop=loop, context=context, **options)
    life = (context if context is not None else copy_context()).get(LIFE)
    if life is not None:
        life.tasks[task] = None  # in order, so that they end in order
        task.add_done_callback(life.tasks.pop, context=Context())
    return task


@contextmanager
def in_virtual_time(seed: int) -> Iterator[Loop]:
    """A loop whose clock and seed all modules of peers go by."""
    loop = Loop(seed)
    salts = random.Random(f"salts {seed}")
    clocks = [(turns, "time")]
    for name, module in list(sys.modules.items()):
        if name.startswith("unwalk.peers.") and hasattr(module, "monotonic"):
            clocks.append((module, "monotonic"))

    with ExitStack() as patches:
        for module, clock in clocks:
            patches.enter_context(patch.object(module, clock, loop.time))
        salted = patch.object(secrets, "token_hex", lambda size=32: salts.randbytes(size).hex())
        patches.enter_context(salted)
        patches.enter_context(patch.object(disk_space, "RESERVE", 1 << 16))  # or it is what costs
        asyncio.set_event_loop(loop)
        try:
            yield loop
        finally:
            asyncio.set_event_loop(None)
            loop.close()
        for module, clock in clocks:  # what is put back later would bring this loop's clock back
            if getattr(module, clock) != loop.time:
                raise AssertionError(f"{clock} of {module.__name__} was replaced, not put back.")


@dataclass(eq=False)
class Post:
    """The ways between peers: every message may be late, lost, answered to nobody, or come twice.

    ``cut`` are pairs that hear nothing of each other, ``lost``, ``lost_answers`` and ``twice``
    probabilities.  A call that its caller has given up may end at the receiver all the same.
    ``errors`` are what a receiver did not foresee.
    """

    loop: Loop
    rng: random.Random
    handlers: dict[int, tuple[Handler, Life]] = field(default_factory=dict)
    cut: set[frozenset[int]] = field(default_factory=set)
    lost: float = 0.0
    lost_answers: float = 0.0
    twice: float = 0.0
    delay: float = DELAY
    errors: list[BaseException] = field(default_factory=list)

    def at(self, peer: int, life: Life | None = None) -> Letters:
        """The transport of one peer; without a life it cannot listen."""
        return Letters(self, peer, life)

    async def travel(self) -> None:
        """One way."""
        await asyncio.sleep(self.rng.random() * self.delay)

    async def call(
        self,
        source: int,
        target: int,
        work: Callable[[Handler], Coroutine[Any, Any, bytes]],
        timeout: float,
    ) -> bytes:
        """One call; the answer, or :class:`Unreachable`."""
        end = self.loop.time() + timeout
        await self.travel()
        if self._gone(source, target) or self.rng.random() < self.lost:
            raise await self._silence(target, end)
        found = self.handlers.get(target)
        if found is None:
            raise Unreachable(f"peer {target} cannot be reached.", certain=True)
        handler, life = found
        task = self.loop.create_task(work(handler), context=life.context)
        task.add_done_callback(self._look_at, context=Context())
        try:
            async with asyncio.timeout_at(end):
                await asyncio.wait({task})
        except (TimeoutError, asyncio.CancelledError) as error:
            if self.rng.random() < 0.5:  # else it had arrived whole
                task.cancel()
            if isinstance(error, TimeoutError):
                raise Unreachable(f"peer {target} did not answer.", certain=False) from None
            raise
        if task.cancelled() or task.exception() is not None:
            raise Unreachable(f"the call to peer {target} broke off.", certain=False)
        if self.rng.random() < self.twice:
            self.loop.call_later(self.rng.random(), self._again, target, work)
        if self._gone(source, target) or self.rng.random() < self.lost_answers:
            raise await self._silence(target, end)
        await self.travel()
        return task.result()

    def _gone(self, source: int, target: int) -> bool:
        return frozenset((source, target)) in self.cut

    async def _silence(self, target: int, end: float) -> Unreachable:
        await asyncio.sleep(max(0.0, end - self.loop.time()))
        return Unreachable(f"peer {target} did not answer.", certain=False)

    def _again(self, target: int, work: Callable[[Handler], Coroutine[Any, Any, bytes]]) -> None:
        """The same once more, to whoever is there now; its answer goes nowhere."""
        if target in self.handlers:
            handler, life = self.handlers[target]
            task = self.loop.create_task(work(handler), context=life.context)
            task.add_done_callback(self._look_at, context=Context())

    def _look_at(self, task: asyncio.Task[bytes]) -> None:
        if not task.cancelled() and isinstance(task.exception(), Exception):
            error = task.exception()
            assert error is not None
            self.errors.append(error)


@dataclass(eq=False)
class Letters:
    """One peer's end of a :class:`Post`: a transport."""

    post: Post
    me: int
    life: Life | None

    async def start(self, handler: Handler) -> None:
        assert self.life is not None
        if not self.life.dead:
            self.post.handlers[self.me] = (handler, self.life)

    async def stop(self) -> None:
        if self.post.handlers.get(self.me, (None, None))[1] is self.life:
            self.post.handlers.pop(self.me, None)

    async def _alive(self) -> None:
        if self.life is not None and self.life.dead:
            await asyncio.Event().wait()

    async def ready(self, peer: int, envelope: bytes) -> None:
        pass

    async def tell(self, peer: int, message: bytes, timeout: float) -> bytes:
        await self._alive()
        return await self.post.call(
            self.me, peer, lambda handler: handler.answer(self.me, message), timeout
        )

    async def hand(self, peer: int, envelope: bytes, chunks: Chunks, timeout: float) -> bytes:
        await self._alive()
        sent: list[bytes] = []
        news, ended = asyncio.Event(), [""]

        async def pump() -> None:
            """What the sender does: piece by piece, as fast as the way allows."""
            try:
                async for chunk in chunks():
                    await self.post.travel()
                    if chunk:
                        sent.append(chunk)
                        news.set()
                ended[0] = "whole"
            except Exception:
                ended[0] = "broken"
            finally:
                ended[0] = ended[0] or "broken"
                news.set()

        async def stream() -> AsyncIterator[bytes]:
            """What the receiver reads."""
            read = 0
            while True:
                while read < len(sent):
                    read += 1
                    yield sent[read - 1]
                if ended[0] == "whole":
                    return
                if ended[0]:
                    raise asyncio.CancelledError  # as a server's call ends when its caller goes
                news.clear()
                await news.wait()

        pumping = asyncio.ensure_future(pump())
        try:
            return await self.post.call(
                self.me, peer, lambda handler: handler.take(self.me, envelope, stream()), timeout
            )
        finally:
            pumping.cancel()
