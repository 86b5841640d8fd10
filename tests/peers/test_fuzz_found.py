"""What fuzzing has found, each as a test of its own; see :mod:`tests.peers.fuzz`."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.peers import fuzz_scenes
from tests.peers.fuzz_mutations import Sent
from tests.peers.fuzz_scenes import Call, Record
from tests.peers.fuzz_target import Tally, Target
from unwalk.core.errors import Corrupt
from unwalk.peers import history


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> Record:
    return fuzz_scenes.make(tmp_path_factory.mktemp("fuzz") / "net")


def at(record: Record, name: str, script: Callable[[Target, Call], Awaitable[None]]) -> None:
    """Do something to the peer of a scene, given the call that it was about to get."""
    scene = next(s for s in record.scenes if s.name == name)

    async def main() -> None:
        target = Target(record, scene, random.Random(1), Tally())
        welcome = record.calls[scene.call]
        target.lie_as(welcome.sender)
        target.transport.answer = target._entry
        try:
            await script(target, welcome)
            assert target.tally.problems == []
        finally:
            await target.close()

    asyncio.run(main())


def sent(call: Call, *parts: bytes) -> Sent:
    return Sent(call.method, call.kind, "member", call.sender, parts or call.parts, "test")


def rows(target: Target, table: str) -> int:
    return int(target._rows()[table])


def test_a_visit_with_events_that_are_none_is_refused(record):
    """A member that is asked for visits could end the peer that asked."""
    call = next(c for c in record.calls if c.kind == "agenda-visits" and c.parts)
    visit = json.loads(call.answer)["visits"][0]
    for events in (["x"], [[]], [None], [7], 7, "x"):
        odd = {**visit, "visit": {**visit["visit"], "events": events}}
        with pytest.raises(Corrupt):
            history.check_visit(None, odd, visit["run"], 1)  # type: ignore[arg-type]


def test_a_token_that_is_refused_leaves_no_entries_of_its_log(record):
    """A member could fill a disk with logs of tokens that nobody takes."""

    async def script(target: Target, welcome: Call) -> None:
        before = rows(target, "entries")
        envelope, token, *rest = welcome.parts
        other = bytearray(token)
        other[-1] ^= 1
        outcome = await target._outcome(sent(welcome, envelope, bytes(other), *rest))
        assert "do not match its digest" in outcome
        assert rows(target, "entries") == before
        assert await target._outcome(sent(welcome)) == "accepted"
        assert rows(target, "entries") > before + 1, "its log came along"

    at(record, "walk", script)


def test_an_end_that_nobody_walked_to_is_refused(record):
    """A member could have signed every visit itself, under a generation above all others."""

    async def script(target: Target, welcome: Call) -> None:
        for _ in range(40):
            end = sent(welcome, *target.mutator.own_end(welcome))
            assert (await target._outcome(end)).startswith("refused")
            assert target.chapters.service.state.ends == ()
        assert await target._outcome(sent(welcome)) == "accepted"

    at(record, "end", script)


def test_visits_begun_for_nothing_do_not_pile_up(record):
    """Tokens without a stamp: a member could have had a peer work for hours."""

    async def script(target: Target, welcome: Call) -> None:
        service, go, began = target.chapters.service, threading.Event(), []
        visit = service.work.visit

        def slow(*args: Any, **options: Any) -> Any:
            began.append(1)
            go.wait(20.0)
            return visit(*args, **options)

        service.work.visit = slow  # type: ignore[method-assign]
        try:
            for _ in range(20):
                outcome = await target._outcome(sent(welcome, *welcome.parts[:2]))
                assert outcome.startswith("refused")
            assert service.visits._work_queue.qsize() + len(began) <= 2
        finally:
            go.set()

    at(record, "walk", script)


def test_a_visit_that_is_begun_again_is_written_down_once(record):
    """The same tokens without a stamp, slowly: a row for each could fill a disk."""

    async def script(target: Target, welcome: Call) -> None:
        service, records = target.chapters.service, target.chapters.records
        assert records is not None

        def known() -> int:
            return int(records.db.execute("SELECT COUNT(*) FROM visits").fetchone()[0])

        async def again() -> int:
            outcome = await target._outcome(sent(welcome, *welcome.parts[:2]))
            assert outcome.startswith("refused")
            await asyncio.wrap_future(service.visits.submit(lambda: None))
            return known()

        before = known()
        assert [await again() for _ in range(4)] == [before + 1] * 4
        records.exclude([records.hashes()[0]])
        assert [await again() for _ in range(2)] == [before + 2] * 2, "it could use less"

    at(record, "walk", script)
