"""Who carries which plans."""

from dataclasses import replace

import pytest
from torch import nn

from tests.tiny import TinyTask, descent, linear, plan
from unwalk import walks
from unwalk.core.plan import Performance, Phase
from unwalk.core.token import build_model
from unwalk.engines import choose
from unwalk.engines.choose import carriers, carries, goes_together
from unwalk.methods.network_sgd import NetworkSGD


def mixing():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def grouped():
    return nn.Sequential(
        nn.Unflatten(1, (3, 1, 1)), nn.Conv2d(3, 3, 1, groups=3), nn.Flatten(), nn.Linear(3, 2)
    ).double()


def made(factory=linear, kind="epochs", **options):
    phase = Phase("train", NetworkSGD(descent(kind=kind)), walks.Uniform(), 2)
    return plan(phase, task=TinyTask(factory=factory), **options)


def told(chosen):
    return [(engine.name, list(numbers)) for engine, numbers in chosen]


@pytest.fixture
def on_a_card(monkeypatch):
    monkeypatch.setattr(choose, "worthwhile", lambda plan, model: True)


def test_on_a_cpu_walks_go_one_by_one():
    plans = [made(seed=seed) for seed in range(3)]
    assert told(carriers(plans, "auto")) == [("inprocess", [0, 1, 2])]
    assert not goes_together(plans, "auto")
    assert told(carriers(plans, "fleet")) == [("fleet", [0, 1, 2])]
    assert told(carriers(plans, "inprocess")) == [("inprocess", [0, 1, 2])]


@pytest.mark.usefixtures("on_a_card")
def test_a_fleet_has_one_architecture_and_more_than_one_walk():
    plans = [made(), made(lambda: linear(3, 5)), made(seed=1), made(grouped), made(seed=2)]
    assert told(carriers(plans, "auto")) == [("fleet", [0, 2, 4]), ("inprocess", [1, 3])]
    assert told(carriers(plans[:1], "auto")) == [("inprocess", [0])]
    assert goes_together(plans, "auto")


def test_walks_that_are_worth_it_are_on_a_card_and_small(monkeypatch):
    model = build_model(linear, 0)
    card = replace(made(), performance=Performance(device="cuda"))
    assert choose.worthwhile(card, model)
    assert not choose.worthwhile(made(), model)
    monkeypatch.setattr(choose, "LARGEST", 7)
    assert not choose.worthwhile(card, model)


@pytest.mark.parametrize(
    ("factory", "kind", "can"),
    [
        (linear, "averaged", True),
        (linear, "full", True),
        (mixing, "epochs", True),
        (mixing, "iid", True),
        (mixing, "averaged", False),
        (mixing, "full", False),
        (grouped, "epochs", False),
    ],
)
def test_what_a_fleet_can_carry(factory, kind, can):
    asked = made(factory, kind)
    assert carries(asked, build_model(factory, 0)) is can
