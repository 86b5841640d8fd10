"""Every interleaving and crash point of a small network: nothing lost, one lineage.

``python -m tests.peers.test_protocol_model`` prints how many states each model has.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.peers.model import (
    VOID,
    Bounds,
    World,
    decide,
    put,
    start,
    steps,
    visit_chain,
    with_state,
)
from unwalk.peers.protocol import handover as pr

LINE = frozenset({(0, 1), (1, 2)})


def explore(first: World, bounds: Bounds, *, checked: bool = True) -> set[World]:
    """All reachable worlds; each is checked when it is found."""
    seen, todo, known = {first}, [first], dict[pr.PeerState, pr.PeerState]()
    while todo:
        world = todo.pop()
        for name, after in steps(world, bounds):
            if after not in seen:
                if checked:
                    check(after, name)
                states = tuple(known.setdefault(s, s) for s in after.states)  # less memory
                after = replace(after, states=states)
                seen.add(after)
                todo.append(after)
    return seen


def check(world: World, name: str) -> None:
    owners = [s.held.generation for s in world.states if s.held and s.stage != "offered"]
    assert len(owners) == len(set(owners)), f"one generation has two tokens after: {name}"
    for state in world.states:
        for parcel in (state.held, state.kept):
            if parcel is not None:
                check_chain(parcel)
                assert parcel.generation <= state.fence
        fence, _ = pr.shown(state)
        taken = (s.me != fence[1] and s.reached[0] >= fence for s in world.states)
        assert fence[0] == 0 or any(taken), f"{fence} is shown, but nobody took it, after: {name}"
    if world.end is not None and world.end != VOID:
        assert hops_of(world.end.chain) == list(range(1, world.states[0].hops + 1))
    assert furthest_is_there(world), f"the furthest token is nowhere after: {name}"


def furthest_is_there(world: World) -> bool:
    """Whether some disk has the token after the last visit of the highest generation.

    That the run can end is not enough: it could also end by starting over from the public token.
    """
    if any(s.committed for s in world.states):
        return True
    highest = max(s.reached[0] for s in world.states)
    done = max(s.reached[1][0] for s in world.states if s.reached[0] == highest)
    parcels = [p for s in world.states for p in (s.held, s.kept) if p is not None]
    return any((p.generation, p.hop) == (highest, done) for p in parcels)


def hops_of(chain: str) -> list[int]:
    return [int(h) for h in re.findall(r"\|(\d+):", chain)]


def check_chain(parcel: pr.Parcel) -> None:
    assert hops_of(parcel.chain) == list(range(1, parcel.hop + 1)), parcel
    done, generation = 0, parcel.lineage[0][0]
    opened = [g for g, _ in parcel.lineage]
    assert opened == sorted(set(opened)), "generations only grow along a lineage"
    assert opened[-1] == parcel.generation
    maker = -1
    for word in parcel.chain.split("|")[1:]:
        if found := re.fullmatch(r"r(\d+):(\d)", word):
            assert int(found[1]) == done
            generation = next(g for g in opened if g > generation)
            assert generation[1] == int(found[2])
            assert maker in (-1, int(found[2])), "only who made an entry can go on from there"
            maker = maker if done == 0 else int(found[2])
        else:
            hop, maker, number, opener = map(int, re.split(r"[:@.]", word))
            done += 1
            assert (hop, (number, opener)) == (done, generation)


def settle(world: World, bounds: Bounds, dead: int | None, good: set[World]) -> bool:
    """Without further faults the run ends; ``dead`` never comes back."""
    alive = [p for p in range(bounds.peers) if p != dead]
    world = replace(world, flight=frozenset())
    trail = []
    for _ in range(60):
        if world in good:
            break
        trail.append(world)
        if any(world.states[p].committed for p in alive):
            break
        world = fair_round(world, bounds, alive)
    else:
        return False
    good.update(trail)
    return True


def fair_round(world: World, bounds: Bounds, alive: list[int]) -> World:
    """Every peer that is there does what it would do, the network works, leases run out."""
    for peer in alive:
        state = world.states[peer]
        if state.stage == "arrived":
            chain = visit_chain(state)
            world = with_state(world, peer, pr.visited(state, chain, chain))
        elif state.stage == "visited":
            left = [p for p in bounds.near(peer) if p not in state.passed_over]
            state = pr.address(state, (left[0],)) if left else pr.waited(state)
            world = with_state(world, peer, state)
        elif state.stage == "offered":
            assert state.held is not None
            target, parcel = state.path[0], state.held
            if target in alive:
                there, reply = pr.receive(world.states[target], parcel, state.path)
                world = with_state(world, target, there)
                world = with_state(world, peer, pr.answered(state, parcel, reply))
            else:
                world = with_state(world, peer, pr.failed(state, certain=True))
        elif state.stage == "final" and len(alive) >= bounds.quorum:
            assert state.held is not None
            last = state.held
            end = pr.Value(last.generation, last.chain, last.token)
            world = decided(world, peer, end)
        state = world.states[peer]
        if pr.basis(state) is not None:
            heard = {p: pr.sighting(world.states[p]) for p in alive if p != peer}
            world = replace(decide(world, peer, heard), recoveries=1)
        elif bounds.voids:
            heard = {p: pr.sighting(world.states[p]) for p in alive if p != peer}
            if pr.deserted(world.states[peer], heard):
                world = decided(world, peer, VOID)
    return world


def decided(world: World, peer: int, end: pr.Value) -> World:
    """The peers that are there decide, unless they have, and ``peer`` is shown the end."""
    world = replace(world, end=world.end or end)
    assert world.end is not None
    return with_state(world, peer, pr.commit(world.states[peer], world.end))


NORMAL = [
    Bounds(hops=2, recoveries=0, refusals=2),
    Bounds(hops=2, recoveries=1, refusals=1),
    Bounds(hops=2, recoveries=1, refusals=0, edges=LINE),
]
LONG = [
    Bounds(hops=3, recoveries=1, refusals=1),
    Bounds(hops=2, recoveries=2, refusals=1),
    Bounds(hops=3, recoveries=2, refusals=0, edges=LINE),
    Bounds(hops=2, recoveries=3, refusals=0, edges=LINE),
]
GIVEN_UP = Bounds(hops=2, recoveries=1, refusals=1, private=True, voids=True)


def run_model(bounds: Bounds) -> int:
    worlds = explore(start(bounds), bounds)
    assert any(w.end for w in worlds)
    if bounds.recoveries:
        numbers = {s.fence[0] for w in worlds for s in w.states}
        assert numbers == set(range(bounds.recoveries + 1))
    # Without the middle of a line its ends cannot reach each other: then the run waits.
    mortal = range(bounds.peers) if bounds.edges is None else (0, 2)
    for dead in (None, *mortal):
        good: set[World] = set()
        for world in worlds:
            assert settle(world, bounds, dead, good), (dead, world)
    return len(worlds)


def words(bounds: Bounds) -> str:
    shape = "line" if bounds.edges else "complete"
    return f"{shape}-{bounds.hops}-{bounds.recoveries}-{bounds.refusals}"


@pytest.mark.parametrize("bounds", NORMAL, ids=words)
def test_every_interleaving(bounds):
    assert run_model(bounds) > 100


@pytest.mark.soak
@pytest.mark.parametrize("bounds", LONG, ids=words)
def test_every_interleaving_of_more(bounds):
    assert run_model(bounds) > 10_000


def test_a_walk_that_only_one_peer_can_begin():
    """A chapter that forgets: until it was handed on it waits for that peer, then for nobody."""
    bounds = Bounds(hops=2, recoveries=1, refusals=1, private=True)
    worlds = explore(start(bounds), bounds)
    assert any(w.end for w in worlds)
    begun = [w for w in worlds if any(s.held or s.kept or s.committed for s in w.states[1:])]
    assert 0 < len(begun) < len(worlds)
    for dead in (None, 1, 2):
        good: set[World] = set()
        assert all(settle(world, bounds, dead, good) for world in worlds)
    good = set()
    assert all(settle(world, bounds, 0, good) for world in begun)
    waiting = next(w for w in worlds if w not in set(begun))
    assert not settle(waiting, bounds, 0, set())


@pytest.mark.parametrize("recoveries", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_walk_that_nobody_can_begin_is_given_up(recoveries):
    """It ends whoever stays away, in one way, and not even its own peer can go on with it."""
    bounds = replace(GIVEN_UP, recoveries=recoveries)
    worlds = explore(start(bounds), bounds)
    ends = {bool(w.end.chain) for w in worlds if w.end is not None}
    assert ends == {True, False}, "it may be carried out or given up"
    for dead in (None, 0, 1, 2):
        good: set[World] = set()
        assert all(settle(world, bounds, dead, good) for world in worlds), dead


def test_who_hears_the_end_still_shows_nobody_a_generation_that_nobody_took():
    """The peer that has the only token would drop it, and whoever had it dropped may be gone."""
    first = pr.visited(pr.begin(0, 2, 2, 0, "", "t"), "1", "t1")
    first = pr.failed(pr.address(first, (1,)), certain=False)
    assert first.held is not None
    holder, reply = pr.receive(pr.begin(1, 2, 2, 0, "", "t", has=False), first.held, (1,))
    assert (holder.stage, reply.kind) == ("arrived", "accepted")
    tried = pr.recover(first, 0, "1|r1:0")
    assert (tried.fence, pr.sighting(tried).fence) == ((1, 0), (0, 0))
    seen = pr.sighting(pr.commit(tried, VOID))
    assert seen.over
    assert pr.fenced(holder, seen.fence, seen.lineage) == holder


def test_who_recovers_twice_passes_over_both_who_may_have_the_token():
    state = pr.visited(pr.begin(0, 2, 9, 0, "", "t"), "1", "t1")
    for number, other in enumerate((1, 2), 1):
        state = pr.failed(pr.address(state, (other,)), certain=False)
        state = pr.recover(state, 0, f"{number}|r1:0")
    assert (state.fence, state.passed_over) == ((2, 0), (1, 2))


def test_who_did_not_take_a_token_is_passed_over_though_another_opened_a_generation():
    state = pr.visited(pr.begin(0, 2, 9, 0, "", "t"), "1", "t1")
    state = pr.address(state, (1,))
    state = pr.fenced(state, (1, 2), (((0, 0), 0), ((1, 2), 0)))
    assert state.kept is not None
    assert pr.recover(state, 0, "r").passed_over == (1, 2)


def test_the_model_notices_a_holder_that_is_too_quick_to_ask_somebody_else(monkeypatch):
    def hasty(state, *, certain):
        if state.stage != "offered":
            return state
        over = (*state.passed_over, state.path[0])
        return replace(state, stage="visited", path=(), passed_over=over)

    bounds = Bounds(hops=3, recoveries=0, refusals=1)
    monkeypatch.setattr(pr, "failed", hasty)
    with pytest.raises(AssertionError, match="one generation has two tokens"):
        explore(start(bounds), bounds)


def test_the_model_notices_a_token_that_is_dropped_before_it_arrived(monkeypatch):
    def sent(state, *, certain):
        assert state.stage == "offered"
        return replace(state, held=None, stage="", path=(), kept=None, kept_for=-1)

    monkeypatch.setattr(pr, "failed", sent)  # what a holder does when it has sent the token
    bounds = Bounds(hops=2, recoveries=0, refusals=0)
    with pytest.raises(AssertionError, match="the furthest token is nowhere after: send"):
        explore(start(bounds), bounds)


def test_the_model_notices_a_copy_that_is_not_kept(monkeypatch):
    handed = pr._handed

    def forgetful(state, *, watching):
        return replace(handed(state, watching=watching), kept=None, kept_for=-1)

    monkeypatch.setattr(pr, "_handed", forgetful)
    bounds = Bounds(hops=2, recoveries=0, refusals=0, private=True)
    worlds = explore(start(bounds), bounds)
    assert all(settle(world, bounds, None, set()) for world in worlds)
    assert not all(settle(world, bounds, 1, set()) for world in worlds), "1 had the only token"


def test_the_model_notices_a_generation_that_is_shown_too_early(monkeypatch):
    monkeypatch.setattr(pr, "shown", lambda state: (state.fence, state.lineage))
    bounds = Bounds(hops=3, recoveries=1, refusals=0, edges=LINE, private=True)
    with pytest.raises(AssertionError, match=r"\(1, 0\) is shown, but nobody took it"):
        explore(start(bounds), bounds)


def test_a_place_in_a_tuple():
    assert put((1, 2, 3), 1, 0) == (1, 0, 3)


if __name__ == "__main__":
    for model in (*NORMAL, *LONG):
        print(f"{words(model)}: {run_model(model):,} states", flush=True)
    print(f"begun by one peer or given up: {len(explore(start(GIVEN_UP), GIVEN_UP)):,} states")
