"""The dashboard with much to show, and with names that somebody chose to do harm."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.peers.browser import chromium
from tests.peers.memory_desk import MemoryDesk, serving
from unwalk.peers.forgetting import request_form

SIGNED_IN = "!document.querySelector('#dashboard').hidden"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("downloads")) as found:
        yield found


def test_a_thousand_requests_are_turned_over_page_by_page(browser, tmp_path):
    desk = MemoryDesk(records=1000)
    for i in range(1000):
        asyncio.run(desk.submit(request_form.RequestForm(f"q-{i}", (f"r-{i}",), "exact")))
    browser.look()
    with serving(desk, tmp_path) as served:
        browser.open(f"{served.url}#token={served.token}")
        browser.until(SIGNED_IN)
        rows = "[...document.querySelectorAll('#requests code')].map((c) => c.textContent)"
        assert browser.script(f"return {rows}") == [f"q-{i}" for i in range(999, 974, -1)]
        browser.script("document.querySelector('#older').click()")
        browser.until(f"{rows}[0] === 'q-974'")
        browser.script("document.querySelector('#newer').click()")
        browser.until(f"{rows}[0] === 'q-999'")
        assert browser.script("return document.querySelector('#newer').disabled")
        assert "1,000" in browser.text("#tiles")


def test_names_are_shown_and_never_run(browser, tmp_path):
    desk = MemoryDesk()
    asyncio.run(desk.submit(request_form.RequestForm("third", ("r-4",), "exact")))
    desk.settle("third", "refused")
    evil = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
    desk.views["third"] = replace(desk.views["third"], reason=evil)
    desk.peers[1] = replace(desk.peers[1], name=evil)
    browser.look()
    with serving(desk, tmp_path) as served:
        browser.open(f"{served.url}#token={served.token}")
        browser.until(SIGNED_IN)
        assert evil in browser.text("#requests")
        assert browser.driver.title != "run"
        assert (
            browser.script("return document.querySelectorAll('main img, main script').length") == 0
        )


def test_a_rehearsal_does_not_look_like_a_guarantee(browser, tmp_path):
    desk = MemoryDesk()
    for name, badge in (("told", "rehearsal"), ("kept", "certified")):
        asyncio.run(
            desk.submit(request_form.RequestForm(name, (f"r-{len(desk.files) + 4}",), "certified"))
        )
        desk.settle(name)
        last = list(desk.files)[-1]
        desk.files[last] = replace(desk.files[last], badge=badge)
    browser.look()
    with serving(desk, tmp_path) as served:
        browser.open(f"{served.url}#token={served.token}")
        browser.until(SIGNED_IN)
        browser.until("document.querySelectorAll('#certificates .badge').length >= 2")
        looks = browser.script(
            "return [...document.querySelectorAll('#certificates .badge')].map((badge) => "
            "[badge.textContent, getComputedStyle(badge).color])"
        )
        colours = dict(looks)
        assert "▷ rehearsal: would be certified" in colours
        assert colours["▷ rehearsal: would be certified"] != colours["✓ certified"]
        assert "▷ rehearsal: would be certified" in browser.text("#privacy")
