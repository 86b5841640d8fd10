"""State of a user's model outside the token: it does not survive a visit, or is refused."""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import nn

from unwalk.core.errors import InvalidInput
from unwalk.core.outside import Surroundings
from unwalk.core.token import Token, Workspace, build_model
from unwalk.engines.fleet import Fleet
from unwalk.runs.assemble import resolve
from unwalk.runs.run import run
from unwalk.tasks import Deletion, build_task
from unwalk.tasks.models import resnet18
from unwalk.tasks.own import from_arrays

FEATURES, CLASSES, PEERS = 4, 2, 4


class Base(nn.Module):
    """A linear model whose logits are pushed by what it remembers of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def push(self, x: torch.Tensor) -> torch.Tensor | float:
        return 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pushed: torch.Tensor = self.head(x + self.push(x))
        return pushed


class Number(Base):
    def __init__(self) -> None:
        super().__init__()
        self.mean = 0.0

    def push(self, x):
        self.mean = 0.9 * self.mean + 0.1 * float(x.detach().mean())
        return self.mean


class Late(Base):
    """An attribute that was not there when the model was built."""

    def push(self, x):
        self.mean = getattr(self, "mean", 0.0) + float(x.detach().mean())
        return self.mean


class Listed(Base):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def push(self, x):
        self.seen.append(float(x.detach().mean()))
        return sum(self.seen) / len(self.seen)


class Nested(Base):
    def __init__(self) -> None:
        super().__init__()
        self.store = {"deep": [torch.zeros(FEATURES)], "head": [self.head]}

    def push(self, x):
        self.store["deep"][0].mul_(0.9).add_(x.detach().mean(0))
        assert self.store["head"][0] is self.head, "an alias stays one"
        return self.store["deep"][0]


class Tensor(Base):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(FEATURES)

    def push(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.mean


class OtherTensor(Base):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(FEATURES)

    def push(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.mean


class Frozen(Base):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.randn(FEATURES), requires_grad=False)

    def push(self, x):
        self.mean.data.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.mean


class FrozenElsewhere(Frozen):
    def push(self, x):
        self.mean.data = 0.9 * self.mean.data + 0.1 * x.detach().mean(0)
        return self.mean


class NoneBuffer(Base):
    mean: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", None)

    def push(self, x):
        self.mean = x.detach().mean(0) if self.mean is None else self.mean + x.detach().mean(0)
        return self.mean


class Hidden(Base):
    """A module in a list is none of the model's own modules; its buffers do not travel."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.BatchNorm1d(FEATURES, momentum=0.5)]

    def push(self, x):
        self.hidden[0].train()
        self.hidden[0](x)
        return self.hidden[0].running_mean


class OfTheClass(Base):
    mean: ClassVar[float] = 0.0

    def push(self, x):
        OfTheClass.mean += float(x.detach().mean())
        return OfTheClass.mean


SEEN: list[float] = []


class Global(Base):
    def push(self, x):
        SEEN.append(float(x.detach().mean()))
        return sum(SEEN)


class Closure(Base):
    def __init__(self) -> None:
        super().__init__()
        seen: list[float] = []

        def note(value: float) -> float:
            seen.append(value)
            return sum(seen)

        self.note = note

    def push(self, x):
        return self.note(float(x.detach().mean()))


PUT_BACK = [
    *(Number, Late, Listed, Nested, Tensor, OtherTensor, Frozen, FrozenElsewhere, NoneBuffer),
    Hidden,
]
OUT_OF_REACH = [OfTheClass, Global, Closure]


def task_of(model, change, **own):
    """Records of four peers; peer 0 forgets two, whose inputs ``change`` moves."""
    rng = np.random.default_rng(5)
    y = np.arange(80) % CLASSES
    x = rng.normal(size=(80, FEATURES)) + y[:, None]
    given = {
        "parts": [np.arange(20) + 20 * peer for peer in range(PEERS)],
        "classes": CLASSES,
        "test": (rng.normal(size=(8, FEATURES)), np.arange(8) % CLASSES),
        "forget": Deletion("records", size=2),
        "seed": 3,
    }
    x[from_arrays(x, y, model=Base, **given).records(0).forgotten] += change
    return from_arrays(x, y, model=model, **given, **own)


def forgetting(model, change, method="sisa", engine=None, own=None, **settings):
    chosen = {
        "method": method,
        "compare": [],
        "peers": PEERS,
        "seed": 3,
        "train.hops": 12,
        "train.batch": 5,
        "unlearn.hops": 4,
        "train.shards": 2 if method == "sisa" else 1,
        "evaluate.every": 2,
        "data.normalisation": "published",
        **settings,
    }
    return run(resolve(chosen), task=task_of(model, change, **(own or {})), engine=engine)


def claim_of(result):
    (claim,) = result.result["claims"]
    return claim


def bits(result):
    return {k: v for k, v in result.model.state_dict().items() if "mean" not in k}


@pytest.mark.parametrize("method", ["sisa", "restart"])
@pytest.mark.parametrize("model", PUT_BACK, ids=lambda model: model.__name__)
def test_what_a_module_keeps_does_not_survive_a_visit(model, method):
    """The forgotten records have no part in the result, to the last bit."""
    one, other = (forgetting(model, change, method) for change in (0.0, 50.0))
    assert claim_of(one)["grade"] == "exact"
    assert any("user's own code" in text for text in claim_of(one)["assumptions"])
    mine, yours = bits(one), bits(other)
    assert mine.keys() == yours.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, yours[name]), name


@pytest.mark.parametrize("model", OUT_OF_REACH, ids=lambda model: model.__name__)
def test_what_cannot_be_put_back_is_refused(model):
    claim = claim_of(forgetting(model, 0.0))
    assert (claim["grade"], claim["code"]) == ("refused", "outside-state")
    assert "put back" in claim["reason"]


class Travels(Base):
    """A buffer in whose place another tensor is put: it travels all the same."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(FEATURES), persistent=False)

    def push(self, x):
        self.average = 0.5 * self.average + 0.5 * x.detach().mean(0)
        return self.average


def test_a_buffer_travels_though_another_tensor_is_put_in_its_place():
    work = Workspace(build_model(Travels, 0))
    work.model(torch.ones(3, FEATURES))
    work.put_back(visited=True)
    assert work.model.average is work.buffers["average"]
    assert work.token(hop=1, at=0, memory={}).buffers["average"].tolist() == [0.5] * FEATURES
    one, other = (forgetting(Travels, change) for change in (0.0, 50.0))
    assert claim_of(one)["grade"] == "exact"
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name


class Counting(Base):
    """Its buffer moves whenever it is called, in evaluation too."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(FEATURES))

    def push(self, x):
        self.average.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.average


class Renormed(Base):
    """A parameter of which each call, in evaluation too, shortens the row that it looks up."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(2, FEATURES, max_norm=1.0)

    def push(self, x):
        return self.rows((x[:, 0] > 25.0).long())


class LooksOnly(Base):
    """Keeps what it saw in evaluation, where ``keep`` puts it."""

    def push(self, x):
        if not self.training:
            self.keep(0.1 * x.mean())
        return 0.0

    def keep(self, seen: torch.Tensor) -> None:
        raise NotImplementedError


class Hooked(LooksOnly):
    def keep(self, seen):
        self.head.register_forward_pre_hook(lambda module, args: (args[0] - seen,))


class HookedBack(LooksOnly):
    def keep(self, seen):
        self.head.register_full_backward_hook(lambda module, inner, outer: (inner[0] * seen,))
        self.head.register_full_backward_pre_hook(lambda module, outer: (outer[0] * seen,))


class HookedTensor(LooksOnly):
    def keep(self, seen):
        def scale(bias):
            bias.grad.mul_(seen)

        self.head.weight.register_hook(lambda gradient: gradient * seen)
        self.head.bias.register_post_accumulate_grad_hook(scale)


class OnTheTensor(LooksOnly):
    def push(self, x):
        super().push(x)
        return getattr(self.head.weight, "seen", 0.0)

    def keep(self, seen):
        vars(self.head.weight)["seen"] = seen + getattr(self.head.weight, "seen", 0.0)


class WithoutGradient(LooksOnly):
    def keep(self, seen):
        if seen > 1.0:
            self.head.zero_grad()


class Mode(LooksOnly):
    """A layer that does not go back into training."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def train(self, mode=True):
        self.training = mode
        return self

    def push(self, x):
        super().push(x)
        return self.drop(x)

    def keep(self, seen):
        if seen > 1.0:
            self.drop.training = False


class Shift:
    """A hook that is an object with a memory."""

    def __init__(self) -> None:
        self.seen: float | torch.Tensor = 0.0

    def __call__(self, module, args):
        self.seen = 0.5 * self.seen + 0.1 * args[0].detach().mean(0)
        return (args[0] - self.seen,)


class HookObject(Base):
    def __init__(self) -> None:
        super().__init__()
        self.head.register_forward_pre_hook(Shift())


MEASURED = [
    *(Counting, Renormed, Hooked, HookedBack, HookedTensor, OnTheTensor),
    *(WithoutGradient, Mode, HookObject),
]


@pytest.mark.parametrize("method", ["restart", "rewind"])
@pytest.mark.parametrize("model", MEASURED, ids=lambda model: model.__name__)
def test_measuring_on_the_forgotten_records_changes_nothing(model, method):
    one, other = (forgetting(model, change, method) for change in (0.0, 50.0))
    assert claim_of(one)["grade"] == "exact"
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name


class WithLock(Base):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_a_model_that_cannot_be_copied_is_told():
    result = forgetting(WithLock, 0.0, "restart")
    with pytest.raises(InvalidInput, match=r"^the model WithLock cannot be copied \(.*lock"):
        _ = result.model


class Calls(Base):
    """Counts its calls; more than a visit has would show that the count outlived a visit."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def push(self, x):
        self.calls += 1
        assert self.calls <= 8
        return 0.01 * self.calls


@pytest.mark.parametrize("engine", [None, Fleet()], ids=["inprocess", "fleet"])
def test_every_engine_puts_back(engine):
    assert claim_of(forgetting(Calls, 0.0, "restart", engine))["grade"] == "exact"


def test_values_of_a_dictionary_and_a_set_are_put_back():
    model: Any = Base()
    model.table, model.names, model.fixed = {"a": 1}, {1, 2}, (1, "x")
    around = Surroundings(model)
    model.table["a"], model.table["b"] = 2, 3
    model.names.add(5)
    model.fixed = (2,)
    model.extra = nn.Linear(1, 1)
    model.head.calls = 3
    head = model.head
    del model.head
    around.put_back()
    assert (model.table, model.names, model.fixed) == ({"a": 1}, {1, 2}, (1, "x"))
    assert set(dict(model.named_children())) == {"head"}
    assert model.head is head
    assert not hasattr(head, "calls")


class InEvaluation(LooksOnly):
    """A closure that nothing puts back, and that only evaluation fills."""

    def __init__(self) -> None:
        super().__init__()
        kept: list[torch.Tensor] = []
        self.note, self.noted = kept.append, lambda: sum(kept)

    def push(self, x):
        super().push(x)
        return self.noted()

    def keep(self, seen):
        self.note(seen)


def test_the_probe_looks_at_evaluation_too():
    claim = claim_of(forgetting(InEvaluation, 0.0, "restart"))
    assert (claim["grade"], claim["code"]) == ("refused", "outside-state")


def test_putting_back_costs_little():
    """Twice per hop on a ResNet-18: a small part of one forward pass of one picture."""
    work = Workspace(build_model(lambda: resnet18((3, 32, 32), 10), 0))
    picture = torch.zeros(1, 3, 32, 32)

    def seconds(call):
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun

    def both():
        work.put_back()
        work.put_back(visited=True)

    work.model.eval()
    forward = min(seconds(lambda: work.model(picture)) for _ in range(10))
    assert min(seconds(both) for _ in range(30)) < forward / 10.0


def test_built_in_models_are_not_probed():
    task = build_task("blobs", peers=3)
    assert not task.own_code
    assert task.outside_state is None


def one_for_all():
    """A factory that hands out one and the same module."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES))
    return lambda: net


def one_body():
    """A pretrained body that is loaded once, and a new head for every model."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(FEATURES, 3), nn.BatchNorm1d(3)).requires_grad_(False)
    return lambda: nn.Sequential(body, nn.Linear(3, CLASSES))


@pytest.mark.parametrize("method", ["retrain", "restart"])
@pytest.mark.parametrize("factory", [one_for_all, one_body], ids=lambda made: made.__name__)
def test_a_walk_begins_from_the_initial_model_though_a_factory_hands_one_out(factory, method):
    one, other = (forgetting(factory(), change, method) for change in (0.0, 50.0))
    assert claim_of(one)["grade"] == "exact"
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name


@pytest.mark.parametrize("engine", [None, Fleet()], ids=["inprocess", "fleet"])
def test_the_released_file_holds_the_token_of_its_own_walk(engine):
    torch.manual_seed(0)
    net = nn.Linear(FEATURES, CLASSES)
    result = forgetting(lambda: net, 0.0, "restart", engine, compare=["finetune"])
    for walk in result.walks.values():
        saved = load(walk.saved())
        flat = torch.cat([saved["weight"].reshape(-1), saved["bias"]])
        assert torch.equal(flat, walk.outcome.token.parameters)


def test_the_file_of_a_token_has_tied_frozen_and_hidden_tensors_under_their_names():
    model: Any = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    model["b"].bias.requires_grad_(False)
    model.register_buffer("seen", torch.zeros(1))
    model.register_buffer("unsaved", torch.zeros(1), persistent=False)
    work = Workspace(model)
    token = Token(torch.arange(4.0), {"seen": torch.ones(1), "unsaved": torch.ones(1)})
    saved = work.state_dict(token)
    assert saved["a.weight"].tolist() == saved["b.weight"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert saved["seen"].tolist() == [1.0]
    assert torch.equal(saved["b.bias"], model["b"].bias)
    assert set(saved) == {"a.weight", "b.weight", "b.bias", "seen"}


class Mixing:
    """An augmentation that mixes what it has seen into what it sees."""

    def __init__(self) -> None:
        self.seen: float | torch.Tensor = 0.0

    def __call__(self, x, generator):
        self.seen = 0.5 * self.seen + 0.1 * x.mean(0)
        return x + self.seen


def mixing():
    """The same with what it has seen in a variable of a function round it."""
    seen: list[torch.Tensor] = []

    def mix(x, generator):
        seen.append(0.1 * x.mean(0))
        return x + sum(seen)

    return mix


class Warming:
    """A loss that heeds what it has seen after a few calls, too late for the probe."""

    def __init__(self) -> None:
        self.calls = 0
        self.level: float | torch.Tensor = 0.0

    def __call__(self, output, y):
        each = nn.functional.cross_entropy(output, y, reduction="none")
        self.calls += 1
        self.level = 0.9 * self.level + 0.1 * each.detach().mean()
        return each if self.calls < 4 else each * (1 + self.level)


def warming():
    """The same as a function, which keeps its calls in another one's variable."""
    loss = Warming()
    return lambda output, y: loss(output, y)


@pytest.mark.parametrize("method", ["restart", "retrain"])
@pytest.mark.parametrize(
    ("what", "make"),
    [("augment", Mixing), ("augment", mixing), ("loss", Warming), ("loss", warming)],
)
def test_what_a_loss_or_an_augmentation_keeps_does_not_survive_a_visit(what, make, method):
    one, other = (forgetting(Base, by, method, own={what: make()}) for by in (0.0, 50.0))
    assert claim_of(one)["grade"] == "exact"
    assert any("copies of loss and augmentation" in a for a in claim_of(one)["assumptions"])
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name


def test_an_augmentation_in_a_fleet_begins_anew_at_every_visit():
    fleet = (forgetting(Base, by, "restart", Fleet(), {"augment": Mixing()}) for by in (0.0, 50.0))
    one, other = (result.model.state_dict() for result in fleet)
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


class Few:
    """A loss that counts its calls; more than a hop has would show that the count outlived it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output, y):
        self.calls += 1
        assert self.calls <= 8
        return nn.functional.cross_entropy(output, y, reduction="none") * (1 + 0.01 * self.calls)


@pytest.mark.parametrize("engine", [None, Fleet()], ids=["inprocess", "fleet"])
def test_every_engine_begins_with_the_loss_as_it_was_given(engine):
    given = Few()
    assert claim_of(forgetting(Base, 0.0, "restart", engine, {"loss": given}))["grade"] == "exact"
    assert given.calls == 0


class Locked(Mixing):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def everywhere(x, generator):
    SEEN.append(float(x.mean()))
    return x + sum(SEEN)


@pytest.mark.parametrize(
    ("augment", "why"), [(Locked(), "Locked cannot be copied"), (everywhere, "changes once")]
)
def test_an_augmentation_that_cannot_be_put_back_is_refused(augment, why):
    claim = claim_of(forgetting(Base, 0.0, "restart", own={"augment": augment}))
    assert (claim["grade"], claim["code"]) == ("refused", "outside-state")
    assert why in claim["reason"]
