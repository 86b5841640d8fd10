"""How a pool of records is dealt to peers.

A partitioner gets the pool, the number of peers and a generator, and answers with the rows of
each peer.  :func:`split` checks what every partitioner must keep: no record at two peers, no peer
without a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from unwalk.core.errors import InvalidInput
from unwalk.core.program import Rows
from unwalk.core.validation import check_choice, check_count
from unwalk.tasks.sources import Split, Table

Partitioner = Callable[[Table, int, np.random.Generator], Sequence[Rows]]


def iid(pool: Table, peers: int, rng: np.random.Generator) -> list[Rows]:
    """Deal shuffled records out evenly: sizes differ by one at most.

    >>> import torch
    >>> pool = Table(torch.zeros(5, 1), torch.zeros(5).long(), np.arange(5))
    >>> [len(rows) for rows in iid(pool, 2, np.random.default_rng(0))]
    [3, 2]
    """
    return [np.sort(part) for part in np.array_split(rng.permutation(len(pool)), peers)]


def natural(pool: Table, peers: int, rng: np.random.Generator) -> list[Rows]:
    """One peer for each group that the records name themselves; nothing is drawn."""
    if pool.groups is None:
        raise InvalidInput(
            "partition is 'natural', but these records do not name the group they belong to."
        )
    names, sizes = np.unique(pool.groups, return_counts=True)
    if peers != len(names):
        raise InvalidInput(
            f"peers is {peers}; the records belong to {len(names)} groups, so a natural "
            f"partition has {len(names)} peers."
        )
    return np.split(np.argsort(pool.groups, kind="stable"), np.cumsum(sizes)[:-1])


PARTITIONS: Mapping[str, Partitioner] = {"iid": iid, "natural": natural}


def split(pool: Table, kind: str, peers: int, rng: np.random.Generator) -> Split:
    """The pool dealt to ``peers`` by the partitioner called ``kind``."""
    partitioner = PARTITIONS[check_choice("partition", kind, PARTITIONS)]
    check_count("peers", peers, low=1)
    if peers > len(pool):
        raise InvalidInput(
            f"peers is {peers}; there are {len(pool)} training records and every peer needs one, "
            f"so allowed: 1 to {len(pool)}."
        )
    return checked(pool, partitioner(pool, peers, rng))


def checked(pool: Table, parts: Sequence[Rows]) -> Split:
    """``parts`` as holdings, once nobody is empty, out of range or holds another's record."""
    owner = np.full(len(pool), -1, np.int64)
    for peer, rows in enumerate(parts):
        if not len(rows):
            raise InvalidInput(f"peer {peer} would hold no record; allowed: one or more.")
        outside = rows[(rows < 0) | (rows >= len(pool))]
        if outside.size:
            raise InvalidInput(
                f"peer {peer} is given row {outside[0]}; allowed: rows 0 to {len(pool) - 1}."
            )
        taken = rows[owner[rows] >= 0]
        if taken.size:
            raise InvalidInput(
                f"row {taken[0]} is given to peer {owner[taken[0]]} and to peer {peer}; "
                "allowed: one peer a record."
            )
        if len(np.unique(rows)) != len(rows):
            raise InvalidInput(f"peer {peer} is given a row twice; allowed: once.")
        owner[rows] = peer
    return Split(pool, list(parts))
