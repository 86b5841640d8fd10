"""The catalogue of methods: how settings become phases of a walk."""

from __future__ import annotations

from dataclasses import replace

from unwalk import walks
from unwalk.core.plan import Method, Phase, Route
from unwalk.core.program import Ball
from unwalk.methods.ddp import DDP, feasible_ball
from unwalk.methods.dpsgd import DPSGD
from unwalk.methods.finetune import Finetune
from unwalk.methods.local_work import Descent
from unwalk.methods.retrain import Retrain
from unwalk.methods.rrdu import RRDU, Correction, direction_named
from unwalk.runs.baselines import data_of, local_work
from unwalk.runs.config import Config
from unwalk.runs.entries import Entry, Noise, feasible, train_descent, unlearn_descent
from unwalk.runs.proved import PROVED

KEEPS = ("last", "average", "random")
VISITS = {"pass": "epochs", "minibatch": "averaged", "full": "full"}


def _rrdu(config: Config, noise: Noise) -> Phase:
    unlearn, descent = config.unlearn, unlearn_descent(config)
    rule = descent.rule
    if unlearn.visit_optimizer == "plain":
        rule = replace(rule, optimizer="sgd", weight_decay=0.0)
    balls = (
        [] if unlearn.trust_radius is None else [Ball(unlearn.trust_centre, unlearn.trust_radius)]
    )
    theta = feasible(config)
    correction = Correction(
        direction=direction_named(unlearn.direction),
        work=replace(descent.work, kind=VISITS[unlearn.visit], epochs=1, minibatches=1),
        rule=rule,
        sigma=noise.sigma,
        noise_on=unlearn.noise_on,
        clip=unlearn.clip,
        trust=tuple(balls if theta is None else [theta, *balls]),
    )
    return Phase(
        name="unlearn",
        method=RRDU(descent, correction),
        route=walks.Restart(config.forget.peer, noise.p, unlearn.max_visits),
        hops=unlearn.hops,
        keep=unlearn.keep,
        reset_optimizer=unlearn.reset_optimizer,
        carries_forgotten=True,
    )


def _finetune(config: Config, noise: Noise) -> Phase:
    return Phase(
        name="unlearn",
        method=Finetune(unlearn_descent(config)),
        route=walks.Uniform(),
        hops=config.unlearn.hops,
        keep=config.unlearn.keep,
        reset_optimizer=config.unlearn.reset_optimizer,
        carries_forgotten=True,
    )


def _retrain(config: Config, noise: Noise) -> Phase:
    return Phase(
        name="retrain",
        method=Retrain(train_descent(config)),
        route=walks.Uniform(),
        hops=config.train.hops + config.unlearn.hops,
        keep=config.train.keep,
    )


def _private_descent(config: Config, reading: str, optimizer: str, work: str | None) -> Descent:
    """A visit of a private baseline, before clipping and noise."""
    base = train_descent(config) if reading == "from-start" else unlearn_descent(config)
    rule = base.rule
    if optimizer == "plain":
        rule = replace(rule, optimizer="sgd", weight_decay=0.0)
    return replace(base, rule=rule, work=local_work(config, reading, work), clip=None)


def _ddp_method(config: Config, noise: Noise) -> DDP:
    ddp = config.ddp
    ball = None if ddp.radius is None else feasible_ball(ddp.radius, ddp.radius_means, ddp.centre)
    base = _private_descent(config, ddp.reading, ddp.optimizer, ddp.work)
    descent = replace(base, clip=ddp.clip, noise=noise.sigma, feasible=ball)
    return DDP(descent, data_of(ddp.reading), ddp.noise_on)


def _dpsgd_method(config: Config, noise: Noise) -> DPSGD:
    dpsgd = config.dpsgd
    base = _private_descent(config, dpsgd.reading, dpsgd.optimizer, dpsgd.work)
    return DPSGD(replace(base, clip_per_example=dpsgd.clip), noise.sigma, data_of(dpsgd.reading))


def _private_training(
    config: Config, reading: str, method: Method, route: Route
) -> tuple[Phase, ...]:
    """Training with noise from hop 1, where the reading asks for it."""
    if reading != "from-start":
        return ()
    train = config.train
    return (Phase(name="train", method=method, route=route, hops=train.hops, keep=train.keep),)


def _after_request(
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


def _ddp(config: Config, noise: Noise) -> Phase:
    method, plain = _ddp_method(config, noise), config.ddp.optimizer == "plain"
    return _after_request(config, config.ddp.reading, method, walks.UniformPeer(), plain=plain)


def _ddp_training(config: Config, noise: Noise) -> tuple[Phase, ...]:
    method = _ddp_method(config, noise)
    return _private_training(config, config.ddp.reading, method, walks.UniformPeer())


def _dpsgd(config: Config, noise: Noise) -> Phase:
    method, plain = _dpsgd_method(config, noise), config.dpsgd.optimizer == "plain"
    return _after_request(config, config.dpsgd.reading, method, walks.Uniform(), plain=plain)


def _dpsgd_training(config: Config, noise: Noise) -> tuple[Phase, ...]:
    method = _dpsgd_method(config, noise)
    return _private_training(config, config.dpsgd.reading, method, walks.Uniform())


METHODS: dict[str, Entry] = {
    "rrdu": Entry(
        "RR-DU",
        "randomized restarts at the forgetting peer: correction, noise, projection",
        "nominal",
        False,
        _rrdu,
    ),
    "finetune": Entry(
        "fine-tuning",
        "go on training without the forgotten records",
        "none",
        False,
        _finetune,
    ),
    "ddp": Entry(
        "DDP",
        "network-private SGD: noise and projection at every step of every peer",
        "nominal",
        False,
        _ddp,
        _ddp_training,
    ),
    "dpsgd": Entry(
        "DP-SGD",
        "every record's gradient clipped, noise on every step; models without BatchNorm",
        "nominal",
        False,
        _dpsgd,
        _dpsgd_training,
    ),
    "retrain": Entry(
        "retraining",
        "a new model that never meets the forgotten records: the oracle",
        "exact",
        True,
        _retrain,
    ),
    **PROVED,
}
