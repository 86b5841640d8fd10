"""Tokens that leave before they are written down: nobody gets more than a stamped one."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.peers.harness import ROUTE, check_end, lived
from unwalk.core.errors import Refused
from unwalk.core.plan import Move
from unwalk.methods.network_sgd import NetworkSGD
from unwalk.peers.handover.visit import Visited, Work, plan_of
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol import messages as ms
from unwalk.peers.storage.token_files import open_token
from unwalk.peers.transport.wire import MemoryPieces

PEERS = 3


class Died(Exception):
    """What a test raises where a process would be killed."""


def test_a_peer_that_dies_before_its_stamp_leaves_no_trace_at_the_next_one(tmp_path):
    died: list[int] = []
    begun: list[int] = []

    def dying(service):
        def die(point: str) -> None:
            if point == "token left" and not died and service.state.held.hop == 3:
                died.append(service.me)
                raise Died

        return die

    def noted(service):
        begin = service.early_visits.begin

        def one(incoming, offer, file, kept):
            begin(incoming, offer, file, kept)
            if service.early_visits.begun is not None and offer.parcel.hop == 4:
                begun.append(service.me)

        return one

    async def script(here):
        for peer in range(PEERS):
            service = here.start(peer)
            service.store.fault = dying(service)
            service.early_visits.begin = noted(service)
        while not died:
            await asyncio.sleep(0.005)
        (holder,) = died
        with pytest.raises(Died):
            await here.tasks[holder]
        here.services[holder].store.close()
        (receiver,) = set(begun)
        service = here.services[receiver]
        assert receiver != holder, "the next peer had all bytes and had begun its visit"
        assert not service.receiving
        assert service.early_visits.begun is None
        assert service.state.held is None
        assert max(e["body"]["hop"] for e in service.store.entries(service.run_id)) < 4
        assert not list(service.store.tokens.glob("*.new"))
        files = {p.stem for p in service.store.tokens.glob("*.safetensors")}
        here.start(holder)
        await here.until(here.finished)
        assert begun.count(receiver) == 2, "the same token came again, and to the same peer"
        entries = service.store.entries(service.run_id)
        (left,) = {e["body"]["token"] for e in entries if e["body"]["hop"] == 4}
        assert left not in files

    done = lived(tmp_path, script, PEERS, real=True, lease=600.0)
    check_end(done.folder, done.network, range(PEERS))


def test_an_answer_may_come_when_the_token_is_long_gone(tmp_path):
    """A recovery has fenced the token off and its file was tidied away before the answer comes."""
    answered: list[str] = []

    def late(service):
        hand = service.transport.hand

        async def answer(peer, envelope, chunks, timeout):
            parcel = service.state.held
            said = await hand(peer, envelope, chunks, timeout)
            if not answered:
                above = (parcel.generation[0] + 1, 2)
                service.put(pr.fenced(service.state, above, ((above, 0),)))
                while service.store.file(parcel.token).exists():
                    await asyncio.sleep(0.01)
                answered.append(parcel.token)
            return said

        return answer

    async def script(here):
        for peer in range(PEERS):
            here.start(peer)
        here.services[0].transport.hand = late(here.services[0])
        await here.until(lambda: len(answered) > 0)
        await asyncio.sleep(0.2)
        assert not here.tasks[0].done(), "a late answer is nothing to end at"
        assert here.services[0].state.held is None

    lived(tmp_path, script, PEERS, real=True, lease=600.0, train__hops=40, seed=ROUTE)
    assert answered


class Slow:
    """A way to the next peer that stops after two pieces until it is let go on."""

    def __init__(self, service, hop: int) -> None:
        self.service, self.hop = service, hop
        self.go = asyncio.Event()
        self.pieces: list[bytes] = []
        self.ended = ""
        self.hand, service.transport.hand = service.transport.hand, self

    async def __call__(self, peer, envelope, chunks, timeout):
        mine = isinstance(chunks, MemoryPieces) and self.service.state.held.hop == self.hop
        if not mine:
            return await self.hand(peer, envelope, chunks, timeout)
        try:
            async for piece in chunks():
                self.pieces.append(piece)
                if len(self.pieces) == 2:
                    await self.go.wait()
            self.ended = "sent"
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.ended = self.ended or "cancelled"
            raise

    @property
    def digest(self) -> str:
        """Of all that was sent but the stamp and the log."""
        return hashlib.sha256(b"".join(self.pieces[:-2])).hexdigest()


async def slow_one(here, hop: int) -> Any:
    """Start all; the peer that does the visit after ``hop`` others sends its token slowly."""
    ways = []
    for peer in range(PEERS):
        ways.append(Slow(here.start(peer), hop))
    await here.until(lambda: any(way.pieces for way in ways))
    return next(way for way in ways if way.pieces)


def held_up(written: threading.Event):
    """A disk that is slow."""

    def fault(point: str) -> None:
        if point == "token written":
            written.wait(10)

    return fault


def fence(service) -> None:
    """Another peer opens a higher generation: what is here is dropped."""
    opened = (5, (service.me + 1) % PEERS)
    service.put(pr.fenced(service.state, opened, (*service.state.lineage, (opened, 0))))
    assert service.state.held is None


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr("unwalk.peers.transport.wire.CHUNK", 64)


def test_a_slow_way_does_not_keep_a_token_from_the_disk(tmp_path, small_pieces):
    async def script(here):
        way = await slow_one(here, hop=2)
        await here.until(lambda: way.service.state.stage == "offered", timeout=5.0)
        assert len(way.pieces) == 2
        held = way.service.state.held
        assert way.service.store.file(held.token).exists()
        way.go.set()
        await here.until(lambda: way.ended == "sent")
        assert way.digest == held.token

    lived(tmp_path, script, PEERS, real=True, lease=600.0)


def test_no_visit_begins_in_the_workspace_while_a_token_is_leaving_it(tmp_path, small_pieces):
    async def script(here):
        way = await slow_one(here, hop=2)
        service = way.service
        await here.until(lambda: service.state.stage == "offered")
        held = service.state.held
        fence(service)
        file = open_token(service.store.file(held.token), PEERS)
        offer = SimpleNamespace(path=(service.me,), parcel=held, move=Move(service.me, (), {}))
        kept = service.store.local(service.run_id, held.lineage)
        service.early_visits.begin(None, offer, file, kept)
        if service.early_visits.begun is not None:
            await service.early_visits.begun.result
        way.go.set()
        await here.until(lambda: way.ended == "sent")
        assert way.digest == held.token
        service.early_visits.begin(None, offer, file, kept)
        assert service.early_visits.begun is not None, "now it may"
        await service.early_visits.begun.result

    lived(tmp_path, script, PEERS, real=True, lease=600.0)


def test_a_token_that_is_dropped_while_it_is_written_stops_leaving(tmp_path, small_pieces):
    async def script(here):
        way = await slow_one(here, hop=2)
        service, written = way.service, threading.Event()
        service.store.fault = held_up(written)
        fence(service)
        written.set()
        await here.until(lambda: way.ended == "cancelled", timeout=5.0)
        way.go.set()
        await asyncio.sleep(0.05)
        assert len(way.pieces) == 2
        assert service.store.pinned == set()
        assert service.early_visits.free

    lived(tmp_path, script, PEERS, real=True, lease=600.0)


def test_the_pieces_of_a_call_that_has_ended_are_not_taken_from_the_workspace(small_pieces):
    async def main() -> None:
        data = bytearray(200)
        stamp = asyncio.get_running_loop().create_future()
        pieces = MemoryPieces([memoryview(data)], stamp)
        stream = pieces()
        assert await anext(stream) == bytes(64)
        pieces.close()
        assert [piece async for piece in stream] == []

    asyncio.run(main())


@pytest.mark.parametrize("noisy", [False, True])
def test_a_first_token_and_one_with_noise_do_not_leave_before_they_are_written(
    tmp_path, noisy, monkeypatch
):
    monkeypatch.setattr(Visited, "noisy", noisy)
    early: list[int] = []
    late: list[int] = []

    def noted(service):
        send = service.token_sender.send

        def one(state, move, pieces):
            (early if isinstance(pieces, MemoryPieces) else late).append(state.held.hop)
            return send(state, move, pieces)

        return one

    async def script(here):
        for peer in range(PEERS):
            service = here.start(peer)
            service.token_sender.send = noted(service)
        await here.until(here.finished)

    lived(tmp_path, script, PEERS, real=True, lease=600.0)
    hops = list(range(1, 12))
    assert (early, late) == (([], hops) if noisy else (hops[1:], hops[:1]))


def hop_of(said: tuple[int, bytes]) -> int:
    hop: int = json.loads(said[1])["parcel"]["hop"]
    return hop


def test_the_offer_is_told_while_the_visit_goes_on_just_as_it_is_made_then(tmp_path, monkeypatch):
    visit = Work.visit
    told: list[tuple[int, bytes]] = []
    made: list[tuple[int, bytes]] = []

    def slow(work, token, *given, **more):
        until = time.monotonic() + 10
        while 0 < token.hop < 11 and token.hop + 1 not in map(hop_of, told):
            assert time.monotonic() < until, "the visit went on, but nobody was told of its offer"
            time.sleep(0.001)
        return visit(work, token, *given, **more)

    monkeypatch.setattr(Work, "visit", slow)

    def noted(transport):
        hand = transport.hand

        async def ready(peer, envelope):
            told.append((peer, envelope))

        async def handing(peer, envelope, chunks, timeout):
            if json.loads(envelope)["kind"] == "offer":
                made.append((peer, envelope))
            return await hand(peer, envelope, chunks, timeout)

        transport.ready, transport.hand = ready, handing

    async def script(here):
        for peer in range(PEERS):
            noted(here.start(peer).transport)
        await here.until(here.finished)

    lived(tmp_path, script, PEERS, real=True, lease=600.0)
    assert list(map(hop_of, made)) == list(range(1, 12))
    assert made[0] not in told, "the first visit gave the token its momentum"
    assert set(made[1:]) <= set(told)


def test_a_token_whose_file_cannot_be_opened_is_refused_though_its_visit_has_begun(tmp_path):
    """A small token is looked through before it touches the disk."""
    begun: list[int] = []
    failed: list[int] = []

    def failing(service):
        begin = service.early_visits.begin

        def noted(incoming, offer, file, kept):
            begin(incoming, offer, file, kept)
            if offer.parcel.hop == 3 and not failed:
                failed.append(service.me)
                begun.append(service.early_visits.begun is not None)
                incoming._open = refused

        def refused():
            raise OSError(errno.EACCES, "no")

        return noted

    async def script(here):
        for peer in range(PEERS):
            service = here.start(peer)
            service.early_visits.begin = failing(service)
        await here.until(here.finished)
        (there,) = failed
        assert here.services[there].metrics.values["refusals_total"] == 1
        assert not here.services[there].receiving

    done = lived(tmp_path, script, PEERS, lease=600.0)
    assert begun == [True]
    check_end(done.folder, done.network, range(PEERS))


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_visit_that_draws_noise_does_not_begin_before_its_token_is_accepted(
    tmp_path, noise, monkeypatch
):
    """A draw stays in the register for good, and counts as an earlier one."""
    begun: list[bool] = []

    def noisy(made, secret=None):
        plan = plan_of(made, secret)
        (phase,) = plan.phases
        method = phase.method
        assert isinstance(method, NetworkSGD)
        noisy_method = replace(method, descent=replace(method.descent, noise=noise, clip=1.0))
        return replace(plan, phases=(replace(phase, method=noisy_method),))

    def noted(service):
        begin = service.early_visits.begin

        def one(*given):
            begin(*given)
            begun.append(service.early_visits.begun is not None)

        return one

    monkeypatch.setattr("tests.peers.harness.plan_of", noisy)

    async def script(here):
        for peer in range(PEERS):
            service = here.start(peer)
            service.early_visits.begin = noted(service)
        await here.until(here.finished)

    lived(tmp_path, script, PEERS, real=True, lease=600.0)
    assert set(begun) == {not noise}


def test_a_peer_ends_in_order_however_often_it_is_told_to(tmp_path):
    """A chapter that ends while a token is written: nothing of it goes on behind the next one."""
    written = threading.Event()

    async def script(here):
        service = here.start(0)
        for peer in range(1, PEERS):
            here.start(peer)
        service.store.fault = held_up(written)
        await here.until(lambda: service.early_visits.reading or service.receiving)
        await asyncio.sleep(0.1)
        task = here.tasks[0]
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.05)
        assert not task.done(), "it waits for its disk"
        written.set()
        await asyncio.gather(task, return_exceptions=True)
        assert service.closed
        assert service.store.pinned == set()
        last = [e["event"] for e in here.events if e["peer"] == "peer-0"][-1]
        assert last == "stopped"

    lived(tmp_path, script, PEERS, real=True, lease=600.0, seed=ROUTE)


def test_a_release_that_comes_late_is_old_news_and_no_refusal(tmp_path):
    """In a small network the token may be back before the peer before hears where it went."""

    async def script(here):
        for peer in range(PEERS):
            here.start(peer)
        await here.until(here.finished)
        service = here.services[0]
        other = min({1, 2} - {pr.awaited(service.state)})
        generation, (hop, leg) = service.state.reached

        async def told(place):
            words = ms.head(service.network.name, service.run_id)
            message = ms.Release(**words, generation=generation, place=place)
            return await service.control_messages.answers[ms.Release](other, message)

        assert "sighting" in await told((hop, leg))
        with pytest.raises(Refused, match="not handed to you"):
            await told((hop + 1, leg))

    lived(tmp_path, script, PEERS)
