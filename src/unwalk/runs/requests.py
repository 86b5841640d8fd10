"""What is settled when a deletion request arrives: noise, and from where the walk goes on.

Everything here is computed from the training transcript's public facts and events, and from the
request's size: the same in a world without the forgotten records.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from unwalk import walks
from unwalk.core import events as ev
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.plan import Phase
from unwalk.core.program import Project, Steps, Visit
from unwalk.core.seeds import PublicSeeds
from unwalk.core.transcript import Hop, Transcript
from unwalk.core.workspace import build_model
from unwalk.engines.execute import steps_event
from unwalk.methods.local_work import Descent
from unwalk.methods.rewind import first_use
from unwalk.methods.sisa import hops_of, members
from unwalk.privacy.gaussian import gaussian_mu
from unwalk.privacy.ledger import Ledger, LinearHead, SlotSteps
from unwalk.privacy.seal import seal_steps
from unwalk.privacy.stability import Facts, ledger_before
from unwalk.runs.config import Config
from unwalk.runs.entries import (
    GOING_BACK,
    Decided,
    shard_descent,
    shard_name,
    shard_walk,
    touched_shard,
    train_descent,
    train_phase,
    unlearn_descent,
    way_back,
)
from unwalk.runs.proved import later_correction
from unwalk.tasks import ShardedTask

ROUNDING = 1.0 + 1e-12
"""Noise is made larger by this, so that no rounding of the accountant's takes it below."""
LEAST_STD, FINEST = 2.0**-900, 2.0**-44
"""Less noise than this, or than so small a part of the model's length, is not carried by a grid."""


def decide(
    method: str,
    config: Config,
    task: ShardedTask,
    header: dict[str, Any],
    trained: Transcript | None,
) -> Decided:
    """What the method needs to know; before training, what can be refused already is.

    With a noise std that was given, nothing is refused here: the certificate will say it.
    """
    if method in GOING_BACK:
        return _rewind(method, config, task, trained)
    if method == "ball-seal":
        seal = config.seal
        steps = seal_steps(config.unlearn.epsilon, config.unlearn.delta, seal.ratio)
        return Decided(std=2.0 * seal.radius / seal.ratio * ROUNDING, steps=steps)
    if method == "noisy-start":
        return _noisy_start(config, task, header)
    if method in ("seal", "release"):
        return _ledger(method, config, task, header, trained)
    return Decided()


def _ledger(
    method: str,
    config: Config,
    task: ShardedTask,
    header: dict[str, Any],
    trained: Transcript | None,
) -> Decided:
    given = config.seal.std if method == "seal" else None
    if trained is None:
        if given is None:
            _check_work(method, config)
            probe(task, header, train_phase(config), config.forget.peer)
        return Decided(std=1.0 if given is None else given, later_std=_later(config, task)[1])
    share, later_std = _later(config, task)
    try:
        ledger, head = _ledger_at_noise(method, config, header, trained)
    except Refused:
        if given is None:
            raise
        return Decided(std=given, later_std=later_std)
    if method == "release":
        return Decided(std=_std(ledger, config, 1.0))
    std = _std(ledger, config, share) if given is None else given
    return Decided(std=std, later_std=later_std, reach=_reach(ledger.norm, head, std, 1))


def _check_work(method: str, config: Config) -> None:
    """Refuse steps before the noise, after training, that the ledger could not follow."""
    kind = unlearn_descent(config).work.kind
    if kind != "slots" and (method == "release" or config.seal.local_epochs):
        before = "seal.local_epochs" if method == "seal" else "the walk of a release"
        raise Refused(
            f"unlearn.work is {kind!r}, and the steps of {before} come before the noise: the "
            "ledger follows keyed slots.",
            "batching",
        )


def _ledger_at_noise(
    method: str, config: Config, header: dict[str, Any], trained: Transcript
) -> tuple[Ledger, LinearHead]:
    """The ledger just before the noise, as the accountant will find it."""
    walked = Transcript({**trained.header, **header}, list(trained.hops))
    ledger = ledger_before(walked, len(trained.hops) + 1)
    facts, descent = Facts.of(walked), unlearn_descent(config)
    if method == "release":
        for hop in range(1, config.unlearn.hops + 1):
            ledger = ledger.steps(_slot_steps(facts, descent, descent.work.epochs, hop), facts.head)
    elif config.seal.local_epochs:
        work = _slot_steps(facts, descent, config.seal.local_epochs, 1)
        ledger = ledger.steps(work, facts.head)
    return ledger, facts.head


def _std(ledger: Ledger, config: Config, share: float) -> float:
    """Noise for the ledger's distance; never less than a grid carries beside the model."""
    mu = gaussian_mu(config.unlearn.epsilon, config.unlearn.delta) * math.sqrt(share)
    return max(ledger.distance / mu * ROUNDING, ledger.norm * FINEST, LEAST_STD)


def _reach(norm: float, head: LinearHead, std: float, visits: int) -> float:
    """The radius of a public ball round the origin that a model of this length does not leave
    after so many noises, but for a chance below 1e-20."""
    return norm + std * math.sqrt(visits) * (math.sqrt(head.parameters) + 10.0)


def _slot_steps(facts: Facts, descent: Descent, epochs: int, hop: int) -> SlotSteps:
    """A visit's passes over retained records at a hop of the phase, as the ledger counts them."""
    return SlotSteps(
        epochs=epochs,
        slots=facts.slots,
        step_size=descent.schedule.at(hop, descent.rule.learning_rate),
        nominal_batch=facts.nominal_batch,
        slot_cap=facts.slot_cap,
        weight_decay=descent.rule.weight_decay,
    )


def _later(config: Config, task: ShardedTask) -> tuple[float, float]:
    """The seal's share of the budget, and the noise of each LIGHTWEIGHT visit after it."""
    correction = later_correction(config)
    if correction is None:
        return 1.0, 0.0
    visit = _visit(task, config.forget.peer, np.random.default_rng(0))
    steps = correction.steps(visit, correction.rule.learning_rate)
    moved = correction.sensitivity(steps) or 0.0
    left = (1.0 - config.seal.share) / config.seal.visits
    mu = gaussian_mu(config.unlearn.epsilon, config.unlearn.delta) * math.sqrt(left)
    return config.seal.share, moved / mu * ROUNDING


def _noisy_start(config: Config, task: ShardedTask, header: dict[str, Any]) -> Decided:
    """Noise of a visit for what a visit can push the worlds apart, its rounding included.

    Rounding depends on the ball that keeps the model short, which depends on the noise, weakly:
    a few rounds settle both.
    """
    given, descent = config.noisy_start, train_descent(config)
    if given.std is None:
        probe(task, header, train_phase(config), config.forget.peer)
    try:
        facts = Facts.of(Transcript(header))
    except Refused:
        if given.std is None:
            raise
        return Decided(std=given.std)
    usual = config.train.hops / task.peers
    visits = given.visits or math.ceil(usual + 2.0 * math.sqrt(usual))
    works = {
        replace(
            _slot_steps(facts, descent, descent.work.epochs, hop),
            forgotten=max(facts.forgotten, 1),
        )
        for hop in range(1, config.train.hops + 1)
    }
    push = max(work.push(facts.loss) for work in works) * facts.slots * descent.work.epochs
    walked = facts.head.initial_norm + config.train.hops * push
    mu = gaussian_mu(config.unlearn.epsilon, config.unlearn.delta) / math.sqrt(visits)
    std = given.std or 0.0
    reach = _reach(walked, facts.head, std, config.train.hops)
    for _ in range(3 if given.std is None else 0):
        start = Ledger(0.0, 2.0 * reach)
        apart = max(start.steps(work, facts.head).distance for work in works)
        std = max(apart / mu * ROUNDING, walked * FINEST, LEAST_STD)
        reach = _reach(walked, facts.head, std, config.train.hops)
    return Decided(std=std, reach=reach)


def _rewind(method: str, config: Config, task: ShardedTask, trained: Transcript | None) -> Decided:
    if config.train.keep != "last":
        raise Refused(f"{method} needs train.keep = last; it is {config.train.keep!r}.", "iterate")
    if method == "sisa" and config.train.slices == config.train.shards == 1:
        raise InvalidInput(
            "sisa needs train.shards or train.slices; both are 1, allowed: 2 or more of one of "
            "them."
        )
    if method == "sisa" and config.train.shards > 1:
        return _shard(config, task)
    if trained is None:
        return Decided(hops=config.train.hops)
    u, seeds = config.forget.peer, PublicSeeds(config.seed)

    def coins(hop: int) -> np.random.Generator:
        return seeds.numpy("train", "batches", hop)

    visits = [hop.hop for hop in trained.hops if hop.receiver == u]
    start = visits[0] if visits else None
    if way_back(config, method) == "first-use":
        start = first_use(train_descent(config), task.records(u), visits, coins)
    if start is None:
        return Decided()
    return Decided(start_hop=start, hops=len(trained.hops) - start + 1, coins=coins)


def _shard(config: Config, task: ShardedTask) -> Decided:
    """Where the walk of u's shard first used a forgotten record: its route and batches are public,
    so that nothing has to be trained to know."""
    if task.loss is not None:
        raise InvalidInput(
            "sisa with shards answers by mean probabilities; the task has its own loss."
        )
    u, seeds, shards = config.forget.peer, PublicSeeds(config.seed), config.train.shards
    shard = touched_shard(config)
    walk, name = shard_walk(config, shard, task.peers), shard_name(shard)
    route, at, visits = walks.Among(members(shard, shards, task.peers)), walks.NOBODY, []
    for hop in range(1, walk.hops + 1):
        at = route.receiver(at, seeds.numpy(name, "route", hop))
        if at == u:
            visits.append(hop)

    def coins(hop: int) -> np.random.Generator:
        return seeds.numpy(name, "batches", hop)

    start = first_use(shard_descent(config, shard), task.records(u), visits, coins)
    if start is None:
        return Decided()
    earlier = sum(hops_of(s, shards, config.train.hops) for s in range(shard))
    return Decided(start_hop=start, earlier=earlier, hops=walk.hops - start + 1, coins=coins)


def probe(task: ShardedTask, header: dict[str, Any], phase: Phase, u: int) -> None:
    """Ask the ledger about a training visit before training, so that a refusal comes at once."""
    model = build_model(task.model, 0)
    travels = (*sorted(dict(model.named_buffers())), *phase.method.travels)
    happened: list[ev.Event] = [ev.Start(phase.name, "initial", False, travels)]
    for op in phase.method.visit(_visit(task, u, np.random.default_rng(0))):
        if isinstance(op, Steps):
            happened.append(steps_event(op, "simulation"))
        elif isinstance(op, Project):
            happened.append(ev.Projection(tuple((b.centre, b.radius) for b in op.balls)))
    made = Transcript(dict(header))
    made.add(Hop(1, phase.name, 1, -1, u, (), 0, tuple(happened)))
    ledger_before(made, 2)


def _visit(task: ShardedTask, peer: int, rng: np.random.Generator) -> Visit:
    return Visit(1, 1, peer, True, 0, task.records(peer), rng)


def keeps(config: Config, methods: list[str]) -> str:
    """Which arrivals the forgetting peer has to keep for these methods."""
    ways = {way_back(config, method) for method in methods if method in GOING_BACK}
    if not ways:
        return "none"
    return "all" if "first-use" in ways else "first"


def capacity(task: ShardedTask) -> int:
    """The most records that a peer holds, by what is published of the task.

    B, by which every gradient sum of ``slots`` is divided, comes from it: a count of the records
    at hand would change with those to be forgotten.  So it is a constant of the task and its
    settings where records are dealt evenly or have natural peers, and asked for elsewhere.
    """
    published, dealing = task.source.published, task.holdings.dealing
    if published is not None and dealing == "iid":
        return -(-sum(published) // task.peers)
    if published is not None and dealing == "natural":
        return max(published)
    why = (
        "nothing is published of how many records it has"
        if published is None
        else f"with partition {dealing!r} a peer's share depends on the records"
    )
    raise InvalidInput(
        f"train.work is 'slots' and train.capacity is not set; of task {task.name!r} {why}, and a "
        "capacity that is counted on the data would tell of the records to be forgotten; allowed: "
        "the most records that any peer may hold, chosen without looking at those to be forgotten."
    )
