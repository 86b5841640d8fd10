"""Audits every method before every observer, and writes one result per task and model.

    python benchmarks/audit.py --games digits-mlp --pairs 2000 --device cuda --out results/audit

A game is one ``unwalk audit``, or two where no one setting suits all methods; then verdicts are
taken over all rows together.  What has been played is kept in ``--work``: after a kill, the same
command goes on.  Without ``--pairs`` a few short runs are played, to show that it works.  The exit
code is 1 if a claim that is proved was refuted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unwalk.audits.audit import audit, together, write_audit
from unwalk.audits.game import Game
from unwalk.runs.assemble import resolve
from unwalk.runs.store import partial_of

OBSERVERS = ("released", "peer:1", "coalition:others")
ANY_MODEL = "rrdu,finetune,ddp,dpsgd,noisy-finetune,retrain,restart,rewind,sisa,ball-seal"
LINEAR = "seal,release,noisy-start,sums"
PROVED = "seal,ball-seal,release,noisy-start,restart,retrain,rewind,sums"


@dataclass(frozen=True)
class Part:
    """One audit: its methods and settings, and how it is played."""

    methods: str
    settings: dict[str, Any]
    way: dict[str, Any] = field(default_factory=dict)


def paper(model: str, methods: str = ANY_MODEL) -> Part:
    """The paper's settings on digits; two shards, without which there is no sisa."""
    return Part(
        methods, {"task": "digits", "model.name": model, "preset": "paper", "train.shards": 2}
    )


def certified(methods: str, **way: Any) -> Part:
    """The settings that certificates need: softmax regression, one record, the worst there is."""
    settings = {"task": "digits-flat", "preset": "certified", "forget.size": 1}
    return Part(methods, settings, {"canary": "gradient", **way})


GAMES: dict[str, dict[str, Part]] = {
    "rrdu": {"paper": paper("logistic", "rrdu")},
    "digits-logistic": {"paper": paper("logistic"), "certified": certified(LINEAR)},
    "digits-mlp": {"paper": paper("mlp", f"{ANY_MODEL},{LINEAR}")},
    "digits-cnn": {"paper": paper("small-cnn", f"{ANY_MODEL},{LINEAR}")},
    "mnist-flnet": {
        "paper": Part(
            "rrdu,finetune,ddp,noisy-finetune",
            {
                "task": "mnist",
                "model.name": "flnet",
                "preset": "paper",
                "train.hops": 50,
                "unlearn.hops": 50,
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
    asked.add_argument("--engine", default="fleet")
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--jobs", type=int, default=1)
    asked.add_argument("--work", type=Path, default=None, help="a folder for what has been played")
    asked.add_argument("--out", type=Path, default=None, help="a folder for the results")
    given = asked.parse_args(words)
    refuted = False
    with tempfile.TemporaryDirectory() as spare:
        for name in given.games.split(","):
            document = _played(name, given, given.work or Path(spare))
            refuted |= bool(document["refuted"])
            _show(document)
            if given.out is not None:
                _write(given.out, name, document)
    return 1 if refuted else 0


def _played(name: str, given: argparse.Namespace, work: Path) -> dict[str, Any]:
    """All parts of a game, those that ended before read from their folders."""
    pairs = given.pairs or 8
    command = f"python benchmarks/audit.py --games {name} --pairs {pairs} --device {given.device}"
    documents = []
    for label, part in GAMES[name].items():
        place = work / f"{name}-{label}-{pairs}"
        if not (place / "audit.json").exists():
            main_method, *others = part.methods.split(",")
            changes = {
                **part.settings,
                **({} if given.pairs else SHORT),
                "method": main_method,
                "compare": others,
                "performance.engine": given.engine,
                "device": given.device,
            }
            began, clock = time.process_time(), time.perf_counter()
            audit(
                Game(resolve(changes), **{"observers": OBSERVERS, **part.way}),
                pairs,
                out=place,
                resume=partial_of(place).exists(),
                command=command,
                jobs=given.jobs,
                count=lambda done, cells: print(f"{done} of {cells} cells", flush=True),
            )
            processor, wall = time.process_time() - began, time.perf_counter() - clock
            print(f"{name}, {label}: {pairs} pairs, {processor:.0f} s of processor, {wall:.0f} s")
        documents.append(json.loads((place / "audit.json").read_text(encoding="utf-8")))
    return together(documents, command)


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
