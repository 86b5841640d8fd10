"""What many peers and large models cost: the constants of ``docs/scaling.md``, and its tables.

    python benchmarks/scale.py [--quick] [--json FILE] [--part NAME ...]
    python benchmarks/scale.py --table [PAGE] [--from FILE]

The first form measures on this machine: a hop of the simulator without steps; hops of the engine
and hops of the route alone among 100 to 100,000 peers, on the complete graph and on a random
regular one; a hop between real peers with two sizes of tokens (``peers.py``), beside SHA-256 and
the disk alone; the hop log; the votes of one decision, counted in memory among up to 19 members
with real keys; certificates against hops.  It prints the tables and, with --json, writes what was
measured; with --part only that is measured anew, and the file keeps the rest.  The second form
writes the tables into the page from such a file.

Times are processor time of one thread, so that they mean something while other programs run, but
for hops between real peers and for the disk, where it is the clock's.

The formulas are in ``scale_model.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import peers as real  # noqa: E402
from benchmarks import scale_model as sm  # noqa: E402
from benchmarks.walk import RULE, plan  # noqa: E402
from unwalk import run, walks  # noqa: E402
from unwalk.certificates import read_certificate, verify  # noqa: E402
from unwalk.core.plan import Progress  # noqa: E402
from unwalk.core.program import Program, Visit  # noqa: E402
from unwalk.core.token import Workspace  # noqa: E402
from unwalk.core.transcript import Transcript  # noqa: E402
from unwalk.core.walking import Graph  # noqa: E402
from unwalk.engines.inprocess import InProcess  # noqa: E402
from unwalk.methods.network_sgd import Descent, LocalWork, NetworkSGD  # noqa: E402
from unwalk.peers.daemon import committed_log  # noqa: E402
from unwalk.peers.decisions.ballot import Poll  # noqa: E402
from unwalk.peers.decisions.history import bare_visits, check_visit  # noqa: E402
from unwalk.peers.decisions.votes import Clerk, Matter, decision_to, digest_of  # noqa: E402
from unwalk.peers.forgetting.erasure import Receipt  # noqa: E402
from unwalk.peers.forgetting.peer_certificate import visits_text  # noqa: E402
from unwalk.peers.identity.trust import Bundle  # noqa: E402
from unwalk.peers.local_network import free_addresses  # noqa: E402
from unwalk.peers.protocol import codec  # noqa: E402
from unwalk.peers.provision import make_network  # noqa: E402
from unwalk.peers.storage.store import Store  # noqa: E402
from unwalk.peers.telemetry import Journal  # noqa: E402
from unwalk.peers.transport.wire import MESSAGE  # noqa: E402
from unwalk.tasks import Deletion, ShardedTask, build_task  # noqa: E402

RESULTS = ROOT / "results" / "scale.json"
PAGE = ROOT / "docs" / "scaling.md"
GRAPHS = ("complete", "random-regular")
RECORDS = 16
"""Records of a simulated peer: one step."""
LATENCY = 0.005
"""Seconds that a message of a vote takes in memory: what happens meanwhile is told at once."""
TEXT = "x" * 1200
"""What is voted on; about as long as a signed chapter with one request."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    peers: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    hops: int = 3_000
    voters: tuple[int, ...] = (3, 4, 7, 10, 13)
    more_voters: int = 19
    walks: tuple[tuple[str, int], ...] = (("457 KB", 200), ("45 MB", 40))
    transcripts: tuple[int, ...] = (100, 1_000, 4_000)
    piece: int = 1 << 26
    steps: int = 30


QUICK = Size((30, 300), 200, (3, 4), 5, (("457 KB", 12), ("45 MB", 10)), (50, 100), 1 << 20, 3)


# The simulator


@dataclass(frozen=True)
class Idle:
    """A method that does nothing in its visits."""

    name: str = field(default="network-sgd", init=False)
    travels: tuple[str, ...] = field(default=(), init=False)

    def visit(self, visit: Visit) -> Program:
        return ()


@dataclass(eq=False)
class Watch:
    """A sink that takes the processor time of every hop, first visits apart."""

    made: set[int]
    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    started: float = field(default_factory=process_time)

    def after(self, index: int, progress: Progress, look: Callable[[], Workspace]) -> None:
        took, peer = process_time() - self.started, progress.token.at
        if progress.token.hop > 1:
            (self.again if peer in self.made else self.first).append(took)
        self.made.add(peer)
        self.started = process_time()


def graph_of(kind: str, peers: int) -> Graph:
    if kind == "complete":
        return walks.complete(peers)
    return walks.random_regular(peers, sm.DEGREE, np.random.default_rng(0))


def task_of(peers: int) -> ShardedTask:
    options = {"records": RECORDS}
    return build_task("blobs", peers=peers, forget=Deletion("nothing"), options=options)


def bookkeeping(hops: int) -> dict[str, float]:
    """Microseconds of a hop without steps, and of the line that it leaves."""
    walk = plan(task_of(100), Idle(), hops)
    watch = Watch(set(range(100)))
    (outcome,) = InProcess().run([walk], watch)
    began = process_time()
    lines = outcome.progress.transcript.lines
    return {
        "hop_us": 1e6 * median(watch.again),
        "line_us": 1e6 * (process_time() - began) / hops,
        "line_bytes": fmean(len(line) + 1 for line in lines[1:]),
    }


def engine(kind: str, peers: int, hops: int) -> dict[str, Any]:
    """A walk of the engine, in a process of its own: time by visit, bytes, memory."""
    torch.set_num_threads(1)
    began = process_time()
    graph = graph_of(kind, peers)
    build = process_time() - began
    task, method = task_of(peers), NetworkSGD(Descent(RULE, LocalWork(batch=RECORDS)))
    for _ in InProcess().run([plan(task_of(10), method, 50)]):  # warms up
        pass
    walk = replace(plan(task, method, hops), graph=graph)
    watch = Watch({task.unlearner})
    began = process_time()
    (outcome,) = InProcess().run([walk], watch)
    seconds = process_time() - began
    done = outcome.progress.transcript.hops
    return {
        "graph": kind,
        "peers": peers,
        "hops": hops,
        "build_s": build,
        "seconds": seconds,
        "first_us": 1e6 * fmean(watch.first),
        "later_us": 1e6 * fmean(watch.again) if watch.again else 0.0,
        "visited": len({hop.receiver for hop in done}),
        "bytes": sum(hop.nbytes for hop in done),
        "token_bytes": done[-1].nbytes,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def routes(kind: str, peers: int) -> dict[str, Any]:
    """A walk of the route alone, until all were visited: when each was met first."""
    graph, rng = graph_of(kind, peers), np.random.default_rng(1)
    route, at, hops, left = walks.Uniform(), walks.NOBODY, 0, peers
    first = np.zeros(peers, dtype=np.int64)
    while left:
        at, hops = route.next(graph, at, {}, rng).receiver, hops + 1
        if not first[at]:
            first[at], left = hops, left - 1
    order = np.sort(first)
    targets = rng.integers(peers, size=20)
    far = [graph.distances(int(t)).sum() / (peers - 1) for t in targets]  # type: ignore[attr-defined]
    return {
        "graph": kind,
        "peers": peers,
        "visited": float(np.mean(first <= peers)),
        "half": int(order[peers // 2 - 1]),
        "ninety": int(order[9 * peers // 10 - 1]),
        "all": hops,
        "first_contact": float(first.mean()),
        "rewind": float(np.maximum(peers - first + 1, 0).mean()),
        "travel": float(np.mean(far)),
    }


# Real peers


def between_peers(size: Size) -> dict[str, Any]:
    """Overhead of a hop by size of the token, memory in tokens, bytes of log and certificate."""
    results: list[real.Result] = []
    rows: list[dict[str, float]] = []
    log: dict[str, float] = {}
    for name, hops in size.walks:
        with real.walked(name, hops) as (paths, resident):
            results.append(real.read(name, paths, resident, [math.nan]))
            log = log or written(paths[0])
        count = {"bytes": 4 * real.parameters(name), "hops": results[-1].hops}
        rows.append({**count, "overhead_ms": results[-1].overhead_ms})
    return {"peers": rows, "memory_tokens": real.memory_in_tokens(results), "log": log}


def written(path: Path) -> dict[str, float]:
    """Bytes of an entry of the hop log, of a signed visit and of a receipt; time of its check."""
    entries, bundle = committed_log(path), Bundle.read(path)
    visits, trust = bare_visits(entries), bundle.trust()
    run_id, end = visits[0]["run"], "0" * 64
    check_visit(trust, visits[0], run_id, 1)  # certificates are examined once
    began = process_time()
    for number, visit in enumerate(visits, 1):
        check_visit(trust, visit, run_id, number)
    checking = (process_time() - began) / len(visits)
    when = "2026-01-01T00:00:00+00:00"
    receipt = Receipt(bundle.network.run_id, run_id, 1, bundle.name, (), 0, when, end)
    return {
        "entry": fmean(len(json.dumps(entry)) for entry in entries),
        "visit": len(visits_text(visits)) / len(visits),
        "visit_check_us": 1e6 * checking,
        "receipt": len(json.dumps(receipt.signed(bundle).to_json())),
    }


def bytes_alone(count: int) -> dict[str, float]:
    """Nanoseconds a byte of SHA-256, and of writing and flushing."""
    data = os.urandom(count)
    hashing = min(_took(lambda: hashlib.sha256(data).digest()) for _ in range(5))
    with tempfile.TemporaryDirectory(dir=os.environ.get("UNWALK_BENCH_DIR")) as folder:
        place = Path(folder) / "token"
        writing = min(_took(lambda: _write(place, data), perf_counter) for _ in range(5))
    return {"hash_ns": 1e9 * hashing / count, "write_ns": 1e9 * writing / count}


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _took(work: Callable[[], Any], clock: Callable[[], float] = process_time) -> float:
    began = clock()
    work()
    return clock() - began


def compute(names: Sequence[str], steps: int) -> list[dict[str, float]]:
    """Nanoseconds of one record through one parameter: a step of 32, forward, back and update."""
    torch.set_num_threads(1)
    rows = []
    for name in names:
        model = real.FACTORIES[name]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = torch.randn(32, real.FEATURES), torch.zeros(32, dtype=torch.long)

        def step(model: Any = model, optimizer: Any = optimizer, x: Any = x, y: Any = y) -> None:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        step()
        count = real.parameters(name)
        taken = median(_took(step) for _ in range(steps))
        rows.append({"parameters": count, "ns": 1e9 * taken / (32 * count)})
    return rows


# Votes


def votes(members: int) -> dict[str, Any]:
    """One decision among members with real keys and stores: messages, their bytes, the longest."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("UNWALK_BENCH_DIR")) as place:
        folder = Path(place) / "net"
        settings = {"task": "blobs", "forget.kind": "nothing", "train.hops": 4}
        network = make_network(
            folder, name="votes", addresses=free_addresses(members), settings=settings
        )
        matter = Matter("scale", 1, network.rules(frozenset(), first=1))
        lengths: list[int] = []
        polls: list[Poll] = []

        async def tell(sender: int, receiver: int, record: dict[str, Any]) -> Any:
            await asyncio.sleep(LATENCY)
            said = codec.dump({"poll": record})
            answer = polls[receiver].answer(sender, codec.parse(said, MESSAGE)["poll"])
            answered = codec.dump({"poll": answer})
            lengths.extend((len(said), len(answered)))
            await asyncio.sleep(LATENCY)
            return codec.parse(answered, MESSAGE)["poll"]

        for peer in range(members):
            bundle = Bundle.read(folder / f"peer-{peer}")

            def told_by(receiver: int, record: dict[str, Any], sender: int = peer) -> Any:
                return tell(sender, receiver, record)

            polls.append(
                Poll(
                    Clerk(bundle, bundle.trust()),
                    Store(bundle.store),
                    Journal(None, bundle.name),
                    matter,
                    judge=lambda text, polled: True,
                    offer=lambda peer=peer: TEXT if peer == 0 else None,  # type: ignore[misc]
                    told=lambda text, decision: None,
                    tell=told_by,
                    pace=60.0,
                    digest=digest_of,
                )
            )

        async def decide() -> None:
            await asyncio.gather(*(poll.run() for poll in polls))

        began = process_time()
        asyncio.run(decide())
        seconds = process_time() - began
        decisions = [poll.state.decided for poll in polls]
        for poll in polls:
            poll.store.close()
        return {
            "n": members,
            "messages": len(lengths),
            "bytes": sum(lengths),
            "longest": max(lengths),
            "member_s": seconds / members,
            "rounds": 1 + max(d.round for d in decisions if d),
            "decision": len(json.dumps(decision_to(next(d for d in decisions if d)))),
        }


# Certificates


def certificate(hops: int) -> dict[str, Any]:
    """A rewind over a walk of so many hops in all: its files, and how long verifying takes."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        settings: dict[str, Any] = {
            "peers": 10,
            "train.hops": hops // 2,
            "evaluate.every": hops,
            "compare": "none",
            "data.records": RECORDS,
            "train.batch": RECORDS,
            "forget.size": 2,
        }
        run("blobs", method="rewind", settings=settings, out=folder)
        path = folder / "transcript.jsonl"
        document = read_certificate(folder / "certificate.json")
        model = (folder / "model.safetensors").read_bytes()
        began = process_time()
        verdict = verify(document, Transcript.read(path), model=model)
        seconds = process_time() - began
        if verdict.problems:
            raise SystemExit(f"the certificate does not verify: {verdict.problems}")
        done = document["transcript"]["hops"]
        return {
            "hops": done,
            "certificate": (folder / "certificate.json").stat().st_size,
            "transcript": path.stat().st_size,
            "bytes_hop": path.stat().st_size / done,
            "verify_s": seconds,
        }


# All of it


def machine() -> str:
    cores, system = os.cpu_count(), platform.machine()
    return f"{cores} CPU cores, {system}, torch {torch.__version__}"


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def simulated(size: Size) -> dict[str, Any]:
    """Walks of the engine, each in a process of its own so that memory can be told apart."""
    context, rows = multiprocessing.get_context("forkserver"), []
    context.set_forkserver_preload(["benchmarks.scale"])
    for peers in size.peers:
        for kind in GRAPHS:
            with context.Pool(1) as pool:
                rows.append(pool.apply(engine, (kind, peers, max(size.hops, peers // 10))))
    return {"simulator": rows, "bookkeeping": bookkeeping(size.hops)}


PARTS: dict[str, Callable[[Size], dict[str, Any]]] = {
    "simulator": simulated,
    "routes": lambda size: {"routes": [routes(k, n) for n in size.peers for k in GRAPHS]},
    "peers": between_peers,
    "bytes": lambda size: {
        "bytes": bytes_alone(size.piece),
        "compute": compute([name for name, _ in size.walks], size.steps),
    },
    "votes": lambda size: {
        "votes": [votes(n) for n in size.voters],
        "votes_check": votes(size.more_voters),
    },
    "certificates": lambda size: {"certificates": [certificate(n) for n in size.transcripts]},
}


def measure(size: Size, parts: Sequence[str], known: dict[str, Any]) -> dict[str, Any]:
    """Measure these parts; ``known`` has the others."""
    torch.set_num_threads(1)
    found = {**known, "machine": machine(), "parts": dict(known.get("parts", {}))}
    for part in parts:
        print(part, file=sys.stderr)
        began = perf_counter()
        found.update(PARTS[part](size))
        found["parts"][part] = {
            "commit": commit(),
            "command": f"python benchmarks/scale.py --json results/scale.json --part {part}",
            "load": round(os.getloadavg()[0], 1),
            "seconds": round(perf_counter() - began),
        }
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few hops: only shows that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument(
        "--part", action="append", choices=list(PARTS), help="only this; repeatable"
    )
    parser.add_argument("--table", nargs="?", const=PAGE, type=Path, metavar="PAGE")
    parser.add_argument("--from", dest="source", type=Path, default=RESULTS, metavar="FILE")
    asked = parser.parse_args(arguments)
    if asked.table:
        model = sm.Model(json.loads(asked.source.read_text()))
        asked.table.write_text(sm.filled(asked.table.read_text(), model))
        return 0
    kept = asked.part and asked.json and asked.json.exists()
    known = json.loads(asked.json.read_text()) if kept else {}
    found = measure(QUICK if asked.quick else Size(), asked.part or tuple(PARTS), known)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    model = sm.Model(found)
    if not set(PARTS) <= set(found["parts"]):
        return 0
    for name, make in sm.TABLES.items():
        print(f"{name}\n\n{make(model)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
