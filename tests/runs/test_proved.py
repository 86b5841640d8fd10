"""Proved and exact methods as whole runs: files, resume, replay, secrets, what is said of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from tests.conftest import ROOT
from tests.runs.small import BLOBS, small, small_run
from unwalk.certificates import read_certificate, verify
from unwalk.cli import app
from unwalk.core.errors import Corrupt, InvalidInput, Refused
from unwalk.core.transcript import Transcript
from unwalk.runs.compare import compare
from unwalk.runs.replay import replay
from unwalk.runs.run import run
from unwalk.settings.config import Value

FLAT: dict[str, Any] = {
    "preset": "certified",
    "task": "digits-flat",
    "peers": 4,
    "train.hops": 10,
    "unlearn.hops": 4,
    "performance.checkpoint": 0,
}
PROVED = (
    "sisa, shards",
    "seal",
    "ball-seal",
    "release",
    "noisy-start",
    "restart",
    "rewind",
    "sisa",
    "sums",
)


class Stop:
    """Stops a run at a hop of one walk."""

    def __init__(self, walk: str, hop: int) -> None:
        self.walk, self.hop = walk, hop

    def __call__(self, walk: str, done: int, hops: int) -> None:
        if (walk, done) == (self.walk, self.hop):
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", PROVED)
def test_every_method_leaves_a_certificate_that_verifies_and_replays(method, tmp_path):
    out = tmp_path / "run"
    name, shards = method.partition(",")[::2]
    entering = {"train.shards": 2} if shards else {"train.slices": 3} if name == "sisa" else {}
    result = small_run({**FLAT, **entering}, method=name, compare=[], out=out)
    assert result.result["claims"][-1]["grade"] in ("certified", "exact")
    transcript = Transcript.read(out / "transcript.jsonl")
    raw = (out / "model.safetensors").read_bytes()
    verdict = verify(read_certificate(out / "certificate.json"), transcript, model=raw)
    assert verdict.model == "checked"
    assert (verdict.problems, verdict.exit_code) == ((), 3)
    assert replay(out, transcript) == []


@pytest.mark.parametrize(
    ("method", "walk", "hop"),
    [
        ("rewind", "train", 7),
        ("rewind", "rewind", 2),
        ("sums", "sums", 3),
        ("restart", "restart", 2),
    ],
)
def test_stopped_runs_go_on_to_the_same_bits(method, walk, hop, tmp_path):
    config = small(FLAT, method=method, compare=[], seed=3)
    run(config, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "stopped", tell=Stop(walk, hop))
    run(config, out=tmp_path / "stopped", resume=True)
    for name in ("model.safetensors", "transcript.jsonl", "certificate.json"):
        whole, stopped = ((tmp_path / d / name).read_bytes() for d in ("whole", "stopped"))
        assert whole == stopped, name


def test_first_use_has_nothing_to_do_where_no_record_was_drawn():
    lazy = {**BLOBS, "train.work": "iid", "train.batch": 1, "train.minibatches": 1}
    result = small_run(
        lazy, method="rewind", rewind__way="first-use", compare=[], forget__kind="records",
        forget__size=1, seed=2,
    )  # fmt: skip
    assert sum(hop.receiver == 0 for hop in result.transcript.hops) == 2
    (claim,) = result.result["claims"]
    assert claim["grade"] == "exact"
    assert "nothing to do" in claim["reason"]
    assert result.result["methods"][0]["cost"]["hops"] == 0
    busy = {**lazy, "train.batch": 60, "train.hops": 12}
    result = small_run(
        busy, method="rewind", rewind__way="first-use", compare=[], forget__kind="records",
        forget__size=9,
    )  # fmt: skip
    assert result.result["methods"][0]["cost"]["hops"] > 0
    assert result.result["claims"][0]["grade"] == "exact"


def test_rewind_refuses_averaged_iterates():
    with pytest.raises(Refused, match=r"train\.keep"):
        small_run(BLOBS, method="rewind", train__keep="average")


def test_sums_forget_in_one_hop_and_the_model_is_that_of_retraining(tmp_path):
    changes = {**FLAT, "method": "sums", "forget.size": 40, "sums.bits": 40}
    result = small_run(changes, compare=[], out=tmp_path / "a")
    hops = result.result["methods"][0]["cost"]["hops"]
    never = small_run({**changes, "forget.kind": "peer"}, compare=[], out=tmp_path / "b")
    assert hops == 1
    assert never.result["claims"][0]["grade"] == "exact"
    task_rows = result.walks["sums"].outcome.plan.task
    keep = torch.cat([task_rows.shard(p).x[task_rows.records(p).retained] for p in range(4)])
    labels = torch.cat([task_rows.shard(p).y[task_rows.records(p).retained] for p in range(4)])
    from unwalk.tasks.gabor import ridge_solution

    wanted = ridge_solution(keep, labels, 10, 1.0).T
    (weight,) = load_file(tmp_path / "a" / "model.safetensors").values()
    assert (weight.double() - wanted).abs().max() < 1e-6  # 32-bit parameters


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(bytes(range(40)))
    path.chmod(0o600)
    return path


def test_secret_noise_is_named_repeated_by_replay_and_found_nowhere(secret, tmp_path):
    out = tmp_path / "run"
    chosen = {**FLAT, "noise.source": "secret", "noise.secret_file": str(secret)}
    result = small_run({**chosen, "performance.digests": "true"}, compare=[], out=out)
    (claim,) = result.result["claims"]
    assert claim["grade"] == "certified"
    assert "the noise came from a secret of the peer" in claim["assumptions"]
    document = result.result["certificate"]["document"]
    assert document["noise"]["origin"] == "secret"
    assert document["parameters"]["digests"] == "salted"
    assert not any("rehearsal" in t for t in result.result["certificate"]["words"]["not_promised"])
    for path in out.iterdir():
        raw = path.read_bytes()
        assert secret.read_bytes() not in raw
        assert secret.read_bytes().hex().encode() not in raw
    transcript = Transcript.read(out / "transcript.jsonl")
    assert replay(out, transcript) == []
    secret.write_bytes(bytes(40))
    assert "differs in digest" in replay(out, transcript)[0]


def test_plain_digests_of_the_old_model_void_the_claim():
    (claim,) = small_run({**FLAT, "performance.digests": "true"}, compare=[]).result["claims"]
    assert claim["grade"] == "refused"
    assert "plain digest of the model before the noise" in claim["reason"]


def test_a_second_draw_is_recorded_and_refused():
    first = small_run(FLAT, compare=[])
    again = small_run(FLAT, compare=[], noise__attempt=2)
    assert not torch.equal(first.model[1].weight, again.model[1].weight)
    (claim,) = again.result["claims"]
    assert (claim["grade"], "redrawn" in claim["reason"]) == ("refused", True)


def secretly(secret, **changes):
    chosen = {**FLAT, "noise.source": "secret", "noise.secret_file": str(secret)}
    result = small_run(chosen, compare=[], **changes)
    (claim,) = result.result["claims"]
    return claim, result.result["certificate"]["document"]["redraws"]


def test_other_settings_do_not_draw_again_unnoticed(secret, tmp_path):
    claim, redraws = secretly(secret)
    assert claim["grade"] == "certified"
    assert (redraws["register"], redraws["entry"], redraws["earlier"]) == ("kept", 1, 0)
    again, same = secretly(secret)  # the very same run gives the very same model
    assert (again, same) == (claim, redraws)
    for changes in (
        {"seal__local_epochs": 60},
        {"unlearn__hops": 3},
        {"train__learning_rate": 3.0},
        {"noise__attempt": 2},
        {"method": "release"},
        {"method": "ball-seal"},
    ):
        claim, redraws = secretly(secret, **changes)
        assert claim["grade"] == "refused", changes
        assert "the noise was redrawn" in claim["reason"]
        assert redraws["earlier"] >= 1
    claim, _ = secretly(secret, method="restart")
    assert claim["grade"] == "exact"
    claim, redraws = secretly(secret, seed=5)  # other records
    assert (claim["grade"], redraws["earlier"]) == ("certified", 0)
    moved = secret.rename(tmp_path / "moved")
    assert secretly(moved, train__epochs=2)[0]["grade"] == "refused"


def test_rivals_draw_too(secret, tmp_path):
    chosen = {**FLAT, "noise.source": "secret", "noise.secret_file": str(secret)}
    result = small_run(chosen, compare=["ball-seal", "restart"]).result
    assert result["claims"][0]["grade"] == "certified"
    (register,) = tmp_path.glob("releases-*.jsonl")
    runs = [json.loads(line)["run"].split("/")[-1] for line in register.read_text().splitlines()]
    assert set(runs) == {"seal", "ball-seal"}
    assert runs.count("seal") == 1
    assert secretly(secret, method="ball-seal")[0]["code"] == "redrawn"
    assert register.stat().st_mode & 0o777 == 0o600


def test_a_register_that_was_changed_is_noticed(secret, tmp_path):
    secretly(secret)
    secretly(secret, seed=5)
    (register,) = tmp_path.glob("releases-*.jsonl")
    whole = register.read_text()
    lines = whole.splitlines(keepends=True)
    for number, text in (
        (1, whole.replace('"entry":1', '"entry":3')),
        (1, lines[1]),
        (2, lines[0] + lines[0]),
        (2, lines[0] + lines[1][:-1]),
        (1, "{}\n" + whole),
        (1, whole.replace('"records":["', '"records":["a', 1)),
    ):
        register.write_text(text)
        with pytest.raises(Corrupt, match=f"was changed in line {number}"):
            secretly(secret)
    register.write_text(whole)
    register.chmod(0o644)
    with pytest.raises(InvalidInput, match="mode 0644"):
        secretly(secret)


def test_own_data_have_to_say_how_they_were_scaled_and_which_classes_there_are():
    asked: dict[str, Value] = {"train.hops": 4, "unlearn.hops": 2, "peers": 3, "method": "retrain"}
    asked |= {"forget.kind": "records", "forget.size": 2}

    def claim(task, **changes):
        (found,) = small_run({**asked, "task": task}, compare=[], **changes).result["claims"]
        return found["grade"], found["code"]

    named, unnamed = "tests.runs.own_records:named_blobs", "tests.runs.own_records:blobs"
    assert claim(named) == ("refused", "scaling")
    assert claim(named, data__normalisation="published") == ("exact", None)
    assert claim(unnamed, data__normalisation="published") == ("refused", "labels")


def test_a_file_has_to_name_its_classes(tmp_path):
    """A class that only the forgotten records have would otherwise shape the model."""
    path = tmp_path / "records.csv"
    rows = [f"{k % 7},{k % 5},{'ab'[k % 2]}" for k in range(60)]
    path.write_text("one,two,label\n" + "\n".join(rows) + "\n")
    own = {"task": "file", "data.path": str(path), "peers": 3, "train.hops": 4, "unlearn.hops": 2}
    asked = {**own, "method": "restart", "forget.kind": "records", "forget.size": 2}
    (claim,) = small_run(asked, compare=[]).result["claims"]
    assert claim["grade"] == "refused"
    assert claim["code"] == "labels"
    (claim,) = small_run(asked, compare=[], data__labels="a|b").result["claims"]
    assert claim["grade"] == "exact"
    assert "numbers in the data file were not made" in claim["assumptions"][-1]


def test_a_changed_model_or_setting_is_found_by_replay(tmp_path):
    out = tmp_path / "run"
    small_run(FLAT, compare=[], out=out)
    transcript = Transcript.read(out / "transcript.jsonl")
    model = out / "model.safetensors"
    raw = bytearray(model.read_bytes())
    raw[-1] ^= 1
    model.write_bytes(bytes(raw))
    assert replay(out, transcript) == ["model.safetensors is not the model that the run gives"]
    code = CliRunner().invoke(app, ["verify", "--replay", str(out)]).exit_code
    assert code == 1
    config = out / "config.toml"
    config.write_text(config.read_text().replace("seed = 0", "seed = 1"))
    assert "differs in" in replay(out, transcript)[0]
    with pytest.raises(InvalidInput, match=r"has no config\.toml"):
        replay(tmp_path, transcript)


def test_a_key_in_the_settings_signs_at_once(tmp_path):
    from unwalk.certificates.signing import make_key

    key = tmp_path / "key.pem"
    who = make_key(key)
    out = tmp_path / "run"
    small_run(FLAT, compare=[], certificate__key=str(key), out=out)
    result = CliRunner().invoke(app, ["verify", str(out), "--trust", who, "--json"])
    assert result.exit_code == 0
    assert json.loads(result.output)["trusted"] is True
    with pytest.raises(InvalidInput, match="cannot be read"):
        small_run(FLAT, compare=[], certificate__key=str(tmp_path / "none.pem"))


def test_several_seeds_keep_the_claims_of_the_first():
    found = compare(small(FLAT, compare=["restart"]), 2)
    assert found.result["claims"][0]["grade"] == "certified"


def test_slices_have_to_be_asked_for():
    with pytest.raises(InvalidInput, match=r"sisa needs train\.shards or train\.slices"):
        small_run(FLAT, method="sisa")


@pytest.mark.parametrize(("size", "said"), [(1, False), (100, True)])
def test_a_seal_that_is_no_bargain_is_labelled(size, said):
    """With seed 2 the walk is at u often enough that a hundred records cost more than a restart."""
    result = small_run(FLAT, compare=["restart", "retrain"], forget__size=size, seed=2).result
    told = result["certificate"]["worth"]
    assert ("a restart by 2.3: no cheaper than a restart" in told) == said
    assert "within one point of retraining's clean accuracy" in told


def test_training_and_checking_need_no_extra_packages():
    program = """
import sys
for name in ("cryptography", "dp_accounting", "pydantic", "grpc"):
    sys.modules[name] = None
import unwalk.cli
from unwalk.runs.assemble import resolve
from unwalk.runs.run import run
result = run(resolve({"preset": "certified", "task": "digits-flat", "train.hops": 3,
                      "unlearn.hops": 1, "compare": []})).result
print(result["claims"][0]["grade"], result["certificate"]["document"]["signer"]["algorithm"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["certified", "none"]
