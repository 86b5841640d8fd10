r"""Lower bounds on epsilon from the errors of an attacker, each with a stated confidence.

An attacker looks at one run and says whether the records had been there ("with") or not.  Whatever
it does, :math:`(\varepsilon, \delta)` bounds its two error rates (Kairouz, Oh and Viswanath 2015,
arXiv:1311.0776v4, Theorem 2.1): with false alarms at rate FPR in runs without the records and
misses at rate FNR in runs with them,

.. math:: 1 - \mathrm{FNR} \le e^\varepsilon\,\mathrm{FPR} + \delta, \qquad
          1 - \mathrm{FPR} \le e^\varepsilon\,\mathrm{FNR} + \delta .

Errors that are counted in independent runs bound the rates, and the rates bound epsilon from below.
No bound here assumes anything about how runs of the two worlds are paired: each rate is bounded by
itself, from runs of one world.  The bounds named ``gaussian`` also assume a shape of the trade-off
curve; they are shown, and nothing is decided by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betainccinv, expit, ndtr, ndtri
from scipy.stats import binom

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_count, check_number
from unwalk.privacy.gaussian import gaussian_epsilon, gaussian_mu

Floats = npt.NDArray[np.float64]

TOLERANCE = 1e-9
"""How far below the true value a bound that is found by bisection may lie."""
SMALLEST = 1e-300
"""The smallest p-value that is told apart from 0."""


@dataclass(frozen=True)
class Tally:
    """What an attacker with a fixed rule got wrong: ``false_alarms`` in ``without`` runs that never
    had the records, ``misses`` in ``with_`` runs that did."""

    false_alarms: int
    without: int
    misses: int
    with_: int

    def __post_init__(self) -> None:
        for errors, runs in ((self.false_alarms, self.without), (self.misses, self.with_)):
            check_count("runs", runs, low=1)
            check_count("errors", errors, high=runs)

    @staticmethod
    def of(with_: Floats, without: Floats, threshold: float) -> Tally:
        """The errors of "with" for scores of ``threshold`` and more.

        >>> Tally.of(np.array([1.0, 3.0]), np.array([0.0, 2.0, 2.5]), 2.5)
        Tally(false_alarms=1, without=3, misses=1, with_=2)
        """
        alarms, misses = int((without >= threshold).sum()), int((with_ < threshold).sum())
        return Tally(alarms, len(without), misses, len(with_))


def upper_rate(errors: int, runs: int, significance: float) -> float:
    r"""The largest error rate that ``errors`` of ``runs`` leave possible.

    Statement: with probability at least 1 - ``significance`` the true rate is at most the p with
    :math:`\Pr[\mathrm{Bin}(n, p) \le k] =` ``significance`` (Clopper and Pearson 1934).
    Assumptions: runs are independent and the rule was fixed before them.

    >>> round(upper_rate(0, 150, 0.025), 6)
    0.024293
    """
    return 1.0 if errors >= runs else float(betainccinv(errors + 1, runs - errors, significance))


def _rates(tally: Tally, significance: float) -> tuple[float, float]:
    """Both rates; together they hold except with probability ``significance``."""
    return (
        upper_rate(tally.false_alarms, tally.without, significance / 2.0),
        upper_rate(tally.misses, tally.with_, significance / 2.0),
    )


def _epsilon(false_alarms: float, misses: float, delta: float) -> float:
    """The smallest epsilon that two error rates allow, by the better of the two directions."""
    best = 0.0
    for hit, wrong in ((1.0 - misses, false_alarms), (1.0 - false_alarms, misses)):
        if hit > delta:
            best = max(best, math.log(hit - delta) - math.log(wrong))
    return best


def _significance(confidence: float, tests: int) -> float:
    check_number("confidence", confidence, above=0.0, below=1.0)
    check_count("tests", tests, low=1)
    return (1.0 - confidence) / tests


def clopper_pearson(tally: Tally, delta: float, confidence: float = 0.95, tests: int = 1) -> float:
    r"""Epsilon is at least this, with probability ``confidence``.

    Statement: with :math:`\alpha = 1 -` confidence, both error rates are below their
    Clopper-Pearson bounds at :math:`\alpha/2` except with probability :math:`\alpha`, and then
    :math:`\varepsilon \ge \max(\ln\frac{1-\overline{\mathrm{FNR}}-\delta}{\overline{\mathrm{FPR}}},
    \ln\frac{1-\overline{\mathrm{FPR}}-\delta}{\overline{\mathrm{FNR}}}, 0)`.  The event is the same
    for both directions, so that taking the larger costs nothing.
    Assumptions: runs of one world are independent; attacker, threshold and which side of it means
    "with" were fixed before these runs, or are one of ``tests`` that were (Bonferroni).
    Source: Nasr et al., *Adversary Instantiation*, 2021 (arXiv:2101.04535v1), section 4.

    >>> round(clopper_pearson(Tally(0, 150, 0, 150), 1e-5), 4)
    3.693
    """
    check_number("delta", delta, low=0.0, below=1.0)
    return _epsilon(*_rates(tally, _significance(confidence, tests)), delta)


def cap(runs: int, confidence: float = 0.95, delta: float = 0.0, tests: int = 1) -> float:
    """The largest bound that so many runs of each world can show: an attacker without an error.

    >>> round(cap(150, 0.95, 1e-5), 4)
    3.693
    """
    return clopper_pearson(Tally(0, runs, 0, runs), delta, confidence, tests)


def p_value(tally: Tally, epsilon: float, delta: float) -> float:
    """The smallest significance at which :func:`clopper_pearson` refutes (epsilon, delta).

    If the claim is true, this is at most x with probability at most x, for every x: the bound is
    valid at each confidence, and grows with the significance.

    >>> tally = Tally(0, 20, 0, 20)
    >>> alpha = p_value(tally, 1.0, 0.0)
    >>> round(clopper_pearson(tally, 0.0, 1.0 - alpha), 6)
    1.0
    """
    check_number("epsilon", epsilon, low=0.0)

    def refutes(log_alpha: float) -> bool:
        return _epsilon(*_rates(tally, math.exp(log_alpha)), delta) > epsilon

    low, high = math.log(SMALLEST), 0.0
    if not refutes(high):
        return 1.0
    if refutes(low):
        return SMALLEST
    while high - low > TOLERANCE:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if refutes(middle) else (middle, high)
    return math.exp(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted for each other (Holm 1979), in the same order.

    Whatever the dependence between the tests: the chance that any true claim has an adjusted value
    of at most x is at most x.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = worst
    return adjusted


def gaussian_trade_off(
    tally: Tally, delta: float, confidence: float = 0.95, tests: int = 1
) -> float:
    r"""Epsilon at delta, *if* the two worlds differ like two Gaussians of the same variance.

    Statement: if the trade-off curve is that of :math:`\mathcal N(\mu, 1)` against
    :math:`\mathcal N(0, 1)`, then :math:`\mu \ge \Phi^{-1}(1 - \overline{\mathrm{FPR}}) -
    \Phi^{-1}(\overline{\mathrm{FNR}})` with the confidence of the rates, and epsilon at delta
    follows from :math:`\mu` exactly.
    Assumptions: as :func:`clopper_pearson`, and that shape, which nothing here checks.
    Source: Nasr et al. 2023 (arXiv:2302.07956v1), section 4; Dong, Roth and Su 2022
    (arXiv:1905.02383v3), equation 6 and Corollary 2.13.

    >>> round(gaussian_trade_off(Tally(0, 150, 0, 150), 1e-5), 2)
    23.93
    """
    check_number("delta", delta, above=0.0, below=1.0)
    false_alarms, misses = _rates(tally, _significance(confidence, tests))
    if false_alarms + misses >= 1.0:
        return 0.0
    return gaussian_epsilon(delta, float(-ndtri(false_alarms) - ndtri(misses)))


def one_run_p_value(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    r"""How likely so many correct guesses are in one run, if :math:`(\varepsilon,\delta)` holds.

    Statement: each of m canaries is included by a fair coin of its own; the attacker guesses r of
    the coins, v of them rightly.  With :math:`q = e^\varepsilon/(1+e^\varepsilon)` and
    :math:`\beta(v) = \Pr[\mathrm{Bin}(r, q) \ge v]`,
    :math:`\Pr[V \ge v] \le \beta(v) + 2 m \delta \max_{1 \le i \le v} (\beta(v - i) - \beta(v))/i`.
    Assumptions: :math:`(\varepsilon,\delta)` for adding or removing one canary.
    Source: Steinke, Nasr and Jagielski 2023 (arXiv:2305.08846v1), Theorem 5.2.

    >>> round(one_run_p_value(100, 100, 100, 3.5, 0.0), 4)
    0.051
    """
    _check_guesses(canaries, guesses, correct)
    q = float(expit(epsilon))
    tail = float(binom.sf(correct - 1, guesses, q))
    if delta == 0.0 or correct == 0:
        return min(tail, 1.0)
    below = np.cumsum(binom.pmf(correct - np.arange(1, correct + 1), guesses, q))
    worst = float((below / np.arange(1, correct + 1)).max())
    return min(tail + 2.0 * canaries * delta * worst, 1.0)


def one_run(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Epsilon is at least this, from one run with many canaries (:func:`one_run_p_value`).

    >>> round(one_run(100, 100, 100, 0.0), 4)  # ln q/(1 - q) with q = 0.05 ** (1 / 100)
    3.493
    """
    alpha = _significance(confidence, 1)

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, correct, epsilon, delta) < alpha

    return _largest(refuted)


def one_run_claim(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    r"""Epsilon of a claim of unlearning at ``delta`` is at least this, from the same run.

    Statement: two worlds that differ in one canary are :math:`(\varepsilon, \delta)`-close to one
    certifier, so that they are :math:`(2\varepsilon, (1 + e^\varepsilon)\delta)`-close to each
    other; that pair is refuted by :func:`one_run_p_value`.
    Assumptions: as there, for the claim.

    >>> round(one_run_claim(100, 100, 100, 0.0), 4)  # half of one_run's
    1.7465
    """
    alpha = _significance(confidence, 1)

    def refuted(epsilon: float) -> bool:
        apart = 2.0 * epsilon, min((1.0 + math.exp(min(epsilon, 700.0))) * delta, 1.0)
        return one_run_p_value(canaries, guesses, correct, *apart) < alpha

    return _largest(refuted)


def one_run_gaussian(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    r"""The same *if* the mechanism is as private as the Gaussian one with this (epsilon, delta).

    Statement: let f be the trade-off curve of :math:`\mathcal N(\mu,1)` against
    :math:`\mathcal N(0,1)`, where :math:`\mu = r(\varepsilon,\delta)`.  Start with
    :math:`r_v = \tau v/m` and :math:`h_v = \tau (c - v)/m` for c guesses, and go down: :math:`h_i =
    \max(h_{i+1}, \Phi(\Phi^{-1}(r_{i+1}) - \mu))`, :math:`r_i = r_{i+1} + \frac{i}{c-i}(h_i -
    h_{i+1})`.  If :math:`r_0 + h_0 > c/m`, then v correct guesses have a probability below
    :math:`\tau` under f.
    Assumptions: as :func:`one_run_p_value`, and that the curve is f, which nothing here checks.
    Source: Mahloujifar, Melis and Chaudhuri 2024 (arXiv:2410.22235v1), Algorithm 3.
    """
    _check_guesses(canaries, guesses, correct)
    check_number("delta", delta, above=0.0, below=1.0)
    alpha = _significance(confidence, 1)

    def refuted(epsilon: float) -> bool:
        mu = gaussian_mu(epsilon, delta)
        right = alpha * correct / canaries
        wrong = alpha * (guesses - correct) / canaries
        for left in range(correct - 1, -1, -1):
            more = max(wrong, float(ndtr(ndtri(right) - mu)))
            if more == wrong:
                break
            right = min(right + left / (guesses - left) * (more - wrong), 1.0)
            wrong = more
        return right + wrong > guesses / canaries

    return _largest(refuted)


def _check_guesses(canaries: int, guesses: int, correct: int) -> None:
    if not 0 <= correct <= guesses <= canaries or canaries < 1:
        raise InvalidInput(
            f"{correct} correct of {guesses} guesses about {canaries} canaries; allowed: no more "
            "guesses than canaries, and no more correct ones than guesses."
        )


def _largest(refuted: Callable[[float], bool]) -> float:
    """The largest epsilon that is refuted, from below; 0 where none is."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2.0 * high
    while high - low > TOLERANCE:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
