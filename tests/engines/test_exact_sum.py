"""The sum of clipped gradients that DP training rests on: bounded, exact, record by record."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.engines.test_per_example import MODELS, ODD, ROW, TOLERANCE, case, loop
from unwalk.core.token import Workspace
from unwalk.engines.per_example import Batch, exact_sum

ALL = {**MODELS, **ODD}
SIXTH = torch.full((6,), 1 / 6, dtype=torch.float64)
HUGE = (0.0, 1.0, -3.5, 1e-300, 1e150, -1e300, float("inf"), float("nan"))


class Direct(nn.Module):
    """A model whose gradient is the input, whatever the numbers: the loss is theta x."""

    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(5, dtype=torch.float64))

    def forward(self, x):
        return x * self.theta


def itself(output, _):
    return output.sum(1)


def dropping():
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))


def counted(value: torch.Tensor) -> list[Fraction]:
    """A vector as exact fractions."""
    return [Fraction(float(v)) for v in value.reshape(-1)]


def squared(vector):
    return sum(v * v for v in vector)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", sorted(ALL))
def test_it_is_the_weighted_sum_of_the_clipped_gradients(name, dtype):
    model, x, y, _ = case(ALL[name], dtype)
    work, weights = Workspace(model), torch.tensor([1, 1, 0, 3, 0, 1], dtype=torch.float64) / 6
    for bound in (0.3, 2.0, 1e6):
        found = work.layout.views(exact_sum(work, Batch(x, y, bound=bound, weights=weights)))
        expected = loop(model, x, y, bound, weights)
        assert set(found) == set(expected)
        for key, value in expected.items():
            slack = 5 * TOLERANCE[dtype] + bound * 2.0**-48  # cut off to a grid that fits the bound
            assert torch.allclose(found[key], value.double(), rtol=0, atol=slack)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(HUGE) | st.floats(-9, 9), min_size=5, max_size=5), min_size=4,
             max_size=4),
    st.sets(st.integers(0, 3), min_size=1, max_size=4),
    st.sampled_from([1e-30, 0.3, 1.0, 7.7, 1e30]),
)  # fmt: skip
def test_leaving_records_out_moves_it_by_m_times_c_over_b_at_most_as_real_numbers(x, gone, bound):
    """Whatever the gradients are: huge, vanishing, infinite or no numbers."""
    work = Workspace(Direct())
    batch = Batch(torch.tensor(x, dtype=torch.float64), torch.zeros(4), bound=bound, loss=itself)

    def of(*places: int) -> list[Fraction]:
        weights = torch.tensor([0.25 * (place in places) for place in range(4)])
        return counted(exact_sum(work, replace(batch, weights=weights)))

    one, other = of(*range(4)), of(*({*range(4)} - gone))
    apart = squared([a - b for a, b in zip(one, other, strict=True)])
    assert apart <= (len(gone) * Fraction(bound) / 4) ** 2
    parts = [of(place) for place in gone]
    assert [a - b for a, b in zip(one, other, strict=True)] == [
        sum(numbers) for numbers in zip(*parts, strict=True)
    ]
    assert all(squared(part) <= (Fraction(bound) / 4) ** 2 for part in parts)


def test_a_gradient_longer_than_the_bound_is_used_nearly_up_to_it():
    work = Workspace(Direct())
    x = torch.full((4, 5), 1e200, dtype=torch.float64)
    mean = exact_sum(work, Batch(x, torch.zeros(4), bound=0.3, loss=itself))
    assert float(mean.norm()) == pytest.approx(0.3, rel=1e-12)


@pytest.mark.parametrize("name", sorted({*ALL, "dropout"}))
def test_what_a_record_adds_does_not_depend_on_the_records_beside_it(name):
    """To the bit, and with the coins of its place: what other places hold, or if they are empty."""
    for dtype in TOLERANCE:
        model, x, y, _ = case({**ALL, "dropout": (dropping, ROW)}[name], dtype, records=37)
        work, third = Workspace(model.train()), torch.arange(37) == 3
        ends = []
        for other in range(3):
            changed, labels = x.clone(), y.clone()
            if other:
                noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(other))
                changed[~third], labels[~third] = 50 * noise[~third].to(x), other
            torch.manual_seed(0)
            ends.append(exact_sum(work, Batch(changed, labels, bound=0.4, weights=third / 37)))
        assert ends[0].any()
        assert torch.equal(ends[0], ends[1])
        assert torch.equal(ends[0], ends[2])


def test_a_model_that_vmap_cannot_take_goes_record_by_record():
    class Asking(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x):
            return self.layer(x) * (2.0 if float(x.sum()) > 0 else 1.0)

    model, x, y, _ = case((Asking, ROW), torch.float64)
    work = Workspace(model)
    found = work.layout.views(exact_sum(work, Batch(x, y, bound=0.3)))
    for key, value in loop(model, x, y, 0.3, SIXTH).items():
        assert torch.allclose(found[key], value, rtol=0, atol=1e-9)


def test_an_error_of_the_model_is_not_swallowed():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x):
            raise RuntimeError("not today")

    model, x, y, _ = case((Failing, ROW), torch.float64)
    with pytest.raises(RuntimeError, match="not today"):
        exact_sum(Workspace(model), Batch(x, y, bound=0.3))


def test_a_loss_of_the_tasks_own_is_followed():
    model, x, y, _ = case(MODELS["mlp"], torch.float64)

    def twice(output, labels):
        return 2.0 * functional.cross_entropy(output, labels, reduction="none")

    work = Workspace(model)
    found = work.layout.views(exact_sum(work, Batch(x, y, bound=0.3, loss=twice)))
    for key, value in loop(model, x, y, 0.3, SIXTH, twice).items():
        assert torch.allclose(found[key], value, rtol=0, atol=1e-9)
