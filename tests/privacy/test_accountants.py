"""Accountants over events: what they add up, and what they refuse, by name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from unwalk.core import events as ev
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.transcript import Hop, Transcript
from unwalk.privacy import (
    ball_seal_claim,
    ledger_claim,
    network_claim,
    noisy_start_claim,
    public_coin_claim,
    release_claim,
    sealed_claim,
)
from unwalk.privacy.gaussian import gaussian_epsilon
from unwalk.privacy.ledger import LinearHead, SlotSteps
from unwalk.privacy.renyi import zcdp_epsilon
from unwalk.privacy.seal import seal_epsilon, seal_then_gaussian_epsilon
from unwalk.privacy.stability import view_zcdp
from unwalk.privacy.visits import visits_epsilon

U, DELTA = 0, 1e-5
FACTS = {
    "loss": "softmax",
    "feature_norm": 1.0,
    "inputs": 8,
    "outputs": 3,
    "initial_norm": 0.0,
    "batching": "slots",
    "slots": 4,
    "nominal_batch": 16,
    "slot_cap": 32,
    "forget": 3,
    "normalisation": "published",
    "iterate": "last",
    "precision": "float64",
}
PLAIN = ev.GradientSteps(
    steps=4,
    minibatches=1,
    batch=32,
    data="all",
    touched=True,
    direction=-1,
    scale=1.0,
    clip=None,
    clip_per_example=None,
    noise=0.0,
    origin=None,
    optimizer="sgd",
    step_size=0.5,
    momentum=0.0,
    weight_decay=0.1,
    state="none",
    batching="slots",
)
RETAINED = replace(PLAIN, data="retained", touched=False)
ASCENT = replace(
    PLAIN, data="forgotten", direction=1, clip=0.5, steps=2, step_size=0.1, weight_decay=0.0
)
CLEAN_START = ev.Start("unlearn", "token", False, ())
DIRTY_START = ev.Start("unlearn", "token", True, ())


BALL = ev.Projection((("initial", 1.0),))
ROUND_ARRIVAL = ev.Projection((("arrival", 0.1),))
REACH = ev.Projection((("origin", 5.0),))


def noise(std, sensitivity=None):
    return ev.GaussianNoise(std, sensitivity, "secret", grid=2.0**-10)


def transcript(*hops, phase="unlearn", before=(), **facts):
    """Hops are (receiver, events...); ``before`` is a training phase in the same form."""
    made = Transcript({"unlearner": U, "peers": 5, **FACTS, **facts})
    number = 0
    for name, group in (("train", before), (phase, hops)):
        for place, (receiver, *events) in enumerate(group, 1):
            number += 1
            made.add(Hop(number, name, place, -1, receiver, (receiver,), 0, tuple(events)))
    return made


def refused(call, *parts):
    with pytest.raises(Refused) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


# Gaussian composition


def test_visits_compose():
    made = transcript(
        (1, CLEAN_START, PLAIN),
        (U, ASCENT, ROUND_ARRIVAL, noise(0.4, 0.1)),
        (2, PLAIN),
        (U, ASCENT, ROUND_ARRIVAL, noise(0.4, 0.1)),
    )
    claim = sealed_claim(made, "unlearn", DELTA)
    assert claim.grade == "certified"
    assert claim.epsilon == pytest.approx(gaussian_epsilon(DELTA, 0.25 * math.sqrt(2)), rel=1e-12)
    assert "the noise came from a secret of the peer" in claim.assumptions
    assert claim.to_json()["accountant"] == "gaussian"


def test_noisy_gradients_compose_per_step():
    noisy = replace(ASCENT, noise=2.0, origin="simulation", grid=0.125)
    claim = sealed_claim(transcript((U, CLEAN_START, noisy)), "unlearn", DELTA)
    assert claim.epsilon == pytest.approx(gaussian_epsilon(DELTA, math.sqrt(2) * 0.25), rel=1e-12)
    assert any(text.startswith("simulation") for text in claim.assumptions)
    mixed = replace(noisy, data="mixed")
    doubled = sealed_claim(transcript((U, CLEAN_START, mixed)), "unlearn", DELTA)
    assert doubled.epsilon == pytest.approx(gaussian_epsilon(DELTA, math.sqrt(2) * 0.5), rel=1e-12)


def test_a_phase_that_never_touches_is_exact():
    claim = sealed_claim(transcript((1, CLEAN_START, PLAIN), (U, RETAINED)), "unlearn", DELTA)
    assert (claim.grade, claim.epsilon, claim.delta) == ("exact", 0.0, 0.0)


def test_the_papers_preset_is_refused():
    made = transcript(
        (3, DIRTY_START, PLAIN),
        (U, ASCENT, ROUND_ARRIVAL, noise(0.4, 0.1), ev.Projection((("start", 10.82),))),
    )
    refused(
        lambda: sealed_claim(made, "unlearn", DELTA),
        "hop 1, start at peer 3",
        "the starting model was trained on D_f, and no noise was added since",
    )


@pytest.mark.parametrize(
    ("events", "parts"),
    [
        ((ASCENT,), ("hop 1, gradient-steps", "leaves u without noise")),
        ((ASCENT, noise(1.0)), ("without a projection around the model that arrived",)),
        ((replace(ASCENT, optimizer="adam"), noise(1.0)), ("adam on forgotten records",)),
        (
            (ASCENT, ROUND_ARRIVAL, replace(noise(1.0), grid=None)),
            ("gaussian-noise", "not rounded to a public grid"),
        ),
        ((ASCENT, ROUND_ARRIVAL, replace(noise(1.0), grid=0.3)), ("no power of two",)),
        (
            (ASCENT, ev.Projection((("arrival", -1.0),)), noise(1.0)),
            ("projection", "radius -1 is none"),
        ),
        ((ASCENT, ev.Projection((("arrival", math.inf),)), noise(1.0)), ("radius inf is none",)),
        ((ASCENT, BALL, noise(1.0)), ("a projection between D_f and the noise",)),
        ((RETAINED, ASCENT, ROUND_ARRIVAL, noise(1.0)), ("another model than the one that came",)),
        ((noise(1.0), ROUND_ARRIVAL), ("'arrival' may depend on D_f",)),
        (
            (ASCENT, ROUND_ARRIVAL, noise(1.0, 0.05)),
            ("gaussian-noise", "records sensitivity 0.05", "move 0.1"),
        ),
        ((ASCENT, ROUND_ARRIVAL, RETAINED, noise(1.0)), ("may expand",)),
        (
            (ASCENT, replace(ASCENT, noise=1.0, origin="secret"), noise(1.0)),
            ("that D_f moved without noise",),
        ),
        ((replace(ASCENT, noise=1.0, clip=None, origin="secret"),), ("no sensitivity",)),
        (
            (replace(ASCENT, noise=1.0, origin="secret", optimizer="adam", state="carried"),),
            ("adam with carried state",),
        ),
        ((replace(ASCENT, noise=1.0, origin="secret"),), ("not rounded to a public grid",)),
        ((replace(RETAINED, state="local"),), ("local state may depend on D_f",)),
    ],
)
def test_refusals_name_the_event(events, parts):
    made = transcript((U, CLEAN_START, *events))
    refused(lambda: sealed_claim(made, "unlearn", DELTA), *parts)


def test_mixed_steps_count_twice():
    mixed = replace(ASCENT, data="mixed")
    made = transcript((U, CLEAN_START, mixed, ROUND_ARRIVAL, noise(1.0)))
    assert sealed_claim(made, "unlearn", DELTA).epsilon == pytest.approx(
        gaussian_epsilon(DELTA, 0.2), rel=1e-12
    )
    short = transcript((U, CLEAN_START, mixed, ROUND_ARRIVAL, noise(1.0, 0.1)))
    refused(lambda: sealed_claim(short, "unlearn", DELTA), "can move 0.2")


def test_wipes_make_local_state_and_moments_clean():
    local = replace(RETAINED, state="local")
    made = transcript((1, CLEAN_START, ev.Wipe("local"), local), (2, ev.Wipe("local"), local))
    assert sealed_claim(made, "unlearn", DELTA).grade == "exact"
    carried = replace(DIRTY_START, travels=("momentum", "bn.running_mean"))
    seal = (ev.Wipe("optimizer"), noise(4.0))
    refused(
        lambda: sealed_claim(transcript((U, carried, *seal)), "unlearn", DELTA, distance=1.0),
        "hop 1, start",
        "bn.running_mean",
        "no wipe of buffers",
    )
    clean = transcript((U, carried, ev.Wipe("buffers"), *seal))
    claim = sealed_claim(clean, "unlearn", DELTA, distance=1.0)
    assert claim.epsilon == pytest.approx(gaussian_epsilon(DELTA, 0.25), rel=1e-12)


def test_a_ball_round_the_old_model_is_refused_at_any_peer():
    ball = ev.Projection((("start", 3.0),))
    for hop in ((U, noise(1.0), ball), (2, ball)):
        made = transcript((U, DIRTY_START, noise(4.0)), hop)
        refused(
            lambda made=made: sealed_claim(made, "unlearn", DELTA, distance=1.0),
            "hop 2, projection",
            "centred on theta_0",
        )


def test_a_start_that_denies_what_training_did_is_refused():
    before = [(1, ev.Start("train", "initial", False, ()), PLAIN), (U, PLAIN)]
    made = transcript((1, CLEAN_START, PLAIN), before=before)
    refused(lambda: sealed_claim(made, "unlearn", DELTA), "hop 3, start", "but hop 2 used it")
    anew = replace(CLEAN_START, start="initial")
    assert sealed_claim(transcript((1, anew), before=before), "unlearn", DELTA).grade == "exact"
    without = [(1, ev.Start("train", "initial", False, ()), PLAIN), (U, RETAINED)]
    made = transcript((1, CLEAN_START, PLAIN), before=without)
    assert sealed_claim(made, "unlearn", DELTA).grade == "exact"


def test_missing_facts():
    with pytest.raises(InvalidInput, match="phase is 'forget'"):
        sealed_claim(transcript((U, CLEAN_START)), "forget", DELTA)
    refused(lambda: sealed_claim(transcript((U, PLAIN)), "unlearn", DELTA), "without a start")
    nobody = transcript((U, CLEAN_START), unlearner=-1)
    refused(lambda: sealed_claim(nobody, "unlearn", DELTA), "names no unlearning peer")


# Public coin


def test_public_coin():
    hops = [(1, CLEAN_START, PLAIN)] + [(U, ASCENT, ROUND_ARRIVAL, noise(0.4)), (2, PLAIN)] * 3
    claim = public_coin_claim(transcript(*hops), "unlearn", DELTA, p=0.4)
    assert claim.epsilon == pytest.approx(visits_epsilon(DELTA, 0.25, 7, 0.4), rel=1e-12)
    sealed = [(U, DIRTY_START, noise(4.0)), (U, ASCENT, ROUND_ARRIVAL, noise(0.4)), (1, PLAIN)]
    claim = public_coin_claim(transcript(*sealed), "unlearn", DELTA, p=0.4, distance=1.0)
    expected = visits_epsilon(DELTA, 0.25, 2, 0.4, seal_mu=0.25)
    assert claim.epsilon == pytest.approx(expected, rel=1e-12)


def test_public_coin_needs_equal_visits():
    uneven = transcript(
        (U, CLEAN_START, ASCENT, ROUND_ARRIVAL, noise(0.4)), (U, ASCENT, ROUND_ARRIVAL, noise(0.8))
    )
    refused(
        lambda: public_coin_claim(uneven, "unlearn", DELTA, p=0.4),
        "hop 2, gradient-steps",
        "mu 0.125",
    )
    none = transcript((1, CLEAN_START, PLAIN))
    refused(lambda: public_coin_claim(none, "unlearn", DELTA, p=0.4), "no visit to u")


# Ball seal


def test_ball_seal():
    seal = (RETAINED, BALL, noise(1.0)) * 6
    claim = ball_seal_claim(transcript((U, DIRTY_START, *seal), (1, PLAIN)), "unlearn", DELTA)
    assert claim.epsilon == pytest.approx(seal_epsilon(DELTA, 2.0, 6), rel=1e-12)
    assert "a restart at the centre is exact" in claim.reason
    later = transcript((U, DIRTY_START, *seal), (1, PLAIN), (U, ASCENT, ROUND_ARRIVAL, noise(0.4)))
    claim = ball_seal_claim(later, "unlearn", DELTA)
    assert claim.epsilon == pytest.approx(
        seal_then_gaussian_epsilon(DELTA, 2.0, 6, 0.25), rel=1e-12
    )


@pytest.mark.parametrize(
    ("events", "parts"),
    [
        ((ev.Projection((("start", 1.0),)), noise(1.0)), ("projection", "theta_0")),
        ((BALL, RETAINED, noise(1.0)), ("gaussian-noise", "seals nothing")),
        ((noise(1.0),), ("seals nothing",)),
        ((ASCENT, BALL, noise(1.0)), ("must not touch D_f",)),
        ((replace(RETAINED, state="carried"), BALL, noise(1.0)), ("carried optimizer state",)),
        ((RETAINED,), ("no noise was added since",)),
        ((ev.Projection((("initial", -1.0),)), noise(1.0)), ("projection", "radius -1 is none")),
        ((ev.Projection((("initial", 0.0),)), noise(1.0)), ("radius 0 is none",)),
        ((ev.Projection((("initial", math.nan),)), noise(1.0)), ("radius nan is none",)),
        (
            (ev.Projection((("initial", 1.0), ("origin", 1.0))), noise(1.0)),
            ("a projection on 2 balls at once",),
        ),
        ((BALL, replace(noise(1.0), grid=None)), ("not rounded to a public grid",)),
        ((ev.Projection((("arrival", 1.0),)), noise(1.0)), ("round 'arrival'",)),
    ],
)
def test_ball_seal_refusals(events, parts):
    made = transcript((U, DIRTY_START, *events))
    refused(lambda: ball_seal_claim(made, "unlearn", DELTA), *parts)


def test_ball_seal_must_come_first():
    made = transcript((1, DIRTY_START, PLAIN), (U, BALL, noise(1.0)))
    refused(
        lambda: ball_seal_claim(made, "unlearn", DELTA), "hop 1, start", "no noise was added since"
    )


# Ledger

TRAIN_START = ev.Start("train", "initial", False, ())


def expected_distance(*visits):
    head = LinearHead(8, 3)
    ledger = head.begin()
    for forgotten, epochs in visits:
        work = SlotSteps(epochs, 4, 0.5, 16, 32, 0.1, forgotten)
        ledger = ledger.steps(work, head)
    return ledger.distance


def test_ledger_reads_training_and_seals():
    before = [(1, TRAIN_START, PLAIN), (U, PLAIN), (2, replace(PLAIN, steps=8))]
    made = transcript((U, DIRTY_START, RETAINED, noise(2.0)), (3, PLAIN), before=before)
    claim = ledger_claim(made, "unlearn", DELTA)
    distance = expected_distance((0, 1), (3, 1), (0, 2), (0, 1))
    assert claim.accountant == "ledger"
    assert claim.epsilon == pytest.approx(gaussian_epsilon(DELTA, distance / 2.0), rel=1e-12)


def test_ledger_composes_with_later_visits():
    before = [(U, TRAIN_START, PLAIN)]
    made = transcript(
        (U, DIRTY_START, noise(0.5)), (U, ASCENT, ROUND_ARRIVAL, noise(0.4)), before=before
    )
    distance = expected_distance((3, 1))
    mu = math.hypot(distance / 0.5, 0.25)
    assert ledger_claim(made, "unlearn", DELTA).epsilon == pytest.approx(
        gaussian_epsilon(DELTA, mu), rel=1e-12
    )


@pytest.mark.parametrize(
    ("event", "parts"),
    [
        (replace(PLAIN, optimizer="momentum", momentum=0.9), ("momentum does not keep",)),
        (replace(PLAIN, optimizer="adam", state="carried"), ("adam does not keep",)),
        (replace(PLAIN, clip=1.0), ("clipping breaks",)),
        (replace(PLAIN, clip_per_example=1.0), ("clipping breaks",)),
        (replace(PLAIN, direction=1), ("ascent",)),
        (replace(PLAIN, steps=5), ("5 steps are no whole epochs of 4",)),
        (replace(PLAIN, step_size=4.0), ("exceeds 2/beta_j",)),
        (ev.Projection((("start", 1.0),)), ("projection", "round 'start'")),
        (ev.Projection((("origin", 1.0), ("initial", 1.0))), ("2 balls",)),
        (replace(PLAIN, noise=1.0, origin="secret", grid=0.5), ("no bound for noisy gradients",)),
        (replace(PLAIN, step_size=-0.5), ("step_size is -0.5",)),
        (replace(PLAIN, weight_decay=math.nan), ("weight_decay is nan",)),
        (replace(PLAIN, batch=33), ("hold 1 times 33 records", "1 times 32")),
        (replace(noise(0.1), grid=None), ("not rounded to a public grid",)),
        (ev.Start("train", "initial", False, ("bn.running_mean",)), ("bn.running_mean",)),
    ],
)
def test_ledger_refusals_name_the_training_event(event, parts):
    before = [(1, TRAIN_START, PLAIN), (2, event)]
    made = transcript((U, DIRTY_START, noise(1.0)), before=before)
    refused(lambda: ledger_claim(made, "unlearn", DELTA), "hop 2", "peer 2", *parts)


def test_the_ledger_passes_through_the_seal_of_an_earlier_request():
    """Noise that hid another peer's records is the same in both worlds; its rounding is not."""

    def sealed(*earlier):
        before = [(U, TRAIN_START, PLAIN), (3, DIRTY_START, *earlier, PLAIN)]
        return transcript((U, DIRTY_START, noise(1.0)), before=before)

    plain = ledger_claim(sealed(), "unlearn", DELTA)
    through = ledger_claim(sealed(noise(0.5), REACH), "unlearn", DELTA)
    head, work = LinearHead(8, 3), SlotSteps(1, 4, 0.5, 16, 32, 0.1)
    ledger = head.begin().steps(replace(work, forgotten=3), head)
    ledger = ledger.noised(head, 2.0**-10).projected(5.0, 0.0, 24).steps(work, head)
    assert through.epsilon == pytest.approx(gaussian_epsilon(DELTA, ledger.distance), rel=1e-12)
    assert through.epsilon > plain.epsilon
    refused(lambda: ledger_claim(sealed(noise(0.5)), "unlearn", DELTA), "bounds the length")
    floating = sealed(replace(noise(0.5), grid=None), REACH)
    refused(lambda: ledger_claim(floating, "unlearn", DELTA), "hop 2", "not rounded")


def test_steps_on_the_records_where_buffers_travel_are_refused():
    """Row 8: BatchNorm's statistics leave u beside every noise."""
    start = replace(CLEAN_START, travels=("bn.running_mean",))
    noisy = replace(ASCENT, noise=2.0, origin="secret", grid=0.125)
    for events in ((noisy,), (ASCENT, ROUND_ARRIVAL, noise(1.0))):
        made = transcript((1, start), (U, *events))
        refused(lambda made=made: sealed_claim(made, "unlearn", DELTA), "hop 2", "bn.running_mean")


@pytest.mark.parametrize(
    ("facts", "part"),
    [
        ({"loss": "hinge"}, "loss 'hinge'"),
        ({"precision": "float32"}, "precision 'float32'"),
        ({"feature_norm": -1.0}, "norm is -1"),
        ({"initial_norm": -1.0}, "initial_norm is -1"),
        ({"outputs": 1}, "outputs is 1"),
        ({"nominal_batch": 0}, "nominal_batch is 0"),
        ({"precision": "bfloat16"}, "precision 'bfloat16'"),
        ({"batching": "shuffled"}, "batching 'shuffled'"),
        ({"normalisation": "all-data"}, "normalisation 'all-data'"),
    ],
)
def test_ledger_needs_its_facts(facts, part):
    made = transcript((U, DIRTY_START, noise(1.0)), before=[(U, TRAIN_START, PLAIN)], **facts)
    refused(lambda: ledger_claim(made, "unlearn", DELTA), part)
    for name in FACTS:
        header = {k: v for k, v in made.header.items() if k != name}
        less = Transcript(header)
        for hop in made.hops:
            less.add(hop)
        refused(lambda less=less: ledger_claim(less, "unlearn", DELTA), "record")


def test_ledger_seal_must_be_at_u_and_before_anything_touches():
    before = [(U, TRAIN_START, PLAIN)]
    away = transcript((1, DIRTY_START, noise(1.0)), before=before)
    refused(
        lambda: ledger_claim(away, "unlearn", DELTA),
        "hop 2, start at peer 1",
        "no noise was added since",
    )
    touching = transcript((U, DIRTY_START, PLAIN, noise(1.0)), before=before)
    refused(lambda: ledger_claim(touching, "unlearn", DELTA), "must be on retained data")


# Release level and noise from the start


def test_release_level():
    before = [(U, TRAIN_START, PLAIN)]
    made = transcript((1, DIRTY_START, RETAINED), (2, RETAINED, noise(0.3)), before=before)
    distance = expected_distance((3, 1), (0, 1), (0, 1))
    claim = release_claim(made, DELTA)
    assert claim.epsilon == pytest.approx(gaussian_epsilon(DELTA, distance / 0.3), rel=1e-12)
    assert "outsiders" in claim.assumptions[0]
    early = transcript((1, DIRTY_START, noise(0.1)), (2, RETAINED, noise(0.3)), before=before)
    refused(lambda: release_claim(early, DELTA), "hop 2, gaussian-noise", "very end")
    bare = transcript((1, DIRTY_START, RETAINED), before=before)
    refused(lambda: release_claim(bare, DELTA), "not noised last")


def test_noise_from_the_start():
    visit = (U, PLAIN, noise(0.2), REACH)
    other = (PLAIN, noise(0.2), REACH)
    made = transcript((1, TRAIN_START, *other), visit, (2, *other), visit)
    push = 0.5 * math.sqrt(2) * 3 / 16
    claim = noisy_start_claim(made, DELTA)
    exact = gaussian_epsilon(DELTA, math.sqrt(2) * push / 0.2)
    assert exact < claim.epsilon < exact * (1 + 1e-9)
    bare = transcript(visit, (U, PLAIN))
    refused(lambda: noisy_start_claim(bare, DELTA), "hop 2", "leaves u without noise")
    long = transcript((1, TRAIN_START, PLAIN, noise(0.2)), visit)
    refused(lambda: noisy_start_claim(long, DELTA), "hop 2", "bounds the length of the model")
    floating = transcript((U, TRAIN_START, PLAIN, replace(noise(0.2), grid=None), REACH))
    refused(lambda: noisy_start_claim(floating, DELTA), "hop 1", "not rounded")


# Network DP

NOISY = replace(PLAIN, steps=1, noise=3.0, origin="secret", grid=2.0**-30)


def test_network_dp_of_a_known_route():
    route = [1, U, 2, U, U, 1, 3, U, 2]
    claim = network_claim(transcript(*((peer, NOISY, REACH) for peer in route)), DELTA)
    fill, size = 2.0, len(route)
    gaps, stds = [2 * fill * math.sqrt(2) * 0.5] * size, [0.5 * 3.0] * size
    worst = max(view_zcdp(route, U, v, gaps, stds) for v in (1, 2, 3))
    exact = zcdp_epsilon(worst, DELTA)
    assert exact < claim.epsilon < exact * (1 + 1e-6)
    assert claim.accountant == "network"
    coarse = replace(NOISY, grid=2.0**-4)
    wider = network_claim(transcript(*((peer, coarse, REACH) for peer in route)), DELTA)
    assert wider.epsilon > claim.epsilon * 1.01  # each rounding may add a cell to the gap
    long = transcript((1, NOISY), (U, NOISY, REACH), (2, NOISY, REACH))
    refused(lambda: network_claim(long, DELTA), "hop 2", "bounds the length of the model")


@pytest.mark.parametrize(
    ("events", "part"),
    [
        ((replace(NOISY, noise=0.0),), "one noisy gradient step at every hop"),
        ((replace(NOISY, steps=2),), "one noisy gradient step at every hop"),
        ((noise(1.0),), "one noisy gradient step at every hop"),
        ((replace(NOISY, clip=1.0),), "clipping breaks"),
        ((replace(NOISY, optimizer="adam"),), "plain descent"),
        ((replace(NOISY, step_size=9.0),), "may expand"),
        ((NOISY, ev.Projection((("start", 1.0),))), "may depend on D_f"),
        ((replace(NOISY, grid=None), REACH), "not rounded to a public grid"),
        ((NOISY, noise(1.0), REACH), "noise on gradients alone"),
    ],
)
def test_network_refusals(events, part):
    made = transcript((1, NOISY, REACH), (2, *events), (U, NOISY))
    refused(lambda: network_claim(made, DELTA), "hop 2", part)


def test_network_refuses_relays():
    made = Transcript({"unlearner": U, **FACTS})
    made.add(Hop(1, "train", 1, 1, 2, (3, 2), 0, (NOISY,)))
    refused(lambda: network_claim(made, DELTA), "hop 1", "relay 3")
