"""What an attacker broke: logs whose own events contradict the claim, settings made from D_f."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import unwalk
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
from unwalk.core.errors import InvalidInput
from unwalk.runs.assemble import assemble, capacity, resolve
from unwalk.runs.run import run
from unwalk.tasks import build_task

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


# Settings that were made from the records to be forgotten


SLOTTED: dict[str, Any] = {
    "peers": 4,
    "forget.peer": 0,
    "method": "retrain",
    "compare": [],
    "data.normalisation": "published",
    "train.work": "slots",
    "train.optimizer": "sgd",
    "train.hops": 5,
    "unlearn.hops": 5,
}


def arrays(sizes, forget):
    """Arrays of groups of these sizes; class 2 is that of the records to be forgotten."""
    x = np.random.default_rng(0).normal(size=(260, 4))
    y = np.where(np.arange(260) < 180, 2, np.arange(260) % 2)
    keep = np.arange(260)[260 - sum(sizes) :]
    return unwalk.from_arrays(
        x[keep],
        y[keep],
        test=(x[-8:], y[-8:]),
        classes=3,
        groups=np.repeat(np.arange(len(sizes)), sizes),
        model="logistic",
        dtype=torch.float64,
        forget=forget,
    )


def worlds(**more):
    """The claim, and the model with the records forgotten and without their ever being there."""
    sizes = ([200, 20, 20, 20], unwalk.Deletion("class", label=2)), ([20] * 4, None)
    runs = []
    for dealt, forget in sizes:
        task = arrays(dealt, forget or unwalk.Deletion("nothing"))
        runs.append(run(resolve({**SLOTTED, "task": task.name, **more}), task=task))
    models = [torch.cat([p.detach().reshape(-1) for p in r.model.parameters()]) for r in runs]
    return runs[0].result["claims"][-1], *models


def test_the_capacity_is_not_counted_on_the_data():
    """By the largest peer's records, those to be forgotten among them, both models differed."""
    with pytest.raises(InvalidInput, match=r"train\.capacity is not set; of task 'own' nothing is"):
        worlds()
    claim, with_, without = worlds(**{"train.capacity": 200})
    assert claim["grade"] == "exact"
    assert torch.equal(with_, without)


def test_a_published_capacity_is_a_constant_that_fits_the_largest_peer():
    for peers in (4, 10, 7):
        task = build_task("digits-flat", peers=peers)
        assert capacity(task) == -(-1438 // peers)
        assert capacity(task) == max(task.records(peer).size for peer in range(peers))
    assert capacity(build_task("blobs", peers=3, options={"records": 27})) == 27
    fewer = build_task("digits-flat", peers=4)
    parts = [part[:-30] for part in fewer.holdings.parts]  # type: ignore[attr-defined]
    gone = replace(fewer, holdings=replace(fewer.holdings, parts=parts))  # type: ignore[type-var]
    assert capacity(gone) == capacity(fewer)


@pytest.mark.parametrize("partition", ["dirichlet", "label", "quantity"])
def test_a_share_that_depends_on_the_records_needs_a_capacity(partition):
    given: dict[str, Any] = {"preset": "certified", "task": "digits-flat", "peers": 5}
    skewed = {**given, "data.partition": partition}
    with pytest.raises(InvalidInput, match=f"with partition '{partition}' a peer's share depends"):
        assemble(resolve(skewed))
    made = assemble(resolve({**skewed, "train.capacity": 1438}))
    assert made.config.train.capacity == 1438


def test_row_numbers_are_named_as_an_assumption():
    assert "row numbers are taken as given" in str(the_claim()["assumptions"])
    assert "goes to its slot" in str(the_claim()["assumptions"])
    train = [(1, (BEGIN, PLAIN)), (U, (PLAIN,)), (1, (PLAIN,))]
    back = ev.Start("unlearn", "arrival", False, (), 2)
    unlearn = [(U, (back, WIPE, RETAINED)), (1, (WIPE, RETAINED))]
    facts = {"train": train, "unlearn": unlearn, "method": "rewind", "rewind": "first-use"}
    sliced = the_claim(**facts, batching="full", slices=4)
    assert sliced["grade"] == "exact"
    assert "goes to its slice" in str(sliced["assumptions"])
    plain = the_claim(**facts, batching="epochs", slices=1)
    assert "row numbers" not in str(plain["assumptions"])


def test_retraining_in_slices_names_row_numbers_too():
    given = {**SLOTTED, "train.work": "full", "train.slices": 2}
    task = arrays([200, 20, 20, 20], unwalk.Deletion("class", label=2))
    found = run(resolve({**given, "task": task.name}), task=task).result["claims"][-1]
    assert found["grade"] == "exact"
    assert "goes to its slice" in str(found["assumptions"])
