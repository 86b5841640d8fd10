"""Trials of every kind of fault and lie, in memory; the same seed gives the same trial."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.peers.deletions import CERTIFIED, form, records_of, write_records
from tests.peers.scheduler import in_virtual_time
from tests.peers.trials import ENDED, MEMORY, kind_of, lived, run_trial
from tests.peers.trials_checks import Violation, check, opened
from tests.peers.trials_kinds import KINDS, ROW, Kind, everybody, tokens_of
from tests.peers.trials_scenes import InMemory, Scene, make
from tests.peers.trials_twists import TWISTS
from unwalk.core.errors import Corrupt
from unwalk.peers.handover import recovery
from unwalk.peers.handover.service import Service
from unwalk.peers.handover.visit import Work, plan_of
from unwalk.peers.identity.network_file import Network
from unwalk.peers.identity.trust import Bundle
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


def test_a_clock_that_is_not_put_back_in_virtual_time_is_noticed():
    """If it were put back later, the next test in real time had a clock that stands still."""
    before = vars(recovery)["monotonic"]
    noticed = pytest.raises(AssertionError, match=r"monotonic of .*recovery was replaced")
    with noticed, in_virtual_time(0):
        vars(recovery)["monotonic"] = lambda: 0.0
    assert vars(recovery)["monotonic"] is before


def first_peer(made: Network) -> int:
    """Who does the first visit."""
    receiver: int = Work(plan_of(made), 0).move(1, NOBODY, {}, 0).receiver
    return receiver


def others_end(
    folder: Path, twist: str, liar: int | None, *, hops: int = 12, seed: int = 0, visit: float
) -> list[dict[str, Any]]:
    """A walk of four ends though one lies, by default the first; what they wrote down of it."""
    made = make(folder / "net", 4, hops, records=False, seed=seed, visit=visit)
    liar = first_peer(made) if liar is None else liar

    async def play(scene: Scene) -> str:
        scene.liars.add(liar)
        scene.twists[liar] = twist
        await everybody(scene)
        return twist

    kind = Kind(twist, play, "the others end", lies=True)
    with in_virtual_time(seed) as loop:
        scene = InMemory(folder / "net", made, random.Random(seed), 60.0, loop)
        found = loop.run_until_complete(lived(scene, kind))
    assert (found.ended, found.why) == ([p for p in range(4) if p != liar], "")
    check(scene, kind, found.ended)
    return scene.events()


def overruns(events: list[dict[str, Any]]) -> list[int]:
    """Who was too late with the token, as the others counted it."""
    return [line["who"] for line in events if line["event"] == "overrun"]


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
    others_end(tmp_path, twist, None, visit=0.8)


def test_a_member_that_takes_the_token_and_never_visits_is_passed_over(tmp_path):
    """It answers that all is well, for ever; the others go on after limits.visit."""
    assert set(overruns(others_end(tmp_path, "never visits", 1, visit=0.5))) == {1}


def test_a_token_with_huge_weights_is_refused_and_the_run_ends_without_it(tmp_path):
    events = others_end(tmp_path, "huge weights", 1, visit=0.8)
    reasons = [str(line.get("reason")) for line in events if line["event"] == "refused"]
    assert any("allowed: -1e+09 to 1e+09" in reason for reason in reasons)


def test_who_waits_for_its_turn_to_recover_a_token_is_not_too_late_with_it(tmp_path):
    """A neighbour never answers its offers, and others sign for it in its own turn alone."""
    twist = "never answers an offer"
    late = overruns(others_end(tmp_path, twist, 1, hops=16, seed=3, visit=0.7))
    assert len(late) > 1, "after the first one they go by turns"
    assert set(late) == {1}


def test_a_seal_that_its_peer_never_begins_holds_up_nobody(tmp_path):
    """It says that it has the token, for ever; the noise is its own, so nobody else can begin."""
    folder, u = tmp_path / "net", 1
    made = make(folder, 4, 6, records=True, seed=0, visit=2.0, **CERTIFIED)
    for peer in range(4):
        write_records(folder / f"peer-{peer}", peer, hold_out=0.0)

    async def play(scene: Scene) -> str:
        assert isinstance(scene, InMemory)
        scene.liars.add(u)
        await everybody(scene)
        await scene.until(lambda: all(map(scene.ended, range(4))))
        liar, honest = scene.peers[u], scene.peers[0]
        opened = liar._open

        def never(number: int) -> Service:
            service = opened(number)
            TWISTS["never visits"](liar, service)
            return service

        liar._open = never  # type: ignore[method-assign]
        budget = {"grade": "certified", "epsilon": 1.0, "delta": 1e-5}
        assert liar.requests is not None
        liar.requests.submit(form("s", records_of(u)[ROW][0], **budget))
        liar.wake.set()
        await scene.until(lambda: bool(honest.specs))
        assert (honest.specs[0].method, honest.specs[0].peer) == ("seal", u)
        scene.ask(0, "r", records_of(0)[ROW][0])
        scene.asked = 0
        await scene.until(lambda: any(spec.void for spec in honest.specs))
        return "seal"

    kind = Kind("seal", play, "it is given up, and others' requests go on", records=True)
    with in_virtual_time(0) as loop:
        scene = InMemory(folder, made, random.Random(0), 120.0, loop)
        found = loop.run_until_complete(lived(scene, kind))
    assert (found.ended, found.why) == ([0, 2, 3], "")
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


def test_what_must_not_happen_is_noticed(tmp_path):
    """A trial in which nothing goes wrong, and then what it left is changed."""
    folder = tmp_path / "net"
    made = make(folder, 4, 6, records=True, seed=0)
    for peer in range(4):
        write_records(folder / f"peer-{peer}", peer, hold_out=0.0)

    async def play(scene: Scene) -> str:
        await everybody(scene)
        await scene.until(lambda: scene.ended(0))
        scene.ask(0, "r", records_of(0)[ROW][0])
        scene.asked = 0
        return "nothing"

    kind = Kind("nothing", play, "all end", records=True)
    with in_virtual_time(0) as loop:
        scene = InMemory(folder, made, random.Random(0), 60.0, loop)
        found = loop.run_until_complete(lived(scene, kind))
    assert (found.ended, found.why) == ([0, 1, 2, 3], "")
    check(scene, kind, found.ended)

    def noticed(match: str) -> None:
        with pytest.raises(Violation, match=match):
            check(scene, kind, found.ended)

    scene.journal.append({"event": "liar", "who": 1})
    noticed("named as liars")
    scene.journal.pop()
    table = folder / "records-2.csv"
    kept = table.read_bytes()
    table.write_bytes(kept[: kept.rindex(b"person-2")])
    noticed("peer 2 .* has 39 records, not 40")
    table.write_bytes(kept)
    (place,) = folder.glob("peer-0/store/certificates/*/certificate.json")
    said = place.read_text()
    place.write_text(said.replace('"r"', '"s"', 1))
    noticed("of peer 0")
    place.write_text(said)
    with opened(Bundle.read(folder / "peer-3")) as store:
        ((run, text),) = store.db.execute("SELECT run, state FROM runs").fetchall()[-1:]
        state = json.loads(text)
        state["committed"]["salt"] = "0" * 32
        with store.transaction() as db:
            db.execute("UPDATE runs SET state = ? WHERE run = ?", (json.dumps(state), run))
    noticed("ended in 2 ways")
    path = folder / "peer-1" / "store" / "state.sqlite"
    path.write_bytes(path.read_bytes()[:-4096])
    noticed("peer-1 cannot start again")


@pytest.mark.soak
@pytest.mark.parametrize("block", range(25))
def test_500_trials_in_memory(tmp_path, block):
    for seed in range(1000 + 20 * block, 1020 + 20 * block):
        found = run_trial(tmp_path, seed, MEMORY)
        assert found.outcome == ENDED, (seed, found.kind, found.why)


def test_a_last_token_that_is_damaged_stops_its_peer_and_the_others_end(root):
    """Its peer voted for nothing, and said nothing."""
    found = run_trial(root, 1769, MEMORY)
    seen = {line["event"] for line in found.journal}
    assert "end not whole" in seen, "the damage met another token: take a seed where it is the last"
    assert (found.outcome, found.recovered) == (ENDED, 1), found.why
