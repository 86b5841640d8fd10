"""A comparison at every point of a grid of settings, over seeds, as one table.

A cell is a seed with points of the grid, in whose memory what these have in common is carried out
once (:mod:`unwalk.runs.sharing`).  A point that fails is a row with its reason.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from unwalk.core import __version__
from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_count
from unwalk.engines.choose import goes_together
from unwalk.reports.exports import csv_text, sheets_of
from unwalk.reports.sweep_page import render_sweep
from unwalk.runs.assemble import assemble, with_something_to_forget
from unwalk.runs.compare import (
    USUAL,
    SweepOptions,
    failures,
    results_of,
    summarise,
    swept,
    teller,
)
from unwalk.runs.run import Tell, growing_folder, methods_of
from unwalk.runs.sharing import Memory
from unwalk.runs.store import write_file
from unwalk.runs.sweep import Cell, Failed, keep, kept
from unwalk.settings.config import Config, Value, flatten, run_id
from unwalk.tasks.task import ShardedTask

FORMAT = 1
NOT_SWEPT = ("method", "compare", "seed")
KEPT = ("methods", "failed", "phases", "trained")
"""What is kept of the result of a point with a seed."""

Point = dict[str, Value]
"""The settings of a point: those that the grid varies."""


def points_of(grid: Mapping[str, Sequence[Value]]) -> list[Point]:
    """All points of a grid; the last setting varies fastest.

    >>> points_of({"unlearn.p": [0.1, 0.2], "peers": [4]})
    [{'unlearn.p': 0.1, 'peers': 4}, {'unlearn.p': 0.2, 'peers': 4}]
    """
    for key, values in grid.items():
        if key in NOT_SWEPT:
            raise InvalidInput(
                f"the grid varies {key!r}; allowed: any other setting. Methods and seeds are given "
                "by --methods and --seeds."
            )
        if not values or len(set(map(str, values))) < len(values):
            raise InvalidInput(
                f"the grid's values of {key} are {', '.join(map(str, values)) or 'none'}; allowed: "
                "one or more, none of them twice."
            )
    if not grid:
        raise InvalidInput("the grid is empty; give it settings, as in --grid unlearn.p=0.1,0.2.")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def sweep_grid(
    points: Sequence[Point],
    configure: Callable[[Point], Config],
    seeds: int,
    **options: Unpack[SweepOptions],
) -> dict[str, Any]:
    """Every method at every point with each of ``seeds`` seeds: what ``sweep.json`` holds.

    ``configure`` makes the configuration of a point.  With ``out``, a finished point of a seed is
    kept, and ``resume`` continues with the others, also where the grid has grown.
    """
    how = USUAL | options
    task, command, jobs = how["task"], how["command"], how["jobs"]
    check_count("seeds", seeds, low=1)
    check_count("jobs", jobs, low=1)
    configs = [configure(point) for point in points]
    if task is None:
        configs = [with_something_to_forget(config) for config in configs]
    base = configs[0]
    runs = [[replace(config, seed=config.seed + n) for config in configs] for n in range(seeds)]
    assembled, resume, overwrite = assemble(base, task), how["resume"], how["overwrite"]
    with growing_folder(
        how["out"], base, assembled, resume=resume, overwrite=overwrite, seeds=seeds
    ) as folder:
        place = None if folder is None else folder.partial.absolute() / "seeds"
        cells = [
            Cell(f"{one[0].seed}-{number}", carried_out, (chunk, task, command, place, teller(how)))
            for one in runs
            for number, chunk in enumerate(_chunks(one, -(-jobs // seeds)))
        ]
        ended: dict[str, Any] = {}
        parts = {cell.name: [run_id(config) for config in cell.arguments[0]] for cell in cells}
        for name, ends in swept(cells, how, "cell"):
            ended |= dict.fromkeys(parts[name], ends) if isinstance(ends, Failed) else ends
        result = _document(points, runs, ended, command)
        if folder is not None:
            write_file(folder.partial / "sweep.json", _json(result))
            write_file(folder.partial / "sweep.csv", table_of(result))
            write_file(folder.partial / "sweep.html", render_sweep(result))
    return result


def _chunks(configs: list[Config], number: int) -> list[list[Config]]:
    """At most ``number`` parts of the same length, the last one apart."""
    size = -(-len(configs) // number)
    return [configs[first : first + size] for first in range(0, len(configs), size)]


def carried_out(
    configs: list[Config], task: ShardedTask | None, command: str, place: Path | None, tell: Tell
) -> dict[str, Any]:
    """The results of points with one seed by the names of their runs; failures have a reason."""
    results = {run_id(config): kept(place, run_id(config)) for config in configs}
    left = [config for config in configs if results[run_id(config)] is None]
    memory = Memory()
    for chunk in _together(left, task):
        given = [(config, task, command, _named(tell, run_id(config))) for config in chunk]
        for config, result in zip(chunk, _results(given, memory), strict=True):
            if isinstance(result, dict):
                result = {key: result[key] for key in KEPT}
                keep(place, run_id(config), result)
            results[run_id(config)] = result
    return results


def _named(tell: Tell, run: str) -> Tell:
    """Report progress with the beginning of the run's name in front."""
    return lambda walk, done, hops: tell(f"{run[:4]} {walk}", done, hops)


def _together(configs: list[Config], task: ShardedTask | None) -> list[list[Config]]:
    """The points that are carried out at once: one, unless a fleet carries them."""
    engine = configs[0].performance.engine if configs else "inprocess"
    if engine != "inprocess" and goes_together([assemble(configs[0], task).training()] * 2, engine):
        return [configs]
    return [[config] for config in configs]


def _results(given: Sequence[tuple[Any, ...]], memory: Memory) -> list[dict[str, Any] | Failed]:
    """The results of some points, carried out at once, or one by one where that fails."""
    try:
        return list(results_of(given, memory))
    except Exception as error:
        if len(given) == 1:
            return [Failed.by(error)]
    return [end for one in given for end in _results([one], memory)]


def _document(
    points: Sequence[Point],
    runs: Sequence[Sequence[Config]],
    found: Mapping[str, Any],
    command: str,
) -> dict[str, Any]:
    base = runs[0][0]
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for number, point in enumerate(points):
        settings = flatten(runs[0][number])
        point = {key: settings[key] for key in point}
        ends = {one[number].seed: found[run_id(one[number])] for one in runs}
        ran = [end for end in ends.values() if not isinstance(end, Failed)]
        rows += [{"settings": [point], **row} for row in _rows(ran)]
        failed += [{"settings": [point], **row} for row in failures(ends)]
    if not rows:
        raise next(end for end in found.values() if isinstance(end, Failed)).raised()
    varied = [point for row in (*rows, *failed) for point in row["settings"]]
    grid = {key: list(dict.fromkeys(point[key] for point in varied)) for key in points[0]}
    return {
        "format": FORMAT,
        "unwalk": __version__,
        "command": command,
        "task": base.task,
        "grid": grid,
        "methods": methods_of(base),
        "seeds": [one[0].seed for one in runs],
        "rows": _merged(rows, lambda row: [row["walks"], _timeless(row["mean"])]),
        "failed": _merged(failed, lambda row: [row["reason"], row["seeds"]]),
    }


def _rows(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The model before forgetting and every method at one point, over its seeds."""
    summary = summarise(results) if results else {"methods": []}
    walks = {
        spread["name"]: [
            one["walk"] for r in results for one in r["methods"] if one["name"] == spread["name"]
        ]
        for spread in summary["methods"]
    }
    walks["before"] = [r["trained"] for r in results]
    before = [summary["before"]] if "before" in summary else []
    keys = ("name", "label", "runs", "grade", "mean", "std", "interval")
    return [
        {**{key: spread[key] for key in keys}, "walks": walks[spread["name"]]}
        for spread in (*before, *summary["methods"])
    ]


def _merged(
    rows: list[dict[str, Any]], told: Callable[[dict[str, Any]], list[Any]]
) -> list[dict[str, Any]]:
    """Rows that tell the same of a method at several points are one row of these points."""
    merged: dict[str, dict[str, Any]] = {}
    for row in rows:
        first = merged.setdefault(json.dumps([row["name"], told(row)]), row)
        if first is not row:
            first["settings"] += row["settings"]
    return list(merged.values())


def _timeless(means: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in means.items() if key != "cost.seconds"}


def table_of(result: Mapping[str, Any]) -> str:
    """The rows as CSV: one line for each method at each point."""
    return csv_text([line for sheet in sheets_of(result) for line in sheet.lines])


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
