"""A peer's register of noisy releases: written before noise is drawn, chained, never twice."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.peers.deletions import CERTIFIED, form, network, records_of, vouched
from tests.peers.harness import Town, town
from tests.peers.test_forgetting_processes import U, row_of
from unwalk.certificates.document import read_certificate
from unwalk.cli.forgetting import _hand_in
from unwalk.core.data import Shard
from unwalk.core.errors import Corrupt
from unwalk.core.events import Draw
from unwalk.core.program import Records
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.records.noise_register import PeerRegister, draws, marks, was_released
from unwalk.peers.records.trace_search import search, traces

RUNS = ("0" * 32, "1" * 32, "2" * 32)
HASHES = ("a" * 64, "b" * 64, "c" * 64)


@pytest.fixture
def bundle(tmp_path):
    network(tmp_path / "net", peers=2)
    return Bundle.read(tmp_path / "net" / "peer-0")


def register_of(bundle):
    (path,) = bundle.folder.glob("releases-*.jsonl")
    return path


def enter(
    bundle: Bundle,
    run: str,
    hashes: Sequence[str],
    shard: Shard | None = None,
    inputs: str = "0" * 64,
) -> Draw:
    """The entry of a seal that hides these records."""
    register = PeerRegister(bundle, lambda: (hashes, shard))
    return register.enter(run=run, peer=0, hop=7, step=0, inputs=inputs)


def test_a_draw_is_entered_once_and_found_by_any_of_its_records(bundle):
    assert not was_released(bundle, HASHES)
    first = enter(bundle, RUNS[0], HASHES[:2])
    assert (first[0], first[2]) == (1, 0)
    assert enter(bundle, RUNS[0], HASHES[:2]) == first
    assert was_released(bundle, HASHES[1:])
    assert not was_released(bundle, HASHES[2:])
    assert enter(bundle, RUNS[1], HASHES[2:])[2] == 0
    assert enter(bundle, RUNS[2], HASHES[1:])[2] == 2
    assert register_of(bundle).stat().st_mode & 0o077 == 0
    other = enter(bundle, RUNS[0], HASHES)  # the same visit for other records is another draw
    assert (other[0], other[2]) == (4, 3)


def test_a_visit_done_again_on_other_numbers_is_another_draw(bundle):
    assert enter(bundle, RUNS[0], HASHES)[2] == 0
    second = enter(bundle, RUNS[0], HASHES, inputs="1" * 64)
    assert (second[0], second[2]) == (2, 1)


def test_a_record_that_comes_back_under_another_id_is_known_by_its_content(bundle):
    rows = Records(3, np.array([1]))
    shard = Shard(torch.eye(3), torch.tensor([0, 1, 2]), rows)
    enter(bundle, RUNS[0], HASHES[:1], shard)
    assert enter(bundle, RUNS[1], HASHES[1:2], shard)[2] == 1
    other = Shard(shard.x, shard.y, Records(3, np.array([2])))
    assert enter(bundle, RUNS[2], HASHES[2:], other)[2] == 0


def test_a_peer_that_forgets_nothing_leaves_no_marks(bundle):
    assert enter(bundle, RUNS[0], ())[2] == enter(bundle, RUNS[1], ())[2] == 0
    assert [entry.place.marks for entry in draws(bundle).entries()] == [frozenset()] * 2


def test_marks_say_nothing_without_the_secret(bundle):
    enter(bundle, RUNS[0], HASHES)
    text = register_of(bundle).read_text()
    assert not [h for h in HASHES if h in text]
    other = Bundle.read(bundle.folder.with_name("peer-1"))
    assert not marks(bundle, HASHES) & marks(other, HASHES)


def test_a_register_that_a_crash_cut_short_is_mended_and_a_changed_one_refused(bundle):
    enter(bundle, RUNS[0], HASHES[:1])
    path = register_of(bundle)
    whole = path.read_text()
    enter(bundle, RUNS[1], HASHES[1:])
    two = path.read_text()
    path.write_text(two[:-20])
    assert not was_released(bundle, HASHES[1:])
    assert enter(bundle, RUNS[1], HASHES[1:])[0] == 2
    assert path.read_text() == two
    path.write_text(whole.replace(RUNS[0], RUNS[2]))
    with pytest.raises(Corrupt, match="was changed in line 1"):
        was_released(bundle, HASHES)


SEALED = {k.replace(".", "__"): v for k, v in CERTIFIED.items()}
BUDGET: dict[str, Any] = {"grade": "certified", "epsilon": 1.0, "delta": 1e-5}


def killed_at(here: Town, point: str, id: str, record: str) -> None:
    """A request for a seal, whose peer is killed at ``point``."""
    here.signal(U, signal.SIGTERM)
    here.processes[U].join(15)
    _hand_in(here.folder / f"peer-{U}", form(id, record, **BUDGET))
    here.start(U, f"{point}#1")
    process = here.processes[U]
    here.until(lambda: not process.is_alive())
    assert process.exitcode == -signal.SIGKILL, point


def answered(here: Town, id: str) -> dict[str, Any]:
    """The certificate of a request, once it has ended."""
    here.until(lambda: row_of(here.folder, id)[0] == "done")
    name = row_of(here.folder, id)[1]
    assert name is not None
    place = (
        here.folder / f"peer-{U}" / "store" / peer_certificate.FOLDER / name / "certificate.json"
    )
    assert peer_certificate.verified(place, here.folder / "ca.pem")["problems"] == []
    return read_certificate(place)


@pytest.mark.parametrize("back", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_seal_whose_process_is_killed_just_before_its_noise_is_drawn(tmp_path, back):
    """If it is back at once it goes on; otherwise its chapter is given up, and others go on."""
    folder, rows = tmp_path / "net", records_of(U)
    lease = 5.0 if back else 0.3
    hops = 6 if back else 12  # those that also visit peer 0
    made = network(folder, peers=3, lease=lease, hold_out=0.0, train__hops=hops, **SEALED)
    with town(folder, made) as here:
        for peer in range(3):
            here.start(peer)
        here.until(here.finished)
        killed_at(here, "release entered", "r", rows[0][0])
        if not back:
            _hand_in(folder / "peer-0", form("other", records_of(0)[0][0], **BUDGET))
            certificate = (
                folder / "peer-0/store" / peer_certificate.FOLDER / "chapter-2/certificate.json"
            )
            here.until(certificate.exists)
            assert peer_certificate.verified(certificate, folder / "ca.pem")["problems"] == []
        here.start(U)
        document = answered(here, "r")
        here.until(here.finished)
    claim, redraws = document["claims"][0], document["redraws"]
    assert claim["grade"] == ("certified" if back else "exact"), claim["reason"]
    assert not back or (redraws["register"], redraws["entry"], redraws["earlier"]) == ("kept", 1, 0)
    entries = draws(Bundle.read(folder / f"peer-{U}")).entries()  # done again: the same entry
    assert [entry.place.peer for entry in entries] == [U]
    assert len(entries[0].place.marks) == 2  # by id and by content
    assert search(folder, traces(ids=[rows[0][0]], texts=[",".join(rows[0][2:])])) == []


POINTS = ["chapter decided#1", "chapter opened#1", "release entered#1", "token written#1"]
"""Where nobody else can begin the chapter yet."""


def trial(folder: Path, seed: int) -> set[str]:
    """Seals at two of four peers; one of these is away, on its way or at a random instant."""
    rng = random.Random(seed)
    made = network(folder, peers=4, lease=0.25, hold_out=0.0, train__hops=10, **SEALED)
    askers = rng.sample(range(4), 2)
    victim, fault = askers[0], rng.choice([*POINTS, "SIGKILL", "SIGSTOP"])
    away = rng.choice([0.0, 4.5, 4.5])
    with town(folder, made) as here:
        for peer in range(4):
            here.start(peer)
        here.until(here.finished)
        if fault in POINTS:
            here.signal(victim, signal.SIGTERM)
            here.processes[victim].join(15)
        for peer in askers:
            record = records_of(peer)[seed % 40][0]
            _hand_in(folder / f"peer-{peer}", form(f"r{peer}", record, **BUDGET))
        if fault in POINTS:
            here.start(victim, fault)
            here.until(lambda: not here.processes[victim].is_alive())
        else:
            time.sleep(rng.uniform(0.0, 0.6))
            here.signal(victim, getattr(signal, fault))
        time.sleep(away)
        if fault == "SIGSTOP":
            here.signal(victim, signal.SIGCONT)
        else:
            here.start(victim)
        here.until(lambda: all(here.state(p)["requests"] == {"done": 1} for p in askers), 90.0)
    grades = set()
    for peer in askers:
        (place,) = folder.glob(f"peer-{peer}/store/certificates/*/certificate.json")
        vouched(place, folder / "ca.pem")
        document = read_certificate(place)
        grades.add(document["claims"][0]["grade"])
        assert document["redraws"]["earlier"] in (0, None)
    gone = [records_of(a)[seed % 40] for a in askers]
    needles = traces(ids=[r[0] for r in gone], texts=[",".join(r[2:]) for r in gone])
    assert search(folder, needles) == []
    return grades


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_20_trials_of_seals_whose_peer_is_away(tmp_path, seed):
    assert trial(tmp_path / "net", seed) <= {"certified", "exact"}
