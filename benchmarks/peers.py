"""What a hop between real peers costs beyond the visit: durable, signed, over mutual TLS.

    python benchmarks/peers.py [--quick] [--json] [--rivals [FOLDER]] [--rival-hops N]
    python benchmarks/peers.py --token 100MB [--token 1GB] [--json]   (see big_tokens.py)

Three peers on loopback pass tokens of 114 thousand and 11 million parameters (457 KB and 45 MB).
The overhead of a hop is the time from the end of one visit to the beginning of the next one, at
another peer: hash, write and flush the token, sign and commit, send, check, write and flush,
commit, load, as far as these stand in the way of the next visit.  A visit is what the in-process
engine does: ten steps of 32 records with the small token, one step with the large one.  All clocks
are this machine's.

Beside it stands the bare minimum, measured in the same run: the same bytes in the same pieces from
one process to another by grpc.aio with mutual TLS, hashed and flushed at the receiver, which then
answers; no check, no state, no signature.  The ratio is the overhead over that minimum.  The time
to the acknowledgement is from the moment a token is offered until its sender knows that it was
taken: the next visit has begun by then, and shares the processor.

Memory: how much more a peer needs at its peak with the large token than with the small one, in
tokens.

With --rivals the small token walks among as many peers over Flower's deployment engine and over
NVFlare's cyclic jobs, each installed with pip into an environment of its own under FOLDER
(runs/rivals); a rival that cannot be installed or does not run is left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from torch import nn

from unwalk.peers.daemon import run_peer
from unwalk.peers.identity.network_file import Limits, Network
from unwalk.peers.local_network import free_addresses
from unwalk.peers.provision import make_network
from unwalk.peers.status import status

if TYPE_CHECKING:
    from benchmarks.rivals.environments import Measured

PEERS = 3
FEATURES = 10
SETTINGS = {
    "task": "blobs",
    "method": "finetune",
    "compare": "none",
    "forget.kind": "nothing",
    "data.features": FEATURES,
    "data.classes": 2,
    "train.optimizer": "sgd",
    "performance.threads": 1,
}
SHAPES = {"457 KB": (332, 1), "45 MB": (1056, 10)}
RECORDS = {"457 KB": 10 * 32 * PEERS, "45 MB": 32 * PEERS}
LIMITS = {"457 KB": 6.0, "45 MB": 150.0}
RATIOS = {"457 KB": 1.6, "45 MB": 1.2}
"""The overhead of a hop in bare minima, at most."""
TOKENS = 4.0
TIMES = 50.0
"""So many times the overhead of unwalk each rival's must be; see :func:`rival_lines`."""
WARM = 6
BARE = 12
"""Tokens that the bare minimum is measured with, at least."""
PATIENCE = 900.0


def plain(width: int) -> nn.Module:
    """An inner layer as torch makes it."""
    return nn.Linear(width, width)


def wide(width: int, depth: int, layer: Callable[[int], nn.Module] = plain) -> nn.Module:
    """``depth`` layers of ``width`` x ``width`` between a first and a last one."""
    inner = [part for _ in range(depth) for part in (layer(width), nn.ReLU())]
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), *inner, nn.Linear(width, 2))


def small() -> nn.Module:
    return wide(*SHAPES["457 KB"])


def large() -> nn.Module:
    return wide(*SHAPES["45 MB"])


FACTORIES = {"457 KB": small, "45 MB": large}


def parameters(name: str) -> int:
    return sum(p.numel() for p in FACTORIES[name]().parameters())


@dataclass(frozen=True)
class Result:
    """One line: the median overhead of a hop, its spread, and its limit in milliseconds."""

    name: str
    overhead_ms: float
    p90_ms: float
    visit_ms: float
    hops: int
    limit_ms: float
    resident_mb: float
    bare_ms: float
    acknowledged_ms: float
    limit_ratio: float

    @property
    def ratio(self) -> float:
        """The overhead in bare minima."""
        return self.overhead_ms / self.bare_ms

    @property
    def ok(self) -> bool:
        return self.overhead_ms <= self.limit_ms and self.ratio <= self.limit_ratio


def measure(name: str, hops: int) -> Result:
    from benchmarks.bare import bare_minimum

    with walked(name, hops) as (paths, resident):
        bare = bare_minimum(paths[0], paths[1], _final_size(paths[0]), max(BARE, hops // 4))
        return read(name, paths, resident, bare)


@contextmanager
def walked(name: str, hops: int) -> Iterator[tuple[list[Path], float]]:
    """Peers whose walk has ended: their bundles, and the most memory that one of them used, MB."""
    settings = {
        "data.records": RECORDS[name],
        "train.batch": 32,
        "train.hops": hops,
        "model.name": f"benchmarks.peers:{FACTORIES[name].__name__}",
    }
    limits = Limits(lease=30.0, stop=2.0)
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("UNWALK_BENCH_DIR")) as place,
        at_the_end(Path(place) / "net", settings, PEERS, limits=limits) as (_, paths, running),
    ):
        yield paths, max(memory(p.pid, "VmHWM") for p in running)


@contextmanager
def at_the_end(
    folder: Path, settings: dict[str, Any], peers: int, **more: Any
) -> Iterator[tuple[Network, list[Path], list[Any]]]:
    """Peers whose walk has ended and that are still there: network, bundles and processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "unwalk.peers.daemon"])
    made = make_network(
        folder,
        name="bench",
        addresses=free_addresses(peers),
        settings={**SETTINGS, **settings},
        noise="simulation",
        **more,
    )
    paths = [folder / f"peer-{n}" for n in range(peers)]
    running = [context.Process(target=run_peer, args=(p,), daemon=True) for p in paths]
    try:
        for process in running:
            process.start()
        end = time.monotonic() + PATIENCE
        while not all(status(p).get("model") for p in paths):
            if time.monotonic() > end or not all(p.is_alive() for p in running):
                raise SystemExit("the walk did not end")
            time.sleep(0.5)
        yield made, paths, running
    finally:
        for process in running:
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGTERM)
            process.join(60)


def _final_size(path: Path) -> int:
    return Path(status(path)["model"]).stat().st_size


def memory(pid: int, what: str) -> float:
    """A line of a process's status, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/{pid}/status has no {what}")


def events(path: Path) -> Iterator[dict[str, Any]]:
    """What a peer wrote into its journal."""
    for line in (path / "store" / "log.jsonl").read_text().splitlines():
        yield json.loads(line)


def read(name: str, paths: list[Path], resident: float, bare: list[float]) -> Result:
    visits, acknowledged = {}, []
    for path in paths:
        for record in events(path):
            if record["event"] == "visited":
                visits[record["hop"]] = (record["began"], record["ended"])
            elif record["event"] == "handed":
                acknowledged.append(1e3 * (record["at"] - record["offered"]))
    order = sorted(visits)
    gaps = [1e3 * (visits[b][0] - visits[a][1]) for a, b in pairwise(order)][WARM:]
    return Result(
        name=name,
        overhead_ms=round(median(gaps), 2),
        p90_ms=round(sorted(gaps)[int(0.9 * len(gaps))], 2),
        visit_ms=round(1e3 * median(e - b for b, e in visits.values()), 2),
        hops=len(gaps),
        limit_ms=LIMITS[name],
        resident_mb=round(resident, 1),
        bare_ms=round(median(bare), 2),
        acknowledged_ms=round(median(acknowledged), 2),
        limit_ratio=RATIOS[name],
    )


def memory_in_tokens(results: Sequence[Result]) -> float:
    """How many tokens more the large token's peer needs than the small one's."""
    few, many = results
    size = 4 * (parameters("45 MB") - parameters("457 KB")) / 2**20
    return round((many.resident_mb - few.resident_mb) / size, 2)


def rival_lines(ours: Result, rivals: Sequence[Measured]) -> tuple[list[str], bool]:
    """What is printed of the rivals, and whether each is slow enough.

    NVFlare's client-controlled job is there for comparison: the limit is for the engines that
    people deploy by default.
    """
    lines, good = [], True
    for rival in rivals:
        if rival.reason:
            lines.append(f"{rival.name}: left out, {rival.reason}")
            continue
        times = rival.overhead_ms / ours.overhead_ms
        limit = f"at least {TIMES:g}" if rival.counts else "no limit"
        words = "" if not rival.counts else "  ok" if times >= TIMES else "  too close"
        good = good and (times >= TIMES or not rival.counts)
        lines.append(
            f"{rival.name + ' ' + rival.version:44} {rival.overhead_ms:9.1f} ms  "
            f"{times:7.0f} times unwalk's ({limit}){words}"
        )
    return lines, good


def main(arguments: Sequence[str] | None = None) -> int:
    from benchmarks.big_tokens import SIZES, report
    from benchmarks.big_tokens import measure as measure_big

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few hops; not worth quoting")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rivals", nargs="?", const="runs/rivals", metavar="FOLDER")
    parser.add_argument("--rival-hops", type=int, default=18, metavar="N")
    parser.add_argument("--token", action="append", choices=SIZES, help="big tokens only")
    asked = parser.parse_args(arguments)
    if asked.token:
        return report([measure_big(name) for name in asked.token], as_json=asked.json)
    sizes = {"457 KB": 30, "45 MB": 12} if asked.quick else {"457 KB": 300, "45 MB": 80}
    results = [measure(name, hops) for name, hops in sizes.items()]
    tokens = memory_in_tokens(results)
    rivals: list[Measured] = []
    if asked.rivals:
        from benchmarks.rivals.environments import measure_all

        folder = Path(asked.rivals).resolve()
        rivals = measure_all(folder, PEERS, asked.rival_hops, parameters("457 KB"))
    lines, slower = rival_lines(results[0], rivals)
    if asked.json:
        hops = [{**asdict(r), "ratio": round(r.ratio, 2)} for r in results]
        found = {"hops": hops, "memory_tokens": tokens}
        print(json.dumps({**found, "rivals": [asdict(r) for r in rivals]}))
    else:
        print(
            f"{'token':8} {'overhead':>10} {'90 %':>8} {'visit':>8} {'limit':>8} "
            f"{'bare':>8} {'times':>6} {'limit':>6} {'offer to ack':>13}"
        )
        for r in results:
            words = "ok" if r.ok else "too slow"
            print(
                f"{r.name:8} {r.overhead_ms:7.2f} ms {r.p90_ms:8.2f} {r.visit_ms:8.2f} "
                f"{r.limit_ms:8.1f} {r.bare_ms:8.2f} {r.ratio:6.2f} {r.limit_ratio:6.1f} "
                f"{r.acknowledged_ms:10.2f} ms  {words}"
            )
        print(f"memory above a small token's peer: {tokens:.2f} tokens (at most {TOKENS:g})")
        for line in lines:
            print(line)
    return 0 if all(r.ok for r in results) and tokens <= TOKENS and slower else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main())
