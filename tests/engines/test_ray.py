"""Ray: the same bits on a cluster that the test starts and stops, also when workers are killed."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
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
from unwalk.engines import ray_cluster, ray_engine, ray_witness
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


def listening():
    """The addresses at which processes that know the token of this one's cluster listen."""
    inodes = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if _own((folder / "environ").read_bytes()):
                inodes |= {os.readlink(fd) for fd in (folder / "fd").iterdir()}
        except OSError:
            continue
    lines = [line for name in ("tcp", "tcp6") for line in _lines(f"/proc/net/{name}")]
    rows = [line.split() for line in lines]
    return {
        row[1].partition(":")[0]
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in inodes
    }


def _lines(path):
    return Path(path).read_text().splitlines()


LOOPBACK = {"0100007F", "0" * 16 + "FFFF0000" + "0100007F", "0" * 24 + "01000000"}


def parametrized():
    """A model that torch refuses to pickle."""
    inner = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3, dtype=torch.float64))
    outer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2, dtype=torch.float64))
    return nn.Sequential(inner, outer)


class Locked(nn.Linear):
    def __init__(self):
        super().__init__(3, 2, dtype=torch.float64)
        self.lock = threading.Lock()


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

    place = Path(cluster._private.worker._global_node.get_temp_dir_path())
    assert place.parent.stat().st_mode & 0o777 == 0o700
    assert listening()
    assert listening() <= LOOPBACK
    odd = replace(made, task=TinyTask(factory=parametrized))
    same(contract.run(Ray(), [odd]), contract.run(InProcess(), [odd]))
    with pytest.raises(InvalidInput, match=r"^the model Locked cannot be sent .*lock.*inprocess"):
        contract.run(Ray(), [replace(made, task=TinyTask(factory=Locked))])

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


@installed
@pytest.mark.parametrize("answer", [b"HTTP/1.0 505 HTTP Version Not Supported\r\n\r\n", b""])
def test_an_address_of_something_else(monkeypatch, answer):
    """Somebody answers otherwise, or is silent."""
    monkeypatch.setattr(ray_cluster, "ANSWER", 0.3)
    ray_cluster.ray_module().shutdown()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listener.getsockname()[1]}")
        held = []

        def serve():
            held.append(listener.accept()[0])
            held[0].sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(InvalidInput, match=r"no Ray cluster answers .*ray start --head"):
            ray_cluster.connected()
        held[0].close()


@installed
@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:", "127.0.0.1:x", ":6379"])
def test_an_address_that_is_none(monkeypatch, address):
    ray_cluster.ray_module().shutdown()
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InvalidInput, match=r"^--ray-address is .*; allowed: auto, or HOST:PORT\.$"):
        ray_cluster.connected()


@pytest.mark.parametrize("heard", [True, False])
def test_the_process_that_stands_by_clears_up(tmp_path, heard):
    """Whether anybody hears it or not; after an end in order it says nothing."""
    place = tmp_path / "place"
    for words, said in ((ray_witness.IN_ORDER, b""), (b"", ray_witness.LOST.encode() + b"\n")):
        place.mkdir()
        command = [sys.executable, "-S", str(ray_witness.__file__), str(place)]
        with subprocess.Popen(command, stdin=-1, stderr=-1) as witness:
            assert witness.stdin is not None
            assert witness.stderr is not None
            if not heard:
                witness.stderr.close()
            witness.stdin.write(words)
            witness.stdin.close()
            assert not heard or witness.stderr.read() == said
            until(lambda: not place.exists(), 10)
            witness.kill()


@installed
@pytest.mark.soak
def test_a_lost_raylet_is_told_and_nothing_stays(tmp_path):
    """Ray ends the command on the spot; what stands by says how to go on, and clears up."""
    settings = ("train.hops=400", "performance.checkpoint=0", "compare=")
    words = [sys.executable, "-m", "unwalk", "run", "--engine", "ray", "--method", "retrain"]
    words += ["--task", "blobs", "--out", str(tmp_path / "out"), *(f"--set={s}" for s in settings)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as ended:
        try:
            until(lambda: list((tmp_path / "out.partial").glob("walks/*.safetensors")), 120)
            raylet, folder = raylet_of(ended.pid)
            assert folder.is_dir()
            os.kill(raylet, signal.SIGKILL)
            _, said = ended.communicate(timeout=120)
        finally:
            ended.kill()
    assert ended.returncode != 0
    assert said.decode().splitlines()[-1] == ray_witness.LOST  # Ray may say something before
    assert "--resume" in ray_witness.LOST
    until(lambda: not folder.exists(), 40)


def until(done, patience):
    deadline = time.monotonic() + patience
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def raylet_of(pid):
    """The raylet of a cluster that a process started, and the folder of that cluster."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            line, parent = (place / "cmdline").read_text(), (place / "status").read_text()
        except OSError:
            continue
        if f"PPid:\t{pid}\n" in parent and "/raylet\0" in line:
            found = re.search(r"--temp_dir=([^\0]*)/r\0", line)
            assert found is not None
            return int(place.name), Path(found[1])
    raise AssertionError("no raylet")


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
