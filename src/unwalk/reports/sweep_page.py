"""A sweep over settings: one table for the terminal, and a page with the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import rich.table
from rich.text import Text

from unwalk.reports import numbers
from unwalk.reports.page import render_page
from unwalk.reports.result import read
from unwalk.reports.tables import (
    GRADE,
    Body,
    Cell,
    Column,
    Head,
    Row,
    Table,
    grade_text,
    measured,
    spread_cell,
    spread_columns,
    spread_text,
    terminal_table,
)

NOTES = (
    "Mean ± standard deviation over seeds at the end. A paired difference to retraining has its "
    "interval of 95 % in brackets.",
    "A row whose numbers do not depend on a setting says 'any': its walk was carried out once.",
)
COSTS = {"hops": "Hops", "visits_to_unlearner": "Visits to u", "gradients": "Gradients"}


class Block(NamedTuple):
    """The rows of one method: settings in words, then cells, or the reason of a failure."""

    title: str
    rows: list[tuple[str, list[str]]]
    failed: list[tuple[str, str]]


def settings_text(points: Sequence[Mapping[str, Any]], grid: Mapping[str, Sequence[Any]]) -> str:
    """The points of a row in words.

    >>> settings_text([{"p": 0.1, "n": 2}, {"p": 0.2, "n": 2}], {"p": [0.1, 0.2], "n": [1, 2]})
    'p any, n 2'
    """
    told = []
    for key, every in grid.items():
        values = list(dict.fromkeys(point[key] for point in points))
        some = " or ".join("none" if value is None else str(value) for value in values)
        told.append(f"{key} {'any' if 1 < len(every) == len(values) else some}")
    return ", ".join(told)


def _blocks(result: Mapping[str, Any], *, terse: bool = False) -> tuple[list[Column], list[Block]]:
    """The columns, and a block for each method; the model before forgetting is the first.

    Terse columns fit a terminal: the two measures that matter, without intervals.
    """
    rows, grid = result["rows"], result["grid"]
    methods = [{"name": row["name"], "final": row["mean"]} for row in rows]
    view = read({"format": 1, "methods": methods, "seeds": {"methods": rows}})
    shown = spread_columns(view)
    if terse:
        own = measured(view)
        kept = (*own, *(f"gap.{key}" for key in own), "measure.kl", GRADE)
        shown = tuple((key, column) for key, column in shown if key in kept)
    write = spread_text if terse else spread_cell
    columns = [column for _, column in shown]
    columns += [Column("", head, "", str) for head in COSTS.values()]
    blocks: dict[str, Block] = {}
    for row, spread in zip(rows, view.spreads, strict=True):
        cells = [grade_text(spread.grade) if k == GRADE else write(spread, k) for k, _ in shown]
        cells += [numbers.fixed(row["mean"].get(f"cost.{key}"), 0) for key in COSTS]
        block = blocks.setdefault(row["name"], Block(numbers.sentence(row["label"]), [], []))
        block.rows.append((settings_text(row["settings"], grid), cells))
    for row in result["failed"]:
        block = blocks.setdefault(row["name"], Block(numbers.sentence(row["label"]), [], []))
        block.failed.append((settings_text(row["settings"], grid), row["reason"]))
    return columns, list(blocks.values())


def sweep_table(result: Mapping[str, Any]) -> rich.table.Table:
    """The table for the terminal: a block for each method, a line for each of its settings."""
    seeds = numbers.counted(len(result["seeds"]), "seed")
    table = terminal_table(f"{result['task']}, {seeds}")
    table.add_column("method and settings", no_wrap=True, vertical="bottom")
    columns, blocks = _blocks(result, terse=True)
    for column in columns:
        gap = "\ngap" if column.group.startswith("Paired") else ""
        head = column.head.replace(" ", "\n") + gap + (f"\n{column.unit}" if column.unit else "")
        table.add_column(Text(head), justify="right", vertical="bottom", no_wrap=True)
    for block in blocks:
        table.add_row(Text(block.title, style="bold"))
        for settings, cells in block.rows:
            table.add_row(*(Text(text) for text in (f"  {settings}", *cells)))
        for settings, _ in block.failed:
            table.add_row(Text(f"  {settings}: failed, see below", style="dim"))
    return table


def failed_lines(result: Mapping[str, Any]) -> list[str]:
    """A line for each method that failed at some points."""
    return [
        f"{row['label']} failed with {settings_text(row['settings'], result['grid'])}: "
        f"{row['reason']}"
        for row in result["failed"]
    ]


def page_table(result: Mapping[str, Any]) -> Table:
    """Every method with each of its settings, in all columns."""
    columns, blocks = _blocks(result)
    bodies = []
    for block in blocks:
        rows = [Row(Cell(s), [Cell(text) for text in cells]) for s, cells in block.rows]
        for settings, reason in block.failed:
            why = Cell(numbers.sentence(reason), kind="why", span=len(columns))
            rows.append(Row(Cell(settings), [why], "is-failed"))
        bodies.append(Body(rows, block.title))
    heads = [Head("Settings"), *(Head(c.head, c.unit, c.group) for c in columns)]
    return Table("Every method, every setting", heads, bodies)


def render_sweep(result: Mapping[str, Any]) -> str:
    """The page as one HTML text."""
    seeds = numbers.counted(len(result["seeds"]), "seed")
    varied = numbers.joined(
        [f"{key} ({numbers.counted(len(v), 'value')})" for key, v in result["grid"].items()]
    )
    return render_page(
        "evaluation",
        brand="unwalk sweep",
        title=f"A grid of settings: {result['task']}",
        story=f"Every method at every point of a grid of {varied}, with {seeds}.",
        notes=NOTES,
        table=page_table(result),
        warnings=[],
        command=result["command"],
        version=result["unwalk"],
        source="sweep.json",
    )
