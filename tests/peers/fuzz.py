"""Fuzz everything that a peer parses: ``python -m tests.peers.fuzz [--count N] [--tls] ...``.

In process, bad messages go through the code that gRPC calls, from members, revoked members and
strangers, at eight moments of a network's life; and bad answers come to what a peer asks.  With
``--tls`` real daemons are called over mutual TLS.  Whatever comes: an answer or a refusal in a
sentence, within a quarter of a second, without anything left behind that the protocol does not
allow.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.peers import fuzz_reasons, fuzz_scenes
from tests.peers.floods import resident
from tests.peers.fuzz_scenes import Record
from tests.peers.fuzz_target import Tally, Target

MOST_GROWTH = 64.0
"""MiB that a process may have more in memory after all messages than after the first part."""
TURN = 250
"""Messages to one peer before the next one's turn."""
MOST_PROBLEMS = 20


def quick_folder() -> str | None:
    """Where a flush costs nothing, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


async def _in_process(record: Record, count: int, seed: int) -> Tally:
    import torch

    torch.set_num_threads(1)
    rng, tally = random.Random(seed), Tally()
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: tally.problems.append(f"the loop: {context.get('exception')!r}")
    )
    with fuzz_reasons.met(tally.reasons):
        await _to_all(record, count, rng, tally)
    return tally


async def _to_all(record: Record, count: int, rng: random.Random, tally: Tally) -> None:
    """Send ``count`` messages to the peers of all scenes, in turns."""
    targets = [Target(record, scene, rng, tally) for scene in record.scenes]
    first, begun = 0.0, max(count // 4, TURN * len(targets))
    try:
        while tally.messages < count:
            for target in targets:
                for _ in range(min(TURN, count - tally.messages)):
                    await target.one()
                    if len(tally.problems) >= MOST_PROBLEMS:
                        return
            if not first and tally.messages >= begun:
                gc.collect()
                first = resident(os.getpid())
        for target in targets:
            await target.hurry()
    finally:
        for target in targets:
            await target.close()
    gc.collect()
    growth = resident(os.getpid()) - first if first else 0.0
    tally.high("MiB more in memory", round(growth))
    if growth > MOST_GROWTH:
        tally.problems.append(f"{growth:.0f} MiB more in memory after {tally.messages} messages")


def in_process(folder: Path, count: int, seed: int) -> Tally:
    """Fuzz with one process."""
    return asyncio.run(_in_process(Record.read(folder), count, seed))


def run(count: int, seed: int, jobs: int, *, tls: bool = False) -> dict[str, Any]:
    """Fuzz with ``jobs`` processes; what was seen, as it goes into a file."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=quick_folder()) as place:
        folder = Path(place) / "net"
        fuzz_scenes.make(folder)
        if tls:
            from tests.peers import fuzz_tls

            work = fuzz_tls.over_tls
        else:
            work = in_process
        shares = [(folder, count // jobs + (n < count % jobs), seed + n) for n in range(jobs)]
        recorded = time.perf_counter()
        if jobs == 1:
            tallies = [work(*shares[0])]
        else:
            with multiprocessing.get_context("spawn").Pool(jobs) as pool:
                tallies = pool.starmap(work, shares)
    tally = Tally()
    for one in tallies:
        tally.add(one)
    return summary(tally, time.perf_counter() - recorded, recorded - began, seed, jobs, tls=tls)


def summary(
    tally: Tally, seconds: float, recording: float, seed: int, jobs: int, *, tls: bool
) -> dict[str, Any]:
    met = set(tally.reasons)
    for _, outcome in tally.outcomes:
        met.add(outcome.partition(": ")[2])
    missed = {words for _, words in fuzz_reasons.patterns()} - met
    handlers: dict[str, dict[str, int]] = {}
    for (where, outcome), number in sorted(tally.outcomes.items()):
        handlers.setdefault(where, {})[outcome] = number
    return {
        "messages": tally.messages,
        "over": "mutual TLS, a daemon process" if tls else "in process",
        "problems": tally.problems,
        "seconds": round(seconds, 1),
        "messages_a_second": round(tally.messages / seconds),
        "seconds_to_record": round(recording, 1),
        "seed": seed,
        "jobs": jobs,
        "slowest_s": round(tally.slowest, 4),
        "slowest_is": "time until the answer" if tls else "processor time of one message",
        "started_again": tally.restored,
        "put_back": tally.rewound,
        "senders": dict(tally.senders),
        "ways": dict(tally.ways),
        "most": dict(sorted(tally.most.items())),
        "outcomes": handlers,
        "reasons": dict(sorted(tally.reasons.items())),
        "not_reached": sorted(w for w in missed if fuzz_reasons.elsewhere(w) is None),
        "elsewhere": {w: why for w in sorted(missed) if (why := fuzz_reasons.elsewhere(w))},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "commit": _commit(),
        "command": "python -m tests.peers.fuzz " + " ".join(sys.argv[1:]),
    }


def _commit() -> str:
    if shutil.which("git") is None:
        return "unknown"
    said = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peers.fuzz")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tls", action="store_true", help="real daemons over mutual TLS")
    parser.add_argument("--out", type=Path, help="where the result goes, as JSON")
    given = parser.parse_args(arguments)
    found = run(given.count, given.seed, given.jobs, tls=given.tls)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    for problem in found["problems"]:
        print(problem, end="\n\n")
    print(
        f"{found['messages']} messages {found['over']} in {found['seconds']} s "
        f"({found['messages_a_second']} a second), slowest {found['slowest_s']} s; "
        f"{len(found['problems'])} problems; {len(found['reasons'])} reasons met, "
        f"{len(found['not_reached'])} not."
    )
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
