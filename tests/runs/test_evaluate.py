"""An evaluation of real runs: what kept its records is caught, retraining is as chance."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import unwalk
from tests.runs.small import DIGITS, small_run
from unwalk.cli import app
from unwalk.core.errors import InvalidInput
from unwalk.measures.margins import margins
from unwalk.measures.ulira import ulira
from unwalk.reports.evaluation_page import NOT_MEASURED
from unwalk.runs.ensemble import BEFORE, gather
from unwalk.runs.evaluate import MEASURES, Table, evaluate
from unwalk.settings.config import Config
from unwalk.tasks import Deletion, ShardedTask, from_arrays

MEMBERS = 16
RECORDS = 24


def memorised() -> ShardedTask:
    """Random labels: whoever answers them right has seen them."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(128, 16)).astype(np.float32)
    y = rng.integers(0, 2, 128)
    test = rng.normal(size=(100, 16)).astype(np.float32), rng.integers(0, 2, 100)
    forget = Deletion("records", RECORDS)
    return from_arrays(x, y, test=test, peers=4, forget=forget, model="mlp", classes=2)


SETTINGS: dict[str, Any] = {
    "train.hops": 16,
    "unlearn.hops": 8,
    "train.batch": 16,
    "train.epochs": 3,
    "evaluate.every": 4,
    "compare": ["retrain"],
}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run that trains on random labels and forgets by fine-tuning, evaluated."""
    out = tmp_path_factory.mktemp("evaluated") / "run"
    unwalk.run(memorised(), method="finetune", settings=SETTINGS, out=out)
    return out, unwalk.evaluate(out, task=memorised(), members=MEMBERS)


def row(result: dict[str, Any], measure: str, method: str) -> dict[str, Any]:
    wanted = (measure, method)
    found: list[dict[str, Any]] = [
        r for r in result["rows"] if (r["measure"], r["method"]) == wanted
    ]
    assert len(found) == 1
    return found[0]


CATCHING = [
    "margin of forgotten records",
    "forget accuracy",
    "loss attack, AUC",
    "RMIA attack, AUC",
    "Gaussian poison, mean statistic",
]


@pytest.mark.parametrize("measure", CATCHING)
def test_a_model_that_kept_the_records_is_caught(evaluated, measure):
    assert row(evaluated[1], measure, BEFORE)["side"] == "remembers"


@pytest.mark.parametrize("measure", ["U-LiRA AUC", "KL to retraining, forget records"])
def test_a_model_that_kept_the_records_is_far_from_retraining(evaluated, measure):
    assert row(evaluated[1], measure, BEFORE)["side"] == "differs"


def test_every_measure_has_rows_with_numbers(evaluated):
    result = evaluated[1]
    assert {r["family"] for r in result["rows"]} == set(MEASURES)
    for r in result["rows"]:
        assert r["value"] is not None
        if r["method"] == "retrain":
            assert (r["gap"], r["side"]) == (None, "")


def without_numbers(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (r["family"], r["label"], r["note"]) for r in result["rows"] if r["measure"] == NOT_MEASURED
    ]


@pytest.mark.parametrize("fails", [ZeroDivisionError("no"), None])
def test_a_measure_that_fails_for_a_method_is_a_row_and_ends_nothing_else(
    evaluated, monkeypatch, fails
):
    """It raises, or gives what is no number, which JSON cannot hold."""

    def refuses(table: Table) -> None:
        def values(name: str) -> list[float]:
            if name == "finetune" and fails is not None:
                raise fails
            return [np.nan if name == "finetune" else 0.5] * MEMBERS

        table.pairs("kl", "a measure", values, leans=1)

    monkeypatch.setitem(MEASURES, "kl", ("outputs", refuses))
    asked = {"task": memorised(), "members": MEMBERS, "measures": ["kl", "margin"]}
    result = unwalk.evaluate(evaluated[0], **asked)
    ((family, label, note),) = without_numbers(result)
    assert (family, label) == ("kl", "fine-tuning")
    assert note.startswith("kl: ZeroDivisionError" if fails else "kl: a measure is not a finite")
    others = [r["method"] for r in result["rows"] if r["measure"] == "a measure"]
    assert others == [BEFORE, "retrain"]
    margins_ = [r for r in evaluated[1]["rows"] if r["family"] == "margin"]
    assert [r for r in result["rows"] if r["family"] == "margin"] == margins_
    page = (evaluated[0] / "evaluation" / "evaluate.html").read_text()
    assert note.split(":")[-1].strip() in page


def test_what_a_method_cannot_have_is_a_row_and_is_not_tried_again(tmp_path, monkeypatch):
    """Shards answer together and cannot relearn; a fault in one part leaves the other parts."""
    kept = {"compare": ["sisa", "retrain"], "train.shards": 2, "train.hops": 8, "unlearn.hops": 4}
    small_run(method="finetune", out=tmp_path / "run", **kept)
    asked = {"members": 2, "measures": ["accuracy", "resurface"]}
    result = evaluate(tmp_path / "run", **asked)
    ((family, label, note),) = without_numbers(result)
    assert (family, label) == ("relearn", "shards and slices")
    assert "several models answer together" in note
    monkeypatch.setattr("unwalk.runs.ensemble._make", None)
    assert evaluate(tmp_path / "run", **asked)["rows"] == result["rows"]
    monkeypatch.undo()

    def broken(self, walked):
        raise ZeroDivisionError("relearning is broken")

    monkeypatch.setattr("unwalk.runs.ensemble.Relearning.of", broken)
    result = evaluate(tmp_path / "run", out=tmp_path / "again", **asked)
    ((family, label, note),) = without_numbers(result)
    assert (family, label) == ("relearn", "every method")
    assert "relearning is broken, which is a fault of the program" in note
    assert row(result, "clean accuracy", "finetune")["value"] is not None


def test_retrained_models_are_at_chance(evaluated):
    """Half of the retrained members against the other half, on the files that were kept."""
    (place,) = (evaluated[0] / "evaluation" / "members").iterdir()
    labels = memorised().forgotten.y.numpy()
    files = [place / f"outputs-retrain-{seed}.npz" for seed in range(MEMBERS)]
    found = np.stack([margins(np.load(path)["forget"], labels) for path in files])
    attack = ulira(found[::2], found[1::2]).auc
    assert attack.low is not None
    assert attack.high is not None
    assert attack.low < 0.5 < attack.high
    result = evaluated[1]
    # 50 others and 24 members of the attack: a standard error of the AUC is at most 8 points.
    assert abs(row(result, "loss attack, AUC", "retrain")["value"] - 0.5) < 0.16
    poison = row(result, "Gaussian poison, mean statistic", "retrain")
    assert abs(poison["value"]) < 4 / np.sqrt(MEMBERS * RECORDS)


def test_half_of_the_records_teach_nothing_about_the_others(evaluated):
    """Random labels cannot be relearned from other random labels by a retrained model.

    One of the members may know enough of so few labels by luck before it begins.
    """
    time = row(evaluated[1], "relearn time, half of the forgotten records", "retrain")["value"]
    assert time >= (MEMBERS - 1) / MEMBERS * SETTINGS["unlearn.hops"]


def test_the_first_member_repeats_the_run(evaluated):
    run = unwalk.run(memorised(), method="finetune", settings=SETTINGS)
    (place,) = (evaluated[0] / "evaluation" / "members").iterdir()
    kept = np.load(place / "outputs-finetune-0.npz")["forget"]
    with torch.no_grad():
        answers = run.model(memorised().forgotten.x).numpy()
    assert kept == pytest.approx(answers, abs=1e-3)


def test_a_run_is_evaluated_with_the_streams_that_it_was_made_with(tmp_path, monkeypatch):
    """Settings that say nothing of streams are of version 1, whatever the default is now."""
    small_run(out=tmp_path / "run", streams=1)
    asked: list[int] = []

    def assembled(config: Config, task: ShardedTask | None) -> None:
        asked.append(config.streams)
        raise InvalidInput("seen")

    monkeypatch.setattr("unwalk.runs.evaluate.assemble", assembled)
    with pytest.raises(InvalidInput, match="seen"):
        evaluate(tmp_path / "run", members=2)
    assert asked == [1]


def test_members_are_made_once(evaluated, monkeypatch):
    """A second evaluation reads what the first one made; another setting makes its own."""
    monkeypatch.setattr("unwalk.runs.ensemble._make", None)
    again = unwalk.evaluate(evaluated[0], task=memorised(), members=MEMBERS, measures=["kl"])
    first = [r for r in evaluated[1]["rows"] if r["family"] == "kl"]
    assert again["rows"] == first
    unwalk.evaluate(evaluated[0], task=memorised(), members=2, measures=["population"])
    with pytest.raises(unwalk.UnwalkError):
        unwalk.evaluate(evaluated[0], task=memorised(), members=MEMBERS + 1, measures=["kl"])


def test_an_evaluation_whose_time_is_up_shows_what_there_is_and_is_gone_on_with(
    evaluated, tmp_path, monkeypatch
):
    """Time for the model before forgetting and retraining, none for the method."""
    asked: dict[str, Any] = {"task": memorised(), "members": 2, "measures": ["kl"]}
    whole = unwalk.evaluate(evaluated[0], out=tmp_path / "whole", **asked)
    ticks = iter([0.0, 0.0, 0.0])
    clock = SimpleNamespace(time=lambda: next(ticks, math.inf))
    monkeypatch.setattr("unwalk.runs.ensemble.time", clock)
    early = unwalk.evaluate(evaluated[0], out=tmp_path / "early", minutes=1.0, **asked)
    ((_, label, note),) = without_numbers(early)
    assert label == "fine-tuning"
    assert note == "0 of 2 members are made; the same command makes the others"
    assert {r["method"] for r in early["rows"] if r["value"] is not None} == {BEFORE, "retrain"}
    monkeypatch.undo()
    assert unwalk.evaluate(evaluated[0], out=tmp_path / "early", **asked)["rows"] == whole["rows"]
    more = unwalk.evaluate(
        evaluated[0], out=tmp_path / "early", minutes=1e-9, **{**asked, "members": 5}
    )
    assert (more["rows"], more["members"], more["seeds"]) == (whole["rows"], 2, [0, 1])
    assert more["warnings"] == ["2 of 5 members are made; the same command makes the others."]
    with pytest.raises(InvalidInput, match=r"minutes is 0\.0; allowed"):
        unwalk.evaluate(evaluated[0], minutes=0.0, **asked)


def test_other_records_are_another_ensemble(evaluated, tmp_path, monkeypatch):
    other = memorised()
    other.source.test.y[0] = 1 - other.source.test.y[0]
    made: list[Any] = []

    def noted(*arguments: Any) -> list[Any]:
        made.append(arguments[4])
        return []

    monkeypatch.setattr("unwalk.runs.ensemble._make", noted)
    with pytest.raises(InvalidInput, match="nothing to compare with"):
        unwalk.evaluate(evaluated[0], task=other, members=2, measures=["kl"])
    assert made == [("outputs",)]


def test_the_files_hold_the_same_rows(evaluated):
    again = unwalk.evaluate(evaluated[0], task=memorised(), members=MEMBERS, measures=["margin"])
    assert [r["family"] for r in again["rows"]] == ["margin"] * 6
    kept = evaluated[0] / "evaluation"
    written = json.loads((kept / "evaluate.json").read_text())
    assert written == again
    rows = list(csv.DictReader((kept / "evaluate.csv").read_text().splitlines()))
    assert [float(r["value"]) for r in rows] == [r["value"] for r in again["rows"]]
    page = (kept / "evaluate.html").read_text()
    assert page.count("Margin of forgotten records") == 1
    assert "over-unlearning" in page


def test_the_command_prints_a_table(tmp_path):
    small_run(out=tmp_path / "run")
    command = ["evaluate", str(tmp_path / "run"), "--members", "2", "--out", str(tmp_path / "e")]
    done = CliRunner().invoke(app, [*command, "--measures", "accuracy,ulira"])
    assert done.exit_code == 0, done.output
    assert "clean accuracy" in done.output
    assert "before forgetting" in done.output
    assert "U-LiRA needs 4 members or more; --members is 2" in " ".join(done.output.split())
    assert (tmp_path / "e" / "evaluate.html").is_file()


def test_a_backdoor_that_never_took_is_warned_of(tmp_path):
    small_run(DIGITS, out=tmp_path / "run", forget__size=1, compare=["retrain"])
    result = evaluate(tmp_path / "run", members=2, measures=["accuracy"])
    (text,) = result["warnings"]
    assert text.startswith("the backdoor took in 0 of 2 members only")
    assert text[1:] in (tmp_path / "run" / "evaluation" / "evaluate.html").read_text()


def test_what_cannot_be_evaluated_is_said(tmp_path, evaluated):
    with pytest.raises(InvalidInput, match="folder of a finished run"):
        evaluate(tmp_path)
    with pytest.raises(InvalidInput, match="brought along"):
        evaluate(evaluated[0])
    with pytest.raises(InvalidInput, match="measures"):
        evaluate(evaluated[0], task=memorised(), measures=["auc"])
    small_run(out=tmp_path / "none", forget__kind="nothing")
    with pytest.raises(InvalidInput, match="nothing to forget"):
        evaluate(tmp_path / "none")


def test_features_of_bounded_length_have_no_poison(evaluated, tmp_path):
    task = memorised()
    task = replace(task, source=replace(task.source, feature_norm=50.0))
    config = unwalk.run(task, method="finetune", settings=SETTINGS).config
    from unwalk.runs.assemble import assemble

    found = gather(assemble(config, task), 1, ["retrain"], ["poison"], cache=tmp_path, task=task)
    assert "bounded length" in found.failed["poison", "retrain"]


@pytest.mark.soak
@pytest.mark.parametrize("cluster", [None, "local"])
def test_workers_make_a_named_task_themselves(cluster, tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in rng.normal(size=(80, 2))]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,label", *rows]))
    file = {"task": "file", "data.path": str(tmp_path / "own.csv"), "forget.kind": "records"}
    small_run({**file, "forget.size": 4, "peers": 4, "train.hops": 4}, out=tmp_path / "run")
    how = {"members": 4, "jobs": 2, "measures": ["accuracy"], "cluster": cluster}
    if cluster is not None:
        ray = pytest.importorskip("ray", reason="Ray is not installed: unwalk[ray]")
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        result = evaluate(tmp_path / "run", **how)
    finally:
        if cluster is not None:
            ray.shutdown()
    assert row(result, "clean accuracy", "retrain")["value"] > 0.5


@pytest.mark.soak
def test_processes_make_the_same_members(evaluated, tmp_path):
    whole = unwalk.evaluate(evaluated[0], task=memorised(), members=4, out=tmp_path / "a")
    apart = unwalk.evaluate(evaluated[0], task=memorised(), members=4, out=tmp_path / "b", jobs=2)
    for one, other in zip(whole["rows"], apart["rows"], strict=True):
        assert one["value"] == pytest.approx(other["value"], abs=1e-3), one


class Drawn:
    """An ensemble of margins alone: ``ours`` of a method, ``theirs`` of retraining."""

    def __init__(self, ours: Any, theirs: Any) -> None:
        self.drawn = {"finetune": ours, "retrain": theirs}
        self.methods, self.seeds = ("finetune", "retrain"), range(len(ours))

    def has(self, part: str, name: str) -> bool:
        return name in self.drawn

    def facts(self, part: str, name: str) -> list[dict[str, Any]]:
        return [{"final": {"retain": 1.0, "clean": 1.0}} for _ in self.seeds]


def drawn_rows(measure: str, shift: float, members: int, seed: int) -> list[Any]:
    """Rows of ``finetune``; records of one model vary together, as they do in what is trained."""
    rng = np.random.default_rng(seed)

    def models(mean: float) -> Any:
        return mean + 3.0 * rng.normal(size=(members, 1)) + rng.normal(size=(members, 12))

    table = Table(Drawn(models(shift), models(0.0)))  # type: ignore[arg-type]
    table.margins = lambda name, which: table.ensemble.drawn[name]  # type: ignore[attr-defined, method-assign]
    MEASURES[measure][1](table)
    return [row for row in table.rows if row.method == "finetune"]


def test_forgetting_quality_of_equal_models_does_not_differ():
    """Records of one model vary together: intervals over records leave out 0 for all of these."""
    rows = [drawn_rows("quality", 0.0, 16, seed)[0] for seed in (3, 4, 7)]
    assert ["differs" in row.side for row in rows] == [False] * 3
    assert all(row.gap_low <= 0.0 <= row.gap_high for row in rows)
    assert drawn_rows("quality", 40.0, 16, 0)[0].side == "differs"


def test_klom_of_few_models_is_not_called_level():
    for row in drawn_rows("klom", 6.0, 16, 0):
        assert (row.side, "saturates" in row.note) == ("", True)
    assert {row.side for row in drawn_rows("klom", 30.0, 32, 0)} == {"differs"}


def test_klom_is_set_beside_the_same_models_dealt_at_random():
    """Equal models go beyond 97.5 % of the deals about once in forty times."""
    rows = [drawn_rows("klom", 0.0, 12, seed)[0] for seed in range(20)]
    assert sum(row.side == "differs" for row in rows) <= 2
    assert all(row.gap_low < row.gap < row.gap_high for row in rows)
    assert drawn_rows("klom", 12.0, 12, 0)[0].side == "differs"
