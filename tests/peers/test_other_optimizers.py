"""Chapters that walk otherwise than training did, and chapters that go on from what they leave."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.peers.deletions import SEALED, Hamlet, ask, check, ended, hamlet, network, trained_on
from tests.peers.harness import ROUTE
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.events import OPTIMIZERS
from unwalk.peers.forgetting.plans import Book, first_visit
from unwalk.peers.handover.visit import Work
from unwalk.peers.protocol.schedule import Spec, line

QUICK = [
    {"train__optimizer": "momentum", "unlearn__optimizer": "adam"},
    {"unlearn__work": "full", "unlearn__learning_rate": 0.02},
]
PAIRS = [
    {"train__optimizer": train, "unlearn__optimizer": unlearn, "train__state": state}
    for train, unlearn in permutations(OPTIMIZERS, 2)
    for state in ("carried", "fresh")
]
SLICED = {"train__slices": 2}


def first_place(here: Hamlet, peer: int) -> int | None:
    """Where on the line a peer was first visited."""
    chapters = here.peers[peer]
    places = line(chapters.book.hops, chapters.specs)
    return first_visit(peer, places, chapters.visits(places))


def forgot(here: Hamlet, peer: int, *methods: str) -> None:
    """The last chapter was such a peer's, after these ways to forget, and is certified as exact."""
    assert [spec.method for spec in here.peers[peer].specs] == list(methods)
    (claim,) = check(here, peer, f"chapter-{len(methods)}")["claims"]
    assert claim["grade"] == "exact", claim["reason"]
    usual = ("another token is on its way", "that run is not known", "committed to")
    told = [str(e["reason"]) for e in here.events if e["event"] == "refused"]
    assert not [reason for reason in told if not any(map(reason.__contains__, usual))]


@pytest.mark.parametrize(
    "settings",
    [*QUICK, *(pytest.param(s, marks=pytest.mark.soak) for s in (*PAIRS, SLICED))],
    ids=lambda s: " ".join(map(str, s.values())),
)
def test_a_rewind_repeats_the_work_of_the_walk_that_it_goes_back_into(tmp_path, settings):
    """After a restart it took training's steps: its first token had the moments of both
    optimizers, which everybody refused, and where there were none nothing could be claimed."""

    async def script(here: Hamlet) -> None:
        await here.until(here.trained)
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(ended(here, r=0), 30.0)
        assert not here.peers[0].specs[0].position
        forgot(here, 0, "rewind")
        ask(here, 0, "a", *trained_on(here, 0)[:1], method="restart")
        await here.until(ended(here, a=0), 30.0)
        await here.until(here.trained)
        peer = next(p for p in (1, 2) if first_place(here, p))
        ask(here, peer, "s", *trained_on(here, peer)[:1])
        await here.until(ended(here, s=peer), 30.0)
        forgot(here, peer, "rewind", "restart", "rewind")

    hamlet(tmp_path, script, peers=3, train__hops=4, seed=ROUTE, **settings)


def test_a_rewind_can_go_into_the_walk_after_a_seal(tmp_path):
    async def script(here: Hamlet) -> None:
        await here.until(here.trained)
        budget = {"grade": "certified", "epsilon": 8.0, "delta": 1e-5}
        ask(here, 0, "r", *trained_on(here, 0)[:1], **budget)
        await here.until(ended(here, r=0))
        await here.until(here.trained)
        peer = next(p for p in range(1, 4) if (first_place(here, p) or 0) > here.peers[p].book.hops)
        ask(here, peer, "s", *trained_on(here, peer)[:1])
        await here.until(ended(here, s=peer), 30.0)
        forgot(here, peer, "seal", "rewind")

    hamlet(tmp_path, script, train__hops=2, unlearn__hops=8, **{**SEALED, "seed": ROUTE})


def book_of(tmp_path: Path, **settings: Any) -> Book:
    return Book(network(tmp_path / "net", **settings))


def test_a_seal_is_foreseen_at_once_however_many_records_fit(tmp_path):
    """Every peer looks at this in its loop, and answers nobody meanwhile."""
    book = book_of(tmp_path, **{**SEALED, "train__capacity": 200_000})
    assert book.assembled.config.train.capacity == 200_000
    begun = time.process_time()
    book.check(0, "certified", None, 1)
    assert time.process_time() - begun < 2.0


def chapter(number: int, method: str, **more: Any) -> Spec:
    sealed = {"grade": "certified", "epsilon": 8.0, "delta": 1e-5}
    exact = {"grade": "exact", "epsilon": None, "delta": None}
    said = {**(sealed if method == "seal" else exact), "requests": ("a",), "records": 1, **more}
    fixed = {"number": number, "peer": 0, "before": 12, "position": 0, "hops": 6, "holder": 0}
    return Spec(method=method, after=number - 1, **{**fixed, **said})


@pytest.mark.parametrize("keep", ["average", "random"])
def test_a_walk_whose_result_is_not_its_last_iterate_is_not_rewound(tmp_path, keep):
    """Neither training nor a restart; and none is, between peers, whose moments are not kept."""
    book = book_of(tmp_path, unlearn__keep=keep)
    anew = [chapter(1, "restart")]
    assert book.ways("exact", None, ()) == ["rewind", "restart"]
    assert book.ways("exact", None, anew) == ["restart"]
    given_up = [replace(anew[0], void=True)]
    assert book.ways("exact", "rewind", given_up) == ["rewind"]
    with pytest.raises(Refused, match=f"keep = last; it is '{keep}'"):
        book.ways("exact", "rewind", anew)


def test_a_restart_with_moments_that_stay_at_peers_is_not_rewound(tmp_path):
    settings = {"train__optimizer": "sgd", "train__state": "local", "unlearn__optimizer": "adam"}
    book = book_of(tmp_path, **settings)
    assert book.ways("exact", None, ()) == ["rewind", "restart"]
    assert book.ways("exact", None, [chapter(1, "restart")]) == ["restart"]


def test_a_seal_says_what_the_walks_before_it_have_kept(tmp_path):
    """Its ledger follows the last iterate, so nothing is certified where another one was taken."""
    book = book_of(tmp_path, **SEALED, unlearn__keep="average")
    first, again = chapter(1, "seal"), chapter(2, "seal", before=18)
    assert book.forgetting(first, "run", ()).public["iterate"] == "last"
    assert book.forgetting(again, "run", [first]).public["iterate"] == "average"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"train__keep": "average"},
        {"unlearn__optimizer": "adam"},
        {"train__optimizer": "sgd", "unlearn__keep": "random"},
        {"train__optimizer": "adam", "train__keep": "random", "unlearn__optimizer": "sgd"},
    ],
)
def test_the_least_limit_for_tokens_lets_those_of_every_chapter_pass(tmp_path, settings):
    """A network was made with a limit under which no token came to its second visit."""
    book = book_of(tmp_path, **settings)
    back = chapter(2, "rewind", position=3)
    plans = [book.training, book.forgetting(chapter(1, "restart"), "run", ())]
    plans += [book.forgetting(back, "run", [chapter(1, m)]) for m in ("restart", "seal")]
    assert book.token_size == max(Work(plan, 0).most_bytes for plan in plans)
    with pytest.raises(InvalidInput, match=f"allowed: {book.token_size} or more"):
        network(tmp_path / "small", limits={"token_bytes": book.token_size - 1}, **settings)


def test_a_restart_is_rewound_whatever_training_kept(tmp_path):
    """Peers planned such a rewind, and none of them stood for it: no request ended any more."""

    async def script(here: Hamlet) -> None:
        for id, method in ("a", "restart"), ("b", "rewind"):
            await here.until(here.trained)
            ask(here, 0, id, trained_on(here, 0)["ab".index(id)])
            await here.until(ended(here, **{id: 0}))
            assert here.peers[0].specs[-1].method == method

    here = hamlet(tmp_path, script, peers=3, train__keep="average")
    for number in (1, 2):
        (claim,) = check(here, 0, f"chapter-{number}")["claims"]
        assert claim["grade"] == "exact", claim["reason"]


@pytest.mark.parametrize("when", ["train__keep", "unlearn__keep"])
def test_records_that_were_never_used_are_forgotten_exactly_whatever_was_kept(tmp_path, when):
    async def script(here: Hamlet) -> None:
        await here.until(here.trained)
        if when == "unlearn__keep":
            ask(here, 0, "r", *trained_on(here, 0)[:1], method="restart")
            await here.until(ended(here, r=0))
        held_out = next(row for row in range(40) if row not in trained_on(here, 1))
        ask(here, 1, "s", held_out)
        await here.until(ended(here, s=1))
        (claim,) = check(here, 1, here.peers[1].requests.get("s").certificate)["claims"]
        assert claim["grade"] == "exact", claim["reason"]

    hamlet(tmp_path, script, peers=2, train__hops=3, **{when: "average"})
