"""Which lineage counts: a run is committed once, by a majority (single-decree Paxos).

A partition may leave two tokens walking, and both may reach the last hop.  The peer that did the
last visit therefore asks all peers twice: may I propose (:func:`prepare`), and is it this value
(:func:`accept`)?  If a majority says yes both times the run is committed.  Two majorities share a
peer, so two different values can never both be chosen: whoever proposes later must take over the
value that a majority may have accepted before (Lamport, *Paxos Made Simple*, 2001, section 2.2).

A walk that nobody who is there can begin ends by the same vote (:func:`void_value`): it is either
committed to a token or given up, never both, and whoever comes back later learns which.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from unwalk.peers.protocol import (
    Ballot,
    Generation,
    Lineage,
    PeerState,
    Value,
    shown,
)


@dataclass(frozen=True)
class Vote:
    """Answer to a proposer: ``yes``, ``no`` (``ballot`` was promised), ``stale``, ``committed``."""

    kind: str
    ballot: Ballot = (-1, -1)
    accepted: tuple[Ballot, Value] | None = None
    fence: Generation = (0, 0)
    lineage: Lineage = ()
    value: Value | None = None


def next_ballot(state: PeerState, seen: Iterable[Ballot] = ()) -> Ballot:
    """A ballot above everything that was promised here or seen elsewhere."""
    highest = max((b[0] for b in (state.promised, *seen)), default=-1)
    return highest + 1, state.me


def final_value(state: PeerState) -> Value | None:
    """What this peer would propose: the token after the last visit, if it is here."""
    if state.stage != "final" or state.held is None:
        return None
    return Value(state.held.generation, state.held.chain, state.held.token)


def void_value(state: PeerState, seen: int, chain: str, token: str) -> Value:
    """The end of a walk that nobody who is there can begin: no visit, and the model from before.

    ``chain`` is the log's beginning, ``token`` that model.  The generation is above ``seen`` and
    all that is known here, so that whoever votes does not find it stale.
    """
    return Value((max(seen, state.fence[0]) + 1, state.me), chain, token)


def prepare(state: PeerState, ballot: Ballot, generation: Generation) -> tuple[PeerState, Vote]:
    """A peer with the last token of ``generation`` wants to propose under ``ballot``."""
    if state.committed is not None:
        return state, Vote("committed", value=state.committed)
    fence, lineage = shown(state)
    if generation < fence:
        return state, Vote("stale", fence=fence, lineage=lineage)
    if ballot <= state.promised:
        return state, Vote("no", ballot=state.promised)
    return replace(state, promised=ballot), Vote("yes", ballot, state.accepted)


def chosen(own: Value, votes: Iterable[Vote]) -> Value:
    """The value to propose: the one accepted under the highest ballot, or one's own."""
    earlier = [v.accepted for v in votes if v.accepted is not None]
    return max(earlier, key=lambda a: a[0])[1] if earlier else own


def accept(state: PeerState, ballot: Ballot, value: Value) -> tuple[PeerState, Vote]:
    """The second question."""
    if state.committed is not None:
        return state, Vote("committed", value=state.committed)
    if ballot < state.promised:
        return state, Vote("no", ballot=state.promised)
    return replace(state, promised=ballot, accepted=(ballot, value)), Vote("yes", ballot)
