"""A plan as a table: every way to forget with what it costs, and why others are not possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rich.table
from rich.text import Text

from unwalk.core.grades import SHOWN, plain_reason
from unwalk.reports import numbers
from unwalk.reports.tables import Cell, Row, Table, grade_text, plain_table, terminal_table

HEADS = (
    "Way",
    "Guarantee",
    "Hops",
    "Moved",
    "Computing, s",
    "Noise : model",
    "Expected clean, %",
    "Cost, s",
)
STRONGEST_FIRST = ("exact", "certified", "nominal")
PREDICTED = (
    ("hops", "Hops", lambda v: numbers.fixed(v, 0)),
    ("bytes", "Data moved, B", lambda v: numbers.fixed(v, 0)),
    ("gradients", "Gradient evaluations", lambda v: numbers.fixed(v, 0)),
    ("seconds", "Computing, s", lambda v: numbers.fixed(v, 2)),
    ("accuracy", "Clean accuracy, %", numbers.hundredths),
    ("grade", "Guarantee", lambda v: grade_text(v or "")),
)


def cost_of(way: Mapping[str, Any], rates: Mapping[str, float]) -> float:
    """What a way costs in seconds, at the rates of its plan."""
    moved = way["messages"] * rates["message"] + way["bytes"] * rates["byte"]
    visits = way["hops"] * rates.get("visit", 0.0)  # plans of before have none
    return float(moved + visits + way["gradients"] * rates["gradient"])


def _cells(way: Mapping[str, Any], rates: Mapping[str, float]) -> list[str]:
    noise, model = way["noise"], way["model"]
    beside = numbers.DASH
    if noise is not None:
        limit = numbers.DASH if model is None else f"≤ {model:.3g}"
        beside = f"{noise:.3g} : {limit}"
    return [
        grade_text(way["grade"]),
        numbers.fixed(way["hops"], 0),
        _moved(way["bytes"]),
        numbers.fixed(way["seconds"], 2),
        beside,
        numbers.hundredths(way["accuracy"]),
        numbers.fixed(cost_of(way, rates), 1),
    ]


def _moved(count: float) -> str:
    size, unit = numbers.byte_unit([count])
    return f"{numbers.fixed(count / size, 0 if unit == 'B' else 1)} {unit}"


def plan_table(plan: Mapping[str, Any]) -> rich.table.Table:
    """The ways that are possible, for the terminal; the one that is taken stands out."""
    table = terminal_table(title_of(plan))
    for number, head in enumerate(HEADS):
        justify = "left" if number < 2 else "right"
        table.add_column(head, justify=justify, vertical="bottom", no_wrap=True)  # type: ignore[arg-type]
    for way in plan["ways"]:
        if way["possible"]:
            style = "bold" if way["way"] == plan["best"] else ""
            cells = [way["way"], *_cells(way, plan["rates"])]
            table.add_row(*map(Text, cells), style=style)
    return table


def title_of(plan: Mapping[str, Any]) -> str:
    """What was asked, in one line."""
    asked = numbers.counted(plan["records"], "record")
    budget = ""
    if plan["grade"] != "exact":
        budget = f" (epsilon {plan['epsilon']:g}, delta {plan['delta']:g})"
    return f"forget {asked} of peer {plan['peer']}, grade {plan['grade']}{budget}"


def not_possible(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The other ways, each with the reason in one sentence."""
    rows = [way for way in plan["ways"] if not way["possible"]]
    return [(way["way"], plain_reason(way["reason"])) for way in rows]


def pick_line(plan: Mapping[str, Any]) -> str:
    """Which way is taken, and why."""
    if plan["best"] is None:
        return f"no way reaches grade {plan['grade']} with these settings and this budget"
    way = next(one for one in plan["ways"] if one["way"] == plan["best"])
    meaning, rates = SHOWN[way["grade"]].meaning, plan["rates"]
    enough = STRONGEST_FIRST[: STRONGEST_FIRST.index(plan["grade"]) + 1]
    cheaper = [
        one
        for one in plan["ways"]
        if one["possible"] and one["grade"] in enough and cost_of(one, rates) < cost_of(way, rates)
    ]
    which = "cheapest that reaches it"
    if cheaper:
        which = f"hardly dearer than {cheaper[0]['way']}, and guarantees more"
    return f"{which}: {way['way']}. {meaning}"


def rates_line(rates: Mapping[str, float]) -> str:
    """The rates at which costs are compared."""
    message, megabyte, gradient = rates["message"], 1e6 * rates["byte"], 1e6 * rates["gradient"]
    visit = 1e3 * rates.get("visit", 0.0)
    return (
        f"cost: {message:g} s per message, {megabyte:.3g} s per MB, {visit:g} ms per visit, "
        f"{gradient:.3g} µs per gradient of a record"
    )


def page_note(plan: Mapping[str, Any]) -> str:
    """How to read the ways on a page."""
    line = numbers.sentence(pick_line(plan))
    return (
        f"Before training, every way to {title_of(plan)}. {line} Nothing here depends on what is "
        f"in the records. {numbers.sentence(rates_line(plan['rates']))}."
    )


def ways_table(plan: Mapping[str, Any]) -> Table:
    """The same for a page, with a row for each way that is not possible."""
    rows = []
    for way in plan["ways"]:
        kind = "is-main" if way["way"] == plan["best"] else ""
        if way["possible"]:
            cells = [Cell(text) for text in _cells(way, plan["rates"])]
        else:
            why = numbers.sentence(plain_reason(way["reason"]))
            cells, kind = [Cell(why, kind="why", span=len(HEADS) - 1)], "is-failed"
        rows.append(Row(Cell(numbers.sentence(way["way"])), cells, kind))
    return plain_table("Ways to forget", HEADS, rows)


def beside_table(plan: Mapping[str, Any]) -> Table:
    """What was predicted of the way that was taken, beside what came."""
    way = next(one for one in plan["ways"] if one["way"] == plan["best"])
    outcome = plan["outcome"]
    rows = []
    for key, head, write in PREDICTED:
        rows.append(Row(Cell(head), [Cell(write(way[key])), Cell(write(outcome[key]))]))
    return plain_table("Predicted and come", ("", "Predicted", "Came"), rows)
