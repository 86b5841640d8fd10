"""What a hop costs on a Ray cluster beyond the visit's compute, beside Flower's simulation.

    python benchmarks/cluster.py [--quick] [--json] [--rivals [FOLDER]] [--rival-hops N]
    python benchmarks/cluster.py --token 100MB [--token 1GB] [--json]   (see cluster_tokens.py)

Three peers on the hosts of a local cluster pass a token of 114 thousand parameters (457 KB).  The
overhead of a hop is the time from the end of the compute of one visit to the beginning of the
compute of the next one, in another process: what the transcript says of the hop, the token packed,
handed to the next host, read, loaded, and the program of the visit.  Hops that stay in one process
are left out.  A visit is the in-process engine's: ten steps of 32 records.  All clocks are this
machine's.

Beside it stands what Ray alone takes, measured in the same run on the same cluster: one actor calls
another with an array of the same bytes, and no unwalk in it, from before the call to the beginning
of the called method.  Before each call an actor computes for some milliseconds, as a visit does.

With --rivals the same token walks among as many peers over Flower's simulation, which uses Ray too,
installed with pip into an environment of its own under FOLDER (runs/rivals); if it cannot be
installed or does not run, it is left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from benchmarks.rivals.environments import Measured

PEERS = 3
LIMIT = 5.0
TIMES = 10.0
"""Flower's overhead is at least so many times ours."""
WARM = 20
BARE = 100
"""Calls that Ray alone is measured with, at least."""
PRODUCTS, WIDTH = 60, 200
"""Products before each call, and rows of the matrices."""


@dataclass(frozen=True)
class Result:
    """The median overhead of a hop between two processes, its spread, the visit and Ray, in ms."""

    overhead_ms: float
    p90_ms: float
    visit_ms: float
    bare_ms: float
    hops: int
    hosts: int
    ray: str

    @property
    def ratio(self) -> float:
        """The overhead in calls of Ray alone."""
        return self.overhead_ms / self.bare_ms

    @property
    def ok(self) -> bool:
        return self.overhead_ms <= LIMIT


def measure(hops: int) -> Result:
    from benchmarks.peers import FEATURES, RECORDS
    from unwalk.engines.ray_engine import Journey
    from unwalk.runs.assemble import assemble, resolve

    settings: dict[str, str | int] = {
        "task": "blobs",
        "peers": PEERS,
        "method": "finetune",
        "forget.kind": "nothing",
        "data.records": RECORDS["457 KB"],
        "data.features": FEATURES,
        "data.classes": 2,
        "train.batch": 32,
        "train.optimizer": "sgd",
        "train.hops": hops,
        "model.name": "benchmarks.peers:small",
    }
    journey = Journey(assemble(resolve(settings)).training(), None)
    try:
        outcome = journey.walk(0, None)
        hosts = [hop.receiver % journey.among for hop in outcome.transcript.hops]
        times = list(zip(hosts, journey.times, strict=True))[WARM:]
        gaps = sorted(
            1e3 * (there[0] - here[1])
            for (one, here), (other, there) in pairwise(times)
            if one != other
        )
        if not gaps:
            raise SystemExit("the cluster has one host: nothing was handed over")
        visits = [1e3 * (ended - began) for _, (began, ended) in times]
        return Result(
            overhead_ms=round(median(gaps), 2),
            p90_ms=round(gaps[int(0.9 * len(gaps))], 2),
            visit_ms=round(median(visits), 2),
            bare_ms=round(bare(journey.ray, outcome.token.nbytes, max(BARE, hops // 3)), 2),
            hops=len(gaps),
            hosts=journey.among,
            ray=journey.ray.__version__,
        )
    finally:
        journey.ray.shutdown()


class Bare:
    """An actor that computes, and calls another one with what it has computed."""

    def __init__(self, size: int) -> None:
        self.matrix = np.ones((size, size), np.float32)
        self.times: list[tuple[int, float, float]] = []

    def meet(self, other: Any) -> None:
        self.other = other

    def go(self, array: Any, left: int) -> None:
        began = time.monotonic()
        for _ in range(PRODUCTS):
            self.matrix @ self.matrix
        changed = array + array.dtype.type(1)
        self.times.append((left, began, time.monotonic()))
        if left:
            self.other.go.remote(changed, left - 1)

    def seen(self) -> list[tuple[int, float, float]]:
        return self.times


def bare(ray: Any, nbytes: int, calls: int) -> float:
    """What a call from one actor to another takes with an array of so many bytes, in ms."""
    pair = [ray.remote(Bare).options(num_cpus=0).remote(WIDTH) for _ in range(2)]
    try:
        ray.get([one.meet.remote(other) for one, other in zip(pair, pair[::-1], strict=True)])
        pair[0].go.remote(np.zeros(nbytes // 4, np.float32), calls + WARM)
        times: list[tuple[int, float, float]] = []
        while len(times) <= calls + WARM:
            time.sleep(1.0)
            times = sorted(one for seen in ray.get([p.seen.remote() for p in pair]) for one in seen)
        times.reverse()
        return 1e3 * median(there[1] - here[2] for here, there in pairwise(times[WARM:]))
    finally:
        for one in pair:
            ray.kill(one)


def rival_line(ours: Result, rival: Measured) -> tuple[str, bool]:
    """What is printed of Flower's simulation, and whether it is slow enough."""
    if rival.reason:
        return f"{rival.name}: left out, {rival.reason}", True
    times = rival.overhead_ms / ours.overhead_ms
    good = times >= TIMES
    return (
        f"{rival.name + ' ' + rival.version:36} {rival.overhead_ms:8.2f} ms  {times:6.1f} times "
        f"unwalk's (at least {TIMES:g})  {'ok' if good else 'too close'}"
    ), good


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few hops; not worth quoting")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rivals", nargs="?", const="runs/rivals", metavar="FOLDER")
    parser.add_argument("--rival-hops", type=int, default=60, metavar="N")
    parser.add_argument("--token", action="append", choices=("100MB", "1GB"))
    asked = parser.parse_args(arguments)
    if asked.token:
        from benchmarks import cluster_tokens

        measured = [cluster_tokens.measure(token) for token in asked.token]
        return cluster_tokens.report(measured, as_json=asked.json)
    result = measure(100 if asked.quick else 600)
    rivals: list[Measured] = []
    if asked.rivals:
        from benchmarks.peers import parameters
        from benchmarks.rivals.environments import SIMULATION
        from benchmarks.rivals.environments import measure as measure_rival

        folder = Path(asked.rivals).resolve()
        size = parameters("457 KB")
        rivals.append(measure_rival(SIMULATION, folder, PEERS, asked.rival_hops, size))
    lines = [rival_line(result, rival) for rival in rivals]
    if asked.json:
        print(
            json.dumps(
                {
                    "ray": {**asdict(result), "ratio": round(result.ratio, 2)},
                    "rivals": [asdict(r) for r in rivals],
                }
            )
        )
    else:
        print(
            f"{'unwalk on Ray ' + result.ray:36} {result.overhead_ms:8.2f} ms  90 % "
            f"{result.p90_ms:.2f} ms, visit {result.visit_ms:.2f} ms, {result.hops} hops between "
            f"{result.hosts} hosts (at most {LIMIT:g} ms)  {'ok' if result.ok else 'too slow'}"
        )
        print(
            f"{'a call of Ray alone, the same bytes':36} {result.bare_ms:8.2f} ms  unwalk's hop is "
            f"{result.ratio:.2f} of it"
        )
        for line, _ in lines:
            print(line)
    return 0 if result.ok and all(good for _, good in lines) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main())
