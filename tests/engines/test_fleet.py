"""The fleet against the in-process engine: same walks, same events, parameters to rounding."""

from __future__ import annotations

import dataclasses
import gc
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from tests.tiny import TinyTask, descent, linear, plan
from unwalk import walks
from unwalk.core import token
from unwalk.core.errors import Diverged, InvalidInput
from unwalk.core.losses import Huber
from unwalk.core.plan import Performance, Phase
from unwalk.core.program import AddNoise, Ball, StepRule, Steps
from unwalk.core.token import Layout
from unwalk.engines import cuda, fleet_gradients, fleet_steps
from unwalk.engines.choose import carriers
from unwalk.engines.execute import apply_rule
from unwalk.engines.fleet import Fleet
from unwalk.engines.fleet_stack import LinearStack
from unwalk.engines.fleet_steps import Step
from unwalk.engines.inprocess import InProcess
from unwalk.methods.network_sgd import Descent, LocalWork, NetworkSGD
from unwalk.methods.rrdu import RRDU, Correction


def small_cnn():
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 4, 2, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 3),
    ).double()


def batch_norm():
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 3),
    ).double()


def task(factory, forgotten=3):
    return TinyTask(
        peers=4, size=11, features=16, classes=3, factory=factory, forgotten={0: forgotten}
    )


def phases(direction="forget", optimizer="momentum", kind="epochs", noise_on="weights", clip=0.5):
    rule = StepRule(optimizer, learning_rate=0.02, weight_decay=0.01)
    correction = Correction(
        direction,
        LocalWork(kind, batch=4),
        rule,
        sigma=0.2,
        noise_on=noise_on,
        clip=clip,
        trust=(Ball("start", 3.0),),
    )
    method = RRDU(Descent(rule, LocalWork(batch=4)), correction)
    train = Phase("train", NetworkSGD(Descent(rule, LocalWork(batch=4))), walks.Uniform(), 4)
    return train, Phase("unlearn", method, walks.Restart(0, 0.4), 6)


CASES = {
    "linear": (lambda: linear(16, 3), {}),
    "cnn": (small_cnn, {}),
    "adam": (small_cnn, {"optimizer": "adam"}),
    "plain": (small_cnn, {"optimizer": "sgd"}),
    "noise on every gradient": (small_cnn, {"noise_on": "gradient"}),
    "corrected, full": (small_cnn, {"direction": "corrected", "kind": "full"}),
    "corrected, minibatches": (small_cnn, {"direction": "corrected"}),
    "retain": (small_cnn, {"direction": "retain", "clip": None}),
}


@pytest.mark.parametrize("few", [1, 8], ids=["drawn", "one by one"])
@pytest.mark.parametrize("case", CASES)
def test_ten_hops_agree_with_the_reference(case, few):
    factory, options = CASES[case]
    made = [plan(*phases(**options), task=task(factory), seed=seed) for seed in range(5)]
    together = list(Fleet(size=3, few=few).run(made))
    for outcome, reference in zip(together, InProcess().run(made), strict=True):
        for mine, theirs in zip(outcome.transcript.hops, reference.transcript.hops, strict=True):
            assert dataclasses.replace(mine, digest=None) == dataclasses.replace(
                theirs, digest=None
            )
        assert torch.allclose(
            outcome.token.parameters, reference.token.parameters, rtol=1e-9, atol=1e-12
        )
        assert outcome.token.header() == reference.token.header()
        for peer, local in reference.progress.locals.items():
            assert outcome.progress.locals[peer].optimizer_steps == local.optimizer_steps


def test_batch_normalisation_agrees_though_counthave_batches_of_different_size():
    made = [plan(*phases(), task=task(batch_norm), seed=seed) for seed in range(5)]
    sizes = set()
    for outcome, reference in zip(Fleet(few=1).run(made), InProcess().run(made), strict=True):
        for name, tensor in reference.token.tensors().items():
            assert torch.allclose(outcome.token.tensors()[name], tensor, rtol=1e-9), name
        sizes |= {hop.events[-1].kind for hop in outcome.transcript.hops}
    assert "projection" in sizes  # some were at the forgetting peer, with three rows a batch


@pytest.mark.parametrize("options", [{"kind": "averaged"}, {"direction": "corrected"}])
def test_batch_normalisation_refuses_batches_of_several_parts(options):
    made = [plan(*phases(**options), task=task(batch_norm), seed=seed) for seed in range(2)]
    with pytest.raises(InvalidInput, match="batch normalisation mixes"):
        list(Fleet(few=1).run(made))


def test_per_example_clipping_agrees_with_the_reference():
    class Clipped:
        name, travels = "clipped", ()

        def __init__(self):
            self.inner = descent("sgd")

        def visit(self, visit):
            (steps,) = self.inner.program(visit, "all")
            return (dataclasses.replace(steps, clip_per_example=0.1, noise=0.01),)

    made = [
        plan(Phase("train", Clipped(), walks.Uniform(), 8), task=task(small_cnn), seed=seed)
        for seed in range(3)
    ]
    for outcome, reference in zip(Fleet(few=1).run(made), InProcess().run(made), strict=True):
        assert torch.allclose(
            outcome.token.parameters, reference.token.parameters, rtol=1e-9, atol=1e-12
        )


def test_countof_different_length_and_settings_move_together():
    made = [
        plan(
            Phase("train", NetworkSGD(descent("momentum", rate)), walks.Uniform(), hops),
            task=task(small_cnn),
            seed=seed,
        )
        for seed, (rate, hops) in enumerate([(0.1, 3), (0.01, 9), (0.05, 6)])
    ]
    for outcome, reference in zip(Fleet(few=1).run(made), InProcess().run(made), strict=True):
        assert len(outcome.transcript.hops) == outcome.plan.hops
        assert torch.allclose(
            outcome.token.parameters, reference.token.parameters, rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("state", ["carried", "local", "fresh"])
def test_settings_that_differ_and_countthat_end_early_keep_their_moments_apart(state):
    rules = [StepRule("adam", 0.01 * (1 + seed % 3), state=state) for seed in range(6)]
    made = [
        plan(
            Phase("train", NetworkSGD(Descent(rule, LocalWork(batch=4))), walks.Uniform(), hops),
            Phase(
                "again", NetworkSGD(descent("momentum")), walks.Uniform(), 2, reset_optimizer=True
            ),
            task=task(small_cnn),
            seed=seed,
        )
        for seed, (rule, hops) in enumerate(zip(rules, (3, 5, 7, 4, 6, 3), strict=True))
    ]
    for outcome, reference in zip(Fleet(few=1).run(made), InProcess().run(made), strict=True):
        mine, theirs = outcome.token, reference.token
        assert torch.allclose(mine.parameters, theirs.parameters, rtol=1e-9, atol=1e-12)
        assert mine.moments.keys() == theirs.moments.keys()
        for slot, moment in theirs.moments.items():
            assert torch.allclose(mine.moments[slot], moment, rtol=1e-9, atol=1e-12)
        for peer, local in reference.progress.locals.items():
            for slot, moment in local.moments.items():
                held = outcome.progress.locals[peer].moments[slot]
                assert torch.allclose(held, moment, rtol=1e-9, atol=1e-12)


def test_the_walk_that_diverges_is_named_and_nothing_stays_frozen():
    rates = (0.1, 1e308, 0.1)
    made = [
        plan(Phase("train", NetworkSGD(descent("sgd", rate)), walks.Fixed((1 + number,) * 9), 9))
        for number, rate in enumerate(rates)
    ]
    with pytest.raises(Diverged, match=r"hop \d at peer 2"):
        list(Fleet(few=1).run(made))
    assert gc.get_freeze_count() == 0


def test_other_architectures_in_one_fleet_are_refused():
    made = [plan(task=task(small_cnn)), plan(task=task(batch_norm))]
    with pytest.raises(InvalidInput, match="one architecture"):
        list(Fleet(few=1).run(made))


class Loud(nn.Linear):
    """The parameters of a linear layer, and another function of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(1000.0 * x)


def loud() -> nn.Module:
    return Loud(3, 2, dtype=torch.float64)


def dropping(share: float) -> nn.Module:
    return nn.Sequential(nn.Dropout(share), linear())


@pytest.mark.parametrize(
    ("one", "other"),
    [(loud, linear), (linear, loud), (partial(dropping, 0.1), partial(dropping, 0.5))],
)
def test_models_of_the_same_parameters_and_another_function_are_no_fleet(one, other):
    plans = [plan(task=TinyTask(factory=factory)) for factory in (one, other, other)]
    found = [list(numbers) for _, numbers in carriers(plans, "fleet")]
    assert found == [[0], [1, 2]]
    with pytest.raises(InvalidInput, match="a fleet trains one architecture"):
        list(Fleet().run(plans[:2]))


def test_losses_that_are_equal_are_one():
    head = partial(linear, 3, 1)
    plans = [plan(task=TinyTask(factory=head, loss=Huber(bound))) for bound in (1.0, 1.0, 2.0)]
    assert [list(numbers) for _, numbers in carriers(plans, "fleet")] == [[0, 1], [2]]
    one, other = Fleet().run(plans[:2])
    assert torch.equal(one.token.parameters, other.token.parameters)


def test_convolutions_that_cannot_be_batched_are_refused():
    def grouped():
        return nn.Sequential(
            nn.Unflatten(1, (4, 2, 2)), nn.Conv2d(4, 4, 1, groups=2), nn.Flatten(),
            nn.Linear(16, 3),
        ).double()  # fmt: skip

    with pytest.raises(InvalidInput, match="grouped"):
        list(Fleet().run([plan(task=task(grouped))]))


class Replays:
    """Captured steps that are taken anew each time: what a device does, without one."""

    draws_streams = False

    def fleet_update(self, *given, **how):
        return False

    def __init__(self):
        self.used = []

    def captured(self, step):
        number = len(self.used)
        self.used.append(0)

        def replay():
            self.used[number] += 1
            step()

        return replay


@pytest.mark.parametrize("case", ["cnn", "adam", "noise on every gradient", "corrected, full"])
def test_steps_on_rounded_teams_and_gathered_batches_agree_with_the_reference(monkeypatch, case):
    replays, sizes = Replays(), set()
    prepare = Step.prepare

    def watched(self):
        prepare(self)
        sizes.add(len(self.team.parameters))

    monkeypatch.setattr(fleet_steps, "executor_for", lambda device: replays)
    monkeypatch.setattr(Step, "prepare", watched)
    monkeypatch.setattr(fleet_steps, "SIZES", 2)
    factory, options = CASES[case]
    both = phases(**options)
    plans = [
        plan(*both[: 2 if seed < 2 else 1], task=task(factory), seed=seed) for seed in range(5)
    ]
    for outcome, reference in zip(Fleet(few=1).run(plans), InProcess().run(plans), strict=True):
        assert torch.allclose(
            outcome.token.parameters, reference.token.parameters, rtol=1e-9, atol=1e-12
        )
        assert outcome.token.header() == reference.token.header()
    assert sizes == {3, 5}
    assert replays.used
    assert all(replays.used)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_an_update_is_the_reference_s_and_leaves_those_that_wait_alone(optimizer, clip, noise):
    torch.manual_seed(0)
    count, size, waiting = 4, 7, 2
    rule = StepRule(optimizer, weight_decay=0.1, damping=0.0)
    rows = np.zeros((1, 1, 1), np.int64)
    ops = [
        Steps(rows, "all", rule, 0.1 * (1 + k), scale=0.5 + k, clip=clip, direction=(-1, 1)[k % 2])
        for k in range(count)
    ]
    before, slopes, drawn = (torch.randn(count, size).double() for _ in range(3))
    moments = {slot: torch.rand(count, size).double() for slot in rule.slots}
    if optimizer == "adam":  # zero divided by zero
        moments["square"][waiting] = 0.0
    seen = torch.tensor([[3.0], [1.0], [0.0], [2.0]]).double()
    active = torch.ones(count, 1, dtype=torch.bool)
    active[waiting] = False
    slopes[waiting] = float("nan")
    knobs = torch.tensor([fleet_steps.knobs_of(op) for op in ops], dtype=torch.float64)
    held = {slot: moment.clone() for slot, moment in moments.items()}
    team = fleet_steps.Team(before.clone(), {}, held, seen, knobs)
    kind = fleet_steps.Kind(rule, None, clipped=clip is not None, noisy=bool(noise), decays=True)
    none = torch.empty(0)
    batch = fleet_steps.Batch(none, none, none, active, drawn * noise if noise else None)
    fleet_steps.update(team, kind, slopes, batch)
    for row, op in enumerate(ops):
        wanted, mine = before[row].clone(), {slot: m[row] for slot, m in moments.items()}
        if row != waiting:
            gradient = slopes[row] * op.scale
            if clip is not None:
                gradient = gradient * (clip / gradient.norm()).clamp(max=1.0)
            apply_rule(op, wanted, gradient + noise * drawn[row], mine, int(seen[row]))
        assert torch.allclose(team.parameters[row], wanted, rtol=1e-9, atol=1e-12), row
        for slot, moment in mine.items():
            assert torch.allclose(team.moments[slot][row], moment, rtol=1e-9, atol=1e-12), slot
    assert torch.equal(team.parameters[waiting], before[waiting])
    assert not torch.equal(team.parameters[0], before[0])


STACKS = {
    "two layers": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)),
    "no bias": lambda: nn.Sequential(nn.Linear(16, 6, bias=False), nn.ReLU(), nn.Linear(6, 3)),
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
}


@pytest.mark.parametrize("name", STACKS)
def test_gradients_of_a_stack_of_linear_layers_are_those_that_are_mapped(name):
    torch.manual_seed(0)
    models = [STACKS[name]().double() for _ in range(4)]
    layout = Layout.of(models[0])
    flat = torch.stack([token.flat(model) for model in models])
    x, y = torch.randn(4, 7, 4, 4).double().flatten(2), torch.randint(3, (4, 7))
    weights = torch.rand(4, 7).double()
    gradient = fleet_gradients.BatchedGradient(models[0], layout, None)
    assert gradient.stack is not None
    stack, ends = gradient.stack, []
    for bound in (None, 0.2, 1.0):
        for gradient.stack in (stack, None):
            ends.append(gradient(flat, {}, x, y, weights, bound)[0])
        assert torch.allclose(ends[-1], ends[-2], rtol=1e-11, atol=1e-13), bound
    assert not torch.allclose(ends[0], ends[2])
    assert not torch.allclose(ends[2], ends[4])


def test_only_plain_stacks_of_linear_layers_are_written_out():
    hooked = STACKS["two layers"]()
    hooked[1].register_forward_hook(lambda *given: None)
    frozen = STACKS["two layers"]()
    frozen[1].weight.requires_grad = False
    other = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 2))
    tied = STACKS["two layers"]()
    tied[1] = nn.utils.parametrizations.weight_norm(tied[1])
    last = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    for model in (hooked, frozen, other, tied, last, small_cnn(), linear(3, 2)):
        assert LinearStack.of(model) is None
    assert LinearStack.of(STACKS["two layers"]()) is not None


def test_losses_of_mapped_models_are_torch_s_to_the_bit():
    torch.manual_seed(0)
    output, y = torch.randn(3, 5, 4), torch.randint(4, (3, 5))
    shares = torch.softmax(torch.randn(3, 5, 4), 2)
    for labels in (y, shares):
        mine, theirs = (
            vmap(grad(lambda o, t, way=way: way(o, t).square().sum()))(output, labels)
            for way in (fleet_gradients._cross_entropy, partial(cross_entropy, reduction="none"))
        )
        assert torch.equal(mine, theirs)


@pytest.mark.device
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("state", ["carried", "local", "fresh"])
def test_on_a_device_captured_steps_agree_with_the_reference(monkeypatch, optimizer, state):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    replays = []
    captured = cuda.Executor.captured

    def counted(self, step):
        replay = captured(self, step)

        def replay_counted():
            replays.append(step)
            replay()

        return replay_counted

    monkeypatch.setattr(cuda.Executor, "captured", counted)
    small = TinyTask(
        peers=4,
        size=11,
        features=16,
        classes=3,
        factory=lambda: small_cnn().float(),
        forgotten={0: 3},
        dtype=torch.float32,
    )
    rule = StepRule(optimizer, learning_rate=0.02, weight_decay=0.01, state=state)
    correction = Correction("forget", LocalWork(batch=4), rule, sigma=0.0, clip=0.5)
    both = (
        Phase("train", NetworkSGD(Descent(rule, LocalWork(batch=4))), walks.Uniform(), 6),
        Phase(
            "unlearn",
            RRDU(Descent(rule, LocalWork(batch=4)), correction),
            walks.Restart(0, 0.4),
            6,
        ),
    )
    made = [plan(*both, task=small, seed=seed) for seed in range(5)]
    moved = [dataclasses.replace(m, performance=Performance(device="cuda")) for m in made]
    for outcome, reference in zip(Fleet(few=1).run(moved), InProcess().run(made), strict=True):
        mine, theirs = outcome.token, reference.token
        initial = reference.progress.anchors["initial"]
        change = float((theirs.parameters - initial).norm())
        assert float((mine.parameters.cpu() - theirs.parameters).norm()) < 1e-3 * change
        assert mine.optimizer_steps == theirs.optimizer_steps
        for slot, moment in theirs.moments.items():
            assert torch.allclose(mine.moments[slot].cpu(), moment, rtol=1e-2, atol=1e-4)
    assert len(replays) > 6


@dataclasses.dataclass(frozen=True)
class Rounded:
    """One noisy step whose gradient is rounded to a public grid, then noise on the parameters."""

    name: str = "rounded"
    travels: tuple[str, ...] = ()

    def visit(self, visit):
        rule = StepRule("sgd", learning_rate=0.1)
        batches, weights = LocalWork("full", batch=4).batches(visit.records.all, visit.rng)
        steps = Steps(batches, "all", rule, 0.1, noise=0.5, weights=weights, rounded=True)
        return steps, steps, AddNoise(0.25)


def test_rounded_steps_are_taken_one_by_one_with_the_same_noise():
    phase = Phase("train", Rounded(), walks.Uniform(), 4)
    plans = [plan(phase, task=task(lambda: linear(16, 3)), seed=seed) for seed in (0, 1)]
    for one, other in zip(InProcess().run(plans), Fleet().run(plans), strict=True):
        assert torch.equal(one.token.parameters, other.token.parameters)
        assert one.transcript.hops == other.transcript.hops
