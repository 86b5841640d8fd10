"""Tokens of 100 MB and 1 GB over a local Ray cluster: time of a hop, memory, and the same bits.

    python benchmarks/cluster.py --token 100MB [--token 1GB] [--json]

Two peers on two hosts pass a token to and fro.  The time of a hop is from the end of the compute of
one visit to the beginning of the compute of the next one, in the other process.

Memory is what the hosts have of their own (``RssAnon``) and what is in the object store, which they
share, looked at every few milliseconds: the highest sum, less the sum after a walk of 457 KB on the
same hosts, divided by the hosts, in tokens.  The driver, which starts with the model and ends with
it, is not counted.

At the end the model is compared with the simulator's, bit for bit.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.peers import FEATURES, memory
from unwalk.core.plan import Plan
from unwalk.engines.inprocess import InProcess
from unwalk.engines.ray_engine import Journey
from unwalk.runs.assemble import assemble, resolve

TOKENS = 2.5
"""Memory of a host and its share of the object store above idle, at most."""
HOSTS = 2
HOPS = 12
LOOK = 0.01
REST = 2.0
"""Seconds after which what nobody refers to has left the object store."""


@dataclass(frozen=True)
class Result:
    """Hops in seconds, memory above idle in MB."""

    token: str
    size: int
    hops: tuple[float, ...]
    peak_mb: float
    host_mb: float
    store_mb: float
    looks: int

    @property
    def hop(self) -> float:
        return median(self.hops)

    def tokens(self, megabytes: float) -> float:
        return megabytes * 2**20 / self.size

    @property
    def memory(self) -> float:
        """The highest sum above idle, for each host, in tokens."""
        return self.tokens(self.peak_mb) / HOSTS

    @property
    def ok(self) -> bool:
        return self.memory <= TOKENS


def walk(token: str, hops: int) -> Plan:
    settings: dict[str, str | int] = {
        "task": "blobs",
        "peers": HOSTS,
        "method": "finetune",
        "forget.kind": "nothing",
        "data.records": 8,
        "data.features": FEATURES,
        "data.classes": 2,
        "train.batch": 4,
        "train.optimizer": "sgd",
        "train.hops": hops,
        "performance.threads": 1,
        "performance.hosts": HOSTS,
        "model.name": f"benchmarks.big_tokens:of_{token.lower()}",
    }
    return assemble(resolve(settings)).training()


def _pid(_: Any) -> int:
    return os.getpid()


class Watch:
    """The memory of each host and of the object store, now and then, in MB."""

    def __init__(self, crew: Any) -> None:
        from ray._private.internal_api import node_stats

        self.pids = crew.ray.get([host.__ray_call__.remote(_pid) for host in crew.hosts])
        (node,) = crew.ray.nodes()
        self.node = (node["NodeManagerAddress"], node["NodeManagerPort"])
        self.stats = node_stats
        self.seen: list[tuple[float, ...]] = []

    def look(self) -> tuple[float, ...]:
        used = self.stats(*self.node, include_memory_info=False).store_stats
        hosts = [memory(pid, "RssAnon") for pid in self.pids]
        return (*hosts, used.object_store_bytes_used / 2**20)

    @contextmanager
    def watching(self) -> Iterator[None]:
        end = threading.Event()

        def look() -> None:
            while not end.wait(LOOK):
                self.seen.append(self.look())

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


def measure(token: str) -> Result:
    small = Journey(walk("457KB", 4), None)
    try:
        small.walk(0, None)
        time.sleep(REST)
        watch = Watch(small.crew)
        idle = watch.look()
        plan = walk(token, HOPS)
        with watch.watching():
            journey = Journey(plan, None)
            outcome = journey.walk(0, None)
        check_bits(plan, outcome.token.digest())
        hosts = [hop.receiver % journey.among for hop in outcome.transcript.hops]
        times = list(zip(hosts, journey.times, strict=True))
        above = [tuple(m - i for m, i in zip(seen, idle, strict=True)) for seen in watch.seen]
        return Result(
            token=token,
            size=outcome.token.nbytes,
            hops=tuple(there[0] - here[1] for (a, here), (b, there) in pairwise(times) if a != b),
            peak_mb=max(sum(one) for one in above),
            host_mb=max(max(one[:-1]) for one in above),
            store_mb=max(one[-1] for one in above),
            looks=len(above),
        )
    finally:
        small.ray.shutdown()


def check_bits(plan: Plan, digest: str) -> None:
    """The cluster ended with the simulator's bits."""
    (outcome,) = InProcess().run([plan])
    if outcome.token.digest() != digest:
        raise SystemExit("the model is not what the simulator computes")


def report(results: Sequence[Result], *, as_json: bool) -> int:
    """Print what was measured; 1 if a limit was missed."""
    if as_json:
        more = [{"hop": round(r.hop, 3), "memory_tokens": round(r.memory, 2)} for r in results]
        print(json.dumps([{**asdict(r), **m} for r, m in zip(results, more, strict=True)]))
        return 0 if all(r.ok for r in results) else 1
    print(
        f"{'token':6} {'bytes':>14} {'hop':>9} {'longest':>9} {'a host':>14} {'store':>14} "
        f"{'for each host':>14} {'limit':>6}"
    )
    for r in results:
        print(
            f"{r.token:6} {r.size:14,} {r.hop:7.2f} s {max(r.hops):7.2f} s "
            f"{r.tokens(r.host_mb):7.2f} tokens {r.tokens(r.store_mb):7.2f} tokens "
            f"{r.memory:7.2f} tokens {TOKENS:6.1f}  {'ok' if r.ok else 'missed'}"
        )
    return 0 if all(r.ok for r in results) else 1
