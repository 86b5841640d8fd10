"""Which chapter comes next is decided once, whatever is lost, delayed or restarted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwalk.core.errors import Corrupt
from unwalk.peers import agenda as ag
from unwalk.peers.agenda import Seat, Spec, Word

PEERS = 3
MAJORITY = 2


@dataclass(frozen=True)
class World:
    """Durable seats, what each proposer has in memory, and what a majority accepted.

    A trial is (ballot, value, peers asked, yes answers, best accepted, decided).
    """

    seats: tuple[Seat, ...] = (Seat(),) * PEERS
    trials: tuple[Any, ...] = (None,) * PEERS
    chosen: frozenset[str] = frozenset()


def put(items: Any, place: int, value: object) -> Any:
    return (*items[:place], value, *items[place + 1 :])


def steps(world: World, proposers: int, ballots: int, rules: Any) -> Iterator[World]:
    """Every world that may come next: questions and answers are lost at will, peers crash."""
    for peer in range(PEERS):
        trial, seat = world.trials[peer], world.seats[peer]
        if trial is None:
            ballot = rules.next_ballot(seat, peer)
            if peer < proposers and seat.decided is None and ballot[0] < ballots:
                asking = (ballot, None, 0, 0, None, None)
                yield replace(world, trials=put(world.trials, peer, asking))
        else:
            yield from _ask(world, peer, trial, rules)
            yield replace(world, trials=put(world.trials, peer, None))  # it crashes
        for other in range(PEERS):
            told = rules.decide(world.seats[other], seat.decided) if seat.decided else None
            if told is not None and told != world.seats[other]:
                yield replace(world, seats=put(world.seats, other, told))


def _ask(world: World, peer: int, trial: Any, rules: Any) -> Iterator[World]:
    ballot, value, asked, *heard = trial
    if asked == PEERS:
        yield _count(world, peer, trial, rules)
        return
    there = world.seats[asked]
    if value is None:
        after, word = rules.prepare(there, ballot)
    else:
        after, word = rules.accept(there, ballot, value)
    seats = put(world.seats, asked, after)
    told = put(world.trials, peer, (ballot, value, asked + 1, *_hear(heard, word)))
    yield replace(world, seats=seats, trials=told)
    if asked != peer:  # what a peer asks itself is never lost
        untold = put(world.trials, peer, (ballot, value, asked + 1, *heard))
        yield replace(world, seats=seats, trials=untold)
        yield replace(world, trials=untold)


def _hear(heard: Any, word: Word) -> Any:
    """Of the answers only what matters for the count: no more worlds than need be."""
    yes, best, decided = heard
    if word.kind == "yes":
        earlier = [a for a in (best, word.accepted) if a is not None]
        return yes + 1, max(earlier, key=lambda a: a[0], default=None), decided
    return yes, best, decided or word.value


def _count(world: World, peer: int, trial: Any, rules: Any) -> World:
    ballot, value, _, yes, best, decided = trial
    ended = replace(world, trials=put(world.trials, peer, None))
    if decided is not None:
        seat = rules.decide(world.seats[peer], decided)
        return replace(ended, seats=put(world.seats, peer, seat))
    if yes < MAJORITY:
        return ended
    if value is None:
        own = rules.chosen(f"by {peer}", [Word("yes", accepted=best)])
        return replace(world, trials=put(world.trials, peer, (ballot, own, 0, 0, None, None)))
    seat = rules.decide(world.seats[peer], value)
    return replace(ended, seats=put(world.seats, peer, seat), chosen=world.chosen | {value})


def explore(proposers: int, ballots: int, rules: Any = ag) -> tuple[int, bool]:
    """How many worlds there are, and whether all agree on one chapter."""
    seen, todo = {World()}, [World()]
    while todo:
        for after in steps(todo.pop(), proposers, ballots, rules):
            if after not in seen:
                told = {s.decided for s in after.seats if s.decided is not None}
                if len(after.chosen | told) > 1:
                    return len(seen), False
                seen.add(after)
                todo.append(after)
    return len(seen), True


def test_one_chapter_is_decided_in_every_interleaving():
    worlds, agreed = explore(proposers=2, ballots=1)
    assert agreed
    assert worlds > 1_000


@pytest.mark.soak
@pytest.mark.parametrize(("proposers", "ballots"), [(2, 2), (3, 1)])
def test_one_chapter_is_decided_with_more_ballots_and_proposers(proposers, ballots):
    worlds, agreed = explore(proposers, ballots)
    assert agreed
    assert worlds > 20_000


class Broken:
    """A proposer that does not take over what may have been accepted before."""

    next_ballot, prepare = staticmethod(ag.next_ballot), staticmethod(ag.prepare)
    accept, decide = staticmethod(ag.accept), staticmethod(ag.decide)

    @staticmethod
    def chosen(own: str, words: Any) -> str:
        return own


def test_the_search_notices_a_broken_rule():
    assert not explore(proposers=2, ballots=1, rules=Broken)[1]


def test_a_proposer_takes_over_what_was_accepted():
    seat, word = ag.accept(Seat(), (0, 1), "first")
    assert word.kind == "yes"
    after, answer = ag.prepare(seat, (1, 2))
    assert ag.chosen("second", [Word("yes"), answer]) == "first"
    assert ag.accept(after, (0, 1), "late")[1].kind == "no"
    done = ag.decide(after, "first")
    assert ag.prepare(done, (9, 0))[1] == Word("decided", value="first")
    assert ag.decide(done, "second") == done


def spec(**changes: Any) -> Spec:
    base = Spec(1, 0, "rewind", "exact", None, None, ("a",), 2, 10, 3, 7, 0)
    return replace(base, **changes)


def test_the_line_follows_the_chapters():
    back = spec(position=3, hops=7)
    seal = spec(
        number=2, method="seal", grade="certified", epsilon=1.0, delta=1e-5, before=10, hops=2
    )
    again = spec(number=3, before=12, position=4, hops=8)
    fresh = spec(number=4, method="restart", before=12, position=0, hops=10)
    kept = [(0, 1), (0, 2), (0, 3)]
    assert ag.line(10, [back]) == kept + [(1, k) for k in range(1, 8)]
    assert ag.line(10, [back, seal])[-3:] == [(1, 7), (2, 1), (2, 2)]
    assert ag.line(10, [back, seal, again]) == kept + [(1, 1)] + [(3, k) for k in range(1, 9)]
    assert ag.line(10, [back, seal, again, fresh]) == [(4, k) for k in range(1, 11)]
    for count, last in enumerate((back, seal, again, fresh), 1):
        assert last.length == len(ag.line(10, [back, seal, again, fresh][:count]))


@given(st.integers(0, 9), st.integers(1, 30), st.sampled_from(["rewind", "restart"]))
def test_a_chapter_comes_back_as_it_went(position, hops, method):
    said = spec(position=position, hops=hops, method=method, requests=("a", "b"))
    assert Spec.from_json(said.to_json(), 3) == said
    assert ag.run_of("x", said) != ag.run_of("x", replace(said, hops=hops + 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": 0},
        {"peer": 3},
        {"hops": 0},
        {"position": 11},
        {"requests": []},
        {"requests": ["a"] * 257},
        {"requests": [7]},
        {"method": "finetune"},
        {"grade": "certified"},
        {"epsilon": 1.0},
        {"records": -1},
        {"records": True},
        {"after": 1},
        {"after": -1},
        {"left": [3]},
        {"left": [1, 1]},
        {"left": [2, 1]},
        {"left": [0, 1, 2]},
        {"left": 1},
        {"left": [0], "peer": 1, "records": 0},
        {"void": True},
        {"more": 1},
    ],
)
def test_a_chapter_out_of_range_is_refused(wrong):
    with pytest.raises(Corrupt):
        Spec.from_json({**spec().to_json(), **wrong}, 3)


def test_chapters_that_were_given_up_are_no_part_of_the_line():
    specs = [spec(), spec(number=2, after=1), spec(number=3, after=1), spec(number=4, after=3)]
    found = ag.marked(specs, [4])
    assert [s.void for s in found] == [False, True, False, True]
    assert (ag.present(found), ag.present([]), ag.present(found[1:2])) == (3, 0, 0)
    assert ag.line(10, found) == ag.line(10, [found[0], found[2]])
    assert [ag.run_of("x", s) for s in found] == [ag.run_of("x", s) for s in specs]


def test_a_budget_belongs_to_certified_chapters():
    sealed = spec(method="seal", grade="certified", epsilon=1.0, delta=1e-5)
    assert Spec.from_json(sealed.to_json(), 3) == sealed
    for wrong in (None, 0.0, -1.0, "1", True):
        with pytest.raises(Corrupt):
            Spec.from_json({**sealed.to_json(), "epsilon": wrong}, 3)


def test_seats_and_words_come_back_as_they_went():
    seat = ag.decide(ag.accept(Seat(), (2, 1), "v")[0], "v")
    assert ag.seat_from(ag.seat_to(seat)) == seat
    for word in (
        Word("yes", (1, 2), ((0, 1), "v")),
        Word("no", (3, 0)),
        Word("decided", value="v"),
    ):
        assert ag.word_from(ag.word_to(word)) == word
    for wrong in ({"kind": "maybe"}, {"value": "v"}, {"accepted": [[0, 1], 2]}, {"ballot": [0]}):
        with pytest.raises(Corrupt):
            ag.word_from({**ag.word_to(Word("yes", (1, 2))), **wrong})
