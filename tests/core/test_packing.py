"""Packed whole numbers: what was packed comes back, in as many bytes as promised."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unwalk.core.packing import WIDEST, from_triangle, packed, size_of, triangle, unpacked


@given(st.integers(2, WIDEST), st.integers(0, 40), st.data())
def test_what_was_packed_comes_back(width, count, data):
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    values = data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    numbers = torch.tensor(values, dtype=torch.int64)
    found = packed(numbers, width)
    assert found.dtype == torch.uint8
    assert found.numel() == size_of(count, width) <= count * width / 8 + width
    assert unpacked(found, width, count).tolist() == values


def bits_of(values: list[int], width: int) -> list[int]:
    """The same by arithmetic on one long integer."""
    whole = sum((value % (1 << width)) << (width * place) for place, value in enumerate(values))
    return list(whole.to_bytes(size_of(len(values), width), "little"))


@pytest.mark.parametrize("width", [2, 7, 8, 13, 31, 33, 62])
def test_the_bytes_are_the_numbers_one_behind_the_other(width):
    high = (1 << (width - 1)) - 1
    values = [0, 1, -1, high, -high - 1, high // 3, -2, 1, -1, 0, high // 5]
    assert packed(torch.tensor(values), width).tolist() == bits_of(values, width)


@given(st.integers(1, 12))
def test_a_symmetric_matrix_is_its_triangle(side):
    matrix = torch.arange(side * side).view(side, side)
    matrix = matrix + matrix.T
    assert triangle(matrix).numel() == side * (side + 1) // 2
    assert torch.equal(from_triangle(triangle(matrix), side), matrix)
