"""What a walk had cost when it was as good as retraining: hops, visits, bytes, gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Cost = Mapping[str, float]


def level_at(matched: Mapping[str, int | None]) -> int | None:
    """The hop from which on accuracy *and* forgetting are level; None if one of them never is.

    >>> level_at({"clean_hop": 3, "forget_hop": 8}), level_at({"clean_hop": 3, "forget_hop": None})
    (8, None)
    """
    hops = list(matched.values())
    known = [hop for hop in hops if hop is not None]
    return max(known) if known and len(known) == len(hops) else None


def cost_until(hops: Sequence[Cost], hop: int | None) -> dict[str, float] | None:
    """The summed cost of the first ``hop`` hops.

    >>> cost_until([{"bytes": 2}, {"bytes": 3}, {"bytes": 9}], 2)
    {'bytes': 5}
    """
    if hop is None:
        return None
    names = hops[0] if hops else {}
    return {name: sum(one[name] for one in hops[:hop]) for name in names}
