"""The transcript: every hop and every privacy event, as hash-chained JSON lines.

The first line is a header with what was public from the start; each further line is one hop and
carries ``chain``, the SHA-256 of the previous chain value and this line without it.  Wall-clock
times are never part of it.  ``view(v)`` is the paper's :math:`O_v`: the messages that peer v
sent or received.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unwalk.core import events as ev
from unwalk.core import validation as may
from unwalk.core.errors import Corrupt

FORMAT = 2
"""Format 1 had noise that was not rounded; do not rely on its certificates."""
DEEPEST = 64
"""Levels of JSON that are read; transcripts and certificates have about ten."""
LONGEST = 256 << 20
"""Bytes of a transcript that is read, or of its visits as peers signed them."""

_PEER = may.whole(0, 2**40)
_COUNT = may.whole()
HOP_RANGES = {
    "hop": may.whole(1, 2**40),
    "phase": may.name(),
    "phase_hop": may.whole(1, 2**40),
    "sender": may.whole(-1, 2**40),
    "receiver": _PEER,
    "path": may.every(_PEER),
    "nbytes": _COUNT,
    "gradients": _COUNT,
    "digest": may.optional(may.digest()),
}
"""The ranges of a hop's fields, except its events."""
HOP_FIELDS = frozenset({*HOP_RANGES, "events", "bytes"}) - {"nbytes"}
"""The fields that a hop is written with."""
HEADER_RANGES = {
    "peers": may.whole(1, 2**40),
    "unlearner": may.whole(-1, 2**40),
    "forget": may.either(_COUNT, may.word("all")),
    "epsilon": may.real(0.0),
    "delta": may.real(0.0, 1.0),
    "p": may.real(0.0, 1.0),
    "feature_norm": may.real(0.0),
    "initial_norm": may.real(0.0),
    "predicts": may.word("number", "labels"),
    "loss_bound": may.real(above=0.0),
    "features_digest": may.digest(),
    "frozen": may.whole(1, 2**40),
    "frozen_digest": may.digest(),
    "inputs": may.whole(1, 2**40),
    "outputs": may.whole(1, 2**40),
    "slots": may.whole(1, 2**40),
    "nominal_batch": may.real(above=0.0),
    "slot_cap": may.real(0.0),
    "shards": may.whole(1, 2**40),
    "slices": may.whole(1, 2**40),
    "attempt": may.whole(1),
    "streams": may.whole(1),
    "vanished": may.truth(),
    "recovered": may.truth(),
    "emptied": may.truth(),
    "withdrawals": may.truth(),
}
"""The ranges of those header facts, where present, that something is computed from."""


def is_format(value: Any, number: int) -> bool:
    """Whether a document states exactly this format: an integer, not a value equal to it."""
    return type(value) is int and value == number


def read_short(path: Path, longest: int) -> bytes:
    """The bytes of a file; :class:`Corrupt` where it has more than ``longest``."""
    with path.open("rb") as file:
        data = file.read(longest + 1)
    if len(data) > longest:
        raise Corrupt(f"{path.name} has more than {longest >> 20} MiB; no such file is so long.")
    return data


def read_json(text: str | bytes) -> Any:
    """What a JSON text holds; ValueError where it is none, or nested more deeply than ours is.

    >>> read_json('{"a": [1]}')
    {'a': [1]}
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    level = [value]
    for _ in range(DEEPEST):
        level = [w for v in level for w in _inside(v)]
        if not level:
            return value
    if any(isinstance(v, dict | list) for v in level):
        raise ValueError("nested too deeply")
    return value


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def canonical(record: dict[str, Any]) -> str:
    """The one JSON text of a record: sorted keys, no spaces, no NaN."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Hop:
    """One hand-over and the visit that followed it.

    ``path`` lists every peer the token was sent to, the last one being ``receiver``: on a graph
    that is not complete a restart travels through relays, which see the token too.  A walk that
    stays where it is has an empty path.
    """

    hop: int
    phase: str
    phase_hop: int
    sender: int
    receiver: int
    path: tuple[int, ...]
    nbytes: int
    events: tuple[ev.Event, ...]
    gradients: int = 0
    digest: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "hop": self.hop,
            "phase": self.phase,
            "phase_hop": self.phase_hop,
            "sender": self.sender,
            "receiver": self.receiver,
            "path": list(self.path),
            "bytes": self.nbytes,
            "events": [ev.to_json(e) for e in self.events],
            "gradients": self.gradients,
            "digest": self.digest,
        }

    def problem(self, sound: Container[int] = ()) -> str | None:
        """What is wrong with its numbers or with one of its events; None if nothing is.

        Events whose ``id`` is in ``sound`` were found to have no problem.
        """
        fault = may.problem(vars(self), HOP_RANGES)
        if fault is not None:
            return fault
        for event in self.events:
            fault = None if id(event) in sound else ev.problem(event)
            if fault is not None:
                return f"{event.kind}: {fault}"
        return None

    @staticmethod
    def from_json(record: dict[str, Any]) -> Hop:
        """The hop that :meth:`to_json` wrote; one with further fields is refused."""
        try:
            hop = Hop(
                hop=record["hop"],
                phase=record["phase"],
                phase_hop=record["phase_hop"],
                sender=record["sender"],
                receiver=record["receiver"],
                path=tuple(record["path"]),
                nbytes=record["bytes"],
                events=tuple(ev.from_json(e) for e in record["events"]),
                gradients=record["gradients"],
                digest=record["digest"],
            )
            further = set(record) - HOP_FIELDS
        except (KeyError, TypeError) as error:
            raise Corrupt(f"a transcript line lacks or mistypes {error}.") from error
        if further:
            raise Corrupt(f"a transcript line has further fields: {str(sorted(further))[:80]}.")
        fault = may.problem(vars(hop), HOP_RANGES)
        if fault is not None:
            raise Corrupt(f"a line of the transcript: {fault}.")
        return hop


@dataclass
class Transcript:
    """Header, hops and the chained lines, which are made when they are first read."""

    header: dict[str, Any]
    hops: list[Hop] = field(default_factory=list)
    _lines: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _chain: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._append({"transcript": FORMAT, **self.header})

    def _append(self, record: dict[str, Any]) -> None:
        body = canonical(record)
        self._chain = hashlib.sha256((self._chain + body).encode()).hexdigest()
        self._lines.append(f'{body[:-1]},"chain":"{self._chain}"}}')

    @property
    def lines(self) -> list[str]:
        """The header's line, then one line per hop."""
        self._write_up()
        return self._lines

    @property
    def chain(self) -> str:
        """The chain value of the last line."""
        self._write_up()
        return self._chain

    def _write_up(self) -> None:
        for hop in self.hops[len(self._lines) - 1 :]:
            self._append(hop.to_json())

    def add(self, hop: Hop) -> None:
        """Append one hop."""
        self.hops.append(hop)

    def events(self) -> Iterator[tuple[Hop, ev.Event]]:
        """Every event with the hop it belongs to, in order."""
        for hop in self.hops:
            for event in hop.events:
                yield hop, event

    def problem(self) -> str | None:
        """The first impossible number in the header or a hop; None if there is none."""
        ranges = {name: range_ for name, range_ in HEADER_RANGES.items() if name in self.header}
        fault = may.problem(self.header, ranges)
        if fault is not None:
            return f"the header: {fault}"
        sound: set[int] = set()  # many hops of a walk share their events, which are immutable
        for hop in self.hops:
            fault = hop.problem(sound)
            sound.update(map(id, hop.events))
            if fault is not None:
                return f"hop {hop.hop!r} at peer {hop.receiver!r}: {fault}"
        return None

    def view(self, peer: int) -> list[Hop]:
        """The hops of which ``peer`` saw a message: as sender, receiver or relay."""
        return [h for h in self.hops if h.path and (h.sender == peer or peer in h.path)]

    def text(self) -> str:
        return "".join(line + "\n" for line in self.lines)

    @staticmethod
    def parse(lines: Iterable[str]) -> Transcript:
        """Read a transcript and check its chain line by line."""
        chain, header, hops, kept = "", None, [], []
        for number, line in enumerate(lines, 1):
            line = line.rstrip("\n")
            try:
                record = read_json(line)
                claimed = record.pop("chain")
                body = canonical(record)
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise Corrupt(f"transcript line {number} is not a chained record.") from error
            chain = hashlib.sha256((chain + body).encode()).hexdigest()
            if claimed != chain or line != f'{body[:-1]},"chain":"{chain}"}}':
                raise Corrupt(f"transcript line {number} does not continue the hash chain.")
            if header is None:
                if not is_format(record.pop("transcript", None), FORMAT):
                    raise Corrupt(f"the first line is not a transcript header of format {FORMAT}.")
                header = record
            else:
                hops.append(Hop.from_json(record))
            kept.append(line)
        if header is None:
            raise Corrupt("the transcript is empty.")
        made = Transcript(header, hops)
        made._lines, made._chain = kept, chain
        return made

    @staticmethod
    def read(path: Path) -> Transcript:
        """The transcript in a file, whose bytes must be those that :meth:`text` gives."""
        text = read_short(path, LONGEST).decode("utf-8")
        lines = text.split("\n")
        transcript = Transcript.parse(lines if lines[-1] else lines[:-1])
        if transcript.text() != text:
            raise Corrupt(f"{path.name} does not end with its last line and one line break.")
        return transcript
