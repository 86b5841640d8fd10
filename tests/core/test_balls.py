"""Projections that do not leave their ball, as real numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unwalk.core.rounding import onto_ball


def squared(theta, centre):
    return sum(
        (
            (Fraction(a) - Fraction(b)) ** 2
            for a, b in zip(theta.tolist(), centre.tolist(), strict=True)
        ),
        Fraction(0),
    )


def floats(dtype):
    width = 32 if dtype == torch.float32 else 64
    most = 2.0**100 if width == 32 else 2.0**1000
    tiny = st.floats(-(2.0**-120), 2.0**-120, width=width)
    return st.one_of(
        st.floats(-2, 2, width=width), st.floats(-most, most, width=width), tiny, st.just(0.0)
    )


@given(st.data(), st.sampled_from([torch.float32, torch.float64]))
def test_projections_stay_inside_as_real_numbers(data, dtype):
    size = data.draw(st.integers(1, 6))
    vector = st.lists(floats(dtype), min_size=size, max_size=size)
    theta, centre = (torch.tensor(data.draw(vector), dtype=dtype) for _ in range(2))
    radius = data.draw(
        st.one_of(st.floats(0.0, 4.0), st.floats(0.0, 2.0**-1000), st.floats(0.0, 1e300))
    )
    there = onto_ball(theta, centre, radius)
    assert there.dtype == dtype
    assert squared(there, centre) <= Fraction(radius) ** 2
    # What moves goes towards the centre, and what lies well inside stays.
    before, length = squared(theta, centre), Fraction(radius)
    assert squared(there, centre) <= before or before == 0
    reach = sum(abs(Fraction(x)) for x in centre.tolist())
    ulp = Fraction(2) ** (-20 if dtype == torch.float32 else -49)
    room = (
        length - ulp * (length + reach) - Fraction(2) ** (-145 if dtype == torch.float32 else -1070)
    )
    if room >= 0 and before <= room**2:
        assert torch.equal(there, theta)


@given(st.data())
def test_projections_are_close_to_the_projection(data):
    """In the middle of the format the result is the textbook's up to rounding."""
    size = data.draw(st.integers(1, 6))
    vector = st.lists(st.floats(-2, 2), min_size=size, max_size=size)
    theta, centre = (torch.tensor(data.draw(vector), dtype=torch.float64) for _ in range(2))
    radius = data.draw(st.floats(0.01, 4.0))
    length = float((theta - centre).norm())
    textbook = centre + (theta - centre) * (min(1.0, radius / length) if length > 0 else 1.0)
    assert torch.allclose(onto_ball(theta, centre, radius), textbook, rtol=0, atol=1e-13)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_not_finite_becomes_the_centre(bad, dtype):
    theta = torch.tensor([0.5, bad, 1.0], dtype=dtype)
    centre = torch.tensor([0.1, 0.2, 0.3], dtype=dtype)
    assert torch.equal(onto_ball(theta, centre, 1.0), centre)
    assert torch.equal(onto_ball(theta, None, 1.0), torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize("scale", [2.0**-600, 2.0**600])
def test_squares_that_overflow_or_vanish_do_no_harm(scale):
    theta = torch.tensor([3.0, 4.0], dtype=torch.float64) * scale
    there = onto_ball(theta, None, scale)
    assert squared(there, torch.zeros(2)) <= Fraction(scale) ** 2
    assert torch.allclose(there / scale, torch.tensor([0.6, 0.8], dtype=torch.float64))


@pytest.mark.parametrize(("dtype", "last"), [(torch.float32, -149), (torch.float64, -1074)])
def test_balls_as_small_as_the_last_numbers_of_the_format_are_not_left(dtype, last):
    """Three quarters of the last place would be stored as one."""
    last_place, size = math.ldexp(1.0, last), 16
    theta = torch.full((size,), 9 * last_place, dtype=dtype)
    there = onto_ball(theta, None, 3 * last_place)
    assert squared(there, torch.zeros(size)) <= Fraction(3 * last_place) ** 2
    inside = torch.full((size,), last_place, dtype=dtype)
    assert torch.equal(onto_ball(inside, None, 99 * last_place), inside)
