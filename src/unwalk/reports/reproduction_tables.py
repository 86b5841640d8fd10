"""The tables of the reproduction's page: ours beside the paper's, each difference marked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

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
    """One column: its group, and what it shows of which measure."""

    group: str
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


def columns(found: Sequence[Compared]) -> list[Column]:
    """The columns that have something to show."""
    has = {c.measure for c in found if c.mean is not None}
    told = {c.measure for c in found if c.reported is not None}
    listed = []
    for group, measure, extra in ((TEST, "clean", None), (BACKDOOR, "asr_paper", "asr")):
        mine = [("paper", measure)] if measure in told else []
        mine += [("ours", measure)] if measure in has else []
        mine += [("difference", measure)] if measure in has & told else []
        mine += [("other", extra)] if extra is not None and extra in has else []
        listed += [Column(group, shows, key, not i) for i, (shows, key) in enumerate(mine)]
    return listed


def comparison(part: Part) -> str:
    """One experiment on one dataset: a card with its table, a line for each row and preset."""
    found = compared(part)
    listed = columns(found)
    cells = {(c.row, c.hop, c.preset, c.measure): c for c in found}
    common = [text for text in (counts(found), noise(found)) if text and " or " not in text]
    body: list[str] = []
    before: tuple[str, bool] | None = None
    for row, hop, preset in dict.fromkeys(_places(part, found)):
        mine = [c for c in found if (c.row, c.hop, c.preset) == (row, hop, preset)]
        texts = [_cell(column, cells[row, hop, preset, column.measure]) for column in listed]
        kinds = ["is-main"] if row == "rrdu" else []
        kinds += ["begins"] if len(part.presets) > 1 and before != (row, mine[0].final) else []
        before = row, mine[0].final
        line = tag("tr", _row_head(part, mine, common), *texts, class_=" ".join(kinds) or None)
        body.append(line)
    name = f"{TITLES[part.experiment]}, {task_title(part.task)}"
    table = tag("table", _head(part, listed), tag("tbody", *body))
    return tag(
        "div",
        tag(
            "h3",
            escape(task_title(part.task)),
            tag("small", escape("".join(f", {c}" for c in common))),
        ),
        scrolled(table, name),
        class_="card set",
    )


def _places(part: Part, found: Sequence[Compared]) -> list[tuple[str, int | None, str]]:
    """Rows in the order of the document; the presets of a row one below the other."""
    kinds = dict.fromkeys((c.row, c.final) for c in found)
    return [
        (c.row, c.hop, c.preset)
        for row, final in kinds
        for preset in part.presets
        for c in found
        if (c.row, c.final, c.preset) == (row, final, preset)
    ]


def scrolled(table: str, name: str) -> str:
    """A table that scrolls sideways where it has no room; ``name`` is spoken."""
    region = {"class_": "scroll", "tabindex": "0", "role": "region"}
    return tag("div", table, aria_label=name, **region)


def commits(joined: str) -> str:
    """Commits that were joined by semicolons, short and each once.

    >>> commits("0123456789abcdef; 0123456789abcdef; fedc")
    '0123456789 and fedc'
    """
    return numbers.joined(list(dict.fromkeys(c.strip()[:10] for c in joined.split(";"))))


def source_line(document: Mapping[str, Any]) -> str:
    """Command, machine and commit of a document, below its table."""
    command, machine, commit = (
        str(document.get(k) or "") for k in ("command", "machine", "commit")
    )
    where = ", ".join(filter(None, (machine, f"commit {commits(commit)}" if commit else "")))
    text = "; ".join(filter(None, (command, where)))
    return tag("p", tag("code", escape(text)), class_="source") if text else ""


def counts(found: Sequence[Compared]) -> str:
    """How many seeds; several numbers where rows differ."""
    return counts_text(c.seeds for c in found)


def counts_text(counted: Iterable[int]) -> str:
    """Numbers of seeds in words.

    >>> counts_text([1, 1]), counts_text([3, 5, 3]), counts_text([])
    ('1 seed', '3 or 5 seeds', '')
    """
    seeds = sorted({count for count in counted if count})
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
    small += [first.preset or "unnamed preset"] if len(part.presets) > 1 else []
    small += [text for text in (noise(mine), counts(mine)) if text and text not in common]
    return tag("th", escape(text), *(tag("small", escape(s)) for s in small), scope="row")


def _cell(column: Column, mine: Compared) -> str:
    kind = " ".join(k for k in (column.shows, "from" if column.begins else "") if k)
    if column.shows == "paper":
        return tag("td", paper_number(mine.reported, mine.experiment), class_=kind)
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
