"""Methods that are proved or exact, as entries of the catalogue."""

from __future__ import annotations

from dataclasses import replace

from unwalk import walks
from unwalk.core.plan import Phase, Route
from unwalk.core.program import Ball
from unwalk.methods.local_work import Descent
from unwalk.methods.noisy_start import NoisyStart
from unwalk.methods.release import Release
from unwalk.methods.restart import Restart
from unwalk.methods.rewind import Rewind
from unwalk.methods.rrdu import Correction
from unwalk.methods.seal import BallSeal, LedgerSeal
from unwalk.methods.sums import Sums
from unwalk.runs.config import Config
from unwalk.runs.entries import (
    Entry,
    Noise,
    shard_descent,
    shard_walk,
    touched_shard,
    train_descent,
    unlearn_descent,
    way_back,
)


def later_correction(config: Config) -> Correction | None:
    """The LIGHTWEIGHT visits after a seal, if there are to be any."""
    if config.seal.visits == 0:
        return None
    descent = unlearn_descent(config)
    rule = replace(descent.rule, optimizer="sgd", weight_decay=0.0)
    work = replace(descent.work, kind="epochs", epochs=1)
    clip = 1.0 if config.unlearn.clip is None else config.unlearn.clip
    return Correction("forget", work, rule, clip=clip)


def _sealed(config: Config, noise: Noise) -> Phase:
    seal, u = config.seal, config.forget.peer
    later = later_correction(config)
    onward: Route = walks.Uniform()
    if later is not None:
        onward = walks.Restart(u, noise.p, seal.visits)
    method = LedgerSeal(
        unlearn_descent(config),
        noise.decided.std,
        seal.local_epochs,
        later,
        noise.decided.later_std,
        noise.decided.reach,
    )
    return Phase(
        name="unlearn",
        method=method,
        route=walks.FirstTo(u, onward),
        hops=config.unlearn.hops,
        keep=config.unlearn.keep,
        carries_forgotten=True,
    )


def _ball_sealed(config: Config, noise: Noise) -> Phase:
    decided, radius = noise.decided, config.seal.radius
    method = BallSeal(unlearn_descent(config), Ball("initial", radius), decided.std, decided.steps)
    return Phase(
        name="unlearn",
        method=method,
        route=walks.FirstTo(config.forget.peer, walks.Uniform()),
        hops=config.unlearn.hops,
        keep=config.unlearn.keep,
        reset_optimizer=True,
        carries_forgotten=True,
    )


def _released(config: Config, noise: Noise) -> Phase:
    hops = config.unlearn.hops
    return Phase(
        name="unlearn",
        method=Release(unlearn_descent(config), noise.decided.std, hops),
        route=walks.Uniform(),
        hops=hops,
        carries_forgotten=True,
    )


def _restarted(config: Config, noise: Noise) -> Phase:
    route: Route = walks.Uniform()
    if config.restart.local_steps:
        route = walks.FirstTo(config.forget.peer, route)
    return Phase(
        name="unlearn",
        method=Restart(unlearn_descent(config), config.restart.local_steps),
        route=route,
        hops=config.unlearn.hops,
        keep=config.unlearn.keep,
        start="initial",
    )


def _rewound(config: Config, noise: Noise) -> Phase:
    return _going_back(config, noise, "rewind")


def _sharded(config: Config, noise: Noise) -> Phase:
    if config.train.shards == 1:
        return _going_back(config, noise, "sisa")
    shard = touched_shard(config)
    walk = shard_walk(config, shard, noise.peers)
    return _going_back(config, noise, "sisa", walk.route, shard_descent(config, shard))


def _shards_training(config: Config, noise: Noise) -> tuple[Phase, ...]:
    """One walk a shard, each from the initial model; none of its own where there is one shard."""
    shards = config.train.shards
    return (
        tuple(shard_walk(config, shard, noise.peers) for shard in range(shards))
        if shards > 1
        else ()
    )


def _going_back(
    config: Config,
    noise: Noise,
    name: str,
    onward: Route | None = None,
    descent: Descent | None = None,
) -> Phase:
    decided, way = noise.decided, way_back(config, name)
    start = decided.start_hop
    method = Rewind(descent or train_descent(config), start or 1, way, decided.coins)
    return Phase(
        name="unlearn",
        method=method,
        route=walks.FirstTo(config.forget.peer, onward or walks.Uniform()),
        hops=decided.hops,
        start="arrival",
        start_hop=None if start is None else decided.earlier + start,
    )


def _summed(config: Config, noise: Noise) -> Phase:
    return Phase(
        name="unlearn",
        method=Sums(config.sums.strength),
        route=walks.Fixed((config.forget.peer,)),
        hops=1,
        carries_forgotten=True,
    )


def _summing(config: Config, noise: Noise) -> tuple[Phase, ...]:
    phase = Phase(
        name="train",
        method=Sums(config.sums.strength, "all"),
        route=walks.Fixed(range(noise.peers)),
        hops=noise.peers,
    )
    return (phase,)


def _noisy(config: Config, noise: Noise) -> Phase:
    method = NoisyStart(train_descent(config), noise.decided.std, noise.decided.reach)
    return Phase("unlearn", method, walks.Uniform(), 0)


def _noisy_training(config: Config, noise: Noise) -> tuple[Phase, ...]:
    method = NoisyStart(train_descent(config), noise.decided.std, noise.decided.reach)
    return (Phase("train", method, walks.Uniform(), config.train.hops),)


PROVED: dict[str, Entry] = {
    "seal": Entry(
        "ledger seal",
        "noise at the forgetting peer that hides what the ledger bounds, then a walk without it",
        "certified",
        False,
        _sealed,
    ),
    "ball-seal": Entry(
        "ball seal",
        "projection on a public ball and noise at the forgetting peer: the reference; a restart "
        "is exact and carries no less",
        "certified",
        False,
        _ball_sealed,
    ),
    "release": Entry(
        "release noise",
        "a walk without the forgotten records, noise once at the end; outsiders only",
        "certified",
        False,
        _released,
    ),
    "noisy-start": Entry(
        "noise from the start",
        "noise at every training visit, so that forgetting costs nothing",
        "certified",
        False,
        _noisy,
        _noisy_training,
    ),
    "restart": Entry(
        "restart",
        "begin again from the initial model, without the forgotten records",
        "exact",
        False,
        _restarted,
    ),
    "rewind": Entry(
        "rewind",
        "back to before the forgotten records were used, and on from there",
        "exact",
        False,
        _rewound,
    ),
    "sisa": Entry(
        "shards and slices",
        "groups of peers train models of their own, records enter in slices; only the model that "
        "met the forgotten ones goes back to before it did",
        "exact",
        False,
        _sharded,
        _shards_training,
    ),
    "sums": Entry(
        "sums",
        "a ridge head on fixed features: the forgetting peer replaces its sums, in one hop",
        "exact",
        False,
        _summed,
        _summing,
    ),
}
