"""Rewinding is exact: laws enumerated on tiny cases, and compared by a test on digits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from tests.tiny import TinyTask, descent, plan
from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import Forget, Records, StepRule, Visit
from unwalk.core.seeds import Draws, PublicSeeds
from unwalk.engines.fleet import Fleet
from unwalk.engines.inprocess import InProcess
from unwalk.methods.network_sgd import Descent, LocalWork, NetworkSGD, slice_of
from unwalk.methods.restart import Restart
from unwalk.methods.retrain import Retrain
from unwalk.methods.rewind import Rewind, first_use
from unwalk.tasks import Deletion, build_task

EVERYTHING, RETAINED = np.array([0, 1, 2]), np.array([0, 1])


class Script:
    """A generator whose draws are given: each call takes the next outcome."""

    def __init__(self, outcomes: list[Any]) -> None:
        self.outcomes = list(outcomes)

    def choice(self, rows: Any, size: Any, replace: bool = True) -> Any:
        return rows[np.array(self.outcomes.pop(0))].reshape(size)

    def permutation(self, rows: Any) -> Any:
        return rows[np.array(self.outcomes.pop(0))]


def independent(count: int, size: int) -> list[Any]:
    """All ordered draws with replacement of ``size`` rows out of ``count``."""
    return list(itertools.product(range(count), repeat=size))


def orders(count: int) -> list[Any]:
    return list(itertools.permutations(range(count)))


def law(outcomes: Iterator[tuple[tuple[Any, ...], Fraction]]) -> dict[Any, Fraction]:
    found: dict[Any, Fraction] = {}
    for value, weight in outcomes:
        found[value] = found.get(value, Fraction(0)) + weight
    return found


def right(work: LocalWork, *rows_and_coins: Any) -> Any:
    return work.without(*rows_and_coins)


def visited(
    work: LocalWork,
    draws: Callable[[int], list[Any]],
    parts: int = 1,
    without: Callable[..., Any] = right,
) -> Iterator[tuple[tuple[Any, ...], Fraction]]:
    """Two visits at u under first use: batches of both, over every outcome of every coin."""
    old, new = draws(len(EVERYTHING)), draws(len(RETAINED))
    coins = [old] * (2 * parts) + [new] * (2 * parts)
    weight = Fraction(1, np.prod([len(c) for c in coins], dtype=object))
    records = Records(3, np.array([2]))
    for outcome in itertools.product(*coins):
        first, second = outcome[:parts], outcome[parts : 2 * parts]
        fresh = outcome[2 * parts : 3 * parts], outcome[3 * parts :]
        training = {1: first, 2: second}
        start = first_use(
            Descent(StepRule(), work),
            records,
            [1, 2],
            lambda hop, t=training: Script(list(t[hop])),
        )
        batches = []
        for hop, anew in ((1, fresh[0]), (2, fresh[1])):
            if start is None or hop < start:
                made, _ = work.batches(EVERYTHING, Script(list(training[hop])))  # type: ignore[arg-type]
            elif hop == start:
                scripts = Script(list(training[hop])), Script(list(anew))
                made, _ = without(work, EVERYTHING, RETAINED, *scripts)
            else:
                made, _ = work.batches(RETAINED, Script(list(anew)))  # type: ignore[arg-type]
            batches.append(tuple(made.reshape(-1).tolist()))
        yield tuple(batches), weight


def retrained(
    work: LocalWork, draws: Callable[[int], list[Any]], parts: int = 1
) -> Iterator[tuple[tuple[Any, ...], Fraction]]:
    coins = [draws(len(RETAINED))] * (2 * parts)
    weight = Fraction(1, np.prod([len(c) for c in coins], dtype=object))
    for outcome in itertools.product(*coins):
        batches = [
            tuple(work.batches(RETAINED, Script(list(part)))[0].reshape(-1).tolist())  # type: ignore[arg-type]
            for part in (outcome[:parts], outcome[parts:])
        ]
        yield tuple(batches), weight


@pytest.mark.parametrize(
    ("work", "draws", "parts"),
    [
        (LocalWork("iid", batch=1, minibatches=2), lambda n: independent(n, 2), 1),
        (LocalWork("iid", batch=2, minibatches=1), lambda n: independent(n, 2), 1),
        (LocalWork("averaged", batch=1, minibatches=2), lambda n: independent(n, 1), 2),
        (LocalWork("epochs", batch=1), orders, 1),
        (LocalWork("epochs", batch=2), orders, 1),
    ],
    ids=["iid", "iid pairs", "averaged", "shuffled", "shuffled pairs"],
)
def test_first_use_has_the_law_of_retraining(work, draws, parts):
    mine, theirs = law(visited(work, draws, parts)), law(retrained(work, draws, parts))
    assert sum(mine.values()) == sum(theirs.values()) == 1
    assert mine == theirs


def redrawn_whole(work: LocalWork, everything: Any, retained: Any, old: Any, new: Any) -> Any:
    """Not exact: batches before the dirty one, then a whole fresh pass."""
    drawn, _ = work.batches(everything, old)
    flat, anew = (b.reshape(-1, b.shape[-1]) for b in (drawn, work.batches(retained, new)[0]))
    first = int(np.flatnonzero(~np.isin(flat, retained).all(-1))[0])
    return np.concatenate([flat[:first], anew])[: len(anew)], None


def not_redrawn(work: LocalWork, everything: Any, retained: Any, old: Any, new: Any) -> Any:
    """Not exact: the dirty batch alone is left out."""
    drawn, _ = work.batches(everything, old)
    flat = drawn.reshape(-1, drawn.shape[-1])
    return flat[np.isin(flat, retained).all(-1)], None


@pytest.mark.parametrize(
    ("wrong", "work", "draws"),
    [
        (redrawn_whole, LocalWork("epochs", batch=1), orders),
        (not_redrawn, LocalWork("epochs", batch=2), orders),
        (not_redrawn, LocalWork("iid", batch=1, minibatches=2), lambda n: independent(n, 2)),
    ],
    ids=["a whole fresh pass", "a batch left out", "an independent batch left out"],
)
def test_the_enumeration_finds_what_is_not_exact(wrong, work, draws):
    mine, theirs = law(visited(work, draws, 1, wrong)), law(retrained(work, draws))
    none = Fraction(0)
    apart = sum(abs(mine.get(k, none) - theirs.get(k, none)) for k in {*mine, *theirs}) / 2
    assert apart >= Fraction(1, 6)


def test_no_coin_of_a_dirty_batch_is_used_again():
    """Otherwise the difference of both models would show the forgotten gradients."""
    everything = np.arange(40)
    for work in (LocalWork("epochs", batch=4), LocalWork("slots", slots=4, capacity=40)):
        old, _ = work.batches(everything, np.random.default_rng(1))
        flat = old.reshape(-1, old.shape[-1])
        last = int(flat[3][0])
        retained = np.setdiff1d(everything, [last])
        made, _ = work.without(
            everything, retained, np.random.default_rng(1), np.random.default_rng(2)
        )
        new = made.reshape(-1, made.shape[-1])
        if work.kind == "epochs":
            assert np.array_equal(new[:3], flat[:3])
            assert len(set(new.reshape(-1).tolist())) == new.size
        assert set(new[new >= 0].tolist()) <= set(retained.tolist())
        assert not {tuple(sorted(b)) for b in new[3:]} & {tuple(sorted(b)) for b in flat[3:]}


def test_a_hole_in_the_epoch_has_another_law():
    """What is not exact: the dirty batch left out, and all others kept."""
    work = LocalWork("epochs", batch=1)

    def holes() -> Iterator[tuple[tuple[Any, ...], Fraction]]:
        for order in orders(3):
            batches, _ = work.batches(EVERYTHING, Script([order]))  # type: ignore[arg-type]
            kept = tuple(row if row in RETAINED else None for row in batches.reshape(-1).tolist())
            yield kept, Fraction(1, 6)

    wanted = {(0, 1): Fraction(1, 2), (1, 0): Fraction(1, 2)}
    mine = law(holes())
    keys = {*mine, *wanted}
    none = Fraction(0)
    apart = [abs(mine.get(k, none) - wanted.get(k, none)) for k in keys]
    assert sum(apart) == 2  # total variation 1


def test_slots_leave_holes_and_the_others_where_they_were():
    work = LocalWork("slots", slots=3, capacity=12)
    rows = np.arange(11)
    kept = np.setdiff1d(rows, [4, 7])
    whole, weights = work.batches(rows, np.random.default_rng(5))
    holes, fewer = work.batches(kept, np.random.default_rng(5))
    assert whole.shape == holes.shape == (3, 1, 4)
    for before, after in zip(whole[:, 0], holes[:, 0], strict=True):
        assert [r for r in before if r in kept] == [r for r in after if r >= 0]
    assert set(np.unique(weights)) <= {0.0, 0.25}
    assert fewer.sum() == pytest.approx(9 / 4)
    with pytest.raises(Exception, match="capacity is 12"):
        work.batches(np.array([12]), np.random.default_rng(0))


TASK = TinyTask(peers=3, size=12, forgotten={0: 6})
FLAT = build_task(
    "digits-flat",
    peers=3,
    partition="label",
    options={"classes_per_peer": 4},
    forget=Deletion("class", label=6),  # of which nobody else has a record
    dtype=torch.float64,
)
HOPS = 7


def train(work: LocalWork) -> Phase:
    return Phase("train", NetworkSGD(Descent(descent().rule, work)), walks.Uniform(), HOPS)


def rewound(seed: int, work: LocalWork, way: str, engine: Any, task: Any = TASK) -> Any:
    keeps = "first" if way == "first-contact" else "all"
    first = replaced(plan(train(work), task=task, seed=seed), keeps)
    (trained,) = engine.run([first])
    seeds = PublicSeeds(seed)

    def coins(hop: int) -> Draws:
        return seeds.stream("train", "batches", hop)

    visits = [hop.hop for hop in trained.transcript.hops if hop.receiver == 0]
    if way == "too-late":
        visits, way = visits[1:], "first-contact"
    start = visits[0] if visits else None
    if way == "first-use":
        start = first_use(Descent(descent().rule, work), task.records(0), visits, coins)
    if start is None:
        return trained
    method = Rewind(Descent(descent().rule, work), start, way, coins)
    again = Phase(
        "unlearn",
        method,
        walks.FirstTo(0, walks.Uniform()),
        HOPS - start + 1,
        start="arrival",
        start_hop=start,
    )
    second = replaced(plan(train(work), again, task=task, seed=seed), keeps)
    progress = trained.progress.fork(second.header(), end_digest=False)
    (outcome,) = engine.run([second], None, {0: progress})
    return outcome


def replaced(made: Any, keeps: str) -> Any:
    from dataclasses import replace

    return replace(made, keeps=keeps)


@pytest.mark.parametrize("engine", [InProcess(), Fleet()], ids=["inprocess", "fleet"])
def test_the_walk_goes_back_to_the_arrival(engine):
    work = LocalWork("iid", batch=2, minibatches=3)
    outcome = rewound(3, work, "first-contact", engine)
    hops = outcome.transcript.hops
    start = hops[HOPS].events[0]
    assert start.start == "arrival"
    assert hops[start.hop - 1].receiver == 0
    assert all(hop.receiver != 0 for hop in hops[: start.hop - 1])
    assert len(hops) == HOPS + HOPS - start.hop + 1
    assert hops[HOPS].receiver == 0
    assert all(not e.touched for h in hops[HOPS:] for e in h.events if e.kind == "gradient-steps")
    before = plan(
        Phase("train", train(work).method, walks.Uniform(), start.hop - 1), task=TASK, seed=3
    )
    if start.hop > 1:
        (prefix,) = engine.run([before])
        arrived = outcome.progress.arrivals[start.hop]
        assert torch.equal(arrived.token.parameters, prefix.token.parameters)


@pytest.mark.parametrize(
    ("way", "work"),
    [
        ("first-contact", LocalWork("iid", batch=8, minibatches=2)),
        ("first-use", LocalWork("iid", batch=8, minibatches=2)),
        ("first-use", LocalWork("epochs", batch=128)),
        ("too-late", LocalWork("iid", batch=8, minibatches=2)),
    ],
    ids=["first contact", "first use", "first use, shuffled", "second contact"],
)
def test_models_are_distributed_as_retrained_ones(way, work):
    """Two-sample tests on digits, which can tell: models that were not rewound fail them, and so
    do those that went back to the second contact only."""
    seeds, task = 80, FLAT
    runs = [rewound(s, work, way, InProcess(), task) for s in range(seeds)]
    mine = np.array([run.token.parameters.numpy() for run in runs])
    phase = Phase("retrain", Retrain(Descent(descent().rule, work)), walks.Uniform(), HOPS)

    def models(what: Phase, first: int) -> Any:
        plans = [plan(what, task=task, seed=first + s) for s in range(seeds)]
        return np.array([o.token.parameters.numpy().copy() for o in Fleet().run(plans)])

    theirs, kept = models(phase, 10_000), models(train(work), 20_000)
    far = kept.mean(0) - theirs.mean(0)
    rng = np.random.default_rng(0)
    directions = [far, *rng.normal(size=(8, len(far)))]
    values = [ks_2samp(mine @ v, theirs @ v).pvalue for v in directions]
    assert ks_2samp(kept @ far, theirs @ far).pvalue < 1e-3
    if way != "too-late":
        assert min(values) > 0.01 / len(directions)
    else:
        assert min(values) < 1e-9


def test_a_restart_wipes_and_begins_from_the_initial_model():
    work = LocalWork("epochs", batch=4)
    base = Descent(descent(optimizer="adam", rate=0.01, state="local").rule, work)
    first = Phase("train", NetworkSGD(base), walks.Fixed((0, 1, 2)), 3)
    again = Phase(
        "unlearn", Restart(base, local_steps=2), walks.FirstTo(0, walks.Uniform()), 3,
        start="initial",
    )  # fmt: skip
    (outcome,) = InProcess().run([plan(first, again, task=TASK)])
    hops = outcome.transcript.hops[3:]
    assert hops[0].events[0].start == "initial"
    seen: set[int] = set()
    for hop in hops:
        wiped = any(e.kind == "wipe" and e.what == "local" for e in hop.events)
        assert wiped == (hop.receiver not in seen)
        seen.add(hop.receiver)
    assert sum(e.kind == "gradient-steps" for e in hops[0].events) == 3
    (alone,) = InProcess().run([plan(again, task=TASK)])
    assert torch.equal(outcome.token.parameters, alone.token.parameters)


def test_schedules_go_on_where_they_were():
    from unwalk.methods.network_sgd import Schedule

    rule = descent().rule
    base = Descent(rule, LocalWork("iid", batch=1, minibatches=1), Schedule("inverse", 0.1))
    visit = Visit(9, 2, 1, False, Records(4), np.random.default_rng(0))
    wipe, steps = Rewind(base, 5).visit(visit)
    assert wipe == Forget("local")
    assert steps.step_size == pytest.approx(1 / 6)  # type: ignore[union-attr]


def test_slices_open_one_after_the_other_whoever_is_forgotten():
    work = LocalWork("iid", batch=1, minibatches=4)
    base = Descent(StepRule(), work, slices=4, horizon=20)
    rows = np.arange(200)
    sizes = [base.taking_part(rows, hop).size for hop in range(1, 21)]
    assert sizes == sorted(sizes)
    assert sizes[0] < 80 < sizes[-1] == 200
    assert sizes[4] < sizes[5]
    kept = np.setdiff1d(rows, [3, 50, 51])
    for hop in (1, 7, 13):
        both = np.intersect1d(base.taking_part(rows, hop), kept)
        assert np.array_equal(base.taking_part(kept, hop), both)


def test_a_record_of_a_late_slice_is_used_late():
    work = LocalWork("epochs", batch=1)
    base = Descent(StepRule(), work, slices=4, horizon=20)
    slices = slice_of(np.arange(40), 4)
    last = int(np.flatnonzero(slices == 3)[0])
    records = Records(40, np.array([last]))
    found = first_use(base, records, list(range(1, 21)), lambda hop: np.random.default_rng(hop))
    assert found == 16
    plain = Descent(StepRule(), work)
    assert first_use(plain, records, [1, 2], lambda hop: np.random.default_rng(hop)) == 1
