"""How much faster a sweep is over several processes than in one.

    python benchmarks/sweep.py [--runs 40] [--jobs 2] [--rounds 3] [--hops 100] [--json]

Runs on ``digits``, one for each seed, by RR-DU alone: in one process and in ``--jobs``, in turns,
so that both meet the same disturbances of a busy machine.  The start of the processes counts.  A
line shows the seconds of either side, in brackets the seconds of processor time, and how busy the
machine was before each: the mean number of processes that wanted a core in the last minute, this
one's included.  Results must be the same, bit for bit.  The exit code is 1 if the median of the
ratios is below 1.8 for two processes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

from unwalk.runs.assemble import resolve
from unwalk.runs.run import run
from unwalk.runs.sweep import Cell, Failed, sweep

LIMIT = 0.9
"""The least share of the processes' number by which a sweep has to be faster."""


def digits(seed: int, hops: int) -> dict[str, Any]:
    """The final measures of one run."""
    walk = {"train.hops": hops, "unlearn.hops": hops}
    config = resolve({"task": "digits", "seed": seed, "compare": [], **walk})
    return dict(run(config).final())


def processor() -> float:
    """Seconds of processor time of this process and those that it has ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def timed(runs: int, hops: int, jobs: int) -> tuple[tuple[float, float], dict[str, Any]]:
    """The seconds of a sweep, by the clock and of processors, and what it found."""
    cells = [Cell(str(seed), digits, (seed, hops)) for seed in range(runs)]
    began, used = perf_counter(), processor()
    found = dict(sweep(cells, jobs=jobs))
    seconds = perf_counter() - began, processor() - used
    failed = [end for end in found.values() if isinstance(end, Failed)]
    if failed:
        raise SystemExit(f"a run failed: {failed[0].reason}")
    return seconds, found


def _side(runs: int, hops: int, jobs: int) -> dict[str, Any]:
    load = os.getloadavg()[0]
    (seconds, used), found = timed(runs, hops, jobs)
    return {"jobs": jobs, "seconds": seconds, "processor": used, "load": load, "found": found}


def _words(side: dict[str, Any]) -> str:
    number, seconds, used, load = (side[k] for k in ("jobs", "seconds", "processor", "load"))
    return f"{number} at once: {seconds:.1f} s ({used:.1f} s, load {load:.1f})"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hops", type=int, default=100, help="of training, and of unlearning")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    timed(1, given.hops, 1)  # data and libraries are loaded before anything counts
    rounds: list[dict[str, Any]] = []
    for _ in range(given.rounds):
        sides = [_side(given.runs, given.hops, jobs) for jobs in (1, given.jobs)]
        if sides[0].pop("found") != sides[1].pop("found"):
            raise SystemExit("several processes found other numbers than one.")
        ratio = sides[0]["seconds"] / sides[1]["seconds"]
        rounds.append({"sides": sides, "ratio": ratio})
        if not given.json:
            print(f"{'; '.join(map(_words, sides))}; ratio {ratio:.2f}", flush=True)
    ratio = median(one["ratio"] for one in rounds)
    limit = LIMIT * given.jobs
    if given.json:
        print(json.dumps({"rounds": rounds, "ratio": ratio, "limit": limit}))
    else:
        print(
            f"median ratio {ratio:.2f}, at least {limit:.2f}: {'ok' if ratio >= limit else 'low'}"
        )
    return 0 if ratio >= limit else 1


if __name__ == "__main__":
    sys.exit(main())
