"""The register of draws: bound to what noise is drawn for, written first, read by a replay."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.runs.small import small, small_run
from tests.runs.test_proved import FLAT, Stop
from unwalk.core.errors import Corrupt
from unwalk.core.noise import SecretNoise, ShakeBits
from unwalk.core.rounding import add_rounded
from unwalk.core.transcript import Transcript, canonical
from unwalk.engines.execute import Bench
from unwalk.runs.releases import Draws, Place, RunRegister
from unwalk.runs.replay import replay
from unwalk.runs.run import run

SECRET = bytes(range(40))
MARKS = frozenset({"a" * 32, "b" * 32})
PLACE = Place("one", 0, 11, 0, MARKS, "0" * 64)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def draws(secret: Path) -> Draws:
    return Draws(secret, SECRET)


def chosen(secret: Path) -> dict[str, Any]:
    return {**FLAT, "noise.source": "secret", "noise.secret_file": str(secret), "compare": []}


def lines(folder: Path) -> list[str]:
    (register,) = folder.glob("releases-*.jsonl")
    return register.read_text().splitlines()


def nudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other instructions: the last bit of one number before the noise is another one."""
    release = Bench.release

    def other(self: Bench, values: Any, std: float, grid: float) -> Any:
        first = values.view(-1)[:1]
        first.copy_(first.nextafter(first + 1.0))
        return release(self, values, std, grid)

    monkeypatch.setattr(Bench, "release", other)


def test_the_same_entry_is_a_replay_and_any_other_of_the_same_records_a_draw(draws):
    first = draws.enter(PLACE)
    assert (first[0], first[2]) == (1, 0)
    assert draws.enter(PLACE) == first == draws.find(PLACE)
    for number, other, earlier in (
        (2, replace(PLACE, hop=12), 0),  # another hop, or draw, of the same run
        (3, replace(PLACE, step=1), 0),
        (4, replace(PLACE, inputs="1" * 64), 1),  # the same place, other numbers
        (5, replace(PLACE, peer=1), 2),
        (6, replace(PLACE, run="two"), 5),  # another run
        (7, replace(PLACE, run="two", hop=12), 5),
        (8, replace(PLACE, marks=frozenset({"b" * 32, "c" * 32})), 5),  # 1, 4, 5 and the other run
        (9, replace(PLACE, run="three", marks=frozenset({"d" * 32})), 0),
        (10, replace(PLACE, run="four", marks=frozenset()), 0),
    ):
        assert draws.find(other) is None
        said = draws.enter(other)
        assert (said[0], said[2]) == (number, earlier), other
        assert Draws(draws.secret_file, SECRET).find(other) == said
    assert draws.enter(PLACE) == first
    assert draws.path.stat().st_mode & 0o777 == 0o600


def test_entries_are_chained_by_hmacs_under_the_secret(draws):
    chain = ""
    for number, place in enumerate((PLACE, replace(PLACE, run="two")), 1):
        said = draws.enter(place)
        body = {
            "entry": number,
            "run": place.run,
            "peer": 0,
            "hop": 11,
            "step": 0,
            "records": sorted(MARKS),
            "inputs": "0" * 64,
        }
        message = f"unwalk/release/{chain}/{canonical(body)}".encode()
        chain = hmac.new(SECRET, message, hashlib.sha256).hexdigest()
        assert said[1] == chain
        assert json.loads(lines(draws.secret_file.parent)[number - 1]) == {**body, "chain": chain}


def test_an_entry_of_a_whole_run_from_before_counts(draws):
    """Version 1 announced runs, with marks of contents; nobody draws again for having upgraded."""
    body = {"entry": 1, "run": "one", "records": sorted(MARKS)}
    message = f"unwalk/release//{canonical(body)}".encode()
    chain = hmac.new(SECRET, message, hashlib.sha256).hexdigest()
    draws.path.write_text(canonical({**body, "chain": chain}) + "\n")
    draws.path.chmod(0o600)
    said = draws.enter(PLACE)
    assert (said[0], said[2]) == (2, 1)


def test_noise_is_keyed_by_the_entry(draws):
    noise = SecretNoise("one", SECRET, RunRegister(draws, MARKS))
    values = np.linspace(-1.0, 1.0, 9)
    told: dict[str, Any] = {"std": 0.5, "grid": 2.0**-5, "peer": 0, "hop": 11, "step": 0}
    released, draw = noise.release(values, **told)
    assert draw is not None
    key = hmac.new(SECRET, f"unwalk/rounded-noise/{draw[1]}".encode(), hashlib.sha256).digest()
    assert np.array_equal(released, add_rounded(values, 0.5, 2.0**-5, ShakeBits(key)))
    again, same = noise.release(values, **told)
    assert (same, again.tobytes()) == (draw, released.tobytes())
    others: list[dict[str, Any]] = [
        {"std": 1.0},
        {"grid": 2.0**-6},
        {"values": np.nextafter(values, 2.0)},
    ]
    for number, changed in enumerate(others, 2):
        _, other = noise.release(**{"values": values, **told, **changed})
        assert other is not None
        assert (other[0], other[2]) == (number, number - 1)


def _enter(path: Path, number: int) -> tuple[int, str, int]:
    return Draws(path, SECRET).enter(replace(PLACE, run=f"run {number}"))


def test_processes_that_draw_at_once_have_an_entry_each(secret):
    with ProcessPoolExecutor(4) as pool:
        said = list(pool.map(_enter, [secret] * 24, range(24)))
    assert sorted(entry for entry, _, _ in said) == list(range(1, 25))
    assert all(earlier == entry - 1 for entry, _, earlier in said)
    assert len(Draws(secret, SECRET).entries()) == 24


def test_what_was_read_before_is_read_again_where_it_was_changed(draws):
    draws.enter(PLACE)
    draws.enter(replace(PLACE, run="two"))
    whole = draws.path.read_text()
    draws.path.write_text(whole.replace('"run":"one"', '"run":"own"'))
    with pytest.raises(Corrupt, match="was changed in line 1"):
        draws.enter(replace(PLACE, run="three"))


def test_other_numbers_before_the_noise_are_another_draw(secret, tmp_path, monkeypatch):
    """Row 4 of issue 08: the same run under other CPU instruction sets."""
    first = small_run(chosen(secret)).result
    nudged(monkeypatch)
    second = small_run(chosen(secret)).result
    assert first["run"] == second["run"]
    assert len(lines(tmp_path)) == 2
    (claim,), (refused,) = first["claims"], second["claims"]
    assert (claim["grade"], refused["grade"], refused["code"]) == (
        "certified",
        "refused",
        "redrawn",
    )
    told = [result["certificate"]["document"]["redraws"] for result in (first, second)]
    assert [(one["entry"], one["earlier"]) for one in told] == [(1, 0), (2, 1)]
    assert "showed 1 before this one" in told[1]["meaning"]


PROGRAM = """
import json, sys
from unwalk.runs.assemble import resolve
from unwalk.runs.run import run
result = run(resolve(json.loads(sys.argv[1]))).result
document = result["certificate"]["document"]
print(json.dumps([document["model"]["sha256"], document["claims"][0]["code"]]))
"""


@pytest.mark.soak
def test_other_instruction_sets_are_noticed(secret, tmp_path):
    """On machines where they make no difference, there is one model and one entry."""
    models: dict[str, None] = {}
    for setting in ({}, {"ATEN_CPU_CAPABILITY": "default"}, {"MKL_CBWR": "COMPATIBLE"}):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(chosen(secret))],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **setting},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        model, code = json.loads(done.stdout)
        models[model] = None
        assert code == (None if model == next(iter(models)) else "redrawn")
        assert len(lines(tmp_path)) == len(models)


@pytest.mark.parametrize("method", ["seal", "release", "ball-seal", "noisy-start"])
def test_a_replay_finds_its_draws_and_makes_none(method, secret, tmp_path, monkeypatch):
    out = tmp_path / "run"
    small_run(chosen(secret), method=method, out=out)
    before = lines(tmp_path)
    transcript = Transcript.read(out / "transcript.jsonl")
    assert replay(out, transcript) == []
    nudged(monkeypatch)
    (said,) = replay(out, transcript)
    assert "the register of draws has no entry for what would get noise there" in said
    assert lines(tmp_path) == before


def test_a_replay_without_the_register_says_so_and_makes_none(secret, tmp_path):
    out = tmp_path / "run"
    small_run(chosen(secret), out=out)
    (register,) = tmp_path.glob("releases-*.jsonl")
    register.unlink()
    (said,) = replay(out, Transcript.read(out / "transcript.jsonl"))
    assert "hop 11 at peer 0: the register of draws has no entry" in said
    assert not register.exists()


def test_a_replay_compares_before_it_comes_to_the_noise(secret, tmp_path, monkeypatch):
    out = tmp_path / "run"
    small_run(chosen(secret), out=out)
    transcript = Transcript.read(out / "transcript.jsonl")
    hops = [replace(hop, nbytes=hop.nbytes + (hop.hop == 3)) for hop in transcript.hops]
    asked: list[int] = []
    monkeypatch.setattr(Draws, "find", lambda self, place: asked.append(place.hop))
    assert replay(out, Transcript(dict(transcript.header), hops)) == [
        "transcript line 4 differs in bytes when done again"
    ]
    assert asked == []


@pytest.mark.parametrize(("method", "walk", "hop"), [("seal", "train", 7), ("noisy-start", "", 5)])
def test_a_stopped_run_goes_on_and_draws_nothing_twice(method, walk, hop, secret, tmp_path):
    config = small(chosen(secret), method=method)
    run(config, out=tmp_path / "whole")
    before = lines(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "stopped", tell=Stop(walk or method, hop))
    run(config, out=tmp_path / "stopped", resume=True)
    assert lines(tmp_path) == before
    for name in ("model.safetensors", "transcript.jsonl", "certificate.json"):
        whole, stopped = ((tmp_path / d / name).read_bytes() for d in ("whole", "stopped"))
        assert whole == stopped, name


@pytest.mark.parametrize("method", ["noisy-start", "user-dp", "dpsgd"])
def test_noise_of_training_is_drawn_once_for_all_records_of_a_peer(secret, method):
    """It hid the records that this request is about, too, whichever were asked for then."""
    documents = []
    for label, rate in ((3, 0.1), (5, 0.2)):
        settings = {**chosen(secret), "forget.kind": "class", "method": method, "seed": 2}
        changes = {"forget__label": label, "train__hops": 12, "train__learning_rate": rate}
        own = {"user_dp__std": 50.0, "dpsgd__reading": "from-start"}
        result = run(small(settings, **changes, **own)).result
        documents.append(result["certificate"]["document"])
    first, second = documents
    assert (first["claims"][-1]["grade"], first["redraws"]["earlier"]) == ("certified", 0)
    assert (second["claims"][-1]["code"], second["redraws"]["earlier"] > 0) == ("redrawn", True)


def test_records_are_marked_by_id_and_by_content(secret):
    """Who alters a record, or its id, is found by the other one."""
    from unwalk.runs.assemble import assemble
    from unwalk.runs.releases import content_marks, marks_of

    task = assemble(small(chosen(secret))).task
    peer = task.unlearner
    marks, contents = marks_of(task, SECRET), content_marks(task.shard(peer), SECRET)
    (row,) = task.records(peer).forgotten.tolist()
    name = task.ids(peer)[row]
    told = (f"unwalk/record-name/{name}", f"unwalk/record-id/digits-flat/{name}")
    assert marks - contents == {mark_of(message) for message in told}
    shard = task.shard(peer)
    x = shard.x.clone()
    x[row, 0] += 1.0
    assert not content_marks(replace(shard, x=x), SECRET) & contents
    y = shard.y.clone()
    y[row] += 1
    assert not content_marks(replace(shard, y=y), SECRET) & contents


def mark_of(message: str) -> str:
    return hmac.new(SECRET, message.encode(), hashlib.sha256).hexdigest()[:32]


PEOPLE = [["p0", "1", "2.50", "x", "1", "0"]] + [
    [
        f"p{row}",
        f"{row % 7}.5",
        str(row % 5),
        "xy"[row % 2],
        "0" if row < 20 else "1",
        str(row // 20),
    ]
    for row in range(1, 60)
]
COLUMNS = ["id", "a", "b", "ward", "label", "group"]


def write_people(path: Path, people: list[list[str]], order: list[str] = COLUMNS) -> None:
    places = [COLUMNS.index(name) for name in order]
    rows = [order, *([one[at] for at in places] for one in people)]
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")


def from_people(secret: Path, name: str, **changes: Any) -> Any:
    """A ball seal of the only record of class 1 that peer 0 holds."""
    settings = {
        "task": "file",
        "data.path": str(secret.parent / name),
        "data.labels": "0|1",
        "data.columns": "a|b",
        "model.name": "mlp",
        "forget.kind": "class",
        "forget.label": 1,
        "forget.peer": 0,
        "method": "ball-seal",
        "train.hops": 4,
        "unlearn.hops": 2,
        "train.batch": 4,
        "data.test_path": str(secret.parent / "test.csv"),
        "noise.source": "secret",
        "noise.secret_file": str(secret),
        "compare": [],
    }
    return small(settings, **changes)


OTHER_ID = [["q0", *PEOPLE[0][1:]], *PEOPLE[1:]]


@pytest.mark.parametrize(
    ("people", "order", "changes"),
    [
        (PEOPLE, COLUMNS, {"data__columns": "b|a"}),
        (PEOPLE[::-1], COLUMNS[::-1], {"data__columns": "b|a"}),
        (OTHER_ID, COLUMNS[::-1], {"data__columns": "b|a"}),
        (OTHER_ID, COLUMNS, {"data__columns": "a|b|ward", "data__categories": "ward=x|y"}),
        (OTHER_ID, COLUMNS, {"data__scale": "a=1:2", "data__labels": "1|0"}),
        ([["q0", "1.0", "25e-1", *PEOPLE[0][3:]], *PEOPLE[1:]], COLUMNS, {"data__columns": "b|a"}),
        ([[*PEOPLE[0][:1], "7", "8", *PEOPLE[0][3:]], *PEOPLE[1:]], COLUMNS, {}),
    ],
    ids=["columns", "order", "other id", "other features", "scaled", "spelling", "other content"],
)
def test_a_record_is_known_under_another_files_name(secret, tmp_path, people, order, changes):
    write_people(tmp_path / "data.csv", PEOPLE)
    write_people(tmp_path / "copy.csv", people, order)
    (tmp_path / "test.csv").write_text("a,b,ward,label\n0,1,x,0\n1,0,y,1\n0.5,0,x,1\n")
    first = run(from_people(secret, "data.csv")).result["certificate"]["document"]
    if "data__labels" in changes:
        changes = {**changes, "forget__label": 0}
    second = run(from_people(secret, "copy.csv", **changes)).result["certificate"]["document"]
    assert (first["claims"][-1]["grade"], first["redraws"]["earlier"]) == ("certified", 0)
    assert (second["claims"][-1]["code"], second["redraws"]["register"]) == ("redrawn", "kept")


def test_other_records_of_a_file_are_no_redraw(secret, tmp_path):
    write_people(tmp_path / "data.csv", PEOPLE)
    other = [["q0", "1", "2.50", "y", "1", "0"], *PEOPLE[1:]]  # what is no feature tells them apart
    write_people(tmp_path / "copy.csv", other)
    (tmp_path / "test.csv").write_text("a,b,ward,label\n0,1,x,0\n1,0,y,1\n0.5,0,x,1\n")
    run(from_people(secret, "data.csv"))
    changes = {"data__scale": "a=1:2"}
    second = run(from_people(secret, "copy.csv", **changes)).result["certificate"]["document"]
    assert (second["claims"][-1]["grade"], second["redraws"]["earlier"]) == ("certified", 0)


def test_a_draw_that_was_entered_by_the_tasks_name_is_found(secret, draws):
    """Marks of ids were made with the task's name before, and had no other beside them."""
    from unwalk.runs.assemble import assemble
    from unwalk.runs.releases import marks_of

    task = assemble(small(chosen(secret))).task
    (row,) = task.records(task.unlearner).forgotten.tolist()
    old = mark_of(f"unwalk/record-id/digits-flat/{task.ids(task.unlearner)[row]}")
    draws.enter(replace(PLACE, marks=frozenset({old})))
    again = replace(PLACE, run="two", marks=marks_of(task, SECRET))
    assert draws.enter(again)[2] == 1
