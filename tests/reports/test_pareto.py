"""The picture of forgetting against accuracy."""

from __future__ import annotations

import copy
import math
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reports.conftest import fake_result, with_seeds
from unwalk.methods import METHODS
from unwalk.reports import pareto, render, trade_picture
from unwalk.reports.pareto import Dot, Pareto
from unwalk.reports.result import read

Json = dict[str, Any]
GRADES = list(pareto.LOOKS)
gaps = st.floats(-100, 100)
dots = st.lists(
    st.builds(
        Dot,
        st.sampled_from([record.title for record in METHODS.values()]),
        gaps,
        gaps,
        st.floats(0, 1e9),
        st.sampled_from(GRADES),
    ),
    min_size=3,
    max_size=27,
)


def drawn(result: Json) -> Pareto:
    found = pareto.pareto(read(result), "asr", "attack success")
    assert found is not None
    return found


def attributes(picture: str, tag: str, kind: str) -> list[dict[str, str]]:
    tags = re.findall(rf"<{tag} ([^>]*)>", picture)
    found = [dict(re.findall(r'([\w-]+)="([^"]*)"', text)) for text in tags]
    return [one for one in found if kind in one.get("class", "").split()]


def test_every_method_is_where_its_gaps_are() -> None:
    result = with_seeds(fake_result())
    means = {one["name"]: one["mean"] for one in result["seeds"]["methods"]}
    found = drawn(result)
    assert [dot.title for dot in found.dots] == ["RR-DU", "Fine-tuning", "Retraining"]
    for dot, name in zip(found.dots, ("rrdu", "finetune"), strict=False):
        assert dot.accuracy == pytest.approx(100 * means[name]["gap.clean"])
        assert dot.forgetting == pytest.approx(100 * means[name]["gap.asr"])
    assert (found.dots[-1].accuracy, found.dots[-1].forgetting) == (0.0, 0.0)


def test_what_no_other_method_beats_is_bold() -> None:
    result = with_seeds(fake_result())
    rrdu, finetune, _ = (one["mean"] for one in result["seeds"]["methods"])
    rrdu |= {"gap.clean": -0.01, "gap.asr": 0.001}
    finetune |= {"gap.clean": 0.01, "gap.asr": 0.3}
    assert [dot.best for dot in drawn(result).dots] == [False, True, True]
    rrdu |= {"gap.clean": 0.02, "gap.asr": -0.31}
    assert [dot.best for dot in drawn(result).dots] == [True, True, True]


def test_there_is_no_picture_without_retraining_or_with_one_method() -> None:
    result = with_seeds(fake_result())
    spreads = [one for one in result["seeds"]["methods"] if one["name"] != "finetune"]
    alone = result | {"seeds": result["seeds"] | {"methods": spreads}}
    lost = result | {"methods": result["methods"][:2]}
    for one in (alone, lost, fake_result()):
        assert trade_picture(one) is None
        assert "Forgetting against accuracy" not in render(one)


def test_the_weakest_grade_of_all_seeds_is_shown() -> None:
    result = with_seeds(fake_result())
    result["seeds"]["methods"][0]["grade"] = "rehearsal or refused"
    assert drawn(result).dots[0].grade == "refused"


@given(dots, st.booleans())
def test_names_keep_apart_and_everything_is_inside(many: list[Dot], narrow: bool) -> None:
    before = Dot("Before forgetting", 0.0, 99.0, 0.0, "nothing")
    found = Pareto(many, before, "attack success")
    text = str(found.draw(narrow=narrow))
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)[0])
    labels = attributes(text, "text", "end-label")
    heights = sorted(float(label["y"]) for label in labels)
    assert len(labels) == len(many) + 1
    assert all(b - a >= 13 for a, b in pairwise(heights))
    assert heights[-1] < height
    for one in re.findall(r'points="([^"]*)"', text):
        for x, y in (pair.split(",") for pair in one.split()):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height
    for x, y, r in re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', text):
        assert float(r) <= float(x) <= width - float(r)
        assert 0 <= float(y) <= height


def test_areas_are_costs_and_shapes_tell_grades_apart() -> None:
    costs = [0.0, 1e5, 2e5]
    many = [Dot(f"m{i}", i, i, cost, "exact") for i, cost in enumerate(costs)]
    text = str(Pareto(many, None, "attack success").draw())
    radii = sorted(float(r) for r in re.findall(r'<circle [^>]*r="([\d.]+)"', text))
    low, high = pareto.SIZES
    assert radii == pytest.approx([low, math.sqrt((low**2 + high**2) / 2), high], abs=0.01)
    looks = [pareto.LOOKS[grade] for grade in GRADES]
    assert len(set(looks)) == len(looks)


def test_ticks_keep_apart() -> None:
    for values in ([-99.0, 3.0], [-0.2, 0.1], [0.0], [-100.0, 100.0]):
        axis = pareto._scale(values, 46.0, 200.0)
        places = sorted(axis(pareto.bent(value)) for value in pareto._ticks(axis, 30.0))
        assert all(b - a >= 30.0 for a, b in pairwise(places))
        assert axis(0.0) in places


def test_the_file_stands_alone_and_the_picture_speaks() -> None:
    result = with_seeds(fake_result())
    text = trade_picture(result)
    assert text is not None
    assert "var(" not in text
    assert 'xmlns="http://www.w3.org/2000/svg"' in text
    spoken = drawn(result).spoken()
    assert "RR-DU: accuracy" in spoken
    assert "attack success" in spoken
    page = render(result)
    assert page.count("Forgetting against accuracy") >= 3
    assert copy.deepcopy(result) == result
