"""What is called after every hop, and the trackers that can be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import unwalk
from tests.conftest import ROOT
from unwalk.core.errors import Diverged, InvalidInput
from unwalk.runs import loggers
from unwalk.runs.loggers import logger_of
from unwalk.runs.run import LOCAL

SMALL = {
    "model.name": "logistic",
    "peers": 4,
    "train.hops": 4,
    "unlearn.hops": 3,
    "evaluate.every": 2,
    "forget.kind": "records",
    "forget.size": 5,
    "compare": "retrain",
}


class Told(unwalk.Logger):
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.lines: list[tuple[dict[str, float], int]] = []
        self.ended = 0

    def begin(self, settings) -> None:
        self.settings = dict(settings)

    def write(self, values, hop) -> None:
        self.lines.append((dict(values), hop))

    def end(self) -> None:
        self.ended += 1


def test_a_callback_is_told_of_every_hop_of_every_walk_in_order():
    hops: list[unwalk.Hop] = []
    result = unwalk.run("digits", settings=SMALL, callbacks=[hops.append])
    assert [(h.walk, h.hop, h.hops) for h in hops] == [
        *(("train", n, 4) for n in (1, 2, 3, 4)),
        *(("rrdu", n, 7) for n in (5, 6, 7)),
        *(("retrain", n, 7) for n in range(1, 8)),
    ]
    assert [h.phase for h in hops[:7]] == ["train"] * 4 + ["unlearn"] * 3
    assert [bool(h.measures) for h in hops[:7]] == [False, True, False, True, False, True, True]
    (last,) = [h for h in hops if (h.walk, h.hop) == ("rrdu", 7)]
    final = result.final("rrdu")
    assert last.measures == {key: value for key, value in final.items() if value is not None}
    assert all(h.seconds > 0 for h in hops)


def test_a_logger_is_told_of_the_settings_the_measures_and_the_end(tmp_path):
    told = Told()
    result = unwalk.run("digits", settings=SMALL, callbacks=[told], out=tmp_path / "run")
    assert told.settings["train.hops"] == 4
    assert not set(LOCAL) & set(told.settings)
    assert set(LOCAL) <= set(result.result["config"])
    values, hop = told.lines[6]
    assert hop == 7
    assert values["rrdu/clean"] == result.final("rrdu")["clean"]
    assert values["rrdu/seconds"] > 0
    assert told.ended == 1


def test_callbacks_change_no_result():
    with_it = unwalk.run("digits", settings=SMALL, callbacks=[Told()])
    without = unwalk.run("digits", settings=SMALL)
    assert with_it.transcript.text() == without.transcript.text()


def test_a_logger_is_told_of_the_end_of_a_run_that_failed():
    told = Told()

    def stop(hop: unwalk.Hop) -> None:
        raise Diverged("stopped")

    with pytest.raises(Diverged):
        unwalk.run("digits", settings=SMALL, callbacks=[told, stop])
    assert told.ended == 1


@pytest.mark.parametrize("text", ["", "tensorboard", "tensorboard:", "files:x"])
def test_other_loggers_are_refused(text):
    with pytest.raises(InvalidInput, match="allowed: "):
        logger_of(text)


@pytest.mark.parametrize(
    ("kind", "where", "hidden"),
    [
        ("tensorboard", "logs", "tensorboard"),
        ("mlflow", "sqlite:///x.db", "mlflow.tracking"),
        ("wandb", "project", "wandb"),
    ],
)
def test_a_package_that_is_not_there_is_named(monkeypatch, kind, where, hidden):
    monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(InvalidInput, match=rf"install unwalk\[{kind}\]"):
        logger_of(f"{kind}:{where}")


def test_a_logger_that_cannot_begin_says_why(monkeypatch):
    def broken(where: str) -> unwalk.Logger:
        raise RuntimeError(f"no {where}")

    monkeypatch.setitem(loggers.LOGGERS, "wandb", broken)
    with pytest.raises(InvalidInput, match="--log wandb:place cannot begin: no place"):
        logger_of("wandb:place")


def installed(extra: str, folder: Path) -> dict[str, str]:
    """An environment with the packages of an extra beside ours, for this test alone."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = extras["optional-dependencies"][extra]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder)]
    done = subprocess.run(
        [*pip, "-c", str(ROOT / "constraints.txt"), *wanted], capture_output=True, text=True
    )
    if done.returncode and re.search("No matching distribution|connection|resolve", done.stderr):
        pytest.skip(f"no package index has {wanted}")
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder)])}


def run_logged(where: str, env: dict[str, str], folder: Path) -> str:
    words = [f"--set={key}={value}" for key, value in SMALL.items()]
    done = subprocess.run(
        [sys.executable, "-m", "unwalk", "run", "--task", "digits", *words, "--log", where],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def python(program: str, env: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.soak
def test_mlflow_keeps_settings_and_measures_in_sqlite(tmp_path):
    env = installed("mlflow", tmp_path / "packages")
    run_logged("mlflow:sqlite:///runs.db", env, tmp_path)
    program = """
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri="sqlite:///runs.db")
experiment = client.get_experiment_by_name("unwalk")
(run,) = client.search_runs([experiment.experiment_id])
points = client.get_metric_history(run.info.run_id, "rrdu/clean")
print(run.info.status, run.data.params["train.hops"], [p.step for p in points])
print("noise.secret_file" in run.data.params, len(run.data.params) > 100)
"""
    told = python(program, env, tmp_path)
    assert told == "FINISHED 4 [6, 7]\nFalse True\n"
    assert (tmp_path / "runs.db").read_bytes().startswith(b"SQLite format 3")


@pytest.mark.soak
def test_tensorboard_reads_what_was_written(tmp_path):
    env = installed("tensorboard", tmp_path / "packages")
    run_logged("tensorboard:logs", env, tmp_path)
    program = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("logs").Reload()
print([p.step for p in events.Scalars("rrdu/clean")], len(events.Scalars("train/seconds")))
"""
    assert python(program, env, tmp_path).splitlines()[-1] == "[6, 7] 4"


@pytest.mark.soak
def test_wandb_keeps_a_run_on_this_machine(tmp_path):
    env = {**installed("wandb", tmp_path / "packages"), "WANDB_MODE": "offline"}
    run_logged("wandb:project", env, tmp_path)
    (kept,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = kept.read_bytes()
    assert b"rrdu/clean" in content
    assert b"train.hops" in content
