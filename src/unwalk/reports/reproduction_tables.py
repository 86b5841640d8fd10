"""The tables of the reproduction's page: ours beside the paper's, each difference marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from unwalk.reports import numbers
from unwalk.reports.reproduction_documents import FIGURE, RETRAIN, TASKS, Part
from unwalk.reports.reproduction_figure import title
from unwalk.reports.reproduction_sums import Compared, compared
from unwalk.reports.svg import tag

TITLES = {
    FIGURE: "The figure: accuracy over hops",
    "table-p": "Routing probability p",
    "table-rho": "Trust radius ρ",
    "table-l": "Clipping constant L",
    "table-epsilon": "Privacy parameter ε",
    "table-delta": "Privacy parameter δ",
}
HEADS = {
    FIGURE: "Method",
    "table-p": "p",
    "table-rho": "ρ",
    "table-l": "L",
    "table-epsilon": "ε",
    "table-delta": "δ",
}
ROUTING = {"0": "fine-tuning", "0.1": "RR-DU", "1": "continuous"}
MARKS = {"agree": "✓", "spread": "✓±", "near": "≈", "differ": "✗"}
SPOKEN = {
    "agree": "agrees",
    "spread": "agrees within the spread of the seeds",
    "near": "is near",
    "differ": "differs",
}
TEST, BACKDOOR = "Test accuracy, %", "Backdoor accuracy, %"


@dataclass(frozen=True)
class Column:
    """One column: its group, whose preset it is, and what it shows of which measure."""

    group: str
    preset: str | None
    shows: str
    measure: str
    begins: bool


def task_title(task: str) -> str:
    """A task as it is written.

    >>> task_title("cifar10"), task_title("digits")
    ('CIFAR-10', 'digits')
    """
    return TASKS.get(task, task)


def value_title(row: str) -> str:
    """A value of a table's first column; small ones as powers of ten.

    >>> value_title("0.0001"), value_title("1e-06"), value_title("0.5"), value_title("baseline")
    ('10⁻⁴', '10⁻⁶', '0.5', 'baseline')
    """
    try:
        value = float(row)
    except ValueError:
        return row
    if not math.isfinite(value) or value <= 0 or value >= 1e-3:
        return row
    mantissa, power = f"{value:.3e}".split("e")
    raised = "10" + str(int(power)).translate(numbers.RAISED)
    return raised if float(mantissa) == 1 else f"{float(mantissa):g} × {raised}"


def signed(value: float | None, decimals: int = 2) -> str:
    """A difference in points, with its sign.

    >>> signed(0.161), signed(-3.0), signed(-0.001), signed(None)
    ('+0.16', '−3.00', '0.00', '–')
    """
    text = numbers.fixed(value, decimals)
    plain = value is None or text[0] == numbers.MINUS or not text.strip("0.")
    return text if plain else f"+{text}"


def paper_number(value: float | None, experiment: str) -> str:
    """The paper's number with the digits it gives: its text rounds, its tables do not."""
    if experiment == FIGURE and value is not None:
        return f"{value:g}"
    return numbers.fixed(value, 2)


def columns(part: Part, found: Sequence[Compared]) -> list[Column]:
    """The columns that have something to show, presets side by side."""
    has = {(c.measure, c.preset) for c in found if c.mean is not None}
    told = {c.measure for c in found if c.reported is not None}
    listed = []
    for group, measure, extra in ((TEST, "clean", None), (BACKDOOR, "asr_paper", "asr")):
        mine: list[tuple[str | None, str, str]] = []
        if measure in told:
            mine.append((None, "paper", measure))
        for preset in part.presets:
            if (measure, preset) in has:
                mine.append((preset, "ours", measure))
                mine += [(preset, "difference", measure)] if measure in told else []
            if extra is not None and (extra, preset) in has:
                mine.append((preset, "other", extra))
        for index, (owner, shows, key) in enumerate(mine):
            new = index == 0 or (owner != mine[index - 1][0] and len(part.presets) > 1)
            listed.append(Column(group, owner, shows, key, new))
    return listed


def comparison(part: Part) -> str:
    """One experiment on one dataset: a card with its table."""
    found = compared(part)
    listed = columns(part, found)
    cells = {(c.row, c.hop, c.preset, c.measure): c for c in found}
    rows = dict.fromkeys((c.row, c.hop) for c in found)
    common = [text for text in (counts(found), noise(found)) if text and " or " not in text]
    body = []
    for row, hop in rows:
        mine = [c for c in found if (c.row, c.hop) == (row, hop)]
        texts = [
            _cell(column, cells.get((row, hop, column.preset or "", column.measure)), mine)
            for column in listed
        ]
        kind = "is-main" if row == "rrdu" else None
        body.append(tag("tr", _row_head(part, mine, common), *texts, class_=kind))
    name = f"{TITLES[part.experiment]}, {task_title(part.task)}"
    table = tag("table", _head(part, listed), tag("tbody", *body))
    return tag(
        "div",
        tag(
            "h3",
            escape(task_title(part.task)),
            tag("small", escape("".join(f", {c}" for c in common))),
        ),
        tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=name),
        class_="card set",
    )


def counts(found: Sequence[Compared]) -> str:
    """How many seeds; several numbers where rows differ."""
    seeds = sorted({c.seeds for c in found if c.seeds})
    text = " or ".join(numbers.fixed(count, 0) for count in seeds)
    return f"{text} {'seed' if seeds == [1] else 'seeds'}" if seeds else ""


def noise(found: Sequence[Compared]) -> str:
    """The noise at the forgetting peer; several numbers where rows or presets differ."""
    sigmas = dict.fromkeys(numbers.compact(c.sigma) for c in found if c.sigma is not None)
    return f"σ {' or '.join(sigmas)}" if sigmas else ""


def _head(part: Part, listed: Sequence[Column]) -> str:
    groups = [
        tag("th", escape(group), scope="colgroup", colspan=str(len(list(c))), class_="group from")
        for group, c in groupby(listed, key=lambda c: c.group)
    ]
    lines = [tag("tr", tag("td", ""), *groups)]
    if len(part.presets) > 1:
        spans = [tag("td", "")]
        for (_, preset), members in groupby(listed, key=lambda c: (c.group, c.preset)):
            mine = list(members)
            kind, span = "group from" if mine[0].begins else "group", str(len(mine))
            if preset is None:
                spans.append(tag("td", "", colspan=span, class_=kind))
            else:
                text = tag("code", escape(preset or "unnamed"))
                spans.append(
                    tag("th", "preset ", text, scope="colgroup", colspan=span, class_=kind)
                )
        lines.append(tag("tr", *spans))
    names = {
        "paper": ("Paper", ""),
        "ours": ("Ours", ""),
        "difference": ("Diff.", "points"),
        "other": ("Ours,", "other classes"),
    }
    heads = []
    for column in listed:
        head, unit = names[column.shows]
        below = tag("span", unit, class_="unit") if unit else ""
        kind = " ".join(k for k in (column.shows, "from" if column.begins else "") if k)
        heads.append(tag("th", head, " " if unit else "", below, scope="col", class_=kind))
    lines.append(tag("tr", tag("th", HEADS[part.experiment], scope="col"), *heads))
    return tag("thead", *lines)


def _row_head(part: Part, mine: Sequence[Compared], common: Sequence[str]) -> str:
    first = mine[0]
    small = []
    if part.experiment == FIGURE:
        text = title(first.row)
        if first.row == RETRAIN and first.hop is not None:
            small.append(f"at hop {first.hop:,}")
    else:
        text = value_title(first.row)
        small += [ROUTING[first.row]] if part.experiment == "table-p" and text in ROUTING else []
    small += [text for text in (noise(mine), counts(mine)) if text and text not in common]
    return tag("th", escape(text), *(tag("small", escape(s)) for s in small), scope="row")


def _cell(column: Column, mine: Compared | None, row: Sequence[Compared]) -> str:
    kind = " ".join(k for k in (column.shows, "from" if column.begins else "") if k)
    if column.shows == "paper":
        told = [c for c in row if c.measure == column.measure and c.reported is not None]
        value = told[0].reported if told else None
        return tag("td", paper_number(value, row[0].experiment), class_=kind)
    if mine is None:
        return tag("td", numbers.DASH, class_=kind)
    if column.shows == "difference":
        return tag("td", verdict(mine), class_=kind)
    std = "" if mine.std is None else tag("small", f"± {numbers.fixed(mine.std, 2)}")
    return tag("td", numbers.fixed(mine.mean, 2), std, class_=kind)


def verdict(mine: Compared) -> str:
    """The difference with its mark: a colour, a sign, and a word for those who hear the page."""
    if mine.agreement is None:
        return numbers.DASH
    kind = f"verdict {mine.agreement}"
    return tag("span", signed(mine.difference), mark(mine.agreement), class_=kind)


def mark(kind: str) -> str:
    """The sign of an agreement, with its word."""
    sign = tag("span", MARKS[kind], class_="sign", aria_hidden="true")
    return sign + tag("span", f" {SPOKEN[kind]}", class_="unseen")
