"""Sets limits of the GNU C library's memory allocator for a peer; does nothing on other systems."""

from __future__ import annotations

import ctypes
from contextlib import suppress

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""Numbers of the GNU C library's ``mallopt``."""


def settle() -> None:
    """Let pieces of 1 MiB come from memory that is kept, and larger blocks go back at once.

    Without this every piece of a token is fresh memory from the system, which costs as much time
    as moving it.  All threads share one arena, or each would keep some megabytes to itself.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(MMAP_THRESHOLD, 2 << 20)
        library.mallopt(TRIM_THRESHOLD, 8 << 20)
        library.mallopt(ARENA_MAX, 1)


def give_back() -> None:
    """Hand back what is not in use, before much more is needed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
