"""Processes for tests, forked from one that has imported most of what they need.

The command line takes seconds to import, and no time when it was imported before the fork.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch",
        "pydantic",  # typer does so at its first command
        "sklearn.datasets",
        "unwalk.cli",
        "unwalk.peers.daemon",
        "unwalk.peers.provision",
        "unwalk.runs.run",
        "tests.peers.harness",
    ]
)


def _main(
    words: list[str], folder: str | None, out: str | None, before: Callable[[], None]
) -> None:
    import torch

    torch.set_num_threads(1)
    if folder is not None:
        os.chdir(folder)
    if out is not None:
        file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
    before()
    sys.argv = ["unwalk", *words]
    from unwalk.cli import main

    main()


def nothing() -> None:
    """What a process does before its command, if nothing else is said."""


def start_unwalk(
    *words: object,
    folder: Path | None = None,
    out: Path | None = None,
    before: Callable[[], None] = nothing,
    parent: bool = False,
) -> Any:
    """A process with the command ``unwalk words``, just begun: in a folder, writing to a file.

    ``before`` changes the code of the process before the command begins.  Only a ``parent`` may
    start processes of its own; whoever starts it ends it.
    """
    where = (None if path is None else str(path) for path in (folder, out))
    process = CONTEXT.Process(
        target=_main, args=([str(word) for word in words], *where, before), daemon=not parent
    )
    process.start()
    return process
