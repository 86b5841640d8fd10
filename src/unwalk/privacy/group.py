r"""Group privacy: from one record (or user) to m; corrected, and as the paper states it."""

from __future__ import annotations

import math

from unwalk.core.validation import check_count, check_number


def group_privacy(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    r"""Correct group privacy of an (epsilon, delta) guarantee:

    .. math:: \varepsilon_m = m\,\varepsilon, \qquad
              \delta_m = \delta\sum_{i<m} e^{i\varepsilon}
              = \delta\,\frac{e^{m\varepsilon}-1}{e^\varepsilon-1}, \ \text{at most } 1.

    Assumption: the m neighbours form a chain.  Source: Vadhan, *The Complexity of Differential
    Privacy*, 2017, Lemma 2.2, with its sum kept instead of bounded by
    :math:`m e^{(m-1)\varepsilon}\delta`.

    >>> group_privacy(0.5, 1e-6, 1)
    (0.5, 1e-06)
    >>> round(group_privacy(0.5, 1e-6, 3)[1] * 1e6, 4)
    5.367
    """
    check_number("epsilon", epsilon, low=0.0)
    check_number("delta", delta, low=0.0, high=1.0)
    check_count("size", size, low=1)
    if delta == 0.0 or size == 1:
        return size * epsilon, delta
    if epsilon == 0.0:
        return 0.0, min(1.0, size * delta)
    log_sum = _log_expm1(size * epsilon) - _log_expm1(epsilon)
    return size * epsilon, min(1.0, math.exp(min(0.0, math.log(delta) + log_sum)))


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))


def group_mu(mu: float, size: int) -> float:
    r"""Group privacy of a Gaussian mechanism: :math:`m\mu`, exactly.

    The sensitivity of m changes is m times that of one.  Source: Dong, Roth and Su 2022
    (arXiv:1905.02383v3), Theorem 2.14.

    >>> group_mu(0.1, 5)
    0.5
    """
    check_number("mu", mu, low=0.0)
    return mu * check_count("size", size, low=1)


def group_zcdp(rho: float, size: int) -> float:
    r"""Group privacy of zCDP: :math:`m^2\rho`.

    Source: Bun and Steinke 2016 (arXiv:1605.02065v1), Proposition 1.9.

    >>> group_zcdp(0.5, 3)
    4.5
    """
    check_number("rho", rho, low=0.0)
    return rho * check_count("size", size, low=1) ** 2


def nominal_group_privacy(
    epsilon: float, delta: float, size: int, slack: float, *, constant: float = 1.0
) -> tuple[float, float]:
    r"""The paper's Lemma C.2: :math:`\varepsilon_m = \sqrt{2m\ln(1/\tilde\delta)}\,\varepsilon_0`,
    :math:`\delta_m = m\delta_0 + \tilde\delta`.

    Nominal: this is the shape of advanced composition of m mechanisms, without its second-order
    term, and not a statement about m changed users.  A Gaussian mechanism refutes it as group
    privacy (a test shows where).  Network DP is user level already: deleting m records of *one*
    user needs no factor m at all.  Correct: :func:`group_privacy`, :func:`group_mu`.

    >>> eps, delta = nominal_group_privacy(0.1, 1e-7, 1000, 1e-5)
    >>> round(eps, 4), round(delta, 7)
    (15.1743, 0.00011)
    """
    check_number("epsilon", epsilon, low=0.0)
    check_number("delta", delta, low=0.0, high=1.0)
    check_count("size", size, low=1)
    check_number("slack", slack, above=0.0, below=1.0)
    check_number("constant", constant, above=0.0)
    return constant * math.sqrt(-2.0 * size * math.log(slack)) * epsilon, size * delta + slack
