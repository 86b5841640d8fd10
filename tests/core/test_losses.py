"""The losses of numbers and of several labels: against torch's own, and their slopes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from unwalk.core.errors import InvalidInput
from unwalk.core.losses import Binary, Huber, is_built_in, loss_for, regressed, softmax_residual


def outputs(count: int = 3) -> torch.Tensor:
    rng = torch.Generator().manual_seed(count)
    return 4.0 * torch.randn(50, count, generator=rng, dtype=torch.float64)


def test_huber_is_torch_s():
    z, y = outputs(1), torch.linspace(-3, 3, 50, dtype=torch.float64)
    for bound in (0.3, 1.0, 50.0):
        wanted = functional.huber_loss(z.squeeze(1), y, reduction="none", delta=bound)
        assert torch.allclose(Huber(bound)(z, y), wanted, rtol=1e-12)


def test_binary_is_the_mean_of_torch_s():
    z, y = outputs(), (outputs(3).flip(0) > 0).double()
    wanted = functional.binary_cross_entropy(z.sigmoid(), y, reduction="none").mean(1)
    assert torch.allclose(Binary()(z, y), wanted, rtol=1e-10)


@pytest.mark.parametrize(
    ("loss", "z", "y"),
    [
        (Huber(0.7), outputs(1), torch.linspace(-3, 3, 50, dtype=torch.float64)),
        (Binary(), outputs(), (outputs(3).flip(0) > 0).double()),
    ],
)
def test_residuals_are_the_slopes_of_the_loss(loss, z, y):
    z = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(z, y).sum(), z)
    assert torch.allclose(loss.residual(z.detach(), y), slope, rtol=1e-12, atol=1e-15)


def test_the_residual_of_softmax_is_the_slope_of_cross_entropy():
    z, y = outputs().requires_grad_(), torch.arange(50) % 3
    (slope,) = torch.autograd.grad(functional.cross_entropy(z, y, reduction="sum"), z)
    assert torch.allclose(softmax_residual(z.detach(), y), slope, atol=1e-15)


def test_far_outputs_have_slopes_all_the_same():
    far = torch.tensor([[-1e4, 1e4, 0.0]], dtype=torch.float64)
    slopes = Binary().residual(far, torch.tensor([[1.0, 0.0, 1.0]]))
    assert slopes.tolist() == [[-1 / 3, 1 / 3, -1 / 6]]


def test_what_a_ridge_head_is_fitted_to():
    assert regressed(torch.tensor([[1.0, 0.0]]), 2).tolist() == [[1.0, -1.0]]
    assert loss_for("class") is None
    with pytest.raises(InvalidInput, match=r"data\.huber is 0"):
        loss_for("number", 0.0)


def test_a_loss_that_was_changed_is_a_users_own():
    class Steep(Huber):
        def residual(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return 100.0 * super().residual(output, y)

    changed = Binary()
    object.__setattr__(changed, "residual", lambda output, y: 100.0 * output)
    assert is_built_in(Huber(2.0))
    assert is_built_in(Binary())
    assert not any(map(is_built_in, (Steep(2.0), changed, functional.huber_loss, None)))
