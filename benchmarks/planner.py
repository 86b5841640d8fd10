"""Whether the planner picks well: random deletion requests, planned, then met in every way.

    python benchmarks/planner.py [--json results/planner.json] [--part digits ...] [--quick]

A request is drawn by seed: training, peer, records, grade, epsilon, delta, budget of hops, and a
slow or a fast network.  Its training is carried out, the planner reads the log, and every way that
it offers is walked as planned, those over the budget too.  Hindsight knows what each has cost:

* ``counted``: messages and bytes of the walk that happened at the network's rates, and its
  gradients at the seconds that one took in the training log;
* ``clocked``: the same with the seconds that the walk computed;
* ``matched``: counted only until clean accuracy is within one point of that before forgetting, and
  stays so.

Seconds are the processor's, so that other work on the machine does not count.

A ratio is the pick's cost over the cheapest's, among ways that reached the grade within the budget.
Without a way that did, planner and hindsight have to agree that there is none.  After each request
the file is written: the same command goes on where it was stopped.  Without --json two requests are
met, to show that it runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from unwalk.certificates import certificate_of
from unwalk.core.grades import badge_of
from unwalk.core.transcript import Hop, Transcript
from unwalk.engines.inprocess import InProcess
from unwalk.runs import metrics
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.finished import FinishedRun
from unwalk.runs.metrics import Reading
from unwalk.runs.planner import (
    GRADES,
    WALKING,
    Budget,
    Log,
    Offer,
    Planner,
    Rates,
    free_readings,
)
from unwalk.runs.run import Runner, Walked, train
from unwalk.runs.store import write_file
from unwalk.settings.config import Value

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = {"slow": Rates(message=0.1, byte=8e-8), "fast": Rates(message=2e-4, byte=1e-9)}
"""A network across a country at 100 Mbit/s, and one in a room at 8 Gbit/s."""
LIMIT = 1.1
"""A pick may cost so many times what the best in hindsight did."""
MEASURES = ("counted", "clocked", "matched")
COUNTS = ("hops", "messages", "bytes", "gradients")

Settings = Mapping[str, Value]
WALK: Settings = {"method": "rewind", "rewind.way": "first-use", "forget.kind": "records"}
FEW: Settings = {"train.work": "iid", "train.minibatches": 1, "train.batch": 16}
PLAIN: Settings = {"model.name": "linear", "data.extractor": "plain", "data.norm": 1.0}
SHARDS: Settings = {"train.shards": 2, "train.slices": 3, "method": "sisa"}


@dataclass(frozen=True)
class Part:
    """How many requests are drawn on a task, for how many records at most, after which trainings.

    Training walks ``hops``.
    """

    requests: int
    most: int
    hops: int
    trainings: Mapping[str, Settings]


def _trainings(task: str, flat: str, head: Settings, network: Settings) -> dict[str, Settings]:
    """What a model may have been trained like before the request."""
    walk: Settings = {"task": task, **WALK, **network}
    sealed: Settings = {"task": flat, "preset": "certified", **WALK, **head}
    return {
        "walk": walk,
        "few batches": {**walk, **FEW},
        "shards": {**walk, **SHARDS},
        "certified": sealed,
        "noise from the start": {**sealed, "method": "noisy-start"},
        "sums": {"task": flat, **WALK, **head, "method": "sums"},
    }


MNIST_HEAD: Settings = {**PLAIN, "seal.local_epochs": 10}
MNIST_NETWORK: Settings = {"model.name": "mlp", "train.work": "iid", "train.minibatches": 8}
PARTS = {
    "digits": Part(90, 60, 60, _trainings("digits", "digits-flat", {}, {"model.name": "mlp"})),
    "heart": Part(90, 60, 60, _trainings("heart", "heart", {"model.name": "linear"}, {})),
    "mnist": Part(20, 300, 30, _trainings("mnist", "mnist", MNIST_HEAD, MNIST_NETWORK)),
}


@dataclass(frozen=True)
class Asked:
    """One request."""

    part: str
    number: int
    training: str
    seed: int
    peer: int
    records: int
    grade: str
    epsilon: float
    delta: float
    network: str
    hops: int | None

    @staticmethod
    def drawn(part: str, number: int, seed: int) -> Asked:
        """A request with this number."""
        rng = np.random.default_rng([seed, list(PARTS).index(part), number])
        return Asked(
            part,
            number,
            training=str(rng.choice(list(PARTS[part].trainings))),
            seed=int(rng.integers(10)),
            peer=int(rng.integers(4)),
            records=round(math.exp(rng.uniform(0.0, math.log(PARTS[part].most)))),
            grade=str(rng.choice(GRADES)),
            epsilon=round(math.exp(rng.uniform(math.log(0.2), math.log(8.0))), 3),
            delta=10.0 ** -int(rng.integers(4, 8)),
            network=str(rng.choice(list(NETWORKS))),
            hops=int(rng.integers(PARTS[part].hops)) if rng.random() < 0.4 else None,
        )

    def settings(self, secret: Path) -> dict[str, Value]:
        """The run that trained, with this request; its noise is secret, as a guarantee needs it."""
        part = PARTS[self.part]
        return {
            **part.trainings[self.training],
            "train.hops": part.hops,
            "unlearn.hops": part.hops,
            "evaluate.every": 1,
            "seed": self.seed,
            "compare": [],
            "forget.peer": self.peer,
            "forget.size": self.records,
            "unlearn.epsilon": self.epsilon,
            "unlearn.delta": self.delta,
            "noise.source": "secret",
            "noise.secret_file": str(secret),
        }


def _secret(folder: Path) -> Path:
    path = folder / "noise.secret"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return path


def met(asked: Asked) -> dict[str, Any]:
    """One request planned, and every way walked: what was foreseen of each, and what came."""
    clock = patch("unwalk.runs.run.time.perf_counter", time.thread_time)
    with clock, tempfile.TemporaryDirectory() as folder:
        planner = Planner(assemble(resolve(asked.settings(_secret(Path(folder))))))
        trained = _trained(planner)
        planner, log = _read(planner, trained)
        rates, budget = NETWORKS[asked.network], Budget(hops=asked.hops)
        planned = FinishedRun(planner, log).plan(asked.grade, rates, budget)
        free = FinishedRun(planner, log).plan(asked.grade, rates)
        offers = [one for one in free.offers if one.reaches(asked.grade)]
        walks = {one.way: _walked(planner, one, trained) for one in offers}
    before = next(r for r in reversed(trained.readings) if r.phase == "train")
    rows = {one.way: _row(planned.rates, one, walks[one.way], before) for one in offers}
    return {
        **asdict(asked),
        "pick": None if planned.best is None else planned.best.way,
        "gradient": planned.rates.gradient,
        "ways": rows,
    }


def _trained(planner: Planner) -> Walked:
    """The walk that learned; of a method with its own way of training, all of its walk."""
    runner = Runner(planner.assembled)
    if planner.training == WALKING:
        return train([runner], InProcess())[0]
    method = planner.config.method
    return runner.walk(method, planner.assembled.unlearning(method), None)


def _read(planner: Planner, trained: Walked) -> tuple[Planner, Log]:
    """The planner with what training recorded, as it reads it in the folder of a finished run."""
    transcript = trained.outcome.transcript
    last = len(transcript.hops)
    if planner.training != WALKING:
        last -= trained.outcome.plan.phases[-1].hops
    hops = transcript.hops[:last]
    known = replace(planner, walked=Transcript(transcript.header, list(hops)))
    readings = ((r.hop, r.phase, r.clean) for r in trained.readings)
    log = Log(
        trained.seconds[:last],
        [hop.gradients for hop in hops],
        free_readings(readings, known.first_contact),
    )
    return known, log


def _walked(planner: Planner, offer: Offer, trained: Walked) -> Walked:
    """The way as it was offered, from the model that was trained."""
    if offer.method == planner.training:
        return trained
    shared = trained if planner.training == WALKING else None
    assembled = replace(planner.assembled, config=planner.settled(offer))
    plan = assembled.unlearning(offer.method, planner.trained)
    return Runner(assembled).walk(offer.method, plan, shared)


def _row(rates: Rates, offer: Offer, walked: Walked, before: Reading) -> dict[str, Any]:
    """What was foreseen of a way beside what came."""
    phase = walked.outcome.plan.phases[-1]
    first = walked.outcome.plan.hops - phase.hops
    transcript = walked.outcome.transcript
    hops, last = transcript.hops[first:], walked.readings[-1]
    cost = metrics.cost(transcript, [phase.name], walked.outcome.plan.unlearner)
    reached = metrics.matched(walked.readings, phase.name, first, before)["clean_hop"]
    if not hops and last.clean >= before.clean - metrics.CLEAN_MARGIN:
        reached = 0
    return {
        "foreseen": [*(getattr(offer, key) for key in COUNTS), offer.grade],
        "came": [*(cost[key] for key in COUNTS), _grade(certificate_of(transcript))],
        "predicted": round(rates.seconds(offer), 6),
        "counted": round(_seconds(rates, hops), 6),
        "clocked": round(
            _seconds(replace(rates, gradient=0.0, visit=0.0), hops) + sum(walked.seconds[first:]), 6
        ),
        "matched": None if reached is None else round(_seconds(rates, hops[:reached]), 6),
        "clean": round(last.clean, 4),
    }


def _grade(document: Mapping[str, Any]) -> str:
    """What was reached: the grade that people are shown, or nominal where a formula's number stands
    before what is refused."""
    stated = any(claim["grade"] == "nominal" for claim in document["claims"])
    shown = badge_of(document)
    return "nominal" if shown == "refused" and stated else shown


def _seconds(rates: Rates, hops: Sequence[Hop]) -> float:
    moved = sum(len(hop.path) * rates.message + hop.nbytes * rates.byte for hop in hops)
    return moved + len(hops) * rates.visit + sum(hop.gradients for hop in hops) * rates.gradient


# What the requests show together


def judged(row: Mapping[str, Any], measure: str) -> tuple[float, float] | None:
    """What the pick cost, and what the cheapest in hindsight did; None where no way was there.

    A pick that does not do what was asked costs infinitely much, as none does where there was one.
    """
    most = math.inf if row["hops"] is None else row["hops"]
    able = {
        way: one[measure]
        for way, one in row["ways"].items()
        if one["came"][0] <= most and one["came"][-1] in GRADES[: GRADES.index(row["grade"]) + 1]
    }
    good = [cost for cost in able.values() if cost is not None]
    if row["pick"] is not None and row["pick"] not in able:
        return math.inf, min(good, default=0.0)
    if not good:
        return None
    taken = able.get(row["pick"])
    return math.inf if taken is None else taken, min(good)


def foreseen(row: Mapping[str, Any]) -> bool:
    """Whether every way did what was foreseen: hops, messages, bytes, gradients and grade."""
    return all(one["foreseen"] == one["came"] for one in row["ways"].values())


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a line of the table says."""
    result: dict[str, Any] = {
        "requests": len(rows),
        "without": sum(row["pick"] is None for row in rows),
        "ways": sum(len(row["ways"]) for row in rows),
        "as_foreseen": sum(map(foreseen, rows)),
    }
    for measure in MEASURES:
        pairs = [pair for row in rows if (pair := judged(row, measure)) is not None]
        finite = [pair for pair in pairs if math.isfinite(pair[0])]
        best = sum(least for _, least in finite)
        result[measure] = {
            "judged": len(pairs),
            "within": sum(cost <= LIMIT * least for cost, least in pairs),
            "short": len(pairs) - len(finite),
            "in_all": round(sum(cost for cost, _ in finite) / best, 4) if best else None,
            "worst": max((round(cost / least, 4) for cost, least in finite if least), default=None),
        }
    return result


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The requests of each part, and of all."""
    lines = [
        f"{'':8s}{'requests':>10s}{'no way':>8s}{'ways':>6s}{'as foreseen':>13s}"
        + "".join(f"{m + f' <= {LIMIT}':>18s}{'in all':>8s}{'worst':>8s}" for m in MEASURES)
    ]
    for name in (*PARTS, "all"):
        mine = [row for row in rows if name in (row["part"], "all")]
        if not mine:
            continue
        found = summary(mine)
        line = f"{name:8s}{found['requests']:10d}{found['without']:8d}{found['ways']:6d}"
        line += f"{found['as_foreseen']:13d}"
        for measure in MEASURES:
            m = found[measure]
            share = f"{m['within']} of {m['judged']}"
            total, worst = ("-" if m[k] is None else f"{m[k]:.3f}" for k in ("in_all", "worst"))
            line += f"{share:>18s}{total:>8s}{worst:>8s}"
        lines.append(line)
    return "\n".join(lines)


def machine() -> str:
    return f"{os.cpu_count()} CPU cores, {platform.machine()}, torch {torch.__version__}"


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def written(rows: Sequence[Mapping[str, Any]]) -> str:
    """The file, with a line for each request."""
    head = {
        "command": "python benchmarks/planner.py --json results/planner.json",
        "machine": machine(),
        "limit": LIMIT,
        "all": summary(rows),
    }
    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
    return json.dumps(head, indent=1)[:-2] + f',\n "requests": [\n{lines}\n]}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write here, go on from here")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, help="so many of each part")
    parser.add_argument("--quick", action="store_true", help="two requests on digits")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    parts, number = given.part or list(PARTS), given.requests
    if given.quick or given.json is None:
        parts, number = ["digits"], 2
    asked = [
        Asked.drawn(part, n, given.seed)
        for part in parts
        for n in range(PARTS[part].requests if number is None else number)
    ]
    rows: list[dict[str, Any]] = []
    if given.json and given.json.exists():
        rows = json.loads(given.json.read_text())["requests"]
    now = commit()[:12]
    done = [{key: row[key] for key in asdict(asked[0])} for row in rows]
    for one in asked:
        if asdict(one) not in done:
            rows.append({**met(one), "commit": now})
            print(f"{one.part} {one.number} {one.training}: {rows[-1]['pick']}", file=sys.stderr)
        if given.json:
            write_file(given.json, written(rows))
    print(table(rows))
    counted = summary(rows)["counted"]
    return 0 if counted["within"] == counted["judged"] else 1


if __name__ == "__main__":
    sys.exit(main())
