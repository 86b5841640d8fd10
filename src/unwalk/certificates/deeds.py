"""What was done to the model after the request, counted from the events.

Everything that a certificate says in words of the walk is made from these numbers.
"""

from __future__ import annotations

from typing import Any

from unwalk.core import events as ev
from unwalk.core.transcript import Hop, Transcript


def deeds_of(transcript: Transcript, hops: list[Hop]) -> dict[str, Any]:
    """From where the walk went on, who was visited, what used the records, and all noise.

    ``hops`` are those of the phase that forgets.  ``used`` counts the visits in which the
    forgetting peer used the records again, ``uphill`` those of them whose steps on the records
    all went uphill, ``balls`` the hops with a projection on a ball by its centre, ``sums`` the
    visits in which the forgetting peer put sums without the records in the place of its own.
    """
    u = transcript.header.get("unlearner")
    before = [hop for hop in transcript.hops if not hops or hop.hop < hops[0].hop]
    start = next((e for hop in hops[:1] for e in hop.events if isinstance(e, ev.Start)), None)
    at_u = [hop for hop in hops if hop.receiver == u]
    used = [found for hop in at_u if (found := [e for e in hop.events if _uses(e)])]
    return {
        "start": None if start is None else start.start,
        "start_hop": None if start is None else start.hop,
        "hops": len(hops),
        "visits": len(at_u),
        "used": len(used),
        "uphill": sum(all(_uphill(event) for event in found) for found in used),
        "sums": sum(any(_replaces(event) for event in hop.events) for hop in at_u),
        "balls": _balls(hops),
        "noise": {"before": _noise(before, u), "after": _noise(hops, u)},
    }


def _uses(event: ev.Event) -> bool:
    if not isinstance(event, ev.GradientSteps | ev.OwnSums):
        return False
    return event.touched and event.data != "retained"


def _uphill(event: ev.Event) -> bool:
    return (
        isinstance(event, ev.GradientSteps) and event.data == "forgotten" and event.direction == 1
    )


def _replaces(event: ev.Event) -> bool:
    return isinstance(event, ev.OwnSums) and not event.touched


def _balls(hops: list[Hop]) -> dict[str, int]:
    found: dict[str, int] = {}
    for hop in hops:
        events = [event for event in hop.events if isinstance(event, ev.Projection)]
        for centre in sorted({centre for event in events for centre, _ in event.balls}):
            found[centre] = found.get(centre, 0) + 1
    return found


def _noise(hops: list[Hop], u: Any) -> dict[str, Any]:
    """How often noise was added, in how many hops and visits to u; by whom, if by one peer alone.

    ``first`` and ``last`` are the first and the last such hop, numbered within their phase.
    """
    noisy = [(hop, times) for hop in hops if (times := sum(_draws(e) for e in hop.events))]
    peers = {hop.receiver for hop, _ in noisy}
    return {
        "times": sum(times for _, times in noisy),
        "hops": len(noisy),
        "visits": sum(hop.receiver == u for hop, _ in noisy),
        "by": peers.pop() if len(peers) == 1 else None,
        "first": noisy[0][0].phase_hop if noisy else None,
        "last": noisy[-1][0].phase_hop if noisy else None,
    }


def _draws(event: ev.Event) -> int:
    """How often an event drew noise."""
    if isinstance(event, ev.GaussianNoise):
        return int(event.std > 0.0)
    return event.steps if isinstance(event, ev.GradientSteps) and event.noise > 0.0 else 0
