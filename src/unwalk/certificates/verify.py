"""Checks a certificate against its transcript and the released model; names what differs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from unwalk.certificates.document import (
    MODEL,
    NOT_SHOWN,
    certificate_of,
    misformed,
    model_of,
)
from unwalk.certificates.signing import check_signature, of_a_peer, trusted
from unwalk.certificates.words import claim_lines, verdict_line
from unwalk.core.errors import Corrupt, UnwalkError
from unwalk.core.grades import PROVED, badge_of
from unwalk.core.transcript import Transcript

DIGEST = re.compile("[0-9a-f]{64}")
SIGNED_FIELDS = ("signer", "signature", "peers")
"""Parts that do not come from the transcript; ``peers`` is checked elsewhere."""
LOUD = {
    "checked": "",
    "differs": "",
    "not checked": ", MODEL NOT CHECKED",
    "not bound": ", NO MODEL BOUND",
}
"""The outcome for the released model, as shown in the headline."""
NOTE = f"the model's file is the one that was certified: {MODEL} of this run"
UNCHECKED = {
    "not checked": f"the MODEL: the certificate is for one file, and {MODEL} is not beside it; get "
    "the file that you were given and check it with --model FILE",
    "not bound": "the MODEL: who issued the certificate had none at hand, so it does not say which "
    "file it is for; ask for one that was issued where the model is",
}


@dataclass(frozen=True)
class Verdict:
    """The result of a check: ``problems`` name what was changed, ``notes`` what was checked.

    ``unchecked`` says what was not checked and why, ``stated`` what only the issuer asserts.
    ``signer`` is the fingerprint of a signature that fits, ``known`` whether it is trusted.
    ``model`` is the outcome for the released model: a key of :data:`LOUD`.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]
    signer: str | None
    known: bool
    recomputed: bool
    model: str
    unchecked: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: all was checked and is intact, and somebody trusted signed; 1: changed.

        3: what could be checked is intact, but the signer is unknown, or the transcript or
        the model is missing.
        """
        if self.problems:
            return 1
        return 0 if self.known and self.recomputed and self.model == "checked" else 3

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        if self.problems:
            return "changed"
        who = "signer trusted" if self.known else "signer unknown"
        if self.signer is None:
            who = "not signed, signer unknown"
        numbers = "" if self.recomputed else ", numbers not recomputed"
        return f"intact, {who}{numbers}{LOUD[self.model]}"

    def conclusion(self, document: dict[str, Any]) -> str:
        """What is guaranteed to whom; under which condition, if not all was checked."""
        line = verdict_line(document)
        if self.exit_code == 0 or badge_of(document) not in PROVED:
            return line
        if self.signer is None:
            return f"Nobody has signed this, so nobody stands for it. What it says: {line}"
        if not self.known:
            which = (
                "the network's ca.pem" if "peers" in document else "a fingerprint, or a CA's PEM"
            )
            return (
                f"This holds only if you trust who signed it, {self.signer}; that was not checked "
                f"(--trust with {which}). What it says: {line}"
            )
        return f"This holds only if what was not checked is right. What it says: {line}"

    def claimed(self, document: dict[str, Any]) -> list[str]:
        """Each claim in words; where it was not recomputed, it stands under ``stated``."""
        return claim_lines(document) if self.recomputed else []

    def to_json(self, document: dict[str, Any]) -> dict[str, Any]:
        """The same for programs, with what the certificate says where nothing was changed."""
        words = [] if self.problems else [*self.claimed(document), self.conclusion(document)]
        return {
            "verdict": self.headline,
            "problems": list(self.problems),
            "checked": list(self.notes),
            "not_checked": list(self.unchecked),
            "stated": list(self.stated),
            "signer": self.signer,
            "trusted": self.known,
            "model": self.model,
            "claims": document.get("claims", []),
            "badge": None if self.problems else badge_of(document),
            "words": words,
            "not_shown": [] if self.problems else NOT_SHOWN,
        }


def verify(
    document: dict[str, Any],
    transcript: Transcript | None,
    *,
    model: bytes | None = None,
    trust: str | None = None,
    now: datetime | None = None,
) -> Verdict:
    """Check signature, chain, every number, and the model's file, whose bytes are ``model``.

    ``now`` is needed where ``trust`` is a CA.
    """
    problems: list[str] = []
    notes: list[str] = []
    unchecked: list[str] = []
    stated: list[str] = []
    signer, known = None, False
    if (problem := misformed(document)) is not None:
        problems.append(problem)
    try:
        signer = check_signature(document)
        if signer is None:
            unchecked.append("who issued it: it has no signature")
        else:
            notes.append(f"the signature of {signer} fits")
        if signer is not None and trust is not None:
            known = trusted(document, trust, now or datetime.max)
            if known and "peers" not in document and of_a_peer(document):
                known = False
                unchecked.append(
                    "what the peers of a network did and decided: SIGNED BY A PEER, but it says "
                    "nothing of peers, so it is no certificate of a network"
                )
    except Corrupt as error:
        problems.append(str(error))
    if transcript is not None:
        problems += _differences(document, transcript)
        notes.append(f"the transcript's chain of {len(transcript.hops)} hops holds")
        if not problems:
            notes.append("every number was recomputed from its events")
    else:
        unchecked.append("its numbers: transcript.jsonl is not beside it (--transcript FILE)")
        stated = [] if problems else [f"by the issuer alone: {t}" for t in claim_lines(document)]
    released, wrong = _check_model(document.get("model"), model)
    problems += wrong
    if released == "checked":
        notes.append(NOTE)
    elif released in UNCHECKED:
        unchecked.append(UNCHECKED[released])
    return Verdict(
        tuple(dict.fromkeys(problems)),
        tuple(notes),
        signer,
        known,
        transcript is not None,
        released,
        tuple(unchecked),
        tuple(stated),
    )


def _check_model(entry: Any, model: bytes | None) -> tuple[str, list[str]]:
    """The outcome for the released model, and what is wrong with it or with its entry."""
    if entry is None:
        return "not bound", []
    shaped = isinstance(entry, dict) and set(entry) == {"file", "sha256"} and entry["file"] == MODEL
    digest = entry["sha256"] if shaped else None
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        return "differs", [f"model is {_short(entry)}; allowed: the SHA-256 of {MODEL}, or null"]
    if model is None:
        return "not checked", []
    actual = model_of(model)["sha256"]
    if actual != digest:
        why = f"model.sha256 is {digest}; the model that is here has {actual}: it is another model"
        return "differs", [why]
    return "checked", []


def _differences(document: dict[str, Any], transcript: Transcript) -> list[str]:
    try:
        expected = {**certificate_of(transcript), "model": document.get("model")}
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


def _compare(place: str, expected: Any, stated: Any, key: Any) -> list[str]:
    """Every place where two trees differ, by its path."""
    if isinstance(expected, dict) and isinstance(stated, dict):
        if key not in expected:
            return [f"{place} does not belong there"]
        if key not in stated:
            return [f"{place} is missing"]
    recomputed, theirs = expected[key], stated[key]
    if isinstance(recomputed, dict) and isinstance(theirs, dict):
        keys = sorted(set(recomputed) | set(theirs))
        return [t for k in keys for t in _compare(f"{place}.{k}", recomputed, theirs, k)]
    if isinstance(recomputed, list) and isinstance(theirs, list) and len(recomputed) == len(theirs):
        return [
            t
            for k in range(len(recomputed))
            for t in _compare(f"{place}[{k}]", recomputed, theirs, k)
        ]
    if type(recomputed) is not type(theirs) or json.dumps(recomputed) != json.dumps(theirs):
        return [f"{place} is {_short(theirs)}; the transcript gives {_short(recomputed)}"]
    return []


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
