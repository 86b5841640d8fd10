"""The page: one HTML file that needs no outside address and no script to be read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from unwalk.core.grades import PROVED, SHOWN, shown_grade
from unwalk.reports import charts, numbers, svg, walk, words
from unwalk.reports.certificate import certificate_section
from unwalk.reports.comparison import cost_section, methods_section, section, seeds_section
from unwalk.reports.result import Result, read
from unwalk.reports.samples import samples_table
from unwalk.reports.style import style_sheet
from unwalk.reports.svg import tag

MOST_ROWS = 120
OPTION = re.compile(r"(--[a-z]+ [\w-]+|[a-z_]+\.[a-z_]+(?:=[\w-]+)?)")
"""An option or a setting, which is not to be broken in two."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render(result: Mapping[str, Any]) -> str:
    """The report of ``result`` (the content of ``result.json``) as one HTML text."""
    view = read(result)
    title = words.headline(view)
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        tag("title", escape(f"{title} \N{MIDDLE DOT} unwalk")),
        f"<style>{style_sheet()}</style>",
    ]
    sections = [
        _tiles(view),
        _curves(view),
        _walk(view),
        _samples(view),
        methods_section(view),
        seeds_section(view),
        cost_section(view),
        _claims(view),
        certificate_section(view),
        _repeat(view),
    ]
    body = [
        tag(
            "header",
            tag("p", "unwalk report", class_="brand"),
            _verdict(view),
            tag("h1", escape(title)),
            tag("p", escape(words.story(view)), class_="story"),
        ),
        tag("main", *sections),
        _footer(view),
    ]
    return (
        "<!doctype html>\n"
        + tag("html", tag("head", *head), "\n", tag("body", *body), lang="en")
        + "\n"
    )


def _tiles(result: Result) -> str:
    boxes = [
        tag(
            "div",
            tag("dt", escape(tile.name)),
            tag("dd", escape(tile.value), class_="value"),
            *(tag("dd", escape(line), class_="beside") for line in tile.beside),
        )
        for tile in words.tiles(result)
    ]
    return tag("dl", *boxes, class_="tiles") + "\n" if boxes else ""


def _curves(result: Result) -> str:
    keys = ["asr" if result.backdoor else "forget", "clean"]
    figures = [figure for key in keys if (figure := _chart(result, key))]
    if not figures:
        return section("Over the hops", tag("p", "Nothing was measured along the walk."))
    kind = "pair" if len(figures) > 1 else "pair single"
    return section("Over the hops", _legend(result), tag("div", *figures, class_=kind))


def _legend(result: Result) -> str:
    looks = charts.looks(result)
    entries = [(m.title, looks[m.name].colour, looks[m.name].shape) for m in result.methods]
    items = [_key(label, colour, shape) for label, colour, shape in entries]
    if charts.training(result):
        items.insert(0, _key("Training, shared", "var(--ink)", None))
    if result.oracle and len(result.methods) > 1:
        colour = looks[result.oracle.name].colour
        items.append(_key("Retraining's final value", colour, None, "5 4"))
    return tag("ul", *items, class_="legend")


def _key(label: str, colour: str, shape: int | None, dashes: str | None = None) -> str:
    line = svg.tag(
        "line", x1=0, x2=26, y1=6, y2=6, stroke=colour, stroke_width=2.5, stroke_dasharray=dashes
    )
    mark = "" if shape is None else svg.marker(shape, 13, 6, 4.5, fill=colour)
    swatch = tag("svg", line, mark, viewBox="0 0 26 12", aria_hidden="true")
    return tag("li", swatch, escape(label))


def _chart(result: Result, key: str) -> str:
    picture = charts.line_chart(result, key)
    if not picture:
        return ""
    title, meaning = charts.MEASURES[key]
    floor = charts.axis_floor(key, charts.curves(result, key))
    cut = f" The axis starts at {100 * floor:.0f}{numbers.SPACE}%." if floor else ""
    others = result.oracle and len(result.methods) > 1
    own = " Retraining counts its own hops from 0." if others else ""
    caption = tag("figcaption", tag("h3", title), tag("p", f"{meaning.capitalize()}.{cut}{own}"))
    small = charts.line_chart(result, key, narrow=True)
    return tag("figure", caption, picture, small, _numbers_behind(result, key), class_="card")


def _numbers_behind(result: Result, key: str) -> str:
    """Every evaluation in a table that can be opened, for those who want the numbers."""
    methods = [m for m in result.methods if any(key in p.values for p in m.series)]
    hops = sorted({p.hop for m in methods for p in m.series if key in p.values})
    if not hops:
        return ""
    stride = -(-len(hops) // MOST_ROWS)
    kept = [h for i, h in enumerate(hops) if i % stride == 0 or i == len(hops) - 1]
    at = [{p.hop: p.values.get(key) for p in m.series} for m in methods]
    head = tag(
        "tr",
        tag("th", "Hop", scope="col"),
        *(tag("th", escape(f"{m.title}, %"), scope="col") for m in methods),
    )
    rows = [
        tag(
            "tr",
            tag("th", f"{hop:,}", scope="row"),
            *(tag("td", numbers.hundredths(values.get(hop))) for values in at),
        )
        for hop in kept
    ]
    which = "" if stride == 1 else f" (one evaluation in {stride})"
    title = charts.MEASURES[key][0]
    return tag(
        "details",
        tag("summary", f"Numbers behind this chart{which}"),
        tag(
            "div",
            tag("table", tag("thead", head), tag("tbody", *rows)),
            class_="scroll",
            tabindex="0",
            role="region",
            aria_label=f"{title} by hop",
        ),
    )


def _walk(result: Result) -> str:
    parts = [s for s in walk.stretches(result.walk) if s.visits]
    peers, u = result.task.peers, result.task.unlearner
    if not parts or not peers:
        return ""
    busiest = max(max(s.counts.values()) / len(s.visits) for s in parts)
    figures = []
    for part in parts:
        drawn = peers <= walk.MOST_DRAWN
        graph = walk.graph_picture(result, part, busiest) if drawn else walk.histogram(result, part)
        hops = numbers.counted(len(part.visits), "hop")
        at = "" if u is None else f", {numbers.counted(part.counts[u], 'visit')} to peer {u}"
        caption = tag("figcaption", tag("h3", escape(part.name)), tag("p", f"{hops}{at}."))
        figures.append(tag("figure", caption, graph, walk.strip(result, part), class_="card"))
    shown = (
        "Circles: peers, larger where the token was more often. Lines: hand-overs, stronger where "
        "there were more."
        if peers <= walk.MOST_DRAWN
        else "Bars: how often the token visited each peer."
    )
    cells = "Below, every hop in order, row by row"
    if u is not None:
        cells += f"; tall cells are hops at peer {u}, which asks to forget"
    many = max(len(s.visits) for s in parts) > walk.MOST_CELLS
    cells += " (several hops share a cell, darker where more of them were there)." if many else "."
    text = f"The walk of {result.main.label}. {shown} {cells}"
    kind = "pair" if len(figures) > 1 else "pair single"
    where = words.graph(result).split(" ", 1)[1]
    return section(
        f"Where the token went: {where}, {numbers.counted(peers, 'peer')}",
        tag("p", escape(text), class_="note"),
        tag("div", *figures, class_=kind),
    )


def _samples(result: Result) -> str:
    if not result.samples:
        return ""
    target = result.task.forget.target
    text = "Answers of the model, with how sure it was: \N{CHECK MARK} right class, "
    text += "\N{MULTIPLICATION X} wrong class."
    if result.backdoor:
        aim = "" if target is None else f"; class {target} is what the attacker wants"
        text = f"Test samples with the trigger on them{aim}. {text}"
    heading = "Triggered samples" if result.backdoor else "Samples"
    return section(
        f"{heading}, before and after",
        tag("p", escape(text), class_="note"),
        tag("div", samples_table(result), class_="card"),
    )


def _badge(grade: str) -> str:
    known = words.shown(grade)
    kind = grade if grade in SHOWN else ""
    return tag("span", escape(f"{known.sign} {known.name}"), class_=f"badge {kind}".strip())


def _verdict(result: Result) -> str:
    """What is guaranteed to whom, above everything else on the page."""
    first, *others = words.guarantee(result)
    lines = [tag("p", tag("b", escape(first)))]
    lines += [tag("p", OPTION.sub(r"<code>\1</code>", escape(text))) for text in others]
    proved = next((c for c in result.claims if c.grade in PROVED), None)
    if proved is not None and (bound := words.bound(proved)):
        would = "It would be: " if result.badge == "rehearsal" else ""
        lines.append(tag("p", escape(f"{would}{bound}"), class_="note"))
    kind = f"verdict {result.badge if result.badge in SHOWN else ''}".strip()
    return tag(
        "div",
        tag("div", _badge(result.badge)),
        tag("div", *lines),
        class_=f"{kind} card",
        role="note",
        aria_label="What is guaranteed",
    )


def _claims(result: Result) -> str:
    boxes = []
    for claim in result.claims:
        grade = shown_grade(claim.grade, result.origin)
        code = f"code: {claim.code}" if claim.code else ""
        facts = [words.bound(claim), words.accountant(claim), code]
        line = "; ".join(f for f in facts if f)
        boxes.append(
            tag(
                "div",
                tag("div", _badge(grade)),
                tag(
                    "div",
                    tag("p", tag("b", escape(words.shown(grade).meaning))),
                    tag("p", escape(words.sentence(claim.reason))) if claim.reason else "",
                    tag("p", escape(line), class_="note") if line else "",
                ),
                class_="claim card",
            )
        )
    none = tag("div", "No privacy claim was made for this run.", class_="card")
    return section("What is claimed", *(boxes or [none]))


def _repeat(result: Result) -> str:
    task = result.task
    facts = [
        ("Run", result.run),
        ("Seed", result.seed),
        ("Preset", result.main.preset),
        ("Task", task.name),
        ("Records", "" if task.records is None else f"{task.records:,}"),
        ("Classes", "" if task.classes is None else f"{task.classes:,}"),
        ("Model", task.model),
        ("Parameters", "" if task.parameters is None else f"{task.parameters:,}"),
        ("Graph", f"{result.graph}, {numbers.counted(task.peers, 'peer')}"),
    ]
    pairs = [
        tag("div", tag("dt", name), tag("dd", escape(value))) for name, value in facts if value
    ]
    told = tag(
        "p",
        "Every setting stands in ",
        tag("code", "config.toml"),
        " beside this file: ",
        tag("code", "unwalk run config.toml"),
        " repeats the run with the same seed.",
    )
    command = tag("pre", tag("code", escape(result.command))) if result.command else ""
    return section(
        "Repeat it", tag("div", command, told, tag("dl", *pairs, class_="facts"), class_="card")
    )


def _footer(result: Result) -> str:
    version = f" {result.version}" if result.version else ""
    run = f", run {result.run}" if result.run else ""
    return tag(
        "footer",
        escape(
            f"Made by unwalk{version} from result.json{run}. "
            "All numbers on this page come from that file."
        ),
    )
