"""Whatever liars do, what honest peers show of a vote can be read, and a vote goes on.

The peers here are polls alone, with real keys, stores and messages, and a clock of their own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from tests.peers import deletions
from tests.peers.deletions import ask, hamlet, trained_on
from tests.peers.harness import network, town
from tests.peers.liars import Liar, lying
from unwalk.cli.forgetting import _hand_in
from unwalk.core.errors import UnwalkError
from unwalk.peers.decisions import ballot
from unwalk.peers.decisions.ballot import Poll
from unwalk.peers.decisions.decided import matter_of, read_chapter
from unwalk.peers.decisions.votes import (
    LONGEST_TEXT,
    VOTER,
    Clerk,
    Writer,
    decision_to,
    digest_of,
)
from unwalk.peers.forgetting.request_form import RequestForm
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.lifecycle.next_chapter import NextChapter
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import consensus as de
from unwalk.peers.protocol.consensus import NEVER, NIL, PRECOMMIT, PREVOTE, PROPOSE, Rules, Vote
from unwalk.peers.protocol.schedule import MOST_REQUESTS
from unwalk.peers.provision import revoke
from unwalk.peers.storage.store import Store
from unwalk.peers.telemetry import Journal
from unwalk.peers.transport.wire import MESSAGE

LIAR = 1  # leads the first round about chapter 1
LONG = 10.0
"""Seconds that a step waits at most."""


class Room:
    """Four peers that vote on chapter 1; one of them lies, and only its keys are here."""

    def __init__(self, folder, monkeypatch):
        self.now, self.events = 0.0, []
        monkeypatch.setattr(ballot, "monotonic", lambda: self.now)
        self.folder = folder / "net"
        self.network = network(self.folder, peers=4)
        self.liar = Liar(self.folder, LIAR)
        self.matter = matter_of(self.network, 1, [])
        assert self.matter.rules.leader(0) == LIAR
        self.wishes: dict[int, str] = {}
        self.stands: set[int] = {0, 2, 3}
        self.decided: dict[int, str] = {}
        self.polls: dict[int, Poll] = {}
        for peer in (0, 2, 3):
            self.start(peer)

    def start(self, peer):
        bundle = Bundle.read(self.folder / f"peer-{peer}")
        trust, run = bundle.trust(), self.network.run_id
        if peer in self.polls:
            self.polls[peer].store.close()

        async def silent(*_):
            return None

        self.polls[peer] = Poll(
            Clerk(bundle, trust),
            Store(bundle.store),
            Journal(None, bundle.name, [self.events.append]),
            self.matter,
            judge=lambda text, polled: peer in self.stands,
            offer=lambda: self.wishes.get(peer),
            told=lambda text, decision: self.decided.update({peer: text}),
            tell=silent,
            pace=0.5,
            digest=lambda text: digest_of(read_chapter(trust, run, 1, text).text),
        )

    def chapter(self, who=LIAR, requests=("made-up",)):
        """The text of a chapter that a member signed."""
        liar = Liar(self.folder, who)
        return liar.chapter(replace(liar.against(3, 12), requests=tuple(requests)))

    def show(self, record, *peers):
        """Something is shown to peers, as a message; what they say to it."""
        found = []
        for peer in peers:
            message = self.liar.words("agenda-decide", number=1, poll=record)
            shown = codec.parse(message, MESSAGE)["poll"]
            try:
                answer = codec.dump({"poll": self.polls[peer].answer(LIAR, shown)})
                found.append(codec.parse(answer, MESSAGE)["poll"])
            except UnwalkError as error:
                found.append(str(error))
        return found

    def lie(self, votes, *peers, **more):
        return self.show(self.liar.shown(self.matter, votes, **more), *peers)

    def turn(self, seconds=LONG, away=()):
        """Time goes by; who has something to say says it to all others, if it can be read."""
        self.now += seconds
        here = [p for p in self.polls if p not in away]
        for peer in here:
            self.polls[peer].step()
            if not self.polls[peer].active:
                continue
            for other in here:
                if other != peer:
                    with suppress(UnwalkError):
                        self._exchange(peer, other)

    def _exchange(self, peer, other):
        mine = self.liar.words("agenda-decide", number=1, poll=self.polls[peer].record())
        answer = self.polls[other].answer(peer, codec.parse(mine, MESSAGE)["poll"])
        theirs = codec.parse(codec.dump({"poll": answer}), MESSAGE)["poll"]
        self.polls[peer].hear(other, theirs)

    def turns(self, times, **options):
        for _ in range(times):
            self.turn(**options)

    @property
    def rounds(self):
        return [poll.state.round for poll in self.polls.values()]

    def ends(self, text=None):
        """The honest peers decide, one as the other."""
        self.turns(40)
        assert sorted(self.decided) == [0, 2, 3]
        assert len(set(self.decided.values())) == 1
        assert text in (None, self.decided[0])

    def close(self):
        for poll in self.polls.values():
            poll.store.close()


@pytest.fixture
def room(tmp_path, monkeypatch):
    found = Room(tmp_path, monkeypatch)
    yield found
    found.close()


def proposals(room, texts, *peers):
    for text in texts:
        vote = Vote(PROPOSE, 0, digest_of(text), NEVER, LIAR)
        room.lie([vote], *peers, texts=[text])


def long_ones(chapter):
    """Texts that are six times as long in a message, and chapters as long as there are."""
    ids = [f"{n:064d}" for n in range(MOST_REQUESTS)]
    return ["\x01" * (40 << 10), "\x02" * (40 << 10), chapter(ids), chapter(ids[::-1])]


def test_two_proposals_with_long_texts_stop_nobody(tmp_path):
    """Each honest peer kept both, and what it showed with them could be read by nobody."""

    async def script(here):
        await here.until(here.trained)
        liar = Liar(here.folder, LIAR, here.memory.at(LIAR))
        spec = liar.against(3, 12)
        for text in long_ones(lambda ids: liar.chapter(replace(spec, requests=tuple(ids)))):
            vote = Vote(PROPOSE, 0, digest_of(text), NEVER, LIAR)
            poll = liar.shown(liar.matter(1), [vote], texts=[text])
            for peer in (0, 2, 3):
                await liar.tell(peer, liar.words("agenda-decide", number=1, poll=poll))
        await here.crash(LIAR)  # it need not be there any more
        polls = [here.peers[p].next_chapter.poll for p in (0, 2, 3)]
        assert all(len(codec.dump(poll.record())) < MESSAGE // 2 for poll in polls)
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(lambda: here.stage(0, "r") in ("erasing", "done"))

    hamlet(tmp_path, script)


@pytest.mark.soak
def test_nor_real_processes(tmp_path):
    folder = tmp_path / "net"
    made = deletions.network(folder, lease=2.0)
    with town(folder, made) as here:
        for peer in range(4):
            here.start(peer)
        here.until(here.finished, timeout=90)

        async def lies():
            async with lying(folder, LIAR) as liar:
                spec = liar.against(3, 12)
                for text in long_ones(lambda ids: liar.chapter(replace(spec, requests=tuple(ids)))):
                    vote = Vote(PROPOSE, 0, digest_of(text), NEVER, LIAR)
                    poll = liar.shown(liar.matter(1), [vote], texts=[text])
                    message = liar.words("agenda-decide", number=1, poll=poll)
                    await liar.tell_all((0, 2, 3), message)

        asyncio.run(lies())
        _hand_in(folder / "peer-0", RequestForm("r", tuple(deletions.ids_of(0, 5, 6)), "exact"))
        here.until(lambda: here.state(0)["requests"].get("done", 0) == 1, timeout=90)


def test_texts_that_were_kept_before_are_read_again(room):
    text = "\x01" * (40 << 10)
    state = de.State(0, votes=frozenset({Vote(PREVOTE, 0, NIL, NEVER, 0)}), step=PREVOTE)
    state = room.polls[0].clerk.sign(room.matter, state)
    ballot.keep(room.polls[0].store, room.matter.name, state, {digest_of(text): text})
    room.start(0)
    assert room.polls[0].texts == {}
    room.wishes[0] = room.chapter(0)
    room.ends()


def test_a_vote_that_nobody_stands_for_lets_no_round_go_by(room):
    room.stands = set()
    room.lie([Vote(PREVOTE, 0, NIL, NEVER, LIAR)], 0, 2, 3)
    text = room.chapter()
    proposals(room, [text], 0, 2, 3)
    room.lie([], 0, 2, 3, offer=text)
    room.turns(60)
    assert room.rounds == [0, 0, 0]
    room.stands = {0, 2, 3}
    room.wishes[0] = room.chapter(0)
    room.ends()


def test_who_wishes_alone_lets_no_round_go_by(room):
    """`unwalk forget --vanished` at one peer in the evening, at the others the next morning."""
    room.stands = {0}
    room.wishes[0] = room.chapter(0)
    room.turns(60)
    assert room.rounds == [0, 0, 0]
    room.stands = {0, 2, 3}
    room.ends(room.wishes[0])


def test_reasons_do_not_pile_up_while_a_peer_is_away(room):
    """A liar votes with two of three others for what they stand for, and never commits to it."""
    room.wishes[0] = room.chapter(0)
    value = digest_of(room.wishes[0])
    for _ in range(80):
        room.turn(away=(3,))
        for peer in (0, 2):
            state = room.polls[peer].state
            round, found = state.round, de.head(state.chain)
            said = [v for v in state.votes if v.kind == PROPOSE]
            if not said and state.step == PROPOSE and room.matter.rules.leader(round) == LIAR:
                since = NEVER if found is None else found[0]
                said = [Vote(PROPOSE, round, value, since, LIAR)]
            since = said[0].since if said else NEVER
            votes = [*(v for v in said if v.voter == LIAR)]
            votes += [Vote(PREVOTE, round, value, since, LIAR)] if said else []
            votes += [Vote(PRECOMMIT, round, NIL, NEVER, LIAR)]
            room.lie(votes, peer)
    before = room.polls[0].state
    assert before.round > 20
    assert before.chain
    assert len(before.chain) <= 2
    assert len(codec.dump(room.polls[0].record())) < MESSAGE // 8
    room.ends(room.wishes[0])


def test_rounds_do_not_end(room):
    rules = room.matter.rules
    nothing = frozenset(Vote(PRECOMMIT, 1_000_000, NIL, NEVER, p) for p in (0, 2, 3))
    state = de.hear(de.State(0), rules, de.Heard(opened=nothing))
    assert state.round == 1_000_001
    record = room.polls[0].clerk.show(state)
    assert [v[1] for v in record["opened"]] == [1_000_000] * 3


def revoked_votes(room):
    for peer in (0, 2, 3):
        votes = [Vote(PREVOTE, 0, digest_of(str(peer)), NEVER, LIAR)]
        room.lie(votes, peer)


def test_a_vote_of_a_revoked_member_poisons_no_message(room):
    revoked_votes(room)
    room.wishes[0] = room.chapter(0)
    after = revoke(room.folder, f"peer-{LIAR}", chapter=1)
    for peer in (0, 2):  # what SIGHUP does; peer 3 has not heard of it yet
        room.polls[peer].clerk.trust.network = after
    room.ends(room.wishes[0])
    for peer in (0, 2):
        votes = room.polls[peer].state.votes
        assert LIAR not in {v.voter for v in votes}


def test_nor_after_a_start_with_it(room):
    revoked_votes(room)
    room.now += LONG
    for peer in (0, 2, 3):
        room.wishes[peer] = room.chapter(peer)
        room.polls[peer].step()
        kept, _ = ballot.stored(room.polls[peer].store, room.matter.name) or ({}, {})
        assert LIAR in {vote[VOTER] for vote in kept["votes"]}, "written down beside its own vote"
    revoke(room.folder, f"peer-{LIAR}", chapter=1)
    for peer in (0, 2, 3):
        room.start(peer)
    room.ends()


def test_a_lock_outlives_the_votes_of_a_revoked_member(room):
    """A polka that nobody believes any more: who is locked on it has it proposed again."""
    text = room.chapter(0)
    value = digest_of(text)
    proposals(room, [text], 0, 2)
    polka = [Vote(PREVOTE, 0, value, NEVER, p) for p in (0, 2)]
    assert all(polka[n] in room.polls[(0, 2)[n]].state.votes for n in (0, 1)), "both stand for it"
    mine = next(v for v in room.polls[2].state.votes if v == polka[1])
    writer = Writer()
    theirs = writer.votes(
        frozenset({mine, room.liar.signed(room.matter, Vote(PREVOTE, 0, value, NEVER, LIAR))})
    )
    record = {**room.liar.shown(room.matter, []), "votes": theirs}
    room.show({**record, "certificates": writer.certificates}, 0)
    locked = room.polls[0].state
    assert (locked.locked, len(locked.chain)) == (0, 1)
    revoke(room.folder, f"peer-{LIAR}", chapter=1)
    for peer in (0, 2, 3):
        room.start(peer)
    assert (room.polls[0].state.locked, room.polls[0].state.chain) == (0, ())
    room.wishes[2] = room.chapter(2)
    room.ends(text)


def hidden_polka(room, text):
    """Two honest peers vote for a liar's proposal; its own vote for it, which it did not show."""
    proposals(room, [text], 0, 2)
    lie = room.liar.signed(room.matter, Vote(PREVOTE, 0, digest_of(text), NEVER, LIAR))
    votes = [v for p in (0, 2) for v in room.polls[p].state.votes if v.kind == PREVOTE]
    assert {v.value for v in votes} == {digest_of(text)}
    writer = Writer()
    polka = writer.votes(frozenset({lie, *votes}))
    empty = {**room.liar.shown(room.matter, []), "certificates": writer.certificates}
    return polka, empty


def test_votes_for_what_a_peer_cannot_read_wait_for_the_text(room):
    text = room.chapter()
    polka, empty = hidden_polka(room, text)
    precommits = room.liar.made_up(room.matter, text, (0, LIAR, 2)).precommits
    writer = Writer()
    every = [*polka, *writer.votes(precommits)]
    known = empty["certificates"]
    for vote in every[len(polka) :]:
        vote[-1] = known.index(writer.certificates[vote[-1]])
    room.show({**empty, "votes": every}, 3)
    assert room.polls[3].state.chain == ()
    assert room.polls[3].decided is None
    room.ends(text)


def test_a_quorum_for_what_nobody_can_read_any_more_stops_nobody(room):
    """A liar hides its vote until the text is gone, and shows a quorum for it then."""
    room.stands = {0, 2}
    polka, empty = hidden_polka(room, room.chapter())
    room.wishes[0] = room.chapter(0)
    for _ in range(12):
        room.lie([Vote(kind, 0, NIL, NEVER, LIAR) for kind in (PREVOTE, PRECOMMIT)], 0, 2)
        room.turn()
    assert min(room.rounds) > 0
    room.show({**empty, "chains": [[polka]]}, 0, 2, 3)
    room.stands = {0, 2, 3}
    room.ends(room.wishes[0])


# The rule: whatever an honest peer has to show can be read by the others


def pem_of(peer: int, number: int) -> str:
    """A little longer than a certificate with the longest names (908); all different."""
    body = hashlib.sha512(f"{peer} {number}".encode()).hexdigest() * 7
    lines = [body[n : n + 64] for n in range(0, len(body), 64)]
    return "\n".join(["-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----", ""])


class Hostile:
    """Votes of everybody, each liar's twice, signed with the old and the new certificate."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.numbers = rules, count()

    def vote(self, kind: str, round: int, value: str, since: int, voter: int) -> Vote:
        number = next(self.numbers)
        signature = hashlib.sha512(str(number).encode()).hexdigest()
        return Vote(
            kind, round, value, since, voter, signature, pem_of(voter, int(signature, 16) % 2)
        )

    def all_of(self, kind: str, round: int, value: str, since: int) -> frozenset[Vote]:
        return frozenset(self.vote(kind, round, value, since, p) for p in self.rules.members)

    def chain(self, last: int, value: str, depth: int) -> de.Chain:
        rounds = [last - n for n in range(depth)]
        since = [*rounds[1:], NEVER]
        return tuple(self.all_of(PREVOTE, r, value, s) for r, s in zip(rounds, since, strict=True))

    def heard(self, round: int, values: list[str]) -> Iterable[de.Heard]:
        """All that can be shown of one round, from those who show too much."""
        before, liars = round - 1, self.rules.members[: self.rules.lies]
        twice = [self.vote(PRECOMMIT, before, v, NEVER, p) for v in values for p in liars]
        yield de.Heard(opened=self.all_of(PRECOMMIT, before, NIL, NEVER) | set(twice))
        for depth in range(8, 0, -1):
            latest, other = (
                self.chain(before - n, value, depth) for n, value in enumerate(values[:2])
            )
            yield de.Heard(chains=(latest, other))
        lead, proof = self.rules.leader(round), self.chain(before - 2, values[2], de.DEEPEST - 1)
        said = [self.vote(PROPOSE, round, v, before - 2, lead) for v in values[2:]]
        yield de.Heard(frozenset(said[:1]), chains=(proof,))
        votes = [
            self.vote(k, round, NIL, NEVER, p) for k in de.KINDS[1:] for p in self.rules.members
        ]
        votes += [self.vote(k, round, v, 0, p) for k in de.KINDS for v in values for p in liars]
        yield de.Heard(frozenset(votes))


LARGEST = [(n, de.most_lies(n)) for n in (2, 3, 4, 7, 16, 31, 37)]


def longest_text() -> str:
    text = "a" * (LONGEST_TEXT - 2)
    assert len(json.dumps(text)) == LONGEST_TEXT
    assert not ballot.long_text(text)
    assert ballot.long_text(text + "a")
    return text


@pytest.mark.parametrize(("peers", "lies"), LARGEST)
def test_the_largest_record_can_be_read(peers, lies):
    rules = Rules(tuple(range(peers)), lies)
    hostile, state = Hostile(rules), de.State(peers - 1)
    for heard in hostile.heard(de.MOST_ROUNDS - 2, [c * 64 for c in "abcd"]):
        state = de.hear(state, rules, heard)
    assert state.round == de.MOST_ROUNDS - 2
    assert [len(c) for c in (state.chain, state.rival)] == [de.DEEPEST, de.DEEPEST]
    clerk = Clerk.__new__(Clerk)
    most = ballot.TEXTS
    record = {**clerk.show(state), "texts": [longest_text()] * most, "offer": longest_text()}
    head = {"protocol": 1, "network": "n" * 64, "run": "r" * 64, "kind": "agenda-decide"}
    assert len(codec.dump({**head, "number": 100_000, "poll": record})) <= MESSAGE
    if lies:
        assert len(record["votes"]) > 2 * peers


@pytest.mark.parametrize(("peers", "lies"), LARGEST)
def test_the_largest_decided_chapter_can_be_read(peers, lies):
    rules = Rules(tuple(range(peers)), lies)
    hostile, value, round = Hostile(rules), "a" * 64, de.MOST_ROUNDS - 1
    chain = hostile.chain(round, value, de.DEEPEST)
    precommits = hostile.all_of(PRECOMMIT, round, value, round - 1)
    decision = de.Decision(value, round, precommits, chain)
    assert de.check_decision(rules, decision)
    deeper = replace(decision, chain=hostile.chain(round, value, de.DEEPEST + 1))
    assert not de.check_decision(rules, deeper), "nobody shows more"
    next_chapter: Any = SimpleNamespace(known=[(longest_text(), decision_to(decision))] * 3)
    shown = NextChapter._from(next_chapter, 1)
    assert 1 <= len(shown) <= 3
    assert len(codec.dump({"decided": shown})) <= MESSAGE
