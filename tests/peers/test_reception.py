"""The desk of a peer while it is busy: nobody waits for an erasure, and refusals say what to do."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing, contextmanager

import pytest

from tests.peers.deletions import (
    Hamlet,
    ask,
    certificate,
    check,
    ended,
    form,
    hamlet,
    ids_of,
    network,
    trained_on,
)
from tests.peers.own_files import names_of, peer
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.grades import advised
from unwalk.peers.forgetting.request_form import RequestForm
from unwalk.peers.forgetting.requests import Requests
from unwalk.peers.records.record_store import Records
from unwalk.peers.web.live_desk import Reception

PATIENCE = 60.0


class Stuck:
    """A fault hook that holds whoever reaches ``point`` until it is let go."""

    def __init__(self, point: str) -> None:
        self.point, self.here, self.go = point, threading.Event(), threading.Event()

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.here.set()
            assert self.go.wait(PATIENCE)


@contextmanager
def erasing(kept: Records, point: str, *names: str):
    """Erase records in a thread that stays at ``point`` until the block is left."""
    stuck = Stuck(point)
    kept.fault = stuck
    done: list[int] = []
    work = threading.Thread(target=lambda: done.append(kept.erase([kept.hash(n) for n in names])))
    work.start()
    try:
        assert stuck.here.wait(PATIENCE)
        yield done
        assert not done, "it was still under way"
    finally:
        stuck.go.set()
        work.join(PATIENCE)
    assert done == [len(names)]


@pytest.fixture
def kept(tmp_path):
    made = peer(tmp_path / "bundle")
    yield made
    made.close()


def answered(work):
    """What ``work`` returns, in another thread, at once."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(PATIENCE / 4)
    assert found, "it waits for the erasure"
    return found[0]


def test_nobody_who_looks_waits_for_an_erasure_or_a_change(kept):
    requests = Requests(kept)
    requests.submit(RequestForm("a", (names_of(1)[0],), "exact"))
    with erasing(kept, "records before commit", names_of(3)[2]):
        assert answered(requests.queue) == {"received": 1}
        assert answered(lambda: requests.get("a")).stage == "received"
        assert [r.id for r in answered(requests.page)] == ["a"]
        assert answered(lambda: requests.of_chapter(1)).requests == ()
        assert answered(lambda: requests.at("received"))[0].id == "a"
        assert answered(requests.batch).ids == ("a",)
        assert answered(kept.counts).forgotten == 0, "not committed yet"
    assert kept.counts().forgotten == 1


def test_a_request_is_taken_in_while_the_source_is_written_anew(tmp_path):
    kept = peer(tmp_path / "bundle", erase_source=True)
    try:
        requests = Requests(kept)
        with erasing(kept, "source rewritten", names_of(3)[2]):
            form = RequestForm("b", (names_of(1)[0],), "exact")
            assert answered(lambda: requests.submit(form)).stage == "received"
    finally:
        kept.close()


def test_an_erasure_is_not_begun_a_second_time_by_whoever_opens_the_records(tmp_path):
    kept = peer(tmp_path / "bundle", erase_source=True)
    seen: list[str] = []

    class Second(Records):
        def _finish(self) -> None:
            seen.append("finished")
            super()._finish()

    def opened() -> None:
        Second(kept.folder, kept.declared).close()

    try:
        with erasing(kept, "source rewritten", names_of(3)[2]):
            assert kept.unclean
            other = threading.Thread(target=opened, daemon=True)
            other.start()
            other.join(0.5)
            assert other.is_alive(), "it waits for whoever erases"
            assert seen == []
        other.join(PATIENCE)
        assert not other.is_alive()
        assert seen == [], "nothing was left to do"
    finally:
        kept.close()


def test_records_that_another_process_holds_for_long_are_refused_in_a_sentence(tmp_path, kept):
    kept.db.execute("PRAGMA busy_timeout = 50")
    with closing(sqlite3.connect(kept.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InvalidInput, match="another process writes to"):
            Requests(kept).submit(RequestForm("a", (names_of(1)[0],), "exact"))
        other.execute("ROLLBACK")
    assert Requests(kept).submit(RequestForm("a", (names_of(1)[0],), "exact")).stage == "received"


def test_a_submission_leaves_the_loop_free_and_a_refused_grade_says_what_to_do(tmp_path):
    folder = tmp_path / "net"
    here = Hamlet(folder, network(folder, peers=3))

    async def main() -> None:
        try:
            here.start(0)
            chapters = here.peers[0]
            desk = Reception(chapters)
            with pytest.raises(Refused) as refused:
                await desk.submit(form("c", *ids_of(0, 1), grade="certified"))
            assert "momentum" in str(refused.value)
            assert "ask for grade exact" in advised(refused.value)
            with pytest.raises(Refused, match="'rewind' does not reach grade 'certified'"):
                await desk.submit(form("c", *ids_of(0, 1), grade="certified", method="rewind"))
            assert chapters.records is not None
            chapters.records.guard.acquire()  # as whoever writes for long has it
            try:
                asked = asyncio.create_task(desk.submit(form("e", *ids_of(0, 1))))
                await asyncio.sleep(0.3)
                assert not asked.done()
                assert desk.overview().queue == {}
            finally:
                chapters.records.guard.release()
            assert (await asked).stage == "received"
        finally:
            await here.close()

    asyncio.run(main())


def forge(text: str) -> str:
    return text.replace('"epsilon":0', '"epsilon":1', 1)


@pytest.mark.parametrize("damage", [forge, lambda _: "{", lambda text: text.replace("grade", "g")])
def test_a_damaged_certificate_is_shown_as_such_and_keeps_nothing_else_from_being_shown(
    tmp_path, damage
):
    async def script(here):
        await here.until(lambda: here.trained())
        rows = trained_on(here, 0)
        for id in ("a", "b"):
            ask(here, 0, id, rows.pop())
            await here.until(ended(here, **{id: 0}))
        desk = Reception(here.peers[0])
        names = [c.name for c in desk.certificates()]
        assert len(names) == 2
        place = certificate(here, 0, names[0])
        place.write_text(damage(place.read_text()))
        broken, good = desk.certificates()
        assert (broken.name, broken.grade, broken.complete) == (names[0], "refused", False)
        assert (good.name, good.grade, good.complete) == (names[1], "exact", True)
        privacy = desk.overview().privacy
        assert [p.certificate for p in privacy.parts] == [names[1]]
        assert f"not counted, since changed: {names[0]}" in privacy.rule
        said = await desk.verify(names[0])
        assert said is not None
        assert (said["verdict"], len(said["problems"]) > 0) == ("changed", True)

    hamlet(tmp_path, script, peers=3, hold_out=0.0)


def test_a_peer_starts_with_a_damaged_certificate_and_issues_it_again(tmp_path):
    async def script(here):
        await here.until(here.trained)
        ask(here, 0, "a", trained_on(here, 0)[0])
        await here.until(ended(here, a=0))
        await here.crash(0)
        certificate(here, 0, "chapter-1").write_text("{")
        here.start(0)
        desk = Reception(here.peers[0])
        await here.until(lambda: [c.complete for c in desk.certificates()] == [True])

    here = hamlet(tmp_path, script, peers=3, hold_out=0.0)
    assert check(here, 0, "chapter-1")["peers"]["requests"] == ["a"]
