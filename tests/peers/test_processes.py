"""Real processes over mutual TLS: trials of every kind, kills between two steps, stops."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.peers.harness import JOURNAL_TIMES, check_end, network, town
from tests.peers.trials import ENDED, PROCESSES, furthest, kind_of, run_trial

QUICK = ("killed and back", "stopped past the lease")
POINTS = [
    "token left#1",
    "token written#2",
    "token synced#2",
    "token renamed#2",
    "before commit#3",
    "after commit#3",
    "before commit#4",
    "after commit#4",
]


@pytest.mark.parametrize("kind", QUICK)
def test_a_trial(tmp_path, kind):
    seed = next(seed for seed in range(20) if kind_of(seed).name == kind)
    found = run_trial(tmp_path, seed, PROCESSES)
    assert found.outcome == ENDED, (found.variant, found.why)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_40_trials(tmp_path, seed):
    found = run_trial(tmp_path, seed, PROCESSES)
    assert found.outcome == ENDED, (found.kind, found.variant, found.why)


@pytest.mark.parametrize("point", POINTS[:2])
def test_a_kill_between_two_steps(tmp_path, point):
    kill_at(tmp_path, point)


@pytest.mark.soak
@pytest.mark.parametrize("point", POINTS[2:])
def test_a_kill_between_any_two_steps(tmp_path, point):
    kill_at(tmp_path, point)


def kill_at(tmp_path, point: str) -> None:
    folder = tmp_path / "net"
    made = network(folder, peers=3, lease=0.8, train__hops=10)
    with town(folder, made) as here:
        for peer in (0, 2):
            here.start(peer)
        here.start(1, fault=point)
        process = here.processes[1]
        here.until(lambda: not process.is_alive())
        assert process.exitcode == -signal.SIGKILL
        here.start(1)
        here.until(here.finished)
    assert len(check_end(folder, made, range(3))) == 10


def test_stop_hands_over_and_logs_hold_no_data(tmp_path):
    folder = tmp_path / "net"
    made = network(folder, peers=3, lease=2.0, train__hops=40)
    with town(folder, made) as here:
        for peer in range(3):
            here.start(peer)
        here.until(lambda: furthest(here) >= 10)
        here.signal(1, signal.SIGTERM)
        process = here.processes[1]
        process.join(10)
        assert process.exitcode == 0
        assert here.state(1)["holding"] is False
        here.until(lambda: all(here.state(p).get("model") for p in (0, 2)))
        here.start(1)
        here.until(here.finished)
    check_end(folder, made, range(3))
    allowed = {
        "time",
        "peer",
        "event",
        "run",
        "network",
        "hop",
        "leg",
        "generation",
        "to",
        "why",
        "sender",
        "reason",
        "heard",
        "verdict",
        "lost",
        "by",
        "chain",
        "token",
        "holding",
        "passed_over",
        "url",
    }
    for peer in range(3):
        with (folder / f"peer-{peer}" / "store" / "log.jsonl").open() as file:
            records = [json.loads(line) for line in file]
        assert records
        assert not {key for r in records for key in r} - allowed - JOURNAL_TIMES


def asked_to_forget(store: Path, epsilon: str) -> int:
    """What a running peer answers to a request with such a number."""
    body = b'{"records": ["r-1"], "epsilon": %s}' % epsilon.encode()
    token = (store / "http.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    where = (store / "http.address").read_text().strip()
    request = urllib.request.Request(f"{where}v1/requests", body, headers)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    caught.value.close()
    return caught.value.code


def test_a_second_daemon_on_one_store_is_refused(tmp_path):
    folder = tmp_path / "net"
    made = network(folder, peers=3)
    with town(folder, made) as here:
        here.start(0)
        here.until(lambda: here.state(0)["running"])
        first = here.processes[0]
        here.until((folder / "peer-0" / "store" / "http.address").exists)
        assert asked_to_forget(folder / "peer-0" / "store", "1" + 400 * "0") == 400
        here.start(0)
        second = here.processes[0]
        second.join(20)
        assert second.exitcode not in (0, None)
        assert first.is_alive()
        os.kill(first.pid, signal.SIGTERM)
        first.join(10)
