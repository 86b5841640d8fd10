"""Noise sized by the stability ledger: what seal, output_noise, release and noisy_start share.

Everything is computed from the public facts and events of training and from the number of records
in the request, so it is the same in the world without the forgotten records.
"""

from __future__ import annotations

import math

import numpy as np

from unwalk.core import events as ev
from unwalk.core.errors import Refused
from unwalk.core.program import AddNoise, Ball, Program, Project, Steps, Visit
from unwalk.core.transcript import Hop, Transcript
from unwalk.core.validation import check_number
from unwalk.methods.network_sgd import Descent, train_phase, unlearn_descent
from unwalk.methods.record import Request
from unwalk.privacy.gaussian import gaussian_mu
from unwalk.privacy.ledger import Ledger, LinearHead, SlotSteps
from unwalk.privacy.stability import Facts, ledger_before
from unwalk.settings.config import Config

ROUNDING = 1.0 + 1e-12
"""Noise is increased by this factor, to cover the accountant's rounding."""
LEAST_STD, FINEST = 2.0**-900, 2.0**-44
"""The least noise, and the least relative to the model's length, that a grid can represent."""


def check_noise(std: float, reach: float | None) -> None:
    """Check what :func:`noise_within` is given."""
    check_number("std", std, low=0.0)
    if reach is not None:
        check_number("reach", reach, above=0.0)


def noise_within(std: float, reach: float | None) -> Program:
    """Noise on the parameters, then, with ``reach``, the ball around the origin that bounds it."""
    ball: Program = () if reach is None else (Project((Ball("origin", reach),)),)
    return (AddNoise(std), *ball)


def usual_visits(hops: int, peers: int) -> int:
    """How often training visits one peer: the mean, and two standard deviations more."""
    usual = hops / peers
    return math.ceil(usual + 2.0 * math.sqrt(usual))


def visit_to_u(request: Request) -> Visit:
    """A visit to the forgetting peer, before the walk is known."""
    u, rng = request.config.forget.peer, np.random.default_rng(0)
    return Visit(1, 1, u, True, request.records, rng)


def probe(request: Request) -> None:
    """Ask the ledger about a training visit before training, so that a refusal comes early."""
    phase = train_phase(request.config)
    travels = (*request.buffers, *phase.method.travels)
    events: list[ev.Event] = [ev.Start(phase.name, "initial", False, travels)]
    for op in phase.method.visit(visit_to_u(request)):
        if isinstance(op, Steps):
            events.append(op.event("simulation"))
        elif isinstance(op, Project):
            events.append(ev.Projection(tuple((b.centre, b.radius) for b in op.balls)))
    probed = Transcript(dict(request.header))
    probed.add(Hop(1, phase.name, 1, -1, request.config.forget.peer, (), 0, tuple(events)))
    ledger_before(probed, 2)


def check_slots(config: Config, steps: str) -> None:
    """Refuse ``steps`` before the noise, after training, that the ledger could not follow."""
    kind = unlearn_descent(config).work.kind
    if kind != "slots":
        raise Refused(
            f"unlearn.work is {kind!r}, and the steps of {steps} come before the noise: the "
            "ledger follows keyed slots.",
            "batching",
        )


def ledger_after(request: Request, trained: Transcript) -> tuple[Ledger, Facts]:
    """The ledger after training, as the accountant will compute it."""
    walked = Transcript({**trained.header, **request.header}, list(trained.hops))
    return ledger_before(walked, len(trained.hops) + 1), Facts.of(walked)


def slot_steps(facts: Facts, descent: Descent, epochs: int, hop: int) -> SlotSteps:
    """A visit's passes over retained records at a hop of the phase, as the ledger counts them."""
    return SlotSteps(
        epochs=epochs,
        slots=facts.slots,
        step_size=descent.schedule.at(hop, descent.rule.learning_rate),
        nominal_batch=facts.nominal_batch,
        slot_cap=facts.slot_cap,
        weight_decay=descent.rule.weight_decay,
    )


def std_for(ledger: Ledger, config: Config, share: float = 1.0) -> float:
    """The noise for the ledger's distance, and at least what the grid can represent."""
    mu = gaussian_mu(config.unlearn.epsilon, config.unlearn.delta) * math.sqrt(share)
    return max(ledger.distance / mu * ROUNDING, ledger.norm * FINEST, LEAST_STD)


def reach_of(norm: float, head: LinearHead, std: float, visits: int) -> float:
    """The radius of a public ball around the origin that holds the model after ``visits`` noises.

    ``norm`` bounds the model's length before them; the chance to leave the ball is below 1e-20.
    """
    return norm + std * math.sqrt(visits) * (math.sqrt(head.parameters) + 10.0)
