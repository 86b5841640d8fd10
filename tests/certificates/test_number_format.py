"""Attacks on the number format: they succeed against noise that is added to floats, and find
nothing against noise that is rounded.

Two worlds hold models that are known to the attacker, as far apart as the certificate allows.  The
settings are those of ``unwalk run --preset certified --task digits-flat --method release``.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import beta, chi2, norm

from unwalk.core.noise import ShakeBits
from unwalk.core.rounding import add_rounded, grid_for
from unwalk.privacy.gaussian import gaussian_delta, gaussian_mu

EPSILON, DELTA = 1.0, 1e-5
SIZE, STD, SPREAD = 650, 0.0945347, 0.66
RUNS = 1000
FORMATS = {np.float32: torch.float32, np.float64: torch.float64}
MU = gaussian_mu(EPSILON, DELTA)


def bits(*name):
    return ShakeBits(hashlib.sha256(repr(name).encode()).digest())


def float_noise(theta, std, name):
    """The mechanism that was: normals in the format of the parameters, scaled and added."""
    z = np.random.default_rng(list(repr(name).encode())).standard_normal(theta.shape)
    with np.errstate(over="ignore"):
        return theta + theta.dtype.type(std) * z.astype(theta.dtype)


def rounded_noise(theta, std, name):
    """The mechanism that is."""
    return add_rounded(theta, std, grid_for(std, FORMATS[theta.dtype.type]), bits(name))


def pairs(dtype, std=STD, spread=SPREAD):
    """Models of the two worlds, one pair a row, at the distance that is certified for ``std``."""
    draw = np.random.default_rng(8)
    base = (spread * draw.standard_normal((RUNS, SIZE))).astype(dtype)
    apart = draw.standard_normal((RUNS, SIZE))
    apart *= 0.95 * MU * std / np.linalg.norm(apart, axis=1, keepdims=True)
    other = (base + apart).astype(dtype)
    true = np.linalg.norm((other.astype(np.float64) - base) / std, axis=1)
    assert ((true > 0.85 * MU) & (true <= MU)).all()  # as stored, after rounding
    return base, other


def audited(hits, false_alarms):
    """The largest epsilon that is refuted with 95 % confidence, whichever answer is the hit."""
    found = 0.0
    for yes, no in ((hits, false_alarms), (RUNS - false_alarms, RUNS - hits)):
        least = beta.ppf(0.025, yes, RUNS - yes + 1) if yes else 0.0
        most = beta.ppf(0.975, no + 1, RUNS - no) if no < RUNS else 1.0
        found = max(found, math.log(max(least - DELTA, 1e-300) / most))
    return found


# Which numbers can be reached


def reached(y, theta, std):
    """Whether some normal of the format takes ``theta`` to ``y`` when it is scaled and added."""
    kind = theta.dtype.type
    near = ((y.astype(np.float64) - theta) / std).astype(kind)
    found = np.zeros(y.shape, dtype=bool)
    for way in (-np.inf, np.inf):
        z = near
        for _ in range(4):
            found |= theta + kind(std) * z == y
            z = np.nextafter(z, kind(way))
    return found


def on_the_grid(y, theta, std):
    """The same of rounded noise: any multiple of the grid in the range, whatever ``theta``."""
    grid = grid_for(std, FORMATS[theta.dtype.type])
    most = 2.0 ** (24 if theta.dtype == np.float32 else 53)
    return (np.rint(y / grid) == y / grid) & (np.abs(y / grid) <= most)


def attack_reach(mechanism, can_reach, dtype):
    """Runs in which the other world's model is called the likelier one, when it is and is not.

    The attacker counts the numbers that cannot have come from each model.
    """
    one, other = pairs(dtype)
    said = []
    for name, true in (("one", one), ("other", other)):
        y = mechanism(true, STD, name)
        not_one, not_other = ((~can_reach(y, theta, STD)).sum(axis=1) for theta in (one, other))
        said.append(int((not_one > not_other).sum()))
    return said[1], said[0]


def test_the_attack_on_reachable_numbers_breaks_float_noise():
    hits, false_alarms = attack_reach(float_noise, reached, np.float32)
    assert (hits, false_alarms) == (RUNS, 0)
    assert audited(hits, false_alarms) >= 5.0


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("can_reach", [reached, on_the_grid])
def test_the_attack_on_reachable_numbers_finds_nothing(dtype, can_reach):
    hits, false_alarms = attack_reach(rounded_noise, can_reach, dtype)
    assert audited(hits, false_alarms) < EPSILON / 2
    assert abs(hits - false_alarms) < 4 * math.sqrt(RUNS / 2)


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_multiple_of_the_grid_is_reached_from_both_worlds(dtype):
    one, other = pairs(dtype)
    for name, theta in (("one", one), ("other", other)):
        assert on_the_grid(rounded_noise(theta, STD, name), theta, STD).all()
    assert not on_the_grid(float_noise(one, STD, "one"), one, STD).all()


# Noise below the resolution


def attack_nearest(mechanism, dtype, std, spread=SPREAD):
    """The likeliest world of a Gaussian, by the line through both models; ties count for none."""
    one, other = pairs(dtype, std, spread)
    apart = other.astype(np.float64) - one
    said = []
    for name, true in (("one", one), ("other", other)):
        y = mechanism(true, std, name).astype(np.float64)
        along = ((y - one) * apart).sum(axis=1) - (apart**2).sum(axis=1) / 2
        said.append(int((along > 0).sum()))
    return said[1], said[0]


@pytest.mark.parametrize("std", [2.7e-14, 9e-21])
def test_float_noise_below_the_resolution_is_no_noise(std):
    """Four draws, one model: whoever knows both candidates sees which one it is."""
    theta = pairs(np.float32)[0]
    assert len({float_noise(theta[0], std, draw).tobytes() for draw in range(4)}) == 1
    other = np.nextafter(theta, np.float32(np.inf))
    hits, false_alarms = (
        int((float_noise(true, std, "below") == other).all(axis=1).sum()) for true in (other, theta)
    )
    assert audited(hits, false_alarms) >= 5.0


def test_rounded_noise_below_the_resolution_is_noise():
    """A number is as fine as its noise, or it is the edge of the range in both worlds."""
    theta = pairs(np.float64)[0][0]
    assert len({rounded_noise(theta, 2.7e-14, draw).tobytes() for draw in range(4)}) == 4
    for dtype, std in ((np.float32, 2.7e-14), (np.float32, 9e-21), (np.float64, 9e-21)):
        theta = pairs(dtype)[0][0]
        other = np.nextafter(theta, dtype(np.inf))
        most = (2.0**24 if dtype == np.float32 else 2.0**53) * grid_for(std, FORMATS[dtype])
        for model in (theta, other):
            y = rounded_noise(model, std, "edge")
            beyond = np.abs(model) > most + 40 * std
            assert beyond.sum() > 640
            assert np.array_equal(y[beyond], np.sign(theta[beyond]) * dtype(most))


@pytest.mark.parametrize(
    ("dtype", "std", "spread"),
    [
        (np.float32, STD, SPREAD),
        (np.float64, STD, SPREAD),
        (np.float64, 2.7e-14, SPREAD),
        (np.float64, 9e-21, 1e-7),
        (np.float32, 2.7e-14, 1e-10),
        (np.float64, 1e100, 1e101),
    ],
)
def test_the_likeliest_world_is_no_better_than_certified(dtype, std, spread):
    hits, false_alarms = attack_nearest(rounded_noise, dtype, std, spread)
    assert audited(hits, false_alarms) < EPSILON
    expected = 2 * norm.cdf(MU / 2) - 1  # what the best attacker has on the textbook's Gaussian
    assert (hits - false_alarms) / RUNS < expected + 4 * math.sqrt(0.5 / RUNS)


def test_the_attack_by_the_likeliest_world_sees():
    """With a thirtieth of the noise that is certified it tells the worlds apart."""
    hits, false_alarms = attack_nearest(
        lambda theta, std, name: rounded_noise(theta, std / 30, name), np.float64, STD
    )
    assert audited(hits, false_alarms) > 2 * EPSILON


# The law of what is released


def cell_masses(theta, std, dtype):
    """The exact chance of every cell, the clamp's edges included, and the first cell's number."""
    grid = grid_for(std, FORMATS[dtype])
    most = 2 ** (24 if dtype == np.float32 else 53)
    middle = theta / grid
    first = int(min(max(math.floor(middle - 300), -most), most))
    last = int(min(max(math.ceil(middle + 300), -most), most))
    edges = (np.arange(last - first) + 0.5 - float(Fraction(middle) - first)) * (grid / std)
    below, above = norm.cdf(edges), norm.sf(edges)
    inner = np.where(edges[:-1] < 0, below[1:] - below[:-1], above[:-1] - above[1:])
    if first == last:
        return np.array([1.0]), first
    return np.concatenate([below[:1], inner, above[-1:]]), first


def edge(dtype, std):
    return 2.0 ** (24 if dtype == np.float32 else 53) * grid_for(std, FORMATS[dtype])


CASES = [
    (dtype, std, place)
    for dtype in FORMATS
    for std in (9e-21, 2.7e-14, STD, 1e20)
    for place in ("zero", "plain", "edge", "beyond")
]


@pytest.mark.parametrize(("dtype", "std", "place"), CASES)
def test_cells_have_the_masses_of_the_gaussian(dtype, std, place):
    """Chi-square in both worlds, and the likelihood ratio of cells within the analytic delta."""
    grid = grid_for(std, FORMATS[dtype])
    start = {
        "zero": 0.0,
        "plain": -1234.3 * grid,
        "edge": edge(dtype, std) - 11 * grid,
        "beyond": -edge(dtype, std) - 9 * std,
    }[place]
    worlds = [dtype(start), dtype(start + MU * std)]
    laws = [cell_masses(float(theta), std, dtype) for theta in worlds]
    size = 100_000
    for theta, (mass, first) in zip(worlds, laws, strict=True):
        y = add_rounded(np.full(size, theta), std, grid, bits(dtype.__name__, std, place, theta))
        seen = np.bincount(np.rint(y / grid).astype(np.int64) - first, minlength=mass.size)
        assert mass.sum() == pytest.approx(1.0, abs=1e-12)
        assert seen.size == mass.size
        common = mass * size >= 20
        wanted = np.append(mass[common], mass[~common].sum()) * size
        counted = np.append(seen[common], seen[~common].sum())
        kept = wanted > 1e-6
        assert counted[~kept].sum() == 0
        statistic = ((counted - wanted)[kept] ** 2 / wanted[kept]).sum()
        assert chi2.sf(statistic, max(kept.sum() - 1, 1)) > 1e-4
    mu = abs(float(worlds[1]) - float(worlds[0])) / std
    low = min(first for _, first in laws)
    high = max(first + mass.size for mass, first in laws)
    p, q = (np.pad(mass, (first - low, high - first - mass.size)) for mass, first in laws)
    for epsilon in (0.0, 0.25, 0.5, 1.0):
        bound = gaussian_delta(epsilon, mu) if mu else 0.0
        for one, other in ((p, q), (q, p)):
            true = np.maximum(one - math.exp(epsilon) * other, 0.0).sum()
            assert true <= bound * (1 + 1e-9) + 1e-13
            if place in ("zero", "plain") and epsilon <= 0.5:
                assert true >= 0.9 * bound  # cells this fine hide next to nothing
