r"""The sampled Gaussian mechanism: how DP-SGD's noise is calibrated.

A step draws a batch, sums its gradients, each clipped to norm C, and adds
:math:`\mathcal N(0, z^2 C^2 I)`; z is the *noise multiplier*.  Neighbouring relation: one record
added or removed.

The theory assumes Poisson sampling: every record is in a batch with probability q, independently
of all others.  Our batches are slices of a shuffled epoch or draws of fixed size, for which these
numbers are customary and not proved; whatever is calibrated with them is **nominal**.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import scipy

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_count, check_number
from unwalk.privacy.renyi import rdp_epsilon
from unwalk.privacy.roots import increasing_root, largest_safe

ORDERS = (*range(2, 64), *(2**k for k in range(6, 13)))
"""Integer orders that are tried; every one gives a valid bound."""


def sampled_rdp(alpha: int, multiplier: float, rate: float) -> float:
    r"""One step, for an integer order:

    .. math:: \varepsilon(\alpha) = \frac1{\alpha-1}\ln\sum_{k=0}^{\alpha}\binom\alpha k
              (1-q)^{\alpha-k} q^k \exp\Big(\frac{k^2-k}{2z^2}\Big).

    Assumptions: Poisson sampling at ``rate`` q, clipped sums, ``multiplier`` z.  Neighbours: one
    record added or removed, both directions.  Source: Mironov, Talwar and Zhang, *Renyi
    Differential Privacy of the Sampled Gaussian Mechanism*, 2019 (arXiv:1908.10530v1),
    Section 3.3.

    >>> round(sampled_rdp(2, 1.0, 0.5), 6), sampled_rdp(2, 1.0, 1.0)
    (0.357374, 1.0)
    """
    check_count("alpha", alpha, low=2)
    check_number("multiplier", multiplier, above=0.0)
    check_number("rate", rate, low=0.0, high=1.0)
    if rate == 0.0:
        return 0.0
    if rate == 1.0:
        return 0.5 * alpha / multiplier**2
    counts, log_choices = _choices(alpha)
    terms = (
        log_choices
        + counts * math.log(rate)
        + (alpha - counts) * math.log1p(-rate)
        + counts * (counts - 1.0) / (2.0 * multiplier**2)
    )
    return max(0.0, float(scipy.special.logsumexp(terms))) / (alpha - 1)


@lru_cache(maxsize=128)
def _choices(alpha: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """0, ..., alpha and the logs of the binomial coefficients."""
    counts = np.arange(alpha + 1, dtype=np.float64)
    logs = (
        scipy.special.gammaln(alpha + 1)
        - scipy.special.gammaln(counts + 1)
        - scipy.special.gammaln(alpha - counts + 1)
    )
    return counts, np.asarray(logs, np.float64)


def sampled_epsilon(delta: float, multiplier: float, rate: float, steps: int) -> float:
    """Epsilon of ``steps`` steps: :func:`sampled_rdp` added up, best of whole orders.

    Composition and conversion: :func:`unwalk.privacy.renyi.compose_rdp` and
    :func:`unwalk.privacy.renyi.rdp_epsilon_at`.

    >>> round(sampled_epsilon(1e-5, 1.1, 0.01, 1000), 4)
    1.7253
    """
    check_count("steps", steps)
    return rdp_epsilon(ORDERS, [steps * sampled_rdp(a, multiplier, rate) for a in ORDERS], delta)


@lru_cache(maxsize=128)
def sampled_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The smallest noise multiplier z with which :func:`sampled_epsilon` is at most ``epsilon``.

    Rounded up; 0 where nothing is drawn, and never below a thousandth otherwise.

    >>> z = sampled_multiplier(1.0, 1e-5, 0.01, 1000)
    >>> round(z, 4), sampled_epsilon(1e-5, z, 0.01, 1000) <= 1.0
    (1.5131, True)
    """
    check_number("epsilon", epsilon, above=0.0)
    check_number("delta", delta, above=0.0, below=1.0)
    check_number("rate", rate, low=0.0, high=1.0)
    if check_count("steps", steps) == 0 or rate == 0.0:
        return 0.0
    least = rdp_epsilon(ORDERS, [0.0] * len(ORDERS), delta)
    if epsilon <= least:
        raise InvalidInput(
            f"epsilon is {epsilon!r}; allowed with delta {delta:g}: above {least:.2g}, the least "
            "that orders up to 4096 can show."
        )

    def excess(inverse: float) -> float:
        return sampled_epsilon(delta, 1.0 / inverse, rate, steps) - epsilon

    low = 1.0
    while excess(low) > 0.0:
        low *= 0.5
    return 1.0 / largest_safe(excess, increasing_root(excess, low, 2.0 * low, largest=1e3))
