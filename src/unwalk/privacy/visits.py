r"""The privacy of a random number of noisy visits when the coins are public.

A walk comes to the unlearning peer u with probability p at each of T hops and adds
:math:`\mathcal N(0, \sigma^2 I)` there to a step of sensitivity D.  Whoever sees the token knows
when u was visited (hand-offs are named, and only u adds noise), so that the coin earns no
subsampling credit; but the coin's law is the same in both worlds, so that the guarantee is the
average over it.  All functions take ``ratio`` :math:`= D/\sigma` of one visit.

Neighbouring relation: a run with the forgotten records against a run without them, in which u
adds the noise alone.  With D = L (clip of u's step) for that relation, D = 2L for replacement.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import scipy

from unwalk.core.validation import check_count, check_number
from unwalk.privacy.gaussian import gaussian_epsilon, gaussian_log_deltas, gaussian_mu
from unwalk.privacy.renyi import curve_epsilon
from unwalk.privacy.roots import MARGIN, increasing_root, largest_safe, smallest_safe

Floats = npt.NDArray[np.float64]

MOST_HOPS = 10**9


def visit_law(
    hops: int, p: float, *, cap: int | None = None, depth: float = 800.0
) -> tuple[Floats, Floats, float]:
    r"""Counts, log probabilities and what was left out of :math:`\min(\mathrm{Bin}(T, p), c)`.

    Only counts within Bernstein's :math:`\frac{d}{3} + \sqrt{\frac{d^2}{9} + 2 d\, T p (1-p)}` of
    the mean are listed; the log probability of lying above them, at most ``-depth``, comes last
    and has to be charged in full; the part below is covered by listing probabilities that add up
    to one, since fewer visits cost less.

    >>> counts, logs, left = visit_law(2, 0.5)
    >>> counts.tolist(), np.exp(logs).round(12).tolist(), left
    ([0.0, 1.0, 2.0], [0.25, 0.5, 0.25], -inf)
    """
    check_count("hops", hops, low=1, high=MOST_HOPS)
    check_number("p", p, low=0.0, high=1.0)
    if cap is not None:
        check_count("cap", cap, low=0)
    counts, logs, left = _binomial(hops, float(p), float(depth))
    if cap is None or cap >= counts[-1]:
        return counts, logs, left
    if cap <= counts[0]:
        return np.array([float(cap)]), np.zeros(1), -math.inf
    inside = counts < cap
    above = float(scipy.special.logsumexp(np.append(logs[~inside], left)))
    return np.append(counts[inside], float(cap)), np.append(logs[inside], above), -math.inf


@lru_cache(maxsize=64)
def _binomial(hops: int, p: float, depth: float) -> tuple[Floats, Floats, float]:
    if p in (0.0, 1.0):
        return np.array([hops * p]), np.zeros(1), -math.inf
    spread = depth / 3.0 + math.sqrt(depth * depth / 9.0 + 2.0 * depth * hops * p * (1.0 - p))
    low = max(0, math.floor(hops * p - spread))
    high = min(hops, math.ceil(hops * p + spread))
    mode = min(max(int((hops + 1) * p), low), high)
    odds = math.log(p) - math.log1p(-p)
    up = np.arange(mode, high, dtype=np.float64)
    down = np.arange(mode, low, -1, dtype=np.float64)
    rising = np.cumsum(np.log((hops - up) / (up + 1.0)) + odds)
    falling = np.cumsum(np.log(down / (hops - down + 1.0)) - odds)
    logs = np.concatenate((falling[::-1], [0.0], rising))
    logs -= float(scipy.special.logsumexp(logs))
    counts = np.arange(low, high + 1, dtype=np.float64)
    counts.flags.writeable = logs.flags.writeable = False
    return counts, logs, -math.inf if high == hops else -depth


def visits_log_delta(
    epsilon: float,
    ratio: float,
    hops: int,
    p: float,
    *,
    cap: int | None = None,
    seal_mu: float = 0.0,
) -> float:
    r"""The exact log delta of a public coin:

    .. math:: \delta(\varepsilon) = \sum_m \Pr[\mathrm{Bin}(T, p) = m]\;
              \delta_G\!\big(\varepsilon; \sqrt m\, D/\sigma\big).

    Assumptions: every visit adds fresh Gaussian noise after a step of sensitivity at most D; all
    else is post-processing of what left u; the starting token does not depend on the forgotten
    records, or was sealed first by a Gaussian of ``seal_mu``, which then joins each term as
    :math:`\sqrt{\mu_{\rm seal}^2 + m D^2/\sigma^2}`.  With ``cap`` the visits stop after c.
    Neighbours: see the module.  Source: hockey-stick divergence of a mixture whose index is seen,
    with Dong, Roth and Su 2022, Corollary 3.3, inside; derived in ``docs/math.md``.

    >>> round(math.exp(visits_log_delta(2.882, 0.5 / 2.5744, 100, 0.1)), 7)
    1e-05
    """
    check_number("epsilon", epsilon, low=0.0)
    check_number("ratio", ratio, low=0.0)
    check_number("seal_mu", seal_mu, low=0.0)
    return _log_delta(epsilon, ratio, visit_law(hops, p, cap=cap), seal_mu)


def _log_delta(
    epsilon: float, ratio: float, law: tuple[Floats, Floats, float], seal_mu: float = 0.0
) -> float:
    counts, logs, left = law
    mus = np.sqrt(counts) * ratio
    terms = gaussian_log_deltas(epsilon, np.hypot(mus, seal_mu) if seal_mu else mus) + logs
    top = max(float(terms.max()), left)
    if top == -math.inf:
        return -math.inf
    total = top + math.log(float(np.exp(terms - top).sum()) + math.exp(left - top))
    return total if total < -MARGIN else 0.0  # nearer to 0 than rounding: the safe side


def _law_for(delta: float, hops: int, p: float, cap: int | None) -> tuple[Floats, Floats, float]:
    check_number("delta", delta, above=0.0, below=1.0)
    return visit_law(hops, p, cap=cap, depth=60.0 - math.log(delta))


def visits_epsilon(
    delta: float,
    ratio: float,
    hops: int,
    p: float,
    *,
    cap: int | None = None,
    seal_mu: float = 0.0,
) -> float:
    """The smallest epsilon of :func:`visits_log_delta` at this delta, rounded up.

    >>> round(visits_epsilon(1e-5, 0.5 / 2.5744, 100, 0.1), 3)
    2.882
    """
    check_number("ratio", ratio, low=0.0)
    check_number("seal_mu", seal_mu, low=0.0)
    law = _law_for(delta, hops, p, cap)
    target = math.log(delta) - MARGIN

    def deficit(epsilon: float) -> float:
        return target - _log_delta(epsilon, ratio, law, seal_mu)

    if deficit(0.0) >= 0.0:
        return 0.0
    mean = float(np.dot(law[0], np.exp(law[1])))
    guess = gaussian_epsilon(delta, math.hypot(seal_mu, ratio * math.sqrt(max(mean, 1.0))))
    if math.isinf(guess):
        return math.inf
    return smallest_safe(lambda x: -deficit(x), increasing_root(deficit, 0.0, max(guess, 1e-12)))


def visits_sigma(
    epsilon: float,
    delta: float,
    sensitivity: float,
    hops: int,
    p: float,
    *,
    cap: int | None = None,
) -> float:
    """The smallest noise std per visit for (epsilon, delta), rounded up.

    Zero where a visit is rarer than delta.  Statement and assumptions:
    :func:`visits_log_delta`.

    >>> round(visits_sigma(1.0, 1e-5, 0.5, 100, 0.1), 3)
    6.547
    """
    check_number("epsilon", epsilon, low=0.0)
    check_number("sensitivity", sensitivity, above=0.0)
    law = _law_for(delta, hops, p, cap)
    target = math.log(delta) - MARGIN
    visited = math.fsum(np.exp(law[1][law[0] > 0.0]))
    if visited == 0.0 or math.log(visited) <= target:
        return 0.0

    def excess(ratio: float) -> float:
        return _log_delta(epsilon, ratio, law) - target

    # Start where about as many visits as two stds above the mean would have to be hidden; as
    # many as there are hops is the worst case, so going down ends.
    spread = hops * p + 2.0 * math.sqrt(hops * p * (1.0 - p)) + 1.0
    low = gaussian_mu(epsilon, delta) / math.sqrt(spread)
    while excess(low) > 0.0:
        low /= 1.25
    ratio = largest_safe(excess, increasing_root(excess, low, 1.25 * low))
    return sensitivity / ratio


def visits_rdp(alpha: float, ratio: float, hops: int, p: float) -> float:
    r"""The public coin in Renyi form:

    .. math:: \varepsilon(\alpha) = \frac{T}{\alpha-1}
              \ln\!\big(1 - p + p\, e^{\alpha(\alpha-1) D^2/2\sigma^2}\big).

    Assumptions and neighbours: :func:`visits_log_delta`; it composes with other curves.  Source:
    :func:`unwalk.privacy.renyi.mixture_rdp` for one hop, added up over T independent hops.

    >>> round(visits_rdp(2.0, 1.0, 1, 0.5), 6)
    0.620115
    """
    check_number("alpha", alpha, above=1.0)
    check_number("ratio", ratio, low=0.0)
    check_count("hops", hops, low=0)
    check_number("p", p, low=0.0, high=1.0)
    exponent = 0.5 * alpha * (alpha - 1.0) * ratio * ratio
    if p == 0.0 or exponent == 0.0:
        return 0.0
    if p == 1.0:
        return 0.5 * hops * alpha * ratio * ratio
    if exponent > 30.0:
        log = exponent + math.log(p) + math.log1p((1.0 - p) / p * math.exp(-exponent))
    else:
        log = math.log1p(p * math.expm1(exponent))
    return hops * log / (alpha - 1.0)


def visits_rdp_epsilon(delta: float, ratio: float, hops: int, p: float) -> float:
    """Epsilon of :func:`visits_rdp` by the tight conversion, best real order.

    >>> round(visits_rdp_epsilon(1e-5, 0.5 / 2.5744, 100, 0.1), 3)
    3.229
    """
    return curve_epsilon(lambda alpha: visits_rdp(alpha, ratio, hops, p), delta)


def capped_visits_mu(ratio: float, cap: int) -> float:
    r""":math:`\mu = \sqrt c\, D/\sigma`: at most c visits, whatever the route.

    Holds for every route and coin, also one an adversary chose.  Source:
    :func:`unwalk.privacy.gaussian.compose_mu`.

    >>> capped_visits_mu(0.5, 4)
    1.0
    """
    check_number("ratio", ratio, low=0.0)
    check_count("cap", cap, low=0)
    return ratio * math.sqrt(cap)
