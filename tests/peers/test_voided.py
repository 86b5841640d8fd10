"""A chapter that nobody who is there can carry out is given up, by a vote, and life goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.peers import deletions
from tests.peers.deletions import SEALED, ask, certificate, check, ended, hamlet, trained_on
from tests.peers.test_agenda import spec
from unwalk.peers.decisions.walk_end import end_text, void_closing
from unwalk.peers.handover.control_messages import Seen
from unwalk.peers.handover.recovery import Recovery
from unwalk.peers.handover.service import Service
from unwalk.peers.handover.turns import Turns
from unwalk.peers.identity.network_file import Limits
from unwalk.peers.lifecycle.chapter_runner import Chapters
from unwalk.peers.lifecycle.progress import VANISHED
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol.handover import Value
from unwalk.peers.protocol.schedule import members
from unwalk.peers.telemetry import Journal
from unwalk.peers.web.live_desk import Reception

BUDGET: dict[str, Any] = {"grade": "certified", "epsilon": 1.0, "delta": 1e-5}
QUICK = {**SEALED, "lease": 0.2, "train__hops": 8, "unlearn__hops": 3}
WRONG: list[dict[str, Any]] = [
    {"after": 0},
    {"number": 3},
    {"before": 7},
    {"hops": 2**31 - 1},
    {"position": 1},
    {"left": (1,)},
    {"left": (0, 1, 3)},
    {"method": "seal", "grade": "certified", "epsilon": 1.0, "delta": 1e-5},
    {"peer": 1, "records": 0, "left": (1,)},
]
"""What no peer votes for: what it finds to be otherwise, or who counts without their word."""
U = 2
OTHERS = (0, 1, 3)


def dies_when_it_opens(here, chapter: int = 1) -> None:
    """u is gone once its chapter is decided, before it has done anything for it."""
    store = here.peers[U].store

    def fault(point):
        if point == "chapter opened" and len(here.peers[U].specs) == chapter:
            here.memory.handlers.pop(U, None)
            raise asyncio.CancelledError

    store.fault = fault


def is_cut_off_when_it_opens(here, chapter: int = 1) -> None:
    """u goes on alone: it adds its noise, and nobody can be reached."""
    chapters = here.peers[U]
    opened = chapters._open

    def gone(number):
        if number == chapter:
            here.memory.cut = {frozenset((U, p)) for p in OTHERS}
        return opened(number)

    chapters._open = gone


def alike(here) -> bool:
    """All peers know the same chapters, and which of them came to nothing."""
    return len({tuple(p.specs) for p in here.peers.values()}) == 1


def test_a_seal_whose_peer_dies_is_given_up_and_begun_anew_when_it_is_back(tmp_path):
    async def script(here):
        await here.until(here.trained)
        dies_when_it_opens(here)
        ask(here, U, "a", *trained_on(here, U)[:1], **BUDGET)
        await here.until(here.tasks[U].done)
        here.peers[U].store.close()
        before = here.peers[0].model(1)
        await here.until(lambda: all(here.peers[p].specs[0].void for p in OTHERS))
        assert all(here.peers[p].final(1) == before for p in OTHERS), "the model stays"
        await here.until(lambda: here.peers[0].over)
        seen = Reception(here.peers[0]).overview()
        assert (seen.chapter.number, seen.chapter.stage) == (0, "committed")
        assert (seen.token.hop, seen.token.hops) == (8, 8)
        ask(here, 0, "b", *trained_on(here, 0)[:1], **BUDGET)
        await here.until(lambda: here.stage(0, "b") == "erasing")
        here.start(U)
        await here.until(ended(here, a=U, b=0))
        await here.until(lambda: alike(here))
        assert [s.void for s in here.peers[U].specs] == [True, False, False]
        assert [s.after for s in here.peers[U].specs] == [0, 0, 2]

    here = hamlet(tmp_path, script, **QUICK)
    for peer, name, id in ((0, "chapter-2", "b"), (U, "chapter-3", "a")):
        document = check(here, peer, name)
        assert document["claims"][0]["grade"] == "certified"
        assert document["peers"]["requests"] == [id]
        assert document["peers"]["pending"] == []
        redraws = document["redraws"]
        assert (redraws["register"], redraws["entry"], redraws["earlier"]) == ("kept", 1, 0)
    assert not certificate(here, U, "chapter-1").exists()


def test_noise_that_may_have_been_seen_is_not_drawn_again(tmp_path):
    """u had added its noise when its chapter was given up: the request is answered exactly."""

    async def script(here):
        await here.until(here.trained)
        is_cut_off_when_it_opens(here)
        ask(here, U, "a", *trained_on(here, U)[:1], method="seal", **BUDGET)
        await here.until(lambda: all(here.peers[p].specs for p in OTHERS))
        await here.until(lambda: here.peers[U].service.state.reached[1][0] == 1)
        await here.until(lambda: all(here.peers[p].specs[0].void for p in OTHERS))
        assert here.stage(U, "a") == "walking", "u does not know it yet"
        token = here.peers[U].service.state.held.token
        here.memory.cut = set()
        await here.until(ended(here, a=U))
        assert not list(here.folder.rglob(f"{token}*")), "what u did alone is gone"
        assert [s.method for s in here.peers[U].specs] == ["seal", "rewind"]

    here = hamlet(tmp_path, script, **QUICK)
    document = check(here, U, "chapter-2")
    assert document["peers"]["requests"] == ["a"]
    assert [c["grade"] for c in document["claims"]] == ["exact"]


def impatient(monkeypatch, visit: float) -> None:
    """Networks of this test wait for a visit only so long."""
    monkeypatch.setattr(deletions, "Limits", partial(Limits, visit=visit))


def sits_on_the_token(monkeypatch, chapter: int) -> list[int]:
    """Whoever gets the token after the first visit of a chapter keeps it; who that is."""
    visit, liars = Service._visit, list[int]()

    async def sit(self):
        if self.chapter.number == chapter and self.state.held.hop == 1 and not liars:
            liars.append(self.me)
            await asyncio.sleep(3600)
        await visit(self)

    monkeypatch.setattr(Service, "_visit", sit)
    return liars


def proposes_void(service: Service) -> None:
    """A member that lies would have a chapter given up, whatever it knows."""
    value = Value((0, 0), service.start_chain, service.chapter.model, "00" * 16)
    service.poll.judge = lambda text, polled: True
    service.poll.offer = lambda: end_text(value, void_closing(value))


def test_a_chapter_that_has_begun_is_not_given_up_by_who_has_seen_nothing_of_it(
    tmp_path, monkeypatch
):
    """The second peer of the route keeps the token and proposes that the chapter is void."""
    impatient(monkeypatch, 1.5)

    async def script(here):
        await here.until(here.trained)
        liars = sits_on_the_token(monkeypatch, 1)
        ask(here, U, "a", *trained_on(here, U)[:1], method="seal", **BUDGET)
        await here.until(lambda: bool(liars))
        liar = here.peers[liars[0]]
        proposes_void(liar.service)
        others = [p for p in range(4) if p != liar.me]
        await here.until(lambda: all(here.peers[p].over for p in others))
        assert not any(here.peers[p].specs[0].void for p in others)
        assert any(e["event"] == "begun" for e in here.events), "somebody looked for it"

    hamlet(tmp_path, script, **QUICK)


HERE = pr.begin(0, 3, 8, U, "0" * 64, "", has=False)
NOTHING, HAS_IT = pr.sighting(HERE), replace(pr.sighting(HERE), reached=(HERE.fence, (0, 0)))


@pytest.mark.parametrize(
    ("said", "shown", "leases", "since", "given_up"),
    [
        ({}, {}, 5, 0, False),  # nobody answers: no quorum
        ({1: NOTHING, 3: NOTHING}, {}, 5, 0, True),
        ({1: NOTHING, 3: NOTHING, U: HAS_IT}, {}, 5, 0, False),  # it may be at its first visit
        ({1: NOTHING, 3: NOTHING, U: HAS_IT}, {}, 11, 0, True),  # for limits.visit
        ({1: HAS_IT, 3: NOTHING, U: NOTHING}, {}, 5, 0, True),  # anybody else has to show it
        ({1: NOTHING, 3: NOTHING, U: HAS_IT}, {U: {}}, 47, 47, False),
        ({1: NOTHING, 3: NOTHING, U: HAS_IT}, {U: {}}, 49, 49, True),  # 2 (limits.visit + 14)
        ({1: NOTHING, 3: NOTHING}, {}, 20, 20, True),  # who showed it is away
    ],
)
def test_a_peer_votes_for_giving_up_by_what_it_saw_itself(said, shown, leases, since, given_up):
    """Leases of a second, limits.visit ten of them, one of four lies; U begins the walk.

    Four leases are what a silent neighbour costs, ten what five turns take.
    """

    async def answer(value):
        return value

    heard = {p: Seen(sighting, {}) for p, sighting in said.items()}
    service: Any = SimpleNamespace(
        me=0,
        state=HERE,
        stopping=True,
        limits=Limits(lease=1.0, visit=10.0),
        chapter=SimpleNamespace(left=frozenset(), spec="some", number=1, model=""),
        poll=SimpleNamespace(rules=SimpleNamespace(lies=1)),
        turns=Turns(4, 1.0),
        journal=Journal(None, "peer-0", []),
    )
    control_messages: Any = SimpleNamespace(
        ask_all=lambda chain, number: answer(heard),
        beginnings=lambda: answer(shown),
        learn=lambda peer, sighting: answer(None),
    )
    ends: Any = SimpleNamespace(void=None)
    recovery = Recovery(service, control_messages, ends)
    recovery.since -= leases
    recovery.begun = recovery.since + leases - since if since else None  # by its own clock
    assert not recovery.consents, "not before it has looked"
    asyncio.run(recovery._perhaps_give_up())
    assert recovery.consents == given_up
    if given_up:
        assert recovery.deserted is not None
        recovery.deserted -= 3.0 + service.limits.connect
        assert not recovery.consents, "nor by what it saw long ago"


def test_a_peer_that_vanished_in_its_own_chapter_is_forgotten_by_another(tmp_path):
    async def script(here):
        await here.until(here.trained)
        visits = here.peers[0].visits([(0, 1)])[0]
        first = {v["visit"]["receiver"]: n for n, v in reversed(list(enumerate(visits)))}
        w = visits[first[U]]["visit"]["sender"] if first[U] else OTHERS[0]
        dies_when_it_opens(here)
        ask(here, U, "a", *trained_on(here, U)[:1], **BUDGET)
        await here.until(here.tasks[U].done)
        here.peers[U].store.close()
        for peer in (w, *(p for p in OTHERS if p != w)):  # what their operators say
            records = here.peers[peer].records
            with records.transaction(touches=False):
                records.put_fact(f"{VANISHED}{U}", "gone-for-good")

        def forgotten() -> bool:  # on a slow machine a chapter may be given up, and come again
            if not here.peers[w].specs:  # u opened its chapter before w heard that it was decided
                return False
            last = here.peers[w].specs[-1]
            name = f"chapter-{last.number}"
            seen.update(last=last, name=name)
            return bool(last.vanished) and certificate(here, last.holder, name).exists()

        await here.until(forgotten)
        assert seen["last"].left == (U,)
        here.start(U)
        await here.until(ended(here, a=U))
        assert here.stage(U, "a") == "done"
        kept = here.peers[U].records.counts()
        assert (kept.train + kept.hold_out, kept.forgotten) == (39, 1), "only what u asked for goes"

    seen: dict[str, Any] = {}
    here = hamlet(tmp_path, script, **QUICK)
    assert check(here, seen["last"].holder, seen["name"])["public"]["forgotten"] == "all"
    assert check(here, U, "quiet-1")["peers"]["requests"] == ["a"]


def test_a_chapter_is_decided_once_a_quorum_has_the_model(tmp_path):
    """Otherwise it could be lost with the one peer that has it, and nothing could be given up."""

    async def script(here):
        await here.until(here.trained)
        for peer in OTHERS[:2]:
            here.peers[peer].model = lambda number: None
        ask(here, U, "a", *trained_on(here, U)[:1])
        await asyncio.sleep(0.5)
        assert here.stage(U, "a") == "waiting"
        assert here.peers[U].next_chapter.wish is not None
        assert not here.peers[U].next_chapter.known
        del here.peers[0].model
        await here.until(ended(here, a=U))

    hamlet(tmp_path, script, train__hops=6)


def test_a_chapter_must_follow_from_the_model_that_is_here(tmp_path):
    async def script(here):
        await here.until(here.trained)
        ask(here, U, "a", *trained_on(here, U)[:1])
        await here.until(ended(here, a=U))
        await here.until(lambda: all(p.over and len(p.specs) == 1 for p in here.peers.values()))
        mine: Chapters = here.peers[U]
        rows = mine.requests
        assert rows is not None
        ask(here, U, "b", *trained_on(here, U)[:1], method="restart")
        batch = rows.batch()
        assert batch is not None
        planned = mine.request_steps.plan(batch)
        assert planned is not None
        other = here.peers[0]
        assert other.stands_for(planned)
        for wrong in WRONG:
            assert not other.stands_for(replace(planned, **wrong)), wrong

    hamlet(tmp_path, script, train__hops=6)


@pytest.mark.parametrize("left", [(), (1,)])
def test_who_counts_is_said_by_the_chapter_before(left):
    assert members(3, []) == {0, 1, 2}
    assert members(3, [spec(left=(2,)), spec(number=2, left=left)]) == {0, 1, 2} - set(left)
