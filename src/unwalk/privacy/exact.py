"""Claims of exactness: the result is distributed as training without the forgotten records.

Read from events, like every claim.  What only the forgetting peer can know (that no batch before
a given one drew a forgotten record) is named as an assumption; a replay from its data checks it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

from unwalk.core import events as ev
from unwalk.core.errors import Refused
from unwalk.core.transcript import Hop, Transcript
from unwalk.privacy.accountants import (
    PUBLIC,
    UNKNOWN_ITERATE,
    Claim,
    fact,
    need_fact,
    refuse,
    refuse_fact,
    sealed_claim,
    start_of,
    unlearner_of,
)

NOT_ADAPTIVE = "the request does not depend on the model"
AWAY = (
    "u was away when the walk went on: another peer that had the same token made the first visit "
    "in its place, which is public, and no matter of u's records"
)
FEWER = (
    "peers that did less in a visit than in training had fewer records by then, because of "
    "requests of their own that do not depend on D_f: peer"
)
NOTHING = "no batch ever drew a record to be forgotten, so there was nothing to do"
UNUSED = (
    "that the records were held out from every visit on the line, or came after it, is what u's "
    "own log says"
)
WAYS = ("first-contact", "first-use", "unused")
"""The points that a walk can go back to; ``unused`` if no record was ever used."""
SAMPLED = ("epochs", "averaged", "iid")
"""Kinds of batches with which a visit may skip records; others use every record."""


def fresh_claim(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
    """A walk from the public initial model that never met the forgotten records."""
    if not hops:
        raise Refused("the phase that forgets has no hop.", "no-start")
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
    ``vanished`` the peer that handed it the token continues without it; where the walk was
    ``recovered`` because u was away just then, that peer makes the first visit.
    """
    first = hops[0].hop if hops else len(transcript.hops) + 1
    return _went_back(transcript, [hop for hop in transcript.hops if hop.hop < first], hops)


def sisa_claim(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
    """One of several models, each of its own peers, went back to u's first use; or slices alone.

    Checked: each model began from the initial one and was trained by the peers of its shard only,
    so that all but u's never met the forgotten records; for u's as in :func:`rewind_claim`.
    """
    shards = int(transcript.header.get("shards", 1))
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
            _refuse_visit("shards", hop, f"the peer is not of shard {shard + 1} of {shards}")


def _refuse_visit(code: str, hop: Hop, why: str) -> NoReturn:
    raise Refused(f"hop {hop.hop}, visit to peer {hop.receiver}: {why}.", code)


def _went_back(transcript: Transcript, before: list[Hop], hops: list[Hop]) -> Claim:
    """Check ``hops``, which replace the end of ``before``, the walk in which u took part."""
    u = unlearner_of(transcript)
    way = fact(transcript, "rewind", "from where the walk went on is not known")
    if way not in WAYS:
        refuse_fact("not-a-rewind", "rewind", way, f"; known: {', '.join(WAYS)}")
    if not hops:
        return _nothing_to_do(transcript, before, u, way)
    need_fact("iterate", transcript, "last", UNKNOWN_ITERATE, ": older models would stay in it")
    start = start_of(hops)
    if start.start != "arrival" or start.hop is None:
        refuse("not-a-rewind", hops[0], start, "the walk did not begin from an arrival that u kept")
    place = next((at for at, hop in enumerate(before) if hop.hop == start.hop), None)
    if place is None or before[place].receiver != u:
        refuse("not-a-rewind", hops[0], start, f"hop {start.hop} is no arrival at u")
    _check_earlier(transcript, [hop for hop in before[:place] if hop.receiver == u], start.hop, way)
    left = len(before) - place
    recovered = _check_absence(transcript, hops, u)
    vanished = transcript.header.get("vanished") is True
    if len(hops) != left or (hops[0].receiver != u and not (vanished or recovered)):
        refuse(
            "not-a-rewind",
            hops[0],
            start,
            f"the walk has {len(hops)} hops from peer {hops[0].receiver}; training had {left} "
            f"left, from u",
        )
    _check_untouched(hops, u)
    _check_one_walk(before[place + 1 :])
    fewer = _check_same_work(transcript, before, place, hops)
    assumptions = [] if way == "first-contact" else [_log(start.hop)]
    assumptions += [AWAY] if recovered else []
    assumptions += [f"{FEWER} {', '.join(map(str, sorted(fewer)))}"] if fewer else []
    reason = f"the walk went back to hop {start.hop}, before the forgotten records were used"
    return Claim("exact", 0.0, 0.0, "events", (*PUBLIC, NOT_ADAPTIVE, *assumptions), reason)


def _check_earlier(transcript: Transcript, visits: list[Hop], hop: int, way: str) -> None:
    """Check u's visits before the one that the walk went back to."""
    if visits and way == "first-contact":
        _refuse_visit("not-a-rewind", visits[0], f"u was visited before hop {hop}")
    if way == "unused":
        raise Refused(
            "the header says that the records were never used, and the walk went back.",
            "not-a-rewind",
        )
    _check_may_be_unused(transcript, visits)


def _check_may_be_unused(transcript: Transcript, visits: list[Hop]) -> None:
    """Refuse visits to u that used all of its records, whatever its log says.

    Sums always do; steps do unless batches are drawn at random, or records enter in slices.
    """
    sliced = transcript.header.get("slices", 1) > 1
    for hop in visits:
        for event in hop.events:
            match event:
                case ev.OwnSums(touched=True):
                    how = "sums"
                case ev.GradientSteps(touched=True) if event.batching not in SAMPLED and not sliced:
                    how = f"batching {event.batching!r}"
                case _:
                    continue
            refuse(
                "not-a-rewind",
                hop,
                event,
                f"with {how} it used every record of u, the forgotten ones too",
            )


def _check_absence(transcript: Transcript, hops: list[Hop], u: int) -> bool:
    """Whether u was away when the walk went on; refused where the visits contradict the header.

    Where u has vanished, all of its records are forgotten, and it takes no part any more.
    """
    vanished, recovered = (
        transcript.header.get(name) is True for name in ("vanished", "recovered")
    )
    if vanished and recovered:
        raise Refused(
            "the header says that u has vanished, and that it was away for a while.", "not-a-rewind"
        )
    if vanished and transcript.header.get("forget") != "all":
        raise Refused(
            f"the header says that u has vanished, and records forget "
            f"{transcript.header.get('forget')!r}: all of its records are meant then.",
            "not-a-rewind",
        )
    for hop in hops if vanished else ():
        if hop.receiver == u:
            _refuse_visit("not-a-rewind", hop, "u had vanished, and was visited")
    if recovered and hops[0].receiver == u:
        _refuse_visit(
            "not-a-rewind", hops[0], "the header says that u was away when the walk went on"
        )
    return recovered


def _nothing_to_do(transcript: Transcript, before: list[Hop], u: int, way: str) -> Claim:
    visited = [hop for hop in before if hop.receiver == u]
    if way == "first-contact" and visited:
        _refuse_visit("not-a-rewind", visited[0], "u was visited, and the walk did not go back")
    if way == "first-use":
        _check_may_be_unused(transcript, visited)
    reason = NOTHING if visited else "the walk never visited the forgetting peer"
    assumptions = [_log(before[-1].hop + 1) if way == "first-use" else UNUSED] if visited else []
    return Claim("exact", 0.0, 0.0, "events", (*PUBLIC, NOT_ADAPTIVE, *assumptions), reason)


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


def _check_one_walk(hops: list[Hop]) -> None:
    """Check that what is repeated is one walk: no phase began again, or from an older token."""
    for hop in hops:
        for event in hop.events:
            if isinstance(event, ev.Start) and event.start != "token":
                refuse(
                    "other-work",
                    hop,
                    event,
                    f"training went on from {event.start!r} here, and the repeated walk did not",
                )


def _check_same_work(
    transcript: Transcript, before: list[Hop], place: int, after: list[Hop]
) -> set[int]:
    """Check that the repeated hops take the steps that training took in their place.

    A peer without records does nothing in its visit; where training had such a visit, what the
    other peer does instead has to be what training did at other hops, up to the step size.  The
    same holds instead of an earlier deletion's own work, such as a seal's noise, which the repeated
    walk no longer needs.  Such phases, and other peers that do less, which the answer names, are
    only where records may be withdrawn at any time.
    """
    fewer: set[int] = set()
    usual = {_shape(hop) for hop in before if hop.phase == before[0].phase}
    training = _Training.of(before)
    for old, new in zip(before[place:], after, strict=True):
        wanted, done = _work(old), _work(new)
        same = [_kind(e) for e in wanted] == [_kind(e) for e in done]
        trained = not _withdrawals(transcript) or old.phase == before[0].phase
        if not trained or (not wanted and not _idled(transcript, training, old)):
            same = same or _shape(new) in usual
        if done and not same:
            known = {_kind(event) for event in wanted}
            culprit = next((e for e in done if _kind(e) not in known), done[0])
            refuse(
                "other-work",
                new,
                culprit,
                f"it is not what training did in its place, in hop {old.hop}",
            )
        if _check_as_much(transcript, training, new):
            fewer.add(new.receiver)
        if trained:
            _check_wipes_alike(old, new)
        _check_repeatable(new)
    return fewer


def _withdrawals(transcript: Transcript) -> bool:
    """Whether records may be withdrawn at any time: phases after training are then deletions."""
    return transcript.header.get("withdrawals") is True


@dataclass(frozen=True)
class _Training:
    """What each peer did in its visits of training, gathered once: walks may be long."""

    amounts: dict[int, set[int]]
    worked: set[int]

    @staticmethod
    def of(before: list[Hop]) -> _Training:
        amounts: dict[int, set[int]] = {}
        for hop in before:
            amounts.setdefault(hop.receiver, set()).add(_amount(hop))
        return _Training(amounts, {hop.receiver for hop in before if _work(hop)})


def _idled(transcript: Transcript, training: _Training, hop: Hop) -> bool:
    """Whether a visit without work is one to a peer that has records: it worked at other times."""
    sliced = transcript.header.get("slices", 1) > 1
    return not sliced and hop.receiver in training.worked


def _check_as_much(transcript: Transcript, training: _Training, new: Hop) -> bool:
    """A peer takes as many steps as in its visits of training; u, with fewer records, no more.

    With slices the number depends on the hop as well.  A visit without any work is one to a peer
    without records: training shows that of others, and the header says so of u.  Where the header
    says that peers may withdraw records at any time, all of them may do less; the answer is
    whether another peer than u did.
    """
    if transcript.header.get("slices", 1) > 1:
        return False
    at_u = new.receiver == unlearner_of(transcript)
    emptied = transcript.header.get("emptied") is True or transcript.header.get("forget") == "all"
    amounts = training.amounts.get(new.receiver, set())
    if _withdrawals(transcript) and amounts and _amount(new) < max(amounts):
        return not at_u and _amount(new) not in amounts
    if not _work(new):
        if not (emptied if at_u else amounts and not any(amounts)):
            _refuse_visit("other-work", new, "nothing was done, and the peer has records")
    elif amounts and not (_amount(new) <= max(amounts) if at_u else _amount(new) in amounts):
        _refuse_visit(
            "other-work",
            new,
            f"it took {_amount(new)} steps, and {max(amounts)} in training",
        )
    return False


def _amount(hop: Hop) -> int:
    return sum(event.steps for event in hop.events if isinstance(event, ev.GradientSteps))


def _check_wipes_alike(old: Hop, new: Hop) -> None:
    """Check that the token's state is wiped where training did so, and nowhere else."""
    for what in ("optimizer", "buffers"):
        if (ev.Wipe(what) in old.events) != (ev.Wipe(what) in new.events):
            _refuse_visit(
                "other-work",
                new,
                f"it wipes {what} where training, in hop {old.hop}, did not, or "
                "the other way round",
            )


def _check_repeatable(hop: Hop) -> None:
    """Refuse work that differs in a repeated walk although its event looks the same."""
    wiped = ev.Wipe("local") in hop.events
    for event in hop.events:
        match event:
            case ev.GradientSteps() if wiped and event.state == "local":
                refuse("other-work", hop, event, "its optimizer's state was wiped in between")
            case ev.Projection() if any(centre == "start" for centre, _ in event.balls):
                refuse("centre", hop, event, "the phase, and with it the ball, began elsewhere")
            case ev.OwnSums():
                refuse("other-work", hop, event, "totals of sums cannot be walked again")


def _work(hop: Hop) -> list[ev.Event]:
    return [event for event in hop.events if not isinstance(event, _MARKS)]


def _shape(hop: Hop) -> tuple[tuple[Any, ...], ...]:
    """A visit's work without what depends on the peer or, by a schedule, on the hop."""
    return tuple(_kind(event, "step_size") for event in _work(hop))


_MARKS = (ev.Start, ev.Wipe)


def _kind(event: ev.Event, *left_out: str) -> tuple[Any, ...]:
    """What an event says of the plan, whichever records it is about."""
    return ev.of_the_plan(event, "data", "touched", *left_out)


def sums_claim(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
    """The claim for totals of sums in fixed point, in which u has replaced its own.

    Checked: the model is a function of the totals alone (no steps, no noise), all contributions
    use one precision and ridge parameter, and u's last one is over its retained records.  The
    totals are those of one walk from the initial model, and no peer lost what it had contributed
    before it contributed again: only so does the new contribution take the place of the old one.
    """
    u = unlearner_of(transcript)
    last: ev.OwnSums | None = None
    kinds: set[tuple[int, float]] = set()
    given, lost = set[int](), set[int]()
    for hop, event in transcript.events():
        match event:
            case ev.OwnSums():
                if hop.receiver in lost:
                    refuse(
                        "not-sums",
                        hop,
                        event,
                        "the peer had wiped its former sums, which the totals keep",
                    )
                given.add(hop.receiver)
                kinds.add((event.bits, event.strength))
                if hop.receiver == u:
                    last = event
            case ev.Wipe():
                lost |= given & {hop.receiver} if event.what == "local" else set()
            case ev.Start():
                if event.start != ("initial" if hop.hop == 1 else "token"):
                    refuse(
                        "not-sums",
                        hop,
                        event,
                        f"the totals went on from {event.start!r}, and peers' own sums did not",
                    )
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
    reason = "u replaced its former sums by sums without the forgotten records"
    return Claim("exact", 0.0, 0.0, "events", (*PUBLIC[:2], caveat), reason)
