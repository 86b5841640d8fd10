"""Models in evaluation mode out of fused kernels against the models themselves."""

import pytest
import torch
from torch import nn

from tests.engines.cuda.test_fused_network import NETWORKS, made
from tests.kernels import DEVICE, runs_kernels
from unwalk.engines.cuda.fused_network import FusedEvaluation

pytestmark = runs_kernels


def changed(model):
    """As after some training: other parameters, other running statistics."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.running_mean.uniform_(-1.0, 1.0)
            norm.running_var.uniform_(0.5, 3.0)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_reader_answers_as_the_model_does(name):
    model, shape = made(name)
    reader = FusedEvaluation.of(model, torch.float32)
    assert reader is not None
    for seed in range(2):
        torch.manual_seed(seed)
        changed(model)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        x = torch.randn(5, *shape, device=DEVICE)
        reader.load()
        with torch.no_grad():
            found, wanted = reader(x), model.eval()(x)
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_model_that_cannot_be_rewritten_has_none():
    assert FusedEvaluation.of(nn.Linear(3, 2).to(DEVICE), torch.float32) is None
