"""The settings behind the numbers: what is not a default, by dataset and preset."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.reports import numbers
from unwalk.reports.reproduction_documents import FIGURE, FIRST, TASKS
from unwalk.reports.reproduction_tables import scrolled, task_title
from unwalk.reports.svg import tag

INTRODUCTION = (
    "What the runs of the figure set, where it is not the default; a dash is the default. Tables "
    "change what their first column names. DP-SGD clips every record's gradient, so its model has "
    "GroupNorm where the others have BatchNorm. The command unwalk settings explains every name."
)


def settings(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """A table of settings with a column for each document of the figure that says them."""
    columns: dict[tuple[str, str], Mapping[str, Any]] = {}
    for name, document in documents.items():
        found = document.get("settings") if name.startswith(f"{FIGURE}-") else None
        if found is None:
            continue
        if not isinstance(found, Mapping):
            raise InvalidInput(f"{name}.settings is {found!r}; allowed: an object.")
        presets = dict.fromkeys(str(row.get("preset") or "") for row in document["rows"])
        columns[str(document.get("task") or ""), ", ".join(presets)] = found
    if not columns:
        return ""
    places = {task: place for place, task in enumerate(TASKS)}
    order = sorted(columns, key=lambda c: (places.get(c[0], len(places)), c[1] not in FIRST, c[1]))
    heads = [
        tag("th", escape(task_title(task)), tag("small", escape(preset)), scope="col")
        for task, preset in order
    ]
    keys = dict.fromkeys(key for column in order for key in columns[column])
    body = [
        tag(
            "tr",
            tag("th", tag("code", escape(key)), scope="row"),
            *(tag("td", escape(_value(columns[column], key))) for column in order),
        )
        for key in sorted(keys, key=lambda key: ("." in key, key))
    ]
    head = tag("thead", tag("tr", tag("th", "Setting", scope="col"), *heads))
    table = scrolled(tag("table", head, tag("tbody", *body)), "Settings")
    card = tag("div", table, class_="card set")
    return tag("p", INTRODUCTION, class_="note") + tag("div", card, class_="sets stacked")


def _value(column: Mapping[str, Any], key: str) -> str:
    if key not in column:
        return numbers.DASH
    value = column[key]
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
