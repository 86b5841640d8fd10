"""Checks a certificate against its transcript: everything is recomputed, what differs is named."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from unwalk.certificates.document import certificate_of
from unwalk.certificates.signing import check_signature, trusted
from unwalk.core.errors import Corrupt, UnwalkError
from unwalk.core.transcript import Transcript

SIGNED_FIELDS = ("signer", "signature", "peers")
"""Not made from the transcript; what stands under ``peers`` is checked by those who know them."""


@dataclass(frozen=True)
class Verdict:
    """What was found: ``problems`` name what was changed, ``notes`` what was checked.

    ``signer`` is the fingerprint of a signature that fits, ``known`` whether it is trusted.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]
    signer: str | None
    known: bool
    recomputed: bool

    @property
    def exit_code(self) -> int:
        """0: intact and signed by somebody trusted; 3: intact, signer unknown; 1: changed."""
        if self.problems:
            return 1
        return 0 if self.known and self.recomputed else 3

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        if self.problems:
            return "changed"
        who = "signer trusted" if self.known else "signer unknown"
        if self.signer is None:
            who = "not signed, signer unknown"
        return f"intact, {who}" + ("" if self.recomputed else ", numbers not recomputed")


def verify(
    document: dict[str, Any],
    transcript: Transcript | None,
    *,
    trust: str | None = None,
    now: datetime | None = None,
) -> Verdict:
    """Check signature, chain and every number; ``now`` is needed where ``trust`` is a CA."""
    problems: list[str] = []
    notes: list[str] = []
    signer, known = None, False
    try:
        signer = check_signature(document)
        notes.append("no signature" if signer is None else f"the signature of {signer} fits")
        if signer is not None and trust is not None:
            known = trusted(document, trust, now or datetime.max)
    except Corrupt as error:
        problems.append(str(error))
    if transcript is not None:
        problems += _differences(document, transcript)
        notes.append(f"the transcript's chain of {len(transcript.hops)} hops holds")
        if not problems:
            notes.append("every number was recomputed from its events")
    return Verdict(tuple(problems), tuple(notes), signer, known, transcript is not None)


def _differences(document: dict[str, Any], transcript: Transcript) -> list[str]:
    try:
        expected = certificate_of(transcript)
    except (
        UnwalkError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
    ) as error:
        return [f"the transcript does not give a certificate: {error}"]
    names = sorted((set(expected) | set(document)) - set(SIGNED_FIELDS))
    return [text for name in names for text in _compare(name, expected, document, name)]


def _compare(place: str, expected: Any, found: Any, key: Any) -> list[str]:
    """Every place where two trees differ, by its path."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if key not in expected:
            return [f"{place} does not belong there"]
        if key not in found:
            return [f"{place} is missing"]
    mine, theirs = expected[key], found[key]
    if isinstance(mine, dict) and isinstance(theirs, dict):
        keys = sorted(set(mine) | set(theirs))
        return [t for k in keys for t in _compare(f"{place}.{k}", mine, theirs, k)]
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        return [t for k in range(len(mine)) for t in _compare(f"{place}[{k}]", mine, theirs, k)]
    if type(mine) is not type(theirs) or mine != theirs:
        return [f"{place} is {_short(theirs)}; the transcript gives {_short(mine)}"]
    return []


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
