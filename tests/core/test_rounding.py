"""Noise that is correctly rounded, whatever the machine computes, and the grid it is rounded to."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import norm

from unwalk.core import rounding
from unwalk.core.errors import InvalidInput
from unwalk.core.noise import PhiloxBits, ShakeBits
from unwalk.core.rounding import add_rounded, grid_for, normal_bounds

KEY = bytes(range(32))
FORMATS = {np.float32: torch.float32, np.float64: torch.float64}
FULL = 2**64 - 1


@dataclass
class FakeBits:
    """Words that a test chose, and what follows them: by default the bits of a cipher."""

    given: list[int]
    after: dict[int, str] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def words(self, count):
        assert count == len(self.given)
        return np.array(self.given, dtype=np.uint64)

    def more(self, place, count):
        self.asked.append(count)
        start = self.after.get(place, "")[:count]
        rest = ShakeBits(KEY).more(place, count) & ((1 << count - len(start)) - 1)
        return (int(start or "0", 2) << count - len(start)) | rest


def mpmath_normal(words, bits, half, coordinate, places=400):
    """Z by mpmath, from 512 further bits; the oracle's error is below 2^-300."""
    sine, pair = divmod(coordinate, half)
    with mpmath.workprec(places + 700):
        first, second = (
            mpmath.ldexp((int(words[place]) << 512) + bits.more(place, 512), -576)
            for place in (pair, half + pair)
        )
        turn = mpmath.sin if sine else mpmath.cos
        z = mpmath.sqrt(-2 * mpmath.log(first)) * turn(2 * mpmath.pi * second)
        return Fraction(int(mpmath.floor(mpmath.ldexp(z, places))), 1 << places)


def oracle(values, std, grid, bits, chosen=None):
    """The mechanism by its definition."""
    half = (values.size + 1) // 2
    words, most = bits.words(2 * half), 2 ** (24 if values.dtype == np.float32 else 53)
    rounded = []
    for i in range(values.size) if chosen is None else chosen:
        theta = Fraction(float(np.nan_to_num(np.float64(values[i]))))
        noisy = (theta + Fraction(std) * mpmath_normal(words, bits, half, i)) / Fraction(grid)
        rounded.append(grid * min(max(math.floor(noisy + Fraction(1, 2)), -most), most))
    return np.array(rounded, dtype=values.dtype)


def same_bits(one, other):
    assert one.dtype == other.dtype
    assert one.tobytes() == other.tobytes(), np.flatnonzero(one != other)


def near_boundaries(size, std, grid, bits, away=0.0):
    """Values whose noisy sums are ``away`` cells from a boundary, up to rounding."""
    half = (size + 1) // 2
    u = bits.words(2 * half).astype(np.float64) * 2.0**-64
    radius, angle = np.sqrt(-2.0 * np.log(u[:half])), 2.0 * np.pi * u[half:]
    z = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
    return ((np.arange(size) % 5 + 0.5 + away) - z * (std / grid)) * grid


# What is computed


@pytest.mark.parametrize(
    ("bits", "wanted"),
    [
        (ShakeBits(KEY), [1.1875, 2.5, -0.75, 0.625, 999999.59375, -0.0625, 0.6875]),
        (PhiloxBits(KEY), [0.5, 1.1875, -2.21875, 0.875, 1000000.21875, -0.09375, -0.15625]),
    ],
)
@pytest.mark.parametrize("dtype", FORMATS)
def test_golden_values(bits, wanted, dtype):
    values = np.array([0.0, 1.0, -1.0, 0.3, 1e6, -1e-300, np.nan], dtype=dtype)
    rounded = add_rounded(values, 0.75, 1 / 32, bits)
    most = 2.0**19  # 2^24 steps of 1/32: in float32 a million does not fit
    wanted = [min(x, most) if dtype == np.float32 else x for x in wanted]
    assert rounded.tolist() == wanted
    assert rounded.dtype == dtype


@pytest.mark.parametrize("bits", [ShakeBits(KEY), PhiloxBits(KEY)])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("std", [1.0, 0.0945, 2.7e-14, 3e30, 5e-37])
def test_equals_mpmath(bits, dtype, std):
    """Ordinary numbers, huge and tiny multiples of the grid, what cannot be told from zero."""
    draw = np.random.default_rng(5)
    grid = grid_for(std, FORMATS[dtype])
    scales = grid * np.array([0.0, 1e-30, 1.0, 30.0, 1e6, 2.0**23.99, 2.0**24.01, 1e15, 1e18])
    with np.errstate(over="ignore"):
        values = (draw.normal(size=333) * draw.choice(scales, size=333)).astype(dtype)
    info = np.finfo(dtype)
    values[:8] = [
        info.smallest_subnormal, -info.smallest_subnormal, info.max, info.min, -0.0, np.nan,
        np.inf, -np.inf,
    ]  # fmt: skip
    same_bits(add_rounded(values, std, grid, bits), oracle(values, std, grid, bits))


any_float = st.floats(width=64, allow_subnormal=True)


@given(
    st.lists(any_float, min_size=1, max_size=5),
    st.floats(2.0**-121, 1e300),
    st.sampled_from([np.float32, np.float64]),
    st.binary(min_size=32, max_size=32),
)
@example([0.0], 1e300, np.float32, KEY)  # the grid stays below the largest number
@example([1.7e308, -1.7e308], 2.0**-121, np.float64, KEY)
def test_any_input_gives_the_rounded_sum(values, std, dtype, key):
    with np.errstate(over="ignore"):
        values = np.array(values).astype(dtype)
    grid = grid_for(std, FORMATS[dtype])
    rounded = add_rounded(values, std, grid, ShakeBits(key))
    steps = [Fraction(float(x)) / Fraction(grid) for x in rounded]
    assert all(step.denominator == 1 for step in steps)
    assert all(abs(step) <= 2 ** (24 if dtype == np.float32 else 53) for step in steps)
    assert not np.any(np.signbit(rounded) & (rounded == 0.0))
    same_bits(rounded, oracle(values, std, grid, ShakeBits(key)))


def test_zero_has_one_sign():
    """Whether a sum that rounds to zero came from below would tell of what it was."""
    values = np.full(20_000, -1e-3)
    zeros = add_rounded(values, 1.0, 1 / 16, ShakeBits(KEY))
    assert (zeros == 0.0).sum() > 300
    assert not np.signbit(zeros[zeros == 0.0]).any()


def test_shapes_and_sizes():
    for shape in [(), (0,), (1,), (3,), (2, 3), (5, 1, 7)]:
        values = np.zeros(shape, dtype=np.float32)
        rounded = add_rounded(values, 1.0, 1 / 16, ShakeBits(KEY))
        assert rounded.shape == shape
        assert rounded.dtype == np.float32
    pairs = add_rounded(np.zeros((4, 6)).T, 1.0, 1 / 16, ShakeBits(KEY))
    same_bits(pairs.reshape(-1), add_rounded(np.zeros(24), 1.0, 1 / 16, ShakeBits(KEY)))


def test_parts_are_only_for_speed(monkeypatch):
    values = np.random.default_rng(1).normal(size=1001)
    whole = add_rounded(values, 1.0, 1 / 16, ShakeBits(KEY))
    monkeypatch.setattr(rounding, "PAIRS", 7)
    same_bits(whole, add_rounded(values, 1.0, 1 / 16, ShakeBits(KEY)))


@pytest.mark.parametrize("grid", [0.0, -0.0625, 0.05, 0.125, math.nan, math.inf, 1e-320])
def test_a_grid_that_gives_no_guarantee_is_refused(grid):
    with pytest.raises(InvalidInput, match="power of two"):
        add_rounded(np.zeros(3), 1.0, grid, ShakeBits(KEY))


def test_other_formats_are_refused():
    with pytest.raises(InvalidInput, match="float16"):
        add_rounded(np.zeros(3, dtype=np.float16), 1.0, 1 / 16, ShakeBits(KEY))
    with pytest.raises(InvalidInput, match="bfloat16"):
        grid_for(1.0, torch.bfloat16)


# Words and sums for which 64 bits do not do


@pytest.mark.parametrize("first", [0, 1, 2**20, 2**44 - 1, 2**44, FULL, FULL - 1, FULL - 2**44])
@pytest.mark.parametrize("second", [0, FULL, 2**62, 2**62 - 1, 3 << 62, 2**63, 12345])
def test_extreme_words(first, second):
    for theta in (0.0, 0.03125, -7.3):
        values = np.array([theta, -theta])
        wanted = oracle(values, 1.0, 1 / 16, FakeBits([first, second]))
        same_bits(add_rounded(values, 1.0, 1 / 16, FakeBits([first, second])), wanted)


def test_a_word_of_zeros_asks_for_more_until_the_noise_is_finite():
    bits = FakeBits([0, 0], {0: "0" * 200 + "1"})
    rounded = add_rounded(np.array([0.0, 0.0]), 1.0, 1 / 16, bits)
    assert bits.asked[:6] == [64, 64, 128, 128, 256, 256]
    assert rounded[0] == pytest.approx(math.sqrt(2 * 264.5 * math.log(2)), abs=0.1)
    same_bits(rounded, oracle(np.zeros(2), 1.0, 1 / 16, bits))


@pytest.mark.parametrize(("after", "wanted"), [("0" * 700 + "1", 3), ("1" * 700 + "0", 4)])
def test_a_sum_at_a_boundary_asks_for_more_until_it_is_decided(after, wanted):
    """Z is 0 up to 2^-760 of a cell, on either side, and theta lies on a boundary."""
    second = 2**62 if wanted == 3 else 2**62 - 1
    bits = FakeBits([2**63, second], {1: after})
    rounded = add_rounded(np.array([3.5 / 16]), 1.0, 1 / 16, bits)
    assert rounded.tolist() == [wanted / 16]
    assert max(bits.asked) == 1024


@pytest.mark.parametrize("away", [0.0, 2.0**-41, -(2.0**-38), 2.0**-34, -(2.0**-31), 2.0**-28])
def test_sums_at_boundaries_are_right(away, monkeypatch):
    """Even with a margin of 2^-39, the bound itself, nothing is decided wrongly."""
    values = near_boundaries(400, 1.0, 1 / 16, ShakeBits(KEY), away)
    wanted = oracle(values, 1.0, 1 / 16, ShakeBits(KEY))
    same_bits(add_rounded(values, 1.0, 1 / 16, ShakeBits(KEY)), wanted)
    monkeypatch.setattr(rounding, "MARGIN", 2.0**-39)
    same_bits(add_rounded(values, 1.0, 1 / 16, ShakeBits(KEY)), wanted)


def test_bounds_hold_the_normal():
    draw = np.random.default_rng(3)
    for known in (64, 65, 128, 300):
        for i in range(60):
            a, b = (int.from_bytes(draw.bytes(known // 8 + 1)) % 2**known for _ in range(2))
            a, b = (
                max(a >> int(draw.integers(known)), 1),
                b if i % 3 else b >> known - 2 << known - 2,
            )
            with mpmath.workprec(known + 200):
                u, v = (mpmath.ldexp(x + mpmath.rand(), -known) for x in (a, b))
                z = mpmath.sqrt(-2 * mpmath.log(u))
                z = [z * mpmath.cos(2 * mpmath.pi * v), z * mpmath.sin(2 * mpmath.pi * v)]
                z = [Fraction(int(mpmath.floor(mpmath.ldexp(x, 500))), 1 << 500) for x in z]
            for sine in (False, True):
                low, high = normal_bounds(a, b, known, sine=sine)
                assert low <= z[sine] <= high
                assert high - low < Fraction(100, a) + Fraction(300, 2**known)


# The same on every machine


@pytest.fixture
def other_machine(monkeypatch):
    """Functions that are off by 2^-50 of their value at random, as those of a library may be."""

    def change(by):
        draw = np.random.default_rng(7)
        for name in ("log", "sqrt", "cos", "sin"):
            real = getattr(np, name)

            def off(x, real=real):
                return real(x) * (1.0 + by * draw.choice([-1.0, 1.0], size=np.shape(x)))

            monkeypatch.setattr(np, name, off)

    return change


@pytest.mark.parametrize("by", [2.0**-51, 2.0**-46])
def test_other_mathematical_functions_give_the_same_bits(other_machine, by):
    plain = np.random.default_rng(2).normal(size=200_000)
    edge = near_boundaries(400, 0.7, 1 / 32, ShakeBits(KEY))
    before = [add_rounded(x, 0.7, 1 / 32, ShakeBits(KEY)) for x in (plain, edge)]
    other_machine(by)
    for values, wanted in zip((plain, edge), before, strict=True):
        same_bits(add_rounded(values, 0.7, 1 / 32, ShakeBits(KEY)), wanted)


def test_without_the_margin_they_would_not(other_machine, monkeypatch):
    edge = near_boundaries(400, 0.7, 1 / 32, ShakeBits(KEY))
    wanted = add_rounded(edge, 0.7, 1 / 32, ShakeBits(KEY))
    other_machine(2.0**-51)
    monkeypatch.setattr(rounding, "MARGIN", 0.0)
    assert (add_rounded(edge, 0.7, 1 / 32, ShakeBits(KEY)) != wanted).sum() > 20


def test_functions_of_this_machine_are_as_good_as_the_bound_assumes():
    """The bound assumes 2^-45; 2^-50 is asked for here."""
    draw = np.random.default_rng(4)
    u = np.concatenate(
        [draw.random(1500), 2.0 ** -draw.uniform(1, 20, 500), 1 - 2.0**-20 * draw.random(9)]
    )
    u[-9:] = np.minimum(u[-9:], 1 - 2.0**-20)
    q, angle = -2.0 * np.log(u), 2.0 * np.pi * draw.random(u.size)
    checks = {"log": (u, True), "sqrt": (q, True), "cos": (angle, False), "sin": (angle, False)}
    with mpmath.workprec(200):
        for name, (points, relative) in checks.items():
            computed = getattr(np, name)(points)
            for x, y in zip(points.tolist(), computed.tolist(), strict=True):
                true = getattr(mpmath, name)(mpmath.mpf(x))
                assert abs(y - true) <= 2.0**-50 * (abs(true) if relative else 1.0), (name, x)


# The law of the noise


@pytest.mark.parametrize("bits", [ShakeBits(KEY), PhiloxBits(KEY)])
def test_the_noise_is_normal(bits):
    size, grid = 1_000_001, 1 / 16
    z = add_rounded(np.zeros(size), 1.0, grid, bits)
    assert abs(z.mean()) < 4.5 / math.sqrt(size)
    assert abs(z.var() - (1 + grid**2 / 12)) < 4.5 * math.sqrt(2 / size)
    assert abs((z**3).mean()) < 4.5 * math.sqrt(15 / size)
    assert abs((z**4).mean() - 3 - grid**2 / 2) < 5 * math.sqrt(96 / size)
    edges = (np.arange(-64, 64) + 0.5) * grid  # Kolmogorov and Smirnov, at the boundaries of cells
    below = np.searchsorted(np.sort(z), edges) / size
    assert np.abs(below - norm.cdf(edges)).max() < 1.95 / math.sqrt(size)  # p = 0.001
    for edge in (3.0, 4.0):
        wanted = 2 * norm.sf(edge + grid / 2) * size
        assert abs((np.abs(z) > edge).sum() - wanted) < 5 * math.sqrt(wanted)


def test_coordinates_are_independent():
    size = 1_000_000
    z = add_rounded(np.zeros(size), 1.0, 1 / 16, ShakeBits(KEY))
    for one, other in ((z[:-1], z[1:]), (z[: size // 2], z[size // 2 :])):
        for power in (1, 2):
            seen = np.corrcoef(np.abs(one) ** power, np.abs(other) ** power)[0, 1]
            assert abs(seen) < 4.5 / math.sqrt(one.size)
        assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / math.sqrt(one.size)


# Random bits


@pytest.mark.parametrize("bits", [ShakeBits(KEY), PhiloxBits(KEY)])
def test_more_bits_extend_fewer(bits):
    assert np.array_equal(bits.words(1000)[:10], bits.words(10))
    assert bits.words(0).size == 0
    for place in (0, 1, 11, 12):
        long = bits.more(place, 1000)
        assert long.bit_length() > 960
        for count in (1, 7, 8, 64, 65, 999):
            assert bits.more(place, count) == long >> 1000 - count
    streams = [bits.more(place, 64) for place in range(3000)]
    everything = {*streams, *bits.words(3000).tolist()}
    assert len(everything) == 6000  # no word, and no stream, is another's
    ones = sum(stream.bit_count() for stream in streams)
    assert abs(ones - 96_000) < 5 * math.sqrt(48_000)


def test_keys_and_labels_do_not_collide():
    """A key and its label are never another key and its label: every key has 32 bytes."""
    for key in (b"", KEY[:31], KEY + b"/more/1"):
        for kind in (ShakeBits, PhiloxBits):
            with pytest.raises(InvalidInput, match=f"{len(key)} bytes"):
                kind(key)
    other = ShakeBits(KEY[::-1])
    assert not set(other.words(1000).tolist()) & set(ShakeBits(KEY).words(1000).tolist())
    assert other.more(0, 64) != ShakeBits(KEY).more(0, 64)
    assert KEY.hex() not in repr(other)


# Speed


def seconds(count):
    values = np.random.default_rng(0).normal(size=count).astype(np.float32)
    start = time.process_time()
    add_rounded(values, 0.0945, 2.0**-8, ShakeBits(KEY))
    return time.process_time() - start


def test_a_million_parameters_take_less_than_a_second():
    assert min(seconds(1_000_000) for _ in range(3)) < 1.0


@pytest.mark.soak
def test_eleven_million_parameters_take_less_than_ten_seconds():
    assert seconds(11_000_000) < 10.0


# The grid


@given(st.floats(2.0**-1018, 1.7e308), st.sampled_from([torch.float32, torch.float64]))
def test_the_grid_is_the_largest_that_is_allowed(std, dtype):
    smallest, largest = (2.0**-126, 2.0**100) if dtype == torch.float32 else (2.0**-1022, 2.0**960)
    if std < 16 * smallest:
        with pytest.raises(InvalidInput, match="cannot be rounded in float"):
            grid_for(std, dtype)
        return
    grid = Fraction(grid_for(std, dtype))
    assert 1 in (grid.numerator, grid.denominator)
    assert (grid.numerator * grid.denominator).bit_count() == 1  # a power of two
    assert Fraction(smallest) <= grid <= Fraction(std) / 16
    assert grid == Fraction(largest) or 2 * grid > Fraction(std) / 16
    most = torch.tensor([1.0, 2.0 ** (24 if dtype == torch.float32 else 53) - 1], dtype=dtype)
    stored = (most * float(grid)).tolist()
    assert [Fraction(x) / grid for x in stored] == [Fraction(x) for x in most.tolist()]


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 1e-320])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_std_without_a_grid_is_refused(std, dtype):
    with pytest.raises(InvalidInput, match="cannot be rounded"):
        grid_for(std, dtype)


def test_the_message_names_the_smallest_std():
    assert grid_for(2.0**-122, torch.float32) == 2.0**-126
    with pytest.raises(InvalidInput, match=f"allowed: {2.0**-122:g} or more"):
        grid_for(np.nextafter(2.0**-122, 0.0), torch.float32)
