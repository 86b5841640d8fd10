"""A certificate as a page: what the check found comes first, and nothing looks better than it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.runs.small import small_run
from unwalk.certificates.document import text_of
from unwalk.certificates.words import in_words
from unwalk.cli import app
from unwalk.reports.certificate_page import render_certificate

FLAT: dict[str, Any] = {
    "preset": "certified",
    "task": "digits-flat",
    "peers": 4,
    "train.hops": 5,
    "unlearn.hops": 2,
    "compare": "none",
}
INTACT: dict[str, Any] = {"signer": "ab:cd", "trusted": True, "words": ["exact: so it is"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "exact"
    small_run(FLAT, out=out, method="restart")
    return out


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "certificate.json").read_text())
    return found


def text(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page.split("</style>")[1]).split())


def made(document: dict[str, Any], **checked: Any) -> str:
    return render_certificate(document, in_words(document), {**INTACT, **checked}, "2026-01-02")


def test_it_answers_who_what_to_whom_and_how_to_check(document: dict[str, Any]) -> None:
    page = text(made(document))
    order = ["Checked and intact", "= exact", "The request", "Peer 0 asked that the model forget 1"]
    order += ["What was done", "The old model was discarded", "What is guaranteed, and to whom"]
    order += ["What is not guaranteed", "The check", "made on 2026-01-02", "unwalk verify FOLDER"]
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    assert document["model"]["sha256"] in page
    assert "delta =" not in page.split("For specialists")[0]


@pytest.mark.parametrize(
    ("checked", "heading", "conditional"),
    [
        ({}, "Checked and intact", False),
        ({"signer": None, "trusted": False}, "Not signed", True),
        ({"trusted": False}, "Intact, signer not checked", True),
        ({"not_checked": ["the MODEL: it is not beside it"]}, "Intact, not all was checked", True),
        ({"not_checked": ["revocation: that needs --network"]}, "Checked and intact", False),
    ],
)
def test_it_never_looks_better_than_what_was_checked(
    document: dict[str, Any], checked: dict[str, Any], heading: str, conditional: bool
) -> None:
    page = made(document, words=["This holds only if"], **checked)
    assert heading in page
    story = page.split('class="story"')[1]
    assert story.startswith(">This holds only if") == conditional
    assert ('class="state open"><b>= exact' in page) == conditional


def test_a_changed_certificate_shows_nothing_of_its_claims(document: dict[str, Any]) -> None:
    page = made(document, problems=["claims[0].grade is 'exact'; the transcript gives 'refused'"])
    assert "Do not rely on this" in page
    assert "Guaranteed to" not in page
    assert document["model"]["sha256"] not in page


def test_grades_look_different_at_first_sight(document: dict[str, Any]) -> None:
    refused: dict[str, Any] = {
        "grade": "refused",
        "epsilon": None,
        "delta": None,
        "accountant": "none",
    }
    refused |= {"assumptions": (), "reason": "Hop 1 is bare.", "code": "no-noise"}
    bare = {**document, "claims": [refused]}
    page = made(bare)
    assert "<h1>Forgetting without a guarantee</h1>" in page
    assert 'class="state refused"' in page
    certified = {**document["claims"][-1], "grade": "certified", "epsilon": 1.0, "delta": 1e-5}
    rehearsed = {**document, "claims": [certified], "noise": {**document["noise"]}}
    rehearsed["noise"]["origin"] = "simulation"
    rehearsed["redraws"] = {**document["redraws"], "register": "none"}
    assert "<h1>Rehearsal of a certificate</h1>" in made(rehearsed)


def test_every_text_is_escaped(document: dict[str, Any]) -> None:
    evil = "<script>alert(1)</script>"
    hostile = {**document, "model": {"file": "m", "sha256": evil}, "unwalk": evil}
    page = made(hostile, signer=evil, checked=[evil], not_checked=[evil], stated=[evil])
    assert evil not in page
    assert page.count("&lt;script&gt;") > 4


def test_verify_writes_it(folder: Path, tmp_path: Path) -> None:
    def call(*words: object) -> Any:
        return CliRunner().invoke(app, ["verify", *map(str, words)])

    out = tmp_path / "page.html"
    answer = call(folder, "--html", out)
    assert answer.exit_code == 3
    assert answer.output.rstrip().endswith(f"page: {out}")
    assert "Nobody stands for what is written here." in out.read_text()
    for wrong in (out, tmp_path / "nowhere" / "page.html"):
        before = out.read_text()
        assert "allowed: a new file" in str(call(folder, "--html", wrong).exception)
        assert out.read_text() == before
    certificate = json.loads((folder / "certificate.json").read_text())
    del certificate["done"]
    broken = tmp_path / "certificate.json"
    broken.write_text(text_of(certificate))
    answer = call(broken, "--html", tmp_path / "broken.html")
    assert answer.exit_code == 1
    assert "changed: done is missing." in answer.output
    assert not (tmp_path / "broken.html").exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"threat_model": None}, "threat_model is None; allowed: an object."),
        ({"claims": [{"grade": "exact"}]}, "claims[0].code is missing."),
    ],
)
def test_verify_of_a_mistyped_certificate_is_a_sentence(
    document: dict[str, Any], tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    place, page = tmp_path / "certificate.json", tmp_path / "page.html"
    place.write_text(text_of({**document, **change}))
    for more in ([], ["--html", str(page)]):
        result = CliRunner().invoke(app, ["verify", str(place), *more])
        assert result.exit_code == 1
        assert f"changed: {problem}" in result.output
    assert not page.exists()
