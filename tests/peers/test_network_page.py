"""The page of all peers in a real browser, before a network that is made up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.peers.browser import CONTRAST, Browser, chromium
from unwalk.core.seeds import PublicSeeds
from unwalk.peers.web.network_page import NetworkPage, NetworkView, PeerRow
from unwalk.walks.graphs import random_regular

SIGNED_IN = "!document.querySelector('#dashboard').hidden"
COUNT = "return document.querySelectorAll(arguments[0]).length"


def crowd(peers: int) -> NetworkView:
    """A network in the middle of its second chapter, with one of everything."""
    rows = [
        PeerRow(f"peer-{n}", f"127.0.0.1:{20000 + n}", "up", chapter=2, hop=40 + n % 7, records=54,
                memory=36_000_000 + n * 10_000, page=f"http://127.0.0.1:{30000 + n}/#token=t{n}")
        for n in range(peers)
    ]  # fmt: skip
    rows[1] = replace(rows[1], state="restarting", note="killed by SIGKILL", page=None, restarts=1)
    rows[2] = replace(rows[2], requests={"walking": 1, "done": 3}, certificates=2, restarts=2)
    rows[3] = replace(rows[3], state="left", records=None, memory=None, page=None)
    rows[4] = replace(rows[4], state="starting", page=None)
    graph = random_regular(peers, 4, PublicSeeds(0).numpy("task", "page"))
    return NetworkView(
        "local", "runs/network", 2, "peer-2", 46, 120, "peer-5", tuple(rows),
        tuple((int(a), int(b)) for a, b in graph.edges()), 1_430_000_000,
    )  # fmt: skip


class Shown:
    """A page, and what it is told."""

    def __init__(self, view: NetworkView) -> None:
        self.view, self.url = view, ""

    async def asked(self) -> NetworkView:
        return self.view


@contextmanager
def showing(view: NetworkView, folder: Path) -> Iterator[Shown]:
    loop, shown = asyncio.new_event_loop(), Shown(view)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    page = NetworkPage(shown.asked, folder / "page.token")
    asyncio.run_coroutine_threadsafe(page.start(), loop).result(10)
    shown.url = page.url
    try:
        yield shown
    finally:
        asyncio.run_coroutine_threadsafe(page.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("downloads")) as found:
        yield found


def test_all_peers_are_shown_and_go_on_without_reloading(browser, tmp_path):
    with showing(crowd(30), tmp_path) as shown:
        browser.look(1280)
        browser.open(shown.url)
        browser.until(SIGNED_IN)
        assert "#" not in browser.driver.current_url
        assert browser.text("h1") == "30 peers on this machine"
        assert browser.text("#story") == (
            "Chapter 2, which forgets records of peer-2, has done 46 of 120 hops."
        )
        tiles = browser.text("#tiles").split("\n")
        assert tiles[:3] == ["Peers up", "27 of 29", "3 restarts so far"]
        assert tiles[-2] == "1.43\N{NO-BREAK SPACE}GB"
        assert tiles[tiles.index("Certificates") + 1 :][:2] == ["2", "1 request open, 3 done"]
        assert browser.script(COUNT, "#peers tr") == 30
        assert browser.script(COUNT, "#graph .peer") == 30
        assert browser.script(COUNT, "#graph .edge") == 60
        assert "has the token" in browser.text("#peers tr[data-key=peer-5]")
        assert "1 walking, 3 done" in browser.text("#peers tr[data-key=peer-2]")
        assert "killed by SIGKILL" in browser.text("#peers tr[data-key=peer-1]")
        links = browser.script("return [...document.querySelectorAll('#peers a')].map((a) => "
                               "[a.getAttribute('href'), a.rel])")  # fmt: skip
        assert len(links) == 27
        assert links[0] == ["http://127.0.0.1:30000/#token=t0", "noopener noreferrer"]
        browser.script("window.stays = document.querySelector('#peers tr')")
        shown.view = replace(shown.view, hop=47, token="peer-9")
        browser.now()
        browser.until("document.querySelector('#story').textContent.includes('47 of 120')")
        assert "has the token" in browser.text("#peers tr[data-key=peer-9]")
        assert "has the token" not in browser.text("#peers tr[data-key=peer-5]")
        assert browser.script("return window.stays === document.querySelector('#peers tr')")
        assert browser.complaints() == []
        assert all(url.startswith("http://127.0.0.1") for url in browser.requested())


def test_it_can_be_read_light_and_dark_wide_and_narrow(browser, tmp_path):
    with showing(crowd(30), tmp_path) as shown:
        browser.open(shown.url)
        browser.until(SIGNED_IN)
        for dark in (False, True):
            browser.look(1280, dark=dark)
            found = browser.script(CONTRAST)
            assert len(found) > 200
            assert min(found)[0] >= 4.5, sorted(found)[:5]
        for width in (320, 420, 768, 1280):
            browser.look(width)
            browser.until(f"document.documentElement.clientWidth === {width}")
            assert browser.script("return document.documentElement.scrollWidth") <= width
            browser.until(f"document.querySelector('#graph svg').clientWidth <= {width}")


def test_without_the_token_nothing_is_told(browser, tmp_path):
    with showing(crowd(6), tmp_path) as shown:
        browser.open(shown.url.replace("#token=", "#token=x"))
        browser.until("document.querySelector('#enter-problem').textContent")
        assert browser.text("#enter-problem") == "This is not the access token of this network."
        assert not browser.script(f"return {SIGNED_IN}")
        assert browser.script(COUNT, "#peers tr") == 0
