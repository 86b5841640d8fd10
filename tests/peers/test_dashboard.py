"""The dashboard in a real browser: by eye, by keyboard, by screen reader, and to no outsider."""

from __future__ import annotations

import asyncio
import time
import zipfile
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.peers.browser import CONTRAST, FOCUSED, Browser, chromium
from tests.peers.memory_desk import MemoryDesk, Served, serving
from unwalk.peers.forgetting import request_form
from unwalk.peers.web import views as d

SIGNED_IN = "!document.querySelector('#dashboard').hidden"
NAMED = {"button", "textbox", "radio", "link", "image", "img", "region", "meter", "dialog",
         "columnheader", "heading", "DisclosureTriangle"}  # fmt: skip


def lively() -> MemoryDesk:
    """A desk with one of everything."""
    desk = MemoryDesk()
    for form in (
        request_form.RequestForm("first", ("r-1", "r-2"), "exact"),
        request_form.RequestForm("second", ("r-3",), "certified"),
        request_form.RequestForm("third", ("r-4",), "exact", method="rewind"),
        request_form.RequestForm("fourth", ("r-5",), "exact"),
    ):
        asyncio.run(desk.submit(form))
    desk.settle("first")
    desk.settle("second", "erasing", ("peer-4",))
    desk.settle("third", "refused")
    desk.peers[4] = replace(desk.peers[4], state="silent")
    desk.peers[3] = replace(desk.peers[3], state="left")
    desk.chapter = d.ChapterView(3, "forget", "walking", "peer-0", ("fourth",), "rewind", "exact")
    desk.accuracy += [d.AccuracyPoint(1, hop, 0.8 + hop / 100, 40) for hop in (2, 7, 11)]
    return desk


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("downloads")) as found:
        yield found


@pytest.fixture
def served(tmp_path):
    with serving(lively(), tmp_path) as found:
        yield found


@pytest.fixture
def page(browser, served):
    """The dashboard, let in."""
    browser.look()
    browser.open(f"{served.url}#token={served.token}")
    browser.until(SIGNED_IN)
    return browser


def press(browser: Browser, *keys: str) -> None:
    for key in keys:
        ActionChains(browser.driver).send_keys(key).perform()


def tab_to(browser: Browser, name: str, most: int = 60) -> dict[str, Any]:
    """Press Tab until the focus is on what is called ``name``."""
    for _ in range(most):
        press(browser, Keys.TAB)
        at = browser.script(FOCUSED)
        if at and at["name"] == name:
            return dict(at)
    raise AssertionError(f"{name} cannot be reached with the Tab key")


def test_everything_is_shown(page):
    assert page.text("h1") == "peer-0 in trial"
    assert page.text("#story").startswith("The token was last heard of at peer-2. Chapter 3")
    assert page.driver.title == "peer-0: hop 34 of 60 · unwalk"
    tiles = page.text("#tiles").split("\n")
    assert tiles[:3] == ["Token", "peer-2", "as last heard of"]
    assert tiles[tiles.index("Hop") + 1 :][:2] == ["34", "of 60, forgetting in chapter 3"]
    assert "91.0\N{NO-BREAK SPACE}%" in tiles
    assert tiles[tiles.index("Open requests") + 1 :][:2] == ["2", "1 done"]
    assert "ε 0.62" in tiles
    count = "return document.querySelectorAll(arguments[0]).length"
    assert page.script(count, "#graph .peer") == 5
    assert page.script(count, "#graph .edge") == 5
    assert page.script(count, "#graph .token") == 1
    assert page.script(count, "#graph .silent") == 1
    assert page.script(count, "#accuracy polyline") == 2
    assert page.script(count, "#peers tr") == 5
    assert "peer-1, peer-4" in page.text("#peers")
    assert page.script(count, "#accuracy-rows tr") == len(lively().accuracy)
    assert page.script(count, "#requests tr") == 4
    requests = page.text("#requests")
    for words in (
        "being erased everywhere",
        "the peer that keeps the first token has left",
        "done",
    ):
        assert words in requests
    assert "waits for peer-4" in page.text("#certificates")
    assert "0.62 of 1" in page.text("#privacy")
    spent = page.text("#privacy-total")
    assert spent.endswith("Not counted, since changed: chapter-9.")
    assert "=" not in spent, "formulas are folded"
    assert not page.script("return document.querySelector('#privacy-how').open")
    rule = page.script("return document.querySelector('#privacy-rule').textContent")
    assert "delta = max(" in rule


def test_the_token_is_asked_for_and_kept_out_of_the_address(browser, served):
    browser.look()
    browser.open(served.url)
    assert not browser.script(f"return {SIGNED_IN}")
    assert browser.script(FOCUSED)["name"] == "token"
    press(browser, *"wrong", Keys.ENTER)
    browser.until("document.querySelector('#enter-problem').textContent")
    assert browser.text("#enter-problem") == "This is not the access token of this peer."
    assert "peer-0" not in browser.script("return document.body.innerText")
    press(browser, *served.token, Keys.ENTER)
    browser.until(SIGNED_IN)
    browser.driver.refresh()
    browser.until(SIGNED_IN)
    browser.open(f"{served.url}#token={served.token}")
    browser.until(SIGNED_IN)
    assert browser.driver.current_url == served.url
    assert browser.script("return document.cookie + JSON.stringify(localStorage)") == "{}"
    tab_to(browser, "leave")
    press(browser, Keys.ENTER)
    browser.until(f"!({SIGNED_IN})")
    browser.driver.refresh()
    browser.until("!document.querySelector('#enter').hidden")
    assert not browser.script("return sessionStorage.length")


def test_a_full_disk_is_the_first_thing_that_is_said(page, served):
    served.desk.disk = "full"
    page.now()
    page.until(
        "document.querySelector('#story').textContent.startsWith('The disk of this peer is')"
    )
    assert "The token was last heard of at peer-2." in page.text("#story")
    served.desk.disk = "ok"
    page.now()
    page.until("document.querySelector('#story').textContent.startsWith('The token was last')")


def test_the_page_follows_and_says_what_changed(page, served):
    page.script("document.querySelector(\"[aria-label='Verify chapter-1.json']\").focus()")
    served.desk.token = d.TokenView("peer-0", True, 35, 60)
    served.desk.accuracy.append(d.AccuracyPoint(3, 35, 0.875, 40))
    page.until("document.querySelector('#story').textContent.startsWith('The token is here.')")
    assert "35\nof 60" in page.text("#tiles")
    assert "87.5" in page.text("#tiles")
    assert page.text("#news") == "The token is here."
    served.desk.settle("fourth")
    page.now()
    page.until("document.querySelectorAll('#certificates tr').length === 3")
    page.until("document.querySelector('#news').textContent === 'Request fourth: done.'")
    assert page.script(FOCUSED)["name"] == "Verify chapter-1.json"


def test_nobody_asks_while_nobody_looks(page, served):
    page.script("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.now()
    time.sleep(0.3)
    page.requested()
    time.sleep(2.2)
    assert not page.requested()
    page.script("Object.defineProperty(document, 'hidden', {value: false})")
    page.now()
    page.until("document.querySelector('#link').textContent === 'live'")
    assert f"{served.url}v1/status" in page.requested()


def test_a_peer_that_is_away_is_said_and_found_again(browser, tmp_path):
    browser.look()
    with serving(lively(), tmp_path) as served:
        browser.open(f"{served.url}#token={served.token}")
        browser.until(SIGNED_IN)
        assert browser.text("#link") == "live"
        address = f"127.0.0.1:{served.place[1]}"
    browser.now()
    browser.until("document.querySelector('#link').textContent.startsWith('no answer')")
    with serving(lively(), tmp_path, address=address):
        browser.now()
        browser.until("document.querySelector('#link').textContent === 'live'")


def test_the_whole_page_by_keyboard(page):
    first = tab_to(page, "Skip to the content")
    assert first["shown"]
    press(page, Keys.ENTER)
    assert page.script("return document.activeElement.id") == "main"
    seen = []
    for _ in range(40):
        press(page, Keys.TAB)
        at = page.script(FOCUSED)
        if at is None:
            break
        assert at["shown"], at
        assert at["outline"] != "none", at
        assert at["width"] >= 2, at
        seen.append(at["name"])
        if at["name"] == "leave":
            break
    wanted = ["Peers of the network", "Numbers behind this chart", "Ask to forget records",
              "Download chapter-2.json", "Verify chapter-2.json", "Download chapter-1.json",
              "HTTP interface", "leave"]  # fmt: skip
    assert [name for name in seen if name in wanted] == wanted


def test_a_request_by_keyboard(page, served):
    tab_to(page, "Ask to forget records")
    press(page, Keys.ENTER)
    tab_to(page, "records")
    press(page, *"r-50", Keys.ENTER, *"nobody")
    tab_to(page, "file")
    press(page, Keys.TAB)
    assert page.script("return document.activeElement.value") == "exact"
    assert page.script("return document.querySelector('#budget').hidden")
    press(page, Keys.ARROW_DOWN)
    assert page.script("return document.activeElement.value") == "certified"
    assert not page.script("return document.querySelector('#budget').hidden")
    press(page, Keys.ARROW_UP)
    tab_to(page, "request-id")
    press(page, *"by-hand", Keys.ENTER)
    page.until("document.querySelector('#sure').open")
    assert "2 records, exact." in page.text("#sure-text")
    press(page, Keys.ESCAPE)
    page.until("!document.querySelector('#sure').open")
    assert "by-hand" not in served.desk.views
    press(page, Keys.ENTER)
    page.until("document.querySelector('#sure').open")
    press(page, Keys.ENTER)  # the focus is on the button that keeps them
    page.until("!document.querySelector('#sure').open")
    assert "by-hand" not in served.desk.views
    press(page, Keys.ENTER)
    page.until("document.querySelector('#sure').open")
    press(page, Keys.TAB, Keys.ENTER)
    page.until("document.querySelector('#form-problem').textContent")
    assert page.text("#form-problem") == "this peer has no record 'nobody'; nothing was changed."
    page.script("document.querySelector('#records').value = 'r-50\\n\\n r-51 '")
    page.script("document.querySelector('#request-id').focus()")
    press(page, Keys.ENTER)
    page.until("document.querySelector('#sure').open")
    press(page, Keys.TAB, Keys.ENTER)
    page.until("document.querySelector('#requests').textContent.includes('by-hand')")
    assert served.desk.asked["by-hand"].records == ("r-50", "r-51")
    assert served.desk.asked["by-hand"].grade == "exact"
    assert page.text("#news") == "Request by-hand was taken in."


def test_a_budget_is_sent_as_it_was_typed(page, served):
    page.script("document.querySelector('#ask').open = true")
    page.script("document.querySelector('input[value=certified]').click()")
    page.script("document.querySelector('#records').value = 'r-60'")
    page.script("document.querySelector('#epsilon').value = 'much'")
    page.script("document.querySelector('#request-id').value = 'typed'")
    page.script("document.querySelector('#form').requestSubmit()")
    assert page.text("#form-problem") == "epsilon is no number."
    page.script("document.querySelector('#epsilon').value = '0.5'")
    page.script("document.querySelector('#form').requestSubmit()")
    page.until("document.querySelector('#sure').open")
    page.script("document.querySelector('#sure button[value=yes]').click()")
    page.until("document.querySelector('#requests').textContent.includes('typed')")
    form = served.desk.asked["typed"]
    assert (form.grade, form.epsilon, form.delta) == ("certified", 0.5, 1e-5)


WAYS = (
    "[...document.querySelector('#method').options].filter((o) => !o.disabled).map((o) => o.value)"
)


def test_a_method_is_chosen_among_those_of_its_grade(page, served):
    page.script("document.querySelector('#ask').open = true")
    assert page.script(f"return {WAYS}") == ["", "rewind", "restart"]
    page.script("document.querySelector('input[value=certified]').click()")
    assert page.script(f"return {WAYS}") == ["", "seal"]
    page.script("document.querySelector('#method').value = 'seal'")
    page.script("document.querySelector('input[value=exact]').click()")
    assert page.script(f"return {WAYS}") == ["", "rewind", "restart"]
    assert page.script("return document.querySelector('#method').value") == ""
    page.script("document.querySelector('#method').value = 'restart'")
    page.script("document.querySelector('#records').value = 'r-61'")
    page.script("document.querySelector('#request-id').value = 'chosen'")
    page.script("document.querySelector('#form').requestSubmit()")
    page.until("document.querySelector('#sure').open")
    page.script("document.querySelector('#sure button[value=yes]').click()")
    page.until("document.querySelector('#requests').textContent.includes('chosen')")
    assert served.desk.asked["chosen"].method == "restart"


def test_certificates_are_checked_and_come_as_files(page, served):
    page.script("document.querySelector(\"[aria-label='Verify chapter-1.json']\").click()")
    page.until("document.querySelector('#verdict').textContent.includes('intact')")
    assert "chapter-1.json: intact, signer trusted" in page.text("#verdict")
    assert "every number was recomputed" in page.text("#verdict")
    page.script("document.querySelector(\"[aria-label='Download chapter-1.json']\").click()")
    file = page.downloads / "chapter-1.zip"
    end = time.monotonic() + 10
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.05)
    with zipfile.ZipFile(file) as inside:
        assert inside.read("certificate.json") == served.desk.certificate("chapter-1.json")


def outside(served: Served, addresses: list[str]) -> list[str]:
    return [a for a in addresses if not a.startswith((served.url, f"blob:{served.url}", "about:"))]


def test_nothing_is_asked_of_anybody_else(page, served):
    page.script("document.querySelector(\"[aria-label='Download chapter-1.json']\").click()")
    page.until("document.querySelector('#dashboard') !== null")
    asked = page.requested()
    assert f"{served.url}v1/status" in asked
    assert not outside(served, asked)
    assert not page.complaints()
    page.open(f"{served.url}docs")
    assert not outside(served, page.requested())
    assert not page.complaints()


def test_the_policy_keeps_the_page_from_asking_others(page):
    tried = page.driver.execute_async_script(
        "const done = arguments[0], found = [];"
        "document.addEventListener('securitypolicyviolation',"
        "  (e) => { found.push(e.effectiveDirective); if (found.length === 4) done(found); });"
        "fetch('https://example.org/').catch(() => null);"
        "document.body.append(Object.assign(new Image(), {src: 'https://example.org/a.png'}));"
        "document.body.setAttribute('style', 'color:red');"
        "try { document.body.innerHTML = '<p>'; } catch (e) { /* trusted types */ }"
        "setTimeout(() => done(found), 5000);"
    )
    assert sorted(tried) == [
        "connect-src",
        "img-src",
        "require-trusted-types-for",
        "style-src-attr",
    ]
    assert not [a for a in page.requested() if "example.org" in a]


CUT_OFF = """return [...document.querySelectorAll('svg text')].filter((t) => {
  const a = t.getBoundingClientRect(), b = t.closest('svg').getBoundingClientRect();
  return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1
    || a.bottom > b.bottom + 1;
}).map((t) => t.textContent)"""


@pytest.mark.parametrize("path", ["", "docs"], ids=["dashboard", "docs"])
def test_all_text_can_be_read_and_fits_the_window(browser, served, path):
    browser.look()
    browser.open(f"{served.url}{path}#token={served.token}")
    if not path:
        browser.until(SIGNED_IN)
        browser.script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        browser.script("document.querySelector(\"[aria-label='Verify chapter-1.json']\").click()")
        browser.until("document.querySelector('#verdict').textContent.includes('intact')")
    for dark in (False, True):
        browser.look(dark=dark)
        found = browser.script(CONTRAST)
        assert len(found) > 80
        assert min(found)[0] >= 4.5, sorted(found)[:5]
    for width in (320, 390, 768, 1200):
        browser.look(width)
        browser.until(f"document.documentElement.clientWidth === {width}")
        assert browser.script("return document.documentElement.scrollWidth") <= width
        drawn = "document.querySelector('#graph svg')?.clientWidth ?? 0"
        browser.until(f"{drawn} <= {width}")
        assert browser.script(CUT_OFF) == []


def test_a_screen_reader_finds_names_landmarks_and_tables(page):
    page.script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    tree = page.tree()
    roles = [node["role"] for node in tree]
    for landmark in ("banner", "main", "contentinfo"):
        assert roles.count(landmark) == 1
    nameless = [n for n in tree if n["role"] in NAMED and not n["name"]]
    assert not nameless
    images = [n["name"] for n in tree if n["role"] in ("image", "img")]
    assert len(images) == 2
    assert images[0] == (
        "The graph of the peers 5 peers, 5 connections; this one is peer-0. The token is at "
        "peer-2, as far as is known here. Silent: peer-4. Left: peer-3."
    )
    assert images[1].startswith("Accuracy on this peer's hold-out Share of this peer's own 40")
    levels = [n["level"] for n in tree if n["role"] == "heading"]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    assert roles.count("table") == 5
    assert roles.count("rowheader") == 5 + len(lively().accuracy) + 4 + 2 + 2
    assert roles.count("status") >= 2
    ids = page.script("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    assert page.script("return document.documentElement.lang") == "en"


def test_tables_stay_tables_on_a_phone(browser, served):
    browser.look(390)
    browser.open(f"{served.url}#token={served.token}")
    browser.until(SIGNED_IN)
    roles = [node["role"] for node in browser.tree()]
    assert roles.count("table") == 4
    assert roles.count("rowheader") == 5 + 4 + 2 + 2
    assert browser.script(
        "return getComputedStyle(document.querySelector('#requests tr')).display"
    ) == ("block")


def test_those_who_want_no_motion_get_none(page):
    moving = "return getComputedStyle(document.querySelector('.halo')).animationName"
    assert page.script(moving) == "breathe"
    page.command(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-reduced-motion", "value": "reduce"}],
    )
    assert page.script(moving) == "none"


def test_an_empty_peer_has_a_page_too(browser, tmp_path):
    desk = MemoryDesk(peers=2, hop=0)
    desk.accuracy, desk.token = [], d.TokenView(None, False, 0, 60)
    browser.look(390)
    with serving(desk, tmp_path) as served:
        browser.open(f"{served.url}#token={served.token}")
        browser.until(SIGNED_IN)
        assert "Where the token is now is not known here." in browser.text("#story")
        assert browser.text("#requests-none") == "Nobody has asked to forget anything yet."
        assert "Nothing was measured yet" in browser.text("#accuracy-note")
        assert "Nothing was spent" in browser.text("#privacy-total")
        assert not browser.complaints()
        desk.chapter = replace(desk.chapter, stage="committed")
        desk.token = d.TokenView("peer-0", True, 60, 60)
        desk.accuracy = [d.AccuracyPoint(0, 60, 0.875, 40)]
        browser.now()
        browser.until("document.querySelector('#story').textContent.startsWith('Training is over')")
        assert "at rest" in browser.text("#tiles")
        assert "87.5\N{NO-BREAK SPACE}% of this peer's own 40" in browser.text("#accuracy-note")
        assert browser.script("return document.querySelector('#accuracy').hidden"), "no curve yet"
        assert "the peers agree on the final model" in browser.text("#graph-note")


def test_a_large_network_is_drawn(browser, tmp_path):
    desk = MemoryDesk(peers=100)
    browser.look()
    with serving(desk, tmp_path) as served:
        browser.open(f"{served.url}#token={served.token}")
        browser.until(SIGNED_IN)
        names = browser.script(
            "return [...document.querySelectorAll('#graph text.name')].map((t) => t.textContent)"
        )
        assert sorted(names) == ["peer-0", "peer-2"]
        assert browser.script("return document.querySelectorAll('.peer').length") == 100
