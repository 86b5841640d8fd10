"""Slices (after SISA, Bourtoule et al. 2021, arXiv:1912.03817v3): records enter training late.

Each record belongs to one of R slices, by its row number and a public constant, and takes part
only once a share of the training walk is done: slice r after r/R of the hops.  A record of a late
slice was then used late, and little has to be repeated without it: the walk goes back to the first
visit whose batches drew it (:mod:`unwalk.methods.rewind`).  Who is in which slice does not depend
on who is to be forgotten.
"""

from __future__ import annotations

import numpy as np

from unwalk.core.program import Rows
from unwalk.core.validation import check_count


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
