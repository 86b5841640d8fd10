"""The page's tables: methods side by side, over seeds, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from unwalk.reports import numbers, tables, words
from unwalk.reports.result import Method, Result
from unwalk.reports.svg import tag
from unwalk.reports.tables import Column


def section(heading: str, *content: str) -> str:
    """A part of the page under its heading."""
    return tag("section", tag("h2", escape(heading)), *content) + "\n"


def methods_section(result: Result) -> str:
    """How every method ended, and how far from retraining."""
    columns = (*tables.final_columns(result), *tables.gap_columns(result))
    notes = []
    if tables.gap_columns(result):
        notes.append("Retraining never saw the forgotten records: it is the reference.")
        if result.backdoor:
            notes.append(
                "An attack success below retraining's is over-unlearning, not a better result."
            )
    if any("asr_paper" in m.final for m in result.methods):
        notes.append(
            "Attack success leaves out records that belong to the target class; the paper's count "
            "keeps them."
        )
    heading = "Methods compared" if len(result.methods) > 1 else "How it ended"
    told = tag("p", escape(" ".join(notes)), class_="note") if notes else ""
    return section(heading, told, _table(result, columns, heading)) if columns else ""


def cost_section(result: Result) -> str:
    """What every method cost, in hops, messages, bytes, gradients and time."""
    columns = (*tables.cost_columns(result), *tables.matched_columns(result))
    if not columns:
        return ""
    told = words.price(result)
    return section(
        "What it cost",
        tag("p", escape(told), class_="note") if told else "",
        _table(result, columns, "What each method cost"),
    )


def _table(result: Result, columns: Sequence[Column], name: str) -> str:
    rows = [
        tag(
            "tr",
            _name(result, method),
            *(
                tag("td", escape(column.cell(method)), class_="from" if starts else None)
                for column, starts in zip(columns, _starts(columns), strict=True)
            ),
            class_="is-main" if method is result.main else None,
        )
        for method in result.methods
    ]
    return _framed(columns, rows, name)


def _framed(columns: Sequence[Column], rows: Sequence[str], name: str) -> str:
    """A table with its headings: groups above, units below."""
    heads = []
    for column, starts in zip(columns, _starts(columns), strict=True):
        unit = tag("span", escape(column.unit), class_="unit") if column.unit else ""
        heads.append(
            tag(
                "th",
                escape(column.head),
                " " if unit else "",
                unit,
                scope="col",
                class_="from" if starts else None,
            )
        )
    groups = [
        tag("th", escape(group), scope="colgroup", colspan=str(len(list(members))), class_="group")
        if group
        else tag("td", "", colspan=str(len(list(members))))
        for group, members in groupby(columns, key=lambda c: c.group)
    ]
    top = tag("tr", tag("td", ""), *groups) if any(c.group for c in columns) else ""
    head = tag("thead", top, tag("tr", tag("th", "Method", scope="col"), *heads))
    table = tag("table", head, tag("tbody", *rows))
    return tag(
        "div",
        tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=name),
        class_="card",
    )


def _starts(columns: Sequence[Column]) -> list[bool]:
    """Which columns begin a named group that another column stands before."""
    before = (columns[0].group if columns else "", *(c.group for c in columns))
    return [bool(c.group) and c.group != b for c, b in zip(columns, before, strict=False)]


def _name(result: Result, method: Method) -> str:
    """The row's heading; with its preset where methods differ in it."""
    differ = len({m.preset for m in result.methods}) > 1
    preset = tag("small", escape(f"preset {method.preset}")) if differ and method.preset else ""
    return tag("th", escape(method.title), preset, scope="row")


def seeds_section(result: Result) -> str:
    """Mean and standard deviation over seeds, with the paired difference to retraining."""
    if not result.spreads:
        return ""
    columns = tables.spread_columns(result)
    rows = []
    for spread in result.spreads:
        cells = [
            tag("td", tables.spread_text(spread, key), class_="from" if starts else None)
            for (key, _), starts in zip(columns, _starts([c for _, c in columns]), strict=True)
        ]
        kind = "is-main" if spread.name == result.main.name else None
        name = tag("th", escape(words.sentence(spread.label)), scope="row")
        rows.append(tag("tr", name, *cells, class_=kind))
    told = "Mean ± standard deviation at the end."
    if result.runs > 1:
        told += " Everything else on this page is the first seed's."
    table = _framed([c for _, c in columns], rows, "Over seeds")
    return section(
        f"Over {numbers.counted(result.runs, 'seed')}", tag("p", told, class_="note"), table
    )
