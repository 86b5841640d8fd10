r"""Renyi differential privacy: curves, composition, and conversion to (epsilon, delta).

A *curve* is a function :math:`\alpha \mapsto \varepsilon(\alpha)` that bounds the Renyi divergence
:math:`D_\alpha(P\|Q) = \frac1{\alpha-1}\ln \mathbb E_Q[(dP/dQ)^\alpha]` in both directions.  Every
order gives a valid bound, so that searching orders coarsely costs tightness, never validity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import scipy

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_number

Floats = npt.NDArray[np.float64]
Curve = Callable[[float], float]

_GRID = np.linspace(math.log(1e-6), math.log(1e6 - 1.0), 120)


def gaussian_rdp(alpha: float, mu: float) -> float:
    r""":math:`\varepsilon(\alpha) = \alpha\mu^2/2` for the Gaussian mechanism, with equality.

    Source: Mironov, *Renyi Differential Privacy*, CSF 2017 (arXiv:1702.07476v3), Proposition 7.

    >>> gaussian_rdp(2.0, 1.0)
    1.0
    """
    check_number("alpha", alpha, above=1.0)
    return 0.5 * alpha * mu * mu


def compose_rdp(curves: Iterable[Curve]) -> Curve:
    r"""The sum of curves: :math:`\varepsilon(\alpha) = \sum_i \varepsilon_i(\alpha)`.

    Assumptions: mechanism i's curve holds for every value of the earlier outputs (adaptive
    composition).  Source: Mironov 2017 (arXiv:1702.07476v3), Proposition 1.

    >>> compose_rdp([lambda a: a, lambda a: 2 * a])(3.0)
    9.0
    """
    kept = tuple(curves)
    return lambda alpha: math.fsum(curve(alpha) for curve in kept)


def mixture_rdp(alpha: float, log_weights: Sequence[float], values: Sequence[float]) -> float:
    r"""Log-mean-exp: the exact Renyi divergence when a public coin chose the mechanism.

    .. math:: D_\alpha\big((I, Y)\,\|\,(I, Y')\big) = \frac{1}{\alpha-1}
              \ln \sum_i w_i\, e^{(\alpha-1) D_\alpha(Y_i\|Y'_i)}.

    It bounds the divergence of the mixtures without the coin too (data processing), at any size
    of the divergences: the unconditional replacement of weak convexity
    (:func:`unwalk.privacy.iteration.weak_convexity_rdp`).  Assumption: the coin's law ``w`` is the
    same in both worlds.  Source: the definition of :math:`D_\alpha` on the pair (I, Y).

    >>> round(mixture_rdp(2.0, [math.log(0.5)] * 2, [0.0, 1.0]), 6)
    0.620115
    """
    check_number("alpha", alpha, above=1.0)
    terms = np.asarray(log_weights, np.float64) + (alpha - 1.0) * np.asarray(values, np.float64)
    return max(0.0, float(scipy.special.logsumexp(terms)) / (alpha - 1.0))


def rdp_epsilon_at(alpha: float, value: float, delta: float) -> float:
    r"""Epsilon from one order, by the tight conversion.

    .. math:: \varepsilon = \max\!\Big(0,\ \varepsilon_\alpha + \ln\big(1-\tfrac1\alpha\big)
              - \frac{\ln(\delta\alpha)}{\alpha-1}\Big).

    Assumption: :math:`D_\alpha \le \varepsilon_\alpha` in both directions.  Source: Canonne,
    Kamath and Steinke, *The Discrete Gaussian for Differential Privacy*, NeurIPS 2020
    (arXiv:2004.00010v4), Proposition 12.

    >>> round(rdp_epsilon_at(32.0, 1.1, 1e-5), 11)
    1.32783806176
    """
    check_number("alpha", alpha, above=1.0)
    check_number("delta", delta, above=0.0, below=1.0)
    shift = math.log1p(-1.0 / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1.0)
    return max(0.0, value + shift)


def mironov_epsilon_at(alpha: float, value: float, delta: float) -> float:
    r"""The older, looser conversion :math:`\varepsilon_\alpha + \ln(1/\delta)/(\alpha-1)`.

    The paper uses it (Proposition A.8).  Source: Mironov 2017 (arXiv:1702.07476v3),
    Proposition 3.

    >>> mironov_epsilon_at(11.0, 1.0, math.exp(-10.0))
    2.0
    """
    check_number("alpha", alpha, above=1.0)
    check_number("delta", delta, above=0.0, below=1.0)
    return value - math.log(delta) / (alpha - 1.0)


def rdp_epsilon(orders: Sequence[float], values: Sequence[float], delta: float) -> float:
    """The best epsilon over tabulated orders; infinite where no order has a finite value.

    >>> orders = list(range(2, 33))
    >>> round(rdp_epsilon(orders, [1.1] * len(orders), 1e-5), 11)
    1.32783806176
    """
    if len(orders) != len(values) or not orders:
        raise InvalidInput(
            f"orders and values have lengths {len(orders)} and {len(values)}; allowed: the same "
            "length, at least 1."
        )
    return min(
        rdp_epsilon_at(float(a), float(v), delta) for a, v in zip(orders, values, strict=True)
    )


def curve_epsilon(curve: Curve, delta: float) -> float:
    r"""The best epsilon over all real orders in :math:`(1, 10^6]`.

    Conversion and source: :func:`rdp_epsilon_at`.  The minimum is searched on a grid of
    :math:`\ln(\alpha-1)` and refined; whatever it finds is a valid bound.

    >>> round(curve_epsilon(lambda alpha: 0.5 * alpha, 1e-5), 4)  # Gaussian, mu = 1: exact 4.3772
    4.7284
    """

    def at(log_gap: float) -> float:
        alpha = 1.0 + math.exp(log_gap)
        value = rdp_epsilon_at(alpha, curve(alpha), delta)
        return math.inf if math.isnan(value) else value

    values = [at(x) for x in _GRID]
    best = min(range(len(values)), key=values.__getitem__)
    low, high = _GRID[max(best - 1, 0)], _GRID[min(best + 1, len(_GRID) - 1)]
    if not math.isfinite(values[best]):
        return values[best]
    refined = scipy.optimize.minimize_scalar(
        lambda x: min(at(x), 1e300), bounds=(low, high), method="bounded", options={"xatol": 1e-9}
    )
    return min(values[best], float(refined.fun))


def zcdp_epsilon(rho: float, delta: float) -> float:
    r"""Epsilon of :math:`\rho`-zCDP, the curve :math:`\varepsilon(\alpha) = \rho\,\alpha`.

    Source: Bun and Steinke, *Concentrated Differential Privacy*, TCC 2016 (arXiv:1605.02065v1),
    Definition 1.1, converted by :func:`curve_epsilon`.

    >>> round(zcdp_epsilon(0.5, 1e-5), 4)
    4.7284
    """
    check_number("rho", rho, low=0.0)
    return curve_epsilon(lambda alpha: rho * alpha, delta)
