r"""Release-level guarantees: for outsiders, who see only the final model.

Peers saw more; these bounds say nothing about them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.validation import check_count, check_number
from unwalk.privacy.gaussian import gaussian_mu
from unwalk.privacy.renyi import zcdp_epsilon
from unwalk.privacy.roots import increasing_root, largest_safe
from unwalk.privacy.shift import hiding_cost


def released_distance(
    distance: float, step_sizes: Sequence[float], *, strong_convexity: float, smoothness: float
) -> float:
    r"""What a walk on retained data leaves of a distance: :math:`\Delta_0\prod_t(1-\eta_t\lambda)`.

    Assumptions: every step is plain SGD on a :math:`\lambda`-strongly convex,
    :math:`\beta`-smooth loss that is the same in both worlds, with
    :math:`\eta_t \le 2/(\beta+\lambda)` (refused otherwise); shared convex projections are free;
    numbers are real (:class:`unwalk.privacy.ledger.Ledger` adds what rounding does).
    Source: :func:`unwalk.privacy.iteration.contraction_factor`, multiplied up.

    >>> round(released_distance(1.0, [0.5, 0.5], strong_convexity=0.2, smoothness=1.0), 12)
    0.81
    """
    check_number("distance", distance, low=0.0)
    check_number("strong_convexity", strong_convexity, low=0.0)
    check_number("smoothness", smoothness, low=strong_convexity, above=0.0)
    largest = 2.0 / (smoothness + strong_convexity)
    log = 0.0
    for t, step_size in enumerate(step_sizes):
        check_number(f"step_sizes[{t}]", step_size, low=0.0)
        if step_size > largest:
            raise Refused(
                f"step {t} has size {step_size:g}, above 2/(beta + lambda) = {largest:g}: it does "
                "not contract by 1 - eta lambda.",
                "expanding",
            )
        factor = 1.0 - step_size * strong_convexity
        log += math.log(factor) if factor > 0.0 else -math.inf
    return distance * math.exp(log)


def release_sigma(epsilon: float, delta: float, distance: float) -> float:
    r"""Noise for one release at the end: :math:`s = \Delta/r(\varepsilon,\delta)`.

    ``distance`` is what :func:`released_distance` gives.  Assumptions: the noise is added once,
    after the last step, and only its result is ever seen.  Neighbours: with and without the
    forgotten records.  Source: :func:`unwalk.privacy.gaussian.gaussian_sigma`.

    >>> round(release_sigma(1.0, 1e-5, 0.81), 4)
    3.0218
    """
    check_number("distance", distance, low=0.0)
    return distance / gaussian_mu(epsilon, delta)


def visit_caps(
    radius: float, step_size: float, clip: float, visit_times: Sequence[float]
) -> list[float]:
    r"""The ceilings :math:`2\rho + 2\eta C t_j` on what can have drifted apart by visit j.

    :math:`t_j` counts the clipped steps before visit j's noise; the two worlds start at most
    :math:`2\rho` apart.

    >>> visit_caps(1.0, 0.1, 0.5, [10, 20])
    [3.0, 4.0]
    """
    check_number("radius", radius, low=0.0)
    check_number("step_size", step_size, low=0.0)
    check_number("clip", clip, low=0.0)
    times = [check_number(f"visit_times[{j}]", t, low=0.0) for j, t in enumerate(visit_times)]
    if not times or any(b < a for a, b in pairwise(times)):
        raise InvalidInput(
            f"visit_times is {list(visit_times)!r}; allowed: at least one, not decreasing."
        )
    return [2.0 * radius + 2.0 * step_size * clip * t for t in times]


def shifted_zcdp(caps: Sequence[float], sigma: float) -> float:
    r"""zCDP parameter of the final model when noise of std s falls at visits :math:`t_1..t_M`.

    .. math:: D_\alpha \le \frac{\alpha}{2 s^2} \min_{a}\sum_i a_i^2 \quad\text{s.t.}\quad
              \sum_{i\le j} a_i \le c_j,\ \sum_{i\le M} a_i = c_M,

    with the ceilings :math:`c_j` of :func:`visit_caps`.  The minimum is solved exactly
    (:func:`unwalk.privacy.shift.hiding_cost`); equal :math:`a_i = c_M/M` are feasible, and then
    optimal, only where :math:`j\,c_M/M \le c_j` for all j.

    Assumptions: all maps are the same in both worlds; steps are clipped to C, so that two runs of
    one map drift apart by at most :math:`2\eta C` a step whatever the loss; the noise is added to
    the parameters; only the final model is seen; numbers are real.  Rounding is not 1-Lipschitz:
    whoever certifies a run with this adds :math:`\sqrt d\,g` per rounding to a grid and twice the
    error of each computed step to the ceilings.  Neighbours: any two starts at most
    :math:`2\rho` apart.  Source: as in :mod:`unwalk.privacy.shift`; no convexity is needed,
    because drift is charged in full.

    >>> shifted_zcdp([3.0, 4.0], 1.0)  # equal halves: (2^2 + 2^2) / 2
    4.0
    >>> shifted_zcdp([1.0, 4.0], 1.0)  # the first visit can hide 1 at most: (1 + 9) / 2
    5.0
    """
    check_number("sigma", sigma, above=0.0)
    if not caps:
        raise InvalidInput("caps is empty; allowed: one ceiling per visit, at least 1.")
    gaps = [caps[0], *(b - a for a, b in pairwise(caps))]
    return 0.5 * hiding_cost(gaps, [sigma] * len(gaps))


def best_shifted_zcdp(caps: Sequence[float], sigma: float) -> float:
    r"""The smallest of :func:`shifted_zcdp` over "everything is hidden by visit j".

    Once the gap is hidden at visit j, the same maps in both worlds are post-processing and open
    no new one: later visits need not be waited for.  Assumptions: :func:`shifted_zcdp`.

    >>> best_shifted_zcdp([1.0, 4.0], 1.0)
    0.5
    """
    return min(shifted_zcdp(caps[: j + 1], sigma) for j in range(max(1, len(caps))))


def shifted_sigma(epsilon: float, delta: float, caps: Sequence[float]) -> float:
    """The smallest noise std for which :func:`shifted_zcdp` gives (epsilon, delta), rounded up.

    >>> round(shifted_sigma(1.0, 1e-5, [3.0, 4.0]), 3)
    11.441
    """
    unit = shifted_zcdp(caps, 1.0)
    return 0.0 if unit == 0.0 else math.sqrt(unit) / _root_rho(epsilon, delta)


def contracting_zcdp(distance: float, contraction: float, steps: int, sigma: float) -> float:
    r"""zCDP parameter of the final model after noisy steps that contract, from a bounded start.

    .. math:: D_\alpha \le \frac{\alpha}{2 s^2}\,
              \frac{\Delta^2 c^{2K}}{\sum_{k<K} c^{2k}},

    for K steps with Lipschitz constant c :math:`\le 1`, each followed by noise of std s on the
    parameters and a projection on one shared convex set, from starts at most :math:`\Delta` apart.

    Assumptions: all maps are the same in both worlds, a step contracts
    (:func:`unwalk.privacy.iteration.contraction_factor`: convex smooth losses), only the final
    model is seen, numbers are real.  Neighbours: any two starts that near.  Source: the minimum of
    :func:`unwalk.privacy.shift.hiding_cost`, for equal contractions and noise; it is the setting of
    noisy (stochastic) gradient unlearning of Chien, Wang, Chen and Li 2024 (arXiv:2401.10371 and
    2403.17105), whose own bounds also use what training's noise hid.

    >>> contracting_zcdp(2.0, 1.0, 4, 1.0), round(contracting_zcdp(2.0, 0.5, 2, 1.0), 6)
    (0.5, 0.1)
    """
    check_number("distance", distance, low=0.0)
    check_number("contraction", contraction, low=0.0, high=1.0)
    check_number("sigma", sigma, above=0.0)
    check_count("steps", steps, low=1)
    stds = [sigma] * steps
    return 0.5 * hiding_cost(
        [0.0] * steps, stds, contractions=[contraction] * steps, start=distance
    )


def contracting_sigma(
    epsilon: float, delta: float, distance: float, contraction: float, steps: int
) -> float:
    """The smallest noise std for which :func:`contracting_zcdp` gives (epsilon, delta), rounded up.

    >>> round(contracting_sigma(1.0, 1e-5, 2.0, 0.5, 2), 3)
    1.809
    """
    unit = contracting_zcdp(distance, contraction, steps, 1.0)
    return 0.0 if unit == 0.0 else math.sqrt(unit) / _root_rho(epsilon, delta)


def _root_rho(epsilon: float, delta: float) -> float:
    """The root of the largest zCDP parameter that gives (epsilon, delta), rounded down."""
    check_number("epsilon", epsilon, above=0.0)

    def excess(root_rho: float) -> float:
        return zcdp_epsilon(root_rho * root_rho, delta) - epsilon

    if excess(1e-12) > 0.0:
        raise Refused(
            f"epsilon {epsilon:g} at delta {delta:g} is out of reach of Renyi orders up to 10^6.",
            "out-of-reach",
        )
    return largest_safe(excess, increasing_root(excess, 1e-12, 1.0)) * (1.0 - 1e-13)
