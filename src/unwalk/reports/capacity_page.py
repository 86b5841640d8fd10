"""Deletion capacity as a picture, a page, a table and lines: the formulas beside what was measured.

The first panel is over the tolerance gamma, where a formula has its two regimes: nothing below the
risk that the noise makes, then in proportion.  The others are at one tolerance, over epsilon, N,
n_u and d.  Both axes are logarithmic; a capacity below one record is drawn below the line of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import rich.table
from markupsafe import Markup
from rich.text import Text

from unwalk.reports import numbers
from unwalk.reports.charts import (
    XY,
    Key,
    Scale,
    look_of,
    marker,
    picture,
    polyline,
    tag,
    text_width,
    words,
)
from unwalk.reports.page import render_page
from unwalk.reports.svg_file import alone
from unwalk.reports.tables import Body, Cell, Head, Row, Table, grade_text, terminal_table

WIDTH, PANEL, LEFT, TOP, GAP = 920.0, 200.0, 52.0, 26.0, 62.0
FLOOR = 1e-6
"""The least capacity that is drawn above the line of 0."""
AXES = {
    "gamma": ("tolerance gamma, nats of test loss", None),
    "epsilon": ("epsilon", "unlearn.epsilon"),
    "peers": ("peers N", "peers"),
    "records": ("records n_u of the peer", None),
    "dimension": ("parameters d", None),
}
"""Panels: what is told below each, and the setting by which measured points lie on it."""
DASHES = {"nominal": "8 6", "corrected": "1 6"}
ASIDE = 3.0
"""How far apart methods with the same capacity are drawn."""
NOTES = (
    "Excess is test loss less that of retraining without the records with the same seed, with "
    "records drawn at random. The paper's capacity takes the worst records and the least loss "
    "there is, so that a measured capacity is from above.",
    "A capacity is the largest number tried up to which the mean excess stays at most gamma; ≥ "
    "says that all that were tried stayed so.",
    "Formulas take every constant of an O as 1. Nominal ones are the paper's; corrected ones hold "
    "for the risk, and no certificate of a run rests on either. A method's guarantee is what its "
    "own accountant proves.",
)


def _method(formula: str) -> str:
    return formula.partition("-")[0]


def _dashes(formula: str, grade: str) -> str:
    return "16 6" if formula == "ddp-kept" else DASHES[grade]


def _value(point: Mapping[str, Any], axis: str) -> float:
    value: float = point["at"][axis]
    return value


def largest(excess: Sequence[Sequence[Any]], gamma: float) -> int:
    """The last number of records up to which every excess is known and at most ``gamma``.

    >>> largest([[1, 0.01], [2, 0.05], [5, 0.2], [10, 0.04]], 0.1)
    2
    """
    most = 0
    for count, value, *_ in excess:
        if value is None or value > gamma:
            break
        most = count
    return most


class _Panel:
    """One panel: its scales, and what is drawn on them."""

    def __init__(self, result: Mapping[str, Any], axis: str, at: XY, width: float) -> None:
        self.result, self.axis, self.at = result, axis, at
        self.curve = result["curves"][axis]
        self.points = self._points()
        values = [math.log10(x) for x, _ in self.curve]
        values += [math.log10(_value(point, axis)) for point in self.points if axis != "gamma"]
        most = max(2.0 * max(point["at"]["records"] for point in result["points"]), 10.0)
        self.x = Scale(min(values), max(values), at[0] + LEFT, at[0] + width - 30)
        self.y = Scale(math.log10(FLOOR), math.log10(most), at[1] + TOP + PANEL - 16, at[1] + TOP)

    def _points(self) -> list[Mapping[str, Any]]:
        """The measured points on this axis: the base, and those that vary its setting alone."""
        key = AXES[self.axis][1]
        base, *others = self.result["points"]
        return [base, *(one for one in others if key and list(one["settings"]) == [key])]

    def high(self, value: float) -> float:
        """Where a capacity lies; 0 has a line of its own at the bottom."""
        if value < FLOOR:
            return self.y.start + 16
        return self.y(math.log10(value))

    def draw(self) -> Iterator[Markup]:
        """Grid, formulas, measured points, title."""
        left, right = self.x.start, self.x.end
        yield words("records forgotten at once", self.at[0] + 4, self.at[1] + 12, class_="tick")
        for power in range(-4, 8, 2):
            if self.y.low <= power <= self.y.high:
                place = self.y(power)
                yield tag("line", x1=left, x2=right, y1=place, y2=place, class_="grid")
                text = numbers.raised(10.0**power) if power < 0 else f"{10**power:,}"
                yield words(text, left - 6, place + 4.5, text_anchor="end", class_="tick")
        bottom = self.high(0.0)
        yield tag("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis")
        yield words("0", left - 6, bottom + 4.5, text_anchor="end", class_="tick")
        first, last = math.ceil(self.x.low - 1e-9), math.floor(self.x.high + 1e-9)
        for power in range(first, last + 1, max(1, (last - first) // 4)):
            place = self.x(power)
            text = numbers.raised(10.0**power) if power < 0 else f"{10**power:,}"
            yield tag("line", x1=place, x2=place, y1=bottom, y2=bottom + 4, class_="axis")
            yield words(text, place, bottom + 18, text_anchor="middle", class_="tick")
        middle, title = (left + right) / 2, AXES[self.axis][0]
        yield words(title, middle, bottom + 36, text_anchor="middle", class_="tick")
        yield from self._formulas()
        yield from self._measured()

    def _formulas(self) -> Iterator[Markup]:
        for name, (_, grade, _) in self.result["formulas"].items():
            line = [(self.x(math.log10(x)), self.high(found[name])) for x, found in self.curve]
            look = {
                "stroke": look_of(_method(name)).colour,
                "stroke_dasharray": _dashes(name, grade),
            }
            line = _stepped(line, self.high(0.0))
            yield polyline(line, stroke_width=2.0, stroke_linecap="round", **look)

    def _measured(self) -> Iterator[Markup]:
        rows = self.points[0]["measured"]
        for number, row in enumerate(rows):
            look, aside = look_of(row["method"]), ASIDE * (number - (len(rows) - 1) / 2)
            if self.axis == "gamma":
                found = [(gamma, largest(row["excess"], gamma)) for gamma, _ in self.curve]
            else:
                at = {_value(one, self.axis): one["measured"][number] for one in self.points}
                found = sorted((x, one["capacity"]) for x, one in at.items())
            line = [(self.x(math.log10(x)), self.high(most) + aside) for x, most in found]
            marks = line[4 + 2 * number :: 16] if self.axis == "gamma" else line
            if self.axis == "gamma":
                line = _stepped(line)
            yield polyline(line, stroke=look.colour, stroke_width=2.0)
            for x, y in marks:
                yield marker(look.shape, x, y, 4.2, fill=look.colour, class_="end")


def _stepped(line: Sequence[XY], bottom: float | None = None) -> list[XY]:
    """The line in steps: everywhere, or where it leaves the line of 0 or comes back to it.

    >>> _stepped([(0.0, 9.0), (1.0, 5.0), (2.0, 4.0)], bottom=9.0)
    [(0.0, 9.0), (1.0, 9.0), (1.0, 5.0), (2.0, 4.0)]
    """
    steps = [line[0]]
    for x, y in line[1:]:
        before = steps[-1][1]
        if before != y and (bottom is None or bottom in (before, y)):
            steps.append((x, before))
        steps.append((x, y))
    return steps


def drawing(result: Mapping[str, Any]) -> Markup:
    """The picture: a wide panel, four below it, and what is drawn how."""
    body: list[Markup] = []
    step = PANEL + TOP + GAP
    panels = [_Panel(result, "gamma", (0.0, 0.0), WIDTH)]
    for number, axis in enumerate(list(AXES)[1:]):
        place = (number % 2 * WIDTH / 2, (1 + number // 2) * step)
        panels.append(_Panel(result, axis, place, WIDTH / 2))
    for panel in panels:
        body += panel.draw()
    keys = [
        Key(f"{result['labels'][row['method']]}, measured", look.colour, look.shape)
        for row in result["points"][0]["measured"]
        for look in [look_of(row["method"])]
    ]
    keys += [
        Key(f"{label} ({grade})", look_of(_method(name)).colour, None, _dashes(name, grade))
        for name, (label, grade, _) in result["formulas"].items()
    ]
    x, y = 8.0, 3 * step + 10
    for key in keys:
        wide = 34 + text_width(key.label) + 14
        if x + wide > WIDTH:
            x, y = 8.0, y + 22
        body += [key.draw(x, y), words(key.label, x + 34, y + 4.5, class_="key tick")]
        x += wide
    return picture(
        "capacity",
        "Deletion capacity",
        f"{story(result)} {_spoken(result)}",
        y + 16,
        body,
        "chart",
        WIDTH,
    )


def picture_of(result: Mapping[str, Any]) -> str:
    """The picture as a file of its own."""
    return alone(f"Deletion capacity: {result['task']}", [drawing(result)], "run")


def story(result: Mapping[str, Any]) -> str:
    """What was measured, in a sentence."""
    base, seeds = result["points"][0]["at"], numbers.counted(len(result["seeds"]), "seed")
    return (
        f"How many records one peer can forget at once with at most {result['gamma']:g} of excess "
        f"test loss: epsilon {base['epsilon']:g}, N {base['peers']}, n_u {base['records']:,}, "
        f"d {base['dimension']:,}; {seeds}."
    )


def _spoken(result: Mapping[str, Any]) -> str:
    told = [
        f"{result['labels'][row['method']]} {_most(result, row)}"
        for row in result["points"][0]["measured"]
    ]
    return f"Measured: {', '.join(told)}."


def _most(result: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """A measured capacity, with a sign where all that were tried stayed below gamma."""
    last = row["excess"][-1][0] if row["excess"] else None
    return f"{'≥ ' if row['capacity'] == last else ''}{row['capacity']:,}"


def _named(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items()) or "as given"


def lines_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for every formula and every measured excess at every point."""
    lines: list[dict[str, Any]] = []
    for point in result["points"]:
        at = {key: point["at"][key] for key in AXES if key != "gamma"}
        there = {"point": _named(point["settings"]), **at, "gamma": result["gamma"]}
        for name, (_, grade, _) in result["formulas"].items():
            lines.append(
                {**there, "name": name, "kind": grade, "capacity": point["formulas"][name]}
            )
        for name, foreseen in point["predicted"].items():
            for count, bound in foreseen["bound"]:
                found = {"m": count, "excess": bound, "capacity": foreseen["capacity"]}
                lines.append({**there, "name": name, "kind": "predicted", **found})
        for row in point["measured"]:
            own = {"name": row["method"], "kind": "measured", "grade": row["grade"]}
            for count, mean, std in row["excess"]:
                found = {"m": count, "excess": mean, "std": std, "capacity": row["capacity"]}
                lines.append({**there, **own, **found})
            if row["reason"]:
                lines.append({**there, **own, "reason": row["reason"]})
    return lines


def _capacities(result: Mapping[str, Any]) -> Table:
    """Every method at every point."""
    heads = [Head(text) for text in ("Settings", "Capacity", "Foreseen", "Guarantee")]
    heads += [Head("Excess", f"m = {count}") for count in result["records"]]
    bodies = []
    for name, label in result["labels"].items():
        rows = []
        for point in result["points"]:
            row = next(one for one in point["measured"] if one["method"] == name)
            by = {count: mean for count, mean, _ in row["excess"]}
            foreseen = point["predicted"].get(name, {}).get("capacity")
            cells = [_most(result, row), numbers.fixed(foreseen, 0), grade_text(row["grade"])]
            cells += [numbers.fixed(by.get(count), 3) for count in result["records"]]
            rows.append(Row(Cell(_named(point["settings"])), [Cell(text) for text in cells]))
            if row["reason"]:
                why = Cell(numbers.sentence(row["reason"]), kind="why", span=len(heads) - 1)
                rows.append(Row(Cell(""), [why], "is-failed"))
        bodies.append(Body(rows, numbers.sentence(label)))
    return Table("Measured", heads, bodies)


def _formulas(result: Mapping[str, Any]) -> Table:
    """What each formula says at every point, its grade and what it assumes."""
    heads = [Head("Formula"), Head("Grade"), Head("It assumes", kind="said")]
    heads += [Head("Capacity", _named(point["settings"])) for point in result["points"]]
    rows = [
        Row(
            Cell(label),
            [Cell(grade), Cell(assumes, kind="said")]
            + [Cell(numbers.compact(point["formulas"][name])) for point in result["points"]],
        )
        for name, (label, grade, assumes) in result["formulas"].items()
    ]
    return Table("Formulas", heads, [Body(rows)])


def _beside(result: Mapping[str, Any]) -> list[Table]:
    """RR-DU's effective variance, alignment bias and excess risk, measured beside the formulas."""
    beside = result["beside"]
    if not beside:
        return []
    heads = [Head(text) for text in ("RR-DU", "Paper", "Corrected", "Measured, mean", "Largest")]

    def row(name: str, one: Mapping[str, Any], seen: Sequence[float]) -> Row:
        values = (one["nominal"], one["corrected"], sum(seen) / len(seen), max(seen))
        return Row(Cell(name), [Cell(numbers.compact(value)) for value in values])

    rows = [row("Second moment of a hop", beside["variance"], beside["variance"]["measured"])]
    for one in beside["bias"]:
        rows.append(row(f"Alignment bias, m = {one['records']}", one, one["measured"]))
    risk = beside["risk"]
    rows.append(row("Excess risk, any m", risk, [mean for _, mean, _ in risk["measured"]]))
    return [Table("The paper's terms, measured", heads, [Body(rows)])]


def capacity_table(result: Mapping[str, Any]) -> rich.table.Table:
    """The table for the terminal: a capacity for each method and formula at each point."""
    table = terminal_table(story(result))
    table.add_column("", no_wrap=True)
    table.add_column("grade")
    for point in result["points"]:
        table.add_column(_named(point["settings"]), justify="right")
    for name, label in result["labels"].items():
        rows = [r for p in result["points"] for r in p["measured"] if r["method"] == name]
        cells = [f"{numbers.sentence(label)}, measured", grade_text(rows[0]["grade"])]
        table.add_row(*(Text(text) for text in (*cells, *(_most(result, row) for row in rows))))
    for name, (label, grade, _) in result["formulas"].items():
        values = [numbers.compact(point["formulas"][name]) for point in result["points"]]
        table.add_row(*(Text(text) for text in (label, grade, *values)))
    return table


def failed_lines(result: Mapping[str, Any]) -> list[str]:
    """A line for each method that failed somewhere."""
    return [
        f"{result['labels'][row['method']]} failed with {_named(point['settings'])}: "
        f"{row['reason']}"
        for point in result["points"]
        for row in point["measured"]
        if row["reason"]
    ]


def render_capacity(result: Mapping[str, Any]) -> str:
    """The page as one HTML text."""
    return render_page(
        "evaluation",
        brand="unwalk capacity",
        title=f"Deletion capacity: {result['task']}",
        story=story(result),
        figure=drawing(result),
        notes=NOTES,
        table=_capacities(result),
        further=[_formulas(result), *_beside(result)],
        warnings=[],
        command=result["command"],
        version=result["unwalk"],
        source="capacity.json",
    )
