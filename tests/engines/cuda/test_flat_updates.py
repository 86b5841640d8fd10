"""Updates of captured steps are those of the reference, on any device."""

import numpy as np
import pytest
import torch

from unwalk.core.program import StepRule, Steps
from unwalk.engines.cuda.captured_steps import UPDATES, update
from unwalk.engines.cuda.flat_copy import Block
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
