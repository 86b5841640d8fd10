"""Gossip views against the joint Gaussian they are."""

from __future__ import annotations

import numpy as np
import pytest

from unwalk.core.errors import InvalidInput
from unwalk.privacy.gossip import gossip_rdp, muffliato_rdp

PATH = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3


def exact_gossip(alpha, ratio, mixing, u, observers, rounds):
    """Divergence of two Gaussians with the view's covariance, by pseudo-inverse."""
    size = len(mixing)
    rows, power = [], np.eye(size)
    hidden = [w for w in range(size) if w not in observers]
    for _ in range(rounds):
        for w in hidden:
            if any(mixing[v][w] > 0 for v in observers):
                rows.append(power[w][hidden])
        power = power @ mixing
    a = np.array(rows)
    shift = a[:, hidden.index(u)]
    return 0.5 * alpha * ratio**2 * float(shift @ np.linalg.pinv(a @ a.T, rcond=1e-10) @ shift)


def lazy_ring(size):
    mixing = np.zeros((size, size))
    for i in range(size):
        mixing[i, i] = 0.5
        mixing[i, (i + 1) % size] = mixing[i, (i - 1) % size] = 0.25
    return mixing


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("u", [2, 3, 4])
def test_gossip_equals_the_joint_gaussian(rounds, u):
    mixing = lazy_ring(8)
    expected = exact_gossip(2.0, 0.5, mixing, u, [0], rounds)
    assert gossip_rdp(2.0, 0.5, mixing, u, [0], rounds) == pytest.approx(expected, abs=1e-9)


def test_muffliato_formula_is_no_bound_for_the_joint_view():
    published = muffliato_rdp(2.0, 1.0, PATH, 2, 0, 2)
    exact = exact_gossip(2.0, 1.0, PATH, 2, [0], 2)
    assert published == pytest.approx(1 / 3)
    assert exact == pytest.approx(1.0)
    assert gossip_rdp(2.0, 1.0, PATH, 2, [0], 2) == pytest.approx(exact)
    assert muffliato_rdp(2.0, 1.0, PATH, 2, 0, 2, first_power=1) > published


def test_gossip_properties():
    mixing = lazy_ring(9)
    full = 0.5 * 3.0 * 0.4**2
    values = [gossip_rdp(3.0, 0.4, mixing, 4, [0], rounds) for rounds in range(6)]
    assert values[0] == 0.0
    assert values == sorted(values)
    assert values[-1] <= full * (1 + 1e-12)
    coalition = gossip_rdp(3.0, 0.4, mixing, 4, [0, 5], 1)
    assert coalition == pytest.approx(full)  # peer 5 hears 4 in the first round
    with pytest.raises(InvalidInput, match="not symmetric"):
        gossip_rdp(3.0, 0.4, [[0.5, 0.5], [0.4, 0.6]], 0, [1], 2)
