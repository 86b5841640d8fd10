"""Runs: settings in, walks carried out and measured, results and files out.

This is the one place where tasks, walks, methods, privacy and engines meet.
"""

from __future__ import annotations

from pathlib import Path


def partial_of(out: Path) -> Path:
    """Where the results of a run to ``out`` grow until they are complete.

    >>> partial_of(Path("runs/first")).as_posix()
    'runs/first.partial'
    """
    return out.parent / f"{out.name}.partial"
