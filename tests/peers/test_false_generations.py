"""Generations that a liar opens: whatever one honest peer believes, it can show to all others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import combinations
from typing import Any

import msgspec
import pytest

from tests.peers import scheduler
from tests.peers.harness import Village, lived
from tests.peers.liars import Liar
from unwalk.core.plan import Move
from unwalk.peers.handover import turns
from unwalk.peers.handover.moves import move_to
from unwalk.peers.handover.service import Service
from unwalk.peers.handover.turns import Turns
from unwalk.peers.handover.visit import Work, plan_of
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.handover import Lineage, Parcel, Reply
from unwalk.peers.protocol.hoplog import Entry, recovery_body, sign_entry

PEERS = range(4)
HOPS = 16
NO = codec.dump(codec.reply_to(Reply("refused"), "no"))


@pytest.fixture
def slow(monkeypatch):
    """Visits that take a while, so that a lie comes in time."""
    monkeypatch.setattr(scheduler, "THREAD", 0.2)


def route_of(here: Village, hops: int) -> list[int]:
    """Who does which visit while nobody is passed over, the first at index 0."""
    work, at, route = Work(plan_of(here.network), 0), -1, list[int]()
    memory: dict[str, int] = {}
    for hop in range(1, hops + 1):
        move = work.move(hop, at, memory, 0)
        at, memory = move.receiver, dict(move.memory)
        route.append(at)
    return route


class FalseOpener(Liar):
    """A member that signs recoveries whenever it likes."""

    async def opens(
        self,
        chain: str,
        token: str,
        hop: int,
        lineage: Lineage,
        number: int = 1,
    ) -> tuple[Entry, Lineage]:
        """A generation after what the others sign for it now, and its lineage."""
        asked = self.words("where", chain=chain, number=number)
        seen = [await self.tell(peer, asked) for peer in PEERS if peer != self.me]
        longer = (*lineage, ((number, self.me), hop))
        body = recovery_body(
            run=self.network.run_id,
            generation=(number, self.me),
            lineage=longer,
            peer=self.me,
            hop=hop,
            token=token,
            lost=-1,
            sightings=seen,
        )
        pem = self.bundle.certificate_pem.decode()
        return sign_entry(chain, body, self.bundle.sign, pem), longer

    async def after(self, kept: Parcel, number: int = 1) -> tuple[Entry, Lineage]:
        """A generation that goes on from this copy."""
        return await self.opens(kept.chain, kept.token, kept.hop, kept.lineage, number)


async def gone(here: Village, peer: int) -> None:
    """A member is no longer the daemon that it was."""
    await here.crash(peer)
    here.tasks.pop(peer)
    here.services.pop(peer)


async def copy_of(service: Service, hop: int) -> Parcel:
    """What a peer keeps after it has handed over the token of this visit."""
    while service.state.kept is None or service.state.kept.hop != hop:
        await asyncio.sleep(0.002)
    return service.state.kept


def ends(here: Village, peers: Iterable[int]) -> Any:
    return lambda: here.finished(*peers)


def test_what_leads_to_a_generation_is_shown_by_whoever_believes_it(tmp_path, slow, monkeypatch):
    """Two generations, one after the other; one peer alone is shown both, then the liar leaves."""
    monkeypatch.setattr(turns, "ROUNDS", 0)  # as if it had waited for its turn

    async def script(here: Village) -> None:
        route = route_of(here, HOPS)
        liar_index = route[2]
        hop = route.index(liar_index) + 1
        honest = [p for p in PEERS if p != liar_index]
        victim = next(p for p in honest if p != route[hop])
        liar = FalseOpener(here.folder, liar_index, here.memory.at(liar_index))
        for peer in PEERS:
            here.start(peer)
        kept = await copy_of(here.services[liar_index], hop)
        one, lineage = await liar.after(kept)
        early, _ = await liar.opens(one["chain"], kept.token, kept.hop, lineage, 2)
        await liar.tell(victim, liar.words("fence", entry=early))
        assert here.services[victim].state.fence[0] == 0, "nobody knew what it went on from"
        await liar.tell(victim, liar.words("fence", entry=one))
        two, _ = await liar.opens(one["chain"], kept.token, kept.hop, lineage, 3)
        await gone(here, liar_index)

        class ShowsOne:
            async def take(self, *_: Any) -> bytes:
                return NO

            async def answer(self, sender: int, message: bytes) -> bytes:
                said = codec.parse(message, 1 << 18)
                wanted = sender == victim and said.get("chain") == one["chain"]
                return codec.dump({"entry": one}) if wanted else NO

        here.memory.handlers[liar_index] = ShowsOne()
        await liar.tell(victim, liar.words("fence", entry=two))
        assert here.services[victim].state.fence == (3, liar_index)
        here.memory.handlers.pop(liar_index)
        await here.until(ends(here, honest))

    lived(tmp_path, script, 4, lease=0.6, connect=1.0, visit=3.0, train__hops=HOPS)


def two_visits(route: list[int], work: Work) -> tuple[int, int, int, tuple[int, ...], int, Move]:
    """Two visits of one peer, after the second of which it may say to have passed over some so
    that the token goes to somebody from whom it comes back: the visits, those, the draw."""
    for second in range(3, len(route) - 6):
        liar = route[second - 1]
        first = next((h for h in range(1, second - 1) if route[h - 1] == liar), None)
        others = [p for p in PEERS if p != liar]
        for over in (o for k in range(3) for o in combinations(others, k)):
            drawn = work.choose(second + 1, liar, {}, over)
            if first is None or drawn is None:
                continue
            back = work.choose(second + 2, drawn[1].receiver, drawn[1].memory, ())
            if back is not None and back[1].receiver == liar:
                return liar, first, second, over, *drawn
    raise AssertionError("no such route; try another seed")


@pytest.mark.parametrize("takes", [pytest.param(True, marks=pytest.mark.soak), False])
def test_a_generation_that_is_opened_twice_stops_nobody(tmp_path, slow, takes):
    """From two places; some believe in one, the peer that gets the token in the other.

    That peer can hand it on to the liar alone, who ``takes`` it or not.
    """

    async def script(here: Village) -> None:
        work = Work(plan_of(here.network), 0)
        liar_index, first, second, over, attempt, move = two_visits(route_of(here, 40), work)
        victim = move.receiver
        honest = [p for p in PEERS if p != liar_index]
        liar = FalseOpener(here.folder, liar_index, here.memory.at(liar_index))
        for peer in PEERS:
            here.start(peer)
        service, stopped = here.services[liar_index], asyncio.Event()
        send = service.token_sender.send

        def sends(state: Any, *given: Any) -> Any:
            if state.held.hop != second:
                return send(state, *given)
            stopped.set()
            return asyncio.create_task(asyncio.sleep(3600))

        service.token_sender.send = sends  # type: ignore[method-assign, assignment]
        one, _ = await liar.after(await copy_of(service, first))
        await stopped.wait()
        while (held := service.state.held) is None or held.hop != second:
            await asyncio.sleep(0.002)
        for other in here.services.values():  # who starts again forgets what it signed for
            other.turns = Turns(other.turns.peers, other.limits.lease)
        two, lineage = await liar.after(held)
        data = service.store.file(held.token).read_bytes()
        log = service.token_sender.log(held.chain, victim)
        await gone(here, liar_index)

        class Silent:
            async def take(self, sender: int, envelope: bytes, chunks: Any) -> bytes:
                _ = [piece async for piece in chunks]
                if not takes or sender != victim:
                    return NO
                return codec.dump(codec.reply_to(Reply("accepted")))

            async def answer(self, sender: int, message: bytes) -> bytes:
                raise TimeoutError

        here.memory.handlers[liar_index] = Silent()
        for peer in honest:
            if peer != victim:
                await liar.tell(peer, liar.words("fence", entry=one))
        parcel = Parcel((1, liar_index), second, 0, two["chain"], held.token, lineage)
        said = move_to(liar_index, attempt, move, over)
        said.pop("passed_over")
        envelope = liar.words(
            "offer",
            parcel=msgspec.to_builtins(codec.bare_parcel_of(parcel)),
            path=list(move.path),
            move=said,
            passed_over=list(over),
            size=len(data),
        )

        async def pieces() -> Any:
            yield data
            yield codec.dump(two)
            yield log

        assert liar.transport is not None
        answer = await liar.transport.hand(victim, envelope, pieces, 5.0)
        assert codec.parse(answer, 1 << 18)["kind"] == "accepted", answer
        await here.until(ends(here, honest))

    lived(tmp_path, script, 4, lease=0.6, connect=1.0, visit=2.0, train__hops=40)


def test_a_generation_from_the_last_visit_stops_nobody_whose_token_has_just_arrived(tmp_path, slow):
    """The liar hands its token on and opens a generation from its own visit: only it has a copy."""

    async def script(here: Village) -> None:
        route = route_of(here, HOPS)
        hop = next(h for h in range(3, HOPS - 2) if len(set(route[h - 2 : h + 1])) == 3)
        liar_index = route[hop - 1]
        honest = [p for p in PEERS if p != liar_index]
        liar = FalseOpener(here.folder, liar_index, here.memory.at(liar_index))
        for peer in PEERS:
            here.start(peer)
        entry, _ = await liar.after(await copy_of(here.services[liar_index], hop))
        await gone(here, liar_index)
        await liar.tell_all(honest, liar.words("fence", entry=entry))
        assert {here.services[p].state.fence for p in honest} == {(1, liar_index)}
        await here.until(ends(here, honest))

    lived(tmp_path, script, 4, lease=0.6, connect=1.0, visit=2.0, train__hops=HOPS)


def test_an_old_generation_that_is_shown_after_the_last_visit_stops_nobody(tmp_path, slow):
    """The end is there and not decided yet; what the last visit left cannot be handed on."""

    async def script(here: Village) -> None:
        route = route_of(here, HOPS)
        liar_index = next(p for p in route if p not in route[-2:])
        honest = [p for p in PEERS if p != liar_index]
        liar = FalseOpener(here.folder, liar_index, here.memory.at(liar_index))
        for peer in PEERS:
            here.start(peer)
        service, brought = here.services[liar_index], asyncio.Event()
        hop = route.index(liar_index) + 1
        entry, _ = await liar.after(await copy_of(service, hop))

        class ShowsItAtTheEnd:
            async def take(self, sender: int, envelope: bytes, chunks: Any) -> bytes:
                if codec.parse(envelope, 1 << 18)["kind"] != "final":
                    return await service.take(sender, envelope, chunks)
                if not brought.is_set():
                    brought.set()
                    shown = liar.words("fence", entry=entry)
                    await asyncio.gather(*(liar.tell(peer, shown) for peer in honest))
                return NO

            async def answer(self, sender: int, message: bytes) -> bytes:
                if brought.is_set() or codec.parse(message, 1 << 18)["kind"] == "decide":
                    raise TimeoutError
                return await service.answer(sender, message)

        here.memory.handlers[liar_index] = ShowsItAtTheEnd()
        await brought.wait()
        await asyncio.sleep(0.05)
        await gone(here, liar_index)
        await here.until(ends(here, honest))

    lived(tmp_path, script, 4, lease=0.6, connect=1.0, visit=2.0, train__hops=HOPS)


def test_a_token_that_one_peer_has_survives_a_generation_opened_for_nothing(tmp_path, slow):
    """The liar kept a recovery, and shows it when an honest peer has just done its visit."""

    async def script(here: Village) -> None:
        route = route_of(here, HOPS)
        liar_index = route[0]
        honest = [p for p in PEERS if p != liar_index]
        at = next(h for h in range(4, HOPS) if liar_index not in route[h - 1 : h + 1])
        holder, following = route[at - 1 : at + 1]
        liar = FalseOpener(here.folder, liar_index, here.memory.at(liar_index))
        for peer in PEERS:
            here.start(peer)
        early, _ = await liar.after(await copy_of(here.services[liar_index], 1))
        service, stopped = here.services[following], asyncio.Event()

        class TakesNothingAtFirst:
            async def take(self, sender: int, envelope: bytes, chunks: Any) -> bytes:
                offered = codec.parse(envelope, 1 << 18).get("parcel", {})
                if offered.get("hop") == at and not stopped.is_set():
                    while here.services[holder].state.stage != "offered":
                        await asyncio.sleep(0.002)
                    stopped.set()
                    await asyncio.sleep(3.0)
                    raise TimeoutError
                return await service.take(sender, envelope, chunks)

            async def answer(self, sender: int, message: bytes) -> bytes:
                return await service.answer(sender, message)

        here.memory.handlers[following] = TakesNothingAtFirst()
        await stopped.wait()
        await gone(here, liar_index)
        for peer in honest:
            await liar.tell(peer, liar.words("fence", entry=early))
        assert {here.services[p].state.fence for p in honest} == {(1, liar_index)}
        kept = here.services[holder].state.kept
        assert kept is not None
        assert kept.hop == at
        await here.until(ends(here, honest))

    lived(tmp_path, script, 4, lease=0.6, connect=1.0, visit=2.0, train__hops=HOPS)
