"""A whole audit: from the command line to table, files and exit code; stopped and resumed."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.runs.small import BLOBS, options, small
from unwalk import cli
from unwalk.audits import audit as audits
from unwalk.audits import bounds
from unwalk.audits.audit import audit, together
from unwalk.audits.bounds import cap
from unwalk.audits.game import Game, play
from unwalk.core.errors import InvalidInput
from unwalk.methods import METHODS
from unwalk.reports import audit_page
from unwalk.reports.audit_page import chart_file, render_audit, verdict_lines
from unwalk.runs.store import partial_of

SMALL: dict[str, Any] = {
    **BLOBS,
    "preset": "paper",
    "train.hops": 3,
    "unlearn.hops": 3,
    "forget.kind": "records",
    "forget.size": 20,
}
WORDS = [*options(SMALL), "--canary", "gradient", "--engine", "fleet"]


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Calls ``unwalk audit`` with these words in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def called(*words):
        monkeypatch.setattr(sys, "argv", ["unwalk", "audit", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return called


def game(**changes: Any) -> Game:
    settings = {**SMALL, "method": "rrdu", "compare": [], "performance.engine": "fleet", **changes}
    return Game(small(settings), canary="gradient")


def test_an_audit_leaves_a_table_a_page_and_files(call, tmp_path):
    code, out, err = call(
        *WORDS, "--methods", "rrdu,restart", "--pairs", "40", "--observer", "released",
        "--observer", "peer:1", "--set", "train.hops=12", "--out", "audits/first",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "RR-DU" in out
    assert "report: audits/first/report.html" in out
    place = tmp_path / "audits" / "first"
    assert sorted(path.name for path in place.iterdir()) == [
        "audit.csv",
        "audit.json",
        "audit.svg",
        "config.toml",
        "report.html",
    ]
    document = json.loads((place / "audit.json").read_text())
    rows = {(row["method"], row["observer"]): row for row in document["rows"]}
    assert len(rows) == 4
    attacked = rows["rrdu", "released"]
    assert (attacked["grade"], attacked["epsilon"]) == ("nominal", 1.0)
    assert attacked["cap"] == cap(20, 0.95, 1e-5)
    assert attacked["audited"] > 1.0, "a canary as large as this is seen at once"
    assert attacked["family"] <= attacked["family_cap"] < 1.0
    assert attacked["verdict"] == "too few runs", "over all attackers"
    exact = rows["restart", "peer:1"]
    assert (exact["grade"], exact["epsilon"], exact["verdict"]) == ("exact", 0.0, "not refuted")
    with (place / "audit.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["audited"]) for row in table] == [r["audited"] for r in document["rows"]]
    page = (place / "report.html").read_text()
    assert page.count("<svg") == 1
    assert "http" not in page.replace("http-equiv", "")
    assert (place / "audit.svg").read_text().startswith("<svg xmlns=")


def test_a_proof_that_is_refuted_ends_with_1(call, monkeypatch):
    """An exact method that starts from the trained model after all."""
    from unwalk.core.token import State

    monkeypatch.setattr(State, "begin_anew", lambda self: None)
    code, out, _ = call(
        *WORDS, "--methods", "restart", "--pairs", "40", "--coins", "fixed", "--set", "seed=2"
    )
    assert code == 1
    assert "REFUTED" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--pairs", "7"], "pairs is 7; allowed: a whole number, 8 or more"),
        (["--observer", "peer:0"], "which is the forgetting peer"),
        (["--observer", "everybody"], "--observer is 'everybody'"),
        (["--coins", "bent"], "--coins is 'bent'"),
        (["--seeds", "odd"], "--seeds is 'odd'"),
        (["--canary", "parrot"], "--canary is 'parrot'"),
        (["--methods", "forgetful"], "method is 'forgetful'"),
        (["--jobs", "0"], "jobs is 0"),
        (["--resume"], "--resume needs --out"),
        (["--set", "forget.kind=nothing", "--set", "forget.size=none"], "nothing is to be"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(call, tmp_path, words, told):
    code, out, err = call(*options(SMALL), *words)
    assert (code, out) == (2, "")
    assert told in " ".join(err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_method_that_cannot_be_played_is_named_with_its_reason(call):
    code, out, _ = call(*WORDS, "--methods", "restart,seal", "--pairs", "8")
    assert code == 0
    assert "ledger seal was not played: " in out
    code, out, err = call(*WORDS, "--methods", "seal", "--pairs", "8")
    assert (code, out) == (2, "")
    assert err.startswith("unwalk: ")


class Stopped(Exception):
    """Somebody pulled the plug."""


def test_an_audit_that_was_stopped_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(audits, "CELL", 4)
    whole = audit(game(), 12)
    out = tmp_path / "stopped"

    def stop(done: int, cells: int) -> None:
        if done == 2:
            raise Stopped

    with pytest.raises(Stopped):
        audit(game(), 12, out=out, count=stop)
    for kind in ("json", "npz"):  # claims, and what was seen
        assert len(list((partial_of(out) / "seeds").glob(f"*.{kind}"))) == 2
    played = []

    def noted(game, first, *more):
        played.append(first)
        return play(game, first, *more)

    monkeypatch.setattr(audits, "play", noted)
    again = audit(game(), 12, out=out, resume=True)
    assert played == [8]
    assert again == whole
    assert not partial_of(out).exists()
    with pytest.raises(InvalidInput, match="exists already"):
        audit(game(), 12, out=out)
    assert audit(game(), 12, out=out, overwrite=True) == whole


def own_records() -> tuple[torch.Tensor, torch.Tensor]:
    """Somebody's own data."""
    x = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def own_model() -> nn.Module:
    """Somebody's own model."""
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))


def test_own_task_and_own_model_are_audited(call):
    here = "tests.audits.test_audit"
    code, out, err = call(
        "--task", f"{here}:own_records", "--model", f"{here}:own_model", "--pairs", "8",
        "--methods", "finetune", "--set", "peers=3", "--set", "train.hops=2", "--set",
        "unlearn.hops=1", "--set", "forget.kind=records", "--set", "forget.size=5", "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["task"]["parameters"] == 38
    (row,) = document["rows"]
    assert (row["method"], row["verdict"]) == ("finetune", "no claim")


@pytest.mark.soak
def test_every_method_is_a_row_or_has_a_reason(call, tmp_path):
    code, _, err = call(*WORDS, "--methods", "all", "--pairs", "8", "--out", "all")
    assert code == 0, err
    document = json.loads((tmp_path / "all" / "audit.json").read_text())
    named = [one["method"] for part in ("rows", "failed") for one in document[part]]
    assert sorted(named) == sorted(METHODS)
    assert len(document["rows"]) > 7
    with (tmp_path / "all" / "audit.csv").open() as file:
        table = {row["method"]: row for row in csv.DictReader(file)}
    assert table["seal"]["verdict"] == "not played"
    assert table["seal"]["reason"]
    assert "not played" in (tmp_path / "all" / "report.html").read_text()


def test_audits_with_different_settings_are_judged_together():
    one = audit(game(), 8)
    (row,) = one["rows"]
    failed = {"method": "rrdu", "label": "RR-DU", "reason": "other settings"}
    other = {
        **one,
        "task": {**one["task"], "name": "spirals"},
        "game": {**one["game"], "canary": "blank"},
        "rows": [{**row, "preset": "certified", "method": "seal", "label": "seal"}],
        "failed": [failed, {**failed, "method": "sums"}],
    }
    both = together([one, other], "both")
    assert [r["method"] for r in both["rows"]] == ["rrdu", "seal"]
    assert [f["method"] for f in both["failed"]] == ["sums"]
    tests = 2 * len(row["tried"])
    assert both["rows"][0]["family_cap"] == cap(4, 0.95, row["delta"], tests)
    assert "blobs, preset certified" in render_audit(both)
    assert "preset" not in audit_page._below(row, one)[0]
    name, model = one["task"]["name"], one["task"]["model"]
    told = " ".join(audit_page._game(both))
    assert audit_page._played(both) == f"{name} ({model}) and spirals ({model})"
    assert f"{name} ({model}): Peer" in told
    assert told.count("canaries (blank)") == 1, "that game alone had them"


# One run


def test_one_run_is_audited_from_the_command_line(call):
    words = [*options(SMALL), "--one-run", "--methods", "restart,seal"]
    code, out, _ = call(*words)
    assert code == 0
    assert "20 canaries" in out
    assert "seal was not played: " in out
    code, out, _ = call(*words, "--json")
    told = json.loads(out)
    (row,) = told["rows"]
    assert (row["method"], row["canaries"], row["epsilon"]) == ("restart", 20, 0.0)
    assert row["cap"] == bounds.one_run(20, 20, 20, 1e-5)
    assert list(told["failed"]) == ["seal"]
    code, out, err = call(*words, "--out", "somewhere")
    assert (code, out) == (2, "")
    assert "--out is for audits of many runs" in err


@pytest.mark.soak
def test_jobs_change_nothing(monkeypatch):
    monkeypatch.setattr(audits, "CELL", 4)
    assert audit(game(), 8, jobs=2) == audit(game(), 8)


@pytest.mark.soak
def test_a_cluster_changes_nothing(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="Ray is not installed: unwalk[ray]")
    monkeypatch.setattr(audits, "CELL", 4)
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    monkeypatch.chdir(tmp_path)  # the workers stay where they were
    try:
        found = audit(game(), 8, jobs=2, cluster="local", out=Path("here"))
    finally:
        ray.shutdown()
    assert found == audit(game(), 8)


def test_a_cluster_without_ray_is_refused(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, out, err = call(*WORDS, "--pairs", "8", "--ray-address", "auto")
    assert (code, out) == (2, "")
    assert "needs Ray, which is not installed" in err


def test_the_legend_is_one_line_apart_from_the_axis():
    found = re.findall(
        r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]+)<', chart_file(audit(game(), 8))
    )
    rows: dict[str, list[tuple[float, str]]] = {}
    for x, y, text in found:
        rows.setdefault(y, []).append((float(x), text))
    (legend,) = [row for row in rows.values() if "nominal" in dict(map(reversed, row))]
    told = [text for _, text in sorted(legend)]
    assert told == [
        "audited",
        "audited, claim exceeded",
        "claims:",
        "nominal",
        "certified",
        "exact",
        "cap",
    ]
    (axis,) = [row for row in rows.values() if "epsilon" in dict(map(reversed, row))]
    assert "0" in dict(map(reversed, axis))


def test_the_page_escapes_what_it_is_given():
    document = audit(game(), 8)
    document["rows"][0]["label"] = "<b>&"
    for text in (render_audit(document), chart_file(document)):
        assert "<b>&" not in text
        assert "&lt;b&gt;&amp;" in text
    assert verdict_lines(document)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_papers_method_is_told_apart_without_an_error(tmp_path):
    """300 pairs on digits, logistic regression, the paper's settings: the cap, for everybody."""
    config = small(
        {
            "task": "digits",
            "model.name": "logistic",
            "preset": "paper",
            "method": "rrdu",
            "compare": [],
            "performance.engine": "fleet",
        }
    )
    observers = ("released", "peer:1", "coalition:others")
    document = audit(Game(config, observers), 300, out=Path(tmp_path / "known"))
    for row in document["rows"]:
        assert (row["false_alarms"], row["misses"], row["runs"]) == (0, 0, 150)
        assert row["audited"] == row["cap"] > 3.67 > row["epsilon"] == 1.0
        assert row["verdict"] == "exceeded"
