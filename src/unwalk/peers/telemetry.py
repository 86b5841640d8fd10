"""What a peer says about itself: one JSON line per event, and counters for Prometheus.

Neither ever holds records, losses, gradients or parameters: only who, when, which hop, which
generation, how long and how many bytes.
"""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from unwalk.peers.storage.disk_space import Space

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LARGEST_LOG = 16 << 20
INTERVAL, REASONS = 10.0, 32
"""Seconds in which a refusal is written down once for each sender and reason, and so many reasons
for one sender; how many more there were is said afterwards."""
HELP = {
    "visits_total": "Visits done and committed.",
    "tokens_received_total": "Tokens accepted from other peers.",
    "tokens_handed_total": "Tokens that another peer has acknowledged.",
    "bytes_received_total": "Bytes of accepted tokens.",
    "bytes_handed_total": "Bytes of acknowledged tokens.",
    "refusals_total": "Offers and messages that were refused.",
    "passed_over_total": "Peers passed over because they could not be reached.",
    "recoveries_total": "Times the walk went on from this peer's copy.",
    "dropped_total": "Tokens dropped because of a higher generation.",
    "lease_expired_total": "Times the next peer was not heard of within the lease.",
    "holding": "1 while the token is here.",
    "hop": "Visits done when this peer last had the token.",
    "generation": "Highest generation number seen.",
    "committed": "1 once the chapter under way is over.",
    "disk_full": "1 while there is no room on this peer's disk.",
    "chapter": "Number of the chapter under way; 0 is training.",
}


@dataclass(eq=False)
class Refusals:
    """Those of one sender in one interval: the reasons that were written down, how many more."""

    since: float
    reasons: set[str] = field(default_factory=set)
    more: int = 0

    def new(self, reason: str) -> bool:
        """Whether a reason is to be written down; otherwise it is counted."""
        if reason in self.reasons or len(self.reasons) >= REASONS:
            self.more += 1
            return False
        self.reasons.add(reason)
        return True


@dataclass(eq=False)
class Journal:
    """Structured log: appended to a file, which is set aside once it has grown large.

    What a peer does never fails because of the line that tells of it: a line for which there is no
    room, not even in the reserve of ``space``, is left out, and the next one says how many were.
    """

    path: Path | None
    peer: str
    listeners: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    space: Space | None = None
    unsaid: int = 0
    _fd: int = -1
    _refusals: dict[int, Refusals] = field(default_factory=dict)

    def write(self, event: str, **facts: Any) -> None:
        """One line."""
        self._say_more()
        self._put(self._told(event, facts))

    def refused(self, sender: int, error: Exception) -> None:
        """Something that a peer sent was refused: a flood of it takes few lines."""
        self._say_more()
        reason = str(error)[:300]
        record = self._told("refused", {"sender": sender, "reason": reason})
        if self._refusals.setdefault(sender, Refusals(monotonic())).new(reason):
            self._put(record)

    def _say_more(self) -> None:
        """Say how many refusals were only counted, in intervals that are over."""
        now = monotonic()
        for sender, known in list(self._refusals.items()):
            if now - known.since >= INTERVAL:
                del self._refusals[sender]
                if known.more:
                    self._put(self._told("refused more", {"sender": sender, "times": known.more}))

    def _told(self, event: str, facts: dict[str, Any]) -> dict[str, Any]:
        """A record, which all listeners hear."""
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        record = {"time": now, "peer": self.peer, "event": event, **facts}
        for listener in self.listeners:
            listener(record)
        return record

    def _put(self, record: dict[str, Any]) -> None:
        """Write a record down."""
        if self.path is None:
            return
        if self.unsaid:
            record["unsaid"] = self.unsaid
        line = json.dumps(record).encode() + b"\n"
        try:
            self._append(self.path, line)
        except OSError as error:
            ran_out = self.space is not None and self.space.ran_out(error)
            if not ran_out or not self._again(self.path, line):
                self.unsaid += 1
                return
        self.unsaid = 0

    def _again(self, path: Path, line: bytes) -> bool:
        """Write a line after the reserve was let go."""
        try:
            self._append(path, line)
        except OSError:
            return False
        return True

    def _append(self, path: Path, line: bytes) -> None:
        """All of a line or nothing of it."""
        if self._fd < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._fd = os.open(path, flags, 0o644)
        before = os.fstat(self._fd).st_size
        if os.write(self._fd, line) < len(line):
            os.ftruncate(self._fd, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if before + len(line) > LARGEST_LOG:
            self.close()
            path.replace(path.with_suffix(".old.jsonl"))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(eq=False)
class Metrics:
    """Counters and gauges."""

    run: str
    peer: str
    values: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, amount: int = 1) -> None:
        self.values[name] += amount

    def set(self, name: str, value: int) -> None:
        self.values[name] = value

    def collect(self) -> Iterator[Metric]:
        """All of them, for a registry of Prometheus."""
        # Whoever serves no metrics does without the package.
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, words in HELP.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"unwalk_{name}", words, labels=("peer", "run"))
            family.add_metric((self.peer, self.run), self.values[name])
            yield family

    def text(self) -> bytes:
        """The exposition format of Prometheus.

        >>> Metrics("r", "a").text().splitlines()[2]
        b'unwalk_visits_total{peer="a",run="r"} 0.0'
        """
        # Whoever serves no metrics does without the package.
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
