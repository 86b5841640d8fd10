"""The dashboard over real peers: asked through the page, one killed, one certificate checked."""

from __future__ import annotations

import signal
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.peers.browser import chromium
from tests.peers.deletions import network
from tests.peers.harness import town
from unwalk.cli import app
from unwalk.peers.web.client import Asker


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("downloads")) as found:
        yield found


ASK = """
document.querySelector('#ask').open = true;
document.querySelector('#records').value = arguments[0];
document.querySelector('input[value=exact]').checked = true;
document.querySelector('#request-id').value = 'through-the-page';
document.querySelector('#form').requestSubmit();
"""


@pytest.mark.timeout(120)
def test_records_are_forgotten_through_the_page_while_a_peer_is_down(browser, tmp_path):
    made = network(tmp_path, peers=4)
    with town(tmp_path, made) as peers:
        for peer in range(4):
            peers.start(peer)
        peers.until(peers.finished)
        store = tmp_path / "peer-0" / "store"
        address = (store / "http.address").read_text().strip()
        token = (store / "http.token").read_text().strip()
        browser.look()
        browser.open(f"{address}#token={token}")
        browser.until("document.querySelector('#story').textContent.startsWith('Training is over')")
        browser.until("document.querySelectorAll('#accuracy-rows tr').length > 0", 20)
        assert "hold-out record" in browser.text("#accuracy-note")
        peers.signal(3, signal.SIGKILL)
        browser.script(ASK, "person-0-003\nnobody-at-all")
        browser.until("document.querySelector('#sure').open")
        browser.script("document.querySelector('#sure button[value=yes]').click()")
        browser.until("document.querySelector('#form-problem').textContent")
        assert "'nobody-at-all'" in browser.text("#form-problem")
        chosen = [f"person-0-{n:03d}" for n in range(8)]
        browser.script(ASK, "\n".join(chosen))
        browser.until("document.querySelector('#sure').open")
        browser.script("document.querySelector('#sure button[value=yes]').click()")
        browser.until(
            "document.querySelector('#certificates').textContent.includes('waits for')", 60
        )
        assert "waits for peer-3" in browser.text("#certificates")
        peers.start(3)
        browser.until("document.querySelector('#requests .stage')?.textContent === 'done'", 60)
        browser.until(
            "document.querySelector('#certificates').textContent.includes('by every peer')"
        )
        browser.script("document.querySelector('#certificates button:last-child').click()")
        browser.until("document.querySelector('#verdict').textContent.includes('intact')", 20)
        assert "intact, signer trusted" in browser.text("#verdict")
        assert "= exact" in browser.text("#certificates")
        browser.script("document.querySelector(\"[aria-label='Download chapter-1']\").click()")
        file = browser.downloads / "chapter-1.zip"
        peers.until(file.exists)
        (view,) = Asker.of_bundle(tmp_path / "peer-0").requests()
        assert (view.id, view.stage, view.records) == ("through-the-page", "done", len(chosen))
    verify_as_a_stranger(file, tmp_path / "ca.pem", tmp_path / "stranger")


def verify_as_a_stranger(file: Path, authority: Path, folder: Path) -> None:
    """What was downloaded is all that is needed, besides the network's CA."""

    def verified(place: Path) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["verify", str(place), "--trust", str(authority)])
        return result.exit_code, " ".join(result.output.split())

    code, text = verified(file)
    assert (code, text[:22]) == (0, "intact, signer trusted")
    assert "erasure is signed by peer-0, peer-1, peer-2, peer-3" in text
    with zipfile.ZipFile(file) as packed:
        packed.extractall(folder)
    assert verified(folder)[0] == 0
    (folder / "visits.jsonl").unlink()
    assert verified(folder)[0] == 1
    (folder / "transcript.jsonl").unlink()
    code, text = verified(folder)
    assert code == 3
    assert "not checked: signatures of peers: transcript.jsonl is not beside it" in text
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "changed.zip").write_bytes(data)
    assert verified(folder / "changed.zip")[0] == 1
    (folder / "other.zip").write_bytes(b"no archive")
    assert verified(folder / "other.zip")[0] == 1
