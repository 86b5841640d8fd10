"""A network on one machine: ``unwalk net up`` as its users see it, with real daemons and kills."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unwalk.cli import app
from unwalk.core.errors import InvalidInput
from unwalk.peers import local_network
from unwalk.peers.local_network import LocalNetwork, make_local
from unwalk.peers.provision import make_network
from unwalk.peers.status import running, status
from unwalk.peers.supervisor import Supervisor


class Up:
    """``unwalk net up`` in a process of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self.lines = folder, list[str]()
        command = [sys.executable, "-m", "unwalk", "net", "up", "--folder", str(folder), *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
        )
        self._rest = b""

    def heard(self, pattern: str, patience: float = 90.0) -> re.Match[str]:
        """Wait for a line; only those after the last one that was waited for are looked at."""
        assert self.process.stdout is not None
        end = time.monotonic() + patience
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                self.lines.append(line.decode())
                if found := re.search(pattern, self.lines[-1]):
                    return found
            left = end - time.monotonic()
            assert left > 0, f"no line {pattern!r} in {self.lines}"
            if select.select([self.process.stdout], [], [], left)[0]:
                data = os.read(self.process.stdout.fileno(), 1 << 16)
                assert data, f"no line {pattern!r} in {self.lines}"
                self._rest += data

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def begun(tmp_path) -> Iterator[Callable[..., Up]]:
    found: list[Up] = []

    def begin(*words: str) -> Up:
        found.append(Up(tmp_path / "net", *words))
        return found[-1]

    yield begin
    for up in found:
        up.close()


def until(done: Callable[[], Any], patience: float = 60.0) -> None:
    end = time.monotonic() + patience
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def network(url: str) -> dict[str, Any]:
    """What the page is told, with the token from its address."""
    address, token = url.split("#token=")
    asked = urllib.request.Request(
        f"{address}v1/network", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def page_at(url: str) -> bytes:
    with urllib.request.urlopen(url.partition("#")[0], timeout=30) as answer:
        found: bytes = answer.read()
        return found


def pids(folder: Path) -> list[int]:
    return [p for f in sorted(folder.glob("peer-*")) if (p := running(f / "store"))]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_up_killed_back_and_down(tmp_path):
    """The same as the command, in this process."""
    folder, lines = tmp_path / "net", list[str]()
    make_local(folder, 3, degree=None, task="digits", settings={"train.hops": 9})
    supervisor = Supervisor(LocalNetwork(folder), lines.append)

    async def said(words: str) -> None:
        async with asyncio.timeout(90.0):
            while not any(words in line for line in lines):
                await asyncio.sleep(0.02)
        lines.clear()

    async def script() -> None:
        await said("3 of 3 peers up")
        first = pids(folder)
        assert len({parent_of(pid) for pid in first}) == 1  # all forked from one
        os.kill(first[1], signal.SIGKILL)
        await said("peer-1 ended (killed by SIGKILL); it is started again in 1 s")
        await said("3 of 3 peers up; training: finished, all have the model")
        assert set(first) & set(pids(folder)) == {first[0], first[2]}
        supervisor._weighed = -100.0  # else the memory of before is shown for ten seconds
        await asyncio.sleep(1.0)
        shown = await asyncio.to_thread(network, supervisor.page.url)
        assert [peer["state"] for peer in shown["peers"]] == ["up"] * 3
        assert [peer["restarts"] for peer in shown["peers"]] == [0, 1, 0]
        assert sum(peer["records"] for peer in shown["peers"]) > 1500
        assert shown["memory"] > sum(peer["memory"] for peer in shown["peers"]) > 0
        page = await asyncio.to_thread(page_at, shown["peers"][1]["page"])
        assert b"A peer's dashboard" in page
        with pytest.raises(urllib.error.HTTPError, match="401"):
            await asyncio.to_thread(network, supervisor.page.url[:-1])
        with pytest.raises(InvalidInput) as second:
            LocalNetwork(folder)
        assert f"runs already, by process {os.getpid()}, page {supervisor.page.url};" in str(
            second.value
        )
        os.kill(os.getpid(), signal.SIGTERM)

    async def both() -> None:
        running = asyncio.create_task(supervisor.run())
        try:
            await script()
        finally:
            supervisor.stopping.set()
            await running

    asyncio.run(both())
    assert lines[-1] == "stopped. The same command goes on from here."
    assert pids(folder) == []
    assert len({status(f)["committed"]["chain"] for f in folder.glob("peer-*")}) == 1


@pytest.mark.soak
def test_no_peer_outlives_what_started_it(begun):
    """Neither the command nor the process in between: peers stop in order, and can go on."""
    up = begun("--peers", "3", "--hops", "9")
    up.heard("^page: http://127.0.0.1:")
    up.heard("3 of 3 peers up")
    origin = parent_of(pids(up.folder)[0])
    before = pids(up.folder)
    os.kill(origin, signal.SIGKILL)
    until(lambda: len(pids(up.folder)) == 3 and not set(pids(up.folder)) & set(before))
    up.heard("3 of 3 peers up")
    up.process.kill()
    until(lambda: not pids(up.folder), 30.0)
    again = begun()
    again.heard("3 of 3 peers up; training: finished, all have the model")
    again.process.send_signal(signal.SIGINT)
    again.heard("^stopped. The same command goes on from here.")
    assert again.process.wait(30) == 0


def test_a_network_that_is_there_is_not_made_anew(tmp_path):
    folder = tmp_path / "net"
    make_local(folder, 3, degree=None, task="blobs", settings={"train.hops": 9})
    for words, said in (
        (["--peers", "4"], f"--peers is 4, but {folder} holds a network of 3 peers; leave it out"),
        (["--hops", "5"], f"{folder} holds a network already, so --hops would change nothing;"),
    ):
        done = CliRunner().invoke(app, ["net", "up", "--folder", str(folder), *words])
        assert isinstance(done.exception, InvalidInput)
        assert str(done.exception).startswith(said)
    (folder / "network.json").unlink()
    with pytest.raises(InvalidInput, match="holds something else; choose another --folder"):
        make_local(folder, 3, degree=None, task="blobs", settings={})


def test_what_is_there_stays(tmp_path):
    """A folder of another name beside it, a file in its place or above it."""
    beside = tmp_path / "net.partial"
    beside.mkdir()
    (beside / "thesis.txt").write_text("precious")
    make_local(tmp_path / "net", 2, degree=None, task="blobs", settings={"train.hops": 2})
    assert (beside / "thesis.txt").read_text() == "precious"
    file = tmp_path / "file"
    file.write_text("dear")
    for place, why in ((file, "Not a directory"), (file / "net", "File exists")):
        with pytest.raises(InvalidInput, match=rf"^no network can be made in {place}: {why};"):
            make_local(place, 2, degree=None, task="blobs", settings={})
    assert file.read_text() == "dear"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "net", "net.partial"]


def test_two_at_once_make_one_network(tmp_path, monkeypatch):
    folder, made = tmp_path / "net", make_network

    def late(*given: Any, **how: Any) -> Any:
        found = made(*given, **how)
        monkeypatch.setattr(local_network, "make_network", made)
        make_local(folder, 2, degree=None, task="blobs", settings={"train.hops": 2})
        return found

    monkeypatch.setattr(local_network, "make_network", late)
    with pytest.raises(InvalidInput, match=r"^another command has made .*net meanwhile; run the"):
        make_local(folder, 3, degree=None, task="blobs", settings={"train.hops": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["net"]
    assert len(LocalNetwork(folder).names) == 2


def test_a_port_in_use_is_refused_before_anything_is_made(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["net", "up", "--folder", str(tmp_path / "net"), "--port", str(port)]
        done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, InvalidInput)
    assert str(done.exception) == (
        f"--port is {port}, which cannot be used (Address already in use); choose another one, or "
        "0 for one that is free."
    )
    assert done.output == ""
    assert not (tmp_path / "net").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--peers", "1"], "--peers is 1; allowed: a whole number, 2 to 200."),
        (["--peers", "4", "--degree", "4"], "--degree is 4; allowed: a whole number, 1 to 3."),
        (["--peers", "5", "--degree", "3"], "--degree is 3 for 5 peers; allowed: a degree such"),
        (["--task", "records"], "task 'records' needs files of yours: make the network with"),
        (["--task", "digit"], "task is 'digit' (did you mean digits?); allowed:"),
        (["--hops", "0"], "train.hops is 0; allowed: a whole number, 1 or more."),
        (["--port", "70000"], "--port is 70000; allowed: a whole number, 0 to 65535."),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(tmp_path, words, said):
    done = CliRunner().invoke(app, ["net", "up", "--folder", str(tmp_path / "net"), *words])
    assert isinstance(done.exception, InvalidInput)
    assert str(done.exception).startswith(said)
    assert not (tmp_path / "net").exists()
