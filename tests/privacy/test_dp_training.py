"""DP training: the Gaussian composition of its passes, and what its accountant refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwalk.core import events as ev
from unwalk.core.errors import Refused
from unwalk.core.transcript import Hop, Transcript
from unwalk.privacy.dp_training import dp_training_claim, training_mu, training_multiplier
from unwalk.privacy.gaussian import gaussian_delta, gaussian_epsilon
from unwalk.privacy.pld import gaussian_pld, pld_epsilon

U, DELTA, SLOTS, BATCH, CLIP, Z = 0, 1e-5, 4, 16, 0.5, 3.0
FACTS = {"unlearner": U, "peers": 3, "slots": SLOTS, "nominal_batch": BATCH, "forget": 2}
START = ev.Start("train", "initial", False, ("momentum",))
STEPS = ev.GradientSteps(
    steps=2 * SLOTS,
    minibatches=1,
    batch=BATCH,
    data="all",
    touched=True,
    direction=-1,
    scale=1.0,
    clip=None,
    clip_per_example=CLIP,
    noise=Z * CLIP / BATCH,
    origin="simulation",
    optimizer="momentum",
    step_size=0.1,
    momentum=0.9,
    weight_decay=0.1,
    state="carried",
    grid=2.0**-8,
    batching="slots",
)


def walk(*hops, **facts):
    """A training walk; hops are (receiver, events...)."""
    made = Transcript({**FACTS, **facts})
    for number, (receiver, *events) in enumerate(hops, 1):
        begun = (START,) if number == 1 else ()
        made.add(Hop(number, "train", number, -1, receiver, (receiver,), 0, (*begun, *events)))
    return made


def claim(*hops, **facts):
    return dp_training_claim(walk(*hops, **facts), [], DELTA)


def test_one_pass_over_one_record_is_one_gaussian_mechanism():
    """Balle and Wang's value: (1, 1e-5) needs 3.73063 times the sensitivity."""
    assert training_multiplier(1.0, 1e-5, 1) == pytest.approx(3.730632, rel=1e-6)
    assert gaussian_delta(1.0, training_mu(3.730632, 1)) == pytest.approx(1e-5, rel=1e-5)


@given(st.floats(0.05, 20.0), st.integers(1, 10**4), st.integers(1, 50))
def test_the_multiplier_meets_its_target_and_no_smaller_one_does(epsilon, passes, forgotten):
    z = training_multiplier(epsilon, 1e-5, passes, forgotten)
    assert gaussian_epsilon(1e-5, training_mu(z, passes, forgotten)) <= epsilon
    assert gaussian_epsilon(1e-5, training_mu(0.999 * z, passes, forgotten)) > epsilon


@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=6))
def test_no_spread_of_the_records_over_batches_costs_more_than_all_in_one(passes):
    """The sum over batches of (m_j/z)^2, for every way to spread m records over a pass."""
    most = max(max(sum(batches) for batches in passes), 1)
    spread = math.sqrt(sum((m / Z) ** 2 for batches in passes for m in batches))
    assert spread <= training_mu(Z, len(passes), most) * (1 + 1e-12)


def test_dp_accounting_composes_the_passes_to_the_same_epsilon():
    pytest.importorskip("dp_accounting")
    z, passes = 8.0, 9
    exact = gaussian_epsilon(1e-5, training_mu(z, passes))
    assert pld_epsilon([gaussian_pld(1.0 / z)] * passes, 1e-5) == pytest.approx(exact, abs=2e-3)


def test_a_walk_costs_the_passes_that_happened_at_u_and_nothing_else():
    own = replace(STEPS, noise=0.0, grid=None, origin=None)
    free = (ev.Projection((("arrival", 1.0),)), ev.Wipe("optimizer"))
    made = claim((U, STEPS, *free), (1, own), (U, STEPS))
    assert made.grade == "certified"
    assert made.epsilon == pytest.approx(gaussian_epsilon(DELTA, training_mu(Z, 4, 2)), rel=1e-12)
    assert "mu = 1.33333: 4 passes" in made.reason
    assert claim((1, own)).grade == "exact"
    halved = replace(STEPS, noise=STEPS.noise / 2)
    mixed = math.hypot(training_mu(Z, 2, 2), training_mu(Z / 2, 2, 2))
    assert claim((U, STEPS), (U, halved)).epsilon == pytest.approx(gaussian_epsilon(DELTA, mixed))
    retained = replace(own, data="retained", touched=False)
    assert claim((U, STEPS, retained)).epsilon == claim((U, STEPS)).epsilon


def test_code_of_the_users_own_has_to_keep_nothing_between_records():
    said = [" ".join(claim((U, STEPS), code=code).assumptions) for code in ("own", "built-in")]
    assert ["nothing of a record for the next" in text for text in said] == [True, False]


@pytest.mark.parametrize(
    ("event", "code", "words"),
    [
        (replace(STEPS, noise=0.0, grid=None), "leaves-without-noise", "leaves u without noise"),
        (replace(STEPS, clip_per_example=None), "noisy-without-clip", "bounds the gradient"),
        (replace(STEPS, clip=1.0), "clipping", "clipped or scaled before its noise"),
        (replace(STEPS, scale=0.5), "clipping", "clipped or scaled before its noise"),
        (replace(STEPS, grid=None), "float-noise", "not rounded"),
        (replace(STEPS, batching="epochs"), "batching", "'epochs'; the proof is for one keyed"),
        (replace(STEPS, minibatches=2), "batching", "2 times 16 records"),
        (replace(STEPS, batch=17), "batching", "1 times 17 records"),
        (replace(STEPS, steps=SLOTS + 1), "partial-epoch", "no whole passes of 4 slots"),
        (ev.OwnSums("all", True, 40, 1.0), "unknown-event", "no bound"),
    ],
)
def test_what_is_not_covered_is_refused_by_name(event, code, words):
    with pytest.raises(Refused, match=words) as refusal:
        claim((1, STEPS), (U, STEPS), (U, event))
    assert refusal.value.code == code
    assert "hop 3" in str(refusal.value)


def test_buffers_facts_and_later_walks_are_refused():
    made = walk((U, STEPS))
    (hop,) = made.hops
    normed = replace(START, travels=("num_batches_tracked",))
    buffered = Transcript(dict(made.header), [replace(hop, events=(normed, STEPS))])
    with pytest.raises(Refused, match="num_batches_tracked"):
        dp_training_claim(buffered, [], DELTA)
    with pytest.raises(Refused, match="in the header, slots is 0"):
        claim((U, STEPS), slots=0)
    with pytest.raises(Refused, match="does not record 'slots'"):
        dp_training_claim(Transcript({"unlearner": U, "forget": 1}, made.hops), [], DELTA)
    later = Hop(2, "more", 1, U, U, (U,), 0, (replace(START, phase="more"), STEPS))
    with pytest.raises(Refused, match="for training alone"):
        dp_training_claim(Transcript(dict(made.header), [hop, later]), [], DELTA)
