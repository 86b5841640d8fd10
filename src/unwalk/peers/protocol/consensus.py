"""How peers that do not trust each other decide one thing, once: pure functions, no clock.

Rounds have leaders in turn.  The leader *proposes* a value; every peer *prevotes* for it, or for
nothing; a quorum of prevotes for one value in one round is a *polka*, and whoever sees one in its
round *precommits* that value; a quorum of precommits of one round is the *decision*.  (Buchman,
Kwon, Milosevic, *The latest gossip on BFT consensus*, 2018, with two changes that make every lie
of a fork provable.)

Of n peers f may lie: say one thing to one peer and another to the next, or break any rule here.
A quorum is q = floor((n + f) / 2) + 1, so that two quorums share more than f peers, and thus an
honest one.  Three rules keep two values from being decided:

* A peer casts one prevote and one precommit per round, and writes each down before it is told.
* A vote names the round ``since`` that justifies it: -1 for a value that was never proposed
  before, otherwise the round of an earlier polka for that value, which is shown.  Who precommitted
  in round r is *locked*: for another value it prevotes only with a reason from round r or later.
* A round is entered with a quorum of precommits of the round before, which is shown: nobody can
  open a round alone, nor name one that was never reached.

A value is proposed again with the oldest reason that no lock on another value forbids, as far as
polkas for others are known, and none is prevoted that names a newer one: so reasons do not pile up
while a round follows the other, and what a peer shows stays short.

A decision carries its precommits, the polka of its round, and the polkas that justify that one in
turn.  Two decisions for two values therefore hold, whatever was sent to whom, two votes of more
than f peers that no honest peer casts both (:func:`blame`).

Time-outs come in as events (:func:`timed_out`).  What a value is, and whether this peer stands for
it, is not known here: values are digests, ``good`` are those that this peer would vote for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

NIL = ""
"""The vote for no value."""
NEVER = -1
PROPOSE, PREVOTE, PRECOMMIT = "propose", "prevote", "precommit"
KINDS = (PROPOSE, PREVOTE, PRECOMMIT)
MOST_ROUNDS = 1 << 31
"""Rounds of one decision: at ten seconds each they last for centuries."""
DEEPEST = 4
"""Polkas of a chain, at most: as often may polkas for two values take turns."""
TWICE = 2
"""Votes of one kind and round that are kept of one peer: the second shows that it lies."""


def most_lies(peers: int) -> int:
    """How many of ``peers`` may lie where nothing else is said.

    >>> [most_lies(n) for n in (2, 3, 4, 6, 7)]
    [0, 0, 1, 1, 2]
    """
    return (peers - 1) // 3


def quorum(peers: int, lies: int) -> int:
    """How many peers decide: two such sets share more than ``lies`` peers.

    >>> [quorum(n, f) for n, f in ((3, 0), (3, 1), (4, 1), (5, 1), (7, 2))]
    [2, 3, 3, 4, 5]
    """
    return (peers + lies) // 2 + 1


@dataclass(frozen=True)
class Rules:
    """Who decides (``members``, in order), how many of them may lie, whose turn comes first."""

    members: tuple[int, ...]
    lies: int
    first: int = 0

    @property
    def quorum(self) -> int:
        """How many votes count; of fewer peers than may lie all are asked."""
        peers = len(self.members)
        return quorum(peers, min(self.lies, max(peers - 2, 0)))

    def leader(self, round: int) -> int:
        """Whose turn it is to propose."""
        return self.members[(self.first + round) % len(self.members)]


@dataclass(frozen=True)
class Vote:
    """One signed word of one peer; two that say the same are equal, whoever brought them."""

    kind: str
    round: int
    value: str
    since: int
    voter: int
    signature: str = field(default="", compare=False)
    certificate: str = field(default="", compare=False)

    @property
    def subject(self) -> tuple[int, str, int]:
        """What is voted for, and with which reason."""
        return self.round, self.value, self.since


Votes = frozenset[Vote]
Chain = tuple[Votes, ...]
"""Polkas for one value, the latest first, each justified by the next; the last needs none."""
Evidence = tuple[Vote, Vote]
"""Two votes of one peer that no honest peer casts both."""


@dataclass(frozen=True)
class Decision:
    """A value, with all that shows that it was decided."""

    value: str
    round: int
    precommits: Votes
    chain: Chain


@dataclass(frozen=True)
class State:
    """What a peer must not forget of one decision.

    ``votes`` are those of ``round``, its own among them; ``opened`` the precommits with which that
    round was entered; ``locked`` the last round in which this peer precommitted a value, ``lock``
    that value, ``foreign`` the last round in which it precommitted another.  ``chain`` is the
    latest polka that is known, with what justifies it; ``rival`` the latest for another value;
    ``proof`` what justifies the value that is proposed now.
    """

    me: int
    round: int = 0
    step: str = PROPOSE
    locked: int = NEVER
    votes: Votes = frozenset()
    opened: Votes = frozenset()
    chain: Chain = ()
    proof: Chain = ()
    decided: Decision | None = None
    evidence: tuple[Evidence, ...] = ()
    lock: str = NIL
    foreign: int = NEVER
    rival: Chain = ()


@dataclass(frozen=True)
class Heard:
    """What somebody shows: votes of one round, how it was entered, polkas, a decision."""

    votes: Votes = frozenset()
    opened: Votes = frozenset()
    chains: tuple[Chain, ...] = ()
    decided: Decision | None = None

    def all_votes(self) -> Iterator[Vote]:
        """Every vote in it."""
        yield from self.votes
        yield from self.opened
        for chain in self.chains:
            for polka in chain:
                yield from polka
        if self.decided is not None:
            yield from _cast(self.decided)


# What is shown, checked


def well_formed(rules: Rules, vote: Vote) -> bool:
    """Whether a vote is one that somebody who counts could cast."""
    known = vote.kind in KINDS and vote.voter in rules.members
    if not known or not 0 <= vote.round < MOST_ROUNDS or not NEVER <= vote.since < vote.round:
        return False
    if vote.value == NIL and vote.since != NEVER:
        return False
    proposed = vote.kind == PROPOSE
    return not proposed or (vote.value != NIL and vote.voter == rules.leader(vote.round))


def agreeing(rules: Rules, votes: Collection[Vote], kind: str) -> tuple[int, str, int] | None:
    """What a quorum of ``kind`` is for, if ``votes`` are exactly that: one vote per peer."""
    subjects = {v.subject for v in votes}
    voters = {v.voter for v in votes}
    good = all(v.kind == kind and well_formed(rules, v) for v in votes)
    enough = len(voters) == len(votes) >= rules.quorum
    return next(iter(subjects)) if good and enough and len(subjects) == 1 else None


def head(chain: Chain) -> tuple[int, str, int] | None:
    """Round, value and reason of the latest polka."""
    return next(iter(chain[0])).subject if chain else None


def check_chain(rules: Rules, chain: Chain) -> bool:
    """Whether each polka is a quorum for one value, justified by the one after it."""
    wanted: tuple[int, str] | None = None
    if len(chain) > DEEPEST:
        return False
    for polka in chain:
        agreed = agreeing(rules, polka, PREVOTE)
        if agreed is None or agreed[1] == NIL or (wanted is not None and agreed[:2] != wanted):
            return False
        wanted = (agreed[2], agreed[1])
    return wanted is None or wanted[0] == NEVER


def check_decision(rules: Rules, decision: Decision) -> bool:
    """Whether a decision is what it says; signatures are checked elsewhere."""
    agreed = agreeing(rules, decision.precommits, PRECOMMIT)
    if agreed is None or agreed[1] == NIL or agreed[:2] != (decision.round, decision.value):
        return False
    return check_chain(rules, decision.chain) and head(decision.chain) == agreed


def check_opened(rules: Rules, opened: Votes) -> int:
    """The round that ``opened`` opens: a quorum of precommits of the one before; 0 if it is none.

    Those of one peer that precommitted twice count once.
    """
    rounds = {v.round for v in opened}
    good = all(v.kind == PRECOMMIT and well_formed(rules, v) for v in opened)
    if not good or len(rounds) != 1 or len({v.voter for v in opened}) < rules.quorum:
        return 0
    return rounds.pop() + 1


def conflict(one: Vote, other: Vote) -> bool:
    """Whether no honest peer casts both: two in one place, or one that a lock forbids."""
    if one.voter != other.voter or one == other:
        return False
    if one.kind == other.kind and one.round == other.round:
        return True
    first, later = (one, other) if one.kind == PRECOMMIT else (other, one)
    if first.kind != PRECOMMIT or later.kind != PREVOTE or NIL in (first.value, later.value):
        return False
    if first.value == later.value:
        return False
    return later.round > first.round > later.since


def blame(one: Decision, other: Decision) -> dict[int, Evidence]:
    """Who lied, if both of two decisions for two values are what they say; with the proof."""
    liars: dict[int, Evidence] = {}
    if one.value != other.value:
        ours, theirs = _cast(one), _cast(other)
        for a in ours:
            for b in theirs:
                if conflict(a, b):
                    liars.setdefault(a.voter, (a, b))
    return liars


def _cast(decision: Decision) -> list[Vote]:
    every = [*decision.precommits, *(v for polka in decision.chain for v in polka)]
    return sorted(every, key=lambda v: (v.voter, v.round, v.kind, v.value))


# What a peer does


def hear(state: State, rules: Rules, heard: Heard, good: Collection[str] = ()) -> State:
    """Take over what was shown, as far as it is right, and do what follows from it."""
    if state.decided is not None:
        return state
    if heard.decided is not None and check_decision(rules, heard.decided):
        return replace(state, decided=heard.decided)
    opens = check_opened(rules, heard.opened)
    if state.round < opens < MOST_ROUNDS:
        state = _enter(state, rules, opens, heard.opened)
    proofs = [c for c in heard.chains if c and check_chain(rules, c)]
    for chain in proofs:
        state = _know(state, rules, chain)
    for vote in sorted({*heard.votes, *heard.opened}, key=_order):
        state = _merge(state, rules, vote, proofs)
    return advance(state, rules, good)


def usable(state: State, rules: Rules, heard: Heard) -> Heard:
    """What of ``heard`` could change anything here; the signatures of the rest need no look.

    Whatever somebody sends, this is at most a decision, or a quorum of precommits, three chains
    and two votes of each kind per peer.
    """
    decided = heard.decided
    if decided is not None:
        known = state.decided is not None and state.decided.value == decided.value
        if known or not check_decision(rules, decided):
            decided = None
    if decided is not None or state.decided is not None:
        return Heard(decided=decided)
    opens = check_opened(rules, heard.opened)
    later = state.round < opens < MOST_ROUNDS
    round, votes = (opens if later else state.round), set[Vote]()
    for vote in sorted({*heard.votes, *heard.opened}, key=_order):
        alike = [v for v in votes if (v.kind, v.voter) == (vote.kind, vote.voter)]
        fresh = vote.voter != state.me and vote not in state.votes and len(alike) < TWICE
        if vote.round == round and fresh and well_formed(rules, vote):
            votes.add(vote)
    since = {v.since for v in votes if v.kind == PROPOSE}
    chains = [
        c
        for c in heard.chains
        if c and check_chain(rules, c) and (_newer(state, c) or since & {_top(p)[0] for p in c})
    ]
    opened = heard.opened if later else frozenset()
    return Heard(frozenset(votes), opened, tuple(chains), None)


def _order(vote: Vote) -> tuple[str, int, str, int]:
    return vote.kind, vote.voter, vote.value, vote.since


def few(rules: Rules, votes: Votes) -> Votes:
    """A quorum of ``votes``, one of each peer: more need not be shown."""
    by_voter = {vote.voter: vote for vote in sorted(votes, key=_order, reverse=True)}
    return frozenset(by_voter[voter] for voter in sorted(by_voter)[: rules.quorum])


def _enter(state: State, rules: Rules, round: int, opened: Votes) -> State:
    return replace(
        state, round=round, step=PROPOSE, votes=frozenset(), opened=few(rules, opened), proof=()
    )


def _top(polka: Votes) -> tuple[int, str, int]:
    return next(iter(polka)).subject


def _newer(state: State, chain: Chain) -> bool:
    """Whether a chain tells of a later polka than is known: of any, or for another value."""
    known, rival, newest = head(state.chain), head(state.rival), head(chain)
    if newest is None or known is None or newest[0] > known[0]:
        return newest is not None
    return newest[1] != known[1] and (rival is None or newest[0] > rival[0])


def _know(state: State, rules: Rules, chain: Chain) -> State:
    """Keep the latest polkas; one of a round that is not reached yet is not needed."""
    newest, known = head(chain), head(state.chain)
    if newest is None or newest[0] > state.round or not _newer(state, chain):
        return state
    chain = tuple(few(rules, polka) for polka in chain)
    if known is None or newest[0] > known[0]:
        other = known is not None and known[1] != newest[1]
        return replace(state, chain=chain, rival=state.chain if other else state.rival)
    return replace(state, rival=chain)


def _tails(chains: Iterable[Chain]) -> Iterator[Chain]:
    for chain in chains:
        for place in range(len(chain)):
            yield chain[place:]


def _reason(state: State, chain: Chain) -> Chain:
    """The oldest part of ``chain`` that justifies its value again: no other has a later polka."""
    newest = head(chain)
    if newest is None:
        return ()
    rivals = [top for c in (state.chain, state.rival) if (top := head(c)) and top[1] != newest[1]]
    later = max([_bound(state, newest[1]), *(top[0] for top in rivals)])
    enough = [p for p in range(len(chain)) if _top(chain[p])[0] >= later]
    if later == NEVER or not enough:
        return () if later == NEVER else chain[-DEEPEST + 1 :]
    return chain[enough[-1] :][-DEEPEST + 1 :]


def _bound(state: State, value: str) -> int:
    """The last round in which this peer precommitted another value than ``value``."""
    return state.foreign if value == state.lock else state.locked


def _merge(state: State, rules: Rules, vote: Vote, proofs: Iterable[Chain]) -> State:
    if vote.round != state.round or not well_formed(rules, vote) or vote in state.votes:
        return state
    if vote.voter == state.me:  # what it cast itself is written down here, or was never cast
        return state
    if vote.kind == PROPOSE and vote.since != NEVER:
        known = (state.chain, state.rival, *proofs)
        proof = next((c for c in _tails(known) if shows(c, vote)), None)
        if proof is None or len(proof) >= DEEPEST:
            return state
        state = replace(state, proof=proof)
    same = [v for v in state.votes if (v.kind, v.voter) == (vote.kind, vote.voter)]
    named = {e[0].voter for e in state.evidence}
    if vote.voter not in named:
        for earlier in (*state.votes, *state.opened, *(v for p in state.chain for v in p)):
            if conflict(earlier, vote):
                state = replace(state, evidence=(*state.evidence, (earlier, vote)))
                break
    return state if len(same) >= TWICE else replace(state, votes=state.votes | {vote})


def shows(chain: Chain, vote: Vote) -> bool:
    """Whether a chain begins with the polka that a vote names as its reason."""
    newest = head(chain)
    return newest is not None and newest[:2] == (vote.since, vote.value)


def cast(state: State, kind: str, value: str, since: int) -> State:
    """This peer's own vote, to be signed and written down."""
    vote = Vote(kind, state.round, value, since, state.me)
    return replace(state, votes=state.votes | {vote})


def may_propose(state: State, rules: Rules) -> bool:
    """Whether it is this peer's turn, and it has not proposed yet."""
    proposed = any(v.kind == PROPOSE and v.voter == state.me for v in state.votes)
    turn = rules.leader(state.round) == state.me and state.step == PROPOSE
    return turn and not proposed and state.decided is None


def to_propose(state: State) -> str:
    """The value that has to be proposed because it may have been decided; nothing if any may."""
    newest = head(state.chain)
    return state.lock if newest is None else newest[1]


def propose(state: State, rules: Rules, value: str, good: Collection[str] = ()) -> State:
    """Propose ``value``, or the one that may have been decided already."""
    if not may_propose(state, rules):
        return state
    state = replace(state, proof=_reason(state, state.chain))
    newest = head(state.proof)
    value, since = to_propose(state) or value, NEVER if newest is None else newest[0]
    return advance(cast(state, PROPOSE, value, since), rules, good)


def advance(state: State, rules: Rules, good: Collection[str] = ()) -> State:
    """Everything that follows from what is known, without waiting."""
    while (after := _next(state, rules, good)) != state:
        state = after
    return state


def _next(state: State, rules: Rules, good: Collection[str]) -> State:
    if state.decided is not None:
        return state
    state = _see_polka(state, rules)
    for _, precommits in quorums(state, rules, PRECOMMIT):
        agreed = agreeing(rules, precommits, PRECOMMIT)
        if agreed is not None and agreed == head(state.chain):
            decision = Decision(agreed[1], agreed[0], precommits, state.chain)
            return replace(state, decided=decision)
    if state.step == PROPOSE:
        return _prevote(state, rules, good)
    if state.step == PREVOTE:
        seen = head(state.chain)
        if seen is not None and seen[0] == state.round and seen[1] in good:
            foreign, state = _bound(state, seen[1]), cast(state, PRECOMMIT, seen[1], seen[2])
            return replace(state, step=PRECOMMIT, locked=state.round, lock=seen[1], foreign=foreign)
        if NIL in dict(quorums(state, rules, PREVOTE)):
            return replace(cast(state, PRECOMMIT, NIL, NEVER), step=PRECOMMIT)
    if state.step == PRECOMMIT and NIL in dict(quorums(state, rules, PRECOMMIT)):
        return _leave(state, rules)
    return state


def quorums(state: State, rules: Rules, kind: str) -> list[tuple[str, Votes]]:
    """The values that a quorum has voted for in this round, each with a quorum of votes."""
    groups: dict[tuple[int, str, int], set[Vote]] = {}
    for vote in state.votes:
        if vote.kind == kind:
            groups.setdefault(vote.subject, set()).add(vote)
    every = [(s[1], few(rules, frozenset(g))) for s, g in sorted(groups.items())]
    return [(value, votes) for value, votes in every if len(votes) >= rules.quorum]


def _see_polka(state: State, rules: Rules) -> State:
    """Put the polka of this round together, if its votes and its reason are here."""
    for value, polka in quorums(state, rules, PREVOTE):
        agreed = agreeing(rules, polka, PREVOTE)
        if value == NIL or agreed is None:
            continue
        vote = next(iter(polka))
        known = (state.proof, state.chain, state.rival)
        rest = next((c for c in _tails(known) if shows(c, vote)), None)
        if agreed[2] == NEVER:
            state = _know(state, rules, (polka,))
        elif rest is not None and len(rest) < DEEPEST:
            state = _know(state, rules, (polka, *rest))
    return state


def _prevote(state: State, rules: Rules, good: Collection[str]) -> State:
    """Vote for what the leader proposes, if this peer stands for it and no lock forbids it."""
    leader = rules.leader(state.round)
    proposals = [v for v in state.votes if v.kind == PROPOSE and v.voter == leader]
    if len(proposals) > 1 or (proposals and not _allowed(state, proposals[0])):
        return replace(cast(state, PREVOTE, NIL, NEVER), step=PREVOTE)
    if not proposals or proposals[0].value not in good:
        return state
    return replace(cast(state, PREVOTE, proposals[0].value, proposals[0].since), step=PREVOTE)


def _allowed(state: State, vote: Vote) -> bool:
    """Whether no lock forbids a proposal, and its reason is not newer than it need be."""
    if vote.since < _bound(state, vote.value):
        return False
    oldest = head(_reason(state, state.proof)) if vote.since != NEVER else None
    return vote.since == NEVER or (oldest is not None and vote.since <= oldest[0])


def _leave(state: State, rules: Rules) -> State:
    """On to the next round, with the precommits of this one to show for it."""
    if state.round + 1 >= MOST_ROUNDS:
        return state
    opened = frozenset(v for v in state.votes if v.kind == PRECOMMIT)
    return _enter(state, rules, state.round + 1, opened)


def waits(state: State, rules: Rules) -> bool:
    """Whether a time-out would change anything now."""
    if state.decided is not None:
        return False
    kinds = (PREVOTE, PRECOMMIT) if state.step == PREVOTE else (PRECOMMIT,)
    voters = {v.voter for v in state.votes if v.kind in kinds}
    return state.step == PROPOSE or len(voters) >= rules.quorum


def timed_out(state: State, rules: Rules, good: Collection[str] = ()) -> State:
    """Nothing more came in time: vote for nothing, or leave the round."""
    if not waits(state, rules):
        return state
    if state.step == PROPOSE:
        state = replace(cast(state, PREVOTE, NIL, NEVER), step=PREVOTE)
    elif state.step == PREVOTE:
        state = replace(cast(state, PRECOMMIT, NIL, NEVER), step=PRECOMMIT)
    else:
        state = _leave(state, rules)
    return advance(state, rules, good)


def shown(state: State) -> Heard:
    """All that somebody else needs to be where this peer is."""
    if state.decided is not None:
        return Heard(decided=state.decided)
    chains = [c for c in (state.chain, state.rival) if c]
    if state.proof and state.proof not in _tails(chains):
        chains.append(state.proof)
    return Heard(state.votes, state.opened, tuple(chains))
