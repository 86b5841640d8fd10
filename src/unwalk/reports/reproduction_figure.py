"""Draws the paper's figure again, for the page and as a self-contained SVG file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from unwalk.core.errors import InvalidInput
from unwalk.reports import charts, numbers
from unwalk.reports.charts import HEIGHT, INK, Chart, Format, Key, Line, Runs, look_of
from unwalk.reports.reproduction import (
    FIGURE,
    RETRAIN,
    Part,
    Reported,
    collect,
    compared,
    mean_std,
    method_title,
    prefix,
    seeds_text,
    shared_until,
    start,
    task_title,
)
from unwalk.reports.svg_file import placed, svg_file

CHARTS = {
    "asr_paper": (
        "Backdoor accuracy",
        "share of triggered test records answered with the target class, records of that class "
        "included: the paper's count",
    ),
    "clean": ("Test accuracy", "share of clean test records answered right"),
}
WIDE = Format(580.0, 1.8, 2.6, label=26.0, leader=(15.0, 22.0), room=32.0)
"""Wider than a run's chart, with room between plot and labels for the paper's end points."""

MARGIN, GAP, HEAD, FOOT = 16.0, 24.0, 58.0, 34.0


class Dot(NamedTuple):
    """Mean and standard deviation over seeds after ``hop`` hops."""

    hop: int
    mean: float
    std: float | None


Dots = tuple[tuple[Dot, ...], ...]
"""Runs of dots, broken where a value is missing."""


def charts_of(part: Part, preset: str, number: int = 0) -> list[Chart]:
    """A chart for every measure that has values."""
    every = (chart(part, preset, measure, number) for measure in CHARTS)
    return [drawn for drawn in every if drawn is not None]


def chart(part: Part, preset: str, measure: str, number: int = 0) -> Chart | None:
    """The lines of one measure, or None if nobody measured it; ``number`` makes ids unique."""
    begun, shared = start(part, preset), shared_until(part, preset)
    ends = {
        c.row: c
        for c in compared(part)
        if c.final and (c.preset, c.measure) == (preset, measure) and c.mean is not None
    }
    if not ends:
        return None
    dots = {method: _dots(part, preset, method, measure) for method in ends}
    common: Dots = ()
    first = next((method for method in ends if method != RETRAIN), None)
    if shared is not None and first is not None:
        common = _cut(dots[first], 0, shared)
        for method in ends:
            if method != RETRAIN and _shares(part, preset, method, shared):
                dots[method] = _cut(dots[method], shared, math.inf)
    lines, spoken = [], []
    for method, end in ends.items():
        last = dots[method][-1][-1]
        spoken.append(f"{method_title(method)} ends at {numbers.fixed(last.mean)} per cent")
        if end.reported is not None:
            spoken[-1] += f" (the paper: {numbers.fixed(end.reported)})"
        lines.append(
            Line(
                method_title(method),
                look_of(method),
                _runs(dots[method]),
                (float(last.hop), last.mean),
                last.mean,
                method == "rrdu",
                method == RETRAIN,
                _bands(dots[method]),
                end.reported,
            )
        )
    heading, meaning = CHARTS[measure]
    name = re.sub(r"\W+", "-", f"{part.task}-{number}-{measure}")
    return Chart(
        name=f"figure-{name}",
        title=heading,
        description=f"{meaning}. {'; '.join(spoken)}.",
        lines=tuple(lines),
        shared=_runs(common),
        low=_low(lines, dots, begun) if measure == "clean" else 0.0,
        begun=begun,
        format=WIDE,
        shared_bands=_bands(common),
    )


def _low(lines: Sequence[Line], dots: Mapping[str, Dots], begun: int | None) -> float:
    """Where the vertical axis starts: near what happens once unlearning has begun."""
    every = [dot for runs in dots.values() for run in runs for dot in run]
    since = max(dot.hop for dot in every) / 2 if begun is None else begun
    kept = [v for line in lines for v in (line.final, line.reported) if v is not None]
    for method, runs in dots.items():
        if method != RETRAIN:
            kept += [d.mean - (d.std or 0.0) for run in runs for d in run if d.hop >= since]
    return axis_low(min(kept))


def axis_low(lowest: float) -> float:
    """A round start of an axis that ends at 100 and shows ``lowest``.

    >>> [axis_low(v) for v in (12.0, 52.0, 87.3, 96.4, 99.1)]
    [0.0, 50.0, 85.0, 96.0, 99.0]
    """
    step = next((s for s in (0.5, 1.0, 2.0, 5.0, 10.0, 20.0) if 100 - lowest <= 5 * s), 20.0)
    low = step * math.floor(lowest / step)
    return low if low >= 40 else 0.0


def _dots(part: Part, preset: str, method: str, measure: str) -> Dots:
    at: dict[int, list[float]] = {}
    for r in part.of(method, preset):
        if r.hop is not None:
            at.setdefault(r.hop, []).extend([r.values[measure]] if measure in r.values else [])
    runs: list[list[Dot]] = [[]]
    for hop in sorted(at):
        mean, std = mean_std(at[hop])
        if mean is not None:
            runs[-1].append(Dot(hop, mean, std))
        elif runs[-1]:
            runs.append([])
    return tuple(tuple(run) for run in runs if run)


def _shares(part: Part, preset: str, method: str, shared: int) -> bool:
    """Whether a method has the training that is drawn once for all."""
    others = [r for r in part.rows if r not in (RETRAIN, method)]
    return any((prefix(part, preset, method, other) or -1) >= shared for other in others)


def _cut(runs: Dots, low: float, high: float) -> Dots:
    kept = (tuple(d for d in run if low <= d.hop <= high) for run in runs)
    return tuple(run for run in kept if run)


def _runs(dots: Dots) -> Runs:
    return tuple(tuple((float(d.hop), d.mean) for d in run) for run in dots)


def _bands(dots: Dots) -> Runs:
    """The outline of one standard deviation to either side of the mean."""
    bands = []
    for run in dots:
        known = [(float(d.hop), d.mean, d.std) for d in run if d.std is not None]
        above = [(hop, mean + std) for hop, mean, std in known]
        below = [(hop, mean - std) for hop, mean, std in reversed(known)]
        if len(known) > 1:
            bands.append((*above, *below))
    return tuple(bands)


def legend(drawn: Chart) -> list[Key]:
    """What the lines of a chart are."""
    keys = [Key("Training, shared", INK)] if drawn.shared else []
    keys += [Key(line.title, *line.look) for line in drawn.lines]
    if len(drawn.lines) > 1:
        colours = [line.look.colour for line in drawn.lines if line.oracle]
        keys += [Key("Where retraining ends", colour, dashes="5 4") for colour in colours]
    return keys


def paper_mark(x: float, y: float) -> Markup:
    """The hollow mark of the paper's end points, for a legend."""
    return charts.marker(0, x, y, 4, stroke=INK, fill="none", stroke_width=1.6)


def has_paper(drawn: Chart) -> bool:
    """Whether the paper gives the end of any line."""
    return any(line.reported is not None for line in drawn.lines)


def figure_picture(
    name: str, document: Mapping[str, Any], reported: Reported | None = None
) -> str | None:
    """A whole SVG file for one document of the figure; None where nothing was measured.

    Both charts stand beside each other above their legend, with the light palette written in.
    """
    (part,) = collect({name: document}, reported)
    if part.experiment != FIGURE:
        raise InvalidInput(f"{name} is no figure; allowed: documents of {FIGURE}.")
    preset = part.presets[0]
    drawn = charts_of(part, preset)
    if not drawn:
        return None
    width = 2 * MARGIN + len(drawn) * WIDE.width + (len(drawn) - 1) * GAP
    height = HEAD + HEIGHT + FOOT
    seeds = seeds_text(len({r.seed for r in part.of(row, preset)}) for row in part.rows)
    heading = f"{task_title(part.task)}, preset {preset}, {seeds}"
    body = [charts.words(heading, MARGIN, 24.0, class_="heading")]
    for index, one in enumerate(drawn):
        at = MARGIN + index * (WIDE.width + GAP)
        body.append(charts.words(one.title, at, 48.0, class_="sub"))
        body.append(placed(one.draw(), at, HEAD, WIDE.width, HEIGHT))
    body += _legend_line(drawn[0], height - FOOT / 2)
    return svg_file(body, width, height, "reproduction")


def _legend_line(drawn: Chart, at: float) -> list[Markup]:
    """One line of keys, as far as they need room."""
    body, x = [], MARGIN
    for key in legend(drawn):
        body.append(key.draw(x, at))
        body.append(charts.words(key.label, x + 33, at + 4.5, class_="key"))
        x += 33 + charts.text_width(key.label) + 16
    if has_paper(drawn):
        body.append(paper_mark(x + 5, at))
        body.append(charts.words("The paper's end", x + 15, at + 4.5, class_="key"))
    return body
