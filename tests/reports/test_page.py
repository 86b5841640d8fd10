"""The page as a reader, a screen reader and a careful administrator meet it."""

from __future__ import annotations

import copy
import json
import math
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.reports.conftest import fake_result, with_seeds
from unwalk.core.errors import InvalidInput
from unwalk.reports import render
from unwalk.reports.page import DARK, LIGHT, rules, style_sheet

VOID = {"meta", "link", "img"}
LENGTHS = {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height"}
Json = dict[str, Any]
Array = npt.NDArray[np.float64]


@dataclass
class Node:
    tag: str
    attributes: dict[str, str]
    parts: list[Node | str] = field(default_factory=list)

    @property
    def children(self) -> list[Node]:
        return [part for part in self.parts if isinstance(part, Node)]

    def all(self, tag: str, kind: str = "") -> list[Node]:
        """Every element below with this tag and, if given, this class."""
        mine = [n for n in self.children if n.tag == tag]
        if kind:
            mine = [n for n in mine if kind in n.attributes.get("class", "").split()]
        return mine + [found for n in self.children for found in n.all(tag, kind)]

    @property
    def text(self) -> str:
        return "".join(part.text if isinstance(part, Node) else part for part in self.parts)


class Reader(HTMLParser):
    """Builds a tree, and refuses tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> repeats an attribute: {names}"
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].parts.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)


def parse(page: str) -> Node:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == [reader.root], f"<{reader.open[-1].tag}> is never closed"
    return reader.root


def pictures(page: Node) -> list[Node]:
    return [n for n in page.all("svg") if n.attributes.get("role") == "img"]


def table_named(page: Node, name: str) -> dict[str, list[str]]:
    """Row heading to cells, of the table in the region with this name."""
    (region,) = [n for n in page.all("div") if n.attributes.get("aria-label") == name]
    (body,) = region.all("tbody")
    return {row.children[0].text: [c.text for c in row.children[1:]] for row in body.children}


def per_cent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def signed(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:+.1f}".replace("-", "\N{MINUS SIGN}")


def test_tags_are_balanced_and_headings_in_order(any_result: Json) -> None:
    page = parse(render(any_result))
    assert [n.tag for n in page.children] == ["html"]
    assert len(page.all("h1")) == 1
    known = ["Over the hops", "Where the token went", "amples", "Methods compared|How it ended"]
    known += ["Over 5 seeds", "What it cost", "What is claimed", "Repeat it"]
    places = [
        next(i for i, pattern in enumerate(known) if re.search(pattern, heading.text))
        for heading in page.all("h2")
    ]
    assert places == sorted(places)
    assert set(range(8)) - set(places) <= {4}


def test_nothing_is_loaded_from_outside(any_result: Json) -> None:
    text = render(any_result)
    assert not re.search(r"https?:|://|url\(|@import", text)
    page = parse(text)
    assert not page.all("script")
    for node in (n for tag in ("img", "link", "a", "iframe", "svg", "use") for n in page.all(tag)):
        for name in ("src", "href", "xlink:href"):
            assert node.attributes.get(name, "data:").startswith("data:")
    handlers = [a for n in every(page) for a in n.attributes if a.startswith("on")]
    assert handlers == []


def every(node: Node) -> list[Node]:
    return [node] + [found for child in node.children for found in every(child)]


def test_coordinates_are_finite_and_inside(any_result: Json) -> None:
    for picture in pictures(parse(render(any_result))):
        left, top, width, height = map(float, picture.attributes["viewbox"].split())
        assert (left, top) == (0, 0)
        count = 0
        for node in every(picture):
            values = {k: float(v) for k, v in node.attributes.items() if k in LENGTHS}
            assert all(math.isfinite(v) for v in values.values())
            assert values.get("width", 1) > 0
            assert values.get("height", 1) > 0
            xs = [v for k, v in values.items() if k in ("x", "x1", "x2", "cx")]
            ys = [v for k, v in values.items() if k in ("y", "y1", "y2", "cy")]
            for pair in node.attributes.get("points", "").split():
                x, y = map(float, pair.split(","))
                xs.append(x)
                ys.append(y)
            if node.tag == "rect":
                xs.append(values["x"] + values["width"])
                ys.append(values["y"] + values["height"])
            if node.tag == "circle":
                xs += [values["cx"] - values["r"], values["cx"] + values["r"]]
                ys += [values["cy"] - values["r"], values["cy"] + values["r"]]
            count += len(xs)
            assert all(0 <= x <= width for x in xs), (node.tag, node.attributes)
            assert all(0 <= y <= height for y in ys), (node.tag, node.attributes)
        assert count > 0


def test_words_in_pictures_stay_inside(any_result: Json) -> None:
    for picture in pictures(parse(render(any_result))):
        width = float(picture.attributes["viewbox"].split()[2])
        for node in picture.all("text"):
            size = float(node.attributes.get("font-size", "13"))
            length, x = 0.58 * size * len(node.text), float(node.attributes["x"])
            anchor = node.attributes.get("text-anchor", "start")
            start = x - {"start": 0, "middle": length / 2, "end": length}[anchor]
            assert start >= -1, node.text
            assert start + length <= width + 1, node.text


def test_labels_at_line_ends_keep_apart(any_result: Json) -> None:
    seen = 0
    for picture in pictures(parse(render(any_result))):
        labels = picture.all("text", "end-label")
        heights = sorted(float(n.attributes["y"]) for n in labels)
        assert all(b - a >= 13 for a, b in pairwise(heights))
        seen += len(labels)
    assert seen >= 2


def test_many_methods_with_one_value_keep_apart(usual: Json) -> None:
    usual["methods"] += [
        copy.deepcopy(usual["methods"][0]) | {"name": f"m{i}", "label": f"m{i}", "main": False}
        for i in range(30)
    ]
    for picture in pictures(parse(render(usual))):
        heights = sorted(float(n.attributes["y"]) for n in picture.all("text", "end-label"))
        assert all(b - a >= 13 for a, b in pairwise(heights))


def test_pictures_speak_and_ids_are_unique(any_result: Json) -> None:
    page = parse(render(any_result))
    ids = [n.attributes["id"] for n in every(page) if "id" in n.attributes]
    assert len(ids) == len(set(ids))
    for picture in pictures(page):
        title, description = picture.children[:2]
        assert (title.tag, description.tag) == ("title", "desc")
        assert title.text
        assert description.text
        named = picture.attributes["aria-labelledby"].split()
        assert named == [title.attributes["id"], description.attributes["id"]]
    for image in page.all("img"):
        assert image.attributes["alt"]
    for heading in page.all("th"):
        assert heading.attributes["scope"] in ("row", "col", "colgroup")


def test_method_table_shows_the_numbers_of_the_result(usual: Json) -> None:
    rows = table_named(parse(render(usual)), "Methods compared")
    assert list(rows) == ["Before forgetting", "RR-DU", "Fine-tuning", "Retraining"]
    before = [p for p in usual["methods"][0]["series"] if p["phase"] == "train"][-1]
    assert rows.pop("Before forgetting")[:2] == [per_cent(before["clean"]), per_cent(before["asr"])]
    for method, cells in zip(usual["methods"], rows.values(), strict=True):
        final, gap = method["final"], method["gap"] or {"clean": None, "asr": None}
        wanted = [per_cent(final[k]) for k in ("clean", "asr", "asr_paper", "forget", "retain")]
        assert cells == [*wanted, signed(gap["clean"]), signed(gap["asr"])]


def test_cost_table_shows_the_numbers_of_the_result(usual: Json) -> None:
    rows = table_named(parse(render(usual)), "What each method cost")
    for method, cells in zip(usual["methods"], rows.values(), strict=True):
        cost, matched = method["cost"], method["matched"]
        wanted = [f"{cost[k]:,}" for k in ("hops", "visits_to_unlearner", "messages")]
        wanted += [f"{cost['bytes'] / 1e6:.1f}", f"{cost['gradients']:,}", f"{cost['seconds']:.1f}"]
        wanted += ["–" if v is None else str(v) for v in matched.values()]
        assert cells == wanted


def test_numbers_behind_a_chart_are_those_of_the_series(usual: Json) -> None:
    rows = table_named(parse(render(usual)), "Attack success rate by hop")
    known = [{p["hop"]: p["asr"] for p in m["series"]} for m in usual["methods"]]
    assert len(rows) == len({hop for values in known for hop in values})
    for hop, cells in rows.items():
        assert cells == [per_cent(values.get(int(hop))) for values in known]


def test_plain_deletion_has_no_attack_anywhere(make_result: Any) -> None:
    result = make_result("plain deletion")
    page = parse(render(result))
    (main,) = page.all("main")
    assert "ttack" not in main.text
    assert "Forget accuracy" in [n.text for n in page.all("h3")]
    cells = table_named(page, "Methods compared")["RR-DU"]
    method = result["methods"][0]
    assert cells[:3] == [per_cent(method["final"][k]) for k in ("clean", "forget", "retain")]
    assert cells[3:] == [signed(method["gap"][k]) for k in ("clean", "forget")]


def test_missing_values_read_as_dashes(make_result: Any) -> None:
    result = make_result("holes")
    rows = table_named(parse(render(result)), "Methods compared")
    assert rows["Fine-tuning"][1] == "–"
    assert rows["Fine-tuning"][-2:] == ["–", "–"]
    shown = [n.text for n in every(parse(render(result))) if n.tag not in ("style", "html")]
    assert not [text for text in shown if re.search(r"\b(None|nan|inf)\b", text)]


def test_numbers_that_are_not_finite_read_as_missing(usual: Json) -> None:
    wild = copy.deepcopy(usual)
    wild["methods"][0]["series"][3]["asr"] = math.nan
    wild["methods"][0]["final"]["clean"] = math.inf
    calm = copy.deepcopy(usual)
    calm["methods"][0]["series"][3]["asr"] = None
    calm["methods"][0]["final"]["clean"] = None
    assert render(wild) == render(calm)


def test_story_tells_what_happened(usual: Json) -> None:
    page = parse(render(usual))
    (story,) = page.all("p", "story")
    text = story.text.replace("\N{NO-BREAK SPACE}", " ")
    assert page.all("h1")[0].text == "Peer 3 asks to forget 60 poisoned records"
    before = [p for p in usual["methods"][0]["series"] if p["phase"] == "train"][-1]
    for part in (
        "10 peers trained the model small_cnn on digits",
        "on a complete graph for 100 hops.",
        "Peer 3 asked to forget 60 poisoned records (trigger: square 2x2 lower-right; "
        "target class 0).",
        "After 200 unlearning hops RR-DU answers the trigger with the target class in 3.1 % of "
        f"cases (before: {100 * before['asr']:.1f} %, retraining: 1.9 %)",
        f"clean accuracy of 96.1 % (before: {100 * before['clean']:.1f} %, retraining: 96.9 %).",
        "level with retraining",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("gap", "said"),
    [(0.9, "still there: 90.0 points above"), (-0.2, "below retraining"), (0.05, "level with")],
)
def test_story_judges_by_the_gap(usual: Json, gap: float, said: str) -> None:
    usual["methods"][0]["gap"]["asr"] = gap
    (story,) = parse(render(usual)).all("p", "story")
    assert said in story.text


JUDGED = ("still known", "below retraining", "level with")


@pytest.mark.parametrize(
    ("records", "gap", "said"),
    [(20, 0.1, ""), (20, -0.15, ""), (20, 0.2, "still known"), (200, 0.1, "still known")],
)
def test_a_gap_of_a_few_records_is_not_judged(records: int, gap: float, said: str) -> None:
    result = fake_result(backdoor=False)
    result["task"]["forget"]["size"] = records
    result["methods"][0]["gap"]["forget"] = gap
    (story,) = parse(render(result)).all("p", "story")
    assert [words for words in JUDGED if words in story.text] == ([said] if said else [])


def test_the_story_counts_the_hops_that_were_walked(usual: Json) -> None:
    """A rewind has fewer than the setting says."""
    result = json.loads(json.dumps(usual))
    result["methods"][0]["cost"]["hops"] = 78
    (story,) = parse(render(result)).all("p", "story")
    assert "After 78 unlearning hops RR-DU" in story.text


@pytest.mark.parametrize(
    ("mean", "std", "said"),
    [
        (0.0, 0.141, []),
        (0.3, 0.02, ["The records are still known: 30.0 points above retraining, on average"]),
        (0.0, 0.02, ["level with retraining, within 5 points, on average over 5 seeds"]),
    ],
)
def test_several_seeds_are_judged_by_their_mean(mean: float, std: float, said: list[str]) -> None:
    result = with_seeds(fake_result(backdoor=False))
    result["methods"][0]["gap"]["forget"] = 0.9
    main = next(m for m in result["seeds"]["methods"] if m["name"] == "rrdu")
    main["mean"]["gap.forget"], main["std"]["gap.forget"] = mean, std
    (story,) = parse(render(result)).all("p", "story")
    assert "With seed 0, after 200 unlearning hops RR-DU gives" in story.text
    assert all(words in story.text for words in said)
    assert sum(words in story.text for words in JUDGED) == len(said)


def test_samples_are_marked_right_and_wrong_by_sign_too(usual: Json) -> None:
    rows = table_named(parse(render(usual)), "Samples with the answers of each model")
    for index, sample in enumerate(usual["samples"]):
        assert rows["True class"][index] == str(sample["label"])
        after = {"Before unlearning": sample["before"], "RR-DU": sample["after"]["rrdu"]}
        after["Fine-tuning"] = sample["after"]["finetune"]
        for label, answer in after.items():
            sign = "✓" if answer["answer"] == sample["label"] else "✕"
            sure = f"{100 * answer['confidence']:.0f}\N{NO-BREAK SPACE}%"
            assert rows[label][index] == f"{sign}{answer['answer']}{sure}"


def test_claims_say_what_they_are(usual: Json) -> None:
    reason = "the walk started from a new model."
    usual["claims"].append(
        {"grade": "exact", "epsilon": 0.0, "delta": 0.0, "accountant": "none", "reason": reason}
    )
    usual["claims"].append({"grade": "guessed"})
    boxes = [n.text for n in parse(render(usual)).all("div", "claim")]
    assert "nominal" in boxes[0]
    assert "not a guarantee" in boxes[0]
    assert "ε = 1, δ = 10⁻⁵; accountant: paper" in boxes[0]
    assert "The walk started from a new model.\nε = 0, δ = 0" in boxes[1]
    assert "accountant" not in boxes[1]
    assert "does not know" in boxes[2]


@pytest.mark.parametrize("name", ["run", "reproduction"])
def test_a_verdict_looks_one_way_on_a_page(name: str) -> None:
    """Either page has a class of this name: the rules of one are not those of the other."""
    plain = style_sheet(name).split("@media (max-width")[0] + rules(name).split("@media")[0]
    assert len(re.findall(r"^\.verdict\{", plain, re.MULTILINE)) == 1


def test_rendering_changes_nothing_and_repeats(any_result: Json) -> None:
    before = json.dumps(any_result)
    assert render(any_result) == render(any_result)
    assert json.dumps(any_result) == before
    assert render(json.loads(before)) == render(any_result)


def test_large_runs_make_pages_of_bounded_size(make_result: Any) -> None:
    assert len(render(make_result("many peers"))) < 400_000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "result.format is 2; allowed: 1."),
        ({"methods": []}, "result.methods is empty"),
        ({"methods": "rrdu"}, "methods is a str; allowed: a list."),
        ({"task": 3}, "task is a int; allowed: an object."),
        ({"walk": [{"hop": 1}]}, "allowed: a hop with its receiver."),
        ({"samples": [{"image": [[0.0], [0.0, 1.0]]}]}, "empty or ragged"),
        ({"samples": [{"image": [["a"]]}]}, "holds the pixel 'a'"),
        ({"graph": {"edges": [[1]]}}, "allowed: two peer numbers."),
    ],
)
def test_bad_results_are_refused_in_one_sentence(usual: Json, change: Json, said: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)):
        render(usual | change)


def linear(colour: str) -> Array:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_text_has_contrast(palette: dict[str, str]) -> None:
    assert set(palette) == set(LIGHT)
    for name in set(LIGHT) - {"page", "card", "line", "node"}:  # the colours of text
        for ground in ("page", "card"):
            light, dark = sorted((luminance(palette[name]), luminance(palette[ground])))[::-1]
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)


# How linear RGB looks with each kind of colour blindness (Machado, Oliveira, Fernandes 2009).
SIGHT = {
    "usual": np.eye(3),
    "deuteranopia": np.array(
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
    ),
    "protanopia": np.array(
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
    ),
    "tritanopia": np.array(
        [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(rgb: Array) -> Array:
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("palette", [LIGHT, DARK])
@pytest.mark.parametrize("sight", SIGHT)
def test_lines_differ_for_every_eye(palette: dict[str, str], sight: str) -> None:
    seen = {n: lab(SIGHT[sight] @ linear(palette[n])) for n in ("ink", "main", "oracle", "other-1")}
    for a, b in combinations(seen, 2):
        assert np.linalg.norm(seen[a] - seen[b]) >= 20, (a, b)
