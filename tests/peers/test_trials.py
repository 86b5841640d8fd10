"""Trials of every kind of fault and lie, in memory; the same seed gives the same trial."""

from __future__ import annotations

import random

import pytest

from tests.peers.scheduler import in_virtual_time
from tests.peers.trials import ENDED, MEMORY, kind_of, lived, run_trial
from tests.peers.trials_checks import check
from tests.peers.trials_kinds import KINDS, Kind, everybody, tokens_of
from tests.peers.trials_scenes import InMemory, Scene, make
from unwalk.core.errors import Corrupt
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

    once = journal(2)
    assert len(once) > 50
    assert journal(2) == once


def first_peer(made: Network) -> int:
    """Who does the first visit."""
    receiver: int = Work(plan_of(made), 0).move(1, NOBODY, {}, 0).receiver
    return receiver


@pytest.mark.parametrize(
    "twist",
    [
        "never visits",
        pytest.param("huge weights", marks=pytest.mark.soak),
        pytest.param("withholds the stamp", marks=pytest.mark.soak),
    ],
)
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
        found = loop.run_until_complete(lived(scene, kind))
    assert (found.ended, found.why) == ([p for p in range(4) if p != first], "")
    check(scene, kind, found.ended)


def test_a_peer_whose_token_is_refused_looks_at_its_own_file(tmp_path):
    """It was damaged while the peer was down: it stops with a sentence, and the others go on."""
    made = make(tmp_path / "net", 4, 12, records=False, seed=0)

    async def play(scene: Scene) -> str:
        assert isinstance(scene, InMemory)
        scene.weather(delay=0.3)
        await everybody(scene)

        def offering() -> list[int]:
            """Whoever is the furthest, and hands the token on just now."""
            states = {p: c.service.state for p, c in scene.peers.items()}
            found = [p for p, s in states.items() if s.reached[1][0] == scene.hop() > 3]
            return [p for p in found if states[p].stage == "offered"]

        await scene.until(lambda: bool(offering()))
        (peer,) = offering()
        await scene.kill(peer)
        held, _ = tokens_of(scene, peer)
        assert held is not None
        data = bytearray(held.read_bytes())
        data[-1] ^= 1
        held.write_bytes(data)
        scene.weather()
        await scene.start(peer)
        scene.excused.add(peer)
        return "offered"

    kind = Kind("damaged", play, "the others end")
    with in_virtual_time(0) as loop:
        scene = InMemory(tmp_path / "net", made, random.Random(0), 60.0, loop)
        found = loop.run_until_complete(lived(scene, kind))
    assert (len(found.ended), found.why) == (3, "")
    assert [type(error) for error in scene.failures] == [Corrupt]
    check(scene, kind, found.ended)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(25))
def test_500_trials_in_memory(tmp_path, block):
    for seed in range(1000 + 20 * block, 1020 + 20 * block):
        found = run_trial(tmp_path, seed, MEMORY)
        assert found.outcome == ENDED, (seed, found.kind, found.why)
