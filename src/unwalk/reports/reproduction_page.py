"""Makes ``reproduction.html``: the paper's figure and tables beside ours, on one page.

The page and the table for the terminal are made from the documents that ``unwalk reproduce`` writes
and from nothing else;
``templates/reproduction.html`` has the HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import rich.table
from markupsafe import Markup
from rich.text import Text

from unwalk.core.errors import InvalidInput
from unwalk.reports import numbers
from unwalk.reports.charts import Chart, tag
from unwalk.reports.page import render_page
from unwalk.reports.reproduction import (
    AGREE_POINTS,
    AGREE_STDS,
    EXPERIMENTS,
    FIGURE,
    HEADS,
    MARKS,
    NEAR_POINTS,
    RETRAIN,
    Compared,
    Part,
    Reported,
    collect,
    commits,
    compared,
    method_title,
    missing,
    seeds_text,
    task_title,
    tasks,
    value_title,
)
from unwalk.reports.reproduction_figure import CHARTS, charts_of, has_paper, legend, paper_mark
from unwalk.reports.reproduction_trials import Section, times_table, trial_sections
from unwalk.reports.tables import Body, Cell, Head, Row, Table, terminal_table

PAPER = "Fully Decentralized Certified Unlearning"
TITLE = "The paper's figure and tables, rebuilt"
COLOURS = {"agree": "green", "spread": "green", "near": "yellow", "differ": "red"}
SHOWN = (("clean", "clean"), ("asr_paper", "ASR"))
"""What the terminal's table shows, and in which colours."""
OVERVIEW = "overview"
"""The name of the note that stands at the top of the page."""

TITLES = {
    FIGURE: "The figure: accuracy over hops",
    "table-p": "Routing probability p",
    "table-rho": "Trust radius ρ",
    "table-l": "Clipping constant L",
    "table-epsilon": "Privacy parameter ε",
    "table-delta": "Privacy parameter δ",
}
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
ROUTING = {"0": "fine-tuning", "0.1": "RR-DU", "1": "continuous"}
MEASURES = {"clean": "Test accuracy", "asr_paper": "Backdoor accuracy"}
MEANINGS = {
    "agree": f"agrees: within {AGREE_POINTS:g} points",
    "spread": f"agrees only because our seeds spread: within {AGREE_STDS:g} standard deviations",
    "near": f"near: within {NEAR_POINTS:g} points",
    "differ": "differs by more",
}
SPOKEN = {
    "agree": "agrees",
    "spread": "agrees within the spread of the seeds",
    "near": "is near",
    "differ": "differs",
}
COLUMNS = {
    "paper": ("Paper", ""),
    "ours": ("Ours", ""),
    "difference": ("Diff.", "points"),
    "other": ("Ours,", "other classes"),
}
"""Heading and unit of what a column shows."""


def render_reproduction(
    documents: Mapping[str, Mapping[str, Any]],
    notes: Mapping[str, str] | None = None,
    reported: Reported | None = None,
    tried: Mapping[str, Mapping[str, Any]] | None = None,
    times: Mapping[str, Mapping[str, Any]] | None = None,
    failed: Mapping[str, str] | None = None,
) -> str:
    """The page as one HTML text.

    ``documents`` are the parsed result files by name (``figure1-mnist``, ``table-rho-cifar10``).
    ``notes`` are plain paragraphs by experiment (``table-rho``), by document (``table-rho-mnist``)
    or by another name: ``overview`` stands at the top, any other at the end under its name.
    ``reported`` are the end points that the paper gives for the figure, by task and method.
    ``tried`` are documents of what was tried beside the paper's experiments, by name
    (``readings-mnist``, ``tuning-mnist``, ``precision-mnist``); ``times`` say how long calls took.
    ``failed`` are the cells that could not be run, with their reasons.
    """
    parts = collect(documents, reported)
    paragraphs = _paragraphs(notes)
    trials = trial_sections(documents, tried or {})
    comparisons = [c for p in parts for c in compared(p)]
    sources = [s for p in parts for s in p.sources]
    return render_page(
        "reproduction",
        title=TITLE,
        paper=PAPER,
        parts=parts,
        datasets=[task_title(t) for t in tasks(parts) if any(p.task == t for p in parts)],
        tallies=_tallies(comparisons),
        overview_notes=paragraphs[OVERVIEW],
        marks=_legend_of_marks(comparisons),
        overview=_overview(parts),
        overview_tasks=[task_title(t) for t in tasks(parts)],
        measures=list(MEASURES.values()),
        absent=missing(parts),
        trials=trials,
        commands=_commands(parts),
        reading=_reading(parts),
        times=times_table(times or {}),
        failed=failed or {},
        experiments=[
            _experiment(name, parts, paragraphs)
            for name in EXPERIMENTS
            if any(p.experiment == name for p in parts)
        ],
        notes=paragraphs,
        further=_further(paragraphs, trials),
        files=[f"{s.name}.json" for s in sources],
        commit=commits("; ".join(s.commit for s in sources if s.commit)),
    )


def _paragraphs(notes: Mapping[str, str] | None) -> dict[str, list[str]]:
    """Every note's paragraphs."""
    notes_read: dict[str, list[str]] = {OVERVIEW: []}
    for name, text in (notes or {}).items():
        if not isinstance(text, str):
            raise InvalidInput(
                f"the note {name!r} is a {type(text).__name__}; allowed: plain paragraphs."
            )
        paragraphs = (" ".join(p.split()) for p in re.split(r"\n\s*\n", text))
        notes_read[name] = [p for p in paragraphs if p]
    return notes_read


def _tally(comparisons: Iterable[Compared]) -> dict[str, int]:
    """How many of the paper's numbers agree, are near and differ; ``spread`` is within agree."""
    kinds = [c.agreement for c in comparisons if c.final]
    counts = {kind: kinds.count(kind) for kind in MARKS}
    counts["agree"] += counts["spread"]
    return counts


def _tallies(comparisons: Sequence[Compared]) -> list[tuple[str, str]]:
    """Every preset with the rest of the sentence that counts its numbers."""
    sentences = []
    for preset in dict.fromkeys(c.preset for c in comparisons):
        counts = _tally(c for c in comparisons if c.preset == preset)
        total = counts["agree"] + counts["near"] + counts["differ"]
        spread = f" ({counts['spread']} only within the spread of our seeds)"
        text = (
            f"{counts['agree']} of {numbers.counted(total, 'number')} agree "
            f"with the paper's{spread if counts['spread'] else ''}, {counts['near']} "
            f"{'is' if counts['near'] == 1 else 'are'} near and {counts['differ']} "
            f"{'differs' if counts['differ'] == 1 else 'differ'}."
        )
        if total:
            sentences.append((preset or "unnamed", text))
    return sentences


def _legend_of_marks(comparisons: Sequence[Compared]) -> list[tuple[str, str, str]]:
    """What the marks mean; agreement within the spread only where it occurs."""
    kinds = {c.agreement for c in comparisons}
    if kinds <= {None}:
        return []
    return [
        (kind, MARKS[kind], text)
        for kind, text in MEANINGS.items()
        if kind != "spread" or "spread" in kinds
    ]


def _overview(parts: Sequence[Part]) -> dict[str, Any]:
    """Experiments and presets down, datasets and measures across."""
    presets = list(dict.fromkeys(preset for p in parts for preset in p.presets))
    lines = []
    for experiment in EXPERIMENTS:
        present = {p.task: p for p in parts if p.experiment == experiment}
        chosen = [name for name in presets if any(name in p.presets for p in present.values())]
        for index, preset in enumerate(chosen or [""]):
            cells = [
                _chips(present.get(task), preset, measure)
                for task in tasks(parts)
                for measure in MEASURES
            ]
            link = f"#{experiment}" if present else ""
            lines.append(("" if index else TITLES[experiment], link, preset, cells))
    return {"several": len(presets) > 1, "lines": lines}


def _chips(part: Part | None, preset: str, measure: str) -> dict[str, Any]:
    """The marks of one experiment, dataset and measure, and the same in words."""
    comparisons = [] if part is None else compared(part)
    chosen = [c for c in comparisons if (c.preset, c.measure, c.final) == (preset, measure, True)]
    kinds = [c.agreement for c in chosen if c.agreement is not None]
    counts = _tally(chosen)
    spoken = ", ".join(f"{counts[k]} {k}" for k in ("agree", "near", "differ") if counts[k])
    if not kinds:
        spoken = "not in the paper" if chosen else "no result"
    return {"chips": [(kind, MARKS[kind]) for kind in kinds], "spoken": spoken}


def _commands(parts: Sequence[Part]) -> list[tuple[list[str], str, str, list[str]]]:
    """Command, machine, commit and documents, once for all documents that share the first three."""
    runs: dict[tuple[str, str, str], list[str]] = {}
    for source in (s for p in parts for s in p.sources):
        runs.setdefault((source.command, source.machine, source.commit), []).append(source.name)
    return [
        (
            (command or "command not recorded").split("; "),
            machine,
            commits(commit) if commit else "",
            names,
        )
        for (command, machine, commit), names in runs.items()
    ]


def _reading(parts: Sequence[Part]) -> list[str]:
    """How to read the page."""
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
    return lines


def _experiment(name: str, parts: Sequence[Part], notes: Mapping[str, list[str]]) -> dict[str, Any]:
    """One of the paper's experiments: its charts, a table for each dataset, what it shows."""
    chosen = [p for p in parts if p.experiment == name]
    present = {p.task for p in chosen}
    gone = [task_title(t) for t in tasks(parts) if t not in present]
    absent = f" There is no result for {numbers.joined(gone)}." if gone else ""
    return {
        "name": name,
        "title": TITLES[name],
        "introduction": INTRODUCTIONS[name] + absent,
        "plots": [plot for p in chosen for plot in _plots(p)] if name == FIGURE else [],
        "tables": [_comparison(p) for p in chosen],
        "notes": [
            *(("", text) for text in notes.get(name, [])),
            *(
                ("" if index else f"{task_title(part.task)}. ", text)
                for part in chosen
                for index, text in enumerate(notes.get(part.name, []))
            ),
        ],
    }


def _plots(part: Part) -> list[dict[str, Any]]:
    """The charts of one dataset, for every preset, with one common note."""
    plots: list[dict[str, Any]] = []
    last: object = None
    for number, preset in enumerate(part.presets):
        charts = charts_of(part, preset, number)
        if not charts:
            continue
        keys = [(key.swatch, key.label) for key in legend(charts[0])]
        if has_paper(charts[0]):
            mark = tag("svg", paper_mark(13, 6), viewBox="0 0 26 12", aria_hidden="true")
            keys.append((mark, "Paper"))
        plots.append(
            {
                "task": task_title(part.task),
                "preset": f", preset {preset}" if len(part.presets) > 1 else "",
                "keys": [] if keys == last else keys,
                "figures": [_figure(chart, brief=bool(plots)) for chart in charts],
            }
        )
        last = keys
    return plots


def _figure(chart: Chart, *, brief: bool) -> tuple[str, str, list[Markup]]:
    meaning = dict(CHARTS.values())[chart.title]
    cut = f"The axis starts at {chart.low:g}{numbers.SPACE}%." if chart.low else ""
    text = cut if brief else f"{numbers.sentence(meaning)}. {cut}".strip()
    return chart.title, text, [chart.draw(), chart.draw(narrow=True)]


def _comparison(part: Part) -> tuple[str, str, Table]:
    """One experiment on one dataset: a table with a line for each row and preset."""
    comparisons = compared(part)
    shown = _columns(comparisons)
    cells = {(c.row, c.final, c.preset, c.measure): c for c in comparisons}
    counts = (seeds_text(c.seeds for c in comparisons), _noise(comparisons))
    common = [text for text in counts if text and " or " not in text]
    rows: list[Row] = []
    for row, final in dict.fromkeys((c.row, c.final) for c in comparisons):
        first = True
        for preset in part.presets:
            chosen = [c for c in comparisons if (c.row, c.final, c.preset) == (row, final, preset)]
            if not chosen:
                continue
            kinds = ["is-main"] if row == "rrdu" else []
            kinds += ["begins"] if len(part.presets) > 1 and first else []
            texts = [
                _cell(kind, shows, cells[row, final, preset, measure])
                for _, shows, measure, kind in shown
            ]
            rows.append(Row(_row_head(part, chosen, common), texts, " ".join(kinds)))
            first = False
    heads = [Head(*COLUMNS[shows], kind=kind) for _, shows, _, kind in shown]
    groups = [(group, len(list(c))) for group, c in groupby(shown, key=lambda column: column[0])]
    task = task_title(part.task)
    name = f"{TITLES[part.experiment]}, {task}"
    table = Table(name, [Head(HEADS[part.experiment]), *heads], [Body(rows)], groups)
    return task, "".join(f", {text}" for text in common), table


def _columns(comparisons: Sequence[Compared]) -> list[tuple[str, str, str, str]]:
    """The columns that have something to show: group, what they show, measure and class."""
    ours = {c.measure for c in comparisons if c.mean is not None}
    papers = {c.measure for c in comparisons if c.reported is not None}
    columns = []
    for measure, extra in (("clean", None), ("asr_paper", "asr")):
        shows = [("paper", measure)] if measure in papers else []
        shows += [("ours", measure)] if measure in ours else []
        shows += [("difference", measure)] if measure in ours & papers else []
        shows += [("other", extra)] if extra is not None and extra in ours else []
        for index, (what, key) in enumerate(shows):
            columns.append(
                (f"{MEASURES[measure]}, %", what, key, what + ("" if index else " from"))
            )
    return columns


def _row_head(part: Part, chosen: Sequence[Compared], common: Sequence[str]) -> Cell:
    first = chosen[0]
    small = []
    if part.experiment == FIGURE:
        text = method_title(first.row)
        if first.row == RETRAIN and first.hop is not None:
            small.append(f"at hop {first.hop:,}")
    else:
        text = value_title(first.row)
        small += [ROUTING[first.row]] if part.experiment == "table-p" and text in ROUTING else []
    small += [first.preset or "unnamed preset"] if len(part.presets) > 1 else []
    own = (_noise(chosen), seeds_text(c.seeds for c in chosen))
    return Cell(text, (*small, *(t for t in own if t and t not in common)))


def _cell(kind: str, shows: str, number: Compared) -> Cell:
    """One number: the paper's, ours with its deviation, or the difference with its mark."""
    if shows == "paper":
        exact = number.experiment == FIGURE and number.reported is not None
        return Cell(
            f"{number.reported:g}" if exact else numbers.fixed(number.reported, 2), (), kind
        )
    if shows == "difference":
        if number.agreement is None:
            return Cell(numbers.DASH, kind=kind)
        text, mark = numbers.signed(number.difference), number.agreement
        return Cell(text, (), kind, f"verdict {mark}", MARKS[mark], SPOKEN[mark])
    std = () if number.std is None else (f"± {numbers.fixed(number.std, 2)}",)
    return Cell(numbers.fixed(number.mean, 2), std, kind)


def _noise(comparisons: Sequence[Compared]) -> str:
    """The noise at the forgetting peer; several numbers where rows or presets differ."""
    sigmas = dict.fromkeys(numbers.compact(c.sigma) for c in comparisons if c.sigma is not None)
    return f"σ {' or '.join(sigmas)}" if sigmas else ""


def _further(
    notes: Mapping[str, list[str]], trials: Sequence[Section]
) -> list[tuple[str, list[str]]]:
    """Notes that belong to no section, under their own names."""
    used = {OVERVIEW, *(section.name for section in trials)}
    return [
        (numbers.sentence(name.replace("-", " ")), paragraphs)
        for name, paragraphs in notes.items()
        if name not in used and not name.startswith(EXPERIMENTS) and paragraphs
    ]


def reproduction_table(
    documents: Mapping[str, Any], reported: Reported | None = None
) -> rich.table.Table:
    """Ours, the paper's and the difference of every row of the reproduction."""
    parts = collect(documents, reported)
    several = len({preset for p in parts for preset in p.presets}) > 1
    table = terminal_table("ours beside the paper's, %")
    table.caption = Text(
        "✓ within 2 points, ✓± within 2 std, ≈ within 5 points, ✗ further; ASR as the "
        "paper counts it"
    )
    heads = ["task", "row", *(["preset"] if several else [])]
    for head in heads:
        table.add_column(head, vertical="bottom", no_wrap=True)
    for _, name in SHOWN:
        for head in (f"{name}\nours", "\npaper", "\ndiff"):
            table.add_column(head, justify="right", vertical="bottom", no_wrap=True)
    for part in parts:
        cells = {(c.row, c.hop, c.preset, c.measure): c for c in compared(part)}
        for row, hop, preset in dict.fromkeys(key[:3] for key in cells):
            name = method_title(row) if part.experiment == FIGURE else value_title(row)
            if part.experiment != FIGURE:
                name = f"{HEADS[part.experiment]} = {name}"
            elif not cells[row, hop, preset, "clean"].final:
                name = f"{name} @{hop}"
            texts = [Text(task_title(part.task)), Text(name), *([Text(preset)] if several else [])]
            for measure, _ in SHOWN:
                texts += _compared_cells(cells[row, hop, preset, measure])
            table.add_row(*texts)
        table.add_section()
    return table


def _compared_cells(c: Compared) -> list[Text]:
    std = "" if c.std is None else f"±{numbers.fixed(c.std)}"
    sign = "" if c.agreement is None else f" {MARKS[c.agreement]}"
    style = "" if c.agreement is None else COLOURS[c.agreement]
    return [
        Text(numbers.fixed(c.mean) + std),
        Text(numbers.fixed(c.reported)),
        Text(numbers.signed(c.difference, 1) + sign, style=style),
    ]
