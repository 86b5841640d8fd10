"""Audits the paper's RR-DU before every observer, and the proved methods, and writes the results.

    python benchmarks/audit.py --pairs 300 --out results/audit

Each game is one ``unwalk audit``.  Without ``--pairs`` a few short runs are played, to show that
it works.  The exit code is 1 if a claim that is proved was refuted.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from unwalk.audits.audit import audit
from unwalk.audits.game import Game
from unwalk.runs.assemble import resolve

OBSERVERS = ("released", "peer:1", "coalition:others")
PROVED = "seal,ball-seal,release,noisy-start,restart,retrain,rewind,sums"
GAMES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rrdu": (
        {"task": "digits", "model.name": "logistic", "preset": "paper", "method": "rrdu"},
        {"observers": OBSERVERS},
    ),
    "proved": (
        {"task": "digits-flat", "preset": "certified", "methods": PROVED, "forget.size": 1},
        {"observers": OBSERVERS, "canary": "gradient"},
    ),
    "proved-fixed": (
        {
            "task": "digits-flat",
            "preset": "certified",
            "methods": "seal,release,noisy-start",
            "forget.size": 1,
        },
        {"observers": OBSERVERS, "canary": "gradient", "coins": "fixed"},
    ),
}
"""Each game's settings, and how it is played."""


def main(words: list[str] | None = None) -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--pairs", type=int, default=None)
    asked.add_argument("--games", default=",".join(GAMES))
    asked.add_argument("--engine", default="fleet")
    asked.add_argument("--out", type=Path, default=None, help="a folder with one JSON per game")
    given = asked.parse_args(words)
    pairs = given.pairs or 8
    refuted = False
    for name in given.games.split(","):
        settings, way = GAMES[name]
        changes = {k: v for k, v in settings.items() if k != "methods"}
        main_method, *others = settings.get("methods", changes.get("method", "rrdu")).split(",")
        changes |= {"method": main_method, "compare": others, "performance.engine": given.engine}
        if given.pairs is None:
            changes |= {"train.hops": 3, "unlearn.hops": 2, "seal.local_epochs": 0}
        began = time.process_time()
        document = audit(
            Game(resolve(changes), **way), pairs, command=f"benchmarks/audit.py {name}"
        )
        took = time.process_time() - began
        refuted |= document["refuted"]
        print(f"{name}: {pairs} pairs, {took:.0f} s of processor time")
        for row in document["rows"]:
            claimed = "-" if row["epsilon"] is None else f"{row['epsilon']:.2f}"
            print(
                f"  {row['method']:12} {row['observer']:17} {row['grade']:11} {claimed:>5} "
                f"audited {row['audited']:.2f} of {row['cap']:.2f} by {row['attacker']}: "
                f"{row['verdict']}"
            )
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            for row in document["rows"]:
                del row["tried"]
            text = json.dumps(document, indent=1, allow_nan=False) + "\n"
            (given.out / f"{name}.json").write_text(text, encoding="utf-8")
    return 1 if refuted else 0


if __name__ == "__main__":
    raise SystemExit(main())
