"""Draws the walk on its graph and hop by hop.

Up to :data:`MOST_DRAWN` peers the graph itself is drawn; beyond that a histogram of visits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from markupsafe import Markup

from unwalk.reports import drawing, numbers
from unwalk.reports.drawing import WIDTH, XY, Scale
from unwalk.reports.result import Result, Visit

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
    return drawing.picture(f"graph-{stretch.index}", title, spoken, GRAPH_HEIGHT, body, "graph")


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
    return [
        drawing.tag("line", x1=a, y1=b, x2=c, y2=d, class_=kind, **look) for a, b, c, d in lines
    ]


def _away(value: float, centre: float) -> float:
    return 34.0 if value > centre else -34.0


def _nodes(result: Result, stretch: Stretch, places: Sequence[XY], busiest: float) -> list[Markup]:
    counts, hops = stretch.counts, max(1, len(stretch.visits))
    pairs = combinations(places, 2)
    near = min((math.dist(a, b) for a, b in pairs), default=100.0)
    largest = max(4.5, min(20.0, 0.42 * near))
    size = drawing.FONT if near > 20 else 10.0
    body = []
    for peer, (x, y) in enumerate(places):
        u = peer == result.task.unlearner
        radius = 3.0 + (largest - 3.0) * math.sqrt(counts[peer] / hops / busiest)
        body.append(
            drawing.tag(
                "circle",
                drawing.tag("title", f"peer {peer}: {numbers.counted(counts[peer], 'visit')}"),
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
    kind += " roomy" if size == drawing.FONT else ""
    across, down = at[0] - CENTRE[0], at[1] - CENTRE[1]
    if result.graph == "torus":
        across, down = 1.0, 1.0
    elif visits is not None:
        text = f"peer {peer}: {numbers.counted(visits, 'visit')}"
    length = math.hypot(across, down)
    if length < 1:
        across, down, length = 0.0, 1.0, 1.0
    off = radius + (1.9 if visits is not None and result.task.peers > CROWDED else 0.8) * size
    half = drawing.text_width(text, size) / 2
    aside = 0.0 if abs(across) < 0.35 * length else math.copysign(half - 0.3 * size, across)
    x = min(max(at[0] + off * across / length + aside, half + 2), WIDTH - half - 2)
    y = at[1] + off * down / length + 0.35 * size
    return drawing.words(text, x, y, text_anchor="middle", class_=kind, font_size=size)


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
    for value in drawing.ticks(0, y.high, 4):
        if value == int(value):
            body.append(
                drawing.tag("line", x1=left, x2=right, y1=y(value), y2=y(value), class_="grid")
            )
            body.append(
                drawing.words(
                    f"{value:,.0f}", left - 7, y(value) + 4.5, text_anchor="end", class_="tick"
                )
            )
    for bar, count in sorted(bars.items()):
        own = counts[u] if u is not None and u // each == bar else 0
        width = max(1.0, x(bar + 1) - x(bar) - 0.8)
        for low, high, kind in ((0, own, "bar unlearner"), (own, count, "bar")):
            if high > low:
                body.append(
                    drawing.tag(
                        "rect",
                        x=x(bar),
                        y=y(high),
                        width=width,
                        height=y(low) - y(high),
                        class_=kind,
                    )
                )
    for value in drawing.ticks(0, peers - 1, 5):
        body.append(
            drawing.words(
                f"{value:,.0f}",
                x((value + 0.5) / each),
                bottom + 18,
                text_anchor="middle",
                class_="tick",
            )
        )
    unit = "peer" if each == 1 else f"peers, {each:,} to a bar"
    body.append(
        drawing.words(unit, (left + right) / 2, bottom + 38, text_anchor="middle", class_="tick")
    )
    spoken = f"{len(counts):,} of {peers:,} peers were visited."
    if u is not None:
        label = f"peer {u}: {numbers.counted(counts[u], 'visit')}"
        half = drawing.text_width(label) / 2
        middle = min(max(x(u // each + 0.5), half + 4), WIDTH - half - 4)
        body.append(
            drawing.words(
                label, middle, top - 12, text_anchor="middle", class_="peer-name unlearner"
            )
        )
        spoken += (
            f" Peer {u}, which asks to forget, had {counts[u]} of {len(stretch.visits)} visits."
        )
    title = f"{stretch.name}: visits by peer"
    return drawing.picture(f"graph-{stretch.index}", title, spoken, bottom + 46, body, "graph")


def strip(result: Result, stretch: Stretch) -> Markup:
    """Every hop as a cell, row by row; tall and coloured where the token was at the unlearner."""
    hops = stretch.visits
    each = math.ceil(len(hops) / MOST_CELLS)
    cells = [hops[i : i + each] for i in range(0, len(hops), each)]
    row = next((r for r in (25, 50, 100) if len(cells) / r <= 8), 100)
    left = 8 + drawing.text_width(f"{hops[-1].hop:,}", 14)
    step, pitch = (WIDTH - left - 2) / row, 18.0
    body = []
    for index, cell in enumerate(cells):
        x, y = left + index % row * step, index // row * pitch
        if index % row == 0:
            body.append(
                drawing.words(
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
            drawing.tag(
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
    return drawing.picture(f"strip-{stretch.index}", title, spoken, height, body, "strip")
