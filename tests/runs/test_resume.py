"""A run that is stopped at any moment goes on, and ends with the bits of one that was not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from tests.processes import start_unwalk
from tests.runs.small import BLOBS, options, small, small_run, untimed
from unwalk.core.errors import Corrupt, Diverged, InvalidInput, Refused
from unwalk.core.transcript import Transcript
from unwalk.engines import ray_cluster
from unwalk.engines.inprocess import InProcess
from unwalk.runs import run as run_module
from unwalk.runs import store
from unwalk.runs.compare import compare
from unwalk.runs.replay import replay
from unwalk.runs.run import run
from unwalk.runs.store import Folder, partial_of
from unwalk.settings.config import Config, Value, settings_digest, to_toml
from unwalk.tasks import Deletion, ShardedTask, from_arrays

BITS = ("model.safetensors", "transcript.jsonl", "config.toml")
LONG: dict[str, Value] = {**BLOBS, "train.hops": 120, "unlearn.hops": 120, "evaluate.every": 40}


OWN: dict[str, Value] = {
    "task": "own",
    "peers": 4,
    "train.hops": 6,
    "unlearn.hops": 2,
    "performance.checkpoint": 0,
}


def bits(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in BITS}


def walk_state(out: Path, walk: str) -> Path:
    return partial_of(out) / "walks" / f"{walk}.safetensors"


def hop_of(state: Path) -> int:
    """At which hop a checkpoint was made."""
    with safe_open(state, framework="pt") as file:
        hop: int = json.loads(file.metadata()["unwalk-checkpoint"])["token"]["hop"]
    return hop


class Stop:
    """Stops a run the ``count``-th time that it tells how far it got."""

    def __init__(self, count: int = 1, at: str = "") -> None:
        self.left, self.at = count, at

    def __call__(self, walk: str, done: int, hops: int) -> None:
        self.left -= self.at in walk
        if self.left <= 0:
            raise KeyboardInterrupt


def wait_for(there: Callable[[], bool], process: Any) -> None:
    for _ in range(60_000):
        if there():
            return
        assert process.is_alive(), "the run ended before it could be stopped"
        time.sleep(0.001)
    pytest.fail("the run did not get there within a minute")


def test_a_killed_process_goes_on_to_the_same_bits(tmp_path):
    run(small(LONG), out=tmp_path / "whole")
    out = tmp_path / "killed"
    command, resume = ("run", *options(LONG), "--out", out), list[str]()
    for walk, hops in (("train", 120), ("rrdu", 240), ("retrain", 240)):
        process = start_unwalk(*command, *resume)
        try:
            wait_for(walk_state(out, walk).exists, process)
        finally:
            process.kill()
            process.join(60)
        assert process.exitcode == -signal.SIGKILL
        assert hop_of(walk_state(out, walk)) < hops, f"{walk} was over before the kill"
        assert not out.exists()
        resume = ["--resume"]
    last = start_unwalk(*command, "--resume")
    last.join(60)
    assert last.exitcode == 0
    assert bits(out) == bits(tmp_path / "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["killed", "whole"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"preset": "paper", "train.state": "local", "train.keep": "average"},
        {"preset": "paper-matched", "unlearn.keep": "random", "unlearn.reset_optimizer": True},
        {"graph.kind": "ring", "unlearn.max_visits": 1, "performance.digests": True},
        {"unlearn.p": 0.7, "unlearn.trust_radius": 0.01},
    ],
    ids=["practical", "local-average", "random-reset", "ring-digests", "tight-ball"],
)
def test_stopping_after_every_hop_changes_nothing(tmp_path, changes):
    config = small({**BLOBS, **changes}, train__hops=4, unlearn__hops=4)
    whole = run(config, out=tmp_path / "whole")
    out = tmp_path / "stopped"
    stops, resume = 0, False
    while True:
        try:
            stopped = run(config, out=out, resume=resume, tell=Stop())
            break
        except KeyboardInterrupt:
            stops, resume = stops + 1, True
    assert stops == 4 + 4 + 4 + 8
    assert bits(out) == bits(tmp_path / "whole")
    assert untimed(stopped.result) == untimed(whole.result)
    for name, walk in whole.walks.items():
        kept = stopped.walks[name].outcome.progress.locals
        visits = {peer: local.visits for peer, local in walk.outcome.progress.locals.items()}
        assert {peer: local.visits for peer, local in kept.items()} == visits


def test_rare_checkpoints_give_the_same_bits(tmp_path):
    config = small(performance__checkpoint=3600)
    run(config, out=tmp_path / "whole")
    for count in (3, 9, 20):
        out = tmp_path / f"stopped-{count}"
        with pytest.raises(KeyboardInterrupt):
            run(config, out=out, tell=Stop(count))
        run(config, out=out, resume=True)
        assert bits(out) == bits(tmp_path / "whole")


def test_a_kill_between_transcript_and_checkpoint_is_survived(tmp_path):
    run(small(), out=tmp_path / "whole")
    out = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=out, tell=Stop())
    # The first checkpoint never came to be; later ones lag behind a transcript with a torn end.
    walk_state(out, "train").unlink()
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=out, resume=True, tell=Stop(2))
    with walk_state(out, "train").with_suffix(".jsonl").open("a") as file:
        file.write('{"hop":3,"pha')
    run(small(), out=out, resume=True)
    assert bits(out) == bits(tmp_path / "whole")


def test_a_kill_before_anything_was_written_is_survived(tmp_path):
    partial_of(tmp_path / "out").mkdir()
    run(small(), out=tmp_path / "out", resume=True)
    small_run(out=tmp_path / "whole")
    assert bits(tmp_path / "out") == bits(tmp_path / "whole")


@pytest.mark.parametrize("spoilt", ["walks/train.jsonl", "walks/train.safetensors"])
def test_a_spoilt_checkpoint_is_refused(tmp_path, spoilt):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=out, tell=Stop(2))
    path = partial_of(out) / spoilt
    path.write_bytes(path.read_bytes()[:-60] + b"x" * 60)
    if spoilt.endswith(".safetensors"):
        path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(Corrupt):
        run(small(), out=out, resume=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unlearn__p": 0.75}, "unlearn.p is 0.75, but {partial} was started with none; "),
        ({"train__hops": 7}, "train.hops is 7, but {partial} was started with 6; "),
        ({"method": "finetune"}, "method is 'finetune', but {partial} was started with 'rrdu'; "),
        ({"seed": 1}, "seed is 1, but {partial} was started with 0; "),
    ],
)
def test_other_settings_are_not_resumed(tmp_path, changes, words):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=out, tell=Stop(3))
    with pytest.raises(InvalidInput) as refused:
        run(small(**changes), out=out, resume=True)
    expected = words.format(partial=partial_of(out))
    assert str(refused.value) == f"{expected}--resume needs the same settings."
    assert hop_of(walk_state(out, "train")) == 3
    run(small(), out=out, resume=True)


PEOPLE = [f"r{row},{row % 7}.5,{row % 5},{row % 2},{row // 20}" for row in range(60)]


def write_people(place: Path, people: list[str], test: str = "1,1,1") -> None:
    """A file of three peers' records, one of which, r0, peer 0 is asked to forget."""
    people = ["r0,9,9,2,0", *people[1:]]
    (place / "data.csv").write_text("id,a,b,label,group\n" + "\n".join(people) + "\n")
    (place / "test.csv").write_text(f"a,b,label\n0,1,0\n{test}\n0.5,0,2\n")


def from_people(place: Path, **changes: Value) -> Config:
    settings: dict[str, Value] = {
        "task": "file",
        "data.path": str(place / "data.csv"),
        "data.test_path": str(place / "test.csv"),
        "data.labels": "0|1|2",
        "model.name": "logistic",
        "forget.kind": "class",
        "forget.label": 2,
        "forget.peer": 0,
        "method": "rewind",
        "rewind.way": "first-use",
        "train.work": "iid",
        "train.minibatches": 1,
        "train.batch": 4,
        "train.hops": 12,
        "performance.checkpoint": 0.0,
        "compare": [],
    }
    return small(settings, **changes)


def rewritten(place: Path, how: str) -> None:
    """The same file written anew, not quite as it was."""
    if how == "order":
        head, *people = (place / "data.csv").read_text().splitlines()
        (place / "data.csv").write_text("\n".join([head, *people[1:20], people[0], *people[20:]]))
    elif how == "ids":
        write_people(place, [one.replace("r7,", "x7,") for one in PEOPLE])
    elif how == "labels":
        write_people(place, [one[:-3] + "1,2" if "r46," in one else one for one in PEOPLE])
    elif how == "forgotten":  # another one is of the class that is forgotten
        write_people(place, [one[:-3] + "2,0" if "r4," in one else one for one in PEOPLE])
    else:
        write_people(place, PEOPLE, test="1,2,1")


@pytest.mark.parametrize(
    ("how", "differs"),
    [
        ("order", "the records of peer 0, the choice of forgotten records"),
        ("ids", "the records of peer 0"),
        ("labels", "the records of peer 2"),
        ("forgotten", "the records of peer 0, the choice of forgotten records"),
        ("test", "the test set"),
    ],
)
def test_other_data_are_not_resumed(tmp_path, how, differs):
    """Checkpoints were trained by row number, and so is first use found."""
    write_people(tmp_path, PEOPLE)
    out, config = tmp_path / "out", from_people(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(config, out=out, tell=Stop(12))
    rewritten(tmp_path, how)
    with pytest.raises(InvalidInput) as refused:
        run(config, out=out, resume=True)
    assert str(refused.value) == (
        f"the data are not those that {partial_of(out)} was started with (changed: {differs}), "
        "and --resume needs the same data; restore them, or start again with --overwrite."
    )
    write_people(tmp_path, PEOPLE)
    run(config, out=out, resume=True)
    assert not (out / "data.json").exists(), "a digest of forgotten records must not be published"
    run(config, out=tmp_path / "whole")
    assert bits(out) == bits(tmp_path / "whole")


def test_another_loss_is_not_resumed(tmp_path, monkeypatch):
    """Else what is certified with one bound on slopes was trained with another."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    out, config = tmp_path / "out", small(OWN)

    def own(bound: float) -> ShardedTask:
        forget = Deletion("records", size=1)
        given: dict[str, Any] = {"model": "linear", "peers": 4, "forget": forget}
        return from_arrays(x, x.sum(1), predicts="number", huber=bound, **given)

    with pytest.raises(KeyboardInterrupt):
        run(config, task=own(1000.0), out=out, tell=Stop(4))
    with pytest.raises(InvalidInput, match=r"changed: the loss\)"):
        run(config, task=own(0.001), out=out, resume=True)
    data_digest = store.data_digest
    monkeypatch.setattr(
        run_module, "data_digest", lambda task, graph: data_digest(own(1000.0), graph)
    )
    with pytest.raises(InvalidInput, match=r"begun with loss_bound 1000\.0, and now"):
        run(config, task=own(0.001), out=out, resume=True)


def test_another_model_is_not_resumed(tmp_path):
    class Loud(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(1000.0 * x)

    x = np.random.default_rng(0).normal(size=(40, 3))
    out, config = tmp_path / "out", small(OWN)

    def own(model: type[nn.Linear]) -> ShardedTask:
        forget = Deletion("records", size=1)
        return from_arrays(x, np.arange(40) % 2, model=lambda: model(3, 2), forget=forget, peers=4)

    with pytest.raises(KeyboardInterrupt):
        run(config, task=own(Loud), out=out, tell=Stop(4))
    with pytest.raises(InvalidInput, match=r"changed: the model\)"):
        run(config, task=own(nn.Linear), out=out, resume=True)


def test_other_data_are_not_resumed_in_a_comparison(tmp_path):
    write_people(tmp_path, PEOPLE)
    out, config = tmp_path / "out", from_people(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        compared(out, config, tell=Stop(5, at="seed 2/3"))
    rewritten(tmp_path, "order")
    with pytest.raises(InvalidInput, match=r"changed: the records of peer 0, the choice of forg"):
        compared(out, config, resume=True)


def test_a_graph_that_was_written_anew_is_not_resumed(tmp_path):
    edges = tmp_path / "edges"
    edges.write_text("0 1\n1 2\n2 3\n3 0\n")
    config = small(peers=None, graph__kind="edge-list", graph__path=str(edges))
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "out", tell=Stop(3))
    edges.write_text("0 1\n1 2\n2 3\n3 0\n0 2\n")
    with pytest.raises(InvalidInput, match=r"changed: the graph\)"):
        run(config, out=tmp_path / "out", resume=True)


def test_a_checkpoint_without_a_digest_of_its_data_is_not_resumed(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=out, tell=Stop(3))
    digest = partial_of(out) / "data.json"
    digest.write_text("{")
    with pytest.raises(Corrupt, match=r"data.json is not a digest of data"):
        run(small(), out=out, resume=True)
    digest.unlink()
    with pytest.raises(InvalidInput, match=r"does not say which data it was started with"):
        run(small(), out=out, resume=True)


@pytest.mark.parametrize("how", ["order", "labels", "forgotten"])
def test_a_replay_on_other_data_reports_a_difference(tmp_path, how):
    """In 60 hops every record was used, so that every one counts.

    With seed 0 the first batch at peer 0 that holds row 0 holds row 19 too: both orders go back to
    the same hop.
    """
    write_people(tmp_path, PEOPLE)
    out = tmp_path / "out"
    run(from_people(tmp_path, train__hops=60, seed=1), out=out)
    transcript = Transcript.read(out / "transcript.jsonl")
    assert replay(out, transcript) == []
    rewritten(tmp_path, how)
    assert len(replay(out, transcript)) == 1


def test_a_run_of_version_1_is_read_and_replayed_as_such(tmp_path):
    """Its files say nothing of streams; its name is what it was before there was a version 2."""
    out = tmp_path / "out"
    config = small(streams=1)
    digest = "207ed10a9491e056e2ab4ca23c1071901e8fdbe69fa23957a733a3a38cee8a9f"
    assert settings_digest(config) == digest != settings_digest(small())
    run(config, out=out)
    assert "streams" not in (out / "config.toml").read_text()
    assert "streams = 2" in to_toml(small())
    transcript = Transcript.read(out / "transcript.jsonl")
    assert transcript.header["run"] == digest[:16]
    assert replay(out, transcript) == []
    (out / "config.toml").write_text(to_toml(small()))
    assert len(replay(out, transcript)) == 1


def test_a_run_of_version_1_is_resumed_as_such(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(small(streams=1), out=out, tell=Stop(3))
    with pytest.raises(InvalidInput, match=r"streams is 2, but .* was started with 1"):
        run(small(), out=out, resume=True)
    run(small(streams=1), out=out, resume=True)
    assert replay(out, Transcript.read(out / "transcript.jsonl")) == []


def test_a_version_that_nobody_knows_is_refused():
    with pytest.raises(InvalidInput, match=r"streams is 3; allowed: a whole number, 1 to 2"):
        small(streams=3)


def folder(out: Path, config: Config | None = None, **how: bool) -> Folder:
    given = {"resume": False, "overwrite": False, **how}
    return Folder(out, config or small(), {}, **given)


def test_nothing_to_resume(tmp_path):
    with pytest.raises(InvalidInput, match=r"out.partial does not exist; there is nothing to"):
        folder(tmp_path / "out", resume=True)
    with pytest.raises(InvalidInput, match=r"^--resume needs --out"):
        run(small(), resume=True)
    small_run(out=tmp_path / "out")
    with pytest.raises(InvalidInput, match="out is complete already; there is nothing to resume"):
        folder(tmp_path / "out", resume=True)


def test_results_are_replaced_only_when_asked(tmp_path):
    out = tmp_path / "out"
    small_run(out=out)
    before = bits(out)
    with pytest.raises(InvalidInput, match="out exists already; choose another --out, or add"):
        run(small(seed=1), out=out)
    assert bits(out) == before
    with pytest.raises(KeyboardInterrupt):
        run(small(seed=1), out=out, overwrite=True, tell=Stop(3))
    assert bits(out) == before, "old results stay until new ones are complete"
    shutil.move(out, tmp_path / "old")
    with pytest.raises(InvalidInput, match=r"out.partial holds an unfinished run; add --resume"):
        run(small(seed=1), out=out)
    run(small(seed=1), out=out, resume=True)
    assert bits(out) != before


def test_an_unfinished_run_can_be_started_anew(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=out, tell=Stop(3))
    run(small(seed=1), out=out, overwrite=True)
    small_run(seed=1, out=tmp_path / "whole")
    assert bits(out) == bits(tmp_path / "whole")
    assert not partial_of(out).exists()


@pytest.mark.parametrize("kind", ["folder", "file", "link", "here"])
def test_what_unwalk_did_not_write_is_never_replaced(tmp_path, monkeypatch, kind):
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("dear")
    out = {"folder": home, "file": home / "letter.txt", "here": Path(".")}.get(kind, tmp_path / "x")
    if kind == "link":
        out.symlink_to(home)
    monkeypatch.chdir(home)
    with pytest.raises(InvalidInput, match="is no folder that unwalk wrote, so it stays"):
        run(small(), out=out, overwrite=True)
    assert (home / "letter.txt").read_text() == "dear"
    assert [p.name for p in home.iterdir()] == ["letter.txt"]


def test_an_empty_folder_may_be_filled(tmp_path):
    (tmp_path / "out").mkdir()
    small_run_into = run(small(compare=[]), out=tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "result.json").exists()
    assert small_run_into.final()["clean"] is not None


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"file/out.partial cannot be made: Not a directory\."):
        small_run(out=tmp_path / "file" / "out")


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
def test_a_folder_that_somebody_writes_to_is_left_to_them(tmp_path, how):
    out, refused = tmp_path / "out", list[str]()

    def meanwhile(walk: str, done: int, hops: int) -> None:
        if not refused:
            with pytest.raises(InvalidInput) as refusal:
                run(small(), out=out, **how)
            refused.append(str(refusal.value))

    run(small(), out=out, tell=meanwhile)
    assert refused == [
        f"{partial_of(out)} is in use by process {os.getpid()}; wait until that has ended, or "
        "choose another --out."
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert not (out / "lock").exists()


def test_a_wrong_address_costs_no_checkpoint(tmp_path, monkeypatch):
    out = tmp_path / "out"
    config = small(performance__engine="ray")

    def nowhere() -> None:
        raise InvalidInput("--ray-address is 'nonsense'; allowed: auto, or HOST:PORT.")

    with pytest.raises(KeyboardInterrupt):
        run(config, out=out, tell=Stop(3), engine=InProcess())
    monkeypatch.setattr(ray_cluster, "connected", nowhere)
    with pytest.raises(InvalidInput, match="--ray-address is 'nonsense'"):
        run(config, out=out, resume=True)
    assert partial_of(out).exists()


def compared(out: Path | None = None, config: Config | None = None, **how: Any) -> Any:
    return compare(config or small(), how.pop("seeds", 3), out=out, **how)


def test_a_comparison_is_resumed_with_as_many_seeds_or_more(tmp_path):
    out, config = tmp_path / "out", small(compare=[])
    with pytest.raises(KeyboardInterrupt):
        compared(out, config, seeds=2, tell=Stop(5, at="seed 2/2"))
    with pytest.raises(InvalidInput, match=r"^--seeds is 1, but .*out.partial was started with 2;"):
        compared(out, config, seeds=1, resume=True)
    found = compared(out, config, seeds=3, resume=True)
    assert [one["seed"] for one in found.runs] == [0, 1, 2]
    with pytest.raises(InvalidInput, match="out is complete already; there is nothing to resume"):
        compared(out, config, seeds=3, resume=True)
    with pytest.raises(InvalidInput, match=r"out is complete with 3 seeds, and --seeds is 4; "):
        compared(out, config, seeds=4, resume=True)


def test_a_comparison_goes_on_after_its_last_finished_seed(tmp_path):
    whole = compared()
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        compared(out, tell=Stop(5, at="seed 2/3"))
    assert [p.name for p in (partial_of(out) / "seeds").iterdir()] == ["0.json"]
    told = []
    stopped = compared(out, resume=True, tell=lambda walk, *_: told.append(walk))
    assert {walk.split()[1] for walk in told} == {"2/3", "3/3"}
    assert untimed(stopped.runs) == untimed(whole.runs)
    assert untimed(json.loads((out / "result.json").read_text())) == untimed(whole.result)
    assert {p.name for p in out.iterdir()} == {
        "config.toml",
        "pareto.svg",
        "report.html",
        "result.json",
        "runs.json",
    }
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_comparison_that_cannot_be_made_leaves_nothing(tmp_path):
    with pytest.raises(InvalidInput, match=r"^seeds is 0; allowed: a whole number, 1 or more"):
        compare(small(), 0, out=tmp_path / "out")
    with pytest.raises(Diverged):
        compared(tmp_path / "out", small(train__learning_rate=1e38))
    with pytest.raises(Refused, match=r"^hop 1, start at peer 0"):
        compared(tmp_path / "out", small(method="seal", compare=["noisy-start"]))
    with pytest.raises(InvalidInput, match=r"^forget.size is 900"):
        compared(tmp_path / "out", small(forget__size=900))
    assert not list(tmp_path.iterdir())
