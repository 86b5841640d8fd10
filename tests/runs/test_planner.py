"""The planner: what it lists is what happens, and it looks at nothing in the forgotten records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import unwalk
from tests.runs.small import BLOBS, options, small_run
from unwalk.cli import app
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.grades import badge_of
from unwalk.methods import METHODS
from unwalk.reports.plans import pick_line
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.planner import (
    GRADES,
    MORE,
    WAYS,
    Budget,
    Log,
    Offer,
    Planned,
    Planner,
    Rates,
    hops_after,
    preferred,
)
from unwalk.runs.run import run
from unwalk.settings.config import Value

SMALL: dict[str, Value] = {**BLOBS, "forget.size": 5, "seed": 6}
HEAD: dict[str, Value] = {"model.name": "linear", "data.extractor": "plain", "data.norm": 1.0}
CERTIFIED: dict[str, Value] = {
    **HEAD,
    "preset": "certified",
    "train.capacity": 80,
    "train.learning_rate": 1.0,
    "seal.local_epochs": 3,
}
TRAININGS: dict[str, dict[str, Value]] = {
    "as it is": {},
    "few batches": {"train.work": "averaged", "train.minibatches": 1, "train.batch": 4},
    "a head": HEAD,
    "sums": {**HEAD, "method": "sums"},
    "shards": {"train.shards": 2, "method": "sisa"},
    "slices": {"train.slices": 3},
    "certified": CERTIFIED,
    "noise from the start": {**CERTIFIED, "method": "noisy-start"},
}


def planner(**changes: Value) -> Planner:
    return Planner(assemble(resolve({**SMALL, **changes})))


def offers(planned: Planned) -> dict[str, Offer]:
    return {one.way: one for one in planned.offers}


def secret(folder: Path) -> dict[str, Value]:
    path = folder / "noise.secret"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return {"noise.source": "secret", "noise.secret_file": str(path)}


@pytest.mark.parametrize("training", TRAININGS)
def test_the_way_that_is_taken_does_and_costs_what_was_foreseen(training, tmp_path):
    config = resolve({**SMALL, "compare": [], **TRAININGS[training], **secret(tmp_path)})
    result = run(config, grade="certified").result
    plan = result["plan"]
    way = next(one for one in plan["ways"] if one["way"] == plan["best"])
    assert result["methods"][0]["name"] == way["method"]
    for key in ("hops", "bytes", "gradients", "grade"):
        assert plan["outcome"][key] == way[key], key
    assert badge_of(result["certificate"]["document"]) == way["grade"]
    expected = {"sums": "sums", "a head": "sums", "noise from the start": "noise from the start"}
    assert way["way"] == expected.get(training, way["way"])


@pytest.mark.parametrize("training", ["as it is", "shards", "certified"])
def test_every_way_can_be_gone_as_it_stands(training, tmp_path):
    found = planner(**TRAININGS[training], **secret(tmp_path))
    for offer in found.plan("certified").offers:
        if offer.possible:
            (tmp_path / "noise.secret.draws").unlink(missing_ok=True)
            result = run(replace(found.settled(offer), compare=[])).result
            cost = result["methods"][0]["cost"]
            assert (cost["hops"], cost["bytes"]) == (offer.hops, offer.bytes), offer.way
            assert badge_of(result["certificate"]["document"]) == offer.grade, offer.way


def task_of(seed: int, size: int, contents: int | None) -> unwalk.ShardedTask:
    """Records of four peers; with ``contents``, the forgotten ones hold something else."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(4), 20))
    x = rng.normal(size=(80, 6)).astype("float32")
    y = rng.integers(2, size=80)

    def made() -> unwalk.ShardedTask:
        return unwalk.from_arrays(
            x,
            y,
            test=(x[:10], y[:10]),
            groups=groups,
            classes=2,
            ids=np.arange(80),
            forget=unwalk.Deletion("records", size=size),
            unlearner=1,
            seed=seed,
            norm=1.0,
        )

    task = made()
    if contents is None:
        return task
    rows = np.asarray(task.ids(1))[task.records(1).forgotten].astype(int)
    other = np.random.default_rng(contents)
    x[rows] = other.normal(size=x[rows].shape) * 100.0
    y[rows] = other.integers(2, size=len(rows))
    again = made()
    assert (again.records(1).forgotten == task.records(1).forgotten).all()
    assert not torch.equal(again.shard(1).x, task.shard(1).x)
    return again


@settings(max_examples=6)
@given(
    seed=st.integers(0, 50),
    size=st.integers(1, 15),
    contents=st.integers(0, 1000),
    preset=st.sampled_from(["practical", "certified"]),
    grade=st.sampled_from(GRADES),
)
def test_the_plan_is_the_same_whatever_is_in_the_forgotten_records(
    seed, size, contents, preset, grade
):
    given: dict[str, Any] = {
        "grade": grade,
        "preset": preset,
        "seed": seed,
        "settings": {"train.hops": 12, "train.learning_rate": 0.5},
    }
    if preset == "certified":
        given["settings"] |= {"train.capacity": 20, "seal.local_epochs": 2}
    one, other = (unwalk.plan(task_of(seed, size, c), **given) for c in (None, contents))
    assert one.to_json() == other.to_json()


def drawn(found: Planned) -> None:
    assert found.best is None or found.best in found.offers
    if found.best is not None:
        assert found.best.reaches(found.grade)
        cost = found.rates.seconds(found.best)
        able = [one for one in found.offers if one.reaches(found.grade)]
        assert cost <= MORE * min(map(found.rates.seconds, able))
        as_strong = [one for one in able if one.grade == found.best.grade]
        assert cost == min(map(found.rates.seconds, as_strong))
    for one in found.offers:
        assert one.possible == (one.reason == "")


@settings(max_examples=25)
@given(
    training=st.sampled_from(sorted(TRAININGS)),
    grade=st.sampled_from(GRADES),
    hops=st.none() | st.integers(0, 8),
    size=st.integers(1, 12),
    seed=st.integers(0, 20),
    message=st.floats(0.0, 10.0),
    byte=st.floats(0.0, 1e-3),
)
def test_no_way_is_taken_whose_grade_is_lower_than_asked(
    training, grade, hops, size, seed, message, byte
):
    found = planner(**{**TRAININGS[training], "forget.size": size, "seed": seed})
    plan = found.plan(grade, Rates(message, byte), Budget(hops=hops))
    drawn(plan)
    if plan.best is not None:
        assert plan.best.grade in GRADES[: GRADES.index(grade) + 1]
        assert hops is None or plan.best.hops <= hops
        assert plan.config is not None
        assert plan.config.method == plan.best.method
    elif grade != "exact" or hops is not None:
        with pytest.raises(Refused):
            plan.chosen()


def test_a_rehearsal_reaches_no_grade():
    seal = offers(planner(**CERTIFIED).plan("certified"))["seal"]
    assert seal.grade == "rehearsal"
    assert not seal.reaches("certified")
    assert not seal.reaches("nominal")


def test_claims_alone_are_listed_only_where_they_are_asked_for():
    names = {way.name for way in WAYS}
    assert set(offers(planner().plan("certified"))) == names
    claimed = {METHODS[one.method].grade for one in planner().plan("nominal").offers} - {"exact"}
    assert claimed == {"certified", "nominal"}


def test_records_that_no_batch_drew_cost_nothing():
    few = {**TRAININGS["few batches"], "forget.size": 1, "train.hops": 3, "seed": 4}
    plan = planner(**few).plan("exact")
    assert plan.best is not None
    assert (plan.best.way, plan.best.hops, plan.best.bytes) == ("nothing to do", 0, 0)
    assert "nothing to do" in offers(plan)["first use"].reason


def test_first_use_is_later_than_first_contact():
    found = planner(**{**TRAININGS["few batches"], "train.hops": 30, "forget.size": 2, "seed": 2})
    plan = offers(found.plan("exact"))
    assert plan["first use"].possible
    assert 0 < plan["first use"].hops < plan["rewind"].hops


def test_a_way_that_needs_another_training_says_which():
    plan = offers(planner().plan("exact"))
    assert "--method noisy-start" in plan["noise from the start"].reason
    plan = offers(planner(**TRAININGS["sums"]).plan("exact"))
    assert "needs training by a walk of steps" in plan["rewind"].reason
    assert plan["restart"].possible
    assert plan["sums"].hops == 1


def test_training_may_be_chosen_only_before_it_happened(tmp_path):
    assert offers(planner(**HEAD).plan("exact"))["sums"].possible
    out = tmp_path / "run"
    small_run(**{k.replace(".", "__"): v for k, v in {**HEAD, "forget.size": 5}.items()}, out=out)
    found = offers(unwalk.plan(run_dir=out))
    assert "needs training by --method sums" in found["sums"].reason


def test_a_finished_run_gives_the_times_and_the_accuracies_of_models_before_the_records(tmp_path):
    out = tmp_path / "run"
    small_run(forget__size=5, forget__peer=3, train__hops=12, seed=1, out=out)
    found = unwalk.plan(run_dir=out)
    timing = [json.loads(line) for line in (out / "timing.jsonl").read_text().splitlines()]
    spent = sum(t["seconds"] for t in timing if t["walk"] == "rrdu" and t["hop"] <= 12)
    hops = [json.loads(line) for line in (out / "transcript.jsonl").read_text().splitlines()]
    counted = sum(hop.get("gradients", 0) for hop in hops if hop.get("phase") == "train")
    rewind = offers(found)["rewind"]
    visit = found.rates.visit
    gradient = max(0.0, (spent - 12 * visit) / counted)
    assert rewind.seconds == pytest.approx(rewind.hops * visit + rewind.gradients * gradient)
    result = json.loads((out / "result.json").read_text())
    series = [p for m in result["methods"] for p in m["series"] if p["phase"] == "train"]
    assert found.first_contact is not None
    free = [p["clean"] for p in series if p["hop"] < found.first_contact]
    own = next(m["series"] for m in result["methods"] if m["name"] == "retrain")
    told = {p["hop"]: p["clean"] for p in own}
    assert rewind.accuracy in (*free, *told.values())


def test_many_gradients_in_few_visits_cost_less_than_the_log_has_them_in_many():
    """The numbers of digits-flat on a fast network, where walking the rewind took twice as long."""
    log = Log([0.00147] * 60, [432] * 60)
    rates = log.measured(Rates(message=2e-4, byte=1e-9))
    seal = Offer("seal", "seal", {}, hops=11, messages=11, gradients=39_312)
    rewind = Offer("rewind", "rewind", {}, hops=43, messages=43, gradients=18_576)
    assert rates.seconds(seal) < rates.seconds(rewind)
    whole = Offer("restart", "restart", {}, hops=60, gradients=60 * 432)
    assert log.foretell(whole, rates).seconds == pytest.approx(60 * 0.00147)


@pytest.mark.parametrize(("messages", "way"), [(100, "rewind"), (105, "rewind"), (106, "RR-DU")])
def test_a_claim_is_not_taken_where_a_guarantee_costs_next_to_nothing_more(messages, way):
    claimed = Offer("RR-DU", "rrdu", {}, grade="nominal", messages=100)
    exact = Offer("rewind", "rewind", {}, grade="exact", messages=messages)
    later = replace(exact, way="restart")
    found = preferred([claimed, exact, later], Rates(message=1.0))
    assert found is not None
    assert found.way == way
    assert preferred([], Rates()) is None


def test_a_way_that_is_not_the_cheapest_is_not_called_so():
    claimed = Offer("RR-DU", "rrdu", {}, grade="nominal", messages=99)
    exact = Offer("rewind", "rewind", {}, grade="exact", messages=100)
    plan = replace(planner().plan("nominal"), offers=(claimed, exact), best=exact)
    assert pick_line(plan.to_json()).startswith("hardly dearer than RR-DU, and guarantees more: re")
    plan = replace(plan, grade="exact")
    assert pick_line(plan.to_json()).startswith("cheapest that reaches it: rewind.")


def test_a_log_without_gradients_leaves_the_rates_as_they_are():
    assert Log([0.5], [0]).measured(Rates()) == Rates()
    whole = Offer("sums", "sums", {}, hops=1)
    assert Log([0.5], [0]).foretell(whole, Rates()).seconds is None


def test_another_request_on_a_finished_run(tmp_path):
    out = tmp_path / "run"
    small_run(forget__size=5, out=out)
    found = unwalk.plan(run_dir=out, settings={"forget.peer": 2, "forget.size": 3})
    assert (found.peer, found.records) == (2, 3)
    with pytest.raises(InvalidInput, match=r"train\.hops is 7, but the run was trained with 6"):
        unwalk.plan(run_dir=out, settings={"train.hops": 7})


def test_a_backdoor_is_another_training(tmp_path):
    out = tmp_path / "run"
    settings: dict[str, Value] = {"train.hops": 3, "unlearn.hops": 2, "model.name": "mlp"}
    unwalk.run("digits", settings=settings, out=out)
    with pytest.raises(InvalidInput, match="planted before training"):
        unwalk.plan(run_dir=out, settings={"forget.size": 20})


def test_a_run_without_training_has_no_log_of_it(tmp_path):
    out = tmp_path / "run"
    small_run(method="retrain", forget__size=5, out=out)
    with pytest.raises(InvalidInput, match="whose log has no training"):
        unwalk.plan(run_dir=out)


def test_a_budget_that_nothing_keeps_to_says_what_the_cheapest_takes():
    plan = planner().plan("exact", budget=Budget(hops=0))
    reasons = [one.reason for one in plan.offers if one.hops]
    assert reasons
    assert all("the budget has 0" in reason for reason in reasons)
    with pytest.raises(Refused, match="within the budget; the cheapest, rewind, takes"):
        plan.chosen()


def test_nothing_to_forget_is_no_request():
    with pytest.raises(InvalidInput, match="nothing has to be forgotten"):
        planner(**{"forget.kind": "nothing", "forget.size": None}).plan("exact")


@pytest.mark.parametrize(("loss", "hops"), [(0.0, 4), (0.5, 14), (1.0, 20), (9.0, 20)])
def test_a_walk_after_noise_is_as_long_as_its_share_of_a_restart(loss, hops):
    assert hops_after(loss, 1.0, 20, 4) == hops


def test_the_command_lists_picks_and_writes_json():
    words = ["plan", *options(BLOBS), "--seed", "6", "--records", "5", "--at", "1"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "cheapest that reaches it: rewind" in shown.output
    assert "not seal:" in shown.output
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert (found["best"], found["peer"], found["records"]) == ("rewind", 1, 5)
    none = CliRunner().invoke(app, [*words, "--most-hops", "0"])
    assert none.exit_code == 3, none.output
    assert "no way reaches grade exact" in none.output


def test_the_command_refuses_rates_that_are_none():
    for rates, why in (("hop=1", "--rates is 'hop'"), ("byte=much", "allowed: NAME=SECONDS")):
        done = CliRunner().invoke(app, ["plan", "--rates", rates])
        assert isinstance(done.exception, InvalidInput)
        assert why in str(done.exception)


def test_a_grade_and_a_method_that_trains_like_any_other_contradict():
    done = CliRunner().invoke(app, ["run", "--grade", "exact", "--method", "finetune"])
    assert isinstance(done.exception, InvalidInput)
    assert "leave out --method" in str(done.exception)


def test_the_report_shows_how_the_way_was_chosen(tmp_path):
    out = tmp_path / "run"
    run(resolve({**SMALL, "compare": []}), grade="exact", out=out)
    page = (out / "report.html").read_text()
    assert "How the way was chosen" in page
    assert "What was predicted, and what came" in page
    repeated = resolve({}, unwalk.settings.config.read_written(out / "config.toml"))
    assert repeated.method == "rewind"
