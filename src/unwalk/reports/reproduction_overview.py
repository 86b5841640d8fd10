"""The reproduction at a glance: one mark for each number that the paper reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from unwalk.reports import numbers
from unwalk.reports.reproduction_documents import EXPERIMENTS, Part, tasks
from unwalk.reports.reproduction_sums import (
    AGREE_POINTS,
    AGREE_STDS,
    NEAR_POINTS,
    Compared,
    compared,
)
from unwalk.reports.reproduction_tables import MARKS, TITLES, task_title
from unwalk.reports.svg import tag

MEANINGS = {
    "agree": f"agrees: within {AGREE_POINTS:g} points",
    "spread": f"agrees only because our seeds spread: within {AGREE_STDS:g} standard deviations",
    "near": f"near: within {NEAR_POINTS:g} points",
    "differ": "differs by more",
}
MEASURES = {"clean": "Test accuracy", "asr_paper": "Backdoor accuracy"}


def tally(found: Iterable[Compared]) -> dict[str, int]:
    """How many of the paper's numbers agree, are near and differ; ``spread`` is within agree."""
    kinds = [c.agreement for c in found if c.final]
    counts = {kind: kinds.count(kind) for kind in MARKS}
    counts["agree"] += counts["spread"]
    return counts


def tally_text(preset: str, found: Sequence[Compared]) -> str:
    """The tally of one preset as a sentence, or nothing where nothing is compared."""
    counts = tally(found)
    total = counts["agree"] + counts["near"] + counts["differ"]
    if not total:
        return ""
    name = tag("code", escape(preset or "unnamed"))
    spread = f" ({counts['spread']} only within the spread of our seeds)"
    return (
        f"With the preset {name}, {counts['agree']} of {numbers.counted(total, 'number')} agree "
        f"with the paper's{spread if counts['spread'] else ''}, {counts['near']} "
        f"{'is' if counts['near'] == 1 else 'are'} near and {counts['differ']} "
        f"{'differs' if counts['differ'] == 1 else 'differ'}."
    )


def legend(found: Iterable[Compared]) -> str:
    """What the marks mean; agreement within the spread only where it occurs."""
    spread = any(c.agreement == "spread" for c in found)
    items = [
        tag("li", _chip(kind), tag("span", text))
        for kind, text in MEANINGS.items()
        if spread or kind != "spread"
    ]
    return tag("ul", *items, class_="legend marks")


def overview(parts: Sequence[Part]) -> str:
    """Experiments and presets down, datasets and measures across."""
    listed = tasks(parts)
    presets = list(dict.fromkeys(preset for p in parts for preset in p.presets))
    rows = []
    for experiment in EXPERIMENTS:
        mine = {p.task: p for p in parts if p.experiment == experiment}
        name = escape(TITLES[experiment])
        first = tag("th", tag("a", name, href=f"#{experiment}") if mine else name, scope="row")
        there = [name for name in presets if any(name in p.presets for p in mine.values())]
        for preset in there or [""]:
            cells = [tag("td", tag("code", escape(preset)))] if len(presets) > 1 else []
            for task in listed:
                cells += [
                    tag("td", _marks(mine.get(task), preset, m), class_=f"marks{_from(m)}")
                    for m in MEASURES
                ]
            rows.append(tag("tr", first, *cells))
            first = tag("td", "")
    table = tag("table", _head(listed, len(presets) > 1), tag("tbody", *rows))
    name = "At a glance"
    region = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=name)
    return tag("div", region, class_="card overview")


def _head(listed: Sequence[str], several: bool) -> str:
    groups = [tag("td", "")] * (2 if several else 1)
    heads = [tag("th", "Experiment", scope="col")]
    heads += [tag("th", "Preset", scope="col")] if several else []
    for task in listed:
        text = escape(task_title(task))
        groups.append(tag("th", text, scope="colgroup", colspan="2", class_="group from"))
        heads += [
            tag("th", text, scope="col", class_=_from(m).strip() or None)
            for m, text in MEASURES.items()
        ]
    return tag("thead", tag("tr", *groups), tag("tr", *heads))


def _from(measure: str) -> str:
    return " from" if measure == next(iter(MEASURES)) else ""


def _marks(part: Part | None, preset: str, measure: str) -> str:
    mine = [] if part is None else compared(part)
    mine = [c for c in mine if (c.preset, c.measure) == (preset, measure) and c.final]
    kinds = [c.agreement for c in mine if c.agreement is not None]
    if not kinds:
        return tag("span", "not in the paper" if mine else "no result", class_="soft")
    counts = tally(mine)
    spoken = ", ".join(f"{counts[k]} {k}" for k in ("agree", "near", "differ") if counts[k])
    return "".join(map(_chip, kinds)) + tag("span", spoken, class_="unseen")


def _chip(kind: str) -> str:
    return tag("span", MARKS[kind], class_=f"chip {kind}", aria_hidden="true")
