"""``unwalk capacity``: what is measured, beside the formulas, on a few hops of digits."""

import csv
import json
from xml.etree import ElementTree

import pytest
import torch

import unwalk
from tests.conftest import ROOT
from unwalk.cli import main
from unwalk.core.errors import InvalidInput
from unwalk.privacy.capacity import CAPACITIES
from unwalk.privacy.nominal import PaperSetting
from unwalk.reports.capacity_page import largest, picture_of
from unwalk.runs import capacity as module
from unwalk.runs import grid
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.capacity import BASE, OWN, capacity
from unwalk.settings.config import Value

QUICK: dict[str, Value] = {
    "task": "digits-flat",
    "train.hops": 30,
    "unlearn.hops": 4,
    "seal.local_epochs": 0,
}


def make(usual, fixed):
    return resolve({**usual, **QUICK, **fixed})


def measured(axes=None, records=(1, 20), seeds=2, methods=("rrdu", "dpsgd"), gamma=0.1, **how):
    return capacity(make, axes or {}, records, gamma, seeds, methods, **how)


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as less:
        less.setattr(module, "VARIANCE_HOPS", 200)
        return measured(records=(20,), seeds=1)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "VARIANCE_HOPS", 60)


def test_the_excess_is_the_test_loss_less_that_of_retraining_with_the_same_seed():
    result = measured(records=(20,), methods=("seal",))
    ((count, mean, std),) = result["points"][0]["measured"][0]["excess"]
    apart = []
    for seed in (0, 1):
        settings = {**BASE, **QUICK, "forget.size": 20}
        name, preset = settings.pop("task"), settings.pop("preset")
        losses = []
        for method in ("seal", "retrain"):
            run = unwalk.run(name, method=method, preset=preset, seed=seed, settings=settings)
            task = assemble(run.config).task
            logits = run.model(task.test.x).detach()
            losses.append(float(torch.nn.functional.cross_entropy(logits, task.test.y)))
        apart.append(losses[0] - losses[1])
    assert count == 20
    assert mean == pytest.approx(sum(apart) / 2, rel=1e-5)
    assert std == pytest.approx(abs(apart[0] - apart[1]) / 2**0.5, rel=1e-4)


def test_formulas_stand_beside_what_was_measured(found):
    (point,) = found["points"]
    assert set(point["formulas"]) == set(CAPACITIES) == set(found["formulas"])
    assert point["at"]["records"] == 144
    assert point["at"]["dimension"] == 650
    by = {row["method"]: row for row in point["measured"]}
    assert by["dpsgd"]["grade"] == "rehearsal"
    assert by["rrdu"]["grade"] == "refused"
    for row in by.values():
        assert row["capacity"] == largest(row["excess"], 0.1)
    assert set(found["curves"]) == {"gamma", "epsilon", "peers", "records", "dimension"}


def test_u_s_noise_is_not_averaged_by_the_minibatches_of_others(found):
    beside = found["beside"]["variance"]
    for one in beside["measured"]:
        assert one > 3.0 * beside["nominal"]
        assert one == pytest.approx(beside["corrected"], rel=0.15)


def test_the_bias_of_lightweight_stays_below_its_bound(found):
    for one in found["beside"]["bias"]:
        assert 0.0 < max(one["measured"]) < one["corrected"]


def test_what_a_seal_adds_is_foreseen_by_its_plan():
    point = measured(records=(1, 2, 100), seeds=1, methods=("seal",))["points"][0]
    bounds = [bound for _, bound in point["predicted"]["seal"]["bound"]]
    # Noise in proportion to m, loss to its square.
    assert bounds == pytest.approx([bounds[0], 4.0 * bounds[0], 1e4 * bounds[0]])


def test_axes_are_varied_one_at_a_time_and_numbers_that_do_not_fit_are_left_out():
    axes = {"unlearn.epsilon": [10.0], "peers": [40]}
    points = measured(axes, records=(1, 100), seeds=1, methods=("dpsgd",))["points"]
    assert [point["settings"] for point in points] == [{}, {"unlearn.epsilon": 10.0}, {"peers": 40}]
    assert [point["at"]["records"] for point in points] == [144, 144, 36]
    assert [len(point["measured"][0]["excess"]) for point in points] == [2, 2, 1]


def test_a_method_that_fails_is_a_row_with_its_reason():
    def momentum(usual, fixed):
        return resolve({**usual, **QUICK, **fixed, "train.optimizer": "momentum"})

    point = capacity(momentum, {}, [1], 0.1, 1, ["seal", "dpsgd"])["points"][0]
    seal, dpsgd = point["measured"]
    assert seal["excess"] == []
    assert seal["capacity"] == 0
    assert "momentum" in seal["reason"]
    assert dpsgd["excess"]


def test_the_command_goes_on_and_writes_everything(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    words = [f"--set={key}={value}" for key, value in QUICK.items() if key != "task"]
    words += ["--methods", "rrdu,release", "--records", "1,20", "--seeds", "1", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["unwalk", "capacity", *words])

    def said():
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out

    first = said()
    assert "RR-DU, measured" in first
    assert "DDP, Theorem 3.5" in first
    result = json.loads((out / "capacity.json").read_text())
    assert result["records"] == [1, 20]
    ElementTree.fromstring((out / "capacity.svg").read_text())
    page = (out / "capacity.html").read_text()
    assert "Alignment bias, m = 20" in page
    rows = list(csv.DictReader((out / "capacity.csv").read_text().splitlines()))
    assert {row["kind"] for row in rows} == {"nominal", "corrected", "predicted", "measured"}
    monkeypatch.setattr(grid, "results_of", None)  # nothing is carried out again
    assert said() == first
    assert json.loads((out / "capacity.json").read_text()) == result


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"records": (5, 1)}, r"records are \[5, 1\]; allowed: whole numbers, each larger"),
        ({"records": (0, 1)}, "records is 0; allowed: a whole number, 1 or more"),
        ({"records": (500,)}, "forget.size is 500; peer 0 has 144 records"),
        ({"gamma": 0.0}, "gamma is 0.0"),
        ({"seeds": 0}, "seeds is 0"),
        ({"methods": ("sums",)}, "methods is 'sums'; allowed: ddp, dpsgd, release, rrdu, seal"),
        ({"methods": ()}, "methods is ''"),
        ({"axes": {"forget.size": [1]}}, "the grid varies 'forget.size'"),
        ({"axes": {"seed": [1]}}, "the grid varies 'seed'"),
    ],
)
def test_what_cannot_be_measured_is_refused(how, message):
    with pytest.raises(InvalidInput, match=message):
        measured(**how)


def test_a_task_of_longer_inputs_is_refused():
    def cnn(usual, fixed):
        return resolve({**usual, **QUICK, **fixed, "task": "digits", "model.name": "small-cnn"})

    with pytest.raises(InvalidInput, match="the task is 'digits'; allowed: one that predicts"):
        capacity(cnn, {}, [1], 0.1, 1, ["rrdu"])


def test_usual_settings_are_settings_of_every_method():
    for own in OWN.values():
        assert make({**BASE, **own}, {}).preset == "certified"


def test_the_results_are_what_their_formulas_and_excesses_say_and_the_docs_show_them():
    result = json.loads((ROOT / "results" / "capacity.json").read_text())
    for point in result["points"]:
        at = PaperSetting(**point["at"])
        for name, value in point["formulas"].items():
            assert value == pytest.approx(CAPACITIES[name].at(result["gamma"], at))
        for row in point["measured"]:
            assert row["capacity"] == largest(row["excess"], result["gamma"])
    assert (ROOT / "docs" / "capacity.svg").read_text() == picture_of(result)
    page = (ROOT / "docs" / "measures.md").read_text()
    told = {"RR-DU": "rrdu", "seal": "seal", "release": "release"}
    told |= {"DP training": "dpsgd", "DDP": "ddp"}
    by = {p["settings"].get("unlearn.epsilon", 1.0): p for p in result["points"][:5]}
    for label, name in told.items():
        rows = [next(r for r in by[e]["measured"] if r["method"] == name) for e in sorted(by)]
        cells = [f"{'≥ ' if r['capacity'] == 100 else ''}{r['capacity']}" for r in rows]
        assert f"| {label}, measured | {' | '.join(cells)} |" in page
