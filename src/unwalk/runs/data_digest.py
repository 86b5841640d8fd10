"""A digest of the data that a run was started with, so that it is resumed on no other.

A checkpoint was trained by row number.  If the rows stand in another order afterwards, or hold
something else, going on from it mixes two runs, and what is said of the forgotten records is said
of the wrong ones.  So every peer's ids, inputs and labels, the forgotten rows, the test set, the
classes and a graph from a file are digested when a run begins, and again when it is resumed.

These digests have no key: whoever has one can test a guess of a forgotten record.  They stay in
the partial folder, beside checkpoints that tell more, and are gone when the run is complete; they
must not be published, nor copied to any file that outlives that folder.
"""

from __future__ import annotations

import hashlib
import json

import torch

from unwalk.core.plan import Graph
from unwalk.runs.assemble import Assembled
from unwalk.tasks.blobs import Blobs
from unwalk.tasks.sources import Ids

NAMED = 3
"""How many differences a message names."""


def data_digest(assembled: Assembled) -> dict[str, str]:
    """What the data consist of, in words, each part with its digest.

    Other peers' shards are not built for it, so that they need not all be held at the same time.
    Blobs are made from the settings alone, which are compared anyway: of them only u's are drawn.
    """
    task, u = assembled.task, assembled.task.unlearner
    parts = {"the names of the classes": _digest(json.dumps(task.source.labels))}
    for peer in [u] if isinstance(task.holdings, Blobs) else range(task.peers):
        if peer == u:
            shard, ids = task.shard(u), task.ids(u)
            x, y = shard.x, shard.y
        else:
            table = task.holdings.table(peer)
            x, y, ids = table.x, table.y, table.ids
        parts[f"the records of peer {peer}"] = _digest(_ids(ids), x, y)
    parts["the choice of forgotten records"] = _digest(
        json.dumps(task.records(u).forgotten.tolist())
    )
    parts["the test set"] = _digest(task.test.x, task.test.y)
    if assembled.graph.kind == "edge-list":
        parts["the graph"] = _digest(_edges(assembled.graph))
    return parts


def differences(before: dict[str, str], now: dict[str, str]) -> str:
    """Which parts differ, in words; nothing where none does.

    >>> differences({"the graph": "a", "the test set": "b"}, {"the graph": "a"})
    'the test set'
    """
    found = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + more


def _digest(*parts: str | torch.Tensor) -> str:
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode())
            continue
        digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
        digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _ids(ids: Ids) -> str:
    return json.dumps([str(name) for name in ids])


def _edges(graph: Graph) -> str:
    return json.dumps([graph.neighbours(peer).tolist() for peer in range(graph.peers)])
