"""Checks every offer of a token and every message before anything touches a peer's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from unwalk.core.errors import Corrupt, Refused
from unwalk.core.plan import Move
from unwalk.peers.handover.log_rules import Place
from unwalk.peers.handover.visit import ATTEMPTS, Work
from unwalk.peers.identity.network_file import Network
from unwalk.peers.identity.trust import Trust
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.handover import Parcel
from unwalk.peers.protocol.hoplog import Entry, lineage_json, parse_entry
from unwalk.peers.storage.token_files import TokenFile, check_token, open_token, token_in
from unwalk.peers.transport.wire import MESSAGE


@dataclass(frozen=True, eq=False)
class Offer:
    """A token that somebody wants to hand over.

    Its digest and ``entry``, the signed head of its log, come last: :meth:`OfferChecks.stamped`.
    """

    sender: int
    parcel: Parcel
    path: tuple[int, ...]
    mover: int
    attempt: int
    move: Move
    passed_over: tuple[int, ...]
    size: int
    entry: Entry | None = None


@dataclass(frozen=True, eq=False)
class OfferChecks:
    """The checks of one peer."""

    network: Network
    trust: Trust
    work: Work
    peer: int
    run: str

    def of_this_run(self, message: ms.Message) -> None:
        """Refuse what is about another walk."""
        if message.run != self.run:
            raise Refused("that run is not known here.")

    def near(self, a: int, b: int) -> bool:
        """Whether the graph lets ``a`` hand the token to ``b``."""
        if self.work.graph.complete:
            return a != b
        return b in self.work.graph.neighbours(a)

    def sent(self, sender: int, size: int) -> None:
        """Refuse a token that is not from a neighbour, or too long."""
        if not self.near(sender, self.peer):
            raise Refused(f"peer {sender} is no neighbour of peer {self.peer}.")
        most = min(self.network.limits.token_bytes or self.work.most_bytes, self.work.most_bytes)
        if size > most:
            raise Refused(f"the token has {size} bytes; allowed: {most}.")

    def offer(self, sender: int, said: ms.Offer) -> Offer:
        """An offer whose envelope is in order."""
        self.sent(sender, said.size)
        parcel = said.parcel.parcel()
        path = self._path(said.path)
        self._place(parcel)
        move = self._move(said.move)
        if move.path[-len(path) :] != path:
            raise Corrupt("the path does not end where the move ends.")
        relays = len(move.path) - len(path)
        recovered = parcel.hop == parcel.lineage[-1][1]  # and so maybe by a peer that relayed it
        if parcel.leg < relays or (parcel.leg > relays and not recovered):
            raise Corrupt(f"the token was relayed {relays} times, not {parcel.leg}.")
        over = self._peers(said.passed_over, "passed_over")
        mover, attempt = said.move.mover, said.move.attempt
        return Offer(sender, parcel, path, mover, attempt, move, over, said.size)

    def stamped(self, offer: Offer, data: bytes) -> Offer:
        """The offer with the signed log entry that its sender sent after the token's bytes."""
        entry = parse_entry(codec.parse(data, MESSAGE))
        token = codec.digest(entry["body"].get("token"), "token")
        parcel = replace(offer.parcel, chain=entry["chain"], token=token)
        self._entry(parcel, entry)
        if offer.mover != entry["body"]["peer"]:
            raise Refused(f"peer {offer.mover} did not have the token to send it on.")
        return replace(offer, parcel=parcel, entry=entry)

    def _peers(self, numbers: Sequence[int], what: str) -> tuple[int, ...]:
        count = len(self.network.peers)
        if len(numbers) > count or any(number >= count for number in numbers):
            raise Corrupt(f"{what} names more than the {count} peers that there are.")
        return tuple(numbers)

    def _path(self, numbers: Sequence[int]) -> tuple[int, ...]:
        path = self._peers(numbers, "path")
        if not path or path[0] != self.peer:
            raise Refused("the token is not for this peer.")
        for here, there in pairwise(path):
            if not self.near(here, there):
                raise Refused(f"the path goes from {here} to {there}, which are no neighbours.")
        return path

    def _place(self, parcel: Parcel) -> None:
        if not 1 <= parcel.hop < self.work.hops:
            raise Refused(f"hop {parcel.hop} is offered; allowed: 1 to {self.work.hops - 1}.")
        if parcel.leg >= len(self.network.peers):
            raise Refused("the token was relayed more often than there are peers.")
        for (_, opener), _ in parcel.lineage:
            self._peers([opener], "generation")

    def _move(self, said: ms.Way) -> Move:
        path = self._peers(said.path, "path")
        if not path or path[-1] != said.receiver:
            raise Corrupt("the move does not end at its receiver.")
        self._peers([said.mover], "mover")
        if said.attempt >= ATTEMPTS:
            raise Corrupt(f"attempt is {said.attempt}; allowed: up to {ATTEMPTS - 1}.")
        return Move(said.receiver, path, said.memory)

    def _entry(self, parcel: Parcel, entry: Entry) -> None:
        """The signed head of the log has to say the same as the parcel."""
        body = entry["body"]
        same = {
            "run": self.run,
            "generation": list(parcel.generation),
            "lineage": lineage_json(parcel.lineage),
            "hop": parcel.hop,
        }
        if any(body.get(k) != v for k, v in same.items()):
            raise Refused("the log entry says something else than the parcel.")
        if body["kind"] == "hop" and body["visit"]["hop"] != self.work.base + parcel.hop:
            raise Refused("the log entry is about another visit.")
        signer = self.trust.signer(entry)
        expected = parcel.generation[1] if body.get("kind") == "recovery" else body.get("peer")
        if signer != expected or body.get("peer") != signer:
            raise Refused(f"the log entry was not signed by peer {expected}.")

    def open(self, path: Path) -> TokenFile:
        """A token's file, unless its header is longer than that of any token of this walk."""
        return open_token(path, len(self.network.peers), self.work.longest_header)

    def open_bytes(self, data: bytearray, name: str) -> TokenFile:
        """The same for bytes in memory."""
        return token_in(data, name, len(self.network.peers), self.work.longest_header)

    def content(self, parcel: Parcel, file: TokenFile) -> None:
        """Check what is in the token's file; its digest is checked in ``receiving.py``.

        The plan says which tensors a token has after so many visits: no other is taken.
        """
        done = file.header["hop"] - self.work.base
        if done != parcel.hop:
            raise Refused(f"the token is after hop {done}, the parcel after {parcel.hop}.")
        self._tensors(file, done)

    def _tensors(self, file: TokenFile, done: int) -> None:
        largest = self.network.limits.weight
        shapes = self.work.shapes(done, file.header["optimizer_steps"])
        check_token(file, shapes, largest)

    @staticmethod
    def agrees(file: TokenFile, place: Place) -> None:
        """Refuse a token that is not where its log says, or remembers another way to there.

        Whoever visits signs that the token came from there, and follows the route from there.  What
        its optimizer has counted is what the log's visits tell of.
        """
        if (file.header["at"], file.header["memory"]) != (place.last, place.memory):
            raise Refused("the token is at another place of the route than its log.")
        said = file.header["optimizer_steps"]
        if place.steps is not None and said != place.steps:
            raise Refused(f"the token counts {said} optimizer steps, its log {place.steps}.")

    def final_content(self, path: Path, place: Place | None) -> None:
        """The bytes of the token after the last hop; ``place`` is where its log ends, if known."""
        file = self.open(path)
        done = file.header["hop"] - self.work.base
        if done != self.work.hops:
            raise Refused(f"the token is after hop {done}, not after the last one.")
        self._tensors(file, done)
        if place is not None:
            self.agrees(file, place)

    def route(self, offer: Offer, memory: Mapping[str, int]) -> None:
        """The sender has to follow the route, which anybody can draw again.

        It may draw again only if a draw led to, or through, a peer that was passed over.
        """
        over, hop = set(offer.passed_over), offer.parcel.hop + 1
        if self.work.leads_nowhere(offer.mover, over):
            raise Refused(f"all neighbours of peer {offer.mover} are said to be passed over.")
        for attempt in range(offer.attempt):
            if not over & set(self.work.move(hop, offer.mover, memory, attempt).path):
                raise Refused(f"draw {attempt} of the route led to nobody that is passed over.")
        drawn = self.work.move(hop, offer.mover, memory, offer.attempt)
        if over & set(drawn.path):
            raise Refused("the route leads through somebody that is said to be passed over.")
        same = (drawn.receiver, drawn.path, dict(drawn.memory))
        if same != (offer.move.receiver, offer.move.path, dict(offer.move.memory)):
            raise Refused("the token was not sent where the route's rule leads.")
