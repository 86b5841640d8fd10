r"""Tables 1 and 2 of the paper at its own settings, each number beside the corrected one."""

from __future__ import annotations

import math

from unwalk.core.validation import check_choice
from unwalk.privacy.capacity import nominal_ddp_capacity
from unwalk.privacy.nominal import (
    PAPER_SETTINGS,
    corrected_ddp_sigma,
    corrected_sigma,
    nominal_ddp_sigma,
    nominal_sigma,
)
from unwalk.privacy.utility import (
    CASES,
    effective_variance,
    last_risk,
    nominal_table_1,
    strongly_convex_risk,
    substituted_table_1,
)


def paper_tables(name: str, *, strong_convexity: float = 1.0) -> dict[str, dict[str, float]]:
    r"""Tables 1 and 2 at the paper's settings, unit constants, corrected numbers beside them.

    Keys: ``table1/<case>`` and ``table2/<method>``.  ``substituted`` is Corollary 5.2 put into
    C.4; ``corrected`` the proved risk (last iterate, exact noise, no 1/s).

    >>> row = paper_tables("mnist")["table2/rrdu"]
    >>> round(row["sigma"], 4), round(row["corrected_sigma"], 3)
    (2.5744, 6.547)
    """
    at = PAPER_SETTINGS[check_choice("name", name, PAPER_SETTINGS)]
    rows: dict[str, dict[str, float]] = {}
    exact = corrected_sigma(at.epsilon, at.delta, at.lipschitz, at.hops, at.p)
    variance = effective_variance(at.lipschitz, at.p, at.dimension, exact)
    corrected = {
        "convex": last_risk(at.diameter, at.hops, variance),
        "strongly-convex": strongly_convex_risk(at.hops, variance, strong_convexity),
    }
    for case in CASES:
        opt, priv = nominal_table_1(case, at, strong_convexity=strong_convexity)
        scale = at.diameter if case == "convex" else 1.0
        put_in = scale * substituted_table_1(case, at, strong_convexity=strong_convexity)
        rows[f"table1/{case}"] = {"optimization": opt, "privacy": priv, "substituted": put_in}
        if case in corrected:
            rows[f"table1/{case}"]["corrected"] = corrected[case]
    ddp = (at.epsilon, at.delta, at.ddp_lipschitz)
    ddp_exact = corrected_ddp_sigma(*ddp, at.hops, at.peers)
    ddp_variance = effective_variance(at.ddp_lipschitz, 1.0, at.dimension, ddp_exact)
    log = -math.log(at.delta) * math.log(at.peers)
    rows["table2/ddp"] = {
        "sigma": nominal_ddp_sigma(
            "table", *ddp, hops=at.hops, peers=at.peers, forgotten=at.forgotten
        ),
        "corrected_sigma": ddp_exact,
        "optimization": at.ddp_diameter * at.ddp_lipschitz / math.sqrt(at.hops),
        "privacy": at.ddp_diameter
        * at.forgotten
        * at.ddp_lipschitz
        / at.epsilon
        * math.sqrt(at.dimension * log / at.peers),
        "corrected": last_risk(at.ddp_diameter, at.hops, ddp_variance),
        # Table 2 leaves out Theorem 3.5's factor 1/(2 + ln T).
        "capacity": (2.0 + math.log(at.hops)) * nominal_ddp_capacity(at),
    }
    first = rows["table1/convex"]
    rows["table2/rrdu"] = {
        "sigma": nominal_sigma(at.epsilon, at.delta, at.lipschitz, at.hops, at.p, at.peers),
        "corrected_sigma": exact,
        "optimization": first["optimization"],
        "privacy": first["privacy"],
        "corrected": first["corrected"],
        "non_bias": first["optimization"] + first["privacy"],
    }
    return rows
