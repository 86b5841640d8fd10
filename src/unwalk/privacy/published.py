r"""Bounds as their papers state them, for comparison; nothing in unwalk certifies with them.

Network differential privacy: the proofs add up contributions that are not observed separately (see
:mod:`unwalk.privacy.network`).  Noisy fine-tuning: the proof is for real numbers.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.validation import check_count, check_number
from unwalk.privacy.network import check_chain
from unwalk.privacy.renyi import mironov_epsilon_at
from unwalk.privacy.shift import hiding_cost


def check_view(alpha: float, sigma: float, peers: int, lipschitz: float) -> None:
    """Refuse arguments that no bound on a peer's view of a complete graph takes."""
    check_number("alpha", alpha, above=1.0)
    check_number("sigma", sigma, above=0.0)
    check_count("peers", peers, low=2)
    check_number("lipschitz", lipschitz, above=0.0)


def published_complete_graph_rdp(
    alpha: float, sigma: float, peers: int, contributions: int, *, lipschitz: float
) -> float:
    r"""Cyffers and Bellet 2022 (AISTATS, PMLR 151), Appendix F, Lemma 1:

    .. math:: \varepsilon(\alpha) = \frac{4\, T_u\, \alpha\, L^2 \ln n}{\sigma^2 n},
              \qquad \sigma \ge L\sqrt{2\alpha(\alpha-1)},

    for at most :math:`T_u` contributions of a user, n users, replacement (2L), sender hidden.
    The condition, under which weak convexity holds with c = 1, is checked; the step :math:`\sum_t
    \frac1n(1-\frac1n)^{t}\frac1t` of the proof should have the exponent t - 1, which makes
    :math:`\frac{\ln n}{n}` into :math:`\frac{\ln n}{n-1}`.

    >>> round(published_complete_graph_rdp(2.0, 10.0, 100, 10, lipschitz=1.0), 6)
    0.036841
    """
    check_view(alpha, sigma, peers, lipschitz)
    check_count("contributions", contributions, low=0)
    needed = lipschitz * math.sqrt(2.0 * alpha * (alpha - 1.0))
    if sigma < needed:
        raise Refused(
            f"sigma {sigma:g} is below L sqrt(2 alpha (alpha - 1)) = {needed:g}, which the lemma "
            f"needs at order {alpha:g}.",
            "lemma",
        )
    return 4.0 * contributions * alpha * lipschitz**2 * math.log(peers) / (sigma**2 * peers)


def published_complete_graph_epsilon(
    delta: float, sigma: float, peers: int, contributions: int, *, lipschitz: float
) -> float:
    r"""The best epsilon of :func:`published_complete_graph_rdp` within its condition, by the
    conversion :math:`\varepsilon_\alpha + \ln(1/\delta)/(\alpha-1)` that its Remark 5 uses.

    >>> round(published_complete_graph_epsilon(1e-6, 10.0, 100, 10, lipschitz=1.0), 3)
    2.237
    """
    largest = 0.5 * (1.0 + math.sqrt(1.0 + 2.0 * (sigma / lipschitz) ** 2)) * (1.0 - 1e-12)
    slope = published_complete_graph_rdp(
        1.0 + 1e-9, sigma, peers, contributions, lipschitz=lipschitz
    ) / (1.0 + 1e-9)
    best = 1.0 + math.sqrt(-math.log(delta) / slope) if slope > 0.0 else largest
    alpha = min(best, largest)
    return mironov_epsilon_at(alpha, slope * alpha, delta)


def published_visits_bound(hops: int, peers: int, failure: float) -> float:
    r"""Their bound on the contributions of a user, with probability :math:`1-\hat\delta`:
    :math:`N_u = \frac Tn + \sqrt{\frac{3T}{n}\ln\frac1{\hat\delta}}` (Theorem 4).

    >>> round(published_visits_bound(100, 10, 1e-5), 3)
    28.585
    """
    check_count("hops", hops, low=1)
    check_count("peers", peers, low=1)
    check_number("failure", failure, above=0.0, below=1.0)
    mean = hops / peers
    return mean + math.sqrt(-3.0 * mean * math.log(failure))


def published_any_graph_rdp(
    alpha: float, ratio: float, mixing: npt.ArrayLike, contributor: int, observer: int, hops: int
) -> float:
    r"""Cyffers, Bellet and Upadhyay 2024, in the form of the authors' code:

    .. math:: \varepsilon_{u\to v}(\alpha) = \frac{\alpha\Delta^2 T}{\sigma^2 n}\Big(
              \frac{\ln T}{n} - \ln\big(I - W + \tfrac1n \mathbf 1\mathbf 1^T\big)_{uv}\Big),

    the sum :math:`\sum_{t\le T} (W^t)_{uv}/t` of un-normalised visit probabilities in closed
    form, for T/n contributions and the factor 2 of weak convexity with c = 1.  Assumption: W
    symmetric and stochastic.  The sum counts every later visit instead of the first, and is a
    mean where a bound at any noise needs a log-mean-exp.

    >>> ring = [[1/3, 1/3, 0, 1/3], [1/3, 1/3, 1/3, 0], [0, 1/3, 1/3, 1/3], [1/3, 0, 1/3, 1/3]]
    >>> round(published_any_graph_rdp(2.0, 0.1, ring, 0, 2, 40), 4)
    0.1295
    """
    check_number("alpha", alpha, above=1.0)
    check_number("ratio", ratio, low=0.0)
    check_count("hops", hops, low=1)
    matrix = check_chain(mixing)
    size = matrix.shape[0]
    if not np.allclose(matrix, matrix.T, atol=1e-12):
        raise InvalidInput("mixing is not symmetric; allowed: a symmetric stochastic matrix.")
    for peer in (contributor, observer):
        check_count("peer", peer, low=0, high=size - 1)
    eigenvalues, vectors = np.linalg.eigh(matrix)
    if size > 1 and eigenvalues[-2] >= 1.0 - 1e-12:
        raise InvalidInput("mixing falls apart into several components; allowed: a connected one.")
    logs = -np.log1p(-eigenvalues[:-1])
    communicability = float((vectors[contributor, :-1] * logs) @ vectors[observer, :-1])
    inside = math.log(hops) / size + communicability
    return float(alpha * ratio * ratio * hops / size * inside)


def published_noisy_finetuning_sigma(
    epsilon: float,
    delta: float,
    *,
    radius: float,
    clip: float,
    step_size: float,
    steps: int,
    weight_decay: float = 0.0,
) -> float:
    r"""Koloskova, Allouah, Jha, Guerraoui and Koyejo 2025 (arXiv:2506.06985), gradient clipping:
    the noise std of each of T steps after which only the last model is seen.

    .. math:: D_\alpha \le \frac{\alpha}{2\sigma^2} \frac{\big(2C_0c^T + 2\gamma C_1\sum_{i<T}
              c^i\big)^2}{\sum_{i<T} c^{2i}}, \qquad c = 1 - \gamma\lambda,

    which is :func:`unwalk.privacy.shift.hiding_cost` of two runs that start :math:`2C_0` apart and
    drift apart by :math:`2\gamma C_1` at each step, where it spreads evenly.  Converted by
    :math:`\varepsilon = \rho + 2\sqrt{\rho\ln(1/\delta)}` with :math:`D_\alpha \le \rho\alpha`.

    >>> by_hand = 2 * (1.0 + 0.01 * 50) / math.sqrt(50)  # over sigma: the square root of 2 rho
    >>> sigma = published_noisy_finetuning_sigma(
    ...     1.0, 1e-5, radius=1.0, clip=1.0, step_size=0.01, steps=50
    ... )
    >>> rho = (by_hand / sigma) ** 2 / 2
    >>> round(rho + 2 * math.sqrt(rho * math.log(1e5)), 6)
    1.0
    """
    check_number("epsilon", epsilon, above=0.0)
    check_number("delta", delta, above=0.0, below=1.0)
    check_number("radius", radius, above=0.0)
    check_number("clip", clip, above=0.0)
    check_number("step_size", step_size, above=0.0)
    check_count("steps", steps, low=1)
    check_number("weight_decay", weight_decay, low=0.0, high=1.0 / step_size)
    drift, factor = 2.0 * step_size * clip, 1.0 - step_size * weight_decay
    cost = hiding_cost(
        [drift] * steps, [1.0] * steps, contractions=[factor] * steps, start=2.0 * radius
    )
    log = -math.log(delta)
    slope = epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))  # sqrt of rho
    return math.sqrt(cost / 2.0) / slope
