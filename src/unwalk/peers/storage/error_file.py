"""The file with what a peer in the background writes on its error stream, and how it stays short.

Strangers decide how much that is: gRPC writes a line for each handshake that fails.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

NAME = "errors.txt"
LARGEST = 1 << 20
LOOK = 1.0
"""Seconds between looks whether the file has grown too large."""


def open_errors(folder: Path) -> BinaryIO:
    """The file of a store, to be the error stream of a peer that is started.

    All who write append, so that they go on at the end of what was cut.
    """
    file = (folder / NAME).open("a+b", buffering=0)
    cut(file.fileno(), LARGEST)
    return file


def cut(fd: int, largest: int) -> None:
    """Keep the newest lines of a file that is larger, up to half of that."""
    size, half = os.fstat(fd).st_size, largest // 2
    if size <= largest:
        return
    newest = os.pread(fd, half, size - half)
    os.ftruncate(fd, 0)
    os.write(fd, newest[newest.find(b"\n") + 1 :])


async def keep_short(folder: Path) -> None:
    """Cut the file while this process runs, if its error stream goes there."""
    ours = False
    with suppress(OSError):  # no such file, or no error stream
        ours = os.path.samestat(os.fstat(2), (folder / NAME).stat())
    while ours:  # also once the file was moved or removed: it still takes room
        await asyncio.sleep(LOOK)
        with suppress(OSError):  # a disk that is full, or fails: others say so
            cut(2, LARGEST)
