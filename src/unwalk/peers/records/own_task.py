"""Task ``records`` at real peers: a model that all know, records that only their owner has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import final

import torch
from torch import nn

from unwalk.core.data import Held, Shard
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Loss
from unwalk.core.program import Records as Rows
from unwalk.peers.records.record_store import Records
from unwalk.peers.storage.store import Fault, no_fault
from unwalk.settings.config import Config
from unwalk.tasks.catalogue import RECORDS
from unwalk.tasks.declared import Declared, declare, declared_task
from unwalk.tasks.task import ShardedTask


def declared_of(config: Config) -> Declared | None:
    """What a network's settings declare about records; None where another task brings its own."""
    if config.task != RECORDS:
        return None
    given = {f.name: getattr(config.data, f.name) for f in fields(config.data)}
    del given["normalisation"]
    if config.forget.kind not in (None, "nothing"):
        raise InvalidInput(
            f"forget.kind is {config.forget.kind!r}; with task 'records' peers are asked to forget "
            "by record id: leave it out."
        )
    if config.train.work == "slots" and config.train.capacity is None:
        raise InvalidInput(
            "train.capacity is missing; train.work 'slots' needs the most records that a peer of "
            "task 'records' may train on."
        )
    return declare({k: v for k, v in given.items() if v is not None})


def public_task(config: Config, peers: int) -> ShardedTask | None:
    """Task ``records`` as everybody knows it, for :func:`unwalk.runs.assemble.assemble`.

    None for another task, which assembles itself.
    """
    declared = declared_of(config)
    if declared is None:
        return None
    return declared_task(
        declared,
        peers,
        seed=config.seed,
        unlearner=config.forget.peer,
        model=config.model.name,
    )


def open_records(bundle: Path, config: Config, fault: Fault = no_fault) -> Records | None:
    """The records of a bundle in a network with these settings; None where it brings none."""
    declared = declared_of(config)
    if declared is None:
        return None
    slots = config.train.work == "slots"
    return Records(bundle, declared, capacity=config.train.capacity if slots else None, fault=fault)


@final
@dataclass(frozen=True, eq=False)
class OwnRecords:
    """The task of a plan with records in it: this peer's, or, to compare, those of several.

    ``own`` are the records by peer; a peer that is not there has none.  ``forgetting`` are the
    records of peer ``unlearner`` that its shard marks as forgotten.
    """

    public: ShardedTask
    own: Mapping[int, Records]
    forgetting: Collection[str] = ()

    @property
    def name(self) -> str:
        """The name of the data."""
        return self.public.name

    @property
    def peers(self) -> int:
        """Number of peers."""
        return self.public.peers

    @property
    def loss(self) -> Loss | None:
        """Loss of a record."""
        return self.public.loss

    def model(self) -> nn.Module:
        """A freshly initialised model."""
        return self.public.model()

    def records(self, peer: int) -> Rows:
        """Which rows a peer holds now."""
        return self.shard(peer).records

    def shard(self, peer: int) -> Shard:
        """The records of a peer as they are now; another object once they have changed."""
        if peer not in self.own:
            return self.public.shard(peer)
        return self.own[peer].shard(self.forgetting if peer == self.public.unlearner else ())

    def test(self) -> Held:
        """What the peers hold out, together."""
        sets = [records.hold_out() for _, records in sorted(self.own.items())]
        return Held(torch.cat([s.x for s in sets]), torch.cat([s.y for s in sets]))
