"""An exhaustive explorer of the hand-over protocol: every interleaving, delay and crash point.

The network may deliver a message at any later time or never, in any order; each message at most
once (TLS sees to that), but a sender may send again.  A peer may crash between any two steps and
come back with what it had written.  A lease may run out at any time, and a walk be given up by
anybody at any time.  The explored code is the code that the daemon runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from unwalk.peers import commit as cm
from unwalk.peers import protocol as pr
from unwalk.peers.protocol import PeerState, Sighting


@dataclass(frozen=True)
class Bounds:
    """How much may go wrong."""

    peers: int = 3
    hops: int = 2
    crashes: int = 1
    recoveries: int = 2
    refusals: int = 1
    ballots: int = 2
    edges: frozenset[tuple[int, int]] | None = None
    slow_commit: bool = False
    private: bool = False
    voids: int = 0

    def near(self, peer: int) -> list[int]:
        others = [p for p in range(self.peers) if p != peer]
        if self.edges is None:
            return others
        return [p for p in others if (min(p, peer), max(p, peer)) in self.edges]


@dataclass(frozen=True)
class World:
    """One moment: durable states, who is up, what is under way, what is only in memory."""

    states: tuple[PeerState, ...]
    up: tuple[bool, ...]
    flight: frozenset[Any]
    proposing: tuple[Any, ...]
    crashes: int
    recoveries: int
    refusals: int
    chosen: frozenset[pr.Value] = frozenset()
    voids: int = 0


def start(bounds: Bounds) -> World:
    states = tuple(
        tidy(pr.begin(p, bounds.peers, bounds.hops, 0, "", "t", has=not bounds.private))
        for p in range(bounds.peers)
    )
    return World(
        states,
        (True,) * bounds.peers,
        frozenset(),
        (None,) * bounds.peers,
        bounds.crashes,
        bounds.recoveries,
        bounds.refusals,
        voids=bounds.voids,
    )


def tidy(state: PeerState) -> PeerState:
    """Leases may run out at any time here, so whether a peer watches makes no difference."""
    return replace(state, watching=False) if state.watching else state


def put(items: Any, place: int, value: object) -> Any:
    return (*items[:place], value, *items[place + 1 :])


def with_state(world: World, peer: int, state: PeerState) -> World:
    states = put(world.states, peer, tidy(state))
    flight = world.flight
    if flight:
        flight = frozenset(m for m in flight if _matters(m, states))
    return replace(world, states=states, flight=flight)


def _matters(message: Any, states: tuple[PeerState, ...]) -> bool:
    """Whether a message can still change anything that gossip would not change as well."""
    kind, source, target, parcel = message[:4]
    there = states[target]
    if kind == "reply":
        return there.held == parcel or message[4].kind in ("stale", "committed")
    if there.committed is not None or there.fence > parcel.generation:
        return False
    had = there.reached[0] == parcel.generation and there.reached[1] >= parcel.place
    return not had or states[source].held == parcel


def visit_chain(state: PeerState) -> str:
    """The log in the model: who did which hop in which generation."""
    assert state.held is not None
    number = state.held.generation[0]
    return f"{state.held.chain}|{state.held.hop + 1}:{state.me}@{number}.{state.held.generation[1]}"


def recovery_chain(state: PeerState) -> str:
    parcel = pr.basis(state)
    assert parcel is not None
    return f"{parcel.chain}|r{parcel.hop}:{state.me}"


def steps(world: World, bounds: Bounds) -> Iterator[tuple[str, World]]:
    """Every world that may come next, with the name of the step."""
    if not bounds.slow_commit:
        yield from _deliveries(world)
    for peer in range(bounds.peers):
        if not world.up[peer]:
            state = pr.restarted(world.states[peer])
            up = with_state(replace(world, up=put(world.up, peer, True)), peer, state)
            yield f"restart {peer}", up
            continue
        yield from _proposing(world, peer, bounds)
        yield from _giving_up(world, peer, bounds)
        if not bounds.slow_commit:
            yield from _own_steps(world, peer, bounds)
            yield from _asking(world, peer, bounds)
            yield from _gossip(world, peer, bounds)
        if world.crashes:
            yield (
                f"crash {peer}",
                replace(
                    world,
                    up=put(world.up, peer, False),
                    proposing=put(world.proposing, peer, None),
                    crashes=world.crashes - 1,
                ),
            )


def _deliveries(world: World) -> Iterator[tuple[str, World]]:
    for message in world.flight:
        kind, source, target = message[:3]
        if not world.up[target]:
            continue
        gone = replace(world, flight=world.flight - {message})
        if kind == "offer":
            parcel, path = message[3:]
            state, reply = pr.receive(world.states[target], parcel, path)
            there = with_state(gone, target, state)
            answer = ("reply", target, source, parcel, reply)
            yield f"offer {source}>{target}", replace(there, flight=there.flight | {answer})
        else:
            parcel, reply = message[3:]
            state = pr.answered(world.states[target], parcel, reply)
            yield f"reply {source}>{target}", with_state(gone, target, state)


def _own_steps(world: World, peer: int, bounds: Bounds) -> Iterator[tuple[str, World]]:
    state = world.states[peer]
    if state.stage == "arrived":
        chain = visit_chain(state)
        yield f"visit {peer}", with_state(world, peer, pr.visited(state, chain, chain))
    elif state.stage == "visited":
        left = [p for p in bounds.near(peer) if p not in state.passed_over]
        for target in left:
            yield f"choose {peer}>{target}", with_state(world, peer, pr.address(state, (target,)))
        if not left:
            yield f"wait {peer}", with_state(world, peer, pr.waited(state))
    elif state.stage == "offered":
        target = state.path[0]
        offer = ("offer", peer, target, state.held, state.path)
        if offer not in world.flight:
            # Sending makes the outcome unclear until an answer comes.
            unsure = with_state(world, peer, pr.failed(state, certain=False))
            yield f"send {peer}>{target}", replace(unsure, flight=world.flight | {offer})
        if world.refusals and not state.unclear:
            over = with_state(world, peer, pr.failed(state, certain=True))
            yield f"refused {peer}>{target}", replace(over, refusals=world.refusals - 1)


def _asking(world: World, peer: int, bounds: Bounds) -> Iterator[tuple[str, World]]:
    """The lease ran out.

    Answers that say more than "not further" stay true for ever, so hearing one peer at a time
    covers them.  Answers may be old when they are used, and the oldest say that nobody is
    further: so a peer with a copy may recover at any time, whatever the others do, which covers
    every set of answers, every partition and every delay.
    """
    state = world.states[peer]
    if pr.basis(state) is None:
        return
    for other in range(bounds.peers):
        if other != peer and world.up[other]:
            heard = {other: pr.sighting(world.states[other])}
            if pr.consider(state, heard).kind in ("committed", "fenced", "ahead"):
                yield f"{peer} hears {other}", decide(world, peer, heard)
    if world.recoveries:
        numbers = {state.fence[0], max(s.fence[0] for s in world.states)}
        for seen in numbers:
            new = with_state(world, peer, pr.recover(state, seen, recovery_chain(state)))
            yield f"recover {peer} above {seen}", replace(new, recoveries=world.recoveries - 1)


def decide(world: World, peer: int, answers: dict[int, Sighting]) -> World:
    """What the daemon does with the answers."""
    state = world.states[peer]
    verdict = pr.consider(state, answers)
    if verdict.kind == "committed" and verdict.value is not None:
        return with_state(world, peer, pr.commit(state, verdict.value))
    if verdict.kind == "fenced":
        return with_state(world, peer, pr.fenced(state, verdict.fence, verdict.lineage))
    if verdict.kind == "ahead":
        furthest = max(s.reached for s in answers.values())
        return with_state(world, peer, pr.released(state, *furthest))
    if verdict.kind == "recover":
        seen = max((s.fence[0] for s in answers.values()), default=0)
        new = pr.recover(state, seen, recovery_chain(state))
        return replace(with_state(world, peer, new), recoveries=world.recoveries - 1)
    return world


def void_of(world: World, peer: int, seen: int) -> pr.Value:
    """The end without a visit, as one peer would propose it."""
    return cm.void_value(world.states[peer], seen, "", "t")


def _giving_up(world: World, peer: int, bounds: Bounds) -> Iterator[tuple[str, World]]:
    """The daemon does so when nobody has the token; here anybody may, whatever is going on."""
    state = world.states[peer]
    if not world.voids or state.committed is not None:
        return
    less = replace(world, voids=world.voids - 1)
    if bounds.slow_commit:
        ballot = cm.next_ballot(state)
        if world.proposing[peer] is None and ballot[0] < bounds.ballots:
            trial = (ballot, None, 0, (), void_of(world, peer, 0))
            yield f"{peer} gives up", replace(less, proposing=put(world.proposing, peer, trial))
        return
    for seen in {state.fence[0], max(s.fence[0] for s in world.states)}:
        for name, after in _quick_commit(less, peer, void_of(world, peer, seen), bounds):
            yield f"give up: {name}", after


def _proposing(world: World, peer: int, bounds: Bounds) -> Iterator[tuple[str, World]]:
    state, trial = world.states[peer], world.proposing[peer]
    own = cm.final_value(state)
    if not bounds.slow_commit:
        if own is not None:
            yield from _quick_commit(world, peer, own, bounds)
        return
    if own is None and (trial is None or trial[4].chain):
        if trial is not None:
            yield f"lose heart {peer}", replace(world, proposing=put(world.proposing, peer, None))
        return
    if trial is None:
        ballot = cm.next_ballot(state)
        if ballot[0] < bounds.ballots:
            asked = replace(world, proposing=put(world.proposing, peer, (ballot, None, 0, (), own)))
            yield f"propose {peer}", asked
        return
    ballot, value, asked_of, votes, own = trial
    if asked_of == bounds.peers:
        yield f"count {peer}", _count(world, peer, trial, bounds)
        return
    other = asked_of
    if value is None:
        there, vote = cm.prepare(world.states[other], ballot, own.generation)
    else:
        there, vote = cm.accept(world.states[other], ballot, value)
    unheard = (ballot, value, asked_of + 1, votes, own)
    heard = (ballot, value, asked_of + 1, _votes((*votes, vote)), own)
    changed = with_state(world, other, there)
    if other != peer:  # what a peer asks itself is never lost
        lost = replace(world, proposing=put(world.proposing, peer, unheard))
        yield f"{peer} skips {other}", lost
    if world.up[other]:
        if other != peer and there != world.states[other]:
            lost = replace(changed, proposing=put(world.proposing, peer, unheard))
            yield f"{peer} asks {other}, answer lost", lost
        yield f"{peer} asks {other}", replace(changed, proposing=put(world.proposing, peer, heard))


def _votes(votes: Any) -> Any:
    """What of the votes matters for the count: no more worlds than need be."""
    yes = tuple(replace(v, ballot=(-1, -1)) for v in votes if v.kind == "yes")
    best = max((v.accepted for v in yes if v.accepted), key=lambda a: a[0], default=None)
    plain = tuple(cm.Vote("yes", accepted=best if n == 0 else None) for n in range(len(yes)))
    return plain + tuple(v for v in votes if v.kind in ("stale", "committed"))[:1]


def _quick_commit(
    world: World, peer: int, own: pr.Value, bounds: Bounds
) -> Iterator[tuple[str, World]]:
    """Both questions at once, to every set of peers that is large enough."""
    there = [p for p in range(bounds.peers) if world.up[p]]
    for size in range(pr.majority(bounds.peers), len(there) + 1):
        for quorum in combinations(there, size):
            if peer not in quorum:
                continue
            yield f"commit {peer} {quorum}", _round(world, peer, own, quorum, bounds)


def _round(world: World, peer: int, own: pr.Value, quorum: Any, bounds: Bounds) -> World:
    ballot = cm.next_ballot(world.states[peer], (world.states[p].promised for p in quorum))
    votes = []
    for other in quorum:
        there, vote = cm.prepare(world.states[other], ballot, own.generation)
        if vote.kind != "yes":  # told at once, so nobody has promised anything for nothing
            return _count(world, peer, (ballot, None, 0, (vote,), own), bounds)
        votes.append(vote)
    value = cm.chosen(own, votes)
    for other in quorum:
        there, _ = cm.accept(world.states[other], ballot, value)
        world = with_state(world, other, there)
    yes = (cm.Vote("yes"),) * len(quorum)
    return _count(world, peer, (ballot, value, 0, yes, own), bounds)


def _count(world: World, peer: int, trial: Any, bounds: Bounds) -> World:
    ballot, value, _, votes, own = trial
    state = world.states[peer]
    ended = replace(world, proposing=put(world.proposing, peer, None))
    for vote in votes:
        if vote.kind == "committed":
            return with_state(ended, peer, pr.commit(state, vote.value))
        if vote.kind == "stale":
            return with_state(ended, peer, pr.fenced(state, vote.fence, vote.lineage))
    yes = [v for v in votes if v.kind == "yes"]
    if len(yes) < pr.majority(bounds.peers):
        return ended
    if value is None:
        again = (ballot, cm.chosen(own, yes), 0, (), own)
        return replace(world, proposing=put(world.proposing, peer, again))
    done = with_state(ended, peer, pr.commit(state, value))
    return replace(done, chosen=world.chosen | {value})


def _gossip(world: World, peer: int, bounds: Bounds) -> Iterator[tuple[str, World]]:
    """Whoever knows of a generation or of the end may tell anybody at any time."""
    state = world.states[peer]
    fence, lineage = pr.shown(state)
    for other in range(bounds.peers):
        if other == peer or not world.up[other]:
            continue
        there = world.states[other]
        if state.committed is not None and there.committed is None:
            yield (
                f"{peer} tells {other} the end",
                with_state(world, other, pr.commit(there, state.committed)),
            )
        elif fence > there.fence and there.committed is None:
            yield (
                f"{peer} tells {other} {fence}",
                with_state(world, other, pr.fenced(there, fence, lineage)),
            )
