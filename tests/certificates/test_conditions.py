"""Every condition of a guarantee, broken on purpose, is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unwalk.certificates import claims_of
from unwalk.core import events as ev
from unwalk.core.transcript import Hop, Transcript

U = 0
FACTS = {
    "unlearner": U,
    "peers": 4,
    "method": "seal",
    "forget": 1,
    "epsilon": 1.0,
    "delta": 1e-5,
    "loss": "softmax",
    "feature_norm": 1.0,
    "inputs": 8,
    "outputs": 3,
    "initial_norm": 0.0,
    "batching": "slots",
    "slots": 1,
    "nominal_batch": 20,
    "slot_cap": 20,
    "normalisation": "published",
    "labels": "published",
    "iterate": "last",
    "precision": "float64",
    "attempt": 1,
    "noise": "secret",
    "digests": "plain",
}
PLAIN = ev.GradientSteps(
    steps=1,
    minibatches=1,
    batch=20,
    data="all",
    touched=True,
    direction=-1,
    scale=1.0,
    clip=None,
    clip_per_example=None,
    noise=0.0,
    origin=None,
    optimizer="sgd",
    step_size=1.0,
    momentum=0.0,
    weight_decay=0.1,
    state="none",
    batching="slots",
)
RETAINED = replace(PLAIN, data="retained", touched=False)
BEGIN = ev.Start("train", "initial", False, ())
SEALED = ev.Start("unlearn", "token", True, ())
WIPE, NOISE = ev.Wipe("local"), ev.GaussianNoise(0.5, None, "secret", grid=2.0**-5)
OPTIMIZER = ev.Wipe("optimizer")
BACKWARD = replace(PLAIN, data="forgotten", clip=1.0, weight_decay=0.0, step_size=-1.0)
TRAIN = [(1, (BEGIN, PLAIN)), (U, (PLAIN,)), (2, (PLAIN,))]
UNLEARN = [(U, (SEALED, WIPE, NOISE, RETAINED)), (2, (WIPE, RETAINED)), (3, (RETAINED,))]


def made_by(event, batching):
    """The event with batches as a header says that training makes them."""
    if not isinstance(event, ev.GradientSteps):
        return event
    return replace(event, batching=batching if batching in ev.BATCHING else "other")


def transcript(train=TRAIN, unlearn=UNLEARN, digests=(), **facts):
    """A log; the kind of batches in ``facts``, if any, is that of every visit too."""
    phases = [{"name": "train", "hops": len(train)}, {"name": "unlearn", "hops": len(unlearn)}]
    made = Transcript({**FACTS, "phases": phases, **facts})
    number = 0
    for phase, group in (("train", train), ("unlearn", unlearn)):
        for place, (receiver, events) in enumerate(group, 1):
            number += 1
            if "batching" in facts:
                events = tuple(made_by(event, facts["batching"]) for event in events)
            digest = "d" * 64 if number in digests else None
            made.add(Hop(number, phase, place, -1, receiver, (receiver,), 0, events, digest=digest))
    return made


def the_claim(**changes):
    (claim,) = claims_of(transcript(**changes))
    return claim


def test_nothing_broken_is_certified():
    claim = the_claim()
    assert claim["grade"] == "certified"
    assert claim["accountant"] == "ledger"
    assert 0.0 < claim["epsilon"] < 5.0


def test_peers_that_were_not_visited_since_need_no_wipe():
    unlearn = [UNLEARN[0], (1, (RETAINED,)), (3, (RETAINED,))]
    assert the_claim(unlearn=unlearn)["grade"] == "certified"


def at_u(event):
    return [TRAIN[0], (U, (event,)), TRAIN[2]]


BROKEN = {
    "Adam at u": ({"train": at_u(replace(PLAIN, optimizer="adam", state="carried"))}, "adam"),
    "momentum": ({"train": at_u(replace(PLAIN, optimizer="momentum", momentum=0.9))}, "momentum"),
    "clipping": ({"train": at_u(replace(PLAIN, clip=1.0))}, "clipping"),
    "expanding steps": ({"train": at_u(replace(PLAIN, step_size=9.0))}, "may expand"),
    "BatchNorm": (
        {"train": [(1, (replace(BEGIN, travels=("norm.running_mean",)), PLAIN)), *TRAIN[1:]]},
        "carries 'norm.running_mean'",
    ),
    "BatchNorm after the request": (
        {"unlearn": [(U, (replace(SEALED, travels=("norm.running_var",)), *UNLEARN[0][1][1:]))]},
        "carries 'norm.running_var'",
    ),
    "ball round theta_0": (
        {"unlearn": [*UNLEARN[:1], (2, (WIPE, RETAINED, ev.Projection((("start", 1.0),))))]},
        "centred on theta_0",
    ),
    "noise seed in the log": ({"noise_seed": 7}, "can subtract the noise"),
    "noise seed under another name": ({"setup": {"Noise-Seed": 7}}, "'Noise-Seed'"),
    "salt in the log": ({"digest_salt": "ab"}, "'digest_salt'"),
    "noise seed deep in the log": ({"setup": {"noise": [{"secret": "ab"}]}}, "'secret'"),
    "noise of another origin": ({"noise": "simulation"}, "its noise is secret"),
    "statistics from all data": ({"normalisation": "all-data"}, "normalisation 'all-data'"),
    "statistics of unknown origin": ({"normalisation": "unknown"}, "normalisation 'unknown'"),
    "features of unknown origin": (
        {"features": "shop.nets:small", "features_digest": "0" * 64, "features_from": "unknown"},
        "carries it into every record",
    ),
    "features of nobody knows what": ({"features": "gabor"}, "features_from 'unknown'"),
    "kept local state": (
        {"unlearn": [UNLEARN[0], (2, (RETAINED,))]},
        "no wipe of it was recorded",
    ),
    "local moments": (
        {"unlearn": [UNLEARN[0], (3, (replace(RETAINED, state="local"),))]},
        "local state may depend on D_f",
    ),
    "redraw": ({"attempt": 2}, "redrawn"),
    "plain digest of the old model": ({"digests": (3,)}, "plain digest"),
    "not at u first": (
        {"unlearn": [(2, (SEALED, WIPE, NOISE, RETAINED))]},
        "no noise was added since",
    ),
    "no noise": ({"unlearn": [(U, (SEALED, WIPE, RETAINED))]}, "no noise was added since"),
    "noise after it left": (
        {"unlearn": [(U, (SEALED, WIPE, RETAINED)), (U, (NOISE,))]},
        "no noise was added since",
    ),
    "touching D_f afterwards": (
        {"unlearn": [*UNLEARN[:2], (U, (replace(PLAIN, clip=1.0, weight_decay=0.0),))]},
        "leaves u without noise",
    ),
    "other batches": ({"batching": "epochs"}, "keyed slots"),
    "an average of iterates": ({"iterate": "average"}, "iterate 'average'"),
    "coarse arithmetic": ({"precision": "bfloat16"}, "precision 'bfloat16'"),
    "32 bits": ({"precision": "float32"}, "precision 'float32'"),
    "another loss": ({"loss": "of a model with forward hooks"}, "forward hooks"),
    "noise that was not rounded": (
        {"unlearn": [(U, (SEALED, WIPE, replace(NOISE, grid=None), RETAINED)), *UNLEARN[1:]]},
        "not rounded to a public grid",
    ),
    "steps after noise without a ball": (
        {"train": [(1, (BEGIN, PLAIN, NOISE)), *TRAIN[1:]]},
        "bounds the length of the model",
    ),
    "an old token": (
        {"unlearn": [(U, (replace(SEALED, start="arrival", hop=2), *UNLEARN[0][1][1:]))]},
        "back to an old token",
    ),
    "sums after the seal": (
        {"unlearn": [(U, (*UNLEARN[0][1], ev.OwnSums("all", True, 40, 1.0)))]},
        "knows no bound",
    ),
    "an edit elsewhere, after the seal": (
        {"unlearn": [UNLEARN[0], (2, (WIPE, ev.Edited("distilled-steps", "mixed", True)))]},
        "no proof bounds what 'distilled-steps' changes",
    ),
    "an edit of retained records alone": (
        {"train": [*TRAIN, (1, (ev.Edited("importance", "retained", False),))]},
        "knows no bound",
    ),
    "a ball round something else": (
        {"unlearn": [(U, (*UNLEARN[0][1], ev.Projection((("forgotten", 1.0),))))]},
        "balls is (('forgotten', 1.0),); allowed",
    ),
    "a wipe that comes too late": (
        {
            "unlearn": [
                (U, (replace(SEALED, travels=("momentum",)), WIPE, NOISE, RETAINED, OPTIMIZER))
            ]
        },
        "no wipe of optimizer",
    ),
    "steps of negative length": (
        {"unlearn": [*UNLEARN[:2], (U, (BACKWARD, NOISE))]},
        "step_size is -1.0; allowed",
    ),
    "stopped after a look": (
        {"phases": [{"name": "train", "hops": 3}, {"name": "unlearn", "hops": 9}]},
        "12 hops were announced and 6 walked",
    ),
    "nothing announced": (
        {"phases": [{"name": "train", "hops": 3}, {"name": "unlearn"}]},
        "does not announce how many",
    ),
    "hops nobody announced": (
        {"phases": [{"name": "train", "hops": 3}, {"name": "unlearn", "hops": 2}]},
        "which was not announced so",
    ),
    "unbounded inputs": ({"feature_norm": None}, ""),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_condition_is_refused_by_name(name):
    changes, words = BROKEN[name]
    if changes.get("feature_norm", 1.0) is None:
        made = transcript()
        header = {k: v for k, v in made.header.items() if k != "feature_norm"}
        bare = Transcript(header)
        for hop in made.hops:
            bare.add(hop)
        (claim,) = claims_of(bare)
        words = "feature_norm"
    else:
        claim = the_claim(**changes)
    assert claim["grade"] == "refused", claim
    assert (claim["epsilon"], claim["delta"]) == (None, None)
    assert words in claim["reason"]


def test_a_users_own_method_is_refused_whatever_it_did():
    """Even a walk from the initial model that says that it never met the records."""
    fresh = [(1, (replace(SEALED, start="initial", carries_forgotten=False), WIPE, RETAINED))]
    assert the_claim(unlearn=fresh, method="restart")["grade"] == "exact"
    claim = the_claim(unlearn=fresh, method="package.module:method")
    assert (claim["grade"], claim["code"]) == ("refused", "own-method")


def test_hops_have_to_be_numbered_as_they_came():
    made = transcript()
    for change in ({"hop": 9}, {"path": (1,)}, {"phase": "train"}, {"phase_hop": 2}):
        forged = Transcript(made.header)
        for hop in made.hops:
            forged.add(replace(hop, **change) if hop.hop == 6 else hop)
        (claim,) = claims_of(forged)
        assert claim["grade"] == "refused", change
    hidden = Transcript(made.header)
    for hop in made.hops:
        hidden.add(hop)
    hidden.add(Hop(7, "later", 1, -1, U, (U,), 0, (PLAIN,)))
    (claim,) = claims_of(hidden)
    assert "hop 7 is number 1 of phase 'later'" in claim["reason"]


def test_after_the_seal_any_optimizer_may_follow():
    adam = replace(RETAINED, optimizer="adam", state="carried", step_size=9.0)
    moving = replace(SEALED, travels=("mean", "square"))
    unlearn = [(U, (moving, WIPE, OPTIMIZER, NOISE, adam)), (2, (WIPE, adam))]
    assert the_claim(unlearn=unlearn)["grade"] == "certified"
    early = [(U, (moving, WIPE, OPTIMIZER, adam, NOISE)), (2, (WIPE, adam))]
    assert "adam does not keep" in the_claim(unlearn=early)["reason"]


BALL = ev.Projection((("initial", 1.0),))


def ball_sealed(*unlearn, train=TRAIN):
    return the_claim(train=train, unlearn=unlearn, method="ball-seal")


def test_a_ball_seal_covers_any_network_and_optimizer():
    moving = replace(SEALED, travels=("momentum",))
    train = [(1, (replace(BEGIN, travels=("momentum",)), PLAIN)), *TRAIN[1:]]
    carried = replace(RETAINED, optimizer="momentum", momentum=0.9, state="carried")
    first = (U, (moving, WIPE, OPTIMIZER, BALL, NOISE, carried))
    assert ball_sealed(first, (2, (WIPE, carried)), train=train)["grade"] == "certified"
    late = (U, (moving, WIPE, BALL, NOISE, carried, OPTIMIZER))
    assert "no wipe of optimizer" in ball_sealed(late, train=train)["reason"]
    elsewhere = (2, (WIPE, RETAINED, ev.Projection((("start", 1.0),))))
    reason = ball_sealed((U, (SEALED, WIPE, BALL, NOISE)), elsewhere)["reason"]
    assert "centred on theta_0" in reason


def test_noise_from_the_start_covers_every_tensor_that_travels():
    visit = (U, (PLAIN, NOISE, ev.Projection((("origin", 9.0),))))
    buffers = replace(BEGIN, travels=("norm.running_mean",))
    before = (1, (BEGIN, *visit[1]))
    claim = the_claim(train=[before, visit], unlearn=[], method="noisy-start")
    assert claim["grade"] == "certified"
    claim = the_claim(train=[(1, (buffers, PLAIN)), visit], unlearn=[], method="noisy-start")
    assert "carries 'norm.running_mean'" in claim["reason"]


def test_salted_digests_may_be_published():
    made = transcript(digests=(3,))
    salted = Transcript({**made.header, "digests": "salted"})
    for hop in made.hops:
        salted.add(hop)
    assert claims_of(salted)[0]["grade"] == "certified"


REWOUND = ev.Start("unlearn", "arrival", False, (), 2)


def rewound(unlearn, **facts):
    return the_claim(unlearn=unlearn, method="rewind", **{"rewind": "first-contact", **facts})


def test_rewinding_to_first_contact_is_exact():
    claim = rewound([(U, (REWOUND, WIPE, RETAINED)), (2, (WIPE, RETAINED))])
    assert (claim["grade"], claim["epsilon"]) == ("exact", 0.0)


@pytest.mark.parametrize(
    ("unlearn", "words"),
    [
        ([(U, (replace(REWOUND, hop=1), RETAINED)), (2, (RETAINED,))], "no arrival at u"),
        ([(U, (replace(REWOUND, start="token"), RETAINED)), (2, (RETAINED,))], "did not begin"),
        ([(U, (REWOUND, RETAINED))], "training had 2 left"),
        ([(2, (REWOUND, RETAINED)), (1, (RETAINED,))], "from peer 2"),
        ([(U, (REWOUND, PLAIN)), (2, (RETAINED,))], "touched the forgotten"),
        ([(U, (REWOUND, WIPE, RETAINED)), (2, (RETAINED,))], "no wipe of it was recorded"),
        (
            [(U, (REWOUND, WIPE, RETAINED)), (2, (WIPE, replace(RETAINED, step_size=0.5)))],
            "not what training did in its place, in hop 3",
        ),
        (
            [(U, (REWOUND, WIPE, RETAINED)), (2, (WIPE, RETAINED, NOISE))],
            "not what training did in its place, in hop 3",
        ),
        ([], "did not go back"),
    ],
)
def test_a_rewind_that_is_none_is_refused(unlearn, words):
    claim = rewound(unlearn)
    assert claim["grade"] == "refused"
    assert words in claim["reason"]


def test_a_second_contact_is_no_first_one():
    train = [(U, (BEGIN, PLAIN)), (U, (PLAIN,)), (2, (PLAIN,))]
    unlearn = [(U, (REWOUND, WIPE, RETAINED)), (2, (WIPE, RETAINED))]
    claim = rewound(unlearn, train=train)
    assert "u was visited before" in claim["reason"]
    claim = rewound(unlearn, train=train, rewind="first-use", batching="epochs")
    assert claim["grade"] == "exact"
    assert any("own log" in text for text in claim["assumptions"])


def test_a_restart_needs_the_initial_model():
    anew = replace(SEALED, start="initial", carries_forgotten=False)
    walk = [(3, (anew, RETAINED)), (2, (WIPE, RETAINED)), (U, (WIPE, RETAINED))]
    assert the_claim(unlearn=walk, method="restart")["grade"] == "exact"
    kept = [(3, (anew, RETAINED)), (2, (RETAINED,))]
    assert "no wipe" in the_claim(unlearn=kept, method="restart")["reason"]
    old = [(3, (replace(anew, start="token"), RETAINED))]
    assert "not from the initial model" in the_claim(unlearn=old, method="restart")["reason"]


SUMS = ev.OwnSums("all", True, 40, 1.0)
OWN = ev.OwnSums("retained", False, 40, 1.0)


@pytest.mark.parametrize(
    ("train", "unlearn", "words"),
    [
        ([(1, (BEGIN, SUMS)), (U, (SUMS,))], [(U, (SEALED, OWN))], ""),
        ([(1, (BEGIN, SUMS)), (U, (SUMS,))], [(U, (SEALED, SUMS))], "the forgotten ones too"),
        ([(1, (BEGIN, SUMS)), (U, (PLAIN,))], [(U, (SEALED, OWN))], "more than a function of sums"),
        (
            [(1, (BEGIN, SUMS)), (U, (SUMS,))],
            [(U, (SEALED, replace(OWN, strength=2.0)))],
            "differ in precision",
        ),
    ],
)
def test_sums(train, unlearn, words):
    claim = the_claim(train=train, unlearn=unlearn, method="sums")
    assert claim["grade"] == ("refused" if words else "exact")
    assert words in claim["reason"]


def test_nothing_to_forget_is_nothing_to_claim():
    assert claims_of(transcript(forget=0)) == []


NOMINAL = {
    "formula": "corollary-5.2",
    "accountant": "paper",
    "epsilon": 1.0,
    "delta": 1e-5,
    "sigma": 0.8410,
    "clip": 0.5,
    "hops": 3,
    "p": 0.5,
    "reason": "the paper's",
}


def test_a_nominal_number_that_its_formula_does_not_give_is_refused():
    (claim, _) = claims_of(transcript(nominal=[NOMINAL]))
    assert claim["grade"] == "refused"
    assert "it gives sigma" in claim["reason"]
    from unwalk.privacy.nominal import nominal_sigma

    right = {**NOMINAL, "sigma": nominal_sigma(1.0, 1e-5, 0.5, 3, 0.5, 4)}
    (claim, _) = claims_of(transcript(nominal=[{**right, "hops": 3}], unlearn=UNLEARN[1:]))
    assert claim["grade"] == "refused"
    quiet = [(2, (SEALED, RETAINED)), (1, (RETAINED,)), (3, (RETAINED,))]
    (claim, other) = claims_of(transcript(nominal=[right], unlearn=quiet, method="rrdu"))
    assert (claim["grade"], claim["epsilon"]) == ("nominal", 1.0)
    assert "the starting model was trained on D_f, and no noise was added since" in other["reason"]
