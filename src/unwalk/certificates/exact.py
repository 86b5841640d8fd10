"""Claims of exactness: the result is distributed as training without the forgotten records.

Read from events, like every claim.  What only the forgetting peer can know (that no batch before
a given one drew a forgotten record) is named as an assumption; a replay from its data checks it.
"""

from __future__ import annotations

from unwalk.core import events as ev
from unwalk.core.errors import Refused
from unwalk.core.transcript import Hop, Transcript
from unwalk.privacy.accountants import PUBLIC, sealed_claim
from unwalk.privacy.claims import Claim, fact, refuse, start_of, unlearner_of

NOT_ADAPTIVE = "the request does not depend on the model"
NOTHING = "no batch ever drew a record to be forgotten, so there was nothing to do"


def fresh_claim(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
    """A walk from the public initial model that never met the forgotten records."""
    start = start_of(hops)
    if start.start != "initial":
        refuse(hops[0], start, f"the walk began from {start.start!r}, not from the initial model")
    claim = sealed_claim(transcript, hops[0].phase, delta)
    if claim.grade != "exact":
        return claim
    reason = "the walk began from the public initial model and never met the forgotten records"
    return Claim("exact", 0.0, 0.0, "events", claim.assumptions, reason)


def rewind_claim(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
    """A walk from what u kept of an arrival: the first one, or the one of its first use.

    Checked: u was not visited before (first contact); the walk went on from that very hop, at u,
    for as many hops as training had left, and never touched the forgotten records.
    """
    u = unlearner_of(transcript)
    way = fact(transcript, "rewind", "from where the walk went on is not known")
    if not hops:
        return _nothing_to_do(transcript, u, way)
    start = start_of(hops)
    if start.start != "arrival" or start.hop is None:
        refuse(hops[0], start, "the walk did not begin from an arrival that u kept")
    before = [hop for hop in transcript.hops if hop.hop < hops[0].hop]
    arrival = next((hop for hop in before if hop.hop == start.hop), None)
    if arrival is None or arrival.receiver != u:
        refuse(hops[0], start, f"hop {start.hop} is no arrival at u")
    if way == "first-contact":
        for hop in before:
            if hop.hop < arrival.hop and hop.receiver == u:
                refuse(hop, hop.events[0], f"u was visited before hop {arrival.hop}")
    left = len(before) - arrival.hop + 1
    if len(hops) != left or hops[0].receiver != u:
        refuse(
            hops[0],
            start,
            f"the walk has {len(hops)} hops from peer {hops[0].receiver}; training had {left} "
            f"left, from u",
        )
    _check_untouched(hops, u)
    said = [] if way == "first-contact" else [_log(arrival.hop)]
    reason = f"the walk went back to hop {arrival.hop}, before the forgotten records were used"
    return Claim("exact", 0.0, 0.0, "events", (*PUBLIC, NOT_ADAPTIVE, *said), reason)


def _nothing_to_do(transcript: Transcript, u: int, way: str) -> Claim:
    visited = [hop for hop in transcript.hops if hop.receiver == u]
    if way == "first-contact" and visited:
        refuse(visited[0], visited[0].events[0], "u was visited, and the walk did not go back")
    reason = NOTHING if visited else "the walk never visited the forgetting peer"
    said = [_log(len(transcript.hops) + 1)] if visited else []
    return Claim("exact", 0.0, 0.0, "events", (*PUBLIC, NOT_ADAPTIVE, *said), reason)


def _log(hop: int) -> str:
    return (
        f"that no batch before hop {hop} drew a forgotten record is what u's own log says; a "
        "replay from its data checks it"
    )


def _check_untouched(hops: list[Hop], u: int) -> None:
    for hop in hops:
        for event in hop.events:
            used = isinstance(event, ev.GradientSteps | ev.OwnSums) and event.touched
            if used and hop.receiver == u:
                refuse(hop, event, "it may have touched the forgotten records")


def sums_claim(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
    """Totals of sums in fixed point, of which u has replaced its own.

    Checked: the model is a function of the totals alone (no steps, no noise), all contributions
    use one precision and ridge parameter, and u's last one is over its retained records.
    """
    u = unlearner_of(transcript)
    last: ev.OwnSums | None = None
    kinds: set[tuple[int, float]] = set()
    for hop, event in transcript.events():
        match event:
            case ev.OwnSums():
                kinds.add((event.bits, event.strength))
                if hop.receiver == u:
                    last = event
            case ev.Start() | ev.Wipe():
                pass
            case _:
                refuse(hop, event, "the model is more than a function of sums")
    if len(kinds) > 1:
        raise Refused(f"contributions differ in precision or ridge parameter: {sorted(kinds)}.")
    if last is not None and last.touched:
        raise Refused("u's last contribution is over all its records, the forgotten ones too.")
    caveat = "peers who kept the token from before see, as a difference, moments of D_f"
    reason = "u put its sums without the forgotten records in the place of its former ones"
    return Claim("exact", 0.0, 0.0, "events", (*PUBLIC[:2], caveat), reason)
