"""A peer's register of noisy releases: which noise was drawn for which records, durable.

The noise of a seal is fixed by the peer's secret, the chapter's run, the hop and the digest of the
token that came in, so a visit that is done again after a crash has the same noise.  Another chapter
is another run with other noise.  So before the noise of a chapter is drawn, the chapter and a mark
of each record are entered in the register of the secret (:mod:`unwalk.runs.releases`), which lies
beside it in the bundle; records that stand there are never sealed a second time.

A mark is an HMAC, under the secret, of the keyed hash of the record's id: like a tombstone it
stays, and says nothing to anybody else.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Any

from unwalk.peers.trust import Bundle
from unwalk.runs.releases import enter, entered, known_releases

SECRET = "noise.secret"


def marks(bundle: Bundle, hashes: Iterable[str]) -> frozenset[str]:
    """The marks of records with these keyed hashes."""
    key = hmac.new(bundle.noise_secret, b"unwalk/released-records", hashlib.sha256).digest()
    return frozenset(
        hmac.new(key, name.encode(), hashlib.sha256).hexdigest()[:32] for name in hashes
    )


def enter_release(bundle: Bundle, run: str, hashes: Iterable[str]) -> dict[str, Any]:
    """Write down that noise is about to be drawn; the same again for the same run."""
    secret, mine = bundle.noise_secret, marks(bundle, hashes)
    return enter(bundle.folder / SECRET, secret, run, mine, mend=True)


def release_of(bundle: Bundle, run: str) -> dict[str, Any] | None:
    """Number, chain value and earlier releases of a chapter's entry, if it has one."""
    return entered(bundle.folder / SECRET, bundle.noise_secret, run)


def was_released(bundle: Bundle, hashes: Iterable[str]) -> bool:
    """Whether noise was drawn before to hide any of these records."""
    mine = marks(bundle, hashes)
    known = known_releases(bundle.folder / SECRET, bundle.noise_secret)
    return any(entry.marks & mine for entry in known)
