"""An optimizer that an engine does not know: the engine refuses it, or leaves it to the reference.

Such an optimizer appears when its name is added to OPTIMIZERS and an engine is forgotten.
"""

import numpy as np
import pytest
import torch

from tests.tiny import descent, plan
from unwalk import walks
from unwalk.core import events as ev
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Phase
from unwalk.core.program import StepRule, Steps
from unwalk.core.token import build_model
from unwalk.engines.choose import carries
from unwalk.engines.cuda import CapturedSteps
from unwalk.engines.execute import apply_rule
from unwalk.engines.fleet import Fleet
from unwalk.engines.inprocess import InProcess
from unwalk.methods.network_sgd import NetworkSGD


@pytest.fixture(autouse=True)
def _one_more(monkeypatch):
    monkeypatch.setitem(ev.OPTIMIZERS, "newest", ("momentum",))


def walking(optimizer):
    return plan(Phase("train", NetworkSGD(descent(optimizer)), walks.Uniform(), 2))


def steps(optimizer):
    return Steps(np.zeros((1, 1, 4), np.int64), "all", StepRule(optimizer), 0.1)


@pytest.mark.parametrize("engine", [InProcess(), Fleet()], ids=["inprocess", "fleet"])
def test_engines_refuse_an_optimizer_that_they_do_not_know(engine):
    with pytest.raises(InvalidInput, match="'newest'"):
        list(engine.run([walking("newest")]))


@pytest.mark.parametrize("optimizer", [*ev.OPTIMIZERS, "newest"])
def test_only_known_optimizers_go_in_fleets_and_captured_steps(optimizer):
    asked, known = walking(optimizer), optimizer != "newest"
    assert carries(asked, build_model(asked.task.model, 0)) is known
    assert CapturedSteps.can_run(steps(optimizer)) is known


def test_the_reference_does_not_take_an_unknown_optimizer_for_another():
    parameters, gradient = torch.zeros(3), torch.ones(3)
    moments = {slot: torch.zeros(3) for slot in ev.MOMENTS}
    with pytest.raises(InvalidInput, match="'newest'"):
        apply_rule(steps("newest"), parameters, gradient, moments, 1)
    assert not parameters.any()
