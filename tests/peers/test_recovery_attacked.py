"""Liars that keep tokens and open generations for nothing: the walk ends all the same."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest

from tests.peers.harness import Village, check_end, lived
from tests.peers.liars import Liar
from tests.peers.test_false_generations import NO, gone, route_of
from unwalk.core.errors import Refused
from unwalk.peers.handover.log_rules import Question
from unwalk.peers.handover.log_rules import sign as sign_sighting
from unwalk.peers.handover.service import Service
from unwalk.peers.handover.turns import FREE, TURN
from unwalk.peers.handover.visit import Work, plan_of
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.handover import NOWHERE, Lineage, Parcel, Reply, Sighting
from unwalk.peers.protocol.hoplog import Entry, recovery_body, sign_entry
from unwalk.peers.transport.wire import Unreachable

pytestmark = pytest.mark.soak
LONGEST = 90.0
"""Seconds until the walk has to be over."""


def slower(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let every visit take longer."""
    visit = Work.visit

    def slowly(self: Work, *given: Any, **named: Any) -> Any:
        time.sleep(seconds)
        return visit(self, *given, **named)

    monkeypatch.setattr(Work, "visit", slowly)


class Recoverer(Liar):
    """A member that collects signatures and opens generations whenever it likes."""

    async def asks(
        self, peers: Iterable[int], chain: str = "", number: int = 0
    ) -> list[dict[str, Any]]:
        """What those sign who answer."""

        async def one(peer: int) -> dict[str, Any]:
            with suppress(Unreachable, TimeoutError):
                return await self.tell(peer, self.words("where", chain=chain, number=number))
            return {}

        answers = await asyncio.gather(*map(one, peers))
        return [answer for answer in answers if "sighting" in answer]

    async def signs(
        self, peers: Iterable[int], chain: str, above: int = 0
    ) -> tuple[int, list[dict[str, Any]]]:
        """A number above all that those know of or have signed for, and what they sign for it."""
        peers = list(peers)
        seen = sightings_of(await self.asks(peers))
        number = 1 + max([above, *(max(s.fence[0], s.promised) for s in seen)])
        return number, await self.asks(peers, chain, number)

    def opens(self, kept: Parcel, number: int, seen: list[dict[str, Any]]) -> tuple[Entry, Parcel]:
        """A recovery after this copy, and what there is to go on from after it."""
        generation = (number, self.me)
        lineage: Lineage = (*kept.lineage, (generation, kept.hop))
        body = recovery_body(
            run=self.network.run_id,
            generation=generation,
            lineage=lineage,
            peer=self.me,
            hop=kept.hop,
            token=kept.token,
            lost=-1,
            sightings=seen,
        )
        pem = self.bundle.certificate_pem.decode()
        entry = sign_entry(kept.chain, body, self.bundle.sign, pem)
        return entry, Parcel(generation, kept.hop, 0, entry["chain"], kept.token, lineage)

    async def shows(self, peers: Iterable[int], entry: Entry) -> None:
        """Tell all of a generation at the same time."""
        shown = self.words("fence", entry=entry)
        await asyncio.gather(*(self.tell(peer, shown) for peer in peers))


def sightings_of(seen: Iterable[dict[str, Any]]) -> list[Sighting]:
    return [codec.sighting_from(answer["sighting"]) for answer in seen]


async def kept_by(service: Service, hop: int) -> Parcel:
    """The token of a visit, once it is done and not handed on."""
    while (held := service.state.held) is None or (held.hop, service.state.stage) != (
        hop,
        "offered",
    ):
        await asyncio.sleep(0.002)
    return held


async def ends_beside(here: Village, honest: list[int], *lies: asyncio.Task[None]) -> None:
    """Wait until the walk has ended at all honest peers; the lies must go on until then."""

    def done() -> bool:
        for lie in lies:
            assert not lie.done(), lie.exception()
        return here.finished(*honest)

    try:
        await here.until(done, LONGEST)
    finally:
        for lie in lies:
            lie.cancel()


def ended_well(here: Village, honest: list[int]) -> None:
    """The honest peers have one model, and none of them was named a liar."""
    check_end(here.folder, here.network, honest)
    named = {e["who"] for e in here.events if e["event"] == "liar"}
    named |= {who for e in here.events if e["event"] == "fork" for who in e["liars"]}
    assert not named & set(honest)


def test_a_stash_of_recoveries_does_not_undo_each_one_of_the_others(tmp_path, monkeypatch):
    """The liar keeps its token, and a stash of recoveries that it fills whenever others sign.

    It shows the next one whenever an honest peer has opened a generation.
    """
    slower(monkeypatch, 0.1)
    peers, hops = range(4), 16
    honest: list[int] = []

    async def script(here: Village) -> None:
        route = route_of(here, hops)
        hop = next(h for h in range(3, hops) if len(set(route[:h])) == len(peers))
        me = route[hop - 1]
        honest.extend(p for p in peers if p != me)
        liar = Recoverer(here.folder, me, here.memory.at(me))
        for peer in peers:
            here.start(peer)
        service = here.services[me]
        send, succession = service.token_sender.send, service.succession

        def keeps(state: Any, *given: Any) -> Any:
            if state.held.hop != hop:
                return send(state, *given)
            return asyncio.create_task(asyncio.sleep(3600))

        service.token_sender.send = keeps  # type: ignore[method-assign, assignment]
        kept = await kept_by(service, hop)
        entries, chain = dict[str, Entry](), kept.chain
        while chain != service.start_chain:
            found = service.store.entry(service.run_id, chain)
            assert found is not None
            entries[chain], chain = found, found["body"]["previous"]
        stash, tips = list[Entry](), [kept]

        async def fill() -> bool:
            """Another recovery, after the last one or after the visit."""
            for tip in (tips[-1], kept):
                number, seen = await liar.signs(honest, tip.chain, tip.generation[0])
                good = [s for s in seen if not s["sighting"]["waits"]]
                entry, after = liar.opens(tip, number, good)
                with suppress(Refused):
                    succession.recovery(entry["body"])
                    entries[entry["chain"]] = entry
                    stash.append(entry)
                    tips.append(after)
                    return True
            return False

        while len(stash) < 20 and await fill():
            pass
        await gone(here, me)
        shown = stash[0]["body"]["generation"][0]

        class ShowsTheNext:
            async def take(self, *_: Any) -> bytes:
                return NO

            async def answer(self, sender: int, message: bytes) -> bytes:
                nonlocal shown
                said = codec.parse(message, 1 << 18)
                if said["kind"] == "entry":
                    return codec.dump({"entry": entries.get(said["chain"])})
                if said["kind"] == "entries" and said["chain"] in entries:
                    return codec.dump({"entries": [entries[said["chain"]]]})
                if said["kind"] == "fence":
                    opened = tuple(said["entry"]["body"]["generation"])
                    above = [e for e in stash if tuple(e["body"]["generation"]) > opened]
                    if opened[1] != me and opened[0] >= shown and above:
                        shown = above[0]["body"]["generation"][0]
                        await liar.shows(honest, above[0])
                return NO

        here.memory.handlers[me] = ShowsTheNext()

        async def keep_filling() -> None:
            while True:
                await asyncio.sleep(0.03)
                fence = max(s.state.fence[0] for s in here.services.values())
                if sum(e["body"]["generation"][0] > fence for e in stash) < 9:
                    await fill()

        await liar.shows(honest, stash[0])
        assert {here.services[p].state.fence for p in honest} == {(shown, me)}
        await ends_beside(here, honest, asyncio.create_task(keep_filling()))

    here = lived(
        tmp_path, script, 4, real=True, lease=0.6, connect=1.0, visit=1.0, train__hops=hops
    )
    ended_well(here, honest)


def two_takers(here: Village, hops: int) -> tuple[int, int, int]:
    """A peer that draws one and, past that one, another, none of whom has been visited yet."""
    work, route, memory = Work(plan_of(here.network), 0), route_of(here, hops), dict[str, int]()
    for hop in range(1, hops - 2):
        at = route[hop - 2] if hop > 1 else -1
        memory = dict(work.move(hop, at, memory, 0).memory)
        holder, one = route[hop - 1], route[hop]
        drawn = work.choose(hop + 1, holder, memory, {one})
        if hop < 3 or drawn is None:
            continue
        other = drawn[1].receiver
        if not {one, other} & set(route[:hop]):
            return holder, one, other
    raise AssertionError("no such route; try another seed")


def test_two_who_keep_the_token_by_turns_do_not_keep_it_for_ever(tmp_path, monkeypatch):
    """Two of seven take the token, visit and keep it; once another has recovered it, they open a
    generation from their own visit and bring nothing.  The draws of one peer lead to both."""
    slower(monkeypatch, 0.05)
    lease, peers, hops = 0.5, range(7), 14
    honest: list[int] = []
    visited, opened = Counter[int](), Counter[int]()

    async def lies(here: Village, liar: Recoverer, service: Service, other: int, at: int) -> None:
        run = liar.network.run_id
        kept: Parcel | None = None
        last, chain = 0, ""
        while True:
            await asyncio.sleep(lease / 10)
            held = service.state.held
            if held is not None and service.state.stage == "offered" and held.chain != chain:
                kept, chain = held, held.chain
                visited[liar.me] += 1
            fence = here.services[at].state.fence
            if kept is None or fence[1] not in honest or fence[0] <= last:
                continue  # nobody has recovered since
            number, seen = await liar.signs(honest, kept.chain)
            mine = (kept.lineage[-1][0], kept.hop)
            seen = [
                answer
                for answer, s in zip(seen, sightings_of(seen), strict=True)
                if (s.reached[0], s.reached[1][0]) <= mine
            ]
            first = kept.lineage[0][0]
            low = Sighting(first, kept.lineage[:1], (first, NOWHERE))
            asked = Question(run, liar.me, kept.chain, number)
            seen.append(sign_sighting(liar.member(other), asked, low))
            if (number, liar.me) <= fence:
                continue
            entry, after = liar.opens(kept, number, seen)
            try:
                service.succession.opening(entry)
            except Refused:
                continue
            service.store.add_entries(run, [entry])
            await liar.shows(honest, entry)
            opened[liar.me] += 1
            kept, last = after, number

    def keeps_what_it_takes(service: Service) -> None:
        async def never() -> None:
            await asyncio.sleep(3600)

        async def silent(*_: Any) -> Any:
            raise OSError

        async def until_fenced() -> Any:
            fence = service.state.fence
            while service.state.fence == fence:
                await asyncio.sleep(lease / 20)
            raise TimeoutError

        def send(state: Any, move: Any, pieces: Any) -> Any:
            task = asyncio.create_task(until_fenced())
            task.add_done_callback(lambda t: (pieces.close(), t.cancelled() or t.exception()))
            return task

        service.token_sender.send = send  # type: ignore[method-assign]
        service.recovery.watch = never  # type: ignore[method-assign]
        service.control_messages.answers[ms.Where] = silent
        service.control_messages.announce = lambda: asyncio.sleep(0)  # type: ignore[method-assign]

    async def script(here: Village) -> None:
        at, one, other = two_takers(here, hops)
        honest.extend(p for p in peers if p not in (one, other))
        for peer in peers:
            here.start(peer)
        tasks = []
        for me, friend in ((one, other), (other, one)):
            liar = Recoverer(here.folder, me, here.memory.at(me))
            keeps_what_it_takes(here.services[me])
            tasks.append(asyncio.create_task(lies(here, liar, here.services[me], friend, at)))
        await ends_beside(here, honest, *tasks)
        assert set(visited) == {one, other}, "both had the token"
        assert opened, "one of them opened a generation"

    here = lived(
        tmp_path, script, 7, real=True, lease=lease, connect=lease, visit=3.0, train__hops=hops
    )
    ended_well(here, honest)


def test_late_answers_keep_nobody_from_asking_in_its_own_turn(tmp_path, monkeypatch):
    """The liar has all sign for made-up places, takes the token once and keeps it.

    Then it answers late, so that nobody asks for signatures while it is that peer's turn; the token
    is recovered while peers go by turns.
    """
    lease, peers, hops, at = 2.0, range(4), 20, 12
    connect, turn, margin = lease * 2 / 3, TURN * lease, 0.06 * lease
    most = 0.9 * connect
    slower(monkeypatch, 0.45 * lease)
    honest: list[int] = []
    signed, late = Counter[int](), list[float]()

    def next_turn(peer: int, now: float) -> tuple[float, float]:
        """The turn of a peer that it is now, or that comes next."""
        start = int(now / (len(peers) * turn)) * len(peers) * turn + peer * turn
        while start + turn <= now:
            start += len(peers) * turn
        return start, start + turn

    async def grabs(liar: Recoverer) -> None:
        while True:
            for peer in honest:
                place = hashlib.sha256(f"{peer} {signed[peer]}".encode()).hexdigest()
                _, seen = await liar.signs([peer], place)
                signed[peer] += sum(not sighting.waits for sighting in sightings_of(seen))
            await asyncio.sleep(lease / 50)

    class Late:
        def __init__(self, liar: Liar, fence: Any, lineage: Lineage) -> None:
            self.liar, self.rest = liar, dict[int, float]()
            first = lineage[0][0]
            self.over = Sighting(fence, lineage, (first, NOWHERE), over=True)

        async def take(self, *_: Any) -> bytes:
            return NO

        async def wait(self, sender: int, seconds: float) -> None:
            late.append(seconds)
            self.rest[sender] = seconds - min(seconds, most)
            await asyncio.sleep(min(seconds, most))

        async def answer(self, sender: int, message: bytes) -> bytes:
            said, now = codec.parse(message, 1 << 18), time.time()
            if said["kind"] == "decide":
                await asyncio.sleep(min(self.rest.pop(sender, 0.0), most))
            if said["kind"] != "where":
                raise OSError
            start, end = next_turn(sender, now)
            if said["chain"] == "":  # it asks for signatures next
                passed = end + margin - now
                dodged = now >= start - margin and passed <= 2 * most
                await self.wait(sender, passed if dodged else 0.0)
            else:  # it looks around again a lease after the answer
                tries = [i * 2 * most / 40 for i in range(41)]
                await self.wait(sender, next(filter(lambda d: misses(sender, now + d), tries), 0.0))
            run = self.liar.network.run_id
            asked = Question(run, sender, said["chain"], said["number"])
            record = sign_sighting(self.liar.bundle, asked, self.over)
            return codec.dump(record)

    def misses(peer: int, answered: float) -> bool:
        again = answered + lease + 0.05
        start, end = next_turn(peer, again)
        return again < start - 3 * margin or again + 2 * most > end + 3 * margin

    async def script(here: Village) -> None:
        me = route_of(here, hops)[at]
        honest.extend(p for p in peers if p != me)
        liar = Recoverer(here.folder, me, here.memory.at(me))
        for peer in peers:
            here.start(peer)
        lie = asyncio.create_task(grabs(liar))
        service = here.services[me]
        while (held := service.state.held) is None or not (
            service.state.stage == "arrived" and held.hop >= at
        ):
            await asyncio.sleep(0.002)
        state = service.state
        await gone(here, me)
        here.memory.handlers[me] = Late(liar, state.fence, state.lineage)
        for peer in honest:  # as if a generation had just been opened: they go by turns
            here.services[peer].turns.opened.extend([time.monotonic()] * FREE)
        by_turns = 2 * len(peers) * turn
        await here.until(lambda: any(here.services[p].state.fence[0] for p in honest), by_turns)
        await ends_beside(here, honest, lie)
        assert set(signed) == set(honest), "all signed for made-up places"
        assert late, "it was asked"

    here = lived(
        tmp_path,
        script,
        4,
        real=True,
        lease=lease,
        connect=connect,
        visit=2 * lease,
        train__hops=hops,
    )
    ended_well(here, honest)


def test_a_liar_that_has_signed_for_far_numbers_makes_no_turn_longer(tmp_path, monkeypatch):
    """The liar takes every token and says that it has nothing.

    It says that it signed for numbers far above all others'.
    """
    slower(monkeypatch, 0.02)
    lease, peers, hops = 0.4, range(4), 16
    honest: list[int] = []
    taken, numbers = list[int](), list[int]()

    async def script(here: Village) -> None:
        route = route_of(here, hops)
        me = route[3]
        honest.extend(p for p in peers if p != me)
        liar = Liar(here.folder, me, here.memory.at(me))

        class TakesAll:
            async def take(self, sender: int, envelope: bytes, chunks: Any) -> bytes:
                said = codec.parse(envelope, 1 << 18)
                if said["kind"] != "offer":
                    return NO
                _ = [piece async for piece in chunks]
                taken.append(said["parcel"]["hop"])
                return codec.dump({**codec.reply_to(Reply("accepted")), "first": False})

            async def answer(self, sender: int, message: bytes) -> bytes:
                said = codec.parse(message, 1 << 18)
                if said["kind"] != "where":
                    raise OSError
                others = [here.services[p] for p in honest if p != sender]
                known = min(max(s.turns.promised, s.state.fence[0]) for s in others)
                first = (0, route[0])
                numbers.append(known + 16)
                says = Sighting(first, ((first, 0),), (first, NOWHERE), promised=numbers[-1])
                run = liar.network.run_id
                asked = Question(run, sender, said["chain"], said["number"])
                return codec.dump(sign_sighting(liar.bundle, asked, says))

        for peer in honest:
            here.start(peer)
        here.memory.handlers[me] = TakesAll()
        await ends_beside(here, honest)
        assert len(taken) > 1
        assert max(here.services[p].state.fence[0] for p in honest) > 16, numbers

    here = lived(
        tmp_path,
        script,
        4,
        real=True,
        lease=lease,
        connect=lease,
        visit=4 * lease,
        train__hops=hops,
    )
    ended_well(here, honest)
