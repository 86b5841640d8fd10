"""One thing is decided, whatever up to f liars do; beyond f the proof of a fork names liars."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.peers.decision_model import Case, explore, explore_orders
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

TABLE = [(3, 0, 2, 1), (3, 1, 3, 0), (4, 1, 3, 1), (5, 1, 4, 1), (7, 2, 5, 2)]
"""Peers, liars, quorum, and how many may be away or lie together while the others decide."""


@pytest.mark.parametrize(("peers", "lies", "needed", "away"), TABLE)
def test_the_table(peers, lies, needed, away):
    rules = Rules(tuple(range(peers)), lies)
    assert rules.quorum == de.quorum(peers, lies) == needed
    assert 2 * needed - peers > lies, "two quorums share an honest peer"
    assert 2 * (needed - 1) - peers <= lies, "and no smaller sets do"
    assert peers - needed == away
    decided = play(rules, silent=set(range(peers - away, peers)), liars={}, seed=1)
    assert len(decided) == 1, "the others decide"
    if peers - away > 1:
        silent = set(range(peers - away - 1, peers))
        assert play(rules, silent=silent, liars={}, seed=1, turns=300) == set()


@given(st.integers(2, 60), st.integers(0, 60))
def test_two_quorums_share_more_than_the_liars(peers, lies):
    rules = Rules(tuple(range(peers)), lies)
    assert rules.quorum <= peers
    if lies <= peers - 2:
        assert 2 * rules.quorum - peers > lies
    assert de.quorum(peers, de.most_lies(peers)) <= peers - de.most_lies(peers)


WITHIN = [(3, 1, {0}), (3, 1, {1}), (3, 1, {2})]
WITHIN_LONG = [(3, 0, set()), (4, 1, {0}), (4, 1, {1}), (4, 1, {2}), (4, 1, set())]


def words(case):
    return f"{case[0]}-{case[1]}-{''.join(map(str, sorted(case[2]))) or 'none'}"


@pytest.mark.parametrize("case", WITHIN, ids=words)
def test_within_f_liars_one_value_is_decided(case):
    within(case)


@pytest.mark.parametrize("liar", range(4))
def test_within_f_liars_of_four_one_value_is_decided_in_one_round(liar):
    found = explore(Case(4, 1, frozenset({liar}), rounds=1))
    assert found.forks == 0
    assert "a" in found.decided


@pytest.mark.soak
@pytest.mark.parametrize("case", WITHIN_LONG, ids=words)
def test_within_f_liars_one_value_is_decided_among_more(case):
    within(case)


def within(case):
    found = explore(Case(case[0], case[1], frozenset(case[2])))
    assert found.forks == 0
    assert found.decided == {"a", "b"}, "either may be decided, never both"
    assert found.worlds > 100


BEYOND = [(3, 0, {1}), (4, 1, {2, 3})]
BEYOND_LONG = [(3, 0, {0}), (3, 0, {2}), (4, 1, {0, 1}), (4, 1, {0, 2}), (4, 1, {1, 2})]


@pytest.mark.parametrize("case", BEYOND, ids=words)
def test_beyond_f_liars_a_fork_names_them_and_nobody_else(case):
    beyond(case)


@pytest.mark.soak
@pytest.mark.parametrize("case", BEYOND_LONG, ids=words)
def test_beyond_f_liars_a_fork_names_them_among_more(case):
    beyond(case)


def beyond(case):
    found = explore(Case(case[0], case[1], frozenset(case[2])))
    assert found.forks > 0
    assert found.blamed == case[2]


@pytest.mark.parametrize(
    "case", [(3, 1, {2}), pytest.param((3, 0, {2}), marks=pytest.mark.soak)], ids=words
)
def test_the_one_order_finds_what_all_orders_find(case):
    small = Case(case[0], case[1], frozenset(case[2]))
    pools, all_orders = explore_orders(small)
    one = explore(small)
    assert (one.forks > 0, one.decided, one.blamed) == (
        all_orders.forks > 0,
        all_orders.decided,
        all_orders.blamed,
    )
    assert len(pools) >= one.worlds


def test_the_search_notices_a_peer_without_a_lock(monkeypatch):
    prevote = de._prevote
    monkeypatch.setattr(
        de, "_prevote", lambda state, *rest: prevote(replace(state, locked=NEVER), *rest)
    )
    with pytest.raises(AssertionError, match="honest peer could be blamed"):
        explore(Case(3, 1, frozenset({2})))


def test_the_search_notices_a_quorum_that_is_too_small(monkeypatch):
    monkeypatch.setattr(de, "quorum", lambda peers, lies: peers // 2 + 1)
    with pytest.raises(AssertionError, match="blames too few"):
        explore(Case(3, 1, frozenset({2})))


# Whole networks by chance, with as many liars as there may be


def play(rules, silent, liars, seed, turns=6000):
    """The values that honest peers decide; messages come late, twice, in any order, or never.

    A liar casts every vote it likes; ``liars`` maps each to nothing yet.
    """
    rng = random.Random(seed)
    honest = [p for p in rules.members if p not in silent and p not in liars]
    states = {p: de.State(p) for p in honest}
    wishes = {p: f"value-{p}" for p in honest}
    good = {f"value-{p}" for p in rules.members}
    for _ in range(turns):
        p = rng.choice(honest)
        state = states[p]
        if de.may_propose(state, rules):
            state = de.propose(state, rules, wishes[p], good)
        elif rng.random() < 0.05:
            state = de.timed_out(state, rules, good)
        else:
            heard = lie(rng, rules, liars, state) if liars and rng.random() < 0.4 else None
            other = states[rng.choice(honest)]
            state = de.hear(state, rules, heard or de.shown(other), good)
        states[p] = state
        if all(s.decided for s in states.values()):
            break
    for state in states.values():
        for one, _ in state.evidence:
            assert one.voter in liars, "only liars are found out"
    return {s.decided.value for s in states.values() if s.decided is not None}


def lie(rng, rules, liars, state):
    """Votes of liars for anything, and some honest votes that were heard."""
    values = [f"value-{rng.choice(rules.members)}", NIL]
    votes = set(rng.sample(sorted(state.votes, key=repr), len(state.votes) // 2))
    for liar in liars:
        for kind in (PROPOSE, PREVOTE, PRECOMMIT):
            value = rng.choice(values)
            since = rng.randint(NEVER, max(state.round - 1, NEVER)) if value else NEVER
            votes.add(Vote(kind, state.round, value, since, liar))
    return Heard(frozenset(votes), state.opened, (state.chain,) if state.chain else ())


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 40), marks=pytest.mark.soak)])
@pytest.mark.parametrize(("peers", "lies"), [(3, 1), (4, 1), (5, 1), (7, 2)])
def test_liars_by_chance_neither_fork_nor_stop_the_others(peers, lies, seeds):
    rules = Rules(tuple(range(peers)), lies)
    stopped = 0
    for seed in seeds:
        liars = dict.fromkeys(random.Random(seed).sample(range(peers), lies))
        found = play(rules, silent=set(), liars=liars, seed=seed)
        assert len(found) <= 1
        stopped += not found
    if peers - lies >= rules.quorum:
        assert stopped == 0


# What is shown is checked


def decision(peers=4, lies=1, round=0, value="a", since=NEVER):
    rules = Rules(tuple(range(peers)), lies)
    voters = range(rules.quorum)
    polka = frozenset(Vote(PREVOTE, round, value, since, p) for p in voters)
    precommits = frozenset(Vote(PRECOMMIT, round, value, since, p) for p in voters)
    return rules, de.Decision(value, round, precommits, (polka,))


def test_a_decision_needs_all_its_votes():
    rules, good = decision()
    assert de.check_decision(rules, good)
    few = frozenset(list(good.precommits)[:2])
    twice = few | {Vote(PRECOMMIT, 0, "b", NEVER, next(iter(few)).voter)}
    stranger = few | {Vote(PRECOMMIT, 0, "a", NEVER, 9)}
    for wrong in (
        replace(good, precommits=few),
        replace(good, precommits=twice),
        replace(good, precommits=stranger),
        replace(good, precommits=good.chain[0]),
        replace(good, value="b"),
        replace(good, round=1),
        replace(good, chain=()),
        replace(good, chain=(few,)),
        replace(good, chain=(good.precommits,)),
    ):
        assert not de.check_decision(rules, wrong)
    _, unjustified = decision(round=3, since=1)
    assert not de.check_decision(rules, unjustified), "the polka of round 1 is not shown"
    earlier = frozenset(Vote(PREVOTE, 1, "a", NEVER, p) for p in range(3))
    assert de.check_decision(rules, replace(unjustified, chain=(*unjustified.chain, earlier)))
    assert not de.check_decision(Rules(rules.members, 2), good), "with more liars, more votes"
    nothing = de.Decision(NIL, 0, frozenset(), ())
    assert not de.check_decision(rules, nothing)


def test_what_no_honest_peer_casts_both():
    pre = Vote(PRECOMMIT, 2, "a", NEVER, 0)
    assert de.conflict(pre, Vote(PRECOMMIT, 2, "b", NEVER, 0))
    assert de.conflict(pre, Vote(PRECOMMIT, 2, NIL, NEVER, 0))
    assert de.conflict(Vote(PREVOTE, 3, "b", 1, 0), pre), "the lock of round 2 forbids it"
    assert not de.conflict(pre, Vote(PREVOTE, 3, "b", 2, 0)), "justified by a later polka"
    assert not de.conflict(pre, Vote(PREVOTE, 1, "b", NEVER, 0)), "before the lock"
    assert not de.conflict(pre, Vote(PREVOTE, 3, NIL, NEVER, 0))
    assert not de.conflict(pre, replace(pre, voter=1))
    assert not de.conflict(pre, pre)


def test_a_round_that_was_never_opened_is_not_entered():
    rules = Rules((0, 1, 2, 3), 1)
    state = de.State(0)
    far = frozenset(Vote(PRECOMMIT, 4000, NIL, NEVER, p) for p in (1, 2))
    assert de.hear(state, rules, Heard(opened=far)) == state, "two of four are no quorum"
    liar = frozenset(Vote(PREVOTE, r, "a", NEVER, 3) for r in range(1, 500))
    assert de.hear(state, rules, Heard(liar)) == state, "votes of rounds that are not reached"
    beyond = frozenset(Vote(PRECOMMIT, 2**31, NIL, NEVER, p) for p in (1, 2, 3))
    assert de.hear(state, rules, Heard(opened=beyond)) == state
    opened = frozenset(Vote(PRECOMMIT, 6, NIL, NEVER, p) for p in (1, 2, 3))
    assert de.hear(state, rules, Heard(opened=opened)).round == 7


def test_memory_is_bounded_whatever_a_liar_casts():
    rules = Rules((0, 1, 2, 3), 1)
    state = de.State(0)
    many = frozenset(Vote(PREVOTE, 0, f"v{n}", NEVER, 3) for n in range(1000))
    state = de.hear(state, rules, Heard(many))
    assert len(state.votes) == de.TWICE
    assert [e[0].voter for e in state.evidence] == [3], "and two of them show that it lies"


RULES = Rules((0, 1, 2, 3), 1)
VOTES = st.builds(
    lambda kind, round, value, since, voter: Vote(kind, round, value, since, voter),
    st.sampled_from([PROPOSE, PREVOTE, PRECOMMIT]),
    st.integers(0, 2),
    st.sampled_from(["a", "b", NIL]),
    st.integers(NEVER, 1),
    st.integers(0, 4),
)
QUORUM = st.builds(
    lambda kind, round, value, since, out: frozenset(
        Vote(kind, round, value, since, p) for p in range(4) if p != out
    ),
    st.sampled_from([PREVOTE, PRECOMMIT]),
    st.integers(0, 2),
    st.sampled_from(["a", "b", NIL]),
    st.integers(NEVER, 1),
    st.integers(0, 4),
)
HEARD = st.builds(
    Heard,
    st.frozensets(VOTES, max_size=12),
    QUORUM,
    st.lists(st.lists(QUORUM, max_size=2).map(tuple), max_size=2).map(tuple),
)


@given(st.lists(HEARD, min_size=1, max_size=5))
def test_nothing_is_lost_with_what_is_not_usable(shown):
    """A liar sends a thousand votes: signatures are checked of those alone that could matter."""
    state = de.State(0)
    for heard in shown:
        used = de.usable(state, RULES, heard)
        after = de.hear(state, RULES, heard, ("a",))
        assert de.hear(state, RULES, used, ("a",)) == after
        assert len(used.votes) <= len(de.KINDS) * de.TWICE * len(RULES.members)
        state = after


def test_of_a_thousand_votes_few_are_usable():
    many = frozenset(Vote(PREVOTE, r, f"v{n}", NEVER, 3) for n in range(100) for r in range(10))
    polka = frozenset(Vote(PREVOTE, 0, "a", NEVER, 3) for _ in range(4))
    used = de.usable(de.State(0), RULES, Heard(many, many, ((polka,), (many,))))
    assert len(list(used.all_votes())) == de.TWICE
