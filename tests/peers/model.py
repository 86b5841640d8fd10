"""An exhaustive explorer of the hand-over protocol: every interleaving, delay and crash point.

The network may deliver a message at any later time or never, in any order; each message at most
once (TLS sees to that), but a sender may send again.  A peer may crash between any two steps and
come back with what it had written.  A lease may run out at any time, and a walk be given up by
anybody at any time.  The explored code is the code that the daemon runs.

Two things keep the number of worlds small, and leave nothing out.  A peer that is down does
nothing, like one that is slow: so a crash is a single step, what a start makes of the disk.  And
a decision changes nothing until somebody hears of it: so an end is decided when it comes into
being, or never.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol.consensus import quorum
from unwalk.peers.protocol.handover import PeerState, Sighting


@dataclass(frozen=True)
class Bounds:
    """How much may go wrong."""

    peers: int = 3
    hops: int = 2
    recoveries: int = 2
    refusals: int = 1
    edges: frozenset[tuple[int, int]] | None = None
    private: bool = False
    voids: bool = False

    @property
    def quorum(self) -> int:
        return quorum(self.peers, 0)

    def near(self, peer: int) -> list[int]:
        others = [p for p in range(self.peers) if p != peer]
        if self.edges is None:
            return others
        return [p for p in others if (min(p, peer), max(p, peer)) in self.edges]


@dataclass(frozen=True, slots=True)
class World:
    """One moment: durable states, what is under way, and on which end the peers decide."""

    states: tuple[PeerState, ...]
    flight: frozenset[Any]
    recoveries: int
    refusals: int
    end: pr.Value | None = None


def start(bounds: Bounds) -> World:
    states = tuple(
        tidy(pr.begin(p, bounds.quorum, bounds.hops, 0, "", "t", has=not bounds.private))
        for p in range(bounds.peers)
    )
    return World(states, frozenset(), bounds.recoveries, bounds.refusals)


def tidy(state: PeerState) -> PeerState:
    """Leases may run out at any time here, so whether a peer watches makes no difference."""
    return replace(state, watching=False, ends=()) if state.watching or state.ends else state


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
        return bool(there.held == parcel or message[4].kind == "stale")
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
    yield from _deliveries(world)
    for peer in range(bounds.peers):
        yield from _own_steps(world, peer, bounds)
        yield from _asking(world, peer, bounds)
        yield from _hearing(world, peer, bounds)
        yield f"crash {peer}", with_state(world, peer, pr.restarted(world.states[peer]))


def _deliveries(world: World) -> Iterator[tuple[str, World]]:
    for message in world.flight:
        kind, source, target = message[:3]
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
        after = pr.visited(state, chain, chain)
        done = with_state(world, peer, after)
        yield f"visit {peer}", done
        if after.ends and world.end is None:
            yield f"last visit {peer}", replace(done, end=after.ends[0])
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
        if other != peer:
            heard = {other: pr.sighting(world.states[other])}
            if pr.consider(state, heard).kind in ("fenced", "ahead"):
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
    if verdict.kind == "over":
        assert world.end is not None
        return with_state(world, peer, pr.commit(state, world.end))
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


VOID = pr.Value((0, 0), "", "t")
"""The end without a visit."""


def _hearing(world: World, peer: int, bounds: Bounds) -> Iterator[tuple[str, World]]:
    """The end may be shown at any time, and whoever knows of a generation may tell anybody.

    That peers decide on one end only is what :mod:`tests.peers.decision_model` explores.  Votes may
    be old when the last one comes, so that it does not matter what was fenced since.
    """
    state = world.states[peer]
    if state.committed is None:
        end = VOID if world.end is None and bounds.voids else world.end
        if end is not None:
            after = with_state(world, peer, pr.commit(state, end))
            yield f"{peer} hears the end", replace(after, end=end)
    fence, lineage = pr.shown(state)
    for other in range(bounds.peers):
        if other == peer:
            continue
        there = world.states[other]
        if fence > there.fence and there.committed is None:
            yield (
                f"{peer} tells {other} {fence}",
                with_state(world, other, pr.fenced(there, fence, lineage)),
            )
