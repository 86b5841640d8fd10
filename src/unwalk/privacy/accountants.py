r"""Accountants over events: what the visits to u add up to.

:func:`sealed_claim` composes what happened, :func:`public_coin_claim` averages over the route's
coin, :func:`ball_seal_claim` reads a k-step ball seal.  The stability side (ledger, release level,
noise from the start, network DP) is in :mod:`unwalk.privacy.stability`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from unwalk.core import events as ev
from unwalk.core.errors import Refused
from unwalk.core.transcript import Hop, Transcript
from unwalk.core.validation import check_number
from unwalk.privacy.claims import (
    Claim,
    check_centres,
    check_local_state,
    check_start,
    check_travels,
    noise_origins,
    phase_of,
    refuse,
    refuse_unknown,
    start_of,
    unlearner_of,
)
from unwalk.privacy.gaussian import compose_mu, gaussian_epsilon
from unwalk.privacy.seal import seal_epsilon, seal_then_gaussian_epsilon
from unwalk.privacy.visits import visits_epsilon

_SLACK = 1e-9

UN_NOISED = "the starting model carries D_f un-noised"
PUBLIC = (
    "u, the time of the request and the number of forgotten records are public",
    "what else steers the run (method, route, hops, settings, batch keys) does not depend on D_f",
    "all views and coalitions without u, from the moment when the token leaves u, and the released "
    "model; handing the token to u belongs to training",
)


@dataclass(frozen=True)
class _Visit:
    """What one visit to u costs."""

    hop: Hop
    mu: float


def _moved(hop: Hop, event: ev.GradientSteps) -> float:
    """How far un-noised steps on forgotten records can have moved the parameters."""
    if event.optimizer != "sgd":
        refuse(
            "unbounded-step",
            hop,
            event,
            f"{event.optimizer} on forgotten records: nothing bounds the step",
        )
    if event.clip is None:
        refuse(
            "unbounded-step",
            hop,
            event,
            "steps on forgotten records without a clip: nothing bounds them",
        )
    if event.weight_decay != 0.0:
        refuse(
            "unbounded-step",
            hop,
            event,
            "weight decay on un-noised steps of D_f: nothing bounds the distance",
        )
    if min(event.steps, event.step_size, event.clip) < 0.0:
        refuse(
            "unbounded-step", hop, event, "a negative number of steps, step size or clip is none"
        )
    sides = 1.0 if event.data == "forgotten" else 2.0
    return sides * event.steps * event.step_size * event.clip


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
    sides = 1.0 if event.data == "forgotten" else 2.0
    return event.steps * (sides * event.clip / event.noise) ** 2


def _visit(hop: Hop, start: ev.Start, distance: float, *, shrinking: bool = False) -> _Visit:
    """Walk through one visit to u; ``distance`` is what the token brought along un-noised.

    ``shrinking``: somebody has checked that steps on retained data do not expand.
    """
    squared, pending, brought = 0.0, 0.0, distance
    for event in hop.events:
        match event:
            case ev.GradientSteps():
                if not event.touched or event.data == "retained":
                    if pending > 0.0 or (brought > 0.0 and not shrinking):
                        refuse(
                            "steps-before-noise",
                            hop,
                            event,
                            "steps between D_f and the noise that is to hide it may expand",
                        )
                elif event.noise > 0.0:
                    if pending + brought > 0.0:
                        refuse(
                            "noisy-after-move",
                            hop,
                            event,
                            "noisy gradients at a point that D_f moved un-noised",
                        )
                    squared += _noisy_steps(hop, event)
                else:
                    pending += _moved(hop, event)
            case ev.GaussianNoise():
                if event.std > 0.0:
                    size = max(event.sensitivity or 0.0, pending + brought)
                    if event.sensitivity is not None and pending > event.sensitivity + _SLACK:
                        refuse(
                            "sensitivity",
                            hop,
                            event,
                            f"it records sensitivity {event.sensitivity:g}, but the visit's steps "
                            f"can move {pending:g}",
                        )
                    squared += (size / event.std) ** 2
                    pending = brought = 0.0
            case ev.Projection():
                check_centres(hop, event, carries=start.carries_forgotten)
            case ev.Wipe() | ev.Start():
                pass
            case _:
                refuse_unknown(hop, event)
    if brought > 0.0:
        refuse("un-noised", hop, start, UN_NOISED)
    if pending > 0.0:
        last = next(e for e in reversed(hop.events) if isinstance(e, ev.GradientSteps))
        refuse("leaves-un-noised", hop, last, "what it did with D_f leaves u un-noised")
    return _Visit(hop, math.sqrt(squared))


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
            refuse("un-noised", hops[0], start, UN_NOISED)
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


def _check_all_centres(hops: Sequence[Hop], start: ev.Start) -> None:
    """No peer may project on a ball whose centre depends on D_f."""
    for hop in hops:
        for event in hop.events:
            if isinstance(event, ev.Projection):
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
    u, when the start carries D_f.  Statement:
    :func:`unwalk.privacy.gaussian.compose_mu`, conditional on the route that was walked.  Checked
    against the events: clip or recorded sensitivity at every touch, noise before anything leaves
    u, plain SGD where noise comes after the steps, no ball round :math:`\theta_0`, moments,
    buffers and local state wiped.  Neighbours: with and without D_f, where u adds noise alone
    for steps on forgotten records, and replacement (2 clips) for mixed ones.
    """
    hops = phase_of(transcript, phase)
    seal_mu, visits, start = _visits(transcript, hops, distance, shrinking=shrinking)
    mu = compose_mu([seal_mu, *(visit.mu for visit in visits)])
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
    r"""The exact public coin over a phase's hops: what held before the coins were thrown.

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
    left = len(hops) - (1 if start.carries_forgotten else 0)
    return Claim(
        "certified",
        visits_epsilon(delta, ratio, left, p, seal_mu=seal_mu),
        delta,
        "visits",
        (*PUBLIC, f"each of {left} hops visits u with probability {p:g}", *noise_origins(hops)),
        f"public coin, ratio {ratio:.6g} per visit, seal mu {seal_mu:.6g}",
    )


def _seal_ratio(hop: Hop) -> tuple[int, float]:
    """Steps and worst ratio of a ball seal recorded in one hop.

    What comes after its last noise is post-processing, but must not touch D_f either.
    """
    steps, ratio, ball = 0, 0.0, None
    last = max((k for k, e in enumerate(hop.events) if isinstance(e, ev.GaussianNoise)), default=-1)
    for place, event in enumerate(hop.events):
        match event:
            case ev.GradientSteps():
                if event.touched and event.data != "retained":
                    refuse("touched", hop, event, "a ball seal's steps must not touch D_f")
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
                ball = min(radius for _, radius in event.balls)
            case ev.GaussianNoise():
                if ball is None or event.std <= 0.0:
                    refuse(
                        "seal-projection",
                        hop,
                        event,
                        "noise without a projection right before it seals nothing",
                    )
                steps, ratio, ball = steps + 1, max(ratio, 2.0 * ball / event.std), None
            case ev.Wipe() | ev.Start():
                pass
            case _:
                refuse_unknown(hop, event)
    return steps, ratio


def ball_seal_claim(transcript: Transcript, phase: str, delta: float) -> Claim:
    """A k-step ball seal in the first hop, then whatever the later visits to u cost.

    Statement: :func:`unwalk.privacy.seal.seal_log_delta`, with later Gaussian visits by
    :func:`unwalk.privacy.seal.seal_then_gaussian_log_delta`.  Checked: the first hop is at u;
    each noise follows a projection on a ball round a D_f-free centre; the seal's steps do not
    touch D_f and keep no state; moments, buffers and local state wiped.  Restarting at the ball's
    centre is exact and carries never materially less.
    """
    u = unlearner_of(transcript)
    hops = phase_of(transcript, phase)
    start = start_of(hops)
    if hops[0].receiver != u:
        refuse("un-noised", hops[0], start, UN_NOISED)
    check_travels(hops[0], start)
    steps, ratio = _seal_ratio(hops[0])
    if steps == 0:
        refuse("un-noised", hops[0], start, UN_NOISED)
    check_local_state(hops)
    _check_all_centres(hops, replace(start, carries_forgotten=True))
    later = [hop for hop in hops[1:] if hop.receiver == u]
    mu = compose_mu(_visit(hop, start, 0.0).mu for hop in later)
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
