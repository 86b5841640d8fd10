"""Accountants over events: the privacy cost of the visits to u, claimed or refused.

:func:`sealed_claim` composes the visits that happened, :func:`public_coin_claim` averages over the
route's coin, :func:`ball_seal_claim` reads a k-step ball seal, :func:`events_claim` is for methods
without an accountant of their own.  The stability side (ledger, release level, noise from the
start, network DP) is in :mod:`unwalk.privacy.stability`; both use the checks here.

Accountants read recorded events and public facts of the transcript's header, never a
configuration.  What they cannot bound they refuse, and the refusal names hop and event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

from unwalk.core import events as ev
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.transcript import Hop, Transcript
from unwalk.core.validation import check_number
from unwalk.privacy.gaussian import gaussian_epsilon
from unwalk.privacy.seal import seal_epsilon, seal_then_gaussian_epsilon
from unwalk.privacy.upward import over, plus, root, times
from unwalk.privacy.visits import visits_epsilon

GRADES = ("nominal", "certified", "exact", "refused")
MOMENTS = frozenset(ev.MOMENTS)
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


UNKNOWN_ITERATE = "which of training's models went on is not known"


def refuse_fact(code: str, name: str, value: object, why: str) -> NoReturn:
    """Refuse what the header records; ``why`` begins with its punctuation."""
    raise Refused(f"the header records {name} {value!r}{why}.", code)


def need_fact(code: str, transcript: Transcript, wanted: str, missing: str, other: str) -> None:
    """Refuse a header whose fact, named as its ``code``, is not ``wanted``, and say why."""
    stated = fact(transcript, code, missing)
    if stated != wanted:
        refuse_fact(code, code, stated, other)


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


_SLACK = 1e-9

START_WITHOUT_NOISE = "the starting model was trained on D_f, and no noise was added since"
BEFORE_NOISE = "steps before the noise, from the model that carries D_f,"
PUBLIC = (
    "u, the time of the request and the number of forgotten records are public",
    "what else steers the run (method, route, hops, settings, batch keys) does not depend on D_f",
    "all views and coalitions without u, from the moment when the token leaves u, and the released "
    "model; handing the token to u belongs to training",
)

TRAINING = (
    "u, its visits and how many records it holds are public",
    "what else steers the run (method, route, hops, settings, batch keys) does not depend on D_f",
    "all views of training and coalitions without u, and the released model",
)
"""What is assumed of a training whose every visit to u is hidden by noise."""


@dataclass(frozen=True)
class _Visit:
    """What one visit to u costs."""

    hop: Hop
    mu: float


def _sides(event: ev.GradientSteps) -> float:
    """In how many worlds steps are taken: without the forgotten records u takes none on them."""
    return 1.0 if event.data == "forgotten" else 2.0


def _noisy_steps(hop: Hop, event: ev.GradientSteps) -> float:
    """Squared mu of steps whose every gradient is clipped and noised."""
    if event.clip is None:
        refuse(
            "noisy-without-clip",
            hop,
            event,
            "noisy gradients of D_f without a clip have no sensitivity",
        )
    if event.optimizer != "sgd" and event.state != "fresh":
        refuse(
            "noisy-with-state",
            hop,
            event,
            f"{event.optimizer} with {event.state} state may carry D_f on",
        )
    check_grid(hop, event)
    mu = over(times(_sides(event), event.clip), event.noise)
    return times(float(event.steps), mu, mu)


class _Reading:
    """One visit to u, event by event.

    ``brought`` bounds the distance between the two worlds when the token arrives, before any
    noise.  ``moved`` bounds how far the visit's own steps on D_f can move them apart: infinite
    until a projection on a ball around the model that arrived, then bounded by that ball.
    """

    def __init__(self, hop: Hop, start: ev.Start, brought: float, *, shrinking: bool) -> None:
        self.hop, self.start, self.shrinking = hop, start, shrinking
        self.brought, self.moved, self.sides = brought, 0.0, 0.0
        self.squared = 0.0
        self.as_it_came = brought == 0.0

    def read(self, event: ev.Event) -> None:
        """Take one event in, or refuse it."""
        match event:
            case ev.GradientSteps():
                self._steps(event)
            case ev.GaussianNoise():
                if event.std > 0.0:
                    self._noise(event)
            case ev.Projection():
                self._projection(event)
            case ev.Wipe() | ev.Start():
                pass
            case _:
                refuse_unknown(self.hop, event)

    def _steps(self, event: ev.GradientSteps) -> None:
        if not event.touched or event.data == "retained":
            if self.moved > 0.0 or (self.brought > 0.0 and not self.shrinking):
                refuse(
                    "steps-before-noise",
                    self.hop,
                    event,
                    "steps between D_f and the noise that is to hide it may expand",
                )
            if self.brought > 0.0:
                check_no_buffers(self.hop, self.start, event, BEFORE_NOISE)
            self.as_it_came = False
            return
        check_no_buffers(self.hop, self.start, event)
        if event.noise > 0.0:
            if self.moved + self.brought > 0.0:
                refuse(
                    "noisy-after-move",
                    self.hop,
                    event,
                    "noisy gradients at a point that D_f moved without noise",
                )
            self.squared = plus(self.squared, _noisy_steps(self.hop, event))
            self.as_it_came = False
            return
        if event.optimizer != "sgd":
            refuse(
                "unbounded-step",
                self.hop,
                event,
                f"{event.optimizer} on forgotten records: its state may carry D_f on",
            )
        if not self.as_it_came:
            refuse(
                "unbounded-step",
                self.hop,
                event,
                "steps on forgotten records from another model than the one that came to the "
                "visit: no ball around that one bounds them",
            )
        self.moved, self.sides = math.inf, max(self.sides, _sides(event))

    def _projection(self, event: ev.Projection) -> None:
        if all(centre != "arrival" for centre, _ in event.balls):
            check_centres(self.hop, event, carries=self.start.carries_forgotten)
            if self.moved > 0.0:
                refuse(
                    "steps-before-noise",
                    self.hop,
                    event,
                    "a projection between D_f and the noise that is to hide it",
                )
            self.as_it_came = False
            return
        _, radius = check_ball(self.hop, event)
        if self.moved == 0.0 and not self.as_it_came:
            refuse("centre", self.hop, event, "the ball around 'arrival' may depend on D_f")
        if self.moved > 0.0:
            self.moved = min(self.moved, times(self.sides, radius))

    def _noise(self, event: ev.GaussianNoise) -> None:
        if math.isinf(self.moved):
            refuse(
                "unbounded-step",
                self.hop,
                event,
                "steps on forgotten records without a projection around the model that arrived: "
                "nothing bounds them",
            )
        if event.sensitivity is not None and self.moved > event.sensitivity + _SLACK:
            refuse(
                "sensitivity",
                self.hop,
                event,
                f"it records sensitivity {event.sensitivity:g}, but the visit's steps "
                f"can move {self.moved:g}",
            )
        size = max(event.sensitivity or 0.0, plus(self.moved, self.brought))
        if size > 0.0:
            check_grid(self.hop, event)
        mu = over(size, event.std)
        self.squared = plus(self.squared, times(mu, mu))
        self.moved = self.brought = self.sides = 0.0
        self.as_it_came = False


def _visit(hop: Hop, start: ev.Start, distance: float, *, shrinking: bool = False) -> _Visit:
    """Walk through one visit to u; ``distance`` bounds how far apart the worlds arrive.

    ``shrinking``: the caller has checked that steps on retained data do not expand.
    """
    reading = _Reading(hop, start, distance, shrinking=shrinking)
    for event in hop.events:
        reading.read(event)
    if reading.brought > 0.0:
        refuse("no-noise", hop, start, START_WITHOUT_NOISE)
    if reading.moved > 0.0:
        last = next(e for e in reversed(hop.events) if isinstance(e, ev.GradientSteps))
        refuse("leaves-without-noise", hop, last, "what it did with D_f leaves u without noise")
    return _Visit(hop, root(reading.squared))


def _visits(
    transcript: Transcript,
    hops: Sequence[Hop],
    distance: float | None,
    *,
    shrinking: bool = False,
) -> tuple[float, list[_Visit], ev.Start]:
    """The seal's mu, the visits after it, and the start event; refuses what cannot be bound."""
    u = unlearner_of(transcript)
    start = check_start(transcript, hops, u)
    brought = 0.0
    if start.carries_forgotten:
        if hops[0].receiver != u or distance is None:
            refuse("no-noise", hops[0], start, START_WITHOUT_NOISE)
        check_travels(hops[0], start)
        brought = check_number("distance", distance, low=0.0)
    check_local_state(hops)
    visits = [
        _visit(hop, start, brought if index == 0 else 0.0, shrinking=shrinking)
        for index, hop in enumerate(hops)
        if hop.receiver == u
    ]
    _check_all_centres(hops, start)
    if start.carries_forgotten:
        return visits[0].mu, visits[1:], start
    return 0.0, visits, start


def _composed(mus: Iterable[float]) -> float:
    """:func:`unwalk.privacy.gaussian.compose_mu`, rounded up."""
    return root(plus(*(times(mu, mu) for mu in mus)))


def _check_all_centres(hops: Sequence[Hop], start: ev.Start) -> None:
    """No peer may project on a ball whose centre depends on D_f.

    A ball around the model as it arrived is allowed if that model was released before: everywhere
    except in the first hop of a phase whose start depends on D_f.
    """
    for place, hop in enumerate(hops):
        for event in hop.events:
            if isinstance(event, ev.Projection):
                came = all(centre == "arrival" for centre, _ in event.balls)
                if came and (place > 0 or not start.carries_forgotten):
                    continue
                check_centres(hop, event, carries=start.carries_forgotten)


def sealed_claim(
    transcript: Transcript,
    phase: str,
    delta: float,
    *,
    distance: float | None = None,
    shrinking: bool = False,
) -> Claim:
    r"""Gaussian composition of everything that touched D_f in a phase:
    :math:`\mu^2 = \mu_{\rm seal}^2 + \sum_{\rm visits}\mu_i^2`.

    ``distance`` bounds how far the starting token can lie from its twin without D_f (from
    :func:`unwalk.privacy.stability.ledger_claim`, which also checks that steps before the seal
    shrink distances, hence ``shrinking``); it is needed, and the first hop must be a noisy one at
    u, when the start depends on D_f.  Statement: :func:`unwalk.privacy.gaussian.compose_mu`,
    conditional on the route that was walked.  Checked against the events: steps on D_f without
    noise are followed by a projection on a ball around the model that arrived, which bounds them in
    any arithmetic, noisy gradients are clipped, noise is rounded to a grid and comes before
    anything leaves u, no buffers travel where D_f is touched, no ball around :math:`\theta_0`,
    moments, buffers and local state wiped.  Neighbours: with and without D_f, where u adds noise
    alone for steps on forgotten records (one radius), and replacement (two) for mixed ones.
    """
    hops = phase_of(transcript, phase)
    seal_mu, visits, start = _visits(transcript, hops, distance, shrinking=shrinking)
    mu = _composed([seal_mu, *(visit.mu for visit in visits)])
    if mu == 0.0 and not start.carries_forgotten:
        return Claim("exact", 0.0, 0.0, "events", PUBLIC, "nothing in this phase depends on D_f")
    touched = sum(visit.mu > 0.0 for visit in visits)
    return Claim(
        "certified",
        gaussian_epsilon(delta, mu),
        delta,
        "gaussian",
        (*PUBLIC, *noise_origins(hops)),
        f"Gaussian composition, mu = {mu:.6g}: seal {seal_mu:.6g}, {touched} visits after it",
    )


def public_coin_claim(
    transcript: Transcript, phase: str, delta: float, *, p: float, distance: float | None = None
) -> Claim:
    r"""The exact public coin over a phase's hops: the guarantee before the coins were drawn.

    ``p`` is the announced probability of a visit per hop.  All visits after the seal must cost
    the same, and at least one must have happened (its events are the only evidence of what a
    visit is).  Statement: :func:`unwalk.privacy.visits.visits_log_delta`; checks as in
    :func:`sealed_claim`.
    """
    hops = phase_of(transcript, phase)
    seal_mu, visits, start = _visits(transcript, hops, distance)
    if not visits:
        raise Refused(
            f"phase {phase!r} has no visit to u from which a visit's cost can be read.", "no-visit"
        )
    ratio = visits[0].mu
    for visit in visits:
        if not math.isclose(visit.mu, ratio, rel_tol=1e-9):
            event = next(e for e in visit.hop.events if not isinstance(e, ev.Start))
            refuse(
                "visits-differ",
                visit.hop,
                event,
                f"this visit has mu {visit.mu:g}, the first one {ratio:g}",
            )
    ratio = max(visit.mu for visit in visits)
    left = len(hops) - (1 if start.carries_forgotten else 0)
    return Claim(
        "certified",
        visits_epsilon(delta, ratio, left, p, seal_mu=seal_mu),
        delta,
        "visits",
        (*PUBLIC, f"each of {left} hops visits u with probability {p:g}", *noise_origins(hops)),
        f"public coin, ratio {ratio:.6g} per visit, seal mu {seal_mu:.6g}",
    )


def _seal_ratio(hop: Hop, start: ev.Start) -> tuple[int, float]:
    """Steps and worst ratio of a ball seal recorded in one hop.

    What follows its last noise is post-processing, but must not touch D_f either.
    """
    steps, ratio, ball = 0, 0.0, None
    last = max((k for k, e in enumerate(hop.events) if isinstance(e, ev.GaussianNoise)), default=-1)
    for place, event in enumerate(hop.events):
        match event:
            case ev.GradientSteps():
                if event.touched and event.data != "retained":
                    refuse("touched", hop, event, "a ball seal's steps must not touch D_f")
                if place < last:
                    check_no_buffers(hop, start, event, BEFORE_NOISE)
                if place < last and event.state not in ("none", "fresh"):
                    refuse(
                        "seal-state",
                        hop,
                        event,
                        f"{event.state} optimizer state is carried between steps",
                    )
                ball = None
            case ev.Projection():
                check_centres(hop, event, carries=True)
                _, ball = check_ball(hop, event)
            case ev.GaussianNoise():
                if ball is None or event.std <= 0.0:
                    refuse(
                        "seal-projection",
                        hop,
                        event,
                        "noise without a projection right before it seals nothing",
                    )
                check_grid(hop, event)
                steps, ratio, ball = steps + 1, max(ratio, over(2.0 * ball, event.std)), None
            case ev.Wipe() | ev.Start():
                pass
            case _:
                refuse_unknown(hop, event)
    return steps, ratio


def ball_seal_claim(transcript: Transcript, phase: str, delta: float) -> Claim:
    """A k-step ball seal in the first hop, then whatever the later visits to u cost.

    Statement: :func:`unwalk.privacy.seal.seal_log_delta`, with later Gaussian visits by
    :func:`unwalk.privacy.seal.seal_then_gaussian_log_delta`.  Checked: the first hop is at u; each
    noise follows a projection on a ball around a D_f-free centre; the seal's steps do not touch D_f
    and keep no state, and none comes before a noise where buffers travel; moments, buffers and
    local state wiped.  Restarting at the ball's centre is exact and keeps about as much of the
    model.
    """
    u = unlearner_of(transcript)
    hops = phase_of(transcript, phase)
    start = start_of(hops)
    if hops[0].receiver != u:
        refuse("no-noise", hops[0], start, START_WITHOUT_NOISE)
    check_travels(hops[0], start)
    steps, ratio = _seal_ratio(hops[0], start)
    if steps == 0:
        refuse("no-noise", hops[0], start, START_WITHOUT_NOISE)
    check_local_state(hops)
    _check_all_centres(hops, replace(start, carries_forgotten=True))
    later = [hop for hop in hops[1:] if hop.receiver == u]
    mu = _composed(_visit(hop, start, 0.0).mu for hop in later)
    if mu > 0.0:
        epsilon = seal_then_gaussian_epsilon(delta, ratio, steps, mu)
    else:
        epsilon = seal_epsilon(delta, ratio, steps)
    nats = ratio * ratio / 8.0
    return Claim(
        "certified",
        epsilon,
        delta,
        "seal",
        (*PUBLIC, *noise_origins(hops)),
        f"ball seal, {steps} steps at ratio {ratio:.6g}, later mu {mu:.6g}; at most {nats:.3g} "
        "nats of the old model survive: a restart at the centre is exact and carries no less",
    )


def check_training(transcript: Transcript, hops: list[Hop]) -> None:
    """Refuse a walk of more than one phase, which is not training alone."""
    if hops or len({hop.phase for hop in transcript.hops}) != 1:
        raise Refused(
            f"{len(hops)} hops were walked after the request, and {len(transcript.hops)} in all; "
            "this proof is for training alone, in one phase.",
            "not-announced",
        )


def training_claim(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
    """Everything that touched u's records in training, composed, where forgetting costs nothing.

    Statement and checks: :func:`sealed_claim` over the phase that trained, from the initial model;
    views of training are covered.  Refused if anything was walked after the request: this reads
    training alone.
    """
    check_training(transcript, hops)
    claim = sealed_claim(transcript, transcript.hops[0].phase, delta)
    return replace(claim, assumptions=(*TRAINING, *noise_origins(transcript.hops)))


def events_claim(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
    """The proof of a method without an accountant of its own: what its events allow."""
    if not hops:
        raise _unbounded(transcript)
    return sealed_claim(transcript, hops[0].phase, delta)


def _unbounded(transcript: Transcript) -> Refused:
    """Why nothing is claimed of a walk that ended with training."""
    u, per_example = unlearner_of(transcript), False
    for hop, event in transcript.events():
        if isinstance(event, ev.GradientSteps):
            if hop.receiver == u and event.noise == 0.0:
                place = f"hop {hop.hop}, {event.kind} at peer {u}"
                return Refused(f"{place}: {START_WITHOUT_NOISE}.", "no-noise")
            per_example = per_example or event.clip_per_example is not None
    if per_example:
        return Refused(
            "no accountant bounded this walk: its batches are not Poisson samples, and no keyed "
            "slots (train.work=slots) either.",
            "no-accountant",
        )
    return Refused(
        "no accountant bounded this walk: the paper's formulas leave constants open and need a "
        "convex, smooth loss.",
        "no-accountant",
    )
