"""The columns of every table, the terminal's summary among them.

A column knows its heading, its unit and how a method's cell reads; page and terminal show the
same columns.  A column that has no value for any method is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from unwalk.reports import numbers
from unwalk.reports.result import GAPS, RETRAIN, Method, Result, Spread, read

MEASURE_HEADS = {
    "clean": "Clean accuracy",
    "asr": "Attack success",
    "asr_paper": "Attack success, paper's count",
    "forget": "Forget accuracy",
    "retain": "Retain accuracy",
}
SHORT_HEADS = {"clean": "clean", "asr": "ASR", "forget": "forget"}


@dataclass(frozen=True)
class Column:
    """One column: its group, heading, unit, and what a method's cell says."""

    group: str
    head: str
    unit: str
    cell: Callable[[Method], str]

    @property
    def title(self) -> str:
        """Heading with its unit."""
        return f"{self.head}, {self.unit}" if self.unit else self.head


def present(columns: Sequence[Column], methods: Sequence[Method]) -> tuple[Column, ...]:
    """The columns in which at least one method has a value."""
    return tuple(c for c in columns if any(c.cell(m) != numbers.DASH for m in methods))


def final_columns(result: Result) -> tuple[Column, ...]:
    """What each method ended with."""
    measures = [key for key in MEASURE_HEADS if result.backdoor or not key.startswith("asr")]
    columns = [Column("At the end", MEASURE_HEADS[k], "%", _final(k)) for k in measures]
    return present(columns, result.methods)


def gap_columns(result: Result) -> tuple[Column, ...]:
    """How far from retraining each method ended."""
    group = "Difference to retraining"
    columns = [Column(group, MEASURE_HEADS[k], "points", _gap(k)) for k in _shown(result)]
    return present(columns, result.methods)


def cost_columns(result: Result) -> tuple[Column, ...]:
    """What each method cost."""
    size, unit = numbers.byte_unit(m.cost.get("bytes") for m in result.methods)
    columns = [
        Column("", "Hops", "", _cost("hops")),
        Column("", "Visits to the forgetting peer", "", _cost("visits_to_unlearner")),
        Column("", "Messages", "", _cost("messages")),
        Column("", "Data moved", unit, _cost("bytes", size, 0 if unit == "B" else 1)),
        Column("", "Gradient evaluations", "", _cost("gradients")),
        Column("", "Time", "s", _cost("seconds", decimals=1)),
    ]
    return present(columns, result.methods)


def matched_columns(result: Result) -> tuple[Column, ...]:
    """How many hops each method took until it was as good as retraining ended, and stayed so."""
    forgot = "Attack success" if result.backdoor else "Forget accuracy"
    group = "Hops until it stays level with retraining"
    columns = [
        Column(group, "Clean accuracy", "within 1 point", _matched("clean_hop")),
        Column(group, forgot, "within 5 points", _matched("forget_hop")),
    ]
    return present(columns, result.methods)


def spread_columns(result: Result) -> tuple[tuple[str, Column], ...]:
    """The columns over several seeds, each with the key of its mean."""
    gap = "Paired difference to retraining"
    columns = [(k, Column("At the end", head, "%", str)) for k, head in MEASURE_HEADS.items()]
    columns += [(f"gap.{k}", Column(gap, MEASURE_HEADS[k], "points", str)) for k in _shown(result)]
    return tuple((k, c) for k, c in columns if any(k in s.mean for s in result.spreads))


def spread_text(spread: Spread, key: str) -> str:
    """Mean and standard deviation; a gap's mean carries its sign, retraining has no gap."""
    if spread.name == RETRAIN and key in GAPS:
        return numbers.DASH
    mean, std = spread.mean.get(key), spread.std.get(key)
    text = numbers.points(mean) if key in GAPS else numbers.hundredths(mean)
    return text if std is None or mean is None else f"{text} ± {numbers.hundredths(std)}"


def summary_columns(result: Result) -> tuple[Column, ...]:
    """The few columns that fit a terminal; means over seeds where there are several."""
    spreads = {s.name: s for s in result.spreads}

    def final(key: str) -> Callable[[Method], str]:
        def cell(method: Method) -> str:
            if method.name in spreads:
                return spread_text(spreads[method.name], key)
            return numbers.hundredths(method.final.get(key))

        return cell

    def gap(key: str) -> Callable[[Method], str]:
        def cell(method: Method) -> str:
            if method.name in spreads and not method.oracle:
                return numbers.points(spreads[method.name].mean.get(f"gap.{key}"))
            return _gap(key)(method)

        return cell

    size, unit = numbers.byte_unit(m.cost.get("bytes") for m in result.methods)
    columns = [
        *(Column("", SHORT_HEADS[k], "%", final(k)) for k in _shown(result)),
        *(Column("", f"{SHORT_HEADS[k]} gap", "pts", gap(k)) for k in _shown(result)),
        Column("", "hops", "", _cost("hops")),
        Column("", "moved", unit, _cost("bytes", size, 0 if unit == "B" else 1)),
        Column("", "gradients", "", _cost("gradients")),
        Column("", "time", "s", _cost("seconds", decimals=1)),
    ]
    return present(columns, result.methods)


def summary_rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row a method, heading to text, in the order of the result.

    >>> method = {"name": "rrdu", "label": "RR-DU", "final": {"clean": 0.961, "asr": 0.03}}
    >>> summary_rows({"format": 1, "methods": [method]})
    [{'method': 'RR-DU', 'clean, %': '96.1', 'ASR, %': '3.0'}]
    """
    view = read(result)
    columns = summary_columns(view)
    return [{"method": m.title} | {c.title: c.cell(m) for c in columns} for m in view.methods]


def summary_table(result: Mapping[str, Any]) -> Table:
    """The same rows as a table for the terminal; the main method stands out."""
    view = read(result)
    title = f"{view.task.name or 'result'}, seed {view.seed or numbers.DASH}"
    if view.spreads:
        title = f"{view.task.name}, mean ± standard deviation over {view.runs} seeds"
    table = Table(
        title=Text(title),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", vertical="bottom", no_wrap=True)
    for column in summary_columns(view):
        head = column.head.replace(" ", "\n") + (f"\n{column.unit}" if column.unit else "")
        table.add_column(Text(head), justify="right", vertical="bottom", no_wrap=True)
    for method, row in zip(view.methods, summary_rows(result), strict=True):
        style = "bold" if method is view.main else ""
        table.add_row(*(Text(cell) for cell in row.values()), style=style)
    if gap_columns(view):
        table.caption = Text("gap: difference to retraining, in percentage points")
    return table


def _shown(result: Result) -> tuple[str, str]:
    return "clean", "asr" if result.backdoor else "forget"


def _final(key: str) -> Callable[[Method], str]:
    def cell(method: Method) -> str:
        return numbers.hundredths(method.final.get(key))

    return cell


def _gap(key: str) -> Callable[[Method], str]:
    def cell(method: Method) -> str:
        return numbers.DASH if method.oracle else numbers.points(method.gap.get(key))

    return cell


def _cost(key: str, size: float = 1.0, decimals: int = 0) -> Callable[[Method], str]:
    def cell(method: Method) -> str:
        value = method.cost.get(key)
        return numbers.fixed(None if value is None else value / size, decimals)

    return cell


def _matched(key: str) -> Callable[[Method], str]:
    def cell(method: Method) -> str:
        return numbers.fixed(method.matched.get(key), 0)

    return cell
