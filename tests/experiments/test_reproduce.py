"""The paper's experiments as lists of cells, carried out in parts."""

import json

import pytest

from unwalk.core.errors import InvalidInput
from unwalk.experiments import study
from unwalk.experiments.cells import TASKS
from unwalk.experiments.reproduce import EXPERIMENTS, documents, reproduce, summary

TINY = {
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


def tiny(which, out, **given):
    return reproduce(which, out, quick=True, settings=TINY, command="unwalk reproduce", **given)


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
    hops = [r["hop"] for r in found["figure1-digits"]["rows"] if r["method"] == "rrdu"]
    assert hops == [1, 2, 3, 4, 5, 6]
    assert "RR-DU" in (tmp_path / "reproduction.html").read_text()
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
    assert len(list((tmp_path / "parts").iterdir())) == 1
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
    part = json.loads(next((tmp_path / "parts").iterdir()).read_text())
    assert part["machine"]
    assert part["commit"]
    assert part["settings"]


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
    assert max(costs) - min(costs) <= 2 * max(study.COSTS.values())


def test_several_processes_give_the_same_parts(tmp_path):
    tiny("table-delta", tmp_path / "one")
    tiny("table-delta", tmp_path / "two", jobs=2)
    for part in (tmp_path / "one" / "parts").iterdir():
        one, two = (
            json.loads((tmp_path / name / "parts" / part.name).read_text())
            for name in ("one", "two")
        )
        assert one["series"] == two["series"]


def test_no_process_at_all_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="jobs is 0"):
        tiny("table-delta", tmp_path, jobs=0)


def test_dpsgd_gets_a_model_without_batch_normalisation():
    for task, model in (("mnist", "flnet-gn"), ("cifar10", "resnet18-gn")):
        chosen = {c.method: c.settings.get("model.name") for c in EXPERIMENTS["figure1"](task)}
        assert chosen["dpsgd"] == model
        assert chosen["rrdu"] is None
