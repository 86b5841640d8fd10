"""The parts of the pictures: scales, labels, clipped lines, walks, pixels."""

from __future__ import annotations

import math
import re
import struct
import zlib
from itertools import pairwise
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwalk.reports import charts
from unwalk.reports.charts import png
from unwalk.reports.result import Visit, read

Json = dict[str, Any]
finite = st.floats(-1e6, 1e6)


@given(st.lists(st.floats(0, 100), max_size=12), st.floats(1, 30))
def test_spread_keeps_order_gap_and_bounds(wanted: list[float], gap: float) -> None:
    places = charts.spread(wanted, gap, 0.0, 100.0)
    fits = gap * (len(wanted) - 1) <= 100
    least = gap if fits else 100 / (len(wanted) - 1)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    in_order = [places[i] for i in order]
    assert all(b - a >= least - 1e-6 for a, b in pairwise(in_order))
    assert all(-1e-6 <= p <= 100 + 1e-6 for p in places)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=6, unique=True))
def test_spread_moves_nothing_that_has_room(wanted: list[float]) -> None:
    gaps = [abs(a - b) for a in wanted for b in wanted if a != b]
    gap = 0.99 * min(gaps, default=1.0)
    assert charts.spread(wanted, gap, 0.0, 100.0) == pytest.approx(wanted)


@given(finite, st.floats(1e-3, 1e6), st.integers(2, 8))
def test_ticks_are_few_even_and_inside(low: float, span: float, most: int) -> None:
    high = low + span
    found = charts.ticks(low, high, most)
    assert len(found) <= most
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert all(low - slack <= t <= high + slack for t in found)
    steps = [b - a for a, b in pairwise(found)]
    assert steps == pytest.approx(steps[:1] * len(steps))
    assert len(found) >= (most >= 3)


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 1)), max_size=12), st.floats(0.1, 0.9))
def test_clipped_lines_stay_above_the_floor(line: list[charts.XY], floor: float) -> None:
    parts = charts.clip_below(line, floor)
    assert all(y >= floor for part in parts for _, y in part)
    kept = {point for part in parts for point in part}
    assert {point for point in line if point[1] >= floor} <= kept


def test_scale_clamps_and_survives_an_empty_range() -> None:
    scale = charts.Scale(0.0, 10.0, 100.0, 200.0)
    assert [scale(v) for v in (-5, 0, 5, 10, 50)] == [100, 100, 150, 200, 200]
    assert charts.Scale(3.0, 3.0, 100.0, 200.0)(3.0) == 150


def test_edges_are_counted_along_the_whole_path() -> None:
    hops = [
        Visit(1, "train", 4, (4,)),
        Visit(2, "train", 2, (3, 2)),
        Visit(3, "train", 2, ()),
        Visit(4, "unlearn", 3, (3,)),
    ]
    first, second = charts.stretches(hops)
    assert first.crossings == {(3, 4): 1, (2, 3): 1}
    assert second.crossings == {(2, 3): 1}
    assert first.counts == {4: 1, 2: 2}
    assert [first.name, second.name] == ["Training", "Unlearning"]


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (2, 3), (3, 2), (3, 8), (8, 3), (1, 7)])
def test_torus_shape_is_found_from_its_edges(rows: int, columns: int) -> None:
    graph = nx.grid_2d_graph(rows, columns, periodic=True)
    edges = [
        (a * columns + b, c * columns + d) for (a, b), (c, d) in graph.edges if (a, b) != (c, d)
    ]
    assert charts.torus_shape(rows * columns, edges) == (rows, columns)


def test_torus_shape_falls_back_to_the_squarest() -> None:
    assert charts.torus_shape(12, []) in {(3, 4), (4, 3)}


def test_unlearner_stands_at_the_top_and_a_hub_in_the_middle(make_result: Any) -> None:
    places = charts.layout(read(make_result("usual")))
    assert min(places, key=lambda p: p[1]) == places[3]
    star = charts.layout(read(make_result("star")))
    assert star[0] == charts.CENTRE
    far = [math.dist(p, charts.CENTRE) for p in star[1:]]
    assert far == pytest.approx([charts.RADIUS] * 11)


def test_strip_has_a_cell_a_hop_and_marks_the_unlearner(usual: Json) -> None:
    view = read(usual)
    for part in charts.stretches(view.walk):
        text = charts.strip(view, part)
        assert text.count("<rect") == len(part.visits)
        assert text.count('class="cell unlearner"') == part.counts[3]


def test_long_strips_share_cells(make_result: Any) -> None:
    view = read(make_result("many peers"))
    part = charts.stretches(view.walk)[1]
    assert charts.strip(view, part).count("<rect") == charts.MOST_CELLS


def test_histogram_bars_add_up(make_result: Any) -> None:
    view = read(make_result("ring of 100"))
    part = charts.stretches(view.walk)[1]
    text = charts.histogram(view, part)
    bars = re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="[\d.]+" height="([\d.]+)"', text)
    unit = 150.0 / max(part.counts.values())
    assert sum(map(float, bars)) == pytest.approx(unit * 200, rel=1e-3)
    assert text.count('class="bar unlearner"') == 1


def chart_of(result: Json, key: str) -> charts.Chart:
    drawn = charts.run_chart(read(result), key)
    assert drawn is not None
    return drawn


def test_shared_training_is_drawn_once(usual: Json) -> None:
    train = [p for p in usual["methods"][0]["series"] if p["phase"] == "train"]
    for line in chart_of(usual, "asr").lines:
        start = line.runs[0][0]
        wanted = (0.0, 100 * usual["methods"][2]["series"][0]["asr"])
        if not line.oracle:
            wanted = (train[-1]["hop"], 100 * train[-1]["asr"])
        assert start == pytest.approx(wanted)


def test_own_training_is_drawn_when_it_differs(usual: Json) -> None:
    for point in usual["methods"][1]["series"]:
        point["asr"] /= 2
    line = chart_of(usual, "asr").lines[1]
    assert line.runs[0][0][0] == 0


def test_missing_values_break_a_line(usual: Json) -> None:
    usual["methods"][0]["series"][-4]["asr"] = None
    main = chart_of(usual, "asr").lines[0]
    assert len(main.runs) == 2
    assert len(main.runs[1]) == 3


def test_axis_starts_above_zero_only_where_nothing_is_lost(usual: Json) -> None:
    assert chart_of(usual, "asr").low == 0
    low = chart_of(usual, "clean").low
    after = [p["clean"] for m in usual["methods"][:2] for p in m["series"] if p["hop"] >= 100]
    assert 40 <= low < 100 * min(after)
    usual["methods"][1]["final"]["clean"] = 0.1
    assert chart_of(usual, "clean").low == 0


def decode(data: bytes) -> tuple[int, int, int, bytes]:
    """Width, height, colour type and pixels of a PNG without filters; checks every chunk."""
    place, chunks = 8, {}
    while place < len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        (check,) = struct.unpack(">I", data[place + 8 + size : place + 12 + size])
        assert check == zlib.crc32(kind + body)
        chunks[kind] = body
        place += 12 + size
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert depth == 8
    raw = zlib.decompress(chunks[b"IDAT"])
    line = 1 + width * (3 if colour == 2 else 1)
    assert len(raw) == line * height
    assert all(raw[i] == 0 for i in range(0, len(raw), line))
    pixels = b"".join(raw[i + 1 : i + line] for i in range(0, len(raw), line))
    return width, height, colour, pixels


def test_grey_pixels_survive() -> None:
    image = [[0.0, 0.5, 1.0], [1.5, -1.0, math.nan]]
    assert decode(png(image)) == (3, 2, 0, bytes([0, 128, 255, 255, 0, 0]))


def test_colour_pixels_survive() -> None:
    image = [[[1.0, 0.0, 0.0], [0.0, 0.2, 1.0]]]
    assert decode(png(image)) == (2, 1, 2, bytes([255, 0, 0, 0, 51, 255]))
    red, blue = bytes([255, 0, 0]), bytes([0, 51, 255])
    assert decode(png(image, 2)) == (4, 2, 2, 2 * (2 * red + 2 * blue))


def test_lines_below_the_axis_are_cut_not_flattened(usual: Json) -> None:
    text = chart_of(usual, "clean").draw()
    lines = [
        [float(pair.split(",")[1]) for pair in points.split()]
        for points in re.findall(r'<polyline points="([^"]+)"', text)
    ]
    assert any(charts.BOTTOM in line for line in lines)
    for line in lines:
        assert not any(a == b == charts.BOTTOM for a, b in pairwise(line))


def test_a_method_looks_the_same_whatever_stands_beside_it(usual: Json) -> None:
    alone = {**usual, "methods": [m for m in usual["methods"] if m["name"] != "rrdu"]}
    other = {**usual, "methods": [{**m, "main": False} for m in usual["methods"][::-1]]}
    looks = [charts.looks(read(one)) for one in (usual, alone, other)]
    assert looks[0]["finetune"] == looks[1]["finetune"] == looks[2]["finetune"]
    assert looks[0] == looks[2]


def test_no_two_known_methods_look_alike() -> None:
    known = [charts.look_of(name) for name in (*charts.FIRST, *charts.KNOWN[:17])]
    assert len({(look.colour, look.shape) for look in known}) == len(known)
    assert len({(look.colour, look.dashes) for look in known}) == len(known)
