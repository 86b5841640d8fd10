"""Votes as they are signed, sent and kept: every one is checked before it counts.

A vote is about one *matter*: which chapter comes next, or how a chapter's walk ended.  What is
signed names the network, the matter, who decides it and how many of them may lie, so that a vote
is good for nothing else.  Values travel as text beside the votes, which hold only digests of it:
the text of an end carries a salt, and is erased with the tokens that it tells of, so that the
votes that stay let nobody test a guess of a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from unwalk.core.errors import Corrupt, Refused
from unwalk.core.transcript import canonical
from unwalk.peers.identity.trust import LONGEST_PEM, Bundle, NotInForce, Trust
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import consensus as de
from unwalk.peers.protocol.consensus import Chain, Decision, Heard, Rules, State, Vote, Votes

PREFIX = b"unwalk-vote-1:"
LONGEST_TEXT = 24 << 10
"""Bytes of a value's text, as it stands in a message; a chapter with 256 requests has 20,000."""
KNOWN = 8192
VOTER = 4
"""Where a vote that was written down says whose it is."""
MOST_CHAINS = 3
HEARD = ("certificates", "votes", "opened", "chains", "decided")


@dataclass(frozen=True)
class Matter:
    """What is decided, in which chapter, and by whom."""

    name: str
    chapter: int
    rules: Rules


def digest_of(text: str) -> str:
    """The value that stands for a text in votes."""
    return hashlib.sha256(b"unwalk-value-1:" + text.encode()).hexdigest()


def words(network: str, matter: Matter, vote: Vote) -> bytes:
    """What a vote's signature is on."""
    said = {
        "network": network,
        "matter": matter.name,
        "members": list(matter.rules.members),
        "lies": matter.rules.lies,
        "kind": vote.kind,
        "round": vote.round,
        "value": vote.value,
        "since": vote.since,
        "voter": vote.voter,
    }
    return PREFIX + canonical(said).encode()


class Writer:
    """Votes to JSON, each certificate once."""

    def __init__(self) -> None:
        self.pems: dict[str, int] = {}

    def vote(self, vote: Vote) -> list[Any]:
        place = self.pems.setdefault(vote.certificate, len(self.pems))
        return [vote.kind, vote.round, vote.value, vote.since, vote.voter, vote.signature, place]

    def votes(self, votes: Votes) -> list[Any]:
        ordered = sorted(votes, key=lambda v: (v.kind, v.voter, v.value, v.since))
        return [self.vote(v) for v in ordered]

    def chain(self, chain: Chain) -> list[Any]:
        return [self.votes(polka) for polka in chain]

    def decision(self, decision: Decision | None) -> dict[str, Any] | None:
        if decision is None:
            return None
        return {
            "value": decision.value,
            "round": decision.round,
            "precommits": self.votes(decision.precommits),
            "chain": self.chain(decision.chain),
        }

    @property
    def certificates(self) -> list[str]:
        return list(self.pems)


class Reader:
    """Votes from JSON, whose signatures are not looked at yet."""

    def __init__(self, pems: Any, peers: int) -> None:
        found = codec.listed(pems, "certificates", most=4 * peers + 4)
        if not all(isinstance(p, str) and len(p) <= LONGEST_PEM for p in found):
            raise Corrupt("certificates are not all short texts.")
        self.pems, self.peers = found, peers

    def vote(self, record: Any) -> Vote:
        items = codec.listed(record, "a vote", most=7)
        if len(items) != 7 or items[0] not in de.KINDS or not isinstance(items[5], str):
            raise Corrupt("a vote is not of the known form.")
        value = items[2]
        if value != de.NIL:
            codec.digest(value, "a vote's value")
        place = codec.whole(items[6], "certificate", high=max(len(self.pems) - 1, 0))
        return Vote(
            items[0],
            codec.whole(items[1], "round", high=de.MOST_ROUNDS - 1),
            value,
            codec.whole(items[3], "since", low=de.NEVER, high=de.MOST_ROUNDS),
            codec.whole(items[4], "voter", high=self.peers - 1),
            items[5],
            self.pems[place] if self.pems else "",
        )

    def votes(self, record: Any) -> Votes:
        most = len(de.KINDS) * de.TWICE * self.peers
        return frozenset(self.vote(v) for v in codec.listed(record, "votes", most=most))

    def chain(self, record: Any) -> Chain:
        return tuple(self.votes(p) for p in codec.listed(record, "a chain", most=de.DEEPEST))

    def decision(self, record: Any) -> Decision | None:
        if record is None:
            return None
        names = ("value", "round", "precommits", "chain")
        found = codec.fields_of(record, "a decision", *names)
        return Decision(
            codec.digest(found["value"], "value"),
            codec.whole(found["round"], "round", high=de.MOST_ROUNDS - 1),
            self.votes(found["precommits"]),
            self.chain(found["chain"]),
        )


def decision_to(decision: Decision) -> dict[str, Any]:
    """A decision with all its votes, as it stands in certificates."""
    writer = Writer()
    said = writer.decision(decision)
    return {"decided": said, "certificates": writer.certificates}


def decision_from(record: Any, trust: Trust, network: str, matter: Matter) -> Decision:
    """A decision that was shown; refused unless every vote in it is what it says."""
    found = codec.fields_of(record, "a decision", "decided", "certificates")
    reader = Reader(found["certificates"], len(trust.network.peers))
    decision = reader.decision(found["decided"])
    if decision is None or not de.check_decision(matter.rules, decision):
        raise Refused(f"a decision about {matter.name} does not have the votes that it needs.")
    Checker(trust, network).check_decided(matter, decision)
    return decision


class Checker:
    """Signatures of votes, each looked at once."""

    def __init__(self, trust: Trust, network: str) -> None:
        self.trust, self.network = trust, network
        self.known: set[tuple[str, str, bytes]] = set()

    def check(self, matter: Matter, vote: Vote) -> None:
        """Refuse a vote that its voter did not sign with a certificate good for the chapter."""
        self.trust.identity(vote.certificate, past=True, chapter=matter.chapter)
        self._check_signature(matter, vote)

    def _check_signature(self, matter: Matter, vote: Vote) -> None:
        data = words(self.network, matter, vote)
        seen = (vote.certificate, vote.signature, data)
        if seen not in self.known:
            name = self.trust.check(vote.certificate, vote.signature, data, past=True)
            if self.trust.network.index(name) != vote.voter:
                raise Refused(f"a vote of peer {vote.voter} was signed by {name}.")
            if len(self.known) >= KNOWN:
                self.known.clear()
            self.known.add(seen)

    def check_all(self, matter: Matter, heard: Heard) -> None:
        """Refuse what has a vote in it that is not what it says."""
        if heard.decided is not None:
            self.check_decided(matter, heard.decided)
        for vote in replace(heard, decided=None).all_votes():
            self.check(matter, vote)

    def check_decided(self, matter: Matter, decision: Decision) -> None:
        """Refuse a decision that has a vote in it that is not what it says.

        A key that was revoked from this chapter on, or before, may be in somebody else's hands:
        who votes with it is one of those that may lie.  A decision stands with the votes of as
        many, since no other one can have a quorum then.
        """
        revoked = set[int]()
        for vote in Heard(decided=decision).all_votes():
            self._check_signature(matter, vote)
            if not self._stands(matter, vote):
                revoked.add(vote.voter)
        if len(revoked) > matter.rules.lies:
            peers = self.trust.network.peers
            names = ", ".join(peers[voter].name for voter in sorted(revoked))
            raise NotInForce(
                f"a decision about {matter.name} rests on votes of {names}, whose certificates "
                f"were revoked for that chapter; allowed: votes of up to {matter.rules.lies}."
            )

    def _stands(self, matter: Matter, vote: Vote) -> bool:
        try:
            self.trust.identity(vote.certificate, past=True, chapter=matter.chapter)
        except NotInForce:
            return False
        return True


class Clerk(Checker):
    """What one peer writes and reads of votes."""

    def __init__(self, bundle: Bundle, trust: Trust) -> None:
        super().__init__(trust, bundle.network.run_id)
        self.bundle = bundle

    def sign(self, matter: Matter, state: State) -> State:
        """The state with this peer's own votes signed, wherever they stand: new ones, and those
        that it cast under an earlier certificate."""
        pem = self.bundle.certificate_pem.decode()
        fresh: dict[Vote, Vote] = {}

        def signed(vote: Vote) -> Vote:
            if vote.voter != state.me or (vote.signature and vote.certificate == pem):
                return vote
            if vote not in fresh:
                signature = self.bundle.sign(words(self.network, matter, vote)).hex()
                fresh[vote] = replace(vote, signature=signature, certificate=pem)
            return fresh[vote]

        return _each(state, lambda votes: frozenset(map(signed, votes)))

    def in_force(self, matter: Matter, state: State) -> State:
        """The state without others' votes whose certificates are not in force for the matter.

        Nobody would believe a polka without them.  What this peer cast itself, and its lock, stay.
        """
        kept = _each(state, lambda votes: self._valid(matter, votes, state.me))

        def whole(chain: Chain) -> Chain:
            return chain if de.check_chain(matter.rules, chain) else ()

        chain, proof, rival = whole(kept.chain), whole(kept.proof), whole(kept.rival)
        return replace(kept, chain=chain, proof=proof, rival=rival, decided=state.decided)

    def _valid(self, matter: Matter, votes: Votes, me: int | None = None) -> Votes:
        return frozenset(v for v in votes if v.voter == me or self._stands(matter, v))

    def show(self, state: State) -> dict[str, Any]:
        """What others are shown of a state."""
        heard, writer = de.shown(state), Writer()
        said: dict[str, Any] = {
            "votes": writer.votes(heard.votes),
            "opened": writer.votes(heard.opened),
            "chains": [writer.chain(c) for c in heard.chains],
            "decided": writer.decision(heard.decided),
        }
        return {**said, "certificates": writer.certificates}

    def heard(self, matter: Matter, record: Mapping[str, Any], state: State) -> Heard:
        """What somebody shows that matters in ``state``; refused where a signature is not right.

        A vote whose certificate is not in force here is left out: an honest peer that has not
        heard of its revocation shows it with its own votes.
        """
        reader = Reader(record["certificates"], len(self.trust.network.peers))
        chains = codec.listed(record["chains"], "chains", most=MOST_CHAINS)

        def valid(votes: Votes) -> Votes:
            return self._valid(matter, votes)

        shown = Heard(
            valid(reader.votes(record["votes"])),
            valid(reader.votes(record["opened"])),
            tuple(tuple(map(valid, reader.chain(c))) for c in chains),
            reader.decision(record["decided"]),
        )
        found = de.usable(state, matter.rules, shown)
        self.check_all(matter, found)
        return found


def _each(state: State, change: Callable[[Votes], Votes]) -> State:
    """The state with every set of votes in it changed."""

    def chain(polkas: Chain) -> Chain:
        return tuple(map(change, polkas))

    decided = state.decided
    if decided is not None:
        precommits = change(decided.precommits)
        decided = replace(decided, precommits=precommits, chain=chain(decided.chain))
    return replace(
        state,
        votes=change(state.votes),
        opened=change(state.opened),
        chain=chain(state.chain),
        proof=chain(state.proof),
        rival=chain(state.rival),
        decided=decided,
    )


def state_to(state: State) -> dict[str, Any]:
    """A state as JSON, for the peer's own store."""
    writer = Writer()
    said = {
        "me": state.me,
        "round": state.round,
        "step": state.step,
        "locked": state.locked,
        "lock": state.lock,
        "foreign": state.foreign,
        "votes": writer.votes(state.votes),
        "opened": writer.votes(state.opened),
        "chain": writer.chain(state.chain),
        "proof": writer.chain(state.proof),
        "rival": writer.chain(state.rival),
        "decided": writer.decision(state.decided),
        "evidence": [[writer.vote(a), writer.vote(b)] for a, b in state.evidence],
    }
    return {**said, "certificates": writer.certificates}


def state_from(record: Mapping[str, Any], peers: int) -> State:
    """The state that :func:`state_to` wrote."""
    reader = Reader(record["certificates"], peers)
    return State(
        record["me"],
        record["round"],
        record["step"],
        record["locked"],
        reader.votes(record["votes"]),
        reader.votes(record["opened"]),
        reader.chain(record["chain"]),
        reader.chain(record["proof"]),
        reader.decision(record["decided"]),
        tuple((reader.vote(a), reader.vote(b)) for a, b in record["evidence"]),
        record.get("lock", de.NIL),
        record.get("foreign", record["locked"]),
        reader.chain(record.get("rival", [])),
    )
