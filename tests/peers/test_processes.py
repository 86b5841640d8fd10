"""Real processes over mutual TLS, killed, stopped and cut off at random instants."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest

from tests.peers.harness import check_end, network, town

FAULTS = ["SIGKILL", "SIGSTOP", "cut link"]
POINTS = [
    "token written#2",
    "token synced#2",
    "token renamed#2",
    "before commit#3",
    "after commit#3",
    "before commit#4",
    "after commit#4",
]


def furthest(here) -> int:
    return max(int(here.state(p).get("hop", 0)) for p in here.processes)


def trial(folder, seed: int, hops: int = 30, peers: int = 5) -> list[int]:
    """One seeded trial: a walk with one fault at a random hop; ends as it should."""
    rng = random.Random(seed)
    made = network(folder, peers=peers, lease=1.0, train__hops=hops)
    fault, when = rng.choice(FAULTS), rng.randrange(1, hops - 1)
    victim, wait = rng.randrange(peers), rng.uniform(0.0, 0.01)
    with town(folder, made) as here:
        for peer in range(peers):
            here.start(peer)
        here.until(lambda: furthest(here) >= when)
        time.sleep(wait)
        if fault == "SIGKILL":
            here.signal(victim, signal.SIGKILL)
            time.sleep(rng.choice([0.0, 1.5]))
            here.start(victim)
        elif fault == "SIGSTOP":
            here.signal(victim, signal.SIGSTOP)
            time.sleep(2.5)
            here.signal(victim, signal.SIGCONT)
        else:
            other = (victim + 1 + rng.randrange(peers - 1)) % peers
            here.cut(victim, other)
            time.sleep(2.5)
            here.heal(victim, other)
        here.until(here.finished)
    return check_end(folder, made, range(peers))


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_a_trial(tmp_path, seed):
    assert len(trial(tmp_path / "net", seed)) == 30


def test_the_quick_trials_cover_every_fault():
    assert {random.Random(seed).choice(FAULTS) for seed in (0, 1, 5)} == set(FAULTS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_200_trials(tmp_path, seed):
    assert len(trial(tmp_path / "net", seed)) == 30


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
        "at",
        "hop",
        "leg",
        "generation",
        "began",
        "ended",
        "to",
        "why",
        "sender",
        "reason",
        "heard",
        "verdict",
        "lost",
        "url",
        "by",
        "chain",
        "token",
        "holding",
        "passed_over",
    }
    for peer in range(3):
        with (folder / f"peer-{peer}" / "store" / "log.jsonl").open() as file:
            records = [json.loads(line) for line in file]
        assert records
        assert not {key for r in records for key in r} - allowed


def test_a_second_daemon_on_one_store_is_refused(tmp_path):
    folder = tmp_path / "net"
    made = network(folder, peers=3)
    with town(folder, made) as here:
        here.start(0)
        here.until(lambda: here.state(0)["running"])
        first = here.processes[0]
        here.start(0)
        second = here.processes[0]
        second.join(20)
        assert second.exitcode not in (0, None)
        assert first.is_alive()
        os.kill(first.pid, signal.SIGTERM)
        first.join(10)
