"""Shards and slices (after SISA, Bourtoule et al. 2021, arXiv:1912.03817v3).

*Shards.*  Peers are split into S disjoint groups by their numbers.  Each group trains a model of
its own, a *constituent*, by a walk of its own from the initial model; the constituents answer
together, by the mean of their probabilities.  A record was met by one constituent only, and only
that one has to be trained again; the others never used it.

*Slices.*  Each record belongs to one of R slices, by its row number and a public constant, and
takes part only once a share of the walk is done: slice r after r/R of the hops.  A record of a late
slice was then used late, and little has to be repeated without it: the walk goes back to the first
visit whose batches drew it (:mod:`unwalk.methods.rewind`).

Who is in which shard and slice, and the weights of the mean, do not depend on who is to be
forgotten.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unwalk import walks
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Phase
from unwalk.core.program import Records
from unwalk.core.seeds import Draws, PublicSeeds
from unwalk.core.validation import check_count
from unwalk.methods.network_sgd import Descent, NetworkSGD, train_descent
from unwalk.methods.record import Decided, MethodRecord, Request
from unwalk.methods.rewind import (
    GOING_BACK,
    back_to,
    check_last_kept,
    facts_of_way,
    first_use,
    going_back,
)
from unwalk.privacy.exact import sisa_claim
from unwalk.settings.config import Config


def shard_of(peer: int, shards: int) -> int:
    """The constituent that a peer trains, from 0.

    >>> [shard_of(peer, 3) for peer in range(7)]
    [0, 1, 2, 0, 1, 2, 0]
    """
    return peer % shards


def members(shard: int, shards: int, peers: int) -> tuple[int, ...]:
    """The peers of one shard.

    >>> members(1, 3, 7)
    (1, 4)
    """
    check_count("shards", shards, low=1)
    if peers < 2 * shards:
        raise InvalidInput(
            f"train.shards is {shards}; allowed: 1 to {max(1, peers // 2)}, so that each of them "
            f"has two of the {peers} peers at least."
        )
    return tuple(peer for peer in range(peers) if shard_of(peer, shards) == shard)


def hops_of(shard: int, shards: int, hops: int) -> int:
    """How many of ``hops`` hops of training the walk of one shard has.

    >>> [hops_of(shard, 3, 100) for shard in range(3)]
    [34, 33, 33]
    """
    if hops < shards:
        raise InvalidInput(f"train.hops is {hops}; allowed with {shards} shards: {shards} or more.")
    return hops // shards + (shard < hops % shards)


def _name(shard: int) -> str:
    """The phase in which a shard's peers train their constituent.

    >>> _name(0)
    'train-1'
    """
    return f"train-{shard + 1}"


def _descent(config: Config, shard: int) -> Descent:
    """A training visit of one shard's walk: its slices open along that walk."""
    hops = hops_of(shard, config.train.shards, config.train.hops)
    return replace(train_descent(config), horizon=hops)


def _walk(config: Config, shard: int, peers: int) -> Phase:
    """The walk in which a shard's peers train their constituent, from the initial model."""
    shards, hops = config.train.shards, config.train.hops
    return Phase(
        name=_name(shard),
        method=NetworkSGD(_descent(config, shard)),
        route=walks.Among(members(shard, shards, peers)),
        hops=hops_of(shard, shards, hops),
        start="initial",
    )


def _touched(config: Config) -> int | None:
    """The shard of the peer that has to forget; None where there is one model."""
    shards = config.train.shards
    return shard_of(config.forget.peer, shards) if shards > 1 else None


def _phase(config: Config, decided: Decided) -> Phase:
    shard, u = _touched(config), config.forget.peer
    if shard is None:
        return going_back(decided, "first-use", train_descent(config), u, walks.Uniform())
    route = _walk(config, shard, decided.peers).route
    return going_back(decided, "first-use", _descent(config, shard), u, route)


def _training(config: Config, decided: Decided) -> tuple[Phase, ...]:
    """One walk per shard, each from the initial model; none of its own where there is one shard."""
    shards = config.train.shards
    if shards == 1:
        return ()
    return tuple(_walk(config, shard, decided.peers) for shard in range(shards))


def _decide(request: Request) -> Decided:
    config = request.config
    check_last_kept(config, "sisa")
    if config.train.slices == config.train.shards == 1:
        raise InvalidInput(
            "sisa needs train.shards or train.slices; both are 1, allowed: 2 or more of one of "
            "them."
        )
    shard = _touched(config)
    return back_to(request, "first-use") if shard is None else _back_in_shard(request, shard)


def _back_in_shard(request: Request, shard: int) -> Decided:
    """Where the walk of u's shard first used a forgotten record: its route and batches are public,
    so that nothing has to be trained to know."""
    config, task = request.config, request.task
    if task.loss is not None:
        raise InvalidInput(
            "sisa with shards answers by mean probabilities of classes, and the task has another "
            "loss than cross-entropy; allowed: train.shards=1 with train.slices."
        )
    u, shards = config.forget.peer, config.train.shards
    seeds = PublicSeeds(config.seed, config.streams)
    walk, name = _walk(config, shard, task.peers), _name(shard)
    route, at, visits = walks.Among(members(shard, shards, task.peers)), walks.NOBODY, []
    for hop in range(1, walk.hops + 1):
        at = route.receiver(at, seeds.stream(name, "route", hop))
        if at == u:
            visits.append(hop)

    def coins(hop: int) -> Draws:
        return seeds.stream(name, "batches", hop)

    start = first_use(_descent(config, shard), request.records, visits, coins)
    if start is None:
        return Decided()
    earlier = sum(hops_of(s, shards, config.train.hops) for s in range(shard))
    return Decided(start_hop=start, earlier=earlier, hops=walk.hops - start + 1, coins=coins)


def _facts(config: Config, records: Records, p: float) -> dict[str, Any]:
    shards = config.train.shards
    facts = facts_of_way(config, records, "first-use")
    return {**facts, "shards": shards} if shards > 1 else facts


def _way(config: Config) -> str:
    return "first-use"


RECORD = MethodRecord(
    name="sisa",
    label="shards and slices",
    description=(
        "groups of peers train models of their own, records enter in slices; only the model that "
        "met the forgotten ones goes back to before it did"
    ),
    phase=_phase,
    training=_training,
    decide=_decide,
    way_back=_way,
    shard=_touched,
    guarantee=replace(GOING_BACK, proof=sisa_claim),
    facts=_facts,
)
