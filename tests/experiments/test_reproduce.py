"""The paper's experiments as lists of cells, carried out in parts."""

import json
import os
import shutil
import signal
import time
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conftest import ROOT
from tests.processes import start_unwalk
from unwalk.core.errors import Diverged, InvalidInput
from unwalk.core.seeds import VERSION
from unwalk.experiments import paper, study, tuning
from unwalk.experiments.cells import TASKS
from unwalk.experiments.reproduce import (
    EXPERIMENTS,
    FURTHER,
    documents,
    failures,
    reproduce,
    summary,
    times,
    tried,
)
from unwalk.methods import defaults
from unwalk.runs.assemble import resolve
from unwalk.settings.config import Value, apply, run_id

TINY: dict[str, Value] = {
    "train.hops": 3,
    "unlearn.hops": 3,
    "evaluate.every": 1,
    "model.name": "mlp",
    "forget.size": 20,
}
COUNTS = {
    "figure1": 25,
    "table-p": 9,
    "table-rho": 6,
    "table-l": 6,
    "table-epsilon": 4,
    "table-delta": 2,
}


PATHS = ("float32", "bfloat16")


def tiny(which, out, **given):
    return reproduce(which, out, quick=True, settings=TINY, command="unwalk reproduce", **given)


def parts_in(out):
    found = sorted((out / "parts").glob("digits-*.json"))
    return {path.stem: json.loads(path.read_text()) for path in found}


@pytest.fixture
def runs(monkeypatch):
    """The cells that were really run."""
    made, original = [], study._part

    def counting(asked, cell, *given):
        made.append(cell.name)
        return original(asked, cell, *given)

    monkeypatch.setattr(study, "_part", counting)
    return made


@pytest.mark.parametrize("task", TASKS)
def test_every_row_of_the_paper_is_a_cell_with_its_seeds(task):
    assert {name: len(cells(task)) for name, cells in EXPERIMENTS.items()} == COUNTS
    names = [cell.name for cells in EXPERIMENTS.values() for cell in cells(task)]
    assert len(set(names)) == len(names)


def test_cells_carry_the_papers_numbers():
    rows = {c.row: c.reported for c in EXPERIMENTS["table-rho"]("cifar10")}
    assert (rows["5"].clean, rows["5"].asr) == (88.03, 60.60)
    settings = {c.row: dict(c.settings) for c in EXPERIMENTS["table-rho"]("cifar10")}
    assert settings["5"] == {"unlearn.trust_radius": 5.0}
    assert settings["baseline"] == {}


def test_results_have_the_form_that_is_promised(tmp_path):
    written = tiny("all", tmp_path)
    assert written[-1] == tmp_path / "reproduction.html"
    found = documents(tmp_path)
    assert set(found) == {f"{name}-digits" for name in EXPERIMENTS}
    for name, document in found.items():
        assert {"machine", "commit", "command", "rows"} <= set(document)
        assert document["command"] == "unwalk reproduce"
        wanted = {"preset", "seed", "clean", "asr", "asr_paper"}
        wanted |= {"method", "hop"} if name.startswith("figure1") else {"row", "reported_asr"}
        assert all(wanted <= set(row) for row in document["rows"])
        assert (tmp_path / f"{name}.csv").read_text().count("\n") == len(document["rows"]) + 1
    shared = {"streams": VERSION, "train.learning_rate": 0.005, "unlearn.clip": 0.5, **TINY}
    assert shared.items() <= found["figure1-digits"]["settings"].items()
    assert found["table-l-digits"]["settings"]["unlearn.clip"] == 0.5
    assert found["table-l-digits"]["settings"].keys().isdisjoint({"seed", "method", "preset"})
    hops = [r["hop"] for r in found["figure1-digits"]["rows"] if r["method"] == "rrdu"]
    assert hops == [1, 2, 3, 4, 5, 6]
    assert "RR-DU" in (tmp_path / "reproduction.html").read_text()
    pictures = [path for path in written if path.suffix == ".svg"]
    assert pictures == [tmp_path / "figure1-digits.svg"]
    assert ElementTree.parse(pictures[0]).getroot().tag.endswith("svg")
    assert summary(tmp_path).row_count > 20


def test_finished_parts_are_not_run_again(tmp_path, monkeypatch):
    tiny("table-delta", tmp_path)
    before = documents(tmp_path)
    monkeypatch.setattr(study, "_part", None)
    tiny("table-delta", tmp_path)
    assert documents(tmp_path) == before


def test_a_study_that_is_stopped_goes_on_with_the_next_cell(tmp_path):
    told = []

    def stop(walk, done, hops):
        told.append(walk)
        if told.count("rrdu") == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny("table-delta", tmp_path, tell=stop)
    assert len(parts_in(tmp_path)) == 1
    tiny("table-delta", tmp_path, collect=True)
    assert len(documents(tmp_path)["table-delta-digits"]["rows"]) == 1
    tiny("table-delta", tmp_path)
    whole = documents(tmp_path)["table-delta-digits"]
    tiny("table-delta", tmp_path / "other")
    assert whole["rows"] == documents(tmp_path / "other")["table-delta-digits"]["rows"]


def test_other_presets_have_files_of_their_own(tmp_path):
    tiny("table-delta", tmp_path)
    tiny("table-delta", tmp_path, preset="paper")
    assert set(documents(tmp_path)) == {"table-delta-digits", "table-delta-digits-paper"}


def test_an_unknown_experiment_is_refused_by_name(tmp_path):
    with pytest.raises(InvalidInput, match="did you mean table-rho"):
        tiny("table-roh", tmp_path)
    assert not list(tmp_path.iterdir())


def test_parts_say_where_they_come_from(tmp_path):
    tiny("table-delta", tmp_path)
    for part in parts_in(tmp_path).values():
        assert part["machine"]
        assert part["commit"]
        assert part["settings"]
        asked = {"task": "digits", "preset": "paper-matched", "compare": [], **TINY}
        assert resolve({**asked, **part["settings"]}) == apply(
            defaults(), part["configuration"], where="the part"
        )


def test_cells_in_a_fleet_give_what_they_give_one_by_one(tmp_path):
    cells = [c for c in EXPERIMENTS["table-p"]("digits", 2) if c.row != "baseline"][:4]
    cells += [c for c in EXPERIMENTS["figure1"]("digits", 1) if c.method in ("retrain", "ddp")]
    found = []
    for engine in ("inprocess", "fleet"):
        given = {**TINY, "performance.engine": engine}
        asked = study.Study("digits", "paper-matched", tuple(cells), given)
        found.append(study.carry_out(asked, tmp_path / engine))
    assert len(cells) >= 6
    for alone, together in zip(*found, strict=True):
        assert [r["hop"] for r in together["series"]] == [r["hop"] for r in alone["series"]]
        for mine, theirs in zip(together["series"], alone["series"], strict=True):
            assert mine == pytest.approx(theirs, abs=0.02)
        same = ("experiment", "row", "method", "seed", "settings", "sigma", "train_hops")
        assert {k: together[k] for k in same} == {k: alone[k] for k in same}


def test_shares_cost_alike_and_keep_neighbours_together(tmp_path):
    cells = sorted(EXPERIMENTS["figure1"]("mnist"), key=lambda c: (c.method == "dpsgd", c.seed))
    todo = [(cell, tmp_path / cell.name) for cell in cells]
    shares = study.deal(todo, 3)
    assert [pair for share in shares for pair in share] == todo
    costs = [sum(study.COSTS.get(c.method, 1) for c, _ in share) for share in shares]
    trained = [
        len({(c.method == "dpsgd", c.seed) for c, _ in s if c.method != "retrain"}) for s in shares
    ]
    whole = [cost + more for cost, more in zip(costs, trained, strict=True)]
    assert len(shares) == 3
    assert max(whole) <= -(-sum(whole) // 3) + max(study.COSTS.values())


@pytest.mark.parametrize("jobs", [1, 2, 3, 5, 50])
def test_no_other_cut_has_a_shorter_longest_share(tmp_path, jobs):
    cells = sorted(EXPERIMENTS["figure1"]("mnist", 1), key=lambda c: c.method == "dpsgd")

    def cost(share):
        own = sum(study.COSTS.get(c.method, 1) for c in share)
        return own + len({c.method == "dpsgd" for c in share if c.method != "retrain"})

    cuts = [
        [cells[a:b] for a, b in pairwise((0, *places, len(cells)))]
        for count in range(min(jobs, len(cells)))
        for places in combinations(range(1, len(cells)), count)
    ]
    shares = study.deal([(cell, tmp_path) for cell in cells], jobs)
    longest = max(cost([cell for cell, _ in share]) for share in shares)
    assert longest == min(max(map(cost, cut)) for cut in cuts)


def test_several_processes_give_the_same_parts(tmp_path):
    tiny("table-delta", tmp_path / "one")
    tiny("table-delta", tmp_path / "two", jobs=2)
    one, two = (parts_in(tmp_path / name) for name in ("one", "two"))
    assert len(one) == 2
    assert {n: p["series"] for n, p in one.items()} == {n: p["series"] for n, p in two.items()}


def test_a_cell_that_fails_is_listed_and_ends_no_other(tmp_path, monkeypatch):
    """Every cell of table-delta but one; the next call tries it again."""
    made = study._part

    def failing(asked, cell, *given):
        if cell.row == "1e-06":
            raise Diverged("a step gave NaN.")
        return made(asked, cell, *given)

    monkeypatch.setattr(study, "_part", failing)
    tiny("table-delta", tmp_path)
    name = "digits table-delta-1e-06-0"
    assert failures(tmp_path) == {name: "a step gave NaN."}
    assert len(documents(tmp_path)["table-delta-digits"]["rows"]) == 1
    assert f"<b>{name}</b>: a step gave NaN." in (tmp_path / "reproduction.html").read_text()
    monkeypatch.setattr(study, "_part", made)
    tiny("table-delta", tmp_path)
    assert failures(tmp_path) == {}
    assert len(documents(tmp_path)["table-delta-digits"]["rows"]) == 2


def test_where_every_cell_fails_the_reason_is_raised(tmp_path):
    diverging = {**TINY, "train.learning_rate": 1e38}
    with pytest.raises(Diverged, match="not finite"):
        reproduce("table-delta", tmp_path, quick=True, settings=diverging)


def test_no_process_at_all_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="jobs is 0"):
        tiny("table-delta", tmp_path, jobs=0)


def test_dpsgd_gets_a_model_without_batch_normalisation():
    for task, model in (("mnist", "flnet-gn"), ("cifar10", "resnet18-gn")):
        chosen = {c.method: c.settings.get("model.name") for c in EXPERIMENTS["figure1"](task)}
        assert chosen["dpsgd"] == model
        assert chosen["rrdu"] is None


SAME = ("figure1-rrdu-0", "table-rho-baseline-0", "table-l-baseline-0", "table-l-0.5-0")
"""Cells with one configuration: the preset's own L is 0.5."""


def same_cells():
    every = [c for cells in EXPERIMENTS.values() for c in cells("digits", 1)]
    return [c for c in every if c.name in (*SAME, "table-l-0.1-0")]


@pytest.mark.parametrize("engine", ["inprocess", "fleet"])
def test_cells_with_one_configuration_are_run_once(tmp_path, runs, engine):
    cells = same_cells()
    given = {**TINY, "performance.engine": engine}
    asked = study.Study("digits", "paper-matched", tuple(cells), given)
    parts = study.carry_out(asked, tmp_path / "parts")
    assert runs == ["figure1-rrdu-0", "table-l-0.1-0"]
    assert [(p["experiment"], p["row"]) for p in parts] == [(c.experiment, c.row) for c in cells]
    assert [p["settings"] for p in parts] == [dict(c.settings) for c in cells]
    by_name = {c.name: p for c, p in zip(cells, parts, strict=True)}
    assert {by_name[n]["run_as"] for n in SAME} == {"figure1-rrdu-0"}
    assert all(by_name[n]["series"] == by_name[SAME[0]]["series"] for n in SAME)
    assert by_name["table-l-0.1-0"]["sigma"] < by_name[SAME[0]]["sigma"]
    alone = [c for c in cells if c.name == "table-l-0.5-0"]
    asked = study.Study("digits", "paper-matched", tuple(alone), given)
    (part,) = study.carry_out(asked, tmp_path / "alone")
    assert runs[2:] == ["table-l-0.5-0"]
    assert part["final"] == by_name["table-l-0.5-0"]["final"]


def test_only_walks_whose_curve_is_shown_are_measured_on_the_way(tmp_path, runs):
    """A table shows the last measurement; a figure asked for later is not made from it."""
    cells = {c.name: c for c in same_cells()}
    asked = [cells["table-l-0.1-0"], cells["table-l-0.5-0"]]
    folder = tmp_path / "parts"
    tables = study.carry_out(study.Study("digits", "paper-matched", tuple(asked), TINY), folder)
    assert [[r["hop"] for r in part["series"]] for part in tables] == [[1, 2, 3, 6]] * 2
    both = study.Study("digits", "paper-matched", (cells["figure1-rrdu-0"], *asked), TINY)
    figure, *again = study.carry_out(both, folder)
    assert [r["hop"] for r in figure["series"]] == [1, 2, 3, 4, 5, 6]
    assert again == tables
    assert figure["final"] == tables[1]["final"]
    assert runs == ["table-l-0.1-0", "table-l-0.5-0", "figure1-rrdu-0"]


def test_a_finished_run_serves_cells_that_are_asked_for_later(tmp_path, runs):
    cells = same_cells()
    first = study.Study("digits", "paper-matched", tuple(cells[:1]), TINY)
    study.carry_out(first, tmp_path / "parts")
    whole = study.Study("digits", "paper-matched", tuple(cells), TINY)
    assert None in study.carry_out(whole, tmp_path / "parts", collect=True)
    study.carry_out(whole, tmp_path / "parts")
    assert runs == ["figure1-rrdu-0", "table-l-0.1-0"]
    assert len(parts_in(tmp_path)) == len(cells)


def test_a_finished_run_with_other_settings_serves_nobody_else(tmp_path, runs):
    cells = same_cells()[:2]
    first = study.Study("digits", "paper-matched", tuple(cells[:1]), {**TINY, "train.hops": 2})
    study.carry_out(first, tmp_path / "parts")
    whole = study.Study("digits", "paper-matched", tuple(cells), TINY)
    study.carry_out(whole, tmp_path / "parts")
    assert runs == [cell.name for cell in cells]
    hops = [part["train_hops"] for part in parts_in(tmp_path).values()]
    assert sorted(hops) == [2, 3]


def test_every_call_that_ran_something_says_how_long_it_took(tmp_path):
    tiny("table-delta", tmp_path)
    tiny("table-delta", tmp_path)
    tiny("table-delta", tmp_path, collect=True)
    ((name, record),) = times(tmp_path).items()
    assert name.startswith("timing-digits-paper-matched-")
    assert record["cells"] == ["table-delta-0.0001-0", "table-delta-1e-06-0"]
    assert 0 < record["seconds"] < 60
    assert record["jobs"] == 1
    assert "How long it took" in (tmp_path / "reproduction.html").read_text()


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_call_that_is_killed_leaves_its_time_as_far_as_it_got(tmp_path, jobs):
    settings = [f"--set={k}={v}" for k, v in {**TINY, "unlearn.hops": 300}.items()]
    asked = ["reproduce", "all", "--quick", "--out", str(tmp_path), "--jobs", str(jobs), *settings]
    began = time.perf_counter()
    process = start_unwalk(*asked, out=Path(os.devnull), before=os.setsid, parent=True)
    while not (known := times(tmp_path)):
        assert process.is_alive()
        assert time.perf_counter() - began < 120
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    (record,) = known.values()
    done = len(parts_in(tmp_path))
    every = sum(len(cells("digits", 1)) for cells in EXPERIMENTS.values())
    assert 1 <= len(record["cells"]) <= done < every
    assert 0 < record["seconds"] < time.perf_counter() - began


def test_committed_results_give_the_committed_page(tmp_path):
    kept, made = ROOT / "results", tmp_path / "results"
    shutil.copytree(kept, made, ignore=shutil.ignore_patterns("parts"))
    (made / "reproduction.html").unlink()
    assert reproduce("all", made, collect=True) == [
        made / "timing.json",
        made / "reproduction.html",
    ]
    for name in ("timing.json", "reproduction.html"):
        assert (made / name).read_text() == (kept / name).read_text(), f"{name} is out of date"
    assert not (made / "parts").exists()


def test_committed_results_name_the_version_of_their_streams():
    found = documents(ROOT / "results") | tried(ROOT / "results")
    assert len(found) == 21
    for name, document in found.items():
        assert document.get("settings", document)["streams"] in range(1, VERSION + 1), name


def test_parts_of_version_1_name_it_when_they_are_collected(tmp_path):
    """They were written before there was a version 2, and say nothing of streams."""
    old = {**TINY, "streams": 1}
    reproduce("table-delta", tmp_path, quick=True, settings=old)
    for path in (tmp_path / "parts").glob("digits-*.json"):
        part = json.loads(path.read_text())
        assert part["configuration"].pop("streams") == 1
        path.write_text(json.dumps(part))
    (tmp_path / "table-delta-digits.json").unlink()
    reproduce("table-delta", tmp_path, quick=True, settings=old, collect=True)
    assert documents(tmp_path)["table-delta-digits"]["settings"]["streams"] == 1


def test_collecting_where_nothing_is_says_so(tmp_path):
    (page,) = tiny("all", tmp_path / "new" / "folder", collect=True)
    assert "No result was given" in page.read_text()


def test_times_are_kept_when_parts_are_gone(tmp_path):
    tiny("table-delta", tmp_path)
    before = times(tmp_path)
    shutil.rmtree(tmp_path / "parts")
    page = (tmp_path / "reproduction.html").read_text()
    tiny("table-delta", tmp_path, collect=True)
    assert times(tmp_path) == before
    assert len(before) == 1
    assert (tmp_path / "reproduction.html").read_text() == page


def test_tuning_gives_every_method_as_many_settings_and_starts_with_the_presets():
    for task in (*TASKS, "digits"):
        listed = {c.name: c for c in FURTHER["tuning"](task)}
        assert len(listed) == 20
        for method in ("rrdu", "finetune", "dpsgd", "ddp"):
            mine = [c for c in listed.values() if c.method == method]
            assert len(mine) == 5
            asked = study.Study(task, "paper-matched", tuple(mine), {})
            kinds = {run_id(asked.config(c)) for c in mine}
            assert len(kinds) == 5
            headline = next(c for c in paper.figure_cells(task, 1) if c.method == method)
            assert dict(mine[0].settings) == dict(headline.settings)
            trained = {study._key(asked.config(c), study.TRAINING) for c in mine}
            assert len(trained) == 1


def test_tuning_and_precision_are_run_when_named_and_stand_on_the_page(tmp_path):
    short = {**TINY, "train.hops": 1, "unlearn.hops": 1, "train.work": "averaged"}
    for name in FURTHER:
        reproduce(name, tmp_path, quick=True, settings=short)
    assert not documents(tmp_path)
    found = tried(tmp_path)
    assert set(found) == {"tuning-digits", "precision-digits"}
    rows = found["tuning-digits"]["rows"]
    assert [r["method"] for r in rows if r["used"]] == ["rrdu", "finetune", "dpsgd", "ddp"]
    assert rows[0]["setting"] == "step size 0.005, L 0.5"
    assert rows[-1]["setting"] == "step size 0.005, ball of 10, noise on every gradient"
    pairs = [(r["method"], r["precision"]) for r in found["precision-digits"]["rows"]]
    assert pairs == [(m, p) for m in ("rrdu", "finetune", "retrain") for p in PATHS]
    page = (tmp_path / "reproduction.html").read_text()
    assert "Tuning</h2>" in page
    assert "Precision</h2>" in page


def test_tuning_of_a_task_without_a_grid_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="task is 'heart'"):
        reproduce("tuning", tmp_path, task="heart")


def test_words_of_a_setting_name_what_the_grid_changes():
    for task in TASKS:
        cells = FURTHER["tuning"](task)
        asked = study.Study(task, "paper-matched", tuple(cells), {})
        said = [(c.method, tuning.words(c.method, asked.config(c))) for c in cells]
        assert len(set(said)) == len(cells)
