"""Describes how a walk ended, for the vote on it: what stays of it for good, and what is hidden.

Votes hold the digest of a :class:`Closing`.  It says which visits were made and which model was
released, so that a certificate can be compared with it; log, token and salt stand in it behind one
digest.  All of those are erased in the end, with the salt, and what stays tells nothing of a model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from unwalk.core.errors import Corrupt, UnwalkError
from unwalk.core.transcript import canonical
from unwalk.peers.decisions.votes import digest_of
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.handover import Value
from unwalk.peers.protocol.schedule import NO_TOKEN

HIDDEN = b"unwalk-end-1:"
VISIT = b"unwalk-visits-1:"
NO_VISITS = hashlib.sha256(VISIT).hexdigest()
"""The digest of no visits at all."""
CHAINED = ("run", "generation", "visit", "signature")
SALTED = "unwalk-salt"
PIECE = 1 << 20


@dataclass(frozen=True)
class Closing:
    """What stays of an end: ``hidden`` stands for what is erased, ``model`` for what was released.

    ``visits`` is the digest of all visits of the walk in order, as their peers signed them.
    """

    hidden: str
    visits: str
    model: str

    @property
    def text(self) -> str:
        """As it stands in certificates."""
        return canonical(asdict(self))

    @property
    def digest(self) -> str:
        """The value that peers vote for."""
        return digest_of(self.text)

    @property
    def void(self) -> bool:
        """Whether the walk was given up: it ended without a visit."""
        return self.visits == NO_VISITS


def closing_from(text: Any) -> Closing:
    """The closing in a text; refused unless it is in its one form."""
    if not isinstance(text, str) or not text.isascii():
        raise Corrupt("what stays of an end is no plain text.")
    record = codec.parse(text.encode(), 1 << 10)
    found = codec.fields_of(record, "what stays of an end", "hidden", "visits", "model")
    closing = Closing(**{name: codec.digest(found[name], name) for name in found})
    if closing.text != text:
        raise Corrupt("what stays of an end is not in its one form.")
    return closing


def closing_of(value: Value, visits: str, model: str) -> Closing:
    """What stays of an end."""
    said = canonical(codec.value_to(value) or {}).encode()
    return Closing(hashlib.sha256(HIDDEN + said).hexdigest(), visits, model)


def void_closing(value: Value) -> Closing:
    """What stays of a walk that was given up: no visits, and no model."""
    return closing_of(value, NO_VISITS, NO_TOKEN)


def visits_digest(visits: Sequence[dict[str, Any]], rest: str = NO_VISITS) -> str:
    """The digest of visits in order; ``rest`` is that of those which follow them.

    So it can be seen of the first visits of a walk that they are that, without all others.  What
    is in it stands in the log's chain: a certificate, of which a peer may have two, does not.
    """
    for visit in reversed(visits):
        said = canonical({name: visit[name] for name in CHAINED})
        rest = hashlib.sha256(VISIT + (rest + said).encode()).hexdigest()
    return rest


def salted(token: Path, salt: str) -> bytes:
    """A walk's last token as it is released: with the salt of its end in its header.

    A certificate outlives the model, and its digest must not tell whether a guess of an erased
    model is right: without the file nobody knows the salt once all peers have erased it.
    """
    with token.open("rb") as file:
        return _head(file, salt) + file.read()


def model_digest(token: Path, salt: str) -> str:
    """The SHA-256 of :func:`salted`."""
    with token.open("rb") as file:
        found = hashlib.sha256(_head(file, salt))
        while piece := file.read(PIECE):
            found.update(piece)
    return found.hexdigest()


def _head(file: BinaryIO, salt: str) -> bytes:
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header["__metadata__"][SALTED] = salt
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def end_text(value: Value, closing: Closing) -> str:
    """An end as peers tell each other of it, with all that is hidden in its closing."""
    said = codec.value_to(value)
    return canonical({"end": said, "visits": closing.visits, "model": closing.model})


def end_from(text: str) -> tuple[Value, Closing] | None:
    """The end in a text; None if it is none, or not in its one form."""
    try:
        found = codec.fields_of(json.loads(text), "an end", "end", "visits", "model")
        value = codec.value_from(found["end"])
        visits, model = (codec.digest(found[name], name) for name in ("visits", "model"))
    except (UnwalkError, ValueError, RecursionError):
        return None
    closing = closing_of(value, visits, model)
    return (value, closing) if end_text(value, closing) == text else None


def end_digest(text: str) -> str:
    """The value that stands for an end in votes; refused if it is none."""
    found = end_from(text)
    if found is None:
        raise Corrupt("what is voted on is no end of a walk.")
    return found[1].digest
