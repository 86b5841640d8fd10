r"""Accountants over events that need convexity: ledger, release, noise from the start, network DP.

What a transcript cannot show, its header must state before the first hop (it is part of the hash
chain), and the accountant reads it there: ``loss`` = one of :data:`unwalk.privacy.ledger.LOSSES`
(on a bare linear layer whose gradient our own code computes, with ``inputs`` features of norm at
most ``feature_norm``, that of a bias counted, and ``outputs``, from a public model of norm at most
``initial_norm``; ``loss_bound`` is that of ``huber``),
``precision`` = ``float64`` (of all arithmetic), ``batching`` = ``slots`` (records go to slots by a
keyed hash, sums divided by ``nominal_batch``; each event has to say so too), ``slots``,
``slot_cap``, ``forget`` (the number m), ``normalisation`` (one of
:data:`unwalk.privacy.accountants.SCALINGS`) and ``iterate`` = ``last`` (the model that training
gives is its last one, not an average of them).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from unwalk.core import events as ev
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.transcript import Hop, Transcript
from unwalk.core.validation import check_count, check_number
from unwalk.privacy.accountants import (
    FREE_CENTRES,
    PUBLIC,
    SCALINGS,
    START_WITHOUT_NOISE,
    UNKNOWN_ITERATE,
    Claim,
    check_ball,
    check_grid,
    check_travels,
    fact,
    need_fact,
    noise_origins,
    phase_of,
    refuse,
    refuse_fact,
    refuse_unknown,
    sealed_claim,
    start_of,
    unlearner_of,
)
from unwalk.privacy.gaussian import gaussian_epsilon
from unwalk.privacy.iteration import check_nonexpansive
from unwalk.privacy.ledger import (
    LOSSES,
    ROOM,
    ConvexLoss,
    Ledger,
    LinearHead,
    SlotSteps,
    gamma,
    projection_rounding,
)
from unwalk.privacy.renyi import zcdp_epsilon
from unwalk.privacy.shift import hiding_cost
from unwalk.privacy.upward import plus, root, times

_CONVEX = "convex loss with the constants of the header; records coupled by keyed slots"
_COMPUTED = (
    "steps were computed in IEEE 754 binary64, in any order of summation, with an exponential "
    "within 4 units in the last place; before the worlds part, what is computed does not depend "
    "on D_f, the machine's own coins (threads, scheduling) included"
)


@dataclass(frozen=True)
class Facts:
    """The public facts a stability accountant needs; see the module."""

    head: LinearHead
    slots: int
    nominal_batch: float
    slot_cap: float
    forgotten: int

    @property
    def loss(self) -> ConvexLoss:
        """The loss of a record."""
        return self.head.loss

    @staticmethod
    def of(transcript: Transcript) -> Facts:
        """Read them from the header; a missing or unsuitable one is refused by name."""
        loss = fact(transcript, "loss", "convexity cannot be shown")
        if loss not in LOSSES:
            known = f"; the ledger knows {', '.join(LOSSES)} on a bare linear layer"
            refuse_fact("loss", "loss", loss, known)
        norm = fact(transcript, "feature_norm", "gradients are not bounded")
        keyed = "; the ledger needs keyed slots"
        need_fact("batching", transcript, "slots", "the worlds cannot be coupled", keyed)
        scaled = fact(transcript, "normalisation", "statistics of all data would release D_f")
        if scaled not in SCALINGS:
            why = ": statistics that contain D_f release it"
            refuse_fact("scaling", "normalisation", scaled, why)
        coarse = (
            ": its rounding is coarser than the distances that the ledger bounds; it knows float64"
        )
        need_fact("precision", transcript, "float64", "rounding is not bounded", coarse)
        why, shape = "an epoch's steps are not known", "the rounding of a step is not bounded"
        inputs, outputs = (fact(transcript, name, shape) for name in ("inputs", "outputs"))
        start = fact(transcript, "initial_norm", shape)
        bound = fact(transcript, "loss_bound", why) if loss == "huber" else 1.0
        names = ("slots", "nominal_batch", "slot_cap")
        slots, batch, cap = (fact(transcript, name, why) for name in names)
        forgotten = fact(transcript, "forget", "m is not known")
        try:
            return Facts(
                LinearHead(inputs, outputs, norm, start, loss, bound),
                check_count("slots", slots, low=1),
                check_number("nominal_batch", batch, above=0.0),
                check_number("slot_cap", cap, low=0.0),
                check_count("forget", forgotten, low=0),
            )
        except InvalidInput as error:
            raise Refused(f"in the header, {error}", "bad-event") from error

    def steps(self, hop: Hop, event: ev.GradientSteps, u: int) -> SlotSteps:
        """The event as slotted SGD, or a refusal that says what it is instead."""
        if event.optimizer != "sgd" or event.momentum:
            refuse(
                "optimizer",
                hop,
                event,
                f"{event.optimizer} does not keep distances bounded; plain SGD does",
            )
        if event.clip is not None or event.clip_per_example is not None:
            refuse("clipping", hop, event, "clipping breaks the convexity that the ledger rests on")
        if event.direction != -1 or event.scale != 1.0:
            refuse("ascent", hop, event, "ascent or scaled gradients are not steps of the ledger")
        if event.noise > 0.0:
            refuse("unknown-event", hop, event, "the ledger has no bound for noisy gradients")
        self._check_slots(hop, event)
        epochs, rest = divmod(event.steps, self.slots)
        if rest:
            refuse(
                "partial-epoch",
                hop,
                event,
                f"{event.steps} steps are no whole epochs of {self.slots} slots",
            )
        touched = hop.receiver == u and event.touched and event.data != "retained"
        try:
            return SlotSteps(
                epochs=epochs,
                slots=self.slots,
                step_size=event.step_size,
                nominal_batch=self.nominal_batch,
                slot_cap=self.slot_cap,
                weight_decay=event.weight_decay,
                forgotten=self.forgotten if touched else 0,
            )
        except InvalidInput as error:
            refuse("bad-event", hop, event, str(error).rstrip("."))

    def _check_slots(self, hop: Hop, event: ev.GradientSteps) -> None:
        """The header speaks of training; each event says for itself that it went by slots.

        Other batches are refused at every peer, although means over the same records would not
        expand: what u divides by may depend on D_f, and u's records of one request are other
        records in the next.
        """
        if event.batching != "slots":
            refuse(
                "batching",
                hop,
                event,
                f"its batches were made by {event.batching!r}, not by keyed slots, so that what a "
                "record weighs in them is not known; for an earlier request unlearn.work says how",
            )
        if event.minibatches != 1 or event.batch != self.slot_cap:
            refuse(
                "batching",
                hop,
                event,
                f"its slots hold {event.minibatches} times {event.batch} records at most; the "
                f"header says 1 times {self.slot_cap:g}",
            )


def _follow(ledger: Ledger, hop: Hop, events: Sequence[ev.Event], facts: Facts, u: int) -> Ledger:
    """The ledger after these events of one hop.

    Noise that comes before the worlds are compared is the same in both.
    """
    for event in events:
        match event:
            case ev.GradientSteps():
                work = facts.steps(hop, event, u)
                try:
                    ledger = ledger.steps(work, facts.head)
                except Refused as error:
                    refuse(error.code, hop, event, str(error).rstrip("."))
            case ev.Projection():
                radius, centre = _public_ball(hop, event, facts)
                ledger = ledger.projected(radius, centre, facts.head.parameters)
            case ev.Start():
                if event.start == "arrival":
                    refuse(
                        "old-token",
                        hop,
                        event,
                        "the ledger does not follow a walk back to an old token",
                    )
                if event.start == "initial":
                    norm = max(ledger.norm, facts.head.initial_norm)
                    ledger = Ledger(ledger.distance, norm)
            case ev.GaussianNoise():
                if event.std > 0.0:
                    try:
                        ledger = ledger.noised(facts.head, check_grid(hop, event))
                    except Refused as error:
                        refuse(error.code, hop, event, str(error).rstrip("."))
            case ev.Wipe():
                pass
            case _:
                refuse_unknown(hop, event)
    return ledger


def _public_ball(hop: Hop, event: ev.Projection, facts: Facts) -> tuple[float, float]:
    """Radius and length of the centre of a ball that is the same in both worlds."""
    for centre, _ in event.balls:
        if centre not in FREE_CENTRES:
            refuse("centre", hop, event, f"the ball around {centre!r} may depend on D_f")
    centre, radius = check_ball(hop, event)
    return radius, facts.head.initial_norm if centre == "initial" else 0.0


def _check_bare(hops: Sequence[Hop]) -> None:
    """Refuse a token with moments or buffers: only parameters keep within the ledger."""
    for hop in hops:
        for event in hop.events:
            if isinstance(event, ev.Start) and event.travels:
                what = event.travels[0]
                whose = f" (a moment of {ev.MOMENTS[what]})" if what in ev.MOMENTS else ""
                refuse(
                    "travelling-state",
                    hop,
                    event,
                    f"the token carries {what!r}{whose} besides parameters",
                )


def _check_iterate(transcript: Transcript) -> None:
    """Refuse an average of iterates, or one chosen among them: the ledger follows the last."""
    other = (
        ": the ledger bounds the distance of training's last model, and an earlier one may lie "
        "further away"
    )
    need_fact("iterate", transcript, "last", UNKNOWN_ITERATE, other)


def ledger_before(transcript: Transcript, hop: int) -> Ledger:
    """The ledger of everything before hop ``hop``; refuses what it cannot follow."""
    _check_bare([earlier for earlier in transcript.hops if earlier.hop < hop])
    _check_iterate(transcript)
    u, facts = unlearner_of(transcript), Facts.of(transcript)
    ledger = facts.head.begin()
    for earlier in transcript.hops:
        if earlier.hop >= hop:
            break
        ledger = _follow(ledger, earlier, earlier.events, facts, u)
    return ledger


def ledger_claim(transcript: Transcript, phase: str, delta: float) -> Claim:
    r"""The ledger seal: :math:`\mu = \Delta/s` from training's events, then the visits after it.

    Statement: :func:`unwalk.privacy.ledger.ledger_distance` over every hop before ``phase`` and
    the steps u takes before its noise, then :func:`unwalk.privacy.accountants.sealed_claim`.  The
    distance covers what rounding did in training.  Earlier noise (another request's seal) is the
    same in both worlds, and its rounding is added; steps after it need a projection on a public
    ball, which bounds the model's length anew.  Checked: header facts; plain SGD everywhere, no
    clip, no momentum, nothing but parameters in the token before the seal; shared projections; step
    sizes that do not expand; first hop at u, rounded noise before anything leaves.  What follows
    may use any optimizer.  Neighbours: with and without the m forgotten records.
    """
    hops = phase_of(transcript, phase)
    first = hops[0]
    ledger = ledger_before(transcript, first.hop)
    u, facts = unlearner_of(transcript), Facts.of(transcript)
    if first.receiver != u:
        refuse("no-noise", first, first.events[0], START_WITHOUT_NOISE)
    check_travels(first, start_of(hops))
    before: list[ev.Event] = []
    for event in first.events:
        if isinstance(event, ev.GaussianNoise) and event.std > 0.0:
            break
        if isinstance(event, ev.GradientSteps) and event.touched and event.data != "retained":
            refuse("touched", first, event, "u's steps before the seal must be on retained data")
        before.append(event)
    ledger = _follow(ledger, first, before, facts, u)
    claim = sealed_claim(transcript, phase, delta, distance=ledger.distance, shrinking=True)
    return Claim(
        claim.grade,
        claim.epsilon,
        claim.delta,
        "ledger",
        (*claim.assumptions, _CONVEX, _COMPUTED),
        f"ledger distance {ledger.distance:.6g}; {claim.reason}",
    )


def release_claim(transcript: Transcript, delta: float) -> Claim:
    r"""Release level: noise once, after the last step of the last hop; outsiders only.

    Statement: :func:`unwalk.privacy.release.release_sigma` on the ledger's distance, which all
    steps of the walk have shrunk, down to what their rounding adds.  Checked as in
    :func:`ledger_claim`; the last event of the last hop must be the only noise.
    """
    u, facts = unlearner_of(transcript), Facts.of(transcript)
    ledger = facts.head.begin()
    if not transcript.hops or not transcript.hops[-1].events:
        raise Refused(
            "the walk's last hop recorded nothing, no release noise either.", "no-noise-last"
        )
    last = transcript.hops[-1]
    _check_bare(transcript.hops)
    _check_iterate(transcript)
    for hop in transcript.hops:
        for event in hop.events:
            if isinstance(event, ev.GaussianNoise) and event is not last.events[-1]:
                refuse(
                    "early-noise",
                    hop,
                    event,
                    "release level is accounted for one noise at the very end",
                )
        walked = hop.events[:-1] if hop is last else hop.events
        ledger = _follow(ledger, hop, walked, facts, u)
    noise = last.events[-1]
    if not isinstance(noise, ev.GaussianNoise) or noise.std <= 0.0:
        refuse("no-noise-last", last, noise, "the released model was not noised last")
    check_grid(last, noise)
    return Claim(
        "certified",
        gaussian_epsilon(delta, ledger.mu(noise.std)),
        delta,
        "release",
        (
            "outsiders who see the released model only; peers saw more",
            _CONVEX,
            _COMPUTED,
            *noise_origins([last]),
        ),
        f"distance {ledger.distance:.6g} at release, noise {noise.std:.6g}",
    )


def noisy_start_claim(transcript: Transcript, delta: float) -> Claim:
    r"""Noise from the start: every visit to u adds noise before the token leaves.

    Statement: :func:`unwalk.privacy.noisy_start.noisy_start_mu`, over all hops; training-time
    views are covered.  Checked as in :func:`ledger_claim`, within each visit; a projection on a
    public ball, at the end of every visit, bounds the model's length for the next one.
    """
    u, facts = unlearner_of(transcript), Facts.of(transcript)
    _check_bare(transcript.hops)
    mus: list[float] = []
    norm = facts.head.initial_norm
    for hop in transcript.hops:
        if hop.receiver != u:
            norm = _length_after(norm, hop, facts)
            continue
        ledger = Ledger(0.0, norm)
        for event in hop.events:
            if isinstance(event, ev.GaussianNoise) and event.std > 0.0:
                check_grid(hop, event)
                mus.append(ledger.mu(event.std))
                ledger = Ledger(0.0, ledger.norm)
            ledger = _follow(ledger, hop, [event], facts, u)
        if ledger.distance > 0.0:
            refuse(
                "leaves-without-noise",
                hop,
                hop.events[-1],
                "the visit's use of D_f leaves u without noise",
            )
        norm = ledger.norm
    mu = root(plus(*(times(mu, mu) for mu in mus)))
    return Claim(
        "certified",
        gaussian_epsilon(delta, mu),
        delta,
        "noisy-start",
        (
            *PUBLIC,
            "training-time views included",
            _CONVEX,
            _COMPUTED,
            *noise_origins(transcript.hops),
        ),
        f"mu = {mu:.6g} over {len(mus)} noisy visits to u",
    )


def _length_after(norm: float, hop: Hop, facts: Facts) -> float:
    """What bounds a model's length after a visit whose steps nobody follows."""
    for event in hop.events:
        match event:
            case ev.Projection():
                radius, centre = _public_ball(hop, event, facts)
                norm = min(norm, plus(radius, centre))
            case ev.Start(start="initial"):
                norm = facts.head.initial_norm
            case ev.Wipe() | ev.GaussianNoise(std=0.0):
                pass
            case _:
                norm = math.inf
    return norm


def view_zcdp(
    route: Sequence[int],
    u: int,
    observer: int,
    gaps: Sequence[float],
    stds: Sequence[float] | None = None,
    drifts: Sequence[float] | None = None,
) -> float:
    r"""zCDP of one observer's view of a *known* route with noise at every hop.

    ``gaps[t]`` is how far apart hop t pushes the parameters if it is u's, ``stds[t]`` its noise
    (default 1), ``drifts[t]`` what rounding can push them apart before hop t's noise, whoever's it
    is (default 0, for real numbers).  Between two arrivals at the observer the minimum of
    :mod:`unwalk.privacy.shift` is solved; the excursions add up.

    >>> ones = [1.0] * 3
    >>> view_zcdp([0, 1], 0, 1, ones[:2]), view_zcdp([0, 2, 1], 0, 1, ones)
    (0.5, 0.25)
    >>> view_zcdp([0, 0, 1], 0, 1, ones)  # two in a row: (2^2 / 2) / 2, not 1/2 + 1/4
    1.0
    """
    noise = [1.0] * len(route) if stds is None else stds
    rounding = [0.0] * len(route) if drifts is None else drifts
    total, opened, hidden = 0.0, list[float](), list[float]()
    for peer, gap, std, drift in zip(route, gaps, noise, rounding, strict=True):
        if peer == observer:
            total += hiding_cost(opened, hidden)
            opened, hidden = [], []
        else:
            opened.append(plus(gap if peer == u else 0.0, drift))
            hidden.append(std)
    return 0.5 * total


def _noisy_step(hop: Hop, facts: Facts, u: int) -> ev.GradientSteps:
    """The one noisy step of a hop, or a refusal."""
    if not hop.events:
        raise Refused(
            f"hop {hop.hop} at peer {hop.receiver} recorded nothing, no noise either.", "noisy-step"
        )
    if len(hop.path) > 1:
        refuse(
            "relays",
            hop,
            hop.events[0],
            f"the token went through relay {hop.path[0]}, who saw it too",
        )
    steps = [event for event in hop.events if isinstance(event, ev.GradientSteps)]
    if len(steps) != 1 or steps[0].steps != 1 or steps[0].noise <= 0.0:
        culprit = steps[0] if steps else hop.events[0]
        refuse("noisy-step", hop, culprit, "network DP needs one noisy gradient step at every hop")
    (step,) = steps
    if step.optimizer != "sgd" or step.direction != -1 or step.scale != 1.0:
        refuse("optimizer", hop, step, "network DP is proved for plain descent on a convex loss")
    if step.clip is not None or step.clip_per_example is not None:
        refuse("clipping", hop, step, "clipping breaks the convexity that network DP rests on")
    check_grid(hop, step)
    _follow(Ledger(), hop, [event for event in hop.events if event is not step], facts, u)
    return step


def _drifts(hops: Sequence[Hop], facts: Facts) -> list[float]:
    r"""What rounding can push two worlds apart before each hop's noise: :math:`2	au` of the step
    that is to be noised, and what the rounding of the noisy step before it left,
    :math:`\eta\sqrt d\,g` and the update's own error on numbers of at most :math:`2^{53}g`."""
    head, norm, left = facts.head, facts.head.initial_norm, 0.0
    drifts: list[float] = []
    for hop in hops:
        for event in hop.events:
            match event:
                case ev.GradientSteps():
                    if not math.isfinite(norm):
                        refuse("norm", hop, event, "nothing bounds the length of the model here")
                    whole = replace(event, steps=facts.slots, noise=0.0)
                    constant, growing = head.step_error(facts.steps(hop, whole, -1))
                    drifts.append(plus(left, times(2.0, plus(constant, times(growing, norm)))))
                    cell = times(event.step_size, head.rounded_noise(event.grid or 0.0))
                    left, norm = plus(cell, times(2.0, gamma(4), cell, ROOM)), math.inf
                case ev.Projection():
                    radius, centre = _public_ball(hop, event, facts)
                    left = plus(left, projection_rounding(plus(radius, centre), head.parameters))
                    norm = min(norm, plus(radius, centre))
                case ev.Start(start="initial"):
                    norm = head.initial_norm
                case ev.GaussianNoise():
                    refuse("noisy-step", hop, event, "network DP is for noise on gradients alone")
                case _:
                    pass
    return drifts


def network_claim(transcript: Transcript, delta: float) -> Claim:
    r"""Network DP of the views, given the route that was walked: noise at *every* hop.

    Statement: :func:`view_zcdp` for every single peer v other than u, the worst of them; hop t
    pushes by :math:`2\eta_t L` and adds noise :math:`\eta_t\sigma_t`; what rounding adds is in
    :func:`_drifts`.  Checked: one plain noisy SGD step on a convex loss per hop, rounded to a grid,
    :math:`\eta \le 2/\beta`, shared projections, one at the end of every hop, no relays.  User
    level: all data of u.  Not for coalitions, nor for the released model.
    """
    u, facts = unlearner_of(transcript), Facts.of(transcript)
    _check_bare(transcript.hops)
    steps = [_noisy_step(hop, facts, u) for hop in transcript.hops]
    fill = max(1.0, facts.slot_cap / facts.nominal_batch)
    for hop, step in zip(transcript.hops, steps, strict=True):
        try:
            check_nonexpansive(step.step_size, fill * facts.loss.smoothness + step.weight_decay)
        except Refused as error:
            refuse(error.code, hop, step, str(error).rstrip("."))
    route = [hop.receiver for hop in transcript.hops]
    watchers = sorted(set(route) - {u})
    if not watchers:
        raise Refused("nobody but u ever held the token, or the walk has no hop.", "no-observer")
    gaps = [2.0 * fill * facts.loss.lipschitz * step.step_size for step in steps]
    stds = [step.step_size * step.noise for step in steps]
    drifts = _drifts(transcript.hops, facts)
    costs = {v: view_zcdp(route, u, v, gaps, stds, drifts) for v in watchers}
    worst = max(watchers, key=costs.__getitem__)
    return Claim(
        "certified",
        zcdp_epsilon(costs[worst], delta),
        delta,
        "network",
        (
            "the view of one peer, route known; no coalition, not the released model",
            "convex smooth loss with the constants of the header",
            _COMPUTED,
            *noise_origins(transcript.hops),
        ),
        f"zCDP {costs[worst]:.6g} for the view of peer {worst}",
    )
