"""Trials of every kind of fault and lie, in memory; the same seed gives the same trial."""

from __future__ import annotations

import random

import pytest

from tests.peers.scheduler import in_virtual_time
from tests.peers.trials import ENDED, MEMORY, PROCESSES, kind_of, lived, run_trial
from tests.peers.trials_checks import check
from tests.peers.trials_kinds import KINDS, Kind, everybody
from tests.peers.trials_scenes import InMemory, Scene, make
from unwalk.peers.network import Network
from unwalk.peers.work import Work, plan_of
from unwalk.walks import NOBODY

SHORT = 10
"""Visits of a quick trial."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("trials")


@pytest.mark.parametrize("seed", range(len(KINDS)), ids=lambda seed: kind_of(seed).name)
def test_a_trial_of_every_kind(root, seed):
    found = run_trial(root, seed, MEMORY, hops=SHORT)
    assert found.outcome == ENDED, found.why


def test_the_same_seed_gives_the_same_trial(root):
    def journal(seed: int) -> list[dict[str, object]]:
        found = run_trial(root, seed, MEMORY, hops=SHORT).journal
        return [{k: v for k, v in record.items() if k != "time"} for record in found]

    once = journal(22)
    assert len(once) > 50
    assert journal(22) == once
    assert journal(2) != once


def first_peer(made: Network) -> int:
    """Who does the first visit."""
    return Work(plan_of(made), 0).move(1, NOBODY, {}, 0).receiver


@pytest.mark.parametrize("twist", ["never visits", "huge weights", "withholds the stamp"])
def test_a_first_peer_that_hands_nothing_on_does_not_stop_the_run(tmp_path, twist):
    """All others have the token that it began with: any of them goes on without it."""
    made = make(tmp_path / "net", 4, 12, records=False, seed=0, visit=0.8)
    first = first_peer(made)

    async def play(scene: Scene) -> str:
        scene.liars.add(first)
        scene.twists[first] = twist
        await everybody(scene)
        return twist

    kind = Kind(twist, play, "the others end", lies=True)
    with in_virtual_time(0) as loop:
        scene = InMemory(tmp_path / "net", made, random.Random(0), 60.0, loop)
        _, ended = loop.run_until_complete(lived(scene, kind))
    assert len(ended) == 3
    check(scene, kind, ended)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(25))
def test_500_trials_in_memory(tmp_path, block):
    for seed in range(1000 + 20 * block, 1020 + 20 * block):
        found = run_trial(tmp_path, seed, MEMORY)
        assert found.outcome == ENDED, (seed, found.kind, found.why)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_40_trials_in_processes(tmp_path, seed):
    found = run_trial(tmp_path, seed, PROCESSES)
    assert found.outcome == ENDED, (found.kind, found.variant, found.why)
