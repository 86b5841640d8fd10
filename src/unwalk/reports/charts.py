"""Draws the pictures of a page as SVG: line charts over hops, the walk on its graph, hop by hop.

:class:`Chart` is what is drawn on either page, in per cent: one line per method, the start of
unlearning, retraining; :func:`run_chart` makes one from the result of a run.  The walk is drawn on
its graph up to :data:`MOST_DRAWN` peers; beyond that a histogram of visits.

All pictures are made of the same elements: scales, ticks, labels that do not overlap, PNG images.
Colours are never written into a picture: shapes carry a ``var(--name)`` that the page's style
sheet fills in for light, dark and paper.  All text and every attribute is escaped here.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from unwalk.core.errors import InvalidInput
from unwalk.reports import numbers
from unwalk.reports.result import Method, Point, Result, Values, Visit

WIDTH = 460.0
"""Width of a picture's view box; two stand side by side on a wide page, one on a phone."""

NARROW = 340.0
"""Width of a picture that is drawn once more for phones and paper."""

FONT = 13.0
CHARACTER = 0.58
"""Width of an average character relative to the font size, on the wide side."""

XY = tuple[float, float]

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def number(value: float) -> str:
    """A coordinate with at most two decimals.

    >>> number(3.0), number(2 / 3), number(-0.001)
    ('3', '0.67', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def tag(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """One element; ``_`` in an attribute's name becomes ``-``, a trailing ``_`` is dropped.

    Children are escaped, except those that are elements themselves.

    >>> tag("rect", x=1.5, stroke_width=2, class_="a")
    Markup('<rect x="1.5" stroke-width="2" class="a"/>')
    >>> tag("g", tag("text", "<b>", x=0))
    Markup('<g><text x="0">&lt;b&gt;</text></g>')
    """
    parts = []
    for key, value in attributes.items():
        if value is not None:
            text = escape(value) if isinstance(value, str) else number(value)
            parts.append(f' {key.rstrip("_").replace("_", "-")}="{text}"')
    head = f"<{name}{''.join(parts)}"
    body = "".join(map(escape, children))
    return Markup(f"{head}>{body}</{name}>" if children else f"{head}/>")


def words(text: str, x: float, y: float, **attributes: str | float | None) -> Markup:
    """A line of text."""
    return tag("text", text, x=x, y=y, **attributes)


def picture(
    name: str,
    title: str,
    description: str,
    height: float,
    body: Iterable[Markup],
    kind: str = "",
    width: float = WIDTH,
) -> Markup:
    """A whole picture with its title and description for those who do not see it."""
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", description, id=f"{name}-desc"),
        *body,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        class_=f"picture {kind}".strip(),
    )


def text_width(text: str, size: float = FONT) -> float:
    """A cautious guess of how wide ``text`` will be."""
    return len(text) * size * CHARACTER


def shorten(text: str, width: float) -> str:
    """``text`` cut with an ellipsis so that it fits ``width``.

    >>> shorten("abcdefghij", 5 * 13 * 0.58)
    'abcd…'
    """
    most = max(1, int(width / (FONT * CHARACTER)))
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


@dataclass(frozen=True)
class Scale:
    """A straight map from [low, high] to [start, end]; an empty range maps to the middle."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if self.high <= self.low:
            return (self.start + self.end) / 2
        share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers in [low, high], at most ``most`` of them.

    >>> ticks(0, 300)
    [0.0, 100.0, 200.0, 300.0]
    >>> ticks(0, 100)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    if high <= low:
        return [float(low)]
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    steps = (step * factor for factor in (1, 2, 5, 10, 20, 50))
    step = next(s for s in steps if math.floor(high / s) - math.ceil(low / s) + 1 <= most)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [i * step for i in range(first, last + 1)]


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near ``wanted``, at least ``gap`` apart, inside [low, high] where they fit.

    Neighbours that would collide form a block centred on the mean of what they wanted; blocks
    merge until none collide.  If all together do not fit, they are packed evenly.

    >>> spread([10.0, 11.0, 50.0], 4.0, 0.0, 60.0)
    [8.5, 12.5, 50.0]
    """
    if not wanted:
        return []
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[float, list[int]]] = []
    for index in order:
        members = [index]
        while True:
            half = gap * (len(members) - 1) / 2
            centre = sum(wanted[i] for i in members) / len(members)
            centre = min(high - half, max(low + half, centre))
            if not blocks:
                break
            above, others = blocks[-1]
            if above + gap * (len(others) - 1) / 2 + gap <= centre - half:
                break
            blocks.pop()
            members = others + members
        blocks.append((centre, members))
    places = [0.0] * len(wanted)
    for centre, members in blocks:
        for position, index in enumerate(members):
            places[index] = centre + gap * (position - (len(members) - 1) / 2)
    return places


def clip_below(line: Sequence[XY], floor: float) -> list[list[XY]]:
    """The parts of a polyline that lie at or above ``floor``, cut where it is crossed.

    >>> clip_below([(0.0, 0.0), (1.0, 2.0), (2.0, 2.0)], 1.0)
    [[(0.5, 1.0), (1.0, 2.0), (2.0, 2.0)]]
    """
    parts: list[list[XY]] = [[]]
    for index, (x, y) in enumerate(line):
        if index:
            before_x, before_y = line[index - 1]
            if (before_y < floor) != (y < floor):
                share = (floor - before_y) / (y - before_y)
                parts[-1].append((before_x + share * (x - before_x), floor))
                if y < floor:
                    parts.append([])
        if y >= floor and (not parts[-1] or parts[-1][-1] != (x, y)):
            parts[-1].append((x, y))
    return [part for part in parts if part]


def path(points: Sequence[XY]) -> str:
    """Points as an attribute."""
    return " ".join(f"{number(x)},{number(y)}" for x, y in points)


def polyline(points: Sequence[XY], **attributes: str | float | None) -> Markup:
    """An open line through ``points``."""
    return tag("polyline", points=path(points), fill="none", **attributes)


def marker(shape: int, x: float, y: float, size: float, **attributes: str | float | None) -> Markup:
    """One of four shapes, so that lines differ by more than colour."""
    if shape % 4 == 0:
        return tag("circle", cx=x, cy=y, r=size, **attributes)
    corners = {
        1: [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        2: [(0.0, -1.2), (1.15, 0.9), (-1.15, 0.9)],
        3: [(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)],
    }[shape % 4]
    return tag(
        "polygon", points=path([(x + size * a, y + size * b) for a, b in corners]), **attributes
    )


def png(image: Sequence[Any], scale: int = 1) -> bytes:
    """A PNG of rows of grey values or of (r, g, b), each in [0, 1]; a pixel ``scale`` wide.

    >>> png([[0.0, 1.0]])[:8] == SIGNATURE
    True
    """
    rows = [bytes(_row(row)) for row in image]
    colour = bool(image) and bool(image[0]) and isinstance(image[0][0], list | tuple)
    width = len(rows[0]) // (3 if colour else 1) if rows else 0
    if not width or any(len(row) != len(rows[0]) for row in rows):
        raise InvalidInput("samples[i].image is empty or ragged; allowed: rows of equal length.")
    size = 3 if colour else 1
    pixels = [[row[i : i + size] for i in range(0, len(row), size)] for row in rows]
    lines = [b"\x00" + b"".join(pixel * scale for pixel in row) for row in pixels]
    header = struct.pack(
        ">IIBBBBB", width * scale, len(rows) * scale, 8, 2 if colour else 0, 0, 0, 0
    )
    data = zlib.compress(b"".join(line * scale for line in lines), 9)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _row(row: Any) -> list[int]:
    values: list[int] = []
    for pixel in row if isinstance(row, list | tuple) else ():
        channels = pixel if isinstance(pixel, list | tuple) else [pixel]
        if len(channels) not in (1, 3) or not all(isinstance(c, int | float) for c in channels):
            raise InvalidInput(
                f"samples[i].image holds the pixel {pixel!r}; allowed: a number or three."
            )
        # A value that is not a number compares false and becomes 0.
        values += [round(255 * min(1.0, c)) if c > 0 else 0 for c in channels]
    return values


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


HEIGHT = 300.0
LEFT, TOP, BOTTOM = 50.0, 34.0, 254.0
LABEL_GAP = 17.0
LEAST_GAP = 14.0
"""Where there are many labels they move together so far, and then the chart grows."""
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
    """How a method is drawn everywhere: a colour of the style sheet, a shape, dashes of a line."""

    colour: str
    shape: int
    dashes: str | None = None


FIRST = {
    "rrdu": Look("var(--main)", 0),
    "retrain": Look("var(--oracle)", 2),
    "finetune": Look("var(--other-1)", 1),
    "dpsgd": Look("var(--other-2)", 3),
    "ddp": Look("var(--other-3)", 1),
}
DASHES = (None, "8 6", "1 6", "8 6 1 6", "16 6")
"""Of lines with one colour, in the order in which these were given away."""
FREE = tuple(
    Look(f"var(--other-{colour})", shape, DASHES[turn + (colour < 4)])
    for turn, shape in enumerate((0, 2, 3, 1))
    for colour in (4, 5, 1, 2, 3)
    if Look(f"var(--other-{colour})", shape) not in FIRST.values()
)


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


RUN = Format(WIDTH, 2.0, 3.0, label=12.0, leader=(0.0, 9.0), room=20.0)


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
        full = NARROW if narrow else self.format.width
        texts = [self._label(line, narrow) for line in self.lines]
        right = full - self.format.room - max(text_width(text) for text in texts)
        runs = [*self.shared, *(run for line in self.lines for run in line.runs)]
        hops = [hop for run in runs for hop, _ in run] + [line.end[0] for line in self.lines]
        x = Scale(0.0, max(hops), LEFT, right)
        bottom = max(BOTTOM, TOP + LEAST_GAP * len(self.lines))
        y = Scale(self.low, 100.0, bottom, TOP)
        order = sorted(self.lines, key=lambda line: (line.main, not line.oracle))
        body = [*_axes(x, y), *self._start(x, y, full), *self._reference(y, right)]
        body += [_band(band, x, y, INK) for band in self.shared_bands]
        body += [_band(band, x, y, line.look.colour) for line in order for band in line.bands]
        for run in self.shared:
            body += _stroke(run, x, y, INK, self.format.stroke)
        for line in order:
            width = self.format.main_stroke if line.main else self.format.stroke
            for run in line.runs:
                body += _stroke(run, x, y, line.look.colour, width, line.look.dashes)
        body += self._ends(texts, x, y)
        return picture(
            f"{self.name}-narrow" if narrow else self.name,
            f"{self.title} over hops",
            self.description,
            HEIGHT - BOTTOM + bottom,
            body,
            "chart narrow" if narrow else "chart wide",
            full,
        )

    @staticmethod
    def _label(line: Line, narrow: bool) -> str:
        value = f"{numbers.fixed(line.final)}{numbers.SPACE}%"
        if narrow:
            return value
        room = MOST_LABEL - text_width(" " + value)
        return f"{shorten(line.title, room)} {value}"

    def _start(self, x: Scale, y: Scale, full: float) -> list[Markup]:
        if self.begun is None or not x.low < self.begun < x.high:
            return []
        label, place = f"unlearning starts, hop {self.begun:,}", x(self.begun)
        half = text_width(label) / 2
        middle = min(max(place, half + 4), full - half - 4)
        return [
            tag("line", x1=place, x2=place, y1=TOP - 8, y2=y.start, class_="start"),
            words(label, middle, TOP - 15, text_anchor="middle", class_="start-label"),
        ]

    def _reference(self, y: Scale, right: float) -> list[Markup]:
        """The dashed line of retraining, against which every method is measured."""
        return [
            polyline(
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
        places = spread(finals, LABEL_GAP, TOP, y.start - 4)
        rows = sorted(zip(self.lines, texts, places, strict=True), key=lambda row: row[0].main)
        straight, tip = (x.end + offset for offset in self.format.leader)
        leaders, marks = [], []
        for line, text, place in rows:
            colour, shape, aim = line.look.colour, line.look.shape, y(line.final)
            end = x(line.end[0]), y(line.end[1])
            leader = [(end[0], aim), (straight, aim), (tip, place)]
            leaders.append(polyline(leader, stroke=colour, class_="leader"))
            marks.append(marker(shape, *end, 4.2, fill=colour, class_="end"))
            if line.reported is not None:
                at = x.end + 9, y(line.reported)
                marks.append(marker(shape, *at, 3.8, stroke=colour, class_="paper"))
            at = x.end + self.format.label, place + 4.5
            marks.append(words(text, *at, fill=colour, class_="end-label"))
        return leaders + marks


@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    label: str
    colour: str
    shape: int | None = None
    dashes: str | None = None
    line: bool = True

    def draw(self, x: float, y: float) -> Markup:
        """A piece of the line, 26 wide, from ``x`` on, with its mark; or the mark alone."""
        if self.shape is not None and not self.line:
            return marker(self.shape, x + 13, y, 5.0, fill=self.colour)
        ends, look = [(x, y), (x + 26, y)], {"stroke": self.colour, "stroke_dasharray": self.dashes}
        line = polyline(ends, stroke_width=2.5, **look)
        if self.shape is None:
            return line
        return line + marker(self.shape, x + 13, y, 4.5, fill=self.colour)

    @property
    def swatch(self) -> Markup:
        """The same as a picture of its own."""
        return tag("svg", self.draw(0, 6), viewBox="0 0 26 12", aria_hidden="true")


def _axes(x: Scale, y: Scale) -> Iterator[Markup]:
    for value in ticks(y.low, y.high):
        at, text = y(value), f"{value:g}{numbers.SPACE}%"
        yield tag("line", x1=x.start, x2=x.end, y1=at, y2=at, class_="grid")
        yield words(text, x.start - 7, at + 4.5, text_anchor="end", class_="tick")
    for value in ticks(x.low, x.high, 5):
        at, text = x(value), f"{value:,.0f}"
        yield tag("line", x1=at, x2=at, y1=y.start, y2=y.start + 4, class_="axis")
        yield words(text, at, y.start + 18, text_anchor="middle", class_="tick")
    middle, text = (x.start + x.end) / 2, "hops of the token"
    yield tag("line", x1=x.start, x2=x.end, y1=y.start, y2=y.start, class_="axis")
    yield words(text, middle, y.start + 38, text_anchor="middle", class_="tick")


def _band(edge: Sequence[XY], x: Scale, y: Scale, colour: str) -> Markup:
    points = path([(x(hop), y(value)) for hop, value in edge])
    return tag("polygon", points=points, fill=colour, class_="band")


def _stroke(
    run: Sequence[XY], x: Scale, y: Scale, colour: str, width: float, dashes: str | None = None
) -> Iterator[Markup]:
    """A line, cut where it leaves the plot; a dot where a single point is left."""
    for part in clip_below(run, y.low):
        if len(part) == 1:
            yield tag("circle", cx=x(part[0][0]), cy=y(part[0][1]), r=width, fill=colour)
            continue
        yield polyline(
            [(x(hop), y(value)) for hop, value in part],
            stroke=colour,
            stroke_width=width,
            stroke_dasharray=dashes,
            stroke_linejoin="round",
            stroke_linecap="round",
        )


KNOWN = (
    *("restart", "seal", "rewind", "sisa", "ball-seal", "release"),
    *("noisy-start", "sums", "skip-u", "output-noise", "noisy-finetune", "pga", "neggrad", "scrub"),
    *("salun", "ssd", "newton", "residual", "langevin", "user-dp"),
)
"""Methods in the order of their looks; a new one goes to the end, so that no other one changes."""


def look_of(name: str) -> Look:
    """How a method is drawn, on every page the same; the first 22 of them differ.

    A method that is not known here has a colour by its name.

    >>> look_of("finetune")
    Look(colour='var(--other-1)', shape=1, dashes=None)
    """
    if name in FIRST:
        return FIRST[name]
    if name not in KNOWN:
        return Look(f"var(--other-{zlib.crc32(name.encode()) % OTHERS + 1})", 3)
    return FREE[KNOWN.index(name) % len(FREE)]


def looks(result: Result) -> dict[str, Look]:
    """The look of each method of a page."""
    return {method.name: look_of(method.name) for method in result.methods}


def training(result: Result) -> tuple[Point, ...]:
    """The training part that methods share: the main method's, else the first there is."""
    for method in (result.main, *result.methods):
        points = tuple(p for p in method.series if p.phase == "train")
        if points and not method.oracle:
            return points
    return ()


def averaged(result: Result) -> Result:
    """The result with the mean over seeds of every series, where there are several seeds."""
    means = {s.name: s for s in result.spreads if s.series}
    if result.runs < 2 or not all(m.name in means for m in result.methods):
        return result
    methods = tuple(
        replace(m, series=means[m.name].series, final={**m.final, **means[m.name].mean})
        for m in result.methods
    )
    return replace(result, methods=methods)


def run_chart(result: Result, key: str) -> Chart | None:
    """The chart of one measure of a run; None if nobody measured it.

    Over several seeds lines are means, and bands one standard deviation to either side.
    """
    result = averaged(result)
    shared = training(result)
    lines = [
        line
        for method in result.methods
        if (line := _line(result, method, key, shared)) is not None
    ]
    if not lines:
        return None
    title, meaning = titled(result, key)
    first = next((m for m in (result.main, *result.methods) if not m.oracle), None)
    trained = [] if first is None else [p for p in _deviating(result, first) if p.phase == "train"]
    return Chart(
        name=f"chart-{key}",
        title=title,
        description=f"{meaning}. {_spoken(result, key, lines)}",
        lines=tuple(lines),
        shared=_pieces(shared, key),
        low=axis_floor(key, lines),
        begun=result.start,
        shared_bands=_outline(trained, key) if shared else (),
    )


def titled(result: Result, key: str) -> tuple[str, str]:
    """The title of a measure's chart, and what the measure is."""
    title, meaning = MEASURES[key]
    if result.task.predicts == "class":
        return title, meaning
    _, _, whose = meaning.partition("of ")
    records = whose.partition(" answered")[0]
    return result.task.scored(title), result.task.scored(f"accuracy on {records}")


def _line(result: Result, method: Method, key: str, shared: tuple[Point, ...]) -> Line | None:
    """A method's line, without the training that it shares."""
    points, deviating = list(method.series), _deviating(result, method)
    own = tuple(p for p in points if p.phase == "train")
    if shared and not method.oracle and own in (shared, ()):
        points = [shared[-1], *(p for p in points if p.phase != "train")]
        deviating = [p for p in deviating if p.phase != "train" or p.hop == shared[-1].hop]
    runs = _pieces(points, key)
    if key in method.final:
        final = 100 * method.final[key]
    elif runs:
        final = runs[-1][-1][1]
    else:
        return None
    last = points[-1].hop if points else result.train_hops or 0
    end = runs[-1][-1] if runs else (float(last), final)
    look, main = look_of(method.name), method is result.main
    bands = _outline(deviating, key)
    return Line(method.title, look, runs, end, final, main, method.oracle, bands)


def _deviating(result: Result, method: Method) -> list[Deviating]:
    """The points of a method with their deviation over seeds; none where there is one seed."""
    spread = next((s for s in result.spreads if s.name == method.name), None)
    if spread is None or result.runs < 2:
        return []
    pairs = zip(spread.series, spread.deviations, strict=True)
    return [Deviating(p.hop, p.phase, p.values, d.values) for p, d in pairs]


class Deviating(NamedTuple):
    """The means at one hop, and the standard deviations."""

    hop: int
    phase: str
    mean: Values
    std: Values


def _outline(points: Sequence[Deviating], key: str) -> Runs:
    """The outline of one standard deviation to either side of the mean."""
    stride = max(1, math.ceil(len(points) / MOST_POINTS))
    kept = [p for i, p in enumerate(points) if i % stride == 0 or i == len(points) - 1]
    known = [(float(p.hop), 100 * p.mean[key], 100 * p.std[key]) for p in kept if key in p.std]
    if len(known) < 2:
        return ()
    above = [(hop, mean + std) for hop, mean, std in known]
    return ((*above, *((hop, mean - std) for hop, mean, std in reversed(known))),)


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
    return low if low >= 40 or low < -10 else 0.0  # R² may be below zero


def _spoken(result: Result, key: str, lines: Sequence[Line]) -> str:
    """A description of the chart in words."""
    before = result.before.get(key)
    parts = [] if before is None else [f"before unlearning {numbers.percent(before)}"]
    labels = {method.title: method.label for method in result.methods}
    for line in lines:
        end = f"{numbers.fixed(line.final)}{numbers.SPACE}%"
        parts.append(f"{labels[line.title]} ends at {end}")
    return "; ".join(parts) + "."


MOST_DRAWN = 60
MOST_BARS = 100
MOST_CELLS = 1000
GRAPH_HEIGHT = 374.0
CENTRE: XY = (WIDTH / 2, 192.0)
RADIUS = 136.0
CROWDED = 12
"""From this many peers on a circle, names of neighbours leave no room for a long one."""

NAMES = {"train": "Training", "unlearn": "Unlearning", "retrain": "Retraining"}

Pair = tuple[int, int]


@dataclass(frozen=True)
class Stretch:
    """The hops of one phase: who was visited, and over which edges the token went."""

    index: int
    phase: str
    visits: tuple[Visit, ...]
    crossings: Counter[Pair]

    @property
    def name(self) -> str:
        return NAMES.get(self.phase, self.phase or "Walk")

    @property
    def counts(self) -> Counter[int]:
        return Counter(v.receiver for v in self.visits)


def stretches(walk: Sequence[Visit]) -> list[Stretch]:
    """The walk cut by phase, in order; edges are counted along the whole path of each hop."""
    order: dict[str, tuple[list[Visit], Counter[Pair]]] = {}
    at: int | None = None
    for visit in walk:
        visits, crossings = order.setdefault(visit.phase, ([], Counter()))
        visits.append(visit)
        for peer in visit.path:
            if at is not None and at != peer:
                crossings[min(at, peer), max(at, peer)] += 1
            at = peer
        at = visit.receiver
    return [Stretch(i, p, tuple(v), c) for i, (p, (v, c)) in enumerate(order.items())]


def layout(result: Result) -> list[XY]:
    """Where each peer stands: a grid for a torus, a hub in a circle for a star, else a circle.

    The peer that asks to forget stands at the top of the circle.
    """
    peers, edges = result.task.peers, result.edges or ()
    if result.graph == "torus":
        rows, columns = torus_shape(peers, edges)
        x = Scale(0, max(1, columns - 1), 70, WIDTH - 70)
        y = Scale(0, max(1, rows - 1), 60, GRAPH_HEIGHT - 60)
        return [(x(peer % columns), y(peer // columns)) for peer in range(peers)]
    degrees = Counter(peer for edge in edges for peer in edge)
    hub = degrees.most_common(1)[0][0] if result.graph == "star" and degrees else None
    first = result.task.unlearner or 0
    turned = [(first + i) % peers for i in range(peers)]
    rim = [peer for peer in turned if peer != hub]
    places = [CENTRE] * peers
    for index, peer in enumerate(rim):
        angle = 2 * math.pi * index / len(rim) - math.pi / 2
        radius = 0.0 if peers == 1 else RADIUS
        places[peer] = (CENTRE[0] + radius * math.cos(angle), CENTRE[1] + radius * math.sin(angle))
    return places


def torus_shape(peers: int, edges: Sequence[Pair]) -> Pair:
    """Rows and columns of a torus whose peers are numbered row by row.

    Of all shapes that have only edges of the graph the squarest is taken.

    >>> torus_shape(6, [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (0, 3), (1, 4), (2, 5)])
    (2, 3)
    """
    shapes = [(r, peers // r) for r in range(1, peers + 1) if peers % r == 0]
    shapes.sort(key=lambda shape: abs(shape[0] - shape[1]))
    known = {frozenset(edge) for edge in edges}

    def fits(rows: int, columns: int) -> bool:
        beside = ((p, p - p % columns + (p + 1) % columns) for p in range(peers))
        below = ((p, (p + columns) % peers) for p in range(peers))
        wanted = {frozenset(pair) for pair in (*beside, *below) if pair[0] != pair[1]}
        return wanted == known

    return next((shape for shape in shapes if fits(*shape)), shapes[0] if shapes else (1, 1))


def graph_picture(result: Result, stretch: Stretch, busiest: float) -> Markup:
    """Peers sized by their share of this phase's visits, edges by how often the token crossed.

    ``busiest`` is the largest share in any phase, so that pictures can be compared.
    """
    places = layout(result)
    body = [e for pair in result.edges or () for e in _edge(result, places, pair, "base", 1.0, 1.0)]
    most = max([5, *stretch.crossings.values()])
    for pair, count in sorted(stretch.crossings.items(), key=lambda item: item[1]):
        share = count / most
        kind = "walked to" if result.task.unlearner in pair else "walked"
        body += _edge(result, places, pair, kind, 0.15 + 0.75 * share, 0.8 + 3.2 * share)
    body += _nodes(result, stretch, places, busiest)
    counts, hops = stretch.counts, len(stretch.visits)
    u = result.task.unlearner
    spoken = f"{result.graph or 'the'} graph of {numbers.counted(len(places), 'peer')}. "
    if u is not None:
        spoken += f"Peer {u}, which asks to forget, had {counts[u]} of {hops} visits."
    title = f"{stretch.name}: visits of the token on the graph"
    return picture(f"graph-{stretch.index}", title, spoken, GRAPH_HEIGHT, body, "graph")


def _edge(
    result: Result, places: Sequence[XY], pair: Pair, kind: str, opacity: float, width: float
) -> list[Markup]:
    """The line between two peers; on a torus, two ends that leave the picture where it wraps."""
    if max(pair) >= len(places) or min(pair) < 0:
        return []
    (x1, y1), (x2, y2) = places[pair[0]], places[pair[1]]
    lines = [(x1, y1, x2, y2)]
    if result.graph == "torus":
        steps = sorted({round(p[0]) for p in places}), sorted({round(p[1]) for p in places})
        wide = len(steps[0]) > 2 and abs(x1 - x2) > 1.5 * (steps[0][1] - steps[0][0])
        tall = len(steps[1]) > 2 and abs(y1 - y2) > 1.5 * (steps[1][1] - steps[1][0])
        if wide or tall:
            lines = [
                (
                    x,
                    y,
                    x + (_away(x, CENTRE[0]) if wide else 0),
                    y + (_away(y, CENTRE[1]) if tall else 0),
                )
                for x, y in ((x1, y1), (x2, y2))
            ]
    look = {"stroke_opacity": opacity, "stroke_width": width}
    return [tag("line", x1=a, y1=b, x2=c, y2=d, class_=kind, **look) for a, b, c, d in lines]


def _away(value: float, centre: float) -> float:
    return 34.0 if value > centre else -34.0


def _nodes(result: Result, stretch: Stretch, places: Sequence[XY], busiest: float) -> list[Markup]:
    counts, hops = stretch.counts, max(1, len(stretch.visits))
    pairs = combinations(places, 2)
    near = min((math.dist(a, b) for a, b in pairs), default=100.0)
    largest = max(4.5, min(20.0, 0.42 * near))
    size = FONT if near > 20 else 10.0
    body = []
    for peer, (x, y) in enumerate(places):
        u = peer == result.task.unlearner
        radius = 3.0 + (largest - 3.0) * math.sqrt(counts[peer] / hops / busiest)
        body.append(
            tag(
                "circle",
                tag("title", f"peer {peer}: {numbers.counted(counts[peer], 'visit')}"),
                cx=x,
                cy=y,
                r=radius,
                class_="peer unlearner" if u else "peer",
            )
        )
        body.append(_name(result, peer, (x, y), radius, size, counts[peer] if u else None))
    return body


def _name(
    result: Result, peer: int, at: XY, radius: float, size: float, visits: int | None
) -> Markup:
    """The peer's number beside its node, away from the centre; the unlearner with its visits."""
    text = str(peer)
    kind = "peer-name" if visits is None else "peer-name unlearner"
    kind += " roomy" if size == FONT else ""
    across, down = at[0] - CENTRE[0], at[1] - CENTRE[1]
    if result.graph == "torus":
        across, down = 1.0, 1.0
    elif visits is not None:
        text = f"peer {peer}: {numbers.counted(visits, 'visit')}"
    length = math.hypot(across, down)
    if length < 1:
        across, down, length = 0.0, 1.0, 1.0
    off = radius + (1.9 if visits is not None and result.task.peers > CROWDED else 0.8) * size
    half = text_width(text, size) / 2
    aside = 0.0 if abs(across) < 0.35 * length else math.copysign(half - 0.3 * size, across)
    x = min(max(at[0] + off * across / length + aside, half + 2), WIDTH - half - 2)
    y = at[1] + off * down / length + 0.35 * size
    return words(text, x, y, text_anchor="middle", class_=kind, font_size=size)


def histogram(result: Result, stretch: Stretch) -> Markup:
    """Visits by peer where there are too many peers to draw; neighbours share a bar if needed."""
    peers, u = result.task.peers, result.task.unlearner
    each = math.ceil(peers / MOST_BARS)
    counts = stretch.counts
    bars = Counter[int]()
    for peer, count in counts.items():
        bars[peer // each] += count
    top, bottom, left, right = 30.0, 180.0, 44.0, WIDTH - 12
    x = Scale(0, math.ceil(peers / each), left, right)
    y = Scale(0, max(bars.values(), default=1), bottom, top)
    body = []
    for value in ticks(0, y.high, 4):
        if value == int(value):
            body.append(tag("line", x1=left, x2=right, y1=y(value), y2=y(value), class_="grid"))
            body.append(
                words(f"{value:,.0f}", left - 7, y(value) + 4.5, text_anchor="end", class_="tick")
            )
    for bar, count in sorted(bars.items()):
        own = counts[u] if u is not None and u // each == bar else 0
        width = max(1.0, x(bar + 1) - x(bar) - 0.8)
        for low, high, kind in ((0, own, "bar unlearner"), (own, count, "bar")):
            if high > low:
                body.append(
                    tag(
                        "rect",
                        x=x(bar),
                        y=y(high),
                        width=width,
                        height=y(low) - y(high),
                        class_=kind,
                    )
                )
    for value in ticks(0, peers - 1, 5):
        body.append(
            words(
                f"{value:,.0f}",
                x((value + 0.5) / each),
                bottom + 18,
                text_anchor="middle",
                class_="tick",
            )
        )
    unit = "peer" if each == 1 else f"peers, {each:,} to a bar"
    body.append(words(unit, (left + right) / 2, bottom + 38, text_anchor="middle", class_="tick"))
    spoken = f"{len(counts):,} of {peers:,} peers were visited."
    if u is not None:
        label = f"peer {u}: {numbers.counted(counts[u], 'visit')}"
        half = text_width(label) / 2
        middle = min(max(x(u // each + 0.5), half + 4), WIDTH - half - 4)
        body.append(
            words(label, middle, top - 12, text_anchor="middle", class_="peer-name unlearner")
        )
        spoken += (
            f" Peer {u}, which asks to forget, had {counts[u]} of {len(stretch.visits)} visits."
        )
    title = f"{stretch.name}: visits by peer"
    return picture(f"graph-{stretch.index}", title, spoken, bottom + 46, body, "graph")


def strip(result: Result, stretch: Stretch) -> Markup:
    """Every hop as a cell, row by row; tall and coloured where the token was at the unlearner."""
    hops = stretch.visits
    each = math.ceil(len(hops) / MOST_CELLS)
    cells = [hops[i : i + each] for i in range(0, len(hops), each)]
    row = next((r for r in (25, 50, 100) if len(cells) / r <= 8), 100)
    left = 8 + text_width(f"{hops[-1].hop:,}", 14)
    step, pitch = (WIDTH - left - 2) / row, 18.0
    body = []
    for index, cell in enumerate(cells):
        x, y = left + index % row * step, index // row * pitch
        if index % row == 0:
            body.append(
                words(
                    f"{cell[0].hop:,}",
                    left - 5,
                    y + 13,
                    text_anchor="end",
                    class_="tick",
                )
            )
        share = sum(v.receiver == result.task.unlearner for v in cell) / len(cell)
        height = 14.0 if share else 5.0
        body.append(
            tag(
                "rect",
                x=x,
                y=y + 16 - height,
                width=0.82 * step,
                height=height,
                class_="cell unlearner" if share else "cell",
                fill_opacity=0.35 + 0.65 * share if share else None,
            )
        )
    height = math.ceil(len(cells) / row) * pitch + 2
    at = sum(v.receiver == result.task.unlearner for v in hops)
    spoken = f"{numbers.counted(len(hops), 'hop')}, {at} of them at the peer that asks to forget."
    title = f"{stretch.name}, hop by hop"
    return picture(f"strip-{stretch.index}", title, spoken, height, body, "strip")
