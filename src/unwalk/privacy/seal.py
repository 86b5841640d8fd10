r"""The ball seal: project on a ball and add noise, k times; and the visits after it.

.. math:: \theta \leftarrow \Pi_{B(\theta_{\rm ref}, \rho)}(\psi(\theta)) + \mathcal N(0, s^2 I),
          \qquad r = 2\rho/s.

Two tokens, whatever they are, lie at most :math:`2\rho` apart after the projection, so that one
step is a Gaussian mechanism with :math:`\mu = r`; further steps forget more.  ``ratio`` is r.

What survives of the old model through a seal is at most :math:`r^2/8` nats (a step's output
carries no more than the capacity of an input confined to a ball), so that a restart at
:math:`\theta_{\rm ref}`, which is exact, never carries materially less.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import scipy

from unwalk.core.errors import Refused
from unwalk.core.validation import check_count, check_number
from unwalk.privacy.gaussian import gaussian_log_delta, gaussian_log_deltas, gaussian_mu
from unwalk.privacy.roots import MARGIN, increasing_root, largest_safe, smallest_safe

Floats = npt.NDArray[np.float64]

MOST_STEPS = 10**6


def seal_log_delta(epsilon: float, ratio: float, steps: int) -> float:
    r"""Log delta after k steps of the ball seal, by the recursion

    .. math:: \delta_0 = 1, \quad
              \tilde\varepsilon_k = \ln\!\Big(1 + \frac{e^\varepsilon - 1}{\delta_k}\Big), \quad
              \delta_{k+1} = \delta_k\, \delta_G(\tilde\varepsilon_k; r).

    Assumptions: the ball's centre and radius, s, k and :math:`\psi` do not depend on the
    forgotten records; :math:`\psi` is a Markov kernel of :math:`\theta` and such data; nothing is
    carried from step to step but :math:`\theta`.  No convexity; tight for arbitrary
    :math:`\psi` (a threshold attains it).  Neighbours: any two starting tokens.  Source: Balle,
    Barthe, Gaboardi and Geumlek, *Privacy Amplification by Mixing and Diffusion Mechanisms*,
    NeurIPS 2019 (arXiv:1905.12264v2), Theorem 1 (2), applied k times.

    >>> round(math.exp(seal_log_delta(1.0, 2.0, 3)), 6)
    0.064857
    """
    check_number("epsilon", epsilon, low=0.0)
    check_number("ratio", ratio, low=0.0)
    check_count("steps", steps, low=0)
    log_gain, log_delta = _log_expm1(epsilon), 0.0
    for _ in range(steps):
        log_delta += gaussian_log_delta(_softplus(log_gain - log_delta), ratio)
    return log_delta


def _log_expm1(epsilon: float) -> float:
    """log(e^epsilon - 1), minus infinity at 0."""
    if epsilon == 0.0:
        return -math.inf
    return epsilon + math.log(-math.expm1(-epsilon))


def _softplus(x: float) -> float:
    """log(1 + e^x) without overflow."""
    return x + math.log1p(math.exp(-x)) if x > 0.0 else math.log1p(math.exp(x))


def seal_steps(epsilon: float, delta: float, ratio: float) -> int:
    """The fewest steps that seal to (epsilon, delta) at this ratio; refused above a million.

    Statement and assumptions: :func:`seal_log_delta`.

    >>> [seal_steps(1.0, 1e-5, r) for r in (0.268, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0)]
    [1, 2, 3, 6, 14, 40, 137]
    """
    check_number("epsilon", epsilon, low=0.0)
    check_number("delta", delta, above=0.0, below=1.0)
    check_number("ratio", ratio, low=0.0)
    target = math.log(delta)
    log_gain, log_delta = _log_expm1(epsilon), 0.0
    # Each step's factor falls with delta, so the last one is the strongest there is.
    strongest = gaussian_log_delta(_softplus(log_gain - target), ratio)
    if strongest == 0.0 or target / strongest > MOST_STEPS:
        raise Refused(_too_many(epsilon, delta, ratio), "out-of-reach")
    for step in range(1, MOST_STEPS + 1):
        log_delta += gaussian_log_delta(_softplus(log_gain - log_delta), ratio)
        if log_delta <= target - MARGIN:
            return step
    raise Refused(_too_many(epsilon, delta, ratio), "out-of-reach")


def _too_many(epsilon: float, delta: float, ratio: float) -> str:
    return (
        f"a ball seal with ratio {ratio:g} needs more than {MOST_STEPS:,} steps for epsilon "
        f"{epsilon:g} and delta {delta:g}; use more noise or a smaller ball, or restart at the "
        "ball's centre, which is exact."
    )


def seal_epsilon(delta: float, ratio: float, steps: int) -> float:
    """The smallest epsilon that k steps reach at this delta, rounded up.

    >>> round(seal_epsilon(1e-5, 5.0, 137), 3)
    0.999
    """
    check_number("delta", delta, above=0.0, below=1.0)
    check_number("ratio", ratio, low=0.0)
    check_count("steps", steps, low=1)
    target = math.log(delta) - MARGIN

    def deficit(epsilon: float) -> float:
        return target - seal_log_delta(epsilon, ratio, steps)

    if deficit(0.0) >= 0.0:
        return 0.0
    guess = 0.5 * ratio * ratio + ratio * math.sqrt(-2.0 * target)  # one step suffices here
    return smallest_safe(lambda x: -deficit(x), increasing_root(deficit, 0.0, guess))


def seal_ratio(epsilon: float, delta: float, steps: int) -> float:
    """The largest ratio that k steps seal to (epsilon, delta), rounded down.

    >>> round(seal_ratio(1.0, 1e-5, 1), 6)
    0.268051
    """
    check_number("epsilon", epsilon, low=0.0)
    check_number("delta", delta, above=0.0, below=1.0)
    check_count("steps", steps, low=1)
    target = math.log(delta) - MARGIN

    def excess(ratio: float) -> float:
        return seal_log_delta(epsilon, ratio, steps) - target

    one = gaussian_mu(epsilon, delta)
    return one if steps == 1 else largest_safe(excess, increasing_root(excess, one, 2.0 * one))


def seal_sigma(epsilon: float, delta: float, radius: float, steps: int) -> float:
    r"""The smallest noise std :math:`s = 2\rho/r` for a ball of this radius and k steps.

    >>> round(seal_sigma(1.0, 1e-5, 0.5, 1), 5)
    3.73063
    """
    check_number("radius", radius, above=0.0)
    return 2.0 * radius / seal_ratio(epsilon, delta, steps)


def surviving_nats(ratio: float) -> float:
    r""":math:`r^2/8`: an upper bound on the mutual information between the old model and the seal.

    Statement: :math:`I(X; X + sZ) \le \rho^2/2s^2` for X in a ball of radius rho, since
    :math:`I \le \mathbb E\,\mathrm{KL}(\mathcal N(X, s^2 I)\|\mathcal N(\theta_{\rm ref}, s^2 I))`;
    later steps are post-processing.  Derived in ``docs/math.md``.

    >>> surviving_nats(2.0)
    0.5
    """
    check_number("ratio", ratio, low=0.0)
    return ratio * ratio / 8.0


def seal_profile(epsilons: npt.ArrayLike, ratio: float, steps: int) -> Floats:
    r"""Log delta at many epsilons, negative ones included.

    For :math:`\varepsilon < 0`: :math:`\delta(\varepsilon) = 1 - e^{\varepsilon}
    + e^{\varepsilon}\delta(-\varepsilon)`, since :func:`seal_log_delta` bounds both directions.

    >>> seal_profile([0.0, 1.0], 2.0, 3).round(4)
    array([-1.1451, -2.7356])
    """
    check_number("ratio", ratio, low=0.0)
    check_count("steps", steps, low=0)
    wanted = np.asarray(epsilons, np.float64)
    size = np.abs(wanted)
    with np.errstate(divide="ignore"):
        log_gain = size + np.log(-np.expm1(-size))
    logs, ratios = np.zeros_like(size), np.full_like(size, ratio)
    for _ in range(steps):
        logs = logs + gaussian_log_deltas(np.logaddexp(0.0, log_gain - logs), ratios)
    negative = wanted < 0.0
    with np.errstate(divide="ignore"):
        flipped = np.logaddexp(np.log(-np.expm1(-size)), logs - size)
    out: Floats = np.where(negative, np.minimum(flipped, 0.0), logs)
    return out


_panel_nodes, _panel_weights = np.polynomial.legendre.leggauss(12)
_GRADES: Floats = np.geomspace(1e-5, 1.0, 34)


def seal_then_gaussian_log_delta(epsilon: float, ratio: float, steps: int, mu: float) -> float:
    r"""Log delta of a k-step seal followed by Gaussian visits of total :math:`\mu`.

    .. math:: \delta(\varepsilon) = \mathbb E_{\ell \sim \mathcal N(\mu^2/2, \mu^2)}
              \big[\delta_{\rm seal}(\varepsilon - \ell)\big].

    Assumptions: those of :func:`seal_log_delta`; afterwards each visit to u adds Gaussian noise
    to a step of bounded sensitivity, the :math:`\mu_i` adding up as
    :func:`unwalk.privacy.gaussian.compose_mu`.  The integral is exact for the product of the two
    worst cases, hence an upper bound (derived in ``docs/math.md``; composition of dominating
    pairs in general: Zhu, Dong and Wang, *Optimal Accounting of Differential Privacy via
    Characteristic Function*, AISTATS 2022, arXiv:2106.08567).  It is done in log space on
    panels graded towards the profile's kink :math:`\ell = \varepsilon`, with 1e-9 added
    relatively.

    >>> exact = gaussian_log_delta(1.0, math.hypot(0.2, 0.1))  # one step: Gaussian again
    >>> abs(seal_then_gaussian_log_delta(1.0, 0.2, 1, 0.1) - exact) < 1e-8
    True
    """
    check_number("epsilon", epsilon, low=0.0)
    check_number("mu", mu, low=0.0)
    if mu == 0.0:
        return seal_log_delta(epsilon, ratio, steps)
    reach = 45.0  # stds; what lies beyond has probability below exp(-1016) and is charged in full
    kink = (epsilon - 0.5 * mu * mu) / mu
    graded = kink + np.concatenate((-_GRADES, [0.0], _GRADES))
    cuts = np.unique(np.clip(np.append(np.linspace(-reach, reach, 181), graded), -reach, reach))
    half = 0.5 * np.diff(cuts)
    z = (half[:, None] * _panel_nodes + (cuts[:-1] + half)[:, None]).ravel()
    log_weights = np.log(half[:, None] * _panel_weights).ravel()
    log_density = -0.5 * z * z - 0.5 * math.log(2.0 * math.pi)
    losses = mu * (0.5 * mu + z)
    terms = log_weights + log_density + seal_profile(epsilon - losses, ratio, steps)
    return min(0.0, float(scipy.special.logsumexp(np.append(terms, -1016.0))) + 1e-9)


def seal_then_gaussian_epsilon(delta: float, ratio: float, steps: int, mu: float) -> float:
    """The smallest epsilon of :func:`seal_then_gaussian_log_delta`, rounded up.

    >>> round(seal_then_gaussian_epsilon(1e-5, 2.0, 6, 0.2), 3)
    1.158
    """
    check_number("delta", delta, above=0.0, below=1.0)
    target = math.log(delta) - MARGIN

    def deficit(epsilon: float) -> float:
        return target - seal_then_gaussian_log_delta(epsilon, ratio, steps, mu)

    if deficit(0.0) >= 0.0:
        return 0.0
    guess = seal_epsilon(delta, ratio, steps) + mu * (0.5 * mu + math.sqrt(-2.0 * target))
    return smallest_safe(lambda x: -deficit(x), increasing_root(deficit, 0.0, guess))
