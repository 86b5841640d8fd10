"""Draws SVG elements: scales, ticks, labels that do not overlap, and PNG images.

Colours are never written into a picture: shapes carry a ``var(--name)`` that the page's style
sheet fills in for light, dark and paper.  All text and every attribute is escaped here.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from unwalk.core.errors import InvalidInput

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


def shorten(text: str, width: float, size: float = FONT) -> str:
    """``text`` cut with an ellipsis so that it fits ``width``.

    >>> shorten("abcdefghij", 5 * 13 * 0.58)
    'abcd…'
    """
    most = max(1, int(width / (size * CHARACTER)))
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
