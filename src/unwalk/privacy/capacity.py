r"""Deletion capacity: how many records can be forgotten before the risk exceeds :math:`\gamma`.

The paper's scalings with unit constants (``nominal_*``) and the corrected forms: the
tolerance kept, the gradient bias multiplied by the diameter to become a risk, the noise from an
exact accountant.  Tables 1 and 2 at the paper's settings: :mod:`unwalk.privacy.paper_tables`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from unwalk.core.validation import check_count, check_number
from unwalk.privacy.nominal import PaperSetting, corrected_ddp_sigma, corrected_sigma
from unwalk.privacy.utility import effective_variance, last_risk, nominal_table_1


def nominal_ddp_capacity(at: PaperSetting, *, averaging: int = 1) -> float:
    r"""Theorem 3.5: :math:`m = \frac{\varepsilon}{RL(2+\ln T)}
    \sqrt{\frac{sN}{d\ln(1/\delta)\ln N}}`, with local averaging s (C.2).

    Nominal: the tolerance :math:`\gamma` was dropped (and a 2), and the factor m in the noise is
    group privacy that user-level network DP does not need.  Corrected: :func:`ddp_capacity`,
    :func:`ddp_user_capacity`.

    >>> from unwalk.privacy.nominal import PAPER_SETTINGS
    >>> round(nominal_ddp_capacity(PAPER_SETTINGS["mnist"]), 9)
    3.7183e-05
    """
    check_count("averaging", averaging, low=1)
    inside = averaging * at.peers / (at.dimension * -math.log(at.delta) * math.log(at.peers))
    scale = at.ddp_diameter * at.ddp_lipschitz * (2.0 + math.log(at.hops))
    return at.epsilon / scale * math.sqrt(inside)


def ddp_capacity(tolerance: float, at: PaperSetting) -> float:
    r"""Theorem 3.5 with :math:`\gamma` kept: what its Steps 4 and 5 give,
    :math:`m = \frac{\gamma\,\varepsilon}{2RL(2+\ln T)}\sqrt{\frac{N}{d\ln(1/\delta)\ln N}}`.

    Still on the paper's noise scale; :func:`ddp_user_capacity` is free of it.

    >>> from unwalk.privacy.nominal import PAPER_SETTINGS
    >>> at = PAPER_SETTINGS["mnist"]
    >>> ddp_capacity(2.0, at) == nominal_ddp_capacity(at)
    True
    """
    check_number("tolerance", tolerance, low=0.0)
    return 0.5 * tolerance * nominal_ddp_capacity(at)


def ddp_user_capacity(tolerance: float, at: PaperSetting) -> int:
    r"""User level: all :math:`n_u` records or none.

    Noise that hides a whole peer (:func:`unwalk.privacy.nominal.corrected_ddp_sigma`) hides any
    number of its records; the capacity is :math:`n_u` if the last-iterate risk with that noise
    stays below :math:`\gamma`, and 0 otherwise.

    >>> from unwalk.privacy.nominal import PAPER_SETTINGS
    >>> ddp_user_capacity(1e9, PAPER_SETTINGS["mnist"])
    6000
    """
    check_number("tolerance", tolerance, low=0.0)
    sigma = corrected_ddp_sigma(at.epsilon, at.delta, at.ddp_lipschitz, at.hops, at.peers)
    variance = effective_variance(at.ddp_lipschitz, 1.0, at.dimension, sigma)
    return at.records if last_risk(at.ddp_diameter, at.hops, variance) <= tolerance else 0


def nominal_alignment_bias(lipschitz: float, forgotten: int, records: int) -> float:
    r"""Lemma C.7: :math:`L\,m/n_u`.

    Nominal: LIGHTWEIGHT leaves out :math:`\nabla\ell_{u\setminus f}` altogether.  Corrected:
    :func:`alignment_bias`.

    >>> nominal_alignment_bias(0.5, 1000, 6000) == 0.5 / 6
    True
    """
    check_number("lipschitz", lipschitz, low=0.0)
    check_count("records", records, low=1)
    check_count("forgotten", forgotten, low=0, high=records)
    return lipschitz * forgotten / records


def alignment_bias(lipschitz: float, forgotten: int, records: int, p: float) -> float:
    r"""LIGHTWEIGHT's averaged bias: at most :math:`p L (1 + m/n_u)`, with p = 1/N.

    :math:`\mathbb E[\Delta\theta]/\eta + \nabla\mathcal L_{\setminus f} =
    p(\frac m{n_u}\nabla\ell_f + \nabla\ell_{u\setminus f})`.  EXACT and ``corrected`` have none.

    >>> alignment_bias(0.5, 1000, 4000, 0.1)
    0.0625
    """
    check_number("p", p, low=0.0, high=1.0)
    return p * (lipschitz + nominal_alignment_bias(lipschitz, forgotten, records))


def nominal_rrdu_capacity(tolerance: float, at: PaperSetting) -> float:
    r"""Section 5.4: with A the two terms of Table 1, :math:`m^\star = (\gamma - A)n_u/L` where
    :math:`\gamma > A`, else 0.

    Nominal: a gradient bias is added to a risk without the diameter.  Corrected:
    :func:`rrdu_capacity`.

    >>> from unwalk.privacy.nominal import PAPER_SETTINGS
    >>> at = PAPER_SETTINGS["mnist"]
    >>> nominal_rrdu_capacity(200.0, at), round(nominal_rrdu_capacity(221.0, at))
    (0.0, 2179)
    """
    check_number("tolerance", tolerance, low=0.0)
    terms = nominal_table_1("convex", at)
    return max(0.0, (tolerance - sum(terms)) * at.records / at.lipschitz)


def rrdu_capacity(tolerance: float, at: PaperSetting, *, exact: bool = False) -> int:
    r"""The largest m with :math:`\text{last-iterate risk} + R\,p L(1 + m/n_u) \le \gamma`.

    The noise is the public coin's (:func:`unwalk.privacy.nominal.corrected_sigma`), a biased
    gradient costs at most R times its bias in risk, and m never exceeds :math:`n_u`.  With
    ``exact`` (or ``corrected``) steps there is no bias and the capacity is all or nothing.

    >>> from unwalk.privacy.nominal import PAPER_SETTINGS
    >>> rrdu_capacity(2e4, PAPER_SETTINGS["mnist"])
    6000
    """
    check_number("tolerance", tolerance, low=0.0)
    sigma = corrected_sigma(at.epsilon, at.delta, at.lipschitz, at.hops, at.p)
    variance = effective_variance(at.lipschitz, at.p, at.dimension, sigma)
    risk = last_risk(at.diameter, at.hops, variance)
    if risk > tolerance:
        return 0
    if exact:
        return at.records
    bias = at.diameter * at.p * at.lipschitz
    most = math.floor(((tolerance - risk) / bias - 1.0) * at.records)
    return max(0, min(at.records, most))


def nominal_central_capacity(
    epsilon: float, delta: float, diameter: float, lipschitz: float, dimension: int, records: int
) -> float:
    r"""Appendix C.2, curator DP-SGD: :math:`m = \frac{\varepsilon\,n}{RL\sqrt{d\ln(1/\delta)}}`.

    Nominal: :math:`\gamma` dropped; corrected: times :math:`\gamma`
    (:func:`central_capacity`).

    >>> round(nominal_central_capacity(1.0, 1e-5, 10.0, 1.0, 62538, 60000), 4)
    7.0711
    """
    check_number("epsilon", epsilon, above=0.0)
    check_number("delta", delta, above=0.0, below=1.0)
    check_number("diameter", diameter, above=0.0)
    check_number("lipschitz", lipschitz, above=0.0)
    check_count("dimension", dimension, low=1)
    check_count("records", records, low=0)
    scale = diameter * lipschitz * math.sqrt(-dimension * math.log(delta))
    return epsilon * records / scale


def central_capacity(
    tolerance: float,
    epsilon: float,
    delta: float,
    diameter: float,
    lipschitz: float,
    dimension: int,
    records: int,
) -> float:
    r"""Curator DP with the tolerance kept: :math:`\gamma` times the nominal scaling.

    >>> central_capacity(1.0, 1.0, 1e-5, 10.0, 1.0, 62538, 60000) > 7.07
    True
    """
    check_number("tolerance", tolerance, low=0.0)
    return tolerance * nominal_central_capacity(
        epsilon, delta, diameter, lipschitz, dimension, records
    )


class Formula(NamedTuple):
    """A capacity at a tolerance: what it is called, its grade, what it assumes, its value.

    Of no grade is what would have to hold of the risk, whatever the certificate of the run says.
    """

    label: str
    grade: str
    assumes: str
    at: Callable[[float, PaperSetting], float]


CAPACITIES = {
    "ddp-nominal": Formula(
        "DDP, Theorem 3.5",
        "nominal",
        "convex loss, group privacy (noise times m), unit constants; gamma is left out",
        lambda tolerance, at: nominal_ddp_capacity(at),
    ),
    "ddp-kept": Formula(
        "DDP, Theorem 3.5 with gamma kept",
        "nominal",
        "the same with gamma and the factor 2 that its proof has; still the paper's noise",
        ddp_capacity,
    ),
    "ddp-user": Formula(
        "DDP, user level",
        "corrected",
        "convex loss, noise by the exact accountant that hides a whole peer: all records or none",
        ddp_user_capacity,
    ),
    "rrdu-nominal": Formula(
        "RR-DU, section 5.4",
        "nominal",
        "convex loss, Table 1 with unit constants, noise of Corollary 5.2, bias L m / n_u",
        nominal_rrdu_capacity,
    ),
    "rrdu-corrected": Formula(
        "RR-DU, corrected",
        "corrected",
        "convex loss, exact noise of a public coin, bias R p L (1 + m / n_u); a start free of D_f, "
        "which RR-DU does not have",
        rrdu_capacity,
    ),
}
"""The capacities that ``unwalk capacity`` draws; none is what a certificate of a run rests on."""
