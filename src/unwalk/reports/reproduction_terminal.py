"""The reproduction in the terminal: the page's numbers, one line a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from unwalk.reports import numbers
from unwalk.reports.reproduction_documents import FIGURE, Reported, collect
from unwalk.reports.reproduction_figure import title
from unwalk.reports.reproduction_sums import Compared, compared
from unwalk.reports.reproduction_tables import HEADS, MARKS, signed, task_title, value_title

COLOURS = {"agree": "green", "spread": "green", "near": "yellow", "differ": "red"}
SHOWN = (("clean", "clean"), ("asr_paper", "ASR"))


def reproduction_table(documents: Mapping[str, Any], reported: Reported | None = None) -> Table:
    """Ours, the paper's and the difference of every row, as a table for the terminal."""
    parts = collect(documents, reported)
    several = len({preset for p in parts for preset in p.presets}) > 1
    table = Table(
        title="ours beside the paper's, %",
        title_justify="left",
        caption=Text(
            "✓ within 2 points, ✓± within 2 std, ≈ within 5 points, ✗ further; ASR as the "
            "paper counts it"
        ),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    heads = ["task", "row", *(["preset"] if several else [])]
    for head in heads:
        table.add_column(head, vertical="bottom", no_wrap=True)
    for _, name in SHOWN:
        for head in (f"{name}\nours", "\npaper", "\ndiff"):
            table.add_column(head, justify="right", vertical="bottom", no_wrap=True)
    for part in parts:
        found = {(c.row, c.hop, c.preset, c.measure): c for c in compared(part)}
        for row, hop, preset in dict.fromkeys(key[:3] for key in found):
            name = title(row) if part.experiment == FIGURE else value_title(row)
            if part.experiment != FIGURE:
                name = f"{HEADS[part.experiment]} = {name}"
            elif not found[row, hop, preset, "clean"].final:
                name = f"{name} @{hop}"
            cells = [Text(task_title(part.task)), Text(name), *([Text(preset)] if several else [])]
            for measure, _ in SHOWN:
                cells += _cells(found[row, hop, preset, measure])
            table.add_row(*cells)
        table.add_section()
    return table


def _cells(c: Compared) -> list[Text]:
    std = "" if c.std is None else f"±{numbers.fixed(c.std)}"
    sign = "" if c.agreement is None else f" {MARKS[c.agreement]}"
    style = "" if c.agreement is None else COLOURS[c.agreement]
    return [
        Text(numbers.fixed(c.mean) + std),
        Text(numbers.fixed(c.reported)),
        Text(signed(c.difference, 1) + sign, style=style),
    ]
