r"""The paper's utility bounds with unit constants, and what standard theory gives instead.

Notation: R diameter of the domain, L bound on gradients, G second moment, d dimension,
:math:`\sigma` noise std on the gradient, T hops, s averaged minibatches, p share of noisy hops.
Bounds named ``nominal_*`` are the paper's forms; the others are proved where they say.

Is a seal worth it?  Gaussian noise of std s on the parameters of softmax regression raises the
loss, to second order, by :math:`\tfrac12 s^2 \operatorname{tr} H`, and
:math:`\operatorname{tr} H = \mathbb E\,(1 - \sum_k q_k^2)\|x\|^2 \le (1 - 1/K)\|x\|^2`.  Beginning
again from zero costs at most :math:`\ln K`.  Both are known before the walk and depend on no
record, so that the choice of a method by them gives nothing away.
"""

from __future__ import annotations

import math

from unwalk.core.validation import check_choice, check_count, check_number
from unwalk.privacy.nominal import PaperSetting, nominal_sigma

CASES = ("convex", "strongly-convex", "non-convex")


def nominal_effective_variance(
    lipschitz: float, p: float, averaging: int, dimension: int, sigma: float
) -> float:
    r"""The paper's :math:`\overline G^2 = L^2 + \frac ps\,d\sigma^2`.

    Nominal: averaging minibatches elsewhere never averages u's noise.  Corrected:
    :func:`effective_variance`.

    >>> nominal_effective_variance(1.0, 0.5, 2, 4, 1.0)
    2.0
    """
    return lipschitz**2 + check_count("averaging", averaging, low=1) ** -1 * (
        effective_variance(lipschitz, p, dimension, sigma) - lipschitz**2
    )


def effective_variance(lipschitz: float, p: float, dimension: int, sigma: float) -> float:
    r"""Mean second moment of a hop: at most :math:`L^2 + p\,d\sigma^2`.

    Only hops at u, a share p, carry noise; every step's gradient has norm at most L.  DDP is
    p = 1, or :math:`d\sigma^2/s` for s independent noises averaged before anyone looks.

    >>> effective_variance(1.0, 0.5, 4, 1.0)
    3.0
    """
    check_number("lipschitz", lipschitz, low=0.0)
    check_number("p", p, low=0.0, high=1.0)
    check_count("dimension", dimension, low=1)
    check_number("sigma", sigma, low=0.0)
    return lipschitz**2 + p * dimension * sigma**2


def nominal_averaged_risk(
    diameter: float, step_size: float, hops: int, second_moment: float, dimension: int, sigma: float
) -> float:
    r"""Lemma C.5, average iterate: :math:`\frac{R^2}{2\eta T} + \frac\eta2(G^2 + d\sigma^2)`.

    The statement holds for every convex loss and every :math:`\eta`, but not by the proof given
    (it uses :math:`F - F^* \le \frac1{2L}\|\nabla F\|^2`, which is the wrong way round):
    expanding :math:`\|\theta_{t+1}-\theta^*\|^2` and summing gives it in three lines (Zinkevich
    2003, Theorem 1).  At its best step size it is :func:`averaged_risk`.

    >>> nominal_averaged_risk(2.0, 0.5, 4, 1.0, 1, 0.0)
    1.25
    """
    check_number("diameter", diameter, low=0.0)
    check_number("step_size", step_size, above=0.0)
    check_count("hops", hops, low=1)
    check_number("second_moment", second_moment, low=0.0)
    noisy = second_moment**2 + dimension * sigma**2
    return diameter**2 / (2.0 * step_size * hops) + 0.5 * step_size * noisy


def averaged_risk(diameter: float, hops: int, variance: float) -> float:
    r""":math:`R\,\sqrt{G^2/T}`: excess risk of the average iterate at :math:`\eta = R/(G\sqrt T)`.

    ``variance`` is :math:`G^2`, noise included (:func:`effective_variance`).  Assumptions: convex
    loss, unbiased steps, projection on a convex set of diameter R.

    >>> averaged_risk(2.0, 4, 1.0)
    1.0
    """
    check_number("diameter", diameter, low=0.0)
    check_count("hops", hops, low=1)
    check_number("variance", variance, low=0.0)
    return diameter * math.sqrt(variance / hops)


def nominal_last_risk(
    diameter: float, hops: int, lipschitz: float, dimension: int, sigma: float
) -> float:
    r"""Corollary C.6: :math:`2RG(2+\ln T)/\sqrt T` with :math:`G^2 = L^2 + d\sigma^2`.

    The last iterate with :math:`\eta_t = R/(G\sqrt t)`: Shamir and Zhang, *Stochastic Gradient
    Descent for Non-smooth Optimization*, ICML 2013 (arXiv:1212.1824v2), Theorem 2.  No
    :math:`1/L` cap on the step and no doubling trick is needed.  For RR-DU use
    :func:`last_risk` with its own second moment.

    >>> round(nominal_last_risk(1.0, 100, 1.0, 1, 0.0), 6)
    1.321034
    """
    return last_risk(diameter, hops, effective_variance(lipschitz, 1.0, dimension, sigma))


def last_risk(diameter: float, hops: int, variance: float) -> float:
    r""":math:`2RG(2+\ln T)/\sqrt T` for the last iterate; see :func:`nominal_last_risk`.

    >>> round(last_risk(1.0, 100, 1.0), 6)
    1.321034
    """
    return 2.0 * (2.0 + math.log(hops)) * averaged_risk(diameter, hops, variance)


def strongly_convex_risk(hops: int, variance: float, strong_convexity: float) -> float:
    r""":math:`17\,G^2(1+\ln T)/(\mu T)`: last iterate with :math:`\eta_t = 1/(\mu t)`.

    Source: Shamir and Zhang 2013 (arXiv:1212.1824v2), Theorem 1.

    >>> strongly_convex_risk(1, 1.0, 17.0)
    1.0
    """
    check_count("hops", hops, low=1)
    check_number("variance", variance, low=0.0)
    check_number("strong_convexity", strong_convexity, above=0.0)
    return 17.0 * variance * (1.0 + math.log(hops)) / (strong_convexity * hops)


def stationarity(hops: int, variance: float, smoothness: float, initial_gap: float) -> float:
    r""":math:`\sqrt{2\beta(F_0 - F^*)G^2/T}`: mean squared gradient over the iterates.

    From :math:`F(\theta_{t+1}) \le F(\theta_t) - \eta\langle\nabla F, g_t\rangle
    + \frac{\beta\eta^2}2\|g_t\|^2` at the best constant step; no projection.  Source: Ghadimi and
    Lan, *Stochastic First- and Zeroth-order Methods*, SIAM J. Optim. 2013 (arXiv:1309.5549v1),
    Theorem 2.1, with a bounded second moment.

    >>> stationarity(2, 1.0, 1.0, 4.0)
    2.0
    """
    check_count("hops", hops, low=1)
    check_number("variance", variance, low=0.0)
    check_number("smoothness", smoothness, above=0.0)
    check_number("initial_gap", initial_gap, low=0.0)
    return math.sqrt(2.0 * smoothness * initial_gap * variance / hops)


def nominal_c4(
    case: str, at: PaperSetting, sigma: float, *, strong_convexity: float = 1.0
) -> tuple[float, float]:
    r"""Appendix C.4's (optimisation term, privacy term) as functions of :math:`\sigma`.

    ``convex``: :math:`\frac{RL}{\sqrt{sT}},\ \sqrt{\frac{pd\sigma^2}{sT}}` (the paper's second
    term lacks R); ``strongly-convex``: :math:`\frac{L^2}{\mu sT},\ \frac{pd\sigma^2}{\mu sT}`;
    ``non-convex``: :math:`\frac{L^2}{\sqrt{sT}},\ \frac{pd\sigma^2}{\sqrt{sT}}`.

    Nominal.  Corrected: :func:`last_risk`, :func:`strongly_convex_risk`, :func:`stationarity`
    with :func:`effective_variance`: the second moment of a step does not fall with s.

    >>> at = PaperSetting(1.0, 2.0, 8, 1, hops=4, averaging=1, p=0.5)
    >>> nominal_c4("strongly-convex", at, 1.0)
    (1.0, 1.0)
    """
    check_choice("case", case, CASES)
    noise = effective_variance(0.0, at.p, at.dimension, sigma)
    spread = at.averaging * at.hops
    if case == "convex":
        return at.diameter * at.lipschitz / math.sqrt(spread), math.sqrt(noise / spread)
    if case == "non-convex":
        return at.lipschitz**2 / math.sqrt(spread), noise / math.sqrt(spread)
    check_number("strong_convexity", strong_convexity, above=0.0)
    return at.lipschitz**2 / (strong_convexity * spread), noise / (strong_convexity * spread)


def nominal_table_1(
    case: str, at: PaperSetting, *, strong_convexity: float = 1.0
) -> tuple[float, float]:
    r"""Table 1's (optimisation term, privacy term), with
    :math:`Q = \frac p\varepsilon\sqrt{\frac{d\ln(1/\delta)\ln N}{sN}}`:
    :math:`R L\,Q`, :math:`\frac{L^2}\mu Q`, :math:`L^2 Q`.

    Nominal.  Only the convex one follows from C.4 (up to R); :func:`substituted_table_1` is what
    substituting Corollary 5.2 gives.

    >>> from unwalk.privacy.nominal import PAPER_SETTINGS
    >>> opt, priv = nominal_table_1("convex", PAPER_SETTINGS["mnist"])
    >>> round(opt, 4), round(priv, 3)
    (0.541, 220.277)
    """
    log = -math.log(at.delta) * math.log(at.peers)
    quotient = at.p / at.epsilon * math.sqrt(at.dimension * log / (at.averaging * at.peers))
    opt, _ = nominal_c4(case, at, 0.0, strong_convexity=strong_convexity)
    if case == "convex":
        scale = at.diameter * at.lipschitz
    else:
        scale = at.lipschitz**2 / (strong_convexity if case == "strongly-convex" else 1.0)
    return opt, scale * quotient


def substituted_table_1(case: str, at: PaperSetting, *, strong_convexity: float = 1.0) -> float:
    r"""Table 1's privacy terms when Corollary 5.2 is put into C.4: strongly convex
    :math:`\frac{p^2 d L^2\ln(1/\delta)\ln N}{\mu s\varepsilon^2 N}`, non-convex
    :math:`\frac{p^2 d L^2\ln(1/\delta)\ln N}{\varepsilon^2 N}\sqrt{T_u/s}` (it *grows* with
    :math:`T_u`), convex without R.  Still nominal: the noise is Corollary 5.2's.

    >>> from dataclasses import replace
    >>> from unwalk.privacy.nominal import PAPER_SETTINGS
    >>> short = PAPER_SETTINGS["mnist"]
    >>> a, b = (substituted_table_1("non-convex", at) for at in (short, replace(short, hops=400)))
    >>> round(b / a, 9)
    2.0
    """
    sigma = nominal_sigma(at.epsilon, at.delta, at.lipschitz, at.hops, at.p, at.peers)
    return nominal_c4(case, at, sigma, strong_convexity=strong_convexity)[1]


def noise_loss(std: float, classes: int, norm: float = 1.0) -> float:
    r"""The most that the noise can raise the loss, to second order.

    >>> round(noise_loss(0.5, 10), 4)
    0.1125
    """
    check_number("std", std, low=0.0)
    check_count("classes", classes, low=2)
    check_number("norm", norm, above=0.0)
    return 0.5 * std * std * (1.0 - 1.0 / classes) * norm * norm


def restart_loss(classes: int) -> float:
    """The most that beginning again from zero can cost.

    >>> round(restart_loss(10), 4)
    2.3026
    """
    return math.log(check_count("classes", classes, low=2))
