"""Numbers of any size are judged, and said in one line."""

from __future__ import annotations

import math

import pytest

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_count, check_number


@pytest.mark.parametrize(
    "value", [10**400, -(10**400), math.nan, math.inf, True, "1" * 500], ids=lambda v: str(v)[:9]
)
def test_a_number_that_is_not_allowed_is_said_in_one_line(value):
    with pytest.raises(InvalidInput, match="epsilon is") as caught:
        check_number("epsilon", value, above=0.0, high=1e6)
    assert len(str(caught.value)) < 200
    with pytest.raises(InvalidInput, match="hops is") as caught:
        check_count("hops", value, high=1 << 31)
    assert len(str(caught.value)) < 200


def test_digits_are_counted():
    with pytest.raises(InvalidInput, match="a whole number of about 401 digits"):
        check_number("epsilon", 10**400, high=1.0)


def test_whole_numbers_beyond_all_floats_are_numbers_where_nothing_forbids_them():
    assert check_number("x", 10**400) == 10**400
