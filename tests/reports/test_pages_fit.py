"""Pages in a browser: no line of a certificate is cut off on a phone, no table wastes room."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers.browser import Browser, chromium
from tests.runs.small import small_run
from unwalk.certificates.words import in_words
from unwalk.reports.certificate_page import render_certificate
from unwalk.reports.evaluation_page import render_evaluation

CUT = """
return [...document.querySelectorAll("p, li, dd, h1, h2, h3")]
  .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)
"""
SAID = "8 models a side, too few to be level: it saturates"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("downloads")) as found:
        yield found


def test_a_phone_shows_every_line_of_a_certificate(browser: Browser, tmp_path: Path) -> None:
    small_run(method="restart", out=tmp_path / "run")
    document = json.loads((tmp_path / "run" / "certificate.json").read_text())
    signer = "4752fd87" * 8
    checked = {"signer": signer, "trusted": False, "words": [f"This holds only if {signer} signed"]}
    page = tmp_path / "certificate.html"
    page.write_text(render_certificate(document, in_words(document), checked, "2026-01-02"))
    browser.look(width=420)
    browser.open(page.as_uri())
    assert browser.script(CUT) == []


def test_an_evaluation_needs_no_scrolling_on_a_screen(browser: Browser, tmp_path: Path) -> None:
    numbers = dict.fromkeys(("gap", "gap_low", "gap_high", "value", "low", "high"), 0.512)
    row: dict[str, Any] = {"measure": "U-LiRA", "unit": "", "label": "before forgetting"}
    row |= {**numbers, "retraining": 0.5, "side": "over-unlearned", "note": SAID}
    result = {"task": "t.csv", "records": 5, "members": 16, "rows": [row], "warnings": []}
    page = tmp_path / "evaluate.html"
    page.write_text(render_evaluation({**result, "command": "", "unwalk": "1"}))
    browser.look(width=1280)
    browser.open(page.as_uri())
    table = "const e = document.querySelector('.scroll'); return [e.scrollWidth, e.clientWidth]"
    needs, has = browser.script(table)
    assert needs <= has
