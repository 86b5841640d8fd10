"""Public randomness: generators keyed by seed, purpose and hop, which anyone can draw again.

The initial model, the route, the batches, the augmentation and dropout of a run are all drawn
from generators keyed by (root seed, purpose, hop).  A keyed draw needs no state to be carried,
so a run can continue from any hop with the same bits, and any peer can compute its own draws.

Routes and batches are drawn hop by hop, from :meth:`PublicSeeds.stream`.  How it draws has a
version (:data:`unwalk.core.streams.VERSION`), which stands in a run's settings and header and in
network files; files that say nothing are of version 1.

Privacy noise is *not* drawn here: see :mod:`unwalk.core.noise`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from unwalk.core.philox import Words
from unwalk.core.streams import VERSION, Draws, Stream


@lru_cache(maxsize=1024, typed=True)
def _path(*labels: str | int) -> str:
    """The labels as one text, length-prefixed so that no two lists collide."""
    return "/".join(f"{len(str(x))}:{x}" for x in labels)


@dataclass(frozen=True)
class PublicSeeds:
    """A tree of independent public streams under one root seed.

    >>> seeds = PublicSeeds(7)
    >>> seeds.integer("route", 3) == PublicSeeds(7).integer("route", 3)
    True
    >>> seeds.integer("route", 3) == seeds.integer("batches", 3)
    False
    """

    root: int
    streams: int = VERSION

    def key(self, *labels: str | int) -> bytes:
        """32 bytes that name one stream."""
        return hashlib.sha256(f"unwalk/public/{self.root}/{_path(*labels)}".encode()).digest()

    def integer(self, *labels: str | int) -> int:
        """A 63-bit seed for generators that take one (torch)."""
        return int.from_bytes(self.key(*labels)[:8], "little") >> 1

    def numpy(self, *labels: str | int) -> np.random.Generator:
        """A counter-based NumPy generator; the same on every platform."""
        key = np.frombuffer(self.key(*labels)[:16], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key))

    def stream(self, phase: str, purpose: str, hop: int, attempt: int = 0) -> Draws:
        """What is drawn at one hop of a phase; an ``attempt`` above 0 draws it again.

        >>> PublicSeeds(7).stream("train", "route", 3).integers(100)
        35
        >>> PublicSeeds(7, streams=1).stream("train", "route", 3).integers(100)
        12
        """
        if self.streams == 1:
            again: tuple[str | int, ...] = ("again", attempt) if attempt else ()
            return self.numpy(phase, purpose, hop, *again)
        return Stream(self.stream_key(phase, purpose), hop, attempt)

    def stream_key(self, phase: str, purpose: str) -> Words:
        """The two words that name the streams of a phase, for all its hops (version 2)."""
        return _stream_key(self, phase, purpose)


@lru_cache(maxsize=1 << 14)
def _stream_key(seeds: PublicSeeds, phase: str, purpose: str) -> Words:
    named = seeds.key("streams", seeds.streams, phase, purpose)
    key = np.frombuffer(named[:16], dtype="<u8").astype(np.uint64)
    key.setflags(write=False)
    return key
