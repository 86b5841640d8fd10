r"""The paper's privacy formulas with explicit constants, and the corrected form beside each.

The paper (*Fully Decentralized Certified Unlearning*) states these up to constants; with every
constant at 1 they become numbers that can be compared.  **None of the ``nominal_*`` values is a
guarantee**; ``docs/deviations.md`` says why, gap by gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy

from unwalk.core.validation import check_choice, check_count, check_number
from unwalk.privacy.published import check_view
from unwalk.privacy.visits import visits_epsilon, visits_sigma


def _check_walk(hops: int, p: float, peers: int) -> None:
    check_count("hops", hops, low=1)
    check_number("p", p, above=0.0, high=1.0)
    check_count("peers", peers, low=2)


def _check_target(delta: float) -> None:
    check_number("delta", delta, above=0.0, below=1.0)


@dataclass(frozen=True)
class PaperSetting:
    r"""An experiment of the paper, in its notation; by default what both of its own share.

    ``radius`` is the trust region's :math:`\varrho`, ``lipschitz`` L, ``dimension`` d, ``records``
    :math:`n_u`, ``averaging`` s, ``forgotten`` m.  DDP has a diameter and an L of its own.
    """

    radius: float
    lipschitz: float
    dimension: int
    records: int
    epsilon: float = 1.0
    delta: float = 1e-5
    peers: int = 10
    hops: int = 100
    p: float = 0.1
    averaging: int = 4
    forgotten: int = 1000
    ddp_diameter: float = 10.0
    ddp_lipschitz: float = 1.0

    def __post_init__(self) -> None:
        for name in ("radius", "lipschitz", "epsilon", "ddp_diameter", "ddp_lipschitz"):
            check_number(name, getattr(self, name), above=0.0)
        for name in ("dimension", "records", "averaging", "forgotten"):
            check_count(name, getattr(self, name), low=1)
        _check_target(self.delta)
        _check_walk(self.hops, self.p, self.peers)

    @property
    def diameter(self) -> float:
        r""":math:`R_{\rm cert} \le 2\varrho`."""
        return 2.0 * self.radius


PAPER_SETTINGS = {
    "mnist": PaperSetting(10.82, 0.5, 62_538, 6_000),
    "cifar10": PaperSetting(56.30, 0.2, 11_173_962, 5_000),
}


def nominal_theorem_51(
    epsilon_visit: float,
    delta_visit: float,
    hops: int,
    p: float,
    peers: int,
    slack: float,
) -> tuple[float, float]:
    r"""Theorem 5.1: :math:`\varepsilon = \varepsilon_0\sqrt{p T_u \frac{\ln N}{N}
    \ln\frac1{\delta'}}`, :math:`\delta = p T_u \delta_0 \frac{\ln N}{N} + \delta'`.

    Nominal.  Corrected: :func:`corrected_epsilon` (public coin, no :math:`\ln N/N`).

    >>> eps, delta = nominal_theorem_51(0.1, 1e-7, 100, 0.1, 10, 5e-6)
    >>> round(eps, 6), round(delta, 9)
    (0.530146, 5.23e-06)
    """
    check_number("epsilon_visit", epsilon_visit, low=0.0)
    check_number("delta_visit", delta_visit, low=0.0, high=1.0)
    _check_walk(hops, p, peers)
    check_number("slack", slack, above=0.0, below=1.0)
    share = p * hops * math.log(peers) / peers
    epsilon = epsilon_visit * math.sqrt(-share * math.log(slack))
    return epsilon, share * delta_visit + slack


def nominal_sigma(
    epsilon: float,
    delta: float,
    lipschitz: float,
    hops: int,
    p: float,
    peers: int,
    *,
    constant: float = 1.0,
) -> float:
    r"""Corollary 5.2: :math:`\sigma = c\,\frac L\varepsilon
    \sqrt{\frac{p T_u \ln(1/\delta)\ln N}{N}}`.

    Nominal.  Corrected: :func:`corrected_sigma`.

    >>> round(nominal_sigma(1.0, 1e-5, 0.5, 100, 0.1, 10), 4)
    2.5744
    """
    check_number("epsilon", epsilon, above=0.0)
    _check_target(delta)
    check_number("lipschitz", lipschitz, above=0.0)
    _check_walk(hops, p, peers)
    share = p * hops * math.log(peers) / peers
    return constant * lipschitz / epsilon * math.sqrt(-share * math.log(delta))


def nominal_epsilon(
    sigma: float, delta: float, lipschitz: float, hops: int, p: float, peers: int
) -> float:
    r"""Corollary 5.2 solved for :math:`\varepsilon`.

    Nominal.  Corrected: :func:`corrected_epsilon`.

    >>> round(nominal_epsilon(2.5744, 1e-5, 0.5, 100, 0.1, 10), 4)
    1.0
    """
    check_number("sigma", sigma, above=0.0)
    return nominal_sigma(1.0, delta, lipschitz, hops, p, peers) / sigma


def nominal_appendix_epsilon(
    sigma: float, delta: float, lipschitz: float, hops: int, p: float, peers: int
) -> float:
    r"""Appendix C.5: :math:`\varepsilon = \frac L\sigma\sqrt{\frac{pT_u\ln N}{N\ln(1/\delta)}}`.

    Nominal, and at odds with Corollary 5.2: it falls as delta falls, by a factor
    :math:`\ln(1/\delta)` between the two.  Corrected: :func:`corrected_epsilon`.

    >>> round(nominal_appendix_epsilon(2.5744, 1e-5, 0.5, 100, 0.1, 10), 4)
    0.0869
    """
    _check_target(delta)
    return nominal_epsilon(sigma, delta, lipschitz, hops, p, peers) / -math.log(delta)


def corrected_sigma(
    epsilon: float,
    delta: float,
    lipschitz: float,
    hops: int,
    p: float,
    *,
    replacement: bool = False,
) -> float:
    r"""Corollary 5.2 as it holds: the public coin of :mod:`unwalk.privacy.visits`.

    Sensitivity L against a world in which u adds noise alone, 2L for ``replacement``; for
    LIGHTWEIGHT visits after a D_f-free start.

    >>> round(corrected_sigma(1.0, 1e-5, 0.5, 100, 0.1), 3)
    6.547
    """
    return visits_sigma(epsilon, delta, lipschitz * (2.0 if replacement else 1.0), hops, p)


def corrected_epsilon(
    sigma: float, delta: float, lipschitz: float, hops: int, p: float, *, replacement: bool = False
) -> float:
    """Theorem 5.1 as it holds; see :func:`corrected_sigma`.

    >>> round(corrected_epsilon(2.5744, 1e-5, 0.5, 100, 0.1, replacement=True), 3)
    6.587
    """
    check_number("sigma", sigma, above=0.0)
    return visits_epsilon(delta, lipschitz * (2.0 if replacement else 1.0) / sigma, hops, p)


DDP_READINGS = ("algorithm", "table", "lemma")


def nominal_ddp_sigma(
    reading: str,
    epsilon: float,
    delta: float,
    lipschitz: float,
    *,
    hops: int = 1,
    peers: int = 2,
    forgotten: int = 1,
    constant: float = 1.0,
) -> float:
    r"""The three noise scales of the DDP baseline.

    * ``algorithm`` (Algorithm 2): :math:`\sqrt{8 L^2\ln(1.25/\delta)}/\varepsilon`, the classical
      Gaussian mechanism for one step with sensitivity 2L, proved for :math:`\varepsilon < 1` only;
    * ``table`` (Table 2): :math:`\frac{mL}{\varepsilon}\sqrt{\frac{T\ln(1/\delta)\ln N}{N}}`, with
      the factor m that user-level network DP does not need;
    * ``lemma`` (Lemma A.11): :math:`D_\alpha \le C\alpha L^2 T_u\ln N/(\sigma^2 N)` with
      :math:`T_u = T/N`, converted by the paper's Proposition A.8 at its best order.

    Nominal.  Corrected: :func:`corrected_ddp_sigma`.

    >>> round(nominal_ddp_sigma("algorithm", 1.0, 1e-5, 1.0), 4)
    9.6896
    >>> round(nominal_ddp_sigma("table", 1.0, 1e-5, 1.0, hops=100, peers=10, forgotten=1000), 1)
    16281.7
    >>> round(nominal_ddp_sigma("lemma", 1.0, 1e-5, 1.0, hops=100, peers=10), 4)
    10.5164
    """
    check_choice("reading", reading, DDP_READINGS)
    check_number("epsilon", epsilon, above=0.0)
    _check_target(delta)
    check_number("lipschitz", lipschitz, above=0.0)
    check_count("hops", hops, low=1)
    check_count("peers", peers, low=2)
    check_count("forgotten", forgotten, low=1)
    if reading == "algorithm":
        return constant * lipschitz * math.sqrt(8.0 * math.log(1.25 / delta)) / epsilon
    log = -math.log(delta)
    if reading == "table":
        share = hops * math.log(peers) / peers
        return constant * forgotten * lipschitz / epsilon * math.sqrt(share * log)
    slope = epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))  # sqrt of the affordable slope
    return lipschitz * math.sqrt(constant * hops * math.log(peers)) / peers / slope


def corrected_ddp_sigma(
    epsilon: float, delta: float, lipschitz: float, hops: int, peers: int
) -> float:
    r"""Noise per hop that protects all data of one peer in every view, without convexity.

    Sensitivity 2L, T hops, each at a given peer with probability 1/N, public coin:
    :func:`unwalk.privacy.visits.visits_sigma`.  With convex smooth losses
    :func:`unwalk.privacy.network.walk_rdp` asks for less against a single observer.

    >>> round(corrected_ddp_sigma(1.0, 1e-5, 1.0, 100, 10), 3)
    26.188
    """
    check_count("peers", peers, low=2)
    return visits_sigma(epsilon, delta, 2.0 * lipschitz, hops, 1.0 / peers)


def nominal_view_rdp(
    alpha: float, sigma: float, visits: float, peers: int, *, lipschitz: float
) -> float:
    r"""Lemma A.11 (view RDP): :math:`\alpha L^2 T_u\ln N/(\sigma^2 N)`.

    Nominal: the source has C = 4 and a condition on :math:`\sigma`
    (:func:`unwalk.privacy.published.published_complete_graph_rdp`), both left out here, and needs
    noise at every hop and convex losses, which RR-DU does not have.  Corrected:
    :func:`unwalk.privacy.network.contributions_rdp`.

    >>> round(nominal_view_rdp(2.0, 10.0, 10, 100, lipschitz=1.0), 6)
    0.00921
    """
    check_view(alpha, sigma, peers, lipschitz)
    check_number("visits", visits, low=0.0)
    return alpha * lipschitz**2 * visits * math.log(peers) / (sigma**2 * peers)


def nominal_visits_bound(hops: int, p: float, failure: float) -> tuple[float, bool]:
    r"""Appendix C.5's Chernoff bound: visits at most :math:`(1+\beta)pT_u` with
    :math:`\beta = \sqrt{3\ln(1/\text{failure})/(pT_u)}`, and whether it applies.

    The form :math:`\exp(-\beta^2 pT_u/3)` needs :math:`\beta \le 1`; at the paper's own settings
    (p T_u = 10, failure delta/4) beta is 1.97.  Corrected: :func:`visits_quantile`.

    >>> bound, applies = nominal_visits_bound(100, 0.1, 1e-5 / 4)
    >>> round(bound, 2), applies
    (29.67, False)
    """
    check_count("hops", hops, low=1)
    check_number("p", p, above=0.0, high=1.0)
    check_number("failure", failure, above=0.0, below=1.0)
    mean = hops * p
    beta = math.sqrt(-3.0 * math.log(failure) / mean)
    return (1.0 + beta) * mean, beta <= 1.0


def visits_quantile(hops: int, p: float, failure: float) -> int:
    r"""The smallest c with :math:`\Pr[\mathrm{Bin}(T_u, p) > c] \le` ``failure``, exactly.

    >>> visits_quantile(100, 0.1, 1e-5 / 4)
    26
    """
    check_count("hops", hops, low=1)
    check_number("p", p, low=0.0, high=1.0)
    check_number("failure", failure, above=0.0, below=1.0)
    low, high = 0, hops
    while low < high:
        middle = (low + high) // 2
        if float(scipy.special.bdtrc(middle, hops, p)) <= failure:
            high = middle
        else:
            low = middle + 1
    return low
