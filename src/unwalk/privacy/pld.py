r"""Privacy loss distributions, through the optional package dp-accounting.

A second, independent way to the same numbers: discretised, pessimistic, slower, and able to
compose what has no closed form.  ``pip install unwalk[accounting]`` brings it.
"""

# Imports in functions: the package dp-accounting is an extra.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_count, check_number

Floats = npt.NDArray[np.float64]

DISCRETIZATION = 1e-4


def _library() -> Any:
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise InvalidInput(
            "the pld accountant needs the package dp-accounting, which is not installed; "
            "allowed: pip install 'unwalk[accounting]', or another accountant."
        ) from error
    return privacy_loss_distribution


def gaussian_pld(mu: float, *, discretization: float = DISCRETIZATION) -> Any:
    r"""The privacy loss distribution of a Gaussian mechanism with :math:`\mu = \Delta/\sigma`.

    Source: dp-accounting, ``from_gaussian_mechanism`` (Doroshenko et al., *Connect the Dots*,
    PoPETs 2022, arXiv:2207.04380).

    >>> round(pld_epsilon([gaussian_pld(1.0)], 1e-5), 3)
    4.377
    """
    check_number("mu", mu, low=0.0)
    library = _library()
    if mu == 0.0:
        return library.identity(value_discretization_interval=discretization)
    return library.from_gaussian_mechanism(
        1.0 / mu, value_discretization_interval=discretization, use_connect_dots=True
    )


def visits_pld(ratio: float, hops: int, p: float, *, discretization: float = DISCRETIZATION) -> Any:
    r"""T hops, each a public coin between nothing and a Gaussian mechanism of this ratio.

    Statement and assumptions: :func:`unwalk.privacy.visits.visits_log_delta`.

    >>> pld = visits_pld(0.5 / 2.5744, 100, 0.1, discretization=1e-3)
    >>> round(pld_epsilon([pld], 1e-5), 2)
    2.88
    """
    check_count("hops", hops, low=1)
    check_number("p", p, low=0.0, high=1.0)
    visit = gaussian_pld(ratio, discretization=discretization)
    if p == 1.0:
        return visit.self_compose(hops)
    nothing = _library().identity(value_discretization_interval=discretization)
    return visit.compute_mixture(nothing, p).self_compose(hops)


def profile_pld(
    log_deltas: Callable[[Floats], Floats],
    largest_loss: float,
    *,
    discretization: float = DISCRETIZATION,
) -> Any:
    r"""The pessimistic distribution behind a privacy profile :math:`\varepsilon \mapsto \ln\delta`.

    The profile is read on the grid of losses in [-largest_loss, largest_loss]; what lies above
    is charged as infinite loss.  Source: Connect the Dots, Algorithm 1, as in dp-accounting.

    >>> from unwalk.privacy.seal import seal_profile
    >>> pld = profile_pld(lambda x: seal_profile(x, 2.0, 6), 20.0, discretization=1e-3)
    >>> round(pld_epsilon([pld], 1e-5), 2)
    0.81
    """
    check_number("largest_loss", largest_loss, above=0.0)
    library = _library()
    from dp_accounting.pld import pld_pmf

    top = math.ceil(largest_loss / discretization)
    losses = np.arange(-top, top + 1, dtype=np.float64) * discretization
    deltas = np.minimum.accumulate(np.exp(log_deltas(losses)))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(discretization, -top, top, deltas)
    return library.PrivacyLossDistribution(pmf)


def pld_epsilon(plds: Iterable[Any], delta: float) -> float:
    """Epsilon of the composition of all of these distributions; see :func:`gaussian_pld`."""
    check_number("delta", delta, above=0.0, below=1.0)
    kept = list(plds)
    if not kept:
        raise InvalidInput("plds is empty; allowed: at least one distribution.")
    total = kept[0]
    for other in kept[1:]:
        total = total.compose(other)
    return float(total.get_epsilon_for_delta(delta))
