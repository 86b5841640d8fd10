"""Draws line charts over hops: one line per method, the start of unlearning, retraining.

:class:`Chart` is what is drawn on either page, in per cent; :func:`run_chart` makes one from the
result of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from unwalk.reports import drawing, numbers
from unwalk.reports.drawing import XY, Scale
from unwalk.reports.result import Method, Point, Result

HEIGHT = 300.0
LEFT, TOP, BOTTOM = 50.0, 34.0, 254.0
LABEL_GAP = 17.0
MOST_LABEL = 165.0
MOST_POINTS = 2000
OTHERS = 5
INK = "var(--ink)"

MEASURES = {
    "clean": ("Clean accuracy", "share of test records answered right"),
    "asr": ("Attack success rate", "share of triggered records answered with the target class"),
    "forget": ("Forget accuracy", "share of the forgotten records answered with their label"),
    "retain": ("Retain accuracy", "share of the remaining records answered right"),
}

Runs = tuple[tuple[XY, ...], ...]
"""A line in pieces, broken where values are missing."""


class Look(NamedTuple):
    """How a method is drawn everywhere: a colour of the style sheet and a shape."""

    colour: str
    shape: int


class Line(NamedTuple):
    """One method's line: where it goes, where it ends, and what the paper says of its end."""

    title: str
    look: Look
    runs: Runs
    end: XY
    final: float
    main: bool = False
    oracle: bool = False
    bands: Runs = ()
    reported: float | None = None


class Format(NamedTuple):
    """Sizes of a chart: its width, its strokes, and the room right of the plot for labels."""

    width: float
    stroke: float
    main_stroke: float
    label: float
    leader: tuple[float, float]
    room: float


RUN = Format(drawing.WIDTH, 2.0, 3.0, label=12.0, leader=(0.0, 9.0), room=20.0)


@dataclass(frozen=True)
class Chart:
    """One measure over hops, ready to be drawn; values are per cent."""

    name: str
    title: str
    description: str
    lines: tuple[Line, ...]
    shared: Runs
    low: float
    begun: int | None
    format: Format = RUN
    shared_bands: Runs = ()

    def draw(self, *, narrow: bool = False) -> Markup:
        """The picture; a narrow one, for phones and paper, has values without names."""
        full = drawing.NARROW if narrow else self.format.width
        texts = [self._label(line, narrow) for line in self.lines]
        right = full - self.format.room - max(drawing.text_width(text) for text in texts)
        runs = [*self.shared, *(run for line in self.lines for run in line.runs)]
        hops = [hop for run in runs for hop, _ in run] + [line.end[0] for line in self.lines]
        x = Scale(0.0, max(hops), LEFT, right)
        y = Scale(self.low, 100.0, BOTTOM, TOP)
        order = sorted(self.lines, key=lambda line: (line.main, not line.oracle))
        body = [*_axes(x, y), *self._start(x, full), *self._reference(y, right)]
        body += [_band(band, x, y, INK) for band in self.shared_bands]
        body += [_band(band, x, y, line.look.colour) for line in order for band in line.bands]
        for run in self.shared:
            body += _stroke(run, x, y, INK, self.format.stroke)
        for line in order:
            width = self.format.main_stroke if line.main else self.format.stroke
            for run in line.runs:
                body += _stroke(run, x, y, line.look.colour, width)
        body += self._ends(texts, x, y)
        return drawing.picture(
            f"{self.name}-narrow" if narrow else self.name,
            f"{self.title} over hops",
            self.description,
            HEIGHT,
            body,
            "chart narrow" if narrow else "chart wide",
            full,
        )

    @staticmethod
    def _label(line: Line, narrow: bool) -> str:
        value = f"{numbers.fixed(line.final)}{numbers.SPACE}%"
        if narrow:
            return value
        room = MOST_LABEL - drawing.text_width(" " + value)
        return f"{drawing.shorten(line.title, room)} {value}"

    def _start(self, x: Scale, full: float) -> list[Markup]:
        if self.begun is None or not x.low < self.begun < x.high:
            return []
        label, place = f"unlearning starts, hop {self.begun:,}", x(self.begun)
        half = drawing.text_width(label) / 2
        middle = min(max(place, half + 4), full - half - 4)
        return [
            drawing.tag("line", x1=place, x2=place, y1=TOP - 8, y2=BOTTOM, class_="start"),
            drawing.words(label, middle, TOP - 15, text_anchor="middle", class_="start-label"),
        ]

    def _reference(self, y: Scale, right: float) -> list[Markup]:
        """The dashed line of retraining, against which every method is measured."""
        return [
            drawing.polyline(
                [(LEFT, y(line.final)), (right, y(line.final))],
                stroke=line.look.colour,
                stroke_width=1.5,
                stroke_dasharray="5 4",
                class_="reference",
            )
            for line in self.lines
            if line.oracle and len(self.lines) > 1
        ]

    def _ends(self, texts: Sequence[str], x: Scale, y: Scale) -> list[Markup]:
        """Filled marks where our lines end, hollow ones where the paper's do, and the labels."""
        finals = [y(line.final) for line in self.lines]
        places = drawing.spread(finals, LABEL_GAP, TOP, BOTTOM - 4)
        rows = sorted(zip(self.lines, texts, places, strict=True), key=lambda row: row[0].main)
        straight, tip = (x.end + offset for offset in self.format.leader)
        leaders, marks = [], []
        for line, text, place in rows:
            colour, shape, aim = line.look.colour, line.look.shape, y(line.final)
            end = x(line.end[0]), y(line.end[1])
            leader = [(end[0], aim), (straight, aim), (tip, place)]
            leaders.append(drawing.polyline(leader, stroke=colour, class_="leader"))
            marks.append(drawing.marker(shape, *end, 4.2, fill=colour, class_="end"))
            if line.reported is not None:
                at = x.end + 9, y(line.reported)
                marks.append(drawing.marker(shape, *at, 3.8, stroke=colour, class_="paper"))
            at = x.end + self.format.label, place + 4.5
            marks.append(drawing.words(text, *at, fill=colour, class_="end-label"))
        return leaders + marks


@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    label: str
    colour: str
    shape: int | None = None
    dashes: str | None = None

    def draw(self, x: float, y: float) -> Markup:
        """A piece of the line, 26 wide, from ``x`` on."""
        ends, look = [(x, y), (x + 26, y)], {"stroke": self.colour, "stroke_dasharray": self.dashes}
        line = drawing.polyline(ends, stroke_width=2.5, **look)
        if self.shape is None:
            return line
        return line + drawing.marker(self.shape, x + 13, y, 4.5, fill=self.colour)

    @property
    def swatch(self) -> Markup:
        """The same as a picture of its own."""
        return drawing.tag("svg", self.draw(0, 6), viewBox="0 0 26 12", aria_hidden="true")


def _axes(x: Scale, y: Scale) -> Iterator[Markup]:
    for value in drawing.ticks(y.low, y.high):
        at, text = y(value), f"{value:g}{numbers.SPACE}%"
        yield drawing.tag("line", x1=x.start, x2=x.end, y1=at, y2=at, class_="grid")
        yield drawing.words(text, x.start - 7, at + 4.5, text_anchor="end", class_="tick")
    for value in drawing.ticks(x.low, x.high, 5):
        at, text = x(value), f"{value:,.0f}"
        yield drawing.tag("line", x1=at, x2=at, y1=BOTTOM, y2=BOTTOM + 4, class_="axis")
        yield drawing.words(text, at, BOTTOM + 18, text_anchor="middle", class_="tick")
    middle, text = (x.start + x.end) / 2, "hops of the token"
    yield drawing.tag("line", x1=x.start, x2=x.end, y1=BOTTOM, y2=BOTTOM, class_="axis")
    yield drawing.words(text, middle, HEIGHT - 8, text_anchor="middle", class_="tick")


def _band(edge: Sequence[XY], x: Scale, y: Scale, colour: str) -> Markup:
    points = drawing.path([(x(hop), y(value)) for hop, value in edge])
    return drawing.tag("polygon", points=points, fill=colour, class_="band")


def _stroke(run: Sequence[XY], x: Scale, y: Scale, colour: str, width: float) -> Iterator[Markup]:
    """A line, cut where it leaves the plot; a dot where a single point is left."""
    for part in drawing.clip_below(run, y.low):
        if len(part) == 1:
            yield drawing.tag("circle", cx=x(part[0][0]), cy=y(part[0][1]), r=width, fill=colour)
            continue
        yield drawing.polyline(
            [(x(hop), y(value)) for hop, value in part],
            stroke=colour,
            stroke_width=width,
            stroke_linejoin="round",
            stroke_linecap="round",
        )


def looks(result: Result) -> dict[str, Look]:
    """Main method, retraining and the others, told apart by colour and by shape."""
    chosen: dict[str, Look] = {}
    others = 0
    for method in result.methods:
        if method is result.main:
            chosen[method.name] = Look("var(--main)", 0)
        elif method.oracle:
            chosen[method.name] = Look("var(--oracle)", 2)
        else:
            chosen[method.name] = Look(f"var(--other-{others % OTHERS + 1})", (1, 3)[others % 2])
            others += 1
    return chosen


def training(result: Result) -> tuple[Point, ...]:
    """The training part that methods share: the main method's, else the first there is."""
    for method in (result.main, *result.methods):
        points = tuple(p for p in method.series if p.phase == "train")
        if points and not method.oracle:
            return points
    return ()


def run_chart(result: Result, key: str) -> Chart | None:
    """The chart of one measure of a run; None if nobody measured it."""
    shared = training(result)
    lines = [
        line
        for method in result.methods
        if (line := _line(result, method, key, shared)) is not None
    ]
    if not lines:
        return None
    title, meaning = MEASURES[key]
    return Chart(
        name=f"chart-{key}",
        title=title,
        description=f"{meaning}. {_spoken(result, key, lines)}",
        lines=tuple(lines),
        shared=_pieces(shared, key),
        low=axis_floor(key, lines),
        begun=result.start,
    )


def _line(result: Result, method: Method, key: str, shared: tuple[Point, ...]) -> Line | None:
    """A method's line, without the training that it shares."""
    points = list(method.series)
    own = tuple(p for p in points if p.phase == "train")
    if shared and not method.oracle and own in (shared, ()):
        points = [shared[-1], *(p for p in points if p.phase != "train")]
    runs = _pieces(points, key)
    if key in method.final:
        final = 100 * method.final[key]
    elif runs:
        final = runs[-1][-1][1]
    else:
        return None
    last = points[-1].hop if points else result.train_hops or 0
    end = runs[-1][-1] if runs else (float(last), final)
    look, main = looks(result)[method.name], method is result.main
    return Line(method.title, look, runs, end, final, main, method.oracle)


def _pieces(points: Sequence[Point], key: str) -> Runs:
    """Lines through the points that have a value, broken where one is missing."""
    stride = max(1, math.ceil(len(points) / MOST_POINTS))
    kept = [p for i, p in enumerate(points) if i % stride == 0 or i == len(points) - 1]
    pieces: list[list[XY]] = [[]]
    for point in kept:
        if key in point.values:
            pieces[-1].append((float(point.hop), 100 * point.values[key]))
        elif pieces[-1]:
            pieces.append([])
    return tuple(tuple(piece) for piece in pieces if piece)


def axis_floor(key: str, lines: Sequence[Line]) -> float:
    """Where the vertical axis starts: zero, unless all values are far above it."""
    if key == "asr":
        return 0.0
    kept = [line.final for line in lines]
    kept += [y for line in lines if not line.oracle for run in line.runs for _, y in run]
    low = 10.0 * math.floor((min(kept) - 2.0) / 10)
    return low if low >= 40 else 0.0


def _spoken(result: Result, key: str, lines: Sequence[Line]) -> str:
    """A description of the chart in words."""
    before = result.before.get(key)
    parts = [] if before is None else [f"before unlearning {numbers.percent(before)}"]
    labels = {method.title: method.label for method in result.methods}
    for line in lines:
        end = f"{numbers.fixed(line.final)}{numbers.SPACE}%"
        parts.append(f"{labels[line.title]} ends at {end}")
    return "; ".join(parts) + "."
