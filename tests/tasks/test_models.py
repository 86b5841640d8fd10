"""Built-in models learn; a user's own is found, called and checked."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from unwalk.core.data import Held
from unwalk.core.errors import InvalidInput
from unwalk.core.token import build_model
from unwalk.tasks import MODELS, Deletion, build_task, check_model, load_factory
from unwalk.tasks.models import Factory, resolve_model

BATCH_NORM = ("flnet", "resnet9", "resnet18", "resnet18-plain")
SAMPLE = Held(torch.zeros(2, 1, 8, 8), torch.tensor([0, 1]))


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("small-cnn", (1, 8, 8), 10, 9_930),
        ("small-cnn", (1, 28, 28), 10, 67_530),
        ("small-cnn", (3, 5, 7), 4, 6_628),
        ("small-cnn", (1, 1, 1), 2, 4_866),
        ("mlp", (1, 8, 8), 10, 4_810),
        ("mlp", (13,), 2, 1_026),
        ("logistic", (1, 8, 8), 10, 650),
        ("logistic", (16,), 4, 68),
        ("linear", (16,), 4, 64),
        ("linear", (1, 8, 8), 10, 640),
        ("flnet", (1, 28, 28), 10, 62_538),
        ("flnet", (3, 32, 32), 10, 69_898),
        ("flnet", (2, 16, 17), 3, 53_283),
        ("flnet-gn", (1, 28, 28), 10, 62_538),
        ("resnet9", (3, 32, 32), 10, 2_274_890),
        ("resnet18", (3, 32, 32), 10, 11_173_962),
        ("resnet18", (1, 12, 9), 4, 11_169_732),
        ("resnet18-gn", (3, 32, 32), 10, 11_173_962),
        ("resnet18-plain", (3, 32, 32), 10, 11_173_962),
    ],
)
def test_sizes_are_pinned_and_outputs_fit(name, shape, classes, parameters):
    model = MODELS[name].build(shape, classes)
    assert count(model) == parameters
    assert model(torch.zeros(3, *shape)).shape == (3, classes)
    assert bool(list(model.buffers())) == (name in BATCH_NORM)


def test_flnet_is_the_papers_layer_by_layer():
    layers: list[Any] = list(MODELS["flnet"].build((1, 28, 28), 10).children())
    assert [type(layer).__name__ for layer in layers] == [
        *("Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d") * 2,
        *("Flatten", "Dropout", "Linear"),
    ]
    first, second, head = layers[0], layers[4], layers[-1]
    for layer, inner, outer in ((first, 1, 32), (second, 32, 64)):
        assert (layer.in_channels, layer.out_channels) == (inner, outer)
        assert (layer.kernel_size, layer.padding, layer.stride) == ((5, 5), (0, 0), (1, 1))
    assert (head.in_features, head.out_features) == (1024, 10)
    assert layers[9].p == 0.5


def test_one_step_moves_every_parameter_of_a_resnet9_and_its_running_means():
    model = build_model(lambda: MODELS["resnet9"].build((3, 8, 8), 4), 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    functional.cross_entropy(model.train()(x), torch.arange(8) % 4).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.1)
    for name, value in model.state_dict().items():
        assert not torch.equal(value, before[name]), name


def test_resnet_keeps_small_pictures_large():
    model = MODELS["resnet18"].build((3, 32, 32), 10)
    x, sizes = torch.zeros(1, 3, 32, 32), []
    for layer in model.children():
        x = layer(x)
        sizes.append(tuple(x.shape[1:]))
    assert sizes[2] == (64, 32, 32), "no stride, no pool before the first stage"
    assert sizes[3:11] == [
        *[(64, 32, 32)] * 2,
        *[(128, 16, 16)] * 2,
        *[(256, 8, 8)] * 2,
        *[(512, 4, 4)] * 2,
    ]
    assert sizes[11] == (512, 1, 1)
    strided = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert len(strided) == 3, "the input is brought to its new size in three blocks"


@pytest.mark.parametrize("name", ["flnet", "flnet-gn", "resnet18", "resnet18-gn", "linear"])
def test_the_gradient_reaches_every_parameter(name):
    model = build_model(lambda: MODELS[name].build((1, 16, 16), 3), 0)
    x = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 0])).backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, path
        assert torch.isfinite(parameter.grad).all(), path
        before_a_norm = isinstance(model.get_submodule(path.rpartition(".")[0]), nn.Conv2d)
        if not (path.endswith("bias") and before_a_norm):  # the norm takes such a bias away
            assert parameter.grad.abs().max() > 0, path


@pytest.mark.parametrize("name", ["flnet", "resnet18"])
def test_records_mix_under_batchnorm_only(name):
    x = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    other = torch.cat([x[:1], 3.0 * x[1:]])
    for norm, mixes in (("", True), ("-gn", False)):
        model = MODELS[name + norm].build((1, 16, 16), 3).train()
        for layer in model.modules():
            if isinstance(layer, nn.Dropout):
                layer.eval()
        with torch.no_grad():
            same = torch.allclose(model(x)[0], model(other)[0], atol=1e-5)
        assert same is not mixes


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("flnet", (16,), r"'flnet' takes pictures .* shape \(16,\)"),
        ("resnet9", (3, 8, 2), "takes pictures of 3 x 3 pixels or more; .* have 8 x 2"),
        ("flnet-gn", (1, 28, 15), "takes pictures of 16 x 16 pixels or more; .* have 28 x 15"),
        ("resnet18", (28, 28), r"'resnet18' takes pictures .* shape \(28, 28\)"),
    ],
)
def test_inputs_that_a_model_cannot_take_are_refused(name, shape, words):
    with pytest.raises(InvalidInput, match=words):
        MODELS[name].build(shape, 10)


def accuracy_after(name: str, steps: int) -> float:
    """Accuracy on digits after plain SGD on all records together."""
    task = build_task("digits", forget=Deletion("nothing"), model=name)
    shards = [task.shard(v) for v in range(task.peers)]
    x, y = torch.cat([s.x for s in shards]), torch.cat([s.y for s in shards])
    model = build_model(task.model, 0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        rows = torch.from_numpy(rng.integers(len(y), size=64))
        optimizer.zero_grad()
        functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        return float((model(task.test.x).argmax(1) == task.test.y).double().mean())


@pytest.mark.parametrize(("name", "least"), [("small-cnn", 0.95), ("mlp", 0.92), ("logistic", 0.9)])
def test_models_learn_the_digits_in_few_steps(name, least):
    assert accuracy_after(name, 120) > least


def test_the_first_model_is_drawn_from_the_global_generator():
    task = build_task("digits")
    one, same, other = (build_model(task.model, s).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not all(torch.equal(one[k], other[k]) for k in one)


def test_checking_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    build_task("digits")
    assert torch.equal(torch.rand(3), expected)


def test_a_brought_model_is_the_initial_one():
    brought = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    task = build_task("digits", model=brought)
    first, second = task.model(), task.model()
    assert torch.equal(first.state_dict()["1.weight"], brought.state_dict()["1.weight"])
    assert first is not second
    assert first is not brought
    assert task.model_name == "Sequential"


def test_a_function_or_class_makes_a_model():
    def tall() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    task = build_task("digits", model=tall)
    assert task.model_name == "tall"
    assert count(task.model()) == 650


MODULE = """
from torch import nn

def good():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def needs_more(width):
    return None

def not_a_model():
    return 3

constant = 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory, which is not on Python's path."""
    (tmp_path / "brought_models.py").write_text(MODULE)
    (tmp_path / "brought_broken.py").write_text("import brought_gone\n")
    (tmp_path / "brought_wrong.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in __import__("sys").path if p not in ("", ".")])
    return tmp_path


def test_a_factory_is_found_in_the_current_directory(here):
    task = build_task("digits", model="brought_models:good")
    assert task.model_name == "brought_models:good"
    assert count(task.model()) == 650


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("brought_models:godo", r"has no 'godo' \(did you mean good\?\)"),
        ("brought_models:constant", "which is a int; allowed: a function or class"),
        ("brought_models:", "allowed: package.module:function"),
        ("brought models:good", "allowed: package.module:function"),
        ("brought_missing:good", "no module 'brought_missing' on Python's path or in the current"),
        ("brought_broken:good", "importing 'brought_broken' failed: .* 'brought_gone'"),
        ("brought_wrong:good", "importing 'brought_wrong' failed: ZeroDivisionError"),
    ],
)
def test_a_factory_that_cannot_be_loaded_is_named(here, text, words):
    with pytest.raises(InvalidInput, match=words):
        load_factory(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("brought_models:needs_more", "failed when it was called: TypeError: .*width"),
        ("brought_models:not_a_model", "returned a int; allowed: a torch.nn.Module"),
    ],
)
def test_a_factory_that_fails_is_named(here, text, words):
    with pytest.raises(InvalidInput, match=words):
        build_task("digits", model=text)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.layer(x.flatten(1))
        return out, out


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 7)),
            r"output for 2 records has shape \(2, 7\); labels 0 to 9 need \(2, 10\)",
        ),
        (nn.Conv2d(1, 3, 3), r"has shape \(2, 3, 6, 6\); labels 0 to 9 need \(2, 10\)"),
        (nn.Linear(5, 10), r"cannot take inputs of shape \(1, 8, 8\): RuntimeError: .*"),
        (Pair(), r"output is a tuple; labels 0 to 9 need \(2, 10\) as a tensor"),
    ],
)
def test_an_output_that_does_not_fit_the_labels_is_refused(model, words):
    with pytest.raises(InvalidInput, match=words):
        check_model(resolve_model(model, (1, 8, 8), 10), SAMPLE, 10)
    with pytest.raises(InvalidInput, match=words):
        build_task("digits", model=model)


def test_a_loss_is_a_number_for_each_record():
    factory = Factory("one", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(InvalidInput, match=r"loss of 2 records has shape \(\); allowed: \(2,\)"):
        check_model(factory, SAMPLE, 10, functional.cross_entropy)

    def hinge(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.multi_margin_loss(output, label, reduction="none")

    task = build_task("digits", loss=hinge)
    assert task.loss is hinge


def test_models_of_a_factory_that_shares_have_nothing_in_common():
    weight = torch.ones(10, 64)

    def views():
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        model[1].register_buffer("memory", weight.view(-1))
        return model

    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    for make in (views, lambda: net):
        factory = resolve_model(make, (64,), 10)
        first, second = factory(), factory()
        mine, yours = ([*made.parameters(), *made.buffers()] for made in (first, second))
        assert {t.data_ptr() for t in mine}.isdisjoint(t.data_ptr() for t in yours)
        for tensor in mine:
            tensor.data.fill_(7)
        assert not any((tensor == 7).all() for tensor in (*factory().parameters(), weight))


def test_a_fresh_model_is_handed_out_as_it_was_made():
    """A copy would no longer be what a function of the user's own refers to."""
    made = []

    def make():
        made.append(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
        return made[-1]

    assert resolve_model(make, (64,), 10)() is made[0]


def test_a_factory_that_returns_a_model_again_is_refused():
    pool = [nn.Linear(64, 10) for _ in range(3)]
    calls = iter([0, 1, 2, 0])
    factory = resolve_model(lambda: pool[next(calls)], (64,), 10)
    factory(), factory()
    with pytest.raises(InvalidInput, match="returned before"):
        factory()


def test_a_shared_model_that_cannot_be_copied_is_refused():
    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo):
            return self

    net = Stubborn(64, 10)
    with pytest.raises(InvalidInput, match="in common"):
        resolve_model(lambda: net, (64,), 10)()
    locked: Any = nn.Linear(64, 10)
    locked.lock = threading.Lock()
    with pytest.raises(InvalidInput, match="cannot be copied"):
        resolve_model(lambda: locked, (64,), 10)()


def test_a_factory_can_be_sent_to_another_process():
    """Several processes of a comparison are given the task of whoever brought one."""
    factory = Factory("own", nn.Identity, own=True)
    factory()
    sent = pickle.loads(pickle.dumps(factory))
    assert (sent.name, sent.own, type(sent())) == ("own", True, nn.Identity)
