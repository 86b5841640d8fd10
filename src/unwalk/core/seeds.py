"""Public randomness: generators keyed by seed, purpose and hop, which anyone can draw again.

The initial model, the route, the batches, the augmentation and dropout of a run are all drawn
from generators keyed by (root seed, purpose, hop).  A keyed draw needs no state to be carried,
so a run can continue from any hop with the same bits, and any peer can compute its own draws.

Privacy noise is *not* drawn here: see :mod:`unwalk.core.noise`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_NOTHING = np.zeros(4, np.uint64)


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

    def restart(self, generator: np.random.Generator, *labels: str | int) -> np.random.Generator:
        """Reset a generator that :meth:`numpy` made to the start of another stream.

        >>> used = PublicSeeds(7).numpy("route", 3)
        >>> anew = PublicSeeds(8).restart(used, "batches", 1)
        >>> anew is used, anew.random() == PublicSeeds(8).numpy("batches", 1).random()
        (True, True)
        """
        key = np.frombuffer(self.key(*labels)[:16], dtype=np.uint64)
        generator.bit_generator.state = {
            "bit_generator": "Philox",
            "state": {"counter": _NOTHING, "key": key},
            "buffer": _NOTHING,
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        return generator
