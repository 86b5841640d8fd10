"""Seeded trials of everything in :mod:`tests.peers.trials_kinds`, as processes or in memory.

    python -m tests.peers.trials [--memory] [--from SEED] [--count N] [--jobs J] [--out FILE]

runs COUNT trials, J at a time, and puts down in FILE (results/faults.json) how they went.  Seed
after seed takes one kind after the other.  A trial is over within a limit: one that is not is put
down as such.  What happened to each seed is kept in LOG (``--log``) at once, so that a run that was
stopped goes on where it was, as long as the code is the same.

    python -m tests.peers.trials [--memory] --seed SEED

runs one, and prints what the peers did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.peers.deletions import write_records
from tests.peers.harness import Town
from tests.peers.scheduler import Endless, in_virtual_time
from tests.peers.trials_checks import Violation, check
from tests.peers.trials_kinds import KINDS, Kind, honest
from tests.peers.trials_scenes import DidNotEnd, InMemory, InProcesses, Scene, make
from tests.processes import CONTEXT
from unwalk.experiments.study import provenance
from unwalk.peers.identity.network_file import Network

PROCESSES, MEMORY = "processes", "memory"
HOPS, HOPS_WITH_REQUEST = 20, 12
"""Visits of training, at most with requests after it."""
NETWORKS = 8
"""Networks that trials in memory take in turn: making keys takes longer than a walk."""
LIMIT = {PROCESSES: 150.0, MEMORY: 120.0}
"""Seconds, of the clock or of the loop's time, after which a trial did not end."""
PATIENCE = 300.0
"""Seconds after which a worker that says nothing is ended."""
COUNT = {PROCESSES: 400, MEMORY: 20_000}
ENDED, VIOLATED, NOT_ENDED = "ended", "violated", "did not end"
LONGEST = 3000
"""Characters of a reason, at most."""


@dataclass(frozen=True)
class Trial:
    """How one trial went: ``outcome``, and ``why`` unless it ended as it should.

    ``recovered``, ``passed_over`` and ``dropped`` count what journals and the committed log say.
    """

    seed: int
    kind: str
    variant: str
    outcome: str
    seconds: float
    recovered: int = 0
    passed_over: int = 0
    dropped: int = 0
    why: str = ""
    journal: list[dict[str, Any]] = field(default_factory=list, repr=False)


def kind_of(seed: int) -> Kind:
    """Which kind a trial is of."""
    return KINDS[seed % len(KINDS)]


@dataclass(frozen=True)
class Lived:
    """What came of a trial: how it went wrong, who ended, and why not all did who should."""

    variant: str
    ended: list[int]
    why: str = ""


async def lived(scene: Scene, kind: Kind) -> Lived:
    """The trial itself."""
    variant, why = "", ""

    def there() -> list[int]:
        """Who must end."""
        stay = [p for p in honest(scene) if p not in scene.away]
        return [p for p in stay if p not in scene.excused or scene.running(p)]

    def over() -> bool:
        done = scene.asked is None or scene.pending or scene.stage(scene.asked, "r") == "done"
        return done and all(map(scene.ended, there()))

    try:
        variant = await kind.play(scene)
        scene.weather()
        await scene.until(over)
    except DidNotEnd as error:
        why = str(error)
    finally:
        ended = [p for p in there() if scene.ended(p)]
        await scene.close()
    return Lived(variant, ended, why)


def run_trial(root: Path, seed: int, way: str, hops: int = HOPS) -> Trial:
    """One trial in a folder of its own under ``root``, which is gone afterwards."""
    kind, rng = kind_of(seed), random.Random(f"trial {seed}")
    folder = root / f"seed-{seed}"
    begun = time.monotonic()
    found, outcome, counts = Lived("", []), ENDED, dict[str, Any]()
    scene: Scene
    try:
        if way == MEMORY:
            scene, found = _in_memory(root, folder, seed, kind, rng, hops)
        else:
            network = _network(folder, kind, rng, seed, hops)
            scene = InProcesses(folder, network, rng, LIMIT[way])
            found = asyncio.run(lived(scene, kind))
        outcome, why = NOT_ENDED if found.why else ENDED, found.why
        counts = _counts(scene, kind, found.ended)
    except Endless as error:
        outcome, why = NOT_ENDED, str(error)
    except Violation as error:
        outcome, why = VIOLATED, str(error)
    except Exception:
        outcome, why = VIOLATED, traceback.format_exc()[-LONGEST:]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = round(time.monotonic() - begun, 3)
    why = why[:LONGEST]
    return Trial(seed, kind.name, found.variant, outcome, seconds, why=why, **counts)


def _network(folder: Path, kind: Kind, rng: random.Random, seed: int, hops: int) -> Network:
    peers, hops = rng.choice([4, 5]), min(hops, HOPS_WITH_REQUEST) if kind.records else hops
    made = make(folder, peers, hops, records=kind.records, seed=seed, visit=kind.visit)
    if kind.records:
        for peer in range(peers):
            write_records(folder / f"peer-{peer}", peer, hold_out=0.0)
    return made


_MADE: dict[Any, tuple[Path, Network]] = {}


def _in_memory(
    root: Path, folder: Path, seed: int, kind: Kind, rng: random.Random, hops: int
) -> tuple[InMemory, Lived]:
    """The same in memory, with a network that may have been used before."""
    variant = seed // len(KINDS) % NETWORKS
    key = (root, kind.records, kind.visit, variant, hops)
    if key not in _MADE:
        place = root / f"network-{len(_MADE)}"
        _MADE[key] = (place, _network(place, kind, random.Random(variant), variant, hops))
    place, network = _MADE[key]
    shutil.copytree(place, folder)
    if kind.records:
        for peer in range(len(network.peers)):
            write_records(folder / f"peer-{peer}", peer, hold_out=0.0)
    with in_virtual_time(seed) as loop:
        scene = InMemory(folder, network, rng, LIMIT[MEMORY], loop)
        return scene, loop.run_until_complete(lived(scene, kind))


def _counts(scene: Scene, kind: Kind, ended: list[int]) -> dict[str, Any]:
    log = check(scene, kind, ended)
    return {
        "recovered": sum(e["body"]["kind"] == "recovery" for e in log),
        "passed_over": sum(len(e["body"].get("passed_over", ())) for e in log),
        "dropped": sum(e["event"] == "dropped" for e in scene.events()),
        "journal": scene.events(),
    }


# Many of them


class Worker:
    """A process that does one trial after the other, and can be ended with all that it started."""

    def __init__(self, way: str, root: Path) -> None:
        self.way, self.root = way, root
        self.process: subprocess.Popen[str] | None = None

    def _begin(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.peers.trials", "--worker", str(self.root)]
        if self.way == MEMORY:
            command.append("--memory")
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        )

    def do(self, seed: int) -> dict[str, Any]:
        """How one trial went."""
        begun = time.monotonic()
        if self.process is None:
            self.process = self._begin()
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{seed}\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
            line = process.stdout.readline() if ready else ""
        except OSError:
            line = ""
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        self.end()
        shutil.rmtree(self.root / f"seed-{seed}", ignore_errors=True)
        name, seconds = kind_of(seed).name, round(time.monotonic() - begun, 3)
        why = "the worker said nothing any more"
        return asdict(Trial(seed, name, "", NOT_ENDED, seconds, why=why))

    def end(self) -> None:
        """With everything that it started."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def work(way: str, root: Path) -> None:
    """What a worker does: a seed a line in, a trial a line out."""
    import torch

    torch.set_num_threads(1)
    if way == PROCESSES:
        CONTEXT.set_forkserver_preload(["torch", "sklearn.datasets", "tests.peers.trials_checks"])
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        found = asdict(run_trial(root, int(line), way))
        del found["journal"]
        out.write(json.dumps(found) + "\n")


def run_many(
    seeds: Iterable[int], way: str, jobs: int, tell: Callable[[dict[str, Any]], None]
) -> None:
    """Trials of all ``seeds``, ``jobs`` at a time; each is told of at once."""
    left, lock = iter(seeds), threading.Lock()
    with tempfile.TemporaryDirectory(prefix="trials-", dir=fast_folder()) as place:

        def one() -> None:
            worker = Worker(way, Path(place) / str(threading.get_ident()))
            worker.root.mkdir()
            try:
                while True:
                    with lock:
                        seed = next(left, None)
                    if seed is None or stopped.is_set():
                        return
                    found = worker.do(seed)
                    with lock:
                        tell(found)
            finally:
                worker.end()

        stopped = threading.Event()
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for done in [pool.submit(one) for _ in range(jobs)]:
                    done.result()
            except BaseException:
                stopped.set()  # after the trials that are under way
                raise


def fast_folder() -> str | None:
    """Where files cost nothing, if there is such a place."""
    place = Path("/dev/shm")
    return str(place) if place.is_dir() and os.access(place, os.W_OK) else None


def tally(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How each kind fared."""
    rows = []
    for kind in KINDS:
        these = [t for t in trials if t["kind"] == kind.name]
        if not these:
            continue
        seconds = [t["seconds"] for t in these]
        outcomes = {
            o: [t["seed"] for t in these if t["outcome"] == o] for o in (VIOLATED, NOT_ENDED)
        }
        rows.append(
            {
                "kind": kind.name,
                "lie": kind.lies,
                "holds": kind.holds,
                "trials": len(these),
                "ended": sum(t["outcome"] == ENDED for t in these),
                "safety violated": outcomes[VIOLATED],
                "did not end": outcomes[NOT_ENDED],
                "with a recovery": sum(t["recovered"] > 0 for t in these),
                "recoveries": sum(t["recovered"] for t in these),
                "tokens dropped": sum(t["dropped"] for t in these),
                "peers passed over": sum(t["passed_over"] for t in these),
                "seconds, median": round(statistics.median(seconds), 2),
                "seconds, longest": round(max(seconds), 2),
            }
        )
    return rows


def main(argv: list[str]) -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers.trials", description=__doc__)
    parser.add_argument("--memory", action="store_true", help="in one process, in virtual time")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, help="how many: 400, in memory 20,000")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument("--out", type=Path, default=Path("results/faults.json"))
    parser.add_argument("--log", type=Path, help="what is known of each seed so far")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    way = MEMORY if given.memory else PROCESSES
    if given.worker is not None:
        work(way, given.worker)
        return 0
    if given.seed is not None:
        return _one(given.seed, way)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    made = provenance(f"python -m tests.peers.trials {' '.join(argv)}".strip())
    made["machine"] = f"{os.cpu_count()} CPU cores, {made['machine']}"
    log = given.log or Path("build") / f"trials-{way}.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    known = _known(log, way, made["commit"])
    wanted = range(given.first, given.first + (given.count or COUNT[way]))
    begun = time.monotonic()
    with log.open("a") as file:

        def tell(found: dict[str, Any]) -> None:
            known[found["seed"]] = found
            line = {"way": way, "commit": made["commit"], **found}
            file.write(json.dumps(line) + "\n")
            file.flush()
            done = sum(seed in known for seed in wanted)
            if found["outcome"] != ENDED:
                print(f"seed {found['seed']}, {found['kind']}: {found['outcome']}: {found['why']}")
            if done % 100 == 0:
                print(f"{done} of {len(wanted)}, {time.monotonic() - begun:.0f} s", flush=True)

        run_many([s for s in wanted if s not in known], way, given.jobs, tell)
    trials = [known[seed] for seed in wanted]
    _put_down(given.out, way, made, trials)
    bad = [t["seed"] for t in trials if t["outcome"] != ENDED]
    print(f"{len(trials) - len(bad)} of {len(trials)} ended as they should; not: {bad}")
    return 1 if bad else 0


def _one(seed: int, way: str) -> int:
    with tempfile.TemporaryDirectory(prefix="trials-", dir=fast_folder()) as place:
        found = run_trial(Path(place), seed, way)
    for record in found.journal:
        print(json.dumps(record))
    print(found, found.why, sep="\n")
    return 0 if found.outcome == ENDED else 1


def _known(log: Path, way: str, commit: str) -> dict[int, dict[str, Any]]:
    """What the log knows of this way and this code."""
    found: dict[int, dict[str, Any]] = {}
    if log.exists():
        for line in log.read_text().splitlines():
            record = json.loads(line)
            if (record.pop("way"), record.pop("commit")) == (way, commit):
                found[record["seed"]] = record
    return found


def _put_down(out: Path, way: str, made: dict[str, str], trials: list[dict[str, Any]]) -> None:
    """Into the file of results, beside what it says of the other way."""
    document = json.loads(out.read_text()) if out.exists() else {}
    bad = [t for t in trials if t["outcome"] != ENDED]
    document[way] = {
        **made,
        "trials": len(trials),
        "ended": len(trials) - len(bad),
        "safety violated": sum(t["outcome"] == VIOLATED for t in bad),
        "did not end": sum(t["outcome"] == NOT_ENDED for t in bad),
        "kinds": tally(trials),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")


# What other tests of processes look at


def furthest(here: Town) -> int:
    """How many visits were done, as far as anybody knows."""
    return max(int(here.state(p).get("hop", 0)) for p in here.processes)


def events(folder: Path, peer: int) -> list[str]:
    """What a peer wrote down."""
    text = (folder / f"peer-{peer}" / "store" / "log.jsonl").read_text()
    return [json.loads(line)["event"] for line in text.splitlines()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
