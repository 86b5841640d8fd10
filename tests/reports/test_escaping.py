"""Words from data stay words on both pages: the templates escape them, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.reports.conftest import CASES
from tests.reports.reproduction_fakes import REPORTED, fake_documents
from tests.reports.test_page import Json, every, parse
from tests.reports.test_reproduction_beside import (
    GRID,
    precise,
    readings_document,
    timing,
)
from unwalk.reports import page, render
from unwalk.reports.reproduction_page import render_reproduction

EVIL = "</style></title><script>alert('x')</script><img src=x onerror=\"y\">&amp;"
CALM = "(plain) and calm"  # as many words, each an element in a command; no name of a setting


def filled(value: Any, text: str) -> Any:
    """``value`` with ``text`` at the end of every string in it, keys left alone."""
    if isinstance(value, dict):
        return {key: filled(one, text) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [filled(one, text) for one in value]
    return value + text if isinstance(value, str) else value


def run_page(text: str) -> str:
    result = filled(CASES["seeds"](), text)
    asked = ["One thing.", "Another."]
    words = {"asked": asked, "done": asked[:1], "promised": asked, "verdict": ["No.", "Set a.b=c."]}
    document = {"signer": {"fingerprint": "abc"}, "noise": {"origin": "secret"}}
    result["certificate"] = filled({"document": document, "words": words, "worth": "Yes."}, text)
    result["claims"] += filled([{"grade": "exact", "code": "a", "reason": "b"}], text)
    for number, method in enumerate(result["methods"]):
        method["preset"] = f"{number}{text}"
    return render(result)


def reproduction_page(text: str) -> str:
    documents: dict[str, Json] = fake_documents(("paper", "paper-matched"))
    for name in ("table-p-cifar10", "table-l-mnist"):
        del documents[name]
    for name, document in documents.items():
        known = name.startswith("figure1-mnist")
        task = document["task"]
        document |= filled(document | {"settings": {"a.b": "c"}}, text)
        document["task"] = task if known else document["task"]
        document["settings"][f"key{text}"] = text
    tried = {
        "readings-mnist": filled(readings_document(), text),
        "tuning-mnist": filled(GRID, text),
        "precision-mnist": filled(precise([90.0, 91.0], [90.0, 91.0]), text)
        | {"rows": precise([90.0, 91.0], [80.0, 80.1])["rows"]},
    }
    tried["precision-mnist"]["rows"] += [
        row | {"method": f"own{text}"} for row in tried["precision-mnist"]["rows"]
    ]
    call = timing("mnist", "2026-01-01T10:00:00+00:00", 9.0, "figure1-rrdu-0")
    times = {
        "timing-a": call | {"task": f"mnist{text}", "preset": f"paper{text}"},
        "timing-b": call,
    }
    notes = {"overview": text, "table-rho": text, "tuning": text, f"other {text}": text}
    return render_reproduction(documents, notes, REPORTED, tried, times)


PAGES = {"run": run_page, "reproduction": reproduction_page}


def shape(text: str) -> list[tuple[str, list[str]]]:
    """Every element with the names of its attributes."""
    return [(node.tag, sorted(node.attributes)) for node in every(parse(text))]


@pytest.mark.parametrize("make", PAGES.values(), ids=PAGES)
def test_hostile_words_stay_words(make: Callable[[str], str]) -> None:
    wild = make(EVIL)
    assert shape(wild) == shape(make(CALM))
    assert wild.count("&lt;script&gt;") > 50
    assert "<script>" not in wild


@pytest.mark.parametrize("make", PAGES.values(), ids=PAGES)
def test_it_is_the_template_that_escapes(
    make: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With autoescape off the check above finds it: the page gets elements from data."""
    careless = page.environment().overlay(autoescape=False)
    monkeypatch.setattr(page, "environment", lambda: careless)
    assert make(EVIL).count("<script>") > 50


def test_the_command_is_shown_letter_by_letter() -> None:
    result = CASES["usual"]() | {"command": EVIL}
    assert parse(render(result)).all("pre")[0].text == EVIL
