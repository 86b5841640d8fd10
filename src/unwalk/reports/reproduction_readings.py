"""The readings that were tried before one was kept, so that everybody sees how it was chosen.

A document ``readings-TASK.json`` holds ``machine``, ``commit``, ``command``, what the paper
reports for each ``column`` and, for each reading, its settings and clean and backdoor accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.reports import numbers
from unwalk.reports.reproduction_tables import scrolled, source_line, task_title
from unwalk.reports.svg import tag

INTRODUCTION = (
    "The paper leaves settings open. Each line is one complete reading, run with one seed; cells "
    "are test accuracy and backdoor accuracy at the last hop, in percent. The reading in bold was "
    "kept, and all numbers above were made with it."
)


def readings(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """What was tried, with one table a dataset."""
    cards = [_card(name, document) for name, document in documents.items()]
    return tag("p", INTRODUCTION, class_="note") + "".join(cards)


def _card(name: str, document: Mapping[str, Any]) -> str:
    try:
        columns, rows = list(document["columns"]), list(document["rows"])
        task = str(document["task"])
        heads = [tag("th", escape(str(c["title"])), scope="col") for c in columns]
        paper = [tag("td", _pair(c["clean"], c["asr"])) for c in columns]
        body = [tag("tr", tag("th", "Paper", scope="row"), *paper)]
        body += [_row(row) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{name} does not hold readings: {error!r}.") from error
    head = tag("thead", tag("tr", tag("th", "Reading", scope="col"), *heads))
    table = tag("table", head, tag("tbody", *body))
    return tag(
        "div",
        tag("h3", escape(task_title(task))),
        scrolled(table, f"Readings, {task_title(task)}"),
        source_line(document),
        class_="card set",
    )


def _row(row: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{key} = {value}" for key, value in row["settings"].items())
    head = tag("th", escape(str(row["reading"])), tag("small", escape(settings)), scope="row")
    cells = [tag("td", _pair(clean, asr)) for clean, asr in row["cells"]]
    return tag("tr", head, *cells, class_="is-main" if row["kept"] else None)


def _pair(clean: float | None, asr: float | None) -> str:
    shown = [numbers.DASH if v is None else numbers.fixed(float(v), 1) for v in (clean, asr)]
    return " / ".join(shown)
