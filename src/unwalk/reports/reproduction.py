"""``reproduction.html``: the paper's figure and tables beside ours, on one page.

The page is made from the documents that ``unwalk reproduce`` writes and from nothing else.  It
needs no script and no outside address, and it prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.reports import numbers, svg
from unwalk.reports.html import POLICY
from unwalk.reports.reproduction_documents import (
    EXPERIMENTS,
    FIGURE,
    RETRAIN,
    TASKS,
    Part,
    Reported,
    collect,
    missing,
    tasks,
)
from unwalk.reports.reproduction_figure import CHARTS, Chart, chart, draw
from unwalk.reports.reproduction_overview import legend, overview, tally_text
from unwalk.reports.reproduction_precision import precision
from unwalk.reports.reproduction_readings import readings
from unwalk.reports.reproduction_settings import settings
from unwalk.reports.reproduction_style import reproduction_sheet
from unwalk.reports.reproduction_sums import compared, reproduction_rows
from unwalk.reports.reproduction_tables import TITLES, commits, comparison, task_title
from unwalk.reports.reproduction_terminal import reproduction_table
from unwalk.reports.reproduction_times import took
from unwalk.reports.reproduction_tuning import tuning
from unwalk.reports.style import style_sheet
from unwalk.reports.svg import tag
from unwalk.reports.words import sentence

__all__ = ["render_reproduction", "reproduction_rows", "reproduction_table"]

PAPER = "Fully Decentralized Certified Unlearning"
TITLE = "The paper's figure and tables, rebuilt"
OVERVIEW = "overview"
"""The name of the note that stands at the top of the page."""

INTRODUCTIONS = {
    FIGURE: "Section 6.2. Lines are means over seeds, bands one standard deviation to either side. "
    "The dashed line is where retraining from scratch ends; retraining counts its own hops from 0. "
    "Hollow marks at the right edge are the end points that the paper gives in words, the middle "
    "where it gives a range.",
    "table-p": "Section 6.3, three seeds in the paper. RR-DU without noise and without projection; "
    "p is how often the token is sent to the forgetting peer.",
    "table-rho": "Appendix E, one seed in the paper. RR-DU; the model is kept within ρ of the one "
    "that unlearning starts from.",
    "table-l": "Appendix E, one seed in the paper. RR-DU; L clips the gradient at the forgetting "
    "peer, and the noise grows with it.",
    "table-epsilon": "Appendix E, one seed in the paper. RR-DU; a smaller ε means more noise at "
    "the forgetting peer.",
    "table-delta": "Appendix E, one seed in the paper. RR-DU; a smaller δ means a little more "
    "noise at the forgetting peer.",
}


def render_reproduction(
    documents: Mapping[str, Mapping[str, Any]],
    notes: Mapping[str, str] | None = None,
    reported: Reported | None = None,
    tried: Mapping[str, Mapping[str, Any]] | None = None,
    times: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The page as one HTML text.

    ``documents`` are the parsed result files by name (``figure1-mnist``, ``table-rho-cifar10``).
    ``notes`` are plain paragraphs by experiment (``table-rho``), by document (``table-rho-mnist``)
    or by another name: ``overview`` stands at the top, any other at the end under its name.
    ``reported`` are the end points that the paper gives for the figure, by task and method.
    ``tried`` are documents of what was tried beside the paper's experiments, by name
    (``readings-mnist``, ``tuning-mnist``, ``precision-mnist``); ``times`` say how long calls took.
    """
    parts = collect(documents, reported)
    told = _checked(notes)
    shown = _sections(documents, tried or {})
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        tag("title", escape(f"{TITLE} \N{MIDDLE DOT} unwalk")),
        f"<style>{style_sheet()}{reproduction_sheet()}</style>",
    ]
    main = [
        _glance(parts, shown),
        tag("div", _ran(parts), _reading(parts), class_="columns") if parts else "",
        took(times or {}),
        *(_experiment(e, parts, told) for e in EXPERIMENTS),
        *_beside(shown, told),
        *_further(told, shown),
    ]
    header = tag(
        "header",
        tag("p", "unwalk reproduction", class_="brand"),
        tag("h1", escape(TITLE)),
        tag("p", _story(parts), class_="story"),
        *(tag("p", escape(text), class_="story") for text in told[OVERVIEW]),
    )
    body = tag("body", header, tag("main", *main), _footer(parts))
    page = tag("html", tag("head", *head), "\n", body, lang="en")
    return f"<!doctype html>\n{page}\n"


BESIDE = {
    "readings": ("Readings that were tried", readings),
    "tuning": ("Tuning", tuning),
    "precision": ("Precision", precision),
}
"""Sections of what was tried beside the paper's experiments, by the names of their documents."""


def _sections(
    documents: Mapping[str, Mapping[str, Any]], tried: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[str, str]]:
    """Heading and content of every section beside the experiments that has something to show."""
    found = {"settings": ("Settings of the runs", settings(documents))}
    for kind, (heading, render) in BESIDE.items():
        names = [name for name in sorted(tried) if name.startswith(f"{kind}-")]
        names.sort(key=lambda name: [f"{kind}-{task}" in name for task in TASKS], reverse=True)
        found[kind] = heading, render({name: tried[name] for name in names}) if names else ""
    return {kind: shown for kind, shown in found.items() if shown[1]}


def _beside(shown: Mapping[str, tuple[str, str]], notes: Mapping[str, list[str]]) -> Iterator[str]:
    for kind, (heading, content) in shown.items():
        told = (tag("p", escape(text)) for text in notes.get(kind, []))
        words = tag("div", *told, class_="words") if notes.get(kind) else ""
        yield tag("section", tag("h2", heading, id=kind), content, words)


def _checked(notes: Mapping[str, str] | None) -> dict[str, list[str]]:
    """Every note's paragraphs."""
    found: dict[str, list[str]] = {OVERVIEW: []}
    for name, text in (notes or {}).items():
        if not isinstance(text, str):
            raise InvalidInput(
                f"the note {name!r} is a {type(text).__name__}; allowed: plain paragraphs."
            )
        paragraphs = (" ".join(p.split()) for p in re.split(r"\n\s*\n", text))
        found[name] = [p for p in paragraphs if p]
    return found


def _story(parts: Sequence[Part]) -> str:
    if not parts:
        return "No result was given: there is nothing to compare yet."
    names = [escape(task_title(t)) for t in tasks(parts) if _has(parts, t)]
    datasets = numbers.joined([tag("span", name, class_="whole") for name in names])
    text = f"The experiments of {tag('cite', PAPER)} (RR-DU) on {datasets}, run again and set "
    text += "beside its own numbers."
    found = [c for p in parts for c in compared(p)]
    for preset in dict.fromkeys(c.preset for c in found):
        counted = tally_text(preset, [c for c in found if c.preset == preset])
        text += f" {counted}" if counted else ""
    return text


def _has(parts: Sequence[Part], task: str) -> bool:
    return any(p.task == task for p in parts)


def _glance(parts: Sequence[Part], shown: Mapping[str, tuple[str, str]]) -> str:
    absent = missing(parts)
    gone = ""
    if absent:
        listed = numbers.joined([tag("code", escape(name)) for name in absent])
        gone = tag(
            "p", f"Left out, because there is no result for it: {listed}.", class_="note gone"
        )
    found = [c for p in parts for c in compared(p)]
    marked: list[str] = []
    if any(c.agreement is not None for c in found):
        text = "One mark for each number that the paper reports, in the order of its tables."
        marked = [tag("p", text, class_="note"), legend(found), overview(parts)]
    elif parts:
        marked = [tag("p", "The paper has no numbers for these tasks: nothing is compared.")]
    links = [tag("a", name, href=f"#{kind}") for kind, (name, _) in shown.items()]
    more = tag("p", f"Beside them: {numbers.joined(links)}.", class_="note") if links else ""
    return tag("section", tag("h2", "At a glance"), *marked, gone, more)


def _ran(parts: Sequence[Part]) -> str:
    """Machine, commit and command, once for all documents that share them."""
    runs: dict[tuple[str, str, str], list[str]] = {}
    for source in (s for p in parts for s in p.sources):
        runs.setdefault((source.command, source.machine, source.commit), []).append(source.name)
    items = []
    for (command, machine, commit), names in runs.items():
        listed = numbers.joined([tag("code", escape(n)) for n in names])
        facts = [
            escape(machine),
            f"commit {tag('code', escape(commits(commit)))}" if commit else "",
        ]
        line = ", ".join(f for f in facts if f)
        lines = (command or "command not recorded").split("; ")
        items.append(
            tag(
                "li",
                *(tag("p", tag("code", escape(one))) for one in lines),
                tag("p", line, class_="note") if line else "",
                tag("p", f"gave {listed}", class_="note"),
            )
        )
    return tag(
        "section",
        tag("h2", "What was run"),
        tag("div", tag("ul", *items, class_="ran"), class_="card"),
    )


def _reading(parts: Sequence[Part]) -> str:
    lines = [
        "Ours is the mean over seeds, with ± the sample standard deviation; one seed has none. "
        "The difference is ours minus the paper's, in percentage points.",
        "Backdoor accuracy is the share of triggered test records answered with the target class. "
        "The paper counts records of that class too, so a model without a backdoor still shows "
        "about 10 %. The field leaves them out: that is the column of other classes.",
        "Retraining from scratch never saw the forgotten records. A backdoor accuracy below its "
        "own is over-unlearning, not a better result.",
    ]
    if any(r.sigma is not None for p in parts for r in p.readings):
        lines.append("σ is the noise that the run used at the forgetting peer.")
    if any(r.row == "baseline" for p in parts for r in p.readings):
        lines.append("The row named baseline has the preset's own value.")
    if len({preset for p in parts for preset in p.presets}) > 1:
        lines.append(
            "Presets are readings of what the paper leaves open; each has a line of its own."
        )
    items = [tag("li", escape(line)) for line in lines]
    return tag(
        "section",
        tag("h2", "How to read it"),
        tag("div", tag("ul", *items, class_="reading"), class_="card"),
    )


def _experiment(name: str, parts: Sequence[Part], notes: Mapping[str, list[str]]) -> str:
    mine = [p for p in parts if p.experiment == name]
    if not mine:
        return ""
    gone = [task_title(t) for t in tasks(parts) if not _has(mine, t)]
    absent = f" There is no result for {numbers.joined(gone)}." if gone else ""
    figures = [figure for p in mine for figure in _figures(p)] if name == FIGURE else []
    heading = [tag("h3", "Where the lines end", class_="sub")] if figures else []
    kind = "sets one" if len(mine) == 1 else "sets"
    return tag(
        "section",
        tag("h2", TITLES[name], id=name),
        tag("p", escape(INTRODUCTIONS[name] + absent), class_="note"),
        *figures,
        *heading,
        tag("div", *(comparison(p) for p in mine), class_=kind),
        _words(name, mine, notes),
        class_="paged" if figures else None,
    )


def _figures(part: Part) -> list[str]:
    """The charts of one dataset, for every preset; what they share is said once."""
    found: list[str] = []
    last = ""
    for number, preset in enumerate(part.presets):
        charts = [c for measure in CHARTS if (c := chart(part, preset, measure)) is not None]
        if not charts:
            continue
        small = f", preset {preset}" if len(part.presets) > 1 else ""
        name = tag("h3", escape(task_title(part.task)), tag("small", escape(small)), class_="sub")
        pair = tag("div", *(_figure(c, number, brief=bool(found)) for c in charts), class_="pair")
        keys = _keys(charts[0])
        found.append(tag("div", name, keys if keys != last else "", pair, class_="plot"))
        last = keys
    return found


def _figure(drawn: Chart, number: int, *, brief: bool) -> str:
    heading, meaning = CHARTS[drawn.measure]
    cut = f"The axis starts at {drawn.low:g}{numbers.SPACE}%." if drawn.low else ""
    text = cut if brief else f"{sentence(meaning)}. {cut}".strip()
    caption = tag("figcaption", tag("h4", heading), tag("p", text) if text else "")
    pictures = [draw(drawn, number), draw(drawn, number, narrow=True)]
    return tag("figure", caption, *pictures, class_="card")


def _keys(drawn: Chart) -> str:
    items = [_key("Training, shared", "var(--ink)", None)] if drawn.shared else []
    items += [_key(n.title, n.look.colour, n.look.shape) for n in drawn.lines]
    for line in drawn.lines:
        if line.method == RETRAIN and len(drawn.lines) > 1:
            items.append(_key("Where retraining ends", line.look.colour, None, "5 4"))
    if any(n.end.reported is not None for n in drawn.lines):
        mark = svg.marker(0, 13, 6, 4, stroke="var(--ink)", fill="none", stroke_width=1.6)
        items.append(tag("li", tag("svg", mark, viewBox="0 0 26 12", aria_hidden="true"), "Paper"))
    return tag("ul", *items, class_="legend")


def _key(label: str, colour: str, shape: int | None, dashes: str | None = None) -> str:
    line = svg.polyline([(0, 6), (26, 6)], stroke=colour, stroke_width=2.5, stroke_dasharray=dashes)
    mark = "" if shape is None else svg.marker(shape, 13, 6, 4.5, fill=colour)
    return tag("li", tag("svg", line, mark, viewBox="0 0 26 12", aria_hidden="true"), escape(label))


def _words(name: str, mine: Sequence[Part], notes: Mapping[str, list[str]]) -> str:
    """What reproduces, what does not, and why: the experiment's note, then its datasets'."""
    paragraphs = [tag("p", escape(text)) for text in notes.get(name, [])]
    for part in mine:
        own = notes.get(part.name, [])
        lead = tag("b", escape(f"{task_title(part.task)}. "))
        paragraphs += [tag("p", "" if i else lead, escape(t)) for i, t in enumerate(own)]
    if not paragraphs:
        return ""
    return tag("div", tag("h3", "What reproduces, and what does not"), *paragraphs, class_="words")


def _further(notes: Mapping[str, list[str]], shown: Mapping[str, tuple[str, str]]) -> list[str]:
    """Notes that belong to no section, under their own names."""
    used = {OVERVIEW, *shown}
    return [
        tag(
            "section",
            tag("h2", escape(sentence(name.replace("-", " ")))),
            *(tag("p", escape(text)) for text in paragraphs),
        )
        for name, paragraphs in notes.items()
        if name not in used and not name.startswith(EXPERIMENTS) and paragraphs
    ]


def _footer(parts: Sequence[Part]) -> str:
    sources = [s for p in parts for s in p.sources]
    files = [f"{s.name}.json" for s in sources]
    made = commits("; ".join(s.commit for s in sources if s.commit))
    text = f"Made by unwalk from {numbers.joined(files)}. " if files else "Made by unwalk. "
    if made:
        text += f"Code at commit {made}. "
    text += f"Numbers under Paper are those of {PAPER}; all others come from these files."
    return tag("footer", escape(text))
