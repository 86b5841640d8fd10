"""What a log entry may follow: one visit after the other, one generation per recovery.

A member that lies could claim visits that nobody did, or generations that nobody opened, and have
the others drop their work.  So whoever takes a token checks its log back to the last entry that it
knows, and whoever is told of a generation is shown how it was opened: by a peer that asked, and to
which a quorum signed that none of them had seen the token any further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from unwalk.core import events as ev
from unwalk.core.errors import Corrupt, Refused
from unwalk.core.transcript import canonical
from unwalk.peers.handover.visit import Work
from unwalk.peers.identity.trust import Bundle, Trust
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.consensus import Rules
from unwalk.peers.protocol.handover import Generation, Lineage, Sighting
from unwalk.peers.protocol.hoplog import BARE, Entry, bare_text, parse_entry
from unwalk.peers.protocol.schedule import NO_TOKEN
from unwalk.walks import NOBODY
from unwalk.walks.routes import Uniform

PREFIX = b"unwalk-sighting-3:"
MOST_ENTRIES = 64
"""Entries of the log that travel with a token; what is missing is asked for."""
MOST_RECOVERIES = 4096
"""Entries of one log besides its hops."""
LONGEST_SIGHTING = 2048
"""Bytes that a signed sighting may have: a recovery shows one of each peer, in one message."""
SIGNED = ("sighting", "signature", "certificate")
SECRET = {ev.GaussianNoise: ("std", "sensitivity", "grid"), ev.Start: ("travels",)}
"""Fields of events that do not follow from the plan alone."""


@dataclass(frozen=True)
class Question:
    """Who asked where the token is: from where it would go on, and under which number."""

    run: str
    asker: int
    chain: str = ""
    number: int = 0


def words(asked: Question, sighting: Mapping[str, Any]) -> bytes:
    """What a sighting's signature is on."""
    return PREFIX + canonical({**vars(asked), "sighting": dict(sighting)}).encode()


def sign(bundle: Bundle, asked: Question, sighting: Sighting) -> dict[str, Any]:
    """A sighting with this peer's signature."""
    record = codec.sighting_to(sighting)
    signature = bundle.sign(words(asked, record)).hex()
    pem = bundle.certificate_pem.decode()
    return {"sighting": record, "signature": signature, "certificate": pem}


def share_of(peers: int) -> int:
    """Generations that one peer may open in a lineage, so that there is room for all others'.

    >>> share_of(4), share_of(37)
    (1023, 110)
    """
    return (codec.LONGEST_LINEAGE - 1) // peers


def opened_by(peer: int, lineage: Lineage) -> int:
    """How many generations of a lineage a peer has opened; nobody opened the first one."""
    return sum(opener == peer for (_, opener), _ in lineage[1:])


def _public(event: ev.Event) -> tuple[Any, ...]:
    """What everybody knows of an event beforehand."""
    return ev.of_the_plan(event, *SECRET.get(type(event), ()))


def _foreseen(events: Iterable[ev.Event]) -> list[tuple[Any, ...]]:
    """What everybody knows of a visit's events beforehand.

    The ball on which u projects after its noise is as secret as the noise until then.
    """
    told = list(events)
    if any(isinstance(event, ev.GaussianNoise) for event in told):
        told = [event for event in told if not isinstance(event, ev.Projection)]
    return list(map(_public, told))


@dataclass(frozen=True)
class Place:
    """Where a walk is: the peer that has the token, what its route remembers, who was visited.

    ``last`` did the last visit; after a recovery somebody else may have the token.  ``steps`` is
    what the token's optimizer has counted; None where that cannot be told.
    """

    at: int = NOBODY
    last: int = NOBODY
    memory: Mapping[str, int] = field(default_factory=dict)
    visited: frozenset[int] = frozenset()
    steps: int | None = 0


@dataclass(frozen=True, eq=False)
class Succession:
    """The checks of one walk at one peer."""

    trust: Trust
    work: Work
    rules: Rules
    run: str
    start: str
    only: int | None = None
    """The peer that alone may begin the walk; None: whoever has what it begins with."""
    saw: Callable[[Entry], None] = lambda entry: None
    """Hears of every entry that its peer has signed, whether or not it fits."""

    @cached_property
    def first(self) -> int:
        """The peer that the walk begins with."""
        return self.work.move(1, NOBODY, {}, 0).receiver

    def after(self, place: Place, body: Mapping[str, Any]) -> Place:
        """Where a walk is after an entry that may follow; refused off the route or the plan.

        The route is drawn again: a visit has to be where it leads, past those that its entry names
        as passed over.  Whoever recovers a walk that has not begun does the first visit.  And the
        plan is read again: a visit must tell of the work that the plan gives it.
        """
        if body["kind"] != "hop":
            return replace(place, at=body["peer"])
        memory, peer = self._led(body, place), body["peer"]
        events = self._told(body, place)
        steps = self.work.counted(place.steps, body["hop"], events)
        return Place(peer, peer, memory, place.visited | {peer}, steps)

    def _led(self, body: Mapping[str, Any], place: Place) -> dict[str, int]:
        """Refuse a visit where the route does not lead; what the route remembers after it."""
        begun = body["hop"] == 1 and place.at != NOBODY
        start = NOBODY if begun else place.at
        drawn = self.work.choose(body["hop"], start, place.memory, self._passed_over(body))
        if drawn is None:
            raise Refused(f"the route leads nowhere from visit {body['hop'] - 1}.")
        move = replace(drawn[1], receiver=place.at, path=()) if begun else drawn[1]
        visit = body["visit"]
        if (move.receiver, move.path) != (visit["receiver"], tuple(visit["path"])):
            raise Refused(f"visit {body['hop']} is not where the route leads.")
        sender = self.work.first_sender if body["hop"] == 1 else place.last
        if visit["sender"] != sender:
            raise Refused(f"visit {body['hop']} names peer {visit['sender']} as the one before it.")
        return dict(move.memory)

    def _passed_over(self, body: Mapping[str, Any]) -> list[int]:
        peers = range(len(self.trust.network.peers))
        over = codec.listed(body["passed_over"], "passed_over", most=len(peers))
        if any(type(peer) is not int or peer not in peers for peer in over):
            raise Corrupt("passed_over names somebody who is no peer.")
        return over

    def _told(self, body: Mapping[str, Any], place: Place) -> tuple[ev.Event, ...]:
        """A visit's events; refused if they are not those of the plan.

        How many steps a peer takes depends on how many records it has, which only it knows, and
        with none it takes none; the noise of a seal is what u has calculated.
        """
        work, hop, peer = self.work, body["hop"], body["peer"]
        told = events = tuple(map(ev.from_json, body["visit"]["events"]))
        if body["visit"]["digest"] is not None and not work.shows_digest(hop):
            raise Refused(
                f"visit {hop} at peer {peer} shows a digest that the plan does not ask for."
            )
        first = peer not in place.visited
        if hop == 1:
            begun = work.begun()
            head, events = events[: len(begun)], events[len(begun) :]
            if list(map(_public, head)) != list(map(_public, begun)):
                raise Refused("the first visit does not begin as the plan says.")
            if not work.may_travel(head[0]):
                raise Refused("the first visit names other things that travel with the token.")
        planned = (work.planned(hop, peer, first=first, records=n) for n in (1, 0))
        if all(_foreseen(events) != _foreseen(one) for one in planned):
            raise Refused(f"visit {hop} at peer {peer} tells of other work than the plan's.")
        return told

    def sighted(self, record: Any, asked: Question) -> tuple[int, Sighting]:
        """A signed sighting, and whose it is; refused unless it answers that question."""
        found = codec.fields_of(record, "a sighting", *SIGNED)
        sighting = codec.sighting_from(found["sighting"])
        data = words(asked, found["sighting"])
        if len(data) > LONGEST_SIGHTING:
            raise Refused(f"a sighting has {len(data)} bytes; allowed: {LONGEST_SIGHTING}.")
        pem, signature = str(found["certificate"]), str(found["signature"])
        name = self.trust.check(pem, signature, data, past=True)
        return self.trust.network.index(name), sighting

    def recovery(self, body: Mapping[str, Any]) -> tuple[Generation, Lineage]:
        """The generation that a recovery opened, and its lineage; refused unless it was allowed.

        A quorum of those who count has to sign for this number that as far as they know the token
        may be lost: the peer itself, and others than the one that lost it.  It goes on from the
        furthest copy that any of them has: one of the highest generation, and in it of the latest
        visit.  That the generations before were opened is seen in the log.
        """
        peer, hop = body["peer"], body["hop"]
        lineage = codec.lineage_from(body["lineage"])
        *rest, (generation, since) = lineage
        before = tuple(rest)
        if not before or since != hop or generation != tuple(body["generation"]):
            raise Refused("a recovery does not open one generation after another.")
        if generation[1] != peer or generation[0] <= before[-1][0][0]:
            raise Refused(f"peer {peer} opens generation {generation} after {before[-1][0]}.")
        if peer not in self.rules.members:
            raise Refused(f"peer {peer} opens a generation and does not count any more.")
        most = share_of(len(self.trust.network.peers))
        if opened_by(peer, lineage) > most:
            raise Refused(f"peer {peer} opens more than {most} generations of one walk.")
        items = codec.listed(body["sightings"], "sightings", most=len(self.rules.members))
        seen: dict[int, Sighting] = {}
        asked = Question(self.run, peer, body["previous"], generation[0])
        for item in items:
            who, sighting = self.sighted(item, asked)
            if who in self.rules.members and who not in (peer, body["lost"]):
                seen[who] = sighting
        agree = 1 + sum(not sighting.waits for sighting in seen.values())
        if agree < self.rules.quorum:
            raise Refused(f"a recovery shows {agree} peers of {self.rules.quorum}.")
        for sighting in seen.values():
            reached, place = sighting.reached
            if sighting.over or (reached, place[0]) > (before[-1][0], hop):
                raise Refused("a recovery goes back behind what others have seen.")
        return generation, lineage

    def opening(self, record: Any) -> tuple[Entry, Generation, Lineage]:
        """The signed entry with which a generation was opened, checked."""
        entry = parse_entry(record)
        body = entry["body"]
        if body["kind"] != "recovery" or body["run"] != self.run:
            raise Refused("that entry opens no generation of this walk.")
        if self.trust.signer(entry) != body["peer"]:
            raise Refused("a recovery was not signed by the peer that it names.")
        generation, lineage = self.recovery(body)
        return entry, generation, lineage

    def entry(self, entry: Entry, before: Mapping[str, Any] | None) -> None:
        """Refuse an entry that cannot follow the one with the body ``before``, or be the first."""
        body = entry["body"]
        if body["run"] != self.run or self.trust.signer(entry) != body["peer"]:
            raise Refused("a log entry is of another walk, or not signed by its peer.")
        self.saw(entry)
        if before is not None and before["run"] != self.run:
            raise Refused("a log entry goes on from one of another walk.")
        lineage = codec.lineage_from(body["lineage"])
        if before is None:
            done, earlier, first = 0, lineage[:1], self.first
            if body["previous"] != self.start or earlier != (((0, first), 0),):
                raise Refused("a log does not begin where the walk began.")
            if body["kind"] == "hop" and body["peer"] != first:
                raise Refused(f"the first visit is not that of peer {first}.")
        else:
            done, earlier = before["hop"], codec.lineage_from(before["lineage"])
        if lineage[-1][0] != tuple(body["generation"]):
            raise Corrupt("a log entry is of another generation than its lineage.")
        if body["kind"] == "recovery":
            if body["hop"] != done or lineage[:-1] != earlier:
                raise Refused("a recovery does not follow the entry before it.")
            self._opener(body, before)
            self.recovery(body)
            return
        visit = body["visit"]
        if body["hop"] != done + 1 or lineage != earlier:
            raise Refused(f"visit {body['hop']} does not follow visit {done}.")
        if body["token_in"] != (before["token"] if before and done else NO_TOKEN):
            raise Refused(f"visit {body['hop']} did not get the token that visit {done} left.")
        counted = (visit["hop"], visit["phase"], visit["phase_hop"])
        if counted != (self.work.base + body["hop"], self.work.phase.name, body["hop"]):
            raise Refused("a log entry is about another visit.")
        if before is not None and before["kind"] == "hop":
            stayed = not visit["path"]
            moved = visit["receiver"] != before["peer"] or self.work.moves_on
            if visit["sender"] != before["peer"] or (stayed and moved):
                raise Refused(f"visit {body['hop']} did not come from where visit {done} was.")
        self._way(visit)
        self._passed_over(body)
        data = BARE + bare_text(self.run, lineage[-1][0], visit)
        self.trust.check(entry["certificate"], body["bare"], data, past=True)

    def _opener(self, body: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
        """Refuse a recovery by a peer that cannot have a copy of the token.

        The peer that signed the entry before it kept a copy, and so did relays on the way from
        there.  The token that a walk begins with is kept by every peer that has it.
        """
        if before is None or not before["hop"]:
            if self.only not in (None, body["peer"]):
                raise Refused(f"only peer {self.only} can begin this walk.")
            return
        if body["token"] != before["token"]:
            raise Refused(f"a recovery goes on from another token than visit {body['hop']} left.")
        if body["peer"] != before["peer"] and not self._relays:
            raise Refused(
                f"peer {body['peer']} has no copy from visit {body['hop']} to go on from."
            )

    @property
    def _relays(self) -> bool:
        """Whether the token may be sent through peers that do not visit."""
        return not self.work.graph.complete and not isinstance(self.work.phase.route, Uniform)

    def _way(self, visit: Mapping[str, Any]) -> None:
        """A visit's way has to lead along the graph to its peer."""
        peers = range(len(self.trust.network.peers))
        path = codec.listed(visit["path"], "path", most=len(peers))
        if any(type(p) is not int or p not in peers for p in path):
            raise Corrupt("the way of a visit leads through nobody.")
        whole = [visit["sender"], *path] if visit["sender"] in peers else path
        graph = self.work.graph
        for here, there in pairwise(whole):
            if here == there or not (graph.complete or there in graph.neighbours(here)):
                raise Refused(f"a visit came from {here} to {there}, which are no neighbours.")
        if path and path[-1] != visit["receiver"]:
            raise Refused("the way of a visit does not end at its peer.")
