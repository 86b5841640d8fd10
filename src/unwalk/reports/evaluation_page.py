"""The evaluation of a run: one table for the terminal, and a page with the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import rich.table
from rich.text import Text

from unwalk.reports import numbers
from unwalk.reports.page import render_page
from unwalk.reports.tables import Body, Cell, Head, Row, Table, terminal_table

HEADS = (
    *(Head(text) for text in ("Method", "Gap", "Value", "Retraining", "95 % interval of the gap")),
    Head("Verdict", kind="said"),
    Head("95 % interval"),
)
NOT_MEASURED = "not measured"
"""The measure of rows that have a reason instead of numbers."""
NOTES = (
    "A gap is the difference to retraining, which never saw the forgotten records. A gap whose "
    "interval holds 0 is level.",
    "Less than retraining is over-unlearning: it is a gap too, and no success.",
    "Each measure, its formula and its source: docs/measures.md.",
)


def number(value: float | None, unit: str) -> str:
    """A number as its unit wants it.

    >>> number(0.51234, ""), number(1234567.0, "bytes"), number(12.0, "hops")
    ('0.512', '1,234,567', '12.0')
    """
    return numbers.fixed(value, {"bytes": 0, "gradients": 0, "hops": 1, "visits": 1}.get(unit, 3))


def _signed(value: float | None, unit: str) -> str:
    text = number(value, unit)
    unsigned = value is None or text[0] == numbers.MINUS or not text.strip("0.")
    return text if unsigned else f"+{text}"


def _ends(low: float | None, high: float | None, unit: str, *, signed: bool = False) -> str:
    if low is None or high is None:
        return numbers.DASH
    write = _signed if signed else number
    return f"{write(low, unit)} to {write(high, unit)}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    """What a row says, from its value on."""
    unit = row["unit"]
    said = "; ".join(text for text in (row["side"], row["note"]) if text)
    return [
        _signed(row["gap"], unit),
        number(row["value"], unit),
        number(row["retraining"], unit),
        _ends(row["gap_low"], row["gap_high"], unit, signed=True),
        said,
        _ends(row["low"], row["high"], unit),
    ]


def _titled(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Rows by measure, in their order."""
    return [
        (f"{measure} ({unit})" if unit else measure, list(group))
        for (measure, unit), group in groupby(rows, lambda r: (r["measure"], r["unit"]))
    ]


def evaluation_table(result: Mapping[str, Any]) -> rich.table.Table:
    """The table for the terminal: a block for each measure, a line for each method."""
    members = numbers.counted(result["members"], "member")
    table = terminal_table(f"{result['task']}, evaluated over {members}")
    table.add_column("measure and method", no_wrap=True)
    for head in ("gap", "value", "retraining", "95 % interval", ""):
        table.add_column(head, justify="left" if not head else "right")
    measured = [row for row in result["rows"] if row["measure"] != NOT_MEASURED]
    for title, rows in _titled(measured):
        table.add_row(Text(title, style="bold"))
        for row in rows:
            table.add_row(*map(Text, (f"  {row['label']}", *_cells(row)[:-1])))
    table.caption = Text("gap: difference to retraining; its interval is over members")
    return table


def lines_below(result: Mapping[str, Any]) -> list[str]:
    """What is said below the table: warnings, and what has no numbers, with the reason."""
    return [f"warning: {text}" for text in result["warnings"]] + [
        f"{row['label']}, {NOT_MEASURED}: {row['note']}"
        for row in result["rows"]
        if row["measure"] == NOT_MEASURED
    ]


def page_table(result: Mapping[str, Any]) -> Table:
    """Every measure of every method."""
    bodies = []
    for title, rows in _titled(result["rows"]):
        shown = [
            Row(
                Cell(numbers.sentence(row["label"])),
                [
                    Cell(text, kind=head.kind)
                    for head, text in zip(HEADS[1:], _cells(row), strict=True)
                ],
            )
            if row["measure"] != NOT_MEASURED
            else Row(
                Cell(numbers.sentence(row["label"])),
                [Cell(row["note"], kind="why", span=len(HEADS) - 1)],
                "is-failed",
            )
            for row in rows
        ]
        bodies.append(Body(shown, numbers.sentence(title)))
    return Table("Every measure, every method", HEADS, bodies)


def render_evaluation(result: Mapping[str, Any]) -> str:
    """The page as one HTML text."""
    records, members = (
        numbers.counted(result["records"], "forgotten record"),
        numbers.counted(result["members"], "member"),
    )
    return render_page(
        "evaluation",
        brand="unwalk evaluation",
        source="evaluate.json",
        title=f"How well it was forgotten: {result['task']}",
        story=f"{records}, measured on {members}: models that were trained, that forgot, and that "
        "were retrained, each with a seed of its own.",
        notes=NOTES,
        table=page_table(result),
        warnings=result["warnings"],
        command=result["command"],
        version=result["unwalk"],
    )
