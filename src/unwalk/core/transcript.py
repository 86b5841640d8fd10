"""The transcript: every hop and every privacy event, as hash-chained JSON lines.

The first line is a header with what was public from the start; each further line is one hop and
carries ``chain``, the SHA-256 of the previous chain value and this line without it.  Wall-clock
times are never part of it.  ``view(v)`` answers the paper's :math:`O_v`: the messages that peer v
sent or received.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unwalk.core import events as ev
from unwalk.core.errors import Corrupt

FORMAT = 2
"""1 had noise that was not rounded; its certificates are not to be relied on."""


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

    @staticmethod
    def from_json(record: dict[str, Any]) -> Hop:
        try:
            return Hop(
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
        except (KeyError, TypeError) as error:
            raise Corrupt(f"a transcript line lacks or mistypes {error}.") from error


@dataclass
class Transcript:
    """Header, hops and the chained lines, which are written when somebody reads them."""

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
        """The header's line and one a hop."""
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
                record = json.loads(line)
                claimed = record.pop("chain")
                body = canonical(record)
            except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
                raise Corrupt(f"transcript line {number} is not a chained record.") from error
            chain = hashlib.sha256((chain + body).encode()).hexdigest()
            if claimed != chain or line != f'{body[:-1]},"chain":"{chain}"}}':
                raise Corrupt(f"transcript line {number} does not continue the hash chain.")
            if header is None:
                if record.pop("transcript", None) != FORMAT:
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
        text = path.read_bytes().decode("utf-8")
        lines = text.split("\n")
        transcript = Transcript.parse(lines if lines[-1] else lines[:-1])
        if transcript.text() != text:
            raise Corrupt(f"{path.name} does not end with its last line and one line break.")
        return transcript
