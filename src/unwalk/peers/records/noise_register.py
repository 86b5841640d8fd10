"""A peer's register of draws: which noise was drawn for which records, durable.

Before noise is drawn in a chapter, and after the training that comes before it, an entry is written
in the register of the peer's secret (:mod:`unwalk.runs.releases`), which lies beside it in the
bundle.  A visit that is done again after a crash, with the same token and the same numbers, is the
same entry and has the same noise; anything else is another draw.  Records that stand there are
never sealed a second time.

A mark is an HMAC, under the secret, of the keyed hash of the record's id, or of its content: like a
tombstone it stays, and says nothing to anybody else.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from unwalk.core.data import Shard
from unwalk.core.events import Draw
from unwalk.core.noise import SecretNoise
from unwalk.core.plan import Plan
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.storage.store import Fault, no_fault
from unwalk.runs.releases import Draws, Place, content_marks

SECRET = "noise.secret"
Hidden = Callable[[], tuple[Iterable[str], Shard | None]]
"""What noise hides just now: keyed hashes of record ids, and the records, where they are here."""


@dataclass(frozen=True, eq=False)
class PeerRegister:
    """The register as one chapter's visits write it; ``entered`` is a point that tests kill at."""

    bundle: Bundle
    hidden: Hidden
    entered: Fault = no_fault

    def enter(self, *, run: str, peer: int, hop: int, step: int, inputs: str) -> Draw:
        hashes, shard = self.hidden()
        hidden = marks(self.bundle, hashes)
        if shard is not None:
            hidden |= content_marks(shard, self.bundle.noise_secret)
        draw = draws(self.bundle).enter(Place(run, peer, hop, step, hidden, inputs))
        self.entered("release entered")
        return draw


def noting(plan: Plan, bundle: Bundle, hidden: Hidden, entered: Fault = no_fault) -> Plan:
    """The plan with every draw of secret noise entered in the peer's register first."""
    if not isinstance(plan.noise, SecretNoise):
        return plan
    register = PeerRegister(bundle, hidden, entered)
    return replace(plan, noise=replace(plan.noise, register=register))


def draws(bundle: Bundle) -> Draws:
    """The register of a peer's secret."""
    return Draws(bundle.folder / SECRET, bundle.noise_secret, mend=True)


def marks(bundle: Bundle, hashes: Iterable[str]) -> frozenset[str]:
    """The marks of records with these keyed hashes."""
    key = hmac.new(bundle.noise_secret, b"unwalk/released-records", hashlib.sha256).digest()
    return frozenset(
        hmac.new(key, name.encode(), hashlib.sha256).hexdigest()[:32] for name in hashes
    )


def was_released(bundle: Bundle, hashes: Iterable[str]) -> bool:
    """Whether noise was drawn before to hide any of these records."""
    wanted = marks(bundle, hashes)
    return any(entry.place.marks & wanted for entry in draws(bundle).entries())
