"""Tables and pictures as files: the numbers of the result, and nothing else."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest

from unwalk.cli.terminal import export_to
from unwalk.core.errors import InvalidInput
from unwalk.reports.exports import (
    FORMATS,
    Exported,
    Report,
    drawings_of,
    export,
    formats_of,
    sheets_of,
    tex,
    tex_text,
)
from unwalk.reports.tables import Body, Cell, Head, Row, Table

Json = dict[str, Any]


@pytest.fixture
def swept() -> Json:
    ends = {"clean": 0.9, "asr": 0.1, "gap.clean": -0.01, "cost.hops": 20.0}
    row = {
        "name": "rrdu",
        "label": "RR-DU",
        "runs": 2,
        "grade": "nominal",
        "mean": ends,
        "std": dict.fromkeys(ends, 0.02),
        "interval": {"gap.clean": [-0.03, 0.01]},
        "settings": [{"unlearn.p": 0.1}, {"unlearn.p": 0.2}],
    }
    failed = {"name": "seal", "label": "seal", "reason": "no 100 % & no_head", "seeds": [0, 1]}
    return {
        "task": "digits",
        "grid": {"unlearn.p": [0.1, 0.2]},
        "seeds": [0, 1],
        "rows": [row],
        "failed": [{**failed, "settings": [{"unlearn.p": 0.1}]}],
    }


def columns(line: str) -> int:
    """How many columns a line of a TeX table fills."""
    spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
    return len(re.split(r"(?<!\\)&", line)) + sum(n - 1 for n in spans)


def tex_lines(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if line.endswith(r" \\"))


def test_every_table_and_picture_is_written_in_every_format(make_result: Any, tmp_path) -> None:
    result = make_result("seeds")
    files = export(result, tmp_path / "export", ",".join(FORMATS))
    assert sorted(tmp_path.joinpath("export").iterdir()) == sorted(files)
    names: dict[str, set[str]] = {path.suffix[1:]: set() for path in files}
    for path in files:
        names[path.suffix[1:]].add(path.stem)
    assert set(names) == set(FORMATS)
    sheets = {one.name for one in sheets_of(result)}
    assert {"methods", "costs", "series", "walk", "claims", "seeds"} <= sheets
    assert names["csv"] == names["json"] == sheets
    assert names["svg"] == names["pdf"] == names["png"] == {d.name for d in drawings_of(result)}
    assert {"clean", "asr", "pareto"} <= names["svg"]
    for path in files:
        content = path.read_bytes()
        if path.suffix == ".pdf":
            assert content.startswith(b"%PDF")
        if path.suffix == ".png":
            assert content.startswith(b"\x89PNG")


def test_csv_and_json_hold_the_numbers_as_they_were_measured(usual: Json, tmp_path) -> None:
    export(usual, tmp_path, "csv,json")
    with (tmp_path / "methods.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    told = json.loads((tmp_path / "methods.json").read_text())
    assert len(lines) == len(told) == len(usual["methods"])
    for method, line, other in zip(usual["methods"], lines, told, strict=True):
        assert line["name"] == other["name"] == method["name"]
        for key, value in method["final"].items():
            assert float(line[key]) == other[key] == value
    points = json.loads((tmp_path / "series.json").read_text())
    assert len(points) == sum(len(m["series"]) for m in usual["methods"])
    assert points[0] == {"name": "rrdu", **usual["methods"][0]["series"][0]}


def test_pictures_stand_alone(any_result: Json) -> None:
    for drawing in drawings_of(any_result):
        root = ElementTree.fromstring(drawing.svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(" not in drawing.svg
        for element in root.iter("{http://www.w3.org/2000/svg}svg"):
            if element is not root:
                assert float(element.attrib["x"]) + float(element.attrib["width"]) <= float(
                    root.attrib["width"]
                )


def test_odd_results_are_exported_too(any_result: Json, tmp_path) -> None:
    assert export(any_result, tmp_path, "csv,json,tex,svg")
    for path in tmp_path.glob("*.tex"):
        lines = list(tex_lines(path.read_text()))
        assert lines
        assert len({columns(line) for line in lines}) == 1, path.name


def test_a_sweep_has_its_points_and_what_failed(swept: Json, tmp_path) -> None:
    names = {path.name for path in export(swept, tmp_path, "csv,tex,svg")}
    assert names == {"sweep.csv", "failed.csv", "sweep.tex"}
    with (tmp_path / "sweep.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["unlearn.p"] for line in lines] == ["0.1", "0.2"]
    assert float(lines[0]["gap.clean low"]) == -0.03
    assert r"No 100 \% \& no\_head" in (tmp_path / "sweep.tex").read_text()


def test_a_format_without_a_file_is_named(swept: Json, tmp_path, capsys) -> None:
    export_to(tmp_path, "csv,svg", swept)
    said = capsys.readouterr().err
    assert said == f"exported: 2 files in {tmp_path / 'export'}; no picture for svg\n"


def test_tex_escapes_what_tex_reads() -> None:
    assert tex_text(r"a\b {50 %} $x_1^2 #~&") == (
        r"a\textbackslash{}b \{50 \%\} \$x\_1\textasciicircum{}2 \#\textasciitilde{}\&"
    )
    assert tex_text("−0.3 ± 0.1") == r"$-$0.3 $\pm$ 0.1"


def test_tex_sets_groups_and_titles_over_the_right_columns() -> None:
    row = Row(Cell("a_1"), [Cell("1"), Cell("2"), Cell("3")])
    heads = [Head("method"), Head("x", "%"), Head("y"), Head("z")]
    text = tex(Table("t", heads, [Body([row], "first")], [("", 1), ("both", 2)]))
    assert r" & \multicolumn{1}{c}{} & \multicolumn{2}{c}{both} \\" in text
    assert r"\cmidrule(lr){3-4}" in text
    assert r"\multicolumn{4}{l}{first} \\" in text
    assert r"a\_1 & 1 & 2 & 3 \\" in text


@pytest.mark.parametrize("given", ["", "csv,,svg", "docx", "csv,PDF"])
def test_other_formats_are_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match="allowed: csv, json, pdf, png, svg, tex"):
        formats_of(given)


def test_pdf_without_cairo_is_refused_before_anything_is_written(
    usual: Json, tmp_path, monkeypatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cairosvg", None)
    with pytest.raises(InvalidInput, match=r"install unwalk\[export\]"):
        export(usual, tmp_path / "new", "csv,pdf")
    assert not (tmp_path / "new").exists()


class Result(Exported):
    def __init__(self, result: Json) -> None:
        self.result = result


def test_a_frame_has_the_lines_of_a_table(usual: Json) -> None:
    frame = Result(usual).to_frame()
    assert list(frame["name"]) == ["rrdu", "finetune", "retrain"]
    assert math.isclose(frame["asr"][0], usual["methods"][0]["final"]["asr"])
    assert len(Result(usual).to_frame("walk")) == len(usual["walk"])
    with pytest.raises(InvalidInput, match="did you mean methods"):
        Result(usual).to_frame("method")


def test_a_notebook_shows_the_tables_and_escapes_them(usual: Json, swept: Json) -> None:
    usual["methods"][0]["label"] = "<script>"
    html = Result(usual)._repr_html_()
    assert html.count("<table") == 3
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    report = Report(swept)
    assert report["rows"]
    assert "<table" in report._repr_html_()
    assert list(report.to_frame()["unlearn.p"]) == [0.1, 0.2]
