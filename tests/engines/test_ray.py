"""Ray: the same bits on a cluster that the test starts and stops, also when workers are killed."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import ROOT
from tests.engines import test_contract as contract
from tests.tiny import TinyTask, plan
from unwalk.core.errors import InvalidInput, UnwalkError
from unwalk.core.noise import SecretNoise
from unwalk.core.plan import Performance
from unwalk.engines import ray_cluster, ray_engine
from unwalk.engines.inprocess import InProcess
from unwalk.engines.ray_engine import FarToken, Ray
from unwalk.engines.ray_parcel import APART, packed

installed = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: unwalk[ray]"
)


@pytest.fixture
def cluster():
    ray = ray_cluster.connected()
    try:
        yield ray
    finally:
        ray.shutdown()


class Kill:
    """A sink that kills the process of a host after some hops."""

    def __init__(self, *hops):
        self.hops, self.killed, self.seen = hops, [], []

    def after(self, index, progress, look):
        self.seen.append(progress.token.hop)
        if progress.token.hop in self.hops:
            pids = host_pids()
            pid = pids[len(self.killed) % len(pids)]
            self.killed.append(pid)
            os.kill(pid, signal.SIGKILL)


def host_pids():
    """The processes of the hosts that are there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "cmdline").read_bytes()
            started = (folder / "environ").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::Host") and _own(started):
            found.append(int(folder.name))
    return sorted(found)


def _own(started):
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    return bool(token) and f"RAY_AUTH_TOKEN={token}".encode() in started


class Slow(nn.Linear):
    """A model with which a hop takes long enough to be killed in."""

    def forward(self, x):
        time.sleep(0.02)
        return super().forward(x)


def slow():
    return Slow(3, 2, dtype=torch.float64)


def same(first, second):
    assert first.token.digest() == second.token.digest()
    assert first.transcript.text() == second.transcript.text()
    ends = [{p: vars(one) for p, one in o.progress.locals.items()} for o in (first, second)]
    assert str(ends[0]) == str(ends[1])


@installed
def test_a_cluster_gives_the_bits_of_one_process_and_a_killed_worker_changes_nothing(
    cluster, capsys
):
    """The part of the contract that is tried every day: one cluster, started and stopped here."""
    made = plan(contract.train(optimizer="adam", rate=0.01, state="local"), contract.unlearn())
    stop = contract.Stop(5)
    whole = contract.run(InProcess(), [made])
    same(contract.run(Ray(), [made], stop), whole)
    assert stop.seen == [(0, hop) for hop in range(1, 13)]
    same(contract.run(Ray(), [made], None, {0: stop.kept}), whole)
    contract.test_noise_source_decides_noise_and_nothing_else(Ray())
    contract.test_a_step_that_is_not_finite_stops_the_walk(Ray())

    lasting = replace(made, task=TinyTask(factory=slow))
    kill = Kill(3)
    same(contract.run(Ray(), [lasting], kill), contract.run(InProcess(), [lasting]))
    assert kill.seen == list(range(1, 13))
    assert kill.killed
    assert kill.killed[0] not in host_pids()
    assert capsys.readouterr().out == ""


@installed
@pytest.mark.soak
def test_workers_killed_again_and_again_change_nothing(cluster):
    task = TinyTask(factory=slow)
    made = plan(
        contract.train(hops=40, optimizer="adam", rate=0.01, state="local"),
        contract.unlearn(hops=40, keep="average"),
        task=task,
        noise=SecretNoise("test", b"k" * 32),
    )
    kill = Kill(2, 17, 33, 39, 41, 60, 79)
    same(contract.run(Ray(), [made], kill), contract.run(InProcess(), [made]))
    assert len(kill.killed) == 7


@installed
@pytest.mark.soak
def test_large_tokens_and_shut_doors_change_nothing(cluster, monkeypatch):
    """Tokens that go through Ray alone, one by one; then hosts that cannot reach each other."""
    made = plan(
        contract.train(hops=12, optimizer="adam", rate=0.01, state="local"),
        contract.unlearn(hops=12),
        task=TinyTask(factory=slow),
    )
    whole = contract.run(InProcess(), [made])
    asked = []

    def shut(crew, before, host):
        asked.append((before, host))
        return "/nobody/is/here"

    monkeypatch.setattr(ray_cluster.Crew, "door", shut)
    monkeypatch.setattr(ray_engine, "DIRECT", 0)
    kill = Kill(3)
    same(contract.run(Ray(), [made], kill), whole)
    assert kill.killed
    assert not asked
    monkeypatch.setattr(ray_engine, "DIRECT", 1 << 20)
    same(contract.run(Ray(), [made]), whole)
    assert asked


@pytest.fixture
def machines(monkeypatch):
    """A cluster of two machines on this one; the driver is on the first."""
    ray = ray_cluster.ray_module()
    from ray.cluster_utils import Cluster

    made = Cluster()
    made.add_node(num_cpus=1, include_dashboard=False)
    second = made.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    try:
        ray_cluster.connected()
        yield made, second
    finally:
        ray.shutdown()
        made.shutdown()


class Lose:
    """A sink that loses a machine after one hop, and may get another one."""

    def __init__(self, machines, hop, another):
        (self.cluster, self.second), self.hop, self.another, self.seen = machines, hop, another, []

    def after(self, index, progress, look):
        self.seen.append(progress.token.hop)
        if progress.token.hop == self.hop:
            self.cluster.remove_node(self.second, allow_graceful=False)
            if self.another:
                self.cluster.add_node(num_cpus=1)
            assert look().parameters.isfinite().all()


@installed
@pytest.mark.soak
@pytest.mark.parametrize(("hop", "another"), [(7, False), (30, True)])
def test_a_lost_machine_sends_the_walk_back_and_changes_nothing(machines, hop, another):
    made = plan(
        contract.train(hops=40, optimizer="adam", rate=0.01, state="local"),
        contract.unlearn(hops=20),
        task=TinyTask(factory=slow),
    )
    lose = Lose(machines, hop, another)
    same(contract.run(Ray(), [made], lose), contract.run(InProcess(), [made]))
    assert lose.seen == list(range(1, 61))


@installed
@pytest.mark.soak
def test_state_that_is_lost_is_made_again(cluster, monkeypatch):
    """The walk goes back to the last copy, and a hop that is not the same again is refused."""
    made = plan(contract.train(hops=12, optimizer="adam", rate=0.01, state="local"))
    whole = contract.run(InProcess(), [made])

    monkeypatch.setattr(ray_engine, "AHEAD", 1)

    class Lost(ray_engine.Journey):
        """After hop 5 nothing of its state is there any more, nor the next visit."""

        lost: frozenset[Any] = frozenset()

        def after(self, index, progress, look):
            if progress.token.hop == 5 and not self.lost:
                self.lost = frozenset(self.place.references())
                self.next = True

        def _told(self, reference):
            if reference in self.lost or vars(self).pop("next", False):
                raise ray_engine._Gone("lost")
            return super()._told(reference)

    journey = Lost(made, None)
    same(journey.walk(0, journey), whole)

    class Other(Lost):
        def after(self, index, progress, look):
            if progress.token.hop == 5:
                hops = self.transcript.hops
                hops[2] = replace(hops[2], gradients=7)
            super().after(index, progress, look)

    journey = Other(made, None)
    with pytest.raises(UnwalkError, match="hop 3 was lost and made again, and it is not the same"):
        journey.walk(0, journey)


@installed
@pytest.mark.soak
def test_the_driver_holds_no_token_that_nobody_looks_at(cluster):
    """A token stays in the memory of the machines: Ray names the machine that has it."""
    seen = []

    class Look:
        def after(self, index, progress, look):
            seen.append(progress.token)

    journey = ray_engine.Journey(plan(contract.train()), None)
    journey.walk(0, Look())
    for token in seen:
        assert isinstance(token, FarToken)
        assert "parameters" not in vars(token)
    place = journey.place.token
    (where,) = cluster.experimental.get_object_locations([place]).values()
    assert where["node_ids"]
    assert where["object_size"] >= APART
    assert torch.equal(seen[-1].parameters, journey._token(journey.place).parameters)
    assert "parameters" in vars(seen[-1])


def test_parcels_bring_tensors_of_every_kind():
    half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    sent: dict[str, Any] = {
        "half": half,
        "count": torch.tensor(3),
        "none": torch.empty(0, 2),
        "text": "x",
    }
    parcel = packed(sent, 1000)
    came = parcel.opened()
    assert parcel.filler is not None
    assert came["text"] == "x"
    for name in ("half", "count", "none"):
        assert came[name].dtype == sent[name].dtype
        assert torch.equal(came[name], sent[name])
    seen = parcel.viewed()
    assert all(torch.equal(seen[name], sent[name]) for name in ("half", "count", "none"))
    assert seen["half"].data_ptr() == half.data_ptr()
    came["half"] += 1
    assert torch.equal(half, torch.tensor([1.5, -2.0], dtype=torch.bfloat16))


def test_without_ray_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"not installed: pip install 'unwalk\[ray\]'\.$"):
        list(Ray().run([plan()]))


def test_ray_is_imported_only_when_the_engine_is_used():
    for path in sorted((ROOT / "src").rglob("*.py")):
        assert not re.search(r"^(import|from) ray\b", path.read_text(encoding="utf-8"), re.M), path


def test_other_devices_are_refused():
    made = replace(plan(), performance=Performance(device="cuda"))
    with pytest.raises(InvalidInput, match="engine ray computes on CPUs"):
        list(Ray().run([made]))
