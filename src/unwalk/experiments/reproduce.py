"""Runs the experiments of ``unwalk reproduce`` and writes their documents and page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from rich.table import Table

from unwalk.core.validation import check_choice
from unwalk.experiments import paper, precision, tuning
from unwalk.experiments.cells import TASKS, Cell
from unwalk.experiments.study import Study, carry_out
from unwalk.methods import defaults
from unwalk.reports.reproduction_figure import figure_picture
from unwalk.reports.reproduction_page import render_reproduction, reproduction_table
from unwalk.runs.run import Tell, silent
from unwalk.runs.store import write_file
from unwalk.runs.sweep import Count, Failed, uncounted
from unwalk.settings.config import UNSAID, Value, apply

EXPERIMENTS: dict[str, Callable[..., list[Cell]]] = {
    "figure1": paper.figure_cells,
    **{name: partial(paper.table_cells, name) for name in paper.TABLES},
}
"""The paper's: what ``all`` runs."""

FURTHER: dict[str, Callable[..., list[Cell]]] = {
    "tuning": tuning.cells,
    "precision": precision.cells,
}
"""Our own, run only by name: how methods were tuned, and whether the fast path changes results."""

TIMING = "timing.json"
"""The file with the time of every call that ran something."""

FAILED = "failed.json"
"""The file with the cells that failed in the last call."""

QUICK: dict[str, Value] = {"train.hops": 30, "unlearn.hops": 30, "evaluate.every": 10}
"""Settings of ``--quick``: digits, one seed, short walks."""


def reproduce(
    which: str,
    out: Path,
    *,
    task: str | None = None,
    preset: str = "paper-matched",
    seeds: int | None = None,
    quick: bool = False,
    settings: Mapping[str, Value] | None = None,
    command: str = "",
    tell: Tell = silent,
    collect: bool = False,
    jobs: int = 1,
    cluster: str | None = None,
    count: Count = uncounted,
) -> list[Path]:
    """Run one experiment, or ``all`` of the paper's; returns the files that were written.

    Finished cells lie in ``out/parts``.  With ``collect`` nothing is run: an experiment that has
    parts there gets its document from them, any other keeps the document that it has.  ``jobs``
    processes work at once.  A cell that fails is listed in ``failed.json`` with its reason; if all
    do, the first reason is raised.
    """
    names = list(EXPERIMENTS) if which == "all" else [which]
    known = {**EXPERIMENTS, **FURTHER}
    for name in names:
        check_choice("experiment", name, [*known, "all"])
    tasks = ["digits"] if quick else list(TASKS) if task is None else [task]
    given = {**(QUICK if quick else {}), **(settings or {})}
    written: list[Path] = []
    failed: dict[str, Failed] = {}
    for one in tasks:
        many = 1 if quick else seeds
        listed = {n: known[n](one, *([] if many is None else [many])) for n in names}
        study = Study(one, preset, tuple(c for n in names for c in listed[n]), given)
        done = carry_out(
            study,
            out / "parts",
            tell,
            command=command,
            collect=collect,
            jobs=jobs,
            cluster=cluster,
            count=count,
        )
        failed |= {
            f"{one} {cell.name}": why
            for cell, why in zip(study.cells, done, strict=True)
            if isinstance(why, Failed)
        }
        parts = iter(done)
        for name in names:
            finished = [part for part in (next(parts) for _ in listed[name]) if _is_part(part)]
            if finished:
                written += _write(out, name, one, preset, finished)
    if failed and not written:
        raise next(iter(failed.values())).raised()
    out.mkdir(parents=True, exist_ok=True)
    calls = times(out)
    if calls:
        write_file(out / TIMING, json.dumps(calls, indent=1) + "\n")
        written.append(out / TIMING)
    if not collect:
        _list_failed(out / FAILED, failed)
    page = render_reproduction(
        documents(out), notes(out), paper.REPORTED, tried(out), calls, failures(out)
    )
    write_file(out / "reproduction.html", page)
    return [*written, out / "reproduction.html"]


def _is_part(end: dict[str, Any] | Failed | None) -> TypeGuard[dict[str, Any]]:
    return isinstance(end, dict)


def _list_failed(path: Path, failed: dict[str, Failed]) -> None:
    """Write which cells failed in this call, and why; no file where none did."""
    if not failed:
        path.unlink(missing_ok=True)
        return
    reasons = {name: why.reason for name, why in failed.items()}
    write_file(path, json.dumps(reasons, indent=1) + "\n")


def failures(out: Path) -> dict[str, str]:
    """The cells that failed in the last call that ran any, each with its reason."""
    path = out / FAILED
    kept: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return kept


def documents(out: Path) -> dict[str, Any]:
    """Every document of the paper's experiments in a folder, by name."""
    return _read(out, EXPERIMENTS)


def tried(out: Path) -> dict[str, Any]:
    """What was tried beside them: ``readings-TASK.json``, ``tuning-...``, ``precision-...``."""
    return _read(out, ("readings", *FURTHER))


def times(out: Path) -> dict[str, Any]:
    """How long every call took: those on record, and those that left ``timing-...`` in parts."""
    known = out / TIMING
    recorded = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}
    return dict(sorted({**recorded, **_read(out / "parts", ("timing",))}.items()))


def _read(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    paths = sorted(p for n in names for p in folder.glob(f"{n}-*.json"))
    return {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in paths}


def notes(out: Path) -> dict[str, str]:
    """The written notes on each table: ``notes/NAME.txt`` in the folder."""
    return {p.stem: p.read_text(encoding="utf-8") for p in sorted(out.glob("notes/*.txt"))}


def summary(out: Path) -> Table:
    """The documents of a folder as a table for the terminal."""
    return reproduction_table(documents(out), paper.REPORTED)


def _write(out: Path, name: str, task: str, preset: str, parts: list[dict[str, Any]]) -> list[Path]:
    """Write one document; only the main preset's name is left out of the file name."""
    rows = [row for part in parts for row in ROWS.get(name, _end)(part)]
    origin = {
        key: "; ".join(sorted({part[key] for part in parts}))
        for key in ("machine", "commit", "command")
    }
    document = {**origin, "task": task, "train_hops": parts[0]["train_hops"]}
    document |= {"settings": shared} if (shared := _common(parts)) else {}
    stem = out / (f"{name}-{task}" if preset == "paper-matched" else f"{name}-{task}-{preset}")
    text = json.dumps({**document, "rows": rows}, indent=1, allow_nan=False)
    write_file(stem.with_suffix(".json"), text + "\n")
    table = io.StringIO()
    writer = csv.DictWriter(table, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_file(stem.with_suffix(".csv"), table.getvalue())
    written = [stem.with_suffix(".json"), stem.with_suffix(".csv")]
    if name == "figure1" and (
        picture := figure_picture(stem.name, {**document, "rows": rows}, paper.REPORTED)
    ):
        write_file(stem.with_suffix(".svg"), picture)
        written.append(stem.with_suffix(".svg"))
    return written


def _common(parts: list[dict[str, Any]]) -> dict[str, Value]:
    """The settings that all parts share, except those that cells change.

    Empty if a part was written before parts held their configuration.
    """
    if not all("configuration" in part for part in parts):
        return {}
    configurations = [{**UNSAID, **part["configuration"]} for part in parts]
    keys = dict.fromkeys(key for configuration in configurations for key in configuration)
    shared = {}
    for key in (k for k in keys if k not in ("task", "preset", "method", "seed", "compare")):
        free = [
            c for c, part in zip(configurations, parts, strict=True) if key not in part["settings"]
        ]
        if free and all(key in c and c[key] == free[0].get(key) for c in free):
            shared[key] = free[0][key]
    return shared


def _series(part: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each measured hop."""
    return [
        {
            "method": part["method"],
            "preset": part["preset"],
            "seed": part["seed"],
            "hop": reading["hop"],
            "clean": reading["clean"],
            "asr": reading["asr"],
            "asr_paper": reading["asr_paper"],
        }
        for reading in part["series"]
    ]


def _last(part: dict[str, Any]) -> dict[str, Any]:
    """The cell of a run, and its final measures."""
    final = {key: part["final"][key] for key in ("clean", "asr", "asr_paper")}
    return {"preset": part["preset"], "seed": part["seed"], **final}


def _end(part: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each cell: ours and the paper's, at the last hop."""
    paper_says = {f"reported_{key}": part["reported"][key] for key in ("clean", "asr")}
    return [{"row": part["row"], **_last(part), **paper_says, "sigma": part["sigma"]}]


def _tuned(part: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each setting that was tried; ``used`` is the preset's own."""
    method, config = (
        part["method"],
        apply(defaults(), {**UNSAID, **part["configuration"]}, where="a part"),
    )
    named = {"method": method, "setting": tuning.words(method, config)}
    return [{**named, "used": part["row"] == f"{method} {tuning.USED}", **_last(part)}]


def _precise(part: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each method, path and seed."""
    path = part["row"].removeprefix(f"{part['method']} ")
    return [{"method": part["method"], "precision": path, **_last(part)}]


ROWS: dict[str, Callable[[dict[str, Any]], list[dict[str, Any]]]] = {
    "figure1": _series,
    "tuning": _tuned,
    "precision": _precise,
}
"""The rows of a part, where they are not those of a table."""
