r"""The Gaussian mechanism, exactly: delta from epsilon, epsilon from delta, noise from both.

Adding :math:`\mathcal N(0, \sigma^2 I)` to a vector that two neighbouring inputs move by at most
:math:`\Delta` is, for every distinguisher, the pair
:math:`\mathcal N(\mu, 1)` against :math:`\mathcal N(0, 1)` with :math:`\mu = \Delta/\sigma`.
All functions speak of that one number :math:`\mu`; its hockey-stick divergence is

.. math:: \delta_G(\varepsilon; \mu) = Q(\varepsilon/\mu - \mu/2)
          - e^{\varepsilon} Q(\varepsilon/\mu + \mu/2), \qquad Q(x) = \Pr[\mathcal N(0,1) > x].

Values are computed as logarithms, with :math:`\operatorname{erfcx}(x) = e^{x^2}
\operatorname{erfc}(x)`: with :math:`a = \varepsilon/\mu - \mu/2` both terms share the factor
:math:`e^{-a^2/2}`, so that neither :math:`e^\varepsilon` nor a small delta is ever formed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import scipy

from unwalk.core.validation import check_number
from unwalk.privacy.roots import MARGIN, increasing_root, largest_safe

Floats = npt.NDArray[np.float64]

_SQRT2 = math.sqrt(2.0)
_FAR = 1e150  # beyond this a, delta is below exp(-1e299)
_CLOSE = 0.02  # below this relative distance a difference of erfcx would cancel
_nodes, _weights = np.polynomial.legendre.leggauss(48)
_NODES: Floats = 0.5 * (_nodes + 1.0)
_WEIGHTS: Floats = 0.5 * _weights


def gaussian_log_delta(epsilon: float, mu: float) -> float:
    r""":math:`\ln \delta_G(\varepsilon; \mu)`, the natural logarithm of the exact delta.

    Statement: for :math:`\mu = \Delta_2/\sigma` the Gaussian mechanism is
    :math:`(\varepsilon, \delta)`-indistinguishable iff
    :math:`\delta \ge Q(\varepsilon/\mu - \mu/2) - e^\varepsilon Q(\varepsilon/\mu + \mu/2)`.
    Assumptions: independent Gaussian noise of the same std on every coordinate, a bound on the
    Euclidean distance of the two inputs.  Neighbours: whatever the sensitivity was taken over.
    Source: Balle and Wang, *Improving the Gaussian Mechanism for Differential Privacy*, ICML
    2018 (arXiv:1805.06530v2), Theorem 8.

    >>> round(math.exp(gaussian_log_delta(1.0, 1 / 3.730632)), 8)
    1e-05
    """
    if mu <= 0.0:
        return -math.inf
    if math.isinf(mu):
        return 0.0
    return log_delta_at(epsilon / mu - 0.5 * mu, mu)


def log_delta_at(a: float, mu: float) -> float:
    r""":math:`\ln\delta_G` at the standardised threshold :math:`a = \varepsilon/\mu - \mu/2`."""
    b = a + mu
    if a < 0.0:
        if mu < 0.5:
            between = 0.5 * (math.erf(b / _SQRT2) - math.erf(a / _SQRT2))
            lost = math.expm1(mu * (a + 0.5 * mu)) * 0.5 * math.erfc(b / _SQRT2)
            return math.log(between - lost)
        tail = math.exp(-0.5 * a * a) * float(scipy.special.erfcx(b / _SQRT2))
        return math.log1p(-0.5 * (math.erfc(-a / _SQRT2) + tail))
    if a > _FAR:
        return -math.inf
    x, h = a / _SQRT2, mu / _SQRT2
    if h > _CLOSE * (1.0 + x):
        return (
            math.log(0.5 * float(scipy.special.erfcx(x) - scipy.special.erfcx(x + h))) - 0.5 * a * a
        )
    return float(_log_gap(np.array([x]), np.array([h]))[0]) - 0.5 * a * a


def gaussian_log_deltas(epsilon: float | Floats, mu: Floats) -> Floats:
    r""":func:`gaussian_log_delta` for arrays of one shape; :math:`\mu = 0` gives minus infinity.

    >>> gaussian_log_deltas(1.0, np.array([0.0, 1.0])).round(6)
    array([     -inf, -2.064066])
    """
    out = np.full(mu.shape, -math.inf)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        a = epsilon / mu - 0.5 * mu
    some = (mu > 0.0) & (a <= _FAR)
    inner = some & (a < 0.0) & (mu < 0.5)
    early = some & (a < 0.0) & (mu >= 0.5)
    late = some & (a >= 0.0)
    if inner.any():
        ai, mi = a[inner], mu[inner]
        between = 0.5 * (scipy.special.erf((ai + mi) / _SQRT2) - scipy.special.erf(ai / _SQRT2))
        lost = np.expm1(mi * (ai + 0.5 * mi)) * 0.5 * scipy.special.erfc((ai + mi) / _SQRT2)
        out[inner] = np.log(between - lost)
    if early.any():
        ai, mi = a[early], mu[early]
        tail = np.exp(-0.5 * ai * ai) * scipy.special.erfcx((ai + mi) / _SQRT2)
        out[early] = np.log1p(-0.5 * (scipy.special.erfc(-ai / _SQRT2) + tail))
    if late.any():
        ai = a[late]
        x, h = ai / _SQRT2, mu[late] / _SQRT2
        near = h <= _CLOSE * (1.0 + x)
        logs = np.empty_like(x)
        logs[near] = _log_gap(x[near], h[near])
        logs[~near] = np.log(
            0.5 * (scipy.special.erfcx(x[~near]) - scipy.special.erfcx(x[~near] + h[~near]))
        )
        out[late] = logs - 0.5 * ai * ai
    return out


def _log_gap(x: Floats, h: Floats) -> Floats:
    r""":math:`\ln\frac12(\operatorname{erfcx}(x) - \operatorname{erfcx}(x+h))` for small h.

    From :math:`\operatorname{erfcx}(x) = \frac2{\sqrt\pi}\int_0^\infty e^{-t^2-2xt}\,dt` the gap
    is an integral of positive terms, :math:`\frac{2h}{\sqrt\pi}\int_0^\infty 2t\,e^{-t^2-2xt}
    \frac{1-e^{-2ht}}{2ht}\,dt`, done by Gauss-Legendre on the interval that carries it.
    """
    top = np.minimum(6.5, 22.5 / np.maximum(x, 1.0))[:, None]
    t = top * _NODES
    y = np.maximum(2.0 * h[:, None] * t, 1e-300)
    terms = 2.0 * _NODES * np.exp(-t * t - 2.0 * x[:, None] * t) * (-np.expm1(-y) / y)
    total: Floats = terms @ _WEIGHTS
    logs: Floats = np.log(total / math.sqrt(math.pi)) + np.log(h) + 2.0 * np.log(top[:, 0])
    return logs


def gaussian_delta(epsilon: float, mu: float) -> float:
    r""":math:`\delta_G(\varepsilon; \mu)`; see :func:`gaussian_log_delta`.

    >>> round(gaussian_delta(0.0, 1.0), 6)  # total variation of N(1, 1) and N(0, 1)
    0.382925
    """
    check_number("epsilon", epsilon, low=0.0)
    check_number("mu", mu, low=0.0)
    return math.exp(gaussian_log_delta(epsilon, mu))


def gaussian_epsilon(delta: float, mu: float) -> float:
    r"""The smallest :math:`\varepsilon` with :math:`\delta_G(\varepsilon;\mu) \le \delta`.

    Rounded up: the delta at the returned value, computed in full, does not exceed the target.
    Statement, assumptions and source: :func:`gaussian_log_delta`.

    >>> round(gaussian_epsilon(1e-5, 1 / 3.73063163), 6)
    1.0
    """
    check_number("delta", delta, above=0.0, below=1.0)
    check_number("mu", mu, low=0.0)
    target = math.log(delta) - MARGIN
    if gaussian_log_delta(0.0, mu) <= target:
        return 0.0
    if math.isinf(mu):
        return math.inf

    def deficit(a: float) -> float:  # increasing in a
        return target - log_delta_at(a, mu)

    start = -0.5 * mu
    reach = math.sqrt(-2.0 * target)
    a = increasing_root(lambda step: deficit(start + step), 0.0, reach - start) + start
    step = 1e-15 * (1.0 + abs(a))
    while deficit(a) < 0.0:
        a += step
        step *= 2.0
    return float(np.nextafter(mu * (a + 0.5 * mu) * (1.0 + 4e-16), math.inf))


def gaussian_mu(epsilon: float, delta: float) -> float:
    r"""The largest :math:`\mu = r(\varepsilon, \delta)` that still gives
    :math:`(\varepsilon, \delta)`: noise :math:`s = \Delta / r(\varepsilon, \delta)`.

    Rounded down.  Statement, assumptions and source: :func:`gaussian_log_delta`.

    >>> round(1 / gaussian_mu(1.0, 1e-5), 5)
    3.73063
    """
    check_number("epsilon", epsilon, low=0.0)
    check_number("delta", delta, above=0.0, below=1.0)
    target = math.log(delta) - MARGIN

    def excess(mu: float) -> float:
        return gaussian_log_delta(epsilon, mu) - target

    # Q(a) <= exp(-a^2/2): at this mu delta is certainly met.  For epsilon = 0,
    # delta_G = erf(mu / sqrt 8) <= mu / 2.
    reach = math.sqrt(-2.0 * target)
    low = max(2.0 * epsilon / (reach + math.sqrt(reach * reach + 2.0 * epsilon)), delta)
    return largest_safe(excess, increasing_root(excess, low, 2.0 * low))


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    r"""The smallest noise std that makes one release of this sensitivity
    :math:`(\varepsilon,\delta)`-indistinguishable: the analytic Gaussian mechanism.

    Source: Balle and Wang 2018 (arXiv:1805.06530v2), Algorithm 1, solved to full precision.

    >>> round(gaussian_sigma(1.0, 1e-5), 5)
    3.73063
    """
    check_number("sensitivity", sensitivity, above=0.0)
    return sensitivity / gaussian_mu(epsilon, delta)


def compose_mu(mus: Iterable[float]) -> float:
    r"""Composition of Gaussian releases: :math:`\mu = \sqrt{\sum_i \mu_i^2}`, with equality.

    Assumptions: each release's :math:`\mu_i` is fixed beforehand; what is released may depend on
    earlier releases.  Source: Dong, Roth and Su, *Gaussian Differential Privacy*, JRSS-B 2022
    (arXiv:1905.02383v3), Corollary 3.3.

    >>> compose_mu([3.0, 4.0])
    5.0
    """
    return math.hypot(*(check_number("mu", mu, low=0.0) for mu in mus))
