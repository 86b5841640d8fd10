"""Whole runs on a Ray cluster: the models of one process; stopped and resumed; noise drawn once."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.engines.test_ray import host_pids
from tests.runs.small import BLOBS, options, small
from tests.runs.test_draws import SECRET, chosen, lines
from tests.runs.test_proved import FLAT, Stop
from unwalk.cli import app
from unwalk.core.errors import InvalidInput
from unwalk.core.transcript import Transcript
from unwalk.engines import ray_cluster
from unwalk.runs.replay import replay
from unwalk.runs.run import run

pytestmark = pytest.mark.soak
installed = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: unwalk[ray]"
)


@pytest.fixture(scope="module")
def cluster():
    ray = ray_cluster.connected()
    yield ray
    ray.shutdown()


def model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def hops(folder: Path) -> list[str]:
    text = (folder / "transcript.jsonl").read_text()
    return [str(hop) for hop in Transcript.parse(text.splitlines(keepends=True)).hops]


@installed
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("method", ["rrdu", "seal", "rewind", "sisa", "sums", "restart"])
def test_a_run_on_a_cluster_has_the_model_of_one_process(method, tmp_path):
    base = BLOBS if method == "rrdu" else FLAT
    shards = {"train__shards": 2} if method == "sisa" else {}
    for engine in ("ray", "inprocess"):
        config = small(base, method=method, performance__engine=engine, **shards)
        run(config, out=tmp_path / engine)
    assert model(tmp_path / "ray") == model(tmp_path / "inprocess")
    assert hops(tmp_path / "ray") == hops(tmp_path / "inprocess")
    again = Transcript.parse((tmp_path / "ray" / "transcript.jsonl").read_text().splitlines(True))
    assert replay(tmp_path / "ray", again) == []


@installed
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("walk", "hop"), [("train", 4), ("rewind", 2)])
def test_a_stopped_run_goes_on(walk, hop, tmp_path):
    config = small(FLAT, method="rewind", performance__engine="ray")
    run(config, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "stopped", tell=Stop(walk, hop))
    run(config, out=tmp_path / "stopped", resume=True)
    for name in ("model.safetensors", "transcript.jsonl", "certificate.json"):
        whole, stopped = ((tmp_path / d / name).read_bytes() for d in ("whole", "stopped"))
        assert whole == stopped, name


@installed
@pytest.mark.usefixtures("cluster")
def test_a_visit_made_again_draws_the_same_noise_and_enters_it_once(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    here = small(chosen(secret), method="noisy-start")
    run(here, out=tmp_path / "here")
    before = lines(tmp_path)
    assert before
    config = small(chosen(secret), method="noisy-start", performance__engine="ray")
    run(config, out=tmp_path / "whole")
    assert lines(tmp_path) == before, "another engine is no other run"
    assert model(tmp_path / "whole") == model(tmp_path / "here")

    def kill(walk: str, done: int, hops: int) -> None:
        if (walk, done) in (("noisy-start", 1), ("noisy-start", 5)):
            os.kill(host_pids()[0], signal.SIGKILL)

    run(config, out=tmp_path / "killed", tell=kill)
    assert lines(tmp_path) == before
    for name in ("model.safetensors", "transcript.jsonl", "certificate.json"):
        whole, killed = ((tmp_path / d / name).read_bytes() for d in ("whole", "killed"))
        assert whole == killed, name


@installed
@pytest.mark.usefixtures("cluster")
def test_the_command_line_names_the_engine(tmp_path):
    for engine in ("ray", "fleet", "auto", "inprocess"):
        words = ["run", "--engine", engine, "--out", str(tmp_path / engine), *options(BLOBS)]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    assert model(tmp_path / "ray") == model(tmp_path / "inprocess") == model(tmp_path / "auto")


@installed
def test_an_address_where_no_cluster_is(monkeypatch):
    ray_cluster.ray_module().shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InvalidInput, match=r"no Ray cluster answers .*ray start --head"):
        ray_cluster.connected()
