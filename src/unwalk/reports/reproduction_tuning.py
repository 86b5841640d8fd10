"""How the methods were tuned: every setting that was tried, and one rule for all of them.

A document ``tuning-TASK.json`` has the head of the others and one row for each ``method``,
``setting`` and ``seed``; ``used`` says that it is the preset's own setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.reports import numbers
from unwalk.reports.reproduction_figure import title
from unwalk.reports.reproduction_sums import mean_std
from unwalk.reports.reproduction_tables import MARKS, counts_text, scrolled, source_line, task_title
from unwalk.reports.svg import tag

WITHIN = 1.0
"""Points of test accuracy, and then of backdoor accuracy, that make no difference to the rule."""

INTRODUCTION = (
    "RR-DU and every baseline had the same number of settings to try: the preset's own, half and "
    "double its step size, and two more of what matters most to it, one change at a time. All go "
    "on from the same trained model, except DP-SGD, whose model has GroupNorm instead of "
    "BatchNorm. The rule is the same for all. Admitted are settings whose test accuracy is within "
    f"{WITHIN:g} point of the method's best; of these the best are those within {WITHIN:g} point "
    "of the lowest backdoor accuracy. The setting in bold is the preset's, with which the figure "
    "and the tables were made. One seed tells settings apart only where they differ by more than "
    "the seeds of the figure do."
)


@dataclass(frozen=True)
class Tried:
    """One setting of one method: means over seeds, in per cent."""

    method: str
    setting: str
    used: bool
    seeds: int
    clean: float
    asr_paper: float
    asr: float


def best(settings: Sequence[Tried]) -> list[Tried]:
    """The best settings of one method by the rule.

    >>> def tried(name, clean, asr):
    ...     return Tried("ddp", name, False, 1, clean, asr, asr)
    >>> found = [tried("a", 99.0, 30.0), tried("b", 98.2, 12.0), tried("c", 90.0, 1.0)]
    >>> [t.setting for t in best([*found, tried("d", 98.9, 12.9)])]
    ['b', 'd']
    """
    admitted = [t for t in settings if t.clean >= max(s.clean for s in settings) - WITHIN]
    lowest = min(t.asr_paper for t in admitted)
    return [t for t in admitted if t.asr_paper <= lowest + WITHIN]


def tuning(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Every setting that was tried, with one table a document."""
    cards = [_card(name, document) for name, document in documents.items()]
    kind = "sets" if len(cards) > 1 else "sets one"
    return tag("p", INTRODUCTION, class_="note") + tag("div", *cards, class_=kind)


def read(name: str, document: Mapping[str, Any]) -> dict[str, list[Tried]]:
    """The settings of every method, in the order of the document."""
    found: dict[tuple[str, str, bool], list[Mapping[str, Any]]] = {}
    try:
        for row in document["rows"]:
            found.setdefault((str(row["method"]), str(row["setting"]), row["used"]), []).append(row)
        methods: dict[str, list[Tried]] = {}
        for (method, setting, used), rows in found.items():
            means = [
                mean_std([100 * float(r[key]) for r in rows])[0] or 0.0
                for key in ("clean", "asr_paper", "asr")
            ]
            methods.setdefault(method, []).append(Tried(method, setting, used, len(rows), *means))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{name} does not hold settings that were tried: {error!r}.") from error
    return methods


def _card(name: str, document: Mapping[str, Any]) -> str:
    methods = read(name, document)
    if not methods:
        raise InvalidInput(f"{name} does not hold settings that were tried: no rows.")
    task = task_title(str(document.get("task") or ""))
    heads = ["Method and setting", "Test accuracy, %", "Backdoor accuracy, %", "By the rule"]
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in heads)))
    bodies = [tag("tbody", *_lines(method, settings)) for method, settings in methods.items()]
    seeds = counts_text(t.seeds for settings in methods.values() for t in settings)
    presets = dict.fromkeys(str(row.get("preset") or "") for row in document["rows"])
    small = "".join(f", {text}" for text in (*(f"preset {p}" for p in presets if p), seeds))
    said = [_said(settings) for settings in methods.values()]
    return tag(
        "div",
        tag("h3", escape(task), tag("small", escape(small))),
        scrolled(tag("table", head, *bodies, class_="grouped"), f"Tuning, {task}"),
        tag("ul", *(tag("li", text) for text in said if text), class_="reading said"),
        source_line(document),
        class_="card set",
    )


def _lines(method: str, settings: Sequence[Tried]) -> list[str]:
    first = tag("tr", tag("th", escape(title(method)), scope="rowgroup", colspan="4"), class_="of")
    chosen = best(settings)
    top = max(t.clean for t in settings)
    lines = [first]
    for t in settings:
        other = tag("small", f"{numbers.fixed(t.asr, 2)} other classes")
        verdict = tag("span", "", class_="soft")
        if t in chosen:
            verdict = tag("span", f"{MARKS['agree']} best", class_="verdict agree")
        elif t.clean < top - WITHIN:
            verdict = tag("span", "not admitted", class_="soft")
        cells = [
            tag("td", numbers.fixed(t.clean, 2)),
            tag("td", numbers.fixed(t.asr_paper, 2), other),
            tag("td", verdict),
        ]
        mine = tag("small", "the preset's own") if t.used else ""
        name = tag("th", escape(t.setting), mine, scope="row")
        lines.append(tag("tr", name, *cells, class_="is-main" if t.used else None))
    return lines


def _said(settings: Sequence[Tried]) -> str:
    """Whether the preset's own setting is among the best, said either way."""
    used = next((t for t in settings if t.used), None)
    if used is None:
        return ""
    chosen = best(settings)
    name = tag("b", escape(title(used.method)))
    if used in chosen:
        alone = "the best" if len(chosen) == 1 else f"one of the {len(chosen)} best"
        return f"{name}: the preset's own setting is {alone} by this rule."
    other = min(chosen, key=lambda t: t.asr_paper)
    return (
        f"{name}: the preset's own setting is not the best by this rule. It ends at {_pair(used)}, "
        f"{escape(other.setting)} at {_pair(other)}."
    )


def _pair(t: Tried) -> str:
    return f"{numbers.fixed(t.clean, 2)} / {numbers.fixed(t.asr_paper, 2)}"
