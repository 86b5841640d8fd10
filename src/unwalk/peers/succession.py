"""What a log entry may follow: one visit after the other, and one generation a recovery.

A member that lies could claim visits that nobody did, or generations that nobody opened, and have
the others drop their work.  So whoever takes a token checks its log back to the last entry that it
knows, and whoever is told of a generation is shown how it was opened: by a peer that asked, and to
which a quorum signed that none of them had seen the token any further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from unwalk.core.errors import Corrupt, Refused
from unwalk.core.transcript import canonical
from unwalk.peers import codec
from unwalk.peers.decisions import Rules
from unwalk.peers.hoplog import Entry, parse_entry
from unwalk.peers.protocol import Generation, Lineage, Sighting, belongs
from unwalk.peers.trust import Bundle, Trust
from unwalk.peers.work import Work
from unwalk.walks import NOBODY

PREFIX = b"unwalk-sighting-1:"
MOST_ENTRIES = 64
"""Entries of the log that travel with a token; what is missing is asked for."""
MOST_RECOVERIES = 4096
"""Entries of one log besides its hops."""
SIGNED = ("sighting", "signature", "certificate")


def words(run: str, asker: int, chain: str, sighting: Mapping[str, Any]) -> bytes:
    """What a sighting's signature is on: who asked, and from where it would go on."""
    said = {"run": run, "asker": asker, "chain": chain, "sighting": dict(sighting)}
    return PREFIX + canonical(said).encode()


def sign(bundle: Bundle, run: str, asker: int, chain: str, sighting: Sighting) -> dict[str, Any]:
    """A sighting with this peer's signature."""
    said = codec.sighting_to(sighting)
    signature = bundle.sign(words(run, asker, chain, said)).hex()
    pem = bundle.certificate_pem.decode()
    return {"sighting": said, "signature": signature, "certificate": pem}


def prefix(one: Lineage, other: Lineage) -> bool:
    """Whether ``other`` goes on from ``one``.

    >>> prefix((((0, 1), 0),), (((0, 1), 0), ((1, 2), 5)))
    True
    """
    return other[: len(one)] == one


def known_by(seen: Iterable[Sighting], lies: int) -> int:
    """The highest number of a generation that an honest peer among ``seen`` knows of.

    Who recovers may be one of those who lie; so one fewer of the others may.

    >>> far, near = Sighting((9, 0), (), ((9, 0), (1, 0))), Sighting((2, 0), (), ((2, 0), (1, 0)))
    >>> known_by([far, near], 2), known_by([far, near], 1)
    (2, 9)
    """
    numbers = sorted((s.fence[0] for s in seen), reverse=True)
    return numbers[max(lies, 1) - 1] if len(numbers) >= max(lies, 1) else 0


@dataclass(frozen=True, eq=False)
class Succession:
    """The checks of one walk at one peer."""

    trust: Trust
    work: Work
    rules: Rules
    run: str
    start: str
    saw: Callable[[Entry], None] = lambda entry: None
    """Hears of every entry that its peer has signed, whether or not it fits."""

    @cached_property
    def first(self) -> int:
        """The peer that the walk begins with."""
        return self.work.move(1, NOBODY, {}, 0).receiver

    def sighted(self, record: Any, asker: int, chain: str) -> tuple[int, Sighting]:
        """A signed sighting, and whose it is; refused unless it answers that question."""
        found = codec.fields_of(record, "a sighting", *SIGNED)
        sighting = codec.sighting_from(found["sighting"])
        data = words(self.run, asker, chain, found["sighting"])
        pem, signature = str(found["certificate"]), str(found["signature"])
        name = self.trust.check(pem, signature, data, past=True)
        return self.trust.network.index(name), sighting

    def recovery(self, body: Mapping[str, Any], known: Lineage) -> tuple[Generation, Lineage]:
        """The generation that a recovery opened, and its lineage; refused unless it was allowed.

        ``known`` is the lineage that is known here: what came before the recovery must fit it, or
        be what more peers signed than may lie.
        """
        peer, hop = body["peer"], body["hop"]
        lineage = codec.lineage_from(body["lineage"])
        *rest, (generation, since) = lineage
        before = tuple(rest)
        if not before or since != hop or generation != tuple(body["generation"]):
            raise Refused("a recovery does not open one generation after another.")
        items = codec.listed(body["sightings"], "sightings", most=len(self.rules.members))
        seen: dict[int, Sighting] = {}
        for item in items:
            who, sighting = self.sighted(item, peer, body["previous"])
            if who in self.rules.members and who not in (body["lost"], peer):
                seen[who] = sighting  # what those two say of themselves does not matter
        if len(seen) + 1 < self.rules.quorum:
            raise Refused(f"a recovery shows {len(seen) + 1} peers of {self.rules.quorum}.")
        for sighting in seen.values():
            reached, place = sighting.reached
            if sighting.over or (place[0] > hop and belongs(reached, place[0], before)):
                raise Refused("a recovery goes back behind what others have seen.")
        known_of = known_by(seen.values(), self.rules.lies)
        highest = max(before[-1][0][0], known_of)
        if generation != (highest + 1, peer):
            raise Refused(f"a recovery opens generation {generation}, not {highest + 1}.")
        agreeing = [s for s in seen.values() if prefix(before, s.lineage)]
        fits = prefix(before, known) or prefix(known, before)
        if not fits and len(agreeing) <= self.rules.lies:
            raise Refused("a recovery goes on from a lineage that nobody knows.")
        return generation, lineage

    def opening(self, record: Any, known: Lineage) -> tuple[Entry, Generation, Lineage]:
        """The signed entry with which a generation was opened, checked."""
        entry = parse_entry(record)
        body = entry["body"]
        if body["kind"] != "recovery" or body["run"] != self.run:
            raise Refused("that entry opens no generation of this walk.")
        if self.trust.signer(entry) != body["peer"]:
            raise Refused("a recovery was not signed by the peer that it names.")
        generation, lineage = self.recovery(body, known)
        return entry, generation, lineage

    def entry(self, entry: Entry, before: Mapping[str, Any] | None, known: Lineage) -> None:
        """Refuse an entry that cannot follow the one with the body ``before``, or be the first."""
        body = entry["body"]
        if body["run"] != self.run or self.trust.signer(entry) != body["peer"]:
            raise Refused("a log entry is of another walk, or not signed by its peer.")
        self.saw(entry)
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
            self.recovery(body, known)
            return
        visit = body["visit"]
        if body["hop"] != done + 1 or lineage != earlier:
            raise Refused(f"visit {body['hop']} does not follow visit {done}.")
        if visit["hop"] != self.work.base + body["hop"]:
            raise Refused("a log entry is about another visit.")
        if before is not None and before["kind"] == "hop":
            stayed = not visit["path"] and visit["receiver"] != before["peer"]
            if visit["sender"] != before["peer"] or stayed:
                raise Refused(f"visit {body['hop']} did not come from where visit {done} was.")
        self._way(visit)

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
