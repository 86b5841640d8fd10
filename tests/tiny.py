"""A tiny task for tests of rooms left of ``tasks``: Gaussian records, any model, float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import nn

from unwalk import walks
from unwalk.core.data import Shard
from unwalk.core.noise import NoiseSource, SimulatedNoise
from unwalk.core.plan import Loss, Performance, Phase, Plan
from unwalk.core.program import Records, StepRule
from unwalk.core.seeds import PublicSeeds
from unwalk.methods.network_sgd import Descent, LocalWork, NetworkSGD


def linear(features: int = 3, classes: int = 2, dtype: torch.dtype = torch.float64) -> nn.Module:
    return nn.Linear(features, classes, dtype=dtype)


@dataclass(frozen=True, eq=False)
class TinyTask:
    peers: int = 4
    size: int = 8
    features: int = 3
    classes: int = 2
    forgotten: Mapping[int, int] = field(default_factory=lambda: {0: 3})
    factory: Callable[[], nn.Module] = linear
    loss: Loss | None = None
    dtype: torch.dtype = torch.float64
    name: str = "tiny"

    def model(self) -> nn.Module:
        return self.factory()

    def records(self, peer: int) -> Records:
        count = self.forgotten.get(peer, 0)
        return Records(self.size, np.arange(count, dtype=np.int64))

    def shard(self, peer: int) -> Shard:
        return _shard(self, peer)


@cache
def _shard(task: TinyTask, peer: int) -> Shard:
    rng = np.random.default_rng(100 + peer)
    x = torch.from_numpy(rng.normal(size=(task.size, task.features))).to(task.dtype)
    y = torch.from_numpy(rng.integers(task.classes, size=task.size))
    return Shard(x, y, task.records(peer))


def descent(
    optimizer: str = "sgd", rate: float = 0.1, kind: str = "epochs", batch: int = 4, **rule: object
) -> Descent:
    step = StepRule(optimizer=optimizer, learning_rate=rate, **rule)  # type: ignore[arg-type]
    return Descent(step, LocalWork(kind, batch=batch))


def plan(
    *phases: Phase,
    task: TinyTask | None = None,
    seed: int = 0,
    noise: NoiseSource | None = None,
    digests: bool = False,
    unlearner: int = 0,
    graph: walks.WalkGraph | None = None,
) -> Plan:
    task = task or TinyTask()
    return Plan(
        run="test",
        task=task,
        graph=graph or walks.complete(task.peers),
        phases=phases or (Phase("train", NetworkSGD(descent()), walks.Uniform(), 6),),
        seeds=PublicSeeds(seed),
        noise=noise or SimulatedNoise(seed),
        unlearner=unlearner,
        performance=Performance(digests=digests),
    )
