"""One measure over hops: all methods, the start of unlearning, retraining as the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unwalk.reports import numbers, svg
from unwalk.reports.result import Method, Point, Result
from unwalk.reports.svg import XY, Scale

HEIGHT = 300.0
LEFT, TOP, BOTTOM = 50.0, 34.0, 254.0
LABEL_GAP = 17.0
MOST_LABEL = 165.0
MOST_POINTS = 2000
OTHERS = 5

MEASURES = {
    "clean": ("Clean accuracy", "share of test records answered right"),
    "asr": ("Attack success rate", "share of triggered records answered with the target class"),
    "forget": ("Forget accuracy", "share of the forgotten records answered with their label"),
    "retain": ("Retain accuracy", "share of the remaining records answered right"),
}


@dataclass(frozen=True)
class Look:
    """How a method is drawn everywhere: a colour of the style sheet and a shape."""

    colour: str
    shape: int


@dataclass(frozen=True)
class Curve:
    """One method's lines in data units, broken where values are missing, and where they end."""

    method: Method
    look: Look
    lines: tuple[tuple[XY, ...], ...]
    end: XY
    final: float


def looks(result: Result) -> dict[str, Look]:
    """Main method, retraining and the others, told apart by colour and by shape."""
    found: dict[str, Look] = {}
    others = 0
    for method in result.methods:
        if method is result.main:
            found[method.name] = Look("var(--main)", 0)
        elif method.oracle:
            found[method.name] = Look("var(--oracle)", 2)
        else:
            found[method.name] = Look(f"var(--other-{others % OTHERS + 1})", (1, 3)[others % 2])
            others += 1
    return found


def training(result: Result) -> tuple[Point, ...]:
    """The training part that methods share: the main method's, else the first there is."""
    for method in (result.main, *result.methods):
        points = tuple(p for p in method.series if p.phase == "train")
        if points and not method.oracle:
            return points
    return ()


def curves(result: Result, key: str) -> list[Curve]:
    """Every method that has a value of ``key``; a shared training part is left out."""
    shared = training(result)
    found = []
    for method in result.methods:
        points = list(method.series)
        own = tuple(p for p in points if p.phase == "train")
        if shared and not method.oracle and own in (shared, ()):
            points = [shared[-1], *(p for p in points if p.phase != "train")]
        lines = broken(points, key)
        final = method.final.get(key, lines[-1][-1][1] if lines else None)
        if final is None:
            continue
        last = points[-1].hop if points else result.train_hops or 0
        end = lines[-1][-1] if lines else (float(last), final)
        found.append(Curve(method, looks(result)[method.name], tuple(lines), end, final))
    return found


def broken(points: Sequence[Point], key: str) -> list[tuple[XY, ...]]:
    """Lines through the points that have a value, broken where one is missing."""
    stride = max(1, math.ceil(len(points) / MOST_POINTS))
    kept = [p for i, p in enumerate(points) if i % stride == 0 or i == len(points) - 1]
    lines: list[list[XY]] = [[]]
    for point in kept:
        if key in point.values:
            lines[-1].append((float(point.hop), point.values[key]))
        elif lines[-1]:
            lines.append([])
    return [tuple(line) for line in lines if line]


def axis_floor(key: str, found: Sequence[Curve]) -> float:
    """Where the vertical axis starts: zero, unless all that matters happens far above it."""
    if key == "asr":
        return 0.0
    kept = [c.final for c in found]
    kept += [y for c in found if not c.method.oracle for line in c.lines for _, y in line]
    low = math.floor((min(kept) - 0.02) * 10) / 10
    return low if low >= 0.4 else 0.0


def line_chart(result: Result, key: str, *, narrow: bool = False) -> str:
    """The chart of one measure, or an empty string if nobody measured it.

    A narrow chart, for phones and paper, has values without names at the ends of its lines.
    """
    found = curves(result, key)
    if not found:
        return ""
    shared = broken(training(result), key)
    floor = axis_floor(key, found)
    full = svg.NARROW if narrow else svg.WIDTH
    labels = [numbers.percent(c.final) for c in found] if narrow else end_labels(found)
    right = full - 20 - max(svg.text_width(label) for label in labels)
    drawn_lines = [*shared, *(line for c in found for line in c.lines)]
    hops = [hop for line in drawn_lines for hop, _ in line] + [c.end[0] for c in found]
    x = Scale(0.0, max(hops), LEFT, right)
    y = Scale(floor, 1.0, BOTTOM, TOP)
    drawn = sorted(found, key=lambda c: (c.method is result.main, not c.method.oracle))
    body = [
        *_axes(x, y),
        *_start(result, x, full),
        *_reference(found, y, right),
        *(_line(part, x, y, floor, "var(--ink)", 2.0) for part in shared),
    ]
    for curve in drawn:
        width = 3.0 if curve.method is result.main else 2.0
        body += [_line(part, x, y, floor, curve.look.colour, width) for part in curve.lines]
    body += _ends(found, labels, x, y, right)
    title, meaning = MEASURES[key]
    return svg.picture(
        f"chart-{key}-narrow" if narrow else f"chart-{key}",
        f"{title} over hops",
        f"{meaning}. {spoken(result, key)}",
        HEIGHT,
        body,
        "chart narrow" if narrow else "chart wide",
        full,
    )


def spoken(result: Result, key: str) -> str:
    """What the chart says, in words."""
    before = result.before.get(key)
    start = [] if before is None else [f"before unlearning {numbers.percent(before)}"]
    ends = [f"{c.method.label} ends at {numbers.percent(c.final)}" for c in curves(result, key)]
    return "; ".join(start + ends) + "."


def end_labels(found: Sequence[Curve]) -> list[str]:
    """Name and final value of each curve, cut to the room there is."""
    labels = []
    for curve in found:
        value = numbers.percent(curve.final)
        name = svg.shorten(curve.method.title, MOST_LABEL - svg.text_width(" " + value))
        labels.append(f"{name} {value}")
    return labels


def _axes(x: Scale, y: Scale) -> list[str]:
    body = []
    for value in svg.ticks(100 * y.low, 100 * y.high):
        place = y(value / 100)
        body.append(svg.tag("line", x1=x.start, x2=x.end, y1=place, y2=place, class_="grid"))
        body.append(
            svg.words(
                f"{value:.0f}{numbers.SPACE}%",
                x.start - 7,
                place + 4.5,
                text_anchor="end",
                class_="tick",
            )
        )
    for value in svg.ticks(x.low, x.high, 5):
        place = x(value)
        body.append(svg.tag("line", x1=place, x2=place, y1=BOTTOM, y2=BOTTOM + 4, class_="axis"))
        body.append(
            svg.words(f"{value:,.0f}", place, BOTTOM + 18, text_anchor="middle", class_="tick")
        )
    body.append(svg.tag("line", x1=x.start, x2=x.end, y1=BOTTOM, y2=BOTTOM, class_="axis"))
    body.append(
        svg.words(
            "hops of the token",
            (x.start + x.end) / 2,
            HEIGHT - 8,
            text_anchor="middle",
            class_="tick",
        )
    )
    return body


def _start(result: Result, x: Scale, full: float) -> list[str]:
    hop = result.start
    if hop is None or not x.low < hop < x.high:
        return []
    label = f"unlearning starts, hop {hop:,}"
    half = svg.text_width(label) / 2
    middle = min(max(x(hop), half + 4), full - half - 4)
    place = x(hop)
    return [
        svg.tag("line", x1=place, x2=place, y1=TOP - 8, y2=BOTTOM, class_="start"),
        svg.words(label, middle, TOP - 15, text_anchor="middle", class_="start-label"),
    ]


def _reference(found: Sequence[Curve], y: Scale, right: float) -> list[str]:
    return [
        svg.tag(
            "line",
            x1=LEFT,
            x2=right,
            y1=y(c.final),
            y2=y(c.final),
            stroke=c.look.colour,
            stroke_width=1.5,
            stroke_dasharray="5 4",
            class_="reference",
        )
        for c in found
        if c.method.oracle and len(found) > 1
    ]


def _line(points: Sequence[XY], x: Scale, y: Scale, floor: float, colour: str, width: float) -> str:
    parts = svg.clip_below(points, floor)
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


def _ends(
    found: Sequence[Curve], labels: Sequence[str], x: Scale, y: Scale, right: float
) -> list[str]:
    places = svg.spread([y(c.final) for c in found], LABEL_GAP, TOP, BOTTOM - 4)
    body = []
    rows = sorted(zip(found, labels, places, strict=True), key=lambda row: row[0].look.shape == 0)
    for curve, label, place in rows:
        end = (x(curve.end[0]), y(curve.end[1]))
        aim = y(curve.final)
        leader = [(end[0], aim), (right, aim), (right + 9, place)]
        body.append(svg.polyline(leader, stroke=curve.look.colour, class_="leader"))
        body.append(svg.marker(curve.look.shape, *end, 4.2, fill=curve.look.colour, class_="end"))
        body.append(
            svg.words(label, right + 12, place + 4.5, fill=curve.look.colour, class_="end-label")
        )
    return body
