"""The command line as its users see it: whole commands in processes of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.peers.floods import bad_handshakes, listens
from tests.peers.harness import JOURNAL_TIMES, ROUTE, SETTINGS, check_end, checking_every
from tests.processes import nothing, start_unwalk
from unwalk.core.errors import InvalidInput
from unwalk.peers import provision
from unwalk.peers.daemon import committed_log
from unwalk.peers.lifecycle.leaving import GONE
from unwalk.peers.local_network import free_addresses
from unwalk.peers.status import status
from unwalk.peers.storage.database import RECORDS_DATABASE
from unwalk.peers.storage.error_file import LARGEST, LOOK, NAME
from unwalk.peers.telemetry import HELP


class Shell:
    """Runs commands; a peer that was started is ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Any] = []

    def begin(self, *words: object, before: Callable[[], None] = nothing) -> tuple[Any, Path]:
        out = self.folder / f"out-{len(self.started)}.txt"
        process = start_unwalk(*words, out=out, before=before)
        self.started.append(process)
        return process, out

    def run(self, *words: object) -> tuple[int, str]:
        process, out = self.begin(*words)
        process.join(60)
        assert process.exitcode is not None, f"{words} did not end"
        return process.exitcode, out.read_text()

    def close(self) -> None:
        for process in self.started:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                process.join(10)


@pytest.fixture
def shell(tmp_path):
    here = Shell(tmp_path)
    yield here
    here.close()


def init(
    shell: Shell,
    peers: int = 3,
    hops: int = 12,
    limits: Sequence[str] = (),
    options: Sequence[str] = (),
    **settings: Any,
) -> Path:
    folder = shell.folder / "net"
    more = [*(f"--limit={text}" for text in limits), *options]
    words = [f"--address={a}" for a in free_addresses(peers)]
    words += [f"--set={k}={v}" for k, v in {**SETTINGS, "train.hops": hops, **settings}.items()]
    code, text = shell.run("net", "init", folder, "--lease=2", "--noise=simulation", *words, *more)
    assert code == 0, text
    assert "peer-2" in text
    return folder


def until(done, patience: float = 60.0) -> None:
    end = time.monotonic() + patience
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_walk_from_beginning_to_end(shell):
    folder = init(shell)
    (metrics,) = free_addresses(1)
    options = [("--metrics", metrics), (), ()]
    peers = [
        shell.begin("peer", "start", folder / f"peer-{n}", "--http=none", *options[n])[0]
        for n in range(3)
    ]
    until(lambda: all(status(folder / f"peer-{n}").get("model") for n in range(3)))
    until(lambda: gathered(folder))
    first = gathered(folder)[0]

    code, text = shell.run("peer", "status", folder / "peer-0")
    assert code == 0
    assert re.search(r"^stage: finished$", text, re.MULTILINE)
    assert re.search(r"^hops: 12$", text, re.MULTILINE)
    assert re.search(r"^hop: 12$", text, re.MULTILINE)
    found = json.loads(shell.run("peer", "status", folder / "peer-1", "--json")[1])
    assert found["running"] is True
    assert found["pid"] == peers[1].pid

    lines = shell.run("peer", "log", folder / "peer-0")[1].splitlines()
    assert any(" started run=" in line for line in lines)
    assert any(" committed " in line for line in lines)
    _, text = shell.run("peer", "log", first, "--whole")
    whole = [json.loads(line) for line in text.splitlines()]
    assert [e["body"]["hop"] for e in whole] == list(range(1, 13))

    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=5) as answer:
        shown = answer.read().decode()
    names = re.findall(r"^unwalk_(\w+)\{", shown, re.MULTILINE)
    assert names == list(HELP)
    values = dict(re.findall(r"^unwalk_(\w+)\{[^}]*\} (\d+)\.0$", shown, re.MULTILINE))
    served = [e["body"]["peer"] for e in whole]
    assert int(values["visits_total"]) == served.count(0)
    assert (values["committed"], values["holding"], values["refusals_total"]) == ("1", "0", "0")
    assert int(values["bytes_received_total"]) > 0

    assert shell.run("peer", "stop", folder / "peer-0") == (0, "stopped\n")
    peers[0].join(10)
    assert peers[0].exitcode == 0
    assert shell.run("peer", "stop", folder / "peer-0") == (0, "it was not running\n")
    assert [shell.run("peer", "stop", folder / f"peer-{n}")[0] for n in (1, 2)] == [0, 0]
    made = provision.network_of(folder)[0]
    assert check_end(folder, made, range(3)) == served
    for n in range(3):
        nothing_but_words(folder / f"peer-{n}" / "store" / "log.jsonl")


def gathered(folder: Path) -> list[Path]:
    """Peers that have the whole log already."""
    found = []
    for path in sorted(folder.glob("peer-*")):
        with suppress(InvalidInput):
            committed_log(path)
            found.append(path)
    return found


def nothing_but_words(path: Path) -> None:
    """A log holds names, whole numbers, and times: no other number was made from anything."""
    for line in path.read_text().splitlines():
        record = json.loads(line)
        for key, value in record.items():
            items = value if isinstance(value, list) else [value]
            kinds = (float,) if key in JOURNAL_TIMES else (str, int, bool)
            assert all(isinstance(item, kinds) for item in items), record


def test_a_stopped_peer_hands_the_token_over_first(shell):
    folder = init(shell, hops=2000)
    paths = [folder / f"peer-{n}" for n in range(3)]
    for path in paths:
        shell.begin("peer", "start", path, "--http=none")
    until(lambda: all(status(p).get("hop", 0) > 3 for p in paths))
    for attempt in range(8):
        until(lambda: status(paths[1])["holding"])
        assert shell.run("peer", "stop", paths[1]) == (0, "stopped\n")
        assert status(paths[1])["holding"] is False
        log = (paths[1] / "store" / "log.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in log]
        asked = max(n for n, e in enumerate(events) if e["event"] == "stopping")
        if events[asked]["holding"]:
            break
        assert attempt < 7, "it never had the token when it was asked to stop"
        shell.begin("peer", "start", paths[1], "--http=none")
        until(lambda: status(paths[1])["running"])
    after = [e["event"] for e in events[asked:]]
    assert after.index("handed") < after.index("stopped")
    hop = status(paths[0])["hop"]
    until(lambda: status(paths[0])["hop"] > hop + 5)


def test_a_peer_that_finds_no_taker_keeps_its_token_and_says_so(shell):
    folder = init(shell, hops=2000, limits=["stop=0.5"], options=["--begin-with=none"], seed=ROUTE)
    path = folder / "peer-0"
    shell.begin("peer", "start", path, "--http=none")
    until(lambda: status(path).get("stage") == "visited")
    code, text = shell.run("peer", "stop", path)
    assert code == 0
    assert "no neighbour took the token, which stays safe here" in " ".join(text.split())
    assert status(path)["holding"] is True


def no_mode(folder: Path) -> None:
    (folder / "peer-1" / "signing.key").chmod(0o644)


def no_certificate(folder: Path) -> None:
    (folder / "peer-1" / "certificate.pem").unlink()


def expired(folder: Path) -> None:
    provision.make_bundle(folder, "peer-1", days=1e-8)
    time.sleep(0.01)


def another_peers(folder: Path) -> None:
    other = (folder / "peer-2" / "certificate.pem").read_bytes()
    (folder / "peer-1" / "certificate.pem").write_bytes(other)


def another_networks(folder: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    provision.make_network(
        elsewhere, name="other", addresses=free_addresses(3), settings=SETTINGS, noise="simulation"
    )
    for name in ("tls.key", "signing.key", "certificate.pem"):
        (folder / "peer-1" / name).write_bytes((elsewhere / "peer-1" / name).read_bytes())


def revoked(folder: Path) -> None:
    provision.revoke(folder, "peer-1", chapter=1)


def forged_network(folder: Path) -> None:
    path = folder / "peer-1" / "network.json"
    path.write_text(path.read_text().replace('"run": 1', '"run": 2'))


WRONG = {
    no_mode: "signing.key has mode 0644; allowed: 0600",
    no_certificate: "has no certificate.pem; a peer does not run without it",
    expired: "the certificate of peer-1 is not valid now: it runs from",
    another_peers: "tls.key does not belong to certificate.pem",
    another_networks: "the certificate was not issued by the CA of network network",
    revoked: "the certificate of peer-1 was revoked",
    forged_network: "network.json is not signed by the CA in",
}


@pytest.fixture(scope="module")
def good_network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "net"
    provision.make_network(
        folder,
        name="network",
        addresses=free_addresses(3),
        settings=SETTINGS,
        noise="simulation",
    )
    return folder


@pytest.mark.parametrize("damage", WRONG, ids=lambda f: f.__name__)
def test_what_is_wrong_stops_the_peer_with_one_sentence(shell, good_network, damage):
    folder = shell.folder / "net"
    shutil.copytree(good_network, folder)
    damage(folder)
    code, text = shell.run("peer", "start", folder / "peer-1", "--http=none")
    assert code == 2
    told = " ".join(text.split())
    assert WRONG[damage] in told
    assert "Traceback" not in text
    assert told.count(". ") == 0, "one sentence"
    assert not (folder / "peer-1" / "store").exists()


def test_a_certificate_that_ends_meanwhile_ends_the_peer_and_not_the_walk(shell):
    folder = init(shell, hops=3000)
    margin = provision.network_of(folder)[0].limits.stop
    provision.make_bundle(folder, "peer-1", days=(margin + 3.0) / 86400)
    paths = [folder / f"peer-{n}" for n in range(3)]
    often = partial(checking_every, 0.1)
    begun = [shell.begin("peer", "start", p, "--http=none", before=often) for p in paths]
    process, out = begun[1]
    process.join(30)
    assert process.exitcode == 2
    assert "the certificate of peer-1 ends at" in " ".join(out.read_text().split())
    assert status(paths[1])["holding"] is False, "it could still hand the token over"
    before = status(paths[0])["hop"]
    until(lambda: status(paths[0])["hop"] > before + 5)


def test_a_running_peer_learns_of_a_revocation(shell):
    folder = init(shell, hops=3000, options=["--begin-with=none"])
    process, _ = shell.begin("peer", "start", folder / "peer-0", "--http=none")
    until(lambda: status(folder / "peer-0")["running"])
    log = folder / "peer-0" / "store" / "log.jsonl"
    until(lambda: log.exists() and "started" in log.read_text())
    code, text = shell.run("net", "rotate", folder, "peer-2")
    assert code == 0
    assert "new bundle" in text
    code, text = shell.run("net", "revoke", folder, "peer-1")
    assert code == 0
    assert text.count(", from chapter 1 on") == 2, "the rotated one and the revoked one"
    os.kill(process.pid, signal.SIGHUP)
    until(lambda: "network file read" in log.read_text())
    lines = map(json.loads, log.read_text().splitlines())
    (read,) = [line for line in lines if line["event"] == "network file read"]
    assert read["version"] == 3
    assert shell.run("peer", "start", folder / "peer-1", "--http=none")[0] == 2
    assert "revoked" in shell.run("net", "show", folder)[1]
    assert shell.run("net", "revoke", folder, "peer-7")[0] == 2


def test_a_peer_that_runs_is_not_started_in_the_background_as_well(shell):
    folder = init(shell)
    path = folder / "peer-0"
    process, _ = shell.begin("peer", "start", path, "--http=none")
    until(lambda: status(path)["running"])
    code, text = shell.run("peer", "start", path, "--detach", "--http=none")
    assert code == 2, text
    assert f"peer-0 runs already, as process {process.pid}" in " ".join(text.split())
    assert not (path / "store" / "errors.txt").exists(), "nothing was begun"


def test_a_start_in_the_background_that_fails_says_its_own_reason(shell):
    path = init(shell) / "peer-0"
    errors = path / "store" / NAME
    errors.parent.mkdir(exist_ok=True)
    errors.write_text("an earlier reason\n")
    with closing(sqlite3.connect(path / "store" / RECORDS_DATABASE)) as db, db:
        db.execute("CREATE TABLE facts (name TEXT, value TEXT)")
        db.execute("INSERT INTO facts VALUES (?, 'yes')", (GONE,))
    code, text = shell.run("peer", "start", path, "--detach", "--http=none")
    said = " ".join(text.split())
    assert code == 2, text
    assert "the peer did not start:" in said
    assert "peer-0 has left the network" in said
    assert "earlier" not in said
    assert errors.read_text().startswith("an earlier reason\n")
    assert "has left the network" in errors.read_text()


def test_a_start_in_the_background_waits_until_the_peer_is_reached_or_says_why_not(shell):
    folder = init(shell)
    path, address = folder / "peer-0", provision.network_of(folder)[0].peers[0].address
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))):  # it holds its store by then
        code, text = shell.run("peer", "start", path, "--detach", "--http=none")
        said = " ".join(text.split())
        assert code == 2, text
        assert f"{address} cannot be listened on; is another program using it?" in said
    assert not status(path)["running"]
    code, text = shell.run("peer", "start", path, "--detach", "--http=none")
    assert code == 0, text
    try:
        assert listens(address)
        assert "waits_for: peer-1 peer-2" in shell.run("peer", "status", path)[1]
        code, text = shell.run("net", "begin", path, "--without=peer-2")
        assert code == 0
        words = "peer-0 lets training begin without peer-2; it begins once the operators of 2 peers"
        assert words in " ".join(text.split())
    finally:
        shell.run("peer", "stop", path)


@pytest.mark.soak
def test_strangers_do_not_fill_the_disk_of_a_peer_in_the_background(shell):
    """gRPC writes some 200 bytes for each of them."""
    folder = init(shell, limits=["stop=2"])
    path, address = folder / "peer-0", provision.network_of(folder)[0].peers[0].address
    errors = path / "store" / NAME
    assert shell.run("peer", "start", path, "--detach", "--http=none")[0] == 0
    try:
        until(lambda: listens(address))
        bad_handshakes(address, 200)
        until(lambda: errors.read_bytes().count(b"Handshake failed") >= 200)
        largest, written = 0, errors.stat().st_size
        each = written // 200
        while written < 2.5 * LARGEST:
            bad_handshakes(address, 100)
            written += 100 * each
            largest = max(largest, errors.stat().st_size)
        time.sleep(2 * LOOK)
        assert errors.stat().st_size <= LARGEST
        assert largest < 2 * LARGEST
        assert status(path)["running"]
    finally:
        shell.run("peer", "stop", path)


@pytest.mark.soak
def test_a_peer_in_the_background(shell):
    folder = init(shell, hops=200_000, limits=["stop=2"])
    for n in range(3):
        code, text = shell.run("peer", "start", folder / f"peer-{n}", "--detach", "--http=none")
        assert code == 0, text
        assert f"peer-{n} runs as process {status(folder / f'peer-{n}')['pid']}" in text
    try:
        until(lambda: status(folder / "peer-0").get("hop", 0) > 5)
        code, text = shell.run("peer", "start", folder / "peer-0", "--detach", "--http=none")
        assert code == 2
        assert "peer-0 runs already" in " ".join(text.split())
    finally:
        stopped = [shell.run("peer", "stop", folder / f"peer-{n}") for n in range(3)]
    assert [code for code, _ in stopped] == [0, 0, 0]
    assert [text for _, text in stopped[:2]] == ["stopped\n"] * 2
    assert "no neighbour took the token" in " ".join(stopped[2][1].split()), "it is the last one"
    assert [status(folder / f"peer-{n}")["holding"] for n in range(3)] == [False, False, True]
