r"""Network differential privacy of a walk with noise at *every* hop, on any graph.

A token walks; each holder makes a noisy projected gradient step on a convex smooth loss.  An
observer sees the token when it comes by.  A contribution of u that is seen only g noisy steps
later costs 1/g of one that is seen at once (amplification by iteration).

The published proofs fix one contribution of u, average over the time t until v next holds the
token, and add such bounds up over all contributions (Cyffers and Bellet, *Privacy Amplification
by Decentralization*, AISTATS 2022, PMLR 151, Appendix F; Cyffers, Bellet and Upadhyay,
*Differentially Private Decentralized Learning with Random Walks*, ICML 2024, PMLR 235).  Two
contributions of u between two observations are not observed one by one, though, and their gaps add
before they are squared: two in a row followed by v cost :math:`4\kappa/2`, not
:math:`\kappa/2 + \kappa`.  The bounds here therefore let the gap g of a contribution end at the
next visit to the observers *or to u itself*.  Publishing the token there as well can only help an
observer, and makes every contribution a mechanism of its own; adding up is then adaptive
composition.  The average over g is a log-mean-exp, which needs no condition on the noise.

Neighbouring relation: all data of one peer u (user level), or, with ``ratio`` for it, the
forgotten records at u.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.validation import check_count, check_number
from unwalk.privacy.renyi import rdp_epsilon

Floats = npt.NDArray[np.float64]


def check_chain(transition: npt.ArrayLike) -> Floats:
    """Return a square matrix whose rows are probabilities, or refuse it."""
    matrix = np.asarray(transition, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InvalidInput(f"transition has shape {matrix.shape}; allowed: a square matrix.")
    bad = np.flatnonzero(~np.isclose(matrix.sum(axis=1), 1.0, atol=1e-9) | (matrix < 0).any(axis=1))
    if bad.size:
        raise InvalidInput(
            f"transition row {bad[0]} sums to {matrix[bad[0]].sum():g} or has a negative entry; "
            "allowed: probabilities that add up to 1."
        )
    return matrix


def complete_graph_chain(peers: int, *, observers: int = 1, stay: bool = True) -> Floats:
    """The complete graph seen from one pair, lumped to (u, observers, everyone else).

    ``stay``: the next holder is uniform over all peers, the present one included (the paper's
    Algorithm 2), or over the others.

    >>> complete_graph_chain(4).tolist()[0]
    [0.25, 0.25, 0.5]
    """
    check_count("peers", peers, low=2)
    check_count("observers", observers, low=1, high=peers - 1)
    rest = peers - 1 - observers
    if stay:
        return np.tile([1.0 / peers, observers / peers, rest / peers], (3, 1))
    others = peers - 1
    return np.array(
        [
            [0.0, observers / others, rest / others],
            [1.0 / others, (observers - 1) / others, rest / others],
            [1.0 / others, observers / others, max(rest - 1, 0) / others]
            if rest
            else [1.0 / peers, observers / peers, 0.0],
        ]
    )


@dataclass(frozen=True)
class FirstHits:
    """Law of the gap g after a contribution: index g - 1, by where the token is next seen.

    ``returned``: at u again before any observer; ``observed``: at an observer.  What is missing
    to 1 is never seen within the horizon.
    """

    returned: Floats
    observed: Floats


def first_hit_law(
    transition: npt.ArrayLike, source: int, targets: Collection[int], hops: int
) -> Floats:
    """Probabilities (hop, target) that the walk from ``source`` first meets the targets there.

    Hop 1 is the first move; the source itself counts only when it is met again.  Column order is
    that of the sorted targets.

    >>> first_hit_law([[0.5, 0.5], [0.5, 0.5]], 0, [1], 3)[:, 0].tolist()
    [0.5, 0.25, 0.125]
    """
    matrix = check_chain(transition)
    wanted = sorted(set(targets))
    for peer in (source, *wanted):
        check_count("peer", peer, low=0, high=matrix.shape[0] - 1)
    check_count("hops", hops, low=0)
    law = np.empty((hops, len(wanted)))
    alive = np.zeros(matrix.shape[0])
    alive[source] = 1.0
    for hop in range(hops):
        alive = alive @ matrix
        law[hop] = alive[wanted]
        alive[wanted] = 0.0
    return law


def first_hits(
    transition: npt.ArrayLike, contributor: int, observers: Collection[int], hops: int
) -> FirstHits:
    """The law of the gap after a contribution of ``contributor``; see :class:`FirstHits`.

    >>> hits = first_hits(complete_graph_chain(4), 0, [1], 2)
    >>> hits.returned.tolist(), hits.observed.tolist()
    ([0.25, 0.125], [0.25, 0.125])
    """
    if contributor in observers or not observers:
        raise InvalidInput(
            f"observers is {sorted(observers)!r}; allowed: at least one peer, none of them the "
            f"contributor {contributor}."
        )
    wanted = sorted({contributor, *observers})
    law = first_hit_law(transition, contributor, wanted, hops)
    own = wanted.index(contributor)
    return FirstHits(law[:, own], np.delete(law, own, axis=1).sum(axis=1))


def _log_sum_exp(logs: Floats) -> float:
    top = float(logs.max())
    if top == -math.inf:
        return top
    return top + math.log(float(np.exp(logs - top).sum()))


def _log_mean_exp(weights: Floats, exponents: Floats) -> float:
    """log of the mean of e^exponent, the missing weight counting as exponent 0."""
    missing = max(0.0, 1.0 - math.fsum(weights))
    with np.errstate(divide="ignore"):
        logs = np.append(np.log(weights) + exponents, math.log(missing) if missing else -math.inf)
    return max(0.0, _log_sum_exp(logs))


def contribution_rdp(alpha: float, ratio: float, hits: FirstHits) -> float:
    r"""One contribution, the coin of its gap being drawn afresh:

    .. math:: \varepsilon(\alpha) = \frac1{\alpha-1}\ln \mathbb E_g\Big[
              \exp\Big((\alpha-1)\frac{\alpha\,\Delta^2}{2\sigma^2 g}\Big)\Big],
              \qquad \text{ratio} = \Delta/\sigma \ (\Delta = 2L \text{ for replacement}).

    Assumptions: noise at every hop, convex and smooth losses with :math:`\eta \le 2/\beta`, a
    route drawn independently of the data.  Holds with the whole route public, so with senders
    known.  Source: :func:`unwalk.privacy.iteration.pnsgd_rdp` inside
    :func:`unwalk.privacy.renyi.mixture_rdp`; see the module for what differs from the papers.

    >>> hits = first_hits(complete_graph_chain(100), 0, [1], 2000)
    >>> round(contribution_rdp(2.0, 0.1, hits), 6), round(0.5 * 2 * 0.1**2, 6)
    (0.0008, 0.01)
    """
    check_number("alpha", alpha, above=1.0)
    check_number("ratio", ratio, low=0.0)
    weights = hits.returned + hits.observed
    gaps = np.arange(1, weights.size + 1)
    kappa = 0.5 * alpha * (alpha - 1.0) * ratio * ratio
    return _log_mean_exp(weights, kappa / gaps) / (alpha - 1.0)


def contributions_rdp(
    alpha: float, ratio: float, hits: FirstHits, contributions: int, *, direct: int | None = None
) -> float:
    r"""At most ``contributions`` of u, the sender of a token being hidden or shown.

    ``direct=None``: every contribution costs :func:`contribution_rdp`.  With the sender known, pass
    the number of contributions handed directly to an observer (counted on the route, or capped):
    these are named in the view and cost :math:`\alpha\Delta^2/2\sigma^2` without amplification;
    only the others are averaged, given that they were not handed over directly.  That statement
    holds *conditionally* on the names, the other one on average over them.

    >>> hits = first_hits(complete_graph_chain(100), 0, [1], 2000)
    >>> hidden = contributions_rdp(2.0, 0.1, hits, 10)
    >>> shown = contributions_rdp(2.0, 0.1, hits, 10, direct=1)
    >>> hidden < shown < 10 * 0.01
    True
    """
    check_count("contributions", contributions, low=0)
    if direct is None:
        return contributions * contribution_rdp(alpha, ratio, hits)
    check_count("direct", direct, low=0, high=contributions)
    observed = hits.observed.copy()
    handed, observed[0] = float(observed[0]), 0.0
    if handed >= 1.0 and contributions > direct:
        raise Refused(
            "every contribution is handed directly to an observer on this graph; count all of "
            "them as direct.",
            "lemma",
        )
    scale = 1.0 / (1.0 - handed) if handed < 1.0 else 0.0
    rest = contribution_rdp(alpha, ratio, FirstHits(hits.returned * scale, observed * scale))
    return direct * 0.5 * alpha * ratio * ratio + (contributions - direct) * rest


def walk_rdp(
    alpha: float,
    ratio: float,
    transition: npt.ArrayLike,
    contributor: int,
    observers: Collection[int],
    hops: int,
    *,
    start: npt.ArrayLike | None = None,
    released: bool = False,
) -> float:
    r"""The whole walk, its number of contributions random too:

    .. math:: \varepsilon(\alpha) = \frac1{\alpha-1}\ln\mathbb E_{\rm route}\Big[\exp\Big(
              (\alpha-1)\sum_{j}\frac{\alpha\Delta^2}{2\sigma^2 g_j}\Big)\Big],

    computed by recursion over the remaining hops, in log space.  ``start`` is the law of the
    first holder (default uniform); with ``released`` the observers see the final token too.
    Statement and assumptions: :func:`contribution_rdp`; no cap and no Chernoff bound on the
    number of visits is needed.

    >>> chain = complete_graph_chain(10)
    >>> round(walk_rdp(2.0, 0.5, chain, 0, [1], 100, start=[0.1, 0.1, 0.8]), 4)
    1.0941
    """
    check_number("alpha", alpha, above=1.0)
    check_number("ratio", ratio, low=0.0)
    check_count("hops", hops, low=1)
    matrix = check_chain(transition)
    first_hits(matrix, contributor, observers, 0)  # checks the roles
    wanted = sorted({contributor, *observers})
    own = wanted.index(contributor)
    kappa = 0.5 * alpha * (alpha - 1.0) * ratio * ratio
    gap_law = first_hit_law(matrix, contributor, wanted, hops - 1)
    with np.errstate(divide="ignore"):
        log_gap = np.log(gap_law) + (kappa / np.arange(1, hops))[:, None]
    log_missed = _log_never(gap_law.sum(axis=1))
    if released:
        log_missed = log_missed + kappa / np.arange(1, hops + 1)
    back = {
        peer: _with_never(first_hit_law(matrix, peer, [contributor], hops - 1)[:, 0])
        for peer in wanted
        if peer != contributor
    }
    at_u = np.zeros(hops)  # log of the mean; index: hops left after the contribution
    seen = {peer: np.zeros(hops) for peer in back}
    at_u[0] = log_missed[0]
    for left in range(1, hops):
        earlier = at_u[left - 1 :: -1]
        parts = [log_gap[:left, own] + earlier, log_missed[left : left + 1]]
        for column, peer in enumerate(wanted):
            if peer != contributor:
                law, never = back[peer]
                seen[peer][left] = _log_sum_exp(np.append(law[:left] + earlier, never[left]))
                parts.append(log_gap[:left, column] + seen[peer][left - 1 :: -1])
        at_u[left] = _log_sum_exp(np.concatenate(parts))
    law, never = _with_never(_first_visit_law(matrix, start, contributor, hops))
    total = _log_sum_exp(np.append(law + at_u[::-1], never[hops]))
    return max(0.0, total) / (alpha - 1.0)


def _log_never(law: Floats) -> Floats:
    """log of the probability of not having been hit within 0, 1, ... hops."""
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(1.0 - np.append(0.0, law.cumsum()), 0.0))


def _with_never(law: Floats) -> tuple[Floats, Floats]:
    with np.errstate(divide="ignore"):
        return np.log(law), _log_never(law)


def _first_visit_law(matrix: Floats, start: npt.ArrayLike | None, peer: int, hops: int) -> Floats:
    """Probability that ``peer`` is first visited at hop 1, 2, ..., the first holder's law given."""
    size = matrix.shape[0]
    alive = np.full(size, 1.0 / size) if start is None else np.array(start, np.float64)
    if alive.shape != (size,) or (alive < 0).any() or not math.isclose(alive.sum(), 1.0):
        raise InvalidInput(f"start is {alive!r}; allowed: {size} probabilities that add up to 1.")
    law = np.empty(hops)
    for hop in range(hops):
        law[hop], alive[peer] = alive[peer], 0.0
        alive = alive @ matrix
    return law


ORDERS = (
    *(1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0),
    *(128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0),
)


def complete_walk_epsilon(
    delta: float, ratio: float, peers: int, hops: int, *, observers: int = 1
) -> float:
    r"""Epsilon of :func:`walk_rdp` on the complete graph, uniform routing over all peers.

    Tabulated orders and the tight conversion; statement and assumptions: :func:`walk_rdp`.

    >>> round(complete_walk_epsilon(1e-5, 0.1, 10, 100), 3)
    1.055
    """
    check_count("peers", peers, low=2)
    chain = complete_graph_chain(peers, observers=observers)
    values = [walk_rdp(alpha, ratio, chain, 0, [1], hops, start=chain[0]) for alpha in ORDERS]
    return rdp_epsilon(ORDERS, values, delta)
