"""Messages that are malformed, oversized, replayed, stale, forged or not finite change nothing.

:mod:`tests.peers.fuzz` makes them and looks at what comes of them.  What it has found so far has a
test of its own here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.peers import fuzz, fuzz_reasons, fuzz_scenes
from tests.peers.fuzz_mutations import Sent
from tests.peers.fuzz_scenes import Call, Record
from tests.peers.fuzz_target import Tally, Target
from tests.peers.harness import Village, network
from unwalk.core.errors import Corrupt, Refused
from unwalk.peers.decisions import history
from unwalk.peers.demo import equal_bytes, same_walk
from unwalk.peers.handover.visit import plan_of
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.hoplog import sign_entry
from unwalk.peers.protocol.schedule import Spec
from unwalk.peers.storage.token_files import open_token, token_pieces
from unwalk.peers.transport.wire import MESSAGE

PEERS = 4


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> Record:
    return fuzz_scenes.make(tmp_path_factory.mktemp("fuzz") / "net")


def test_what_travels_is_read_and_written_the_same(record):
    sent = [c for c in record.calls if c.parts and c.method != "hello"]
    for call in sent:
        assert ms.encode(ms.decode(call.parts[0], MESSAGE)) == call.parts[0]
    kinds = {t.__struct_config__.tag for t in get_args(ms.WALK | ms.NETWORK)}
    assert {c.kind for c in sent} == kinds, "every message there is"


def test_what_is_said_to_be_met_elsewhere_is_a_sentence():
    known = [words for _, words in fuzz_reasons.patterns()]
    for start in fuzz_reasons.ELSEWHERE:
        assert any(words.startswith(start) for words in known), start


def test_500_bad_messages(record):
    found = fuzz.in_process(record.folder, 500, seed=1)
    assert found.problems == []
    assert {"member", "revoked", "stranger", "expired member"} == set(found.senders)
    assert len(found.reasons) > 50, "so many checks were reached"
    refused = sum(n for (_, word), n in found.outcomes.items() if word.startswith("refused"))
    assert refused > 150


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("count", "tls"), [(100_000, False), (5_000, True)])
def test_many_bad_messages(count, tls):
    found = fuzz.run(count, seed=2, jobs=1, tls=tls)
    assert found["problems"] == []
    assert found["messages"] >= count
    if not tls:
        assert len(found["not_reached"]) < 15, found["not_reached"]


# What was found


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
    calls = [c for c in record.calls if c.kind == "agenda-visits" and c.parts]
    visit = next(found[0] for c in calls if (found := json.loads(c.answer)["visits"]))
    odd_events: list[Any] = [["x"], [[]], [None], [7], 7, "x"]
    for events in odd_events:
        odd = {**visit, "visit": {**visit["visit"], "events": events}}
        with pytest.raises(Corrupt):
            history.check_visit(None, odd, visit["run"], 1)  # type: ignore[arg-type]


def test_a_chapter_with_a_method_that_is_no_word_is_refused(record):
    """A member that offered one could end every vote on the next chapter."""
    spec = json.loads(record.true["chapters"][0])["spec"]
    assert Spec.from_json(spec, PEERS).method == "rewind"
    odd_words: list[Any] = [[], {}, None, 7, [spec["method"]]]
    for odd in odd_words:
        for name in ("method", "grade"):
            with pytest.raises(Corrupt, match="forgets by"):
                Spec.from_json({**spec, name: odd}, PEERS)


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


def test_a_peer_that_shows_another_generation_has_to_wait_for_the_log_of_the_first(record):
    """A member could have had a peer ask for logs without end, each for a lease."""

    async def script(target: Target, welcome: Call) -> None:
        service, go, tell = target.chapters.service, asyncio.Event(), target.transport.tell

        async def slow(peer: int, message: bytes, timeout: float) -> bytes:
            await go.wait()
            return await tell(peer, message, timeout)

        target.transport.tell = slow  # type: ignore[method-assign]
        service.store.db.execute("DELETE FROM entries")
        first, second = (asyncio.create_task(target._outcome(sent(welcome))) for _ in range(2))
        await asyncio.wait({second}, timeout=1.0)
        go.set()
        assert "another generation that you show" in await second
        assert await first == "answered"

    at(record, "fence", script)


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


def test_visits_that_come_to_nothing_are_not_written_down(record):
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
        assert [await again() for _ in range(4)] == [before] * 4
        records.exclude([records.hashes()[0]])
        assert [await again() for _ in range(2)] == [before] * 2

    at(record, "walk", script)


def test_a_token_gets_nowhere_without_a_way(record):
    """A visit that says that the token stayed, and was elsewhere before."""

    async def script(target: Target, welcome: Call) -> None:
        service, entries = target.chapters.service, target.mutator.entries
        last = json.loads(welcome.parts[2])
        before = entries[last["body"]["previous"]]["body"]
        service.succession.entry(last, before)
        body = {k: v for k, v in last["body"].items() if k != "previous"}
        body["visit"] = {**body["visit"], "path": []}
        bundle = target.members[body["peer"]]
        pem = bundle.certificate_pem.decode()
        forged = sign_entry(last["body"]["previous"], body, bundle.sign, pem)
        with pytest.raises(Refused, match="did not come from where"):
            service.succession.entry(forged, before)

    at(record, "walk", script)


def test_a_message_that_comes_another_way_is_refused(record):
    """A token is handed over, everything else is told."""

    async def script(target: Target, welcome: Call) -> None:
        told = Sent("tell", "offer", "member", welcome.sender, welcome.parts[:1], "test")
        assert "comes with a token" in await target._outcome(told)
        question = target.chapters.service.control_messages.words(ms.Where, chain="", number=0)
        handed = sent(welcome, question, *welcome.parts[1:])
        assert "offered as something unknown" in await target._outcome(handed)

    at(record, "walk", script)


# Offers to one service


def snapshot(service) -> Any:
    """Everything durable, and the state in memory."""
    dump = "\n".join(service.store.db.iterdump())
    files = sorted(
        (p.name, hashlib.sha256(p.read_bytes()).hexdigest())
        for p in service.store.tokens.glob("*.safetensors")
    )
    left = [p.name for p in service.store.tokens.glob("*.new")]
    return service.state, hashlib.sha256(dump.encode()).hexdigest(), files, left


class Offered:
    """A good offer for one peer, held back."""

    def __init__(self, village: Village) -> None:
        self.village = village

    async def prepare(self) -> None:
        village = self.village
        caught: dict[str, Any] = {}
        for peer in range(PEERS):
            hold_back(village.start(peer).transport, caught)
        await village.until(lambda: "envelope" in caught)
        self.target = village.services[caught["peer"]]
        self.sender: int = caught["sender"]
        self.envelope: bytes = caught["envelope"]
        *pieces, self.stamp, _ = caught["chunks"]
        self.data = b"".join(pieces)

    async def send(self, data: bytes, *rest: bytes) -> Any:
        async def stream():
            for chunk in (data, *rest):
                yield chunk

        answer = await self.target.take(self.sender, self.envelope, stream())
        return codec.parse(answer, 1 << 18)


def hold_back(transport, caught) -> None:
    """Keep the first offer instead of sending it."""

    async def hand(peer, envelope, chunks, timeout):
        if not caught:
            data = [chunk async for chunk in chunks()]
            caught.update(peer=peer, sender=transport.me, envelope=envelope, chunks=data)
        await asyncio.sleep(3600)

    transport.hand = hand


def test_a_visit_begun_ahead_counts_only_if_its_token_is_accepted(tmp_path):
    folder = tmp_path / "net"
    village = Village(folder, network(folder, peers=PEERS, lease=600.0, graph__kind="ring"))

    async def main() -> None:
        scene = Offered(village)
        try:
            await scene.prepare()
            target, good, stamp = scene.target, scene.data, scene.stamp
            count = counted(target)
            other = open_token(write(folder / "t", scene.data), PEERS).token().clone()
            other.parameters.zero_()
            wrong = b"".join(token_pieces(other))
            for message in ((good,), (wrong, stamp), (wrong,)):
                assert (await scene.send(*message))["kind"] == "refused"
                await asyncio.wrap_future(target.visits.submit(lambda: None))  # its visit is over
                assert target.early_visits.begun is None
            assert (await scene.send(good, stamp))["kind"] == "accepted"
            await village.until(lambda: target.state.stage == "offered")
            assert count[0] == 4, "three were begun for nothing"
            assert target.state.held.hop == 2
            path = target.store.file(target.state.held.token)
            walked = same_walk(plan_of(village.network), [scene.sender, target.me])
            assert equal_bytes(open_token(path, PEERS).token(), walked)
        finally:
            await village.close()

    asyncio.run(main())


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def counted(service) -> list[int]:
    """How many visits were begun from now on."""
    count, visit = [0], service.work.visit

    def one_more(*args, **options):
        count[0] += 1
        return visit(*args, **options)

    service.work.visit = one_more
    return count


def test_too_many_calls_are_refused(tmp_path):
    folder = tmp_path / "net"
    village = Village(folder, network(folder, peers=3, lease=600.0))

    async def main() -> None:
        service = village.start(2)
        service.door.rate.rate = 5.0
        message = service.control_messages.words(ms.Where, chain="", number=0)
        replies = [codec.parse(await service.answer(1, message), 1 << 18) for _ in range(12)]
        assert sum("sighting" in r for r in replies) == 10
        assert "5 calls a second" in replies[-1]["reason"]
        other = codec.parse(await service.answer(0, message), 1 << 18)
        assert "sighting" in other, "another peer has a limit of its own"
        message += b" " * (20 << 10)
        replies = [codec.parse(await service.answer(0, message), 1 << 18) for _ in range(2)]
        assert ["sighting" in r for r in replies] == [True, False], "5 calls, by their bytes"
        await village.close()

    asyncio.run(main())
