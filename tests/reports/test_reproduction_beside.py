"""What stands beside the paper's experiments: tuning, precision, and how long it took."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from tests.reports.reproduction_fakes import REPORTED, fake_documents, figure
from tests.reports.test_page import Json, parse
from unwalk.core.errors import InvalidInput
from unwalk.reports.reproduction_figure import figure_picture
from unwalk.reports.reproduction_page import render_reproduction
from unwalk.reports.reproduction_trials import best, calls, changes, tuned, wall

HEAD = {"machine": "H200", "commit": "abc", "command": "unwalk reproduce tuning", "task": "mnist"}


def tuning_document(*rows: tuple[str, str, bool, float, float]) -> Json:
    return HEAD | {
        "rows": [
            {
                "method": method,
                "setting": setting,
                "used": used,
                "preset": "paper-matched",
                "seed": 0,
                "clean": clean / 100,
                "asr": (asr - 9) / 100,
                "asr_paper": asr / 100,
            }
            for method, setting, used, clean, asr in rows
        ]
    }


GRID = tuning_document(
    ("rrdu", "step size 1", True, 99.0, 10.0),
    ("rrdu", "step size 2", False, 99.1, 9.5),
    ("rrdu", "step size 3", False, 90.0, 9.0),
    ("ddp", "a ball", True, 97.0, 60.0),
    ("ddp", "no ball", False, 96.5, 12.0),
)


def text(page: str, kind: str) -> list[str]:
    return [li.text for ul in parse(page).all("ul", kind) for li in ul.all("li")]


def test_rule_admits_by_test_accuracy_and_takes_the_lowest_backdoor() -> None:
    methods = tuned("tuning-mnist", GRID)
    assert [t.setting for t in best(methods["rrdu"])] == ["step size 1", "step size 2"]
    assert [t.setting for t in best(methods["ddp"])] == ["no ball"]


def test_page_shows_every_setting_and_says_where_the_preset_is_not_the_best() -> None:
    page = render_reproduction({}, tried={"tuning-mnist": GRID})
    said = text(page, "said")
    assert len(said) == 2
    assert "one of the 2 best" in said[0]
    assert "not the best by this rule" in said[1]
    assert "It ends at 97.00 / 60.00, no ball at 96.50 / 12.00." in said[1]
    table = next(t for t in parse(page).all("table", "grouped"))
    rows = [r for r in table.all("tr") if "is-main" in r.attributes.get("class", "")]
    assert ["the preset's own" in r.text for r in rows] == [True, True]
    assert all(row["setting"] in table.text for row in GRID["rows"])
    assert table.text.count("not admitted") == 1
    assert table.text.count("✓ best") == 3


def test_settings_over_several_seeds_are_means() -> None:
    grid = tuning_document(("ddp", "a", True, 90.0, 20.0), ("ddp", "a", True, 92.0, 40.0))
    (found,) = tuned("tuning-mnist", grid)["ddp"]
    assert (found.seeds, found.clean, found.asr_paper) == pytest.approx((2, 91.0, 30.0))


def precise(before: list[float], after: list[float]) -> Json:
    runs = [("float32", v, s) for s, v in enumerate(before)]
    runs += [("bfloat16", v, s) for s, v in enumerate(after)]
    rows = [
        {"method": "rrdu", "precision": p, "seed": s, "clean": v / 100, "asr_paper": 0.1, "asr": 0}
        for p, v, s in runs
    ]
    return HEAD | {"rows": rows}


def test_interval_of_a_difference_is_students() -> None:
    rng = np.random.default_rng(1)
    before, after = rng.normal(90, 1, 3), rng.normal(90, 1, 4)
    clean, backdoor = changes("precision-mnist", precise(list(before), list(after)))
    expected = stats.ttest_ind(after, before).confidence_interval(0.95)
    assert clean.reach is not None
    low, high = clean.difference - clean.reach, clean.difference + clean.reach
    assert (low, high) == pytest.approx((expected.low, expected.high))
    assert clean.unchanged == (low <= 0 <= high)
    assert (backdoor.difference, backdoor.reach) == pytest.approx((0.0, 0.0), abs=1e-9)
    assert backdoor.unchanged


def test_page_says_which_numbers_the_fast_path_changes() -> None:
    same = render_reproduction({}, tried={"precision-mnist": precise([90, 91, 92], [90, 91, 92.3])})
    assert "In 2 of 2 comparisons the interval holds 0." in same
    moved = render_reproduction({}, tried={"precision-mnist": precise([90, 90.1], [80, 80.1])})
    assert "In 1 of 2 comparisons the interval holds 0; not so: RR-DU, test accuracy." in moved
    one = render_reproduction({}, tried={"precision-mnist": precise([90], [80])})
    assert "there is no spread to judge" in one


def test_sections_are_linked_have_their_notes_and_the_papers_order_of_tasks() -> None:
    tried = {"tuning-cifar10": GRID | {"task": "cifar10"}, "tuning-mnist": GRID}
    tried["precision-mnist"] = precise([90, 91], [90, 91])
    page = parse(render_reproduction({}, {"tuning": "Why so.", "other": "Else."}, tried=tried))
    assert [a.attributes["href"] for a in page.all("a")] == ["#tuning", "#precision"]
    sections = {h.attributes.get("id"): h.text for h in page.all("h2")}
    assert sections == {None: "Other", "tuning": "Tuning", "precision": "Precision"}
    assert [box.text.strip() for box in page.all("div", "words")] == ["Why so."]
    titles = [h.text for h in page.all("h3")]
    assert [t.split(",")[0] for t in titles] == ["MNIST", "CIFAR-10", "MNIST"]


@pytest.mark.parametrize(
    ("name", "document", "said"),
    [
        ("tuning-mnist", {"rows": [{}]}, "tuning-mnist does not hold settings"),
        ("tuning-mnist", {"rows": []}, "no rows"),
        ("precision-mnist", {"rows": [{}]}, "precision-mnist does not hold runs"),
        ("precision-mnist", precise([90.0], []), "no method has both"),
    ],
)
def test_bad_documents_are_refused_by_name(name: str, document: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        render_reproduction({}, tried={name: document})


def test_picture_file_stands_alone_and_shows_the_pages_lines() -> None:
    text = figure_picture("figure1-mnist", figure("mnist", ("paper",), 3), REPORTED)
    assert text is not None
    root = ElementTree.fromstring(text)
    assert "var(--" not in text
    assert "MNIST, preset paper, 3 seeds" in text
    space = "{http://www.w3.org/2000/svg}"
    inner = root.findall(f"{space}svg")
    assert len(inner) == 2
    drawn = parse(render_reproduction({"figure1-mnist": figure("mnist", ("paper",), 3)}))
    wide = [n for n in drawn.all("svg") if "wide" in n.attributes.get("class", "").split()]
    for mine, theirs in zip(inner, wide, strict=True):
        lines = [
            n.attrib["points"] for n in mine.iter(f"{space}polygon") if "band" in str(n.attrib)
        ]
        assert lines == [n.attributes["points"] for n in theirs.all("polygon", "band")]
    with pytest.raises(InvalidInput, match="is no figure"):
        figure_picture("table-rho-mnist", fake_documents()["table-rho-mnist"])


def timing(task: str, begun: str, seconds: float, *cells: str) -> Json:
    when = {"begun": begun, "seconds": seconds, "jobs": 3}
    return {"task": task, "preset": "paper-matched", **when, "cells": list(cells)}


def test_times_of_calls_that_overlap_are_counted_once() -> None:
    records = {
        "timing-a": timing("mnist", "2026-01-01T10:00:00+00:00", 100.0),
        "timing-b": timing("mnist", "2026-01-01T10:00:50+00:00", 100.0),
        "timing-c": timing("mnist", "2026-01-01T12:00:00+00:00", 10.0),
        "timing-d": timing("mnist", "2026-01-01T12:00:02+00:00", 1.0),
    }
    assert wall(calls(records)) == pytest.approx(160.0)
    with pytest.raises(InvalidInput, match="timing-e does not hold a time"):
        calls({"timing-e": {}})


def test_times_stand_by_dataset_and_apart_from_what_the_paper_lacks() -> None:
    day = "2026-01-01T10"
    times = {
        "timing-a": timing("cifar10", f"{day}:00:00+00:00", 90.0, "figure1-rrdu-0"),
        "timing-b": timing("mnist", f"{day}:10:00+00:00", 30.0, "figure1-rrdu-0", "table-p-1-0"),
        "timing-c": timing("mnist", f"{day}:20:00+00:00", 20.0, "figure1-ddp-0"),
        "timing-d": timing("mnist", f"{day}:30:00+00:00", 10.0, "tuning-ddp_preset-0"),
    }
    page = parse(render_reproduction({}, times=times))
    (region,) = [n for n in page.all("div") if n.attributes.get("aria-label") == "How long it took"]
    rows = [
        [c.text.replace("\N{NO-BREAK SPACE}", " ") for c in r.children] for r in region.all("tr")
    ]
    assert rows[1:] == [
        ["MNIST", "paper-matched", "figure1, table-p", "3", "3", "50.0 s"],
        ["CIFAR-10", "paper-matched", "figure1", "1", "3", "1 min 30 s"],
        ["MNIST", "paper-matched", "tuning", "1", "3", "10.0 s"],
        ["Together", "", "", "", "", "2 min 30 s"],
    ]
    assert "How long it took" not in render_reproduction({})


def test_settings_stand_by_dataset_and_preset() -> None:
    documents = {
        "figure1-mnist": figure("mnist", ("paper-matched",), 1)
        | {"settings": {"train.hops": 100, "performance.compiled": True}},
        "figure1-mnist-paper": figure("mnist", ("paper",), 1)
        | {"settings": {"train.learning_rate": 0.005, "ddp.radius": None}},
        "figure1-cifar10": figure("cifar10", ("paper-matched",), 1),
    }
    page = parse(render_reproduction(documents))
    (region,) = [n for n in page.all("div") if n.attributes.get("aria-label") == "Settings"]
    rows = [[c.text for c in r.children] for r in region.all("tr")]
    assert rows == [
        ["Setting", "MNISTpaper-matched", "MNISTpaper"],
        ["ddp.radius", "–", "none"],
        ["performance.compiled", "true", "–"],
        ["train.hops", "100", "–"],
        ["train.learning_rate", "–", "0.005"],
    ]
    documents["figure1-mnist"]["settings"] = [1]
    with pytest.raises(InvalidInput, match=r"figure1-mnist.settings is \[1\]"):
        render_reproduction(documents)


def readings_document(**changes: Any) -> Json:
    row: Json = {"reading": "a <b>", "settings": {"x": 1}, "kept": True, "cells": [[88.04, 12.0]]}
    made = {"machine": "m", "commit": "c", "command": "unwalk reproduce"}
    columns = [{"title": "RR-DU", "clean": 88.1, "asr": None}]
    return {"task": "cifar10", **made, "columns": columns, "rows": [row], **changes}


def test_readings_that_were_tried_stand_on_the_page_with_the_one_that_was_kept() -> None:
    page = render_reproduction({}, tried={"readings-cifar10": readings_document()})
    assert "Readings that were tried" in page
    assert "88.0 / 12.0" in page
    assert "a &lt;b&gt;" in page
    assert "88.1 / –" in page
    assert 'class="is-main"' in page
    assert "Readings that were tried" not in render_reproduction({})


def test_a_document_without_readings_is_refused() -> None:
    with pytest.raises(InvalidInput, match="readings-cifar10 does not hold readings"):
        render_reproduction({}, tried={"readings-cifar10": readings_document(rows=[{}])})
