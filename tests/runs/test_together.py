"""Several seeds in one fleet give what they give one after the other."""

import json

import pytest

from tests.runs.small import DIGITS, small
from unwalk.core.errors import Diverged, InvalidInput
from unwalk.runs import compare as comparing
from unwalk.runs.compare import compare
from unwalk.runs.run import train
from unwalk.runs.sweep import keep

METHODS = {"method": "rrdu", "compare": ["finetune", "retrain"]}


def compared(engine, seeds=3, **options):
    return compare(small(DIGITS, **METHODS, performance__engine=engine), seeds, **options)


@pytest.fixture(scope="module")
def both():
    return [compared(engine) for engine in ("inprocess", "fleet")]


def test_readings_agree(both):
    alone, together = both
    assert [r["seed"] for r in together.runs] == [0, 1, 2]
    for mine, theirs in zip(together.runs, alone.runs, strict=True):
        for method, other in zip(mine["methods"], theirs["methods"], strict=True):
            assert method["name"] == other["name"]
            for reading, expected in zip(method["series"], other["series"], strict=True):
                assert reading == pytest.approx(expected, abs=0.01)
            assert method["final"] == pytest.approx(other["final"], abs=0.01)
    assert together.mean("rrdu", "clean") == pytest.approx(alone.mean("rrdu", "clean"), abs=5e-3)


def test_walks_and_costs_are_the_same(both):
    for mine, theirs in zip(*[one.runs for one in reversed(both)], strict=True):
        assert mine["walk"] == theirs["walk"]
        assert [c["grade"] for c in mine["claims"]] == [c["grade"] for c in theirs["claims"]]
        for method, other in zip(mine["methods"], theirs["methods"], strict=True):
            costs = [dict(m["cost"]) for m in (method, other)]
            assert all(cost.pop("seconds") > 0 for cost in costs)
            assert costs[0] == costs[1]
        for sample, other in zip(mine["samples"], theirs["samples"], strict=True):
            assert sample["before"]["confidence"] == pytest.approx(
                other["before"]["confidence"], abs=1e-3
            )


def test_seeds_are_different_walks(both):
    walks = [json.dumps(run["walk"]) for run in both[1].runs]
    assert len(set(walks)) == 3


def test_finished_seeds_are_not_run_again(tmp_path, monkeypatch, both):
    place = tmp_path / "out"
    results = comparing.results_of

    def stopped(folder, name, result):
        keep(folder, name, result)
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "keep", stopped)
    with pytest.raises(KeyboardInterrupt):
        compared("fleet", out=place)
    monkeypatch.setattr(comparing, "keep", keep)
    asked: list[int] = []

    def rest(seeds, memory):
        asked.extend(config.seed for config, *_ in seeds)
        return results(seeds, memory)

    monkeypatch.setattr(comparing, "results_of", rest)
    found = compared("fleet", out=place, resume=True)
    assert asked == [1, 2]
    assert found.mean("finetune", "clean") == pytest.approx(
        both[0].mean("finetune", "clean"), abs=5e-3
    )


def test_a_method_that_fails_in_a_fleet_leaves_the_others_to_it():
    settings = {"train__optimizer": "momentum", "performance__engine": "fleet"}
    found = compare(small(DIGITS, method="seal", compare=["finetune"], **settings), 2)
    assert [m["name"] for m in found.result["methods"]] == ["finetune"]
    (failed,) = found.result["failed"]
    assert (failed["name"], failed["seeds"]) == ("seal", [0, 1])
    assert found.result["seeds"]["runs"] == 2


def test_a_seed_that_diverges_in_a_fleet_is_named_and_the_others_are_run(monkeypatch):
    def diverging(runners, engine, carry):
        if any(r.config.seed == 1 for r in runners):
            raise Diverged("a step gave NaN.")
        return train(runners, engine, carry)

    monkeypatch.setattr(comparing, "train", diverging)
    found = compared("fleet")
    assert [r["seed"] for r in found.runs] == [0, 2]
    (failed,) = found.result["failed"]
    assert (failed["label"], failed["seeds"]) == ("every method", [1])
    assert failed["reason"] == "a step gave NaN."


def test_an_engine_that_is_not_there_is_refused():
    with pytest.raises(InvalidInput, match=r"performance.engine is 'flet' .*allowed: auto"):
        small(DIGITS, performance__engine="flet")
