"""Private baselines and the variants of the paper's tables, from settings to result."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.runs.small import BLOBS, DIGITS, small, small_run
from unwalk import walks
from unwalk.certificates import claims_of
from unwalk.core.errors import InvalidInput
from unwalk.core.events import GaussianNoise, GradientSteps, Projection, Start, Wipe
from unwalk.core.program import Ball
from unwalk.core.transcript import Transcript
from unwalk.methods.ddp import DDP, SIGMA_RULES
from unwalk.methods.dpsgd import DPSGD
from unwalk.methods.private import READINGS
from unwalk.runs.assemble import assemble

PRIVATE = ("ddp", "dpsgd")


def with_batchnorm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )


def events(result, kind, phase="unlearn"):
    return [e for h, e in result.transcript.events() if h.phase == phase and isinstance(e, kind)]


def entry(result, name):
    return next(m for m in result.result["methods"] if m["name"] == name)


@pytest.mark.parametrize("base", [BLOBS, DIGITS], ids=["blobs", "digits"])
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("method", PRIVATE)
def test_every_baseline_runs_in_both_readings(method, reading, base):
    result = small_run({**base, f"{method}.reading": reading}, method=method, compare=["retrain"])
    hops = 6 if reading == "from-start" else 12
    assert [r["hop"] for r in entry(result, method)["series"]][-1] == hops
    assert len(result.transcript.hops) == hops
    assert all(torch.isfinite(p).all() for p in result.model.parameters())


@pytest.mark.parametrize("method", PRIVATE)
def test_continued_goes_on_from_the_trained_model_without_the_forgotten(method):
    result = small_run(method=method, compare=["finetune"])
    (start,) = events(result, Start)
    assert (start.start, start.carries_forgotten) == ("token", True)
    assert not any(e.noise for e in events(result, GradientSteps, "train"))
    steps = events(result, GradientSteps)
    assert {e.data for e in steps} == {"retained"}
    assert all(e.noise > 0 and e.origin == "simulation" for e in steps)
    assert entry(result, method)["series"][:2] == entry(result, "finetune")["series"][:2]
    assert entry(result, method)["cost"]["hops"] == 6


@pytest.mark.parametrize("method", PRIVATE)
def test_from_the_start_every_training_step_is_noised_and_a_request_costs_nothing(method):
    result = small_run({**BLOBS, f"{method}.reading": "from-start"}, method=method, compare=[])
    (start,) = events(result, Start, "train")
    assert (start.start, start.carries_forgotten) == ("initial", False)
    steps = events(result, GradientSteps, "train")
    assert {e.data for e in steps} == {"all"}
    assert all(e.noise > 0 for e in steps)
    assert result.transcript.header["phases"][1]["hops"] == 0
    cost = entry(result, method)["cost"]
    assert cost["hops"] == cost["bytes"] == cost["gradients"] == cost["seconds"] == 0
    assert "training time" in result.result["claims"][0]["reason"]


@pytest.mark.parametrize("rule", SIGMA_RULES)
def test_claims_of_ddp_are_nominal_and_name_the_formula(rule):
    named = {"alg2": "Algorithm 2", "table2": "Table 2", "lemma": "view lemma"}
    result = small_run(method="ddp", compare=[], ddp__sigma_rule=rule)
    nominal, refused = result.result["claims"]
    assert (nominal["grade"], nominal["epsilon"], nominal["delta"]) == ("nominal", 1.0, 1e-5)
    assert named[rule] in nominal["reason"]
    assert "no proof covers this run" in nominal["reason"]
    assert (refused["grade"], refused["epsilon"]) == ("refused", None)
    assert "no noise was added since" in refused["reason"]


def test_claims_of_dpsgd_say_for_how_many_records_and_with_which_sampling():
    result = small_run(method="dpsgd", compare=[], dpsgd__reading="from-start", forget__size=9)
    nominal, refused = result.result["claims"]
    assert nominal["grade"] == "nominal"
    assert nominal["accountant"] == "rdp"
    assert "for one record (not 9 at once), 4 steps" in nominal["reason"]
    assert "Poisson" in nominal["reason"]
    assert "not Poisson samples" in refused["reason"]


@pytest.mark.parametrize("off", [{"ddp__sigma": 0.0}, {"ddp__sigma": 3.0}])
def test_a_scale_of_ones_own_has_no_formula_and_no_claim(off):
    result = small_run(method="ddp", compare=[], **off)
    assert [c["grade"] for c in result.result["claims"]] == ["refused"]
    assert {e.noise for e in events(result, GradientSteps)} == {off["ddp__sigma"]}


@pytest.mark.parametrize(("means", "radius"), [("diameter", 5.0), ("radius", 10.0)])
def test_ddp_projects_on_the_ball_its_settings_name(means, radius):
    result = small_run(method="ddp", compare=[], ddp__radius_means=means)
    projections = events(result, Projection)
    assert {p.balls for p in projections} == {(("origin", radius),)}
    assert len(projections) == len(events(result, GradientSteps)) + 1
    norm = float(torch.cat([p.reshape(-1) for p in result.model.parameters()]).detach().norm())
    assert norm <= radius * (1 + 1e-5)


def test_settings_reach_the_methods():
    ddp = assemble(small(ddp__work="full", ddp__clip=2.0, ddp__sigma=7.0)).unlearning("ddp")
    method = ddp.phases[-1].method
    assert isinstance(method, DDP)
    assert isinstance(ddp.phases[-1].route, walks.UniformPeer)
    descent = method.descent
    assert (descent.work.kind, descent.clip, descent.noise) == ("full", 2.0, 7.0)
    assert (descent.rule.optimizer, descent.feasible) == ("sgd", Ball("origin", 5.0))
    plan = assemble(small(dpsgd__clip=3.0, dpsgd__noise_multiplier=0.5)).unlearning("dpsgd")
    private = plan.phases[-1].method
    assert isinstance(private, DPSGD)
    assert isinstance(plan.phases[-1].route, walks.Uniform)
    assert (private.multiplier, private.descent.clip_per_example) == (0.5, 3.0)
    assert private.descent.rule.optimizer == "momentum"
    same = assemble(small(ddp__optimizer="same", ddp__radius=None)).unlearning("ddp")
    again = same.phases[-1].method
    assert isinstance(again, DDP)
    assert (again.descent.rule.optimizer, again.descent.feasible) == ("momentum", None)


def test_plain_steps_wipe_the_moments_they_do_not_use():
    plain = small_run(method="ddp", compare=[])
    assert Wipe("optimizer") in events(plain, Wipe)
    assert not plain.walks["ddp"].outcome.token.moments
    same = small_run(method="ddp", compare=[], ddp__optimizer="same")
    assert not events(same, Wipe)
    assert same.walks["ddp"].outcome.token.moments


def test_batchnorm_is_refused_before_anything_runs(tmp_path):
    name = f"{__name__}:with_batchnorm"
    with pytest.raises(InvalidInput, match=r"BatchNorm2d.*flnet-gn or resnet18-gn"):
        small_run({**DIGITS, "model.name": name}, method="dpsgd", out=tmp_path / "out")
    assert not list(tmp_path.iterdir())
    small_run({**DIGITS, "model.name": name}, method="ddp", compare=[])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ddp.sigma_rule": "alg3"}, "ddp.sigma_rule is 'alg3'"),
        ({"ddp.reading": "later"}, "ddp.reading is 'later'"),
        ({"ddp.radius_means": "width"}, "ddp.radius_means is 'width'"),
        ({"ddp.radius": 0.0}, "ddp.radius is 0.0"),
        ({"ddp.clip": -1.0}, "ddp.clip is -1.0"),
        ({"dpsgd.clip": 0.0}, "dpsgd.clip is 0.0"),
        ({"dpsgd.noise_multiplier": -1.0}, "dpsgd.noise_multiplier is -1.0"),
        ({"dpsgd.work": "epoch"}, "did you mean epochs"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(InvalidInput, match=message):
        small({**BLOBS, **changes})


def test_continuous_unlearning_stays_at_the_forgetting_peer():
    result = small_run(compare=[], unlearn__p=1.0, unlearn__direction="forget")
    hops = [h for h in result.transcript.hops if h.phase == "unlearn"]
    assert {h.receiver for h in hops} == {0}
    assert {e.data for e in events(result, GradientSteps)} == {"forgotten"}
    assert entry(result, "rrdu")["cost"]["visits_to_unlearner"] == 6


def test_without_noise_and_projection_neither_happens():
    base = {**BLOBS, "unlearn.p": 0.5, "unlearn.clip": 0.5, "unlearn.direction": "forget"}
    both = small_run(base, compare=[], unlearn__calibration="paper", unlearn__trust_radius=1.0)
    assert events(both, GaussianNoise)
    assert events(both, Projection)
    bare = small_run(base, compare=[], unlearn__calibration="none", unlearn__trust_radius=None)
    assert not events(bare, GaussianNoise)
    assert not events(bare, Projection)
    assert [c["grade"] for c in bare.result["claims"]] == ["refused"]


@pytest.mark.parametrize("every", [4, 5, 100])
def test_scratch_is_measured_at_training_length_and_at_the_end(every):
    result = small_run(method="rrdu", compare=["retrain"], evaluate__every=every)
    scratch = entry(result, "retrain")
    by_hop = {r["hop"]: r for r in scratch["series"]}
    assert {6, 12} <= set(by_hop)
    assert scratch["final_at_train_hops"] == {k: by_hop[6][k] for k in scratch["final"]}
    assert scratch["final"] == {k: by_hop[12][k] for k in scratch["final"]}
    assert "final_at_train_hops" not in entry(result, "rrdu")


@pytest.mark.parametrize("method", ["ddp", "dpsgd"])
def test_a_number_that_its_formula_does_not_give_is_refused(method):
    settings = {**BLOBS, "unlearn.hops": 3, "model.name": "logistic"}
    made = small_run(settings, method=method, compare=[]).transcript
    said = made.header["nominal"][0]
    (claim, _) = claims_of(made)
    assert claim["grade"] == "nominal"
    wrong = [
        {**said, "epsilon": 0.5},
        {**said, "sigma": said["sigma"] * 2},
        {**said, "formula": "x"},
    ]
    for other in wrong:
        forged = Transcript({**made.header, "nominal": [other]})
        for hop in made.hops:
            forged.add(hop)
        (claim, _) = claims_of(forged)
        assert (claim["grade"], claim["epsilon"]) == ("refused", None)
    quiet = Transcript(made.header)
    for hop in made.hops:
        quieter = [
            replace(e, noise=e.noise / 2) if isinstance(e, GradientSteps) else e for e in hop.events
        ]
        quiet.add(replace(hop, events=tuple(quieter)))
    (claim, _) = claims_of(quiet)
    assert claim["grade"] == "refused"
