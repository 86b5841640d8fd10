"""One audit: plays the game in cells that can be stopped and resumed, attacks, judges, writes."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

from unwalk.audits.attackers import parts
from unwalk.audits.game import Game, Played, play
from unwalk.audits.verdict import CONFIDENCE, SIGNIFICANCE, refuted, rows_of
from unwalk.audits.worlds import Worlds
from unwalk.core import __version__
from unwalk.core.errors import UnwalkError
from unwalk.core.validation import check_count
from unwalk.methods import METHODS
from unwalk.reports.audit_page import chart, render_audit
from unwalk.runs.assemble import Assembled
from unwalk.runs.run import Tell, growing_folder, methods_of, silent
from unwalk.runs.store import write_file
from unwalk.runs.sweep import Cell, Count, Failed, sweep, uncounted
from unwalk.settings.config import flatten
from unwalk.tasks import ShardedTask

FEWEST = 8
"""Pairs with which each of the three parts has two runs of each world."""
CELL = 50
"""Pairs of one cell: what is lost at most when an audit is stopped."""
COLUMNS = (
    "task",
    "method",
    "observer",
    "grade",
    "epsilon",
    "delta",
    "audited",
    "gaussian",
    "cap",
    "attacker",
    "false_alarms",
    "misses",
    "runs",
    "adjusted",
    "verdict",
)
"""Columns of ``audit.csv``."""


def audit(
    game: Game,
    pairs: int,
    *,
    task: ShardedTask | None = None,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    command: str = "",
    jobs: int = 1,
    tell: Tell = silent,
    count: Count = uncounted,
) -> dict[str, Any]:
    """Play ``pairs`` runs of each world with every method of the configuration, and judge.

    ``jobs`` cells are played at once; with one job, ``tell`` is told of their walks.  With ``out``
    every finished cell is kept, and ``resume`` goes on with the others.  A method that cannot be
    played is left out, with its reason under ``failed``; if none can, the first reason is raised.
    """
    check_count("pairs", pairs, low=FEWEST)
    check_count("jobs", jobs, low=1)
    base = game.assembled(task)
    Worlds.of(base, game.coins, game.seeds)
    game.watching(base)
    with growing_folder(out, game.config, base, resume=resume, overwrite=overwrite) as folder:
        place = None if folder is None else folder.partial / "seeds"
        told = tell if jobs == 1 else silent
        cells = [
            Cell(f"{_named(game)}-{first}-{size}", _cell, (game, first, size, task, told))
            for first in range(0, pairs, CELL)
            if (size := min(CELL, pairs - first))
        ]
        found = dict(sweep(cells, folder=place, jobs=jobs, count=count))
        document = _document(game, base, pairs, [found[cell.name] for cell in cells], command)
        if folder is not None:
            write_file(folder.partial / "audit.json", json.dumps(document, allow_nan=False) + "\n")
            write_file(folder.partial / "audit.csv", _csv(document))
            write_file(folder.partial / "audit.svg", chart(document, standalone=True))
            write_file(folder.partial / "report.html", render_audit(document))
    return document


def _named(game: Game) -> str:
    """The part of a cell's name that says what was played, apart from the settings."""
    text = json.dumps([game.observers, game.coins, game.seeds, game.canary])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _cell(
    game: Game, first: int, pairs: int, task: ShardedTask | None, tell: Tell
) -> dict[str, Any]:
    """Some pairs, as a sweep keeps them."""
    ends = play(game, first, pairs, task, tell)
    return {
        "played": {n: one.to_json() for n, one in ends.items() if isinstance(one, Played)},
        "failed": {n: one.reason for n, one in ends.items() if isinstance(one, Failed)},
    }


def _document(
    game: Game, base: Assembled, pairs: int, cells: list[Any], command: str
) -> dict[str, Any]:
    for cell in cells:
        if isinstance(cell, Failed):
            raise cell.raised()
    failed: dict[str, str] = {}
    for cell in cells:
        failed = {**cell["failed"], **failed}
    names = [name for name in methods_of(game.config) if name not in failed]
    if not names:
        raise UnwalkError(next(iter(failed.values())))
    played = {name: Played.joined([cell["played"][name] for cell in cells]) for name in names}
    rows = rows_of(played, game.config)
    config, task = game.config, base.task
    fit, choose, counted = parts(pairs)
    return {
        "format": 1,
        "unwalk": __version__,
        "command": command,
        "config": flatten(config),
        "task": {
            "name": task.name,
            "model": task.model_name,
            "parameters": base.model.parameters,
            "peers": task.peers,
            "unlearner": config.forget.peer,
            "forget": {
                "kind": task.forget_kind,
                "size": int(task.records(config.forget.peer).forgotten.size),
            },
        },
        "game": {
            "pairs": pairs,
            "fit": len(fit),
            "choose": len(choose),
            "count": len(counted),
            "coins": game.coins,
            "seeds": game.seeds,
            "canary": game.canary,
            "seed": config.seed,
            "confidence": CONFIDENCE,
            "significance": SIGNIFICANCE,
        },
        "rows": [row.to_json() for row in rows],
        "failed": [
            {"method": name, "label": METHODS[name].title, "reason": reason}
            for name, reason in failed.items()
        ],
        "refuted": refuted(rows),
    }


def _csv(document: dict[str, Any]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    for row in document["rows"]:
        table.writerow({**row, "task": document["task"]["name"]})
    return text.getvalue()
