"""The reproduction's page and table: ours, the paper's, how far apart, and nothing else."""

from __future__ import annotations

import copy
import json
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.reports.reproduction_fakes import CASES, HOPS, REPORTED, VALUES, fake_documents, figure
from tests.reports.test_page import (
    LENGTHS,
    Json,
    Node,
    every,
    luminance,
    parse,
    pictures,
    table_named,
)
from unwalk.core.errors import InvalidInput
from unwalk.reports import page
from unwalk.reports.reproduction import agreement, collect, reproduction_rows, start
from unwalk.reports.reproduction_figure import chart
from unwalk.reports.reproduction_page import render_reproduction, reproduction_table

TITLES = {"table-rho": "Trust radius ρ", "table-delta": "Privacy parameter δ"}
SIGNS = {"agree": "✓", "spread": "✓±", "near": "≈", "differ": "✗"}
SPOKEN = {
    "agree": " agrees",
    "spread": " agrees within the spread of the seeds",
    "near": " is near",
    "differ": " differs",
}


@pytest.fixture(params=sorted(CASES))
def documents(request: pytest.FixtureRequest) -> dict[str, Json]:
    return CASES[request.param]()


def page_of(documents: dict[str, Json], notes: dict[str, str] | None = None) -> Node:
    return parse(render_reproduction(documents, notes, REPORTED))


def words(node: Node) -> str:
    return node.text.replace("\N{NO-BREAK SPACE}", " ")


def two(value: float | None, sign: bool = False) -> str:
    if value is None:
        return "–"
    text = f"{value:.2f}"
    text = text if float(text) else "0.00"
    return ("+" if sign and float(text) > 0 else "") + text.replace("-", "\N{MINUS SIGN}")


def test_rows_are_the_mean_and_deviation_over_seeds() -> None:
    documents = fake_documents(("paper", "paper-matched"))
    found = reproduction_rows(documents, REPORTED)
    assert {r["experiment"] for r in found} == {"figure1", *VALUES}
    for row in found:
        key = "method" if row["experiment"] == "figure1" else "row"
        source = documents[f"{row['experiment']}-{row['task']}"]["rows"]
        mine = [
            100 * r[row["measure"]]
            for r in source
            if (r[key], r["preset"], r.get("hop")) == (row["row"], row["preset"], row["hop"])
        ]
        assert (row["seeds"], len(mine)) == (3, 3)
        assert row["mean"] == pytest.approx(np.mean(mine))
        assert row["std"] == pytest.approx(np.std(mine, ddof=1))
        if row["reported"] is not None:
            assert row["difference"] == pytest.approx(row["mean"] - row["reported"])
            assert row["agreement"] == agreement(row["difference"], row["std"])
        else:
            assert row["difference"] is row["agreement"] is None


def test_figure_rows_are_the_last_hop_and_retraining_where_training_ended() -> None:
    found = reproduction_rows({"figure1-mnist": figure("mnist", ("paper",), 2)}, REPORTED)
    at = {(r["row"], r["hop"], r["final"]) for r in found}
    last = sum(HOPS)
    ends = {(m, last, True) for m in ("rrdu", "finetune", "ddp", "retrain")}
    assert at == ends | {("retrain", HOPS[0], False)}
    told = {(r["row"], r["measure"]): r["reported"] for r in found if r["final"]}
    assert told["ddp", "clean"] == 96.7
    assert told["finetune", "asr_paper"] == 18.0
    assert told["finetune", "asr"] is None


@pytest.mark.parametrize(
    ("difference", "std", "wanted"),
    [
        (2.0, None, "agree"),
        (100 * 0.9012 - 88.12, None, "agree"),
        (-2.0, 0.1, "agree"),
        (2.0001, 0.9, "near"),
        (2.0001, 1.00005, "spread"),
        (-2.2, 1.1, "spread"),
        (5.0, None, "near"),
        (-5.0, 0.0, "near"),
        (5.0001, 2.4, "differ"),
        (60.0, 30.0, "spread"),
        (60.0, 29.9, "differ"),
    ],
)
def test_agreement_at_its_borders(difference: float, std: float | None, wanted: str) -> None:
    assert agreement(difference, std) == wanted


@given(st.floats(-100, 100), st.floats(0, 100), st.floats(0, 10))
def test_agreement_never_improves_with_distance(d: float, std: float, more: float) -> None:
    order = ("agree", "spread", "near", "differ")
    assert agreement(d, std) == agreement(-d, std)
    further = order.index(agreement(abs(d) + more, std))
    assert further >= order.index(agreement(d, std))


@pytest.mark.parametrize("experiment", TITLES)
@pytest.mark.parametrize(("task", "name"), [("mnist", "MNIST"), ("cifar10", "CIFAR-10")])
@pytest.mark.parametrize("case", ["usual", "one seed", "two presets"])
def test_tables_show_the_aggregation(experiment: str, task: str, name: str, case: str) -> None:
    documents = CASES[case]()
    shown = table_named(page_of(documents), f"{TITLES[experiment]}, {name}")
    found = reproduction_rows({k: documents[k] for k in (f"{experiment}-{task}",)})
    at = {(r["row"], r["preset"], r["measure"]): r for r in found}
    presets = ["paper-matched", "paper"] if case == "two presets" else ["paper-matched"]
    places = [(value, preset) for value in VALUES[experiment] for preset in presets]
    assert len(shown) == len(places)
    for (value, preset), (head, cells) in zip(places, shown.items(), strict=True):
        assert head.endswith(preset) == (len(presets) > 1)
        wanted = []
        for measure in ("clean", "asr_paper"):
            row = at[value, preset, measure]
            std = "" if row["std"] is None else f"± {two(row['std'])}"
            kind = row["agreement"]
            wanted.append(two(row["reported"]))
            wanted.append(two(row["mean"]) + std)
            wanted.append(two(row["difference"], sign=True) + SIGNS[kind] + SPOKEN[kind])
        other = at[value, preset, "asr"]
        std = "" if other["std"] is None else f"± {two(other['std'])}"
        assert cells == [*wanted, two(other["mean"]) + std]


def test_row_headings_are_readable() -> None:
    page = page_of(fake_documents())
    assert list(table_named(page, "Privacy parameter δ, MNIST")) == ["10⁻⁴", "10⁻⁶"]
    routing = ["0fine-tuning", "0.1RR-DU", "1continuous"]
    assert list(table_named(page, "Routing probability p, MNIST")) == routing
    ends = table_named(page, "The figure: accuracy over hops, MNIST")
    named = ["RR-DU", "Fine-tuning", "DDP", "Retrainingat hop 14", "Retrainingat hop 6"]
    assert list(ends) == named
    assert ends["RR-DU"][0] == "99.15"
    assert ends["DDP"][3] == "35"


def test_seeds_and_noise_stand_once_or_by_row() -> None:
    documents = fake_documents()
    heads = [n.text for n in page_of(documents).all("h3")]
    assert "MNIST, 3 seeds, σ 2.574" in heads
    rows = documents["table-rho-mnist"]["rows"]
    documents["table-rho-mnist"]["rows"] = rows[:7]
    rows[6]["sigma"] = 1.0
    names = list(table_named(page_of(documents), "Trust radius ρ, MNIST"))
    assert names == ["baselineσ 2.5743 seeds", "5σ 2.5743 seeds", "25σ 11 seed"]


def test_one_seed_shows_no_deviation() -> None:
    for name in ("MNIST", "CIFAR-10"):
        rows = table_named(page_of(fake_documents(seeds=1)), f"Trust radius ρ, {name}")
        assert not [cell for cells in rows.values() for cell in cells if "± " in cell]
    page = render_reproduction(fake_documents(seeds=1), None, REPORTED)
    assert 'class="band"' not in page
    assert 'class="band"' in render_reproduction(fake_documents(seeds=2), None, REPORTED)


def test_glance_has_a_mark_for_each_number_of_the_paper() -> None:
    documents = fake_documents(("paper", "paper-matched"))
    found = [r for r in reproduction_rows(documents, REPORTED) if r["final"] and r["agreement"]]
    page = page_of(documents)
    (box,) = page.all("div", "overview")
    chips = [n.attributes["class"].split()[1] for n in box.all("span", "chip")]
    assert sorted(chips) == sorted(r["agreement"] for r in found)
    (story,) = page.all("p", "story")
    assert [n.text for n in story.all("code")] == ["paper-matched", "paper"]
    told = words(story).split(" With the preset ")[1:]
    for preset, text in zip(("paper-matched", "paper"), told, strict=True):
        kinds = [r["agreement"] for r in found if r["preset"] == preset]
        good, spread = kinds.count("agree") + kinds.count("spread"), kinds.count("spread")
        assert f"{good} of {len(kinds)} numbers agree" in text
        assert f"({spread} only within the spread of our seeds)" in text
        near, far = kinds.count("near"), kinds.count("differ")
        assert re.search(rf"{near} (is|are) near and {far} differs?\.", text)
        assert ("1 are" in text, "1 differ." in text) == (False, False)


def test_presets_of_a_row_stand_together_and_each_has_its_figures() -> None:
    page = page_of(fake_documents(("paper", "paper-matched")))
    rows = list(table_named(page, "Routing probability p, MNIST"))
    assert [r.removeprefix(v) for r, v in zip(rows[:2], ("0fine-tuning",) * 2, strict=True)] == [
        "paper-matched",
        "paper",
    ]
    ends = table_named(page, "The figure: accuracy over hops, CIFAR-10")
    assert list(ends)[-2:] == ["Retrainingat hop 6paper-matched", "Retrainingat hop 6paper"]
    subs = [n.text for n in page.all("h3", "sub")]
    wanted = [f"{t}, preset {p}" for t in ("MNIST", "CIFAR-10") for p in ("paper-matched", "paper")]
    assert [text for text in subs if "preset" in text] == wanted
    assert len(pictures(page)) == 2 * 2 * 2 * 2  # tasks, presets, measures, widths
    legends = [n for plot in page.all("div", "plot") for n in plot.all("ul", "legend")]
    assert len(legends) == 2  # one a task: the presets have the same methods


def test_a_preset_without_results_takes_no_line_at_a_glance() -> None:
    documents = fake_documents()
    for task in ("mnist", "cifar10"):
        more = figure(task, ("paper", "practical"), 3)["rows"]
        documents[f"figure1-{task}"]["rows"] += more
    (box,) = page_of(documents).all("div", "overview")
    (body,) = box.all("tbody")
    lines = [[c.text for c in row.children][:2] for row in body.children]
    assert lines[:3] == [
        ["The figure: accuracy over hops", "paper-matched"],
        ["", "paper"],
        ["", "practical"],
    ]
    assert [preset for _, preset in lines[3:]] == ["paper-matched"] * 5
    assert "no result" not in box.text


def test_missing_documents_are_left_out_and_said(documents: dict[str, Json]) -> None:
    page = page_of(documents)
    listed = [n.text for p in page.all("p", "gone") for n in p.all("code")]
    digits = any("digits" in name for name in documents)
    tasks = ("digits",) if digits else ("mnist", "cifar10")
    expected = {f"{e}-{t}" for e in ("figure1", *VALUES) for t in tasks}
    assert set(listed) == expected - set(documents)
    there = {n.attributes["id"] for n in page.all("h2") if "id" in n.attributes}
    assert there == {name.rsplit("-", 1)[0] for name in documents}


def test_missing_values_read_as_dashes() -> None:
    page = page_of(CASES["holes"]())
    cells = table_named(page, "Trust radius ρ, MNIST")["baseline"]
    assert cells[1:3] == ["–", "–"]
    assert cells[3] == "–"
    assert cells[5:] == ["–", "–"]
    shown = [n.text for n in every(page) if n.tag not in ("style", "html", "head")]
    assert not [text for text in shown if re.search(r"\b(None|nan|inf)\b", text)]


def test_tasks_that_the_paper_lacks_have_no_paper_columns() -> None:
    page = page_of(CASES["digits"]())
    assert "Paper" not in [n.text for n in page.all("th")]
    assert not page.all("span", "chip")
    assert "nothing is compared" in words(page)


def test_tags_are_balanced_ids_unique_and_links_lead_somewhere(documents: dict[str, Json]) -> None:
    page = page_of(documents, {"overview": "a", "table-rho": "b", "tuning": "c"})
    assert [n.tag for n in page.children] == ["html"]
    assert len(page.all("h1")) == 1
    ids = [n.attributes["id"] for n in every(page) if "id" in n.attributes]
    assert len(ids) == len(set(ids))
    for link in page.all("a"):
        assert link.attributes["href"].removeprefix("#") in ids
    assert all(n.attributes["scope"] in ("row", "col", "colgroup") for n in page.all("th"))
    for table in page.all("table"):
        wide = {
            sum(int(c.attributes.get("colspan", 1)) for c in row.children)
            for row in table.all("tr")
        }
        assert len(wide) == 1, "rows of one table differ in width"


def test_nothing_is_loaded_from_outside(documents: dict[str, Json]) -> None:
    text = render_reproduction(documents, None, REPORTED)
    assert not re.search(r"https?:|://|url\(|@import|<script", text)
    for node in every(parse(text)):
        assert not [name for name in node.attributes if name.startswith(("on", "src"))]
        assert node.attributes.get("href", "#").startswith(("#", "data:"))


def test_coordinates_are_finite_and_inside(documents: dict[str, Json]) -> None:
    for picture in pictures(page_of(documents)):
        _, _, width, height = map(float, picture.attributes["viewbox"].split())
        for node in every(picture):
            at = {k: float(v) for k, v in node.attributes.items() if k in LENGTHS}
            xs = [v for k, v in at.items() if k in ("x", "x1", "x2", "cx")]
            ys = [v for k, v in at.items() if k in ("y", "y1", "y2", "cy")]
            for pair in node.attributes.get("points", "").split():
                x, y = map(float, pair.split(","))
                xs.append(x)
                ys.append(y)
            assert all(0 <= x <= width for x in xs), node
            assert all(0 <= y <= height for y in ys), node
            if node.tag == "text":
                length = 0.58 * 13 * len(node.text)
                share = {"middle": 0.5, "end": 1.0}.get(node.attributes.get("text-anchor", ""), 0)
                assert at["x"] - share * length >= -1
                assert at["x"] + (1 - share) * length <= width + 1
        heights = sorted(float(n.attributes["y"]) for n in picture.all("text", "end-label"))
        assert all(b - a >= 13 for a, b in pairwise(heights))


def test_start_of_unlearning_is_found_given_or_left_out() -> None:
    found = figure("mnist", ("paper",), 2)
    (part,) = collect({"figure1-mnist": found})
    assert start(part, "paper") == HOPS[0]
    assert f"unlearning starts, hop {HOPS[0]}" in words(page_of({"figure1-mnist": found}))
    (part,) = collect({"figure1-mnist": found | {"train_hops": 4}})
    assert start(part, "paper") == 4
    for number, row in enumerate(found["rows"]):
        row["clean"] -= 1e-4 * number / len(found["rows"])
    (part,) = collect({"figure1-mnist": found})
    assert start(part, "paper") is None
    assert "unlearning starts" not in words(page_of({"figure1-mnist": found}))


def test_figure_draws_means_bands_and_shared_training_once() -> None:
    source = figure("mnist", ("paper",), 3)
    (part,) = collect({"figure1-mnist": source}, REPORTED)
    drawn = chart(part, "paper", "asr_paper")
    assert drawn is not None
    assert [hop for run in drawn.shared for hop, _ in run] == list(range(1, HOPS[0] + 1))
    names = {"RR-DU": "rrdu", "Fine-tuning": "finetune", "DDP": "ddp", "Retraining": "retrain"}
    assert {line.title for line in drawn.lines} == set(names)
    for line in drawn.lines:
        (run,), (band,) = line.runs, line.bands
        first = 0 if line.oracle else HOPS[0]
        assert [hop for hop, _ in run] == list(range(first, sum(HOPS) + 1))
        edge = list(zip(band[: len(run)], reversed(band[len(run) :]), strict=True))
        for (hop, mean), (above, below) in zip(run, edge, strict=True):
            values = [
                100 * r["asr_paper"]
                for r in source["rows"]
                if (r["method"], r["hop"]) == (names[line.title], hop)
            ]
            assert mean == pytest.approx(np.mean(values))
            std = np.std(values, ddof=1)
            assert above == pytest.approx((hop, mean + std))
            assert below == pytest.approx((hop, mean - std))
    for picture in pictures(page_of({"figure1-mnist": source})):
        assert len(picture.all("polygon", "band")) == 5
        hollow = [n for n in every(picture) if "paper" in n.attributes.get("class", "").split()]
        assert len(hollow) == 4


def test_notes_are_plain_paragraphs_and_hostile_words_stay_words() -> None:
    evil = "</style><script>alert(1)</script>&amp;"
    notes = {"table-rho": f"One.\n\n{evil}", "table-rho-mnist": "Own.", "fair-tuning": "Grid."}
    documents = fake_documents((evil,))
    for document in documents.values():
        document.update(machine=evil, commit=evil, command=evil)
    page = page_of(documents, notes)
    assert not page.all("script")
    (box,) = page.all("div", "words")
    assert [p.text for p in box.all("p")] == ["One.", evil, "MNIST. Own."]
    assert page.all("h2")[-1].text == "Fair tuning"
    with pytest.raises(InvalidInput, match="the note 'table-rho' is a int"):
        render_reproduction({}, {"table-rho": 3})  # type: ignore[dict-item]


def test_page_says_where_every_document_comes_from() -> None:
    documents = fake_documents()
    documents["table-p-mnist"] |= {"machine": "a laptop", "commit": "", "command": ""}
    listed = [words(n) for n in page_of(documents).all("ul", "ran")[0].all("li")]
    assert len(listed) == 2
    both = "".join(listed)
    assert all(name in both for name in documents)
    assert "unwalk reproduce all --seeds 3" in listed[0]
    assert "command not recorded" in listed[1]


def test_documents_of_one_experiment_join_and_seeds_count_once() -> None:
    one = fake_documents(("paper-matched",))["table-rho-mnist"]
    other = fake_documents(("paper",))["table-rho-mnist"]
    joined = reproduction_rows({"table-rho-mnist": one, "table-rho-mnist-paper": other})
    both = fake_documents(("paper", "paper-matched"))["table-rho-mnist"]
    assert len(joined) == len(reproduction_rows({"table-rho-mnist": both}))
    with pytest.raises(InvalidInput, match=r"has seed 0 of baseline .* twice"):
        reproduction_rows({"table-rho-mnist": one, "table-rho-mnist-again": one})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("table-x-mnist", {}, "a document is named 'table-x-mnist'"),
        ("table-rho-mnist", {"rows": []}, "table-rho-mnist has no rows"),
        ("table-rho", {"rows": [{}]}, "table-rho has no task"),
        ("table-rho-mnist", [], "table-rho-mnist holds a list; allowed: an object."),
        ("table-rho-mnist", {"rows": [{"row": "5", "clean": 99.1}]}, "a fraction in [0, 1]"),
        ("table-rho-mnist", {"rows": [{"clean": 0.9}]}, "allowed: the row of a table."),
        ("figure1-mnist", {"rows": [{"method": "rrdu"}]}, "allowed: a method at a hop."),
    ],
)
def test_bad_documents_are_refused_in_one_sentence(name: str, content: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)):
        render_reproduction({name: content})


def test_rendering_changes_nothing_and_repeats(documents: dict[str, Json]) -> None:
    before = json.dumps(documents)
    first = render_reproduction(documents, None, REPORTED)
    assert json.dumps(documents) == before
    assert render_reproduction(copy.deepcopy(documents), None, REPORTED) == first


@pytest.mark.parametrize(
    "palette",
    [page.LIGHT | page.LIGHT_MARKS, page.DARK | page.DARK_MARKS],
    ids=["light", "dark"],
)
def test_marks_have_contrast(palette: dict[str, str]) -> None:
    for kind in ("agree", "near", "differ"):
        for ground in (f"{kind}-tint", "card"):
            light, dark = sorted((luminance(palette[kind]), luminance(palette[ground])))[::-1]
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (kind, ground)


@pytest.mark.parametrize("case", ["usual", "one seed", "digits", "holes", "nothing"])
def test_terminal_table_fits_eighty_columns(case: str) -> None:
    documents = CASES[case]()
    console = Console(width=80, record=True)
    with console.capture() as capture:
        console.print(reproduction_table(documents, REPORTED))
    text = capture.get()
    assert "…" not in text
    lines = text.splitlines()
    for row in reproduction_rows(documents, REPORTED):
        if row["measure"] == "clean" and row["mean"] is not None:
            std = "" if row["std"] is None else f"±{row['std']:.1f}"
            assert any(f"{row['mean']:.1f}{std}" in line for line in lines)
            assert row["agreement"] is None or any(SIGNS[row["agreement"]] in n for n in lines)
