"""Draws what forgetting costs in accuracy: every method by its two gaps to retraining.

Across goes the gap in clean accuracy, up the gap in forgetting; retraining is where both are 0.
The area of a mark is the method's cost in gradient evaluations, its colour and shape the grade of
what is guaranteed.  Gaps spread over two orders of magnitude, so axes are linear near 0 and
logarithmic beyond.  Names stand in a column of their own, where none covers another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from unwalk.core.grades import SHOWN
from unwalk.reports import numbers
from unwalk.reports.charts import (
    NARROW,
    XY,
    Scale,
    marker,
    picture,
    polyline,
    shorten,
    spread,
    tag,
    text_width,
    words,
)
from unwalk.reports.result import Result, Spread
from unwalk.reports.svg_file import placed, svg_file

WIDE = 580.0
LEFT, TOP, FOOT = 46.0, 28.0, 46.0
LEAST_HEIGHT = 240.0
LABEL_GAP = 16.0
LEADER = 26.0
LABEL = {WIDE: 165.0, NARROW: 100.0}
"""Room for a name, by the width of the picture."""
SIZES = (4.0, 17.0)
"""Radii of a mark without cost and of the most expensive one; between them the area counts."""
TICKS = tuple(sign * value for value in (10, 1, 100, 3, 30) for sign in (1, -1))
"""Ticks in the order in which they are drawn, where they have room."""
ROOM = {"x": 30.0, "y": 20.0}

LOOKS = {
    "exact": ("var(--right)", 0),
    "certified": ("var(--right)", 3),
    "rehearsal": ("var(--soft)", 3),
    "nominal": ("var(--other-1)", 2),
    "refused": ("var(--wrong)", 1),
    "nothing": ("var(--soft)", 1),
}
"""Colour and shape of a grade, from the strongest to the weakest."""


class Dot(NamedTuple):
    """A method: its gaps in points, its cost, the weakest grade that its seeds have.

    ``best`` says that no other method is nearer to retraining in forgetting without being farther
    in accuracy.
    """

    title: str
    accuracy: float
    forgetting: float
    cost: float
    grade: str
    best: bool = False


def bent(value: float) -> float:
    """Linear near 0, logarithmic beyond a point.

    >>> round(bent(0.01), 4), round(bent(-100.0), 4)
    (0.01, -5.2983)
    """
    return math.asinh(value)


def dots_of(result: Result, forgetting: str) -> list[Dot]:
    """Every method of a comparison that has both gaps; retraining is at their origin."""
    dots: list[Dot] = []
    for found in result.spreads:
        gap, cost = _means(found, "gap."), _means(found, "cost.")
        if "clean" not in gap or forgetting not in gap:
            continue
        dots.append(
            Dot(
                numbers.sentence(found.label),
                100 * gap["clean"],
                100 * gap[forgetting],
                cost.get("gradients", 0.0),
                next((g for g in reversed(LOOKS) if g in found.grade.split(" or ")), "nothing"),
            )
        )
    return [dot._replace(best=not any(_beats(other, dot) for other in dots)) for dot in dots]


def _means(found: Spread, prefix: str) -> dict[str, float]:
    return {k.removeprefix(prefix): v for k, v in found.mean.items() if k.startswith(prefix)}


def _beats(one: Dot, other: Dot) -> bool:
    """Whether ``one`` is nearer in forgetting and no less accurate, or the other way round."""
    ours, theirs = (abs(one.forgetting), -one.accuracy), (abs(other.forgetting), -other.accuracy)
    return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))


@dataclass(frozen=True)
class Pareto:
    """The picture, ready to be drawn; ``before`` is the model before forgetting."""

    dots: Sequence[Dot]
    before: Dot | None
    forgetting: str

    @property
    def grades(self) -> list[str]:
        """The grades that occur, from the strongest on."""
        return [grade for grade in LOOKS if any(dot.grade == grade for dot in self.dots)]

    def height(self) -> float:
        """Room for all names below each other."""
        shown = len(self.dots) + (self.before is not None)
        return TOP + max(LEAST_HEIGHT, LABEL_GAP * (shown + 1)) + FOOT

    def draw(self, *, narrow: bool = False) -> Markup:
        """The picture; a narrow one is for phones and paper."""
        width, height = NARROW if narrow else WIDE, self.height()
        shown = [*self.dots, *([] if self.before is None else [self.before])]
        right, bottom = width - LABEL[width] - LEADER, height - FOOT
        x = _scale([dot.accuracy for dot in shown], LEFT, right)
        y = _scale([dot.forgetting for dot in shown], bottom, TOP)
        body = [*_axes(x, y, self.forgetting, narrow=narrow)]
        most = max([dot.cost for dot in self.dots] + [1.0])
        at = [(x(bent(dot.accuracy)), y(bent(dot.forgetting))) for dot in shown]
        body += self._leaders(shown, at, width)
        order = sorted(zip(shown, at, strict=True), key=lambda pair: -pair[0].cost)
        body += [self._mark(dot, place, most) for dot, place in order]
        return picture(
            "pareto-narrow" if narrow else "pareto",
            "Forgetting against accuracy",
            self.spoken(),
            height,
            body,
            "chart narrow" if narrow else "chart wide",
            width,
        )

    def spoken(self) -> str:
        """The picture in words."""
        told = [
            f"{dot.title}: accuracy {numbers.points(dot.accuracy / 100)}, {self.forgetting} "
            f"{numbers.points(dot.forgetting / 100)} points, {SHOWN[dot.grade].name}"
            for dot in self.dots
        ]
        return f"Differences to retraining. {'; '.join(told)}."

    def _mark(self, dot: Dot, at: XY, most: float) -> Markup:
        low, high = SIZES
        if dot is self.before:
            return marker(0, *at, low, fill="none", stroke="var(--ink)", stroke_width=1.8)
        colour, shape = LOOKS[dot.grade]
        radius = math.sqrt(low**2 + (high**2 - low**2) * dot.cost / most)
        size = radius * (0.85 if shape else 1.0)
        return marker(shape, *at, size, fill=colour, fill_opacity=0.5, stroke=colour)

    def _leaders(self, shown: Sequence[Dot], at: Sequence[XY], width: float) -> Iterator[Markup]:
        """A line from every mark to its name at the right."""
        edge = width - LABEL[width]
        order = sorted(range(len(shown)), key=lambda i: (at[i][1], -at[i][0]))
        wanted = [at[i][1] + 1e-6 * place for place, i in enumerate(order)]
        bottom = self.height() - FOOT
        for i, place in zip(order, spread(wanted, LABEL_GAP, TOP + 4, bottom - 4), strict=True):
            dot = shown[i]
            colour = LOOKS[dot.grade][0]
            colour = "var(--ink)" if dot is self.before else colour
            points = [at[i], (edge - LEADER + 8, place), (edge - 3, place)]
            yield polyline(points, stroke=colour, class_="leader")
            text = shorten(dot.title, LABEL[width] - 4)
            bold = "680" if dot.best else None
            yield words(text, edge, place + 4.5, fill=colour, class_="end-label", font_weight=bold)

    def svg(self, heading: str) -> str:
        """The picture as a file of its own."""
        margin, head = 16.0, 34.0
        height = self.height()
        body = [
            words(heading, margin, 24.0, class_="heading"),
            placed(self.draw(), margin, head, WIDE, height),
        ]
        x, at = margin + 8, head + height + 12
        for grade in self.grades:
            colour, shape = LOOKS[grade]
            body.append(marker(shape, x, at, 5.0, fill=colour))
            body.append(words(SHOWN[grade].name, x + 12, at + 4.5, class_="key"))
            x += 12 + text_width(SHOWN[grade].name) + 22
        return svg_file(body, max(WIDE + 2 * margin, x), at + 18, "run")


def _scale(values: Sequence[float], start: float, end: float) -> Scale:
    """An axis on which all values and 0 have some room around them."""
    low, high = bent(min(0.0, *values)), bent(max(0.0, *values))
    edge = 0.35 + 0.04 * (high - low)
    return Scale(low - edge, high + edge, start, end)


def _ticks(axis: Scale, room: float) -> list[float]:
    """0 and those of :data:`TICKS` that are on the axis and have room."""
    kept = [0.0]
    for value in TICKS:
        if axis.low <= bent(value) <= axis.high and all(
            abs(axis(bent(value)) - axis(bent(other))) >= room for other in kept
        ):
            kept.append(float(value))
    return kept


def _axes(x: Scale, y: Scale, forgetting: str, *, narrow: bool) -> Iterator[Markup]:
    for value in _ticks(y, ROOM["y"]):
        at, kind = y(bent(value)), "grid" if value else "axis"
        yield tag("line", x1=x.start, x2=x.end, y1=at, y2=at, class_=kind)
        yield words(_signed(value), x.start - 7, at + 4.5, text_anchor="end", class_="tick")
    for value in _ticks(x, ROOM["x"]):
        at, kind = x(bent(value)), "grid" if value else "axis"
        yield tag("line", x1=at, x2=at, y1=y.start, y2=y.end, class_=kind)
        yield words(_signed(value), at, y.start + 18, text_anchor="middle", class_="tick")
    unit = "points" if narrow else "points to retraining"
    middle = (x.start + x.end) / 2
    yield words(f"accuracy, {unit}", middle, y.start + 37, text_anchor="middle", class_="tick")
    yield words(f"{forgetting}, {unit}", 4, 14, class_="tick")


def _signed(value: float) -> str:
    return f"{value:+g}".replace("-", numbers.MINUS) if value else "0"


def pareto(result: Result, forgetting: str, title: str) -> Pareto | None:
    """The picture of a comparison; None without retraining or with fewer than two others.

    ``forgetting`` is the measure, ``title`` what it is called.
    """
    dots = dots_of(result, forgetting)
    if result.oracle is None or len(dots) < 3:
        return None
    before = None
    gap = {} if result.spread_before is None else _means(result.spread_before, "gap.")
    if "clean" in gap and forgetting in gap:
        at = 100 * gap["clean"], 100 * gap[forgetting]
        before = Dot("Before forgetting", *at, 0.0, "nothing")
    return Pareto(dots, before, title)
