"""Tables of a page as data (cells, rows and heads), and the summary of a run for the terminal.

A :class:`Column` knows its heading, its unit and how a method's cell reads; page and terminal show
the same columns.  A column that has no value for any method is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import rich.table
from rich import box
from rich.text import Text

from unwalk.core.grades import SHOWN
from unwalk.reports import numbers
from unwalk.reports.result import GAPS, RETRAIN, Failure, Method, Result, Spread, read

MEASURE_HEADS = {
    "clean": "Clean accuracy",
    "asr": "Attack success",
    "asr_paper": "Attack success, paper's count",
    "forget": "Forget accuracy",
    "retain": "Retain accuracy",
}
GRADE = "grade"
DISTANCE = "Forgotten records, beside retraining"
DISTANCE_HEADS = {"mia": ("Loss attack", "AUC points"), "kl": ("KL of answers", "nats")}
SHORT_HEADS = {"clean": "clean", "asr": "ASR", "forget": "forget"}


class Cell(NamedTuple):
    """One cell of a page's table: ``kind`` is its class, ``mark`` that of its text.

    ``span`` is how many columns it takes.
    """

    text: str
    small: tuple[str, ...] = ()
    kind: str = ""
    mark: str = ""
    sign: str = ""
    spoken: str = ""
    code: bool = False
    span: int = 1


class Head(NamedTuple):
    """The heading of a column, with its unit or a smaller line below it."""

    text: str
    unit: str = ""
    small: str = ""
    kind: str = ""


class Row(NamedTuple):
    """A row: its heading and its cells."""

    head: Cell
    cells: Sequence[Cell]
    kind: str = ""


class Body(NamedTuple):
    """Rows that belong together, under a title of their own where they have one."""

    rows: Sequence[Row]
    title: str = ""


class Table(NamedTuple):
    """A whole table; ``name`` is spoken, ``groups`` are headings above several columns."""

    name: str
    heads: Sequence[Head]
    bodies: Sequence[Body]
    groups: Sequence[tuple[str, int]] = ()
    group_kind: str = "group from"
    kind: str = ""


def plain_table(name: str, heads: Iterable[str], rows: Sequence[Row]) -> Table:
    """A table with one heading a column."""
    return Table(name, [Head(text) for text in heads], [Body(rows)])


@dataclass(frozen=True)
class Column:
    """A column of methods: its group, heading, unit, and what a method's cell says."""

    group: str
    head: str
    unit: str
    cell: Callable[[Method], str]

    @property
    def title(self) -> str:
        """Heading with its unit."""
        return f"{self.head}, {self.unit}" if self.unit else self.head


def methods_table(
    result: Result, columns: Sequence[Column], name: str, *, before: bool = False
) -> Table:
    """A row for each method; with its preset where methods differ in it.

    With ``before``, the first row is the model before anything was forgotten.
    """
    differ = len({m.preset for m in result.methods}) > 1
    rows = []
    untouched = result.untouched if before else None
    for method in (*(() if untouched is None else (untouched,)), *result.methods):
        preset = (f"preset {method.preset}",) if differ and method.preset else ()
        texts = [column.cell(method) for column in columns]
        rows.append((Cell(method.title, preset), texts, method is result.main))
    return _grouped(columns, rows, name)


def with_failed(table: Table, result: Result) -> Table:
    """The same table with a row for each method that failed: its reason instead of numbers."""
    room = len(table.heads) - 1
    rows = []
    for failed in result.failed:
        why = Cell(numbers.sentence(failed.reason), kind="why", span=room)
        where = failed_where(failed, result)
        rows.append(Row(Cell(failed.title, (where,) if where else ()), [why], "is-failed"))
    *others, last = table.bodies
    return table._replace(bodies=[*others, last._replace(rows=[*last.rows, *rows])])


def failed_where(failed: Failure, result: Result) -> str:
    """The seeds with which a method failed, where it ran with others.

    >>> failed_where(Failure("seal", "Seal", "", (3, 5)), read({"format": 1, "methods": [{}]}))
    'with seeds 3 and 5'
    """
    ran = not failed.name or failed.name in {s.name for s in result.spreads}
    if result.spreads and not ran:
        return ""
    seeds = [str(seed) for seed in failed.seeds]
    return f"with seed{'s' if len(seeds) > 1 else ''} {numbers.joined(seeds)}" if seeds else ""


def seeds_table(result: Result) -> Table:
    """Mean and standard deviation over seeds, with the paired difference to retraining."""
    columns = spread_columns(result)
    first = () if result.spread_before is None else (result.spread_before,)
    rows = [
        (
            Cell(numbers.sentence(spread.label)),
            [spread_cell(spread, key) for key, _ in columns],
            spread.name == result.main.name,
        )
        for spread in (*first, *result.spreads)
    ]
    return _grouped([column for _, column in columns], rows, "Over seeds")


def spread_cell(spread: Spread, key: str) -> str:
    """Mean and deviation; a paired difference has its interval of 95 % as well."""
    if key == GRADE:
        return grade_text(spread.grade)
    text = spread_text(spread, key)
    if key not in spread.intervals or text == numbers.DASH:
        return text
    low, high = (numbers.points(end) for end in spread.intervals[key])
    return f"{text} (95 %: {low} to {high})"


def _grouped(
    columns: Sequence[Column], rows: Iterable[tuple[Cell, list[str], bool]], name: str
) -> Table:
    """A table of methods with its headings: groups above, units below."""
    before = (columns[0].group if columns else "", *(c.group for c in columns))
    kinds = [
        "from" if column.group and column.group != last else ""
        for column, last in zip(columns, before, strict=False)
    ]
    heads = [Head(c.head, c.unit, kind=kind) for c, kind in zip(columns, kinds, strict=True)]
    groups = [(group, len(list(members))) for group, members in groupby(columns, lambda c: c.group)]
    body = [
        Row(
            head,
            [Cell(text, kind=kind) for text, kind in zip(texts, kinds, strict=True)],
            "is-main" if main else "",
        )
        for head, texts, main in rows
    ]
    shown = groups if any(group for group, _ in groups) else []
    return Table(name, [Head("Method"), *heads], [Body(body)], shown, "group")


def present(columns: Sequence[Column], methods: Sequence[Method]) -> tuple[Column, ...]:
    """The columns in which at least one method has a value."""
    return tuple(c for c in columns if any(c.cell(m) != numbers.DASH for m in methods))


def final_columns(result: Result) -> tuple[Column, ...]:
    """What each method ended with."""
    measures = [key for key in MEASURE_HEADS if result.backdoor or not key.startswith("asr")]
    heads = heads_of(result)
    columns = [Column("At the end", heads[k], "%", final_cell(k)) for k in measures]
    return present(columns, result.methods)


def gap_columns(result: Result) -> tuple[Column, ...]:
    """How far from retraining each method ended."""
    group = "Difference to retraining"
    heads = heads_of(result)
    columns = [Column(group, heads[k], "points", gap_cell(k)) for k in measured(result)]
    return present(columns, result.methods)


def distance_columns(result: Result) -> tuple[Column, ...]:
    """How far the answers to forgotten records are from retraining's."""
    columns = [
        Column(DISTANCE, head, unit, _distance_cell(key))
        for key, (head, unit) in DISTANCE_HEADS.items()
    ]
    return present(columns, result.methods)


def _distance_cell(key: str) -> Callable[[Method], str]:
    write = numbers.points if key == "mia" else lambda value: numbers.fixed(value, 3)
    return lambda m: numbers.DASH if m.oracle else write(m.measures.get(key))


def cost_columns(result: Result) -> tuple[Column, ...]:
    """What each method cost."""
    columns = [
        Column("", "Hops", "", cost_cell("hops")),
        Column("", "Visits to the forgetting peer", "", cost_cell("visits_to_unlearner")),
        Column("", "Messages", "", cost_cell("messages")),
        moved_column(result, "Data moved"),
        Column("", "Gradient evaluations", "", cost_cell("gradients")),
        Column("", "Time", "s", cost_cell("seconds", decimals=1)),
    ]
    return present(columns, result.methods)


def moved_column(result: Result, head: str) -> Column:
    """The data moved, in one unit for all methods."""
    size, unit = numbers.byte_unit(m.cost.get("bytes") for m in result.methods)
    return Column("", head, unit, cost_cell("bytes", size, 0 if unit == "B" else 1))


def matched_columns(result: Result) -> tuple[Column, ...]:
    """How many hops each method took until it was as good as retraining ended, and stayed so."""
    heads = heads_of(result)
    forgot = heads[measured(result)[1]]
    group = "Hops until it stays level with retraining"
    columns = [
        Column(group, heads["clean"], "within 1 point", _matched_cell("clean_hop")),
        Column(group, forgot, "within 5 points", _matched_cell("forget_hop")),
    ]
    return present(columns, result.methods)


def spread_columns(result: Result) -> tuple[tuple[str, Column], ...]:
    """The columns over several seeds, each with the key of its mean."""
    gap = "Paired difference to retraining"
    heads = heads_of(result)
    columns = [(k, Column("At the end", head, "%", str)) for k, head in heads.items()]
    for key in measured(result):
        columns.append((f"gap.{key}", Column(gap, heads[key], "points", str)))
    for key, (head, unit) in DISTANCE_HEADS.items():
        columns.append((f"measure.{key}", Column(DISTANCE, head, unit, str)))
    known = [(k, c) for k, c in columns if any(k in s.mean for s in result.spreads)]
    graded = any(s.grade for s in result.spreads)
    return (*known, *([(GRADE, Column("", "Guarantee", "", str))] if graded else []))


def spread_text(spread: Spread, key: str) -> str:
    """Mean and standard deviation; a gap's mean carries its sign, retraining has no gap."""
    if spread.name == RETRAIN and (key in GAPS or key.startswith("measure.")):
        return numbers.DASH
    mean, std = spread.mean.get(key), spread.std.get(key)
    if key == "measure.kl":
        text = numbers.fixed(mean, 3)
        return text if std is None or mean is None else f"{text} ± {numbers.fixed(std, 3)}"
    text = numbers.points(mean) if key in (*GAPS, "measure.mia") else numbers.hundredths(mean)
    return text if std is None or mean is None else f"{text} ± {numbers.hundredths(std)}"


def grade_column(result: Result) -> tuple[Column, ...]:
    """What is guaranteed of each method's model."""
    column = Column("", "Guarantee", "", lambda method: grade_text(method.grade))
    return present([column], result.methods)


def grade_text(grade: str) -> str:
    """The sign and the first word of a grade, or of several that seeds differ in.

    >>> grade_text("exact"), grade_text("rehearsal or refused"), grade_text("")
    ('= exact', '▷ rehearsal or ✗ refused', '–')
    """
    words = [f"{SHOWN[g].sign} {g}" if g in SHOWN else g for g in grade.split(" or ") if g]
    return " or ".join(words) or numbers.DASH


def heads_of(result: Result) -> dict[str, str]:
    """The headings of the measures, with the name of what was measured in the place of accuracy."""
    return {key: result.task.scored(head) for key, head in MEASURE_HEADS.items()}


def measured(result: Result) -> tuple[str, str]:
    """The two measures that matter: accuracy, and what shows whether it forgot."""
    return "clean", "asr" if result.backdoor else "forget"


def final_cell(key: str) -> Callable[[Method], str]:
    """What a method ended with."""
    return lambda method: numbers.hundredths(method.final.get(key))


def gap_cell(key: str) -> Callable[[Method], str]:
    """How far from retraining a method ended."""
    return lambda m: numbers.DASH if m.oracle else numbers.points(m.gap.get(key))


def cost_cell(key: str, size: float = 1.0, decimals: int = 0) -> Callable[[Method], str]:
    """What a method cost, in units of ``size``."""

    def cell(method: Method) -> str:
        value = method.cost.get(key)
        return numbers.fixed(None if value is None else value / size, decimals)

    return cell


def _matched_cell(key: str) -> Callable[[Method], str]:
    return lambda method: numbers.fixed(method.matched.get(key), 0)


def summary_rows(result: Result) -> list[dict[str, str]]:
    """One row for each method, heading to text, in the order of the result.

    >>> method = {"name": "rrdu", "label": "RR-DU", "final": {"clean": 0.961, "asr": 0.03}}
    >>> summary_rows(read({"format": 1, "methods": [method]}))
    [{'method': 'RR-DU', 'clean, %': '96.1', 'ASR, %': '3.0'}]
    """
    columns = _summary_columns(result)
    return [{"method": m.title} | {c.title: c.cell(m) for c in columns} for m in result.methods]


def summary_table(result: Mapping[str, Any]) -> rich.table.Table:
    """The same rows as a table for the terminal; the main method stands out."""
    view = read(result)
    title = f"{view.task.name or 'result'}, seed {view.seed or numbers.DASH}"
    if view.spreads:
        seeds = numbers.counted(view.runs, "seed")
        words = seeds if view.runs == 1 else f"mean ± standard deviation over {seeds}"
        title = f"{view.task.name}, {words}"
    table = terminal_table(title)
    table.add_column("method", vertical="bottom", no_wrap=True)
    for column in _summary_columns(view):
        head = column.head.replace(" ", "\n") + (f"\n{column.unit}" if column.unit else "")
        table.add_column(Text(head), justify="right", vertical="bottom", no_wrap=True)
    if view.spread_before is not None:
        table.add_row(*(Text(cell) for cell in _before_row(view)))
    for method, row in zip(view.methods, summary_rows(view), strict=True):
        style = "bold" if method is view.main else ""
        table.add_row(*(Text(cell) for cell in row.values()), style=style)
    ran = {method.name for method in view.methods}
    for title in dict.fromkeys(f.title for f in view.failed if f.name and f.name not in ran):
        table.add_row(Text(title), *(Text(numbers.DASH) for _ in table.columns[1:]), style="dim")
    if gap_columns(view):
        table.caption = Text("gap: difference to retraining, in percentage points")
    return table


def _before_row(result: Result) -> list[str]:
    """The model before anything was forgotten, over all seeds; it has no cost."""
    spread = result.spread_before
    assert spread is not None
    cells = ["Before forgetting"]
    for column in _summary_columns(result):
        key = {head: key for key, head in SHORT_HEADS.items()}.get(column.head.removesuffix(" gap"))
        if key is None:
            cells.append(numbers.DASH)
        elif column.head.endswith(" gap"):
            cells.append(numbers.points(spread.mean.get(f"gap.{key}")))
        else:
            cells.append(spread_text(spread, key))
    return cells


def warning_lines(result: Mapping[str, Any]) -> list[str]:
    """What makes the table say less than it seems to, for the terminal."""
    found = [never_took(read(result))]
    if columns := result["task"].get("unscaled"):
        found.append(
            f"no scale for {', '.join(columns)}, with values beyond 10: little is learned so; "
            f"declare it, as in data.scale={columns[0]}=50:30 (centre:reach)."
        )
    return [f"warning: {told}" for told in found if told]


def never_took(result: Result) -> str:
    """A sentence where the backdoor was not learned, so that nothing can be forgotten of it."""
    rates = result.never_took
    if rates is None:
        return ""
    before, usual = (numbers.percent(value) for value in rates)
    beside = f", and {usual} without it" if result.oracle is not None else ""
    return (
        f"the backdoor never took: it succeeded in {before} of cases before forgetting{beside}. "
        "No method can be judged by it; train longer (train.hops) or poison more (forget.size)."
    )


def failed_lines(result: Mapping[str, Any]) -> list[str]:
    """A line for each method that failed, for the terminal."""
    view = read(result)
    lines = []
    for failed in view.failed:
        where = failed_where(failed, view)
        lines.append(f"{failed.title} failed{f' {where}' if where else ''}: {failed.reason}")
    return lines


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

    def grade(method: Method) -> str:
        spread = spreads.get(method.name)
        return grade_text(method.grade if spread is None else spread.grade)

    columns = [
        *(Column("", SHORT_HEADS[k], "%", final(k)) for k in measured(result)),
        *(Column("", f"{SHORT_HEADS[k]} gap", "pts", gap(k)) for k in measured(result)),
        Column("", "guarantee", "", grade),
        Column("", "hops", "", cost_cell("hops")),
        moved_column(result, "moved"),
        Column("", "gradients", "", cost_cell("gradients")),
        Column("", "time", "s", cost_cell("seconds", decimals=1)),
    ]
    return present(columns, result.methods)


def terminal_table(title: str) -> rich.table.Table:
    """An empty table for the terminal."""
    return rich.table.Table(
        title=Text(title),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
