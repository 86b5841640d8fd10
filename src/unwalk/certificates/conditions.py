"""Checks the conditions that every proof needs, before an accountant is asked.

Accountants bound what events did.  Some conditions of a guarantee are outside any single bound:
where the noise came from, whether it was drawn again after its result was seen, how inputs were
scaled, what peers kept, which digests were published.  Each violation is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from unwalk.core import events as ev
from unwalk.core.errors import Refused
from unwalk.core.transcript import Hop, Transcript
from unwalk.methods import METHODS
from unwalk.privacy.accountants import (
    MOMENTS,
    SCALINGS,
    refuse,
    refuse_fact,
    start_of,
    unlearner_of,
)

ORIGINS = ("secret", "simulation")
LABELS = {
    "published": "which classes there are is published",
    "declared": "which classes there are was declared, not read off the data",
}
"""Where the classes may come from, and the assumption that comes with it."""
FEATURES = {
    "constants": "is made of constants of this program and looks at one record at a time",
    "photographs": "is made of constants and of two public photographs, and looks at one record at "
    "a time",
    "published": "is a published network, as is declared, frozen, and looks at one record at a "
    "time; that none of the records here had a part in it is not shown",
    "apart": "is a frozen network that, as is declared, was trained apart from all records here, "
    "and looks at one record at a time",
}
"""What a map to fixed features may be made from, and the assumption that comes with it."""
_TELLING = ("secret", "salt", "noiseseed", "noisekey", "seedofnoise", "seedofthenoise")
"""Parts of names that a log must not contain, in lower case without punctuation."""


def check_conditions(transcript: Transcript, hops: list[Hop]) -> None:
    """Refuse a run that can have no guarantee, whatever an accountant would say.

    ``hops`` are those of the phase that forgets; empty where nothing had to be walked.
    """
    check_announced(transcript)
    check_starts(transcript)
    check_bounded(transcript)
    check_noise(transcript)
    check_single_draw(transcript)
    check_labels(transcript)
    check_scaling(transcript)
    check_features(transcript)
    check_code(transcript)
    check_digests(transcript)
    if hops:
        check_start_said(transcript, hops)
        check_travelling(transcript, hops)
        check_wipes(transcript, hops)


def check_announced(transcript: Transcript) -> None:
    """The walk must be what was announced: its phases, in their order, each with all its hops.

    A walk that ends when somebody likes the result has a stopping rule that depends on D_f; hops
    with a wrong phase name or number would escape the accountants.
    """
    announced: list[tuple[str, int]] = []
    phases = transcript.header["phases"]
    if len({entry["name"] for entry in phases}) != len(phases):
        raise Refused("the header announces two phases of one name.", "not-announced")
    most = transcript.header.get("peers")
    for entry in phases:
        if type(entry.get("hops")) is not int or entry["hops"] < 0:
            raise Refused(
                f"the header does not announce how many hops phase {entry['name']!r} has.",
                "not-announced",
            )
        announced += [(entry["name"], number) for number in range(1, entry["hops"] + 1)]
    for number, hop in enumerate(transcript.hops, 1):
        if hop.hop != number or (hop.path and hop.path[-1] != hop.receiver):
            raise Refused(
                f"line {number} of the walk is hop {hop.hop} to peer {hop.receiver} along "
                f"{list(hop.path)}: hops are numbered as they came, and end where they lead.",
                "not-announced",
            )
        if most is not None and max(hop.receiver, *hop.path, -1) >= most:
            raise Refused(
                f"hop {number} leads to peer {hop.receiver} along {list(hop.path)}; the header "
                f"announced {most} peers.",
                "not-announced",
            )
        if number > len(announced) or (hop.phase, hop.phase_hop) != announced[number - 1]:
            raise Refused(
                f"hop {number} is number {hop.phase_hop} of phase {hop.phase!r}, which was not "
                "announced so.",
                "not-announced",
            )
    if len(transcript.hops) != len(announced):
        raise Refused(
            f"{len(announced)} hops were announced and {len(transcript.hops)} walked: when to stop "
            "may have been decided by looking at the model.",
            "not-announced",
        )


def check_starts(transcript: Transcript) -> None:
    """Every phase begins once, with its first visit, and the first one from the initial model."""
    for hop in transcript.hops:
        starts = [event for event in hop.events if isinstance(event, ev.Start)]
        if hop.phase_hop != 1:
            if starts:
                refuse("start-contradicted", hop, starts[0], "a phase begins with its first hop")
            continue
        if not starts or starts[0] is not hop.events[0]:
            raise Refused(f"hop {hop.hop} begins a phase without a start event first.", "no-start")
        start = starts[0]
        if len(starts) > 1 or start.phase != hop.phase:
            refuse(
                "start-contradicted",
                hop,
                starts[-1],
                f"phase {hop.phase!r} begins once, under its own name",
            )
        if hop.hop == 1 and start.start != "initial":
            refuse(
                "start-contradicted", hop, start, f"there was no {start.start!r} before the walk"
            )
        if start.start == "arrival" and not _goes_back(transcript.header.get("method")):
            refuse("old-token", hop, start, "this method does not go back to an old token")


def _goes_back(method: Any) -> bool:
    """Whether a method may go back to an arrival that the forgetting peer kept."""
    record = METHODS.get(str(method))
    return record is not None and record.way_back is not None


def check_bounded(transcript: Transcript) -> None:
    """Refuse a change that no accountant bounds, at whichever peer.

    What it depends on may travel beside the parameters, or be an older model.
    """
    for hop, event in transcript.events():
        if isinstance(event, ev.Edited):
            refuse("unknown-event", hop, event, f"no proof bounds what {event.what!r} changes")


def check_start_said(transcript: Transcript, hops: list[Hop]) -> None:
    """Refuse a start that calls the token free of D_f where earlier events say otherwise."""
    start = start_of(hops)
    if start.start != "token" or start.carries_forgotten:
        return
    u = unlearner_of(transcript)
    carries = _NOTHING
    for hop in transcript.hops:
        if hop.hop >= hops[0].hop:
            break
        for event in hop.events:
            carries = _carries(event, carries, at_unlearner=hop.receiver == u)
    if carries:
        refuse(
            "start-contradicted",
            hops[0],
            start,
            "it says that the token does not depend on D_f, but earlier steps or sums used it",
        )


def check_travelling(transcript: Transcript, hops: list[Hop]) -> None:
    """Refuse buffers that a visit on D_f changed: noise covers parameters only."""
    u, buffers = unlearner_of(transcript), buffers_of(start_of(hops))
    for hop in hops:
        for event in hop.events:
            if (
                isinstance(event, ev.GradientSteps)
                and event.touched
                and hop.receiver == u
                and buffers
            ):
                refuse(
                    "travelling-state",
                    hop,
                    event,
                    f"the token carries {buffers[0]!r}, which steps on D_f change and no noise "
                    "hides",
                )


def buffers_of(start: ev.Start) -> list[str]:
    """Buffers of the model among what the token carries."""
    return [name for name in start.travels if name not in MOMENTS and name != "sums"]


def check_noise(transcript: Transcript) -> None:
    """The noise's seed or secret must not be in the log, and its origin must be known."""
    for name in _keys(transcript.header):
        plain = "".join(sign for sign in name.lower() if sign.isalnum())
        if any(part in plain for part in _TELLING):
            raise Refused(
                f"the transcript's header holds {name!r}: whoever knows the noise's seed can "
                "subtract the noise.",
                "noise-known",
            )
    announced = transcript.header.get("noise")
    for hop, event in transcript.events():
        origin = _origin(event)
        if origin is None:
            continue
        if origin not in ORIGINS:
            refuse(
                "noise-origin",
                hop,
                event,
                f"noise of {origin!r} origin; known: {', '.join(ORIGINS)}",
            )
        if origin != announced:
            refuse(
                "noise-origin",
                hop,
                event,
                f"its noise is {origin}, but the header announced {announced!r}",
            )


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield str(name)
            yield from _keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _keys(inner)


def _origin(event: ev.Event) -> str | None:
    if isinstance(event, ev.GaussianNoise):
        return event.origin
    if isinstance(event, ev.GradientSteps) and event.noise > 0.0:
        return event.origin or "unrecorded"
    return None


REDRAWN = (
    "the noise was redrawn, and a draw that is chosen after a look is not the noise that was "
    "accounted for"
)


def check_single_draw(transcript: Transcript) -> None:
    """Refuse noise that was drawn again: chosen after a look, it is no longer Gaussian.

    The settings say how often it was drawn; the register of the secret, where one is kept, says of
    each draw whether noise was drawn before to hide any of these records, under whatever settings
    and on whatever machine.
    """
    attempt = transcript.header.get("attempt", 1)
    if attempt != 1:
        refuse_fact("redrawn", "attempt", attempt, f": {REDRAWN}")
    for hop, event in transcript.events():
        if not isinstance(event, ev.GaussianNoise | ev.GradientSteps) or event.draw is None:
            continue
        if event.draw[2] != 0:
            refuse(
                "redrawn",
                hop,
                event,
                f"the peer's register shows {event.draw[2]!r} earlier draws for records of this "
                f"request: {REDRAWN}; a restart is exact at any time",
            )


def check_scaling(transcript: Transcript) -> None:
    """Scaling, imputation and feature maps learned on all data release the forgotten records."""
    scaling = transcript.header.get("normalisation", "unknown")
    if scaling not in SCALINGS:
        why = (
            ": statistics that may contain D_f release it; published constants are needed, or "
            "statistics recomputed without D_f and replayed"
        )
        refuse_fact("scaling", "normalisation", scaling, why)


def check_features(transcript: Transcript) -> None:
    """Refuse features by a network that may have been trained on the forgotten records."""
    if "features" not in transcript.header:
        return
    made_from = str(transcript.header.get("features_from", "unknown"))
    if made_from not in FEATURES:
        why = (
            f": what the features {transcript.header['features']!r} were made from is not known, "
            "and a network that was trained on D_f carries it into every record"
        )
        refuse_fact("features", "features_from", made_from, why)


def check_labels(transcript: Transcript) -> None:
    """Refuse classes read from the data: one that only D_f has would shape the model."""
    labels = transcript.header.get("labels", "unknown")
    if labels not in LABELS:
        why = ": a class that only D_f has would shape the model; the classes have to be named"
        refuse_fact("labels", "labels", labels, why)


def check_code(transcript: Transcript) -> None:
    """Refuse user code that keeps state about the records which no wipe can reach, and a method of
    the user's own: what its settings and steps depend on is not in the events."""
    method = str(transcript.header.get("method"))
    if ":" in method:
        raise Refused(
            f"the method is the user's own, {method!r}: no proof has read what its route, steps "
            "and noise depend on.",
            "own-method",
        )
    outside_state = transcript.header.get("outside_state")
    if outside_state is not None:
        raise Refused(
            f"the header records of the user's own code: {outside_state}.", "outside-state"
        )


def check_digests(transcript: Transcript) -> None:
    """Refuse a plain digest of a model that depends on D_f: anyone could test a guess with it."""
    if transcript.header.get("digests") == "salted":
        return
    u = unlearner_of(transcript)
    carries = _NOTHING
    for hop in transcript.hops:
        for event in hop.events:
            carries = _carries(event, carries, at_unlearner=hop.receiver == u)
        last = hop is transcript.hops[-1]
        if carries and hop.digest is not None and not last:
            raise Refused(
                f"hop {hop.hop} at peer {hop.receiver}: a plain digest of the model before the "
                "noise was published; a salted commitment is needed.",
                "digest",
            )


_NOTHING: frozenset[str] = frozenset()


def _carries(event: ev.Event, carries: frozenset[str], *, at_unlearner: bool) -> frozenset[str]:
    """Which parts of the token depend on D_f and have no noise on them: ``model``, ``sums``.

    Noise that u adds hides what is in the parameters.  Noise of other peers does not count: it was
    not sized for u's records.  Sums travel without noise.
    """
    match event:
        case ev.GradientSteps():
            used = at_unlearner and event.touched and event.data != "retained"
            return carries | {"model"} if used and event.noise == 0.0 else carries
        case ev.OwnSums():
            if at_unlearner:
                return frozenset({"model", "sums"}) if event.touched else _NOTHING
            return carries | {"model"} if "sums" in carries else carries
        case ev.GaussianNoise():
            return carries - {"model"} if at_unlearner and event.std > 0.0 else carries
        case ev.Start():
            return carries if event.start == "token" else _NOTHING
        case ev.Edited():
            return carries | {"model"} if event.touched else carries
        case ev.Projection() | ev.Wipe():
            return carries


def check_wipes(transcript: Transcript, hops: list[Hop]) -> None:
    """Each peer visited since u first used D_f erases its local state before it works again.

    The state of peers that are not visited any more has no influence.
    """
    tainted = _tainted(transcript, hops[0].hop)
    for hop in hops:
        if hop.receiver not in tainted:
            continue
        for event in hop.events:
            if isinstance(event, ev.Wipe) and event.what == "local":
                tainted.discard(hop.receiver)
            elif isinstance(event, ev.GradientSteps) and hop.receiver in tainted:
                refuse(
                    "local-state",
                    hop,
                    event,
                    "the peer kept local state from after u's first use of D_f, and no wipe of it "
                    "was recorded",
                )


def _tainted(transcript: Transcript, before: int) -> set[int]:
    """Peers visited before a hop, from u's first use of D_f on."""
    u = unlearner_of(transcript)
    tainted: set[int] = set()
    used = False
    for hop in transcript.hops:
        if hop.hop >= before:
            break
        used = used or (hop.receiver == u and any(map(_uses, hop.events)))
        if used:
            tainted.add(hop.receiver)
    return tainted


def _uses(event: ev.Event) -> bool:
    """Whether an event at u used D_f, with or without noise: what a peer keeps has no noise."""
    return isinstance(event, ev.GradientSteps | ev.OwnSums) and event.touched
