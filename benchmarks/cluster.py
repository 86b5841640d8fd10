"""What a hop costs on a Ray cluster beyond the visit's compute, beside Flower's simulation.

    python benchmarks/cluster.py [--quick] [--json] [--rivals [FOLDER]] [--rival-hops N]

Three peers on the hosts of a local cluster pass a token of 114 thousand parameters (457 KB).  The
overhead of a hop is the time from the end of the compute of one visit to the beginning of the
compute of the next one, in another process: what the transcript says of the hop, the token packed
and written into the object store, the call of the next host, the token read, loaded and routed.
Hops that stay in one process are left out.  A visit is the in-process engine's: ten steps of 32
records.  All clocks are this machine's.

With --rivals the same token walks among as many peers over Flower's simulation, which uses Ray too,
installed with pip into an environment of its own under FOLDER (runs/rivals); if it cannot be
installed or does not run, it is left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.rivals.environments import Measured

PEERS = 3
LIMIT = 5.0
TIMES = 10.0
"""Flower's overhead is at least so many times ours."""
WARM = 20


@dataclass(frozen=True)
class Result:
    """The median overhead of a hop between two processes, its spread, and the visit, in ms."""

    overhead_ms: float
    p90_ms: float
    visit_ms: float
    hops: int
    hosts: int
    ray: str

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
            hops=len(gaps),
            hosts=journey.among,
            ray=journey.ray.__version__,
        )
    finally:
        journey.ray.shutdown()


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
    asked = parser.parse_args(arguments)
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
        print(json.dumps({"ray": asdict(result), "rivals": [asdict(r) for r in rivals]}))
    else:
        print(
            f"{'unwalk on Ray ' + result.ray:36} {result.overhead_ms:8.2f} ms  90 % "
            f"{result.p90_ms:.2f} ms, visit {result.visit_ms:.2f} ms, {result.hops} hops between "
            f"{result.hosts} hosts (at most {LIMIT:g} ms)  {'ok' if result.ok else 'too slow'}"
        )
        for line, _ in lines:
            print(line)
    return 0 if result.ok and all(good for _, good in lines) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main())
