"""The network file: who takes part, at which address, over which graph, with which method.

It is one JSON document, signed by the network's CA: peers refuse one that was changed.  Only the
CA's machine can make a new version; a running peer reads it anew on SIGHUP.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.core.transcript import canonical
from unwalk.core.validation import check_count, check_number
from unwalk.peers.protocol.consensus import Rules, most_lies
from unwalk.settings.config import UNSAID

FORMAT = 1
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
ADDRESS = re.compile(r"([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:]{2,45}\]):([0-9]{1,5})")
LONGEST = 30 * 86400.0
"""Seconds that a limit of time can have: a month."""


@dataclass(frozen=True)
class Limits:
    """What a peer puts up with.

    ``lease``: seconds after which a peer that took the token has to be heard of.  ``messages``:
    calls a second from one peer.  ``token_bytes``: largest token; None: what the network's model
    makes of it.  ``rate``: bytes of a token that any two peers move in a second, at least.
    ``connect``: seconds to reach a peer.  ``stop``: seconds that a peer which is asked to stop
    gives its visit.  ``visit``: seconds after which a peer that has the token has to have done its
    visit.  ``weight``: largest absolute value in a token.
    """

    lease: float = 30.0
    messages: float = 200.0
    token_bytes: int | None = None
    rate: float = 1e7
    connect: float = 5.0
    stop: float = 60.0
    visit: float = 600.0
    weight: float = 1e9

    def __post_init__(self) -> None:
        for name in ("lease", "connect", "stop", "visit"):
            check_number(f"limits.{name}", getattr(self, name), above=0.0, high=LONGEST)
        for name in ("messages", "weight"):
            check_number(f"limits.{name}", getattr(self, name), above=0.0, below=math.inf)
        check_number("limits.rate", self.rate, low=1.0, below=math.inf)
        if self.token_bytes is not None:
            check_count("limits.token_bytes", self.token_bytes, low=1024)

    def shortest_lease(self, size: int) -> float:
        """Seconds that a lease has to have where tokens are of ``size`` bytes.

        Half of it may be over before the bytes of a last token begin: its log comes first.

        >>> Limits(rate=1e7).shortest_lease(10**9)
        200.0
        """
        return 2.0 * size / self.rate

    def with_lease_for(self, size: int) -> Limits:
        """The same, with a lease that is long enough for tokens of ``size`` bytes."""
        lease = float(math.ceil(max(self.lease, self.shortest_lease(size))))
        if lease > LONGEST:
            raise InvalidInput(
                f"limits.rate is {self.rate:g} bytes a second, at which a token of {size} bytes "
                f"needs a lease of {lease:.3g} s; allowed: {math.ceil(2.0 * size / LONGEST)} or "
                "more."
            )
        return replace(self, lease=lease)

    def check_token(self, size: int) -> None:
        """Refuse limits under which a token of ``size`` bytes would never arrive."""
        most, needed = self.token_bytes, math.ceil(self.shortest_lease(size))
        if most is not None and size > most:
            raise InvalidInput(
                f"limits.token_bytes is {most}; allowed: {size} or more, the size of this "
                "network's tokens."
            )
        if self.lease < self.shortest_lease(size):
            raise InvalidInput(
                f"the lease is {self.lease:g} s; allowed: {needed} s or more, since a token of "
                f"{size} bytes takes half of that at limits.rate, {self.rate:g} bytes a second. "
                f"Give --lease {needed}, or --limit rate=BYTES if all peers are faster."
            )


@dataclass(frozen=True)
class Member:
    """A peer as others know it."""

    name: str
    address: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise InvalidInput(
                f"peer name is {self.name!r}; allowed: small letters, digits and hyphens."
            )
        found = ADDRESS.fullmatch(self.address) if isinstance(self.address, str) else None
        if found is None or not 0 < int(found[2]) < 65536:
            raise InvalidInput(f"address of {self.name} is {self.address!r}; allowed: HOST:PORT.")


@dataclass(frozen=True)
class Network:
    """Everything that all peers agree on.

    ``lies`` is how many of them may lie without any harm to what is decided: where nothing is
    said, fewer than a third of those who count.  ``revoked`` maps serial numbers of certificates
    to the first chapter in which nothing counts that was signed with them; None: what was signed
    stays good, and only connections are refused.  ``begin_with`` are the peers that have to be up
    before training begins; None: all.
    """

    name: str
    peers: tuple[Member, ...]
    settings: Mapping[str, Any]
    limits: Limits = field(default_factory=Limits)
    noise: str = "secret"
    run: int = 1
    version: int = 1
    revoked: Mapping[str, int | None] = field(default_factory=dict)
    lies: int | None = None
    begin_with: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise InvalidInput(
                f"network name is {self.name!r}; allowed: small letters, digits and hyphens."
            )
        if len(self.peers) < 2:
            raise InvalidInput(f"the network has {len(self.peers)} peers; allowed: 2 or more.")
        for what in ("name", "address"):
            seen = [getattr(p, what) for p in self.peers]
            if len(set(seen)) != len(seen):
                raise InvalidInput(f"two peers have the same {what}.")
        if self.noise not in ("secret", "simulation"):
            raise InvalidInput(f"noise is {self.noise!r}; allowed: secret, simulation.")
        check_count("run", self.run, low=1)
        check_count("version", self.version, low=1)
        if self.lies is not None:
            check_count("lies", self.lies, high=len(self.peers) - 2)
        for name in self.begin_with or ():
            self.index(name)

    @property
    def run_settings(self) -> dict[str, Any]:
        """The settings of its run; what a network file of an earlier version leaves unsaid too."""
        return {**UNSAID, **self.settings, "peers": len(self.peers)}

    def rules(self, left: Iterable[int] = (), first: int = 0) -> Rules:
        """Who decides when the peers in ``left`` do not count any more."""
        gone = frozenset(left)
        members = tuple(p for p in range(len(self.peers)) if p not in gone)
        lies = most_lies(len(members)) if self.lies is None else self.lies
        return Rules(members, lies, first)

    @property
    def first_up(self) -> frozenset[int]:
        """The numbers of the peers that have to be up before training begins."""
        names = [p.name for p in self.peers] if self.begin_with is None else self.begin_with
        return frozenset(map(self.index, names))

    def index(self, name: str) -> int:
        """The number of the peer called ``name``."""
        for number, member in enumerate(self.peers):
            if member.name == name:
                return number
        names = ", ".join(p.name for p in self.peers)
        raise InvalidInput(f"{name!r} is no peer of network {self.name}; its peers: {names}.")

    @cached_property
    def run_id(self) -> str:
        """Names the run: a digest of who takes part and what is computed."""
        said = {
            "network": self.name,
            "peers": [p.name for p in self.peers],
            "settings": dict(self.settings),
            "noise": self.noise,
            "run": self.run,
            "lies": self.lies,
        }
        return hashlib.sha256(canonical(said).encode()).hexdigest()[:32]

    def to_json(self) -> dict[str, Any]:
        """The document that is signed."""
        return {
            "format": FORMAT,
            "name": self.name,
            "version": self.version,
            "run": self.run,
            "noise": self.noise,
            "lies": self.lies,
            "begin_with": None if self.begin_with is None else list(self.begin_with),
            "peers": [asdict(p) for p in self.peers],
            "limits": {k: v for k, v in asdict(self.limits).items() if v is not None},
            "settings": dict(self.settings),
            "revoked": [{"serial": s, "chapter": c} for s, c in sorted(self.revoked.items())],
        }

    @staticmethod
    def from_json(record: Mapping[str, Any], where: str) -> Network:
        """The network that :meth:`to_json` wrote."""
        try:
            if record["format"] != FORMAT:
                raise InvalidInput(
                    f"{where} has format {record['format']!r}; this unwalk reads {FORMAT}."
                )
            known, begin_with = {f.name for f in fields(Limits)}, record.get("begin_with")
            limits = Limits(**{k: v for k, v in record["limits"].items() if k in known})
            return Network(
                name=record["name"],
                peers=tuple(Member(p["name"], p["address"]) for p in record["peers"]),
                settings=dict(record["settings"]),
                limits=limits,
                noise=record["noise"],
                run=record["run"],
                version=record["version"],
                revoked={str(item["serial"]): item["chapter"] for item in record["revoked"]},
                lies=record.get("lies"),
                begin_with=None if begin_with is None else tuple(begin_with),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"{where} is no network file: it lacks or mistypes {error}."
            ) from error

    def without(self, serials: tuple[str, ...], chapter: int | None = None) -> Network:
        """The next version, in which certificates with these serial numbers are revoked.

        ``chapter`` is the first in which nothing counts that was signed with them.
        """
        if chapter is not None:
            check_count("chapter", chapter)
        gone = {serial: chapter for serial in serials if self.revoked.get(serial) is None}
        return replace(self, revoked={**self.revoked, **gone}, version=self.version + 1)


def read_document(path: Path) -> tuple[dict[str, Any], str]:
    """Content and signature of a network file, not yet checked."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return record["network"], record["signature"]
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} is no network file.") from error
