"""The claim of an accountant, its refusals, and checks that several accountants share.

Accountants read recorded events and public facts of the transcript's header, never a
configuration.  What they cannot bound they refuse, and the refusal names hop and event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from unwalk.core import events as ev
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.transcript import Hop, Transcript

GRADES = ("nominal", "certified", "exact", "refused")
MOMENTS = frozenset({"momentum", "mean", "square"})
"""Names of optimizer moments that a token may carry; all other names are model buffers."""
SCALINGS = {
    "published": "inputs were made with published constants",
    "without-forgotten": "inputs were made with statistics without the forgotten records",
    "declared": "columns were scaled as declared, and the numbers in the data file were not made "
    "with statistics of other records",
}
"""How inputs may have been scaled, and the assumption that comes with it."""
FREE_CENTRES = ("origin", "initial")
"""Centres of balls that are the same with and without the forgotten records."""


@dataclass(frozen=True)
class Claim:
    """One claim about one run."""

    grade: str
    epsilon: float
    delta: float
    accountant: str
    assumptions: tuple[str, ...]
    reason: str

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary.

        >>> Claim("exact", 0.0, 0.0, "events", (), "nothing touched D_f").to_json()["grade"]
        'exact'
        """
        return asdict(self)


Proof = Callable[[Transcript, list[Hop], float], Claim]
"""A proof: from the transcript, the hops of the phase that forgets, and delta to a claim."""


def of_phase(accountant: Callable[[Transcript, str, float], Claim]) -> Proof:
    """The proof by an accountant that reads the phase that forgets."""

    def proof(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
        if not hops:
            raise Refused("the phase that forgets has no hop.", "no-start")
        return accountant(transcript, hops[0].phase, delta)

    return proof


def of_walk(accountant: Callable[[Transcript, float], Claim]) -> Proof:
    """The proof by an accountant that reads the whole walk."""

    def proof(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
        return accountant(transcript, delta)

    return proof


def refuse(code: str, hop: Hop, event: ev.Event, why: str) -> NoReturn:
    """Raise :class:`Refused` with the event's name and place in front."""
    raise Refused(f"hop {hop.hop}, {event.kind} at peer {hop.receiver}: {why}.", code)


def unlearner_of(transcript: Transcript) -> int:
    """The peer that forgets, from the header."""
    u = transcript.header.get("unlearner", -1)
    if not isinstance(u, int) or isinstance(u, bool) or u < 0:
        raise Refused("the transcript's header names no unlearning peer.", "missing-fact")
    return u


FACT_CODES = {"loss": "loss", "feature_norm": "inputs"}
"""Facts that a header omits if they do not hold; the log is not at fault then."""


def fact(transcript: Transcript, name: str, why: str) -> Any:
    """A public fact from the header; refused when it is not recorded."""
    if name not in transcript.header:
        code = FACT_CODES.get(name, "missing-fact")
        raise Refused(f"the transcript's header does not record {name!r}: {why}.", code)
    return transcript.header[name]


def phase_of(transcript: Transcript, phase: str) -> list[Hop]:
    """The hops of one phase, in order."""
    hops = [hop for hop in transcript.hops if hop.phase == phase]
    if not hops:
        known = ", ".join(dict.fromkeys(hop.phase for hop in transcript.hops)) or "none"
        raise InvalidInput(f"phase is {phase!r}; allowed: one that was walked ({known}).")
    return hops


def start_of(hops: Sequence[Hop]) -> ev.Start:
    """The event with which a phase began; refused when it is missing."""
    for event in hops[0].events:
        if isinstance(event, ev.Start):
            return event
    raise Refused(f"hop {hops[0].hop} begins a phase without a start event.", "no-start")


def check_start(transcript: Transcript, hops: Sequence[Hop], u: int) -> ev.Start:
    """The start event, refused when earlier hops contradict what it says of D_f."""
    start = start_of(hops)
    if start.carries_forgotten or start.start == "initial":
        return start
    for hop in reversed(transcript.hops):
        if hop.hop >= hops[0].hop:
            continue
        for event in reversed(hop.events):
            if isinstance(event, ev.Start) and event.start == "initial":
                return start
            used = isinstance(event, ev.GradientSteps | ev.OwnSums) and event.touched
            if used and hop.receiver == u:
                refuse(
                    "start-contradicted",
                    hops[0],
                    start,
                    f"it says that the token does not depend on D_f, but hop {hop.hop} used it",
                )
    return start


def check_travels(hop: Hop, start: ev.Start) -> None:
    """Refuse a phase that continues with moments or buffers that depend on forgotten records.

    A wipe counts only before the first step; later it is too late.
    """
    wiped: set[str] = set()
    for event in hop.events:
        if isinstance(event, ev.GradientSteps):
            break
        if isinstance(event, ev.Wipe):
            wiped.add(event.what)
    for name in start.travels:
        needed = "optimizer" if name in MOMENTS else "buffers"
        if needed not in wiped:
            refuse(
                "travelling-state",
                hop,
                start,
                f"the token carries {name!r}, which depends on D_f, and no wipe of {needed} "
                "was recorded",
            )


def check_local_state(hops: Iterable[Hop]) -> None:
    """Refuse local optimizer state that may date from before the phase and was not wiped."""
    clean: set[int] = set()
    for hop in hops:
        for event in hop.events:
            if isinstance(event, ev.Wipe) and event.what == "local":
                clean.add(hop.receiver)
            if (
                isinstance(event, ev.GradientSteps)
                and event.state == "local"
                and hop.receiver not in clean
            ):
                refuse(
                    "local-state",
                    hop,
                    event,
                    "the peer's local state may depend on D_f, and no wipe of it was recorded",
                )


def check_centres(hop: Hop, event: ev.Projection, *, carries: bool) -> None:
    """Refuse a ball whose centre may depend on the forgotten records.

    ``carries`` says whether the model with which the phase began depends on them.
    """
    for centre, _ in event.balls:
        if centre == "start" and carries:
            refuse("centre", hop, event, "the ball is centred on theta_0, which depends on D_f")
        if centre not in (*FREE_CENTRES, "start"):
            refuse("centre", hop, event, f"the ball around {centre!r} may depend on D_f")


def check_no_buffers(
    hop: Hop, start: ev.Start, event: ev.GradientSteps, what: str = "steps on forgotten records"
) -> None:
    """Refuse steps that depend on D_f where the model's buffers travel (BatchNorm statistics).

    The steps fill the buffers again, even if they were wiped before, and no noise covers them.
    """
    for name in start.travels:
        if name not in MOMENTS:
            refuse(
                "travelling-state",
                hop,
                event,
                f"the token carries {name!r}, which {what} change and no noise hides",
            )


def check_ball(hop: Hop, event: ev.Projection) -> tuple[str, float]:
    """Centre and radius of a projection on one ball, which keeps the stored model inside it."""
    if len(event.balls) != 1:
        refuse(
            "unknown-event",
            hop,
            event,
            f"a projection on {len(event.balls)} balls at once is not bounded in finite precision",
        )
    ((centre, radius),) = event.balls
    if not 0.0 < radius < math.inf:
        refuse("bad-event", hop, event, f"a ball of radius {radius:g} is none")
    return centre, radius


def check_grid(hop: Hop, event: ev.GaussianNoise | ev.GradientSteps) -> float:
    """The public grid of rounded noise, a power of two; refused where there is none."""
    if event.grid is None:
        refuse("float-noise", hop, event, "its noise was not rounded to a public grid")
    if not 0.0 < event.grid < math.inf or math.frexp(event.grid)[0] != 0.5:
        refuse("float-noise", hop, event, f"the grid {event.grid:g} is no power of two")
    return event.grid


def refuse_unknown(hop: Hop, event: ev.Event) -> NoReturn:
    """Refuse an event for which an accountant has no bound."""
    refuse("unknown-event", hop, event, "this accountant knows no bound for such an event")


def noise_origins(hops: Iterable[Hop]) -> tuple[str, ...]:
    """What to say about where the noise came from."""
    origins: set[str] = set()
    for hop in hops:
        for event in hop.events:
            if isinstance(event, ev.GaussianNoise) and event.std > 0.0:
                origins.add(event.origin)
            if isinstance(event, ev.GradientSteps) and event.noise > 0.0:
                origins.add(event.origin or "unrecorded")
    texts: Mapping[str, str] = {
        "simulation": "simulation: the noise came from a known seed and protects nobody",
        "secret": "the noise came from a secret of the peer",
    }
    return tuple(texts.get(origin, f"noise of {origin} origin") for origin in sorted(origins))
