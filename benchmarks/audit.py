"""Audits every method before every observer, and writes one result per task and model.

    python benchmarks/audit.py --games digits-mlp --pairs 2000 --device cuda --out results/audit

A game is several audits, since no one setting suits all methods; verdicts are taken over all rows
together, and the result is written again after each of them.  What has been played is kept in
``--work``: after a kill, the same command goes on.  Without ``--pairs`` a few short runs are
played, to show that it works.  ``--parts exact,nominal`` plays these parts of each game alone, in
this order; parts that ended before are in the result too.  The exit code is 1 if a claim that is
proved was refuted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unwalk.audits.audit import audit, together, write_audit
from unwalk.audits.game import Game
from unwalk.runs.assemble import resolve
from unwalk.runs.store import partial_of

OBSERVERS = ("released", "peer:1", "coalition:others")
NOMINAL = "rrdu,ddp,dpsgd,noisy-finetune,langevin"
EXACT = "retrain,restart,rewind,sisa,ball-seal,user-dp"
UNPROVED = "finetune,skip-u,pga,neggrad,ssd,salun,scrub,newton,residual"
LINEAR = "seal,release,output-noise,noisy-start,sums"
PROVED = "seal,ball-seal,release,output-noise,noisy-start,user-dp,restart,retrain,rewind,sums"


UNTUNED = {
    "noisy_finetune.radius": 1.0,
    "noisy_finetune.step_size": 0.01,
    "pga.radius": 2.0,
    "pga.passes": 5,
    "pga.batch": 8,
    "scrub.alpha": 0.5,
    "scrub.ascents": 2,
    "scrub.batch": 8,
}
"""Settings of methods with which the games in ``results/audit`` were played."""


@dataclass(frozen=True)
class Part:
    """One audit: its methods and settings, and how it is played."""

    methods: str
    settings: dict[str, Any]
    way: dict[str, Any] = field(default_factory=dict)


def paper(model: str, methods: str) -> Part:
    """The paper's settings on digits; two shards, without which there is no sisa, and fewer steps
    of a visit than langevin usually takes.  Rivals are as they were before they were tuned."""
    settings = {"task": "digits", "model.name": model, "preset": "paper"}
    return Part(methods, {**settings, "train.shards": 2, "langevin.steps": 5, **UNTUNED})


def every(model: str) -> dict[str, Part]:
    """Every method on digits, proved claims first; a method that needs a linear model says so."""
    linear = model == "logistic"
    return {
        **({"certified": certified(LINEAR), "dp-training": dp_training()} if linear else {}),
        "exact": paper(model, EXACT if linear else f"{EXACT},{LINEAR}"),
        "nominal": paper(model, NOMINAL),
        "unproved": paper(model, UNPROVED),
    }


def certified(methods: str, **way: Any) -> Part:
    """The settings that certificates need: softmax regression, one record, the worst there is."""
    settings = {"task": "digits-flat", "preset": "certified", "forget.size": 1}
    return Part(methods, settings, {"canary": "gradient", **way})


def dp_training() -> Part:
    """Training with record-level differential privacy, under which a deletion costs nothing."""
    part = certified("dpsgd")
    return replace(part, settings={**part.settings, "dpsgd.reading": "from-start"})


GAMES: dict[str, dict[str, Part]] = {
    "rrdu": {"paper": paper("logistic", "rrdu")},
    "rrdu-mlp": {
        "paper": replace(paper("mlp", "rrdu"), way={"observers": ("released",)}),
    },
    "digits-logistic": every("logistic"),
    "digits-mlp": every("mlp"),
    "digits-cnn": every("small-cnn"),
    "mnist-flnet": {
        "paper": Part(
            "rrdu,finetune,ddp,noisy-finetune",
            {
                "task": "mnist",
                "model.name": "flnet",
                "preset": "paper",
                "train.minibatches": 1,
                "train.batch": 256,
                "train.hops": 50,
                "unlearn.hops": 50,
                **UNTUNED,
            },
        )
    },
    "proved": {"certified": certified(PROVED)},
    "proved-fixed": {"certified": certified("seal,release,noisy-start", coins="fixed")},
}
"""The parts of each game."""
SHORT = {"train.hops": 3, "unlearn.hops": 2, "seal.local_epochs": 0}
"""Settings of a run that only shows that it works."""


def main(words: list[str] | None = None) -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--pairs", type=int, default=None)
    asked.add_argument("--games", default="rrdu,proved,proved-fixed")
    asked.add_argument("--parts", default=None, help="parts of each game, the first one first")
    asked.add_argument("--engine", default="auto")
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--jobs", type=int, default=1)
    asked.add_argument("--work", type=Path, default=None, help="a folder for what has been played")
    asked.add_argument("--out", type=Path, default=None, help="a folder for the results")
    given = asked.parse_args(words)
    refuted = False
    with tempfile.TemporaryDirectory() as spare:
        for name in given.games.split(","):
            document = None
            for document in _played(name, given, given.work or Path(spare)):
                if given.out is not None:
                    _write(given.out, name, document)
            if document is None:
                continue
            refuted |= bool(document["refuted"])
            _show(document)
    return 1 if refuted else 0


def _played(name: str, given: argparse.Namespace, work: Path) -> Iterator[dict[str, Any]]:
    """All parts of a game that have ended, after each of them; those that ended before are read
    from their folders."""
    pairs = given.pairs or 8
    command = (
        f"python benchmarks/audit.py --games {name} --pairs {pairs} --engine {given.engine} "
        f"--device {given.device}"
    )
    game = GAMES[name]
    places = {label: work / f"{name}-{label}-{pairs}" for label in game}
    asked = list(game) if given.parts is None else given.parts.split(",")
    for label in asked:
        if label in game and not (places[label] / "audit.json").exists():
            _play(game[label], places[label], pairs, given, command)
        ended = [place / "audit.json" for place in places.values()]
        documents = [json.loads(f.read_text(encoding="utf-8")) for f in ended if f.exists()]
        if documents:
            yield together(documents, command)


def _play(part: Part, place: Path, pairs: int, given: argparse.Namespace, command: str) -> None:
    main_method, *others = part.methods.split(",")
    changes = {
        **part.settings,
        **({} if given.pairs else SHORT),
        "method": main_method,
        "compare": others,
        "performance.engine": given.engine,
        "device": given.device,
    }
    began = time.perf_counter()
    audit(
        Game(resolve(changes), **{"observers": OBSERVERS, **part.way}),
        pairs,
        out=place,
        resume=partial_of(place).exists(),
        command=command,
        jobs=given.jobs,
        count=lambda done, cells: print(f"{done} of {cells} cells", flush=True),
    )
    print(f"{place.name}: {time.perf_counter() - began:.0f} s", flush=True)


def _show(document: dict[str, Any]) -> None:
    for row in document["rows"]:
        claimed = "-" if row["epsilon"] is None else f"{row['epsilon']:.2f}"
        print(
            f"  {row['method']:14} {row['observer']:17} {row['grade']:11} {claimed:>5} "
            f"audited {row['audited']:.2f} of {row['cap']:.2f}, family-wise {row['family']:.2f} of "
            f"{row['family_cap']:.2f}, by {row['attacker']}: {row['verdict']}"
        )
    for one in document["failed"]:
        print(f"  {one['method']:14} was not played: {one['reason']}")


def _write(out: Path, name: str, document: dict[str, Any]) -> None:
    """The page, the picture and the table; and every number but the attackers not chosen."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as made:
        write_audit(Path(made), document)
        for kind, file in (
            ("html", "report.html"),
            ("svg", "audit.svg"),
            ("csv", "audit.csv"),
        ):
            (Path(made) / file).replace(out / f"{name}.{kind}")
    for row in document["rows"]:
        del row["tried"]
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    (out / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
