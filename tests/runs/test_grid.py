"""Sweeps over settings: what points share is carried out once, and nothing changes by that."""

import csv
import io
import json

import pytest

import unwalk
from tests.runs.small import BLOBS, DIGITS, options, small, untimed
from unwalk.cli import main
from unwalk.core.errors import InvalidInput
from unwalk.reports.sweep_page import failed_lines, sweep_table
from unwalk.runs import sharing
from unwalk.runs.compare import compare, results_of
from unwalk.runs.grid import points_of, sweep_grid
from unwalk.runs.run import carry, silent
from unwalk.runs.sharing import Memory

METHODS = {"method": "rrdu", "compare": ["finetune", "sisa", "seal", "retrain"]}
POINTS = points_of({"unlearn.p": ["0.1", "0.5"], "unlearn.learning_rate": ["0.01", "0.05"]})


def configured(point):
    return small(**METHODS, **{key.replace(".", "__"): value for key, value in point.items()})


def swept(points=POINTS, **how):
    return sweep_grid(points, configured, 2, **how)


@pytest.fixture
def carried(monkeypatch):
    """The names of the walks that are carried out."""
    names: list[str] = []

    def counted(begun, engine):
        names.extend(one.watch.name for one in begun)
        return carry(begun, engine)

    monkeypatch.setattr(sharing, "carry", counted)
    return names


def test_what_points_share_is_carried_out_once(carried):
    swept()
    assert [carried.count(name) for name in ("train", "retrain", "finetune", "rrdu")] == [
        2,
        2,
        4,
        8,
    ]


@pytest.mark.parametrize(
    "changes",
    [
        [{"unlearn__p": 0.1}, {"unlearn__p": 0.5}],
        [{"unlearn__epsilon": 1.0}, {"unlearn__epsilon": 2.0}],
        [{"train__hops": 6}, {"train__hops": 4}],
        [{"unlearn__hops": 6}, {"unlearn__hops": 4}],
        [{"forget__size": 20}, {"forget__size": 10}],
        [{"graph__kind": "ring"}, {"graph__kind": "complete"}],
        [{"evaluate__every": 3}, {"evaluate__every": 2}],
        [{"seed": 0}, {"seed": 1}],
    ],
    ids=lambda changes: next(iter(changes[0])),
)
def test_a_point_in_a_sweep_is_the_run_that_it_would_be_alone(changes):
    """To the bit, with transcript and certificate, whatever was carried out before."""
    methods = {"method": "restart", "compare": ["rrdu", "rewind", "finetune", "retrain"]}
    configs = [small(**methods, **one) for one in changes]
    memory = Memory()
    for config in configs:
        (shared,) = results_of([(config, None, "", silent)], memory)
        (alone,) = compare(config, 1).runs
        assert untimed(shared) == untimed(alone)


def test_the_rows_are_those_of_comparisons():
    result = swept()
    for point in POINTS:
        compared = compare(configured(point), 2)
        for row in result["rows"]:
            if row["name"] == "before" or configured(point) not in map(configured, row["settings"]):
                continue
            for key in ("clean", "forget", "gap.clean", "cost.gradients"):
                if key in row["mean"]:
                    assert row["mean"][key] == compared.mean(row["name"], key)
                    assert row["std"][key] == compared.std(row["name"], key)
    ran = {name: sum(row["name"] == name for row in result["rows"]) for name in ("rrdu", "retrain")}
    assert ran == {"rrdu": 4, "retrain": 1}, "a row for each walk, not for each point"
    assert all(len(row["settings"]) in (1, 2, 4) for row in result["rows"])


def test_what_fails_is_a_row_with_its_reason(tmp_path):
    result = swept(out=tmp_path / "out")
    (sisa, _) = result["failed"]
    assert (sisa["name"], len(sisa["settings"]), sisa["seeds"]) == ("sisa", 4, [0, 1])
    assert sisa["reason"].startswith("sisa needs train.shards")
    assert failed_lines(result)[0].startswith("shards and slices failed with unlearn.p any")
    titles = [str(cell) for cell in sweep_table(result).columns[0].cells]
    assert titles.index("Fine-tuning") < titles.index("Shards and slices")
    assert json.loads((tmp_path / "out" / "sweep.json").read_text()) == result
    page = (tmp_path / "out" / "sweep.html").read_text()
    assert "Sisa needs train.shards" in page
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "sweep.csv").read_text())))
    one = next(r for r in rows if r["name"] == "finetune" and r["unlearn.p"] == "0.5")
    assert float(one["clean mean"]) == pytest.approx(
        next(r for r in result["rows"] if r["name"] == "finetune")["mean"]["clean"]
    )
    assert sum(r["name"] == "sisa" and "train.shards" in r["reason"] for r in rows) == 4


def test_a_point_that_cannot_be_run_is_a_row_too():
    result = swept([{"peers": 4}, {"peers": 10**6}, {"forget.size": 10**6}][:1])
    assert {row["name"] for row in result["failed"]} == {"sisa", "seal"}
    points = [{"forget.size": 10}, {"forget.size": 10**6}]
    result = swept(points)
    (whole,) = (row for row in result["failed"] if row["name"] == "")
    assert whole["settings"] == [{"forget.size": 10**6}]
    assert "forget.size is 1000000" in whole["reason"]
    with pytest.raises(InvalidInput, match=r"forget\.size is 1000000"):
        swept(points[1:])


def test_a_stopped_sweep_goes_on_and_a_grid_can_grow(tmp_path, carried, monkeypatch):
    out = tmp_path / "out"
    whole = swept()
    carried.clear()

    def stopped(*given, **how):
        raise KeyboardInterrupt

    with monkeypatch.context() as once:
        once.setattr("unwalk.runs.grid._document", stopped)
        with pytest.raises(KeyboardInterrupt):
            swept(POINTS[:3], out=out)
    assert carried.count("rrdu") == 6
    result = swept(out=out, resume=True)
    assert carried.count("rrdu") == 6 + 2
    assert untimed(result["rows"]) == untimed(whole["rows"])


@pytest.mark.soak
def test_several_processes_give_the_same_rows():
    rows = [untimed(swept(jobs=jobs)["rows"]) for jobs in (1, 2, 4)]
    assert rows[0] == rows[1]
    assert rows[0] == rows[2], "what lies in two cells is carried out in both, and is one row"


def test_points_that_a_fleet_carries_together_agree():
    grid = {"unlearn.p": [0.1, 0.5]}
    own = {key: value for key, value in DIGITS.items() if key != "task"}
    fleet, one = (
        unwalk.sweep(
            "digits",
            grid=grid,
            methods=["rrdu"],
            seeds=1,
            settings=own | {"performance.engine": by},
        )
        for by in ("fleet", "inprocess")
    )
    for a, b in zip(fleet["rows"], one["rows"], strict=True):
        assert a["settings"] == b["settings"]
        assert a["mean"]["clean"] == pytest.approx(b["mean"]["clean"], abs=0.01)


def test_the_command_prints_one_table(tmp_path, monkeypatch, capsys):
    words = [*options(BLOBS), "--grid", "unlearn.p=0.1,0.5", "--methods", "rrdu,sisa,retrain"]
    monkeypatch.setattr("sys.argv", ["unwalk", "sweep", *words, "--seeds", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    said = capsys.readouterr().out
    assert [said.count(f"unlearn.p {p}") for p in ("0.1", "0.5", "any")] == [1, 1, 4]
    assert "shards and slices failed with unlearn.p any: sisa needs train.shards" in said
    assert "add --out DIR" in said


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({}, "the grid is empty"),
        ({"method": ["rrdu"]}, "the grid varies 'method'"),
        ({"unlearn.p": []}, r"values of unlearn\.p are none"),
        ({"unlearn.p": [0.1, 0.1]}, r"values of unlearn\.p are 0\.1, 0\.1"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(grid, said):
    with pytest.raises(InvalidInput, match=said):
        points_of(grid)
