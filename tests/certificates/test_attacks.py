"""What an attacker broke: logs whose own events contradict the claim, settings made from D_f."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.certificates.test_conditions import (
    BEGIN,
    NOISE,
    PLAIN,
    RETAINED,
    SEALED,
    SUMS,
    TRAIN,
    UNLEARN,
    WIPE,
    U,
    the_claim,
)
from unwalk.core import events as ev

BUFFERS = ("norm.running_mean", "norm.running_var")
CLEAN = ev.Start("unlearn", "token", False, ())
TINY = ev.GaussianNoise(1e-90, None, "secret", grid=None)


def graded(**changes):
    claim = the_claim(**changes)
    return claim["grade"], claim["code"]


@pytest.mark.parametrize("kind", [kind for kind in ev.BATCHING if kind != "slots"])
def test_the_ledger_follows_slots_alone_whatever_the_header_says_of_training(kind):
    """An earlier request's visits may have averaged over u's records, whose number is D_f's."""
    other = replace(PLAIN, batching=kind)
    for place in range(3):
        train = list(TRAIN)
        receiver, events = train[place]
        train[place] = (receiver, (*events[:-1], other))
        assert graded(train=train) == ("refused", "batching")
    sealing = (U, (SEALED, WIPE, replace(RETAINED, batching=kind), NOISE, RETAINED))
    assert graded(unlearn=[sealing, *UNLEARN[1:]]) == ("refused", "batching")
    after = (U, (SEALED, WIPE, NOISE, replace(RETAINED, batching=kind)))
    assert graded(unlearn=[after, *UNLEARN[1:]]) == ("certified", None)


@pytest.mark.parametrize("changes", [{"batch": 19}, {"batch": 21}, {"batch": 10, "minibatches": 2}])
def test_slots_of_another_size_are_refused(changes):
    """Sums that are divided by another number than the header's weigh a record otherwise."""
    train = [TRAIN[0], (U, (replace(PLAIN, **changes),)), TRAIN[2]]
    assert graded(train=train) == ("refused", "batching")


def test_noise_of_another_peer_does_not_clear_sums_of_forgotten_records():
    train = [(U, (BEGIN, SUMS)), (1, (SUMS,)), (2, (SUMS, TINY))]
    unlearn = [(1, (CLEAN, WIPE, PLAIN)), (2, (WIPE, PLAIN))]
    found = graded(train=train, unlearn=unlearn, method="finetune")
    assert found == ("refused", "start-contradicted")
    own = [(U, (BEGIN, SUMS, TINY)), (1, (PLAIN,))]
    found = graded(train=own, unlearn=unlearn, method="finetune")
    assert found == ("refused", "start-contradicted")


def test_a_plain_digest_after_another_peers_noise_is_refused():
    noise = replace(NOISE, std=1e-9)
    train = [(U, (BEGIN, PLAIN)), (1, (noise, PLAIN)), (2, (PLAIN,))]
    anew = [(1, (ev.Start("unlearn", "initial", False, ()), WIPE, RETAINED))]
    facts = {"train": train, "unlearn": anew, "method": "restart"}
    assert graded(**facts) == ("exact", None)
    assert graded(**facts, digests=(2,)) == ("refused", "digest")


def test_sums_in_the_kept_beginning_used_every_record():
    train = [(U, (BEGIN, SUMS)), (1, (PLAIN,)), (U, (PLAIN,)), (1, (PLAIN,))]
    back = ev.Start("unlearn", "arrival", False, (), 3)
    unlearn = [(U, (back, WIPE, RETAINED)), (1, (WIPE, RETAINED))]
    facts = {"method": "rewind", "rewind": "first-use", "emptied": False}
    for batching in ("full", "epochs"):
        found = graded(train=train, unlearn=unlearn, batching=batching, **facts)
        assert found == ("refused", "not-a-rewind")
    assert graded(train=train, unlearn=[], batching="epochs", **facts)[1] == "not-a-rewind"
    used = [(U, (BEGIN, PLAIN)), *train[1:]]
    assert graded(train=used, unlearn=unlearn, batching="epochs", **facts) == ("exact", None)


@pytest.mark.parametrize("kind", ["full", "slots", "other"])
def test_each_visit_of_the_kept_beginning_says_how_it_drew(kind):
    drew = replace(PLAIN, batching="epochs")
    kept = replace(RETAINED, batching="epochs")
    train = [(U, (BEGIN, replace(PLAIN, batching=kind))), (1, (drew,)), (U, (drew,)), (1, (drew,))]
    back = ev.Start("unlearn", "arrival", False, (), 3)
    unlearn = [(U, (back, WIPE, kept)), (1, (WIPE, kept))]
    facts = {"method": "rewind", "rewind": "first-use", "emptied": False}
    assert graded(train=train, unlearn=unlearn, **facts) == ("refused", "not-a-rewind")


def sealing(*events, travels=BUFFERS):
    start = replace(SEALED, travels=travels)
    wipes = (WIPE, ev.Wipe("buffers"))
    first = (U, (start, *wipes, *events))
    return {"unlearn": [first, (1, (WIPE, RETAINED))], "method": "ball-seal", "digests": ()}


def test_steps_before_a_ball_seals_noise_fill_buffers_again():
    ball, noise = ev.Projection((("origin", 1.0),)), replace(NOISE, std=8.0)
    assert graded(**sealing(RETAINED, ball, noise)) == ("refused", "travelling-state")
    twice = (ball, noise, RETAINED, ball, noise)
    assert graded(**sealing(*twice)) == ("refused", "travelling-state")
    assert graded(**sealing(ball, noise, RETAINED)) == ("certified", None)
    assert graded(**sealing(RETAINED, ball, noise, travels=())) == ("certified", None)


def test_steps_before_a_ledger_seals_noise_fill_buffers_again():
    filled = sealing(RETAINED, NOISE) | {"method": "seal"}
    assert graded(**filled) == ("refused", "travelling-state")
    assert graded(**sealing(NOISE, RETAINED) | {"method": "seal"}) == ("certified", None)
