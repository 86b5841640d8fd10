"""Shards and slices (after SISA, Bourtoule et al. 2021, arXiv:1912.03817v3).

*Shards.*  Peers are split into S disjoint groups by their numbers.  Each group trains a model of
its own, a *constituent*, by a walk of its own from the initial model; the constituents answer
together, by the mean of their probabilities.  A record was met by one constituent only, and only
that one has to be walked again; the others never came near it.

*Slices.*  Each record belongs to one of R slices, by its row number and a public constant, and
takes part only once a share of the walk is done: slice r after r/R of the hops.  A record of a late
slice was then used late, and little has to be repeated without it: the walk goes back to the first
visit whose batches drew it (:mod:`unwalk.methods.rewind`).

Who is in which shard and slice, and the weights of the mean, do not depend on who is to be
forgotten.
"""

from __future__ import annotations

import numpy as np

from unwalk.core.errors import InvalidInput
from unwalk.core.program import Rows
from unwalk.core.validation import check_count


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


def slice_of(rows: Rows, slices: int) -> Rows:
    """The slice of each row, from 0.

    >>> slice_of(np.arange(8), 2).tolist()
    [0, 1, 1, 1, 0, 0, 0, 0]
    """
    check_count("slices", slices, low=1)
    mixed = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(40)) % np.uint64(slices)).astype(np.int64)


def entered(rows: Rows, slices: int, hop: int, hops: int) -> Rows:
    """The rows that take part at the 1-based hop ``hop`` of a walk of ``hops`` hops.

    >>> [entered(np.arange(8), 2, hop, 10).size for hop in (1, 5, 6, 10, 12)]
    [5, 5, 8, 8, 8]
    """
    if slices == 1:
        return rows
    open_ = min((hop - 1) * slices // max(hops, 1), slices - 1)
    return rows[slice_of(rows, slices) <= open_]
