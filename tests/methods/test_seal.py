"""The ledger bounds what training really does, and a sealed run is certified end to end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.runs.small import BLOBS, small, small_run
from unwalk import walks
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.events import GaussianNoise, GradientSteps
from unwalk.core.noise import SimulatedNoise
from unwalk.core.plan import Phase, Plan
from unwalk.core.program import (
    AddNoise,
    Ball,
    Forget,
    Project,
    Records,
    StepRule,
    Steps,
    Visit,
)
from unwalk.core.seeds import PublicSeeds
from unwalk.engines.fleet import Fleet
from unwalk.engines.inprocess import InProcess
from unwalk.methods.network_sgd import Descent, LocalWork, NetworkSGD
from unwalk.methods.retrain import Retrain
from unwalk.methods.rrdu import Correction
from unwalk.methods.seal import LedgerSeal
from unwalk.privacy.stability import ledger_before
from unwalk.runs.assemble import assemble
from unwalk.tasks import build_task
from unwalk.tasks.forgetting import Deletion

FLAT: dict[str, Any] = {
    "preset": "certified",
    "task": "digits-flat",
    "peers": 4,
    "train.hops": 10,
    "unlearn.hops": 4,
    "evaluate.every": 2,
}


def events(result, kind, phase="unlearn"):
    found = [e for h in result.transcript.hops if h.phase == phase for e in h.events]
    return [e for e in found if isinstance(e, kind)]


@pytest.mark.parametrize("engine", [InProcess(), Fleet()], ids=["inprocess", "fleet"])
@pytest.mark.parametrize(("slots", "epochs"), [(1, 2), (3, 1)])
def test_training_never_leaves_the_ledger(engine, slots, epochs):
    """The same walk with and without the records: their distance stays below the bound."""
    task = build_task(
        "digits-flat",
        peers=4,
        forget=Deletion("records", size=5),
        dtype=torch.float64,
    )
    work = LocalWork("slots", epochs=epochs, slots=slots, capacity=400)
    rule = StepRule("sgd", learning_rate=3.5, weight_decay=0.01)
    seen: dict[str, list[Any]] = {}
    facts = {
        "forget": 5,
        "loss": "softmax",
        "feature_norm": 1.0,
        "inputs": 65,
        "outputs": 10,
        "initial_norm": 0.0,
        "batching": "slots",
        "slots": slots,
        "nominal_batch": work.nominal_batch,
        "slot_cap": work.nominal_batch,
        "normalisation": "published",
        "iterate": "last",
        "precision": "float64",
    }

    class Keep:
        def __init__(self, name: str) -> None:
            self.iterates = seen.setdefault(name, [])

        def after(self, index: int, progress: Any, look: Any) -> None:
            self.iterates.append(progress.token.parameters.clone())

    outcome = None
    for method in (NetworkSGD(Descent(rule, work)), Retrain(Descent(rule, work))):
        phase = Phase("train", method, walks.Uniform(), 12)
        made = Plan(
            "test", task, walks.complete(4), (phase,), PublicSeeds(3), SimulatedNoise(0), 0, facts
        )
        (outcome_of,) = engine.run([made], Keep(method.name))
        outcome = outcome or outcome_of
    assert outcome is not None
    distances = [
        float((a - b).norm()) for a, b in zip(seen["network-sgd"], seen["retrain"], strict=True)
    ]
    bounds = [ledger_before(outcome.transcript, hop + 2).distance for hop in range(12)]
    assert all(d <= b for d, b in zip(distances, bounds, strict=True))
    assert max(d / b for d, b in zip(distances, bounds, strict=True) if b) > 0.05


def test_what_u_does_before_anything_leaves():
    work = LocalWork("slots", slots=2, capacity=8)
    seal = LedgerSeal(Descent(StepRule(), work), std=0.3, local_epochs=3)
    visit = Visit(1, 1, 0, True, Records(8, np.array([1])), np.random.default_rng(0))
    program = seal.visit(visit)
    kinds = [type(op) for op in program]
    assert kinds == [Forget, Forget, Steps, AddNoise, Steps]
    before, noise = program[2], program[3]
    assert isinstance(before, Steps)
    assert before.batches.shape[0] == 6
    assert isinstance(noise, AddNoise)
    assert noise.std == 0.3
    assert not any(1 in op.batches for op in program if isinstance(op, Steps))
    later = seal.visit(replace(visit, phase_hop=2, earlier_in_phase=1))
    assert [type(op) for op in later] == [Steps]
    reached = replace(seal, reach=7.0).visit(visit)
    assert [type(op) for op in reached] == [Forget, Forget, Steps, AddNoise, Project, Steps]
    assert Project((Ball("origin", 7.0),)) in reached


def test_lightweight_steps_end_in_a_ball_round_the_model_that_came():
    work = LocalWork("epochs", batch=2)
    correction = Correction("forget", work, StepRule(learning_rate=0.5), clip=0.25)
    seal = LedgerSeal(Descent(StepRule(), work), 0.3, later=correction, later_std=0.2)
    records = Records(8, np.array([1, 4]))
    visit = Visit(2, 2, 0, True, records, np.random.default_rng(0), earlier_in_phase=1)
    steps, project, noise = seal.visit(visit)
    assert isinstance(steps, Steps)
    assert steps.data == "forgotten"
    assert project == Project((Ball("arrival", 0.125),))
    assert noise == AddNoise(0.2, 0.125)
    mixed = replace(seal, later=replace(correction, direction="corrected"))
    _, project, noise = mixed.visit(visit)
    assert isinstance(noise, AddNoise)
    assert noise.sensitivity is not None
    assert project == Project((Ball("arrival", noise.sensitivity / 2.0),))


@pytest.mark.parametrize("size", [1, 10])
def test_a_sealed_run_is_certified_for_what_was_asked(size):
    result = small_run(FLAT, compare=[], forget__size=size)
    (claim,) = result.result["claims"]
    assert (claim["grade"], claim["accountant"], claim["delta"]) == ("certified", "ledger", 1e-5)
    assert claim["epsilon"] == pytest.approx(1.0, rel=1e-9)
    assert claim["epsilon"] <= 1.0
    assert result.transcript.hops[10].receiver == 0
    (noise,) = events(result, GaussianNoise)
    assert noise.std > 0.0
    assert not any(e.touched for e in events(result, GradientSteps))


def test_a_cap_hides_the_number_of_records():
    given = {**FLAT, "train.capacity": 400}
    few = small_run(given, compare=[], forget__size=2, forget__cap=9)
    many = small_run(given, compare=[], forget__size=9, forget__cap=9)
    assert few.transcript.header["forget"] == many.transcript.header["forget"] == 9
    assert events(few, GaussianNoise)[0].std == events(many, GaussianNoise)[0].std
    logs = [[(h.gradients, h.nbytes, h.events) for h in r.transcript.hops] for r in (few, many)]
    assert logs[0] == logs[1]
    with pytest.raises(InvalidInput, match=r"seal\.visits is 2"):
        small_run(given, forget__size=2, forget__cap=9, seal__visits=2)
    with pytest.raises(InvalidInput, match=r"forget\.cap is 3"):
        small_run(given, forget__size=9, forget__cap=3)
    published = small_run(FLAT, compare=[], forget__size=2, forget__cap=9)
    assert published.transcript.header["nominal_batch"] == 360  # a quarter of 1,438 in one slot


def test_lightweight_visits_afterwards_are_accounted():
    changes: dict[str, Any] = {
        "seal.visits": 3,
        "unlearn.p": 0.7,
        "unlearn.hops": 12,
        "unlearn.clip": 0.5,
    }
    result = small_run({**FLAT, **changes}, compare=[], forget__size=3)
    (claim,) = result.result["claims"]
    touched = [e for e in events(result, GradientSteps) if e.touched]
    assert {e.data for e in touched} == {"forgotten"}
    assert len(touched) == 3
    assert claim["grade"] == "certified"
    assert "3 visits after it" in claim["reason"]
    assert claim["epsilon"] == pytest.approx(1.0, rel=1e-9)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Adam": ({"train.optimizer": "adam"}, "a moment of adam"),
    "momentum": ({"train.optimizer": "momentum"}, "a moment of momentum"),
    "clipping": ({"train.clip": 1.0}, "clipping breaks the convexity"),
    "other batches": ({"train.work": "epochs"}, "keyed slots"),
    "other batches before the noise": (
        {"unlearn.work": "full", "seal.local_epochs": 3},
        "keyed slots",
    ),
    "a step too long": ({"train.learning_rate": 9.0}, "may expand"),
    "a network": ({"model.name": "mlp"}, "loss 'of a model with layer ReLU'"),
    "32 bits": ({"model.precision": "float32"}, "precision 'float32'"),
    "unbounded inputs": ({"task": "blobs"}, "does not record 'feature_norm'"),
    "an average of iterates": ({"train.keep": "average"}, "iterate 'average'"),
    "a layer that only looks linear": (
        {"model.name": "tests.methods.test_seal:Bent"},
        "loss 'of a model with layer Bent'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sealed_is_refused_before_training(name):
    changes, words = REFUSED[name]
    with pytest.raises(Refused, match=words):
        assemble(small({**FLAT, **changes})).unlearning("seal")


@pytest.mark.parametrize("name", sorted(set(REFUSED) - {"a step too long"}))
def test_with_noise_of_ones_own_it_runs_and_the_certificate_refuses(name):
    changes, words = REFUSED[name]
    result = small_run({**FLAT, **changes, "seal.std": 0.1}, compare=[])
    (claim,) = result.result["claims"]
    assert claim["grade"] == "refused"
    assert words in claim["reason"]


class Normed(nn.Module):
    """A linear head behind BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(65)
        self.head = nn.Linear(65, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(x))
        return out


class Bent(nn.Linear):
    """A linear layer by name; what it computes is not."""

    def __init__(self) -> None:
        super().__init__(65, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) ** 2


def test_batch_norm_is_refused():
    changes: dict[str, Any] = {"model.name": "tests.methods.test_seal:Normed", "seal.std": 0.1}
    (claim,) = small_run({**FLAT, **changes}, compare=[]).result["claims"]
    assert claim["grade"] == "refused"
    assert "carries 'norm.num_batches_tracked' besides parameters" in claim["reason"]


@pytest.mark.parametrize("method", ["release", "noisy-start", "ball-seal"])
def test_the_other_noises_are_certified_too(method):
    result = small_run(FLAT, method=method, compare=[])
    (claim,) = result.result["claims"]
    assert claim["grade"] == "certified"
    assert claim["epsilon"] <= 1.0 + 1e-9
    document = result.result["certificate"]["document"]
    covered = document["threat_model"]["training_time_view"]
    assert covered == (method == "noisy-start")
    if method == "release":
        assert "outsiders" in document["threat_model"]["observers"]
        assert [h.receiver for h in result.transcript.hops if noisy(h)] == [
            result.transcript.hops[-1].receiver
        ]
    if method == "ball-seal":
        assert "restart at the centre is exact" in claim["reason"]
    if method == "noisy-start":
        assert all(noisy(h) for h in result.transcript.hops)


def noisy(hop: Any) -> bool:
    return any(isinstance(e, GaussianNoise) for e in hop.events)


@dataclass
class _Case:
    grade: str
    words: str


NO_NOISE = "the starting model was trained on D_f, and no noise was added since"


@pytest.mark.parametrize(
    ("method", "case"),
    [
        ("retrain", _Case("exact", "never met")),
        ("restart", _Case("exact", "initial model")),
        ("rewind", _Case("exact", "went back to hop")),
        ("finetune", _Case("refused", NO_NOISE)),
        ("rrdu", _Case("refused", NO_NOISE)),
    ],
)
def test_what_may_be_said_of_each_method(method, case):
    result = small_run({**BLOBS, "train.hops": 12}, method=method, compare=[])
    claim = result.result["claims"][-1]
    assert claim["grade"] == case.grade
    assert case.words in claim["reason"]


def test_the_papers_preset_is_nominal_one_and_refused():
    result = small_run(BLOBS, method="rrdu", preset="paper", compare=[])
    nominal, refused = result.result["claims"]
    assert (nominal["grade"], nominal["epsilon"]) == ("nominal", 1.0)
    assert (refused["grade"], refused["epsilon"]) == ("refused", None)
    assert NO_NOISE in refused["reason"]


@pytest.mark.parametrize("method", ["seal", "release"])
def test_noise_is_made_for_the_steps_that_will_be_taken(method):
    """Step sizes that fall from hop to hop: the claim is still what was asked for."""
    falling: dict[str, Any] = {
        "train.schedule": "inverse",
        "train.smoothness": 0.5,
        "train.convexity": 0.003,
    }
    result = small_run({**FLAT, **falling, "seal.local_epochs": 3}, method=method, compare=[])
    (claim,) = result.result["claims"]
    assert claim["grade"] == "certified"
    assert claim["epsilon"] == pytest.approx(1.0, rel=1e-9)
