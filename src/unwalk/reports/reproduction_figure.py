"""The paper's figure, redrawn: one measure over hops, a line and a band for each method."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from unwalk.reports import numbers, svg
from unwalk.reports.charts import BOTTOM, HEIGHT, LABEL_GAP, LEFT, TOP, Look
from unwalk.reports.reproduction_documents import RETRAIN, Part
from unwalk.reports.reproduction_sums import (
    Compared,
    compared,
    mean_std,
    prefix,
    shared_until,
    start,
)
from unwalk.reports.svg import Scale

METHODS = {
    "rrdu": ("RR-DU", Look("var(--main)", 0)),
    "finetune": ("Fine-tuning", Look("var(--other-1)", 1)),
    "dpsgd": ("DP-SGD", Look("var(--other-2)", 3)),
    "ddp": ("DDP", Look("var(--other-3)", 1)),
    RETRAIN: ("Retraining", Look("var(--oracle)", 2)),
}
"""How methods are called and drawn everywhere."""

CHARTS = {
    "asr_paper": (
        "Backdoor accuracy",
        "share of triggered test records answered with the target class, records of that class "
        "included: the paper's count",
    ),
    "clean": ("Test accuracy", "share of clean test records answered right"),
}
WIDE = 580.0
"""Width of a picture's view box on a wide page; the narrow one is the other charts'."""

GUTTER = 26.0
"""Room between the plot and its labels, where the paper's end points stand."""


@dataclass(frozen=True)
class Dot:
    """Mean and standard deviation over seeds after ``hop`` hops."""

    hop: int
    mean: float
    std: float | None


@dataclass(frozen=True)
class Line:
    """One method: its runs of dots, broken where a value is missing, and where it ends."""

    method: str
    runs: tuple[tuple[Dot, ...], ...]
    end: Compared

    @property
    def title(self) -> str:
        """The method as it is written."""
        return title(self.method)

    @property
    def look(self) -> Look:
        """The method's colour and shape."""
        return METHODS.get(self.method, ("", Look("var(--other-4)", 3)))[1]

    @property
    def value(self) -> float:
        """Where the line ends."""
        return self.end.mean or 0.0


@dataclass(frozen=True)
class Chart:
    """What is drawn for one measure: training that methods share, and every method's line."""

    part: Part
    preset: str
    measure: str
    shared: tuple[tuple[Dot, ...], ...]
    lines: tuple[Line, ...]
    begun: int | None

    @property
    def low(self) -> float:
        """Where the vertical axis starts: near what happens once unlearning has begun."""
        if self.measure != "clean":
            return 0.0
        last = max(d.hop for line in self.lines for run in line.runs for d in run)
        begun = last / 2 if self.begun is None else self.begun
        kept = [v for line in self.lines for v in (line.end.mean, line.end.reported)]
        kept += [
            d.mean - (d.std or 0.0)
            for line in self.lines
            if line.method != RETRAIN
            for run in line.runs
            for d in run
            if d.hop >= begun
        ]
        return axis_low(min(v for v in kept if v is not None))


def title(method: str) -> str:
    """A method as it is written."""
    return METHODS.get(method, (method, None))[0]


def axis_low(lowest: float) -> float:
    """A round start of an axis that ends at 100 and shows ``lowest``.

    >>> [axis_low(v) for v in (12.0, 52.0, 87.3, 96.4, 99.1)]
    [0.0, 50.0, 85.0, 96.0, 99.0]
    """
    step = next((s for s in (0.5, 1.0, 2.0, 5.0, 10.0, 20.0) if 100 - lowest <= 5 * s), 20.0)
    low = step * math.floor(lowest / step)
    return low if low >= 40 else 0.0


def chart(part: Part, preset: str, measure: str) -> Chart | None:
    """The lines of one measure, or None if nobody measured it."""
    begun, shared = start(part, preset), shared_until(part, preset)
    ends = {
        c.row: c
        for c in compared(part)
        if c.final and (c.preset, c.measure) == (preset, measure) and c.mean is not None
    }
    lines = []
    for method, end in ends.items():
        runs = _runs(part, preset, method, measure)
        if shared is not None and method != RETRAIN and _shares(part, preset, method, shared):
            runs = _cut(runs, shared, math.inf)
        lines.append(Line(method, runs, end))
    first = next((line.method for line in lines if line.method != RETRAIN), None)
    common: tuple[tuple[Dot, ...], ...] = ()
    if shared is not None and first is not None:
        common = _cut(_runs(part, preset, first, measure), 0, shared)
    return Chart(part, preset, measure, common, tuple(lines), begun) if lines else None


def draw(drawn: Chart, number: int, *, narrow: bool = False) -> str:
    """The picture; a narrow one, for phones and paper, has values without names at its ends."""
    full = svg.NARROW if narrow else WIDE
    texts = [f"{numbers.fixed(line.value)}{numbers.SPACE}%" for line in drawn.lines]
    if not narrow:
        texts = [f"{n.title} {text}" for n, text in zip(drawn.lines, texts, strict=True)]
    right = full - GUTTER - 6 - max(svg.text_width(text) for text in texts)
    hops = [d.hop for line in drawn.lines for run in line.runs for d in run]
    x = Scale(0.0, max(hops), LEFT, right)
    y = Scale(drawn.low, 100.0, BOTTOM, TOP)
    order = sorted(drawn.lines, key=lambda n: (n.method == "rrdu", n.method != RETRAIN))
    body = [*_axes(x, y), *_begun(drawn, x, full), *_scratch(drawn, y, right)]
    body += [_band(run, x, y, "var(--ink)") for run in drawn.shared]
    body += [_band(run, x, y, n.look.colour) for n in order for run in n.runs]
    body += [_path(run, x, y, "var(--ink)", 1.8) for run in drawn.shared]
    for n in order:
        width = 2.6 if n.method == "rrdu" else 1.8
        body += [_path(run, x, y, n.look.colour, width) for run in n.runs]
    body += _ends(drawn, texts, x, y)
    heading, meaning = CHARTS[drawn.measure]
    name = re.sub(r"\W+", "-", f"{drawn.part.task}-{number}-{drawn.measure}")
    return svg.picture(
        f"figure-{name}{'-narrow' if narrow else ''}",
        f"{heading} over hops",
        f"{meaning}. {spoken(drawn)}",
        HEIGHT,
        body,
        "chart narrow" if narrow else "chart wide",
        full,
    )


def spoken(drawn: Chart) -> str:
    """Where every line ends, in words."""
    told = []
    for line in drawn.lines:
        paper = line.end.reported
        beside = "" if paper is None else f" (the paper: {numbers.fixed(paper)})"
        told.append(f"{line.title} ends at {numbers.fixed(line.value)} per cent{beside}")
    return "; ".join(told) + "."


def _runs(part: Part, preset: str, method: str, measure: str) -> tuple[tuple[Dot, ...], ...]:
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


def _cut(runs: Sequence[tuple[Dot, ...]], low: float, high: float) -> tuple[tuple[Dot, ...], ...]:
    kept = (tuple(d for d in run if low <= d.hop <= high) for run in runs)
    return tuple(run for run in kept if run)


def _axes(x: Scale, y: Scale) -> list[str]:
    body = []
    for value in svg.ticks(y.low, y.high):
        at, text = y(value), f"{value:g}{numbers.SPACE}%"
        body.append(svg.tag("line", x1=x.start, x2=x.end, y1=at, y2=at, class_="grid"))
        body.append(svg.words(text, x.start - 7, at + 4.5, text_anchor="end", class_="tick"))
    for value in svg.ticks(x.low, x.high, 5):
        at, text = x(value), f"{value:,.0f}"
        body.append(svg.tag("line", x1=at, x2=at, y1=BOTTOM, y2=BOTTOM + 4, class_="axis"))
        body.append(svg.words(text, at, BOTTOM + 18, text_anchor="middle", class_="tick"))
    middle = (x.start + x.end) / 2
    body.append(svg.tag("line", x1=x.start, x2=x.end, y1=BOTTOM, y2=BOTTOM, class_="axis"))
    body.append(
        svg.words("hops of the token", middle, HEIGHT - 8, text_anchor="middle", class_="tick")
    )
    return body


def _begun(drawn: Chart, x: Scale, full: float) -> list[str]:
    if drawn.begun is None or not x.low < drawn.begun < x.high:
        return []
    text, at = f"unlearning starts, hop {drawn.begun:,}", x(drawn.begun)
    half = svg.text_width(text) / 2
    middle = min(max(at, half + 4), full - half - 4)
    return [
        svg.tag("line", x1=at, x2=at, y1=TOP - 8, y2=BOTTOM, class_="start"),
        svg.words(text, middle, TOP - 15, text_anchor="middle", class_="start-label"),
    ]


def _scratch(drawn: Chart, y: Scale, right: float) -> list[str]:
    """The dashed line of the oracle that every method is measured against."""
    return [
        svg.polyline(
            [(LEFT, y(n.value)), (right, y(n.value))],
            stroke=n.look.colour,
            stroke_width=1.5,
            stroke_dasharray="5 4",
            class_="reference",
        )
        for n in drawn.lines
        if n.method == RETRAIN and len(drawn.lines) > 1
    ]


def _band(run: Sequence[Dot], x: Scale, y: Scale, colour: str) -> str:
    """One standard deviation to either side of the mean."""
    known = [(d.hop, d.mean, d.std) for d in run if d.std is not None]
    if len(known) < 2:
        return ""
    edge = [(x(hop), y(mean + std)) for hop, mean, std in known]
    edge += [(x(hop), y(mean - std)) for hop, mean, std in reversed(known)]
    points = " ".join(f"{svg.number(a)},{svg.number(b)}" for a, b in edge)
    return svg.tag("polygon", points=points, fill=colour, class_="band")


def _path(run: Sequence[Dot], x: Scale, y: Scale, colour: str, width: float) -> str:
    parts = svg.clip_below([(float(d.hop), d.mean) for d in run], y.low)
    return "".join(
        svg.polyline(
            [(x(a), y(b)) for a, b in part],
            stroke=colour,
            stroke_width=width,
            stroke_linejoin="round",
            stroke_linecap="round",
        )
        if len(part) > 1
        else svg.tag("circle", cx=x(part[0][0]), cy=y(part[0][1]), r=width, fill=colour)
        for part in parts
    )


def _ends(drawn: Chart, texts: Sequence[str], x: Scale, y: Scale) -> list[str]:
    """Filled marks where our lines end, hollow ones where the paper's do, and the labels."""
    places = svg.spread([y(n.value) for n in drawn.lines], LABEL_GAP, TOP, BOTTOM - 4)
    rows = list(zip(drawn.lines, texts, places, strict=True))
    rows.sort(key=lambda row: row[0].method == "rrdu")
    right, body, marks = x.end, [], []
    for n, text, place in rows:
        colour, at = n.look.colour, y(n.value)
        last = n.runs[-1][-1].hop
        leader = [(x(last), at), (right, at), (right + 15, at), (right + GUTTER - 4, place)]
        body.append(svg.polyline(leader, stroke=colour, class_="leader"))
        marks.append(svg.marker(n.look.shape, x(last), at, 4.2, fill=colour, class_="end"))
        if n.end.reported is not None:
            marks.append(
                svg.marker(
                    n.look.shape, right + 9, y(n.end.reported), 3.8, stroke=colour, class_="paper"
                )
            )
        marks.append(svg.words(text, right + GUTTER, place + 4.5, fill=colour, class_="end-label"))
    return body + marks
