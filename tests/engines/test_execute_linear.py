"""The gradient of a bare linear layer by our own hands, and inputs inside their bound."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.nn import functional

from unwalk.core.data import Shard, within
from unwalk.core.program import Records
from unwalk.engines.execute import BareLinear, bare_linear


def data(rows, inputs, outputs, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=rng, dtype=torch.float64)
    y = torch.randint(outputs, (rows,), generator=rng)
    weights = torch.rand(rows, generator=rng, dtype=torch.float64)
    return x, y, weights


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_the_gradient_is_that_of_cross_entropy(bias, rows):
    x, y, weights = data(rows, 6, 4)
    layer = nn.Linear(6, 4, bias=bias, dtype=torch.float64)
    losses = functional.cross_entropy(layer(x), y, reduction="none")
    (losses * weights).sum().backward()
    wanted = torch.cat([p.grad.reshape(-1) for p in layer.parameters()])  # type: ignore[union-attr]
    flat = torch.cat([p.detach().reshape(-1) for p in layer.parameters()])
    found = BareLinear(6, 4, bias).gradient(flat, x, y, weights)
    assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_many_models_at_once_are_each_as_alone():
    head = BareLinear(12, 3, bias=True)
    flat = torch.randn(5, 39, dtype=torch.float64)
    x, y, weights = data(20, 12, 3)
    x = x.view(5, 4, 3, 4)
    y, weights = y.view(5, 4), weights.view(5, 4)
    many = head.gradient(flat, x, y, weights)
    for k in range(5):
        alone = head.gradient(flat[k], x[k], y[k], weights[k])
        assert torch.allclose(many[k], alone, rtol=1e-12, atol=1e-14)


def test_large_logits_neither_overflow_nor_vanish():
    x = torch.ones(1, 1, dtype=torch.float64)
    flat = torch.tensor([1e300, -1e300, 0.0], dtype=torch.float64)
    found = BareLinear(1, 3, bias=False).gradient(
        flat, x, torch.tensor([1]), torch.ones(1).double()
    )
    assert found.tolist() == [1.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (nn.Linear(3, 2), BareLinear(3, 2, bias=True)),
        (nn.Sequential(nn.Flatten(), nn.Linear(3, 2, bias=False)), BareLinear(3, 2, bias=False)),
        (nn.Sequential(nn.Flatten(0), nn.Linear(3, 2)), "start_dim=0"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), "before its last layer"),
        (nn.Sequential(nn.Linear(3, 2), nn.Flatten()), "Flatten as its last layer"),
        (nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), "layer ReLU"),
        (nn.Sequential(), "last layer"),
    ],
)
def test_what_is_a_bare_linear_layer(model, found):
    if isinstance(found, str):
        assert found in str(bare_linear(model))
    else:
        assert bare_linear(model) == found


def test_a_buffer_or_an_attribute_makes_a_layer_another():
    layer = nn.Linear(3, 2)
    layer.register_buffer("seen", torch.zeros(1))
    assert bare_linear(layer) == "buffers"
    layer = nn.Linear(3, 2)
    layer.note = []  # type: ignore[assignment]
    assert "attribute 'note'" in str(bare_linear(layer))


def test_a_bias_before_its_weight_is_another_layer():
    """The gradient here takes the flat vector to begin with the weight."""
    layer = nn.Linear(3, 2)
    weight, bias = layer.weight, layer.bias
    del layer.weight, layer.bias
    layer.bias, layer.weight = bias, weight
    assert bare_linear(layer) == "parameters in the order bias, weight"
    assert bare_linear(nn.Sequential(nn.Flatten(), layer)) == "parameters in the order bias, weight"


def exact_square(row):
    return sum(Fraction(v) ** 2 for v in row.tolist())


def test_inputs_are_brought_inside_one_by_one():
    x, _, _ = data(50, 9, 2)
    x = x / x.norm(dim=1, keepdim=True) * torch.linspace(0.999, 1.001, 50).double().unsqueeze(1)
    x[7] = torch.nan
    x[8] = torch.inf
    x[9] = 1e200
    for norm in (1.0, 0.7):
        inside = within(x, norm)
        assert all(exact_square(row) <= Fraction(norm) ** 2 for row in inside)
        assert within(inside, norm) is inside
        for rows in (slice(0, 1), slice(3, 40), slice(5, 50, 7)):  # whoever stands beside
            assert torch.equal(within(x[rows], norm), inside[rows])
    short = x[:3] * 0.5
    assert within(short, 1.0) is short
    assert torch.allclose(within(x, 1.0)[20], x[20], rtol=2e-3)
    shard = Shard(x, torch.zeros(50, dtype=torch.int64), Records(50))
    assert torch.equal(shard.inside(1.0).x, within(x, 1.0))
    assert shard.to(torch.device("cpu"), torch.float32).x.dtype == torch.float32


def test_the_constant_of_a_bias_counts_among_the_features():
    assert BareLinear(3, 2, bias=False).input_norm(1.5) == 1.5
    left = BareLinear(3, 2, bias=True).input_norm(1.5)
    assert Fraction(left) ** 2 + 1 <= Fraction(1.5) ** 2
    assert left == pytest.approx(1.25**0.5, rel=1e-12)
