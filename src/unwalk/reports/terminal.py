"""Makes the tables of the terminal: the summary of a run, and the reproduction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from unwalk.reports import numbers
from unwalk.reports.reproduction import (
    FIGURE,
    HEADS,
    MARKS,
    Compared,
    Reported,
    collect,
    compared,
    method_title,
    task_title,
    value_title,
)
from unwalk.reports.result import Method, Result, read
from unwalk.reports.tables import (
    Column,
    cost_cell,
    final_cell,
    gap_cell,
    gap_columns,
    measured,
    moved_column,
    present,
    spread_text,
)

SHORT_HEADS = {"clean": "clean", "asr": "ASR", "forget": "forget"}
COLOURS = {"agree": "green", "spread": "green", "near": "yellow", "differ": "red"}
SHOWN = (("clean", "clean"), ("asr_paper", "ASR"))


def summary_rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row for each method, heading to text, in the order of the result.

    >>> method = {"name": "rrdu", "label": "RR-DU", "final": {"clean": 0.961, "asr": 0.03}}
    >>> summary_rows({"format": 1, "methods": [method]})
    [{'method': 'RR-DU', 'clean, %': '96.1', 'ASR, %': '3.0'}]
    """
    view = read(result)
    columns = _summary_columns(view)
    return [{"method": m.title} | {c.title: c.cell(m) for c in columns} for m in view.methods]


def summary_table(result: Mapping[str, Any]) -> Table:
    """The same rows as a table for the terminal; the main method stands out."""
    view = read(result)
    title = f"{view.task.name or 'result'}, seed {view.seed or numbers.DASH}"
    if view.spreads:
        title = f"{view.task.name}, mean ± standard deviation over {view.runs} seeds"
    table = _table(title)
    table.add_column("method", vertical="bottom", no_wrap=True)
    for column in _summary_columns(view):
        head = column.head.replace(" ", "\n") + (f"\n{column.unit}" if column.unit else "")
        table.add_column(Text(head), justify="right", vertical="bottom", no_wrap=True)
    for method, row in zip(view.methods, summary_rows(result), strict=True):
        style = "bold" if method is view.main else ""
        table.add_row(*(Text(cell) for cell in row.values()), style=style)
    if gap_columns(view):
        table.caption = Text("gap: difference to retraining, in percentage points")
    return table


def _summary_columns(result: Result) -> tuple[Column, ...]:
    """The few columns that fit a terminal; means over seeds where there are several."""
    spreads = {s.name: s for s in result.spreads}

    def final(key: str) -> Callable[[Method], str]:
        def cell(method: Method) -> str:
            if method.name in spreads:
                return spread_text(spreads[method.name], key)
            return final_cell(key)(method)

        return cell

    def gap(key: str) -> Callable[[Method], str]:
        def cell(method: Method) -> str:
            if method.name in spreads and not method.oracle:
                return numbers.points(spreads[method.name].mean.get(f"gap.{key}"))
            return gap_cell(key)(method)

        return cell

    columns = [
        *(Column("", SHORT_HEADS[k], "%", final(k)) for k in measured(result)),
        *(Column("", f"{SHORT_HEADS[k]} gap", "pts", gap(k)) for k in measured(result)),
        Column("", "hops", "", cost_cell("hops")),
        moved_column(result, "moved"),
        Column("", "gradients", "", cost_cell("gradients")),
        Column("", "time", "s", cost_cell("seconds", decimals=1)),
    ]
    return present(columns, result.methods)


def reproduction_table(documents: Mapping[str, Any], reported: Reported | None = None) -> Table:
    """Ours, the paper's and the difference of every row of the reproduction."""
    parts = collect(documents, reported)
    several = len({preset for p in parts for preset in p.presets}) > 1
    table = _table("ours beside the paper's, %")
    table.caption = Text(
        "✓ within 2 points, ✓± within 2 std, ≈ within 5 points, ✗ further; ASR as the "
        "paper counts it"
    )
    heads = ["task", "row", *(["preset"] if several else [])]
    for head in heads:
        table.add_column(head, vertical="bottom", no_wrap=True)
    for _, name in SHOWN:
        for head in (f"{name}\nours", "\npaper", "\ndiff"):
            table.add_column(head, justify="right", vertical="bottom", no_wrap=True)
    for part in parts:
        cells = {(c.row, c.hop, c.preset, c.measure): c for c in compared(part)}
        for row, hop, preset in dict.fromkeys(key[:3] for key in cells):
            name = method_title(row) if part.experiment == FIGURE else value_title(row)
            if part.experiment != FIGURE:
                name = f"{HEADS[part.experiment]} = {name}"
            elif not cells[row, hop, preset, "clean"].final:
                name = f"{name} @{hop}"
            texts = [Text(task_title(part.task)), Text(name), *([Text(preset)] if several else [])]
            for measure, _ in SHOWN:
                texts += _compared_cells(cells[row, hop, preset, measure])
            table.add_row(*texts)
        table.add_section()
    return table


def _compared_cells(c: Compared) -> list[Text]:
    std = "" if c.std is None else f"±{numbers.fixed(c.std)}"
    sign = "" if c.agreement is None else f" {MARKS[c.agreement]}"
    style = "" if c.agreement is None else COLOURS[c.agreement]
    return [
        Text(numbers.fixed(c.mean) + std),
        Text(numbers.fixed(c.reported)),
        Text(numbers.signed(c.difference, 1) + sign, style=style),
    ]


def _table(title: str) -> Table:
    return Table(
        title=Text(title),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
