r"""Record-level differential privacy of training: a record's part in a step is bounded and noised.

Every step at a peer moves along the noisy mean of its records' gradients,

.. math:: \tilde g = \frac1B\sum_i \min(1, C/\|g_i\|)\, g_i + \mathcal N(0, s^2 I),
          \qquad s = zC/B,

and each record is in one batch of every pass.  Neither the loss nor the model has to be anything:
no convexity, no smoothness.  A later deletion costs nothing, since what was trained is already
hard to tell from a training without the records.

Batches are a public coin here: nothing is gained from not knowing in which batch a record was.
"""

from __future__ import annotations

import math
from fractions import Fraction

from unwalk.core import events as ev
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.transcript import Hop, Transcript
from unwalk.core.validation import check_count, check_number
from unwalk.privacy.accountants import (
    PUBLIC,
    TRAINING,
    Claim,
    check_grid,
    check_no_buffers,
    check_training,
    events_claim,
    fact,
    noise_origins,
    refuse,
    refuse_unknown,
    start_of,
    unlearner_of,
)
from unwalk.privacy.gaussian import gaussian_epsilon, gaussian_mu
from unwalk.privacy.upward import above, over, plus, root, times

_ALONE = (
    "what is computed for a record at its place in a batch of fixed shape does not depend on the "
    "records at other places, and the machine's own coins (threads, scheduling) do not depend on "
    "D_f"
)
_OWN = "the user's own code keeps nothing of a record for the next one of a visit"


def training_mu(multiplier: float, passes: int, forgotten: int = 1) -> float:
    r"""Total :math:`\mu` of m records that take part in ``passes`` passes E, rounded up:

    .. math:: \mu^2 = \sum_{e=1}^{E}\sum_j (m_{ej}/z)^2 \le E\,(m/z)^2,

    where :math:`m_{ej}` of them are in batch j of pass e, all m in some batch of each pass, and z
    is the noise multiplier.  One step hides what :math:`m_{ej}` records add to it, at most
    :math:`m_{ej} C/B` in the mean, by noise of std :math:`zC/B`: a Gaussian mechanism, given the
    noisy gradients before it.  These compose.  The model, the optimizer's moments and every view
    are functions of the noisy gradients and of what other records give.

    Assumptions: batches do not depend on which of the m records there are (keyed slots), sums are
    divided by the public B, and a record's gradient is clipped to C as real numbers.  Neighbours:
    with and without m records of one peer, any of them.  Source: the clipped, noised step is that
    of Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016 (arXiv:1607.00133v2),
    Algorithm 1, without its sampling; the composition is
    :func:`unwalk.privacy.gaussian.compose_mu`.

    >>> round(training_mu(4.0, 16), 9), round(training_mu(4.0, 4, forgotten=2), 9)
    (1.0, 1.0)
    """
    check_number("multiplier", multiplier, above=0.0)
    check_count("passes", passes, low=0)
    check_count("forgotten", forgotten, low=1)
    one = over(float(forgotten), multiplier)
    return root(times(float(passes), one, one))


def training_multiplier(epsilon: float, delta: float, passes: int, forgotten: int = 1) -> float:
    """The noise multiplier with which ``passes`` passes give (epsilon, delta), rounded up.

    Statement and assumptions: :func:`training_mu`.

    >>> round(training_multiplier(1.0, 1e-5, 1), 5), round(training_multiplier(8.0, 1e-5, 25), 4)
    (3.73063, 3.0011)
    """
    check_count("passes", passes, low=1)
    check_count("forgotten", forgotten, low=1)
    return forgotten * math.sqrt(passes) / gaussian_mu(epsilon, delta) * (1.0 + 1e-13)


def dp_training_claim(transcript: Transcript, hops: list[Hop], delta: float) -> Claim:
    r"""DP training by keyed slots, where forgetting costs nothing: every pass over u's records.

    Statement: :func:`training_mu` over the passes that happened, each step's :math:`\mu` from its
    own noise; views of training are covered.  Checked: the phase that trained is all there is, and
    began with the initial model; steps at u that may touch D_f were taken by slots of the size that
    the header announced, whole passes of them, each record's gradient clipped and nothing else done
    to the sum before its noise, which was rounded to a grid; no buffers travel.  Optimizers,
    moments, weight decay, projections and what other peers do are free: they see noisy gradients.
    Other batches, and walks after the request, are read as
    :func:`unwalk.privacy.accountants.events_claim` reads them.
    """
    if hops or not any(
        isinstance(event, ev.GradientSteps) and event.batching == "slots"
        for _, event in transcript.events()
    ):
        return events_claim(transcript, hops, delta)
    check_training(transcript, hops)
    u, start = unlearner_of(transcript), start_of(transcript.hops)
    slots, batch, forgotten = (
        _whole(transcript, name) for name in ("slots", "nominal_batch", "forget")
    )
    squares, passes = [0.0], 0
    for hop, event in transcript.events():
        match event:
            case ev.GradientSteps():
                if hop.receiver == u and event.touched:
                    check_no_buffers(hop, start, event)
                    mu, times_over = _steps(hop, event, slots, batch, forgotten)
                    squares.append(times(float(times_over), mu, mu))
                    passes += times_over
            case ev.GaussianNoise() | ev.Projection() | ev.Wipe() | ev.Start():
                pass
            case _:
                refuse_unknown(hop, event)
    mu = root(plus(*squares))
    public = (PUBLIC[0], *TRAINING[1:])
    if passes == 0:
        return Claim("exact", 0.0, 0.0, "events", public, "nothing in training depends on D_f")
    own = (_OWN,) if transcript.header.get("code") == "own" else ()
    return Claim(
        "certified",
        gaussian_epsilon(delta, mu),
        delta,
        "dp-training",
        (*public, _ALONE, *own, *noise_origins(transcript.hops)),
        f"Gaussian composition, mu = {mu:.6g}: {passes} passes over u's records",
    )


def _whole(transcript: Transcript, name: str) -> int:
    """A count of the header, of 1 or more."""
    try:
        return check_count(name, fact(transcript, name, "a pass is not known"), low=1)
    except InvalidInput as error:
        raise Refused(f"in the header, {error}", "bad-event") from error


def _steps(
    hop: Hop, event: ev.GradientSteps, slots: int, batch: int, forgotten: int
) -> tuple[float, int]:
    """What a pass of these steps costs if all forgotten records are in one slot, and how many
    passes they are."""
    if event.noise == 0.0:
        refuse("leaves-without-noise", hop, event, "what it did with D_f leaves u without noise")
    if event.clip_per_example is None:
        refuse("noisy-without-clip", hop, event, "nothing bounds the gradient of a record")
    if event.clip is not None or event.scale != 1.0:
        refuse(
            "clipping",
            hop,
            event,
            "the sum of gradients was clipped or scaled before its noise, which is bounded for "
            "the sum as it is",
        )
    if event.batching != "slots" or (event.minibatches, event.batch) != (1, batch):
        refuse(
            "batching",
            hop,
            event,
            f"a step took {event.minibatches} times {event.batch} records by {event.batching!r}; "
            f"the proof is for one keyed slot of {batch}, as the header says",
        )
    check_grid(hop, event)
    passes, rest = divmod(event.steps, slots)
    if rest:
        refuse(
            "partial-epoch",
            hop,
            event,
            f"{event.steps} steps are no whole passes of {slots} slots",
        )
    most = above(Fraction(event.clip_per_example) * forgotten / batch)
    return over(most, event.noise), passes
