"""What the private baselines (ddp, dpsgd) share: their readings, walks, and what is said of them.

Noise is added after the request (``continued``), or from hop 1 of training (``from-start``), where
forgetting does nothing: U = A(D).
"""

from __future__ import annotations

from dataclasses import replace

from unwalk.core.plan import Method, Phase, Route
from unwalk.methods.local_work import Descent, LocalWork
from unwalk.methods.network_sgd import train_descent, unlearn_descent
from unwalk.methods.record import Calibrated
from unwalk.settings.config import Config

READINGS = ("continued", "from-start")


def noisy_hops(config: Config, reading: str) -> int:
    """Hops with noise: the training walk's (from-start) or the unlearning walk's (continued)."""
    return config.train.hops if reading == "from-start" else config.unlearn.hops


def data_of(reading: str) -> str:
    """Which records a reading walks over."""
    return "all" if reading == "from-start" else "retained"


def local_work(config: Config, reading: str, given: str | None) -> LocalWork:
    """A visit's work: as ``given``, else the walk's own."""
    train = config.train
    kind = given or (None if reading == "from-start" else config.unlearn.work) or train.work
    return LocalWork(kind, train.batch, train.epochs, train.minibatches)


def private_descent(config: Config, reading: str, optimizer: str, work: str | None) -> Descent:
    """A visit of a private baseline, before clipping and noise."""
    base = train_descent(config) if reading == "from-start" else unlearn_descent(config)
    rule = base.rule
    if optimizer == "plain":
        rule = replace(rule, optimizer="sgd", weight_decay=0.0)
    return replace(base, rule=rule, work=local_work(config, reading, work), clip=None)


def private_training(
    config: Config, reading: str, method: Method, route: Route
) -> tuple[Phase, ...]:
    """Training with noise from hop 1, where the reading asks for it."""
    if reading != "from-start":
        return ()
    train = config.train
    return (Phase(name="train", method=method, route=route, hops=train.hops, keep=train.keep),)


def after_request(
    config: Config, reading: str, method: Method, route: Route, *, plain: bool
) -> Phase:
    """The walk after a request: on the retained records; none where U = A(D)."""
    unlearn, continued = config.unlearn, reading == "continued"
    return Phase(
        name="unlearn",
        method=method,
        route=route,
        hops=unlearn.hops if continued else 0,
        keep=unlearn.keep,
        reset_optimizer=unlearn.reset_optimizer or plain,
        carries_forgotten=continued,
    )


def nominal_reason(calibrated: Calibrated, origin: str) -> str:
    """Why the number of a private baseline is no guarantee."""
    when = "noise was added after the request only"
    if calibrated.reading == "from-start":
        when = (
            "noise was added at training time, from hop 1 on all records, and forgetting did "
            "nothing (U = A(D))"
        )
    simulated = "the noise came from a known seed (simulation)"
    return f"{calibrated.formula}; {when}; no proof covers this run, and {simulated}."
