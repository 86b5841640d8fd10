"""Runs: settings in, walks carried out and measured, results and files out.

This is the one place where tasks, walks, methods, privacy and engines meet.

=================== =========================================================================
assemble, facts     settings resolved; task, graph, noise and plans; facts of the header
run, compare        one run, or one over several seeds, and their results
watch               walks while they are carried out; several models that answer together
metrics             what is measured; whether noise was worth it
store               the folder of a run, and whether it may be resumed on these data
releases            the register of draws of noise
replay              a run done again and compared
=================== =========================================================================

Start reading at ``run.run``, then ``assemble.Assembled``.
"""

from __future__ import annotations

from pathlib import Path


def partial_of(out: Path) -> Path:
    """Where the results of a run to ``out`` grow until they are complete.

    >>> partial_of(Path("runs/first")).as_posix()
    'runs/first.partial'
    """
    return out.parent / f"{out.name}.partial"
