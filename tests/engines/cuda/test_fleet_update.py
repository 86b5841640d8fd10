"""Steps of many walks in one pass: what plain torch computes."""

import pytest
import torch

from tests.kernels import DEVICE, quiet, runs_kernels
from unwalk.core.program import StepRule
from unwalk.engines import fleet_steps

pytestmark = [runs_kernels, quiet]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("decays", [False, True])
def test_a_step_in_one_pass_is_the_same(optimizer, clipped, decays):
    from unwalk.engines.cuda.kernels import fleet_update

    torch.manual_seed(0)
    rows, size, waiting = 5, 1500, 2
    rule = StepRule(optimizer)
    parameters, slopes, velocity = (torch.randn(rows, size, device=DEVICE) for _ in range(3))
    slopes[waiting] = float("nan")
    clip = 0.5 if clipped else float("inf")
    decay = 0.1 if decays else 0.0
    knobs = torch.tensor(
        [[0.1 * (k + 1), 0.5 + k, clip, (-1.0) ** k, 0.9, decay] for k in range(rows)]
    ).to(DEVICE)
    active = torch.ones(rows, 1, dtype=torch.bool, device=DEVICE)
    active[waiting] = False
    kind = fleet_steps.Kind(rule, None, clipped=clipped, noisy=False, decays=decays)
    moments = {"momentum": velocity.clone()} if rule.slots else {}
    team = fleet_steps.Team(parameters.clone(), {}, moments, torch.zeros(rows, 1), knobs)
    none = torch.empty(0)
    wanted = fleet_steps.Batch(none, none, none, active, None)
    fleet_steps.update(team, kind, slopes.clone(), wanted)
    before = parameters[waiting].clone()
    norms = slopes.norm(dim=1) if clipped else None
    held = velocity if rule.slots else None
    fleet_update.step(parameters, slopes, held, knobs, active, norms, decays)
    assert torch.allclose(parameters, team.parameters, rtol=1e-5, atol=1e-5)
    assert torch.equal(parameters[waiting], before)
    assert not torch.equal(parameters[0], before)
    if held is not None:
        assert torch.allclose(held, team.moments["momentum"], rtol=1e-5, atol=1e-5)
