"""Public randomness: everything a stranger may recompute.

The initial model, the route, the batches, the augmentation and dropout of a run are all drawn
from generators keyed by (root seed, purpose, hop).  A keyed draw needs no state to be carried,
so a run can continue from any hop with the same bits, and any peer can compute its own draws.

Privacy noise is *not* drawn here: see :mod:`unwalk.core.noise`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np


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
        """32 bytes that name one stream; labels are length-prefixed, so none can collide."""
        text = f"unwalk/public/{self.root}/" + "/".join(f"{len(str(x))}:{x}" for x in labels)
        return hashlib.sha256(text.encode()).digest()

    def integer(self, *labels: str | int) -> int:
        """A 63-bit seed for generators that take one (torch)."""
        return int.from_bytes(self.key(*labels)[:8], "little") >> 1

    def numpy(self, *labels: str | int) -> np.random.Generator:
        """A counter-based NumPy generator; the same on every platform."""
        key = np.frombuffer(self.key(*labels)[:16], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key))
