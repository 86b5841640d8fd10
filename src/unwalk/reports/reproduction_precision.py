"""Whether the fast path changes results: both paths over the same seeds, and their difference.

A document ``precision-TASK.json`` has the head of the others and one row for each ``method``,
``precision`` (``float32`` or ``bfloat16``) and ``seed``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from scipy.special import stdtrit

from unwalk.core.errors import InvalidInput
from unwalk.reports import numbers
from unwalk.reports.reproduction_figure import title
from unwalk.reports.reproduction_sums import mean_std
from unwalk.reports.reproduction_tables import (
    BACKDOOR,
    MARKS,
    TEST,
    counts_text,
    scrolled,
    signed,
    source_line,
    task_title,
)
from unwalk.reports.svg import tag

PATHS = ("float32", "bfloat16")
MEASURES = {"clean": TEST, "asr_paper": BACKDOOR}

INTRODUCTION = (
    "On a CUDA device gradients can be computed in bfloat16, with fused kernels that keep pictures "
    "channels-last; the commands above say which runs did so. Parameters, noise and projections "
    "stay in float32. Here the same methods and seeds are run that way and in float32 with "
    "PyTorch's own kernels. The difference is bfloat16 "
    "minus float32 in percentage points, with Student's 95 % interval for two samples of equal "
    "variance. Where it holds 0, the change is no larger than what seeds do; its width is what "
    "these seeds cannot tell."
)


@dataclass(frozen=True)
class Change:
    """One measure of one method on either path, in per cent."""

    method: str
    measure: str
    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def difference(self) -> float:
        """Mean after minus mean before."""
        return math.fsum(self.after) / len(self.after) - math.fsum(self.before) / len(self.before)

    @property
    def reach(self) -> float | None:
        """Half the 95 % interval of the difference; None with fewer than two seeds a path."""
        if min(len(self.before), len(self.after)) < 2:
            return None
        free = len(self.before) + len(self.after) - 2
        squares = 0.0
        for values in (self.before, self.after):
            _, std = mean_std(values)
            squares += (len(values) - 1) * (std or 0.0) ** 2
        error = math.sqrt(squares / free * (1 / len(self.before) + 1 / len(self.after)))
        return float(stdtrit(free, 0.975)) * error

    @property
    def unchanged(self) -> bool | None:
        """Whether the interval holds 0; None where there is no interval."""
        return None if self.reach is None else abs(self.difference) <= self.reach + 1e-9


def changes(name: str, document: Mapping[str, Any]) -> list[Change]:
    """Every method and measure that was run on both paths.

    >>> def row(path, seed, clean):
    ...     same = {"method": "rrdu", "precision": path, "seed": seed}
    ...     return {**same, "clean": clean, "asr_paper": 0.1}
    >>> rows = [row("float32", 0, 0.90), row("float32", 1, 0.92)]
    >>> rows += [row("bfloat16", 0, 0.91), row("bfloat16", 1, 0.93)]
    >>> first = changes("precision-mnist", {"rows": rows})[0]
    >>> round(first.difference, 6), round(first.reach, 3), first.unchanged
    (1.0, 6.085, True)
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    try:
        for row in document["rows"]:
            for measure in MEASURES:
                mine = found.setdefault((str(row["method"]), measure), {p: [] for p in PATHS})
                mine[str(row["precision"])].append(100 * float(row[measure]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{name} does not hold runs in two precisions: {error!r}.") from error
    return [
        Change(method, measure, tuple(mine[PATHS[0]]), tuple(mine[PATHS[1]]))
        for (method, measure), mine in found.items()
        if all(mine[p] for p in PATHS)
    ]


def precision(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Both paths beside each other, with one table a document."""
    cards = [_card(name, document) for name, document in documents.items()]
    kind = "sets stacked"
    return tag("p", INTRODUCTION, class_="note") + tag("div", *cards, class_=kind)


def _card(name: str, document: Mapping[str, Any]) -> str:
    found = changes(name, document)
    if not found:
        raise InvalidInput(f"{name} does not hold runs in two precisions: no method has both.")
    task = task_title(str(document.get("task") or ""))
    groups = [
        tag("th", escape(text), scope="colgroup", colspan="3", class_="group from")
        for text in MEASURES.values()
    ]
    heads = [
        tag("th", text, scope="col", class_=None if index else "from")
        for _ in MEASURES
        for index, text in enumerate((*PATHS, "Difference, 95 % interval"))
    ]
    head = tag(
        "thead",
        tag("tr", tag("td", ""), *groups),
        tag("tr", tag("th", "Method", scope="col"), *heads),
    )
    body = []
    for method in dict.fromkeys(c.method for c in found):
        cells = [cell for c in found if c.method == method for cell in _cells(c)]
        body.append(tag("tr", tag("th", escape(title(method)), scope="row"), *cells))
    seeds = counts_text(len(v) for c in found for v in (c.before, c.after))
    table = tag("table", head, tag("tbody", *body))
    return tag(
        "div",
        tag("h3", escape(task), tag("small", escape(f", {seeds} a path"))),
        scrolled(table, f"Precision, {task}"),
        tag("p", escape(_said(found)), class_="note said"),
        source_line(document),
        class_="card set",
    )


def _cells(change: Change) -> list[str]:
    cells = []
    for index, values in enumerate((change.before, change.after)):
        mean, std = mean_std(values)
        below = "" if std is None else tag("small", f"± {numbers.fixed(std, 2)}")
        kind = "from" if index == 0 else None
        cells.append(tag("td", numbers.fixed(mean, 2), below, class_=kind))
    text = signed(change.difference)
    if change.reach is None:
        return [*cells, tag("td", text)]
    kind, mark = ("agree", MARKS["agree"]) if change.unchanged else ("differ", MARKS["differ"])
    text += f" ± {numbers.fixed(change.reach, 2)}"
    return [*cells, tag("td", tag("span", f"{text} {mark}", class_=f"verdict {kind}"))]


def _said(found: Sequence[Change]) -> str:
    """How many differences are no larger than what seeds do."""
    known = [c for c in found if c.unchanged is not None]
    if not known:
        return "One seed a path: there is no spread to judge the differences by."
    kept = sum(bool(c.unchanged) for c in known)
    moved = [f"{title(c.method)}, {_word(c.measure)}" for c in known if not c.unchanged]
    text = f"In {kept} of {numbers.counted(len(known), 'comparison')} the interval holds 0"
    return f"{text}; not so: {numbers.joined(moved)}." if moved else f"{text}."


def _word(measure: str) -> str:
    return MEASURES[measure].removesuffix(", %").lower()
