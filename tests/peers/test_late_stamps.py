"""Tokens of a walk that ends while they come: nothing of them stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tests.peers.deletions import Hamlet, ask, ended, hamlet, trained_on
from tests.peers.harness import ROUTE
from unwalk.peers.decisions.history import find_arrival
from unwalk.peers.forgetting.erasure import receipt_of
from unwalk.peers.forgetting.plans import first_visit
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.schedule import line
from unwalk.peers.storage.store import Arrival
from unwalk.peers.transport.wire import MESSAGE, Unreachable

VICTIM = 3


def test_a_token_whose_walk_was_erased_before_its_stamp_came_is_not_taken(tmp_path):
    """It was written to disk again, with its log, after the receipt for it had been signed."""

    async def script(here: Hamlet) -> None:
        victim, taken = here.peers[VICTIM], list[tuple[int, bytes, list[bytes]]]()

        async def take(sender: int, envelope: bytes, chunks: AsyncIterator[bytes]) -> bytes:
            taken.append((sender, envelope, [chunk async for chunk in chunks]))
            here.memory.cut |= {frozenset((VICTIM, peer)) for peer in range(VICTIM)}
            raise Unreachable("it is cut off.", certain=True)

        victim.take = take  # type: ignore[method-assign]
        await here.until(lambda: here.trained(0, 1, 2))
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(lambda: here.stage(0, "r") == "erasing")
        del victim.take  # type: ignore[method-assign]
        assert not victim.specs
        (sender, envelope, (token, *signed)), *_ = taken
        stamped = asyncio.Event()

        async def late() -> AsyncIterator[bytes]:
            yield token
            await stamped.wait()
            for words in signed:
                yield words

        offered = asyncio.create_task(victim.take(sender, envelope, late()))
        await asyncio.sleep(0.01)
        here.memory.cut.clear()
        await victim.next_chapter.catch_up()
        store, bundle = victim.store, victim.bundle
        await here.until(lambda: len(victim.runs) == 2)
        await here.until(lambda: receipt_of(store, bundle, victim.runs[1], 1) is not None)
        stamped.set()
        answer: dict[str, Any] = codec.parse(await offered, MESSAGE)
        await asyncio.sleep(1.0)
        for table in ("runs", "entries", "openings", "locals", "arrivals"):
            query = f"SELECT COUNT(*) FROM {table} WHERE run = ?"
            assert store.db.execute(query, (victim.runs[0],)).fetchone() == (0,), table
        files = (bundle.store / "tokens").iterdir()
        assert not [path for path in files if path.read_bytes() == token]
        assert (answer["kind"], answer["reason"]) == ("refused", "this peer is stopping.")

    hamlet(tmp_path, script, train__hops=6, lease=5.0, seed=ROUTE)


def test_no_chapter_begins_with_a_token_that_is_not_of_the_line(tmp_path):
    """One that lay there from a walk that was forgotten, at a place with the same number."""

    async def script(here: Hamlet) -> None:
        await here.until(here.trained)
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(ended(here, r=0))
        await here.until(here.trained)
        chapters = here.peers[VICTIM]
        places = line(chapters.book.hops, chapters.specs)
        position = first_visit(VICTIM, places, chapters.visits(places))
        assert position
        asked = (chapters.runs, chapters.specs, VICTIM, position, chapters.book.hops)
        (chapter, visit), token = places[position], chapters.model(2)
        assert chapter == 1
        due = find_arrival(chapters.store, *asked)
        assert due is not None
        assert (due.done, due.token != token) == (visit - 1, True)
        stray = Arrival((0, 0), position, VICTIM, token)
        with chapters.store.transaction():
            chapters.store._put_arrival(chapters.runs[0], stray)
        assert find_arrival(chapters.store, *asked) == due

    hamlet(tmp_path, script, train__hops=8, seed=ROUTE)
