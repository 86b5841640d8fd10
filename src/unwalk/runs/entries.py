"""What methods of the catalogue are made of: descents, training, and what calibration decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import Ball, StepRule
from unwalk.methods.local_work import Descent, LocalWork, Schedule
from unwalk.methods.network_sgd import NetworkSGD
from unwalk.methods.rewind import Coins
from unwalk.methods.sisa import hops_of, members, shard_of
from unwalk.runs.config import Config

GOING_BACK = ("rewind", "sisa")
"""Methods that go back to an arrival that the forgetting peer kept."""


@dataclass(frozen=True)
class Decided:
    """What is settled once a request arrives, from public facts of the training that happened.

    ``std`` and ``later_std`` are noise on the parameters, ``steps`` those of a ball seal; ``reach``
    is the radius of a public ball round the origin for the model with its noise.  The walk goes on
    from the arrival at ``start_hop`` for ``hops`` hops; ``coins`` are training's.  ``start_hop``
    counts from the beginning of a walk that had ``earlier`` hops of others before it.
    """

    std: float = 0.0
    later_std: float = 0.0
    reach: float | None = None
    steps: int = 1
    start_hop: int | None = None
    earlier: int = 0
    hops: int = 0
    coins: Coins | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Noise:
    """What calibration decided: routing probability to u, and the method's noise scale."""

    p: float
    sigma: float
    peers: int = 0
    decided: Decided = field(default_factory=Decided)


@dataclass(frozen=True)
class Entry:
    """One method as users name it.

    ``from_scratch`` methods start with a new model; the others go on from the trained one, or, by
    ``training`` (none of it: the trained one after all), from what they train themselves.
    """

    label: str
    description: str
    grade: str
    from_scratch: bool
    phase: Callable[[Config, Noise], Phase]
    training: Callable[[Config, Noise], tuple[Phase, ...]] | None = None


def train_descent(config: Config) -> Descent:
    """A training visit."""
    train = config.train
    return Descent(
        rule=StepRule(
            optimizer=train.optimizer,
            learning_rate=train.learning_rate,
            momentum=train.momentum,
            weight_decay=train.weight_decay,
            state=train.state,
        ),
        work=LocalWork(
            train.work,
            train.batch,
            train.epochs,
            train.minibatches,
            train.slots,
            train.capacity or 1,
        ),
        schedule=Schedule(
            train.schedule,
            train.smoothness,
            train.diameter,
            train.gradient_bound,
            train.convexity,
        ),
        clip=train.clip,
        feasible=feasible(config),
        slices=train.slices,
        horizon=train.hops,
    )


def unlearn_descent(config: Config) -> Descent:
    """A visit of the unlearning walk away from u: training's, with unlearning's overrides."""
    base, unlearn = train_descent(config), config.unlearn
    names = ("optimizer", "learning_rate", "momentum", "weight_decay")
    given = {n: getattr(unlearn, n) for n in names if getattr(unlearn, n) is not None}
    work = base.work if unlearn.work is None else replace(base.work, kind=unlearn.work)
    return replace(base, rule=replace(base.rule, **given), work=work, slices=1)


def feasible(config: Config) -> Ball | None:
    """Theta, if training has one."""
    radius = config.train.feasible_radius
    return None if radius is None else Ball("origin", radius)


def train_phase(config: Config) -> Phase:
    """The walk that learns, on everybody's records."""
    return Phase(
        name="train",
        method=NetworkSGD(train_descent(config)),
        route=walks.Uniform(),
        hops=config.train.hops,
        keep=config.train.keep,
    )


def shard_name(shard: int) -> str:
    """The phase in which a shard's peers train their constituent.

    >>> shard_name(0)
    'train-1'
    """
    return f"train-{shard + 1}"


def shard_descent(config: Config, shard: int) -> Descent:
    """A training visit of one shard's walk: its slices open along that walk."""
    hops = hops_of(shard, config.train.shards, config.train.hops)
    return replace(train_descent(config), horizon=hops)


def shard_walk(config: Config, shard: int, peers: int) -> Phase:
    """The walk in which a shard's peers train their constituent, from the initial model."""
    shards, hops = config.train.shards, config.train.hops
    return Phase(
        name=shard_name(shard),
        method=NetworkSGD(shard_descent(config, shard)),
        route=walks.Among(members(shard, shards, peers)),
        hops=hops_of(shard, shards, hops),
        start="initial",
    )


def touched_shard(config: Config) -> int:
    """The shard of the peer that has to forget."""
    return shard_of(config.forget.peer, config.train.shards)


def way_back(config: Config, method: str) -> str:
    """To where a method goes back: ``first-contact`` or ``first-use``."""
    return config.rewind.way if method == "rewind" else "first-use"
