"""Watches a process that uses Ray: if it is killed, says so and removes the folder of its cluster.

Ray kills a process whose raylet is gone, without a message.  The watched process holds the other
end of this one's input: when that is closed without :data:`IN_ORDER`, it was killed.  The folder is
removed in either case, since tokens and records may be in it.

It is run as a file, by itself: nothing of the package is imported.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress

IN_ORDER = b"in order"
LOST = (
    "unwalk: the command was ended in the middle of its work: it was killed, or Ray ended it "
    "because its raylet, the process that leads Ray's workers on this machine, was gone (out of "
    "memory, perhaps). With --out, the same command goes on with --resume."
)
LATER = 20.0
"""Seconds in which the processes of a cluster end with the one that started it."""


def main(place: str) -> None:
    """Wait for the end of the process that started this one."""
    in_order = sys.stdin.buffer.read() == IN_ORDER
    if not in_order:
        with suppress(OSError):  # nobody may read it
            os.write(2, f"{LOST}\n".encode())
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # whoever reads what was said need not wait
    end = time.monotonic() + (0.0 if in_order else LATER)
    while place:
        shutil.rmtree(place, ignore_errors=True)
        if time.monotonic() >= end:
            break
        time.sleep(1.0)


if __name__ == "__main__":
    main(sys.argv[1])
