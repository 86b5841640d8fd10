"""Waits out a shortage: a full disk, or no free descriptors.

A peer keeps a reserve, a file of a few megabytes.  When a write finds no room it lets go of the
reserve, so that it can still say in its log what happened and write down small changes of state;
it takes no token and does no visit until there is room for the reserve and for tokens again.
The empty file says to others, ``unwalk peer status`` among them, that the disk is full.

A process that has as many files and connections open as it may have is in the same place: nothing
is damaged, and what failed can be done again once some are closed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unwalk.core.errors import NO_ROOM, UnwalkError

NAME = "reserve"
RESERVE = 4 << 20
LOOK = 0.5
"""Seconds between looks whether there is room again."""
NO_FILES = (errno.EMFILE, errno.ENFILE)


class DiskFull(UnwalkError):
    """Something could not be written because the disk is full; nothing was changed."""

    def __init__(self) -> None:
        super().__init__(
            "the disk of this peer is full: it takes no token and writes nothing down until there "
            "is room, and then goes on by itself."
        )


class NoDescriptors(UnwalkError):
    """Nothing can be opened for the moment; nothing was changed."""

    def __init__(self) -> None:
        super().__init__(
            "this peer has as many files and connections open as it may have: it takes no token "
            "until some are closed, and then goes on by itself; a higher limit (ulimit -n) helps."
        )


def means_no_files(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, says that no further file may be opened."""
    seen = set[int]()
    while error is not None and id(error) not in seen:  # an error can be its own cause
        if isinstance(error, OSError) and error.errno in NO_FILES:
            return True
        seen.add(id(error))
        error = error.__cause__
    return False


def _cannot_open(error: BaseException) -> bool:
    """Whether SQLite could not open a file, for whatever reason: it does not say which."""
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(error, sqlite3.Error) and code & 0xFF == sqlite3.SQLITE_CANTOPEN


def means_full(error: BaseException) -> bool:
    """Whether an error of the system, or of SQLite, says that there is no room."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0)
        return code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE
    return isinstance(error, OSError) and error.errno in NO_ROOM


def _fill(fd: int) -> None:
    """Give a file all the blocks of a reserve."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, RESERVE)
        return
    left = RESERVE
    while left > 0:
        left -= os.pwrite(fd, bytes(min(left, 1 << 20)), RESERVE - left)


def is_full(folder: Path) -> bool:
    """Whether the peer with this store has found no room and not yet any again."""
    path = folder / NAME
    return path.exists() and path.stat().st_size == 0


@dataclass(eq=False)
class Space:
    """Room for one store.  ``need``: bytes that have to be free before it goes on.

    ``full``: there is no room; ``short``: there are no descriptors.
    """

    folder: Path
    need: int = 0
    full: bool = False
    short: bool = False

    def start(self) -> None:
        """Put the reserve aside, as far as there is room."""
        self.full = not self._reserve()

    def ran_out(self, error: BaseException) -> bool:
        """Whether an error means that the disk is full; the reserve is let go then."""
        if not isinstance(error, DiskFull) and not means_full(error):
            return False
        self.full = True
        with suppress(OSError):
            os.truncate(self.folder / NAME, 0)
        return True

    def passes(self, error: BaseException) -> bool:
        """Whether what failed with an error is to be done again, after :meth:`wait`."""
        if means_no_files(error) or (_cannot_open(error) and not self._opens()):
            self.short = True
            return True
        return self.ran_out(error)

    def check(self) -> None:
        """Refuse what needs room or descriptors while there are none."""
        if self.full:
            raise DiskFull
        if self.short:
            raise NoDescriptors

    def look(self) -> bool:
        """Whether nothing is wanting; the reserve is put aside again if there is enough room."""
        if self.short and self._opens():
            self.short = False
        if self.full and self._reserve():
            self.full = False
        return not self.full and not self.short

    async def wait(self) -> None:
        """Until nothing is wanting; a little while at least, or others could not go first."""
        await asyncio.sleep(LOOK)
        while not self.look():
            await asyncio.sleep(LOOK)

    def _opens(self) -> bool:
        try:
            os.close(os.open(self.folder, os.O_RDONLY))
        except OSError as error:
            if not means_no_files(error):
                raise
            return False
        return True

    def _reserve(self) -> bool:
        try:
            fd = os.open(self.folder / NAME, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                _fill(fd)
                volume = os.fstatvfs(fd)
            finally:
                os.close(fd)
        except OSError as error:
            if not self.passes(error):
                raise
            return False
        if volume.f_bavail * volume.f_frsize >= self.need:
            return True
        os.truncate(self.folder / NAME, 0)
        return False
