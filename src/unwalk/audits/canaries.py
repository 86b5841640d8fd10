"""Records that the auditor plants in place of those to be forgotten, to make the game hard.

Whoever claims (epsilon, delta) claims it for every set of records, the worst included.  A canary
keeps the number of the forgotten records and changes what they say:

* ``mislabelled``: the records as they are, each under the next class;
* ``blank``: inputs of zeros, as long as the task allows nothing longer, under class 0;
* ``gradient``: one input with all its length in one place where the task's records have the least,
  under one class: all their gradients point the same way, and nobody else's do.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from unwalk.core.data import Shard
from unwalk.core.validation import check_choice
from unwalk.runs.assemble import Assembled

CANARIES = ("none", "mislabelled", "blank", "gradient")


def planted(base: Assembled, canary: str) -> Assembled:
    """The world with the records, these replaced by a canary."""
    check_choice("--canary", canary, CANARIES)
    if canary == "none":
        return base
    task = replace(base.task)
    u, norm = task.unlearner, task.source.feature_norm
    shard = task.shard(u)
    rows = torch.from_numpy(shard.records.forgotten)
    x, y = shard.x.clone(), shard.y.clone()
    if canary == "mislabelled":
        y[rows] = (y[rows] + 1) % task.classes
    elif canary == "blank":
        x[rows], y[rows] = 0.0, 0
    else:
        x[rows], y[rows] = _odd_input(shard, norm), 0
    task._shards[u] = replace(shard, x=x, y=y, stamp=None, poisoned=None)
    return replace(base, task=task)


def _odd_input(shard: Shard, norm: float | None) -> torch.Tensor:
    """All the length that an input may have, in the place that the other records use least."""
    flat = shard.x.flatten(1)
    length = float(flat.norm(dim=1).max()) if norm is None else norm * (1.0 - 1e-9)
    odd = torch.zeros_like(flat[0])
    odd[int(flat.abs().sum(0).argmin())] = length
    return odd.reshape(shard.x[0].shape)
