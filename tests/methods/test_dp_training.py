"""DP training from the start: what one record can change in two worlds, and what is claimed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.runs.small import BLOBS, small, small_run
from tests.tiny import TinyTask, linear, plan
from unwalk import walks
from unwalk.certificates import claims_of
from unwalk.core.events import GradientSteps
from unwalk.core.plan import Phase
from unwalk.core.program import Records, StepRule, Steps, Visit
from unwalk.engines.inprocess import InProcess
from unwalk.methods import METHODS
from unwalk.methods.dpsgd import DPSGD
from unwalk.methods.network_sgd import Descent, LocalWork
from unwalk.privacy.dp_training import training_mu, training_multiplier
from unwalk.privacy.gaussian import gaussian_epsilon
from unwalk.runs.assemble import assemble

U, CLIP, Z, SLOTS, CAPACITY, EPOCHS = 0, 0.4, 2.0, 3, 8, 2
BATCH = 3
STARTED: dict[str, Any] = {
    **BLOBS,
    "method": "dpsgd",
    "compare": [],
    "dpsgd.reading": "from-start",
    "train.work": "slots",
    "seed": 2,  # peer 0 is visited
}


def method(optimizer="adam", data="all"):
    work = LocalWork("slots", slots=SLOTS, capacity=CAPACITY, epochs=EPOCHS, placed=True)
    return DPSGD(Descent(StepRule(optimizer), work, clip_per_example=CLIP), Z, data)


@dataclass(frozen=True, eq=False)
class Without(TinyTask):
    """The same records, of which the forgotten ones never were there."""

    def records(self, peer: int) -> Records:
        there = super().records(peer)
        return Records(there.size, absent=there.forgotten)


@dataclass(eq=False)
class SameAnswer:
    """Tells what was to be noised, and answers alike in both worlds."""

    origin: str = "simulation"
    needs_digest: bool = False
    asked: dict[tuple[int, int], tuple[int, np.ndarray]] = field(default_factory=dict)

    def release(self, values, *, std, grid, peer, hop, step):
        self.asked[hop, step] = (peer, values.copy())
        rng = np.random.default_rng((hop, step))
        return values.dtype.type(std) * rng.standard_normal(values.shape).astype(values.dtype), None


def dropping(dtype=torch.float64):
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)).to(dtype)


def steep(output, y):
    """Gradients of any length: those of the forgotten records, too."""
    return 1e9 * functional.cross_entropy(output, y, reduction="none")


@pytest.mark.parametrize("loss", [None, steep])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("factory", [linear, dropping])
def test_two_worlds_with_the_same_answers_ask_for_noise_on_means_m_c_over_b_apart(
    factory, dtype, loss
):
    """Given what was released before, a step hides a distance of m_j C/B at most; with m_j records
    in its slot.  All else is the same to the bit: other peers' means, dropout's coins, moments."""
    both = []
    for task in (TinyTask, Without):
        made = task(peers=3, factory=partial(factory, dtype=dtype), dtype=dtype, loss=loss)
        noise = SameAnswer()
        phase = Phase("train", method(), walks.Fixed((U, 1, U, 2)), 4)
        (outcome,) = InProcess().run([plan(phase, task=made, noise=noise)])
        both.append((noise.asked, outcome.token.parameters))
    (one, ends), (other, same) = both
    assert torch.equal(ends, same)
    assert [key for key, (peer, _) in one.items() if peer == U] == [
        (hop, step) for hop in (1, 3) for step in range(SLOTS * EPOCHS)
    ]
    hidden: dict[int, int] = {}
    work, seeds = method().descent.work, plan().seeds
    for (hop, step), (peer, values) in one.items():
        twin = other[hop, step][1]
        if peer != U:
            assert np.array_equal(values, twin)
            continue
        rows, _ = work.batches(np.arange(8), seeds.stream("train", "batches", hop))
        many = int(np.isin(rows[step], np.arange(3)).sum())
        hidden[hop] = hidden.get(hop, 0) + many
        apart = sum(
            (Fraction(float(a)) - Fraction(float(b))) ** 2
            for a, b in zip(values, twin, strict=True)
        )
        assert apart <= (many * Fraction(CLIP) / BATCH) ** 2
        if loss is steep and many == 1 and factory is linear:
            assert float(apart) ** 0.5 == pytest.approx(CLIP / BATCH)
    assert hidden == {1: 3 * EPOCHS, 3: 3 * EPOCHS}


def test_records_keep_their_places_when_others_go():
    work, rows = method().descent.work, np.arange(8)
    batches, weights = work.batches(rows, np.random.default_rng(1))
    fewer, _ = work.batches(rows[3:], np.random.default_rng(1))
    assert np.array_equal(np.where(batches < 3, -1, batches), fewer)
    assert set(weights[batches >= 0]) == {1 / BATCH}
    for epoch in range(EPOCHS):
        held = batches[epoch * SLOTS : (epoch + 1) * SLOTS]
        assert sorted(held[held >= 0]) == list(rows)


def test_steps_are_rounded_where_they_are_proved_and_only_there():
    at = Visit(1, 1, U, True, TinyTask().records(U), np.random.default_rng(0))
    (op,) = method().visit(at)
    assert isinstance(op, Steps)
    assert (op.rounded, op.noise, op.clip_per_example) == (True, Z * CLIP / BATCH, CLIP)
    for changes in ({"dpsgd.reading": "continued"}, {"train.work": "epochs"}):
        made = assemble(small({**STARTED, **changes})).unlearning("dpsgd")
        (before, after) = made.phases
        phase = after if after.hops else before
        assert isinstance(phase.method, DPSGD)
        assert not phase.method.descent.work.placed


@pytest.mark.parametrize(
    ("changes", "passes", "m"),
    [
        ({}, 2, 20),
        ({"model.name": "mlp", "train.optimizer": "adam", "forget.size": 1}, 2, 1),
        ({"train.slots": 4, "train.epochs": 3, "forget.size": 3, "train.clip": 0.1}, 6, 3),
    ],
)
def test_a_training_is_certified_by_the_passes_that_happened(changes, passes, m):
    result = small_run({**STARTED, **changes})
    claims = result.result["claims"]
    z = training_multiplier(1.0, 1e-5, 4 * passes // 2, m) * (1 + 1e-12)  # for 4 visits, 2 came
    mu = training_mu(z, passes, m)
    (claim,) = claims
    assert (claim["grade"], claim["accountant"]) == ("certified", "dp-training")
    assert claim["epsilon"] == pytest.approx(gaussian_epsilon(1e-5, mu), rel=1e-9)
    assert claim["epsilon"] < 1.0
    document = result.result["certificate"]["document"]
    assert document["threat_model"]["training_time_view"]
    assert document["done"]["hops"] == 0
    steps = [e for _, e in result.transcript.events() if isinstance(e, GradientSteps)]
    assert all(e.grid is not None and e.clip is None for e in steps)


def test_noise_is_made_for_as_many_visits_as_the_settings_say():
    scales = []
    for visits in (1, 9):
        config = small({**STARTED, "dpsgd.visits": visits, "forget.cap": 25})
        scales.append(assemble(config).calibrated("dpsgd").scale)
    assert scales[1] == pytest.approx(3 * scales[0], rel=1e-12)
    assert scales[0] == pytest.approx(training_multiplier(1.0, 1e-5, 1, 25), rel=1e-9)


def test_more_visits_than_the_noise_was_made_for_are_accounted_for():
    result = small_run({**STARTED, "dpsgd.visits": 1})
    (claim,) = result.result["claims"]
    mu = training_mu(training_multiplier(1.0, 1e-5, 1, 20), 2, 20)
    assert claim["epsilon"] == pytest.approx(gaussian_epsilon(1e-5, mu), rel=1e-9)
    assert claim["epsilon"] > 1.4


def test_it_is_listed_as_certified_and_ddp_as_nominal():
    assert (METHODS["dpsgd"].grade, METHODS["ddp"].grade) == ("certified", "nominal")


def test_steps_without_their_grid_are_refused():
    result = small_run(STARTED)
    hops = [
        replace(
            hop,
            events=tuple(
                replace(e, grid=None) if isinstance(e, GradientSteps) else e for e in hop.events
            ),
        )
        for hop in result.transcript.hops
    ]
    made = type(result.transcript)(dict(result.transcript.header), hops)
    (claim,) = claims_of(made)
    assert (claim["grade"], claim["code"]) == ("refused", "float-noise")
