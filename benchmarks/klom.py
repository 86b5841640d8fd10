"""KLOM on forget sets of data-unlearning-bench: how far methods end from retrained models.

    python benchmarks/klom.py [--out DIR] [--jobs 4] [--device cpu] [--set KEY=VALUE ...]

Task ``cifar10-klom``: 20 models are trained once and forget each set by each method; beside them
stand 20 models with other seeds for each set, which were trained without it.  KLOM (arXiv
2410.23232) is taken at the 95th percentile over the forgotten, retained and validation records.
``--models``, ``--sets`` and ``--methods`` change numbers and choice.  Without a CUDA device nothing
is measured unless ``--device cpu`` asks for it: that takes days.

``DIR/margins.npz`` holds the margins of every model, is written again as models come, and is
read at the start: the same command goes on where it was stopped.  After ``--minutes`` no further
model is begun.  ``DIR/klom.json`` and a table on the screen come from the margins alone; models a
side are what there is.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core.data import Held
from unwalk.core.errors import UnwalkError
from unwalk.core.seeds import PublicSeeds
from unwalk.measures.divergence import klom_dealt, klom_percentile
from unwalk.measures.intervals import resampled
from unwalk.measures.margins import margins
from unwalk.runs.assemble import Assembled, assemble, resolve
from unwalk.runs.ensemble import member
from unwalk.runs.metrics import logits_of
from unwalk.runs.run import Runner, Walked
from unwalk.runs.store import write_file
from unwalk.runs.sweep import Cell, Failed, sweep
from unwalk.settings.config import Value

SETS = (2, 3, 5)
METHODS = ("finetune", "rrdu", "neggrad", "scrub", "salun", "pga")
BEFORE, ORACLE = "trained", "retrain"
POINTS = ("forget", "retain", "validation")
LEAST = 4
"""The fewest models of an arm that make a row."""
MOST = 2000
"""How many retained and how many validation records the models are compared on."""
ORACLES = 1000
"""Seeds of oracles begin here, times the number of their set."""
PAUSE = 15.0
"""Seconds between two writings of the margins."""
SETTINGS: dict[str, Value] = {
    "task": "cifar10-klom",
    "train.hops": 80,
    "train.batch": 128,
    "train.learning_rate": 0.02,
    "unlearn.hops": 5,
    "unlearn.p": 0.5,
    "unlearn.clip": 0.2,
    "evaluate.every": 1_000_000,
}
ON_CUDA: dict[str, Value] = {
    "performance.precision": "bfloat16",
    "performance.compiled": True,
}

Settings = tuple[tuple[str, Value], ...]
Floats = npt.NDArray[np.float32]


@lru_cache
def assembled(settings: Settings, number: int) -> Assembled:
    """The task with one forget set."""
    return assemble(resolve({**dict(settings), "data.forget_set": number}))


@lru_cache
def points(settings: Settings, number: int) -> dict[str, Held]:
    """The records on which models are compared; retained ones are drawn from all peers."""
    task = assembled(settings, number).task
    rng = PublicSeeds(0).numpy("klom", "points", number)
    test = np.sort(rng.permutation(len(task.test.y))[:MOST])
    kept: list[Held] = []
    for peer in range(task.peers):
        shard, records = task.shard(peer), task.records(peer)
        quota = round(MOST * records.retained.size / task.training_records)
        rows = np.sort(rng.permutation(records.retained)[:quota])
        kept.append(Held(*shard.take(torch.from_numpy(rows), None)))
    return {
        "forget": task.forgotten,
        "retain": Held(torch.cat([h.x for h in kept]), torch.cat([h.y for h in kept])),
        "validation": Held(task.test.x[test], task.test.y[test]),
    }


def measured(settings: Settings, number: int, walked: Walked) -> dict[str, Floats]:
    """A model's margins on every kind of records of a set, its test accuracy, and its seconds."""
    model = walked.model
    device = next(model.parameters()).device
    phase = walked.outcome.plan.phases[-1]
    found: dict[str, Floats] = {
        "accuracy": np.array([walked.readings[-1].clean], np.float32),
        "seconds": np.array([sum(walked.seconds[-phase.hops :])], np.float32),
    }
    for name, held in points(settings, number).items():
        logits = logits_of(model, held.x, device)
        found[name] = margins(logits, held.y.numpy()).astype(np.float32)
    return found


def unlearned(
    settings: Settings, seed: int, sets: Sequence[int], methods: Sequence[str], until: float
) -> dict[str, Any]:
    """One model that is trained once and forgets each set by each method."""
    found: dict[str, Any] = {}
    if time.time() > until:
        return found
    trained: Walked | None = None
    for number in sets:
        runner = Runner(member(assembled(settings, number), seed))
        if trained is None:
            trained = runner.walk("train", runner.assembled.training(), None)
        _put(found, number, BEFORE, seed, measured(settings, number, trained))
        for name in methods:
            try:
                plan = runner.assembled.unlearning(name, trained.outcome.transcript)
                walked = runner.walk(name, plan, trained)
            except UnwalkError as error:
                found[f"failed/{number}/{name}"] = str(error)
                continue
            _put(found, number, name, seed, measured(settings, number, walked))
    return found


def retrained(settings: Settings, seed: int, number: int, until: float) -> dict[str, Any]:
    """One model that never saw a set."""
    found: dict[str, Any] = {}
    if time.time() < until:
        runner = Runner(member(assembled(settings, number), ORACLES * number + seed))
        walked = runner.walk(ORACLE, runner.assembled.unlearning(ORACLE), None)
        _put(found, number, ORACLE, seed, measured(settings, number, walked))
    return found


def _put(
    found: dict[str, Any], number: int, name: str, seed: int, arrays: Mapping[str, Floats]
) -> None:
    for which, values in arrays.items():
        found[f"{number}/{name}/{seed}/{which}"] = values


def cells(
    settings: Settings,
    sets: Sequence[int],
    methods: Sequence[str],
    models: int,
    known: Iterable[str],
    until: float,
) -> list[Cell]:
    """What is missing, seed by seed, so that arms grow together."""
    there, wanted = set(known), []
    for seed in range(models):
        needed = [f"{n}/{m}/{seed}/forget" for n in sets for m in (BEFORE, *methods)]
        if not there.issuperset(needed):
            wanted.append(
                Cell(f"unlearned-{seed}", unlearned, (settings, seed, sets, methods, until))
            )
        for number in sets:
            if f"{number}/{ORACLE}/{seed}/forget" not in there:
                arguments = (settings, seed, number, until)
                wanted.append(Cell(f"retrained-{number}-{seed}", retrained, arguments))
    return wanted


def table(found: Mapping[str, Floats], sets: Sequence[int], methods: Sequence[str]) -> list[Any]:
    """A row for each set, method and kind of records.

    ``klom`` compares the models of a method with the oracles.  What it would be if both were
    retraining is read off by dealing all these models anew to the two sides: ``klom_same`` is the
    median, ``klom_level`` the 95th percentile, ``p_value`` the share that is as large.  The gap of
    margins has the interval of resampled models.
    """
    rows = []
    for number in sets:
        for which in POINTS:
            oracles = _arm(found, number, ORACLE, which)
            for name in (BEFORE, *methods):
                ours = _arm(found, number, name, which)
                if min(len(ours), len(oracles)) < LEAST:
                    continue
                value, dealt = klom_percentile(ours, oracles), klom_dealt(ours, oracles)
                means = [ours.mean(1), oracles.mean(1)]
                gap = resampled(lambda a, b: float(a.mean() - b.mean()), means)
                accuracies = [_arm(found, number, n, "accuracy").mean() for n in (name, ORACLE)]
                rows.append(
                    {
                        "set": number,
                        "records": which,
                        "count": int(ours.shape[1]),
                        "method": name,
                        "models": len(ours),
                        "oracles": len(oracles),
                        "klom": value,
                        "klom_same": float(np.median(dealt)),
                        "klom_level": float(np.percentile(dealt, 95.0)),
                        "p_value": (1 + sum(one >= value for one in dealt)) / (1 + len(dealt)),
                        "margin_retraining": float(means[1].mean()),
                        "margin_gap": gap.value,
                        "margin_gap_low": gap.low,
                        "margin_gap_high": gap.high,
                        "accuracy": float(accuracies[0]),
                        "accuracy_retraining": float(accuracies[1]),
                        "seconds": float(_arm(found, number, name, "seconds").mean()),
                    }
                )
    return rows


def _arm(found: Mapping[str, Floats], number: int, name: str, which: str) -> Any:
    """Margins of all models of an arm, in the order of their seeds."""
    start, end = f"{number}/{name}/", f"/{which}"
    keys = [key for key in found if key.startswith(start) and key.endswith(end)]
    keys.sort(key=lambda key: int(key.split("/")[2]))
    return np.stack([found[key] for key in keys]).astype(np.float64) if keys else np.empty((0, 0))


def told(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as text, a block for each set."""
    lines = []
    for number in dict.fromkeys(row["set"] for row in rows):
        mine = [row for row in rows if row["set"] == number]
        size = next(row["count"] for row in mine if row["records"] == "forget")
        lines.append(f"\nforget set {number} ({size} records): KLOM at the 95th percentile, nats")
        lines.append(f"{'method':<10}{'models':>9}" + "".join(f" {p:>28}" for p in POINTS))
        for name in dict.fromkeys(row["method"] for row in mine):
            own = {row["records"]: row for row in mine if row["method"] == name}
            cells = [
                f"{one['klom']:.2f} (level {one['klom_level']:.2f}, φ {one['margin_gap']:+.2f})"
                for one in (own[p] for p in POINTS)
            ]
            one = own["forget"]
            counts = f"{one['models']}/{one['oracles']}"
            accuracy = f"   accuracy {100 * one['accuracy']:.2f} %"
            lines.append(f"{name:<10}{counts:>9}" + "".join(f" {c:>28}" for c in cells) + accuracy)
        oracle = 100 * mine[0]["accuracy_retraining"]
        lines.append(f"accuracy of retraining: {oracle:.2f} %")
    return "\n".join(lines)


def _read(place: Path) -> dict[str, Any]:
    if not place.exists():
        return {}
    with np.load(place, allow_pickle=False) as kept:
        return {name: kept[name] for name in kept.files}


def _write(out: Path, found: Mapping[str, Any]) -> None:
    raw = BytesIO()
    np.savez(raw, **found)
    write_file(out / "margins.npz", raw.getvalue())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/klom"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--sets", default=",".join(map(str, SETS)))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args(arguments)
    sets = tuple(int(number) for number in asked.sets.split(","))
    methods = tuple(asked.methods.split(","))
    changes: dict[str, Value] = dict(pair.split("=", 1) for pair in asked.set)
    on = {"device": asked.device, **(ON_CUDA if asked.device != "cpu" else {})}
    settings: Settings = tuple({**SETTINGS, **on, **changes}.items())
    found, failed = _read(asked.out / "margins.npz"), {}
    start = written = time.time()
    until = start + 60.0 * asked.minutes
    left = cells(settings, sets, methods, asked.models, found, until)
    if left and asked.device == "cuda" and not torch.cuda.is_available():
        print("this machine shows no CUDA device; nothing measured")
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, result in sweep(left, jobs=asked.jobs):
        if isinstance(result, Failed):
            failed[name] = result.reason
            print(f"{time.time() - start:6.1f} s  {name} failed: {result.reason}", flush=True)
            continue
        failed.update({key: why for key, why in result.items() if key.startswith("failed/")})
        arrays = {key: values for key, values in result.items() if not key.startswith("failed/")}
        found.update(arrays)
        took = ", ".join(
            f"{key.split('/')[1]} {values[0]:.1f}"
            for key, values in arrays.items()
            if key.endswith("/seconds")
        )
        print(f"{time.time() - start:6.1f} s  {name}, hops in seconds: {took}", flush=True)
        if time.time() - written > PAUSE:
            _write(asked.out, found)
            written = time.time()
    if left:
        _write(asked.out, found)
    rows = table(found, sets, methods)
    document = {
        "settings": dict(settings),
        "failed": failed,
        "rows": rows,
    }
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    write_file(asked.out / "klom.json", text.encode())
    print(told(rows))
    for name, why in failed.items():
        print(f"failed: {name}: {why}")
    return 1 if failed else 0


if __name__ == "__main__":
    # Workers know functions by their module, which is not the command's.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    klom = importlib.import_module("benchmarks.klom")
    raise SystemExit(klom.main())
