r"""Noise from the start: every peer adds noise at its own training visits.

Training-time views are covered too, and a later deletion of up to the planned number of records
costs nothing: the model at the request is already indistinguishable from one without them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from unwalk.core.validation import check_count, check_number
from unwalk.privacy.gaussian import compose_mu, gaussian_mu


def visit_sensitivity(
    step_size: float, lipschitz: float, most_forgotten: int, nominal_batch: float, epochs: int = 1
) -> float:
    r"""How far a visit's steps can push the worlds apart: :math:`\eta L\, m_{\max}/B` an epoch.

    >>> visit_sensitivity(0.5, 1.0, 4, 8.0, epochs=2)
    0.5
    """
    check_number("step_size", step_size, above=0.0)
    check_number("lipschitz", lipschitz, above=0.0)
    check_count("most_forgotten", most_forgotten, low=1)
    check_number("nominal_batch", nominal_batch, above=0.0)
    check_count("epochs", epochs, low=1)
    return epochs * step_size * lipschitz * most_forgotten / nominal_batch


def noisy_start_mu(stds: Sequence[float], sensitivity: float) -> float:
    r"""Total :math:`\mu` of one peer's training visits:

    .. math:: \mu^2 = \sum_v \Big(\frac{\eta L\, m_{\max}}{B\, s_v}\Big)^2,

    where :math:`s_v` is the std of the noise on the parameters before the token leaves visit v and
    ``sensitivity`` is :func:`visit_sensitivity`.

    Assumptions: the coupling of :mod:`unwalk.privacy.ledger`, each forgotten record at most
    ``epochs`` times per visit, steps within a visit that do not expand (a single step needs
    nothing: it starts from a token that is public in the composition); noise before anything
    leaves.  Neighbours: with and without up to :math:`m_{\max}` records of one peer, any of them.
    Views of all peers and coalitions, training time included.  Numbers are real: for the rounding
    of a visit's steps :func:`unwalk.privacy.stability.noisy_start_claim` adds to the sensitivity.
    Source:
    :func:`unwalk.privacy.gaussian.compose_mu`.

    >>> noisy_start_mu([1.0] * 4, 0.5)
    1.0
    """
    return compose_mu(
        sensitivity / check_number(f"stds[{v}]", std, above=0.0) for v, std in enumerate(stds)
    )


def noisy_start_sigma(epsilon: float, delta: float, visits: int, sensitivity: float) -> float:
    """Noise std per visit so that ``visits`` of them together give (epsilon, delta), rounded up.

    Statement and assumptions: :func:`noisy_start_mu`.

    >>> round(noisy_start_sigma(1.0, 1e-5, 4, 0.5), 5)
    3.73063
    """
    check_count("visits", visits, low=1)
    unit = noisy_start_mu([1.0], sensitivity)
    return unit * math.sqrt(visits) / gaussian_mu(epsilon, delta) * (1.0 + 1e-13)
