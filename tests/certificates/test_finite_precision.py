"""Guarantees in the arithmetic that computers have: rounding in the ledger, and who computes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, weight_norm

from tests.runs.small import small, small_run
from unwalk import walks
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.events import GaussianNoise
from unwalk.core.losses import Binary, Huber
from unwalk.core.plan import Phase
from unwalk.core.program import StepRule, Steps
from unwalk.engines.execute import BareLinear, apply_rule
from unwalk.engines.fleet import Fleet
from unwalk.engines.inprocess import InProcess
from unwalk.methods.network_sgd import NetworkSGD, train_descent, unlearn_descent
from unwalk.methods.release import Release
from unwalk.methods.retrain import Retrain
from unwalk.privacy.gaussian import gaussian_epsilon, gaussian_mu
from unwalk.privacy.ledger import LinearHead, SlotSteps
from unwalk.privacy.stability import Facts, ledger_before
from unwalk.runs.assemble import assemble
from unwalk.settings.config import Config
from unwalk.tasks.models import resolve_model

FLAT: dict[str, Any] = {
    "preset": "certified",
    "task": "digits-flat",
    "peers": 4,
    "train.hops": 8,
    "unlearn.hops": 4,
    "evaluate.every": 1000,
    "compare": [],
}
PRESET = SlotSteps(1, 1, 3.8, 144, 144, 0.003)
"""A step of the preset ``certified`` on digits-flat."""


# The rounding of one step, against arithmetic of fifty digits


def exact_step(theta, x, y, eta, decay, batch):
    """One step of slotted SGD in fifty digits, and its distance from what was ``computed``."""
    with mpmath.workdps(50):
        rows, inputs = x.shape
        outputs = theta.shape[0]
        old = [[mpmath.mpf(float(v)) for v in row] for row in theta]
        change = [[mpmath.mpf(0)] * inputs for _ in range(outputs)]
        for i in range(rows):
            record = [mpmath.mpf(float(v)) for v in x[i]]
            logits = [mpmath.fdot(row, record) for row in old]
            grown = [mpmath.exp(z - max(logits)) for z in logits]
            for k in range(outputs):
                pull = grown[k] / sum(grown) - (1 if k == int(y[i]) else 0)
                for j in range(inputs):
                    change[k][j] += pull * record[j] / batch
        rate, shrink = mpmath.mpf(eta), mpmath.mpf(decay)
        return [
            [old[k][j] - rate * (change[k][j] + shrink * old[k][j]) for j in range(inputs)]
            for k in range(outputs)
        ]


def computed_step(theta, x, y, eta, decay, batch):
    outputs, inputs = theta.shape
    head = BareLinear(inputs, outputs, bias=False)
    flat = theta.reshape(-1).clone()
    weights = torch.full((len(x),), 1.0 / batch, dtype=torch.float64)
    gradient = head.gradient(flat, x, y, weights)
    rule = StepRule("sgd", weight_decay=decay)
    steps = Steps(np.zeros((1, 1, 1), np.int64), "all", rule, step_size=eta)
    apply_rule(steps, flat, gradient, {}, 1)
    return flat.view(outputs, inputs)


@pytest.mark.parametrize("length", [0.0, 3.0, 471.0, 1e6, 1e12])
@pytest.mark.parametrize("kind", ["random", "aligned", "cancelling"])
def test_a_step_is_computed_within_its_bound(length, kind):
    rng = torch.Generator().manual_seed(len(kind))
    inputs, outputs, rows, eta, decay, batch = 12, 4, 6, 3.8, 0.003, 7

    def normals(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    x, theta = normals(rows, inputs), normals(outputs, inputs)
    if kind == "aligned":
        x = theta[:1] + 1e-3 * x
    elif kind == "cancelling":
        x, theta = torch.ones_like(x), theta.sort(1).values * torch.tensor([1.0, -1.0]).repeat(6)
    x = x / x.norm(dim=1, keepdim=True) * (1.0 - 1e-15)
    theta = theta / theta.norm() * length
    y = torch.randint(outputs, (rows,), generator=rng)
    given_ = (theta, x, y, eta, decay, batch)
    wanted, found = exact_step(*given_), computed_step(*given_)
    with mpmath.workdps(50):
        squares = [
            (mpmath.mpf(float(a)) - b) ** 2
            for computed, row in zip(found, wanted, strict=True)
            for a, b in zip(computed, row, strict=True)
        ]
        error = float(mpmath.sqrt(sum(squares)))
    constant, growing = LinearHead(inputs, outputs).step_error(
        SlotSteps(1, 1, eta, batch, batch, decay)
    )
    bound = constant + growing * length * (1.0 + 1e-12)
    print(f"{kind}, length {length:g}: error {error:.3g}, {error / bound:.4f} of the bound")
    assert 0.0 < error <= bound


def exact_pulls(loss, logits, label):
    """The slope of a record's loss in its outputs, in as many digits as mpmath works with."""
    if isinstance(loss, Huber):
        bound = mpmath.mpf(loss.bound)
        return [min(max(z - mpmath.mpf(float(label)), -bound), bound) for z in logits]
    return [
        (1 / (1 + mpmath.exp(-z)) - int(y)) / len(logits)
        for z, y in zip(logits, label, strict=True)
    ]


@pytest.mark.parametrize("length", [0.0, 3.0, 471.0, 1e12])
@pytest.mark.parametrize("loss", [Huber(0.7), Binary()], ids=["huber", "binary"])
def test_a_step_by_another_loss_is_computed_within_its_bound(loss, length):
    rng = torch.Generator().manual_seed(7)
    outputs = 1 if isinstance(loss, Huber) else 3
    inputs, rows, eta, decay, batch = 12, 6, 1.3, 0.003, 7
    x = torch.randn(rows, inputs, generator=rng, dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True) * (1.0 - 1e-15)
    theta = torch.randn(outputs, inputs, generator=rng, dtype=torch.float64)
    theta = theta / theta.norm() * length
    marks = torch.randint(2, (rows, outputs), generator=rng).double()
    y = torch.randn(rows, generator=rng, dtype=torch.float64) if outputs == 1 else marks
    head = BareLinear(inputs, outputs, bias=False, loss=loss)
    flat = theta.reshape(-1).clone()
    gradient = head.gradient(flat, x, y, torch.full((rows,), 1.0 / batch, dtype=torch.float64))
    steps = Steps(
        np.zeros((1, 1, 1), np.int64), "all", StepRule("sgd", weight_decay=decay), step_size=eta
    )
    apply_rule(steps, flat, gradient, {}, 1)
    with mpmath.workdps(50):
        old = [[mpmath.mpf(float(v)) for v in row] for row in theta]
        change = [[mpmath.mpf(0)] * inputs for _ in range(outputs)]
        for i in range(rows):
            record = [mpmath.mpf(float(v)) for v in x[i]]
            pulls = exact_pulls(loss, [mpmath.fdot(row, record) for row in old], y[i])
            for k, pull in enumerate(pulls):
                for j in range(inputs):
                    change[k][j] += pull * record[j] / batch
        shrink, rate = mpmath.mpf(decay), mpmath.mpf(eta)
        squares = [
            (
                mpmath.mpf(float(flat.view(outputs, inputs)[k][j]))
                - (old[k][j] - rate * (change[k][j] + shrink * old[k][j]))
            )
            ** 2
            for k in range(outputs)
            for j in range(inputs)
        ]
        error = float(mpmath.sqrt(sum(squares)))
    known = LinearHead(inputs, outputs, kind=loss.name, bound=getattr(loss, "bound", 1.0))
    constant, growing = known.step_error(SlotSteps(1, 1, eta, batch, batch, decay))
    assert 0.0 < error <= constant + growing * length * (1.0 + 1e-12)


def formula(head: LinearHead, work: SlotSteps, length: Any, unit: Any) -> Any:
    """The bound of the documentation, written down once more."""

    def gamma(count: float) -> Any:
        return count * unit / (1 - count * unit)

    with mpmath.workdps(40):
        eta, decay, x = (mpmath.mpf(v) for v in (work.step_size, work.weight_decay, head.norm))
        share, root = mpmath.mpf(work.slot_cap) / work.nominal_batch, mpmath.sqrt(2)
        softmax = gamma(2 * head.outputs + 16)
        inner = root * gamma(work.slot_cap + 4) * (1 + softmax)
        inner += gamma(head.inputs) * x * length / 2 + softmax
        push = eta * root * x * share
        after = push * (1 + gamma(work.slot_cap + 2 * head.outputs + 20))
        return eta * share * x * inner + gamma(4) * ((1 + eta * decay) * length + after)


@pytest.mark.parametrize("length", [0.0, 1.0, 471.0])
def test_the_bound_is_the_documented_one(length):
    head = LinearHead(65, 10)
    constant, growing = head.step_error(PRESET)
    wanted = formula(head, PRESET, length, mpmath.mpf(2) ** -53)
    found = mpmath.mpf(constant) + mpmath.mpf(growing) * length
    assert wanted <= found <= wanted * (1 + mpmath.mpf(1e-12))


def test_the_floor_of_the_preset():
    """What no walk brings the distance below: 1e-9 in 64 bits; 32 bits would leave 0.63."""
    head = LinearHead(65, 10)
    start = head.begin().steps(replace(PRESET, forgotten=1), head)
    floor = start.steps(replace(PRESET, epochs=20_000), head)
    assert floor.norm == pytest.approx(3.8 * math.sqrt(2) / (3.8 * 0.003), rel=1e-9)
    assert floor.distance == pytest.approx(1.18e-9, rel=0.01)
    once = head.begin().steps(replace(PRESET, epochs=20_000), head)
    assert once.distance == 0.0  # the worlds never parted
    in_32 = 2 * formula(head, PRESET, floor.norm, mpmath.mpf(2) ** -24) / (3.8 * 0.003)
    assert float(in_32) == pytest.approx(0.63, abs=0.01)


@given(
    inputs=st.integers(1, 5000),
    outputs=st.integers(2, 1000),
    cap=st.integers(1, 10_000),
    eta=st.floats(1e-6, 1e3),
    decay=st.floats(0.0, 1.0),
    norm=st.floats(1e-3, 1e3),
)
@settings(max_examples=60)
def test_the_bound_grows_with_everything(inputs, outputs, cap, eta, decay, norm):
    head = LinearHead(inputs, outputs, norm)
    work = SlotSteps(1, 1, eta, 10.0, cap, decay)
    base = head.step_error(work)
    for other in (
        replace(head, inputs=inputs + 1).step_error(work),
        replace(head, outputs=outputs + 1).step_error(work),
        replace(head, norm=norm * 1.01).step_error(work),
        head.step_error(replace(work, step_size=eta * 1.01)),
        head.step_error(replace(work, slot_cap=cap + 1)),
        head.step_error(replace(work, weight_decay=decay + 0.01)),
        head.step_error(replace(work, nominal_batch=9.0)),
    ):
        assert other[0] >= base[0] > 0.0
        assert other[1] >= base[1] > 0.0


@given(
    distance=st.floats(0.0, 10.0),
    norm=st.floats(0.0, 1e6),
    slots=st.integers(1, 50),
    epochs=st.integers(1, 20),
    forgotten=st.integers(0, 5),
    eta=st.floats(0.01, 2.0),
    decay=st.floats(0.0, 0.1),
)
@settings(max_examples=60)
def test_the_ledger_grows_with_everything(distance, norm, slots, epochs, forgotten, eta, decay):
    head = LinearHead(20, 3)
    work = SlotSteps(epochs, slots, eta, 10.0, 10.0, decay, forgotten)
    before = replace(head.begin(), distance=distance, norm=norm)
    base = before.steps(work, head)
    further = replace(before, distance=distance + 0.1).steps(work, head)
    longer = replace(before, norm=norm + 1.0).steps(work, head)
    more = before.steps(replace(work, forgotten=forgotten + 1), head)
    assert base.distance <= min(further.distance, longer.distance, more.distance)
    assert base.norm <= longer.norm
    if distance > 0.0 or forgotten:
        exact = distance * work.factor(head.loss) ** (slots * epochs)
        assert base.distance > exact + work.injection(head.loss) * (1.0 - 1e-12)
    else:
        assert base.distance == 0.0


# Row 1: noise below the resolution of the numbers it is added to


def worlds_apart(config: Config) -> float:
    """The measured distance, before the noise, of releases with and without forgotten records."""
    assembled = assemble(config)
    config, hops = assembled.config, config.unlearn.hops
    quiet = Release(unlearn_descent(config), 0.0, hops)
    after = Phase("unlearn", quiet, walks.Uniform(), hops, carries_forgotten=True)
    ends = []
    for method in (NetworkSGD(train_descent(config)), Retrain(train_descent(config))):
        train = Phase("train", method, walks.Uniform(), config.train.hops)
        (outcome,) = InProcess().run([assembled.plan(train, after, method="release")])
        ends.append(outcome.token.parameters.double())
    return float((ends[0] - ends[1]).norm())


def in_real_numbers(config: Config) -> float:
    """The distance at release as the ledger counted it before it counted rounding."""
    assembled = assemble(config)
    (outcome,) = InProcess().run([assembled.training()])
    walked = outcome.transcript
    header = {**walked.header, "forget": 1, "precision": "float64"}
    facts = Facts.of(replace_header(walked, header))
    factor, push, distance = 1.0 - 3.8 * 0.003, 0.0, 0.0
    for hop in walked.hops:
        push = 3.8 * math.sqrt(2) / facts.nominal_batch if hop.receiver == 0 else 0.0
        for _ in range(3):
            distance = distance * factor + push
    return float(distance * factor ** (3 * config.unlearn.hops))


def replace_header(walked: Any, header: dict[str, Any]) -> Any:
    made = type(walked)(header)
    for hop in walked.hops:
        made.add(hop)
    return made


@pytest.mark.parametrize("hops", [400, 900])
def test_noise_at_release_covers_rounding(hops):
    """Whoever knows both models tells nothing from the noise; with the old noise, everything."""
    config = small(FLAT, method="release", unlearn__hops=hops, forget__size=1)
    result = small_run(FLAT, method="release", unlearn__hops=hops, forget__size=1)
    (claim,) = result.result["claims"]
    assert claim["grade"] == "certified"
    (noise,) = [e for _, e in result.transcript.events() if isinstance(e, GaussianNoise)]
    assert noise.std > 1e-9
    assert gaussian_epsilon(1e-5, worlds_apart(config) / noise.std) <= 1.0
    before = small(FLAT, method="release", unlearn__hops=hops, model__precision="float32")
    old = in_real_numbers(config) / gaussian_mu(1.0, 1e-5)
    assert gaussian_epsilon(1e-5, worlds_apart(before) / old) > 5.0
    theta = result.walks["release"].outcome.token.parameters.float()
    if hops == 900:
        assert torch.equal(theta, theta + torch.randn(theta.shape) * old)  # it vanished
        assert old < 1e-12


def test_a_seal_after_thousands_of_passes_covers_rounding():
    result = small_run(FLAT, seal__local_epochs=4000)
    (claim,) = result.result["claims"]
    assert claim["grade"] == "certified"
    (noise,) = [e for _, e in result.transcript.events() if isinstance(e, GaussianNoise)]
    assert noise.std > 1e-9
    coarse = small(FLAT, seal__local_epochs=4000, model__precision="float32")
    with pytest.raises(Refused) as caught:
        assemble(coarse).unlearning("seal")
    assert caught.value.code == "precision"


def adversarial(kind: str, rows: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Records that push as one; the first ones are forgotten."""
    rng = torch.Generator().manual_seed(5)
    x = torch.zeros(rows, inputs, dtype=torch.float64)
    if kind == "one direction":
        x[:, 0] = 1.0 - 1e-15
    elif kind == "opposed":
        x[:, 0] = torch.where(torch.arange(rows) % 2 == 0, 1.0, -1.0) * (1.0 - 1e-15)
    else:
        x = torch.randn(rows, inputs, generator=rng, dtype=torch.float64)
        x = x / x.norm(dim=1, keepdim=True) * (1.0 - 1e-15)
    y = torch.zeros(rows, dtype=torch.int64)
    y[:3] = 1
    return x, y


@pytest.mark.parametrize("kind", ["one direction", "opposed", "random"])
@pytest.mark.parametrize("decay", [0.0, 0.02])
def test_two_worlds_stay_within_the_ledger_down_to_its_floor(kind, decay):
    """Three records at the first passes, none of them later: 600 steps with other orders of
    summation in the other world."""
    inputs, outputs, rows, batch, eta = 9, 3, 24, 24, 3.0
    x, y = adversarial(kind, rows, inputs)
    head, layer = LinearHead(inputs, outputs), BareLinear(inputs, outputs, bias=False)
    rule = StepRule("sgd", weight_decay=decay)
    op = Steps(np.zeros((1, 1, 1), np.int64), "all", rule, step_size=eta)
    ledger = head.begin()
    mine = torch.zeros(inputs * outputs, dtype=torch.float64)
    other, order = mine.clone(), torch.arange(3, rows).flip(0)
    weights = torch.full((rows,), 1.0 / batch, dtype=torch.float64)
    largest = 0.0
    for step in range(600):
        first = 0 if step < 4 else 3
        apply_rule(op, mine, layer.gradient(mine, x[first:], y[first:], weights[first:]), {}, 1)
        apply_rule(op, other, layer.gradient(other, x[order], y[order], weights[3:]), {}, 1)
        work = SlotSteps(1, 1, eta, batch, batch, decay, forgotten=3 if step < 4 else 0)
        ledger = ledger.steps(work, head)
        distance = float((mine - other).norm())
        assert distance <= ledger.distance
        assert max(float(mine.norm()), float(other.norm())) <= ledger.norm * (1 + 1e-15)
        largest = max(largest, distance / ledger.distance)
    assert largest > 0.1
    if decay:
        assert 0.0 < ledger.distance < 1e-9


def test_earlier_noise_adds_its_rounding():
    """A ledger that passes through the seal of an earlier request."""
    head = LinearHead(16, 4)
    before = head.begin().steps(SlotSteps(1, 1, 1.0, 10, 10, 0.1, forgotten=1), head)
    after = before.noised(head, 2.0**-10)
    assert after.distance == pytest.approx(before.distance + 8.0 * 2.0**-10, rel=1e-12)
    with pytest.raises(Refused, match="bounds the length") as caught:
        after.steps(SlotSteps(1, 1, 1.0, 10, 10, 0.1), head)
    assert caught.value.code == "norm"
    held = after.projected(3.0, 0.0, head.parameters)
    assert held.norm == 3.0
    assert held.distance >= after.distance
    assert head.begin().noised(head, 2.0**-10).distance == 0.0


# Row 3: a linear layer that is none


def _layer() -> nn.Linear:
    layer = nn.Linear(65, 10, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def hooked() -> nn.Module:
    layer = _layer()
    layer.register_forward_hook(lambda module, given_, out: out * 100.0)
    return nn.Sequential(nn.Flatten(), layer)


def pre_hooked() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), _layer())
    model.register_forward_pre_hook(lambda module, given_: (given_[0] * 100.0,))
    return model


def backward_hooked() -> nn.Module:
    layer = _layer()
    layer.register_full_backward_hook(lambda module, into, out: None)
    return layer


def old_weight_norm() -> nn.Module:
    layer = nn.Linear(65, 10, bias=False)
    made: nn.Module = weight_norm(layer)
    return made


def new_weight_norm() -> nn.Module:
    made: nn.Module = parametrizations.weight_norm(nn.Linear(65, 10, bias=False))
    return made


def tensor_hooked() -> nn.Module:
    layer = _layer()
    layer.weight.register_hook(lambda gradient: gradient * 100.0)
    return layer


def accumulating() -> nn.Module:
    layer = _layer()
    layer.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return layer


def replaced() -> nn.Module:
    layer = _layer()
    layer.forward = lambda x: 100.0 * nn.functional.linear(x, layer.weight)  # type: ignore[assignment,method-assign]
    return layer


class Scaled(nn.Parameter):
    """A parameter that could do anything."""


def subclassed() -> nn.Module:
    layer = _layer()
    layer.weight = Scaled(layer.weight.detach())
    return layer


def partly_frozen() -> nn.Module:
    layer = nn.Linear(65, 10)
    layer.bias.requires_grad_(False)
    return layer


NOT_BARE = {
    "hooked": "forward hooks of a Linear layer",
    "pre_hooked": "forward pre hooks of a Sequential layer",
    "backward_hooked": "backward hooks of a Linear layer",
    "old_weight_norm": "forward pre hooks of a Linear layer",
    "new_weight_norm": "layer ParametrizedLinear",
    "tensor_hooked": "a tensor hook on its weight",
    "accumulating": "a tensor hook on its weight",
    "replaced": "attribute 'forward' of a Linear layer",
    "subclassed": "weight of type Scaled",
    "partly_frozen": "bias that is not trained",
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.parametrize("name", NOT_BARE)
def test_a_layer_that_is_more_than_linear_is_refused_by_name(name):
    changes = {"model.name": f"tests.certificates.test_finite_precision:{name}"}
    with pytest.raises(Refused) as caught:
        assemble(small({**FLAT, **changes})).unlearning("seal")
    assert caught.value.code == "loss"
    assert NOT_BARE[name] in str(caught.value)
    (claim,) = small_run({**FLAT, **changes, "seal.std": 0.1}).result["claims"]
    assert (claim["grade"], claim["code"]) == ("refused", "loss")
    assert NOT_BARE[name] in claim["reason"]


def test_a_hook_on_all_modules_is_refused_and_cannot_matter():
    plain = small_run(FLAT)
    handle = register_module_forward_hook(lambda module, given_, out: out * 2.0)
    try:
        with pytest.raises(Refused, match="global forward hooks of all modules"):
            assemble(small(FLAT)).unlearning("seal")
    finally:
        handle.remove()
    assembled = assemble(small(FLAT))
    plan = assembled.training()
    handle = register_module_forward_hook(lambda module, given_, out: out * 2.0)
    try:
        with pytest.raises(Exception, match="its model has global forward hooks"):
            list(InProcess().run([plan]))
    finally:
        handle.remove()
    assert plain.result["claims"][0]["grade"] == "certified"


def test_what_the_header_says_of_the_model(tmp_path):
    result = small_run(FLAT)
    header = result.transcript.header
    said = {k: header[k] for k in ("loss", "inputs", "outputs", "initial_norm", "precision")}
    assert said == {
        "loss": "softmax",
        "inputs": 65,
        "outputs": 10,
        "initial_norm": 0.0,
        "precision": "float64",
    }
    assert header["feature_norm"] == 1.0
    ledger = ledger_before(result.transcript, 9)
    theta = result.walks["seal"].outcome.token.parameters
    assert theta.dtype == torch.float64
    assert float(theta.norm()) < ledger.norm


@pytest.mark.parametrize("engine", [InProcess, Fleet])
def test_a_start_longer_than_announced_is_refused(engine):
    """The bound on rounding begins with the length of the initial model."""
    size = [0.0]

    def model() -> nn.Module:
        layer = nn.Linear(65, 10, bias=False)
        nn.init.constant_(layer.weight, size[0])
        return layer

    config = small(FLAT)
    task = assemble(config).task
    own = replace(task, factory=resolve_model(model, task.source.shape, task.classes))
    plan = assemble(config, own).training()
    assert plan.public["initial_norm"] == 0.0
    assert len(list(engine().run([plan]))) == 1
    size[0] = 1e16
    with pytest.raises(InvalidInput, match=r"length 0 at most, and the one that was made has 2\.5"):
        list(engine().run([plan]))
