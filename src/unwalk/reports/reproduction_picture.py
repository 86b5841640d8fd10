"""The figure as a picture file: both charts of one dataset beside each other, with their legend.

The page's own charts, with the light palette written in: the file needs nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.reports import reproduction_style, style, svg
from unwalk.reports.charts import HEIGHT
from unwalk.reports.reproduction_documents import FIGURE, RETRAIN, Part, Reported, collect
from unwalk.reports.reproduction_figure import CHARTS, WIDE, Chart, chart, draw
from unwalk.reports.reproduction_tables import counts_text, task_title
from unwalk.reports.svg import tag

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MARGIN, GAP, HEAD, FOOT = 16.0, 24.0, 58.0, 34.0


def figure_picture(
    name: str, document: Mapping[str, Any], reported: Reported | None = None
) -> str | None:
    """A whole SVG file for one document of the figure; None where nothing was measured."""
    (part,) = collect({name: document}, reported)
    if part.experiment != FIGURE:
        raise InvalidInput(f"{name} is no figure; allowed: documents of {FIGURE}.")
    preset = part.presets[0]
    charts = [c for measure in CHARTS if (c := chart(part, preset, measure)) is not None]
    if not charts:
        return None
    width = 2 * MARGIN + len(charts) * WIDE + (len(charts) - 1) * GAP
    height = HEAD + HEIGHT + FOOT
    body = [svg.words(_title(part, preset), MARGIN, 24.0, class_="heading")]
    for index, drawn in enumerate(charts):
        at = MARGIN + index * (WIDE + GAP)
        body.append(svg.words(CHARTS[drawn.measure][0], at, 48.0, class_="sub"))
        place = f'<svg x="{svg.number(at)}" y="{svg.number(HEAD)}" width="{WIDE:g}" '
        body.append(draw(drawn, 0).replace("<svg ", f'{place}height="{HEIGHT:g}" ', 1))
    body += _legend(charts[0], height - FOOT / 2)
    ground = tag("rect", width=width, height=height, fill="var(--card)")
    picture = tag(
        "svg",
        tag("style", escape(_rules("".join(body)), quote=False)),
        ground,
        *body,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {svg.number(width)} {svg.number(height)}",
        width=width,
        height=height,
        font_family=FONT,
        font_size="13",
    )
    return re.sub(r"var\(--([\w-]+)\)", lambda found: style.LIGHT[found[1]], picture) + "\n"


def _title(part: Part, preset: str) -> str:
    rows = {r.row for r in part.readings}
    counted = counts_text(len({r.seed for r in part.of(row, preset)}) for row in rows)
    return f"{task_title(part.task)}, preset {preset}, {counted}"


def _rules(body: str) -> str:
    """The page's rules for what is in the picture."""
    sheet = style.SHEET + reproduction_style.SHEET.partition("@media")[0]
    used = set(re.findall(r'class="([^"]*)"', body))
    classes = {name for names in used for name in names.split()}
    rules = [
        f"{selector}{{{rule}}}"
        for selector, rule in re.findall(r"\.picture (\.[\w.-]+)\{([^}]*)\}", sheet)
        if selector[1:] in classes
    ]
    own = [".heading{font-size:16px;font-weight:600}", ".sub{font-size:14px;font-weight:600}"]
    return ".heading,.sub,.key{fill:var(--ink)}" + "".join(own + rules)


def _legend(drawn: Chart, at: float) -> list[str]:
    """One line of keys, as far as they need room."""
    keys: list[tuple[str, str, int | None, str | None]] = []
    if drawn.shared:
        keys.append(("Training, shared", "var(--ink)", None, None))
    keys += [(n.title, n.look.colour, n.look.shape, None) for n in drawn.lines]
    if len(drawn.lines) > 1:
        ends = [n.look.colour for n in drawn.lines if n.method == RETRAIN]
        keys += [("Where retraining ends", colour, None, "5 4") for colour in ends]
    body, x = [], MARGIN
    for label, colour, shape, dashes in keys:
        line = [(x, at), (x + 26, at)]
        body.append(svg.polyline(line, stroke=colour, stroke_width=2.5, stroke_dasharray=dashes))
        if shape is not None:
            body.append(svg.marker(shape, x + 13, at, 4.5, fill=colour))
        body.append(svg.words(label, x + 33, at + 4.5, class_="key"))
        x += 33 + svg.text_width(label) + 16
    if any(n.end.reported is not None for n in drawn.lines):
        body.append(svg.marker(0, x + 5, at, 4, stroke="var(--ink)", fill="none", stroke_width=1.6))
        body.append(svg.words("The paper's end", x + 15, at + 4.5, class_="key"))
    return body
