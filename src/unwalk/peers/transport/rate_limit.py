"""How many calls per second each peer may make."""

from __future__ import annotations

from dataclasses import dataclass, field

SHORT = 4 << 10
"""Bytes of a message that counts as one call."""


@dataclass(eq=False)
class Rate:
    """A bucket of calls for each peer: ``rate`` a second, twice as many at once.

    A long message counts as many: reading it takes as long as reading them.
    """

    rate: float
    buckets: dict[int, tuple[float, float]] = field(default_factory=dict)

    def allows(self, peer: int, now: float, size: int = 0) -> bool:
        """Whether one more call, of so many bytes, is within the limit."""
        full = 2.0 * self.rate
        level, then = self.buckets.get(peer, (full, now))
        level = min(full, level + (now - then) * self.rate)
        cost = min(max(1.0, size / SHORT), full)
        allowed = level >= cost
        self.buckets[peer] = (level - cost if allowed else level, now)
        return allowed
