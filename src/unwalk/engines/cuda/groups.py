"""Switches for groups of hand-written kernels, so that a benchmark can measure each one's worth.

All groups are used unless :func:`without` says otherwise.  A group that is switched off is replaced
by cuDNN or by plain torch, as :data:`GROUPS` says.  Switches are read when a network is built and
when a step is captured: both have to happen inside ``with without(...)``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from unwalk.core.errors import InvalidInput

GROUPS = {
    "convolutions": "cuDNN, forward and backward",
    "batch normalisation": "normalisation, sum, ReLU and pool in plain torch",
    "group normalisation": "normalisation, sum, ReLU and pool in plain torch",
    "clipping": "per-example norms by hooks in plain torch",
    "updates": "a pass over memory per operation, in plain torch",
    "fleet convolutions": "batched matrix products over patches in plain torch",
    "fleet small layers": "the general fleet convolutions",
    "fleet normalisation": "plain torch",
    "fleet updates": "a pass over memory per operation, in plain torch",
}
"""What replaces each group when it is switched off."""

_off: set[str] = set()


@cache
def available() -> bool:
    """Whether the kernels can be built here."""
    return importlib.util.find_spec("triton") is not None


def uses(group: str) -> bool:
    """Whether a group's kernels are to be used.

    >>> with without("convolutions"):
    ...     uses("convolutions"), uses("clipping")
    (False, True)
    """
    assert group in GROUPS
    return group not in _off


@contextmanager
def without(*groups: str) -> Iterator[None]:
    """Switch groups off for networks that are built and steps that are captured inside."""
    unknown = sorted(set(groups) - set(GROUPS))
    if unknown:
        raise InvalidInput(f"no group of kernels is called {unknown[0]!r}; allowed: {[*GROUPS]}.")
    before = set(_off)
    _off.update(groups)
    try:
        yield
    finally:
        _off.clear()
        _off.update(before)
