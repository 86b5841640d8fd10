r"""Gossip averaging with noise at the start: what one peer's view reveals about another's value.

Peers start from :math:`x + \eta`, :math:`\eta_w \sim \mathcal N(0, \sigma^2)` independent, and mix
T rounds by a symmetric doubly stochastic W.  Peer v receives :math:`(W^t(x+\eta))_w` from each
neighbour w in rounds t = 0..T-1.  A change of :math:`x_u` by at most :math:`\Delta` is to stay
hidden; ``ratio`` is :math:`\Delta/\sigma`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_count, check_number
from unwalk.privacy.network import check_chain

Floats = npt.NDArray[np.float64]

_ROUNDING = 1e-12


def _check_gossip(mixing: npt.ArrayLike, contributor: int, observers: Collection[int]) -> Floats:
    matrix = check_chain(mixing)
    if not np.allclose(matrix, matrix.T, atol=1e-12):
        raise InvalidInput("mixing is not symmetric; allowed: a symmetric stochastic matrix.")
    for peer in (contributor, *observers):
        check_count("peer", peer, low=0, high=matrix.shape[0] - 1)
    if contributor in observers or not observers:
        raise InvalidInput(
            f"observers is {sorted(observers)!r}; allowed: at least one peer, none of them the "
            f"contributor {contributor}."
        )
    return matrix


def muffliato_rdp(
    alpha: float,
    ratio: float,
    mixing: npt.ArrayLike,
    contributor: int,
    observer: int,
    rounds: int,
    *,
    first_power: int = 0,
) -> float:
    r"""Muffliato's pairwise formula, as published:

    .. math:: \varepsilon_{u\to v}(\alpha) = \frac{\alpha\Delta^2}{2\sigma^2}\sum_{t=0}^{T-1}
              \sum_{w \sim v} \frac{(W^t)_{uw}^2}{\|(W^t)_w\|^2}.

    **Not a bound for the joint view**: it adds up the divergences of the single messages, whose
    noises are not independent; on the path v - w - u already two rounds let v solve for
    :math:`x_u + \eta_u`, which costs 1, where the formula says 1/3 (with W = 1/3 on edges and
    what is left on the diagonal, as a test shows).  Use :func:`gossip_rdp`.  Source: Cyffers,
    Even, Bellet and Massoulie, *Muffliato*, NeurIPS 2022 (arXiv:2206.05091), in the form of the
    authors' code, which starts at the first power (``first_power=1``).

    >>> path = [[2/3, 1/3, 0], [1/3, 1/3, 1/3], [0, 1/3, 2/3]]
    >>> round(muffliato_rdp(2.0, 1.0, path, 2, 0, 2), 6)
    0.333333
    """
    check_number("alpha", alpha, above=1.0)
    check_number("ratio", ratio, low=0.0)
    check_count("rounds", rounds, low=0)
    check_count("first_power", first_power, low=0, high=1)
    matrix = _check_gossip(mixing, contributor, [observer])
    senders = [w for w in np.flatnonzero(matrix[observer] > 0.0) if w != observer]
    power = np.linalg.matrix_power(matrix, first_power)
    total = 0.0
    for _ in range(rounds):
        rows = power[senders]
        total += float((rows[:, contributor] ** 2 / (rows**2).sum(axis=1)).sum())
        power = power @ matrix
    return 0.5 * alpha * ratio * ratio * total


def gossip_rdp(
    alpha: float,
    ratio: float,
    mixing: npt.ArrayLike,
    contributor: int,
    observers: Collection[int],
    rounds: int,
) -> float:
    r"""The exact Renyi divergence of a view, or of a coalition's joint view:

    .. math:: \varepsilon_{u\to V}(\alpha) = \frac{\alpha\Delta^2}{2\sigma^2}\,
              \|P_{\rm row(A)}\, e_u\|^2 \le \frac{\alpha\Delta^2}{2\sigma^2},

    where A stacks the rows :math:`(W^t)_w` of all messages the observers receive, without the
    columns of the observers, who know their own values and noise.  Statement: two Gaussians
    :math:`A(x+\eta)` with means :math:`\Delta A e_u` apart and covariance :math:`\sigma^2 A A^T`.
    Assumptions: noise once at the start, fixed W, honest mixing.  Neighbours: one peer's value.
    Derived in ``docs/math.md``; the linear-systems view of gossip privacy is that of Koskela and
    Kulkarni 2025 (arXiv:2505.19969).  Directions below 1e-12 of a message are taken for rounding.

    >>> path = [[2/3, 1/3, 0], [1/3, 1/3, 1/3], [0, 1/3, 2/3]]
    >>> round(gossip_rdp(2.0, 1.0, path, 2, [0], 2), 6)
    1.0
    """
    check_number("alpha", alpha, above=1.0)
    check_number("ratio", ratio, low=0.0)
    check_count("rounds", rounds, low=0)
    matrix = _check_gossip(mixing, contributor, observers)
    seen_by = sorted(set(observers))
    hidden = [peer for peer in range(matrix.shape[0]) if peer not in set(seen_by)]
    senders = [w for w in hidden if (matrix[seen_by, w] > 0.0).any()]
    basis: list[Floats] = []
    power = np.eye(matrix.shape[0])
    for _ in range(rounds):
        for row in power[senders][:, hidden]:
            size = float(np.linalg.norm(row))
            if size > 0.0:
                _extend(basis, row / size)
        power = power @ matrix
    where = hidden.index(contributor)
    leverage = min(1.0, sum(float(direction[where]) ** 2 for direction in basis))
    return 0.5 * alpha * ratio * ratio * leverage


def _extend(basis: list[Floats], row: Floats) -> None:
    """Gram-Schmidt, twice: append what of a unit vector is new."""
    rest = row
    for _ in range(2):
        for direction in basis:
            rest = rest - float(direction @ rest) * direction
    size = float(np.linalg.norm(rest))
    if size > _ROUNDING:
        basis.append(rest / size)
