"""Every message that a peer sends to another, as a type of its own: read once, where it arrives.

Log entries, votes, receipts and decisions in them are JSON that somebody signed; who needs them
reads them.  A new message is a class here, in ``WALK`` or ``NETWORK``, and a line in the table of
who answers it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from unwalk.core.errors import Corrupt
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.codec import BareParcel, Digest, EndValue, NoDigest, Pair, Part, Whole

PROTOCOL = 4
HEAD = ("protocol", "network", "run", "kind")
Number = Annotated[int, Meta(ge=1, le=codec.LARGEST)]
"""The number of a chapter that is voted on; training, which is not, has 0."""
Peers = Annotated[list[Whole], Meta(max_length=codec.LONGEST_LINEAGE)]
PAGE = 32
"""Log entries in one answer, at most."""
Size = Annotated[int, Meta(ge=8, le=1 << 48)]
Signed = dict[str, Any]


class Message(Part, frozen=True, kw_only=True, tag_field="kind"):
    """What every message begins with."""

    protocol: Literal[4]
    network: str
    run: str


# About a walk, whose run they name


class Where(Message, frozen=True, tag="where"):
    """Where is the token?  The answer is signed for who goes on from ``chain``.

    It would open a generation of this ``number``; with 0 it only looks around.
    """

    chain: NoDigest
    number: Annotated[int, Meta(ge=0, le=codec.LAST_GENERATION)]


class Release(Message, frozen=True, tag="release"):
    """The token has come so far: what was kept of it before is not needed."""

    generation: Pair
    place: Pair


class Fence(Message, frozen=True, tag="fence"):
    """A generation was opened; the log entry shows how."""

    entry: Signed


class Opening(Message, frozen=True, tag="opening"):
    """How was a generation opened?"""

    generation: Pair


class Beginning(Message, frozen=True, tag="beginning"):
    """With which entry does the walk's log begin?"""


class Decide(Message, frozen=True, tag="decide"):
    """What is known of the vote on the walk's end."""

    poll: Signed


class EntryOf(Message, frozen=True, tag="entry"):
    """The log entry with this chain?"""

    chain: Digest


class Entries(Message, frozen=True, tag="entries"):
    """The log entries up to the one with this chain, the last first, as many as one answer holds.

    It counts as so many calls as entries are asked for.
    """

    chain: Digest
    most: Annotated[int, Meta(ge=1, le=PAGE)]


class Way(Part, frozen=True):
    """Where the route's rule led, in which attempt, and from what it remembered."""

    mover: Whole
    attempt: Whole
    receiver: Whole
    path: Peers
    memory: Annotated[dict[Annotated[str, Meta(max_length=64)], Whole], Meta(max_length=16)]


class Offer(Message, frozen=True, tag="offer"):
    """A token follows."""

    parcel: BareParcel
    path: Peers
    move: Way
    passed_over: Peers
    size: Size


class Final(Message, frozen=True, tag="final"):
    """The last token of a walk follows."""

    value: EndValue
    size: Size


# About chapters; the run is the network's


class AgendaDecide(Message, frozen=True, tag="agenda-decide"):
    """What is known of the vote on a chapter."""

    number: Number
    poll: Signed


class AgendaDecided(Message, frozen=True, tag="agenda-decided"):
    """A chapter was decided: its signed text, and the votes."""

    number: Number
    value: str
    decision: Signed


class AgendaAsk(Message, frozen=True, tag="agenda-ask"):
    """Which chapters were decided, from this number on?"""

    number: Number


class AgendaEnd(Message, frozen=True, tag="agenda-end"):
    """How did a chapter end?"""

    number: Whole


class AgendaVisits(Message, frozen=True, tag="agenda-visits"):
    """Which visits of a chapter follow the first ``after``?"""

    number: Whole
    after: Whole


class AgendaReceipt(Message, frozen=True, tag="agenda-receipt"):
    """What did you erase after a chapter?"""

    number: Whole


class AgendaLeft(Message, frozen=True, tag="agenda-left"):
    """The sender has left; its receipt says so."""

    number: Whole
    receipt: Signed


class AgendaLeaver(Message, frozen=True, tag="agenda-leaver"):
    """The receipt of a peer that left?"""

    number: Whole
    peer: Whole


class AgendaBegin(Message, frozen=True, tag="agenda-begin"):
    """The sender is up.  Has training begun there, and without which peers may it, says its
    operator?  The answer says the same of the peer that answers."""

    begun: bool
    without: Peers


class AgendaReady(Message, frozen=True, tag="agenda-ready"):
    """Can the sender leave after a chapter?"""

    number: Whole


WALK = Where | Release | Fence | Opening | Beginning | Decide | EntryOf | Entries | Offer | Final
NETWORK = (
    AgendaDecide
    | AgendaDecided
    | AgendaAsk
    | AgendaEnd
    | AgendaVisits
    | AgendaReceipt
    | AgendaLeft
    | AgendaLeaver
    | AgendaBegin
    | AgendaReady
)


def decode(data: bytes, longest: int) -> WALK | NETWORK:
    """The message in these bytes, whole and of its type; anything else is :class:`Corrupt`."""
    record = codec.parse(data, longest)
    if record.get("protocol") != PROTOCOL:
        raise Corrupt(f"protocol {PROTOCOL} is spoken here.")
    message: WALK | NETWORK = codec.typed(record, WALK | NETWORK, "a message")
    return message


def head(network: str, run: str) -> dict[str, Any]:
    """What every message begins with."""
    return {"protocol": PROTOCOL, "network": network, "run": run}


def encode(message: Message) -> bytes:
    """A message as it travels."""
    record = msgspec.to_builtins(message)
    return codec.dump({**{name: record.pop(name) for name in HEAD}, **record})
