"""Built-in models learn; a user's own is found, called and checked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from unwalk.core.data import Held
from unwalk.core.errors import InvalidInput
from unwalk.core.workspace import build_model
from unwalk.tasks import MODELS, Deletion, build_task, check_model, load_factory
from unwalk.tasks.models import Factory, resolve_model

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
    ],
)
def test_sizes_are_pinned_and_outputs_fit(name, shape, classes, parameters):
    model = MODELS[name].build(shape, classes)
    assert count(model) == parameters
    assert model(torch.zeros(3, *shape)).shape == (3, classes)
    assert not list(model.buffers())


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
