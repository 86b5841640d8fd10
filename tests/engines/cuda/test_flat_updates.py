"""Updates of captured steps are those of the reference, on any device."""

import numpy as np
import pytest
import torch

from tests.kernels import DEVICE, quiet, runs_kernels
from unwalk.core.program import StepRule, Steps
from unwalk.engines.cuda.captured_steps import UPDATES, update
from unwalk.engines.cuda.flat_copy import Block
from unwalk.engines.cuda.groups import without
from unwalk.engines.execute import apply_rule


@pytest.mark.parametrize("optimizer", UPDATES)
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_is_the_reference_s(optimizer, decay, dtype):
    torch.manual_seed(0)
    rule = StepRule(optimizer, weight_decay=decay)
    masters, gradient = torch.randn(9), torch.randn(9).to(dtype)
    moments = {slot: torch.rand(9) for slot in rule.slots}
    op = Steps(np.zeros((1, 1, 1), np.int64), "all", rule, 0.05)
    wanted, kept = masters.clone(), {slot: moment.clone() for slot, moment in moments.items()}
    apply_rule(op, wanted, gradient.float() * 0.5, kept, 3)
    values = masters if dtype == torch.float32 else torch.zeros(9, dtype=dtype)
    block = Block(["w"], masters, values, gradient, [], moments)
    knobs = torch.tensor([0.05, 0.5, 0.0, rule.momentum, decay, 0.0])
    update(rule, block, knobs[1], knobs, torch.tensor(3.0))
    assert torch.allclose(masters, wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(values, masters.to(dtype))
    for slot, moment in kept.items():
        assert torch.allclose(moments[slot], moment, rtol=1e-5, atol=1e-6), slot


@runs_kernels
@quiet
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_in_one_pass_is_that_of_plain_torch(optimizer, decay, dtype):
    from unwalk.engines.cuda.kernels.update import BLOCK, descend

    torch.manual_seed(0)
    size, rule = 2 * BLOCK + 5, StepRule(optimizer, weight_decay=decay)
    masters, velocity = (torch.randn(size, device=DEVICE) for _ in range(2))
    gradient = torch.randn(size, device=DEVICE).to(dtype)
    held = velocity if rule.slots else None
    values = masters if dtype == torch.float32 else torch.zeros_like(gradient)
    wanted, moved = masters.clone(), velocity.clone()
    knobs = torch.tensor([0.05, -0.5, 0.0, rule.momentum, decay, 0.0], device=DEVICE)
    moments = {"momentum": moved} if rule.slots else {}
    plain = Block(["w"], wanted, wanted, gradient.float(), [], moments)
    with without("updates"):
        update(rule, plain, knobs[1], knobs, torch.ones(()))
    before = masters.clone()
    descend(masters, values, gradient, held, knobs, knobs[1], bool(decay))
    assert not torch.equal(masters, before)
    assert torch.allclose(masters, wanted, rtol=1e-5, atol=1e-6)
    assert torch.allclose(velocity, moved, rtol=1e-5, atol=1e-6)
    assert torch.allclose(values.float(), masters, rtol=2**-7, atol=0.0)
