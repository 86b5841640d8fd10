r"""Amplification by iteration: later noisy steps hide earlier ones; and mixtures of such bounds.

Convex smooth losses make a gradient step non-expansive; that is the one property all of this rests
on, and the one that clipping a multiclass gradient, momentum, Adam or BatchNorm destroy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.validation import check_count, check_number
from unwalk.privacy.shift import hiding_cost


def contraction_factor(step_size: float, smoothness: float, strong_convexity: float = 0.0) -> float:
    r"""Lipschitz constant :math:`\max(|1-\eta\lambda|, |1-\eta\beta|)` of a gradient step.

    Statement: for a :math:`\beta`-smooth, :math:`\lambda`-strongly convex loss the map
    :math:`\theta \mapsto \theta - \eta\nabla f(\theta)` has this Lipschitz constant (Hessian
    eigenvalues in :math:`[\lambda, \beta]`; the losses used here are twice differentiable).  It is
    at most 1 iff :math:`\eta \le 2/\beta`, and :math:`1 - \eta\lambda` iff
    :math:`\eta \le 2/(\beta+\lambda)`.

    >>> contraction_factor(0.5, 1.0, 0.1)
    0.95
    """
    check_number("step_size", step_size, low=0.0)
    check_number("strong_convexity", strong_convexity, low=0.0)
    check_number("smoothness", smoothness, low=strong_convexity)
    return max(abs(1.0 - step_size * strong_convexity), abs(1.0 - step_size * smoothness))


def check_nonexpansive(step_size: float, smoothness: float) -> None:
    r"""Refuse a step with :math:`\eta > 2/\beta`: it may expand.

    >>> check_nonexpansive(2.0, 1.0)
    """
    if step_size * smoothness > 2.0:
        raise Refused(
            f"step size {step_size:g} exceeds 2/beta = {2.0 / smoothness:g}: the gradient step may "
            "expand, and nothing bounds the distance between the two worlds.",
            "expanding",
        )


def pnsgd_rdp(
    alpha: float,
    sigma: float,
    noisy_steps: int,
    *,
    sensitivity: float,
    contraction: float = 1.0,
) -> float:
    r"""Projected noisy SGD: the contribution made ``noisy_steps`` steps before the release.

    .. math:: D_\alpha \le \frac{\alpha\,\Delta^2}{2\sigma^2 k}, \qquad \Delta = 2L
              \ (\text{replacement}),

    where k counts the noisy steps from the contribution's own to the last, and
    :math:`\sigma` is the std on the gradient.  With ``contraction`` c < 1 per step the minimum of
    :mod:`unwalk.privacy.shift` replaces 1/k by
    :math:`c^{2(k-1)} / \sum_{i<k} c^{2i}`.

    Assumptions: losses convex, gradients at most L, :math:`\beta`-smooth, :math:`\eta \le
    2/\beta` (see :func:`check_nonexpansive`), noise at *every* step, projection on one shared
    convex set, nothing but the last iterate seen, real numbers (rounding is not 1-Lipschitz;
    :func:`unwalk.privacy.stability.network_claim` adds it to the gaps of every hop).  Neighbours:
    one step's data replaced.  Source: Feldman et al. 2018 (arXiv:1808.06651), Theorem 23.

    >>> pnsgd_rdp(2.0, 1.0, 4, sensitivity=2.0)
    1.0
    """
    check_number("alpha", alpha, above=1.0)
    check_number("sigma", sigma, above=0.0)
    check_count("noisy_steps", noisy_steps, low=1)
    check_number("sensitivity", sensitivity, low=0.0)
    check_number("contraction", contraction, above=0.0, high=1.0)
    if contraction == 1.0:
        cost = (sensitivity / sigma) ** 2 / noisy_steps
    else:
        steps = noisy_steps
        gaps = [sensitivity] + [0.0] * (steps - 1)
        cost = hiding_cost(gaps, [sigma] * steps, contractions=[contraction] * steps)
    return 0.5 * alpha * cost


def weak_convexity_rdp(alpha: float, weights: Sequence[float], values: Sequence[float]) -> float:
    r"""Weak convexity: :math:`D_\alpha(\mu_\rho\|\nu_\rho) \le (1+c)\,\mathbb E_i[D_\alpha^i]`.

    Assumption: every :math:`D_\alpha^i \le c/(\alpha-1)` with :math:`c \le 1`; refused otherwise.
    The smallest such c is used.  The bound without this condition is
    :func:`unwalk.privacy.renyi.mixture_rdp`, which is also never larger where this one holds:
    :math:`\ln(1 + x) \le x` and :math:`e^y - 1 \le (1+c) y` on [0, c].  Source: Feldman et al.
    2018, as quoted by Cyffers and Bellet 2022 (AISTATS, PMLR 151), Proposition 4.

    >>> weak_convexity_rdp(2.0, [0.5, 0.5], [0.0, 0.5])
    0.375
    """
    check_number("alpha", alpha, above=1.0)
    if len(weights) != len(values) or not math.isclose(math.fsum(weights), 1.0, abs_tol=1e-9):
        raise InvalidInput(
            f"weights (length {len(weights)}, sum {math.fsum(weights):g}) and values (length "
            f"{len(values)}); allowed: the same length and weights that add up to 1."
        )
    c = (alpha - 1.0) * max(values)
    if c > 1.0:
        raise Refused(
            f"weak convexity needs every divergence below 1/(alpha - 1) = {1.0 / (alpha - 1.0):g}; "
            f"one is {max(values):g}.  mixture_rdp needs no such condition.",
            "lemma",
        )
    return (1.0 + c) * math.fsum(w * v for w, v in zip(weights, values, strict=True))
