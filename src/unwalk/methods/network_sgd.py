"""Network-SGD (the paper's Algorithm 1): token training by random walk.

It also makes the visits that settings describe, for training and for the walk that forgets.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unwalk import walks
from unwalk.core.plan import Method, Phase, Route
from unwalk.core.program import Ball, Program, StepRule, Visit
from unwalk.methods.local_work import Descending, Descent, LocalWork, Schedule
from unwalk.settings.config import Config


@dataclass(frozen=True)
class NetworkSGD(Descending):
    """Every peer descends on all of its records when the token arrives."""

    name: str = field(default="network-sgd", init=False)

    def visit(self, visit: Visit) -> Program:
        return self.descent.program(visit, "all")


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
    """The feasible ball Theta, if training has one."""
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


def unlearn_phase(
    config: Config,
    method: Method,
    route: Route,
    *,
    start: str = "token",
    reset_optimizer: bool = False,
) -> Phase:
    """The walk that forgets, as ``unlearn`` says; from training's token, or from ``initial``."""
    return Phase(
        name="unlearn",
        method=method,
        route=route,
        hops=config.unlearn.hops,
        keep=config.unlearn.keep,
        reset_optimizer=reset_optimizer,
        carries_forgotten=start == "token",
        start=start,
    )
