"""Baselines do the work that ours is compared with; reports keep what was measured."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from torch import nn

from benchmarks import fleet, gpu
from benchmarks.baselines import PlainFleet, PlainSteps, Report, plain_fleet_step, plain_step
from unwalk.core.token import Workspace, build_model
from unwalk.engines import fleet_steps
from unwalk.engines.cuda.groups import GROUPS
from unwalk.engines.fleet_gradients import BatchedGradient


def test_a_plain_fleet_takes_the_step_that_ours_takes():
    net = fleet.FLEETS["MLP 64-64-10"]
    work = Workspace(build_model(net.make, 0), "cpu")
    x, y = fleet.batches(net, "cpu", 3)
    theirs = PlainFleet(lambda: build_model(net.make, 0), x, y)
    team = fleet_steps.Team(
        parameters=work.parameters.repeat(3, 1),
        buffers={},
        moments={"momentum": torch.zeros(3, work.parameters.numel())},
        counters=torch.zeros(3, 1),
        knobs=torch.tensor([[0.01, 1.0, math.inf, 1.0, 0.9, 0.0]]).repeat(3, 1),
    )
    weights, active = torch.full((3, fleet.BATCH), 1 / fleet.BATCH), torch.ones(3, 1).bool()
    batch = fleet_steps.Batch(x, y, weights, active, None)
    kind = fleet_steps.Kind(fleet.RULE, None, clipped=False, noisy=False, decays=False)
    step = fleet_steps.Step(BatchedGradient(work.model, work.layout, None), team, kind, batch)
    for _ in range(2):
        step.replay()
        theirs.step()
    for row in range(3):
        for name, view in work.layout.views(team.parameters[row]).items():
            assert torch.allclose(theirs.parameters[name][row], view, atol=1e-6), name
    assert not torch.allclose(team.parameters[0], work.parameters, atol=1e-4)


def tiny() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 10)
    )


def test_plain_steps_move_every_parameter_and_are_timed():
    torch.manual_seed(0)
    x, y = torch.randn(5, 3, 4, 4), torch.randint(10, (5,))
    plain = PlainSteps(tiny(), x, y)
    before = [p.detach().float().clone() for p in plain.model.parameters()]
    for group in plain.optimizer.param_groups:
        group["lr"] = 1.0
    plain.steps(2)
    after = [p.detach().float() for p in plain.model.parameters()]
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert plain_step(tiny, x, y, mode=None, graph=True, together=1) > 0.0
    net = fleet.FLEETS["MLP 64-64-10"]
    both = plain_fleet_step(net.make, *fleet.batches(net, "cpu", 2), mode=None, together=1)
    assert min(both) > 0.0


def test_a_report_goes_on_after_what_fails_and_ends_when_the_time_is_up(tmp_path, capsys):
    report = Report("numbers", tmp_path / "new", minutes=1.0)

    def fails() -> float:
        raise RuntimeError("no such kernel")

    assert math.isnan(report.measure("first", fails, "ms"))
    whole = report.measure("second", lambda: 1.0, "ms")
    report.group("kept", whole, 1.2)
    report.group("lost", whole, 1.05)
    report.group("unknown", whole, math.nan)
    report.began -= 61.0
    assert math.isnan(report.measure("third", lambda: pytest.fail("too late"), "ms"))
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in shown[2:4]] == ["stays", "goes"]
    written = json.loads((tmp_path / "new" / "numbers.json").read_text())["numbers"]
    assert written["first"] == "RuntimeError: no such kernel"
    assert written["second, ms"] == 1.0
    assert written["  kept: saves of a whole step"] == pytest.approx(1 / 6)
    assert "--minutes" in written["third"]


def test_every_group_of_kernels_is_measured():
    single = {group for _, group in gpu.ABLATED}
    together = set(itertools.chain(*fleet.ABLATED.values()))
    assert single | together == set(GROUPS)
    assert all(group.startswith("fleet ") for group in together)
    assert {kind for kind, _ in gpu.ABLATED} == set(gpu.MODELS_OF)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to measure")
@pytest.mark.parametrize("arguments", [[], ["--ablate"], ["walks", "mnist"]])
def test_without_a_device_nothing_is_measured(arguments, capsys):
    assert gpu.main(arguments) == 0
    assert "nothing measured" in capsys.readouterr().out
