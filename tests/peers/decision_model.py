"""An exhaustive explorer of one decision: every order of messages, every time-out, every lie.

A liar may cast every vote there is, at any time, and show each to whom it likes.  An honest peer
is run by the daemon's own code; before each step it hears any set of votes that exist, so that
every loss, delay and order is covered.  What honest peers have cast stays in a pool for ever.

What a peer can do depends on votes that exist, never on votes that do not, and a vote only on
votes of an earlier round, or of an earlier kind in its round.  So every set of votes that some
order of steps leads to is also reached in the one order of :func:`explore`: round by round,
prevotes before precommits, peer by peer, each of which may also do nothing any more.
:func:`explore_orders` tries all orders, and finds the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import combinations

from unwalk.peers.protocol import consensus as de
from unwalk.peers.protocol.consensus import (
    NEVER,
    NIL,
    PRECOMMIT,
    PREVOTE,
    PROPOSE,
    Heard,
    Rules,
    Vote,
)

VALUES = ("a", "b")
Key = tuple[int, str, int, str, int, tuple[int, str, int] | None]


@dataclass(frozen=True)
class Case:
    """Who takes part, who of them lies, and how many rounds are looked at."""

    peers: int
    lies: int
    liars: frozenset[int]
    rounds: int = 2

    @property
    def rules(self) -> Rules:
        return Rules(tuple(range(self.peers)), self.lies)

    @property
    def honest(self) -> list[int]:
        return [p for p in range(self.peers) if p not in self.liars]


@dataclass(frozen=True)
class World:
    """Where each honest peer is, and all that honest peers have cast."""

    keys: tuple[Key, ...]
    pool: frozenset[Vote]


def start(case: Case) -> World:
    return World(((0, PROPOSE, NEVER, NIL, NEVER, None),) * len(case.honest), frozenset())


@lru_cache
def _lies(liars: frozenset[int], kind: str, round: int, value: str, since: int) -> frozenset[Vote]:
    return frozenset(Vote(kind, round, value, since, liar) for liar in liars)


class Votes:
    """What can be shown in a world."""

    def __init__(self, case: Case, pool: frozenset[Vote]) -> None:
        self.case, self.pool = case, pool
        self.chains: dict[tuple[int, str, int], de.Chain | None] = {}
        self.cast: dict[tuple[str, tuple[int, str, int]], set[Vote]] = {}
        for vote in pool:
            self.cast.setdefault((vote.kind, vote.subject), set()).add(vote)

    def able(self, kind: str, round: int, value: str, since: int) -> frozenset[Vote]:
        """Votes for one thing, those of liars among them."""
        cast = self.cast.get((kind, (round, value, since)), set())
        if len(cast) + len(self.case.liars) < self.case.rules.quorum:
            return frozenset()  # too few for anything
        return _lies(self.case.liars, kind, round, value, since) | cast

    def chain(self, round: int, value: str, since: int) -> de.Chain | None:
        """A polka with what justifies it, if there is one."""
        subject = (round, value, since)
        if subject not in self.chains:
            self.chains[subject] = self._chain(*subject)
        return self.chains[subject]

    def _chain(self, round: int, value: str, since: int) -> de.Chain | None:
        polka = self.able(PREVOTE, round, value, since)
        if len(polka) < self.case.rules.quorum:
            return None
        if since == NEVER:
            return (polka,)
        rest = next(iter(self.for_value(since, value)), None)
        return None if rest is None else (polka, *rest)

    def for_value(self, round: int, value: str) -> Iterator[de.Chain]:
        for since in range(NEVER, round):
            found = self.chain(round, value, since)
            if found is not None:
                yield found

    def up_to(self, round: int) -> Iterator[de.Chain]:
        for number in range(round + 1):
            for value in VALUES:
                yield from self.for_value(number, value)

    def decisions(self) -> Iterator[de.Decision]:
        """All that could be shown as decided."""
        for round in range(self.case.rounds):
            for value in VALUES:
                for since in range(NEVER, round):
                    votes = self.able(PRECOMMIT, round, value, since)
                    chain = self.chain(round, value, since)
                    if len(votes) >= self.case.rules.quorum and chain is not None:
                        yield de.Decision(value, round, votes, chain)


def state_of(case: Case, votes: Votes, peer: int, key: Key) -> de.State:
    round, step, locked, lock, foreign, head = key
    own = frozenset(v for v in votes.pool if (v.voter, v.round) == (peer, round))
    chain = () if head is None else votes.chain(*head)
    assert chain is not None
    state = de.State(peer, round, step, locked, own, frozenset(), chain)
    return replace(state, lock=lock, foreign=foreign)


Move = tuple[Key, frozenset[Vote]]


def steps(
    world: World, case: Case, known: dict[object, set[Move]], places: Iterable[int]
) -> Iterator[World]:
    """Every world that may come next; ``known`` remembers what a peer can do with which votes."""
    for place in places:
        peer, key = case.honest[place], world.keys[place]
        pool = frozenset(v for v in world.pool if v.round <= key[0])
        where = (peer, key, pool)
        if where not in known:
            votes = Votes(case, pool)
            state = state_of(case, votes, peer, key)
            known[where] = {result(case, after) for after in moves(state, case, votes)}
        for after, own in known[where]:
            keys = (*world.keys[:place], after, *world.keys[place + 1 :])
            yield World(keys, world.pool | own)


def result(case: Case, state: de.State) -> Move:
    """Of what a peer knows only what can matter later: no more worlds than need be.

    A polka matters to whoever will propose; others are shown it again when they need it.
    """
    later = range(state.round + (state.step != PROPOSE), case.rounds)
    leads = state.me in {case.rules.leader(r) for r in later}
    head = de.head(state.chain) if leads else None
    key = (state.round, state.step, state.locked, state.lock, state.foreign, head)
    return key, frozenset(v for v in state.votes if v.voter == state.me)


def moves(state: de.State, case: Case, votes: Votes) -> Iterator[de.State]:
    rules = case.rules
    opened = _any(case, votes, PRECOMMIT, state.round)
    if state.round + 1 < case.rounds and len({v.voter for v in opened}) >= rules.quorum:
        yield de.hear(state, rules, Heard(opened=frozenset(opened)), VALUES)
    for chain in votes.up_to(state.round):
        yield de.hear(state, rules, Heard(chains=(chain,)), VALUES)
    if state.step == PROPOSE:
        yield de.timed_out(state, rules, VALUES)
        for aware in _rivals(state):
            if de.may_propose(aware, rules):
                for value in VALUES[: 1 if state.round == 0 else 2]:  # which is called a is all one
                    yield de.propose(aware, rules, value, VALUES)
            for said, proof in _proposals(state, case, votes):
                heard = Heard(frozenset({said}), chains=(proof,) if proof else ())
                yield de.hear(aware, rules, heard, VALUES)
    if state.step == PREVOTE:
        for some in combinations(_any(case, votes, PREVOTE, state.round), rules.quorum):
            for good in (VALUES, ()):
                after = de.hear(state, rules, Heard(frozenset(some)), good)
                yield de.timed_out(after, rules, good) if after.step == PREVOTE else after
        ahead = frozenset(_any(case, votes, PRECOMMIT, state.round))
        yield de.timed_out(de.hear(state, rules, Heard(ahead)), rules)


def _rivals(state: de.State) -> Iterator[de.State]:
    """A peer may know of a polka for a third value in any round, or of none: so any reason for a
    value may be the oldest that will do."""
    yield state
    for round in range(state.round):
        yield replace(state, rival=(frozenset({Vote(PREVOTE, round, "c", NEVER, 0)}),))


def _any(case: Case, votes: Votes, kind: str, round: int) -> list[Vote]:
    """Votes of a round, one of each peer; those of liars are for nothing."""
    cast = [v for v in votes.pool if (v.kind, v.round) == (kind, round)]
    return cast + [Vote(kind, round, NIL, NEVER, liar) for liar in sorted(case.liars)]


def _proposals(state: de.State, case: Case, votes: Votes) -> Iterator[tuple[Vote, de.Chain | None]]:
    leader = case.rules.leader(state.round)
    for value in VALUES:
        for since in range(NEVER, state.round):
            said = Vote(PROPOSE, state.round, value, since, leader)
            if leader not in case.liars and said not in votes.pool:
                continue
            if since == NEVER:
                yield said, None
            else:
                for chain in votes.for_value(since, value):
                    yield said, chain


@dataclass
class Found:
    """What an exploration saw."""

    worlds: int = 0
    decided: frozenset[str] = frozenset()
    forks: int = 0
    blamed: frozenset[int] = frozenset()


def explore(case: Case) -> Found:
    """All reachable pools: who is honest is never blamed, and a fork names only liars."""
    worlds, found = {start(case)}, Found()
    known: dict[object, set[Move]] = {}
    pools: set[frozenset[Vote]] = set()
    for round in range(case.rounds):
        first = case.rules.leader(round)
        for kind in (PROPOSE, PREVOTE, PRECOMMIT):
            order = sorted(range(len(case.honest)), key=lambda p: case.honest[p] != first)
            for place in order * (2 if kind == PRECOMMIT else 1):  # see a polka, then go on
                after = set(worlds)
                for world in worlds:
                    after |= {
                        w
                        for w in steps(world, case, known, [place])
                        if follows(world.keys[place], w.keys[place], round, kind)
                    }
                worlds = after
            pools |= {world.pool for world in worlds}
    for pool in pools:
        check(case, Votes(case, pool), found)
    found.worlds = len(pools)
    return found


def follows(before: Key, after: Key, round: int, kind: str) -> bool:
    """Whether a step belongs to the part of a round that begins in step ``kind``."""
    if kind == PRECOMMIT:  # or on to the next round, from anywhere
        return before[0] == round and (after[0] == round + 1 or after[-1] != before[-1])
    return before[:2] == (round, kind) and after[0] == round


def explore_orders(case: Case) -> tuple[set[frozenset[Vote]], Found]:
    """The same by every order of steps."""
    first = start(case)
    seen, todo, found = {first}, [first], Found()
    pools: set[frozenset[Vote]] = set()
    known: dict[object, set[Move]] = {}
    while todo:
        world = todo.pop()
        if world.pool not in pools:
            pools.add(world.pool)
            check(case, Votes(case, world.pool), found)
        for after in steps(world, case, known, range(len(case.honest))):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    found.worlds = len(seen)
    return pools, found


def check(case: Case, votes: Votes, found: Found) -> None:
    for peer in case.honest:
        _check_honest(frozenset(v for v in votes.pool if v.voter == peer))
    decided = list(votes.decisions())
    for decision in decided:
        assert de.check_decision(case.rules, decision)
        found.decided |= {decision.value}
    for one, other in combinations(decided, 2):
        if one.value != other.value:
            found.forks += 1
            for a in smallest(case, one):
                for b in smallest(case, other):
                    named = set(de.blame(a, b))
                    assert named, "a fork that blames nobody"
                    assert len(named) > case.lies, "a fork that blames too few"
                    assert named <= case.liars, "a fork that blames an honest peer"
                    found.blamed |= named


@cache
def _check_honest(cast: frozenset[Vote]) -> None:
    for one, other in combinations(cast, 2):
        assert not de.conflict(one, other), f"an honest peer could be blamed: {one} {other}"


def smallest(case: Case, decision: de.Decision) -> Iterable[de.Decision]:
    """The same with as few votes as will do: liars first, and liars last."""
    need = case.rules.quorum
    for sign in (1, -1):

        def few(votes: frozenset[Vote], sign: int = sign) -> frozenset[Vote]:
            ordered = sorted(votes, key=lambda v: (sign * (v.voter in case.liars), v.voter))
            return frozenset(ordered[:need])

        chain = tuple(few(polka) for polka in decision.chain)
        yield replace(decision, precommits=few(decision.precommits), chain=chain)
