"""One audit: plays the game in cells that can be stopped and resumed, attacks, judges, writes."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from unwalk.audits.attackers import parts
from unwalk.audits.game import Game, Played, play
from unwalk.audits.verdict import CONFIDENCE, SIGNIFICANCE, Row, judged, refuted, rows_of
from unwalk.audits.views import Observer
from unwalk.audits.worlds import Worlds
from unwalk.core import __version__
from unwalk.core.errors import UnwalkError
from unwalk.core.validation import check_count
from unwalk.methods import METHODS
from unwalk.reports.audit_page import chart_file, render_audit
from unwalk.runs.assemble import Assembled, with_something_to_forget
from unwalk.runs.compare import USUAL, SweepOptions, teller
from unwalk.runs.run import Tell, growing_folder, methods_of
from unwalk.runs.store import write_file
from unwalk.runs.sweep import Cell, Failed, check_seen, sweep
from unwalk.settings.config import Config, flatten
from unwalk.tasks.task import ShardedTask

FEWEST = 8
"""Pairs with which each of the three parts has two runs of each world."""
CELL, CELL_CUDA = 250, 1000
"""The most pairs of one cell, on a CPU and on a CUDA device: what is lost when an audit is stopped.
A fleet carries the runs of a cell together."""
COLUMNS = (
    "task",
    "preset",
    "method",
    "observer",
    "grade",
    "epsilon",
    "delta",
    "audited",
    "gaussian",
    "cap",
    "family",
    "family_cap",
    "attacker",
    "false_alarms",
    "misses",
    "runs",
    "adjusted",
    "verdict",
    "reason",
)
"""Columns of ``audit.csv``."""
NOT_PLAYED = "not played"
"""The verdict in ``audit.csv`` on a method that could not be played."""


def audit(
    game: Game,
    pairs: int,
    **options: Unpack[SweepOptions],
) -> dict[str, Any]:
    """Play ``pairs`` runs of each world with every method of the configuration, and judge.

    ``jobs`` cells are played, and methods attacked, at once; they leave what was seen in files, so
    all machines of a ``cluster`` must see the folder ``out``.  A method that cannot be played is
    left out, with its reason under ``failed``; if none can, the first reason is raised.
    """
    how = USUAL | options
    task, jobs, cluster = how["task"], how["jobs"], how["cluster"]
    check_count("pairs", pairs, low=FEWEST)
    check_count("jobs", jobs, low=1)
    if task is None:
        game = replace(game, config=with_something_to_forget(game.config))
    base = game.assembled(task)
    Worlds.of(base, game.coins, game.seeds)
    game.watching(base)
    with growing_folder(
        how["out"], game.config, base, resume=how["resume"], overwrite=how["overwrite"]
    ) as folder:
        with tempfile.TemporaryDirectory(prefix="unwalk-audit-") as spare:
            place = Path(spare) if folder is None else folder.partial.absolute() / "seeds"
            place.mkdir(parents=True, exist_ok=True)
            size = cell_size(game, pairs, jobs)
            cells = [
                Cell(
                    f"{_named(game)}-{first}-{some}",
                    _cell,
                    (game, first, some, place, task, teller(how)),
                )
                for first in range(0, pairs, size)
                if (some := min(size, pairs - first))
            ]
            kept = None if folder is None else place
            results = dict(
                sweep(cells, folder=kept, jobs=jobs, cluster=cluster, count=how["count"])
            )
            ended = [results[cell.name] for cell in cells]
            names, failed = _names(game, ended)
            watching = game.watching(base)
            attacks = [
                _attack(game, watching, at, pairs, name, ended, place)
                for name in names
                for at in range(len(watching))
            ]
            attacked = dict(sweep(attacks, folder=kept, jobs=jobs, cluster=cluster))
            rows = _rows([attacked[cell.name] for cell in attacks])
            document = _document(game, base, pairs, rows, failed, how["command"])
        if folder is not None:
            write_audit(folder.partial, document)
    return document


def cell_size(game: Game, pairs: int, jobs: int) -> int:
    """Pairs that are played together: every job has some."""
    return min(-(-pairs // jobs), CELL if game.config.device == "cpu" else CELL_CUDA)


def write_audit(place: Path, document: dict[str, Any]) -> None:
    """Write everything that is made from one document."""
    write_file(place / "audit.json", json.dumps(document, allow_nan=False) + "\n")
    write_file(place / "audit.csv", _csv(document))
    write_file(place / "audit.svg", chart_file(document))
    write_file(place / "report.html", render_audit(document))


def _named(game: Game) -> str:
    """The part of a cell's name that says what was played, apart from the settings."""
    text = json.dumps([game.observers, game.coins, game.seeds, game.canary])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _cell(
    game: Game, first: int, pairs: int, place: Path, task: ShardedTask | None, tell: Tell
) -> dict[str, Any]:
    """Some pairs: the claims about them, and the names of the files with what was seen."""
    check_seen(place)
    claims, failed, files = {}, {}, {}
    for method, one in play(game, first, pairs, task, tell).items():
        if isinstance(one, Failed):
            failed[method] = one.reason
            continue
        files[method] = f"{_named(game)}-{first}-{pairs}-{method}.npz"
        one.save(place / files[method])
        claims[method] = one.claims
    return {"claims": claims, "files": files, "failed": failed}


def _names(game: Game, cells: Sequence[Any]) -> tuple[list[str], dict[str, str]]:
    """The methods that were played in all cells, and why the others were not."""
    failed: dict[str, str] = {}
    for cell in cells:
        if isinstance(cell, Failed):
            raise cell.raised()
        failed = {**cell["failed"], **failed}
    names = [name for name in methods_of(game.config) if name not in failed]
    if not names:
        raise UnwalkError(next(iter(failed.values())))
    return names, failed


def _attack(
    game: Game,
    watching: Sequence[Observer],
    at: int,
    pairs: int,
    name: str,
    cells: Sequence[Any],
    place: Path,
) -> Cell:
    """The cell that attacks one method before one observer: all runs, which may fill the memory."""
    claims = [claims for cell in cells for claims in cell["claims"][name]]
    paths = [place / cell["files"][name] for cell in cells]
    arguments = (game.config, name, watching[at : at + 1], claims, paths)
    return Cell(f"{_named(game)}-rows-{pairs}-{name}-{at}", _attacked, arguments)


def _attacked(
    config: Config,
    name: str,
    observers: Sequence[Observer],
    claims: list[list[dict[str, Any]]],
    paths: Sequence[Path],
) -> list[dict[str, Any]]:
    played = Played.load(paths, observers, claims)
    return [row.to_json() for row in rows_of([(name, played)], config)]


def _rows(attacked: Sequence[Any]) -> list[Row]:
    """All rows, with verdicts over all of them."""
    rows = []
    for one in attacked:
        if isinstance(one, Failed):
            raise one.raised()
        rows += [Row.from_json(row) for row in one]
    return judged(rows)


def _document(
    game: Game,
    base: Assembled,
    pairs: int,
    rows: Sequence[Row],
    failed: Mapping[str, str],
    command: str,
) -> dict[str, Any]:
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
        table.writerow(row)
    for row in document["failed"]:
        table.writerow({**row, "task": document["task"]["name"], "verdict": NOT_PLAYED})
    return text.getvalue()


def together(documents: Sequence[Mapping[str, Any]], command: str = "") -> dict[str, Any]:
    """Audits of one task with different settings as one, with verdicts over all their rows.

    What is not a row is the first one's; ``games`` says of each what was played.  A method that
    could be played in one of them is not among those that could not.
    """
    first = documents[0]
    rows = judged([Row.from_json(row) for one in documents for row in one["rows"]])
    played = {row.method for row in rows}
    failed = {one["method"]: one for document in documents for one in document["failed"]}
    return {
        **first,
        "command": command or first["command"],
        "games": [{"task": one["task"], "game": one["game"]} for one in documents],
        "rows": [row.to_json() for row in rows],
        "failed": [one for name, one in failed.items() if name not in played],
        "refuted": refuted(rows),
    }
