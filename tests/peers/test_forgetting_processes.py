"""Requests in real processes: the peer that forgets is killed at every step on the way."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.peers.deletions import CERTIFIED, form, network, records_of, vouched
from tests.peers.harness import Town, town
from unwalk.cli.forgetting import _hand_in
from unwalk.core.errors import InvalidInput
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.records.trace_search import search, traces
from unwalk.peers.web.client import Asker
from unwalk.peers.web.http_server import ADDRESS_FILE

U = 1
POINTS = [
    "records after commit",
    "chapter proposed",
    "vote written",
    "chapter decided",
    "chapter opened",
    "token written",
    "token renamed",
    "before commit",
    "after commit",
    "runs forgotten",
    "erasure planned",
    "erasure unlinked",
    "erasure compacted",
    "receipt written",
    "request committed",
    "records erased",
    "source rewritten",
    "records compacted",
    "request erasing",
    "receipt kept",
    "certificate written",
    "request done",
]
"""Every point between a request and its end at which something was just made durable, or was
about to be."""
QUICK = ["vote written", "records erased"]


def row_of(folder: Path, id: str) -> tuple[str, str | None]:
    """Stage and certificate of a request, read beside the daemon."""
    path = folder / f"peer-{U}" / "store" / "records.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as db:
        query = "SELECT stage, certificate FROM requests WHERE id = ?"
        found = db.execute(query, (id,)).fetchone()
    return ("", None) if found is None else (found[0], found[1])


def started(here: Town, fault: str | None = None) -> None:
    place = here.folder / f"peer-{U}" / "store" / ADDRESS_FILE
    place.unlink(missing_ok=True)
    here.start(U, fault)
    here.until(lambda: place.exists() and place.read_text().endswith("\n"))


def killed_on_the_way(here: Town, point: str, id: str, record: str) -> None:
    """A request whose peer dies at ``point`` ends all the same, with a certificate."""
    folder = here.folder
    here.signal(U, signal.SIGTERM)
    here.processes[U].join(15)
    _hand_in(folder / f"peer-{U}", form(id, record))
    here.start(U, f"{point}#1")
    process = here.processes[U]
    here.until(lambda: not process.is_alive())
    assert process.exitcode == -signal.SIGKILL, point
    here.start(U)
    here.until(lambda: row_of(folder, id)[0] == "done")
    name = row_of(folder, id)[1]
    assert name is not None
    place = folder / f"peer-{U}" / "store" / peer_certificate.FOLDER / name / "certificate.json"
    found = vouched(place, folder / "ca.pem")
    assert found["model"] == "checked", point
    assert [c["grade"] for c in found["claims"]] == ["exact"]


def kill_at_all(folder: Path, points: list[str]) -> None:
    made = network(folder, peers=3, lease=1.0, hold_out=0.0, train__hops=8)
    rows = records_of(U)
    with town(folder, made) as here:
        for peer in range(3):
            here.start(peer)
        here.until(here.finished)
        for number, point in enumerate(points):
            killed_on_the_way(here, point, f"r{number}", rows[number][0])
        here.until(here.finished)
    gone = rows[: len(points)]
    needles = traces(ids=[r[0] for r in gone], texts=[",".join(r[2:]) for r in gone])
    assert search(folder, needles) == []
    kept = traces(ids=[rows[len(points)][0]])
    assert search(folder, kept), "the search does find a record that is still there"


def test_a_request_survives_kills_on_the_way(tmp_path):
    kill_at_all(tmp_path / "net", QUICK)


@pytest.mark.soak
def test_a_request_survives_a_kill_at_every_point(tmp_path):
    kill_at_all(tmp_path / "net", POINTS)


def test_a_request_over_http_that_dies_right_after_it_is_durable(tmp_path):
    folder = tmp_path / "net"
    made = network(folder, peers=3, lease=1.0, hold_out=0.0, train__hops=6)
    with town(folder, made) as here:
        for peer in (0, 2):
            here.start(peer)
        started(here, "request durable#1")
        process = here.processes[U]
        asked = form("r", records_of(U)[0][0])
        with pytest.raises(InvalidInput, match="does not answer"):
            Asker.of_bundle(folder / f"peer-{U}").submit(asked)
        here.until(lambda: not process.is_alive())
        assert process.exitcode == -signal.SIGKILL
        assert row_of(folder, "r")[0] in ("received", "waiting")
        started(here)
        again = Asker.of_bundle(folder / f"peer-{U}")
        assert again.submit(asked).id == "r"
        here.until(lambda: again.request("r").stage == "done")
        assert [c.complete for c in again.certificates()] == [True]


@pytest.mark.soak
def test_two_peers_ask_at_once_while_a_third_is_killed_and_comes_back(tmp_path):
    folder = tmp_path / "net"
    sealed = {k.replace(".", "__"): v for k, v in CERTIFIED.items()}
    made = network(folder, peers=4, lease=1.0, hold_out=0.0, train__hops=12, **sealed)
    budget = {"grade": "certified", "epsilon": 1.0, "delta": 1e-5}
    with town(folder, made) as here:
        for peer in range(4):
            here.start(peer)
        here.until(here.finished)
        for peer in (0, 1):
            asked = form(f"r{peer}", records_of(peer)[0][0], **budget)
            _hand_in(folder / f"peer-{peer}", asked)
        here.until(lambda: here.state(2)["chapter"] >= 1)
        here.signal(3, signal.SIGKILL)
        here.until(lambda: all(here.state(p)["requests"].get("erasing") for p in (0, 1)))
        here.start(3)
        here.until(lambda: all(here.state(p)["requests"] == {"done": 1} for p in (0, 1)))
    places = sorted(folder.glob("peer-[01]/store/certificates/*/certificate.json"))
    assert {p.parent.name for p in places} == {"chapter-1", "chapter-2"}
    for place in places:
        found = vouched(place, folder / "ca.pem")
        assert [c["grade"] for c in found["claims"]] == ["certified"]


def trial(folder: Path, seed: int) -> None:
    """One seeded trial: requests at one or two peers, and one fault somewhere on the way."""
    rng = random.Random(seed)
    made = network(folder, peers=4, lease=1.0, hold_out=0.0, train__hops=16)
    askers = rng.sample(range(4), rng.choice([1, 2]))
    victim, fault = rng.randrange(4), rng.choice(["SIGKILL", "SIGSTOP", "cut link"])
    with town(folder, made) as here:
        for peer in range(4):
            here.start(peer)
        if rng.random() < 0.7:  # else while training goes on
            here.until(here.finished)
        for peer in askers:
            _hand_in(folder / f"peer-{peer}", form(f"r{peer}", records_of(peer)[seed % 40][0]))
        time.sleep(rng.uniform(0.0, 1.2))
        if fault == "SIGKILL":
            here.signal(victim, signal.SIGKILL)
            time.sleep(rng.choice([0.0, 2.0]))
            here.start(victim)
        elif fault == "SIGSTOP":
            here.signal(victim, signal.SIGSTOP)
            time.sleep(2.5)
            here.signal(victim, signal.SIGCONT)
        else:
            other = (victim + 1 + rng.randrange(3)) % 4
            here.cut(victim, other)
            time.sleep(2.5)
            here.heal(victim, other)
        here.until(lambda: all(here.state(p)["requests"] == {"done": 1} for p in askers), 90.0)
    places = [p for a in askers for p in folder.glob(f"peer-{a}/store/certificates/*/*.json")]
    assert len(places) == len(askers)
    for place in places:
        found = vouched(place, folder / "ca.pem")
        assert [c["grade"] for c in found["claims"]] == ["exact"]
    gone = [records_of(a)[seed % 40] for a in askers]
    assert (
        search(folder, traces(ids=[r[0] for r in gone], texts=[",".join(r[2:]) for r in gone]))
        == []
    )


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_40_trials_of_forgetting(tmp_path, seed):
    trial(tmp_path / "net", seed)
