"""Claims of exactness: the result is distributed as training without the forgotten records.

Read from events, like every claim.  What only the forgetting peer can know (that no batch before
a given one drew a forgotten record) is named as an assumption; a replay from its data checks it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unwalk.core import events as ev
from unwalk.core.errors import Refused
from unwalk.core.transcript import Hop, Transcript
from unwalk.privacy.accountants import PUBLIC, sealed_claim
from unwalk.privacy.claims import Claim, fact, refuse, start_of, unlearner_of

NOT_ADAPTIVE = "the request does not depend on the model"
AWAY = (
    "u was away when the walk went on: another peer that had the same token made the first visit "
    "in its place, which is public, and no matter of u's records"
)
NOTHING = "no batch ever drew a record to be forgotten, so there was nothing to do"


def fresh_claim(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
    """A walk from the public initial model that never met the forgotten records."""
    start = start_of(hops)
    if start.start != "initial":
        refuse(
            "not-initial",
            hops[0],
            start,
            f"the walk began from {start.start!r}, not from the initial model",
        )
    claim = sealed_claim(transcript, hops[0].phase, delta)
    if claim.grade != "exact":
        return claim
    reason = "the walk began from the public initial model and never met the forgotten records"
    return Claim("exact", 0.0, 0.0, "events", claim.assumptions, reason)


def rewind_claim(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
    """A walk from what u kept of an arrival: the first one, or the one of its first use.

    Checked: u was not visited before (first contact); the walk went on from that very hop, at u,
    for as many hops as training had left, with training's steps, and never touched the forgotten
    records.  Training's result is its last model: an average would hold older ones.  Where u has
    ``vanished`` whoever handed it the token goes on without it; where the walk was ``recovered``
    because u was away just then, that peer makes the first visit.
    """
    first = hops[0].hop if hops else len(transcript.hops) + 1
    return _went_back(transcript, [hop for hop in transcript.hops if hop.hop < first], hops)


def sisa_claim(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
    """One of several models, each of its own peers, went back to u's first use; or slices alone.

    Checked: each model began from the initial one and was trained by the peers of its shard only,
    so that all but u's never met the forgotten records; for u's as in :func:`rewind_claim`.
    """
    shards = transcript.header.get("shards", 1)
    if shards == 1:
        return rewind_claim(transcript, hops, delta)
    u = unlearner_of(transcript)
    names = [entry["name"] for entry in transcript.header["phases"][:-1]]
    if len(names) != shards:
        raise Refused(
            f"the header names {shards} shards and {len(names)} walks of training.", "shards"
        )
    own: list[Hop] = []
    for shard, name in enumerate(names):
        walk = [hop for hop in transcript.hops if hop.phase == name]
        if not walk or start_of(walk).start != "initial":
            raise Refused(f"walk {name!r} did not begin from the initial model.", "shards")
        _check_members(walk, shard, shards)
        own = walk if u % shards == shard else own
    _check_members(hops, u % shards, shards)
    claim = _went_back(transcript, own, hops)
    others = f"the other {shards - 1} models are of other peers' records alone"
    return replace(claim, reason=f"{claim.reason}; {others}")


def _check_members(hops: list[Hop], shard: int, shards: int) -> None:
    """Refuse a visit to a peer of another shard: peer v belongs to shard v modulo their number."""
    for hop in hops:
        if hop.receiver % shards != shard:
            refuse(
                "shards", hop, hop.events[0], f"the peer is not of shard {shard + 1} of {shards}"
            )


def _went_back(transcript: Transcript, before: list[Hop], hops: list[Hop]) -> Claim:
    """``hops`` in the place of the end of ``before``, the walk in which u took part."""
    u = unlearner_of(transcript)
    way = fact(transcript, "rewind", "from where the walk went on is not known")
    iterate = fact(transcript, "iterate", "which of training's models went on is not known")
    if iterate != "last":
        raise Refused(
            f"the header records iterate {iterate!r}: older models would stay in it.", "iterate"
        )
    if not hops:
        return _nothing_to_do(before, u, way)
    start = start_of(hops)
    if start.start != "arrival" or start.hop is None:
        refuse("not-a-rewind", hops[0], start, "the walk did not begin from an arrival that u kept")
    place = next((at for at, hop in enumerate(before) if hop.hop == start.hop), None)
    if place is None or before[place].receiver != u:
        refuse("not-a-rewind", hops[0], start, f"hop {start.hop} is no arrival at u")
    if way == "first-contact":
        for hop in before[:place]:
            if hop.receiver == u:
                refuse("not-a-rewind", hop, hop.events[0], f"u was visited before hop {start.hop}")
    left = len(before) - place
    vanished = transcript.header.get("vanished") is True
    recovered = transcript.header.get("recovered") is True
    if vanished:
        _check_absent(hops, u)
    if len(hops) != left or (hops[0].receiver != u and not (vanished or recovered)):
        refuse(
            "not-a-rewind",
            hops[0],
            start,
            f"the walk has {len(hops)} hops from peer {hops[0].receiver}; training had {left} "
            f"left, from u",
        )
    _check_untouched(hops, u)
    _check_same_work(before[place:], hops)
    said = [] if way == "first-contact" else [_log(start.hop)]
    said += [AWAY] if recovered else []
    reason = f"the walk went back to hop {start.hop}, before the forgotten records were used"
    return Claim("exact", 0.0, 0.0, "events", (*PUBLIC, NOT_ADAPTIVE, *said), reason)


def _check_absent(hops: list[Hop], u: int) -> None:
    """Where u has vanished, all of its records are forgotten, and it takes no part any more."""
    for hop in hops:
        if hop.receiver == u:
            refuse("not-a-rewind", hop, hop.events[0], "u had vanished, and was visited")


def _nothing_to_do(before: list[Hop], u: int, way: str) -> Claim:
    visited = [hop for hop in before if hop.receiver == u]
    if way == "first-contact" and visited:
        refuse(
            "not-a-rewind",
            visited[0],
            visited[0].events[0],
            "u was visited, and the walk did not go back",
        )
    reason = NOTHING if visited else "the walk never visited the forgetting peer"
    said = [_log(before[-1].hop + 1)] if visited else []
    return Claim("exact", 0.0, 0.0, "events", (*PUBLIC, NOT_ADAPTIVE, *said), reason)


def _log(hop: int) -> str:
    return (
        f"that no batch before hop {hop} drew a forgotten record is what u's own log says; a "
        "replay from its data checks it, and that number itself is public"
    )


def _check_untouched(hops: list[Hop], u: int) -> None:
    for hop in hops:
        for event in hop.events:
            used = isinstance(event, ev.GradientSteps | ev.OwnSums) and event.touched
            if used and hop.receiver == u:
                refuse("touched", hop, event, "it may have touched the forgotten records")


def _check_same_work(before: list[Hop], after: list[Hop]) -> None:
    """The hops that were walked again take the steps that training took in their place."""
    for old, new in zip(before, after, strict=True):
        wanted = {_kind(event) for event in old.events if not isinstance(event, _MARKS)}
        for event in new.events:
            if not isinstance(event, _MARKS) and wanted and _kind(event) not in wanted:
                refuse(
                    "other-work",
                    new,
                    event,
                    f"it is not what training did in its place, in hop {old.hop}",
                )


_MARKS = (ev.Start, ev.Wipe)
_OF_THE_PEER = ("steps", "minibatches", "batch", "data", "touched")
"""What may differ between visits to different peers, or with fewer records."""


def _kind(event: ev.Event) -> tuple[Any, ...]:
    """An event without what depends on whose records it used."""
    kept = {k: v for k, v in vars(event).items() if k not in _OF_THE_PEER}
    return (event.kind, *sorted(kept.items(), key=lambda item: item[0]))


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
                refuse("not-sums", hop, event, "the model is more than a function of sums")
    if len(kinds) > 1:
        raise Refused(
            f"contributions differ in precision or ridge parameter: {sorted(kinds)}.", "not-sums"
        )
    if last is not None and last.touched:
        raise Refused(
            "u's last contribution is over all its records, the forgotten ones too.", "touched"
        )
    caveat = "peers who kept the token from before see, as a difference, moments of D_f"
    reason = "u put its sums without the forgotten records in the place of its former ones"
    return Claim("exact", 0.0, 0.0, "events", (*PUBLIC[:2], caveat), reason)
