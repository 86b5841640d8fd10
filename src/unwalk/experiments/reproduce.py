"""``unwalk reproduce``: rebuild the paper's figure and tables beside its own numbers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from unwalk.core.validation import check_choice
from unwalk.experiments import figure1, table_delta, table_epsilon, table_l, table_p, table_rho
from unwalk.experiments.cells import TASKS, Cell
from unwalk.experiments.study import Study, carry_out
from unwalk.reports.reproduction import render_reproduction, reproduction_table
from unwalk.runs.config import Value
from unwalk.runs.store import write_file
from unwalk.runs.watch import Tell, silent

EXPERIMENTS: dict[str, Callable[..., list[Cell]]] = {
    "figure1": figure1.cells,
    "table-p": table_p.cells,
    "table-rho": table_rho.cells,
    "table-l": table_l.cells,
    "table-epsilon": table_epsilon.cells,
    "table-delta": table_delta.cells,
}

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
) -> list[Path]:
    """Run one experiment or ``all``; returns the result files.

    With ``collect`` nothing is run: the documents are made from the parts that are there.
    ``jobs`` processes work at once.
    """
    names = list(EXPERIMENTS) if which == "all" else [which]
    for name in names:
        check_choice("experiment", name, [*EXPERIMENTS, "all"])
    tasks = ["digits"] if quick else list(TASKS) if task is None else [task]
    given = {**(QUICK if quick else {}), **(settings or {})}
    written: list[Path] = []
    for one in tasks:
        count = 1 if quick else seeds
        listed = {n: EXPERIMENTS[n](one, *([] if count is None else [count])) for n in names}
        study = Study(one, preset, tuple(c for n in names for c in listed[n]), given)
        done = carry_out(study, out / "parts", tell, command=command, collect=collect, jobs=jobs)
        parts = iter(done)
        for name in names:
            mine = [part for part in (next(parts) for _ in listed[name]) if part is not None]
            if mine:
                written += _write(out, name, one, preset, mine)
    page = render_reproduction(documents(out), notes(out), figure1.REPORTED, tried(out))
    write_file(out / "reproduction.html", page)
    return [*written, out / "reproduction.html"]


def documents(out: Path) -> dict[str, Any]:
    """Every result document in a folder, by name."""
    found = sorted(p for n in EXPERIMENTS for p in out.glob(f"{n}-*.json"))
    return {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in found}


def tried(out: Path) -> dict[str, Any]:
    """The readings that were tried: ``readings-TASK.json`` in the folder."""
    found = sorted(out.glob("readings-*.json"))
    return {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in found}


def notes(out: Path) -> dict[str, str]:
    """What a person says about each table: ``notes/NAME.txt`` in the folder."""
    return {p.stem: p.read_text(encoding="utf-8") for p in sorted(out.glob("notes/*.txt"))}


def summary(out: Path) -> Table:
    """The documents of a folder as a table for the terminal."""
    return reproduction_table(documents(out), figure1.REPORTED)


def _write(out: Path, name: str, task: str, preset: str, parts: list[dict[str, Any]]) -> list[Path]:
    """One document; only the main reading goes without its name in the file's."""
    rows = [row for part in parts for row in (_series(part) if name == "figure1" else [_end(part)])]
    origin = {
        key: "; ".join(sorted({part[key] for part in parts}))
        for key in ("machine", "commit", "command")
    }
    document = {**origin, "task": task, "train_hops": parts[0]["train_hops"]}
    stem = out / (f"{name}-{task}" if preset == "paper-matched" else f"{name}-{task}-{preset}")
    text = json.dumps({**document, "rows": rows}, indent=1, allow_nan=False)
    write_file(stem.with_suffix(".json"), text + "\n")
    table = io.StringIO()
    writer = csv.DictWriter(table, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_file(stem.with_suffix(".csv"), table.getvalue())
    return [stem.with_suffix(".json"), stem.with_suffix(".csv")]


def _series(part: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a measured hop."""
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


def _end(part: dict[str, Any]) -> dict[str, Any]:
    """One row a cell: ours and the paper's, at the last hop."""
    return {
        "row": part["row"],
        "preset": part["preset"],
        "seed": part["seed"],
        "clean": part["final"]["clean"],
        "asr": part["final"]["asr"],
        "asr_paper": part["final"]["asr_paper"],
        "reported_clean": part["reported"]["clean"],
        "reported_asr": part["reported"]["asr"],
        "sigma": part["sigma"],
    }
